"""FastAPI with one route for each tool, and a pydantic model of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import shop
from fastapi import FastAPI

sessions = shop.Sessions()
app = FastAPI()


@app.post("/sessions")
async def open_session() -> dict[str, str]:
    """Open an instance."""
    return {"session": sessions.open()}


def route(tool: str, model: type[Any]) -> Callable[..., Any]:
    """The handler of one tool."""

    async def handler(session: str, arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(sessions[session], tool)(**dict(arguments))
        return answer

    handler.__annotations__ = {"session": str, "arguments": model, "return": dict[str, Any]}
    return handler


for name, arguments_model in shop.models().items():
    app.post(f"/sessions/{{session}}/{name}")(route(name, arguments_model))

if __name__ == "__main__":
    shop.run(app)
