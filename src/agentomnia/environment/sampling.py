"""Random valid arguments: for gates that must reach every path of a tool, and for the random agent.

Values that name records are drawn from the state, related records more often than not; the rest follow
the JSON Schema. Deterministic under the generator handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from random import Random
from typing import Any

from agentomnia.environment.program import Program
from agentomnia.environment.state import State

_WORDS = "amber birch cedar delta ember flint grove heath inlet jade kelp lumen moss north opal pine quill reed".split()


def sample_schema(schema: Mapping[str, Any], clock: str, rng: Random) -> Any:
    """A value that a JSON Schema of the usual subset accepts; bounds themselves are drawn often."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice([v for v in schema["enum"] if v is not None] or [None])
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return sample_schema(rng.choice(schema[union]), clock, rng)
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else next((k for k in kinds if k != "null"), "null")
    match kind:
        case "integer":
            return _sample_integer(schema, rng)
        case "number":
            low = float(schema.get("minimum", 0.5))
            return round(rng.choice((low, rng.uniform(low, float(schema.get("maximum", low + 300))))), 2)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            count = max(int(schema.get("minItems", 1)), rng.randint(1, 3))
            return [sample_schema(schema.get("items") or {}, clock, rng) for _ in range(count)]
        case "object":
            inner: Mapping[str, Any] = schema.get("properties", {})
            return {k: sample_schema(v, clock, rng) for k, v in inner.items()}
        case "null":
            return None
        case _:
            return _sample_text(schema, clock, rng)


def _sample_integer(schema: Mapping[str, Any], rng: Random) -> int:
    low = int(schema.get("minimum", 1))
    high = int(schema.get("maximum", low + 30))
    return rng.choice((low, high, rng.randint(low, max(low, high)), rng.randint(low, max(low, min(high, low + 10)))))


def _sample_text(schema: Mapping[str, Any], clock: str, rng: Random) -> str:
    day = date.fromisoformat(clock[:10]) + timedelta(days=rng.randint(-30, 60))
    if schema.get("format") == "date":
        return day.isoformat()
    if schema.get("format") == "date-time":
        moment = datetime(day.year, day.month, day.day) + timedelta(minutes=30 * rng.randint(0, 47))
        return moment.isoformat(timespec="minutes")
    text = " ".join(rng.sample(_WORDS, 2))
    return text[: int(schema.get("maxLength", len(text)))] or "a"


class ArgumentSampler:
    """Draws arguments for the tools of one program."""

    def __init__(self, program: Program, rng: Random) -> None:
        """Draw with `rng`; the program says which argument takes the values of which field."""
        self._program = program
        self._rng = rng

    def sample(self, tool: str, state: State) -> dict[str, Any]:
        """Arguments that fit the tool's schema, taking what exists in `state` where a record is meant."""
        schema = self._program.tools[tool].parameters
        required = set(schema.get("required", ()))
        clock = state["clock"]["now"] if "clock" in state else "2026-01-15T09:00"
        chosen: list[dict[str, Any]] = []
        arguments: dict[str, Any] = {}
        for name, property_schema in schema.get("properties", {}).items():
            if name in required or self._rng.random() < 0.4:
                arguments[name] = self._value(tool, name, property_schema, state, clock, chosen)
        return arguments

    def _value(
        self,
        tool: str,
        name: str,
        schema: Mapping[str, Any],
        state: State,
        clock: str,
        chosen: list[dict[str, Any]],
    ) -> Any:
        place = self._program.fields.get((tool, name)) or _place_by_name(name, state)
        if place is not None and schema.get("type") == "array" and state.get(place[0]):
            found = [r[place[1]] for r in state[place[0]].values() if isinstance(r.get(place[1]), str | int | float)]
            if found and self._rng.random() < 0.7:
                return self._rng.sample(found, min(len(found), self._rng.randint(1, 3)))
        drawn = self._from_state(place, state, chosen) if place is not None else None
        if drawn is None or ("enum" in schema and drawn not in schema["enum"]):
            return sample_schema(schema, clock, self._rng)
        value, is_key = drawn, place is not None and place[1] == _key_field(state[place[0]])
        if not is_key and self._rng.random() < 0.5:
            return sample_schema(schema, clock, self._rng)
        return self._nudged(value) if not is_key else value

    def _nudged(self, value: Any) -> Any:
        """A number from a record, sometimes a little off: guards compare with such numbers."""
        if type(value) in (int, float) and self._rng.random() < 0.4:
            return value + self._rng.choice((-1, 1, 5))
        return value

    def _from_state(self, place: tuple[str, str], state: State, chosen: list[dict[str, Any]]) -> Any:
        container, field = place
        records: dict[str, dict[str, Any]] = state.get(container) or {}
        if not records:
            return None
        key_field = _key_field(records)
        record = self._related(records, chosen) if field == key_field else None
        if record is None:
            record = self._rng.choice(list(records.values()))
        if field == key_field:
            chosen.append(record)
        return record.get(field)

    def _related(self, records: dict[str, dict[str, Any]], chosen: list[dict[str, Any]]) -> dict[str, Any] | None:
        """A record that an already chosen one points to, or that points to a chosen one."""
        if not chosen or self._rng.random() < 0.25:
            return None
        links = [value for other in chosen for value in other.values() if isinstance(value, str) and value in records]
        if links:
            return records[self._rng.choice(links)]
        keys = {next(iter(other.values())) for other in chosen}
        pointing = [r for r in records.values() if any(isinstance(v, str) and v in keys for v in r.values())]
        if pointing:
            return self._rng.choice(pointing)
        shared = {v for other in chosen for f, v in other.items() if f.endswith("_id") and isinstance(v, str)}
        siblings = [r for r in records.values() if any(isinstance(v, str) and v in shared for v in r.values())]
        return self._rng.choice(siblings) if siblings else None


def _key_field(records: Mapping[str, Any]) -> str | None:
    """The first field of a record is its key."""
    first = next(iter(records.values()), None) if isinstance(records, Mapping) else None
    return next(iter(first), None) if isinstance(first, dict) else None


def _place_by_name(name: str, state: State) -> tuple[str, str] | None:
    """The first container whose records have a field of that name."""
    for container, records in state.items():
        if isinstance(records, dict) and container not in ("clock", "counters"):
            first = next(iter(records.values()), None)
            if isinstance(first, dict) and name in first:
                return container, name
    return None
