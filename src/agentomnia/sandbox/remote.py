"""What both Python clients send and receive, apart from how: requests, answers and errors of the REST face."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from agentomnia.errors import (
    CallTimeout,
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
    OmniaError,
)
from agentomnia.sandbox.api import Call
from agentomnia.task.grade import Grade

_KINDS: Mapping[str, type[OmniaError]] = {
    kind.__name__: kind
    for kind in (InputError, InstanceError, EnvironmentFault, CallTimeout, InfrastructureError, CapacityError)
}
_OWNERS: Mapping[str, type[OmniaError]] = {"caller": InputError, "environment": EnvironmentFault}
CONNECT_TRIES = 4
CONNECT_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class Ask:
    """One request, apart from how it is sent."""

    method: str
    path: str
    body: bytes | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the body."""
        kind = "application/octet-stream" if self.method == "PUT" else "application/json"
        return {} if self.body is None else {"content-type": kind}


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try."""
        given = self.retry_after or ""
        return min(float(given) if given.isdigit() else 1.0, _LONGEST_PAUSE_SECONDS)

    def value(self) -> Any:
        """The JSON that came back.

        Raises:
            OmniaError: the server told an error; of the class that it was raised with there.
            InfrastructureError: what came is no answer of this server.
        """
        if self.status == 204:
            return {}
        try:
            value = json.loads(self.body)
        except ValueError as error:
            message = f"the answer (HTTP {self.status}) is no JSON; check that the URL is a sandbox server's"
            raise InfrastructureError(message) from error
        if self.status >= 400:
            raise self._error(value if isinstance(value, dict) else {})
        return value

    def raw(self) -> bytes:
        """The bytes that came back.

        Raises:
            OmniaError: the server told an error.
        """
        if self.status >= 400:
            self.value()
        return self.body

    def _error(self, problem: Mapping[str, Any]) -> OmniaError:
        kind = _KINDS.get(str(problem.get("kind"))) or _OWNERS.get(str(problem.get("owner")), InfrastructureError)
        return kind(str(problem.get("detail", f"HTTP {self.status}")))


def post(path: str, body: Mapping[str, Any] | None = None) -> Ask:
    """A POST of JSON."""
    return Ask("POST", path, json.dumps(body or {}).encode())


def session_path(id_: str, action: str = "") -> str:
    """The path of a session, or of something under it."""
    return f"/v1/sessions/{quote(id_, safe='')}{action}"


def open_ask(environment: str | None, task: str | None, state: str | None) -> Ask:
    """Opens a session."""
    given = {"environment": environment, "task": task, "state": state}
    return post("/v1/sessions", {k: v for k, v in given.items() if v is not None})


def tasks_ask(environment: str | None, split: str | None, offset: int) -> Ask:
    """A page of tasks."""
    given = {"environment": environment, "split": split, "offset": str(offset)}
    return Ask("GET", f"/v1/tasks?{urlencode({k: v for k, v in given.items() if v is not None})}")


def call_ask(id_: str, tool: str, arguments: Mapping[str, Any]) -> Ask:
    """One call."""
    return post(session_path(id_, "/call"), {"tool": tool, "arguments": arguments})


def batch_ask(id_: str, calls: Sequence[Call]) -> Ask:
    """Several calls in order."""
    return post(session_path(id_, "/batch"), {"calls": [{"tool": t, "arguments": a} for t, a in calls]})


def grade(value: Mapping[str, Any]) -> Grade:
    """A grade as it came over the wire."""
    return Grade(reward=value["reward"], failures=tuple(value["failures"]))


@dataclass(frozen=True)
class SessionInfo:
    """What a session was when the server told of it."""

    id: str
    environment: str
    task: str | None
    tools: tuple[dict[str, Any], ...]
    """In OpenAI function form."""
    prompt: str
    query: str | None
    digest: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> SessionInfo:
        """From the server's description."""
        return cls(
            told["session"], told["environment"], told["task"], tuple(told["tools"]),
            told["prompt"], told["query"], told["digest"],
        )  # fmt: skip


@dataclass(frozen=True)
class Address:
    """Where a server is: a host and port, or a Unix socket."""

    host: str
    port: int
    unix: str | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        """From `http://host:port` or `unix:///path`.

        Raises:
            InputError: it is neither.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls("localhost", 0, parts.path)
        if parts.scheme != "http" or not parts.hostname:
            raise InputError(f"{url!r} is no address of a sandbox; use http://HOST:PORT or unix:///PATH")
        return cls(parts.hostname, parts.port or 80)

    @property
    def base(self) -> str:
        """The address as a URL; for a Unix socket the host is only a name."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}" if self.unix is None else "http://localhost"


def broken(address: Address, error: Exception) -> InfrastructureError:
    """A connection broke: nobody knows whether the request was worked on."""
    message = f"the connection to {address.unix or address.base} broke ({error or type(error).__name__})"
    return InfrastructureError(f"{message}; give the session up, or look at its digest")


def unreachable(address: Address, error: Exception) -> InfrastructureError:
    """No connection was made: nothing was asked."""
    message = f"no server answers at {address.unix or address.base}: {error}"
    return InfrastructureError(f"{message}; start one with `omnia serve RUN`")
