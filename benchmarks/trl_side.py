"""TRL's side of rollout.py: GRPOTrainer on the same policy and tasks. Runs in TRL's virtual environment.

Reads the plan as one line of JSON, answers with its versions, then makes a step for every line it is sent and answers
with what the step cost.

Every task is an environment of TRL's `environment_factory`: its exposed tools are methods that call the real
`Instance`, what they return is what our policy's view shows, and the reward is the grade of the task's criterion. The
prompt is our view's, token for token, which is checked before anything is measured, as are the logits of the model.
"""

from __future__ import annotations

import inspect
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, TextIO

import torch
from datasets import Dataset
from rollout import Plan, StepCost
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from agentomnia.environment.instance import Instance
from agentomnia.episodes.loop import tool_list
from agentomnia.task.grade import grade
from agentomnia.training.chat import tool_responses
from agentomnia.training.engines.local import view
from agentomnia.training.engines.local.policy import Fresh, load_policy
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.engines.local.worker import PolicyTask

TEMPLATE = (
    "{%- for m in messages -%}"
    "{%- if m.role == 'tool' -%}"
    "{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\n' }}{%- endif -%}"
    "{%- elif m.role == 'assistant' -%}"
    "{{ '<|im_start|>assistant\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] -%}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' + c.function.arguments | tojson'
    " + '}\n</tool_call>' }}"
    "{%- endfor -%}{{ '<|im_end|>\n' }}"
    "{%- else -%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
"""What training/chat.py writes. The tools stand in the system message already, one line each, as our view has them."""

_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


def main() -> None:
    """Read the plan, check that model and prompts are ours, and train step by step."""
    answers, sys.stdout = sys.stdout, sys.stderr  # the trainer prints
    torch.set_num_threads(1)
    told = json.loads(sys.stdin.readline())
    plan = Plan(**{**told, "tasks": tuple(told["tasks"])})
    tasks = plan.policy_tasks()
    tokenizer = make_tokenizer(plan)
    model = Qwen3ForCausalLM.from_pretrained(plan.checkpoint(), dtype=torch.float32)
    check_same(plan, tasks, tokenizer, model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(plan, tasks, tokenizer, model, folder, answers)
        print(json.dumps(_versions()), file=answers, flush=True)
        trainer.train()


def make_tokenizer(plan: Plan) -> PreTrainedTokenizerFast:
    """The policy's tokenizer as transformers has it, with our form of a conversation."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(plan.tokenizer()), eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    tokenizer.response_template = qwen3_template
    return tokenizer


def prompt(task: PolicyTask) -> list[dict[str, str]]:
    """The opening of our view as messages."""
    stage = task.stage()
    text = view.opening(stage.task, stage.state, tool_list(stage))
    system = text.removeprefix("<|im_start|>system\n").split("<|im_end|>", 1)[0]
    return [{"role": "system", "content": system}, {"role": "user", "content": stage.task.query}]


class TaskEnvironment:
    """What TRL wants of an environment, around a real instance; `environment_of` adds the tools."""

    task: PolicyTask

    def __init__(self) -> None:
        """Open an instance."""
        self._stage = self.task.stage()
        self._instance = Instance(self._stage.program, self._stage.state)

    def reset(self, **_: object) -> None:
        """Go back to the initial state."""
        self._instance.reset()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        answer = self._instance.call(name, arguments)
        return view.observation(json.dumps(answer, ensure_ascii=False))

    def _grade(self, completion: Sequence[Mapping[str, Any]]) -> float:
        """The reward; 0 where the last message is a call, since the episode was cut off."""
        last = completion[-1]
        if last["role"] != "assistant" or last.get("tool_calls"):
            return 0.0
        text = str(last.get("content") or "")
        return grade(self._stage.private.criterion, self._stage.state, self._instance.live_state, text).reward


def environment_of(task: PolicyTask) -> type[TaskEnvironment]:
    """The environment class of a task, with its exposed tools as methods."""
    tools = {t["function"]["name"]: _method(t["function"]) for t in tool_list(task.stage())}
    return type(f"Environment_{task.task.id}", (TaskEnvironment,), {"task": task, **tools})


def _method(function: Mapping[str, Any]) -> Callable[..., str]:
    """A tool as a method with the signature and the docstring that TRL makes its schema of."""
    name, schema = function["name"], function["parameters"]
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))

    def tool(self: TaskEnvironment, **arguments: object) -> str:
        return self._call(name, arguments)

    kinds = {p: _TYPES.get(str(properties[p].get("type")), Any) for p in properties}
    empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(p, keyword, default=empty if p in required else None, annotation=kinds[p]) for p in properties
    ]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    tool.__name__, tool.__annotations__ = name, kinds
    tool.__doc__ = "\n".join([f"{name}.", "", "Args:", *(f"    {p}: {p}." for p in properties)])
    tool.__signature__ = inspect.Signature([receiver, *parameters])  # type: ignore[attr-defined]
    return tool


class MeteredTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that counts what its steps cost; nothing else is changed."""

    spent, tokens, own_tokens = 0.0, 0, 0
    """Of the step under way: CPU seconds of generation, tokens of the sequences, tokens that the policy chose."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        started = time.process_time()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.spent += time.process_time() - started
        self.tokens += int(output["prompt_mask"].sum() + output["completion_mask"].sum())
        self.own_tokens += int((output["completion_mask"] * output["tool_mask"]).sum())
        return output


class _Meter(TrainerCallback):  # type: ignore[misc]
    """Waits before every step until it is asked for, and answers after it with what it cost.

    The trainer draws its next batch of prompts before a step begins; that is not counted.
    """

    def __init__(self, answers: TextIO) -> None:
        self.trainer: MeteredTrainer | None = None
        self.rewards: list[float] = []
        self._answers = answers
        self._cpu, self._wall = 0.0, 0.0

    def on_step_begin(self, *_: object, **__: object) -> None:
        assert self.trainer is not None
        if not sys.stdin.readline():
            raise SystemExit("nobody asks for steps any more")
        self.trainer.spent, self.trainer.tokens, self.trainer.own_tokens = 0.0, 0, 0
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        assert self.trainer is not None
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        training = cpu - self.trainer.spent
        cost = StepCost(
            rollouts=len(self.rewards),
            generation=self.trainer.spent,
            training=training,
            wall=wall,
            passed=sum(self.rewards),
            tokens=self.trainer.tokens,
            own_tokens=self.trainer.own_tokens,
            trained=len(self.rewards),
            training_on_all=training,
        )
        print(json.dumps(asdict(cost)), file=self._answers, flush=True)


def make_trainer(
    plan: Plan,
    tasks: Sequence[PolicyTask],
    tokenizer: PreTrainedTokenizerFast,
    model: Qwen3ForCausalLM,
    folder: str,
    answers: TextIO,
) -> MeteredTrainer:
    """The trainer with settings like ours."""
    meter = _Meter(answers)

    def reward(completions: list[Any], environments: list[TaskEnvironment], **_: object) -> list[float]:
        meter.rewards = [e._grade(c) for e, c in zip(environments, completions)]
        return meter.rewards

    openings = [len(tokenizer(_text(tokenizer, prompt(t)))["input_ids"]) for t in tasks]
    trainer = MeteredTrainer(
        model=model,
        reward_funcs=reward,
        args=settings(plan, plan.context - sum(openings) // len(openings), folder),
        train_dataset=Dataset.from_list([{"prompt": prompt(t), "environment": t.task.id} for t in tasks]),
        processing_class=tokenizer,
        environment_factory={t.task.id: environment_of(t) for t in tasks},
        callbacks=[meter],
    )
    meter.trainer = trainer
    return trainer


def settings(plan: Plan, completion: int, folder: str) -> GRPOConfig:
    """TRL's settings: the same group, limits, loss and rates; nothing logged, saved or compiled.

    Args:
        plan: what is compared.
        completion: most tokens after the prompt, tool results included.
        folder: for what the trainer insists on writing.
    """
    accumulate = plan.prompts * plan.group // plan.micro_batch
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=plan.precision == "bfloat16",
        gradient_checkpointing=False,
        per_device_train_batch_size=plan.micro_batch,
        gradient_accumulation_steps=accumulate,
        steps_per_generation=accumulate,
        num_generations=plan.group,
        num_iterations=1,
        max_steps=plan.steps,
        max_completion_length=completion,
        max_tool_calling_iterations=plan.turns - 1,
        # without this a turn that does not end would run to the end of the context, and its batch with it
        generation_kwargs={"max_new_tokens": plan.turn_tokens},
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=plan.rate,
        adam_beta2=plan.beta2,
        weight_decay=0.0,
        max_grad_norm=1.0,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=plan.warmup,
        shuffle_dataset=False,
        seed=plan.seed,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def check_same(
    plan: Plan, tasks: Sequence[PolicyTask], tokenizer: PreTrainedTokenizerFast, model: Qwen3ForCausalLM
) -> None:
    """Stop where prompts, tool results or logits are not those of the local engine."""
    ours = WordTokenizer.load(plan.tokenizer())
    policy = load_policy(plan.checkpoint())
    for task in tasks:
        stage = task.stage()
        wanted = ours.encode(view.opening(stage.task, stage.state, tool_list(stage)))
        found = tokenizer(_text(tokenizer, prompt(task)))["input_ids"]
        if found != wanted:
            raise SystemExit(f"{task.task.id}: TRL's prompt is not ours; compare TEMPLATE with training/chat.py")
    ids = torch.tensor([wanted])
    with torch.no_grad():
        hidden = policy(ids, torch.arange(ids.shape[1])[None], Fresh())
        apart = float((policy.logits(hidden) - model(ids).logits).abs().max())
    if apart > 1e-3:
        raise SystemExit(f"{plan.checkpoint()}: logits of the two models differ by {apart:.1e}; read config.json")
    call = {"type": "function", "function": {"name": "get_one", "arguments": {"key": "A"}}}
    told = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": '{"a": 1}'}]
    if not _text(tokenizer, told).endswith(tool_responses(['{"a": 1}'])):
        raise SystemExit("TRL's tool results are not ours; compare TEMPLATE with training/chat.py")


def _text(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Mapping[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))


def _versions() -> dict[str, str]:
    told = {name: version(name) for name in ("torch", "trl", "transformers", "accelerate", "tokenizers")}
    return {"python": platform.python_version(), **told}


if __name__ == "__main__":
    main()
