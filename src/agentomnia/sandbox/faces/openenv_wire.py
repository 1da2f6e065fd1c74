"""OpenEnv on the wire: what frames and actions must look like, and how answers are told.

Shapes are those of `openenv` 0.10 (its `core/env_server`: `types.py`, `mcp_types.py`, `serialization.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from agentomnia.environment.program import ToolSchema
from agentomnia.errors import (
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
    OmniaError,
)
from agentomnia.sandbox.api import EnvironmentInfo, Sandbox
from agentomnia.sandbox.faces.refusal import Refusal, owner_of
from agentomnia.sandbox.faces.tasks import TASK_ROUTES, split_task, split_tasks

API_VERSION = "1.0.0"
"""Of the HTTP interface, as `openenv validate` knows it."""
_LONGEST_EPISODE_ID = 255

Place = tuple[str | None, str | None]
"""Where an episode takes place: a task, or an initial state, or neither, which is the first state."""


class Action(NamedTuple):
    """What an agent does in a step."""

    kind: Literal["list_tools", "call_tool", "message"]
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    text: str = ""


class RpcRefusal(Refusal):
    """A JSON-RPC request that cannot be done, with its code."""

    def __init__(self, code: int, message: str) -> None:
        """Say what is wrong, under JSON-RPC's number for it."""
        super().__init__(400, message)
        self.code = code


def wanted_place(sandbox: Sandbox, info: EnvironmentInfo, data: Mapping[str, Any], usual: Place) -> Place:
    """Where a reset wants to be; the usual place where it does not say.

    Raises:
        InputError: no such task, split, index or state, or a value of the wrong type.
    """
    task, state = data.get("task", data.get("task_id")), data.get("state")
    task = task.get("id") if isinstance(task, dict) else task
    index = next((data[n] for n in ("index", "task_index", "task_idx") if data.get(n) is not None), None)
    if task is not None:
        if sandbox.task(str(task)).environment != info.id:
            raise InputError(f"task {str(task)[:80]} is of another environment; use its own address")
        return str(task), None
    if index is not None:
        return split_task(info, data.get("split") or _usual_split(info), index), None
    if state is not None:
        if state not in info.states:
            raise InputError(f"{info.id} has no state {str(state)[:80]!r}; it has {', '.join(info.states)}")
        return None, str(state)
    return _seeded(info, data["seed"], data.get("split")) if data.get("seed") is not None else usual


def _seeded(info: EnvironmentInfo, seed: Any, split: Any) -> Place:
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed must be a whole number from 0, not {str(seed)[:20]}; send one or leave it out")
    if info.splits:
        ids = split_tasks(info, split or _usual_split(info))
        return (ids[seed % len(ids)], None) if ids else (None, None)
    return None, info.states[seed % len(info.states)] if info.states else None


def _usual_split(info: EnvironmentInfo) -> str | None:
    return "train" if "train" in info.splits else next(iter(info.splits), None)


def read_episode_id(data: Mapping[str, Any]) -> str | None:
    """A caller's own name for an episode.

    Raises:
        InputError: it is too long, or no text.
    """
    value = data.get("episode_id")
    if value is not None and (not isinstance(value, str) or len(value) > _LONGEST_EPISODE_ID):
        raise InputError(f"episode_id must be a text of at most {_LONGEST_EPISODE_ID} characters; shorten it")
    return value


def read_message(message: Any) -> tuple[Any, Any]:
    """A frame's type and data.

    Raises:
        InputError: it is no message of the protocol.
    """
    if not isinstance(message, dict) or not message.keys() <= {"type", "data"}:
        raise InputError("a message has type and data, nothing else; see the OpenEnv protocol")
    kind, data = message.get("type", ""), message.get("data", {})
    if kind in ("reset", "step", "mcp") and not isinstance(data, dict):
        raise InputError(f"the data of {kind} must be an object; send {{}} where there is none")
    return kind, data


_ACTION_FIELDS = {
    "list_tools": {"type", "metadata"},
    "call_tool": {"type", "metadata", "tool_name", "arguments"},
    "message": {"type", "metadata", "content", "message"},
}


def read_action(data: Any) -> Action:
    """A step's action.

    Raises:
        InputError: it is none; the client's fault, not the agent's.
    """
    if not isinstance(data, dict):
        raise InputError("an action must be an object with a type; list_tools is one")
    kind = data.get("type") or ("call_tool" if "tool_name" in data else "message")
    fields = _ACTION_FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None or not data.keys() <= fields:
        raise InputError(f"an action is one of {', '.join(_ACTION_FIELDS)} with its own fields; GET schema has them")
    if kind == "list_tools":
        return Action("list_tools")
    if kind == "message":
        text = data.get("content", data.get("message"))
        if not isinstance(text, str):
            raise InputError("the action message needs a text as content; the empty one will do")
        return Action("message", text=text)
    tool, arguments = data.get("tool_name"), data.get("arguments", {})
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        raise InputError("the action call_tool needs tool_name, a text, and arguments, an object; correct them")
    return Action("call_tool", tool, arguments)


def observation(
    told: dict[str, Any], reward: float | None = None, done: bool = False, metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An observation on the wire; metadata is told inside and beside it, as the package does."""
    told["metadata"] = metadata or {}
    wire = {"observation": told, "reward": reward, "done": done}
    return {**wire, "metadata": metadata} if metadata else wire


def called(
    tool: str,
    result: Any,
    error: Any,
    reward: float | None = None,
    done: bool = False,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The observation of a tool call."""
    return observation({"tool_name": tool, "result": result, "error": error}, reward, done, metadata)


def tool_row(schema: ToolSchema, parameters: str) -> dict[str, Any]:
    """A tool in a list; the protocol's two halves spell the schema's name differently."""
    return {"name": schema.name, "description": schema.description, parameters: schema.parameters}


def code_of(told: Any) -> str | None:
    """The code of an error frame; `None` for other frames."""
    return told["data"].get("code") if told.get("type") == "error" else None


def error_frame(error: OmniaError, code: str | None = None) -> dict[str, Any]:
    """An error as a frame: the package's codes, and whose fault it is."""
    if code is None:
        match error:
            case CapacityError():
                code = "CAPACITY_REACHED"
            case EnvironmentFault():
                code = "EXECUTION_ERROR"
            case InfrastructureError() | InstanceError():
                code = "SESSION_ERROR"
            case _:
                code = "VALIDATION_ERROR"
    data = {"message": str(error), "code": code, "owner": owner_of(error), "kind": type(error).__name__}
    return {"type": "error", "data": data}


def rpc_error(id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    """A JSON-RPC error."""
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, "data": data}}


def rpc_failure(id: Any, error: OmniaError) -> dict[str, Any]:
    """An error as JSON-RPC tells it, with whose fault it is."""
    match error:
        case RpcRefusal():
            code = error.code
        case InputError():
            code = -32602
        case EnvironmentFault():
            code = -32603
        case _:
            code = -32000
    return rpc_error(id, code, str(error), {"owner": owner_of(error), "kind": type(error).__name__})


def _fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}
SCHEMAS: dict[str, Any] = {
    "action": {
        "title": "Action",
        "anyOf": [
            {**_fields(type={"const": "list_tools"}), "required": ["type"]},
            {
                **_fields(type={"const": "call_tool"}, tool_name=_TEXT, arguments=_OBJECT),
                "required": ["type", "tool_name"],
            },
            {**_fields(type={"const": "message"}, content=_TEXT), "required": ["type", "content"]},
        ],
    },
    "observation": {
        "title": "Observation",
        **_fields(
            tool_name=_TEXT,
            result={},
            error={"anyOf": [_fields(error_type=_TEXT, message=_TEXT), {"type": "null"}]},
            tools={"type": "array", "items": _fields(name=_TEXT, description=_TEXT, input_schema=_OBJECT)},
            metadata=_OBJECT,
        ),
    },
    "reset_observation": {
        "title": "ResetObservation",
        **_fields(
            prompt=_TEXT,
            query={"type": ["string", "null"]},
            task_id={"type": ["string", "null"]},
            num_tools={"type": "integer"},
            metadata=_OBJECT,
        ),
    },
    "state": {
        "title": "State",
        **_fields(
            episode_id={"type": ["string", "null"]},
            step_count={"type": "integer", "minimum": 0},
            session_id=_TEXT,
            task_id={"type": ["string", "null"]},
            done={"type": "boolean"},
            digest=_TEXT,
        ),
    },
}
"""What `/schema` answers."""


def openapi(info: EnvironmentInfo) -> dict[str, Any]:
    """The HTTP addresses of an environment, as far as `openenv validate` and people look."""
    got = ("health", "metadata", "schema", "state", "list_environments", "{env_name}/splits")
    posted = ("reset", "step", "mcp", *(f"{{env_name}}/{route}" for route in sorted(TASK_ROUTES)))
    answers = {"responses": {"200": {"description": "done"}}}
    paths = {f"/{path}": {"get": answers} for path in got} | {f"/{path}": {"post": answers} for path in posted}
    return {
        "openapi": "3.1.0",
        "info": {"title": info.name, "version": API_VERSION, "description": info.introduction},
        "paths": paths,
    }
