"""The result protocol: what every tool call answers (paper, section 4.2.3, "unified return protocol").

{"ok": true, "data": …}
{"ok": false, "error": {"code": …, "message": …, "hint": …}}
"""

from __future__ import annotations

from typing import Any, Literal

ErrorCode = Literal["not_found", "invalid_argument", "precondition_failed", "conflict", "forbidden", "limit_exceeded"]

ERROR_CODES: frozenset[str] = frozenset(
    ("not_found", "invalid_argument", "precondition_failed", "conflict", "forbidden", "limit_exceeded")
)


Result = dict[str, Any]
"""A protocol answer as plain JSON values."""


def success(data: Any) -> Result:
    """An accepted call."""
    return {"ok": True, "data": data}


def failure(code: ErrorCode, message: str, hint: str) -> Result:
    """A refused call; the state is as it was before."""
    return {"ok": False, "error": {"code": code, "message": message, "hint": hint}}


def protocol_breach(answer: Any) -> str | None:
    """What is wrong with an answer under the protocol, or `None` when it keeps it."""
    if not isinstance(answer, dict):
        return f"answered {type(answer).__name__}, not an object"
    if answer.get("ok") is True:
        return None if answer.keys() == {"ok", "data"} else f"accepted answer has keys {sorted(answer)}"
    if answer.get("ok") is not False or answer.keys() != {"ok", "error"}:
        return f"answer has keys {sorted(map(str, answer))} and ok={answer.get('ok')!r}"
    error = answer["error"]
    if not isinstance(error, dict) or error.keys() != {"code", "message", "hint"}:
        return "error lacks code, message or hint"
    known = isinstance(error["code"], str) and error["code"] in ERROR_CODES
    return None if known else f"error code {error['code']!r} is not in the closed list"
