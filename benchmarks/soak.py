"""A soak of the sandbox: thousands of rollouts over isolated workers that are killed all the time.

    python benchmarks/soak.py RUN [--rollouts 20000] [--json]

Every rollout makes ten calls: those of its task's reference, then random valid ones. Beside it an instance in this
process gets the same calls, and every answer, the digest at the end and the grade must be the same. One rollout in ten
is aborted: cancelled in the middle of a call and left, or cancelled and continued, or just left. Every second one
worker is killed, now and then the process that forks them. What may happen is a right answer or an infrastructure
error; at the end no session, no instance, no worker and no file descriptor may be left, and memory must be flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.state import State
from agentomnia.errors import EnvironmentFault, InfrastructureError
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.serving import catalog_of
from agentomnia.sandbox.catalog import Catalog
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.local import LocalPlaces, LocalSettings
from agentomnia.sandbox.places import Isolated
from agentomnia.sandbox.session import HostedSession
from agentomnia.synthesis.environments.package import load_package
from agentomnia.task.grade import grade
from agentomnia.task.task import PrivateTask, Task

CALLS = 10
ABORTED = 0.1
PAUSED = 0.01
"""Share of calls before which a rollout thinks for longer than the idle time, so that its session hibernates."""
IDLE_SECONDS, LEASE_SECONDS, SWEEP_SECONDS = 0.5, 10.0, 0.25
WRONG = ("wrong answers", "wrong digests", "wrong grades", "wrongly blamed", "lost after cancel", "escaped errors")
LEFT = ("sessions", "handles", "instances", "processes", "file descriptors")
_LOOK_SECONDS = 0.1
_PROBES = 3_000
"""Handles that are looked for in every worker at the end, drawn from all that were ever given out."""
_FLAT_SAMPLES, _FLAT_FACTOR, _FLAT_MIB = 50, 1.1, 16
"""Memory is flat where its last fifth is below so many times the second and so many MiB; short runs cannot say."""
_PAGE = os.sysconf("SC_PAGE_SIZE")

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A task with all that its twin needs."""

    task: Task
    private: PrivateTask
    program: Program
    state: State


@dataclass
class Tally:
    """What has happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    call_seconds: array[float] = field(default_factory=lambda: array("f"))
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds since the start, resident bytes of this process, and of all workers together."""
    examples: list[str] = field(default_factory=list)

    def wrong(self, kind: str, what: str) -> None:
        """Note something that must not be, with the first few in words."""
        self.counts[kind] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{kind}: {what}"[:500])


def main() -> None:
    """Run the soak, print what came of it; the exit code is 1 where something was wrong or left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--environments", type=int, default=8)
    parser.add_argument("--kill-seconds", type=float, default=1.0)
    parser.add_argument("--forkserver-seconds", type=float, default=30.0, help="0: never killed")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = asyncio.run(soak(given))
    print(json.dumps(figures, indent=2) if given.json else table(figures))
    sys.exit(0 if figures["passed"] else 1)


async def soak(given: argparse.Namespace) -> dict[str, Any]:
    """The whole soak; figures as JSON values."""
    subjects = read_subjects(given.run, given.environments)
    catalog = catalog_of(given.run, isolate=True)
    before = (len(descendants()), open_files())
    tally, began = Tally(), time.perf_counter()
    settings = HostSettings(idle_seconds=IDLE_SECONDS, lease_seconds=LEASE_SECONDS, sweep_seconds=SWEEP_SECONDS)
    places = LocalPlaces(LocalSettings(workers=2 * given.environments))
    host = Host(catalog, settings, places)
    try:
        async with troubled(places, given, tally, began):
            await play_all(host, catalog, subjects, given, tally)
        seconds = time.perf_counter() - began
        left = await leftovers(host, places)
        gauges = dict(host.gauges())
    finally:
        await host.close()
    await asyncio.sleep(0.5)
    left["processes"] = len(descendants()) - before[0]
    left["file descriptors"] = open_files() - before[1]
    return report(given, tally, seconds, left, gauges)


def read_subjects(run: Path, environments: int) -> list[Subject]:
    """The tasks of the first environments of a run."""
    rows = list(read_tasks(run))
    names = list(dict.fromkeys(task.environment for task, _ in rows))[:environments]
    packages = {name: load_package(run / "environments" / name) for name in names}
    states: dict[tuple[str, str], State] = {}
    found = []
    for task, private in rows:
        package = packages.get(task.environment)
        if package is not None:
            place = (task.environment, task.state)
            states.setdefault(place, package.state(task.state))
            found.append(Subject(task, private, package.program, states[place]))
    return found


async def play_all(
    host: Host, catalog: Catalog, subjects: Sequence[Subject], given: argparse.Namespace, tally: Tally
) -> None:
    """All rollouts, so many at once."""
    numbers = iter(range(given.rollouts))

    async def player() -> None:
        for number in numbers:
            rng = Random(f"{given.seed} rollout {number}")
            try:
                await Rollout(host, catalog, rng.choice(subjects), rng, tally).play()
            except Exception as error:  # noqa: BLE001 - the boundary: whatever escapes is a finding
                tally.wrong("escaped errors", f"{type(error).__name__}: {error}")

    await asyncio.gather(*(player() for _ in range(given.concurrency)))


class Rollout:
    """One rollout and its twin in this process."""

    def __init__(self, host: Host, catalog: Catalog, subject: Subject, rng: Random, tally: Tally) -> None:
        """Draw everything with `rng`."""
        self._host, self._catalog, self._subject, self._rng, self._tally = host, catalog, subject, rng, tally
        self._twin = Instance(subject.program, subject.state)
        aborted = rng.random() < ABORTED
        self._end = rng.choice(("cancelled", "cancelled, went on", "left")) if aborted else "finished"
        self._stops_at = rng.randrange(CALLS) if aborted else CALLS

    async def play(self) -> None:
        """Open, call, compare, close; or stop on the way."""
        self._tally.counts[self._end] += 1
        session = await self._host.open(self._subject.task.environment, task=self._subject.task.id)
        try:
            for number, (tool, arguments) in enumerate(self._calls(session)):
                if self._rng.random() < PAUSED:
                    await asyncio.sleep(1.5 * IDLE_SECONDS)
                if number == self._stops_at and not await self._abort(session, tool, arguments):
                    return
                if number != self._stops_at and not await self._step(session, tool, arguments):
                    return
            await self._compare(session)
        except InfrastructureError as error:
            self._tally.counts[f"infrastructure: {type(error).__name__}"] += 1
        except EnvironmentFault as fault:
            self._tally.wrong("wrongly blamed", str(fault))
        await session.close()

    def _calls(self, session: HostedSession) -> Iterator[Call]:
        """The reference's calls, then random ones on the state as it is then."""
        planned = [(c.tool, c.arguments) for c in self._subject.private.calls][:CALLS]
        yield from planned
        sampler = ArgumentSampler(self._subject.program, self._rng)
        for _ in range(CALLS - len(planned)):
            tool = self._rng.choice(list(session.tools))
            yield tool, sampler.sample(tool, self._twin.live_state)

    async def _step(self, session: HostedSession, tool: str, arguments: dict[str, Any]) -> bool:
        expected = self._twin.call(tool, arguments)
        began = time.perf_counter()
        answer = await session.call(tool, arguments)
        self._tally.call_seconds.append(time.perf_counter() - began)
        if answer != expected:
            self._tally.wrong("wrong answers", f"{session.id} {tool}: {answer} instead of {expected}")
        return answer == expected

    async def _abort(self, session: HostedSession, tool: str, arguments: dict[str, Any]) -> bool:
        """Stop in the way that was drawn; whether the rollout goes on."""
        if self._end == "left":
            return False
        after = self._twin.fork()
        after.call(tool, arguments)
        call = asyncio.create_task(session.call(tool, arguments))
        await asyncio.sleep(self._rng.random() * 0.002)
        call.cancel()
        with suppress(asyncio.CancelledError, InfrastructureError):
            await call
        if self._end == "cancelled":
            return False
        return await self._catch_up(session, after)

    async def _catch_up(self, session: HostedSession, after: Instance) -> bool:
        """The call has been made or it has not; nothing else is right."""
        digest = await session.digest()
        if digest == after.digest():
            self._twin = after
        elif digest != self._twin.digest():
            self._tally.wrong("lost after cancel", f"{session.id} is in neither state")
            return False
        return True

    async def _compare(self, session: HostedSession) -> None:
        twin, criterion = self._twin, self._catalog.tasks[self._subject.task.id].criterion
        if await session.digest() != twin.digest():
            self._tally.wrong("wrong digests", session.id)
        elif criterion is not None:
            expected = grade(criterion, self._subject.state, twin.live_state, "Done.")
            if await session.score("Done.") != expected:
                self._tally.wrong("wrong grades", session.id)
        self._tally.counts["compared"] += 1


@asynccontextmanager
async def troubled(places: LocalPlaces, given: argparse.Namespace, tally: Tally, began: float) -> AsyncIterator[None]:
    """While inside, workers die, and memory is watched."""
    tasks = [asyncio.create_task(kill_workers(places, given, tally)), asyncio.create_task(watch_memory(tally, began))]
    if given.forkserver_seconds:
        tasks.append(asyncio.create_task(kill_forkserver(places, given, tally)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for error in done:
            if isinstance(error, Exception):
                raise error


async def kill_workers(places: LocalPlaces, given: argparse.Namespace, tally: Tally) -> None:
    """Kill a worker at random, again and again, as the kernel would that has no memory left."""
    rng = Random(f"{given.seed} kills")
    while True:
        await asyncio.sleep(given.kill_seconds)
        if workers := workers_of(places):
            with suppress(ProcessLookupError):  # it has died with its forkserver
                signal.pidfd_send_signal(rng.choice(workers)._forked.pidfd, signal.SIGKILL)
                tally.counts["workers killed"] += 1


def workers_of(places: LocalPlaces) -> list[Isolated]:
    """The workers that are alive."""
    return [place for place in places.all() if isinstance(place, Isolated)]


async def kill_forkserver(places: LocalPlaces, given: argparse.Namespace, tally: Tally) -> None:
    """Kill the process that all workers are forked from, and with it all of them."""
    while True:
        await asyncio.sleep(given.forkserver_seconds)
        while not workers_of(places):  # one that is still starting is left alone, or none would ever start
            await asyncio.sleep(_LOOK_SECONDS)
        if places._zygote is not None and places._zygote.alive:
            os.kill(places._zygote.pid, signal.SIGKILL)
            tally.counts["forkservers killed"] += 1


async def watch_memory(tally: Tally, began: float) -> None:
    """Resident memory once a second."""
    while True:
        here, workers = resident(os.getpid()), sum(map(resident, descendants()))
        tally.memory.append((round(time.perf_counter() - began, 1), here, workers))
        await asyncio.sleep(1)


async def leftovers(host: Host, places: LocalPlaces) -> dict[str, int]:
    """What is still there when the leases of all that was left have ended."""
    end = time.perf_counter() + LEASE_SECONDS + 20 * SWEEP_SECONDS
    while host.gauges()["sessions"] and time.perf_counter() < end:
        await asyncio.sleep(SWEEP_SECONDS)
    handles = sum(place.handles for place in places.all())
    return {
        "sessions": int(host.gauges()["sessions"]),
        "handles": handles,
        "instances": sum([await instances_in(worker, host.next_handle()) for worker in workers_of(places)]),
    }


async def instances_in(worker: Isolated, handles: int) -> int:
    """How many of the handles that were drawn a worker still has an instance for."""
    rng, found = Random("probes"), 0
    for handle in rng.sample(range(1, handles), min(_PROBES, handles - 1)):
        with suppress(InfrastructureError):
            await worker.ask("digest", handle)
            found += 1
    return found


def descendants() -> list[int]:
    """Process ids of everything that this process has started, and what that has started."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def resident(process: int) -> int:
    """Resident bytes of a process that are its own; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE


def open_files() -> int:
    """File descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def report(
    given: argparse.Namespace, tally: Tally, seconds: float, left: dict[str, int], gauges: dict[str, float]
) -> dict[str, Any]:
    """Everything as JSON values."""
    calls = sorted(tally.call_seconds) or [0.0]
    wrong = {kind: tally.counts[kind] for kind in WRONG}
    memory = memory_figures(tally.memory)
    flat = len(tally.memory) < _FLAT_SAMPLES or all(m["last fifth"] <= m["flat below"] for m in memory.values())
    return {
        "passed": flat and not any(wrong.values()) and not any(left[kind] for kind in LEFT),
        "rollouts": given.rollouts,
        "seconds": round(seconds, 1),
        "calls": len(tally.call_seconds),
        "calls_per_second": round(len(tally.call_seconds) / seconds),
        "call_ms": {
            "p50": round(1e3 * statistics.median(calls), 2),
            "p99": round(1e3 * calls[99 * len(calls) // 100], 2),
        },
        "counts": {k: v for k, v in sorted(tally.counts.items()) if k not in WRONG},
        "wrong": wrong,
        "left": left,
        "examples": tally.examples,
        "gauges": gauges,
        "memory_mib": memory,
    }


def memory_figures(samples: Sequence[tuple[float, int, int]]) -> dict[str, Any]:
    """Memory over time, in MiB."""
    fifth = max(1, len(samples) // 5)

    def middle(rows: Sequence[tuple[float, int, int]], column: int) -> float:
        return round(statistics.median(row[column] for row in rows) / 2**20, 1)

    names = {1: "host", 2: "workers"}
    figures = {}
    for column, name in names.items():
        early = middle(samples[fifth : 2 * fifth] or samples, column)
        figures[name] = {
            "second fifth": early,
            "last fifth": middle(samples[-fifth:], column),
            "flat below": round(_FLAT_FACTOR * early + _FLAT_MIB, 1),
            "most": round(max(row[column] for row in samples) / 2**20, 1),
        }
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"{figures['rollouts']:,} rollouts, {figures['calls']:,} calls in {figures['seconds']} s "
        f"({figures['calls_per_second']:,}/s; p50 {figures['call_ms']['p50']} ms, p99 {figures['call_ms']['p99']} ms)",
        *(f"  {name:<40} {value:>10,}" for name, value in figures["counts"].items()),
        "wrong",
        *(f"  {name:<40} {value:>10,}" for name, value in figures["wrong"].items()),
        "left at the end",
        *(f"  {name:<40} {value:>10,}" for name, value in figures["left"].items()),
        "resident memory, MiB",
        *(
            f"  {who:<20} second fifth {m['second fifth']:>8}   last fifth {m['last fifth']:>8}   most {m['most']:>8}"
            for who, m in figures["memory_mib"].items()
        ),
        *figures["examples"],
        "passed" if figures["passed"] else "FAILED",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
