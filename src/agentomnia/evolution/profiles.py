"""What the builtin diagnostician knows of each kind of failure; data, in `kinds.yaml` beside this file."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import get_args

import yaml

from agentomnia.evolution.case import FailureKind
from agentomnia.row import Row

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


class KindProfile(Row):
    """One kind of failure: where it belongs on the axes, and what its PRDs say."""

    capability: str
    """Dimension of Table 2."""
    reading: str | None = None
    """The dimension instead, where the step at fault only reads."""
    atoms: tuple[str, ...]
    """Atoms of Table 3 that provoke it."""
    cause: str
    scenario: tuple[str, str]
    """Name and description."""
    requirement: str
    points: tuple[str, ...]
    analysis: str
    environment: tuple[tuple[str, str], ...]
    tasks: tuple[tuple[str, str], ...]
    depth: int
    """Least number of calls in a row, each depending on the one before, of tasks that exercise it."""


@cache
def profiles() -> dict[FailureKind, KindProfile]:
    """The profile of every kind, read once per process."""
    text = resources.files(__package__).joinpath("kinds.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text)
    return {kind: KindProfile.model_validate(raw[kind]) for kind in KINDS}
