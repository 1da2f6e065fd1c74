"""Capability-level analysis: task diagnoses grouped into gaps (paper, section 6.1.1 "Capability-Level Analysis").

A gap is a kind of failure in a dimension of Table 2. Which dimension a failure belongs to follows from its kind and
from whether the step at fault only reads (`kinds.yaml`): a choice of this project, since the paper leaves it to a
model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, TypeVar

from agentomnia.evolution.attribution import Failure, Quote, TaskDiagnosis
from agentomnia.evolution.case import FailureKind
from agentomnia.evolution.profiles import profiles
from agentomnia.row import Row
from agentomnia.taxonomy.axes import Split

_EXAMPLES = 3

Label = TypeVar("Label", bound=Hashable)
GapKey = tuple[FailureKind, str]
"""Kind of failure, capability dimension."""


class Example(Row):
    """One failure of a gap, with its evidence."""

    task: str
    trajectory: str
    query: str
    evidence: tuple[Quote, ...]
    failed_step: str
    expected_step: str


class CapabilityGap(Row):
    """A recurring pattern of failure."""

    schema_version: Literal[1] = 1
    kind: FailureKind
    capability: str
    """Dimension of Table 2."""
    atoms: tuple[str, ...]
    """Atoms of Table 3 that provoke it."""
    cause: str
    """What its failures share, in words."""
    tasks: int
    """Failed tasks in which it occurs."""
    primary: int
    """Failed tasks that it decides, being the earliest decisive failure."""
    diagnosed: int
    """All failed tasks that were looked at."""
    share: float
    """`primary / diagnosed`."""
    severity: float
    """From 0 to 1, see `severity`."""
    domains: dict[int, int]
    """Tasks in which it occurs by level-2 domain; sums to `tasks`."""
    decided: dict[int, int]
    """Tasks that it decides by level-2 domain; sums to `primary`."""
    tools: dict[str, int]
    """Occurrences by expected tool (by called tool where the reference has none), most frequent first."""
    called: dict[str, int]
    """Occurrences by called tool."""
    parameters: dict[str, int]
    difficulty: dict[str, int]
    """Tasks by the atoms of their coordinates."""
    examples: tuple[Example, ...]

    @property
    def score(self) -> float:
        """Frequency times severity: what gaps and PRDs are ordered by."""
        return self.share * self.severity


def capability_of(failure: Failure) -> str:
    """The dimension of Table 2 that a failure belongs to."""
    profile = profiles()[failure.kind]
    return profile.reading if failure.reading and profile.reading is not None else profile.capability


def gap_key(failure: Failure) -> GapKey:
    """The gap that a failure belongs to."""
    return failure.kind, capability_of(failure)


def severity(members: Sequence[TaskDiagnosis], key: GapKey) -> float:
    """How much a gap costs where it occurs: `(primary / tasks) · mean(1 − lost_at / 2)`, the mean over what it decides.

    1 where it always decides and always at the first turn; half of that where it decides at the last turn; 0 where it
    only accompanies other failures. The formula is this project's own.
    """
    decided = [d for d in members if gap_key(d.first) == key]
    if not decided:
        return 0.0
    return round(len(decided) / len(members) * sum(1 - d.lost_at / 2 for d in decided) / len(decided), 6)


def find_gaps(diagnoses: Sequence[TaskDiagnosis]) -> list[CapabilityGap]:
    """Group failures into gaps, by frequency times severity."""
    members: dict[GapKey, list[TaskDiagnosis]] = {}
    for diagnosis in diagnoses:
        for key in dict.fromkeys(gap_key(f) for f in diagnosis.failures):
            members.setdefault(key, []).append(diagnosis)
    gaps = [summarize_gap(key, found, len(diagnoses)) for key, found in members.items()]
    return sorted(gaps, key=lambda g: (-g.score, -g.tasks, g.kind, g.capability))


def summarize_gap(key: GapKey, members: Sequence[TaskDiagnosis], diagnosed: int) -> CapabilityGap:
    """Summarise one gap.

    Args:
        key: which gap.
        members: the diagnoses in which it occurs.
        diagnosed: how many failed tasks were looked at.
    """
    kind, capability = key
    failures = [next(f for f in d.failures if gap_key(f) == key) for d in members]
    decided = [d for d in members if gap_key(d.first) == key]
    tools = _counts(f.tool or f.called for f in failures)
    called = _counts(f.called for f in failures)
    parameters = _counts(f.parameter for f in failures)
    profile = profiles()[kind]
    return CapabilityGap(
        kind=kind,
        capability=capability,
        atoms=profile.atoms,
        cause=profile.cause.format(**blanks(tools, called, parameters)),
        tasks=len(members),
        primary=len(decided),
        diagnosed=diagnosed,
        share=round(len(decided) / diagnosed, 6),
        severity=severity(members, key),
        domains=_counts(d.coordinate.domain for d in members),
        decided=_counts(d.coordinate.domain for d in decided),
        tools=tools,
        called=called,
        parameters=parameters,
        difficulty=_counts(a for d in members for a in d.coordinate.difficulty),
        examples=_examples(key, decided or members),
    )


def blanks(tools: dict[str, int], called: dict[str, int], parameters: dict[str, int]) -> dict[str, str]:
    """What the blanks of a profile's texts are filled with: the most frequent ones."""
    return {
        "tool": next(iter(tools), "a tool"),
        "called": next(iter(called), "another tool"),
        "parameter": next(iter(parameters), "one argument"),
    }


def _examples(key: GapKey, members: Sequence[TaskDiagnosis]) -> tuple[Example, ...]:
    """The episodes lost earliest, one of each domain before a second of any."""
    seen: Counter[int] = Counter()
    ranked: list[tuple[int, int, TaskDiagnosis]] = []
    for diagnosis in sorted(members, key=lambda d: (d.lost_at, d.task)):
        ranked.append((seen[diagnosis.coordinate.domain], len(ranked), diagnosis))
        seen[diagnosis.coordinate.domain] += 1
    chosen = [d for _, _, d in sorted(ranked, key=lambda r: r[:2])[:_EXAMPLES]]
    return tuple(_example(d, next(f for f in d.failures if gap_key(f) == key)) for d in chosen)


def _example(diagnosis: TaskDiagnosis, failure: Failure) -> Example:
    return Example(
        task=diagnosis.task,
        trajectory=diagnosis.trajectory,
        query=diagnosis.query,
        evidence=failure.evidence,
        failed_step=failure.failed_step,
        expected_step=failure.expected_step,
    )


def level1_of(diagnosis: TaskDiagnosis) -> tuple[Split, str]:
    """The level-1 domain of a diagnosis, as its key."""
    return diagnosis.coordinate.split, diagnosis.coordinate.l1


def _counts(labels: Iterable[Label | None]) -> dict[Label, int]:
    """Counts, most frequent first; ties by label."""
    count = Counter(label for label in labels if label is not None)
    return dict(sorted(count.items(), key=lambda pair: (-pair[1], str(pair[0]))))
