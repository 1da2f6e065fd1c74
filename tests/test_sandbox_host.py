"""The instance API over both kinds of places: what sessions promise, whatever happens to their workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import ToolSchema
from agentomnia.errors import (
    CallTimeout,
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
)
from agentomnia.row import digest
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.serving import catalog_of
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source
from agentomnia.sandbox.host import Host, HostSettings
from agentomnia.sandbox.isolation import Isolation, WorkerLimits
from agentomnia.sandbox.local import LocalPlaces, LocalSettings
from agentomnia.sandbox.places import Isolated
from agentomnia.synthesis.environments.package import load_package
from agentomnia.task.task import PrivateTask, Task, answer_message

QUICK = WorkerLimits(soft_seconds=0.5, hard_seconds=1.5)

Play = Callable[[Host], Awaitable[None]]


def at(catalog: Catalog, play: Play, settings: HostSettings | None = None, local: LocalSettings | None = None) -> None:
    """Play on a host, and see that nothing is left afterwards."""

    async def run() -> None:
        host = Host(catalog, settings, LocalPlaces(local))
        try:
            await asyncio.wait_for(play(host), 60)
        finally:
            await host.close()
        gauges = host.gauges()
        assert gauges["sessions"] == gauges["workers"] == gauges["calls_waiting"] == 0

    asyncio.run(run())


COUNTER = """
class Counter:
    def __init__(self, state):
        self.__dict__.update(state)

    def add(self, n):
        self.total += n
        return {"ok": True, "data": self.total}

    def read(self):
        return {"ok": True, "data": self.total}

    def refuse(self):
        self.total += 1000
        return {"ok": False, "error": {"code": "conflict", "message": "no", "hint": ""}}

    def fault(self):
        self.total += 1000
        raise RuntimeError("bad quantity")

    def spin(self):
        while True:
            pass

    def stubborn(self):
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass

    def die(self):
        import os
        os._exit(3)

    def lie(self):
        return {"ok": "certainly", "data": 1}

    def dice(self):
        import random
        self.total = random.SystemRandom().randrange(1 << 60)
        return {"ok": True, "data": self.total}
"""


def counter(name: str = "Counter", foreign: bool = True, text: str = COUNTER, total: int = 5) -> Source:
    """A class of somebody else's, never trusted."""
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    number = {**none, "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    names = ("add", "read", "refuse", "fault", "spin", "stubborn", "die", "lie", "dice")
    tools = {n: ToolSchema(n, "modify", n, number if n == "add" else none) for n in names}
    info = EnvironmentInfo(name, "Counter", "Counts.", (), tools, ("start",), False)
    return Source(info, "Counter", lambda: text, lambda _: {"total": total}, foreign=foreign)


def counters(*sources: Source) -> Catalog:
    return Catalog({s.id: s for s in sources or (counter(),)})


@pytest.fixture(scope="module", params=["in process", "isolated"])
def served(request: pytest.FixtureRequest, finished_run: Path) -> Catalog:
    """A run's environments in both kinds of places."""
    return catalog_of(finished_run, isolate=request.param == "isolated")


def pairs_of(path: Path) -> list[tuple[Task, PrivateTask]]:
    return list(read_tasks(path))


# One session


def test_references_earn_their_reward_and_leave_the_states_that_an_instance_has(
    served: Catalog, finished_run: Path
) -> None:
    async def play(host: Host) -> None:
        for task, private in pairs_of(finished_run):
            package = load_package(finished_run / "environments" / task.environment)
            expected = Instance(package.program, package.state(task.state))
            session = await host.open(task.environment, task=task.id)
            assert set(session.tools) == set(task.tools or package.program.tools) and session.task == task
            assert (await session.score("")).reward == 0.0
            for call in private.calls:
                assert await session.call(call.tool, call.arguments) == expected.call(call.tool, call.arguments)
                assert await session.digest() == expected.digest()
            assert (await session.score(answer_message(private.answer))).reward == 1.0
            assert await session.digest() == expected.digest(), "scoring changes nothing"
            await session.close()

    at(served, play)


def test_a_batch_is_its_calls_in_order(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        for task, private in pairs_of(finished_run)[:3]:
            calls = [(c.tool, c.arguments) for c in private.calls]
            one, many = [await host.open(task.environment, task=task.id) for _ in range(2)]
            assert await many.batch(calls) == [await one.call(*c) for c in calls]
            assert await many.digest() == await one.digest()

    at(served, play)


def test_an_unknown_tool_in_a_batch_is_answered_and_the_rest_is_made(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        task, private = pairs_of(finished_run)[0]
        calls = [(c.tool, c.arguments) for c in private.calls]
        session = await host.open(task.environment, task=task.id)
        first, unknown, *rest = await session.batch([calls[0], ("no_such_tool", {}), *calls[1:]])
        assert unknown["error"]["code"] == "not_found" and all(a["ok"] for a in (first, *rest))
        assert (await session.score(answer_message(private.answer))).reward == 1.0

    at(served, play)


def test_calls_made_at_once_run_in_the_order_they_were_made(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        task, private = max(pairs_of(finished_run), key=lambda pair: len(pair[1].calls))
        session = await host.open(task.environment, task=task.id)
        answers = await asyncio.gather(*(session.call(c.tool, c.arguments) for c in private.calls))
        assert all(a["ok"] for a in answers)
        assert (await session.score(answer_message(private.answer))).reward == 1.0

    at(served, play)


def test_snapshot_fork_restore_reset(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        task, private = pairs_of(finished_run)[0]
        session = await host.open(task.environment, task=task.id)
        start = await session.digest()
        half, rest = private.calls[: len(private.calls) // 2], private.calls[len(private.calls) // 2 :]
        for call in half:
            await session.call(call.tool, call.arguments)
        snapshot, middle = await session.snapshot(), await session.digest()
        forked = await session.fork()
        ends = []
        for branch in (session, forked):
            ends.append([await branch.call(c.tool, c.arguments) for c in rest] + [await branch.digest()])
        assert ends[0] == ends[1]
        await session.restore(snapshot)
        assert await session.digest() == middle and await forked.digest() == ends[1][-1]
        await forked.reset()
        assert await forked.digest() == start and await session.digest() == middle
        other = await host.open(task.environment, task=task.id)
        await other.restore(snapshot)
        again = [await other.call(c.tool, c.arguments) for c in rest] + [await other.digest()]
        assert again == ends[0]

    at(served, play)


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x80", b"\x91" * 2000, json.dumps({"orders": {}}).encode()])
def test_what_is_no_snapshot_is_refused_and_changes_nothing(served: Catalog, finished_run: Path, junk: bytes) -> None:
    async def play(host: Host) -> None:
        session = await host.open(next(iter(host.environments)))
        before = await session.digest()
        with pytest.raises(InputError, match="snapshot"):
            await session.restore(junk)
        assert await session.digest() == before

    at(served, play)


def test_a_snapshot_of_another_environment_is_refused(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        one, other = [await host.open(name) for name in list(host.environments)[:2]]
        with pytest.raises(InputError, match="none of"):
            await one.restore(await other.snapshot())

    at(served, play)


def test_the_agents_faults_are_answers(served: Catalog) -> None:
    async def play(host: Host) -> None:
        session = await host.open(next(iter(host.environments)))
        before = await session.digest()
        assert (await session.call("no_such_tool", {}))["error"]["code"] == "not_found"
        name = next(t.name for t in session.tools.values() if t.parameters.get("required"))
        assert (await session.call(name, {}))["error"]["code"] == "invalid_argument"
        assert (await session.call(name, {"__class__": 1}))["error"]["code"] == "invalid_argument"
        assert await session.digest() == before

    at(served, play)


def test_a_hidden_tool_is_an_unknown_tool(finished_run: Path, served: Catalog) -> None:
    async def play(host: Host) -> None:
        exposed = [t for t, _ in pairs_of(finished_run) if t.tools]
        for task in exposed:
            session = await host.open(task.environment, task=task.id)
            hidden = next(n for n in session.environment.tools if n not in session.tools)
            assert (await session.call(hidden, {}))["error"]["code"] == "not_found"

    at(served, play)


def test_the_callers_faults_are_errors(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        task, other = pairs_of(finished_run)[0][0], list(host.environments)
        for bad in (
            host.open("nowhere"),
            host.open(other[0], task="no-task"),
            host.open(other[0], state="../../etc/passwd"),
            host.open(next(e for e in other if e != task.environment), task=task.id),
        ):
            with pytest.raises(InputError):
                await bad
        session = await host.open(other[0])
        with pytest.raises(InputError, match="no task"):
            await session.score()
        assert host.session(session.id) is session
        with pytest.raises(InstanceError):
            host.session(session.id, tenant="somebody else")
        await session.close()
        await session.close()
        with pytest.raises(InstanceError):
            host.session(session.id)

    at(served, play)


def test_two_sessions_never_see_each_other(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        task, private = pairs_of(finished_run)[0]
        one, other = [await host.open(task.environment, task=task.id) for _ in range(2)]
        before = await other.digest()
        for call in private.calls:
            await one.call(call.tool, call.arguments)
        assert await one.digest() != before == await other.digest()

    at(served, play)


# Untrusted code that misbehaves


def test_a_refused_or_faulting_call_of_an_imported_class_is_undone() -> None:
    async def play(host: Host) -> None:
        session = await host.open("Counter")
        assert (await session.call("add", {"n": 2}))["data"] == 7
        assert not (await session.call("refuse", {}))["ok"]
        with pytest.raises(EnvironmentFault, match="bad quantity"):
            await session.call("fault", {})
        assert (await session.call("read", {}))["data"] == 7

    at(counters(), play)


@pytest.mark.parametrize(("tool", "why"), [("spin", "time"), ("stubborn", "time"), ("die", "dies")])
def test_a_call_that_ends_its_worker_costs_nobody_else_anything(tool: str, why: str) -> None:
    async def play(host: Host) -> None:
        culprit, neighbour = [await host.open("Counter") for _ in range(2)]
        other = await host.open("Other")
        for n, session in enumerate((culprit, neighbour, other)):
            await session.call("add", {"n": n + 1})
        bad = asyncio.create_task(culprit.call(tool, {}))
        await asyncio.sleep(0)
        good = await asyncio.gather(neighbour.call("add", {"n": 10}), other.call("add", {"n": 10}))
        with pytest.raises(CallTimeout if why == "time" else EnvironmentFault, match=why):
            await bad
        assert [g["data"] for g in good] == [17, 18]
        if why != "time":  # a fault of the environment's own, which stays until the state is set anew
            with pytest.raises(EnvironmentFault, match="before"):
                await culprit.call("read", {})
            await culprit.reset()
            await culprit.call("add", {"n": 1})
        assert (await culprit.call("read", {}))["data"] == 6
        assert (await neighbour.call("read", {}))["data"] == 17

    at(counters(counter(), counter("Other")), play, local=LocalSettings(limits=QUICK))


def test_an_answer_outside_the_protocol_is_the_environments_fault() -> None:
    async def play(host: Host) -> None:
        session = await host.open("Counter")
        with pytest.raises(EnvironmentFault):
            await session.call("lie", {})

    at(counters(counter(foreign=False)), play)


def test_a_source_that_does_not_load_is_the_environments_fault() -> None:
    async def play(host: Host) -> None:
        for text in ("import", "class Other: pass", "raise SystemExit", "while True: pass"):
            session = await Host.open(host, f"bad{len(text)}")
            with pytest.raises(EnvironmentFault, match=r"does not load|loading"):
                await session.digest()

    texts = ("import", "class Other: pass", "raise SystemExit", "while True: pass")
    limits = WorkerLimits(soft_seconds=0.1, hard_seconds=0.3)
    at(counters(*(counter(f"bad{len(t)}", text=t) for t in texts)), play, local=LocalSettings(limits=limits))


def kill_workers(host: Host) -> int:
    workers = [p for p in host.places.all() if isinstance(p, Isolated)]
    for worker in workers:
        worker._kill()
    return len(workers)


def test_sessions_survive_the_death_of_their_worker(finished_run: Path) -> None:
    async def play(host: Host) -> None:
        for number, (task, private) in enumerate(pairs_of(finished_run)):
            package = load_package(finished_run / "environments" / task.environment)
            expected = Instance(package.program, package.state(task.state))
            session = await host.open(task.environment, task=task.id)
            for place, call in enumerate(private.calls):
                if (place + number) % 2:
                    assert kill_workers(host)
                assert await session.call(call.tool, call.arguments) == expected.call(call.tool, call.arguments)
            assert await session.digest() == expected.digest()

    at(catalog_of(finished_run, isolate=True), play)


def test_many_calls_are_rebuilt_from_a_later_base() -> None:
    async def play(host: Host) -> None:
        session = await host.open("Counter")
        for n in range(150):
            await session.call("add", {"n": 1})
            if n % 40 == 39:
                kill_workers(host)
        assert (await session.call("read", {}))["data"] == 155
        assert len(session._log) < 70

    at(counters(), play)


def test_a_state_that_does_not_replay_is_lost_and_said_so() -> None:
    async def play(host: Host) -> None:
        session = await host.open("Counter")
        await session.call("dice", {})
        kill_workers(host)
        with pytest.raises(InfrastructureError, match="does not replay"):
            await session.call("read", {})

    at(counters(), play)


# Room


def test_scoring_leaves_the_initial_state_that_sessions_share_as_it_was(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        for task, private in pairs_of(finished_run)[:4]:
            first, second = [await host.open(task.environment, task=task.id) for _ in range(2)]
            for call in private.calls:
                await first.call(call.tool, call.arguments)
            message, prompt = answer_message(private.answer), second.prompt
            grades = [await s.score(message) for s in (first, second, first, second)]
            assert grades[:2] == grades[2:] and grades[0].reward == 1.0 and second.prompt == prompt
            await first.reset()
            assert (
                await first.digest()
                == await second.digest()
                == digest(host.catalog.source(task.environment).state(task.state))
            )

    at(served, play)


def test_idle_sessions_hibernate_and_wake_where_they_were(served: Catalog, finished_run: Path) -> None:
    async def play(host: Host) -> None:
        sessions = []
        for task, private in pairs_of(finished_run)[:4]:
            session = await host.open(task.environment, task=task.id)
            for call in private.calls:
                await session.call(call.tool, call.arguments)
            sessions.append((session, await session.digest(), private))
        while host.gauges()["sessions_awake"]:
            await asyncio.sleep(0.02)
        for session, before, private in sessions:
            assert await session.digest() == before
            assert (await session.score(answer_message(private.answer))).reward == 1.0

    at(served, play, HostSettings(idle_seconds=0.05, sweep_seconds=0.02))


def test_leases_end_and_nothing_is_left() -> None:
    async def play(host: Host) -> None:
        kept = await host.open("Counter")
        await kept.call("read", {})
        abandoned = [(await host.open("Counter")).id for _ in range(20)]
        for name in abandoned:
            await host.session(name).call("add", {"n": 1})
        while host.gauges()["sessions"] > 1:
            await kept.call("read", {})
            await asyncio.sleep(0.02)
        assert host.gauges()["sessions_expired"] == 20
        with pytest.raises(InstanceError):
            host.session(abandoned[0])

    at(counters(), play, HostSettings(lease_seconds=2.0, sweep_seconds=0.05))


def test_over_the_limit_is_refused_at_once_and_room_comes_back() -> None:
    async def play(host: Host) -> None:
        sessions = [await host.open("Counter") for _ in range(3)]
        with pytest.raises(CapacityError):
            await host.open("Counter")
        with pytest.raises(CapacityError):
            await sessions[0].fork()
        await sessions[0].close()
        await host.open("Counter")

    at(counters(), play, HostSettings(sessions=3))


def test_calls_beyond_the_queue_are_refused() -> None:
    async def play(host: Host) -> None:
        sessions = [await host.open("Counter") for _ in range(6)]
        for session in sessions:
            await session.call("read", {})
        found = await asyncio.gather(*(s.call("read", {}) for s in sessions), return_exceptions=True)
        assert sum(isinstance(f, CapacityError) for f in found) == 4

    at(counters(), play, local=LocalSettings(waiting=2))


def test_memory_of_live_instances_is_bounded(served: Catalog) -> None:
    async def play(host: Host) -> None:
        environment = next(iter(host.environments))
        sessions = [await host.open(environment) for _ in range(12)]
        digests = {await s.digest() for s in sessions}
        assert len(digests) == 1
        assert 1 <= host.gauges()["sessions_awake"] < 12

    size = len(next(iter(served.sources.values())).state(next(iter(served.infos.values())).states[0]))
    assert size
    at(served, play, HostSettings(live_bytes=1_500_000))


def test_workers_make_room_for_each_other() -> None:
    async def play(host: Host) -> None:
        for n in range(5):
            session = await host.open(f"c{n}")
            await session.call("add", {"n": n})
            await session.hibernate()
            assert host.gauges()["workers"] <= 2
        busy = [await host.open(f"c{n}") for n in range(3)]
        await busy[0].call("read", {})
        await busy[1].call("read", {})
        with pytest.raises(CapacityError):
            await busy[2].call("read", {})

    at(counters(*(counter(f"c{n}") for n in range(5))), play, local=LocalSettings(workers=2))


def test_a_source_that_loads_slowly_lets_others_load() -> None:
    slow = counter("slow", text="import time\ntime.sleep(1.5)\n" + COUNTER)

    async def play(host: Host) -> None:
        first = await host.open("c0")
        await first.call("read", {})
        loading = asyncio.create_task((await host.open("slow")).call("read", {}))
        await asyncio.sleep(0.05)
        assert (await (await host.open("c1")).call("read", {}))["ok"]
        assert not loading.done()
        assert (await loading)["ok"]
        assert host.gauges()["workers"] == 3

    at(counters(slow, counter("c0"), counter("c1")), play)


def test_sources_that_load_at_once_stay_within_the_limit() -> None:
    async def play(host: Host) -> None:
        sessions = [await host.open(f"c{n}") for n in range(5)]
        told = await asyncio.gather(*(s.call("read", {}) for s in sessions), return_exceptions=True)
        assert sum(isinstance(answer, CapacityError) for answer in told) == 3
        assert host.gauges()["workers"] == 2 and not host.gauges()["workers_spare"]

    at(counters(*(counter(f"c{n}") for n in range(5))), play, local=LocalSettings(workers=2))


def test_a_worker_waits_for_the_next_source() -> None:
    async def play(host: Host) -> None:
        for number in range(3):
            await (await host.open(f"c{number}")).call("read", {})
            assert host.gauges()["workers"] == number + 1 == host.gauges()["workers_started"]
            assert host.gauges()["workers_spare"] == (number < 2)

    at(counters(*(counter(f"c{n}") for n in range(3))), play, local=LocalSettings(workers=3))


def test_untrusted_code_is_refused_where_nothing_can_hold_it() -> None:
    class Nothing(Isolation):
        @property
        def enough(self) -> bool:
            return False

    async def run() -> None:
        places = LocalPlaces(None, Nothing(**vars(LocalPlaces().isolation)))
        host = Host(counters(), places=places)
        with pytest.raises(InfrastructureError, match="--unsafe"):
            await (await host.open("Counter")).digest()
        await host.close()

    asyncio.run(run())


def test_aborted_callers_leave_nothing() -> None:
    async def play(host: Host) -> None:
        rng = Random(0)
        sessions = [await host.open("Counter") for _ in range(30)]
        tasks = [asyncio.create_task(s.call("add", {"n": 1})) for s in sessions]
        await asyncio.sleep(0.01)
        for task in tasks:
            if rng.random() < 0.5:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in sessions:
            total = (await session.call("read", {}))["data"]
            assert total in (5, 6)
            kill_workers(host)
            assert (await session.call("read", {}))["data"] == total, "what was seen once stays so"
            await session.close()

    at(counters(), play)


@asynccontextmanager
async def opened(catalog: Catalog) -> AsyncIterator[Host]:
    host = Host(catalog)
    try:
        yield host
    finally:
        await host.close()


def test_a_snapshot_restores_on_another_host(finished_run: Path) -> None:
    async def run() -> None:
        task, private = pairs_of(finished_run)[0]
        isolated, local = catalog_of(finished_run, isolate=True), catalog_of(finished_run)
        async with opened(isolated) as one, opened(local) as other:
            there = await one.open(task.environment, task=task.id)
            here = await other.open(task.environment, task=task.id)
            for call in private.calls:
                await here.restore(await there.snapshot())
                assert await here.call(call.tool, call.arguments) == await there.call(call.tool, call.arguments)
                assert await here.digest() == await there.digest()

    asyncio.run(run())


def test_state_digests_are_those_of_the_rows(served: Catalog) -> None:
    async def play(host: Host) -> None:
        name = next(iter(host.environments))
        session = await host.open(name)
        state: dict[str, Any] = served.sources[name].state(session.environment.states[0])
        assert await session.digest() == digest(state)

    at(served, play)
