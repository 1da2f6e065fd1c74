"""The instances of one environment source in one process: where calls are really made.

The same bench stands in the host's own process for environments that are trusted, and behind a socket in an isolated
worker for those that are not. It knows no tenants, leases or tasks, and never sees a criterion.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentomnia.environment.instance import Instance, Origin
from agentomnia.environment.program import Program
from agentomnia.environment.result import Result
from agentomnia.environment.state import State
from agentomnia.errors import EnvironmentFault, InstanceError

_FREEZE_EVERY = 256
"""Instances after which what lives is taken out of the collector's sight: with 20,000 alive, a full collection would
stop every call for seconds. States are trees, so nothing is lost by it."""


class Bench:
    """Instances by handle, all of one program."""

    def __init__(self, program: Program) -> None:
        """Begin without an instance."""
        self.program = program
        self._instances: dict[int, Instance] = {}
        self._origins: dict[bytes, Origin] = {}
        self._opened = 0
        self._operations: Mapping[str, Callable[..., Any]] = {
            "open": self.open, "call": self.call, "batch": self.batch, "reset": self.reset, "digest": self.digest,
            "snapshot": self.snapshot, "restore": self.restore, "drop": self.drop,
        }  # fmt: skip

    def do(self, operation: str, handle: int, *arguments: Any) -> Any:
        """Do one operation by name; the names are the methods below.

        Raises:
            EnvironmentFault: the environment's code failed.
            InstanceError: there is no such instance or operation.
        """
        found = self._operations.get(operation)
        if found is None:
            raise InstanceError(f"there is no operation {operation!r}; use one of {sorted(self._operations)}")
        return found(handle, *arguments)

    def open(self, handle: int, initial: bytes, now: bytes | None = None) -> None:
        """Make an instance that goes back to `initial` when it is reset, and stands at `now` where that is given."""
        origin = self._origins.get(initial)
        if origin is None:
            origin = self._origins[initial] = Origin(initial)
        instance = Instance(self.program, origin)
        if now is not None:
            instance.restore(now)
        self._instances[handle] = instance
        self._opened += 1
        if self._opened % _FREEZE_EVERY == 0:
            gc.freeze()

    def call(self, handle: int, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        try:
            instance = self._instances[handle]
        except KeyError:
            raise _no_instance(handle) from None
        return instance.call(tool, arguments)

    def batch(self, handle: int, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[list[Result], str | None]:
        """Call tools in order until one faults; the answers before it, and the fault."""
        instance, answers = self._at(handle), []
        for tool, arguments in calls:
            try:
                answers.append(instance.call(tool, arguments))
            except EnvironmentFault as fault:
                return answers, str(fault)
        return answers, None

    def reset(self, handle: int) -> None:
        """Go back to the initial state."""
        self._at(handle).reset()

    def digest(self, handle: int) -> str:
        """The digest of the state."""
        return self._at(handle).digest()

    def snapshot(self, handle: int) -> bytes:
        """The state as bytes."""
        return self._at(handle).snapshot()

    def restore(self, handle: int, snapshot: bytes) -> None:
        """Go to a snapshot's state."""
        self._at(handle).restore(snapshot)

    def drop(self, handle: int) -> None:
        """Forget an instance."""
        self._instances.pop(handle, None)

    def live_state(self, handle: int) -> State:
        """The state itself, to read: for grading in the host's own process."""
        return self._at(handle).live_state

    def _at(self, handle: int) -> Instance:
        try:
            return self._instances[handle]
        except KeyError:
            raise _no_instance(handle) from None


def _no_instance(handle: int) -> InstanceError:
    return InstanceError(f"the worker has no instance {handle}; open it again")
