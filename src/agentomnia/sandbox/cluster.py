"""Places on several machines: chooses a node agent for every instance, and outlives the loss of any of them.

A session lives at the gateway with its snapshot and log, so losing a node costs it a replay on another one. A node that
has loaded a source already is preferred, unless another has much less to do. Calls go from the gateway straight to the
node; whatever placed the node (`ray_nodes.py`, a unit file, a person) has no part in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentomnia.errors import CapacityError, InfrastructureError, InputError, InstanceError
from agentomnia.sandbox.catalog import Source
from agentomnia.sandbox.link import Endpoint, Link
from agentomnia.sandbox.node import DRAINING
from agentomnia.sandbox.places import Place, Vacate, WorkerGone

log = logging.getLogger("agentomnia.cluster")

_WAITING_WEIGHT = 8
"""Instances that one waiting request counts for: a heuristic, a busy node shows by its queue first."""
_SLACK = 64
"""Instances that a node with the source loaded may have over twice those of the emptiest: a heuristic."""
_STEP_SECONDS = 0.02


@dataclass(frozen=True)
class NodeAddress:
    """Where a node agent is, and the token that it holds."""

    endpoint: Endpoint
    token: str = field(repr=False)


@dataclass(frozen=True)
class ClusterSettings:
    """How nodes are watched."""

    gauge_seconds: float = 1.0
    """How often a node is asked what runs there."""
    silence_seconds: float = 10.0
    """How long that may stay unanswered before the node counts as lost."""
    patience_seconds: float = 15.0
    """How long a new instance waits while no node is there at all."""
    first_retry_seconds: float = 0.05
    """Before the first attempt to reach a lost node; doubled each time."""
    last_retry_seconds: float = 2.0
    drain_seconds: float = 60.0
    """How long calls on a node that goes away may take to end."""


class RemotePlace:
    """A bench behind a node agent; implements `places.Place`."""

    def __init__(self, node: Node, link: Link, number: int, source: str) -> None:
        """Name a place that the node has given."""
        self.node, self.source, self.handles = node, source, 0
        self._link, self._number = link, number
        self.retired = False
        """Its worker is gone, or its node goes away: sessions wake up elsewhere."""

    @property
    def alive(self) -> bool:
        """Whether requests can be answered."""
        return self._link.up and not self.retired

    async def ask(self, operation: str, handle: int, *arguments: Any) -> Any:
        """Do an operation of `Bench` there."""
        if not self.alive:
            raise WorkerGone(suspect=False)
        try:
            return await self._link.ask(operation, self._number, handle, *arguments)
        except WorkerGone:
            self.retired = True
            raise
        except InstanceError as error:  # the handle is the gateway's matter, not its caller's
            raise InfrastructureError(f"a node refused: {error}; open the session again") from error

    def drop(self, handle: int) -> None:
        """Forget an instance; nobody waits for the answer."""
        if self.alive:
            self._link.ask("drop", self._number, handle).cancel()

    def close(self) -> None:
        """Give it up; the node drops what is there when this gateway leaves it."""
        self.retired = True


class Node:
    """One node agent as a gateway sees it: connected or not, and what it last told."""

    def __init__(self, address: NodeAddress, settings: ClusterSettings, changed: Callable[[], None]) -> None:
        """Begin unconnected; `keep` is to run for as long as the node is wanted.

        Args:
            address: where it is.
            settings: how it is watched.
            changed: called when it can be used again, and when it wants to go away.
        """
        self.address = address
        self.leaving = False
        """It goes away: it gets no more instances."""
        self.departing = False
        """Somebody moves its sessions already."""
        self._settings, self._changed = settings, changed
        self._link: Link | None = None
        self._places: dict[int, RemotePlace] = {}
        self._sent: set[str] = set()
        """Sources that it has got over this connection."""
        self._told: Mapping[str, Any] = {}

    @property
    def ready(self) -> bool:
        """Whether it takes instances."""
        return self._link is not None and self._link.up and bool(self._told) and not self.leaving

    @property
    def places(self) -> Iterator[RemotePlace]:
        """Its places that are alive."""
        return (place for place in self._places.values() if place.alive)

    @property
    def load(self) -> float:
        """How full it is, by its own instances now, other gateways' a moment ago, and what waits there."""
        own = sum(place.handles for place in self.places)
        others = self._told.get("instances", 0) - self._told.get("yours", 0)
        waiting = self._link.in_flight if self._link is not None else 0
        return float((own + others + _WAITING_WEIGHT * waiting) / self.capacity)

    @property
    def capacity(self) -> int:
        """Instances it can hold."""
        return max(1, int(self._told.get("capacity", 1)))

    @property
    def workers(self) -> int:
        """Worker processes there."""
        return int(self._told.get("workers", 0))

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return self._link.in_flight if self._link is not None else 0

    def holds(self, source: str) -> bool:
        """Whether it has loaded a source for this gateway."""
        return any(place.source == source for place in self.places)

    async def find(self, source: Source, sample: bytes) -> RemotePlace:
        """A place there.

        Raises:
            EnvironmentFault: the source does not load.
            InfrastructureError: it has no room, or cannot hold such code.
            WorkerGone: the node was lost meanwhile.
        """
        link = self._link
        if link is None:
            raise WorkerGone(suspect=False)
        known = source.id in self._sent
        number = await link.ask("load", source.id, None if known else _given(source, sample))
        if link is not self._link:
            raise WorkerGone(suspect=False)
        self._sent.add(source.id)
        place = self._places.get(number)
        if place is None:
            place = self._places[number] = RemotePlace(self, link, number, source.id)
        return place

    async def keep(self) -> None:
        """Stay connected, again and again, and ask what runs there; until cancelled."""
        first, last = self._settings.first_retry_seconds, self._settings.last_retry_seconds
        pause = first
        while True:
            try:
                self._link = await self._connect()
                pause = first
                await self._watch(self._link)
            except (InfrastructureError, WorkerGone) as error:
                log.info("node %s: %s", self.address.endpoint, error)
            finally:
                self._leave()
            await asyncio.sleep(pause)
            pause = min(2 * pause, last)

    async def _connect(self) -> Link:
        address = self.address
        return await Link.connect(address.endpoint, address.token, lambda: WorkerGone(suspect=False), self._noticed)

    async def _watch(self, link: Link) -> None:
        """Ask for gauges until the connection ends."""
        while link.up:
            try:
                # not `wait_for`: in Python 3.11 it may swallow a cancellation that comes with the answer
                async with asyncio.timeout(self._settings.silence_seconds):
                    told = await link.ask("gauges")
            except TimeoutError:
                return
            first, self._told = not self._told, told
            for number in self._places.keys() - set(told["places"]):
                self._places.pop(number).retired = True
            if first or told["draining"]:
                self.leaving = bool(told["draining"])
                self._changed()
            await asyncio.wait([link.ended], timeout=self._settings.gauge_seconds)

    def _noticed(self, what: str) -> None:
        if what == DRAINING:
            self.leaving = True
            self._changed()

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort()
        self.retire()
        self._places.clear()
        self._sent.clear()
        self._told = {}
        self.leaving = self.departing = False

    def retire(self) -> None:
        """Let its sessions wake up elsewhere; requests in flight go on."""
        for place in self._places.values():
            place.retired = True

    async def end(self, seconds: float) -> None:
        """Wait for the requests in flight, then end the connection, with which the node drops the instances."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.in_flight and loop.time() < deadline:
            await asyncio.sleep(_STEP_SECONDS)
        if self._link is not None:
            await self._link.close()


class ClusterPlaces:
    """Places on node agents; implements `places.Places`. Belongs to one event loop."""

    def __init__(self, nodes: Sequence[NodeAddress] = (), settings: ClusterSettings | None = None) -> None:
        """Connect to nobody yet.

        Args:
            nodes: the agents; more can come later.
            settings: how they are watched.
        """
        self.settings = settings or ClusterSettings()
        self.vacate: Vacate | None = None
        """Set by a host: before a node goes away its sessions go to sleep. Without, they are rebuilt by replay."""
        self._nodes: dict[NodeAddress, Node] = {}
        self._keepers: dict[NodeAddress, asyncio.Task[None]] = {}
        self._departures: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._wanted = list(nodes)

    @property
    def nodes(self) -> tuple[NodeAddress, ...]:
        """Every node that is wanted, reachable or not."""
        return (*self._nodes, *self._wanted)

    def add(self, address: NodeAddress) -> None:
        """Use another node from now on; one that is there already is left alone."""
        if address in self._nodes:
            return
        node = self._nodes[address] = Node(address, self.settings, self._changed)
        self._keepers[address] = asyncio.create_task(node.keep())

    async def drain(self, address: NodeAddress) -> None:
        """Give a node back: no new instances there, and those that are there wake up elsewhere.

        Raises:
            InputError: it is none of this cluster's.
        """
        node = self._nodes.get(address)
        if node is None:
            raise InputError(f"{address.endpoint} is no node of this cluster; see `nodes`")
        node.leaving = True
        await self._depart(node)
        await self._remove(address)

    async def follow(self, discover: Callable[[], Sequence[NodeAddress]], seconds: float = 5.0) -> None:
        """Use whichever nodes `discover` names, again and again; until cancelled.

        Args:
            discover: names the nodes; may block, runs in a thread.
            seconds: between two looks.
        """
        while True:
            try:
                found = await asyncio.to_thread(discover)
            except InfrastructureError as error:
                log.warning("nodes cannot be discovered now: %s", error)
            else:
                await self._adjust(found)
            await asyncio.sleep(seconds)

    async def _adjust(self, found: Sequence[NodeAddress]) -> None:
        for address in found:
            self.add(address)
        for address in [a for a, node in self._nodes.items() if a not in found and not node.ready]:
            await self._remove(address)

    async def find(self, source: Source, sample: bytes) -> Place:
        """A place for one more instance; see `Places.find`."""
        for address in self._wanted:
            self.add(address)
        self._wanted.clear()
        tried: set[Node] = set()
        refused: InfrastructureError | None = None
        deadline = asyncio.get_running_loop().time() + self.settings.patience_seconds
        while True:
            node = self._choose(source.id, tried)
            if node is None:
                if refused is not None:
                    raise refused
                await self._somebody(deadline)
                tried.clear()
                continue
            tried.add(node)
            try:
                return await node.find(source, sample)
            except InfrastructureError as error:
                refused = error if refused is None or isinstance(error, CapacityError) else refused
            except WorkerGone:
                continue

    def all(self) -> Iterator[Place]:
        """Every place that is alive."""
        return (place for node in self._nodes.values() for place in node.places)

    def gauges(self) -> Mapping[str, float]:
        """Nodes that take instances, those that are wanted, and what runs there."""
        nodes = self._nodes.values()
        return {
            "nodes": sum(node.ready for node in nodes),
            "nodes_wanted": len(self.nodes),
            "workers": sum(node.workers for node in nodes),
            "calls_waiting": sum(node.in_flight for node in nodes),
        }

    async def close(self) -> None:
        """Leave every node; the agents drop this gateway's instances and go on."""
        for address in list(self._nodes):
            await self._remove(address)
        for task in list(self._departures):
            task.cancel()
        await asyncio.gather(*self._departures, return_exceptions=True)

    def _choose(self, source: str, tried: set[Node]) -> Node | None:
        """The emptiest node that holds the source, unless the emptiest of all has much less to do."""
        ready = [node for node in self._nodes.values() if node.ready and node not in tried]
        if not ready:
            return None
        emptiest = min(ready, key=lambda n: n.load)
        best = min((n for n in ready if n.holds(source)), key=lambda n: n.load, default=emptiest)
        return best if best.load <= 2 * emptiest.load + _SLACK / best.capacity else emptiest

    async def _somebody(self, deadline: float) -> None:
        """Wait until a node can be used.

        Raises:
            InfrastructureError: none could, for too long.
        """
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_at(min(deadline, loop.time() + self.settings.last_retry_seconds), _let_go, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.remove(waiter)
        if loop.time() >= deadline:
            wanted = ", ".join(str(a.endpoint) for a in self.nodes) or "none is named"
            raise InfrastructureError(f"no node agent can be reached ({wanted}); start one, or look at its log")

    def _changed(self) -> None:
        """A node has come, or wants to go."""
        for waiter in self._waiters:
            _let_go(waiter)
        for node in self._nodes.values():
            if node.leaving and not node.departing:
                task = asyncio.create_task(self._depart(node))
                self._departures.add(task)
                task.add_done_callback(self._departures.discard)

    async def _depart(self, node: Node) -> None:
        """Move everything off a node, then leave it."""
        node.departing = True
        if self.vacate is not None:
            await self.vacate(lambda place: isinstance(place, RemotePlace) and place.node is node)
        node.retire()
        await node.end(self.settings.drain_seconds)

    async def _remove(self, address: NodeAddress) -> None:
        self._nodes.pop(address, None)
        keeper = self._keepers.pop(address, None)
        if keeper is None:
            return
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _given(source: Source, sample: bytes) -> dict[str, Any]:
    """What a node needs to load a source."""
    return {**source.request(sample if source.foreign else None), "trusted": source.program is not None}
