"""Runs in Gymnasium's virtual environment. Arguments: a source, and a file of solved episodes."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from agentomnia.adapters.gymnasium import ENV_ID, register


def main(source: str, episodes: Path) -> None:
    warnings.simplefilter("error")  # what the checker only warns about fails too
    register()
    register()
    env = gymnasium.make(ENV_ID, source=source)
    check_env(env.unwrapped)
    solved = json.loads(episodes.read_text())
    for episode in solved:
        assert play(env, episode, episode["answer"]) == 1.0
        assert play(env, {**episode, "calls": []}, "Sorry.") == 0.0
    refusals_and_limits(source, solved[0])
    env.close()
    env.close()
    print(json.dumps({"version": gymnasium.__version__, "episodes": len(solved)}))


def play(env: gymnasium.Env[str, str], episode: dict[str, Any], answer: str) -> float:
    query, info = env.reset(options={"task": episode["task"]})
    assert query == episode["query"] and info["environment"] == episode["environment"]
    assert info["tools"] and info["tools"][0]["type"] == "function"
    for tool, arguments in episode["calls"]:
        action = json.dumps({"name": tool, "arguments": arguments})
        seen, reward, terminated, truncated, _ = env.step(action)
        assert json.loads(seen)["ok"] and (reward, terminated, truncated) == (0.0, False, False)
    seen, reward, terminated, truncated, told = env.step(answer)
    assert (seen, terminated, truncated) == ("", True, False)
    assert told["calls"] == len(episode["calls"]) and told["refused"] == 0
    return float(reward)


def refusals_and_limits(source: str, episode: dict[str, Any]) -> None:
    env = gymnasium.make(ENV_ID, source=source, environment=episode["environment"], max_turns=3)
    env.reset(options={"task": episode["task"]})
    both = json.dumps([{"name": "no_such_tool", "arguments": {}}, {"name": episode["calls"][0][0], "arguments": 3}])
    lines = [json.loads(line) for line in env.step(both)[0].splitlines()]
    assert [line["error"]["code"] for line in lines] == ["not_found", "invalid_argument"]
    tagged = '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call>'
    assert json.loads(env.step(tagged)[0])["error"]["code"] == "not_found"
    _, reward, terminated, truncated, _ = env.step(tagged)
    assert (reward, terminated, truncated) == (0.0, False, True)
    env.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
