"""Places on this machine: the host's own process for trusted environments, isolated workers for all others.

An environment source never shares a worker with another. A busy one gets a second worker; where all workers are in
use, one without an instance makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentomnia.errors import CapacityError, EnvironmentFault, InfrastructureError
from agentomnia.sandbox.catalog import Source
from agentomnia.sandbox.isolation import Isolation, WorkerLimits, probe
from agentomnia.sandbox.places import BrokenCall, InProcess, Isolated, Place, Vacate, WorkerGone
from agentomnia.sandbox.zygote import Zygote


@dataclass(frozen=True)
class LocalSettings:
    """How much of a machine the workers may take."""

    workers: int = 256
    """Worker processes."""
    sessions_per_worker: int = 1_000
    """Live instances from which an environment gets a second worker."""
    waiting: int = 256
    """Calls that may wait for one worker."""
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    unsafe: bool = False
    """Run untrusted environments also where neither Landlock nor seccomp can hold them."""


class LocalPlaces:
    """Benches in this process and in workers of its zygote. Belongs to one event loop."""

    def __init__(self, settings: LocalSettings | None = None, isolation: Isolation | None = None) -> None:
        """Begin without a worker.

        Args:
            settings: how much at once.
            isolation: what holds untrusted code; probed when it is first needed.
        """
        self.settings = settings or LocalSettings()
        self.vacate: Vacate | None = None
        self._isolation = isolation
        self._zygote: Zygote | None = None
        self._groups: dict[str, list[Place]] = {}
        self._spawning: dict[str, asyncio.Lock] = {}
        """One for each source: a slow one lets the others load."""
        self._starting = asyncio.Lock()
        self._loading = 0
        self._started = 0

    @property
    def isolation(self) -> Isolation:
        """What holds untrusted code here."""
        if self._isolation is None:
            self._isolation = probe()
        return self._isolation

    async def find(self, source: Source, sample: bytes) -> Place:
        """A place for one more instance; see `Places.find`."""
        group = self._alive(source.id)
        if source.program is not None:
            if not group:
                group.append(InProcess(source.program()))
            return group[0]
        async with self._spawning.setdefault(source.id, asyncio.Lock()):
            group = self._alive(source.id)
            best = min(group, key=lambda p: p.handles, default=None)
            if best is None or best.handles >= self.settings.sessions_per_worker:
                best = await self._spawn(source, sample)
                group.append(best)
            return best

    def all(self) -> Iterator[Place]:
        """Every place that is alive."""
        return (place for group in self._groups.values() for place in group if place.alive)

    def gauges(self) -> Mapping[str, float]:
        """Workers alive and started, calls that wait for one."""
        workers = self._workers()
        return {
            "workers": len(workers),
            "workers_started": self._started,
            "workers_spare": self._zygote.spares if self._zygote is not None else 0,
            "calls_waiting": sum(place.waiting for place in workers),
        }

    async def close(self) -> None:
        """Stop every worker and the zygote."""
        for place in self.all():
            place.close()
        self._groups.clear()
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None

    def _alive(self, source: str) -> list[Place]:
        group = self._groups.setdefault(source, [])
        group[:] = [place for place in group if place.alive]
        return group

    async def _spawn(self, source: Source, sample: bytes) -> Isolated:
        """A new worker with the source loaded."""
        self._check_isolation(source)
        self._make_worker_room()
        self._loading += 1
        try:
            for _ in range(2):
                worker = await self._loaded(source, sample)
                if worker is not None:
                    return worker
        finally:
            self._loading -= 1
        raise InfrastructureError(f"a worker for {source.id} dies while it loads; look at the memory limit")

    async def _loaded(self, source: Source, sample: bytes) -> Isolated | None:
        """A new worker with the source loaded; `None` where it died of that."""
        settings = self.settings
        zygote = await self._forkserver()
        forked = await zygote.spawn()
        self._started += 1
        worker = Isolated(forked, settings.limits.hard_seconds, settings.waiting, settings.limits.answer_bytes)
        try:
            await worker.connect()
            self._prepare(zygote)
            await worker.ask("load", 0, source.request(sample if source.foreign else None, text=False))
        except WorkerGone as gone:
            if gone.late:
                raise EnvironmentFault(f"{source.id}: loading ran past its time and was killed") from None
            return None
        except (BrokenCall, EnvironmentFault) as error:
            worker.close()
            raise EnvironmentFault(f"{source.id} does not load: {error}") from None
        except BaseException:  # cancelled: nobody else knows of the worker yet
            worker.close()
            raise
        return worker

    async def _forkserver(self) -> Zygote:
        async with self._starting:
            if self._zygote is not None and not self._zygote.alive:
                await self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = await Zygote.start(self.isolation, self.settings.limits)
            return self._zygote

    def _prepare(self, zygote: Zygote) -> None:
        """Have one worker ready for the next source, where there is room for it beside those that load now."""
        if len(self._workers()) + self._loading < self.settings.workers:
            zygote.prepare()

    def _workers(self) -> list[Isolated]:
        return [place for place in self.all() if isinstance(place, Isolated)]

    def _check_isolation(self, source: Source) -> None:
        if not self.isolation.enough and not self.settings.unsafe:
            raise InfrastructureError(
                f"{source.id} is not trusted, and this machine has neither Landlock nor seccomp to hold it; "
                "use a newer kernel, or take the risk with --unsafe"
            )

    def _make_worker_room(self) -> None:
        workers = self._workers()
        if len(workers) + self._loading < self.settings.workers:
            return
        # what such a worker may still be at is to forget an instance, which its end does too
        unused = next((w for w in workers if w.handles == 0), None)
        if unused is None:
            raise CapacityError(f"all {len(workers)} workers are in use; try again later")
        unused.close()
