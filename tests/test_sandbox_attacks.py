"""Hostile environments: nothing they try reaches the host, and their neighbours go on as if nothing had been.

Every attempt runs in a host of its level of isolation, beside an environment of another source that keeps count. After
every attempt: the host's files, listeners and processes are as they were, and the neighbour answers right, in the same
process as before.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentomnia.environment.program import ToolSchema
from agentomnia.errors import CallTimeout, EnvironmentFault, InfrastructureError, OmniaError
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.sandbox.catalog import Catalog, Source, TaskEntry
from agentomnia.sandbox.host import Host
from agentomnia.sandbox.isolation import Isolation, WorkerLimits, probe
from agentomnia.sandbox.local import LocalPlaces, LocalSettings
from agentomnia.task.criterion import Criterion, Expected
from agentomnia.task.task import Task
from agentomnia.taxonomy.axes import CAPABILITIES, domains
from agentomnia.taxonomy.coordinate import Coordinate
from sandbox_attacks import FILES, PROCESSES, SOCKETS, Attack, source
from sandbox_attacks_inside import AT_LOAD, BUSY, ENDS, INTROSPECTION, LIES, TALK

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(platform.system() != "Linux", reason="workers are isolated by Linux"),
]

FOUND = probe()
LEVELS = {
    "with namespaces": FOUND,
    "without namespaces": replace(FOUND, namespaces=False),
    "filter alone": replace(FOUND, namespaces=False, landlock=0),
}
PATIENT = WorkerLimits(memory_bytes=96 << 20, soft_seconds=8.0, hard_seconds=16.0)
SHORT = replace(PATIENT, soft_seconds=0.3, hard_seconds=0.8)
LOOSE = replace(PATIENT, open_files=64, processes=4096, file_bytes=1 << 20, soft_seconds=20.0, hard_seconds=40.0)
"""For the control: as good as no limit."""
RAW = "machine_code()"
SECRET = "secret" + "-of"

CALM = {**FILES, **SOCKETS, **PROCESSES, **INTROSPECTION, **TALK, **ENDS}
COUNTER = """
class Counter:
    def __init__(self, state):
        self.__dict__.update(state)

    def add(self, n):
        self.total += n
        return {"ok": True, "data": self.total}
"""
_NONE = {"type": "object", "properties": {}, "additionalProperties": False}
_ADD = {**_NONE, "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Ground:
    """What of the host's could be hurt."""

    def __init__(self) -> None:
        # a folder and a file that anybody may write to: what keeps a worker away must not be their modes
        self.folder = Path(tempfile.mkdtemp(prefix="omnia-ground-"))
        self.folder.chmod(0o777)
        self.canary = self.folder / "canary.txt"
        self.canary.write_text("unchanged")
        self.canary.chmod(0o666)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix, self.abstract = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        self.unix.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        self.abstract.bind(f"\0omnia-ground-{os.getpid()}-{id(self)}")
        self.unix.listen()
        self.abstract.listen()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.setblocking(False)
        # the user that workers become where the host is root
        user = 65534 if os.geteuid() == 0 else None
        self.victim = subprocess.Popen(["sleep", "3600"], user=user)
        self.before = self.look()

    def aims(self) -> dict[str, Any]:
        """The state of an attacking environment."""
        return {
            "dir": str(self.folder),
            "canary": str(self.canary),
            "port": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "unix": str(self.folder / "socket"),
            "abstract": self.abstract.getsockname()[1:].decode(),
            "pids": [self.victim.pid, os.getpid()],
            "mark": f"{SECRET} the attacker",
        }

    def look(self) -> list[tuple[str, int, int, int, int]]:
        """Every file with mode, owner, length and time."""
        found = [(p.name, p.lstat()) for p in sorted(self.folder.iterdir())]
        return [(name, s.st_mode, s.st_uid, s.st_nlink, s.st_mtime_ns) for name, s in found]

    def visits(self) -> int:
        """Connections and packets that have come in."""
        count = 0
        for listener in (self.tcp, self.unix, self.abstract):
            try:
                listener.accept()[0].close()
                count += 1
            except BlockingIOError:
                continue
        try:
            self.udp.recv(100)
        except BlockingIOError:
            return count
        return count + 1

    def check(self) -> None:
        """Nothing has happened."""
        assert self.look() == self.before
        assert self.canary.read_text() == "unchanged"
        assert self.visits() == 0
        assert self.victim.poll() is None
        assert Path("/etc/passwd").read_text()

    def clear(self) -> None:
        """Take away what a control has left."""
        for path in self.folder.iterdir():
            if path.name not in ("canary.txt", "socket"):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        self.visits()

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.close()
        shutil.rmtree(self.folder)


def _info(name: str, tools: dict[str, dict[str, Any]]) -> EnvironmentInfo:
    schemas = {n: ToolSchema(n, "modify", n, parameters) for n, parameters in tools.items()}
    return EnvironmentInfo(name, name, "Somebody else's.", (), schemas, ("start",), False)


def _hostile(name: str, text: str, state: dict[str, Any]) -> Source:
    info = _info(name, {"attempt": _NONE, "alive": _NONE})
    return Source(info, "Attack", lambda: text, lambda _: dict(state), foreign=True)


def _task(environment: str) -> TaskEntry:
    task = Task(
        id=f"task of {environment}",
        environment=environment,
        state="start",
        kind="dag",
        query="Do no harm.",
        coordinate=Coordinate(domain=domains()[0].id, capabilities=(CAPABILITIES[0].id,)),
        lineage="test",
    )
    return TaskEntry(task, Criterion(answers={"word": Expected(value=f"{SECRET} the task")}))


async def _patiently(call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """On a busy machine a short limit may stop a call, or the load of a new worker, that did no wrong."""
    for _ in range(20):
        try:
            return await call(*arguments)
        except CallTimeout:
            await asyncio.sleep(0.5)
        except EnvironmentFault as fault:
            if "loading ran past its time" not in str(fault):
                raise
    raise AssertionError("no answer any more")


class Arena:
    """A host with hostile environments, and one that keeps count."""

    def __init__(self, isolation: Isolation, limits: WorkerLimits, attacks: dict[str, str], *, unsafe: bool = False):
        self.ground = Ground()
        aims = self.ground.aims()
        counter = Source(
            _info("Counter", {"add": _ADD}),
            "Counter",
            lambda: COUNTER,
            lambda _: {"total": 0, "note": f"{SECRET} the neighbour"},
            foreign=True,
        )
        sources = {"Counter": counter, **{n: _hostile(n, text, aims) for n, text in attacks.items()}}
        tasks = {entry.task.id: entry for entry in map(_task, attacks)}
        self.places = LocalPlaces(LocalSettings(limits=limits, unsafe=unsafe), isolation)
        self.host = Host(Catalog(sources, tasks), places=self.places)
        self.total = 0
        self.runner = asyncio.Runner()
        self.neighbour = self.run(lambda: self.host.open("Counter"))
        self.count()
        self.process = self.neighbour._place

    def run(self, job: Callable[[], Awaitable[Any]], seconds: float = 120.0) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(job(), seconds)

        return self.runner.run(bounded())

    def count(self) -> None:
        """The neighbour answers, and right."""
        self.total += 1
        assert self.run(lambda: _patiently(self.neighbour.call, "add", {"n": 1})) == {"ok": True, "data": self.total}

    def attempt(self, name: str, seconds: float = 120.0) -> str:
        """How an attempt is told to whoever called it, within that time."""
        return str(self.run(lambda: self._attempt(name), seconds))

    async def _attempt(self, name: str) -> str:
        session = await self.host.open(name, task=f"task of {name}")
        try:
            return f"answer {(await session.call('attempt', {}))['data']!r}"
        except OmniaError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await session.close()

    def check(self, *, same_process: bool = True) -> None:
        """Host and neighbour are as they were."""
        self.ground.check()
        self.count()
        if same_process:
            assert self.neighbour._place is self.process, "the neighbour's worker was replaced"

    def close(self) -> None:
        self.run(self.host.close)
        self.runner.close()
        self.ground.close()


@pytest.fixture(scope="module", params=LEVELS)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    level = LEVELS[request.param]
    if not level.enough:
        pytest.skip("neither Landlock nor seccomp here")
    if request.param == "with namespaces" and level.jail is None:
        pytest.skip("no bubblewrap that works here")
    return level


@pytest.fixture(scope="module")
def canary_in_the_environment() -> Iterator[None]:
    os.environ["OMNIA_CANARY"] = f"{SECRET} the host"
    yield
    del os.environ["OMNIA_CANARY"]


@pytest.fixture(scope="module")
def arena(isolation: Isolation, canary_in_the_environment: None) -> Iterator[Arena]:
    arena = Arena(isolation, PATIENT, {name: source(attack.body) for name, attack in CALM.items()})
    yield arena
    arena.close()
    assert not arena.ground.folder.exists()


@pytest.fixture(scope="module")
def hurried(isolation: Isolation) -> Iterator[Arena]:
    if isolation == LEVELS["filter alone"]:
        pytest.skip("time is kept the same way at every level")
    texts = {name: source(attack.body) for name, attack in BUSY.items()}
    arena = Arena(isolation, SHORT, texts | {f"load: {n}": t for n, t in AT_LOAD.items()})
    yield arena
    arena.close()


def _here(name: str, attack: Attack) -> Any:
    """Raw system calls are tried by the numbers of one architecture."""
    skip = RAW in attack.body and platform.machine() != "x86_64"
    return pytest.param(name, id=name, marks=pytest.mark.skipif(skip, reason="numbers of x86_64"))


@pytest.mark.parametrize("name", [_here(*item) for item in CALM.items()])
def test_no_attempt_succeeds_and_nobody_else_notices(arena: Arena, name: str) -> None:
    told = arena.attempt(name)
    assert "GOT" not in told
    assert re.search(CALM[name].ends, told, re.S), told
    arena.check()


@pytest.mark.parametrize("name", BUSY)
def test_whoever_takes_too_long_is_stopped(hurried: Arena, name: str) -> None:
    # far over the hard limit of 0.8 s: a busy machine is slow to start the worker
    told = hurried.attempt(name, seconds=30.0)
    assert re.search(BUSY[name].ends, told), told
    hurried.check(same_process=False)


@pytest.mark.parametrize("name", AT_LOAD)
def test_a_source_that_attacks_while_it_loads_is_refused(hurried: Arena, name: str) -> None:
    assert re.search("EnvironmentFault|dies while|CallTimeout", hurried.attempt(f"load: {name}"))
    assert not Path("/tmp/omnia-shell").exists()
    hurried.check(same_process=False)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("method", ["snapshot", "digest", "call", "batch"])
def test_a_worker_may_say_anything(lies: Arena, lie: str, method: str) -> None:
    async def play() -> list[str]:
        name = f"{method}: {lie}"
        told = []
        for use in USES[:2] if lie == "no time" else USES:
            session = await lies.host.open(name, task=f"task of {name}")
            try:
                if method in ("snapshot", "digest"):
                    await session.call("attempt", {})
                await use(session)
                told.append("taken")
            except OmniaError as error:
                told.append(type(error).__name__)
            await session.close()
        return told

    told = lies.run(play)
    assert "InstanceError" not in told
    lies.check(same_process=False)


@pytest.mark.parametrize("name", ["swallow every exception", "be deaf"])
def test_who_called_before_the_attempt_has_an_answer_and_who_called_after_gets_one(hurried: Arena, name: str) -> None:
    async def play() -> None:
        before, culprit, after = [await hurried.host.open(name) for _ in range(3)]
        for session in (before, culprit, after):  # in one worker, which all three need alive
            assert (await session.call("alive", {}))["data"] == "alive"
        calls = (before.call("alive", {}), culprit.call("attempt", {}), after.call("alive", {}))
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert first == {"ok": True, "data": "alive"} and isinstance(second, CallTimeout)
        if third != first:
            # a busy machine and a short limit: the new worker was too slow to load
            assert isinstance(third, EnvironmentFault) and await _patiently(after.call, "alive", {}) == first
        for session in (before, culprit, after):
            await session.close()

    hurried.run(play)
    hurried.check(same_process=False)


USES: tuple[Callable[[Any], Awaitable[Any]], ...] = (
    lambda s: s.snapshot(),
    lambda s: s.digest(),
    lambda s: s.score("word: none"),
    lambda s: s.batch([("alive", {}), ("alive", {})]),
    lambda s: s.fork(),
    lambda s: s.hibernate(),
    lambda s: s.call("attempt", {}),
)


@pytest.fixture(scope="module")
def lies() -> Iterator[Arena]:
    """One level is enough: here the host is on trial, not the lock."""
    if not FOUND.enough:
        pytest.skip("neither Landlock nor seccomp here")
    swap = "from agentomnia.environment.instance import Instance\nInstance.{} = {}"
    texts = {f"{m}: {n}": source(swap.format(m, f)) for m in ("snapshot", "digest") for n, f in LIES.items()}
    # answers are taken from the worker as they are: the method that makes them is replaced while the class loads
    forged = "\nfrom agentomnia.environment.instance import Instance\nInstance.call = lambda self, *_: ({})(self)\n"
    texts |= {f"call: {n}": source("") + forged.format(f) for n, f in LIES.items()}
    forged = "\nfrom agentomnia.sandbox.bench import Bench\nBench.batch = lambda self, *_: ({})(self)\n"
    texts |= {f"batch: {n}": source("") + forged.format(f) for n, f in LIES.items()}
    arena = Arena(FOUND, SHORT, texts)
    yield arena
    arena.close()


def test_without_anything_to_hold_them_untrusted_environments_are_refused() -> None:
    arena = Arena.__new__(Arena)
    arena.runner = asyncio.Runner()
    text = source("return 'GOT'")
    host = Host(Catalog({"x": _hostile("x", text, {"a": 1})}), places=LocalPlaces(LocalSettings(), Isolation()))

    async def play() -> None:
        session = await host.open("x")
        with pytest.raises(InfrastructureError, match="--unsafe"):
            await session.call("attempt", {})
        await host.close()

    arena.run(play)
    arena.runner.close()


@pytest.mark.skipif(not FOUND.landlock, reason="no Landlock here")
def test_landlock_alone_keeps_files_away(canary_in_the_environment: None) -> None:
    texts = {name: source(attack.body) for name, attack in FILES.items()}
    arena = Arena(Isolation(landlock=FOUND.landlock), LOOSE, texts)
    try:
        # looking for a name is all that Landlock does not forbid
        told = {name: arena.attempt(name) for name in FILES if name != "look for a file" and RAW not in texts[name]}
        assert not {name: words for name, words in told.items() if words.startswith("answer 'GOT")}
        arena.check()
    finally:
        arena.close()


REAL = {name: attack for name, attack in CALM.items() if attack.real}


def test_the_attempts_are_real_where_nothing_holds_them(canary_in_the_environment: None) -> None:
    arena = Arena(Isolation(), LOOSE, {name: source(attack.body) for name, attack in REAL.items()}, unsafe=True)
    try:
        failed = {}
        for name in REAL:
            told = arena.attempt(name)
            if "GOT" not in told:
                failed[name] = told
            arena.ground.clear()
        assert not failed
    finally:
        arena.close()
