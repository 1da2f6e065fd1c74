"""OpenEnv: the stock `MCPEnvironment`, its tools on a FastMCP server of its own, as its examples have it."""

from __future__ import annotations

from typing import Any

import shop
from fastmcp import FastMCP
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class ShopEnvironment(MCPEnvironment):
    """One instance for each socket."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        """Begin at the initial state."""
        self._instance = shop.new()
        server: FastMCP = FastMCP(shop.TITLE)
        for function in shop.functions("", lambda: self._instance):
            server.tool(function)
        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **others: Any) -> Observation:
        """Go back to the initial state."""
        self._instance = shop.new()
        return Observation()

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **others: Any) -> Observation:
        """Go back to the initial state."""
        return self.reset()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **others: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        """What OpenEnv calls the state."""
        return State()


if __name__ == "__main__":
    shop.run(create_fastapi_app(ShopEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=4096))
