"""PRDs as cards to read, in the two parts of Table 8: the core specification, and the synthesis guidance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentomnia.report.coverage import domain_words
from agentomnia.report.loop_rows import Shown, rows_of
from agentomnia.taxonomy.axes import capability

MOST = 24
"""Cards on the page."""


class ScenarioRow(Shown):
    """What should work."""

    name: str
    description: str


class RequirementRow(Shown):
    """Behaviour that is required."""

    title: str
    points: tuple[str, ...]


class CaseStudyRow(Shown):
    """One example."""

    title: str
    query: str
    logic: str


class TargetsRow(Shown):
    """Where and what to improve."""

    domains: tuple[int, ...]
    capabilities: tuple[str, ...]


class NoteRow(Shown):
    """A titled paragraph."""

    title: str
    text: str


class AnalysisRow(Shown):
    """Why it fails today."""

    failure_analysis: NoteRow | None = None
    failure_trajectory: NoteRow | None = None
    correct_trajectory: NoteRow | None = None

    @property
    def notes(self) -> tuple[tuple[str, NoteRow], ...]:
        """What there is, under the names of Table 8."""
        found = (
            ("Failure analysis", self.failure_analysis),
            ("Failure trajectory", self.failure_trajectory),
            ("Correct trajectory", self.correct_trajectory),
        )
        return tuple((name, note) for name, note in found if note is not None)


class GuidanceRow(Shown):
    """Part II."""

    analysis: AnalysisRow = AnalysisRow()
    environment: tuple[NoteRow, ...] = ()
    tasks: tuple[NoteRow, ...] = ()
    extra: tuple[NoteRow, ...] = ()
    tools: tuple[str, ...] = ()
    depth: int | None = None
    failures: dict[int, int] = {}

    @property
    def groups(self) -> tuple[tuple[str, tuple[NoteRow, ...]], ...]:
        """The guidance proper, under the names of Table 8."""
        found = (
            ("Environment synthesis", self.environment),
            ("Task synthesis", self.tasks),
            ("Extra information", self.extra),
        )
        return tuple((name, notes) for name, notes in found if notes)


class PrdRow(Shown):
    """A row of `prds/prds.jsonl`."""

    id: str
    priority: str
    status: str
    scenario: ScenarioRow
    requirements: tuple[RequirementRow, ...]
    case_study: CaseStudyRow
    targets: TargetsRow
    guidance: GuidanceRow = GuidanceRow()


@dataclass(frozen=True)
class PrdView:
    """A PRD with the names of its targets."""

    row: PrdRow
    anchor: str
    domains: tuple[str, ...]
    capabilities: tuple[str, ...]
    failures: int
    """Failed tasks behind it; 0 where it does not say."""


@dataclass(frozen=True)
class PrdsView:
    """All PRDs by priority, some of them as cards."""

    shown: tuple[PrdView, ...]
    count: int
    priorities: tuple[tuple[str, int], ...]


def read_prds(path: Path) -> PrdsView | None:
    """Read the PRDs of a run, in the order of the file; nothing where there are none.

    Raises:
        InputError: a row cannot be read, or names a domain or capability that the taxonomy does not have.
    """
    rows = list(rows_of(path, PrdRow))
    if not rows:
        return None
    names = dict.fromkeys(("High", "Medium", "Low", *(r.priority for r in rows)))
    counts = ((name, sum(1 for r in rows if r.priority == name)) for name in names)
    return PrdsView(
        shown=tuple(_view(i, row) for i, row in enumerate(rows[:MOST], 1)),
        count=len(rows),
        priorities=tuple((name, count) for name, count in counts if count),
    )


def _view(number: int, row: PrdRow) -> PrdView:
    return PrdView(
        row=row,
        anchor=f"prd-{number}",
        domains=tuple(domain_words(id) for id in row.targets.domains),
        capabilities=tuple(capability(id).name for id in row.targets.capabilities),
        failures=sum(row.guidance.failures.values()),
    )
