"""Sessions as OpenEnv means them: one that outlives its sockets, and changes its instance with the task of an episode.

`Episodes` is what an agent can do in one and how it is found again; the transport is in `faces.openenv`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import success
from agentomnia.errors import CapacityError, InstanceError, OmniaError
from agentomnia.sandbox.api import EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces.openenv_wire import (
    Place,
    called,
    observation,
    read_action,
    read_episode_id,
    tool_row,
    wanted_place,
)
from agentomnia.sandbox.faces.operations import call_tool
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.faces.tasks import final_grade
from agentomnia.sandbox.websocket import WebSocket

_TAKEN_OVER = 4001
"""Code with which a socket is closed when another comes for its session."""
_FORGET_SECONDS = 86_400.0
_SWEEP_EVERY = 256
_ENDING_TOOLS = frozenset(("verify", "done"))


@dataclass(eq=False, slots=True)
class Episode:
    """One OpenEnv session: what the protocol knows of it beside the instance, which changes with the task."""

    info: EnvironmentInfo
    tenant: str
    owner: Literal["socket", "request", "caller"] = "caller"
    """What ends it: its socket, the request that it was made for, or a caller's word."""
    session: str | None = None
    """Id of the instance; `None` before the first use."""
    names: list[str] = field(default_factory=list)
    """Ids under which it can be found: of all its instances."""
    place: Place = (None, None)
    episode_id: str | None = None
    steps: int = 0
    over: bool = False
    reward: float | None = None
    ending: dict[str, Any] = field(default_factory=dict)
    """What trainers may know of the grade."""
    socket: WebSocket | None = None
    closing: bool = False
    """End it once its socket is gone."""
    used: float = 0.0
    grace: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its instance changes."""

    def begin(self, place: Place, episode_id: str | None) -> None:
        """A new episode at a place."""
        self.place, self.episode_id = place, episode_id
        self.steps, self.over, self.reward, self.ending = 0, False, None, {}

    def check_going_on(self) -> None:
        """Check that it can be acted on.

        Raises:
            Refusal: it is over.
        """
        if self.over:
            raise Refusal(409, "the episode is over; reset it to go on")

    def hold(self) -> None:
        """It is in use: nothing ends it now."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class Episodes:
    """The OpenEnv sessions of a server."""

    def __init__(self, sandbox: Sandbox, grace_seconds: float) -> None:
        """Begin without one.

        Args:
            sandbox: where instances live.
            grace_seconds: how long a session waits for a socket that dropped.
        """
        self.sandbox, self.grace_seconds = sandbox, grace_seconds
        self._known: dict[tuple[str, str], Episode] = {}
        self._registered = 0
        self._ends: set[asyncio.Task[None]] = set()

    def attach(self, socket: WebSocket, info: EnvironmentInfo) -> Episode:
        """The socket's session: a new one, or one that waits for it.

        Raises:
            InstanceError: there is none of that id.
        """
        named = socket.query.get("session_id")
        episode = self.find(info, socket.tenant, named) if named else Episode(info, socket.tenant, "socket")
        episode.hold()
        before, episode.socket = episode.socket, socket
        if before is not None:
            before.close(_TAKEN_OVER, "another socket came for this session")
        return episode

    def detach(self, socket: WebSocket, episode: Episode, said_goodbye: bool) -> None:
        """Let the session wait for its socket's return, or end it. Never waits: it must work while being cancelled."""
        if episode.socket is not socket:
            return  # taken over
        episode.socket, episode.used = None, time.monotonic()
        if episode.closing or (said_goodbye and episode.owner == "socket"):
            self._later(self.end(episode))
        elif episode.owner == "socket":
            loop = asyncio.get_running_loop()
            episode.grace = loop.call_later(self.grace_seconds, lambda: self._later(self._expire(episode)))

    async def _expire(self, episode: Episode) -> None:
        if episode.socket is None:
            await self.end(episode)

    @asynccontextmanager
    async def lent(self, info: EnvironmentInfo, tenant: str, name: object) -> AsyncIterator[Episode]:
        """The session that a request names, or one for this request only."""
        if name is not None:
            yield self.find(info, tenant, name)
            return
        episode = Episode(info, tenant, "request")
        try:
            yield episode
        finally:
            await self.end(episode)

    # what an agent does

    async def reset(self, episode: Episode, data: Mapping[str, Any]) -> Any:
        """Begin an episode."""
        place, episode_id = wanted_place(self.sandbox, episode.info, data, episode.place), read_episode_id(data)
        await own_task()
        async with episode.lock:
            session = self._present(episode)
            if session is not None and place == episode.place:
                await session.reset()
            else:
                if session is not None:
                    await session.close()
                episode.session = None
                session = await self._open(episode, place)
            episode.begin(place, episode_id)
        task = session.task
        told = {
            "prompt": session.prompt,
            "query": task.query if task is not None else None,
            "task_id": task.id if task is not None else None,
            "num_tools": len(session.tools),
        }
        lasting = {"session_id": session.id} if episode.owner != "request" else {}
        return observation(told, metadata={**lasting, "episode_id": episode_id})

    async def step(self, episode: Episode, data: Any) -> Any:
        """Do an action; the observation."""
        action = read_action(data)
        match action.kind:
            case "list_tools":
                tools = await self.tools(episode)
                return observation({"tools": [tool_row(t, "input_schema") for t in tools.values()]})
            case "message":
                await self._finish(episode, action.text)
                return observation({"message": "The episode is over."}, episode.reward, True, episode.ending)
            case _:
                return await self.call(episode, action.tool, action.arguments)

    async def tools(self, episode: Episode) -> Mapping[str, ToolSchema]:
        """What is exposed; before the first use, all tools of the environment."""
        return episode.info.tools if episode.session is None else (await self.live(episode)).tools

    async def call(self, episode: Episode, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool, or end the episode by one of the names that stand for that; the observation."""
        session = await self.live(episode)
        if tool not in session.tools:
            if tool in _ENDING_TOOLS:
                await self._finish(episode, str(arguments.get("final_answer") or ""), graded=tool == "verify")
                told = success({"reward": episode.reward, "done": True})
                return called(tool, told, None, episode.reward, True, episode.ending)
            episode.check_going_on()
            unknown = {"error_type": "tool_not_found", "message": f"there is no tool {tool[:80]!r}"}
            return called(tool, None, unknown)
        episode.check_going_on()
        episode.steps += 1
        result = await call_tool(session, tool, arguments)
        refused = not result["ok"] and result["error"]["code"] == "invalid_argument"
        error = {"error_type": "invalid_args", "message": result["error"]["message"]} if refused else None
        return called(tool, result, error)

    async def _finish(self, episode: Episode, message: str, graded: bool = True) -> None:
        """End the episode with the agent's last message; a second time changes nothing."""
        await own_task()
        session = await self.live(episode)
        if episode.over:
            return
        episode.over = True
        try:
            episode.reward, episode.ending = await final_grade(session, message) if graded else (None, {})
        except OmniaError:
            episode.over = False
            raise

    async def state(self, episode: Episode) -> Any:
        """What OpenEnv calls the state: counts and names of the episode, and the digest of the instance's state."""
        task, _ = episode.place
        told = {"episode_id": episode.episode_id, "step_count": episode.steps, "environment": episode.info.id}
        if episode.session is None:
            return told
        await own_task()
        session = await self.live(episode)
        digest = await session.digest()
        return {**told, "session_id": session.id, "task_id": task, "done": episode.over, "digest": digest}

    def named(self, info: EnvironmentInfo, tenant: str, params: Mapping[str, Any]) -> Episode:
        """The session that parameters name, or a new one that holds nothing yet."""
        name = params.get("session_id")
        return Episode(info, tenant) if name is None else self.find(info, tenant, name)

    # instances

    def find(self, info: EnvironmentInfo, tenant: str, name: object) -> Episode:
        """A session by the id of one of its instances; also one that another face opened.

        Raises:
            InstanceError: there is none.
        """
        known = self._known.get((tenant, str(name)))
        if known is not None and known.info.id == info.id:
            known.used = time.monotonic()
            return known
        session = self.sandbox.session(str(name), tenant)
        if session.environment.id != info.id:
            raise InstanceError(f"session {str(name)[:80]!r} is of another environment; use its own address")
        place = (session.task.id if session.task is not None else None, None)
        episode = Episode(info, tenant, place=place)
        self._adopt(episode, session)
        return episode

    def _present(self, episode: Episode) -> Session | None:
        """The live instance, if there is one still."""
        try:
            return self.sandbox.session(episode.session, episode.tenant) if episode.session is not None else None
        except InstanceError:
            return None

    async def live(self, episode: Episode) -> Session:
        """The live instance; opened at the first use.

        Raises:
            InstanceError: it has ended.
        """
        if episode.session is None:
            await own_task()
            async with episode.lock:
                if episode.session is None:
                    return await self._open(episode, episode.place)
        return self.sandbox.session(str(episode.session), episode.tenant)

    async def _open(self, episode: Episode, place: Place) -> Session:
        task, state = place
        try:
            session = await self.sandbox.open(episode.info.id, task=task, state=state, tenant=episode.tenant)
        except CapacityError:
            if not await self._evict(episode.tenant):
                raise
            session = await self.sandbox.open(episode.info.id, task=task, state=state, tenant=episode.tenant)
        self._adopt(episode, session)
        return session

    async def _evict(self, tenant: str) -> bool:
        """End the session of a tenant that waits for its socket the longest."""
        waiting = [e for e in self._known.values() if e.tenant == tenant and e.grace is not None]
        if waiting:
            await self.end(min(waiting, key=lambda e: e.used))
        return bool(waiting)

    def _adopt(self, episode: Episode, session: Session) -> None:
        """Let an episode live in an instance, and be found by its id."""
        episode.session, episode.used = session.id, time.monotonic()
        episode.names.append(session.id)
        self._known[episode.tenant, session.id] = episode
        self._registered += 1
        if self._registered % _SWEEP_EVERY == 0:
            self._sweep()

    def _sweep(self) -> None:
        """Forget what nobody has used for a day; leases have ended its instances."""
        latest = time.monotonic() - _FORGET_SECONDS
        for episode in [e for e in self._known.values() if e.socket is None and e.used < latest]:
            self._forget(episode)

    def _forget(self, episode: Episode) -> None:
        episode.hold()
        for name in episode.names:
            self._known.pop((episode.tenant, name), None)

    async def end(self, episode: Episode) -> None:
        """Forget an episode and close its instance."""
        self._forget(episode)
        session = self._present(episode)
        if session is not None:
            await session.close()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
