"""The host: sessions by id, and who gets room (paper, section 4.3).

Idle sessions hibernate and give their memory back; sessions that nobody used for the length of a lease are closed. What
does not fit is refused at once with a `CapacityError`: nothing waits in an unbounded queue. Where the instances live is
`Places`' matter: on this machine (`local.py`) or on several.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType

import msgpack

from agentomnia.environment.state import pack
from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError, InputError, InstanceError
from agentomnia.sandbox.api import LOCAL_TENANT, EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source
from agentomnia.sandbox.local import LocalPlaces
from agentomnia.sandbox.places import Place, Places
from agentomnia.sandbox.session import HostedSession
from agentomnia.task.task import Task


@dataclass(frozen=True)
class HostSettings:
    """How much a host takes on."""

    node: str = "n0"
    """Part of every session's id, so that any gateway can find the machine."""
    sessions: int = 100_000
    live_bytes: int = 4 << 30
    """Estimated memory of live instances; over it, the longest unused ones hibernate."""
    idle_seconds: float = 60.0
    """Unused time after which a session hibernates."""
    lease_seconds: float = 3600.0
    """Unused time after which a session is closed."""
    sweep_seconds: float = 1.0


_LIVE_FACTOR = 10
"""Memory of a live state over its packed bytes: measured, Python objects of JSON records."""


class Host:
    """Sessions of one machine; implements `api.Sandbox`. Belongs to one event loop."""

    def __init__(self, catalog: Catalog, settings: HostSettings | None = None, places: Places | None = None) -> None:
        """Begin without a session.

        Args:
            catalog: what can be opened.
            settings: how much at once.
            places: where instances live; by default on this machine.
        """
        self.catalog, self.settings = catalog, settings or HostSettings()
        self.places: Places = places or LocalPlaces()
        self.places.vacate = self._vacate
        self._sessions: dict[str, HostedSession] = {}
        self._states: dict[tuple[str, str], bytes] = {}
        self._handles = itertools.count(1)
        self._sweeper: asyncio.Task[None] | None = None
        self._counts = {"sessions_opened": 0, "sessions_expired": 0, "hibernations": 0}
        self.draining = False
        """No new session is opened; those that are open go on."""

    @property
    def environments(self) -> Mapping[str, EnvironmentInfo]:
        """Every environment by id."""
        return MappingProxyType(self.catalog.infos)

    def task(self, task: str) -> Task:
        """The public part of a task."""
        return self.catalog.entry(task).task

    async def open(
        self, environment: str, *, task: str | None = None, state: str | None = None, tenant: str = LOCAL_TENANT
    ) -> HostedSession:
        """Open a session; see `api.Sandbox.open`."""
        self._check_room()
        source = self.catalog.source(environment)
        entry = self.catalog.entry(task) if task is not None else None
        if entry is not None and entry.task.environment != environment:
            raise InputError(f"task {task} is of {entry.task.environment}, not of {environment}; open it there")
        if entry is not None and state is not None:
            raise InputError("a task has its own initial state; give a task or a state, not both")
        name = entry.task.state if entry is not None else state or next(iter(source.info.states), "")
        return self._admit(HostedSession(self, self._name(), source, entry, self._initial(source, name), tenant))

    def session(self, instance: str, tenant: str = LOCAL_TENANT) -> HostedSession:
        """A session by its id; renews its lease."""
        found = self._sessions.get(instance)
        if found is None or found.tenant != tenant:
            raise InstanceError(f"there is no session {instance[:80]!r}; it may have ended: open a new one")
        found.used = monotonic()
        return found

    def gauges(self) -> Mapping[str, float]:
        """What is live now."""
        return {
            "sessions": len(self._sessions),
            "sessions_awake": sum(1 for s in self._sessions.values() if s.awake),
            **self._counts,
            **self.places.gauges(),
        }

    async def save(self) -> bytes:
        """Put every session to sleep and give all of them as bytes, for the host that takes this one's place.

        No session is opened any more. One that cannot be put to sleep is kept with its fault.
        """
        self.draining = True
        for session in list(self._sessions.values()):
            await self._hibernate(session)
        saved: bytes = msgpack.packb([session.saved() for session in self._sessions.values()])
        return saved

    def adopt(self, saved: bytes) -> int:
        """Take over the sessions of a host that has gone; to be called in the event loop.

        Returns:
            How many there are.

        Raises:
            InputError: the bytes are none of `save`'s, or an environment or task of theirs is not here.
        """
        try:
            rows = [(*row[:5], row[5:]) for row in msgpack.unpackb(saved)]
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"these are no saved sessions ({error}); start without them") from None
        for name, tenant, environment, task, initial, rest in rows:
            source = self.catalog.source(environment)
            entry = self.catalog.entry(task) if task is not None else None
            self._admit(HostedSession(self, name, source, entry, initial, tenant).restored(*rest))
        return len(rows)

    async def close(self) -> None:
        """Close every session and stop every worker."""
        self.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self._sessions.values()):
            await session.close()
        await self.places.close()

    # what sessions ask of their host

    def next_handle(self) -> int:
        """A new number for an instance."""
        return next(self._handles)

    def forget(self, session: HostedSession) -> None:
        """Take a closed session out of the books."""
        self._sessions.pop(session.id, None)

    def fork(self, session: HostedSession, snapshot: bytes) -> HostedSession:
        """A second session at a snapshot."""
        self._check_room()
        return self._admit(session.sibling(self._name(), snapshot))

    async def place(self, source: Source, sample: bytes) -> Place:
        """A place for one more live instance; see `Places.find`."""
        await self._make_room(len(sample))
        return await self.places.find(source, sample)

    def _check_room(self) -> None:
        if self.draining:
            raise InfrastructureError("the sandbox is going away; open the session at another one")
        if len(self._sessions) >= self.settings.sessions:
            raise CapacityError(f"no room for another session ({len(self._sessions)} are open); try again later")

    def _name(self) -> str:
        return f"{self.settings.node}-{secrets.token_hex(12)}"

    def _admit(self, session: HostedSession) -> HostedSession:
        self._sessions[session.id] = session
        self._counts["sessions_opened"] += 1
        session.used = monotonic()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        return session

    def _initial(self, source: Source, name: str) -> bytes:
        packed = self._states.get((source.id, name))
        if packed is None:
            packed = self._states[source.id, name] = pack(source.state(name))
        return packed

    async def _make_room(self, packed: int) -> None:
        """Let the longest unused sessions sleep until another live instance fits."""
        awake = [s for s in self._sessions.values() if s.awake and not s.busy] if self._over(packed) else []
        for session in sorted(awake, key=lambda s: s.used):
            if not self._over(packed):
                return
            await self._hibernate(session)

    def _over(self, packed: int) -> bool:
        handles = sum(place.handles for place in self.places.all())
        return (handles + 1) * packed * _LIVE_FACTOR > self.settings.live_bytes

    async def _vacate(self, leaves: Callable[[Place], bool]) -> None:
        """Let the sessions sleep whose instances are at a place that goes away."""
        for session in list(self._sessions.values()):
            if session.place is not None and leaves(session.place):
                await self._hibernate(session)

    async def _hibernate(self, session: HostedSession) -> None:
        try:
            await session.hibernate()
            self._counts["hibernations"] += 1
        except (EnvironmentFault, InfrastructureError):
            return  # the session remembers its fault; its next user hears of it

    async def _sweep(self) -> None:
        """Hibernate what is idle and close what has expired; for ever."""
        settings = self.settings
        while True:
            await asyncio.sleep(settings.sweep_seconds)
            now = monotonic()
            for session in [s for s in self._sessions.values() if not s.busy]:
                if now - session.used > settings.lease_seconds:
                    self._counts["sessions_expired"] += 1
                    await session.close()
                elif session.awake and now - session.used > settings.idle_seconds:
                    await self._hibernate(session)
