"""Grading: pure, from the state before, the state after and the agent's last message.

The reward is 1.0 when everything wanted happened and nothing else did, and 0.0 otherwise. Nothing here
runs a tool or touches a live instance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from agentomnia.environment.state import State
from agentomnia.row import Row
from agentomnia.task.criterion import Change, Criterion, Expected
from agentomnia.task.diff import StateDiff, state_diff


class Grade(Row):
    """A reward with its reasons."""

    reward: float
    failures: tuple[str, ...] = ()
    """What was missing, wrong or too much; empty for a full reward."""


def grade(criterion: Criterion, before: State, after: State, last_message: str) -> Grade:
    """Grade an episode.

    Args:
        criterion: what was wanted.
        before: the initial state.
        after: the final state.
        last_message: the agent's last text, where answers are looked for.
    """
    failures = [
        *_change_failures(criterion, state_diff(before, after)),
        *_answer_failures(criterion, last_message),
    ]
    return Grade(reward=0.0 if failures else 1.0, failures=tuple(failures))


def _change_failures(criterion: Criterion, diff: StateDiff) -> Iterator[str]:
    created = [c for c in criterion.changes if c.kind == "created"]
    symbols = _match_created(created, diff)
    if symbols is None:
        yield _creation_failure(created, diff)
        symbols = {}
    wanted_deleted = {(c.container, c.key) for c in criterion.changes if c.kind == "deleted"}
    for place in sorted(wanted_deleted.symmetric_difference(diff.deleted)):
        yield f"{'/'.join(place)} {'was not deleted' if place in wanted_deleted else 'was deleted'}"
    wanted = {(c.container, c.key): c for c in criterion.changes if c.kind == "updated"}
    for place in sorted(wanted.keys() | diff.updated.keys()):
        yield from _update_failures(place, wanted.get(place), diff.updated.get(place, {}), symbols)


def _update_failures(
    place: tuple[str, str], wanted: Change | None, found: dict[str, Any], symbols: dict[str, str]
) -> Iterator[str]:
    expected = wanted.values if wanted is not None else {}
    for field in sorted(expected.keys() | found.keys()):
        where = f"{place[0]}/{place[1]}.{field}"
        if field not in expected:
            yield f"{where} was changed"
        elif field not in found:
            yield f"{where} was not changed"
        elif not meets(expected[field], found[field], symbols):
            yield f"{where} is {found[field]!r}"


def meets(expected: Expected, value: Any, symbols: dict[str, str] | None = None) -> bool:
    """Whether a value is the wanted one under its comparison."""
    match expected.comparison:
        case "free":
            return isinstance(value, str) and bool(value.strip())
        case "number":
            number = _as_number(value)
            return number is not None and abs(number - float(expected.value)) < 0.005
        case "text":
            return isinstance(value, str) and _folded(value) == _folded(str(expected.value))
        case "created":
            return bool((symbols or {}).get(str(expected.value)) == value)
        case _:
            return type(value) is type(expected.value) and bool(value == expected.value)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _match_created(wanted: list[Change], diff: StateDiff) -> dict[str, str] | None:
    """Pair every wanted creation with a created record, one to one; `None` where that cannot be done.

    Returns:
        The key behind each symbol.
    """
    if len(wanted) != len(diff.created):
        return None
    places = list(diff.created)

    def extend(index: int, symbols: dict[str, str], used: frozenset[tuple[str, str]]) -> dict[str, str] | None:
        if index == len(wanted):
            return symbols if all(_record_meets(c, diff, symbols) for c in wanted) else None
        for place in places:
            if place in used or place[0] != wanted[index].container:
                continue
            attempt = {**symbols, wanted[index].key: place[1]}
            if _record_meets(wanted[index], diff, attempt, partial=True):
                found = extend(index + 1, attempt, used | {place})
                if found is not None:
                    return found
        return None

    return extend(0, {}, frozenset())


def _record_meets(change: Change, diff: StateDiff, symbols: dict[str, str], partial: bool = False) -> bool:
    record = diff.created[(change.container, symbols[change.key])]
    for field, expected in change.values.items():
        if partial and expected.comparison == "created" and str(expected.value) not in symbols:
            continue
        if field not in record or not meets(expected, record[field], symbols):
            return False
    return True


def _creation_failure(wanted: list[Change], diff: StateDiff) -> str:
    count = {c: sum(1 for w in wanted if w.container == c) for c in sorted({w.container for w in wanted})}
    found = {c: sum(1 for place in diff.created if place[0] == c) for c in sorted({p[0] for p in diff.created})}
    return f"created records differ: wanted {count or 'none'}, found {found or 'none'}" + (
        "" if count != found else " with other contents"
    )


def _answer_failures(criterion: Criterion, last_message: str) -> Iterator[str]:
    if not criterion.answers:
        return
    given = find_answer(last_message, set(criterion.answers))
    if given is None:
        yield "the last message holds no JSON object with the fields asked for"
        return
    for name, expected in criterion.answers.items():
        if not meets(expected, given[name]):
            yield f"answer {name} is {given[name]!r}"


def find_answer(text: str, names: set[str]) -> dict[str, Any] | None:
    """The last JSON object in a text that has all the named fields."""
    decoder, found, position = json.JSONDecoder(), None, 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        if isinstance(value, dict) and names <= value.keys():
            found = value
        position = end
    return found
