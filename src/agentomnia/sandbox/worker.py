"""The inside of an isolated worker: one environment source, served over one socket.

Runs after `isolation.lock_down`, so everything it needs is imported already. The first request carries the source;
every later one is answered in the order of arrival as `[number, status, value]`:

    ok         value is the answer
    fault      value says what the environment did wrong; the worker goes on
    broken     a call was stopped by the soft time limit, or escaped: the instance is dropped, its state unknown
    refused    value says why the request could not be taken

A tool that swallows the soft limit is ended by the host's watchdog, with the whole process.
"""

from __future__ import annotations

import gc
import marshal
import signal
import socket
from dataclasses import replace
from importlib.util import MAGIC_NUMBER
from types import CodeType, FrameType
from typing import Any

from agentomnia.environment.imported import json_problem
from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.environment.state import pack, unpack
from agentomnia.errors import EnvironmentFault, OmniaError
from agentomnia.sandbox.bench import Bench
from agentomnia.sandbox.wire import FRAME_BYTES, FrameReader, WireError, frame

_FAULT_CHARACTERS = 2_000
LOAD_FACTOR = 10
"""Loading a source takes longer than a call, above all on a busy machine, and is done once."""
_AGAIN_SECONDS = 0.05
"""After the soft limit, how often a tool that caught it is interrupted again."""


class _OutOfTime(BaseException):
    """Not an `Exception`, so that ordinary handlers in a tool let it through."""


def serve(sock: socket.socket, soft_seconds: float, answer_bytes: int) -> None:
    """Answer requests until the socket closes.

    Args:
        sock: connected to the host.
        soft_seconds: time of one request.
        answer_bytes: longest answer.
    """
    clock = _Clock(soft_seconds * LOAD_FACTOR)
    reader, bench = FrameReader(FRAME_BYTES), None
    rehearse()
    while data := sock.recv(1 << 16):
        for number, operation, *rest in reader.feed(data):
            if bench is None:
                status, value, bench = _load(rest[1], clock)
                clock.seconds = soft_seconds
                gc.freeze()
                gc.enable()
            else:
                status, value = _do(bench, operation, rest, clock)
            # at once: an answer that waited for a later request would share the blame for that request's end
            sock.sendall(_framed(number, status, value, answer_bytes))


def rehearse() -> None:
    """Serve a small environment of our own, so that a worker that waits for its source is quick with it.

    Until a page is written, a forked process shares it: those that any environment writes are written here.
    """
    bench = Bench(Program("Rehearsal", "", load_class(_REHEARSAL, "Rehearsal"), {"look": ToolSchema(**_LOOK)}))
    state = pack({"things": {"a": {"name": "a", "price": 1.5, "count": 2, "tags": ["b"], "gone": None}}})
    asked = [["open", state, None], ["call", "look", {"key": "a"}], ["call", "look", {}], ["snapshot"], ["digest"]]
    for operation, *arguments in FrameReader().feed(b"".join(map(frame, asked))):
        _framed(1, "ok", bench.do(operation, 1, *arguments), FRAME_BYTES)


_REHEARSAL = """
class Rehearsal:
    def __init__(self, state: dict) -> None:
        self.things: dict = state["things"]

    def look(self, key: str) -> dict:
        found = self.things.get(key)
        if found is None:
            return {"ok": False, "error": {"code": "not_found", "message": f"There is no {key}.", "hint": "Look."}}
        return {"ok": True, "data": dict(found)}
"""
_LOOK: dict[str, Any] = {
    "name": "look",
    "kind": "query",
    "description": "",
    "parameters": {
        "type": "object",
        "properties": {"key": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["key"],
        "additionalProperties": False,
    },
}


class _Clock:
    """The soft limit: raises `_OutOfTime` inside `with`, again and again until it is let through."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._running = False
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, number: int, where: FrameType | None) -> None:
        if self._running:
            raise _OutOfTime

    def __enter__(self) -> None:
        self._running = True
        signal.setitimer(signal.ITIMER_REAL, self.seconds, _AGAIN_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._running = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def _load(given: dict[str, Any], clock: _Clock) -> tuple[str, Any, Bench | None]:
    """Execute the source; tells what of an imported class is no tool and no state."""
    try:
        with clock:
            program = Program(
                name=given["name"],
                source=given["source"],
                cls=load_class(given["source"], given["name"], _compiled(given["code"])),
                tools={t["name"]: ToolSchema(**t) for t in given["tools"]},
                foreign=given["foreign"],
            )
            return "ok", None, Bench(_without_opaque(program, given["sample"]) if program.foreign else program)
    except _OutOfTime:
        return "broken", "loading ran past its time", None
    except BaseException as error:  # noqa: BLE001 - foreign code: whatever it raises, the host must hear of it
        return "fault", _told(error), None


def _compiled(given: tuple[bytes, bytes] | None) -> CodeType | None:
    """What the host has compiled, unless it runs another Python."""
    if given is None or given[0] != MAGIC_NUMBER:
        return None
    code: CodeType = marshal.loads(given[1])
    return code


def _without_opaque(program: Program, sample: bytes | None) -> Program:
    """An imported program that knows which attributes JSON cannot hold: they are no part of the state."""
    attributes = vars(program.build(unpack(sample) if sample is not None else {}))
    return replace(program, opaque=frozenset(k for k, v in attributes.items() if json_problem(v) is not None))


def _do(bench: Bench, operation: str, rest: list[Any], clock: _Clock) -> tuple[str, Any]:
    try:
        with clock:
            return "ok", bench.do(operation, *rest)
    except _OutOfTime:
        return _broken(bench, rest, "it ran past its time")
    except EnvironmentFault as fault:
        return "fault", _told(fault)
    except OmniaError as error:
        return "refused", _told(error)
    except BaseException as error:  # noqa: BLE001 - foreign code: SystemExit and the like end the call, not the worker
        return _broken(bench, rest, _told(error))


def _broken(bench: Bench, rest: list[Any], why: str) -> tuple[str, Any]:
    bench.drop(rest[0])
    return "broken", why


def _framed(number: int, status: str, value: Any, most: int) -> bytes:
    """The answer as a frame, or why there is none."""
    try:
        framed = frame([number, status, value])
    except (TypeError, ValueError, OverflowError, RecursionError, MemoryError, WireError) as error:
        return frame([number, "fault", f"the answer cannot be sent: {type(error).__name__}"])
    if len(framed) > most:
        return frame([number, "fault", f"the answer has {len(framed)} bytes, over {most}"])
    return framed


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_FAULT_CHARACTERS]
    except Exception:  # noqa: BLE001 - foreign: even its message may raise
        return type(error).__name__
