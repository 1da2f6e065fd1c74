"""What a policy did with each task: how many of its scored trials passed.

A trial passes when its reward is 1.0. Trials of one task are rows with different seeds. A row without a reward
(infrastructure, environment fault) says nothing about the policy and is no trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentomnia.errors import InputError
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coordinate import Coordinate

AXES = ("split", "l1", "domain", "capability", "difficulty")
"""Where scores are told apart; level 1 is named `split/l1`, level 2 by its id."""


@dataclass(frozen=True)
class Outcome:
    """The scored trials of one task."""

    task: str
    coordinate: Coordinate
    trials: int
    passed: int

    @property
    def rate(self) -> float:
        """The share of trials that passed."""
        return self.passed / self.trials


def passes(reward: float | None) -> bool:
    """Whether a reward is full."""
    return reward is not None and abs(reward - 1.0) < 1e-6


def outcomes(trajectories: Iterable[Trajectory]) -> dict[str, Outcome]:
    """The outcome of every task with a scored trial, by task id in the order of the rows.

    Raises:
        InputError: a task has two rows with one seed, which would count one trial twice.
    """
    found: dict[str, Outcome] = {}
    seen: set[tuple[str, int]] = set()
    for row in trajectories:
        if (row.task, row.seed) in seen:
            raise InputError(f"task {row.task} has two rows with seed {row.seed}; give each trial a seed of its own")
        seen.add((row.task, row.seed))
        if row.reward is not None:
            before = found.get(row.task, Outcome(row.task, row.coordinate, 0, 0))
            found[row.task] = Outcome(
                row.task, row.coordinate, before.trials + 1, before.passed + int(passes(row.reward))
            )
    return found


def places(z: Coordinate) -> Iterator[tuple[str, str]]:
    """Every axis and label that a coordinate counts under."""
    yield "split", z.split
    yield "l1", f"{z.split}/{z.l1}"
    yield "domain", str(z.domain)
    for capability in z.capabilities:
        yield "capability", capability
    for atom in z.difficulty:
        yield "difficulty", atom


def harder_half(calls: dict[str, int]) -> tuple[str, ...]:
    """The harder half of some tasks, easiest of them first.

    A heuristic: tasks are ordered by the number of calls of their reference solution, ties by task id, and the
    upper half is taken; of an odd number the middle task belongs to the easier half.

    Args:
        calls: number of reference calls by task id.
    """
    ranked = sorted(calls, key=lambda task: (calls[task], task))
    return tuple(ranked[len(ranked) - len(ranked) // 2 :])
