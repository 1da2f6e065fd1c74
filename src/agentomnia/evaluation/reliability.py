"""pass^k and pass@k from several trials of each task.

With `c` of `n` trials passed, `C(c, k) / C(n, k)` is the unbiased estimate of the chance that `k` trials all pass
(pass^k, as tau-bench defines it), and `1 - C(n - c, k) / C(n, k)` that of the chance that at least one of them
does (pass@k). Both are computed per task and then averaged over tasks; at `k = 1` both are Pass@1.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb
from statistics import fmean

from agentomnia.errors import InputError
from agentomnia.evaluation.outcome import Outcome, outcomes
from agentomnia.row import Row
from agentomnia.task.trajectory import Trajectory


class Reliability(Row):
    """Both measures at one `k`."""

    k: int
    tasks: int
    """Tasks with at least `k` scored trials; the others are not in the means."""
    pass_hat_k: float
    """Mean chance that all `k` trials pass."""
    pass_at_k: float
    """Mean chance that at least one of `k` trials passes."""


def pass_hat_k(passed: int, trials: int, k: int) -> float:
    """Unbiased estimate of the chance that `k` trials of a task all pass.

    Raises:
        InputError: there are fewer trials than `k`, or the counts contradict each other.
    """
    _check(passed, trials, k)
    return comb(passed, k) / comb(trials, k)


def pass_at_k(passed: int, trials: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of `k` trials of a task passes.

    Raises:
        InputError: there are fewer trials than `k`, or the counts contradict each other.
    """
    _check(passed, trials, k)
    return (comb(trials, k) - comb(trials - passed, k)) / comb(trials, k)


def _check(passed: int, trials: int, k: int) -> None:
    if not (0 <= passed <= trials and 1 <= k <= trials):
        raise InputError(f"k={k} with {passed} of {trials} trials passed: run at least k trials, and count them again")


def reliability(trajectories: Iterable[Trajectory]) -> tuple[Reliability, ...]:
    """Both measures for `k` from 1 to the largest number of trials that a task has.

    Raises:
        InputError: a task has two rows with one seed.
    """
    found = list(outcomes(trajectories).values())
    most = max((o.trials for o in found), default=0)
    return tuple(_at(k, [o for o in found if o.trials >= k]) for k in range(1, most + 1))


def _at(k: int, found: list[Outcome]) -> Reliability:
    return Reliability(
        k=k,
        tasks=len(found),
        pass_hat_k=fmean(pass_hat_k(o.passed, o.trials, k) for o in found),
        pass_at_k=fmean(pass_at_k(o.passed, o.trials, k) for o in found),
    )
