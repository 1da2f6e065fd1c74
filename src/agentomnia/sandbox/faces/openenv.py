"""The OpenEnv wire protocol, as the package `openenv` 0.10 speaks it, for every environment below `/e/{environment}`.

    /e/{env}/ws                     WebSocket: reset, step, state, mcp, close; `?session_id=` comes back to a session
    POST /e/{env}/mcp               JSON-RPC: openenv/session/create, openenv/session/close, tools/list, tools/call
    POST /e/{env}/reset, /step      over HTTP: one request, one instance, unless the body names a `session_id`
    GET  /e/{env}/state, /health, /metadata, /schema, /openapi.json
    GET  /e/{env}/list_environments, /{env}/splits;  POST /{env}/tasks, /num_tasks, /task, /task_range

`reset` chooses where an episode takes place: `task` (an id), or `split` and `index`, or `seed` (the task at the seed's
place in `split`, counted around), or `state` (an initial state, no task). Without any of these it goes back to where
it was. The observation has `prompt`, `query`, `task_id` and `num_tools`; its metadata the `session_id`.

Actions are `list_tools` and `call_tool`, and `{"type": "message", "content": …}`: the agent's last message, which ends
the episode. Only that step has a reward: the grade of state and message, `null` where there is no task. As in OpenEnv's
AWM-1K environment, `call_tool` of `verify` (`final_answer`) and of `done` end an episode too where no tool has
these names: `verify` like a message, `done` without a grade. Why a grade is not full is in the metadata, for trainers.

An answer of a tool is the observation's `result`, whole: `{"ok": true, "data": …}` or `{"ok": false, "error": …}`
(`MCPToolClient` unwraps `data`). `error` is set besides for an unknown tool and for bad arguments, which are the
agent's fault. Faults of the environment and of infrastructure are never observations: they are `error` frames
(`EXECUTION_ERROR`, and `SESSION_ERROR` or `CAPACITY_REACHED`) or JSON-RPC errors, with an `owner`.

A session outlives its socket: after a drop it waits for its return; a second socket takes it over from a first that may
be half open. `close` ends it at once, unless it was made over `/mcp`: then `openenv/session/close` does. Where there is
no room for a new session, the longest dropped one gives its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentomnia.errors import InputError, OmniaError
from agentomnia.sandbox.api import EnvironmentInfo, Sandbox
from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces.openenv_episodes import Episode, Episodes
from agentomnia.sandbox.faces.openenv_wire import (
    SCHEMAS,
    RpcRefusal,
    code_of,
    error_frame,
    openapi,
    read_message,
    rpc_error,
    rpc_failure,
    tool_row,
)
from agentomnia.sandbox.faces.refusal import Refusal, status_of
from agentomnia.sandbox.faces.tasks import TASK_ROUTES, find_environment, split_rows, task_answer
from agentomnia.sandbox.faces.text import json_text, read_json
from agentomnia.sandbox.request import Request
from agentomnia.sandbox.websocket import WebSocket

_TRY_AGAIN_LATER = 1013


class OpenEnv:
    """OpenEnv over a sandbox."""

    def __init__(self, sandbox: Sandbox, *, grace_seconds: float = 120.0) -> None:
        """Serve a sandbox.

        Args:
            sandbox: what is served.
            grace_seconds: how long a session waits for a socket that dropped.
        """
        self.sandbox, self.episodes = sandbox, Episodes(sandbox, grace_seconds)

    # HTTP

    async def http(self, request: Request) -> None:
        """Answer a request; errors that escape are told as problem+json, whose `detail` clients read."""
        info = find_environment(self.sandbox, request.path[1]) if len(request.path) > 2 else None
        if info is None:
            raise Refusal(404, "no such environment; GET /v1/environments lists them")
        await own_task()
        if request.method == "GET":
            request.json(200, await self._get(request, info))
        elif request.method == "POST":
            request.json(200, await self._post(request, info))
        else:
            raise Refusal(405, f"{request.method} is not used here; GET or POST", ((b"allow", b"GET, POST"),))

    async def _get(self, request: Request, info: EnvironmentInfo) -> Any:
        match request.path[2:]:
            case ("health",):
                return {"status": "healthy"}
            case ("metadata",):
                return {"name": info.name, "description": info.introduction, "version": info.id}
            case ("schema",):
                return SCHEMAS
            case ("openapi.json",):
                return openapi(info)
            case ("list_environments",):
                return [info.id]
            case (name, "splits") if self._is(info, name):
                return split_rows(info)
            case ("state",):
                named = request.query.get("session_id")
                episode = self.episodes.find(info, request.tenant, named) if named is not None else Episode(info, "")
                return await self.episodes.state(episode)
            case _:
                raise Refusal(404, "no such address; openapi.json lists them")

    def _is(self, info: EnvironmentInfo, name: str) -> bool:
        found = find_environment(self.sandbox, name)
        return found is not None and found.id == info.id

    async def _post(self, request: Request, info: EnvironmentInfo) -> Any:
        match request.path[2:]:
            case ("mcp",):
                return await self._posted_rpc(request, info)
            case ("reset",):
                body = request.read_object()
                async with self.episodes.lent(info, request.tenant, body.get("session_id")) as episode:
                    return await self.episodes.reset(episode, body)
            case ("step",):
                body = request.read_object()
                async with self.episodes.lent(info, request.tenant, body.get("session_id")) as episode:
                    return await self.episodes.step(episode, body.get("action"))
            case (name, route) if route in TASK_ROUTES and self._is(info, name):
                return task_answer(self.sandbox, info, route, request.read_object())
            case _:
                raise Refusal(404, "no such address; openapi.json lists them")

    async def _posted_rpc(self, request: Request, info: EnvironmentInfo) -> Any:
        try:
            call = read_json(request.body)
        except Refusal as error:
            return rpc_error(None, -32700, str(error))
        answer, request.error = await self._rpc(info, request.tenant, call)
        return answer

    # WebSocket

    async def websocket(self, socket: WebSocket) -> None:
        """Hold a conversation: OpenEnv's own at `ws`, bare JSON-RPC at `mcp`."""
        info = find_environment(self.sandbox, socket.path[1]) if len(socket.path) == 3 else None
        if info is None or socket.path[2] not in ("ws", "mcp"):
            raise Refusal(404, "no such address; use /e/{environment}/ws")
        socket.accept()
        try:
            episode = self.episodes.attach(socket, info)
        except InputError as error:
            socket.json(error_frame(error, "SESSION_ERROR"))
            socket.close()
            return
        said_goodbye = False
        try:
            said_goodbye = await self._converse(socket, episode)
        finally:
            self.episodes.detach(socket, episode, said_goodbye)

    async def _converse(self, socket: WebSocket, episode: Episode) -> bool:
        """Answer frames until the other side says goodbye (true) or is gone (false)."""
        answer = self._frame if socket.path[2] == "ws" else self._rpc_frame
        while (frame := await socket.receive()) is not None:
            told = await answer(socket, episode, frame)
            if told is None:
                socket.close()
                return True
            socket.json(told)
            if episode.session is None and code_of(told) == "CAPACITY_REACHED":
                socket.close(_TRY_AGAIN_LATER, "no room for a session now")
                return True
        return False

    async def _frame(self, socket: WebSocket, episode: Episode, frame: str | bytes) -> Any:
        """The answer to a frame; `None` to a goodbye."""
        try:
            message = read_json(frame)
        except Refusal as error:
            return error_frame(error, "INVALID_JSON")
        try:
            kind, data = read_message(message)
            if kind == "close":
                return None
            with socket.in_flight() as passage:
                told, untold = await self._answer(episode, kind, data)
                passage.status = 200 if untold is None else status_of(untold)
            return told
        except OmniaError as failed:
            return error_frame(failed)

    async def _answer(self, episode: Episode, kind: Any, data: Any) -> tuple[Any, OmniaError | None]:
        """The answer, and the error that it tells where it is no frame of errors."""
        match kind:
            case "step":
                return {"type": "observation", "data": await self.episodes.step(episode, data)}, None
            case "reset":
                return {"type": "observation", "data": await self.episodes.reset(episode, data)}, None
            case "state":
                return {"type": "state", "data": await self.episodes.state(episode)}, None
            case "mcp":
                told, error = await self._rpc(episode.info, episode.tenant, data, episode)
                return {"type": "mcp", "data": told}, error
            case _:
                unknown = InputError(
                    f"Unknown message type: {str(kind)[:80]}; reset, step, state, mcp and close are known"
                )
                return error_frame(unknown, "UNKNOWN_TYPE"), unknown

    async def _rpc_frame(self, socket: WebSocket, episode: Episode, frame: str | bytes) -> Any:
        try:
            call = read_json(frame)
            with socket.in_flight() as passage:
                told, error = await self._rpc(episode.info, episode.tenant, call, episode)
                passage.status = 200 if error is None else status_of(error)
            return told
        except Refusal as refusal:
            return rpc_error(None, -32700, str(refusal))
        except OmniaError as failed:
            return rpc_failure(None, failed)

    # JSON-RPC

    async def _rpc(
        self, info: EnvironmentInfo, tenant: str, call: Any, episode: Episode | None = None
    ) -> tuple[Any, OmniaError | None]:
        """The response to a JSON-RPC request, and the error that it tells, if any."""
        if not isinstance(call, dict) or call.get("jsonrpc") != "2.0" or not isinstance(call.get("method"), str):
            return rpc_error(None, -32600, "Invalid request: send jsonrpc 2.0, a method and params"), None
        id, method, params = call.get("id"), call["method"], call.get("params") or {}
        if not isinstance(params, dict):
            return rpc_error(id, -32602, "Params must be an object"), None
        try:
            result = await self._method(info, tenant, method, params, episode)
        except OmniaError as error:
            return rpc_failure(id, error), error
        return {"jsonrpc": "2.0", "id": id, "result": result}, None

    async def _method(
        self, info: EnvironmentInfo, tenant: str, method: str, params: Mapping[str, Any], episode: Episode | None
    ) -> Any:
        match method:
            case "openenv/session/create":
                made = episode if episode is not None else Episode(info, tenant)
                return {"session_id": (await self.episodes.live(made)).id}
            case "openenv/session/close":
                return await self._close_by_rpc(info, tenant, params.get("session_id"), episode)
            case "tools/list":
                found = episode if episode is not None else self.episodes.named(info, tenant, params)
                return {"tools": [tool_row(t, "inputSchema") for t in (await self.episodes.tools(found)).values()]}
            case "tools/call" if episode is not None:
                return await self._call_by_rpc(episode, params)
            case "tools/call":
                async with self.episodes.lent(info, tenant, params.get("session_id")) as lent:
                    return await self._call_by_rpc(lent, params)
            case _:
                raise RpcRefusal(-32601, f"Method not found: {method[:80]}")

    async def _call_by_rpc(self, episode: Episode, params: Mapping[str, Any]) -> Any:
        tool, arguments = params.get("name"), params.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(tool, str) or not tool or not isinstance(arguments, dict):
            raise RpcRefusal(-32602, "tools/call takes the name of a tool and an object of arguments")
        told = (await self.episodes.call(episode, tool, arguments))["observation"]
        result = told["result"]
        if result is None:
            raise RpcRefusal(-32602, f"Tool not found: {tool[:80]}")
        return {
            "content": [{"type": "text", "text": json_text(result)}],
            "structured_content": result,
            "data": result["data"] if result["ok"] else result,
            "is_error": not result["ok"],
            "meta": None,
        }

    async def _close_by_rpc(self, info: EnvironmentInfo, tenant: str, name: Any, own: Episode | None) -> Any:
        if not name:
            raise RpcRefusal(-32602, "Invalid params - 'session_id' is required")
        episode = self.episodes.find(info, tenant, name)
        if episode is own:
            raise RpcRefusal(-32600, "Cannot close active WebSocket-managed session via MCP method")
        if episode.socket is not None:
            episode.closing = True
            return {"session_id": name, "closed": False, "closing": True}
        await own_task()
        await self.episodes.end(episode)
        return {"session_id": name, "closed": True}
