"""The load of the serving benchmark: raw sockets, so that the client is not what is measured.

A `Line` is one connection. Somebody opens a session over it by `ask`ing, then a `Crowd` lets many lines repeat their
requests at once. Requests are bytes made before; of an answer only its end is looked for, and one mark. A server's cost
is the CPU time that the kernel counts for its process and all below it, so it does not matter how busy the machine is.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0


class BadAnswer(Exception):
    """A server answered what no server of this benchmark should; look at the answer in the message."""


class Framing(Protocol):
    """Where an answer ends, and what in it is the answer."""

    def end(self, buffer: bytearray) -> int:
        """Length of the first whole answer in the buffer; 0 where none is whole yet."""
        ...

    def body(self, answer: bytes) -> bytes:
        """An answer without its framing."""
        ...


class Http:
    """Answers of HTTP/1.1, with a length or in chunks; only one is awaited at a time on a connection."""

    _length = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

    def end(self, buffer: bytearray) -> int:
        """See `Framing`."""
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            return 0
        found = self._length.search(buffer, 0, head + 2)
        if found is not None:
            whole = head + 4 + int(found[1])
            return whole if len(buffer) >= whole else 0
        if buffer.startswith((b"HTTP/1.1 101", b"HTTP/1.1 204")):
            return head + 4
        return len(buffer) if buffer.endswith(b"\r\n0\r\n\r\n") else 0

    def body(self, answer: bytes) -> bytes:
        """See `Framing`.

        Raises:
            BadAnswer: the status is none of success.
        """
        head, _, body = answer.partition(b"\r\n\r\n")
        if head[9:10] not in (b"1", b"2"):
            raise BadAnswer(f"{head[:60]!r}: {body[:400]!r}")
        return body if self._length.search(head) else _unchunked(body)


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if length == 0:
            break
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)


class WebSocket:
    """Frames that a server sends: whole and unmasked. The handshake's answer is taken as the first frame."""

    def __init__(self) -> None:
        """Before the handshake."""
        self._http: Http | None = Http()

    @property
    def upgraded(self) -> bool:
        """Whether the handshake is over."""
        return self._http is None

    def end(self, buffer: bytearray) -> int:
        """See `Framing`."""
        if self._http is not None:
            whole = self._http.end(buffer)
            if whole:
                self._http = None
            return whole
        if len(buffer) < 2:
            return 0
        start, size = 2, buffer[1]
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(buffer) < start:
                return 0
            size = int.from_bytes(buffer[2:start], "big")
        return start + size if len(buffer) >= start + size else 0

    def body(self, answer: bytes) -> bytes:
        """See `Framing`.

        Raises:
            BadAnswer: the handshake was refused, or the server says goodbye.
        """
        if answer.startswith(b"HTTP/"):
            return Http().body(answer)
        if answer[0] & 15 == 8:
            raise BadAnswer(f"the server closes: {answer[2:200]!r}")
        return answer[2 if answer[1] < 126 else 4 if answer[1] == 126 else 10 :]


class Lengths:
    """Four bytes of length before each answer: the project's own frames."""

    greeted = False
    """Whether both ends have proved their token."""

    def end(self, buffer: bytearray) -> int:
        """See `Framing`."""
        if len(buffer) < 4:
            return 0
        whole = 4 + int.from_bytes(buffer[:4], "big")
        return whole if len(buffer) >= whole else 0

    def body(self, answer: bytes) -> bytes:
        """See `Framing`."""
        return answer[4:]


def ws_frame(payload: bytes, opcode: int = 1) -> bytes:
    """A client's frame; its mask is zero, which costs the server what any mask costs."""
    size = len(payload)
    head = struct.pack("!BB", 0x80 | opcode, 0x80 | size) if size < 126 else b""
    if not head:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)  # no request here is longer than 64 KiB
    return head + bytes(4) + payload


def length_frame(payload: bytes) -> bytes:
    """A payload behind its length."""
    return struct.pack(">I", len(payload)) + payload


@dataclass(frozen=True)
class Address:
    """Where a server listens: a port of this machine, or a Unix socket."""

    port: int = 0
    unix: str | None = None


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, framing: Framing) -> None:
        """Not connected yet; see `dial`."""
        self.framing = framing
        self._buffer = bytearray()
        self._heard: asyncio.Future[bytes] | None = None
        self._early: list[bytes] = []
        self._pump: _Pump | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclass

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits."""
        lost = BadAnswer(f"the server closed the connection ({error or 'without an error'})")
        if self._heard is not None and not self._heard.done():
            self._heard.set_exception(lost)
        if self._pump is not None:
            self._pump.fail(lost)

    def data_received(self, data: bytes) -> None:
        """Cut answers out of the stream."""
        buffer = self._buffer
        buffer += data
        while length := self.framing.end(buffer):
            answer = bytes(buffer[:length])
            del buffer[:length]
            if self._pump is not None:
                self._pump.take(answer)
            elif self._heard is not None and not self._heard.done():
                self._heard.set_result(answer)
            else:
                self._early.append(answer)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    async def ask(self, request: bytes) -> bytes:
        """Send a request; the body of its answer.

        Raises:
            BadAnswer: the answer is no success, or the connection ended.
            TimeoutError: there was none in time.
        """
        self.write(request)
        return await self.hear()

    async def hear(self) -> bytes:
        """The body of the next answer, or of what the server said unasked; see `ask`."""
        if self._early:
            return self.framing.body(self._early.pop(0))
        self._heard = asyncio.get_running_loop().create_future()
        return self.framing.body(await asyncio.wait_for(self._heard, ANSWER_SECONDS))

    def pump(self, pump: _Pump | None) -> None:
        """Give what comes to a pump from here on."""
        self._pump = pump

    def close(self) -> None:
        """Hang up."""
        self._pump = self._heard = None
        if self._transport is not None:
            self._transport.abort()


async def dial(address: Address, framing: Framing) -> Line:
    """A new connection.

    Raises:
        OSError: nobody listens there.
        TimeoutError: nobody answers there.
    """
    loop, line = asyncio.get_running_loop(), Line(framing)
    if address.unix is not None:
        connecting = loop.create_unix_connection(lambda: line, address.unix)
    else:
        connecting = loop.create_connection(lambda: line, "127.0.0.1", address.port)
    await asyncio.wait_for(connecting, CONNECT_SECONDS)
    return line


class Talk:
    """A line, and what is said over it, in turn and for ever: each caller goes on where it was."""

    def __init__(self, line: Line, requests: Sequence[bytes], position: int = 0) -> None:
        """Begin with the request at a position."""
        self.line, self._requests, self._position = line, requests, position

    def __len__(self) -> int:
        """Requests until all of them come again."""
        return len(self._requests)

    def take(self) -> tuple[int, bytes]:
        """The next request, with its place."""
        place = self._position % len(self._requests)
        self._position += 1
        return place, self._requests[place]


@dataclass(frozen=True)
class Round:
    """What one round of calls cost."""

    calls: int
    seconds: float
    cpu_us: float
    """CPU of the server's processes, for a call."""
    client_cpu_us: float
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        """Calls in a second, client and server on the same machine."""
        return self.calls / self.seconds


class Crowd:
    """Many lines that call at once."""

    def __init__(self, talks: Sequence[Talk], mark: re.Pattern[bytes], window: int = 1) -> None:
        """Let these talk, each with `window` requests in flight; every answer must hold the mark."""
        self._pumps = [_Pump(self, talk, window) for talk in talks]
        self.mark = mark
        self.left, self.flying, self.deadline = 0, 0, 0.0
        self.latencies: list[float] = []
        self._over: asyncio.Future[None] | None = None

    async def run(self, calls: int, seconds: float, pid: int) -> Round:
        """Make calls.

        Args:
            calls: how many.
            seconds: wall time after which no more are begun.
            pid: the server's process.

        Raises:
            BadAnswer: an answer lacks the mark, or a connection ended.
        """
        self.latencies = []
        self._over = asyncio.get_running_loop().create_future()
        before, own = server_cpu(pid), time.process_time()
        began = time.perf_counter()
        self.left, self.deadline = calls, began + seconds
        for pump in self._pumps:
            pump.start()
        await asyncio.wait_for(self._over, seconds + ANSWER_SECONDS)
        wall = time.perf_counter() - began
        spent, own_spent = server_cpu(pid) - before, time.process_time() - own
        done = len(self.latencies)
        ordered = sorted(self.latencies)
        p50, p99 = (ordered[int(share * (done - 1))] * 1e3 for share in (0.5, 0.99))
        return Round(done, wall, spent / done * 1e6, own_spent / done * 1e6, p50, p99)

    def one_back(self, now: float) -> None:
        """An answer has come; ends the round after the last one."""
        self.flying -= 1
        if now > self.deadline:
            self.left = 0
        if self.left == 0 and self.flying == 0 and self._over is not None and not self._over.done():
            self._over.set_result(None)

    def fail(self, error: BadAnswer) -> None:
        """End the round."""
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)


class _Pump:
    """One talk of a crowd."""

    def __init__(self, crowd: Crowd, talk: Talk, window: int) -> None:
        self._crowd, self._talk, self._window = crowd, talk, window
        self._sent: list[float] = []
        talk.line.pump(self)

    def start(self) -> None:
        """Fill the window."""
        for _ in range(self._window):
            self._send(time.perf_counter())

    def _send(self, now: float) -> None:
        crowd = self._crowd
        if crowd.left <= 0:
            return
        crowd.left -= 1
        crowd.flying += 1
        self._sent.append(now)
        self._talk.line.write(self._talk.take()[1])

    def take(self, answer: bytes) -> None:
        """Count an answer and send the next request. Answers are taken to come in the order of the requests."""
        crowd, now = self._crowd, time.perf_counter()
        if crowd.mark.search(answer) is None:
            self.fail(BadAnswer(f"an answer without its mark: {answer[:600]!r}"))
            return
        crowd.latencies.append(now - self._sent.pop(0))
        self._send(now)
        crowd.one_back(now)

    def fail(self, error: BadAnswer) -> None:
        """End the round."""
        self._crowd.fail(error)


def server_cpu(pid: int) -> float:
    """CPU seconds of a process and all below it, to the nanosecond: each process's own clock, finished threads too."""
    return sum(_cpu_clock(process) for process in family(pid))


def _cpu_clock(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's number for the clock of another process
    except OSError:  # it has just ended
        return 0.0


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))):
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def memory_mb(pid: int, kind: str = "Rss") -> float:
    """Memory of one process in MiB: resident (`Rss`), or its own (`Private_Clean`, `Private_Dirty`)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(rf"^{kind}: *(\d+) kB", text, re.MULTILINE)[1]) / 1024  # type: ignore[index]


def private_mb(pid: int) -> float:
    """Memory that would be free if the process ended, in MiB."""
    return memory_mb(pid, "Private_Clean") + memory_mb(pid, "Private_Dirty")
