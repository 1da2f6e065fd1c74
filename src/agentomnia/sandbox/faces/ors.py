"""The Open Reward Standard (ORS), as `openreward` 0.1 has it: many environments, and the reward on tool results.

    POST /create_session                                     a session id, as an event stream
    POST /create {env_name?, task_spec | split + index}      open it; the id is in the header `X-Session-ID`
    GET  [/{env}]/prompt, /messages, /task_tools             what the agent is told
    POST [/{env}]/call {name, input, task_id?}               an event stream that ends in the tool's answer
    POST /ping, /delete, /delete_session
    GET  /list_environments, [/{env}]/tools, /splits;  POST [/{env}]/tasks, /num_tasks, /task, /task_range

Everything is served at the root, where the client looks for it, and below `/ors`. Without `{env}` the session's
environment is meant, else the one that `X-Deployment` names (which is how `environments.get(NAME)` reaches a server),
else the first.

How an episode ends: no tool of an environment of ours gives a reward, the grade of state and last message does. So this
face adds one tool, `submit_answer(message)`. It is told as the environment's terminal tool, which harnesses call with
an assistant's plain message, and it is listed too, since clients that know no terminal tools (TRL's adapter is one)
could not reach a reward otherwise. `reward` is null on every other answer.

A call is the agent's fault (`ok` false: `not_found`, `input_validation`, `episode_finished`), or it was answered (`ok`
true, also where the environment refused it: the text says so), or it failed (an `error` event: environment or
infrastructure, the session is over for the client), or it never ran (HTTP 429, 503). The stream names its run first:
a client whose connection broke comes back with that `task_id` and gets the answer of the one run.

Nulls for optional parameters are dropped: clients that bind tools as functions send one for every default.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import Result
from agentomnia.errors import InstanceError, OmniaError
from agentomnia.sandbox.api import EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.coroutines import begun, own_task
from agentomnia.sandbox.faces.operations import call_tool
from agentomnia.sandbox.faces.refusal import Refusal, owner_of
from agentomnia.sandbox.faces.tasks import (
    TASK_ROUTES,
    final_grade,
    find_environment,
    split_rows,
    split_task,
    task_answer,
)
from agentomnia.sandbox.faces.text import json_text, write_json
from agentomnia.sandbox.request import Request

SUBMIT_TOOL = "submit_answer"
_ROOT_ROUTES = frozenset(
    ("create_session", "delete_session", "create", "delete", "ping", "version", "list_environments")
)
_ROUTES = frozenset(
    ("tools", "splits", "tasks", "num_tasks", "task", "task_range", "prompt", "messages", "task_tools", "call")
)
_ALONE = _ROOT_ROUTES | _ROUTES
_CHUNK = 4096
"""Characters of one event's data: clients read a stream by lines of bounded length."""
_PING_SECONDS = 10.0
_RUNS_KEPT = 4
"""Answers of a rollout that can be fetched again."""
_SWEEP_EVERY = 256
_LONGEST_ID = 200


def submit_name(tools: Mapping[str, ToolSchema]) -> str:
    """The name of the tool that ends an episode; the environment's own tools go first."""
    return SUBMIT_TOOL if SUBMIT_TOOL not in tools else "submit_final_answer"


def _listing(tools: Mapping[str, ToolSchema]) -> dict[str, Any]:
    """Tools as ORS lists them, with the one that ends the episode."""
    name = submit_name(tools)
    told = "End the task: hand over your last message to the user. Call it once, when all is done; nothing follows."
    parameters = {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "Your last message, with all that was asked for."}},
        "required": ["message"],
        "additionalProperties": False,
    }
    rows = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in tools.values()]
    return {
        "tools": [*rows, {"name": name, "description": told, "input_schema": parameters}],
        "terminal_tool": {"name": name, "arg": "message", "description": told},
        "supports_score_group": False,
        "message_block_types": ["text"],
    }


def _block(text: str) -> dict[str, Any]:
    return {"text": text, "detail": None, "type": "text"}


def _answered(text: str, metadata: dict[str, Any], reward: float | None = None, finished: bool = False) -> Any:
    output = {"blocks": [_block(text)], "metadata": metadata, "reward": reward, "finished": finished}
    return {"ok": True, "output": output}


def _refused(reason: str, told: str) -> Any:
    return {"ok": False, "error": told, "reason": reason}


def _without_nulls(schema: ToolSchema, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments without the nulls that stand for "not given". Heuristic: looks at the top level only."""
    if None not in arguments.values():
        return arguments
    properties, required = schema.parameters.get("properties", {}), schema.parameters.get("required", ())
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or name in required or name not in properties or _takes_null(properties[name])
    }


def _takes_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "null")
    named = kind == "null" or (isinstance(kind, list) and "null" in kind)
    return any(map(_takes_null, schema["anyOf"])) if "anyOf" in schema else named


@dataclass(slots=True)
class _Rollout:
    """What this face knows of one of its sessions."""

    session: str
    used: float
    finished: bool = False
    runs: dict[str, asyncio.Future[tuple[str, str]]] = field(default_factory=dict)
    """The last calls by `task_id`, running or done: the event that ends each, and its data."""

    def keep(self, run: asyncio.Future[tuple[str, str]]) -> str:
        """Remember a call under a new id."""
        name = secrets.token_hex(16)
        self.runs[name] = run
        done = [old for old, other in self.runs.items() if other.done()]
        for old in done[: max(0, len(self.runs) - _RUNS_KEPT)]:
            del self.runs[old]
        return name


class Ors:
    """ORS over a sandbox."""

    def __init__(self, sandbox: Sandbox, *, idle_seconds: float = 900.0) -> None:
        """Serve a sandbox.

        Args:
            sandbox: what is served.
            idle_seconds: unused time after which a session is closed here; clients ping every ten seconds.
        """
        self.sandbox, self.idle_seconds = sandbox, idle_seconds
        self._rollouts: dict[tuple[str, str], _Rollout] = {}
        self._created = 0

    def takes(self, path: tuple[str, ...]) -> bool:
        """Whether a path at the root is this face's."""
        if path[0] == "ors" or (len(path) == 1 and path[0] in _ALONE):
            return True
        return len(path) == 2 and path[1] in _ROUTES and find_environment(self.sandbox, path[0]) is not None

    async def http(self, request: Request) -> None:
        """Answer a request; errors that escape are told as problem+json, whose `detail` the client reads."""
        path = request.path[1:] if request.path[0] == "ors" else request.path
        if not 1 <= len(path) <= 2:
            raise Refusal(404, "no such address; list_environments is one")
        named, route = (path[0], path[1]) if len(path) == 2 else (None, path[0])
        if request.method == "GET":
            await self._get(request, named, route)
        elif request.method == "POST":
            await self._post(request, named, route)
        else:
            raise Refusal(405, f"{request.method} is not used here; GET or POST", ((b"allow", b"GET, POST"),))

    async def _get(self, request: Request, named: str | None, route: str) -> None:
        match route:
            case "list_environments":
                request.json(200, list(self.sandbox.environments))
            case "health":
                request.json(200, {"status": "ok"})
            case "version":
                request.json(200, {"version": _version(), "build_sha": None})
            case "tools":
                request.json(200, _listing(self._environment(request, named).tools))
            case "splits":
                request.json(200, split_rows(self._environment(request, named)))
            case "task_tools" | "prompt" | "messages":
                request.json(200, _told(route, self._live(request)[1]))
            case _:
                raise Refusal(404, f"no such address {route[:80]!r}; list_environments is one")

    async def _post(self, request: Request, named: str | None, route: str) -> None:
        match route:
            case "create_session":
                request.events(((secrets.token_urlsafe(24), "task_id"), ("", "end")))
            case "create":
                await own_task()
                await self._create(request)
            case "ping":
                self._live(request)
                request.json(200, {"status": "ok"})
            case "delete" | "delete_session":
                await own_task()
                await self._delete(request)
            case "call":
                await self._call(request)
            case _ if route in TASK_ROUTES:
                info = self._environment(request, named)
                request.json(200, task_answer(self.sandbox, info, route, request.read_object()))
            case _:
                raise Refusal(404, f"no such address {route[:80]!r}; score_group is not offered")

    def _environment(self, request: Request, named: str | None) -> EnvironmentInfo:
        if named is not None:
            found = find_environment(self.sandbox, named)
        else:
            deployed = (request.header(b"x-deployment") or "").rsplit("/", 1)[-1]
            found = find_environment(self.sandbox, deployed) or next(iter(self.sandbox.environments.values()), None)
        if found is None:
            raise Refusal(404, f"unknown environment {(named or '')[:80]!r}; list_environments has the names")
        return found

    def _key(self, request: Request) -> tuple[str, str]:
        name = (request.header(b"x-session-id") or "").strip()
        if not name or len(name) > _LONGEST_ID:
            raise Refusal(400, "the header X-Session-ID is required; POST /create_session gives one")
        return request.tenant, name

    def _live(self, request: Request) -> tuple[_Rollout, Session]:
        """The session that a request names; renews its lease.

        Raises:
            InstanceError: it was never opened (404).
            Refusal: it is gone (410), which the client takes as the end of the session.
        """
        key = self._key(request)
        rollout = self._rollouts.get(key)
        if rollout is None:
            raise InstanceError("no environment is open in this session; POST /create opens one")
        rollout.used = time.monotonic()
        try:
            return rollout, self.sandbox.session(rollout.session, key[0])
        except InstanceError as error:
            del self._rollouts[key]
            raise Refusal(410, f"the session has ended: {error}") from error

    async def _create(self, request: Request) -> None:
        key, body = self._key(request), request.read_object()
        if key in self._rollouts:
            raise Refusal(400, "the session is open already; delete it, or take a new id from /create_session")
        if body.get("toolset_name") is not None:
            raise Refusal(400, "there are no tool sets here; leave toolset_name out")
        info, task = self._chosen(request, body)
        await self._sweep()
        session = await self.sandbox.open(info.id, task=task, tenant=request.tenant)
        if key in self._rollouts:  # a second request with the same id was quicker
            await session.close()
            raise Refusal(400, "the session is open already; take a new id from /create_session")
        self._rollouts[key] = _Rollout(session.id, time.monotonic())
        request.json(200, {"sid": key[1]})

    def _chosen(self, request: Request, body: Mapping[str, Any]) -> tuple[EnvironmentInfo, str]:
        """The environment and the task that a client wants; a task's specification names both."""
        spec, split, index = body.get("task_spec"), body.get("split"), body.get("index")
        if (spec is None) == (split is None or index is None):
            raise Refusal(422, "give either task_spec, or both split and index")
        if spec is None:
            info = self._environment(request, body.get("env_name"))
            return info, split_task(info, split, index)
        if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
            raise Refusal(422, "task_spec must be an object with the task's id; POST /task gives one")
        task = self.sandbox.task(spec["id"])
        return self.sandbox.environments[task.environment], task.id

    async def _delete(self, request: Request) -> None:
        key = self._key(request)
        rollout = self._rollouts.pop(key, None)
        if rollout is not None:
            await self._end(rollout, key[0])
        request.json(200, {"sid": key[1]})

    async def _end(self, rollout: _Rollout, tenant: str) -> None:
        try:
            session = self.sandbox.session(rollout.session, tenant)
        except InstanceError:
            return
        await session.close()

    async def _sweep(self) -> None:
        """Close what nobody has pinged; looks only now and then."""
        self._created += 1
        if self._created % _SWEEP_EVERY:
            return
        latest = time.monotonic() - self.idle_seconds
        for key in [key for key, rollout in self._rollouts.items() if rollout.used < latest]:
            await self._end(self._rollouts.pop(key), key[0])

    async def _call(self, request: Request) -> None:
        rollout, session = self._live(request)
        body = request.read_object()
        name, arguments, task_id = body.get("name"), body.get("input"), body.get("task_id")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise Refusal(422, "a call is {name, input}: the name of a tool, and an object of arguments")
        if task_id is None:
            task_id = rollout.keep(begun(_run(rollout, session, name, arguments)))
        run = rollout.runs.get(task_id) if isinstance(task_id, str) else None
        if run is None:
            request.events((("unknown task_id", "error"),))
        elif run.done():
            request.events(((task_id, "task_id"), *_ending(run)))
        else:
            await own_task()
            await _stream(request, task_id, run)


async def _stream(request: Request, task_id: str, run: asyncio.Future[tuple[str, str]]) -> None:
    """Tell a run's id, wait for it, and tell what came of it; the run goes on where the connection breaks."""
    request.start_events()
    await request.event(task_id, "task_id")
    while not run.done():
        await asyncio.wait((run,), timeout=_PING_SECONDS)
        if not run.done():
            await request.event("", "ping")
    for data, name in _ending(run):
        await request.event(data, name)
    request.end_events()


def _ending(run: asyncio.Future[tuple[str, str]]) -> list[tuple[str, str]]:
    """The events that tell what came of a run."""
    ending, text = run.result()
    *pieces, last = _chunks(text)
    return [*((piece, "chunk") for piece in pieces), (last, ending)]


async def _run(rollout: _Rollout, session: Session, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """One call: the event that ends its stream, and the data."""
    try:
        return "end", write_json(await _answer(rollout, session, name, arguments)).decode("ascii")
    except OmniaError as error:
        return "error", f"{owner_of(error)}: {error}"


async def _answer(rollout: _Rollout, session: Session, name: str, arguments: dict[str, Any]) -> Any:
    if rollout.finished:
        return _refused("episode_finished", f"{name[:80]!r} was not run: the episode has finished")
    schema = session.tools.get(name)
    if schema is None:
        return await _submitted(rollout, session, name, arguments)
    result = await call_tool(session, name, _without_nulls(schema, arguments))
    if not result["ok"] and result["error"]["code"] == "invalid_argument":
        return _refused("input_validation", _told_error(result))
    return _answered(json_text(result), {"ok": result["ok"]})


async def _submitted(rollout: _Rollout, session: Session, name: str, arguments: dict[str, Any]) -> Any:
    if name != submit_name(session.tools):
        return _refused("not_found", f"{name[:80]!r} is not a valid tool; task_tools lists them")
    message = arguments.get("message")
    if not isinstance(message, str) or len(arguments) != 1:
        return _refused("input_validation", f"{name} takes one text, message")
    rollout.finished = True
    await own_task()
    try:
        reward, metadata = await final_grade(session, message)
    except OmniaError:
        rollout.finished = False
        raise
    return _answered("The task has ended.", metadata, reward, finished=True)


def _told_error(result: Result) -> str:
    error = result["error"]
    return f"{error['message']} {error['hint']}".strip()


def _told(route: str, session: Session) -> Any:
    if route == "task_tools":
        return _listing(session.tools)
    query = session.task.query if session.task is not None else ""
    if route == "prompt":
        return [_block(text) for text in (session.prompt, query) if text]
    roles = (("system", session.prompt), ("user", query))
    return [{"role": role, "blocks": [_block(text)], "detail": None} for role, text in roles if text]


def _chunks(text: str) -> list[str]:
    """A JSON text in pieces; none begins with a space, since clients strip those from an event's data."""
    pieces = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)] or [""]
    return [rf"\u0020{piece[1:]}" if piece.startswith(" ") else piece for piece in pieces]


def _version() -> str:
    from importlib.metadata import version

    return version("agentomnia")
