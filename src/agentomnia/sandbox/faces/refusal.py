"""How errors are told in HTTP: whose fault they are, by status and by a body of `application/problem+json`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from agentomnia.errors import (
    CapacityError,
    EnvironmentFault,
    InfrastructureError,
    InputError,
    InstanceError,
    OmniaError,
)

Headers = Iterable[tuple[bytes, bytes]]
Owner = Literal["caller", "environment", "infrastructure"]

RETRY_AFTER_SECONDS = 1
"""When a caller that was refused for want of room should come back."""
PROBLEM_TYPE = b"application/problem+json"


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
    426: "Upgrade required",
    429: "No room now",
    431: "Too large a head",
    500: "Environment fault",
    503: "Infrastructure failure",
    505: "Unknown version of HTTP",
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
