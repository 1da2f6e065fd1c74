"""What a face gets of an HTTP request, body and all, and the ways to answer it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

from agentomnia.errors import OmniaError
from agentomnia.sandbox.api import LOCAL_TENANT
from agentomnia.sandbox.faces.refusal import PROBLEM_TYPE, Headers, Refusal, headers_of, problem_of, status_of
from agentomnia.sandbox.faces.text import JSON_TYPE, read_json, write_json

if TYPE_CHECKING:
    from agentomnia.sandbox.traffic import Lane

_EVENTS_TYPE = b"text/event-stream\r\ncache-control: no-store"
"""Two lines of the head at once, since the beginning of a head is made once."""
_ONE_WRITE = 64 * 2**10
"""Bytes of a body up to which it is copied behind its head."""


class Wire(Protocol):
    """Where answers go."""

    def head(self, status: int, content_type: bytes) -> bytes:
        """The beginning of an answer's head, up to where what differs between answers follows."""
        ...

    def write(self, data: bytes) -> None:
        """Send; where the other side is gone, nothing happens."""
        ...

    async def drain(self) -> None:
        """Wait until the other side has read most of what was sent."""
        ...


@dataclass(frozen=True)
class Target:
    """What a request line asks for."""

    path: tuple[str, ...]
    """The segments of the path, decoded, without empty ends; a face's own first segment too."""
    arguments: str = ""
    """What is behind the question mark."""

    @property
    def query(self) -> dict[str, str]:
        """The arguments by name; of one given twice, the last."""
        return dict(parse_qsl(self.arguments, keep_blank_values=True))


class Request:
    """One HTTP request and the way to answer it. Answer exactly once: `json`, `raw`, `events`, or a stream of them."""

    __slots__ = (
        "_wire", "body", "error", "headers", "keep_alive", "lane", "method", "modern", "path", "refusal", "status",
        "streaming", "target", "tenant",
    )  # fmt: skip

    def __init__(self, wire: Wire, method: str, target: Target, headers: Mapping[bytes, bytes], modern: bool) -> None:
        """A request whose body is still to come."""
        self._wire = wire
        self.method, self.target, self.path = method, target, target.path
        self.headers = headers
        """By name in lower case; values of a header that came more than once are joined by commas."""
        self.modern = modern
        """Whether it is of HTTP/1.1, not of 1.0."""
        self.body = b""
        self.tenant = LOCAL_TENANT
        self.refusal: OmniaError | None = None
        """Why it is not taken, where that was found before a face saw it."""
        self.lane: Lane | None = None
        """Whose place it holds."""
        self.keep_alive = modern
        """Whether the connection stays after the answer."""
        self.status = 0
        """What was answered; 0 while nothing was."""
        self.streaming = False
        """Whether an answer has begun and not ended."""
        self.error: OmniaError | None = None
        """What went wrong and was told in the face's own form; logged where it is a fault."""

    @property
    def query(self) -> dict[str, str]:
        """The arguments behind the question mark; of one given twice, the last."""
        return self.target.query

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def read_json(self) -> Any:
        """The body as JSON.

        Raises:
            Refusal: the body is no JSON.
        """
        return read_json(self.body)

    def read_object(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object.

        Raises:
            Refusal: the body is something else.
        """
        value = read_json(self.body) if self.body else {}
        if not isinstance(value, dict):
            raise Refusal(400, "the body must be a JSON object; wrap what you send in {…}")
        return value

    def json(self, status: int, value: Any, headers: Headers = ()) -> None:
        """Answer with JSON."""
        self.raw(status, write_json(value), JSON_TYPE, headers)

    def raw(self, status: int, body: bytes = b"", content_type: bytes = b"", headers: Headers = ()) -> None:
        """Answer with bytes."""
        self.status = status
        begun = self._wire.head(status, content_type)
        more = b"" if self.keep_alive and not headers else self._lines(headers)
        if status != 204:  # which has no body, and must not say how long it is
            more = b"content-length: %d\r\n%b" % (len(body), more)
        if self.method == "HEAD":
            body = b""
        if len(body) <= _ONE_WRITE:
            self._wire.write(b"%b%b\r\n%b" % (begun, more, body))
        else:
            self._wire.write(b"%b%b\r\n" % (begun, more))
            self._wire.write(body)

    def _lines(self, headers: Headers) -> bytes:
        """Headers as they are sent.

        Raises:
            ValueError: one would break out of its line.
        """
        lines = [b"%b: %b\r\n" % header for header in headers]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if any(line.count(b"\n") != 1 or line.count(b"\r") != 1 or b"\0" in line for line in lines):
            raise ValueError("a header of an answer holds the end of a line")
        return b"".join(lines)

    def problem(self, error: OmniaError) -> None:
        """Answer with an error as `application/problem+json`."""
        self.error = error
        self.raw(status_of(error), write_json(problem_of(error)), PROBLEM_TYPE, headers_of(error))

    def events(self, events: Iterable[tuple[str, str | None]]) -> None:
        """Answer with server-sent events that are there already, each with its name."""
        self.raw(200, b"".join([_event(data, name) for data, name in events]), _EVENTS_TYPE)

    def start_events(self) -> None:
        """Begin a stream of server-sent events."""
        self.status, self.streaming = 200, True
        if not self.modern:
            self.keep_alive = False  # without chunks only the end of the connection tells where the stream ends
        more = self._lines(()) + (b"transfer-encoding: chunked\r\n" if self.modern else b"")
        self._wire.write(b"%b%b\r\n" % (self._wire.head(200, _EVENTS_TYPE), more))

    async def event(self, data: str, name: str | None = None) -> None:
        """Send one event, and wait where the other side does not read them."""
        event = _event(data, name)
        self._wire.write(b"%x\r\n%b\r\n" % (len(event), event) if self.modern else event)
        await self._wire.drain()

    def end_events(self) -> None:
        """End the stream."""
        self.streaming = False
        if self.modern:
            self._wire.write(b"0\r\n\r\n")


def _event(data: str, name: str | None) -> bytes:
    lines = [f"event: {name}"] if name is not None else []
    lines += [f"data: {line}" for line in data.split("\n")]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")
