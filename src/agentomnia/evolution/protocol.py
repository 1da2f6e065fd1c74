"""Protocol validation of diagnosis reports (paper, section 6.1.1): what a report must hold, and what it must prove.

"Reports that do not pass protocol validation are revised by the LLM until all requirements are met": the problems found
here are what its author is given to revise. Reports of the builtin rules pass by construction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from agentomnia.errors import InputError
from agentomnia.evolution.attribution import Failure, Quote, TaskDiagnosis
from agentomnia.evolution.capability import CapabilityGap, gap_key, severity
from agentomnia.evolution.matching import call_text
from agentomnia.llm.message import Message
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.axes import CAPABILITIES, DIFFICULTIES

_CAPABILITIES = frozenset(c.id for c in CAPABILITIES)
_ATOMS = frozenset(d.id for d in DIFFICULTIES)


def report_problems(
    diagnoses: Sequence[TaskDiagnosis], gaps: Sequence[CapabilityGap], trajectories: Mapping[str, Trajectory]
) -> list[str]:
    """Everything missing or inconsistent in the reports of an evaluation.

    Args:
        diagnoses: the task-level reports.
        gaps: the capability-level report.
        trajectories: the episodes by id.

    Returns:
        One sentence a problem, each naming its place and what to do; none for reports that pass.
    """
    problems = [p for d in diagnoses for p in task_problems(d, trajectories.get(d.trajectory))]
    return [*problems, *capability_problems(gaps, diagnoses)]


def require_valid(
    diagnoses: Sequence[TaskDiagnosis], gaps: Sequence[CapabilityGap], trajectories: Mapping[str, Trajectory]
) -> None:
    """Refuse reports that do not pass.

    Raises:
        InputError: names the first problem and counts the rest.
    """
    problems = report_problems(diagnoses, gaps, trajectories)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"the diagnosis does not keep its protocol: {problems[0]}{more}")


def task_problems(diagnosis: TaskDiagnosis, trajectory: Trajectory | None) -> Iterator[str]:
    """What a task-level report lacks, or claims without proof."""
    where = f"diagnosis of {diagnosis.task}"
    if trajectory is None:
        yield f"{where}: there is no trajectory {diagnosis.trajectory!r}; name the episode that was diagnosed"
        return
    if trajectory.task != diagnosis.task or trajectory.coordinate != diagnosis.coordinate:
        yield f"{where}: {trajectory.id} has another task or coordinate; copy both from the trajectory"
    if trajectory.reward is None or trajectory.reward >= 1.0:
        yield f"{where}: {trajectory.id} has reward {trajectory.reward}; leave out what was not lost by the agent"
    if not diagnosis.failures:
        yield f"{where}: names no failure; give at least one, with evidence"
        return
    if diagnosis.primary != diagnosis.first.kind:
        yield f"{where}: primary is {diagnosis.primary}, its first failure {diagnosis.first.kind}; make them agree"
    turns = sum(1 for m in trajectory.messages if m.role == "assistant")
    if diagnosis.turns != turns:
        yield f"{where}: says {diagnosis.turns} turns, the trajectory has {turns}; count assistant messages"
    for number, failure in enumerate(diagnosis.failures):
        yield from _failure_problems(f"{where}, failure {number}", failure, turns, trajectory)


def _failure_problems(where: str, failure: Failure, turns: int, trajectory: Trajectory) -> Iterator[str]:
    if not 0 <= failure.turn < max(1, turns):
        yield f"{where}: turn {failure.turn} is not in the episode; use 0 to {turns - 1}"
    for name, text in (("failed_step", failure.failed_step), ("expected_step", failure.expected_step)):
        if not text.strip():
            yield f"{where}: {name} is empty; say the step in words"
    if not failure.evidence:
        yield f"{where}: has no evidence; quote the call and the observation"
    for quote in failure.evidence:
        yield from _quote_problems(where, quote, trajectory)


def _quote_problems(where: str, quote: Quote, trajectory: Trajectory) -> Iterator[str]:
    if not 0 <= quote.message < len(trajectory.messages):
        yield f"{where}: quotes message {quote.message}, which does not exist; use the index of a message"
    elif not quote.text.strip() or not any(quote.text in t for t in spoken(trajectory.messages[quote.message])):
        yield f"{where}: message {quote.message} does not say {quote.text[:80]!r}; quote it word by word"


def spoken(message: Message) -> list[str]:
    """The texts of a message that can be quoted: content, reasoning, and each call as `tool(arguments)`."""
    calls = [call_text(c.name, c.arguments) for c in message.tool_calls]
    return [message.content or "", message.reasoning_content or "", *calls]


def capability_problems(gaps: Sequence[CapabilityGap], diagnoses: Sequence[TaskDiagnosis]) -> Iterator[str]:
    """What a capability-level report lacks, or does not add up to."""
    repeated = [k for k, n in Counter((g.kind, g.capability) for g in gaps).items() if n > 1]
    for kind, capability in repeated:
        yield f"gap {kind}/{capability}: appears twice; make the two one"
    named = {(g.kind, g.capability) for g in gaps}
    for key in sorted({gap_key(f) for d in diagnoses for f in d.failures} - named):
        yield f"gap {key[0]}/{key[1]}: is missing though tasks fail by it; add it"
    by_task = {d.task: d for d in diagnoses}
    for gap in gaps:
        for problem in _gap_problems(gap, diagnoses, by_task):
            yield f"gap {gap.kind}/{gap.capability}: {problem}"


def _gap_problems(
    gap: CapabilityGap, diagnoses: Sequence[TaskDiagnosis], by_task: Mapping[str, TaskDiagnosis]
) -> Iterator[str]:
    if gap.capability not in _CAPABILITIES:
        yield f"no capability {gap.capability!r}; use an id of Table 2 (`omnia taxonomy list`)"
    for atom in sorted({*gap.atoms, *gap.difficulty} - _ATOMS):
        yield f"no atomic difficulty {atom!r}; use an id of Table 3"
    key = (gap.kind, gap.capability)
    members = [d for d in diagnoses if any(gap_key(f) == key for f in d.failures)]
    primary = sum(1 for d in members if d.failures and gap_key(d.first) == key)
    counted = (len(members), primary, len(diagnoses), primary / len(diagnoses) if diagnoses else 0.0)
    said = (gap.tasks, gap.primary, gap.diagnosed, gap.share)
    for name, mine, theirs in zip(("tasks", "primary", "diagnosed", "share"), said, counted):
        if abs(mine - theirs) > 1e-6:
            yield f"{name} is {mine}, the task-level reports give {theirs:g}; count again"
    if members and all(d.failures for d in members) and abs(gap.severity - severity(members, key)) > 1e-6:
        yield f"severity is {gap.severity}, its formula gives {severity(members, key)}; compute it again"
    for name, counts, total in (("domains", gap.domains, gap.tasks), ("decided", gap.decided, gap.primary)):
        if sum(counts.values()) != total:
            yield f"{name} add up to {sum(counts.values())}, not to {total}; count again"
    if not gap.cause.strip():
        yield "has no cause; say what its failures share"
    yield from _example_problems(gap, by_task)


def _example_problems(gap: CapabilityGap, by_task: Mapping[str, TaskDiagnosis]) -> Iterator[str]:
    if not gap.examples:
        yield "has no example; give at least one with evidence"
    for example in gap.examples:
        diagnosis = by_task.get(example.task)
        known = {(f.failed_step, f.evidence) for f in diagnosis.failures} if diagnosis is not None else set()
        if (example.failed_step, example.evidence) not in known:
            yield f"example {example.task} is in no task-level report; copy one from there"
