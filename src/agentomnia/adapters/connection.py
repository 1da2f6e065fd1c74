"""Where adapters find environments: a server by its address, or a run that is played in this process.

Both have the methods of `SandboxClient` that adapters use (`Link`). Connections are made at the first use in each
process and kept; they are never pickled. A token that the server wants is read from the environment variable
`OMNIA_TOKEN`, so that none stands in a data set, a configuration or a pickle.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from agentomnia.environment.result import Result
from agentomnia.errors import InputError
from agentomnia.sandbox.api import Sandbox, Session
from agentomnia.sandbox.client import AsyncSandboxClient, SandboxClient
from agentomnia.sandbox.remote import SessionInfo
from agentomnia.task.grade import Grade
from agentomnia.task.task import Task

TOKEN_VARIABLE = "OMNIA_TOKEN"

T = TypeVar("T")


class OpenSession(Protocol):
    """A live environment; see `sandbox.api.Session` for what its methods promise."""

    id: str
    info: SessionInfo

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        ...

    def reset(self) -> None:
        """Go back to the initial state."""
        ...

    def score(self, message: str = "") -> Grade:
        """Grade the state and the last message."""
        ...

    def close(self) -> None:
        """End the session; a second time does nothing."""
        ...


class Link(Protocol):
    """Where environments are; see `SandboxClient`."""

    def open(self, *, task: str) -> OpenSession:
        """Open a session for a task."""
        ...

    def environment(self, id_: str) -> dict[str, Any]:
        """One environment: `id`, `introduction`, `policies`, `tools` in OpenAI form, …"""
        ...

    def tasks(self, environment: str | None = None, split: str | None = None) -> list[Task]:
        """Public rows of tasks, in a fixed order."""
        ...


def connect(source: str) -> Link:
    """The connection of this process to a source.

    Args:
        source: address of a server (`http://…`, `unix:///…`), or path of a run.

    Raises:
        InputError: it is no address, and the path holds nothing that can be opened.
    """
    return _connected(source, os.getpid())


def connect_async(source: str) -> AsyncSandboxClient:
    """The connection of the running event loop to a server; `close_clients` ends it.

    Args:
        source: address of a server.

    Raises:
        InputError: it is no address.
    """
    known = _CLIENTS.setdefault(asyncio.get_running_loop(), {})
    if source not in known:
        known[source] = AsyncSandboxClient(source, token=os.environ.get(TOKEN_VARIABLE))
    return known[source]


async def close_clients() -> None:
    """Close the connections of the running event loop; sessions stay open."""
    for client in _CLIENTS.pop(asyncio.get_running_loop(), {}).values():
        await client.close()


def opening(link: Link, task: Task) -> list[dict[str, str]]:
    """The conversation that a task begins with: system prompt and query."""
    session = link.open(task=task.id)
    session.close()
    return [{"role": "system", "content": session.info.prompt}, {"role": "user", "content": task.query}]


_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AsyncSandboxClient]] = WeakKeyDictionary()


@cache
def _connected(source: str, process: int) -> Link:
    """One connection for each source and process: a fork must not use its parent's."""
    if "://" in source:
        client: Link = SandboxClient(source, token=os.environ.get(TOKEN_VARIABLE))
        return client
    from agentomnia.runs.serving import catalog_of
    from agentomnia.sandbox.host import Host

    catalog = catalog_of(Path(source))
    local = LocalClient(lambda: Host(catalog))
    atexit.register(local.close)
    return local


class LocalSession:
    """A session of a `LocalClient`."""

    def __init__(self, client: LocalClient, session: Session, info: SessionInfo) -> None:
        """Made by `LocalClient.open`."""
        self._client, self._session, self.info, self.id = client, session, info, info.id

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool."""
        return self._client.wait(self._session.call(tool, arguments))

    def reset(self) -> None:
        """Go back to the initial state."""
        self._client.wait(self._session.reset())

    def score(self, message: str = "") -> Grade:
        """Grade the state and the last message."""
        return self._client.wait(self._session.score(message))

    def close(self) -> None:
        """End the session."""
        self._client.wait(self._session.close())


class LocalClient:
    """A sandbox in this process behind the methods of `SandboxClient`, on an event loop and a thread of its own."""

    def __init__(self, make: Callable[[], Sandbox]) -> None:
        """Start the thread; `close` ends it.

        Args:
            make: makes the sandbox, on the thread.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omnia-sandbox", daemon=True)
        self._thread.start()
        self._sandbox = self.wait(_made(make))

    def open(self, *, task: str) -> LocalSession:
        """Open a session for a task."""
        return self.wait(self._open(task))

    def environment(self, id_: str) -> dict[str, Any]:
        """One environment with its policies and tools."""
        info = self._sandbox.environments.get(id_)
        if info is None:
            raise InputError(f"there is no environment {id_[:80]!r}; choose one of {len(self._sandbox.environments)}")
        return {
            "id": info.id,
            "name": info.name,
            "introduction": info.introduction,
            "policies": list(info.policies),
            "tools": [tool.to_openai() for tool in info.tools.values()],
        }

    def tasks(self, environment: str | None = None, split: str | None = None) -> list[Task]:
        """Public rows of tasks, in the order of environments and splits."""
        infos = [i for i in self._sandbox.environments.values() if environment in (None, i.id)]
        ids = [task for i in infos for name, found in i.splits.items() if split in (None, name) for task in found]
        return [self._sandbox.task(task) for task in ids]

    def close(self) -> None:
        """Close every session and end the thread; a second time does nothing."""
        if self._loop.is_closed():
            return
        self.wait(self._sandbox.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done on the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, task: str) -> LocalSession:
        session = await self._sandbox.open(self._sandbox.task(task).environment, task=task)
        tools = tuple(tool.to_openai() for tool in session.tools.values())
        query = session.task.query if session.task is not None else None
        info = SessionInfo(
            session.id, session.environment.id, task, tools, session.prompt, query, await session.digest()
        )
        return LocalSession(self, session, info)


async def _made(make: Callable[[], Sandbox]) -> Sandbox:
    return make()
