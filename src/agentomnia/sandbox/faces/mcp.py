"""MCP by hand, both eras on one endpoint: revision 2026-07-28, and the handshake revisions 2024-11-05 to 2025-11-25.

The instance is in the URL, `/i/{instance}/mcp`, so that no call depends on a connection: the modern revision has no
sessions, and clients of the older ones get none either (no `Mcp-Session-Id`, GET and DELETE answer 405). Under
`/envs/{environment}/mcp` the tools of an environment can be listed, not called.

Who is told what (section "Error handling" of the specification's page on tools):

    a refused call, arguments that do not fit      a result with `isError`, for the model to read
    an unknown tool, a malformed request           JSON-RPC -32602
    the environment faults                         JSON-RPC -32603, `data.owner` "environment"
    no such instance, no room, a worker is gone    JSON-RPC -32010, -32011, -32012

Modern clients get such errors with the HTTP status that goes with them; to handshake clients, which drop the whole
connection at an HTTP error, they go with 200 wherever the request could be read (but 404 for an instance that is gone).

Sources: modelcontextprotocol.io/specification/2026-07-28 (basic/transports/streamable-http, basic/versioning,
server/discover, server/tools) and the earlier revisions' pages on transports.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as json_string
from typing import Any

from agentomnia import __version__
from agentomnia.environment.program import ToolSchema
from agentomnia.environment.result import Result
from agentomnia.errors import CapacityError, InfrastructureError, InputError, InstanceError, OmniaError
from agentomnia.sandbox.api import EnvironmentInfo, Sandbox, Session
from agentomnia.sandbox.coroutines import own_task
from agentomnia.sandbox.faces.refusal import Refusal, headers_of, owner_of, status_of
from agentomnia.sandbox.faces.text import JSON_TYPE, json_text, read_json, write_json
from agentomnia.sandbox.request import Request

MODERN = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions that begin with `initialize`, newest first."""
_BATCHED = frozenset(("2025-03-26", "2024-11-05"))
"""Revisions in which several messages may come as one array."""
_STRUCTURED = frozenset(("2025-11-25", "2025-06-18"))
"""Handshake revisions that know `structuredContent`; before them it is left out."""
LONGEST_BATCH = 64
LIST_TTL_MS = 300_000
"""How long a list of tools may be kept: it never changes while the instance lives."""

PARSE_ERROR, INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS, _INTERNAL = -32700, -32600, -32601, -32602, -32603
_HEADER_MISMATCH, _UNSUPPORTED_VERSION = -32020, -32022
_NO_INSTANCE, _NO_ROOM, _INFRASTRUCTURE = -32010, -32011, -32012  # of the range left to implementations

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_INFO = {"name": "agentomnia", "title": "AgentOmnia", "version": __version__}
_META = {"io.modelcontextprotocol/serverInfo": _SERVER_INFO}
_MODERN_TAIL = ',"resultType":"complete","_meta":' + write_json(_META).decode() + "}"
_SENTINEL, _SENTINEL_END = "=?base64?", "?="

Target = Session | EnvironmentInfo
"""What is served: a live session, or an environment to look at."""


class RpcError(Exception):
    """A JSON-RPC error; never leaves this module and `stdio`."""

    def __init__(self, code: int, message: str, data: Any = None, status: int = 400) -> None:
        """Name the error; `status` is the HTTP status that goes with it in the modern revision."""
        super().__init__(message)
        self.code, self.message, self.data, self.status = code, message, data, status


def rpc_error(error: OmniaError) -> RpcError:
    """Anything of the exception tree as a JSON-RPC error with its owner."""
    match error:
        case InstanceError():
            code = _NO_INSTANCE
        case InputError():
            code = INVALID_REQUEST
        case CapacityError():
            code = _NO_ROOM
        case InfrastructureError():
            code = _INFRASTRUCTURE
        case _:
            code = _INTERNAL
    data = {"owner": owner_of(error), "kind": type(error).__name__}
    return RpcError(code, str(error), data, status_of(error))


def error_text(error: RpcError, id_: Any) -> str:
    """The message that tells an error."""
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        told["data"] = error.data
    return write_json({"jsonrpc": "2.0", "id": id_, "error": told}).decode()


def valid_id(message: Mapping[str, Any]) -> str | int:
    """The id of a request.

    Raises:
        RpcError: it is neither text nor an integer, or the message is of another version of JSON-RPC.
    """
    id_ = message["id"]
    if message.get("jsonrpc") != "2.0" or not (type(id_) is str or type(id_) is int):
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0", and the id a string or an integer')
    return id_


def has_envelope(message: Mapping[str, Any]) -> bool:
    """Whether a request says its protocol version in `_meta`, which only modern clients do."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and _VERSION_KEY in meta


def check_envelope(message: Mapping[str, Any], header: Callable[[bytes], str | None] | None) -> None:
    """Check what each modern request must carry.

    Args:
        message: a JSON-RPC request.
        header: gives the headers, which must agree with it; `None` where the transport has no headers.

    Raises:
        RpcError: the first thing that is wrong.
    """
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict):
        params, meta = {}, {}
    if _VERSION_KEY not in meta or _CAPABILITIES_KEY not in meta:
        missing = ", ".join(key for key in (_VERSION_KEY, _CAPABILITIES_KEY) if key not in meta)
        raise RpcError(_INVALID_PARAMS, f"params._meta lacks {missing}; each request must carry them")
    version = meta[_VERSION_KEY]
    if header is not None:
        # one given twice comes joined, and equals nothing: two readers might disagree about it
        _check_header(header(b"mcp-protocol-version"), version, "MCP-Protocol-Version")
        _check_header(header(b"mcp-method"), message.get("method"), "Mcp-Method")
        if message.get("method") == "tools/call" and params.get("name") is not None:
            _check_header(_decoded(header(b"mcp-name")), params.get("name"), "Mcp-Name")
    if version != MODERN:
        data = {"supported": [MODERN], "requested": version}
        raise RpcError(_UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _check_header(header: str | None, value: Any, name: str) -> None:
    if header is None or header != value:
        raise RpcError(_HEADER_MISMATCH, f"the header {name} must be there and equal what the body says")


def _decoded(header: str | None) -> str | None:
    """A header's value; what is no plain ASCII comes as `=?base64?…?=`."""
    if header is None or not (header.startswith(_SENTINEL) and header.endswith(_SENTINEL_END)):
        return header
    try:
        return base64.b64decode(header[len(_SENTINEL) : -len(_SENTINEL_END)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


async def answer(target: Target, message: Mapping[str, Any], version: str) -> str:
    """Answer one request; see `answer_at_once`."""
    told = answer_at_once(target, message, version)
    if told is None:  # a call at a session, its parameters checked
        assert not isinstance(target, EnvironmentInfo)
        params = message["params"]
        await own_task()
        told = _result(await target.call(params["name"], params.get("arguments") or {}), version)
    return told


def answer_at_once(target: Target, message: Mapping[str, Any], version: str) -> str | None:
    """Answer one request.

    Args:
        target: what is served.
        message: a JSON-RPC request, its envelope checked.
        version: the protocol revision that is spoken.

    Returns:
        The result, as JSON; `None` for a call that has to wait.

    Raises:
        RpcError: the request fails as the specification says.
        OmniaError: the instance fails.
    """
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise RpcError(_INVALID_PARAMS, "params must be an object")
    params = params or {}
    match message.get("method"):
        case "tools/call":
            return _call(target, params, version)
        case "tools/list":
            return _tools(target, params, version)
        case "server/discover" if version == MODERN:
            return _complete({"supportedVersions": [MODERN], **_abilities(target), **_cacheable()})
        case "initialize" if version != MODERN:
            return _json(
                {"protocolVersion": negotiated(params), **_abilities(target), "serverInfo": _SERVER_INFO},
            )
        case "ping" if version != MODERN:
            return "{}"
    raise RpcError(_NO_METHOD, f"Method not found: {str(message.get('method'))[:80]}", status=404)


def negotiated(params: Mapping[str, Any]) -> str:
    """The revision that an `initialize` is answered with: what was asked for, else the newest."""
    asked = params.get("protocolVersion")
    return asked if asked in HANDSHAKE else HANDSHAKE[0]


def _json(value: Any) -> str:
    return write_json(value).decode()


def _complete(result: dict[str, Any]) -> str:
    """A result of the modern revision."""
    return _json(result)[:-1] + _MODERN_TAIL


def _cacheable() -> dict[str, Any]:
    return {"ttlMs": LIST_TTL_MS, "cacheScope": "private"}


def _abilities(target: Target) -> dict[str, Any]:
    """What the server can do, and what a model should know before it begins."""
    if isinstance(target, EnvironmentInfo):
        instructions = "\n".join((target.introduction, *target.policies))
    else:
        instructions = target.prompt
    return {"capabilities": {"tools": {}}, "instructions": instructions}


def _tools(target: Target, params: Mapping[str, Any], version: str) -> str:
    if params.get("cursor") is not None:
        raise RpcError(_INVALID_PARAMS, "there is one page only; leave the cursor out")
    tools = {"tools": [_tool(schema) for schema in target.tools.values()]}
    return _complete({**tools, **_cacheable()}) if version == MODERN else _json(tools)


def _tool(schema: ToolSchema) -> dict[str, Any]:
    return {
        "name": schema.name,
        "description": schema.description,
        "inputSchema": {"type": "object", **schema.parameters},
        "annotations": {"readOnlyHint": schema.kind == "query"},
    }


def _call(target: Target, params: Mapping[str, Any], version: str) -> str | None:
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str) or not (arguments is None or isinstance(arguments, dict)):
        raise RpcError(_INVALID_PARAMS, "tools/call needs a name, and arguments as an object")
    if name not in target.tools:
        raise RpcError(_INVALID_PARAMS, f"Unknown tool: {name[:80]}")
    if isinstance(target, EnvironmentInfo):
        raise RpcError(INVALID_REQUEST, "here tools are listed only; open a session and call them at /i/{session}/mcp")
    result = target.call_at_once(name, arguments or {})
    return None if result is None else _result(result, version)


def _result(result: Result, version: str) -> str:
    """An answer of a tool: as text that a model reads, and as a value."""
    text = json_text(result)
    parts = ['{"content":[{"type":"text","text":', json_string(text), "}]"]
    if version == MODERN or version in _STRUCTURED:
        # the text is the value already, except for letters that the wire needs escaped
        parts += [',"structuredContent":', text if text.isascii() else _json(result)]
    parts += [',"isError":', "false" if result["ok"] else "true", _MODERN_TAIL if version == MODERN else "}"]
    return "".join(parts)


class Mcp:
    """The face over HTTP."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Serve a sandbox's sessions and environments."""
        self._sandbox = sandbox

    async def http(self, request: Request) -> None:
        """Answer one POST."""
        target = self._target(request)
        if request.method != "POST":
            raise Refusal(405, "this endpoint takes POST only; send each message as a POST", ((b"allow", b"POST"),))
        if not (request.header(b"content-type") or "").startswith("application/json"):
            raise Refusal(415, "the body must be JSON; send Content-Type: application/json")
        version = request.header(b"mcp-protocol-version")
        version = version if version is not None else "2025-03-26"
        message = read_json(request.body)
        if isinstance(message, list) and version in _BATCHED:
            await self._batch(request, target, message, version)
        elif not isinstance(message, dict):
            raise Refusal(400, "the body must be one JSON-RPC message; send a single object")
        elif version in HANDSHAKE and not has_envelope(message):
            await self._legacy(request, target, message, version)
        else:
            await self._modern(request, target, message)

    def _target(self, request: Request) -> Target:
        match request.path:
            case ("i", instance, "mcp"):
                return self._sandbox.session(instance, request.tenant)
            case ("envs", environment, "mcp") if environment in self._sandbox.environments:
                return self._sandbox.environments[environment]
        raise Refusal(404, "no such endpoint; use /i/{session}/mcp, or /envs/{environment}/mcp to list tools")

    async def _modern(self, request: Request, target: Target, message: dict[str, Any]) -> None:
        if "id" not in message:
            _accept(request, message)
            return
        id_: str | int | None = None
        try:
            id_ = valid_id(message)
            check_envelope(message, request.header)
            result = await answer(target, message, MODERN)
        except RpcError as error:
            _send(request, error.status, error_text(error, id_))
        except OmniaError as error:
            _send_fault(request, error, id_, status_of(error))
        else:
            _send(request, 200, success_text(id_, result))

    async def _legacy(self, request: Request, target: Target, message: dict[str, Any], version: str) -> None:
        if "id" not in message or "method" not in message:
            _accept(request, message)
            return
        _send(request, 200, await _answer_legacy(request, target, message, version))

    async def _batch(self, request: Request, target: Target, messages: Sequence[Any], version: str) -> None:
        """Several messages at once, answered in order."""
        if not 0 < len(messages) <= LONGEST_BATCH or not all(isinstance(m, dict) for m in messages):
            raise Refusal(400, f"a batch holds 1 to {LONGEST_BATCH} JSON-RPC messages; send fewer at once")
        asked = [m for m in messages if "id" in m and "method" in m]
        answers = [await _answer_legacy(request, target, m, version) for m in asked]
        if answers:
            _send(request, 200, f"[{','.join(answers)}]")
        else:
            request.raw(202)

    def fail(self, request: Request, error: OmniaError) -> None:
        """Tell an error where the request itself could not be read or was not let in."""
        told = rpc_error(error)
        if isinstance(error, Refusal) and error.status == 400:
            told.code = PARSE_ERROR if isinstance(error.__cause__, ValueError | RecursionError) else INVALID_REQUEST
        _send_fault(request, error, None, status_of(error), told)


async def _answer_legacy(request: Request, target: Target, message: Mapping[str, Any], version: str) -> str:
    """One request of the handshake era, with its answer or error as JSON."""
    id_: str | int | None = None
    try:
        id_ = valid_id(message)
        return success_text(id_, await answer(target, message, version))
    except RpcError as error:
        return error_text(error, id_)
    except InstanceError:
        raise
    except OmniaError as error:
        request.error = error
        return error_text(rpc_error(error), id_)


def success_text(id_: str | int | None, result: str) -> str:
    """The message that carries a result, given as JSON."""
    told = str(id_) if type(id_) is int else json_string(str(id_))
    return f'{{"jsonrpc":"2.0","id":{told},"result":{result}}}'


def _send(request: Request, status: int, body: str) -> None:
    request.raw(status, body.encode("ascii"), JSON_TYPE)


def _send_fault(
    request: Request, error: OmniaError, id_: str | int | None, status: int, told: RpcError | None = None
) -> None:
    request.error = error
    body = error_text(told if told is not None else rpc_error(error), id_)
    request.raw(status, body.encode("ascii"), JSON_TYPE, headers_of(error))


def _accept(request: Request, message: Mapping[str, Any]) -> None:
    """A notification, or a response to a request that nobody made: taken and dropped."""
    if message.get("jsonrpc") != "2.0" or not ("method" in message or "result" in message or "error" in message):
        raise Refusal(400, "the body is no JSON-RPC message; send a request with an id and a method")
    request.raw(202)
