"""Runs in TRL's virtual environment. Arguments: a source, and a file of solved episodes.

A real GRPOTrainer with a tiny random Qwen3: its chat template, tool loop, parser, rewards, advantages and optimizer are
TRL's. Only the sampling is a double, since a random model writes no calls: one rollout of each pair plays the
reference, the other gives up.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from agentomnia.adapters import trl as omnia
from agentomnia.errors import InfrastructureError

ASKED = "<|im_start|>user\n<tool_response>"


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet))
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    inner.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=qwen3_chat_template,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=32_768, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


class ScriptedTrainer(GRPOTrainer):
    """GRPOTrainer whose sampler writes what a script says."""

    scripts: dict[str, list[str]]
    """Turns by the query of the task."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        return [self._written(ids, index) for index, ids in enumerate(prompt_ids)], None

    def _written(self, prompt: list[int], index: int) -> list[int]:
        text = self.processing_class.decode(prompt)
        turns = next(turns for query, turns in self.scripts.items() if query in text)
        answered = text.count(ASKED)
        turn = "Sorry." if not answered and index % 2 else turns[answered]
        return self.processing_class.encode(turn + "<|im_end|>", add_special_tokens=False)


def script(episode: dict[str, Any]) -> list[str]:
    calls = [json.dumps({"name": tool, "arguments": arguments}) for tool, arguments in episode["calls"]]
    return [*(f"<tool_call>\n{call}\n</tool_call>" for call in calls), episode["answer"]]


def train(source: str, solved: list[dict[str, Any]], scored: omnia.Scored) -> dict[str, float]:
    """One step; what TRL logged, and how much the weights moved."""
    rows = [
        r for r in omnia.dataset_rows(source, split="rl", scored=scored) if r["task"] in {e["task"] for e in solved}
    ]
    queries = {r["task"]: r["prompt"][1]["content"] for r in rows}
    tokenizer = make_tokenizer([m["content"] for r in rows for m in r["prompt"]] + [json.dumps(e) for e in solved])
    model = make_model(tokenizer)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    with tempfile.TemporaryDirectory() as folder:
        trainer = ScriptedTrainer(
            model=model,
            reward_funcs=omnia.episode_reward if scored == "message" else None,
            args=GRPOConfig(
                output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, max_steps=1, beta=0.0,
                per_device_train_batch_size=4, num_generations=2, max_completion_length=12_000, learning_rate=1e-3,
                max_tool_calling_iterations=30, report_to="none", save_strategy="no", logging_steps=1,
                disable_tqdm=True, shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_list(rows[:2]),
            processing_class=tokenizer,
            environment_factory=omnia.factories(source, split="rl", scored=scored),
        )  # fmt: skip
        trainer.scripts = {queries[e["task"]]: script(e) for e in solved if e["task"] in queries}
        trainer.train()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {**trainer.state.log_history[0], "moved": float((after - before).abs().max())}


def check_schemas(source: str) -> int:
    """Every tool of every class has the schema that TRL shows."""
    count = 0
    for factory in omnia.factories(source, split="rl").values():
        environment = factory()
        for name in (n for n in dir(type(environment)) if not n.startswith("_") and n != "reset"):
            schema = get_json_schema(getattr(environment, name))
            assert schema["function"]["name"] == name and schema["function"]["description"]
            count += 1
    return count


def lose_a_worker() -> None:
    """The first call of all fails for a reason that is not the agent's."""
    call, losses = omnia.TrainedEnvironment._call, iter(range(1))

    def losing(self: Any, tool: str, arguments: Any) -> str:
        if next(losses, None) is not None:
            self._failure = InfrastructureError("a worker is gone; drop this rollout")
        return call(self, tool, arguments)

    omnia.TrainedEnvironment._call = losing  # type: ignore[method-assign]


def main(source: str, episodes: Path) -> None:
    solved = json.loads(episodes.read_text())
    told: dict[str, Any] = {"version": trl.__version__, "schemas": check_schemas(source)}
    told["message"] = train(source, solved, "message")
    told["state"] = train(source, solved, "state")
    lose_a_worker()
    told["lost"] = train(source, solved, "message")
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
