"""The instance API: what every face offers and every place of execution implements (paper, section 4.3).

A `Sandbox` opens `Session`s; a session is one live environment, at one state, belonging to one tenant. It outlives
connections: only `close` or the end of its lease ends it. Where it runs (in this process, in an isolated worker, on
another machine), whether it sleeps, and how often its worker was replaced, a caller never sees.

Whose fault something is decides how it is told:

    the agent's            a `Result` with `ok` false: bad arguments, unknown tool, a refused call
    the environment's      `EnvironmentFault`: an exception escaped a tool; `CallTimeout`: it ran past its time
    infrastructure's       `InfrastructureError`: a worker is gone for good; `CapacityError`: no room now
    the caller's           `InputError`: unknown environment, task or state; `InstanceError`: no such instance
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import Result
from agentomnia.task.grade import Grade
from agentomnia.task.task import Task

Call = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""

LOCAL_TENANT = "local"
"""Whose sessions those are that were opened without a token."""


@dataclass(frozen=True)
class EnvironmentInfo:
    """What callers may know of an environment."""

    id: str
    name: str
    introduction: str
    policies: tuple[str, ...]
    tools: Mapping[str, ToolSchema]
    """By name, in the order in which agents see them."""
    states: tuple[str, ...]
    """Names of its initial states; the first is opened where none is named."""
    trusted: bool
    """Proved, and run in process; everything else runs in an isolated worker."""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of its tasks by split; `Sandbox.task` gives the task."""


class Session(Protocol):
    """One live environment. Calls of one session run in the order in which they were made."""

    @property
    def id(self) -> str:
        """Unguessable, and unique over all nodes; letters, digits, `-` and `_` only."""
        ...

    @property
    def environment(self) -> EnvironmentInfo:
        """What it is an instance of."""
        ...

    @property
    def task(self) -> Task | None:
        """The task it was opened for."""
        ...

    @property
    def tools(self) -> Mapping[str, ToolSchema]:
        """What is exposed, by name: the task's tools, else all of the environment's."""
        ...

    @property
    def prompt(self) -> str:
        """The system prompt of an agent at this instance, without the task's query."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool; a tool that is not exposed is answered as unknown (`not_found`)."""
        ...

    def call_at_once(self, tool: str, arguments: Mapping[str, Any]) -> Result | None:
        """What `call` gives where nothing has to be waited for; `None`, with nothing done, where something has."""
        ...

    async def batch(self, calls: Sequence[Call]) -> list[Result]:
        """Make calls in order, in one go; stops at none, but raises where one faults."""
        ...

    async def reset(self) -> None:
        """Go back to the initial state; clears a fault."""
        ...

    async def snapshot(self) -> bytes:
        """The state as bytes: restores in any process, on any machine."""
        ...

    async def restore(self, snapshot: bytes) -> None:
        """Go to a snapshot's state; clears a fault.

        Raises:
            InputError: the bytes are no snapshot of this environment.
        """
        ...

    async def fork(self) -> Session:
        """A second session at the same state, for the same task."""
        ...

    async def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state."""
        ...

    async def score(self, message: str = "") -> Grade:
        """Grade the state, and what the agent said last, under the task's criterion; changes nothing.

        Raises:
            InputError: the session was opened without a task.
        """
        ...

    async def close(self) -> None:
        """End the session; a second time does nothing."""
        ...


class Sandbox(Protocol):
    """Opens sessions and finds them again."""

    @property
    def environments(self) -> Mapping[str, EnvironmentInfo]:
        """Every environment by id, in a fixed order."""
        ...

    def task(self, task: str) -> Task:
        """The public part of a task.

        Raises:
            InputError: there is no such task.
        """
        ...

    async def open(
        self, environment: str, *, task: str | None = None, state: str | None = None, tenant: str = LOCAL_TENANT
    ) -> Session:
        """Open a session.

        Args:
            environment: id of the environment.
            task: id of a task of that environment; the session then has its state, tools and criterion.
            state: name of an initial state, for a session without a task; the first one where neither is given.
            tenant: whose session it is.

        Raises:
            InputError: no such environment, task or state, or the task is another environment's.
            CapacityError: no room now.
        """
        ...

    def session(self, instance: str, tenant: str = LOCAL_TENANT) -> Session:
        """A session by its id; renews its lease.

        Raises:
            InstanceError: there is none, it was closed, its lease has ended, or it is another tenant's.
        """
        ...

    def gauges(self) -> Mapping[str, float]:
        """What is live now, by Prometheus name without the prefix `omnia_`: `sessions`, `workers`, …"""
        ...

    async def close(self) -> None:
        """Close every session and stop every worker."""
        ...
