"""The success criterion `R` of a task: what must change, what must not, and what must be answered.

A criterion speaks of outcomes only, never of the order of calls (paper, section 4.4.1 "Task-completion
evaluation"). What is not named must stay as it was: the frame condition is part of every criterion.
Records that the agent creates are known by a symbol (`$1`), since their keys depend on the order of calls.
"""

from __future__ import annotations

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
        return self
