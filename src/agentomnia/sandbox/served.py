"""The other end of `link.py`: who may ask, how much at once, and how every request gets its answer."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from agentomnia.errors import CapacityError, InfrastructureError, InputError, OmniaError
from agentomnia.sandbox.coroutines import Resumed
from agentomnia.sandbox.link import HANDSHAKE_SECONDS, NONCE_BYTES, NOTICE, OK, PROTOCOL, Endpoint, Out, proof, told
from agentomnia.sandbox.places import BrokenCall, WorkerGone
from agentomnia.sandbox.wire import FRAME_BYTES, FrameReader, WireError, frame

log = logging.getLogger("agentomnia.served")

_HANDSHAKE_BYTES = 4096


class ServedLink(asyncio.Protocol):
    """The server's end: proves who is there, bounds what is in flight, answers. Subclasses say what is served."""

    def __init__(self, listener: Listener) -> None:
        """Begin unproved."""
        self._listener, self._most_in_flight = listener, listener.most_in_flight
        self._reader = FrameReader(_HANDSHAKE_BYTES)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._proved = False
        self._transport: asyncio.Transport | None = None
        self._out: Out | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.get_running_loop().create_future()

    def request(self, number: int, operation: str, rest: list[Any]) -> None:
        """Take a request; it must be answered once.

        Raises:
            WireError: it has no right form; the connection ends.
        """
        raise NotImplementedError

    def lost(self) -> None:
        """The connection has ended."""

    @property
    def in_flight(self) -> int:
        """Requests that wait for something."""
        return len(self._tasks)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what is spoken here, and what the peer must sign."""
        given = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport, self._out = given, Out(given)
        if not self._listener.admit(self):
            given.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, given.abort)
        given.write(frame([PROTOCOL, self._nonce]))

    def data_received(self, data: bytes) -> None:
        """Requests, once the peer has proved itself; anything else ends the connection."""
        try:
            for value in self._reader.feed(data):
                if self._proved:
                    self._take(value)
                else:
                    self._check(value)
        except WireError as error:
            log.warning("a connection is closed: %s", error)
            self.abort()
        if self._out is not None:
            self._out.flush()

    def _check(self, value: Any) -> None:
        match value:
            case [bytes(nonce), bytes(signed)] if len(nonce) == NONCE_BYTES:
                token = self._listener.token
            case _:
                raise WireError("no handshake; use a client of the same version")
        if not hmac.compare_digest(signed, proof(token, "client", self._nonce, nonce)):
            raise WireError("the peer holds another token; give both sides the same")
        if self._timer is not None:
            self._timer.cancel()
        self._proved = True
        self._reader = FrameReader(FRAME_BYTES)
        if self._transport is not None:
            self._transport.write(frame([proof(token, "server", self._nonce, nonce)]))

    def _take(self, value: Any) -> None:
        if type(value) is not list or len(value) < 2 or type(value[0]) is not int or type(value[1]) is not str:
            raise WireError("no request; use a client of the same version")
        self.request(value[0], value[1], value[2:])

    def answer(self, number: int, status: str, value: Any) -> None:
        """Answer a request; where the answer cannot be sent, say so instead."""
        out = self._out
        if out is None:
            return
        try:
            out.put(frame([number, status, value]))
        except (WireError, TypeError, ValueError, OverflowError, RecursionError) as error:
            problem = InfrastructureError(f"the answer cannot be sent: {error}; ask for less")
            out.put(frame([number, *told(problem)]))

    def run(self, number: int, coroutine: Coroutine[Any, Any, Any], *, at_once: bool) -> None:
        """Answer with what a coroutine gives.

        Args:
            number: of the request.
            coroutine: gives the answer.
            at_once: begin it here, which needs no task where it waits for nothing. Such a coroutine has no current task
                until it first waits, so it must not use `asyncio.timeout` before that.
        """
        if len(self._tasks) >= self._most_in_flight:
            coroutine.close()
            self.answer(number, *told(CapacityError("too many requests are in flight here; try again")))
        elif at_once:
            self._begin(number, coroutine)
        else:
            self._later(number, coroutine)

    def _begin(self, number: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            waits_for = coroutine.send(None)
        except StopIteration as done:
            self.answer(number, OK, done.value)
        except Exception as error:  # noqa: BLE001 - the boundary: see `_failed`
            self._failed(number, error)
        else:
            self._later(number, Resumed(coroutine, waits_for))

    def _later(self, number: int, awaited: Coroutine[Any, Any, Any] | Resumed) -> None:
        self.spawn(self._finish(number, awaited))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Let something go on; it ends with the connection's `close` at the latest."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, number: int, awaited: Coroutine[Any, Any, Any] | Resumed) -> None:
        try:
            self.answer(number, OK, await awaited)
        except Exception as error:  # noqa: BLE001 - the boundary: see `_failed`
            self._failed(number, error)

    def _failed(self, number: int, error: Exception) -> None:
        """Tell an error; one of no known kind is this server's own, and the peer must not wait for ever."""
        if not isinstance(error, OmniaError | WorkerGone | BrokenCall):
            log.error("request %s fails inside the server", number, exc_info=error)
            error = InfrastructureError(f"the server failed ({type(error).__name__}); look at its log")
        self.answer(number, *told(error))

    def notify(self, what: str) -> None:
        """Tell the peer something that it did not ask for."""
        if self._proved:
            self.answer(NOTICE, what, None)

    def pause_writing(self) -> None:
        """The peer does not read its answers: take no more requests."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """What is in flight ends by itself, unanswered."""
        if self._timer is not None:
            self._timer.cancel()
        self._out = self._transport = None
        self._listener.forget(self)
        self.lost()
        self._ended.set_result(None)

    def abort(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """End the connection, and give up what is still in flight."""
        self.abort()
        await self._ended
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Listener:
    """A server socket and the connections that came in over it."""

    def __init__(
        self,
        make: Callable[[Listener], ServedLink],
        token: str = "",
        connections: int = 256,
        most_in_flight: int = 4096,
    ) -> None:
        """Listen nowhere yet.

        Args:
            make: makes the server's end of a connection.
            token: what peers must hold; a TCP port is not opened without.
            connections: at most.
            most_in_flight: requests of one connection that may wait.
        """
        self.token, self.most_in_flight = token, most_in_flight
        self._make, self._connections = make, connections
        self._links: set[ServedLink] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    @property
    def links(self) -> tuple[ServedLink, ...]:
        """The connections now."""
        return tuple(self._links)

    async def start(self, endpoint: Endpoint) -> Endpoint:
        """Listen; gives back where, with the port that was chosen where 0 was asked for.

        Raises:
            InputError: somebody listens there already, or a TCP port is to be opened without a token.
        """
        loop = asyncio.get_running_loop()
        if endpoint.path:
            self._server = await loop.create_unix_server(lambda: self._make(self), sock=_unix_socket(endpoint.path))
            self._path = Path(endpoint.path)
            return endpoint
        if not self.token:
            raise InputError(f"{endpoint} would be open to every process; give a token, or listen on unix:PATH")
        try:
            self._server = await loop.create_server(lambda: self._make(self), endpoint.host, endpoint.port)
        except OSError as error:
            raise InputError(f"cannot listen on {endpoint}: {error.strerror}; choose another port") from error
        return Endpoint(endpoint.host, self._server.sockets[0].getsockname()[1])

    def admit(self, link: ServedLink) -> bool:
        """Take a new connection in, if there is room."""
        if self._server is None or len(self._links) >= self._connections:
            return False
        self._links.add(link)
        return True

    def forget(self, link: ServedLink) -> None:
        """Take a connection out."""
        self._links.discard(link)

    def refuse(self) -> None:
        """Take no more connections; those that are there stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    async def close(self) -> None:
        """End everything."""
        self.refuse()
        for link in self.links:
            await link.close()


def _unix_socket(path: str) -> socket.socket:
    """A socket bound to a path, for this user only; replaces one that nobody listens on any more."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as other:
            other.connect(path)
            raise InputError(f"another server listens on {path}; stop it or choose another path")
        Path(path).unlink(missing_ok=True)
        os.fchmod(sock.fileno(), 0o600)  # before it is bound, so that it is never open to others
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise InputError(f"cannot listen on {path}: {error.strerror}; choose another path") from error
    except InputError:
        sock.close()
        raise
    return sock
