"""Advantages and signals of a group against exact arithmetic."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentomnia.errors import InputError
from agentomnia.training.rl.advantage import group_advantages, group_signal, success_share

Rewards = list[float | None]

REWARD = st.one_of(st.none(), st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.3]), st.floats(-10, 10, width=16))
GROUPS = st.lists(REWARD, max_size=12)


def exact_advantages(rewards: Rewards) -> list[float]:
    """Eq. 9 in fractions, rounded at the end only."""
    kept = [Fraction(r) for r in rewards if r is not None]
    if len(set(kept)) < 2:
        return [0.0 for _ in rewards]
    mean = sum(kept) / len(kept)
    std = Fraction(statistics.pstdev(kept))
    return [0.0 if r is None else float((Fraction(r) - mean) / std) for r in rewards]


@pytest.mark.parametrize(
    ("rewards", "advantages", "signal"),
    [
        ([1.0, 0.0], (1.0, -1.0), "mixed"),
        ([1.0, 0.0, 0.0, 0.0], (math.sqrt(3), *[-1 / math.sqrt(3)] * 3), "mixed"),
        ([1.0, None, 0.0, None], (1.0, 0.0, -1.0, 0.0), "mixed"),
        ([0.0, -1.0], (1.0, -1.0), "mixed"),
        ([0.0, 0.0, None], (0.0, 0.0, 0.0), "all_fail"),
        ([-0.0, 0.0], (0.0, 0.0), "all_fail"),
        ([1.0, 1.0], (0.0, 0.0), "all_pass"),
        ([-1.0, -1.0], (0.0, 0.0), "flat"),
        ([0.1, 0.1, 0.1], (0.0, 0.0, 0.0), "flat"),
        ([None, 1.0], (0.0, 0.0), "single"),
        ([None, None], (0.0, 0.0), "empty"),
        ([], (), "empty"),
    ],
)
def test_known_groups(rewards: Rewards, advantages: tuple[float, ...], signal: str) -> None:
    assert group_advantages(rewards) == pytest.approx(advantages, abs=1e-12)
    assert group_signal(rewards) == signal


@given(GROUPS)
def test_advantages_are_equation_9(rewards: Rewards) -> None:
    assert group_advantages(rewards) == pytest.approx(exact_advantages(rewards), abs=1e-9)


@given(GROUPS)
def test_dropped_rollouts_change_nothing(rewards: Rewards) -> None:
    kept = [r for r in rewards if r is not None]
    among = iter(group_advantages(kept))
    assert group_advantages(rewards) == tuple(0.0 if r is None else next(among) for r in rewards)
    assert group_signal(rewards) == group_signal(kept)
    assert success_share(rewards) == success_share(kept)


@given(GROUPS)
def test_only_mixed_groups_have_a_gradient(rewards: Rewards) -> None:
    assert any(group_advantages(rewards)) == (group_signal(rewards) == "mixed")


def test_success_share_reads_punishment_as_failure() -> None:
    assert success_share([1.0, -1.0]) == 0.5
    assert success_share([0.0, -1.0, None]) == 0.0
    assert success_share([1.0, None, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert success_share([None]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_are_numbers(bad: float) -> None:
    for function in (group_advantages, group_signal, success_share):
        with pytest.raises(InputError, match="give a number, or None"):
            function([0.0, bad])


def test_the_arithmetic_needs_no_torch() -> None:
    code = (
        "import sys; from agentomnia.training.rl import advantage, filtering, rollback; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
