"""What every face stands on: requests and sockets over raw ASGI, JSON, event streams, and how errors are told in HTTP.

No framework: a face is an object with `http(request)` and, where it speaks WebSocket, `websocket(socket)`. The gateway
builds the `Request` or `WebSocket`, checks who asks, and catches what a face lets escape; a face that must tell errors
in its own protocol's form catches `OmniaError` itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NoReturn, Protocol
from urllib.parse import parse_qsl

from agentomnia.errors import (
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
    OmniaError,
)
from agentomnia.sandbox.api import LOCAL_TENANT
from agentomnia.sandbox.traffic import SlowBodies

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Owner = Literal["caller", "environment", "infrastructure"]


class Passage(Protocol):
    """What is counted of one call that a frame asked for."""

    status: int
    """As in HTTP: whose fault it was where it failed; 200 unless the face says otherwise."""


InFlight = Callable[[], AbstractContextManager[Passage]]
"""A place among the calls in flight, held inside `with`; entering raises `CapacityError` where none is free."""

BODY_LIMIT = 4 * 2**20
"""Bytes of the largest body or frame that is read."""
_DISCARDED = 64 * 2**20
"""Bytes of a body over the limit that are read and dropped, so that the caller hears why before the connection ends."""
_CLOSE = ((b"connection", b"close"),)
RETRY_AFTER_SECONDS = 1
"""When a caller that was refused for want of room should come back."""
JSON_TYPE = b"application/json"


class Refusal(InputError):
    """A request that the gateway or a face does not take, with its HTTP status."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        """Say what is wrong with the request, and what to do next."""
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)


def status_of(error: OmniaError) -> int:
    """The HTTP status that tells whose fault an error is."""
    match error:
        case Refusal():
            return error.status
        case InstanceError():
            return 404
        case InputError():
            return 422
        case CapacityError():
            return 429
        case InfrastructureError():
            return 503
        case _:
            return 500


def owner_of(error: OmniaError) -> Owner:
    """Whose fault an error is; none of them is the agent's."""
    if isinstance(error, InputError):
        return "caller"
    return "environment" if isinstance(error, EnvironmentFault) else "infrastructure"


def headers_of(error: OmniaError) -> tuple[tuple[bytes, bytes], ...]:
    """Headers that go with an error: when to come back, or what the refusal says."""
    if isinstance(error, Refusal):
        return error.headers
    if isinstance(error, InfrastructureError):
        return ((b"retry-after", str(RETRY_AFTER_SECONDS).encode()),)
    return ()


_TITLES = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Unusable argument",
    429: "No room now",
    500: "Environment fault",
    503: "Infrastructure failure",
}


def problem_of(error: OmniaError) -> dict[str, Any]:
    """The body of an error (RFC 9457) with its owner; `kind` is the name of the exception's class."""
    status = status_of(error)
    kind = "InputError" if isinstance(error, Refusal) else type(error).__name__
    return {
        "type": "about:blank",
        "title": _TITLES.get(status, "Bad request"),
        "status": status,
        "detail": str(error),
        "owner": owner_of(error),
        "kind": kind,
    }


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# made once, since json.loads and json.dumps with options build a new coder each time; no value here has cycles
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_encode_text = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False).encode


def read_json(body: bytes | str) -> Any:
    """A JSON text as values.

    Raises:
        Refusal: it is no JSON in UTF-8, nests too deeply, or holds NaN; status 400.
    """
    try:
        return _decode(body if isinstance(body, str) else body.decode())
    except (ValueError, RecursionError) as error:
        told = "nests too deeply" if isinstance(error, RecursionError) else f"is no JSON in UTF-8: {error}"
        raise Refusal(400, f"the body {told[:200]}; send one JSON value") from error


def write_json(value: Any) -> bytes:
    """JSON for a wire: ASCII only, so that half a surrogate pair in a text breaks nothing.

    Raises:
        EnvironmentFault: the value, which can only be a tool's, holds what JSON does not have.
    """
    return _spelled(_encode, value).encode("ascii")


def json_text(value: Any) -> str:
    """JSON for a model to read, spelled as in the project's own episodes: letters stay letters.

    Raises:
        EnvironmentFault: the value holds what JSON does not have.
    """
    return _spelled(_encode_text, value)


def _spelled(encode: Callable[[Any], str], value: Any) -> str:
    try:
        return encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFault(f"a tool answered what JSON does not have: {error}; correct the tool") from error


class Request:
    """One HTTP request and the way to answer it. Answer exactly once: `json`, `raw`, or a stream of events."""

    __slots__ = (
        "_body", "_headers", "_receive", "_send", "_slow", "body_limit", "error", "path", "scope", "status", "tenant",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        tenant: str = LOCAL_TENANT,
        body_limit: int = BODY_LIMIT,
        slow: SlowBodies | None = None,
    ) -> None:
        """Wrap what the server hands over; `path` is what the face still has to look at, without empty ends."""
        self.scope, self._receive, self._send = scope, receive, send
        self.tenant, self.body_limit, self._slow = tenant, body_limit, slow
        self.path: tuple[str, ...] = tuple(scope["path"].strip("/").split("/"))
        """The segments of the path, decoded; all of them, the face's own first segment too."""
        self.status = 0
        """What was answered; 0 while nothing was."""
        self.error: OmniaError | None = None
        """What went wrong and was told in the face's own form; logged where it is a fault."""
        self._headers: dict[bytes, bytes] | None = None
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        """GET, POST, …"""
        method: str = self.scope["method"]
        return method

    @property
    def query(self) -> dict[str, str]:
        """The arguments behind the question mark; of one given twice, the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is larger than the limit (413), or the caller went away while sending it (400).
        """
        if self._body is None:
            self._body = await self._read()
        return self._body

    async def _read(self) -> bytes:
        task, slow = asyncio.current_task(), self._slow
        if slow is None or task is None:
            return await self._chunks()
        slow.begin(task)
        try:
            return await self._chunks()
        except asyncio.CancelledError:
            if not slow.overdue(task):
                raise
            task.uncancel()
            raise Refusal(408, f"the body did not come within {slow.seconds:g} s; send it again", _CLOSE) from None
        finally:
            slow.end(task)

    async def _chunks(self) -> bytes:
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise Refusal(400, "the connection closed before the whole body was read; send the request again")
            chunk: bytes = event.get("body", b"")
            more = event.get("more_body", False)
            size += len(chunk)
            if size <= self.body_limit:
                chunks.append(chunk)
            elif size > _DISCARDED:
                break
        if size > self.body_limit:
            raise Refusal(413, f"the body is over {self.body_limit} bytes; send less", _CLOSE)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def read_json(self) -> Any:
        """The body as JSON.

        Raises:
            Refusal: the body is no JSON, or too large.
        """
        return read_json(await self.body())

    async def read_object(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object.

        Raises:
            Refusal: the body is something else, or too large.
        """
        body = await self.body()
        value = read_json(body) if body else {}
        if not isinstance(value, dict):
            raise Refusal(400, "the body must be a JSON object; wrap what you send in {…}")
        return value

    async def json(self, status: int, value: Any, headers: Headers = ()) -> None:
        """Answer with JSON."""
        await self.raw(status, write_json(value), JSON_TYPE, headers)

    async def raw(self, status: int, body: bytes = b"", content_type: bytes = b"", headers: Headers = ()) -> None:
        """Answer with bytes."""
        self.status = status
        sent = [(b"content-length", b"%d" % len(body)), *headers]
        if content_type:
            sent.append((b"content-type", content_type))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def problem(self, error: OmniaError) -> None:
        """Answer with an error as `application/problem+json`."""
        self.error = error
        body, status = write_json(problem_of(error)), status_of(error)
        await self.raw(status, body, b"application/problem+json", headers_of(error))

    async def start_events(self, headers: Headers = ()) -> None:
        """Begin a stream of server-sent events."""
        self.status = 200
        sent = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": sent})

    async def event(self, data: str, name: str | None = None) -> None:
        """Send one event."""
        lines = [f"event: {name}"] if name is not None else []
        lines += [f"data: {line}" for line in data.split("\n")]
        body = ("\n".join(lines) + "\n\n").encode("utf-8", "replace")
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end_events(self) -> None:
        """End the stream."""
        await self._send({"type": "http.response.body", "body": b""})


class WebSocket:
    """One WebSocket, from the handshake to its end."""

    __slots__ = ("_receive", "_send", "accepted", "in_flight", "open", "path", "scope", "tenant")

    def __init__(self, scope: Scope, receive: Receive, send: Send, tenant: str, in_flight: InFlight) -> None:
        """Wrap what the server hands over, before `accept`."""
        self.scope, self._receive, self._send = scope, receive, send
        self.tenant = tenant
        self.in_flight = in_flight
        """Hold it around each call that a frame asks for: `with socket.in_flight(): …`."""
        self.path: tuple[str, ...] = tuple(scope["path"].strip("/").split("/"))
        self.accepted = False
        """Whether the handshake was answered."""
        self.open = False
        """Whether frames can be sent now."""

    @property
    def query(self) -> dict[str, str]:
        """The arguments behind the question mark; of one given twice, the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    async def accept(self, subprotocol: str | None = None) -> None:
        """Answer the handshake."""
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol})
        self.accepted = self.open = True

    async def receive(self) -> str | bytes | None:
        """The next frame; `None` once the other side is gone."""
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            self.open = False
            return None
        text: str | None = event.get("text")
        data: bytes = event.get("bytes") or b""
        return data if text is None else text

    async def send(self, frame: str | bytes) -> None:
        """Send a frame; where the other side is gone, nothing happens."""
        if self.open:
            kind = "text" if isinstance(frame, str) else "bytes"
            try:
                await self._send({"type": "websocket.send", kind: frame})
            except OSError:  # what uvicorn raises once the other side is gone
                self.open = False

    async def json(self, value: Any) -> None:
        """Send a value as a text frame of JSON."""
        await self.send(write_json(value).decode())

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye; a second time does nothing."""
        if self.open:
            self.open = False
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def refuse(self, error: OmniaError) -> None:
        """Refuse the handshake with the error's HTTP status and problem+json."""
        self.accepted = True
        await self._receive()
        headers = [(b"content-type", b"application/problem+json"), *headers_of(error)]
        await self._send({"type": "websocket.http.response.start", "status": status_of(error), "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": write_json(problem_of(error))})


class Face(Protocol):
    """One protocol over the instance API; made with the sandbox it serves."""

    async def http(self, request: Request) -> None:
        """Answer a request; an `OmniaError` that escapes is answered as problem+json."""
        ...


class SocketFace(Face, Protocol):
    """A face that speaks WebSocket too."""

    async def websocket(self, socket: WebSocket) -> None:
        """Hold a conversation; call `accept` first, or `refuse`."""
        ...
