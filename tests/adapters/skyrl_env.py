"""Runs in skyrl-gym's virtual environment. Arguments: a source, and a file of solved episodes."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import skyrl_gym
from omegaconf import OmegaConf

from agentomnia.adapters import skyrl
from agentomnia.errors import InputError


def main(source: str, episodes: Path) -> None:
    skyrl.register()
    skyrl.register()
    rows = {row["extra_info"]["task"]: row for row in skyrl.dataset_rows(source)}
    solved = json.loads(episodes.read_text())
    for episode in solved:
        assert play(make(source, rows[episode["task"]]), rows[episode["task"]], episode) == 1.0
    refused_and_cut_off(source, rows[solved[0]["task"]])
    two_at_once(source, rows[solved[0]["task"]], solved[0])
    try:
        skyrl_gym.make(skyrl.ENV_CLASS, env_config=OmegaConf.create({}), extras={})
    except InputError as error:
        assert "skyrl_gym.omnia.source" in str(error)
    else:
        raise AssertionError("an environment without a source was made")
    print(json.dumps({"version": version("skyrl-gym"), "episodes": len(solved)}))


def make(source: str, row: dict[str, Any], max_turns: int = 40) -> Any:
    """What SkyRLGymGenerator does: the row without prompt and class, and the trainer's limit of turns."""
    extras = {k: v for k, v in row.items() if k not in ("prompt", "env_class")} | {"max_turns": max_turns}
    return skyrl_gym.make(row["env_class"], env_config=OmegaConf.create({"source": source}), extras=extras)


def written(*calls: tuple[str, Any]) -> str:
    """Calls as Qwen3 writes them, ended by its control token."""
    bodies = [json.dumps({"name": tool, "arguments": arguments}) for tool, arguments in calls]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies) + "<|im_end|>"


def play(env: Any, row: dict[str, Any], episode: dict[str, Any]) -> float:
    conversation, told = env.init(row["prompt"])
    assert told == {"environment": episode["environment"], "task": episode["task"]}
    assert [m["role"] for m in conversation] == ["system", "user"] and conversation[1]["content"] == episode["query"]
    assert conversation[0]["content"].startswith(row["prompt"][0]["content"])
    assert f'"name": "{episode["calls"][0][0]}"' in conversation[0]["content"]
    for call in episode["calls"]:
        out = env.step("<think>\nNext.\n</think>\n\n" + written(call))
        seen = out["observations"][0]["content"]
        assert (out["reward"], out["done"]) == (0.0, False)
        assert seen.startswith('<tool_response>\n{"ok": true') and seen.endswith("\n</tool_response>")
    out = env.step(episode["answer"] + "<|im_end|>")
    assert out["done"] and out["observations"] == []
    metrics = env.get_metrics()
    assert metrics["calls"] == len(episode["calls"]) and metrics["completed"] == 1.0
    assert type(env).aggregate_metrics([metrics, metrics])
    env.close()
    env.close()
    return float(out["reward"])


def refused_and_cut_off(source: str, row: dict[str, Any]) -> None:
    env = make(source, row, max_turns=2)
    env.init(row["prompt"])
    seen = env.step(written(("no_such_tool", {}), ("no_such_tool", {})))["observations"]
    assert len(seen) == 1 and seen[0]["content"].count("not_found") == 2
    out = env.step("<tool_call>\n{not json}\n</tool_call>")
    assert out["done"] and out["reward"] == 0.0
    env.close()


def two_at_once(source: str, row: dict[str, Any], episode: dict[str, Any]) -> None:
    """Two rollouts of a task see nothing of each other."""
    played, idle = make(source, row), make(source, row)
    idle.init(row["prompt"])
    assert play(played, row, episode) == 1.0
    assert idle.step("Done.")["reward"] == 0.0
    idle.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
