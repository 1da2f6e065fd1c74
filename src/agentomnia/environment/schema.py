"""Argument validation on the hot path: a JSON Schema becomes one Python function.

The compiled subset covers what the tools of this package use: closed objects of scalars, enums, bounds,
lengths, dates and flat arrays. A property that needs more is handed to `jsonschema`, so the answer is the
same and only slower. Stricter than JSON Schema in one point: `3.0` is not an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

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


def valid_date(text: str) -> bool:
    """Whether the text is a calendar date `YYYY-MM-DD`."""
    try:
        return len(text) == 10 and bool(date.fromisoformat(text))
    except ValueError:
        return False


def valid_moment(text: str) -> bool:
    """Whether the text is a local date and time, `YYYY-MM-DDTHH:MM` or with seconds."""
    try:
        return len(text) >= 16 and text[10] == "T" and datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return False


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
    }
    lines = ["def validate(arguments):"]
    if not schema.get("additionalProperties", True):
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
    if schema.get("format") == "date":
        lines += _refuse("v is not None and not valid_date(v)", f"{name} must be a date like 2026-03-09")
    if schema.get("format") == "date-time":
        lines += _refuse("v is not None and not valid_moment(v)", f"{name} must be a moment like 2026-03-09T14:30")
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
            lines += _refuse(f"isinstance(v, {kind}) and {test.format(repr(limit))}", f"{name} must be {text}")
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
        if not _finite(value):
            return f"{name} must hold finite numbers"
        error = next(iter(validator.iter_errors(value)), None)
        return None if error is None else f"{name}: {error.message[:300]}"

    return check


def _finite(value: Any) -> bool:
    """Whether no number in the value is NaN or infinite: JSON has neither, and `jsonschema` lets both pass."""
    if isinstance(value, float):
        return value - value == 0
    if isinstance(value, dict):
        return all(_finite(v) for v in value.values())
    return not isinstance(value, list) or all(_finite(v) for v in value)
