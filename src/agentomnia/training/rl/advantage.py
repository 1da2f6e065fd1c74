"""What the rewards of one group say: advantages, kind of signal, share of success (paper, section 5.2.4, Eq. 9).

A reward of `None` is a dropped rollout (`filtering`): it enters no mean, no deviation and no share.

A negative reward is a failure that is also punished. It counts as 0 in `success_share`, which steers the
curriculum, and as itself in `group_advantages`: a group of 0 and -1 has no success, and still tells the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from agentomnia.errors import InputError

Signal = Literal["mixed", "all_fail", "all_pass", "single", "empty", "flat"]
"""mixed: rewards differ, the group has a gradient. all_fail, all_pass: every survivor earned 0, or 1. single,
empty: one survivor, or none. flat: any other single value, as where every survivor was punished with -1."""

PASSED = 1.0 - 1e-6
"""From this reward on a rollout has passed; the tolerance is that of `evaluation.summary`."""


def group_advantages(rewards: Sequence[float | None]) -> tuple[float, ...]:
    """The advantages of one group, Eq. 9: (R - mean) / std, with the population's standard deviation.

    Args:
        rewards: one for each rollout; `None` where it was dropped.

    Returns:
        One advantage for each rollout, in order. Zeros where all survivors earned the same, and 0.0 for a dropped
        rollout. A survivor at the mean also has 0.0, so 0.0 does not tell who was dropped: `loss` wants the tokens
        of dropped rollouts left out by mask.

    Raises:
        InputError: a reward is not a finite number.
    """
    survivors = _survivors(rewards)
    if not _differ(survivors):
        return (0.0,) * len(rewards)
    mean = math.fsum(survivors) / len(survivors)
    # hypot neither under- nor overflows where a sum of squares would
    std = math.hypot(*(r - mean for r in survivors)) / math.sqrt(len(survivors))
    return tuple(0.0 if r is None else (r - mean) / std for r in rewards)


def group_signal(rewards: Sequence[float | None]) -> Signal:
    """What kind of signal a group carries; exactly a `mixed` group has an advantage other than 0.

    Raises:
        InputError: a reward is not a finite number.
    """
    survivors = _survivors(rewards)
    if len(survivors) < 2:
        return "single" if survivors else "empty"
    if _differ(survivors):
        return "mixed"
    if survivors[0] == 0:
        return "all_fail"
    return "all_pass" if survivors[0] >= PASSED else "flat"


def success_share(rewards: Sequence[float | None]) -> float | None:
    """The group average R̄_q of Algorithm 1, line 12, over the survivors and with negative rewards read as 0.

    Line 13 asks whether a group failed as a whole. With punished rollouts the plain mean would answer wrongly
    both ways: (1, -1) has a success and the mean 0, (0, -1) has none and a mean other than 0.

    Returns:
        The mean of max(0, R), for binary rewards the share of successes; `None` where nobody survived.

    Raises:
        InputError: a reward is not a finite number.
    """
    survivors = _survivors(rewards)
    if not survivors:
        return None
    return math.fsum(max(0.0, r) for r in survivors) / len(survivors)


def _differ(survivors: list[float]) -> bool:
    # asked of the rewards, not of their deviation: rounding gives equal rewards such as 0.1 a deviation above 0
    return bool(survivors) and min(survivors) < max(survivors)


def _survivors(rewards: Sequence[float | None]) -> list[float]:
    survivors = [r for r in rewards if r is not None]
    for reward in survivors:
        if not math.isfinite(reward):
            raise InputError(f"a group has the reward {reward}: give a number, or None for a rollout without one")
    return survivors
