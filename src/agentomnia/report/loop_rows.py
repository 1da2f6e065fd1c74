"""Rows of the loop's files as a report reads them: columns that it does not show are passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentomnia.errors import InputError
from agentomnia.runs.rows import read_rows
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coordinate import Coordinate

R = TypeVar("R", bound="Shown")


class Shown(BaseModel):
    """A row of which a report shows a part."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SplitRow(Shown):
    """A row of `splits.jsonl`: the suite of a task."""

    task: str
    suite: str


class SftRow(Shown):
    """A step of supervised training."""

    step: int
    loss: float
    tokens: int = 0
    lr: float | None = None


class RlRow(Shown):
    """A step of reinforcement learning."""

    step: int
    epoch: int = 0
    reward: float
    pass_rate: float | None = None
    groups: dict[str, int] = {}
    """Groups by kind: `mixed` carries a signal; `all_fail`, `all_pass`, `single` and `empty` carry none."""
    dropped: dict[str, int] = {}
    rollouts: int = 0
    """Rollouts of the step before any was dropped; 0 where the run does not say."""
    negative: int = 0
    """Truncated rollouts that were given a negative reward instead."""
    alarm: str | None = None
    clip_fraction: float | None = None
    ratio_mean: float | None = None
    loss_rl: float | None = None
    loss_ce: float | None = None
    prefix_mean: float | None = None
    tokens: int = 0


class PrefixRow(Shown):
    """The golden prefix of one task at one step."""

    step: int
    epoch: int = 0
    task: str
    prefix: int
    golden_turns: int
    reward: float | None = None
    retries: int = 0


class LoopRow(Shown):
    """What `loop.json` says that no other file does."""

    kl: dict[str, float | None] = {}
    """Divergence of `prd` and `original` data from the failures."""
    rescued: dict[str, int] = {}
    """Tasks that a run (`grpo`, `rcrl`) made solvable, `of` so many."""
    domains: dict[str, dict[str, int]] = {}
    """Tasks by `split/l1` of the sets `prd`, `original` and `failures`."""


class QuoteRow(Shown):
    """Words of a trajectory."""

    message: int
    text: str


class FailureRow(Shown):
    """One thing that went wrong in an episode."""

    kind: str
    turn: int
    tool: str | None = None
    called: str | None = None
    parameter: str | None = None
    evidence: tuple[QuoteRow, ...] = ()
    failed_step: str = ""
    expected_step: str = ""


class DiagnosisRow(Shown):
    """A row of `diagnosis/tasks.jsonl`: why one episode failed."""

    task: str
    trajectory: str
    coordinate: Coordinate
    query: str = ""
    primary: str
    failures: tuple[FailureRow, ...] = Field(min_length=1)
    """In order of time, the primary one first."""


class ExampleRow(Shown):
    """One failure of a gap."""

    task: str
    query: str = ""
    evidence: tuple[QuoteRow, ...] = ()
    failed_step: str = ""
    expected_step: str = ""


class GapRow(Shown):
    """A row of `diagnosis/capabilities.jsonl`: a kind of failure in a capability dimension."""

    kind: str
    capability: str
    cause: str = ""
    tasks: int
    primary: int
    share: float
    severity: float
    domains: dict[int, int] = {}
    tools: dict[str, int] = {}
    parameters: dict[str, int] = {}
    examples: tuple[ExampleRow, ...] = ()


def rows_of(path: Path, kind: type[R]) -> Iterator[R]:
    """The rows of a file; none where the file does not exist.

    Raises:
        InputError: a line cannot be read; names it.
    """
    if path.exists():
        yield from read_rows(path, kind)


def read_loop(path: Path) -> LoopRow:
    """`loop.json`; nothing is known where it does not exist.

    Raises:
        InputError: it cannot be read.
    """
    if not path.exists():
        return LoopRow()
    try:
        return LoopRow.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}: {first['msg']}; run the loop's last stage again") from None


def rows_of_trajectories(path: Path) -> Iterator[Trajectory]:
    """The episodes of a file; none where the file does not exist.

    Raises:
        InputError: a line cannot be read; names it.
    """
    if path.exists():
        yield from read_rows(path, Trajectory)
