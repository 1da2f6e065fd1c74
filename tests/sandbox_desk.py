"""A sandbox for tests of faces: counters behind the instance API, with a tool for every way in which a call can end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import Result, failure, success
from agentomnia.environment.schema import compile_validator
from agentomnia.errors import (
    CallTimeout,
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
)
from agentomnia.row import digest
from agentomnia.sandbox.api import LOCAL_TENANT, Call, EnvironmentInfo
from agentomnia.sandbox.gateway import Gateway, GatewaySettings
from agentomnia.sandbox.server import running
from agentomnia.task.grade import Grade
from agentomnia.task.task import Task
from agentomnia.taxonomy.coordinate import Coordinate

CLOSED: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
ADD = {**CLOSED, "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NAMES = ("read", "add", "refuse", "fault", "late", "gone", "full", "wrong", "slow", "mistake")
TOOLS = {
    name: ToolSchema(name, "query" if name == "read" else "modify", f"{name}.", ADD if name == "add" else CLOSED)
    for name in NAMES
}
TASKS = {
    f"count-{number}": Task(
        id=f"count-{number}", environment="counter", state="start", kind="dag", query=f"Count to {number}.",
        tools=("read", "add"), coordinate=Coordinate(domain=10006, capabilities=("tool_use",)), lineage="tests",
    )
    for number in (7, 8, 9)
}  # fmt: skip
SPLITS = {"train": ("count-7", "count-8"), "test": ("count-9",)}
COUNTER = EnvironmentInfo("counter", "Counter", "It counts.", ("Be exact.",), TOOLS, ("start", "high"), True, SPLITS)
STARTS = {"start": 0, "high": 100}
ENDS: Mapping[str, Callable[[], Exception]] = {
    "fault": lambda: EnvironmentFault("Counter.fault: ValueError: secret-value"),
    "late": lambda: CallTimeout("Counter.late ran past 5 s"),
    "gone": lambda: InfrastructureError("the worker is gone; open a new session"),
    "full": lambda: CapacityError("no room; try again"),
    "mistake": lambda: KeyError("a mistake of ours"),
}


class DeskSession:
    """One counter."""

    def __init__(self, desk: Desk, id_: str, tenant: str, start: int, task: Task | None) -> None:
        self.id, self.tenant, self.task, self._desk = id_, tenant, task, desk
        self.environment, self._start, self.total = COUNTER, start, start
        self.tools = TOOLS if task is None else {name: TOOLS[name] for name in task.tools}
        self.prompt = "You count. Grüße."

    def call_at_once(self, tool: str, arguments: Mapping[str, Any]) -> Result | None:
        """Here every call may wait."""
        return None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        if tool not in self.tools:
            return failure("not_found", f"There is no tool {tool!r}.", "Use another.")
        if not isinstance(arguments, dict):
            return failure("invalid_argument", "Arguments must be an object.", "Correct the arguments.")
        problem = compile_validator(TOOLS[tool].parameters)(arguments)
        if problem is not None:
            return failure("invalid_argument", problem, "Correct the arguments.")
        if tool in ENDS:
            raise ENDS[tool]()
        if tool == "slow":
            await self._desk.released.wait()
        self.total += arguments.get("n", 0)
        refused = failure("conflict", "Zu spät.", "Wait.")
        return (
            refused
            if tool == "refuse"
            else success(float("nan") if tool == "wrong" else {"total": self.total, "€": "ü"})
        )

    async def batch(self, calls: Sequence[Call]) -> list[Result]:
        return [await self.call(tool, arguments) for tool, arguments in calls]

    async def reset(self) -> None:
        self.total = self._start

    async def snapshot(self) -> bytes:
        return b"\x00total" + str(self.total).encode()

    async def restore(self, snapshot: bytes) -> None:
        if not snapshot.startswith(b"\x00total"):
            raise InputError("these bytes are no snapshot of a counter; give one")
        self.total = int(snapshot[6:])

    async def fork(self) -> DeskSession:
        return self._desk.admit(self.tenant, self.total, self.task)

    async def digest(self) -> str:
        return digest({"total": self.total})

    async def score(self, message: str = "") -> Grade:
        if self.task is None:
            raise InputError("this session has no task; open one with a task to score it")
        right = self.task.query == f"Count to {self.total}." and message == "done"
        return Grade(reward=1.0) if right else Grade(reward=0.0, failures=("not there",))

    async def close(self) -> None:
        self._desk.sessions.pop(self.id, None)


class Desk:
    """The sandbox; `most` sessions at once."""

    def __init__(self, most: int = 1000) -> None:
        self.environments: Mapping[str, EnvironmentInfo] = {"counter": COUNTER}
        self.sessions: dict[str, DeskSession] = {}
        self.released = asyncio.Event()
        self.closed = False
        self._most, self._numbers = most, itertools.count()

    def task(self, task: str) -> Task:
        if task not in TASKS:
            raise InputError(f"there is no task {task!r}; GET /v1/tasks lists them")
        return TASKS[task]

    async def open(
        self, environment: str, *, task: str | None = None, state: str | None = None, tenant: str = LOCAL_TENANT
    ) -> DeskSession:
        if environment != "counter" or state not in (None, *STARTS):
            raise InputError(f"there is no {environment!r} at {state!r}; GET /v1/environments lists them")
        return self.admit(tenant, STARTS[state or "start"], None if task is None else self.task(task))

    def admit(self, tenant: str, start: int, task: Task | None) -> DeskSession:
        if len(self.sessions) >= self._most:
            raise CapacityError("no room for another session; try again later")
        session = DeskSession(self, f"s-{next(self._numbers)}", tenant, start, task)
        self.sessions[session.id] = session
        return session

    def session(self, instance: str, tenant: str = LOCAL_TENANT) -> DeskSession:
        found = self.sessions.get(instance)
        if found is None or found.tenant != tenant:
            raise InstanceError("there is no such session; open one")
        return found

    def gauges(self) -> Mapping[str, float]:
        return {"sessions": len(self.sessions)}

    async def close(self) -> None:
        self.sessions.clear()
        self.closed = True


Play = Callable[[str, Desk, Gateway], Awaitable[None]]


def served(play: Play, settings: GatewaySettings | None = None, most: int = 1000, unix: Path | None = None) -> None:
    """Play against a real server on loopback, and see that it ends well."""

    async def run() -> None:
        desk = Desk(most)
        async with asyncio.timeout(200), running(desk, settings, unix=unix) as (url, gateway):
            try:
                await play(url, desk, gateway)
            finally:
                desk.released.set()
        assert desk.closed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
