"""A live environment: one state, called step by step, `t(s, x) = (s', o)` (paper, section 4.1).

Every call is checked: the tool must exist, the arguments must fit its schema before the method sees them,
the answer must keep the result protocol and shares nothing with the state. A refused call leaves the state
as it was. An exception that escapes a tool is an `EnvironmentFault`; the instance then refuses to go on
until it is restored, since its state can no longer be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from agentomnia.environment.program import Program
from agentomnia.environment.result import Result, failure, protocol_breach, success
from agentomnia.environment.state import State, pack, unpack
from agentomnia.errors import EnvironmentFault
from agentomnia.row import digest

_pack, _unpack = msgpack.packb, msgpack.unpackb


class Instance:
    """One isolated environment. Not for use from two threads at once."""

    def __init__(self, program: Program, state: State) -> None:
        """Start from a copy of `state`; the caller's object is never touched."""
        self.program = program
        self._initial = pack(state)
        self._object = program.build(unpack(self._initial))
        self._faulted: str | None = None

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool.

        Args:
            name: the tool.
            arguments: by name; anything that is not an object of the tool's schema is refused.

        Returns:
            The answer under the result protocol, sharing nothing with the state.

        Raises:
            EnvironmentFault: the tool let an exception escape or answered outside the protocol.
        """
        program = self.program
        if self._faulted is not None:
            raise EnvironmentFault(f"{program.name} faulted before ({self._faulted}); restore a snapshot")
        if name not in program.tools:
            return failure("not_found", f"There is no tool {name!r}.", "Use one of the listed tools.")
        if not isinstance(arguments, Mapping):
            return failure("invalid_argument", "Arguments must be an object.", "Give the arguments by name.")
        problem = program.validator(name)(arguments)
        if problem is not None:
            return failure("invalid_argument", f"{problem[0].upper()}{problem[1:]}.", "Correct the arguments.")
        return self._foreign_call(name, arguments) if program.foreign else self._checked_call(name, arguments)

    def _checked_call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        try:
            # the round trip through msgpack detaches both directions and refuses what is not JSON
            answer: Any = _unpack(_pack(self._object.__class__.__dict__[name](self._object, **_detached(arguments))))
        except Exception as error:
            self._faulted = f"{name}: {type(error).__name__}: {error}"
            raise EnvironmentFault(f"{self.program.name}.{self._faulted}") from error
        breach = protocol_breach(answer)
        if breach is not None:
            self._faulted = f"{name}: {breach}"
            raise EnvironmentFault(f"{self.program.name}.{self._faulted}")
        checked: Result = answer
        return checked

    def _foreign_call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Imported classes promise nothing: a failed call is undone by snapshot, its answer wrapped."""
        before = self.snapshot()
        try:
            answer = _unpack(_pack(vars(type(self._object))[name](self._object, **_detached(arguments))))
        except Exception as error:
            self.restore(before)
            raise EnvironmentFault(f"{self.program.name}.{name}: {type(error).__name__}: {error}") from error
        wrapped = _wrap_foreign(answer)
        if not wrapped["ok"]:
            self.restore(before)
        return wrapped

    @property
    def state(self) -> State:
        """A copy of the state."""
        return unpack(self.snapshot())

    @property
    def live_state(self) -> State:
        """The state itself, to read and never to change: for grading and digests without a copy."""
        state: State = vars(self._object)
        return state

    def snapshot(self) -> bytes:
        """The state as bytes; restores in any process."""
        return pack(vars(self._object))

    def restore(self, snapshot: bytes) -> None:
        """Go to the state of a snapshot; clears a fault."""
        self._object = self.program.build(unpack(snapshot))
        self._faulted = None

    def reset(self) -> None:
        """Go back to the state the instance was made with."""
        self.restore(self._initial)

    def fork(self) -> Instance:
        """A second instance at the same state, sharing nothing."""
        return Instance(self.program, vars(self._object))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state: equal states, equal digests, in any process."""
        return digest(vars(self._object))

    def broken_rules(self) -> list[str]:
        """Names of the rules that the state breaks; none for an imported class, which has no such method.

        Raises:
            EnvironmentFault: a rule cannot be evaluated.
        """
        if self.program.foreign:
            return []
        try:
            broken: list[str] = self._object._broken_rules()
        except Exception as error:
            raise EnvironmentFault(f"{self.program.name}: a rule fails: {type(error).__name__}: {error}") from error
        return broken


def _detached(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments that the caller cannot reach into afterwards."""
    for value in arguments.values():
        if type(value) is list or type(value) is dict:
            detached: Mapping[str, Any] = _unpack(_pack(dict(arguments)))
            return detached
    return arguments


def _wrap_foreign(answer: Any) -> Result:
    """Bring the answer of an imported class under the protocol: `{success: false, …}` and `{error: …}` are refusals."""
    if protocol_breach(answer) is None:
        return dict(answer)
    if isinstance(answer, dict) and (answer.get("success") is False or (answer.get("error"))):
        message = str(answer.get("error") or answer.get("message") or "The call was refused.")
        return failure("precondition_failed", message, "Check the arguments and the state of the records.")
    if isinstance(answer, dict) and answer.get("success") is True and "data" in answer:
        return success(answer["data"])
    return success(answer)
