"""How each face of the sandbox, and each peer's server, is spoken to: opening a session, the calls, the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
from serving_load import BadAnswer, Framing, Http, Lengths, Line, WebSocket, length_frame, ws_frame

from agentomnia.sandbox.link import NONCE_BYTES, OK, proof

Result = dict[str, Any]
SMALL = "records-100"
"""Name of the initial state that is served."""
MODERN, LEGACY = "2026-07-28", "2025-11-25"

_OK = re.compile(rb'ok\\*": ?true')
_INNER_OK = re.compile(rb'ok\\+": ?true')
"""Of a result inside a text; the message around it has an `ok` of its own."""
_VALUE_OK = re.compile(rb'"value":\{"ok":true')
_PACKED_OK = re.compile(rb"\xa2ok\xc3")


@dataclass(frozen=True)
class Call:
    """One call with the answer it must get, however often it was made before."""

    tool: str
    arguments: Mapping[str, Any]
    expected: Result


@dataclass(frozen=True)
class Shop:
    """What is served: the same environment, state and calls everywhere."""

    environment: str
    task: str
    calls: tuple[Call, ...]


Begin = Callable[[Line, Shop], Awaitable[list[bytes]]]
"""Opens a session over a line; the requests that are its calls, in the order of `Shop.calls`."""


@dataclass(frozen=True)
class Case:
    """One way to be served."""

    name: str
    framing: Callable[[], Framing]
    begin: Begin
    result: Callable[[bytes], Result]
    """The tool's result in an answer's body."""
    mark: re.Pattern[bytes] = _OK
    """What an answer to an accepted call holds."""
    shared: bool = False
    """All callers over one connection."""
    unix: bool = False


def post(path: str, value: Any = None, **headers: str) -> bytes:
    """A POST of JSON on a connection that stays."""
    body = json.dumps(value, separators=(",", ":")).encode() if value is not None else b""
    named = {"host": "127.0.0.1:80", "content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {text}" for name, text in named.items())]
    return "\r\n".join((*lines, "", "")).encode() + body


def _upgrade(path: str) -> bytes:
    lines = (
        f"GET {path} HTTP/1.1", "host: 127.0.0.1:80", "connection: Upgrade", "upgrade: websocket",
        "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


def _text(value: Any) -> bytes:
    return ws_frame(json.dumps(value, separators=(",", ":")).encode())


# REST, and its WebSocket


async def _open_rest(line: Line, shop: Shop) -> str:
    opened = json.loads(await line.ask(post("/v1/sessions", {"environment": shop.environment, "state": SMALL})))
    return str(opened["session"])


async def _rest(line: Line, shop: Shop) -> list[bytes]:
    path = f"/v1/sessions/{await _open_rest(line, shop)}/call"
    return [post(path, {"tool": c.tool, "arguments": c.arguments}) for c in shop.calls]


async def _websocket(line: Line, shop: Shop) -> list[bytes]:
    if not isinstance(line.framing, WebSocket) or not line.framing.upgraded:
        await line.ask(_upgrade("/v1/ws"))
    opened = await line.ask(_text({"id": 0, "op": "open", "environment": shop.environment, "state": SMALL}))
    session = json.loads(opened)["value"]["session"]
    return [_text(_frame(number, session, call)) for number, call in enumerate(shop.calls)]


async def _websocket_packed(line: Line, shop: Shop) -> list[bytes]:
    await line.ask(_upgrade("/v1/ws"))
    asked = {"id": 0, "op": "open", "environment": shop.environment, "state": SMALL}
    session = msgpack.unpackb(await line.ask(ws_frame(msgpack.packb(asked), 2)))["value"]["session"]
    return [ws_frame(msgpack.packb(_frame(number, session, call)), 2) for number, call in enumerate(shop.calls)]


def _frame(number: int, session: str, call: Call) -> dict[str, Any]:
    return {"id": number, "op": "call", "session": session, "tool": call.tool, "arguments": call.arguments}


# MCP


def _mcp_modern(path: str, number: int, tool: str, arguments: Mapping[str, Any]) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return post(
        path, message, accept="application/json, text/event-stream", mcp_protocol_version=MODERN,
        mcp_method="tools/call", mcp_name=tool,
    )  # fmt: skip


def _mcp_legacy(path: str, number: int, tool: str, arguments: Mapping[str, Any]) -> bytes:
    message = {
        "jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments},
    }  # fmt: skip
    return post(path, message, accept="application/json, text/event-stream", mcp_protocol_version=LEGACY)


McpRequest = Callable[[str, int, str, Mapping[str, Any]], bytes]


def _own_mcp(request: McpRequest) -> Begin:
    async def begin(line: Line, shop: Shop) -> list[bytes]:
        path = f"/i/{await _open_rest(line, shop)}/mcp"
        return [request(path, number, c.tool, c.arguments) for number, c in enumerate(shop.calls)]

    return begin


def _peer_mcp(request: McpRequest) -> Begin:
    """A peer's server has no instances: a tool opens one, and each call names it."""

    async def begin(line: Line, shop: Shop) -> list[bytes]:
        session = _mcp_text(await line.ask(request("/mcp", 0, "open_session", {})))
        return [
            request("/mcp", number, c.tool, {"session": session, **c.arguments}) for number, c in enumerate(shop.calls)
        ]

    return begin


def _mcp_text(body: bytes) -> str:
    answer = json.loads(body)
    if "result" not in answer or answer["result"].get("isError"):
        raise BadAnswer(f"{body[:400]!r}")
    return str(answer["result"]["content"][0]["text"])


def _mcp_result(body: bytes) -> Result:
    result: Result = json.loads(_mcp_text(body))
    return result


# OpenEnv


def _openenv(path: str, reset: Mapping[str, Any], typed: bool) -> Begin:
    async def begin(line: Line, shop: Shop) -> list[bytes]:
        await line.ask(_upgrade(path.format(environment=shop.environment)))
        answer = json.loads(await line.ask(_text({"type": "reset", "data": reset})))
        if answer["type"] != "observation":
            raise BadAnswer(str(answer)[:400])
        kind = {"type": "call_tool"} if typed else {}
        actions = ({**kind, "tool_name": c.tool, "arguments": c.arguments} for c in shop.calls)
        return [_text({"type": "step", "data": action}) for action in actions]

    return begin


def _observed(body: bytes) -> Result:
    result = json.loads(body)["data"]["observation"]["result"]
    # the stock MCP environment answers with the whole message of MCP
    return dict(result["data"] if "structured_content" in result else result)


# ORS


def _ors(environment: str | None) -> Begin:
    async def begin(line: Line, shop: Shop) -> list[bytes]:
        name = environment or shop.environment
        session = _events(await line.ask(post("/create_session", {})))["task_id"]
        spec = {"env_name": name, "task_spec": {"id": shop.task}}
        await line.ask(post("/create", spec, x_session_id=session))
        path = f"/{name}/call"
        return [post(path, {"name": c.tool, "input": c.arguments}, x_session_id=session) for c in shop.calls]

    return begin


def _events(body: bytes) -> dict[str, str]:
    """The data of a stream of events by name; pieces of one name joined."""
    found: dict[str, str] = {}
    for block in re.split(r"\r?\n\r?\n", body.decode()):
        lines = [line.partition(":") for line in block.splitlines()]
        name = next((value.strip() for key, _, value in lines if key == "event"), "message")
        found[name] = found.get(name, "") + "\n".join(
            value.removeprefix(" ") for key, _, value in lines if key == "data"
        )
    return found


def _ors_result(body: bytes) -> Result:
    events = _events(body)
    answer = json.loads(events.get("chunk", "") + events["end"])
    result: Result = json.loads(answer["output"]["blocks"][0]["text"])
    return result


# plain FastAPI


async def _fastapi(line: Line, shop: Shop) -> list[bytes]:
    session = json.loads(await line.ask(post("/sessions", {})))["session"]
    return [post(f"/sessions/{session}/{c.tool}", c.arguments) for c in shop.calls]


# the Unix socket


async def _unix(line: Line, shop: Shop) -> list[bytes]:
    if isinstance(line.framing, Lengths) and not line.framing.greeted:
        await _prove(line)
        line.framing.greeted = True
    opened = await line.ask(_packed([1, "open", shop.environment, None, SMALL]))
    session = _unpacked(opened)["session"]
    return [_packed([number, "call", session, c.tool, c.arguments]) for number, c in enumerate(shop.calls, 2)]


async def _prove(line: Line) -> None:
    """The handshake, under the empty token: only this user can open the socket."""
    _, theirs = msgpack.unpackb(await line.hear())
    ours = bytes(NONCE_BYTES)
    await line.ask(_packed([ours, proof("", "client", theirs, ours)]))


def _packed(value: Any) -> bytes:
    return length_frame(msgpack.packb(value))


def _unpacked(body: bytes) -> Any:
    number, status, value = msgpack.unpackb(body)
    if status != OK:
        raise BadAnswer(f"{number}: {status}: {value}")
    return value


def _value(body: bytes) -> Result:
    result: Result = json.loads(body)["value"]
    return result


def _packed_value(body: bytes) -> Result:
    result: Result = msgpack.unpackb(body)["value"]
    return result


OWN = (
    Case("mcp", Http, _own_mcp(_mcp_modern), _mcp_result),
    Case("websocket", WebSocket, _websocket, _value, _VALUE_OK),
    Case("rest", Http, _rest, json.loads),
    Case("unix", Lengths, _unix, _unpacked, _PACKED_OK, shared=True, unix=True),
    Case("mcp_legacy", Http, _own_mcp(_mcp_legacy), _mcp_result),
    Case("websocket_msgpack", WebSocket, _websocket_packed, _packed_value, _PACKED_OK),
    Case("websocket_shared", WebSocket, _websocket, _value, _VALUE_OK, shared=True),
    Case("unix_own_connections", Lengths, _unix, _unpacked, _PACKED_OK, unix=True),
    Case("openenv", WebSocket, _openenv("/e/{environment}/ws", {"state": SMALL}, typed=True), _observed),
    Case("ors", Http, _ors(None), _ors_result, _INNER_OK),
)
"""Faces of ours; the first four are what others are compared with."""
HEADLINE = ("mcp", "websocket", "rest", "unix")


@dataclass(frozen=True)
class Peer:
    """Somebody else's server for the same environment."""

    case: Case
    script: str
    requirements: tuple[str, ...]
    face: str
    """The face of ours that speaks the same protocol."""


_UVICORN = ("uvicorn[standard]>=0.54",)
PEERS = (
    Peer(Case("mcp_sdk", Http, _peer_mcp(_mcp_modern), _mcp_result), "mcp_sdk.py", ("mcp==2.3.0", *_UVICORN), "mcp"),
    Peer(
        Case("fastmcp", Http, _peer_mcp(_mcp_modern), _mcp_result),
        "fastmcp_server.py", ("fastmcp==4.2.3", *_UVICORN), "mcp",
    ),
    Peer(Case("fastapi", Http, _fastapi, json.loads), "fastapi_server.py", ("fastapi", "pydantic", *_UVICORN), "rest"),
    Peer(
        Case("openenv_plain", WebSocket, _openenv("/ws", {}, typed=False), _observed),
        "openenv_plain.py", ("openenv==0.10.0", *_UVICORN), "openenv",
    ),
    Peer(
        Case("openenv_mcp", WebSocket, _openenv("/ws", {}, typed=True), _observed),
        "openenv_mcp.py", ("openenv==0.10.0", *_UVICORN), "openenv",
    ),
    Peer(
        Case("openreward", Http, _ors("shop"), _ors_result, _INNER_OK),
        "openreward_server.py", ("openreward==0.1.167", *_UVICORN), "ors",
    ),
)  # fmt: skip
