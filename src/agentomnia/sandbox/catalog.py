"""What a sandbox can open: environment sources and tasks, with what callers must never see beside what they may.

A source is text until somebody opens it. `trusted` ones bring a loaded program and run in the host's process;
the text of all others is only ever executed in an isolated worker. Criteria stay on the host's side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import MAGIC_NUMBER
from typing import Any

from agentomnia.environment.program import Program, ToolSchema
from agentomnia.environment.state import State
from agentomnia.errors import InputError
from agentomnia.sandbox.api import EnvironmentInfo
from agentomnia.task.criterion import Criterion
from agentomnia.task.task import Task


@dataclass(frozen=True)
class Source:
    """An environment that can be opened."""

    info: EnvironmentInfo
    class_name: str
    text: Callable[[], str]
    """Its source, read when it is first needed."""
    state: Callable[[str], State]
    """An initial state by name.

    Raises:
        InputError: there is none of that name, or it is invalid.
    """
    program: Callable[[], Program] | None = None
    """The loaded program; only trusted sources have one."""
    foreign: bool = False
    """Imported: promises nothing (see `Program.foreign`)."""
    problem: Callable[[State], str | None] = lambda state: None
    """Why a state is none of this environment's, or `None`."""
    code: Callable[[], bytes] | None = None
    """The source compiled by this Python (`marshal`), where that is at hand: a worker starts ten times quicker."""

    @property
    def id(self) -> str:
        """Id of the environment."""
        return self.info.id

    def request(self, sample: bytes | None, *, text: bool = True) -> dict[str, Any]:
        """What a worker needs to load it.

        Args:
            sample: a packed state, from which the state of an imported class is learned.
            text: give the source also where the code is given; a worker of this very Python never reads it then.
        """
        code = [MAGIC_NUMBER, self.code()] if self.code is not None else None
        return {
            "name": self.class_name,
            "source": self.text() if text or code is None else "",
            "code": code,
            "tools": [vars(t) for t in self.info.tools.values()],
            "foreign": self.foreign,
            "sample": sample,
        }


@dataclass(frozen=True)
class TaskEntry:
    """A task with its criterion; `None` where only the task's own harness can judge."""

    task: Task
    criterion: Criterion | None


@dataclass(frozen=True)
class Catalog:
    """Sources and tasks by id."""

    sources: Mapping[str, Source]
    tasks: Mapping[str, TaskEntry] = field(default_factory=dict)

    @cached_property
    def infos(self) -> dict[str, EnvironmentInfo]:
        """What callers may know of the environments."""
        return {name: source.info for name, source in self.sources.items()}

    def source(self, environment: str) -> Source:
        """A source by id.

        Raises:
            InputError: there is none.
        """
        found = self.sources.get(environment)
        if found is None:
            raise InputError(f"there is no environment {environment[:80]!r}; list them and choose one")
        return found

    def entry(self, task: str) -> TaskEntry:
        """A task by id.

        Raises:
            InputError: there is none.
        """
        found = self.tasks.get(task)
        if found is None:
            raise InputError(f"there is no task {task[:80]!r}; list the tasks and choose one")
        return found


def exposed_tools(info: EnvironmentInfo, task: Task | None) -> Mapping[str, ToolSchema]:
    """The tools of a session: those that the task names, else all."""
    if task is None or not task.tools:
        return info.tools
    return {name: info.tools[name] for name in task.tools if name in info.tools}
