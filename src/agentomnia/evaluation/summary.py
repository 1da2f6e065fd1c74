"""Pass@1 with a Wilson interval, overall and along the axes of the taxonomy.

A task passes when its reward is 1.0. Episodes without a reward (infrastructure, environment faults) are
counted apart and enter no mean. Where tasks have several trials (rows with different seeds), Pass@1 is the mean
over episodes and the interval counts each task once: trials of one task are not independent.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from statistics import NormalDist

from agentomnia.evaluation.outcome import AXES, passes, places
from agentomnia.row import Row
from agentomnia.task.trajectory import Trajectory


class Score(Row):
    """A share of passed tasks."""

    tasks: int
    """Scored episodes: one a task, unless several trials were run."""
    passed: int
    pass_at_1: float | None
    ci95: tuple[float, float] | None
    """Wilson interval at 95 %."""


class Summary(Row):
    """What an evaluation says."""

    tasks: int
    pass_at_1: float | None
    ci95: tuple[float, float] | None
    by: dict[str, dict[str, Score]]
    infrastructure_errors: int
    environment_faults: int
    stop_reasons: dict[str, int]
    errors: dict[str, int]
    """Refused calls by error code."""


def summarize(trajectories: Iterable[Trajectory]) -> Summary:
    """Summarise the episodes of one agent."""
    rows = list(trajectories)
    scored = [t for t in rows if t.reward is not None]
    overall = score(scored)
    groups: dict[str, dict[str, list[Trajectory]]] = {axis: {} for axis in AXES}
    for trajectory in scored:
        for axis, label in places(trajectory.coordinate):
            groups[axis].setdefault(label, []).append(trajectory)
    return Summary(
        tasks=len(rows),
        pass_at_1=overall.pass_at_1,
        ci95=overall.ci95,
        by={
            axis: {label: score(members) for label, members in sorted(found.items())} for axis, found in groups.items()
        },
        infrastructure_errors=sum(1 for t in rows if t.failure_owner == "infrastructure"),
        environment_faults=sum(1 for t in rows if t.failure_owner == "environment"),
        stop_reasons=_counts(t.stop_reason for t in rows),
        errors=_counts(s.error for t in rows for s in t.steps if s.error is not None),
    )


def score(trajectories: list[Trajectory]) -> Score:
    """Pass@1 of scored episodes; no number where there are none."""
    if not trajectories:
        return Score(tasks=0, passed=0, pass_at_1=None, ci95=None)
    passed = sum(1 for t in trajectories if passes(t.reward))
    share, tasks = passed / len(trajectories), len({t.task for t in trajectories})
    return Score(
        tasks=len(trajectories), passed=passed, pass_at_1=share, ci95=wilson(passed * tasks / len(trajectories), tasks)
    )


_Z = NormalDist().inv_cdf(0.975)


def wilson(passed: float, total: int) -> tuple[float, float]:
    """The Wilson score interval at 95 %.

    Args:
        passed: how many passed; a fraction where tasks were tried several times.
        total: how many there are, at least one.
    """
    share, weight = passed / total, _Z * _Z / total
    middle = (share + weight / 2) / (1 + weight)
    reach = sqrt(share * (1 - share) * weight + weight * weight / 4) / (1 + weight)
    return round(max(0.0, middle - reach), 6), round(min(1.0, middle + reach), 6)


def _counts(values: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return dict(sorted(found.items()))
