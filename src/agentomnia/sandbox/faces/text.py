"""JSON on the wire and for models to read; in both directions nothing that JSON does not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

try:
    from msgspec.json import Decoder
except ImportError:  # it comes with the extra `serve`; `omnia mcp` goes without
    Decoder = None  # type: ignore[assignment, misc]

from agentomnia.errors import EnvironmentFault
from agentomnia.sandbox.faces.refusal import Refusal

JSON_TYPE = b"application/json"


def _refuse(text: bytes | str) -> NoReturn:
    raise ValueError(f"{text!r} is no JSON")


def _encoder(separators: tuple[str, str], ascii_only: bool) -> Callable[[Any], str]:
    """`JSONEncoder.encode`, which makes its coder in C anew for each value, with one that is made once.

    No value here has cycles: that is not looked for.
    """
    plain = json.JSONEncoder(separators=separators, ensure_ascii=ascii_only, allow_nan=False, check_circular=False)
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:  # not CPython
        return plain.encode
    string = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    item, key = separators
    pieces = make(None, plain.default, string, None, key, item, False, False, False)
    return lambda value: "".join(pieces(value, 0))


# made once, since json.loads with options builds a new decoder each time
_decode = json.JSONDecoder(parse_constant=_refuse).decode
_decode_quickly: Callable[[bytes | str], Any] = Decoder().decode if Decoder is not None else _refuse
"""Three times as quick, and its keys are quicker to look up; where it takes a text, it reads the same from it."""
_encode = _encoder((",", ":"), ascii_only=True)
_encode_text = _encoder((", ", ": "), ascii_only=False)


def read_json(body: bytes | str) -> Any:
    """A JSON text as values.

    Raises:
        Refusal: it is no JSON in UTF-8, nests too deeply, or holds NaN; status 400.
    """
    try:
        return _decode_quickly(body)
    except (ValueError, RecursionError):
        return _read_exactly(body)  # halves of surrogate pairs are JSON too, and what is wrong this one says better


def _read_exactly(body: bytes | str) -> Any:
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
    try:
        return _encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_json(error) from error


def json_text(value: Any) -> str:
    """JSON for a model to read, spelled as in the project's own episodes: letters stay letters.

    Raises:
        EnvironmentFault: the value holds what JSON does not have.
    """
    try:
        return _encode_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_json(error) from error


def _no_json(error: Exception) -> EnvironmentFault:
    return EnvironmentFault(f"a tool answered what JSON does not have: {error}; correct the tool")
