"""A node agent: lends a machine's workers to gateways (paper, section 4.3, "cluster scheduling").

    python -m agentomnia.sandbox.node --listen HOST:PORT --token-file FILE

It offers benches and nothing else. Sessions, their snapshots and logs, tasks and criteria stay at the gateways, so a
node may die at any time. Requests are frames of `link.py`, `[number, operation, place, handle, …]`:

    load       source, what is needed to load it or nil   gives the number of a place for one more instance
    open, call, batch, reset, digest, snapshot, restore, drop   as in `Bench`
    gauges     what runs here
    drain      take no more instances, and stop when the last one has gone

The answers for one place come in the order of the requests. When a gateway's connection ends, its instances go.
Every holder of the token can make this machine run code in a worker; with `--trust` also in the agent itself.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import msgpack

from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.errors import CapacityError, InputError, InstanceError, OmniaError
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Source
from agentomnia.sandbox.link import OK, Endpoint, told
from agentomnia.sandbox.local import LocalPlaces, LocalSettings
from agentomnia.sandbox.places import BrokenCall, Place, Places, WorkerGone
from agentomnia.sandbox.served import Listener, ServedLink
from agentomnia.sandbox.wire import WireError

BENCH_OPERATIONS = frozenset(("open", "call", "batch", "reset", "digest", "snapshot", "restore", "drop"))
DRAINING = "draining"
"""The notice to gateways that the node goes away."""
_HANDLE_BITS = 40
"""Handles are a gateway's own; above them stands the number of its connection."""
_DRAIN_STEP_SECONDS = 0.05


@dataclass(frozen=True)
class NodeSettings:
    """How much a node lends."""

    instances: int = 50_000
    """Live instances."""
    in_flight: int = 16_384
    """Requests of one gateway without an answer."""
    trust: bool = False
    """Run what gateways say is trusted in this process."""
    drain_seconds: float = 60.0
    """How long instances may take to leave."""


class NodeAgent:
    """Lends places to the gateways that hold the token. Belongs to one event loop."""

    def __init__(self, places: Places, token: str, settings: NodeSettings | None = None) -> None:
        """Listen nowhere yet.

        Args:
            places: what is lent.
            token: what gateways must hold.
            settings: how much at once.
        """
        self.places, self.settings = places, settings or NodeSettings()
        self._numbers = itertools.count(1)
        self._listener = Listener(self._gateway, token, most_in_flight=self.settings.in_flight)
        self.drained = asyncio.get_running_loop().create_future()
        """Done when the node has been drained."""
        self._draining: asyncio.Task[None] | None = None

    async def start(self, endpoint: Endpoint) -> Endpoint:
        """Listen; gives back where.

        Raises:
            InputError: that is not possible there.
        """
        return await self._listener.start(endpoint)

    @property
    def gateways(self) -> Iterator[_Gateway]:
        """The connections now."""
        return (link for link in self._listener.links if isinstance(link, _Gateway))

    @property
    def instances(self) -> int:
        """Live instances."""
        return sum(gateway.instances for gateway in self.gateways)

    def check_room(self) -> None:
        """See that one more instance fits.

        Raises:
            CapacityError: it does not.
        """
        if self._draining is not None:
            raise CapacityError("this node is being drained; use another")
        if self.instances >= self.settings.instances:
            raise CapacityError(f"all {self.settings.instances} instances of this node are in use; use another")

    def gauges(self) -> dict[str, Any]:
        """What runs here."""
        return {
            "instances": self.instances,
            "capacity": self.settings.instances,
            "waiting": sum(gateway.in_flight for gateway in self.gateways),
            "draining": self._draining is not None,
            **{name: value for name, value in self.places.gauges().items() if name.startswith("workers")},
        }

    def drain(self) -> None:
        """Take no more instances; `drained` is done when those that are here have left, or their time is up."""
        if self._draining is None:
            self._listener.refuse()
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        for gateway in self.gateways:
            gateway.notify(DRAINING)
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.drain_seconds
        while self.instances and loop.time() < end:
            await asyncio.sleep(_DRAIN_STEP_SECONDS)
        if not self.drained.done():
            self.drained.set_result(None)

    async def close(self) -> None:
        """Stop everything."""
        if self._draining is not None:
            self._draining.cancel()
        await self._listener.close()
        await self.places.close()

    def _gateway(self, listener: Listener) -> _Gateway:
        return _Gateway(self, listener, next(self._numbers))


class _Gateway(ServedLink):
    """One gateway's connection: its places by number and its open handles."""

    def __init__(self, agent: NodeAgent, listener: Listener, number: int) -> None:
        super().__init__(listener)
        self._agent = agent
        self._first_handle = number << _HANDLE_BITS
        self._sources: dict[str, tuple[Source, bytes]] = {}
        self._places: dict[int, Place] = {}
        self._open: dict[int, Place] = {}
        """Where each handle is."""
        self._place_numbers = itertools.count(1)

    @property
    def instances(self) -> int:
        """Live instances of this gateway."""
        return len(self._open)

    def request(self, number: int, operation: str, rest: list[Any]) -> None:
        """Take a request."""
        match operation, rest:
            case "load", [str(key), given]:
                self.run(number, self._load(key, given), at_once=False)
            case "gauges", []:
                self.answer(number, OK, self._gauges())
            case "drain", []:
                self._agent.drain()
                self.answer(number, OK, None)
            case _, [int(place), int(handle), *arguments] if operation in BENCH_OPERATIONS:
                self._ask(number, operation, place, handle, arguments)
            case _:
                raise WireError(f"no request of a gateway: {operation[:40]}; use the same version on both sides")

    def _ask(self, number: int, operation: str, place_number: int, handle: int, arguments: list[Any]) -> None:
        place = self._places.get(place_number)
        if place is None or not place.alive:
            self.answer(number, *told(WorkerGone(suspect=False)))
        elif operation == "open":
            self.run(number, self._open_there(place, handle, arguments), at_once=True)
        elif operation == "drop":
            self._drop(handle)
            self.answer(number, OK, None)
        else:
            # nothing between here and the worker's socket waits, so the requests of one place stay in order
            self.run(number, place.ask(operation, self._first_handle + handle, *arguments), at_once=True)

    async def _open_there(self, place: Place, handle: int, arguments: list[Any]) -> None:
        self._open[handle] = place
        place.handles += 1
        try:
            await place.ask("open", self._first_handle + handle, *arguments)
        except (OmniaError, WorkerGone, BrokenCall):
            self._forget(handle)
            raise
        if self._transport is None:  # the gateway has gone meanwhile
            self._drop(handle)

    def _drop(self, handle: int) -> None:
        place = self._forget(handle)
        if place is not None:
            place.drop(self._first_handle + handle)

    def _forget(self, handle: int) -> Place | None:
        place = self._open.pop(handle, None)
        if place is not None:
            place.handles -= 1
        return place

    async def _load(self, key: str, given: Any) -> int:
        if given is not None:
            self._sources[key] = _source(key, given, self._agent.settings.trust), given["sample"] or b""
        if key not in self._sources:
            raise InstanceError(f"the node does not know {key[:80]}; send its source")
        self._agent.check_room()
        return self._number(await self._agent.places.find(*self._sources[key]))

    def _number(self, place: Place) -> int:
        for number, known in self._places.items():
            if known is place:
                return number
        number = next(self._place_numbers)
        self._places[number] = place
        return number

    def _gauges(self) -> dict[str, Any]:
        for number in [n for n, place in self._places.items() if not place.alive]:
            dead = self._places.pop(number)
            self._open = {handle: place for handle, place in self._open.items() if place is not dead}
        return {**self._agent.gauges(), "yours": self.instances, "places": list(self._places)}

    def lost(self) -> None:
        """Drop every instance of this gateway."""
        for handle in list(self._open):
            self._drop(handle)


def _source(key: str, given: Mapping[str, Any], trust: bool) -> Source:
    """A source as it came; its id holds its content, since gateways may mean different things by one name."""
    mark = hashlib.sha256(msgpack.packb({**given, "sample": None})).hexdigest()[:16]
    text, name = str(given["source"]), str(given["name"])
    tools = {t["name"]: ToolSchema(**t) for t in given["tools"]}
    trusted = trust and bool(given["trusted"])

    def no_state(state: str) -> dict[str, Any]:
        raise InputError(f"a node has no state {state[:80]!r}; its gateway has")

    def program() -> Program:
        return Program(name=name, source=text, cls=load_class(text, name), tools=tools)

    info = EnvironmentInfo(f"{key}@{mark}", name, "", (), tools, (), trusted)
    code = given["code"]
    return Source(
        info=info,
        class_name=name,
        text=lambda: text,
        state=no_state,
        program=program if trusted else None,
        foreign=bool(given["foreign"]),
        code=(lambda: code[1]) if code is not None and code[0] == MAGIC_NUMBER else None,
    )


def main() -> None:
    """Run a node agent until it is told to stop: SIGTERM drains, SIGINT stops."""
    parser = argparse.ArgumentParser(prog="agentomnia.sandbox.node", description=main.__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", help="HOST:PORT or unix:PATH; port 0 takes a free one")
    parser.add_argument("--token-file", type=Path, required=True, help="file with the token that gateways hold")
    parser.add_argument("--workers", type=int, default=LocalSettings.workers, help="worker processes")
    parser.add_argument("--instances", type=int, default=NodeSettings.instances, help="live instances")
    parser.add_argument("--trust", action="store_true", help="run what gateways say is trusted in this process")
    parser.add_argument("--unsafe", action="store_true", help="run untrusted code also where nothing can hold it")
    parser.add_argument("--drain-seconds", type=float, default=NodeSettings.drain_seconds)
    parser.add_argument("--tied", action="store_true", help="stop when standard input ends")
    given = parser.parse_args()
    try:
        with asyncio.Runner(loop_factory=_quick_loop()) as runner:
            runner.run(_serve(given))
    except OmniaError as error:
        sys.exit(f"node: {error}")


def _quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop (extra `serve`) where it is installed, else Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(given: argparse.Namespace) -> None:
    places = LocalPlaces(replace(LocalSettings(), workers=given.workers, unsafe=given.unsafe))
    settings = NodeSettings(given.instances, trust=given.trust, drain_seconds=given.drain_seconds)
    agent = NodeAgent(places, read_token(given.token_file), settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    agent.drained.add_done_callback(lambda _: stopped.set())
    loop.add_signal_handler(signal.SIGTERM, agent.drain)
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    try:
        endpoint = await agent.start(Endpoint.parse(given.listen))
        print(json.dumps({"listening": str(endpoint), "isolation": places.isolation.describe()}), flush=True)
        if given.tied:
            loop.add_reader(sys.stdin.fileno(), stopped.set)
        await stopped.wait()
    finally:
        await agent.close()


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        InputError: the file cannot be read, or what it holds can be guessed.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; write a token into it") from error
    if len(token) < 16:
        raise InputError(f"{path}: a token of {len(token)} characters can be guessed; write 16 or more into it")
    return token


if __name__ == "__main__":
    main()
