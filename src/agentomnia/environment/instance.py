"""A live environment: one state, called step by step, `t(s, x) = (s', o)` (paper, section 4.1).

Every call is checked: the tool must exist, the arguments must fit its schema before the method sees them,
the answer must keep the result protocol and shares nothing with the state. A refused call leaves the state
as it was. An exception that escapes a tool is an `EnvironmentFault`; the instance then refuses to go on
until it is restored, since its state can no longer be trusted.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgpack

from agentomnia.environment.program import Program
from agentomnia.environment.result import Result, failure, protocol_breach, success
from agentomnia.environment.state import State, pack, unpack
from agentomnia.errors import EnvironmentFault
from agentomnia.row import digest

_Packer, _unpack = msgpack.Packer, msgpack.unpackb

_BINARY, _FLOAT, _EXTREME = 1, 2, 3
_MARKS = bytes(
    _BINARY
    if 0xC4 <= byte <= 0xC9 or 0xD4 <= byte <= 0xD8
    else {0xCB: _FLOAT, 0x7F: _EXTREME, 0xFF: _EXTREME}.get(byte, 0)
    for byte in range(256)
)
"""What each byte of a packed value may mean: the head of bytes, the head of a number with a fraction, and what follows
such a head where the number is infinite or none."""
_NOT_FINITE = bytes((_FLOAT, _EXTREME))


class Origin:
    """The state that instances start from and go back to; a group of rollouts shares one."""

    def __init__(self, packed: bytes) -> None:
        """Keep a packed state (`state.pack`)."""
        self._packed = packed
        self._uses = 0
        self._ready: bytes | None = None
        """The state once more, in the form that is quickest to read; never leaves this process."""

    def state(self) -> State:
        """A new copy."""
        self._uses += 1
        if self._uses == 1:  # most are used once, and not worth a second form
            return unpack(self._packed)
        if self._ready is None:
            self._ready = marshal.dumps(unpack(self._packed))
        state: State = marshal.loads(self._ready)
        return state


class Instance:
    """One isolated environment. Not for use from two threads at once."""

    def __init__(self, program: Program, state: State | Origin) -> None:
        """Start from a copy of `state`; the caller's object is never touched."""
        self.program = program
        self._origin = state if isinstance(state, Origin) else Origin(pack(state))
        self._object = program.build(self._origin.state())
        self._faulted: str | None = None
        self.undone: set[str] = set()
        """Tools of an imported class that changed the state and then failed."""

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
        if not isinstance(name, str) or name not in program.tools:
            return failure("not_found", f"There is no tool {str(name)[:80]!r}.", "Use one of the listed tools.")
        if type(arguments) is not dict and not isinstance(arguments, Mapping):
            return failure("invalid_argument", "Arguments must be an object.", "Give the arguments by name.")
        problem = program.validator(name)(arguments)
        if problem is not None:
            return failure("invalid_argument", f"{problem[0].upper()}{problem[1:]}.", "Correct the arguments.")
        return self._foreign_call(name, arguments) if program.foreign else self._checked_call(name, arguments)

    def _checked_call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        program = self.program
        try:
            # the round trip through msgpack detaches both directions and refuses what is not JSON
            packed = _Packer().pack(program.methods[name](self._object, **_detached(arguments)))
            answer: Any = _unpack(packed)
        except Exception as error:
            self._faulted = f"{name}: {type(error).__name__}: {error}"
            raise EnvironmentFault(f"{program.name}.{self._faulted}") from error
        breach = None if _plainly_accepted(answer) else protocol_breach(answer)
        breach = breach or _beyond_json(packed, answer)
        if breach is not None:
            self._faulted = f"{name}: {breach}"
            raise EnvironmentFault(f"{program.name}.{self._faulted}")
        checked: Result = answer
        return checked

    def _foreign_call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Imported classes promise nothing: a failed call is undone, its answer wrapped."""
        before = self._attributes()
        try:
            method = self.program.methods[name].__get__(self._object, type(self._object))
            packed = _Packer().pack(method(**_detached(arguments)))
            answer = _unpack(packed)
            problem = _beyond_json(packed, answer)
            if problem is not None:
                raise ValueError(problem)
        except (Exception, SystemExit) as error:
            self._undo(name, before)
            raise EnvironmentFault(f"{self.program.name}.{name}: {type(error).__name__}: {error}") from error
        wrapped = _wrap_foreign(answer)
        if not wrapped["ok"]:
            self._undo(name, before)
        return wrapped

    def _attributes(self) -> dict[str, Any]:
        """A copy of all attributes, what JSON cannot hold included; values that they share stay shared."""
        copied: dict[str, Any] = {}
        memo: dict[int, Any] = {id(self._object): self._object}
        for name, value in vars(self._object).items():
            try:
                copied[name] = deepcopy(value, memo)
            except Exception:  # noqa: BLE001 - foreign: a module or a lock has no copy and stays what it is
                copied[name] = value
        return copied

    def _undo(self, tool: str, before: dict[str, Any]) -> None:
        """Put the attributes back, and remember where that was needed."""
        attributes, opaque = vars(self._object), self.program.opaque
        try:
            changed = {**attributes, **dict.fromkeys(opaque)} != {**before, **dict.fromkeys(opaque)}
        except Exception:  # noqa: BLE001 - foreign: comparing may raise too
            changed = True
        if changed:
            self.undone.add(tool)
        attributes.clear()
        attributes.update(before)

    @property
    def state(self) -> State:
        """A copy of the state."""
        return unpack(self.snapshot())

    @property
    def live_state(self) -> State:
        """The state itself, to read and never to change: for grading and digests without a copy."""
        return self.program.state_of(self._object)

    def snapshot(self) -> bytes:
        """The state as bytes; restores in any process.

        Raises:
            EnvironmentFault: an imported class has put something into its state that JSON does not have.
        """
        try:
            return pack(self.program.state_of(self._object))
        except (TypeError, ValueError, OverflowError) as error:
            raise EnvironmentFault(f"{self.program.name} holds what no state can: {error}") from error

    def restore(self, snapshot: bytes) -> None:
        """Go to the state of a snapshot; clears a fault."""
        self.adopt(unpack(snapshot))

    def adopt(self, state: State) -> None:
        """Go to a state that the caller gives away: calls change that very object; clears a fault."""
        self._object = self.program.build(state)
        self._faulted = None

    def reset(self) -> None:
        """Go back to the state the instance was made with."""
        self.adopt(self._origin.state())

    def fork(self) -> Instance:
        """A second instance at the same state, sharing nothing; a faulted one's fork is faulted too."""
        forked = Instance(self.program, self.live_state)
        forked._faulted = self._faulted
        return forked

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state: equal states, equal digests, in any process.

        Raises:
            EnvironmentFault: a tool has put something into the state that JSON does not have.
        """
        try:
            return digest(self.live_state)
        except (TypeError, ValueError) as error:
            raise EnvironmentFault(f"{self.program.name} holds what no state can: {error}") from error

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


def _plainly_accepted(answer: Any) -> bool:
    """Whether an answer is an accepted one of the protocol, decided quickly; `False` says that somebody must look."""
    return type(answer) is dict and answer.get("ok") is True and len(answer) == 2 and "data" in answer


def _beyond_json(packed: bytes, answer: Any) -> str | None:
    """What an answer holds that msgpack has and JSON has not, if anything: bytes, or a number that is not finite.

    The packed form says for nearly every answer that there is none; the others are looked through.
    """
    marks = packed.translate(_MARKS)
    if _BINARY not in marks and (_FLOAT not in marks or _NOT_FINITE not in marks):
        return None
    return _value_beyond_json(answer)


def _value_beyond_json(value: Any) -> str | None:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "answered an object with a key that is no text"
        return next((problem for part in value.values() if (problem := _value_beyond_json(part)) is not None), None)
    if isinstance(value, list):
        return next((problem for part in value if (problem := _value_beyond_json(part)) is not None), None)
    if isinstance(value, float) and value - value != 0:
        return "answered a number that is not finite"
    return None if value is None or isinstance(value, str | int | float) else f"answered {type(value).__name__}"


_CONTAINERS = (list, dict)


def _detached(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments that the caller cannot reach into afterwards."""
    for value in arguments.values():
        if isinstance(value, _CONTAINERS):
            detached: Mapping[str, Any] = _unpack(_Packer().pack(dict(arguments)))
            return detached
    return arguments


def _wrap_foreign(answer: Any) -> Result:
    """Bring the answer of an imported class under the protocol.

    `{success: false, …}`, `{ok: false, …}` and `{error: …}` are refusals; everything else is data.
    """
    if protocol_breach(answer) is None:
        return dict(answer)
    if not isinstance(answer, dict):
        return success(answer)
    error = answer.get("error")
    if answer.get("success") is False or answer.get("ok") is False or error:
        told = error.get("message") if isinstance(error, dict) else None
        message = str(told or error or answer.get("message") or "The call was refused.")
        return failure("precondition_failed", message, "Check the arguments and the state of the records.")
    return success(answer["data"] if answer.get("success") is True and "data" in answer else answer)
