"""A state `s`: JSON values in one dictionary of records per entity, a clock and counters (paper, section 4.2.2).

{"clock": {"now": "2026-03-09T09:00"}, "counters": {"orders": 12}, "orders": {"ORD-0001": {…}, …}}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from agentomnia.environment.schema import valid_date, valid_moment
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
    yield from _bookkeeping_problems(spec, state)
    tables = state.keys() == expected and all(type(state[e.plural]) is dict for e in spec.entities)
    if tables and all(_plainly_valid(spec, state, e) for e in spec.entities):
        return
    for name in sorted(expected - state.keys()):
        yield f"container {name} is missing"
    for name in sorted(state.keys() - expected):
        yield f"container {name} is unknown"
    shapeless = [e.plural for e in spec.entities if not isinstance(state.get(e.plural, {}), dict)]
    yield from (f"container {name} is no object of records" for name in shapeless)
    if shapeless:
        return
    for entity in spec.entities:
        for key, record in state.get(entity.plural, {}).items():
            for problem in _record_problems(spec, state, entity, key, record):
                yield f"{entity.plural}/{key}: {problem}"
    for entity in spec.entities:
        yield from _uniqueness_problems(entity, state)


def _bookkeeping_problems(spec: EnvironmentSpec, state: State) -> Iterator[str]:
    """A clock that tells no time, and counters that would give a new record the key of an old one."""
    clock, counters = state.get("clock"), state.get("counters")
    if not isinstance(clock, dict) or not _is_datetime(clock.get("now")):
        yield f"clock is {clock!r}, not {{'now': a moment like 2026-03-09T14:30}}"
    for entity in spec.entities:
        count = counters.get(entity.plural) if isinstance(counters, dict) else None
        if type(count) is not int or count < 0:
            yield f"counters: {entity.plural} is {count!r}, not a number of keys given so far"
        elif f"{entity.prefix}-{count + 1:04d}" in (state.get(entity.plural) or ()):
            yield f"counters: {entity.plural} is {count}, but the next key exists already"


def _plainly_valid(spec: EnvironmentSpec, state: State, entity: Entity) -> bool:
    """Whether an entity's records are valid, decided field by field over all of them.

    Valid states are checked by the thousand, so this is the common case and the quick one. `False` says only that
    somebody must look closer.
    """
    records, fields = state[entity.plural], set(entity.fields)
    if any(type(r) is not dict or r.keys() != fields for r in records.values()):
        return False
    if any(record[entity.key] != key for key, record in records.items()):
        return False
    return all(_plainly_valid_field(spec, state, a, [r[a.name] for r in records.values()]) for a in entity.attributes)


def _plainly_valid_field(spec: EnvironmentSpec, state: State, attribute: Attribute, values: list[Any]) -> bool:
    types = set(map(type, values))
    if type(None) in types:
        if not attribute.nullable:
            return False
        types.discard(type(None))
        values = [v for v in values if v is not None]
    if not types <= _PLAIN_TYPES[attribute.type] or (attribute.unique and len(set(values)) != len(values)):
        return False
    match attribute.type:
        case "enum":
            return set(values) <= set(attribute.choices)
        case "reference":
            known: dict[str, Any] = state[spec.entity(attribute.target or "").plural]
            return set(values) <= known.keys()
        case "date":
            return all(map(_is_date, set(values)))
        case "datetime":
            return all(map(_is_datetime, set(values)))
        case "integer" | "number" if values:
            low = attribute.minimum is None or min(values) >= attribute.minimum
            high = attribute.maximum is None or max(values) <= attribute.maximum
            return low and high and (attribute.type == "integer" or all(map(math.isfinite, values)))
        case _:
            return True


def _record_problems(
    spec: EnvironmentSpec, state: State, entity: Entity, key: str, record: dict[str, Any]
) -> Iterator[str]:
    if not isinstance(record, dict):
        yield f"is {record!r}, no record"
        return
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
    return isinstance(value, str) and valid_date(value)


def _is_datetime(value: Any) -> bool:
    return isinstance(value, str) and valid_moment(value)


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


_PLAIN_TYPES: dict[str, frozenset[type]] = {
    **dict.fromkeys(("string", "text", "reference", "enum", "date", "datetime"), frozenset((str,))),
    "integer": frozenset((int,)),
    "number": frozenset((int, float)),
    "boolean": frozenset((bool,)),
    "list": frozenset((list,)),
    "object": frozenset((dict,)),
}


def _uniqueness_problems(entity: Entity, state: State) -> Iterator[str]:
    for attribute in entity.attributes:
        if not attribute.unique:
            continue
        values = [r.get(attribute.name) for r in state.get(entity.plural, {}).values() if isinstance(r, dict)]
        seen = [v for v in values if v is not None and not isinstance(v, list | dict)]
        if len(seen) != len(set(seen)):
            yield f"{entity.plural}: {attribute.name} is not unique"
