"""Statistics of a run, as Table 5 and Figures 6 and 8 of the paper report them.

Attributes of an environment include the key of each entity. DAG depth is the number of calls on the longest
chain of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentomnia.report.distribution import Distribution
from agentomnia.report.index import IndexRow
from agentomnia.report.task import call_depth
from agentomnia.synthesis.environments.gate import Verification
from agentomnia.synthesis.environments.toolset import ToolDecision
from agentomnia.task.task import PrivateTask, Task

_REASONS = 12
DECISIONS = ("kept", "merged", "split", "rewritten", "removed")


@dataclass(frozen=True)
class Compared:
    """A row of Table 5: this run beside the paper."""

    metric: str
    here: str
    paper: str


@dataclass(frozen=True)
class Refinement:
    """What became of the candidate tools."""

    decisions: tuple[tuple[str, int], ...]
    reasons: tuple[tuple[str, str, int], ...]
    """Decision, reason without its evidence, and count; the most frequent first."""
    other: int
    """Decisions behind reasons that are not listed."""

    @property
    def candidates(self) -> int:
        """Decisions in all."""
        return sum(count for _, count in self.decisions)

    @property
    def most(self) -> int:
        """The count of the most frequent decision."""
        return max((count for _, count in self.decisions), default=0)


@dataclass(frozen=True)
class GateWork:
    """What the environment gate did over all kept environments."""

    environments: int
    passed: int
    tools: int
    declared_errors: int
    bad_inputs: int
    walked_calls: int
    accepted_calls: int


@dataclass(frozen=True)
class EnvironmentStatistics:
    """Statistics of the environments (Table 5, Figure 6)."""

    table: tuple[Compared, ...]
    distributions: tuple[Distribution, ...]
    tools: int
    modifying: int


@dataclass(frozen=True)
class TaskStatistics:
    """Statistics of the tasks (Figure 8)."""

    distributions: tuple[Distribution, ...]
    kinds: tuple[tuple[str, int], ...]
    virtual: tuple[tuple[str, int], ...]
    """Virtual nodes by type (Table 6)."""
    sources: tuple[tuple[str, int], ...]
    """Arguments of reference calls by where they come from."""
    changes: tuple[tuple[str, int], ...]
    """Required changes by kind."""


def environment_statistics(rows: Sequence[IndexRow]) -> EnvironmentStatistics:
    """Measure the rows of `environments.jsonl`."""
    tools = Distribution.of("Tools", (r.tools for r in rows))
    entities = Distribution.of("Entities", (r.entities for r in rows))
    attributes = Distribution.of("Attributes", (r.attributes for r in rows))
    per_entity = f"{attributes.total / entities.total:.1f}" if entities.total else "–"
    table = (
        Compared("Environments", f"{len(rows):,}", "5,018"),
        Compared("Tools in all", f"{tools.total:,}", "255,375"),
        Compared("Tools", moments(tools), "50.9 ± 13.4"),
        Compared("Entities", moments(entities), "13.3 ± 3.9"),
        Compared("Attributes", moments(attributes), "77.3 ± 22.5"),
        Compared("Attributes per entity", per_entity, "5.9"),
    )
    modifying = sum(r.modifying for r in rows)
    return EnvironmentStatistics(table, (tools, entities, attributes), tools.total, modifying)


def moments(found: Distribution) -> str:
    """Mean and standard deviation in words; no deviation below two values."""
    if found.mean is None:
        return "–"
    return f"{found.mean:.1f}" if found.std is None else f"{found.mean:.1f} ± {found.std:.1f}"


def refinement(log: Iterable[ToolDecision]) -> Refinement:
    """Count the decisions of tool set refinement."""
    decisions: Counter[str] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    for row in log:
        decisions[row.decision] += 1
        reasons[(row.decision, row.reason.partition(": ")[0])] += 1
    ranked = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    listed = tuple((decision, reason, count) for (decision, reason), count in ranked[:_REASONS])
    return Refinement(
        decisions=tuple((d, decisions[d]) for d in DECISIONS),
        reasons=listed,
        other=sum(count for _, count in ranked[_REASONS:]),
    )


def gate_work(records: Iterable[Verification]) -> GateWork:
    """Sum the verification records."""
    found = list(records)
    return GateWork(
        environments=len(found),
        passed=sum(1 for v in found if v.passed),
        tools=sum(v.tools for v in found),
        declared_errors=sum(v.declared_errors for v in found),
        bad_inputs=sum(v.bad_inputs for v in found),
        walked_calls=sum(v.walked_calls for v in found),
        accepted_calls=sum(v.accepted_calls for v in found),
    )


class TaskCounter:
    """Counts tasks one by one, so that memory does not grow with their text."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self.calls: list[int] = []
        self.depths: list[int] = []
        self.tools: list[int] = []
        self.words: list[int] = []
        self.kinds: Counter[str] = Counter()
        self.virtual: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()

    def add(self, task: Task, private: PrivateTask) -> None:
        """Count one task."""
        self.calls.append(len(private.calls))
        self.depths.append(call_depth(private))
        self.tools.append(len({c.tool for c in private.calls}))
        self.words.append(len(task.query.split()))
        self.kinds[f"{task.kind.replace('_', ' ')}, {task.mode.replace('_', ' ')}"] += 1
        self.virtual.update(v.type for v in private.dag.virtual)
        self.sources.update(s.origin for c in private.calls for s in c.sources.values())
        self.changes.update(c.kind for c in private.criterion.changes)
        self.changes.update("answered" for _ in private.criterion.answers)

    def statistics(self) -> TaskStatistics:
        """What was counted."""
        return TaskStatistics(
            distributions=(
                Distribution.of("Calls of the reference", self.calls),
                Distribution.of("DAG depth", self.depths),
                Distribution.of("Different tools used", self.tools),
                Distribution.of("Words of the request", self.words),
            ),
            kinds=_ranked(self.kinds),
            virtual=_ranked(self.virtual),
            sources=_ranked(self.sources),
            changes=_ranked(self.changes),
        )


def _ranked(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
