"""Our side of the serving benchmark, each mode in a process of its own so that its memory and CPU are its own.

    python benchmarks/serving_own.py serve FOLDER SOCKET [--isolate]    a server until its standard input ends
    python benchmarks/serving_own.py inside FOLDER                      operations without a wire, as JSON
    python benchmarks/serving_own.py memory FOLDER live|asleep|isolated what sessions take, as JSON

FOLDER is what `make_shop` wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from serving_cases import SMALL, Call, Shop
from serving_load import family, memory_mb, private_mb

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.replay import ReplayProcess
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State
from agentomnia.runs.serving import catalog_of
from agentomnia.sandbox.catalog import Catalog, TaskEntry
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.session import HostedSession
from agentomnia.synthesis.environments.author import BuiltinAuthor, verify_draft
from agentomnia.synthesis.environments.cache import compiled_environment
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.package import write_package, write_state
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.task.task import Task
from agentomnia.taxonomy.coordinate import Coordinate

DOMAIN = 10098
"""Smart homes: 59 tools over 14 kinds of records."""
SIZES = (100, 1_000, 10_000)
TASK = "serve-1"
_GIB = 1 << 30


def make_shop(folder: Path, sizes: tuple[int, ...] = SIZES) -> Shop:
    """Write the environment, its states, and what peers need of it; choose the calls."""
    with ReplayProcess(hash_seed=1) as replayer:
        verified = verify_draft(BuiltinAuthor().draft(DOMAIN, 0, "serving"), replayer=replayer)
    package = write_package(verified, folder / "environments")
    program, small = build_program(verified.spec), small_state(verified.spec, sizes[0])
    for size in sizes:
        write_state(package, f"records-{size}", multiplied(verified.spec, small, size // sizes[0]))
    told = {"class": program.name, "tools": list(program.tools), "state": small}
    (package / "shop.json").write_text(json.dumps(told), encoding="utf-8")
    return Shop(package.name, TASK, choose_calls(program, small))


def small_state(spec: EnvironmentSpec, records: int) -> State:
    """A valid state with about so many records: the nearest of some sizes, since kinds do not grow evenly."""
    maker, middle = StateMaker(spec), records / sum(entity.count for entity in spec.entities)
    states = (maker.make("serving", middle * (0.7 + 0.05 * step)) for step in range(17))
    return min(states, key=lambda state: abs(count_records(spec, state) - records))


def multiplied(spec: EnvironmentSpec, state: State, times: int) -> State:
    """A state of so many copies of a state, each pointing to its own records only; valid where no number is unique."""
    grown: State = {**state, **{entity.plural: {} for entity in spec.entities}}
    for entity in spec.entities:
        own = [a.name for a in entity.attributes if a.type == "reference" or a.unique]
        for number in range(times):
            mark = f"-{number}" if number else ""
            for key, record in state[entity.plural].items():
                told = {name: f"{record[name]}{mark}" for name in own if isinstance(record[name], str)}
                grown[entity.plural][f"{key}{mark}"] = {**record, entity.key: f"{key}{mark}", **told}
    return grown


def count_records(spec: EnvironmentSpec, state: State) -> int:
    """Records of all kinds."""
    return sum(len(state[entity.plural]) for entity in spec.entities)


def choose_calls(program: Program, state: State) -> tuple[Call, ...]:
    """Four reads and four writes of one record each, in turn and again; accepted, with the same answers every time."""
    rng = Random("serving/calls")
    instance, sampler = Instance(program, state), ArgumentSampler(program, rng)
    reads = [t for t, schema in program.tools.items() if schema.kind == "query"]
    writes = [t for t, schema in program.tools.items() if schema.kind != "query"]
    first, second = islice(_distinct(_circle(instance, sampler, writes, rng) for _ in range(2_000)), 2)
    asked = islice(_distinct(_read(instance, sampler, rng.choice(reads), state) for _ in range(500)), 4)
    calls = [step for pair in zip(asked, (*first, *second)) for step in (pair[0][0], pair[1])]
    instance.reset()
    for _ in range(2):
        answers = [instance.call(*call) for call in calls]
    return tuple(Call(tool, arguments, answer) for (tool, arguments), answer in zip(calls, answers))


Step = tuple[str, dict[str, Any]]


def _distinct(found: Iterable[tuple[Step, ...] | None]) -> Iterator[tuple[Step, ...]]:
    """Those that there are, of tools that none before had."""
    seen: set[str] = set()
    for steps in found:
        if steps is not None and seen.isdisjoint(tool for tool, _ in steps):
            seen |= {tool for tool, _ in steps}
            yield steps


def _read(instance: Instance, sampler: ArgumentSampler, tool: str, state: State) -> tuple[Step, ...] | None:
    """A call that reads one record by its key."""
    arguments = sampler.sample(tool, state)
    answer = instance.call(tool, arguments)
    keyed = answer["ok"] and len(arguments) == 1 and arguments.items() <= answer["data"].items()
    return ((tool, arguments),) if keyed else None


def _circle(instance: Instance, sampler: ArgumentSampler, tools: list[str], rng: Random) -> tuple[Step, ...] | None:
    """Two writes to one record that may follow each other for ever."""
    instance.reset()
    tool = rng.choice(tools)
    there = (tool, sampler.sample(tool, instance.live_state))
    if not there[1] or not instance.call(*there)["ok"]:
        return None
    after = instance.snapshot()
    key, value = next(iter(there[1].items()))
    for tool in (there[0], *rng.sample(tools, 8)):
        back = (tool, {**sampler.sample(tool, instance.live_state), key: value})
        if key in instance.program.tools[tool].parameters["properties"] and _goes_round(instance, after, there, back):
            return there, back
    return None


def _goes_round(instance: Instance, after: bytes, there: Step, back: Step) -> bool:
    """Whether two calls are accepted in turn, always with the same answers; the first was just made."""
    instance.restore(after)
    if not instance.call(*back)["ok"]:
        return False
    instance.call(*there)
    before = instance.digest()
    rounds = [(instance.call(*back), instance.call(*there)) for _ in range(2)]
    return rounds[0] == rounds[1] and all(a["ok"] for a in rounds[0]) and instance.digest() == before


def make_catalog(folder: Path, isolate: bool = False, copies: int = 0) -> Catalog:
    """What is served: the environment, one task of it for faces that open by task, and copies under other names."""
    catalog = catalog_of(folder / "environments", isolate=isolate)
    (name, source), *_ = catalog.sources.items()
    source = replace(source, info=replace(source.info, splits={"train": (TASK,)}))
    sources = {name: source}
    for number in range(copies):
        sources[f"{name}-{number}"] = replace(source, info=replace(source.info, id=f"{name}-{number}"))
    place = Coordinate(domain=DOMAIN, capabilities=("tool_use",))
    task = Task(
        id=TASK, environment=name, state=SMALL, kind="dag", query="Serve.", answer=(), tools=(), coordinate=place,
        lineage="benchmark",
    )  # fmt: skip
    return Catalog(sources, {TASK: TaskEntry(task, None)})


# a server


async def serve(folder: Path, socket: str, isolate: bool) -> None:
    """Serve every face until the standard input ends; tells the port in a line of JSON."""
    from agentomnia.sandbox.link import Endpoint
    from agentomnia.sandbox.server import running
    from agentomnia.sandbox.unix import UnixServer

    host = Host(make_catalog(folder, isolate))
    async with running(host) as (address, _):
        unix = UnixServer(host, Endpoint(path=socket))
        await unix.start()
        print(json.dumps({"port": int(address.rpartition(":")[2])}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await unix.close()


# without a wire


async def inside(folder: Path) -> dict[str, Any]:
    """Medians of the thread's CPU time for operations of a sandbox in this process."""
    told: dict[str, Any] = {"load_ms": load_ms(folder)}
    host = Host(make_catalog(folder))
    name = next(iter(host.environments))
    sizes = sorted(int(state.rpartition("-")[2]) for state in host.environments[name].states)
    for size in sizes:
        session = await host.open(name, state=f"records-{size}")
        await session.digest()
        snapshot = await session.snapshot()
        repeats = max(20, 40_000 // size)
        for what, action in _actions(session, snapshot).items():
            told.setdefault(f"{what}_ms", {})[str(size)] = await cpu_ms(action, repeats)
        told.setdefault("snapshot_kib", {})[str(size)] = round(len(snapshot) / 1024, 1)
    told["step_us"] = await step_us(host, name)
    await host.close()
    return told


def _actions(session: HostedSession, snapshot: bytes) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def fork() -> None:
        forked = await session.fork()
        await forked.digest()
        await forked.close()

    return {
        "reset": session.reset,
        "snapshot": session.snapshot,
        "restore": lambda: session.restore(snapshot),
        "fork": fork,
        "digest": session.digest,
    }


async def cpu_ms(action: Callable[[], Awaitable[Any]], repeats: int) -> float:
    """Median thread CPU time of an action in milliseconds."""
    taken = []
    for _ in range(repeats):
        before = time.thread_time_ns()
        await action()
        taken.append(time.thread_time_ns() - before)
    return round(statistics.median(taken) / 1e6, 4)


async def step_us(host: Host, name: str) -> dict[str, float]:
    """A call on the instance, and through a session of the sandbox, in microseconds."""
    source = host.catalog.source(name)
    assert source.program is not None
    program, state = source.program(), source.state(SMALL)
    calls = choose_calls(program, state)
    instance, session = Instance(program, state), await host.open(name, state=SMALL)
    for c in calls:
        instance.call(c.tool, c.arguments)
        await session.call(c.tool, c.arguments)
    clock, rounds = time.thread_time_ns, 400
    before = clock()
    for _ in range(rounds):
        for c in calls:
            instance.call(c.tool, c.arguments)
    between = clock()
    for _ in range(rounds):
        for c in calls:
            await session.call(c.tool, c.arguments)
    made = rounds * len(calls) * 1e3
    return {"instance": round((between - before) / made, 2), "session": round((clock() - between) / made, 2)}


def load_ms(folder: Path) -> dict[str, float]:
    """Loading the environment: proved and compiled anew, and from the cache of the machine."""
    package = next((folder / "environments").iterdir())

    def timed(cache: Path) -> float:
        before = time.thread_time_ns()
        compiled_environment(package, cache).program()
        return (time.thread_time_ns() - before) / 1e6

    cold = [timed(folder / f"cold-{number}") for number in range(3)]
    cached = [timed(folder / "cold-0") for _ in range(50)]
    return {"cold": round(statistics.median(cold), 3), "cached": round(statistics.median(cached), 3)}


# memory


async def memory(folder: Path, kind: str, sessions: int) -> dict[str, float]:
    """What each further session takes, measured between a tenth of the sessions and all of them."""
    host = Host(make_catalog(folder, isolate=kind == "isolated"), HostSettings(live_bytes=1 << 62))
    name, marks = next(iter(host.environments)), []
    for number in range(1, sessions + 1):
        session = await host.open(name, state=SMALL)
        await session.digest()
        if kind == "asleep":
            await session.hibernate()
        if number in (sessions // 10, sessions):
            marks.append(sum(memory_mb(pid) for pid in (os.getpid(), *_workers())))
    each_kib = max(0.01, (marks[1] - marks[0]) * 1024 / (sessions - sessions // 10))
    await host.close()
    return {"kib": round(each_kib, 2), "in_4gib": int(4 * _GIB / 1024 / each_kib), "measured": sessions}


def _workers() -> Iterator[int]:
    """Workers of this process: what hangs below its forkserver."""
    below = set(family(os.getpid())) - {os.getpid()}
    return (pid for pid in below if not set(family(pid)) - {pid})


async def workers(folder: Path, copies: int) -> dict[str, float]:
    """Sessions in environments that nobody has opened yet: each needs a worker of its own."""
    host = Host(make_catalog(folder, isolate=True, copies=copies))
    names = list(host.environments)
    await (await host.open(names[0], state=SMALL)).digest()  # starts the forkserver
    taken = []
    for name in names[1:]:
        before = time.perf_counter()
        session = await host.open(name, state=SMALL)
        await session.digest()
        taken.append((time.perf_counter() - before) * 1e3)
    private = [private_mb(pid) for pid in _workers()]
    isolation = host.places.isolation.level  # type: ignore[attr-defined]
    await host.close()
    return {
        "open_ms": round(statistics.median(taken), 2),
        "private_mib": round(statistics.median(private), 2),
        "workers": len(private),
        "isolation": isolation,
    }


def main() -> None:
    """Run one mode."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("serve", "inside", "memory", "workers"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="?", default="")
    parser.add_argument("--isolate", action="store_true")
    parser.add_argument("--count", type=int, default=2_000, help="sessions, or workers")
    given = parser.parse_args()
    match given.mode:
        case "serve":
            job: Any = serve(given.folder, given.what, given.isolate)
        case "inside":
            job = inside(given.folder)
        case "memory":
            job = memory(given.folder, given.what, given.count)
        case _:
            job = workers(given.folder, given.count)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told = runner.run(job)
    if told is not None:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
