"""What the REST face and its WebSocket can be asked, by name, apart from how it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import Result
from agentomnia.errors import InputError
from agentomnia.sandbox.api import Call, EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces.refusal import Refusal

Body = Mapping[str, Any]
MOST_CALLS = 256
"""Calls in one batch."""
PAGE = 1000
"""Tasks in one answer, unless the caller wants fewer."""


def text_field(body: Body, name: str) -> str:
    """A text that must be there.

    Raises:
        Refusal: it is not, or is no text.
    """
    value = body.get(name)
    if not isinstance(value, str):
        raise Refusal(400, f"{name!r} must be a text; add it to the body")
    return value


def optional_text(body: Body, name: str) -> str | None:
    """A text that may be left out.

    Raises:
        Refusal: it is there and no text.
    """
    return None if body.get(name) is None else text_field(body, name)


def _one_call(body: Any) -> Call:
    if not isinstance(body, Mapping):
        raise Refusal(400, "each call must be an object with 'tool' and 'arguments'; correct the body")
    arguments = body.get("arguments", {})
    # arguments that are no object are the agent's mistake, and the instance says so
    return text_field(body, "tool"), arguments


async def call_tool(session: Session, tool: str, arguments: Mapping[str, Any]) -> Result:
    """One call: at once where nothing has to be waited for, else in a task."""
    result = session.call_at_once(tool, arguments)
    if result is None:
        await own_task()
        result = await session.call(tool, arguments)
    return result


async def call(session: Session, body: Body) -> Any:
    """One call; the result is the agent's, whatever it says."""
    return await call_tool(session, *_one_call(body))


async def batch(session: Session, body: Body) -> Any:
    """Several calls in order."""
    calls = body.get("calls")
    if not isinstance(calls, list) or len(calls) > MOST_CALLS:
        raise Refusal(400, f"'calls' must be a list of at most {MOST_CALLS}; send more in another batch")
    return {"results": await session.batch([_one_call(c) for c in calls])}


async def reset(session: Session, body: Body) -> Any:
    """Back to the initial state."""
    await session.reset()
    return {"digest": await session.digest()}


async def digest(session: Session, body: Body) -> Any:
    """The digest of the state."""
    return {"digest": await session.digest()}


async def score(session: Session, body: Body) -> Any:
    """The grade of the state and of what the agent said last."""
    grade = await session.score(optional_text(body, "message") or "")
    return {"reward": grade.reward, "failures": list(grade.failures)}


async def snapshot(session: Session, body: Body) -> Any:
    """The state as bytes."""
    return {"snapshot": await session.snapshot()}


async def restore(session: Session, body: Body) -> Any:
    """To the state of a snapshot."""
    given = body.get("snapshot")
    if not isinstance(given, bytes):
        raise Refusal(400, "'snapshot' must be the bytes that a snapshot gave; send them as they were")
    await session.restore(given)
    return {"digest": await session.digest()}


async def fork(session: Session, body: Body) -> Any:
    """A second session at the same state."""
    return await described(await session.fork())


async def describe(session: Session, body: Body) -> Any:
    """What a session is."""
    return await described(session)


async def close(session: Session, body: Body) -> Any:
    """The end of a session."""
    await session.close()
    return {}


SESSION_OPERATIONS: Mapping[str, Callable[[Session, Body], Awaitable[Any]]] = {
    f.__name__: f for f in (call, batch, reset, digest, score, snapshot, restore, fork, describe, close)
}


async def described(session: Session) -> dict[str, Any]:
    """What a trainer needs to begin: tools in OpenAI form, the system prompt, and the task's query."""
    task = session.task
    return {
        "session": session.id,
        "environment": session.environment.id,
        "task": None if task is None else task.id,
        "tools": [tool.to_openai() for tool in session.tools.values()],
        "prompt": session.prompt,
        "query": None if task is None else task.query,
        "digest": await session.digest(),
    }


async def open_session(sandbox: Sandbox, tenant: str, body: Body) -> dict[str, Any]:
    """Open a session; a task says its environment itself.

    Raises:
        InputError: no such environment, task or state.
        CapacityError: no room now.
    """
    task, state = optional_text(body, "task"), optional_text(body, "state")
    environment = optional_text(body, "environment")
    if environment is None:
        if task is None:
            raise Refusal(400, "'environment' or 'task' must be given; GET /v1/environments lists them")
        environment = sandbox.task(task).environment
    return await described(await sandbox.open(environment, task=task, state=state, tenant=tenant))


def environments(sandbox: Sandbox) -> dict[str, Any]:
    """Every environment in short."""
    return {"environments": [_short(info) for info in sandbox.environments.values()]}


def _short(info: EnvironmentInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "introduction": info.introduction,
        "trusted": info.trusted,
        "tool_count": len(info.tools),
        "states": list(info.states),
        "tasks": {split: len(ids) for split, ids in info.splits.items()},
    }


def environment(sandbox: Sandbox, id_: str) -> dict[str, Any]:
    """One environment with its policies and tools.

    Raises:
        Refusal: there is none of that id.
    """
    info = sandbox.environments.get(id_)
    if info is None:
        raise Refusal(404, f"there is no environment {id_[:80]!r}; GET /v1/environments lists them")
    return {**_short(info), "policies": list(info.policies), "tools": [_openai(t) for t in info.tools.values()]}


def _openai(tool: ToolSchema) -> dict[str, Any]:
    return tool.to_openai()


def tasks(sandbox: Sandbox, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Public rows of tasks, by environment and split, a page at a time.

    Raises:
        Refusal: an unknown environment, or a number that is none.
    """
    one, split = wanted.get("environment"), wanted.get("split")
    if one is not None and one not in sandbox.environments:
        raise Refusal(404, f"there is no environment {one[:80]!r}; GET /v1/environments lists them")
    infos = sandbox.environments.values() if one is None else (sandbox.environments[one],)
    ids = [id_ for i in infos for name, ids in i.splits.items() if split in (None, name) for id_ in ids]
    start, count = _number(wanted, "offset", 0), min(_number(wanted, "limit", PAGE), PAGE)
    page = ids[start : start + count]
    return {"tasks": [sandbox.task(id_).to_json() for id_ in page], "total": len(ids)}


def _number(wanted: Mapping[str, str], name: str, default: int) -> int:
    given = wanted.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise Refusal(400, f"{name!r} must be a whole number; correct the query")
    return int(given)


def task(sandbox: Sandbox, id_: str) -> dict[str, Any]:
    """The public row of one task.

    Raises:
        Refusal: there is none of that id.
    """
    try:
        return sandbox.task(id_).to_json()
    except InputError as error:
        raise Refusal(404, str(error)) from error
