"""The success criterion `R` of a task: what must change, what must not, and what must be answered.

A criterion speaks of outcomes only, never of the order of calls (paper, section 4.4.1 "Task-completion
evaluation"). What is not named must stay as it was: the frame condition is part of every criterion.
Records that the agent creates are known by a symbol (`$1`), since their keys depend on the order of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import model_validator

from agentomnia.errors import InputError
from agentomnia.row import Row

Comparison = Literal["exact", "number", "text", "free", "created"]
"""`exact`: equal. `number`: equal to half a cent. `text`: equal but for case and spaces. `free`: any text at
all. `created`: the record created under a symbol."""


class Expected(Row):
    """The value wanted in one field."""

    value: Any
    comparison: Comparison = "exact"


class Change(Row):
    """One record that must be created, changed or deleted."""

    kind: Literal["created", "updated", "deleted"]
    container: str
    key: str
    """The record's key, or a symbol such as `$1` for a created one."""
    values: dict[str, Expected] = {}
    """All fields of a created record but its key; the changed fields of an updated one."""


class AnswerField(Row):
    """One value that the agent must give in its final message. Public: it is told to the agent."""

    name: str
    description: str
    type: Literal["number", "string"]


class Criterion(Row):
    """What earns the reward."""

    changes: tuple[Change, ...] = ()
    answers: dict[str, Expected] = {}
    verifier: str | None = None
    """Source of `verify(candidate, truth) -> float`, for tasks whose answer needs a program."""

    @model_validator(mode="after")
    def _asks_something(self) -> Criterion:
        if not self.changes and not self.answers and self.verifier is None:
            raise InputError("a criterion that asks nothing would be met by doing nothing; give changes or answers")
        for problem in _problems(self.changes):
            raise InputError(f"a criterion contradicts itself: {problem}")
        return self


def _problems(changes: tuple[Change, ...]) -> Iterator[str]:
    places = [(c.container, c.key) for c in changes if c.kind != "created"]
    symbols = [c.key for c in changes if c.kind == "created"]
    for place in sorted({p for p in places if places.count(p) > 1}):
        yield f"two changes are about {'/'.join(place)}; make them one"
    for symbol in sorted({s for s in symbols if symbols.count(s) > 1}):
        yield f"two created records are called {symbol}; rename one"
    for change in changes:
        where = f"{change.container}/{change.key}"
        if change.kind == "updated" and not change.values:
            yield f"{where} is updated but no field is named; name the fields that change"
        for name, expected in change.values.items():
            if expected.comparison == "created" and expected.value not in symbols:
                yield f"{where}.{name} wants {expected.value!r}, which no change creates; add it"
            if expected.comparison == "number" and not is_number(expected.value):
                yield f"{where}.{name} compares a number with {expected.value!r}; give a number"


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and value == value
