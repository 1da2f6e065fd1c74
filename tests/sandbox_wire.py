"""A connection without sockets: what a client sends is given to the server's protocol, what it answers is read here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools

from agentomnia.sandbox.http import Application, Connections, Limits


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, str]]:
        """Server-sent events as a client reads them."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            fields = [line.split(": ", 1) for line in block.split("\n")]
            found.append((fields[0][1], "\n".join(value for name, value in fields if name == "data")))
        return found


@dataclass
class Reading:
    """Reads answers off a stream of bytes."""

    answers: list[Answer] = field(default_factory=list)
    rest: bytes = b""
    """What follows an answer that changed the protocol."""

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body = dict[str, str](), b""

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest += data[upgrade.args[0] :]

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode()] = value.decode()

    def on_body(self, chunk: bytes) -> None:
        self._body += chunk

    def on_message_complete(self) -> None:
        self.answers.append(Answer(self._parser.get_status_code(), self._headers, self._body))


class Memory(asyncio.Transport):
    """The server's transport; `slow` never empties its buffer by itself."""

    def __init__(self, protocol: Any, slow: bool = False) -> None:
        super().__init__()
        self.protocol, self.slow = protocol, slow
        self.written: list[bytes] = []
        self.closed = self.finished = self.paused = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written.append(bytes(data))
        if self.slow:
            self.protocol.pause_writing()

    @property
    def sent(self) -> bytes:
        return b"".join(self.written)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.finished = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def receive(self, data: bytes) -> None:
        """The client has sent bytes."""
        if not self.closed:
            with outside_of_tasks():
                self.protocol.data_received(data)

    def hang_up(self) -> None:
        """The client is gone."""
        if not self.closed and not self.protocol.eof_received():
            self.close()

    def read_on(self) -> None:
        """The client reads again, and has read everything."""
        self.slow = False
        with outside_of_tasks():
            self.protocol.resume_writing()


@contextmanager
def outside_of_tasks() -> Iterator[None]:
    """As the event loop calls a protocol, which is in no task; see "Extending" in the documentation of asyncio."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asyncio.tasks._leave_task(loop, task)
    try:
        yield
    finally:
        asyncio.tasks._enter_task(loop, task)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what must come to hold soon."""
    async with asyncio.timeout(15):
        while not holds():
            await asyncio.sleep(0.01)


def connections(application: Application, **limits: Any) -> Connections:
    """Where connections come in; close it."""
    return Connections(application, Limits(**{"body_bytes": 4 * 2**20, "body_seconds": 30.0, **limits}))


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request's bytes; names of headers have underscores for dashes."""
    named = {"host": "127.0.0.1", **({"content-length": str(len(body))} if body else {}), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {text}" for name, text in named.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def client_frame(opcode: int, payload: bytes, mask: bytes = b"\x01\x02\x03\x04", final: bool = True) -> bytes:
    """A frame as a client sends it."""
    first, size = (0x80 if final else 0) | opcode, len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    if size >= 1 << 16:
        length = b"\xff" + size.to_bytes(8, "big")
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return bytes((first,)) + length + mask + masked


def server_frames(data: bytes) -> list[tuple[int, bytes]]:
    """Frames as a server sends them: opcode and payload."""
    found = []
    while data:
        size, start = data[1], 2
        assert data[0] & 0xF0 == 0x80 and size < 128, "whole and unmasked"
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        found.append((data[0] & 15, data[start : start + size]))
        data = data[start + size :]
    return found
