"""Pass@1 with a Wilson interval, overall and along the axes of the taxonomy.

A task passes when its reward is 1.0. Episodes without a reward (infrastructure, environment faults) are
counted apart and enter no mean.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentomnia.row import Row
from agentomnia.task.trajectory import Trajectory


class Score(Row):
    """A share of passed tasks."""

    tasks: int
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
    groups: dict[str, dict[str, list[Trajectory]]] = {
        a: {} for a in ("split", "l1", "domain", "capability", "difficulty")
    }
    for trajectory in scored:
        for axis, label in _places(trajectory):
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


def _places(trajectory: Trajectory) -> Iterable[tuple[str, str]]:
    z = trajectory.coordinate
    yield "split", z.split
    yield "l1", f"{z.split}/{z.l1}"
    yield "domain", str(z.domain)
    for capability in z.capabilities:
        yield "capability", capability
    for atom in z.difficulty:
        yield "difficulty", atom


def score(trajectories: list[Trajectory]) -> Score:
    """Pass@1 of scored episodes; no number where there are none."""
    passed = sum(1 for t in trajectories if t.reward is not None and abs(t.reward - 1.0) < 1e-6)
    if not trajectories:
        return Score(tasks=0, passed=0, pass_at_1=None, ci95=None)
    low, high = wilson(passed, len(trajectories))
    return Score(tasks=len(trajectories), passed=passed, pass_at_1=passed / len(trajectories), ci95=(low, high))


def wilson(passed: int, total: int) -> tuple[float, float]:
    """The Wilson score interval at 95 %."""
    from scipy.stats import binomtest

    interval = binomtest(passed, total).proportion_ci(0.95, method="wilson")
    return round(float(interval.low), 6), round(float(interval.high), 6)


def _counts(values: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return dict(sorted(found.items()))
