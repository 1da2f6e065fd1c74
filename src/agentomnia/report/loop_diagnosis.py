"""Diagnosis to read: which failures met which capabilities, with the evidence of some of each kind (section 6.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agentomnia.report.loop_rows import DiagnosisRow, GapRow
from agentomnia.taxonomy.axes import CAPABILITIES

CASES = 6
"""Cases of each kind that are shown in full."""
_TOOLS = 4


@dataclass(frozen=True)
class KindRow:
    """A kind of failure: tasks that it lost first, overall and by capability, and some cases."""

    kind: str
    tasks: int
    counts: tuple[int, ...]
    cases: tuple[DiagnosisRow, ...]


@dataclass(frozen=True)
class GapView:
    """A gap with the names of what it touches."""

    row: GapRow
    kind: str
    capability: str
    tools: tuple[tuple[str, int], ...]
    """The most frequent ones."""


@dataclass(frozen=True)
class DiagnosisView:
    """The task-level and the capability-level report."""

    tasks: int
    capabilities: tuple[str, ...]
    kinds: tuple[KindRow, ...]
    by_gap: bool
    """Whether counts are of the dimension that a failure belongs to; else of all capabilities of its task."""
    gaps: tuple[GapView, ...]

    @property
    def most(self) -> int:
        """The highest count of a kind under a capability."""
        return max((count for k in self.kinds for count in k.counts), default=0)


def words(name: str) -> str:
    """An identifier in words."""
    return name.replace("_", " ")


def diagnosis_view(found: Sequence[DiagnosisRow], gaps: Sequence[GapRow]) -> DiagnosisView | None:
    """Arrange the reports, the most frequent kind first; nothing where nothing was diagnosed.

    Args:
        found: the task-level report.
        gaps: the capability-level report; without it kinds are counted under every capability of their tasks.
    """
    if not found:
        return None
    counts: Counter[tuple[str, str]] = Counter()
    for gap in gaps:
        counts[gap.kind, gap.capability] += gap.primary
    if not gaps:
        counts.update((d.primary, capability) for d in found for capability in d.coordinate.capabilities)
    by_kind: dict[str, list[DiagnosisRow]] = {}
    for row in found:
        by_kind.setdefault(row.primary, []).append(row)
    shown = [c for c in CAPABILITIES if any(counts[kind, c.id] for kind in by_kind)]
    ranked = sorted(by_kind, key=lambda kind: (-len(by_kind[kind]), kind))
    return DiagnosisView(
        tasks=len(found),
        capabilities=tuple(c.name for c in shown),
        kinds=tuple(_kind(kind, by_kind[kind], tuple(counts[kind, c.id] for c in shown)) for kind in ranked),
        by_gap=bool(gaps),
        gaps=tuple(_gap(gap) for gap in gaps),
    )


def _kind(kind: str, rows: Sequence[DiagnosisRow], counts: tuple[int, ...]) -> KindRow:
    shown = min(CASES, len(rows))
    cases = tuple(rows[i * len(rows) // shown] for i in range(shown))
    return KindRow(words(kind), len(rows), counts, cases)


def _gap(gap: GapRow) -> GapView:
    names = {c.id: c.name for c in CAPABILITIES}
    tools = sorted(gap.tools.items(), key=lambda pair: (-pair[1], pair[0]))[:_TOOLS]
    return GapView(gap, words(gap.kind), names.get(gap.capability, words(gap.capability)), tuple(tools))
