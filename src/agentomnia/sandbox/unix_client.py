"""Clients of `unix.py`: `UnixClient` for threads and processes, `AsyncUnixClient` for asyncio.

Their sessions have the methods of the instance API and raise what was raised at the server, so that code moves between
a sandbox in its own process, one behind a socket and one behind HTTP (`client.py`) unchanged.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agentomnia.environment.result import Result
from agentomnia.errors import InfrastructureError, InstanceError
from agentomnia.sandbox.api import Call
from agentomnia.sandbox.link import NONCE_BYTES, NOTICE, OK, PROTOCOL, Endpoint, Link, proof, raised
from agentomnia.sandbox.pool import Pooled, ended
from agentomnia.sandbox.remote import SessionInfo, grade
from agentomnia.sandbox.wire import FrameReader, WireError, frame
from agentomnia.task.grade import Grade
from agentomnia.task.task import Task

_CHUNK_BYTES = 1 << 16


def _loss() -> InfrastructureError:
    """Nobody knows whether the request was worked on."""
    return InfrastructureError("the connection to the sandbox broke; give the session up, or look at its digest")


class AsyncUnixClient:
    """One connection for any number of sessions and requests; belongs to one event loop."""

    def __init__(self, link: Link) -> None:
        """Made by `connect`."""
        self._link = link

    @classmethod
    async def connect(cls, endpoint: Endpoint | str, token: str = "") -> AsyncUnixClient:
        """Connect.

        Args:
            endpoint: where the server is; a text is read as `unix:PATH` or `HOST:PORT`.
            token: what the server holds too.

        Raises:
            InfrastructureError: nobody answers there, or somebody with another token.
        """
        where = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        return cls(await Link.connect(where, token, _loss))

    async def open(
        self, environment: str | None = None, *, task: str | None = None, state: str | None = None
    ) -> AsyncUnixSession:
        """Open a session; see `Sandbox.open`. A task says its environment itself."""
        return AsyncUnixSession(self._link, SessionInfo.of(await self._link.ask("open", environment, task, state)))

    async def session(self, id_: str) -> AsyncUnixSession:
        """A session that was opened before, here or elsewhere."""
        return AsyncUnixSession(self._link, SessionInfo.of(await self._link.ask("session", id_)))

    async def environments(self) -> list[dict[str, Any]]:
        """Every environment in short."""
        found: list[dict[str, Any]] = await self._link.ask("environments")
        return found

    async def task(self, id_: str) -> Task:
        """The public row of one task."""
        return Task.model_validate(await self._link.ask("task", id_))

    async def tasks(self, environment: str, split: str) -> list[Task]:
        """Public rows of the tasks of an environment and a split."""
        return [Task.model_validate(row) for row in await self._link.ask("tasks", environment, split)]

    async def gauges(self) -> dict[str, float]:
        """What is live at the server now."""
        found: dict[str, float] = await self._link.ask("gauges")
        return found

    async def close(self) -> None:
        """End the connection; sessions stay until they are closed or their lease ends."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncUnixSession:
    """One live environment; closes itself at the end of an `async with`."""

    def __init__(self, link: Link, info: SessionInfo) -> None:
        """Made by `AsyncUnixClient.open`."""
        self._link, self.info, self.id = link, info, info.id

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        result: Result = await self._link.ask("call", self.id, tool, arguments)
        return result

    async def batch(self, calls: Sequence[Call]) -> list[Result]:
        """Make calls in order, in one go."""
        results: list[Result] = await self._link.ask("batch", self.id, list(calls))
        return results

    async def reset(self) -> None:
        """Go back to the initial state; clears a fault."""
        await self._link.ask("reset", self.id)

    async def snapshot(self) -> bytes:
        """The state as bytes."""
        taken: bytes = await self._link.ask("snapshot", self.id)
        return taken

    async def restore(self, snapshot: bytes) -> None:
        """Go to a snapshot's state; clears a fault."""
        await self._link.ask("restore", self.id, snapshot)

    async def fork(self) -> AsyncUnixSession:
        """A second session at the same state."""
        return AsyncUnixSession(self._link, SessionInfo.of(await self._link.ask("fork", self.id)))

    async def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state."""
        return str(await self._link.ask("digest", self.id))

    async def score(self, message: str = "") -> Grade:
        """Grade the state, and what the agent said last."""
        return grade(await self._link.ask("score", self.id, message))

    async def close(self) -> None:
        """End the session; a second time does nothing."""
        try:
            await self._link.ask("close", self.id)
        except InstanceError:
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class UnixClient(Pooled["_Connection"]):
    """A client for threads and processes; keeps as many connections as requests were in flight at once."""

    def __init__(self, endpoint: Endpoint | str, token: str = "", timeout: float = 60.0) -> None:
        """Connect at the first request.

        Args:
            endpoint: where the server is; a text is read as `unix:PATH` or `HOST:PORT`.
            token: what the server holds too.
            timeout: seconds that an answer may take.
        """
        super().__init__()
        self._endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        self._token, self._timeout = token, timeout

    def open(self, environment: str | None = None, *, task: str | None = None, state: str | None = None) -> UnixSession:
        """Open a session; see `Sandbox.open`. A task says its environment itself."""
        return UnixSession(self, SessionInfo.of(self.ask("open", environment, task, state)))

    def session(self, id_: str) -> UnixSession:
        """A session that was opened before, here or elsewhere."""
        return UnixSession(self, SessionInfo.of(self.ask("session", id_)))

    def environments(self) -> list[dict[str, Any]]:
        """Every environment in short."""
        found: list[dict[str, Any]] = self.ask("environments")
        return found

    def task(self, id_: str) -> Task:
        """The public row of one task."""
        return Task.model_validate(self.ask("task", id_))

    def tasks(self, environment: str, split: str) -> list[Task]:
        """Public rows of the tasks of an environment and a split."""
        return [Task.model_validate(row) for row in self.ask("tasks", environment, split)]

    def gauges(self) -> dict[str, float]:
        """What is live at the server now."""
        found: dict[str, float] = self.ask("gauges")
        return found

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            OmniaError: what the server told, in the class that was raised there.
            InfrastructureError: the server cannot be reached, or the connection broke; then nobody knows whether the
                request was worked on.
        """
        connection = self._taken() or _Connection(self._endpoint, self._token, self._timeout)
        try:
            status, value = connection.ask(operation, *arguments)
        except (OSError, WireError) as error:
            connection.close()
            raise _loss() from error
        except BaseException:  # an argument that is no plain value, an interrupt: its answer would come to the next
            connection.close()
            raise
        self._given_back(connection)
        if status != OK:
            raise raised(status, value)
        return value

    def _gone(self, idle: _Connection) -> bool:
        return idle.gone


class UnixSession:
    """One live environment; closes itself at the end of a `with`."""

    def __init__(self, client: UnixClient, info: SessionInfo) -> None:
        """Made by `UnixClient.open`."""
        self._client, self.info, self.id = client, info, info.id

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        result: Result = self._client.ask("call", self.id, tool, arguments)
        return result

    def batch(self, calls: Sequence[Call]) -> list[Result]:
        """Make calls in order, in one go."""
        results: list[Result] = self._client.ask("batch", self.id, list(calls))
        return results

    def reset(self) -> None:
        """Go back to the initial state; clears a fault."""
        self._client.ask("reset", self.id)

    def snapshot(self) -> bytes:
        """The state as bytes."""
        taken: bytes = self._client.ask("snapshot", self.id)
        return taken

    def restore(self, snapshot: bytes) -> None:
        """Go to a snapshot's state; clears a fault."""
        self._client.ask("restore", self.id, snapshot)

    def fork(self) -> UnixSession:
        """A second session at the same state."""
        return UnixSession(self._client, SessionInfo.of(self._client.ask("fork", self.id)))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state."""
        return str(self._client.ask("digest", self.id))

    def score(self, message: str = "") -> Grade:
        """Grade the state, and what the agent said last."""
        return grade(self._client.ask("score", self.id, message))

    def close(self) -> None:
        """End the session; a second time does nothing."""
        try:
            self._client.ask("close", self.id)
        except InstanceError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Connection:
    """A blocking connection with one request at a time."""

    def __init__(self, endpoint: Endpoint, token: str, seconds: float) -> None:
        """Connect, and prove and be shown the token.

        Raises:
            InfrastructureError: nobody answers there, or somebody with another token.
        """
        self._reader = FrameReader()
        self._number = NOTICE
        try:
            self._socket = _connected(endpoint, seconds)
        except OSError as error:
            raise InfrastructureError(f"no sandbox answers at {endpoint} ({error.strerror}); start it there") from error
        try:
            self._shake_hands(token)
        except (OSError, WireError) as error:
            self._socket.close()
            raise InfrastructureError(f"{endpoint}: {error}; give both sides the same version and token") from error

    def _shake_hands(self, token: str) -> None:
        protocol, server_nonce = self._receive()
        if protocol != PROTOCOL or len(server_nonce) != NONCE_BYTES:
            raise WireError(f"the server speaks {protocol!r}, not {PROTOCOL}")
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._socket.sendall(frame([nonce, proof(token, "client", server_nonce, nonce)]))
        if not hmac.compare_digest(self._receive()[0], proof(token, "server", server_nonce, nonce)):
            raise WireError("the server holds another token")

    @property
    def gone(self) -> bool:
        """Whether the server has ended it: then it can be read, though nothing was asked."""
        return ended(self._socket.fileno())

    def ask(self, operation: str, *arguments: Any) -> tuple[str, Any]:
        """Send a request and wait for its answer: a status and a value.

        Raises:
            OSError: the connection broke, or the answer takes too long.
            WireError: what came is no answer.
        """
        self._number += 1
        self._socket.sendall(frame([self._number, operation, *arguments]))
        number = NOTICE
        while number == NOTICE:
            number, status, value = self._receive()
        if number != self._number:
            raise WireError("an answer that nobody asked for; connect again")
        return status, value

    def _receive(self) -> Any:
        values: list[Any] = []
        while not values:
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionError("the server ended the connection")
            values = self._reader.feed(data)
        return values[0]

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _connected(endpoint: Endpoint, seconds: float) -> socket.socket:
    if not endpoint.path:
        return socket.create_connection((endpoint.host, endpoint.port), seconds)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(seconds)
        sock.connect(endpoint.path)
    except OSError:
        sock.close()
        raise
    return sock
