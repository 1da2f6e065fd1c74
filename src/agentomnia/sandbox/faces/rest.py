"""REST under `/v1`, and one WebSocket, `/v1/ws`, over which a trainer drives many sessions.

    POST   /v1/sessions {environment | task, state?}     open: {session, environment, task, tools, prompt, query, …}
    GET    /v1/sessions/{id}                             the same again
    DELETE /v1/sessions/{id}                             close
    POST   /v1/sessions/{id}/call {tool, arguments}      the result
    POST   /v1/sessions/{id}/batch {calls: [...]}        {results}
    POST   /v1/sessions/{id}/reset | fork | score        {digest} | a new session | {reward, failures}
    GET    /v1/sessions/{id}/digest                      {digest}
    GET, PUT /v1/sessions/{id}/snapshot                  the state as bytes
    GET    /v1/environments[/{id}], /v1/tasks[/{id}]     what there is; tasks?environment=&split=&offset=&limit=

A result is HTTP 200 whatever it says to the agent. Errors are problem+json (RFC 9457) with `owner` (caller,
environment, infrastructure) and `kind` (the exception that the Python client raises).

Frames of the WebSocket are objects, JSON in text frames and msgpack in binary ones, answered in kind:
`{"id": 7, "op": "call", "session": "…", "tool": "…", "arguments": {…}}` gets `{"id": 7, "ok": true, "value": …}` or
`{"id": 7, "ok": false, "error": problem}`. Ops: open, and those of `operations.SESSION_OPERATIONS`; a snapshot is
bytes in msgpack and base64 in JSON. Frames are worked on at once, those of one session in order. Sessions outlive
the socket.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgpack

from agentomnia.errors import OmniaError
from agentomnia.sandbox.api import Sandbox, Session
from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces import operations
from agentomnia.sandbox.faces.refusal import Refusal, problem_of
from agentomnia.sandbox.faces.text import read_json, write_json
from agentomnia.sandbox.request import Request
from agentomnia.sandbox.websocket import WebSocket

_ACTIONS = {"batch": "POST", "reset": "POST", "fork": "POST", "score": "POST", "digest": "GET"}
"""Methods of what is asked under a session, where body and answer are JSON."""
FRAMES_AT_ONCE = 256
"""Frames of one socket that are worked on; more are left in the connection until one is done."""


class Rest:
    """The face."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Serve a sandbox."""
        self._sandbox = sandbox

    async def http(self, request: Request) -> None:
        """Answer a request."""
        match request.path[1:]:
            case ("sessions", id_, "call"):
                _only(request, "POST")
                request.json(200, await operations.call(self._find(request, id_), request.read_object()))
            case other:
                await own_task()
                await self._answer(request, other)

    async def _answer(self, request: Request, path: tuple[str, ...]) -> None:
        match path:
            case ("sessions",):
                _only(request, "POST")
                opened = await operations.open_session(self._sandbox, request.tenant, request.read_object())
                request.json(201, opened, ((b"location", f"/v1/sessions/{opened['session']}".encode()),))
            case ("sessions", id_):
                await self._session(request, id_)
            case ("sessions", id_, "snapshot"):
                await self._snapshot(request, id_)
            case ("sessions", id_, action) if action in _ACTIONS:
                _only(request, _ACTIONS[action])
                body = request.read_object() if request.method == "POST" else {}
                value = await operations.SESSION_OPERATIONS[action](self._find(request, id_), body)
                request.json(201 if action == "fork" else 200, value)
            case _:
                self._listing(request)

    def _listing(self, request: Request) -> None:
        match request.path[1:]:
            case ("environments",):
                value = operations.environments(self._sandbox)
            case ("environments", id_):
                value = operations.environment(self._sandbox, id_)
            case ("tasks",):
                value = operations.tasks(self._sandbox, request.query)
            case ("tasks", id_):
                value = operations.task(self._sandbox, id_)
            case _:
                raise Refusal(404, "there is nothing here; see /v1/environments, /v1/tasks and POST /v1/sessions")
        _only(request, "GET", "HEAD")
        request.json(200, value)

    def _find(self, request: Request, id_: str) -> Session:
        return self._sandbox.session(id_, request.tenant)

    async def _session(self, request: Request, id_: str) -> None:
        _only(request, "GET", "DELETE")
        session = self._find(request, id_)
        if request.method == "GET":
            request.json(200, await operations.described(session))
        else:
            await session.close()
            request.raw(204)

    async def _snapshot(self, request: Request, id_: str) -> None:
        _only(request, "GET", "PUT")
        session = self._find(request, id_)
        if request.method == "GET":
            request.raw(200, await session.snapshot(), b"application/octet-stream")
        else:
            request.json(200, await operations.restore(session, {"snapshot": request.body}))

    async def websocket(self, socket: WebSocket) -> None:
        """Hold a conversation over many sessions."""
        if socket.path != ("v1", "ws"):
            raise Refusal(404, "there is no WebSocket here; use /v1/ws")
        socket.accept()
        free = asyncio.Semaphore(FRAMES_AT_ONCE)
        working: set[asyncio.Task[None]] = set()

        def done(task: asyncio.Task[None]) -> None:
            working.discard(task)
            free.release()

        while (frame := await socket.receive()) is not None:
            # not beside frames that are being worked on: one of them may be the same session's, and comes first
            if not working and self._answered_at_once(socket, frame):
                continue
            await free.acquire()
            task = asyncio.create_task(self._frame(socket, frame))
            working.add(task)
            task.add_done_callback(done)
        if working:  # a call that was begun is finished, so that its session's state is known
            await asyncio.wait(working)

    def _answered_at_once(self, socket: WebSocket, frame: str | bytes) -> bool:
        """Answer a call that has nothing to wait for, without a task of its own; any other frame is left alone."""
        id_: Any = None
        binary = isinstance(frame, bytes)
        try:
            body = _read_frame(frame)
            id_, instance, tool = body.get("id"), body.get("session"), body.get("tool")
            if body.get("op") != "call" or type(instance) is not str or type(tool) is not str:
                return False
            with socket.in_flight():
                result = self._sandbox.session(instance, socket.tenant).call_at_once(tool, body.get("arguments", {}))
                if result is None:
                    return False
                told = {"id": id_, "ok": True, "value": result}
                answer = msgpack.packb(told) if binary else write_json(told)
        except OmniaError as error:
            answer = _written({"id": id_, "ok": False, "error": problem_of(error)}, binary)
        socket.send(answer, binary)
        return True

    async def _frame(self, socket: WebSocket, frame: str | bytes) -> None:
        """Answer one frame."""
        id_: Any = None
        binary = isinstance(frame, bytes)
        try:
            with socket.in_flight():
                body = _read_frame(frame)
                id_ = body.get("id")
                answer = _written({"id": id_, "ok": True, "value": await self._operate(socket.tenant, body)}, binary)
        except OmniaError as error:
            answer = _written({"id": id_, "ok": False, "error": problem_of(error)}, binary)
        socket.send(answer, binary)

    async def _operate(self, tenant: str, body: Mapping[str, Any]) -> Any:
        name = operations.text_field(body, "op")
        if name == "open":
            return await operations.open_session(self._sandbox, tenant, body)
        operation = operations.SESSION_OPERATIONS.get(name)
        if operation is None:
            known = ", ".join(("open", *operations.SESSION_OPERATIONS))
            raise Refusal(400, f"there is no op {name[:80]!r}; use one of {known}")
        return await operation(self._sandbox.session(operations.text_field(body, "session"), tenant), body)


def _only(request: Request, *methods: str) -> None:
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise Refusal(405, f"this path takes {allowed}; use that", ((b"allow", allowed.encode()),))


def _read_frame(frame: str | bytes) -> dict[str, Any]:
    """A frame as an object; in JSON a snapshot is base64.

    Raises:
        Refusal: it is no object, or its snapshot no base64.
    """
    try:
        # what unpackb raises besides its own exceptions are ValueErrors
        value = read_json(frame) if isinstance(frame, str) else msgpack.unpackb(frame)
        if isinstance(frame, str) and isinstance(value, dict) and isinstance(value.get("snapshot"), str):
            value["snapshot"] = base64.b64decode(value["snapshot"], validate=True)
    except (ValueError, binascii.Error, msgpack.UnpackException) as error:
        raise Refusal(400, f"the frame cannot be read: {str(error)[:100]}; send JSON or msgpack") from error
    if not isinstance(value, dict):
        raise Refusal(400, "the frame must be an object; send {id, op, session, …}")
    return value


def _written(answer: dict[str, Any], binary: bool) -> bytes:
    if binary:
        packed: bytes = msgpack.packb(answer)
        return packed
    value = answer.get("value")
    if isinstance(value, dict) and isinstance(value.get("snapshot"), bytes):
        answer = {**answer, "value": {**value, "snapshot": base64.b64encode(value["snapshot"]).decode()}}
    return write_json(answer)
