"""HTTP/1.1 for the gateway: one object a connection, on httptools (llhttp), requests answered in order.

A request goes to the application with its whole body. One that arrived in a single read and waits for nothing is read,
answered and written without a task. Everything that comes from outside is bounded: heads and bodies in size and in
time, what is read ahead of an answer, and how long a connection may be idle or leave its answers unread.

Sources: RFC 9110, RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools

from agentomnia.errors import OmniaError
from agentomnia.sandbox.coroutines import begin
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.request import Request, Target
from agentomnia.sandbox.websocket import WebSocket

_DISCARDED = 64 * 2**20
"""Bytes of a body over the limit that are read and dropped, so that the caller hears why before the connection ends."""


@dataclass(frozen=True)
class Limits:
    """How much a connection may send, and how long it may take; seconds are kept to within one tick."""

    body_bytes: int
    body_seconds: float
    """Until a body has come."""
    head_bytes: int = 64 * 2**10
    head_seconds: float = 20.0
    """Until a head has come."""
    idle_seconds: float = 300.0
    """Longer than any client keeps an idle connection: then it is the client that ends it, between two calls."""
    linger_seconds: float = 3.0
    """How long what a refused caller still sends is read, so that it reads why."""

    @property
    def tick_seconds(self) -> float:
        """How often connections are looked at."""
        return min(1.0, self.body_seconds / 2, self.head_seconds / 2)


class Application(Protocol):
    """What answers."""

    def hold(self, request: Request) -> None:
        """Take a place for a request whose body is still to come; sets `refusal` where it is not let in."""
        ...

    async def http(self, request: Request) -> None:
        """Answer a request; raises nothing."""
        ...

    async def websocket(self, socket: WebSocket) -> None:
        """Hold a conversation; raises nothing."""
        ...


class Connections:
    """All connections of a server."""

    def __init__(self, application: Application, limits: Limits) -> None:
        """Begin without one."""
        self.application, self.limits = application, limits
        self.live: set[Connection | WebSocket] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._heads: dict[tuple[int, bytes], bytes] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._tick()

    def make(self) -> Connection:
        """One more."""
        return Connection(self)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold on to a task until it is done."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def head(self, status: int, content_type: bytes) -> bytes:
        """The beginning of an answer's head; see `request.Wire`."""
        found = self._heads.get((status, content_type))
        if found is None:
            found = self._heads[status, content_type] = _head(status, content_type)
        return found

    def _tick(self) -> None:
        self._heads.clear()  # they hold the date
        for connection in list(self.live):
            connection.tick()
        self._ticker = asyncio.get_running_loop().call_later(self.limits.tick_seconds, self._tick)

    async def close(self, seconds: float) -> None:
        """Let every connection finish its answers and end.

        Args:
            seconds: after which those that have not are ended, with what they wait for.
        """
        for connection in list(self.live):
            connection.leave()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (self.live or self.tasks) and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.live):
            connection.abort()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.wait(self.tasks, timeout=1.0) if self.tasks else await asyncio.sleep(0)
        if self._ticker is not None:
            self._ticker.cancel()


def _head(status: int, content_type: bytes) -> bytes:
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ndate: {formatdate(usegmt=True)}\r\n".encode()
    return line + (b"content-type: %b\r\n" % content_type if content_type else b"")


class Connection(asyncio.Protocol):
    """One connection: reads requests, has them answered in order."""

    def __init__(self, connections: Connections) -> None:
        """Not connected yet."""
        self._connections, self._application = connections, connections.application
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._headers = b"", dict[bytes, bytes]()
        self._target: tuple[bytes, Target | None] = (b"", None)
        """The last URL and what it is; the next is often the same."""
        self._reading = False
        """Whether a request has begun to come and not ended."""
        self._arrived = 0
        """Bytes read since the read that ended the last whole request."""
        self._latest = 0
        """Bytes of the last read."""
        self._request: Request | None = None
        """The one whose body comes."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._whole: deque[Request] = deque()
        """Those that wait for their answer."""
        self._answering: Request | None = None
        self._last = False
        """Whether nothing is read any more."""
        self._lingers = False
        """Whether the last answer is a refusal of something that the other side may still be sending."""
        self._paused = False
        self._stuck: asyncio.Future[None] | None = None
        """Set while the other side does not read its answers."""
        self._ticks = 0

    # what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for requests."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._connections.live.add(self)

    def data_received(self, data: bytes) -> None:
        """Read requests, and answer those that are whole."""
        if self._last:
            return
        self._latest = len(data)
        self._arrived += self._latest
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._last:  # else it is only about what follows the last request
                self._give_up(Refusal(400, f"the request is no HTTP/1.1 ({error}); correct it"))
        if self._reading:
            self._wait_for_rest()
        self._answer_on()

    def eof_received(self) -> bool:
        """Nothing more comes; what has come is answered."""
        self._last = True
        return self._answering is not None or bool(self._whole)

    def pause_writing(self) -> None:
        """The other side does not read its answers: take no more requests."""
        self._stuck, self._ticks = asyncio.get_running_loop().create_future(), 0

    def resume_writing(self) -> None:
        """It reads again."""
        if self._stuck is not None and not self._stuck.done():
            self._stuck.set_result(None)
        self._stuck, self._ticks = None, 0
        self._answer_on()

    def connection_lost(self, error: Exception | None) -> None:
        """A call that was begun goes on to its end, so that its session's state is known; nobody hears of it."""
        self._transport = None
        self._connections.live.discard(self)
        if self._request is not None:
            self._whole.append(self._request)
        self._drop()
        if self._stuck is not None and not self._stuck.done():
            self._stuck.set_result(None)

    # what the parser says

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reading, self._url, self._ticks = True, b"", 0

    def on_url(self, url: bytes) -> None:
        """A piece of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        headers, name = self._headers, name.lower()
        headers[name] = headers[name] + b", " + value if name in headers else value

    def on_headers_complete(self) -> None:
        """The head is whole."""
        headers, self._headers = self._headers, {}
        if self._target[0] != self._url:
            self._target = self._url, _target_of(self._url)
        version, method = self._parser.get_http_version(), self._parser.get_method().decode()
        target = self._target[1]
        request = self._request = Request(self, method, target or _NOWHERE, headers, version == "1.1")
        problem = _problem(request, version) if target is not None else _unreadable()
        limit = self._limits.head_bytes
        if (self._arrived > limit or self._latest > limit) and _length(self._url, headers) > limit:
            problem = self._long_head()
        if problem is not None:
            self._refuse(request, problem)
        elif b"expect" in headers and request.modern:
            self._encourage(request)

    def on_body(self, chunk: bytes) -> None:
        """A piece of the body."""
        self._size += len(chunk)
        if self._request is not None and self._request.refusal is None and self._size <= self._limits.body_bytes:
            self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """The request is whole."""
        request = self._request
        self._reading, self._arrived = False, 0
        self._headers = {}  # trailers are nobody's
        if request is None or self._parser.should_upgrade():
            return  # refused already, or what to do with it is still to be seen
        self._request = None
        if self._size:
            self._take_body(request)
        if not self._parser.should_keep_alive():
            request.keep_alive = False
        self._last = not request.keep_alive
        self._whole.append(request)

    def _take_body(self, request: Request) -> None:
        if self._size > self._limits.body_bytes:
            request.refusal, request.keep_alive = request.refusal or self._large_body(), False
        elif request.refusal is None:
            request.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._size = [], 0

    # what comes in pieces

    def _wait_for_rest(self) -> None:
        """Bound what is not whole yet; a request takes its place before its body has come."""
        request = self._request
        if request is None:
            if self._arrived > self._limits.head_bytes:
                self._give_up(self._long_head())
        elif self._arrived > _DISCARDED:
            self._refuse(request, self._large_body())
        elif request.lane is None and request.refusal is None:
            self._application.hold(request)

    def _encourage(self, request: Request) -> None:
        """Let the other side send a body that it asks about first, or say at once that it is not taken."""
        if request.headers[b"expect"].lower() != b"100-continue":
            return
        if int(request.headers.get(b"content-length", b"0")) > self._limits.body_bytes:
            request.refusal = self._large_body()
        else:
            self._application.hold(request)
        if request.refusal is not None:
            self._refuse(request, request.refusal)
        elif self._answering is None and not self._whole:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _long_head(self) -> Refusal:
        return Refusal(431, f"the head is over {self._limits.head_bytes} bytes; send fewer or shorter headers")

    def _large_body(self) -> Refusal:
        return Refusal(413, f"the body is over {self._limits.body_bytes} bytes; send less")

    def _refuse(self, request: Request, refusal: OmniaError) -> None:
        """Let a request be answered without its rest, as the last one of the connection."""
        request.refusal, request.keep_alive = refusal, False
        self._request, self._reading, self._last, self._lingers = None, False, True, True
        self._chunks.clear()
        self._whole.append(request)

    def _give_up(self, refusal: Refusal) -> None:
        """Refuse what is no request, or none yet."""
        self._refuse(self._request or Request(self, "GET", _NOWHERE, {}, modern=True), refusal)

    def _upgrade(self, rest: bytes) -> None:
        """Become a WebSocket; a request that would rather speak something else is taken as if it had not said so."""
        request, self._request = self._request, None
        if request is None or self._transport is None:
            return
        if request.headers.get(b"upgrade", b"").lower() != b"websocket" and request.method != "CONNECT":
            self._parser = httptools.HttpRequestParser(self)
            self.data_received(_without_upgrade(request, self._url) + rest)
        elif request.method != "GET" or _has_body(request) or self._answering is not None or self._whole:
            self._refuse(request, Refusal(400, "a WebSocket begins with a GET alone on its connection; send that"))
        else:
            self._connections.live.discard(self)
            socket = WebSocket(request, self._transport, self._connections)
            self._transport.set_protocol(socket)
            self._last = True
            socket.begin(self._application.websocket(socket), rest)

    # answers

    def _answer_on(self) -> None:
        """Have requests answered, one after the other, as far as nothing has to be waited for."""
        while self._whole and self._answering is None and self._stuck is None:
            request = self._answering = self._whole.popleft()
            task = begin(self._application.http(request))
            if task is None:
                self._answered(request)
            else:
                self._connections.keep(task)
                task.add_done_callback(self._answered_later)
        if self._transport is not None and self._paused != (bool(self._whole) or self._stuck is not None):
            self._paused = not self._paused
            (self._transport.pause_reading if self._paused else self._transport.resume_reading)()

    def _answered_later(self, task: asyncio.Task[None]) -> None:
        if self._answering is not None:
            self._answered(self._answering)
            self._answer_on()

    def _answered(self, request: Request) -> None:
        self._answering, self._ticks = None, 0
        if request.streaming:
            self.abort()  # the other side must see that this is not the whole answer
        elif not request.keep_alive:
            self._drop()
            self._end()

    def _drop(self) -> None:
        """Forget what nobody waits for any more."""
        for request in self._whole:
            if request.lane is not None:
                request.lane.leave()
        self._whole.clear()

    def _end(self) -> None:
        """End the connection once everything is sent; after a refusal the other side is left the time to read it."""
        if self._transport is None:
            return
        if self._lingers and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def head(self, status: int, content_type: bytes) -> bytes:
        """See `request.Wire`."""
        return self._connections.head(status, content_type)

    def write(self, data: bytes) -> None:
        """See `request.Wire`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """See `request.Wire`."""
        if self._stuck is not None:
            await self._stuck

    # time

    def tick(self) -> None:
        """Some time has passed: end what takes too long."""
        self._ticks += 1
        limits, seconds = self._limits, self._ticks * self._limits.tick_seconds
        if self._stuck is not None:
            if seconds > limits.idle_seconds:
                self.abort()
        elif self._answering is not None:
            return
        elif self._last:
            if seconds > limits.linger_seconds:
                self.abort()
        elif not self._reading:
            if seconds > limits.idle_seconds:
                self._end()
        elif seconds > (limits.head_seconds if self._request is None else limits.body_seconds):
            what = "head" if self._request is None else "body"
            self._give_up(Refusal(408, f"the {what} of the request did not come in time; send it again"))
            self._answer_on()

    def leave(self) -> None:
        """The server goes down: answer what is whole, and end."""
        self._last, self._lingers = True, False
        last = self._whole[-1] if self._whole else self._answering
        if last is None:
            self._end()
        else:
            last.keep_alive = False

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()


_NOWHERE = Target(("",))


def _target_of(url: bytes) -> Target | None:
    """What a URL asks for, whether it names this server or not; `None` where it cannot be read."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserError:
        return None
    path = (parsed.path or b"/").decode("latin-1")
    if not path.startswith("/"):
        return None
    if "%" in path:
        path = unquote(path)
    return Target(tuple(path.strip("/").split("/")), (parsed.query or b"").decode("latin-1"))


def _problem(request: Request, version: str) -> Refusal | None:
    """Why a request is not taken whatever it asks for."""
    headers = request.headers
    if version not in ("1.1", "1.0"):
        return Refusal(505, f"this server speaks HTTP/1.1, not {version}; use that")
    if b"transfer-encoding" in headers and not (request.modern and headers[b"transfer-encoding"].lower() == b"chunked"):
        return Refusal(400, "bodies come with a length or in chunks; send no other transfer coding")
    host = headers.get(b"host")
    if (host is None and request.modern) or (host is not None and b"," in host):
        return Refusal(400, "the request must name one host; send one Host header")
    return None


def _unreadable() -> Refusal:
    return Refusal(400, "the URL of the request cannot be read; correct it")


def _length(url: bytes, headers: dict[bytes, bytes]) -> int:
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers.items())


def _has_body(request: Request) -> bool:
    return b"transfer-encoding" in request.headers or request.headers.get(b"content-length", b"0") != b"0"


def _without_upgrade(request: Request, url: bytes) -> bytes:
    """The head of a request again, without its wish to speak something else."""
    lines = [b"%b: %b\r\n" % header for header in request.headers.items() if header[0] != b"upgrade"]
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method.encode(), url, b"".join(lines))
