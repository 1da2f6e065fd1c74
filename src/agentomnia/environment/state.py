"""A state `s`: JSON values in one dictionary of records per entity, a clock and counters (paper, section 4.2.2).

{"clock": {"now": "2026-03-09T09:00"}, "counters": {"orders": 12}, "orders": {"ORD-0001": {…}, …}}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import Any

import msgpack

from agentomnia.environment.spec import Attribute, Entity, EnvironmentSpec

State = dict[str, Any]


def pack(state: State) -> bytes:
    """A state as bytes: a snapshot.

    Raises:
        TypeError: the state holds something that is not a JSON value.
    """
    packed: bytes = msgpack.packb(state)
    return packed


def unpack(snapshot: bytes) -> State:
    """The state that `pack` packed, sharing nothing with any other."""
    state: State = msgpack.unpackb(snapshot)
    return state


def state_problems(spec: EnvironmentSpec, state: State) -> Iterator[str]:
    """What makes a state invalid under its specification: containers, fields, types, choices, references.

    Rules are not checked here: the compiled program knows them (`Program.broken_rules`).
    """
    expected = {"clock", "counters", *(e.plural for e in spec.entities)}
    for name in sorted(expected - state.keys()):
        yield f"container {name} is missing"
    for name in sorted(state.keys() - expected):
        yield f"container {name} is unknown"
    for entity in spec.entities:
        for key, record in state.get(entity.plural, {}).items():
            for problem in _record_problems(spec, state, entity, key, record):
                yield f"{entity.plural}/{key}: {problem}"
    for entity in spec.entities:
        yield from _uniqueness_problems(entity, state)


def _record_problems(
    spec: EnvironmentSpec, state: State, entity: Entity, key: str, record: dict[str, Any]
) -> Iterator[str]:
    if record.keys() != set(entity.fields):
        missing = sorted(set(entity.fields) - record.keys())
        extra = sorted(record.keys() - set(entity.fields))
        yield f"fields differ from the specification (missing {missing}, extra {extra})"
        return
    if record[entity.key] != key:
        yield f"its key field says {record[entity.key]!r}"
    for attribute in entity.attributes:
        problem = value_problem(attribute, record[attribute.name])
        if problem is not None:
            yield f"{attribute.name} {problem}"
        elif _dangling(spec, state, attribute, record[attribute.name]):
            yield f"{attribute.name} points to {record[attribute.name]!r}, which does not exist"


def _dangling(spec: EnvironmentSpec, state: State, attribute: Attribute, value: Any) -> bool:
    if attribute.target is None or value is None:
        return False
    return value not in state.get(spec.entity(attribute.target).plural, {})


def value_problem(attribute: Attribute, value: Any) -> str | None:
    """What is wrong with a value of an attribute, or `None`."""
    if value is None:
        return None if attribute.nullable else "is null"
    if not _TYPE_TESTS[attribute.type](value):
        return f"is {value!r}, not a {attribute.type}"
    if attribute.type == "enum" and value not in attribute.choices:
        return f"is {value!r}, not one of {', '.join(attribute.choices)}"
    if attribute.type in ("integer", "number"):
        if attribute.minimum is not None and value < attribute.minimum:
            return f"is {value}, below {attribute.minimum}"
        if attribute.maximum is not None and value > attribute.maximum:
            return f"is {value}, above {attribute.maximum}"
    return None


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value) == 10 and bool(date.fromisoformat(value))
    except ValueError:
        return False


def _is_datetime(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value) > 10 and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_TYPE_TESTS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "text": lambda v: isinstance(v, str),
    "reference": lambda v: isinstance(v, str),
    "enum": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": _is_number,
    "boolean": lambda v: isinstance(v, bool),
    "date": _is_date,
    "datetime": _is_datetime,
    "list": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def _uniqueness_problems(entity: Entity, state: State) -> Iterator[str]:
    for attribute in entity.attributes:
        if not attribute.unique:
            continue
        values = [r.get(attribute.name) for r in state.get(entity.plural, {}).values()]
        seen = [v for v in values if v is not None]
        if len(seen) != len(set(seen)):
            yield f"{entity.plural}: {attribute.name} is not unique"
