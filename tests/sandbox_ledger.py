"""A ledger that counts, in environments of several names: what tests of node agents stand on. Needs no pytest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source
from agentomnia.sandbox.cluster import ClusterPlaces, NodeAddress, RemotePlace
from agentomnia.sandbox.host import Host
from agentomnia.sandbox.session import HostedSession

START = {"entries": [1], "total": 1}
LEDGER = """
import os

class Ledger:
    def __init__(self, state):
        self.entries, self.total = state["entries"], state["total"]

    def add(self, n):
        self.entries.append(n)
        self.total += n
        return {"ok": True, "data": {"total": self.total, "count": len(self.entries)}}

    def where(self):
        return {"ok": True, "data": os.getpid()}

    def die(self):
        os._exit(1)
"""
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
NUMBER = {**EMPTY, "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = {n: ToolSchema(n, "modify", f"{n}.", NUMBER if n == "add" else EMPTY) for n in ("add", "where", "die")}


def program(text: str = LEDGER) -> Program:
    return Program(name="Ledger", source=text, cls=load_class(text, "Ledger"), tools=TOOLS)


def source(name: str, text: str = LEDGER, trusted: bool = False) -> Source:
    info = EnvironmentInfo(name, "Ledger", "A ledger.", (), TOOLS, ("start",), trusted)
    return Source(
        info, "Ledger", text=lambda: text, state=lambda _: START, program=(lambda: program(text)) if trusted else None
    )


def catalog(count: int = 1, **given: Any) -> Catalog:
    return Catalog({f"ledger-{n}": source(f"ledger-{n}", **given) for n in range(count)})


class Pair:
    """A session, and an instance in this process that gets the same calls."""

    def __init__(self, session: HostedSession) -> None:
        self.session, self.twin = session, Instance(program(), START)

    async def add(self, n: int) -> None:
        assert await self.session.call("add", {"n": n}) == self.twin.call("add", {"n": n})

    async def compare(self) -> None:
        assert await self.session.digest() == self.twin.digest()


async def opened(made: Host, many: int) -> list[Pair]:
    names = list(made.environments)
    pairs = [Pair(await made.open(names[n % len(names)])) for n in range(many)]
    await asyncio.gather(*(pair.add(7) for pair in pairs))
    return pairs


def there(places: ClusterPlaces) -> dict[NodeAddress, int]:
    """Live instances by node."""
    found: dict[NodeAddress, int] = dict.fromkeys(places.nodes, 0)
    for place in places.all():
        assert isinstance(place, RemotePlace)
        found[place.node.address] += place.handles
    return found


async def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)
