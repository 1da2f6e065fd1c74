"""The compiled argument validator against `jsonschema`, and what its messages say."""

from __future__ import annotations

import json
import math
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentomnia.environment.schema import compile_validator, valid_date, valid_moment

NAMES = ("title", "count", "tags", "class", "a b", "x'y")
KINDS = ("string", "integer", "number", "boolean", "array", "object", "null")
TEXTS = st.one_of(st.sampled_from(["", "a", "red", "2026-03-09", "2026-03-09T14:30"]), st.text(max_size=6))
NUMBERS = st.one_of(
    st.integers(-9, 9), st.floats(-9, 9).map(lambda x: round(x, 1)), st.sampled_from([0, 1, -1, 2**62, 0.5])
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "l"]), inner, max_size=2),
    max_leaves=6,
)


@st.composite
def property_schemas(draw: st.DrawFn, depth: int = 0) -> dict[str, Any]:
    """The subset that the tools of this package use."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True))
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    bounds = {
        "minimum": st.integers(-3, 3) | st.sampled_from([0.5, 1.5]),
        "maximum": st.integers(-3, 5) | st.sampled_from([0.5, 2.5]),
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 5),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 3),
    }
    for keyword, values in bounds.items():
        if draw(st.integers(0, 3)) == 0:
            schema[keyword] = draw(values)
    if draw(st.integers(0, 3)) == 0:
        schema["enum"] = draw(st.lists(SCALARS, min_size=1, max_size=4))
    if "array" in kinds and draw(st.booleans()):
        schema["items"] = {} if depth or draw(st.integers(0, 4)) == 0 else draw(property_schemas(depth + 1))
    if draw(st.booleans()):
        schema["description"] = draw(TEXTS)
    return schema


@st.composite
def argument_schemas(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    schema: dict[str, Any] = {"type": "object", "properties": {n: draw(property_schemas()) for n in names}}
    required = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    if required:
        schema["required"] = required
    closed = draw(st.sampled_from([False, True, None]))
    return schema if closed is None else {**schema, "additionalProperties": closed}


def whole_floats(value: Any) -> bool:
    """Whether a value holds a number such as 3.0, where this package is stricter on purpose."""
    if isinstance(value, float):
        return value.is_integer()
    if isinstance(value, dict):
        return any(whole_floats(v) for v in value.values())
    return isinstance(value, list) and any(whole_floats(v) for v in value)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    schema=argument_schemas(),
    arguments=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
)
def test_agrees_with_jsonschema(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    problem = compile_validator(schema)(arguments)
    valid = Draft202012Validator(schema).is_valid(arguments)
    if valid and problem is not None:
        assert whole_floats(arguments), (problem, schema)
    else:
        assert valid == (problem is None), problem


@settings(max_examples=200, deadline=None)
@given(
    schema=st.one_of(
        st.builds(lambda a, b: {"anyOf": [a, b]}, property_schemas(), property_schemas()),
        st.builds(lambda a: {"const": a}, SCALARS),
        st.builds(
            lambda a: {"type": "object", "properties": {"k": a}, "required": ["k"], "additionalProperties": False},
            property_schemas(),
        ),
        st.sampled_from([{"type": "string", "pattern": "^r"}, {"type": "integer", "exclusiveMinimum": 0}, True, {}]),
    ),
    value=VALUES,
)
def test_what_is_not_in_the_subset_is_checked_all_the_same(schema: Any, value: Any) -> None:
    problem = compile_validator({"properties": {"title": schema}})({"title": value})
    valid = Draft202012Validator(schema).is_valid(value)
    assert valid == (problem is None) or (valid and whole_floats(value)), problem


@pytest.mark.parametrize("additional", [{}, {"type": "string"}])
def test_additional_properties_given_as_a_schema_leave_the_object_open(additional: dict[str, Any]) -> None:
    check = compile_validator({"properties": {"title": {"type": "string"}}, "additionalProperties": additional})
    assert check({"title": "a", "more": "b"}) is None


def test_a_whole_float_is_no_integer_but_a_number() -> None:
    check = compile_validator({"properties": {"n": {"type": "integer"}, "x": {"type": "number"}}})
    assert check({"n": 3.0}) == "n must be a whole number"
    assert check({"n": 3, "x": 3.0}) is None and check({"x": 3}) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": ["number", "null"], "minimum": 0},
        {"type": "array", "items": {"type": "number"}},
        {"anyOf": [{"type": "number"}, {"type": "null"}]},
        {},
    ],
)
def test_numbers_are_finite(schema: dict[str, Any], value: float) -> None:
    given_value = [value] if schema.get("type") == "array" else value
    problem = compile_validator({"properties": {"amount": schema}})({"amount": given_value})
    assert problem is not None and "amount" in problem


def test_what_no_json_file_can_hold_is_refused() -> None:
    """Half a surrogate pair cannot be encoded, a number past 64 bits cannot be packed."""
    check = compile_validator(
        {
            "properties": {
                "name": {"type": "string"},
                "n": {"type": "integer"},
                "x": {"type": "number"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "free": {"type": "array"},
                "any": {"type": "object"},
            }
        }
    )
    for arguments in (
        {"name": "\ud800"},
        {"tags": ["fine", "\udfff"]},
        {"free": [["\ud800"]]},
        {"any": {"\ud800": 1}},
        {"n": 2**64},
        {"n": -(2**63) - 1},
        {"x": 10**400},
        {"free": [2**64]},
    ):
        problem = check(arguments)
        assert problem is not None and next(iter(arguments)) in problem, arguments
    assert check({"name": "漢 😀", "n": 2**63 - 1, "free": [[1, "a", None]], "any": {"k": []}}) is None


def test_nesting_is_bounded() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for schema in ({"type": "array"}, {"anyOf": [{"type": "array"}]}, {}):
        problem = compile_validator({"properties": {"tree": schema}})({"tree": deep})
        assert problem is not None and "tree" in problem
    while deep:  # taken apart by hand, since the interpreter would recurse
        deep = deep.pop()


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-30", "2026-13-01", "2026-3-9", "20260309", "2026-W11-1", "2026-03-09T10:00", "", "today",
        "٢٠٢٦-٠٣-٠٩", " 2026-03-09", "2026-03-0９", "0000-01-01",
    ],
)  # fmt: skip
def test_no_date(text: str) -> None:
    assert not valid_date(text)
    check = compile_validator({"properties": {"due_on": {"type": "string", "format": "date"}}})
    assert check({"due_on": text}) == "due_on must be a date like 2026-03-09"


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-09", "2026-03-09 10:00", "2026-02-30T10:00", "2026-03-09T24:01", "2026-03-09T10", "2026-03-09T10:00Z",
        "2026-03-09T10:00+01:00", "2026-W11-1T10:00", "2026-03-09T1000", "2026-03-09T10:00:00.500", "20260309T100000.0",
        "2026-03-09T10:0０", "",
    ],
)  # fmt: skip
def test_no_moment(text: str) -> None:
    assert not valid_moment(text)
    check = compile_validator({"properties": {"starts_at": {"type": "string", "format": "date-time"}}})
    problem = check({"starts_at": text})
    assert problem is not None and problem.startswith("starts_at must be a moment")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=string.digits + "-:TWZ ", min_size=8, max_size=20))
def test_valid_dates_sort_like_the_calendar(text: str) -> None:
    """Tools compare dates as text, so what passes has one form only."""
    if valid_date(text):
        assert text[4] == text[7] == "-" and len(text) == 10 and text.replace("-", "").isdigit()
    if valid_moment(text):
        assert valid_date(text[:10]) and text[10] == "T" and text[13] == ":"


def test_dates_at_the_ends_of_the_calendar_leave_room_to_count() -> None:
    assert valid_date("2026-03-09") and valid_date("1999-12-31") and valid_moment("2026-03-09T09:00")
    for edge in ("0001-01-01", "9999-12-31"):
        assert not valid_date(edge) and not valid_moment(f"{edge}T23:59")


def test_a_format_is_about_text_only() -> None:
    check = compile_validator({"properties": {"when": {"type": ["string", "integer"], "format": "date"}}})
    assert check({"when": 5}) is None and check({"when": "5"}) is not None


@settings(max_examples=300, deadline=None)
@given(schema=argument_schemas(), arguments=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_messages_name_the_argument(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    problem = compile_validator(schema)(arguments)
    if problem is not None:
        places = {*arguments, *schema.get("required", ()), *schema["properties"]}
        assert any(name in problem or repr(name) in problem for name in places), problem
        assert "Traceback" not in problem and len(problem) < 700


def test_first_problem_in_the_order_of_the_schema() -> None:
    check = compile_validator(
        {
            "properties": {"a": {"type": "string"}, "b": {"type": "integer", "minimum": 2}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    )
    assert check({"z": 1}) == "unknown argument 'z'; this tool takes a, b"
    assert check({}) == "argument a is missing"
    assert check({"a": 1, "b": 1}) == "a must be text"
    assert check({"a": "x", "b": 1}) == "b must be at least 2"


def test_names_cannot_become_code() -> None:
    name = "x'); raise SystemExit('injected') #"
    schema = {"properties": {name: {"type": "string", "enum": ["'\"\\\n"]}}, "required": [name]}
    check = compile_validator(schema)
    assert check({name: "'\"\\\n"}) is None
    assert name in (check({name: "other"}) or "") and name in (check({}) or "")
    assert json.dumps(check({name: 3}))
