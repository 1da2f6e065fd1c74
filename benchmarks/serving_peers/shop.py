"""The environment of the serving benchmark for servers that are not ours; runs without this project.

The folder in the first argument holds `environment.py`, the class that is served everywhere, and `shop.json`: its name,
its tools and an initial state. Typed functions are written from its signatures.
"""

from __future__ import annotations

import inspect
import json
import marshal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_FOLDER = Path(sys.argv[1])
_TOLD = json.loads((_FOLDER / "shop.json").read_text(encoding="utf-8"))
_NAMES: dict[str, Any] = {"__name__": "environment"}
exec(compile((_FOLDER / "environment.py").read_text(encoding="utf-8"), "environment.py", "exec"), _NAMES)
CLASS: Any = _NAMES[_TOLD["class"]]
TOOLS: list[str] = _TOLD["tools"]
TITLE = "shop"
_STATE = marshal.dumps(_TOLD["state"])  # quicker to copy than by `copy.deepcopy`


def new() -> Any:
    """A new instance at the initial state."""
    return CLASS(marshal.loads(_STATE))


class Sessions:
    """Instances by name, for protocols without instances of their own."""

    def __init__(self) -> None:
        """Begin without one."""
        self._open: dict[str, Any] = {}

    def open(self) -> str:
        """A new instance's name."""
        name = f"s{len(self._open)}"
        self._open[name] = new()
        return name

    def __getitem__(self, name: str) -> Any:
        """An instance by its name."""
        return self._open[name]


def parameters(tool: str) -> list[inspect.Parameter]:
    """The parameters of a tool as the class declares them."""
    return list(inspect.signature(getattr(CLASS, tool)).parameters.values())[1:]


def functions(first: str, owner: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Typed async functions for all tools.

    Args:
        first: a parameter that goes before the tool's own, as source text; empty for none.
        owner: gives the instance, by that parameter's value where there is one.
    """
    for tool in TOOLS:
        own = parameters(tool)
        declared = ", ".join((*([first] if first else []), *map(str, own)))
        passed = ", ".join(f"{p.name}={p.name}" for p in own)
        found = first.partition(":")[0]
        source = f"async def {tool}({declared}) -> dict[str, Any]:\n    return owner({found}).{tool}({passed})\n"
        names: dict[str, Any] = {"owner": owner, "Any": Any, "__name__": __name__}
        exec(source, names)
        names[tool].__doc__ = getattr(CLASS, tool).__doc__
        yield names[tool]


def models() -> dict[str, type[Any]]:
    """A pydantic model of the arguments of each tool."""
    from pydantic import create_model

    made = {}
    for tool in TOOLS:
        fields = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in parameters(tool)}
        made[tool] = create_model(f"{tool}_arguments", **fields)
    return made


def run(app: Any) -> None:
    """Serve an application at its best on a free port of this machine; tells the port in a line of JSON."""
    import uvicorn

    class Telling(uvicorn.Server):
        """Says where it listens."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print(json.dumps({"port": self.servers[0].sockets[0].getsockname()[1]}), flush=True)

    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, loop="uvloop", http="httptools", access_log=False, log_level="error",
        ws_ping_interval=None, ws_per_message_deflate=False, timeout_keep_alive=300, backlog=1024,
    )  # fmt: skip
    Telling(config).run()
