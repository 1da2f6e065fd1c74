"""OpenEnv: a plain `Environment` whose action names a tool and its arguments; asynchronous, so it uses no thread."""

from __future__ import annotations

from typing import Any

import shop
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class ToolAction(Action):
    """A call of a tool."""

    tool_name: str
    arguments: dict[str, Any] = {}


class ToolObservation(Observation):
    """The tool's answer."""

    result: dict[str, Any] | None = None


class ShopEnvironment(Environment):
    """One instance for each socket."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        """Begin at the initial state."""
        super().__init__()
        self._instance = shop.new()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **others: Any) -> ToolObservation:
        """Go back to the initial state."""
        self._instance = shop.new()
        return ToolObservation()

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **others: Any
    ) -> ToolObservation:
        """Go back to the initial state."""
        return self.reset()

    def step(self, action: ToolAction, timeout_s: float | None = None, **others: Any) -> ToolObservation:
        """Call a tool."""
        if action.tool_name not in _TOOLS:
            return ToolObservation(result={"ok": False, "error": "no such tool"})
        return ToolObservation(result=getattr(self._instance, action.tool_name)(**action.arguments))

    async def step_async(self, action: ToolAction, timeout_s: float | None = None, **others: Any) -> ToolObservation:
        """Call a tool."""
        return self.step(action)

    @property
    def state(self) -> State:
        """What OpenEnv calls the state."""
        return State()


_TOOLS = frozenset(shop.TOOLS)

if __name__ == "__main__":
    shop.run(create_fastapi_app(ShopEnvironment, ToolAction, ToolObservation, max_concurrent_envs=4096))
