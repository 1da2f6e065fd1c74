"""What the two gates prove, in the words of their own modules, and what they dropped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentomnia.synthesis.environments import gate as environment_gate
from agentomnia.synthesis.tasks import gate as task_gate

_LINE = re.compile(r"^ *(\w+) {2,}(\S.*)$", re.MULTILINE)
_REASON = "gate: "


@dataclass(frozen=True)
class Check:
    """One check of a gate."""

    name: str
    sentence: str
    dropped: int
    """Candidates dropped because of it; each is counted at the first check that it failed."""


def environment_checks(reasons: Mapping[str, int] | None = None) -> tuple[Check, ...]:
    """The environment gate, with the candidates that each check dropped."""
    return _checks(environment_gate.__doc__, environment_gate.ENVIRONMENT_CHECKS, reasons or {})


def task_checks(reasons: Mapping[str, int]) -> tuple[Check, ...]:
    """The task gate, with the candidates that each check dropped."""
    return _checks(task_gate.__doc__, task_gate.TASK_CHECKS, reasons)


def _checks(contract: str | None, names: Iterable[str], reasons: Mapping[str, int]) -> tuple[Check, ...]:
    # The gates list their checks in their docstrings; python -OO has none, and the names still say most.
    sentences = dict(_LINE.findall(contract or ""))
    return tuple(Check(n, sentences.get(n, ""), reasons.get(_REASON + n, 0)) for n in names)
