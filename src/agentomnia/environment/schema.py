"""Argument validation on the hot path: a JSON Schema becomes one Python function.

The compiled subset covers what the tools of this package use: closed objects of scalars, enums, bounds,
lengths, dates and flat arrays. A property that needs more is handed to `jsonschema`, so the answer is the
same and only slower. Stricter than JSON Schema: `3.0` is not an integer, dates and moments have one form, and
what no state could hold (half a surrogate pair, a number past 64 bits, endless nesting) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

from agentomnia.row import encodes

Validator = Callable[[Mapping[str, Any]], str | None]
"""Takes the arguments; returns what is wrong with them, or `None`."""

_SIMPLE_KEYS = frozenset(
    ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "format", "description", "title", "default",
     "items", "examples", "maxItems", "minItems")
)  # fmt: skip
_TYPE_TEST = {
    "string": "isinstance({v}, str)",
    "integer": "(type({v}) is int)",
    "number": "(type({v}) is int or (type({v}) is float and {v} - {v} == 0))",
    "boolean": "(type({v}) is bool)",
    "array": "isinstance({v}, list)",
    "object": "isinstance({v}, dict)",
    "null": "({v} is None)",
}


# tools compare dates as text, so each has one spelling; the years leave room for counting days
_DATE = re.compile(r"(?:1[6-9]|2[0-9])[0-9]{2}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(_DATE.pattern + r"T[0-9]{2}:[0-9]{2}")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_DEEPEST = 64


def valid_date(text: str) -> bool:
    """Whether the text is a calendar date `YYYY-MM-DD` of the years 1600 to 2999."""
    try:
        return _DATE.fullmatch(text) is not None and bool(date.fromisoformat(text))
    except ValueError:
        return False


def valid_moment(text: str) -> bool:
    """Whether the text is a local date and time, `YYYY-MM-DDTHH:MM`."""
    try:
        return _MOMENT.fullmatch(text) is not None and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def unstorable(value: Any, depth: int = 0) -> str | None:
    """What a value must be to be kept in a state and written to a file, or `None` where it is that."""
    if isinstance(value, str):
        return None if value.isascii() or encodes(value) else "text without half of a surrogate pair"
    if isinstance(value, float):
        return None if value - value == 0 else "finite numbers"
    if isinstance(value, int):
        return None if _SMALLEST <= value <= _LARGEST else "numbers of 64 bits at most"
    if value is None:
        return None
    if not isinstance(value, list | dict):
        return "JSON values"
    if depth == _DEEPEST:
        return f"at most {_DEEPEST} levels"
    parts = value if isinstance(value, list) else [*value, *value.values()]
    return next((problem for part in parts if (problem := unstorable(part, depth + 1)) is not None), None)


def compile_validator(schema: Mapping[str, Any]) -> Validator:
    """Compile the schema of a tool's arguments (a closed object of properties).

    Returns:
        A function from arguments to the first problem found, in the order of the schema, or `None`.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    bound: dict[str, Any] = {
        "known": frozenset(properties),
        "valid_date": valid_date,
        "valid_moment": valid_moment,
        "unstorable": unstorable,
    }
    lines = ["def validate(arguments):"]
    if schema.get("additionalProperties", True) is False:
        lines += ["    if not known.issuperset(arguments):", "        return unknown(arguments)"]
        bound["unknown"] = _unknown_reporter(properties)
    for name in schema.get("required", ()):
        lines += [f"    if {name!r} not in arguments:", f"        return {f'argument {name} is missing'!r}"]
    for number, (name, property_schema) in enumerate(properties.items()):
        lines += [f"    if {name!r} in arguments:", f"        v = arguments[{name!r}]"]
        lines += [f"        {line}" for line in _property_lines(name, property_schema, number, bound)]
    lines.append("    return None")
    namespace: dict[str, Any] = bound
    exec(compile("\n".join(lines), "<argument validator>", "exec"), namespace)
    validator: Validator = namespace["validate"]
    return validator


def _unknown_reporter(properties: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], str]:
    takes = ", ".join(properties) or "no arguments"

    def unknown(arguments: Mapping[str, Any]) -> str:
        extra = ", ".join(repr(k) for k in arguments if k not in properties)
        return f"unknown argument {extra}; this tool takes {takes}"

    return unknown


def _property_lines(name: str, schema: Any, number: int, bound: dict[str, Any]) -> list[str]:
    if not _is_simple(schema):
        bound[f"check_{number}"] = _general_check(name, schema)
        return [f"problem = check_{number}(v)", "if problem is not None:", "    return problem"]
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or _TYPE_TEST)
    lines = _refuse(f"not ({' or '.join(_TYPE_TEST[k].format(v='v') for k in kinds)})",
                    f"{name} must be {_described(kinds)}")  # fmt: skip
    if "enum" in schema:
        bound[f"choices_{number}"] = tuple(schema["enum"])
        listed = ", ".join(str(v) for v in schema["enum"])
        lines += _refuse(f"v not in choices_{number}", f"{name} must be one of {listed}")
    lines += _bound_lines(name, schema)
    lines += _storage_lines(name, schema, kinds)
    if schema.get("format") == "date":
        lines += _refuse("isinstance(v, str) and not valid_date(v)", f"{name} must be a date like 2026-03-09")
    if schema.get("format") == "date-time":
        lines += _refuse("isinstance(v, str) and not valid_moment(v)", f"{name} must be a moment like 2026-03-09T14:30")
    if "array" in kinds and schema.get("items"):
        bound[f"item_{number}"] = compile_validator({"properties": {f"each item of {name}": schema["items"]}})
        key = f"each item of {name}"
        lines += ["for item in v if isinstance(v, list) else ():", f"    problem = item_{number}({{{key!r}: item}})",
                  "    if problem is not None:", "        return problem"]  # fmt: skip
    return lines


def _bound_lines(name: str, schema: Mapping[str, Any]) -> list[str]:
    lines = []
    for keyword, test, words in (
        ("minimum", "v < {}", "at least"),
        ("maximum", "v > {}", "at most"),
        ("minLength", "len(v) < {}", "at least {} characters"),
        ("maxLength", "len(v) > {}", "at most {} characters"),
        ("minItems", "len(v) < {}", "at least {} items"),
        ("maxItems", "len(v) > {}", "at most {} items"),
    ):
        if keyword in schema:
            limit = schema[keyword]
            text = words.format(limit) if "{}" in words else f"{words} {limit}"
            kind = "str" if "Length" in keyword else "list" if "Items" in keyword else "(int, float)"
            of_kind = f"isinstance(v, {kind})" if kind in ("str", "list") else f"type(v) in {kind}"
            lines += _refuse(f"{of_kind} and {test.format(repr(limit))}", f"{name} must be {text}")
    return lines


def _storage_lines(name: str, schema: Mapping[str, Any], kinds: list[str]) -> list[str]:
    """Refuse what no state can hold, as far as nothing else has refused it."""
    if "enum" in schema:
        return []
    if "object" in kinds or ("array" in kinds and not schema.get("items")):
        problem = ["problem = unstorable(v)", "if problem is not None:"]
        return [*problem, f"    return {f'{name} must hold '!r} + problem"]
    lines = []
    if "string" in kinds:
        lines += _refuse(
            "isinstance(v, str) and not v.isascii() and unstorable(v)",
            f"{name} must be text without half of a surrogate pair",
        )
    if {"integer", "number"} & set(kinds) and not {"minimum", "maximum"} <= schema.keys():
        lines += _refuse(
            f"type(v) is int and not {_SMALLEST} <= v <= {_LARGEST}", f"{name} must be a number of 64 bits at most"
        )
    return lines


def _refuse(condition: str, message: str) -> list[str]:
    return [f"if {condition}:", f"    return {message!r}"]


def _described(kinds: list[str]) -> str:
    words = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
             "array": "a list", "object": "an object", "null": "null"}  # fmt: skip
    return " or ".join(words[k] for k in kinds)


def _is_simple(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or not _SIMPLE_KEYS.issuperset(schema):
        return False
    kinds = schema.get("type")
    listed = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(listed, list) or not all(k in _TYPE_TEST for k in listed):
        return False
    if "enum" in schema and any(isinstance(v, bool | float | list | dict) for v in schema["enum"]):
        return False
    if schema.get("format") not in (None, "date", "date-time"):
        return False
    return "items" not in schema or _is_simple(schema["items"]) or schema["items"] == {}


def _general_check(name: str, schema: Any) -> Callable[[Any], str | None]:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(schema)

    def check(value: Any) -> str | None:
        problem = unstorable(value)
        if problem is not None:
            return f"{name} must hold {problem}"
        error = next(iter(validator.iter_errors(value)), None)
        return None if error is None else f"{name}: {error.message[:300]}"

    return check
