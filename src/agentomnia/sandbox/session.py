"""A hosted session: what of a live environment outlives its worker.

The host keeps the initial state, a base snapshot and the calls accepted since. From these the same state is rebuilt in
any worker: after a crash, after sleep, after a move. Every replayed call must answer what it answered before; where it
does not, the environment is not deterministic, and the caller gets an infrastructure error, never a wrong state.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgpack

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import Result, failure, protocol_breach
from agentomnia.environment.state import State, unpack
from agentomnia.episodes.loop import system_prompt
from agentomnia.errors import CallTimeout, EnvironmentFault, InfrastructureError, InputError
from agentomnia.sandbox.api import Call, EnvironmentInfo
from agentomnia.sandbox.catalog import Source, TaskEntry, exposed_tools
from agentomnia.sandbox.places import BrokenCall, InProcess, Place, WorkerGone
from agentomnia.task.grade import Grade, grade
from agentomnia.task.task import Task

if TYPE_CHECKING:
    from agentomnia.sandbox.host import Host

_LOG_MOST = 64
"""Calls after which a new base snapshot is taken: rebuilding stays quick, and a call pays little for it."""
_STRIKES = 3
"""Deaths of a worker at the same call from which the call is held responsible; a stray kill should not be."""
_ATTEMPTS = 8


class HostedSession:
    """One session of a `Host`; implements `api.Session`."""

    def __init__(
        self, host: Host, name: str, source: Source, entry: TaskEntry | None, initial: bytes, tenant: str
    ) -> None:
        """Begin asleep at the initial state.

        Args:
            host: opens places.
            name: the session's id.
            source: the environment.
            entry: the task, if any.
            initial: the packed initial state.
            tenant: the owner.
        """
        self.id, self.tenant, self.source = name, tenant, source
        self._host, self._entry, self._initial = host, entry, initial
        self._base: bytes | None = None
        """Snapshot of a later state; `None` where that is the initial state."""
        self._shrunk: bytes | None = None
        """The base, compressed, in place of it while the session hibernates."""
        self._log: list[tuple[bytes, int]] = []
        """Calls accepted since the base, packed, with the checksum of each answer; only where a worker may die."""
        self._place: Place | None = None
        self._handle = 0
        self._fault: str | None = None
        self._lock = asyncio.Lock()
        self.used = 0.0
        """When it was last used, by the clock of `time.monotonic`."""

    @property
    def environment(self) -> EnvironmentInfo:
        """What it is an instance of."""
        return self.source.info

    @property
    def task(self) -> Task | None:
        """The task it was opened for."""
        return self._entry.task if self._entry is not None else None

    @cached_property
    def tools(self) -> Mapping[str, ToolSchema]:
        """What is exposed."""
        return exposed_tools(self.source.info, self.task)

    @property
    def prompt(self) -> str:
        """The system prompt of an agent here."""
        info, task = self.source.info, self.task
        return system_prompt(
            info.introduction, info.policies, _initial_state(self._initial), task.answer if task else ()
        )

    @property
    def place(self) -> Place | None:
        """Where its instance lives, if it is awake."""
        return self._place

    @property
    def awake(self) -> bool:
        """Whether an instance is live."""
        return self._place is not None

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return self._lock.locked()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool; one that is not exposed is answered as unknown."""
        answer = self.call_at_once(tool, arguments)
        if answer is not None:
            return answer
        async with self._lock:
            if tool not in self.tools:
                return _unknown(tool)
            return await self._accept(tool, arguments, await self._ask("call", tool, arguments))

    def call_at_once(self, tool: str, arguments: Mapping[str, Any]) -> Result | None:
        """Call a tool where that needs no waiting: the instance is awake in this process, and no call is in flight."""
        place = self._place
        if not isinstance(place, InProcess) or self._fault is not None or self._lock.locked():
            return None
        self.used = monotonic()
        if tool not in self.tools:
            return _unknown(tool)
        try:
            return place.bench.call(self._handle, tool, arguments)
        except EnvironmentFault as fault:
            raise self._failed(fault) from None

    async def batch(self, calls: Sequence[Call]) -> list[Result]:
        """Make calls in order, in one go; unknown tools are answered as such.

        Raises:
            EnvironmentFault: one faulted; those before it have been made.
        """
        async with self._lock:
            known = [(tool, arguments) for tool, arguments in calls if tool in self.tools]
            told = await self._ask("batch", known)
            if not _is_batch(told, len(known)):
                raise self._faulted("answered no batch")
            answers, fault = told
            checked = [await self._accept(tool, given, answer) for (tool, given), answer in zip(known, answers)]
            if fault is not None:
                raise self._failed(EnvironmentFault(str(fault)))
            accepted = iter(checked)
            return [next(accepted) if tool in self.tools else _unknown(tool) for tool, _ in calls]

    async def reset(self) -> None:
        """Go back to the initial state; clears a fault."""
        async with self._lock:
            self._at(None)
            if self._place is not None:
                await self._ask("reset")

    async def snapshot(self) -> bytes:
        """The state as bytes."""
        async with self._lock:
            return await self._checkpoint()

    async def restore(self, snapshot: bytes) -> None:
        """Go to a snapshot's state; clears a fault.

        Raises:
            InputError: the bytes are no snapshot of this environment.
        """
        state = _state_of(snapshot)
        problem = self.source.problem(state)
        if problem is not None:
            raise InputError(f"the snapshot is none of {self.source.id}: {problem}; take one from a session of it")
        async with self._lock:
            self._at(snapshot)
            if self._place is not None:
                await self._ask("restore", snapshot)

    async def fork(self) -> HostedSession:
        """A second session at the same state."""
        async with self._lock:
            return self._host.fork(self, await self._checkpoint())

    async def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state."""
        async with self._lock:
            digest = await self._ask("digest")
            if not isinstance(digest, str) or len(digest) != 64:
                raise self._faulted("answered no digest")
            return digest

    async def score(self, message: str = "") -> Grade:
        """Grade the state here, on the host's side; changes nothing.

        Raises:
            InputError: the session has no task, or nobody but the task's own harness can judge it.
        """
        if self._entry is None or self._entry.criterion is None:
            raise InputError(f"session {self.id} has no task with a criterion; open it with a task to score it")
        async with self._lock:
            after = await self._state()
            try:
                return grade(self._entry.criterion, _initial_state(self._initial), after, message)
            except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
                # a hostile worker may send any value as its state
                raise self._faulted(f"its state cannot be graded: {type(error).__name__}") from None

    async def close(self) -> None:
        """End the session."""
        self._host.forget(self)
        async with self._lock:
            self._sleep()

    async def hibernate(self) -> None:
        """Give the live instance up; the next use brings it back."""
        async with self._lock:
            if self._place is None:
                return
            if self._fault is None:
                self._shrunk, self._base = zlib.compress(await self._checkpoint(), 1), None
            self._sleep()

    def saved(self) -> list[Any]:
        """Everything that the session is but its instance, as plain values; `restored` brings it back."""
        task = self.task.id if self.task is not None else None
        where = [self.id, self.tenant, self.source.id, task]
        return [*where, self._initial, self._base, self._shrunk, self._log, self._fault]

    def restored(self, base: bytes | None, shrunk: bytes | None, log: list[Any], fault: str | None) -> HostedSession:
        """Stand where a saved session stood."""
        self._base, self._shrunk, self._fault = base, shrunk, fault
        self._log = [(packed, mark) for packed, mark in log]
        return self

    def sibling(self, name: str, snapshot: bytes) -> HostedSession:
        """A new session of the same environment, task and tenant, asleep at a snapshot."""
        made = HostedSession(self._host, name, self.source, self._entry, self._initial, self.tenant)
        made._at(snapshot)
        return made

    def _at(self, snapshot: bytes | None) -> None:
        """Let the base be a state, with nothing called since."""
        self._base, self._shrunk = snapshot, None
        self._log.clear()
        self._fault = None

    async def _state(self) -> State:
        if isinstance(self._place, InProcess) and self._fault is None:
            return self._place.bench.live_state(self._handle)
        return _state_of(await self._ask("snapshot"))

    async def _checkpoint(self) -> bytes:
        snapshot = await self._ask("snapshot")
        if not isinstance(snapshot, bytes):
            raise self._faulted("answered no snapshot")
        self._at(snapshot)
        return snapshot

    async def _accept(self, tool: str, arguments: Mapping[str, Any], answer: Any) -> Result:
        """Check an answer under the protocol and remember what changes the state."""
        if isinstance(self._place, InProcess):
            checked: Result = answer
            return checked
        mark = _checksum(answer)
        breach = protocol_breach(answer) if mark is not None else "answered what JSON does not have"
        if mark is None or breach is not None:
            raise self._faulted(f"{tool} {breach}")
        if answer["ok"]:
            self._log.append((msgpack.packb([tool, arguments]), mark))
            if len(self._log) >= _LOG_MOST:
                await self._checkpoint()
        accepted: Result = answer
        return accepted

    async def _ask(self, operation: str, *arguments: Any) -> Any:
        """Do an operation where the instance lives; wakes it, and survives the death of its worker."""
        self.used = monotonic()
        if self._fault is not None and operation not in ("reset", "restore"):
            raise EnvironmentFault(f"{self.source.id} faulted before ({self._fault}); reset or restore the session")
        strikes = 0
        for _ in range(_ATTEMPTS):
            try:
                place = await self._wake()
                return await self._try(place, operation, arguments)
            except WorkerGone as gone:
                self._place = None
                strikes += gone.suspect
                if gone.late:
                    raise CallTimeout(f"{operation} in {self.source.id} ran past its time and was killed") from None
                if strikes >= _STRIKES:
                    raise self._faulted(f"its worker dies at this {operation}") from None
        raise InfrastructureError(f"workers of {self.source.id} keep dying; drop this rollout and look at the host")

    async def _try(self, place: Place, operation: str, arguments: Sequence[Any]) -> Any:
        try:
            return await place.ask(operation, self._handle, *arguments)
        except asyncio.CancelledError:
            self._sleep()  # it may run or not: the session stands where it stood before the call
            raise
        except BrokenCall as broken:
            self._sleep()
            if broken.late:
                raise CallTimeout(f"{operation} in {self.source.id}: {broken}") from None
            raise self._faulted(str(broken)) from None
        except EnvironmentFault as fault:
            raise self._failed(fault) from None

    async def _wake(self) -> Place:
        if self._place is not None and self._place.alive:
            return self._place
        self._place = None
        place = await self._host.place(self.source, self._initial)
        handle = self._host.next_handle()
        if self._shrunk is not None:
            self._base, self._shrunk = zlib.decompress(self._shrunk), None
        place.handles += 1
        self._place, self._handle = place, handle
        try:
            await place.ask("open", handle, self._initial, self._base)
            await self._replay(place, handle)
        except BrokenCall as broken:
            self._sleep()
            raise self._faulted(str(broken)) from None
        except (Exception, asyncio.CancelledError):
            self._sleep()
            raise
        return place

    async def _replay(self, place: Place, handle: int) -> None:
        if not self._log:
            return
        told = await place.ask("batch", handle, [msgpack.unpackb(packed) for packed, _ in self._log])
        if not _is_batch(told, len(self._log)) or [_checksum(a) for a in told[0]] != [mark for _, mark in self._log]:
            raise InfrastructureError(
                f"{self.source.id} does not replay as it ran, so its state is lost; drop this rollout, and look for "
                "clocks, randomness or globals in the environment"
            )

    def _sleep(self) -> None:
        place, self._place = self._place, None
        if place is not None and place.alive:
            place.handles -= 1
            place.drop(self._handle)

    def _failed(self, fault: EnvironmentFault) -> EnvironmentFault:
        """Take note of a fault of a call; an imported class is put back by its instance, and may go on."""
        if not self.source.foreign:
            self._fault = str(fault)
        return fault

    def _faulted(self, why: str) -> EnvironmentFault:
        """Remember a fault; the session refuses to go on until it is reset or restored."""
        self._fault = why
        return EnvironmentFault(f"{self.source.id}: {why}")


@lru_cache(maxsize=32)
def _initial_state(packed: bytes) -> State:
    """A packed initial state to read and never to change: the sessions of a group of rollouts share it."""
    return unpack(packed)


def _unknown(tool: str) -> Result:
    return failure("not_found", f"There is no tool {tool[:80]!r}.", "Use one of the listed tools.")


_json_text = json.JSONEncoder(allow_nan=False).encode


def _checksum(answer: Any) -> int | None:
    """A short mark of an answer; `None` where it holds what JSON does not have, as a hostile worker's may."""
    try:
        return zlib.crc32(_json_text(answer).encode())
    except (TypeError, ValueError, RecursionError):
        return None


def _is_batch(told: Any, calls: int) -> bool:
    """Whether this is an answer to so many calls: one for each, or fewer and why no more."""
    if not isinstance(told, list | tuple) or len(told) != 2 or not isinstance(told[0], list):
        return False
    return len(told[0]) == calls if told[1] is None else len(told[0]) < calls


def _state_of(snapshot: Any) -> State:
    """The state in a snapshot's bytes, wherever they come from.

    Raises:
        InputError: they are none.
    """
    try:
        state = unpack(snapshot)
    except (ValueError, TypeError, RecursionError):
        state = {}
    if not isinstance(state, dict) or not state:
        raise InputError("the bytes are no snapshot; take one from a session of the same environment")
    return state
