"""Task-level analysis by rule: where an episode was lost, and how (paper, section 6.1.1 "Task-Level Analysis").

The paper's list ("incorrect tool selection, misunderstanding of tool functionality, invalid argument construction,
and improper invocation order") becomes a closed list of kinds. The observed calls are compared with the reference
(`evolution.matching`); nothing is asked of a model, and every claim quotes the trajectory.

    unknown_tool       a tool that does not exist         premature_stop     ended with work left, nothing wrong before
    wrong_tool         another tool for the same record   loop               the same call and answer, over and over
    malformed_call     arguments that are no JSON object  constraint_broken  refused by a rule, a right or a limit
    bad_argument       another value, or a bad schema     extra_change       a change that nobody asked for
    wrong_entity       another record of the right kind   wrong_answer       a wrong value in the final message
    missing_step       left out, though later ones came   wrong_order        before something that it depends on

Heuristics, said once: a reading is at fault only where what it should have shown was never shown; a refused call
that was put right later is no fault; a changed record that the grader is content with counts as done, by any tool.
"""

from __future__ import annotations

from typing import Literal

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.errors import InputError
from agentomnia.evolution.case import Case, FailureKind, Found
from agentomnia.evolution.rules import find_failures
from agentomnia.row import Row
from agentomnia.task.task import PrivateTask, Task
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coordinate import Coordinate


class Quote(Row):
    """Words of a trajectory, verbatim: evidence."""

    message: int
    """Index of the message."""
    text: str
    """Part of its content, or of a call as `tool(arguments)`."""


class Failure(Row):
    """One thing that went wrong in an episode."""

    kind: FailureKind
    turn: int
    """The assistant turn at which it happened, from 0; for what is missing, the turn that came instead."""
    tool: str | None = None
    """The tool that the reference calls there."""
    called: str | None = None
    """The tool that was called there."""
    parameter: str | None = None
    """The argument at fault."""
    reading: bool = False
    """Whether the step at fault only reads."""
    evidence: tuple[Quote, ...]
    """What was called and what was seen."""
    failed_step: str
    """The failed step in words (Table 8, "Failure Trajectory")."""
    expected_step: str
    """The expected step in words (Table 8, "Correct Trajectory")."""


class TaskDiagnosis(Row):
    """The task-level report of one failed episode."""

    schema_version: Literal[1] = 1
    task: str
    trajectory: str
    environment: str
    coordinate: Coordinate
    query: str
    turns: int
    """Assistant turns of the episode."""
    primary: FailureKind
    """Kind of the earliest decisive failure."""
    failures: tuple[Failure, ...]
    """In order of time, the primary one first."""

    @property
    def first(self) -> Failure:
        """The earliest decisive failure."""
        return self.failures[0]

    @property
    def lost_at(self) -> float:
        """How far into the episode it was lost: 0 at the first turn, 1 at the last."""
        return min(1.0, self.first.turn / (self.turns - 1)) if self.turns > 1 else 0.0


def diagnose(trajectory: Trajectory, task: Task, private: PrivateTask, spec: EnvironmentSpec) -> TaskDiagnosis:
    """Say why a failed episode failed.

    Args:
        trajectory: an episode with a reward below 1.
        task: its task.
        private: the privileged part, for the reference.
        spec: the specification of its environment.

    Raises:
        InputError: the episode has no reward or the full one, or the parts do not belong together.
    """
    _refuse_others(trajectory, task, private, spec)
    found = find_failures(Case.of(trajectory, private, spec))
    failures = tuple(_failure(item) for item in found)
    return TaskDiagnosis(
        task=task.id,
        trajectory=trajectory.id,
        environment=task.environment,
        coordinate=task.coordinate,
        query=task.query,
        turns=sum(1 for m in trajectory.messages if m.role == "assistant"),
        primary=failures[0].kind,
        failures=failures,
    )


def _failure(found: Found) -> Failure:
    return Failure(
        kind=found.kind,
        turn=found.turn,
        tool=found.tool,
        called=found.called,
        parameter=found.parameter,
        reading=found.reading,
        evidence=tuple(Quote(message=m, text=t) for m, t in found.evidence),
        failed_step=found.failed,
        expected_step=found.expected,
    )


def _refuse_others(trajectory: Trajectory, task: Task, private: PrivateTask, spec: EnvironmentSpec) -> None:
    if trajectory.reward is None:
        owner = trajectory.failure_owner or "nobody"
        raise InputError(
            f"{trajectory.id} has no reward ({owner}'s failure): it says nothing about the agent; "
            "diagnose episodes with reward 0 only"
        )
    if trajectory.reward >= 1.0:
        raise InputError(f"{trajectory.id} earned the full reward: there is nothing to diagnose; leave it out")
    if not trajectory.task == task.id == private.id or trajectory.environment != task.environment:
        raise InputError(
            f"{trajectory.id} is an episode of {trajectory.task}, not of {task.id}; give each episode with its own task"
        )
    unknown = sorted({c.tool for c in private.calls} - {t.name for t in spec.tools})
    if unknown:
        raise InputError(
            f"{task.id} calls {unknown[0]}, which {spec.name} does not have; give the specification of its environment"
        )
