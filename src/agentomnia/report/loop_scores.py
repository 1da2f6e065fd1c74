"""Scores of the loop: policies beside the floors on each suite, and what changed from policy to policy.

Tables 9 to 13 and Figure 17 of the paper are the models. Everything is counted from `results.jsonl`; a domain of the
held-out domains is one that nothing was trained on, and stands for the paper's external benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from agentomnia.evaluation.compare import Comparison, Difference, compare_outcomes
from agentomnia.evaluation.outcome import Outcome, outcomes
from agentomnia.evaluation.standing import Standing, standings
from agentomnia.evaluation.suite import UNSEEN, Named, parse_name, policy_order, role_of, suite_order
from agentomnia.evaluation.summary import Score
from agentomnia.report.coverage import SPLIT_NAMES
from agentomnia.report.evaluation import AxisTable, label_words, measure, side_by_side
from agentomnia.report.loop_figures import Dot
from agentomnia.runs.rows import read_rows
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.axes import SPLITS

_AXES = ("split", "capability", "difficulty", "l1")
_SUITE_WORDS = {
    "held_out": "Held-out tasks",
    "held_out_domains": "Held-out domains",
    "rl": "RL tasks",
    "sft": "SFT tasks",
}
_SUITE_NOTES = {
    "held_out": "unseen tasks on unseen states of the training domains",
    "held_out_domains": "tasks of domains that nothing was trained on: the external check",
    "rl": "tasks that reinforcement learning trained on",
    "sft": "tasks whose trajectories supervised training saw",
}
Suites = dict[str, dict[str, list[Trajectory]]]
"""Episodes without messages by suite and policy."""


@dataclass(frozen=True)
class LabelRow:
    """A label of an axis: every policy's score, and the change from the first policy to the last."""

    label: str
    tasks: int
    scores: tuple[Score | None, ...]
    change: Difference | None


@dataclass(frozen=True)
class LabelTable:
    """One axis."""

    name: str
    rows: tuple[LabelRow, ...]


@dataclass(frozen=True)
class SuiteView:
    """Every policy on one suite."""

    name: str
    words: str
    note: str
    expected: int
    """Tasks of the suite in `splits.jsonl`; 0 where that is not known."""
    standings: tuple[Standing, ...]
    tables: tuple[LabelTable, ...]
    pair: tuple[str, str] | None
    """The policies that changes in the tables are between."""

    @property
    def trials(self) -> int:
        """The largest number of trials of a task."""
        return max((len(s.reliability) for s in self.standings), default=0)


@dataclass(frozen=True)
class OverallRow:
    """A policy with its standing on every suite."""

    policy: str
    role: str
    standings: tuple[Standing | None, ...]
    average: float | None
    """Macro-average over the unseen suites; `None` unless complete."""


@dataclass(frozen=True)
class StepRow:
    """What one step of the loop changed on one suite."""

    suite: str
    before: str
    after: str
    change: Difference
    harder: Difference | None
    unpaired: int


@dataclass(frozen=True)
class Panel:
    """One split of the scatter of domains."""

    name: str
    tasks: int
    gain: float | None
    dots: tuple[Dot, ...]
    rose: int
    fell: int


@dataclass(frozen=True)
class ScatterView:
    """Pass@1 of level-1 domains before and after post-training (Figure 17)."""

    before: str
    after: str
    panels: tuple[Panel, ...]
    most: int


@dataclass(frozen=True)
class ScoresView:
    """All scores of the loop."""

    suites: tuple[SuiteView, ...]
    overall: tuple[OverallRow, ...]
    steps: tuple[StepRow, ...]
    scatter: ScatterView | None

    @property
    def unseen(self) -> tuple[SuiteView, ...]:
        """The suites of which no task was trained on."""
        return tuple(s for s in self.suites if s.name in UNSEEN)

    @property
    def headline(self) -> tuple[SuiteView, ...]:
        """The suites of the headline: the unseen ones, or all where there are none."""
        return self.unseen or self.suites


def read_suites(run_path: Path) -> Suites:
    """Episodes of every `evaluations/POLICY@SUITE/results.jsonl`, suites and policies in order.

    Raises:
        InputError: a row cannot be read; names file and line.
    """
    names: list[tuple[Named, Path]] = [
        (parse_name(path.parent.name), path) for path in run_path.glob("evaluations/*@*/results.jsonl")
    ]
    found: Suites = {}
    for named, path in sorted(names, key=lambda pair: (suite_order(pair[0].suite or ""), policy_order(pair[0].policy))):
        # messages are most of an episode and no score needs them
        rows = [t.model_copy(update={"messages": ()}) for t in read_rows(path, Trajectory)]
        found.setdefault(named.suite or "", {})[named.policy] = rows
    return found


def learners(policies: Sequence[str]) -> list[str]:
    """The policies that are neither floor nor reference, in the order of the loop."""
    return sorted((p for p in policies if role_of(p) == "agent"), key=policy_order)


def scores_view(found: Suites, calls: Mapping[str, int], expected: Mapping[str, int]) -> ScoresView | None:
    """Arrange the scores; nothing where no suite was evaluated.

    Args:
        found: episodes by suite and policy.
        calls: number of reference calls by task.
        expected: number of tasks by suite.
    """
    if not found:
        return None
    rows = standings({f"{p}@{s}": episodes for s, by in found.items() for p, episodes in by.items()}, calls)
    counted = {s: {p: outcomes(episodes) for p, episodes in by.items()} for s, by in found.items()}
    return ScoresView(
        suites=tuple(_suite(s, found[s], counted[s], rows, expected.get(s, 0)) for s in found),
        overall=tuple(_overall(list(found), rows)),
        steps=tuple(row for s in found for row in _steps(s, counted[s], calls)),
        scatter=_scatter(counted),
    )


def _suite(
    name: str,
    episodes: Mapping[str, list[Trajectory]],
    counted: Mapping[str, Mapping[str, Outcome]],
    rows: Sequence[Standing],
    expected: int,
) -> SuiteView:
    view = side_by_side(replace(measure(p, found), agent=p) for p, found in episodes.items())
    pair = _ends(list(episodes))
    change = None if pair is None else compare_outcomes(counted[pair[0]], counted[pair[1]])
    tables = {t.key: t for t in view.axes}
    return SuiteView(
        name=name,
        words=_SUITE_WORDS.get(name, name.replace("_", " ")),
        note=_SUITE_NOTES.get(name, ""),
        expected=expected,
        standings=tuple(r for r in rows if r.suite == name),
        tables=tuple(_table(tables[axis], change) for axis in _AXES if axis in tables),
        pair=pair,
    )


def _ends(policies: Sequence[str]) -> tuple[str, str] | None:
    """The first and the last policy of the loop."""
    found = learners(policies)
    return (found[0], found[-1]) if len(found) > 1 else None


def _table(found: AxisTable, change: Comparison | None) -> LabelTable:
    changes = change.by[found.key] if change is not None else {}
    return LabelTable(found.name, tuple(LabelRow(r.label, r.tasks, r.scores, changes.get(r.key)) for r in found.rows))


def _overall(suites: Sequence[str], rows: Sequence[Standing]) -> Iterator[OverallRow]:
    by = {(r.policy, r.suite): r for r in rows}
    for policy in sorted({r.policy: None for r in rows}, key=policy_order):
        unseen = [by[policy, s].overall.pass_at_1 for s in suites if s in UNSEEN and (policy, s) in by]
        known = [share for share in unseen if share is not None]
        complete = len(known) == sum(1 for s in suites if s in UNSEEN) > 1
        found = tuple(by.get((policy, s)) for s in suites)
        yield OverallRow(policy, role_of(policy), found, fmean(known) if complete else None)


def _steps(suite: str, counted: Mapping[str, Mapping[str, Outcome]], calls: Mapping[str, int]) -> Iterator[StepRow]:
    """Neighbours in the order of the loop, then first against last where others lie between."""
    found = learners(list(counted))
    pairs = list(pairwise(found)) + ([(found[0], found[-1])] if len(found) > 2 else [])
    for before, after in pairs:
        change = compare_outcomes(counted[before], counted[after], calls)
        unpaired = change.only_before + change.only_after
        yield StepRow(
            _SUITE_WORDS.get(suite, suite.replace("_", " ")), before, after, change.overall, change.harder, unpaired
        )


def _scatter(counted: Mapping[str, Mapping[str, Mapping[str, Outcome]]]) -> ScatterView | None:
    """The unseen suites as one: the first policy against the last one before evolution."""
    unseen = {s: by for s, by in counted.items() if s in UNSEEN}
    shared = [p for p in learners(list(next(iter(unseen.values()), {}))) if all(p in by for by in unseen.values())]
    trained = [p for p in shared if p != "evolved"]
    if len(trained) < 2:
        return None
    before, after = trained[0], trained[-1]
    pooled = [{task: o for by in unseen.values() for task, o in by[p].items()} for p in (before, after)]
    change = compare_outcomes(pooled[0], pooled[1])
    seen = {o.coordinate.domain for o in unseen.get("held_out", {}).get(before, {}).values()}
    trained_l1 = {_l1(o) for o in pooled[0].values() if o.coordinate.domain in seen}
    panels = tuple(_panel(split, change, trained_l1) for split in SPLITS if split in change.by["split"])
    return ScatterView(before, after, panels, max((d.area for p in panels for d in p.dots), default=0))


def _l1(found: Outcome) -> str:
    return f"{found.coordinate.split}/{found.coordinate.l1}"


def _panel(split: str, change: Comparison, trained: set[str]) -> Panel:
    dots = tuple(
        Dot(label_words("l1", label), d.before, d.after, d.tasks, unseen=label not in trained)
        for label, d in change.by["l1"].items()
        if label.startswith(f"{split}/") and d.before is not None and d.after is not None
    )
    whole = change.by["split"][split]
    rose, fell = sum(1 for d in dots if d.after > d.before), sum(1 for d in dots if d.after < d.before)
    return Panel(SPLIT_NAMES[split], whole.tasks, whole.difference, dots, rose, fell)
