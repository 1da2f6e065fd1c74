"""A task `τ = (E, s0, D, R)`: the public part, and the privileged part that never reaches an agent.

The public row says what an agent may know. The private row, in a file of its own, holds the criterion,
the reference calls with the source of every argument, the task's DAG and the evidence behind its labels.
"""

from __future__ import annotations

from typing import Any, Literal

from agentomnia.row import Row, canonical_json
from agentomnia.task.criterion import AnswerField, Criterion
from agentomnia.taxonomy.coordinate import Coordinate

TaskKind = Literal["dag", "dag_challenge", "program", "solver_guided", "solver_anchored"]
Mode = Literal["single_turn", "multi_turn"]


class Task(Row):
    """What an agent may know of a task, and where it takes place."""

    schema_version: Literal[1] = 1
    id: str
    environment: str
    """Id of the environment `E`."""
    state: str
    """Name of the initial state `s0` in the environment's package."""
    kind: TaskKind
    mode: Mode = "single_turn"
    query: str
    """The task description `D` in a person's words."""
    answer: tuple[AnswerField, ...] = ()
    """What the final message must contain."""
    tools: tuple[str, ...] = ()
    """Names of the tools exposed; all of the environment's when empty."""
    coordinate: Coordinate
    lineage: str
    """Seed that the task was drawn from."""


class Source(Row):
    """Where an argument's value comes from: the proof that an agent can know it."""

    origin: Literal["query", "observation", "clock", "computation"]
    text: str | None = None
    """For `query`: the words in the query that say it."""
    call: int | None = None
    """For `observation`: index of the reference call that shows it."""
    path: tuple[str | int, ...] = ()
    """For `observation`: the way to the value inside that call's data."""


class ReferenceCall(Row):
    """One call of the reference solution."""

    tool: str
    arguments: dict[str, Any]
    sources: dict[str, Source] = {}
    after: tuple[int, ...] = ()
    """Indices of calls that must come before this one."""


class VirtualNode(Row):
    """A virtual tool of the augmented DAG: thinking between calls, never callable (paper, Table 6)."""

    id: str
    type: Literal["COMPUTE", "LOGIC", "EXTRACT", "TRANSFORM", "AGGREGATE", "VALIDATE", "FILTER"]
    note: str


class TaskDag(Row):
    """The augmented DAG: `call:i` nodes, virtual nodes, and the edges between them."""

    virtual: tuple[VirtualNode, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()


class Evidence(Row):
    """Structural evidence behind a difficulty label."""

    label: str
    measures: dict[str, float]
    threshold: str


class PrivateTask(Row):
    """The privileged part of a task."""

    schema_version: Literal[1] = 1
    id: str
    criterion: Criterion
    calls: tuple[ReferenceCall, ...]
    answer: dict[str, Any] = {}
    dag: TaskDag = TaskDag()
    evidence: tuple[Evidence, ...] = ()
    mentions: tuple[str, ...] = ()
    """Phrases of the query that stand for records or values; none may be lost in rewriting."""


def answer_message(answer: dict[str, Any]) -> str:
    """The last message of a reference solution: done, and the answers as the task wants them."""
    return f"Done. {canonical_json(answer)}" if answer else "Done."
