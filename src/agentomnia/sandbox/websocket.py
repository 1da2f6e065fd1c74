"""WebSockets for the gateway: the handshake, and conversations that need no task while nothing is waited for.

A face holds a conversation as a coroutine that asks for frame after frame. It is driven by hand: a frame resumes it
where it arrives, and only where it waits for something else than frames does it go on in a task. Answers to what one
read brought leave in one write.

Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from agentomnia.errors import OmniaError
from agentomnia.sandbox.api import LOCAL_TENANT
from agentomnia.sandbox.coroutines import OWN_TASK
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.faces.text import write_json
from agentomnia.sandbox.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    Broken,
    Control,
    FrameReader,
    close_code,
    close_frame,
    frame,
)
from agentomnia.sandbox.request import Request

if TYPE_CHECKING:
    from agentomnia.sandbox.http import Connections

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_AHEAD = 32
"""Messages that are read before the first of them is answered; those of one read may be more."""
_ONE_WRITE = 64 * 2**10
"""Bytes of an answer from which on it is not kept to be joined with others."""


class Passage(Protocol):
    """What is counted of one call that a frame asked for."""

    status: int
    """As in HTTP: whose fault it was where it failed; 200 unless the face says otherwise."""


InFlight = Callable[[], AbstractContextManager[Passage]]
"""A place among the calls in flight, held inside `with`; entering raises `CapacityError` where none is free."""


class _Next:
    """What a conversation yields that asks for the next frame."""

    def __await__(self) -> Generator[_Next, str | bytes | None, str | bytes | None]:
        return (yield self)


_NEXT = _Next()


class WebSocket(asyncio.Protocol):
    """One WebSocket, from the handshake to its end."""

    in_flight: InFlight
    """Set by the gateway; hold it around each call that a frame asks for: `with socket.in_flight(): …`."""

    def __init__(self, request: Request, transport: asyncio.Transport, connections: Connections) -> None:
        """Take a connection over, before `accept`."""
        self.request, self._connections = request, connections
        self._transport: asyncio.Transport | None = transport
        self.path, self.query, self.tenant = request.path, request.query, LOCAL_TENANT
        self.accepted = False
        """Whether the handshake was answered."""
        self.open = False
        """Whether frames can be sent now."""
        self._reader = FrameReader(connections.limits.body_bytes)
        self._inbox: deque[str | bytes | None] = deque()
        """Messages that wait for the conversation; after the last one `None`."""
        self._coroutine: Coroutine[Any, Any, None] | None = None
        """The conversation, until it ends."""
        self._idle = False
        """Whether it waits for a frame."""
        self._ended = self._gone = False
        """Whether no message comes any more, and whether the conversation knows."""
        self._out: list[bytes] | None = None
        """What is to be written together."""
        self._stuck = self._paused = self._partial = False
        self._ticks = 0
        connections.live.add(self)

    # what faces do

    def accept(self, subprotocol: str | None = None) -> None:
        """Answer the handshake.

        Raises:
            Refusal: it is none.
        """
        key = self.request.headers.get(b"sec-websocket-key", b"")
        if self.request.header(b"sec-websocket-version") != "13":
            raise Refusal(426, "send Sec-WebSocket-Version: 13", ((b"sec-websocket-version", b"13"),))
        if not _is_key(key):
            raise Refusal(400, "Sec-WebSocket-Key must be 16 bytes in base64; send a fresh one")
        agreed = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        more = b"sec-websocket-protocol: %b\r\n" % subprotocol.encode() if subprotocol is not None else b""
        self._write(
            b"%bupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n%b\r\n"
            % (self._connections.head(101, b""), agreed, more)
        )
        self.accepted = self.open = True

    async def receive(self) -> str | bytes | None:
        """The next message; `None` once the other side is gone."""
        if self._gone:
            return None
        message = await _NEXT
        self._gone = message is None
        return message

    def send(self, message: bytes, binary: bool = True) -> None:
        """Send a message, else as text, in UTF-8; where the other side is gone, nothing happens."""
        if self.open:
            self._write(frame(BINARY if binary else TEXT, message))

    def json(self, value: Any) -> None:
        """Send a value as a text of JSON."""
        self.send(write_json(value), binary=False)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye; a second time does nothing."""
        if self.open:
            self.open, self._ticks = False, 0
            self._inbox.clear()
            self._no_more()
            self._write(close_frame(code, reason))

    def refuse(self, error: OmniaError) -> None:
        """Refuse the handshake with the error's HTTP status and problem+json."""
        self.accepted, self.request.keep_alive = True, False
        self.request.problem(error)
        if self._transport is not None:
            self._transport.close()

    # the conversation

    def begin(self, coroutine: Coroutine[Any, Any, None], rest: bytes) -> None:
        """Hold a conversation; the rest is what came behind the handshake."""
        self._coroutine = coroutine
        self._step(None)
        if rest:
            self.data_received(rest)

    def _converse(self) -> None:
        """Hand messages over, as far as nothing else is waited for."""
        while self._inbox and self._idle and not self._stuck:
            self._step(self._inbox.popleft())
        if self._transport is not None and self._paused != (len(self._inbox) > _AHEAD or self._stuck):
            self._paused = not self._paused
            (self._transport.pause_reading if self._paused else self._transport.resume_reading)()

    def _step(self, message: str | bytes | None) -> None:
        if self._coroutine is None:
            return
        self._idle = False
        try:
            waits_for = self._coroutine.send(message)
        except StopIteration:
            self._over()
            return
        if waits_for is _NEXT:
            self._idle = True
        else:
            task = asyncio.get_running_loop().create_task(self._go_on(waits_for))
            self._connections.keep(task)
            task.add_done_callback(self._went_on)

    async def _go_on(self, waits_for: Any) -> bool:
        """Drive the conversation in a task until it only waits for a frame; whether it has ended."""
        return self._coroutine is None or await _Driven(self._coroutine, waits_for)

    def _went_on(self, task: asyncio.Task[bool]) -> None:
        if task.cancelled() or task.result():
            self._over()
        else:
            self._idle = True
            self._converse()

    def _over(self) -> None:
        """The conversation has ended."""
        self._coroutine = None
        self._inbox.clear()
        self.close()

    def _no_more(self) -> None:
        """Nothing comes after what is in the inbox."""
        if not self._ended:
            self._ended = True
            self._inbox.append(None)

    # what the event loop says

    def data_received(self, data: bytes) -> None:
        """Read messages, and answer those that need not wait."""
        if self._reader.broken is not None:
            return
        self._out = []
        for message in self._reader.feed(data):
            if isinstance(message, Control):
                self._converse()  # what came before it
                self._control(message)
            elif self.open:
                self._inbox.append(message)
        self._converse()
        if self._reader.broken is not None:
            self._fail(self._reader.broken)
        elif self._partial != self._reader.partial:
            self._partial, self._ticks = not self._partial, 0
        out, self._out = self._out, None
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _control(self, message: Control) -> None:
        if message.opcode == PING and self.open:
            self._write(frame(PONG, message.payload))
        elif message.opcode == CLOSE:
            try:
                code = close_code(message.payload)
            except Broken as broken:
                self._reader.broken = broken
                return
            if self.open:
                self._write(close_frame(code))
            self._hang_up()

    def _hang_up(self) -> None:
        """Both sides have said goodbye."""
        self.open = False
        self._no_more()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _fail(self, broken: Broken) -> None:
        """Say what is wrong and read no more; the other side has a while to hear it."""
        self.close(broken.code, broken.reason)
        self._converse()
        self._flush()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _write(self, data: bytes) -> None:
        out = self._out
        if out is not None:
            out.append(data)
            if len(data) > _ONE_WRITE:
                self._flush()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def pause_writing(self) -> None:
        """The other side does not read its answers: take no more frames."""
        self._stuck, self._ticks = True, 0

    def resume_writing(self) -> None:
        """It reads again."""
        self._stuck, self._ticks = False, 0
        self._converse()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the conversation; a call that was begun goes on to its end, so that its session's state is known."""
        self._transport, self.open, self._stuck = None, False, False
        self._connections.live.discard(self)
        self._no_more()
        self._converse()

    # time

    def tick(self) -> None:
        """Some time has passed: end what takes too long. A client may be silent for ever between its frames."""
        self._ticks += 1
        limits, seconds = self._connections.limits, self._ticks * self._connections.limits.tick_seconds
        if not self.open:
            if seconds > limits.linger_seconds:
                self.abort()
        elif self._stuck:
            if seconds > limits.idle_seconds:
                self.abort()
        elif self._partial and not self._inbox and seconds > limits.body_seconds:
            self.close(1008, "the rest of a message did not come in time")
            self._converse()

    def leave(self) -> None:
        """The server goes down."""
        self.close(1012, "the server goes down")
        self._converse()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()


class _Driven:
    """A conversation that waits for something, to be awaited until it asks for a frame; gives whether it has ended."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        """Take it over, with what it waits for first."""
        self._coroutine, self._waits_for = coroutine, waits_for

    def __await__(self) -> Generator[Any, Any, bool]:
        """Wait for what it waits for, and go on."""
        waits_for, sent = self._waits_for, None
        try:
            while waits_for is not _NEXT:
                try:
                    sent = None if waits_for is OWN_TASK else (yield waits_for)
                except BaseException as error:  # noqa: BLE001 - handed on: cancellation belongs to the conversation
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(sent)
        except StopIteration:
            return True
        return False


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (ValueError, binascii.Error):
        return False
