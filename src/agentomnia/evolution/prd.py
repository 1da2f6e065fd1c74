"""Product Requirement Documents, and the builtin writer of them (paper, section 6.1.2 and Table 8).

Part I, the core specification, is mandatory: it says which scenario is to work and how. Part II, the synthesis
guidance, is optional: evidence from diagnosis, and how environments and tasks should cover it. People may write PRDs by
hand (section 6.4); `evolution.markdown` is their form on disk.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator

from agentomnia.errors import TaxonomyError
from agentomnia.evolution.attribution import TaskDiagnosis
from agentomnia.evolution.capability import CapabilityGap, blanks, gap_key, level1_of, summarize_gap
from agentomnia.evolution.profiles import profiles
from agentomnia.llm.message import Text
from agentomnia.row import Row
from agentomnia.taxonomy.axes import Split, capability, domain

Priority = Literal["High", "Medium", "Low"]
Status = Literal["Draft", "Active", "Closed"]

HIGH, MEDIUM = 0.04, 0.01
"""Least frequency times severity of a High and of a Medium priority. Frequency is the share of all failed tasks, so a
High one loses at least one failed task in 25 at the first turn. The cuts are this project's own."""
MOST_TOOLS = 5
CODES: dict[str, str] = {
    "task_understanding": "UN",
    "information_gathering": "IG",
    "planning_decision_making": "PD",
    "state_management": "SM",
    "tool_use": "TU",
    "code_programmatic_operations": "CP",
    "data_analysis": "DA",
    "office_document_handling": "OD",
    "interactive_collaboration": "IC",
    "reliability_safety": "RS",
}
"""The letters of a PRD's id by capability; Table 8 has `TU` for a gap in tool use."""
_ID = re.compile(r"PRD-[A-Z]{2}-[0-9]{3,}\Z")

Words = Annotated[Text, Field(min_length=1)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class Scenario(Row):
    """What should work: a name, and what it means."""

    name: Words
    description: Words


class Requirement(Row):
    """Behaviour that is required, point by point."""

    title: Words
    points: Annotated[tuple[Words, ...], Field(min_length=1)]


class CaseStudy(Row):
    """One example: what a person asks, and the chain of steps that answers it."""

    title: Words
    query: Words
    logic: Words


class Targets(Row):
    """Where and what to improve, on the axes of the taxonomy."""

    domains: Annotated[tuple[int, ...], Field(min_length=1)]
    """Ids of level-2 domains."""
    capabilities: Annotated[tuple[str, ...], Field(min_length=1)]
    """Ids of Table 2."""

    @field_validator("domains")
    @classmethod
    def _known_domains(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        try:
            return tuple(dict.fromkeys(domain(id).id for id in value))
        except TaxonomyError as error:
            raise ValueError(str(error)) from error

    @field_validator("capabilities")
    @classmethod
    def _known_capabilities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(dict.fromkeys(capability(id).id for id in value))
        except TaxonomyError as error:
            raise ValueError(str(error)) from error


class Note(Row):
    """A titled paragraph of guidance."""

    title: Words
    text: Words


class DeepAnalysis(Row):
    """Why it fails today."""

    failure_analysis: Note | None = None
    failure_trajectory: Note | None = None
    correct_trajectory: Note | None = None


class SynthesisGuidance(Row):
    """Part II: what new environments and tasks should be like; everything is optional."""

    analysis: DeepAnalysis = DeepAnalysis()
    environment: tuple[Note, ...] = ()
    """Titles of section 11.1 and Table 8 name operators, see `evolution.guidance`; others guide people only."""
    tasks: tuple[Note, ...] = ()
    extra: tuple[Note, ...] = ()
    tools: tuple[ToolName, ...] = ()
    """Tools that new tasks should need."""
    depth: Annotated[int, Field(ge=1)] | None = None
    """Least number of calls in a row, each depending on the one before."""
    failures: dict[int, Annotated[int, Field(ge=1)]] = {}
    """Failed tasks behind this PRD by target domain; a domain without a number counts 1."""


class Prd(Row):
    """One PRD, in the two parts of Table 8."""

    schema_version: Literal[1] = 1
    id: str
    priority: Priority
    status: Status
    scenario: Scenario
    requirements: Annotated[tuple[Requirement, ...], Field(min_length=1)]
    case_study: CaseStudy
    targets: Targets
    guidance: SynthesisGuidance = SynthesisGuidance()

    @field_validator("id")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        if not _ID.match(value):
            raise ValueError(f"{value!r} is no PRD id: write PRD-XX-NNN, two capital letters and at least three digits")
        return value


def priority(frequency: float, severity: float) -> Priority:
    """The priority of a gap: its frequency among failed tasks times its severity, against `HIGH` and `MEDIUM`."""
    score = frequency * severity
    return "High" if score >= HIGH else "Medium" if score >= MEDIUM else "Low"


def make_prds(gaps: Sequence[CapabilityGap], diagnoses: Sequence[TaskDiagnosis], most: int = 24) -> list[Prd]:
    """Write the PRDs of a diagnosis: one for each gap in each level-1 domain that it loses tasks in.

    Args:
        gaps: the capability-level report.
        diagnoses: the task-level reports behind it.
        most: how many PRDs at most.

    Returns:
        PRDs by frequency times severity, the most severe first; ids count from 001 in each capability.
    """
    clusters = [
        (summarize_gap((g.kind, g.capability), members, len(diagnoses)), place, members)
        for g in gaps
        for place, members in _clusters(g, diagnoses).items()
    ]
    clusters.sort(key=lambda c: (-c[0].score, c[0].kind, c[0].capability, c[1]))
    numbers: Counter[str] = Counter()
    prds = []
    for gap, place, members in clusters[:most]:
        numbers[gap.capability] += 1
        prds.append(_write(f"PRD-{CODES[gap.capability]}-{numbers[gap.capability]:03d}", gap, place, members))
    return prds


def _clusters(gap: CapabilityGap, diagnoses: Sequence[TaskDiagnosis]) -> dict[tuple[Split, str], list[TaskDiagnosis]]:
    """The tasks that a gap decides, by level-1 domain."""
    found: dict[tuple[Split, str], list[TaskDiagnosis]] = {}
    for diagnosis in diagnoses:
        if gap_key(diagnosis.first) == (gap.kind, gap.capability):
            found.setdefault(level1_of(diagnosis), []).append(diagnosis)
    return found


def _write(id: str, gap: CapabilityGap, place: tuple[Split, str], members: Sequence[TaskDiagnosis]) -> Prd:
    profile = profiles()[gap.kind]
    name, description = profile.scenario
    words = {**blanks(gap.tools, gap.called, gap.parameters), "domain": place[1]}
    example = gap.examples[0]
    first = next(d for d in members if d.task == example.task)
    return Prd(
        id=id,
        priority=priority(gap.share, gap.severity),
        status="Active",
        scenario=Scenario(name=name, description=description.format(**words)),
        requirements=(Requirement(title=profile.requirement, points=profile.points),),
        case_study=CaseStudy(title=first.coordinate.l2, query=example.query, logic=example.expected_step),
        targets=Targets(domains=tuple(sorted(gap.decided)), capabilities=(gap.capability,)),
        guidance=_guidance(gap, place, members),
    )


def _guidance(gap: CapabilityGap, place: tuple[Split, str], members: Sequence[TaskDiagnosis]) -> SynthesisGuidance:
    profile, example = profiles()[gap.kind], gap.examples[0]
    counted = f"It decides {gap.primary} of {gap.diagnosed} failed tasks, in {place[0]} / {place[1]}."
    tools = Counter(d.first.tool for d in members if d.first.tool is not None)
    return SynthesisGuidance(
        analysis=DeepAnalysis(
            failure_analysis=Note(title=profile.analysis, text=f"{gap.cause} {counted}"),
            failure_trajectory=Note(title="Incorrect", text=example.failed_step),
            correct_trajectory=Note(title="Correct", text=example.expected_step),
        ),
        environment=tuple(Note(title=t, text=x) for t, x in profile.environment),
        tasks=tuple(Note(title=t, text=x) for t, x in profile.tasks),
        extra=_extra(gap),
        tools=tuple(sorted(tools, key=lambda t: (-tools[t], t))[:MOST_TOOLS]),
        depth=profile.depth,
        failures=dict(sorted(gap.decided.items())),
    )


def _extra(gap: CapabilityGap) -> tuple[Note, ...]:
    if not gap.parameters:
        return ()
    named = ", ".join(f"{name} ({count})" for name, count in gap.parameters.items())
    return (Note(title="Contextual Metadata", text=f"Arguments at fault: {named}."),)


def example_prd(target: int) -> Prd:
    """A valid PRD for a domain with everything filled in, to be edited: Table 8 in the words of that domain.

    Raises:
        TaxonomyError: no domain has the id.
    """
    place = domain(target)
    thing = place.objects[0]["name"] if place.objects else "record"
    return Prd(
        id="PRD-TU-001",
        priority="Medium",
        status="Draft",
        scenario=Scenario(
            name="Multi-tool Composition",
            description=f"Output of preceding tools serves as input for subsequent invocations, in {place.l2}.",
        ),
        requirements=(
            Requirement(
                title="Cross-tool Integrity",
                points=(
                    "Map the output of one tool to the corresponding parameters of the next.",
                    "Perform necessary schema transformation and normalization.",
                    "Maintain state consistency across the execution trace.",
                ),
            ),
        ),
        case_study=CaseStudy(
            title=place.l2,
            query=f"Find my {thing} of last week and change it as agreed.",
            logic=f"search → extract the key of the {thing} → change that {thing}",
        ),
        targets=Targets(domains=(target,), capabilities=("tool_use",)),
        guidance=SynthesisGuidance(
            environment=(
                Note(title="Distractor Injection", text="Inject look-alike records that their status excludes."),
            ),
            tasks=(Note(title="Dependency Depth", text="Enforce at least three sequential dependencies."),),
            depth=3,
        ),
    )
