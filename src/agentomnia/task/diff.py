"""The difference of two states, record by record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentomnia.environment.state import State

BOOKKEEPING = frozenset(("clock", "counters"))
"""Containers that follow from the records and are never graded."""


@dataclass(frozen=True)
class StateDiff:
    """What happened between two states; places are `(container, key)`."""

    created: dict[tuple[str, str], dict[str, Any]]
    deleted: tuple[tuple[str, str], ...]
    updated: dict[tuple[str, str], dict[str, Any]]
    """The new values of the fields that changed."""

    @property
    def empty(self) -> bool:
        """Whether the states are the same."""
        return not (self.created or self.deleted or self.updated)


def state_diff(before: State, after: State) -> StateDiff:
    """The difference from one state to a later one. Values that are no records are compared whole."""
    created: dict[tuple[str, str], dict[str, Any]] = {}
    updated: dict[tuple[str, str], dict[str, Any]] = {}
    deleted: list[tuple[str, str]] = []
    for container in sorted((before.keys() | after.keys()) - BOOKKEEPING):
        old, new = _records(before.get(container)), _records(after.get(container))
        if old == new:
            continue
        for key, record in new.items():
            if key not in old:
                created[(container, key)] = record
            elif old[key] != record:
                updated[(container, key)] = _changed_fields(old[key], record)
        deleted += [(container, key) for key in old if key not in new]
    return StateDiff(created=created, deleted=tuple(deleted), updated=updated)


def _records(value: Any) -> dict[str, dict[str, Any]]:
    if isinstance(value, dict) and all(isinstance(v, dict) for v in value.values()):
        return value
    return {} if value is None else {"": {"value": value}}


def _changed_fields(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    gone = {field: None for field in old if field not in new}
    return gone | {field: value for field, value in new.items() if field not in old or old[field] != value}
