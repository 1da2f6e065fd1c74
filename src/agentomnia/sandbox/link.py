"""A connection between processes of ours, seen by the client: a gateway at a node agent, a trainer at a sandbox.

Frames of `wire.py`: requests `[number, operation, …]`, answers `[number, status, value]` in any order, and notices with
number 0. Before the first request both ends prove that they hold the same token, and neither sends it. What travels
after that is neither encrypted nor signed: between machines use a private network or a tunnel. `served.py` is the other
end.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from agentomnia import errors
from agentomnia.errors import InfrastructureError, InputError, OmniaError
from agentomnia.sandbox.places import BrokenCall, WorkerGone
from agentomnia.sandbox.wire import FRAME_BYTES, FrameReader, WireError, frame

PROTOCOL = "omnia-1"
OK = "ok"
NOTICE = 0
"""The number of what nobody asked for."""
HANDSHAKE_SECONDS = 10.0
NONCE_BYTES = 32
_TOLD_CHARACTERS = 4_000

Told = tuple[str, Any]
"""A status and a value, as in an answer."""

_KINDS: Mapping[str, type[OmniaError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, OmniaError)
}


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens: a host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """From `HOST:PORT` or `unix:PATH`.

        Raises:
            InputError: it is neither.
        """
        if text.startswith("unix:") and len(text) > 5:
            return cls(path=text[5:])
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InputError(f"{text!r} is no endpoint; write HOST:PORT or unix:PATH")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        """The form that `parse` reads."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def proof(token: str, role: str, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What only a holder of the token can say in this role on this connection."""
    return hmac.digest(token.encode(), role.encode() + server_nonce + client_nonce, "sha256")


def told(error: Exception) -> Told:
    """An error as it travels: the name of its class, or of the nearest one that everybody knows, and what it says."""
    if isinstance(error, WorkerGone):
        return "WorkerGone", [error.suspect, error.late]
    if isinstance(error, BrokenCall):
        return "BrokenCall", [str(error)[:_TOLD_CHARACTERS], error.late]
    name = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _KINDS), "InfrastructureError")
    return name, str(error)[:_TOLD_CHARACTERS]


def raised(status: str, value: Any) -> Exception:
    """The error that was told."""
    if status == "WorkerGone":
        return WorkerGone(suspect=bool(value[0]), late=bool(value[1]))
    if status == "BrokenCall":
        return BrokenCall(str(value[0]), late=bool(value[1]))
    return _KINDS.get(status, InfrastructureError)(str(value))


class Out:
    """Frames on their way out: those of one turn of the event loop leave in one write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Write to a transport."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def put(self, framed: bytes) -> None:
        """Send soon."""
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(framed)

    def flush(self) -> None:
        """Send now."""
        if self._frames and not self._transport.is_closing():
            self._transport.write(b"".join(self._frames))
        self._frames.clear()


class Link(asyncio.Protocol):
    """The client's end. `connect` makes one; requests may be asked from then on, many at once."""

    def __init__(self, token: str, loss: Callable[[], Exception], noticed: Callable[[str], None]) -> None:
        """Prepare; `connect` is what callers use."""
        self._token, self._loss, self._noticed = token, loss, noticed
        self._reader = FrameReader(FRAME_BYTES)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._signed: bytes | None = None
        """What the server must prove next; set while the handshake goes on."""
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = NOTICE
        self._transport: asyncio.Transport | None = None
        self._out: Out | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the connection is."""

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        token: str,
        loss: Callable[[], Exception],
        noticed: Callable[[str], None] = lambda what: None,
        seconds: float = HANDSHAKE_SECONDS,
    ) -> Link:
        """Connect, and prove and be shown the token.

        Args:
            endpoint: where the server is.
            token: what it must hold too.
            loss: makes the error for whoever waits when the connection ends.
            noticed: hears of the server's notices.
            seconds: how long it may take.

        Raises:
            InfrastructureError: nobody listens there, or it is not who it should be.
        """
        loop, link = asyncio.get_running_loop(), cls(token, loss, noticed)
        try:
            async with asyncio.timeout(seconds):
                if endpoint.path:
                    await loop.create_unix_connection(lambda: link, endpoint.path)
                else:
                    await loop.create_connection(lambda: link, endpoint.host, endpoint.port)
                await link._ready
        except OSError as error:  # a `TimeoutError` is one
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise InfrastructureError(f"no server of ours answers at {endpoint} ({why}); start it there") from error
        finally:
            if not link.up:
                link.abort()
        return link

    @property
    def up(self) -> bool:
        """Whether requests can be asked."""
        return self._out is not None

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._waiting)

    def ask(self, operation: str, *arguments: Any) -> asyncio.Future[Any]:
        """Send a request; the future holds its answer, or the error that was told.

        Raises:
            WireError: the request is too long.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._out is None:
            future.set_exception(self._loss())
            return future
        self._number += 1
        self._out.put(frame([self._number, operation, *arguments]))
        self._waiting[self._number] = future
        return future

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server speaks first."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Answers in any order; anything else ends the connection."""
        try:
            for value in self._reader.feed(data):
                if self._out is not None:
                    self._take(value)
                else:
                    self._greet(value)
        except (WireError, TypeError, ValueError):
            self.abort()

    def _greet(self, value: Any) -> None:
        """First what the server speaks, then its proof."""
        if self._transport is None:
            return
        if self._signed is None:
            protocol, server_nonce = value
            if protocol != PROTOCOL or len(server_nonce) != NONCE_BYTES:
                raise WireError(f"the server speaks {protocol!r}, not {PROTOCOL}; use the same version")
            self._signed = proof(self._token, "server", server_nonce, self._nonce)
            self._transport.write(frame([self._nonce, proof(self._token, "client", server_nonce, self._nonce)]))
            return
        if not hmac.compare_digest(value[0], self._signed):
            raise WireError("the server holds another token; give both sides the same")
        self._out = Out(self._transport)
        if not self._ready.done():
            self._ready.set_result(None)

    def _take(self, value: Any) -> None:
        number, status, answer = value
        if number == NOTICE:
            self._noticed(status)
            return
        future = self._waiting.pop(number, None)
        if future is None:
            raise WireError("an answer that nobody asked for")
        if future.done():  # its caller has gone away
            return
        if status == OK:
            future.set_result(answer)
        else:
            future.set_exception(raised(status, answer))

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who waits."""
        self._out = self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._loss())
        if not self._ready.done():
            self._ready.set_exception(ConnectionError("it ended the connection; do both sides hold the same token?"))
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """End the connection, and wait until it has ended."""
        if self._transport is not None:
            self._transport.abort()
            await self.ended
