"""Runs in verl's virtual environment. Arguments: a source, and a file of solved episodes.

verl's own `ToolAgentLoop` runs under the adapter, with verl's tokenization of turns and its Hermes parser; only the
inference server is a double, which answers with the tokens of a script.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.tools.tool_registry import initialize_tools_from_config
from verl.workers.rollout.replica import TokenOutput

from agentomnia.adapters import verl
from agentomnia.adapters.connection import close_clients
from agentomnia.errors import InfrastructureError

TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\n' + messages[0].content + '\n<tools>' }}"
    "{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{%- endfor %}{{ '\n</tools><|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages[1:] %}"
    "{%- if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and Qwen's control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


class ScriptedServer:
    """Stands for verl's client of inference servers."""

    def __init__(self, tokens: PreTrainedTokenizerFast, turns: list[str]) -> None:
        self.tokens, self.turns, self.prompts = tokens, list(turns), []

    async def generate(self, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        self.prompts.append(self.tokens.decode(prompt_ids))
        ids = self.tokens.encode(self.turns.pop(0) + "<|im_end|>", add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "rollout": {
                "prompt_length": 200_000,
                "response_length": 200_000,
                "full_determinism": False,
                "multi_turn": {
                    "max_user_turns": None,
                    "max_assistant_turns": 40,
                    "max_parallel_calls": 4,
                    "max_tool_response_length": 100_000,
                    "tool_response_truncate_side": "middle",
                    "format": "hermes",
                },
            }
        },
        "data": {"apply_chat_template_kwargs": {}, "mm_processor_kwargs": {}},
    }
)


def make_loop(source: str, tokens: PreTrainedTokenizerFast, server: ScriptedServer) -> verl.OmniaAgentLoop:
    """As AgentLoopWorker makes it, from the YAML that the adapter writes."""
    (config,) = OmegaConf.create(verl.agent_loop_config(source))
    loop = hydra.utils.instantiate(
        config=config,
        trainer_config=DictConfigWrap(config=CONFIG),
        server_manager=server,
        tokenizer=tokens,
        processor=None,
        hf_model_type="qwen3",
        dataset_cls=None,
        data_config=DictConfigWrap(CONFIG.data),
        tools=ToolListWrap([]),
    )
    assert isinstance(loop, verl.OmniaAgentLoop)
    return loop


def row_kwargs(row: dict[str, Any]) -> dict[str, Any]:
    """What verl's dataset makes of a row, and its worker hands to a loop."""
    kept = {k: v for k, v in row.items() if k not in ("prompt", "agent_name")}
    return {**kept, "raw_prompt": row["prompt"], "tools_kwargs": {}, "index": row["extra_info"]["index"]}


def script(episode: dict[str, Any]) -> list[str]:
    calls = [json.dumps({"name": tool, "arguments": arguments}) for tool, arguments in episode["calls"]]
    return [*(f"<tool_call>\n{call}\n</tool_call>" for call in calls), episode["answer"]]


async def run(source: str, episodes: list[dict[str, Any]]) -> None:
    rows = {row["extra_info"]["task"]: row for row in verl.dataset_rows(source)}
    tokens = tokenizer()
    await agent_loop(source, tokens, rows, episodes)
    await isolated(source, tokens, rows, episodes[0])
    await one_turn_in_order(source, tokens, rows, episodes)
    await tools_alone(source, episodes[0])
    await failing(source, tokens, rows, episodes[0])
    assert not verl._HELD
    await close_clients()


async def agent_loop(source: str, tokens: Any, rows: dict[str, Any], episodes: list[dict[str, Any]]) -> None:
    for episode in episodes:
        server = ScriptedServer(tokens, script(episode))
        loop = make_loop(source, tokens, server)
        output = await loop.run({}, **row_kwargs(rows[episode["task"]]))
        assert output.reward_score == 1.0, (episode["task"], server.prompts[-1][-2000:])
        assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
        own = [t for t, m in zip(output.response_ids, output.response_mask) if m]
        assert tokens.decode(own).count("<tool_call>") == len(episode["calls"])
        assert f'"name": "{episode["calls"][0][0]}"' in server.prompts[0]
        assert '"ok": true' in server.prompts[-1]
        assert "rm_scores" in output.as_dict()


async def isolated(source: str, tokens: Any, rows: dict[str, Any], episode: dict[str, Any]) -> None:
    """Trajectories of one task at the same time: each has the state of its own calls."""
    told = [script(episode), ["Sorry."], script(episode)]
    loops = [make_loop(source, tokens, ScriptedServer(tokens, turns)) for turns in told]
    outputs = await asyncio.gather(*(loop.run({}, **row_kwargs(rows[episode["task"]])) for loop in loops))
    assert [o.reward_score for o in outputs] == [1.0, 0.0, 1.0]


async def one_turn_in_order(source: str, tokens: Any, rows: dict[str, Any], episodes: list[dict[str, Any]]) -> None:
    """All calls in one turn, which verl starts at the same time, are made in their order; a wrong tool is told."""
    episode = next(e for e in episodes if 2 <= len(e["calls"]) <= 4)
    turns = script(episode)
    server = ScriptedServer(tokens, ["\n".join(turns[:-1]), '<tool_call>{"name": "nope", "arguments": {}}</tool_call>',
                                     turns[-1]])  # fmt: skip
    output = await make_loop(source, tokens, server).run({}, **row_kwargs(rows[episode["task"]]))
    assert output.reward_score == 1.0 and "Unknown function 'nope'" in server.prompts[-1]


async def tools_alone(source: str, episode: dict[str, Any]) -> None:
    """The tools of a configuration share the session of an instance id, from create to release."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tools.yaml"
        path.write_text(verl.tool_config(source, episode["environment"]))
        tools = {tool.name: tool for tool in initialize_tools_from_config(str(path))}
    used = [tools[tool] for tool, _ in episode["calls"]]
    place = {"environment": episode["environment"], "task": episode["task"]}
    ids = [(await tool.create("trajectory-1", create_kwargs=place))[0] for tool in used]
    assert set(ids) == {"trajectory-1"}
    other, _ = await used[0].create(**place)
    for tool, (_, arguments) in zip(used, episode["calls"]):
        response, reward, metrics = await tool.execute("trajectory-1", arguments)
        assert json.loads(response.text)["ok"] and reward == 0.0 and metrics == {"ok": 1.0}
    response, _, metrics = await used[0].execute(other, {"no_such_argument": 1})
    assert "invalid_argument" in response.text and metrics == {"ok": 0.0}
    assert await used[0].calc_reward("trajectory-1", message=episode["answer"]) == 1.0
    assert await used[0].calc_reward(other) == 0.0
    for tool in used:
        await tool.release("trajectory-1")
    await used[0].release(other)
    await used[0].release(other)


async def failing(source: str, tokens: Any, rows: dict[str, Any], episode: dict[str, Any]) -> None:
    """An infrastructure failure in a call is no observation with a reward: the trajectory is played again."""
    original, failures = verl.OmniaTool.execute, iter(range(1))

    async def flaky(self: Any, instance_id: str, parameters: Any, **kwargs: Any) -> Any:
        if next(failures, None) is not None:
            verl._HELD[instance_id].failure = InfrastructureError("a worker is gone; drop this rollout")
        return await original(self, instance_id, parameters, **kwargs)

    verl.OmniaTool.execute = flaky
    try:
        server = ScriptedServer(tokens, [*script(episode), *script(episode)])
        output = await make_loop(source, tokens, server).run({}, **row_kwargs(rows[episode["task"]]))
    finally:
        verl.OmniaTool.execute = original
    assert output.reward_score == 1.0 and not server.turns


def main(source: str, episodes: Path) -> None:
    solved = json.loads(episodes.read_text())
    asyncio.run(run(source, solved))
    print(json.dumps({"version": version("verl"), "episodes": len(solved)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
