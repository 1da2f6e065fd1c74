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
from agentomnia.task.criterion import Change, Criterion, Expected, is_number
from agentomnia.task.diff import StateDiff, state_diff

_ANSWER_CHARACTERS = 8_000
"""How much of the last message is searched: each brace costs a look at all before it."""


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
        *(["the criterion has a verifier, which nobody has run"] if criterion.verifier is not None else []),
    ]
    return Grade(reward=0.0 if failures else 1.0, failures=tuple(failures))


def _change_failures(criterion: Criterion, diff: StateDiff) -> Iterator[str]:
    created = [c for c in criterion.changes if c.kind == "created"]
    symbols = _match_created(criterion, created, diff)
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
            return number is not None and is_number(expected.value) and abs(number - expected.value) < 0.005
        case "text":
            return isinstance(value, str) and _folded(value) == _folded(str(expected.value))
        case "created":
            return isinstance(value, str) and (symbols or {}).get(str(expected.value)) == value
        case _:
            return _same(expected.value, value)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _same(wanted: Any, value: Any) -> bool:
    """Equality that tells 1, 1.0 and true apart, at any depth."""
    if type(wanted) is not type(value):
        return False
    if isinstance(wanted, list):
        return len(wanted) == len(value) and all(map(_same, wanted, value))
    if isinstance(wanted, dict):
        return wanted.keys() == value.keys() and all(_same(v, value[k]) for k, v in wanted.items())
    return bool(wanted == value)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _match_created(criterion: Criterion, wanted: list[Change], diff: StateDiff) -> dict[str, str] | None:
    """Pair every wanted creation with a created record, one to one; `None` where that cannot be done.

    Only records that others refer to are tried one after another. What they are decides who fits where, and a
    matching finds the rest at once, however many are alike.

    Returns:
        The key behind each symbol.
    """
    if len(wanted) != len(diff.created):
        return None
    named = {str(e.value) for c in criterion.changes for e in c.values.values() if e.comparison == "created"}
    leaders, others = [c for c in wanted if c.key in named], [c for c in wanted if c.key not in named]
    without_links: dict[str, str] | None = None
    for symbols, used in _assignments(leaders, diff, {}, frozenset()):
        paired = _paired(others, diff, symbols, used)
        if paired is not None and _links_meet(criterion, diff, symbols):
            return {**symbols, **paired}
        if paired is not None and without_links is None:
            without_links = {**symbols, **paired}
    return without_links  # the updates then say what is wrong


def _assignments(
    leaders: list[Change], diff: StateDiff, symbols: dict[str, str], used: frozenset[tuple[str, str]]
) -> Iterator[tuple[dict[str, str], frozenset[tuple[str, str]]]]:
    """Every way to give the leaders records that fit them."""
    if len(symbols) == len(leaders):
        if all(_record_meets(c, diff, symbols) for c in leaders):
            yield symbols, used
        return
    leader = leaders[len(symbols)]
    for place in diff.created:
        if place not in used and place[0] == leader.container:
            attempt = {**symbols, leader.key: place[1]}
            if _record_meets(leader, diff, attempt, partial=True):
                yield from _assignments(leaders, diff, attempt, used | {place})


def _paired(
    wanted: list[Change], diff: StateDiff, symbols: dict[str, str], used: frozenset[tuple[str, str]]
) -> dict[str, str] | None:
    """A perfect matching of the rest, by augmenting paths."""
    places = [p for p in diff.created if p not in used]
    fitting = [
        [p for p in places if p[0] == c.container and _record_meets(c, diff, {**symbols, c.key: p[1]})] for c in wanted
    ]
    taken: dict[tuple[str, str], int] = {}

    def place(index: int, seen: set[tuple[str, str]]) -> bool:
        for option in fitting[index]:
            if option not in seen:
                seen.add(option)
                if option not in taken or place(taken[option], seen):
                    taken[option] = index
                    return True
        return False

    if not all(place(index, set()) for index in range(len(wanted))):
        return None
    return {wanted[index].key: option[1] for option, index in taken.items()}


def _links_meet(criterion: Criterion, diff: StateDiff, symbols: dict[str, str]) -> bool:
    """Whether the updated records refer to the created ones as wanted."""
    return all(
        meets(expected, diff.updated.get((change.container, change.key), {}).get(field), symbols)
        for change in criterion.changes
        if change.kind == "updated"
        for field, expected in change.values.items()
        if expected.comparison == "created"
    )


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
    """The last JSON object in a text that has all the named fields; of a very long text, its end is read."""
    text = text[-_ANSWER_CHARACTERS:]
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
