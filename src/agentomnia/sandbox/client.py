"""Python clients of the REST face: `SandboxClient`, which needs the standard library only, and `AsyncSandboxClient`.

Both have the methods of the instance API, and raise the exceptions that the server's side raised, so that code moves
between a sandbox in its own process and one behind a socket unchanged. Only what certainly did not happen is tried
again: a connection that was never made, and a request that was refused for want of room (429).
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from agentomnia.environment.result import Result
from agentomnia.sandbox.api import Call
from agentomnia.sandbox.pool import Pooled, ended
from agentomnia.sandbox.remote import (
    CONNECT_PAUSE_SECONDS,
    CONNECT_TRIES,
    Address,
    Answer,
    Ask,
    SessionInfo,
    batch_ask,
    broken,
    call_ask,
    grade,
    open_ask,
    post,
    session_path,
    tasks_ask,
    unreachable,
)
from agentomnia.task.grade import Grade
from agentomnia.task.task import Task

if TYPE_CHECKING:
    import aiohttp


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _new_connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    if address.unix is not None:
        return _UnixConnection(address.unix, timeout)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


class SandboxClient(Pooled[http.client.HTTPConnection]):
    """A client for threads and processes; keeps connections alive, as many as requests were in flight at once."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8321",
        token: str | None = None,
        timeout: float = 60.0,
        patience: float = 30.0,
    ) -> None:
        """Connect at the first request.

        Args:
            url: `http://host:port` or `unix:///path`.
            token: the tenant's, where the server wants one.
            timeout: seconds that an answer may take.
            patience: seconds that a request is tried again while the server has no room.
        """
        super().__init__()
        self._address = Address.of(url)
        self._timeout, self._patience = timeout, patience
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def open(
        self, environment: str | None = None, *, task: str | None = None, state: str | None = None
    ) -> RemoteSession:
        """Open a session; see `Sandbox.open`. A task says its environment itself."""
        return RemoteSession(self, SessionInfo.of(self.send(open_ask(environment, task, state)).value()))

    def session(self, id_: str) -> RemoteSession:
        """A session that was opened before, here or elsewhere."""
        return RemoteSession(self, SessionInfo.of(self.send(Ask("GET", session_path(id_))).value()))

    def environments(self) -> list[dict[str, Any]]:
        """Every environment in short."""
        found: list[dict[str, Any]] = self.send(Ask("GET", "/v1/environments")).value()["environments"]
        return found

    def environment(self, id_: str) -> dict[str, Any]:
        """One environment with its policies and tools."""
        found: dict[str, Any] = self.send(Ask("GET", f"/v1/environments/{quote(id_, safe='')}")).value()
        return found

    def tasks(self, environment: str | None = None, split: str | None = None) -> list[Task]:
        """Public rows of the tasks of an environment and a split, or of all."""
        found: list[Task] = []
        while True:
            page = self.send(tasks_ask(environment, split, len(found))).value()
            found += map(Task.model_validate, page["tasks"])
            if len(found) >= page["total"] or not page["tasks"]:
                return found

    def task(self, id_: str) -> Task:
        """The public row of one task."""
        return Task.model_validate(self.send(Ask("GET", f"/v1/tasks/{quote(id_, safe='')}")).value())

    def send(self, ask: Ask) -> Answer:
        """Send one request; waits where the server has no room.

        Raises:
            InfrastructureError: the server cannot be reached, or the connection broke; then nobody knows whether the
                request was worked on.
        """
        deadline = time.monotonic() + self._patience
        while True:
            answer = self._exchange(ask)
            if answer.status != 429 or time.monotonic() + answer.pause > deadline:
                return answer
            time.sleep(answer.pause)

    def _exchange(self, ask: Ask) -> Answer:
        connection = self._taken() or self._connected()
        try:
            connection.request(ask.method, ask.path, ask.body, {**self._headers, **ask.headers})
            response = connection.getresponse()
            answer = Answer(response.status, response.read(), response.headers.get("retry-after"))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise broken(self._address, error) from error
        self._given_back(connection)
        return answer

    def _connected(self) -> http.client.HTTPConnection:
        """A new connection."""
        connection = _new_connection(self._address, self._timeout)
        for left in reversed(range(CONNECT_TRIES)):
            try:
                connection.connect()
                break
            except OSError as error:
                connection.close()
                if not left:
                    raise unreachable(self._address, error) from error
                time.sleep(CONNECT_PAUSE_SECONDS)
        return connection

    def _gone(self, idle: http.client.HTTPConnection) -> bool:
        return idle.sock is None or ended(idle.sock.fileno())


class RemoteSession:
    """One live environment behind a client; closes itself at the end of a `with`."""

    def __init__(self, client: SandboxClient, info: SessionInfo) -> None:
        """Made by `SandboxClient.open`."""
        self._client, self.info, self.id = client, info, info.id

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        result: Result = self._client.send(call_ask(self.id, tool, arguments)).value()
        return result

    def batch(self, calls: Sequence[Call]) -> list[Result]:
        """Make calls in order, in one go."""
        results: list[Result] = self._client.send(batch_ask(self.id, calls)).value()["results"]
        return results

    def reset(self) -> None:
        """Go back to the initial state; clears a fault."""
        self._client.send(post(session_path(self.id, "/reset"))).value()

    def snapshot(self) -> bytes:
        """The state as bytes."""
        return self._client.send(Ask("GET", session_path(self.id, "/snapshot"))).raw()

    def restore(self, snapshot: bytes) -> None:
        """Go to a snapshot's state; clears a fault."""
        self._client.send(Ask("PUT", session_path(self.id, "/snapshot"), snapshot)).value()

    def fork(self) -> RemoteSession:
        """A second session at the same state."""
        told = self._client.send(post(session_path(self.id, "/fork"))).value()
        return RemoteSession(self._client, SessionInfo.of(told))

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state."""
        return str(self._client.send(Ask("GET", session_path(self.id, "/digest"))).value()["digest"])

    def score(self, message: str = "") -> Grade:
        """Grade the state, and what the agent said last."""
        return grade(self._client.send(post(session_path(self.id, "/score"), {"message": message})).value())

    def close(self) -> None:
        """End the session; a second time does nothing."""
        answer = self._client.send(Ask("DELETE", session_path(self.id)))
        if answer.status != 404:
            answer.value()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSandboxClient:
    """The same for asyncio, over aiohttp (extra `serve`); thousands of requests may be in flight."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8321",
        token: str | None = None,
        timeout: float = 60.0,
        patience: float = 30.0,
    ) -> None:
        """Connect at the first request; see `SandboxClient`."""
        self._address = Address.of(url)
        self._timeout, self._patience = timeout, patience
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http: aiohttp.ClientSession | None = None

    async def open(
        self, environment: str | None = None, *, task: str | None = None, state: str | None = None
    ) -> AsyncRemoteSession:
        """Open a session; see `Sandbox.open`. A task says its environment itself."""
        answer = await self.send(open_ask(environment, task, state))
        return AsyncRemoteSession(self, SessionInfo.of(answer.value()))

    async def session(self, id_: str) -> AsyncRemoteSession:
        """A session that was opened before, here or elsewhere."""
        answer = await self.send(Ask("GET", session_path(id_)))
        return AsyncRemoteSession(self, SessionInfo.of(answer.value()))

    async def environments(self) -> list[dict[str, Any]]:
        """Every environment in short."""
        found: list[dict[str, Any]] = (await self.send(Ask("GET", "/v1/environments"))).value()["environments"]
        return found

    async def environment(self, id_: str) -> dict[str, Any]:
        """One environment with its policies and tools."""
        found: dict[str, Any] = (await self.send(Ask("GET", f"/v1/environments/{quote(id_, safe='')}"))).value()
        return found

    async def tasks(self, environment: str | None = None, split: str | None = None) -> list[Task]:
        """Public rows of the tasks of an environment and a split, or of all."""
        found: list[Task] = []
        while True:
            page = (await self.send(tasks_ask(environment, split, len(found)))).value()
            found += map(Task.model_validate, page["tasks"])
            if len(found) >= page["total"] or not page["tasks"]:
                return found

    async def task(self, id_: str) -> Task:
        """The public row of one task."""
        return Task.model_validate((await self.send(Ask("GET", f"/v1/tasks/{quote(id_, safe='')}"))).value())

    async def send(self, ask: Ask) -> Answer:
        """Send one request; see `SandboxClient.send`."""
        deadline = time.monotonic() + self._patience
        while True:
            answer = await self._exchange(ask)
            if answer.status != 429 or time.monotonic() + answer.pause > deadline:
                return answer
            await asyncio.sleep(answer.pause)

    async def _exchange(self, ask: Ask) -> Answer:
        import aiohttp

        if self._http is None:
            self._http = self._new_session()
        for left in reversed(range(CONNECT_TRIES)):
            try:
                async with self._http.request(
                    ask.method, self._address.base + ask.path, data=ask.body, headers=ask.headers
                ) as response:
                    return Answer(response.status, await response.read(), response.headers.get("retry-after"))
            except aiohttp.ClientConnectorError as error:
                if not left:
                    raise unreachable(self._address, error) from error
                await asyncio.sleep(CONNECT_PAUSE_SECONDS)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise broken(self._address, error) from error
        raise AssertionError("the last try either answers or raises")

    def _new_session(self) -> aiohttp.ClientSession:
        import aiohttp

        # aiohttp's own limit of 100 connections would queue rollouts unseen
        connector = (
            aiohttp.TCPConnector(limit=0)
            if self._address.unix is None
            else aiohttp.UnixConnector(path=self._address.unix, limit=0)
        )
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)

    async def close(self) -> None:
        """Close every connection; sessions stay until they are closed or their lease ends."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncRemoteSession:
    """One live environment behind an asyncio client; closes itself at the end of an `async with`."""

    def __init__(self, client: AsyncSandboxClient, info: SessionInfo) -> None:
        """Made by `AsyncSandboxClient.open`."""
        self._client, self.info, self.id = client, info, info.id

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        result: Result = (await self._client.send(call_ask(self.id, tool, arguments))).value()
        return result

    async def batch(self, calls: Sequence[Call]) -> list[Result]:
        """Make calls in order, in one go."""
        results: list[Result] = (await self._client.send(batch_ask(self.id, calls))).value()["results"]
        return results

    async def reset(self) -> None:
        """Go back to the initial state; clears a fault."""
        (await self._client.send(post(session_path(self.id, "/reset")))).value()

    async def snapshot(self) -> bytes:
        """The state as bytes."""
        return (await self._client.send(Ask("GET", session_path(self.id, "/snapshot")))).raw()

    async def restore(self, snapshot: bytes) -> None:
        """Go to a snapshot's state; clears a fault."""
        (await self._client.send(Ask("PUT", session_path(self.id, "/snapshot"), snapshot))).value()

    async def fork(self) -> AsyncRemoteSession:
        """A second session at the same state."""
        told = (await self._client.send(post(session_path(self.id, "/fork")))).value()
        return AsyncRemoteSession(self._client, SessionInfo.of(told))

    async def digest(self) -> str:
        """SHA-256 of the canonical JSON of the state."""
        return str((await self._client.send(Ask("GET", session_path(self.id, "/digest")))).value()["digest"])

    async def score(self, message: str = "") -> Grade:
        """Grade the state, and what the agent said last."""
        ask = post(session_path(self.id, "/score"), {"message": message})
        return grade((await self._client.send(ask)).value())

    async def close(self) -> None:
        """End the session; a second time does nothing."""
        answer = await self._client.send(Ask("DELETE", session_path(self.id)))
        if answer.status != 404:
            answer.value()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
