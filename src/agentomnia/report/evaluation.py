"""Evaluations side by side: each agent's Pass@1 with its interval, overall and along the axes.

Scores are computed from `results.jsonl`, never read from a summary, so that an evaluation that was stopped
half way shows what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentomnia.evaluation.suite import Role, policy_order, role_of
from agentomnia.evaluation.summary import Score, Summary, score, summarize
from agentomnia.report.coverage import SPLIT_NAMES, domain_words
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.axes import CAPABILITIES, DIFFICULTIES, SPLITS, level1

_AXES = {
    "split": "Split",
    "l1": "Level 1",
    "domain": "Level 2",
    "capability": "Capability",
    "difficulty": "Difficulty atom",
}


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation of a run found."""

    name: str
    agent: str
    overall: Score
    summary: Summary
    calls: int

    @property
    def role(self) -> Role:
        """Whether the agent is a floor, plays the reference, or is what is measured."""
        return role_of(self.agent)

    @property
    def refused(self) -> int:
        """Calls that the environment refused."""
        return sum(self.summary.errors.values())


@dataclass(frozen=True)
class ScoreRow:
    """A place on an axis with the score of every evaluation there."""

    key: str
    """The label as scores are told apart by."""
    label: str
    tasks: int
    scores: tuple[Score | None, ...]


@dataclass(frozen=True)
class AxisTable:
    """Scores along one axis."""

    key: str
    name: str
    rows: tuple[ScoreRow, ...]


@dataclass(frozen=True)
class CountRow:
    """A stop reason or an error code with its count in every evaluation."""

    label: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class EvaluationsView:
    """All evaluations of a run, floors first, the reference last."""

    evaluations: tuple[Evaluation, ...]
    axes: tuple[AxisTable, ...]
    stops: tuple[CountRow, ...]
    errors: tuple[CountRow, ...]


def measure(name: str, episodes: Iterable[Trajectory]) -> Evaluation:
    """Score the episodes of one evaluation."""
    # messages are most of an episode and no score needs them
    light = [t.model_copy(update={"messages": ()}) for t in episodes]
    agent = light[0].agent if light else name
    overall = score([t for t in light if t.reward is not None])
    return Evaluation(name, agent, overall, summarize(light), sum(len(t.steps) for t in light))


def side_by_side(found: Iterable[Evaluation]) -> EvaluationsView:
    """Arrange evaluations as columns."""
    columns = sorted(found, key=_column)
    return EvaluationsView(
        evaluations=tuple(columns),
        axes=tuple(table for axis in _AXES if (table := _axis(axis, columns)).rows),
        stops=_counts([e.summary.stop_reasons for e in columns]),
        errors=_counts([e.summary.errors for e in columns]),
    )


def _column(found: Evaluation) -> tuple[tuple[int, int, str], str]:
    return (policy_order(found.agent), found.name)


def _axis(axis: str, columns: Sequence[Evaluation]) -> AxisTable:
    groups = [e.summary.by.get(axis, {}) for e in columns]
    labels = [label for label in _axis_order(axis, groups) if any(label in g for g in groups)]
    rows = []
    for label in labels:
        scores = tuple(g.get(label) for g in groups)
        rows.append(ScoreRow(label, label_words(axis, label), max(s.tasks for s in scores if s is not None), scores))
    return AxisTable(axis, _AXES[axis], tuple(rows))


def _axis_order(axis: str, groups: Sequence[dict[str, Score]]) -> list[str]:
    """Every label in the order of its axis."""
    match axis:
        case "split":
            return list(SPLITS)
        case "l1":
            return [f"{split}/{name}" for split, name in level1()]
        case "capability":
            return [c.id for c in CAPABILITIES]
        case "difficulty":
            return [d.id for d in DIFFICULTIES]
    return sorted({label for group in groups for label in group}, key=int)


def label_words(axis: str, label: str) -> str:
    """A label of an axis in words."""
    match axis:
        case "split":
            return SPLIT_NAMES[label]
        case "l1":
            split, _, name = label.partition("/")
            return f"{SPLIT_NAMES[split]} / {name}"
        case "domain":
            return domain_words(int(label))
        case "capability":
            return next(c.name for c in CAPABILITIES if c.id == label)
    return next(d.name for d in DIFFICULTIES if d.id == label)


def _counts(columns: Sequence[dict[str, int]]) -> tuple[CountRow, ...]:
    totals: dict[str, int] = {}
    for column in columns:
        for label, count in column.items():
            totals[label] = totals.get(label, 0) + count
    ranked = sorted(totals, key=lambda label: (-totals[label], label))
    return tuple(CountRow(label.replace("_", " "), tuple(c.get(label, 0) for c in columns)) for label in ranked)
