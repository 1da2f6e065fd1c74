"""The server of `openreward` (ORS): one class with a method for each tool; its log is off."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["OPENREWARD_LOG_LEVEL"] = "ERROR"

import shop
from openreward.environments import Environment, Server, Split, TextBlock, ToolOutput, tool


def method(name: str, model: type[Any]) -> Any:
    """One tool."""

    async def call(self: Any, arguments: Any) -> ToolOutput:
        answer = getattr(self.instance, name)(**dict(arguments))
        return ToolOutput(blocks=[TextBlock(text=json.dumps(answer))])

    call.__name__, call.__doc__ = name, getattr(shop.CLASS, name).__doc__
    call.__annotations__ = {"arguments": model, "return": ToolOutput}
    return tool(call)


class _Base(Environment):
    """What every ORS environment has besides its tools."""

    def __init__(self, task_spec: Any = None, secrets: Any = None) -> None:
        """Begin at the initial state."""
        super().__init__(task_spec or {}, secrets or {})
        self.instance = shop.new()

    @classmethod
    def list_splits(cls) -> list[Any]:
        """One split."""
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        """One task."""
        return [{"id": "task"}]

    def get_prompt(self) -> list[Any]:
        """What the agent is told."""
        return [TextBlock(text="Serve the shop.")]


Shop = type("Shop", (_Base,), {name: method(name, model) for name, model in shop.models().items()})

if __name__ == "__main__":
    shop.run(Server([Shop]).app)
