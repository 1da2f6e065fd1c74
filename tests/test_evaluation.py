"""Evaluation measured against second implementations: trials, intervals, paired comparison, suites."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from agentomnia.errors import InputError
from agentomnia.evaluation.compare import compare, mcnemar, newcombe
from agentomnia.evaluation.outcome import harder_half, outcomes
from agentomnia.evaluation.reliability import pass_at_k, pass_hat_k, reliability
from agentomnia.evaluation.standing import standings
from agentomnia.evaluation.suite import parse_name, policy_order, suite_order
from agentomnia.evaluation.summary import summarize, wilson
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coordinate import Coordinate

SALON, HELPDESK = 10006, 20014


def episode(task: str, reward: float | None, seed: int = 0, domain: int = SALON, atom: str | None = None) -> Trajectory:
    z = Coordinate(
        domain=domain, capabilities=("tool_use",), difficulty=() if atom is None else (atom,), primary=atom
    )  # fmt: skip
    return Trajectory(
        id=f"{task}-{seed}",
        task=task,
        environment="E",
        state="s0",
        agent="chat",
        seed=seed,
        coordinate=z,
        messages=(),
        stop_reason="completed",
        reward=reward,
        initial_digest="0",
    )


def trials(task: str, *rewards: float | None, domain: int = SALON) -> list[Trajectory]:
    return [episode(task, reward, seed, domain) for seed, reward in enumerate(rewards)]


def one_each(marks: str, domain: int = SALON) -> list[Trajectory]:
    """A trial a task: `1` passed, `0` failed, `-` says nothing."""
    rewards = {"1": 1.0, "0": 0.0, "-": None}
    return [episode(f"t{i:03}", rewards[m], domain=domain) for i, m in enumerate(marks)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_both_estimators_are_the_mean_over_all_choices_of_k_trials(found: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(found)))
    chosen = list(combinations(found, k))
    assert pass_hat_k(sum(found), len(found), k) == pytest.approx(fmean(all(c) for c in chosen))
    assert pass_at_k(sum(found), len(found), k) == pytest.approx(fmean(any(c) for c in chosen))


@pytest.mark.parametrize(("passed", "tried", "k"), [(1, 3, 4), (1, 3, 0), (4, 3, 1), (-1, 3, 1)])
def test_estimators_refuse_what_was_not_tried(passed: int, tried: int, k: int) -> None:
    for estimate in (pass_hat_k, pass_at_k):
        with pytest.raises(InputError, match="at least k trials"):
            estimate(passed, tried, k)


def test_reliability_is_per_task_then_mean_and_leaves_out_short_tasks() -> None:
    rows = [*trials("a", 1.0, 1.0, 0.0), *trials("b", 0.0, 1.0), *trials("c", None, None)]
    first, second, third = reliability(rows)
    assert (first.k, first.tasks) == (1, 2)
    assert first.pass_hat_k == first.pass_at_k == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert second.pass_hat_k == pytest.approx((1 / 3 + 0) / 2) and second.pass_at_k == 1.0
    assert (third.tasks, third.pass_hat_k, third.pass_at_k) == (1, 0.0, 1.0)
    assert reliability([]) == ()


def test_a_trial_counts_once() -> None:
    with pytest.raises(InputError, match="two rows with seed 0"):
        outcomes([episode("a", 1.0), episode("a", 1.0)])


@given(st.integers(0, 400), st.integers(1, 400))
def test_wilson_is_scipys(passed: int, more: int) -> None:
    total = max(passed, more)
    peer = binomtest(passed, total).proportion_ci(0.95, method="wilson")
    assert wilson(passed, total) == pytest.approx((peer.low, peer.high), abs=1e-6)


def test_several_trials_of_a_task_do_not_narrow_the_interval() -> None:
    once = summarize(one_each("1010"))
    thrice = summarize([episode(t.task, t.reward, seed) for t in one_each("1010") for seed in range(3)])
    assert (once.tasks, thrice.tasks) == (4, 12)
    assert thrice.pass_at_1 == once.pass_at_1 == 0.5 and thrice.ci95 == once.ci95
    assert thrice.by["l1"]["toc/Lifestyle"].ci95 == once.ci95


def test_a_comparison_names_what_was_gained_and_lost() -> None:
    found = compare(one_each("0011-1"), one_each("0101-"))
    assert found.overall.gained == ("t001",) and found.overall.lost == ("t002",)
    assert (found.overall.tasks, found.overall.difference, found.overall.p) == (4, 0.0, 1.0)
    assert (found.only_before, found.only_after) == (1, 0)


def test_labels_partition_the_tasks_of_a_comparison() -> None:
    before = [episode(f"a{i}", 0.0) for i in range(5)] + [
        episode(f"b{i}", 1.0, domain=HELPDESK, atom="dynamic_planning") for i in range(4)
    ]
    after = [t.model_copy(update={"reward": 1.0 - (t.reward or 0.0)}) for t in before]
    found = compare(before, after)
    for axis in ("split", "l1", "domain"):
        assert sum(d.tasks for d in found.by[axis].values()) == 9
    assert found.by["split"]["toc"].difference == 1.0 and found.by["split"]["tob"].difference == -1.0
    assert found.by["difficulty"].keys() == {"dynamic_planning"}
    assert found.by["capability"]["tool_use"].gained == tuple(f"a{i}" for i in range(5))


def test_the_harder_half_is_by_calls_then_id() -> None:
    assert harder_half({"c": 2, "a": 2, "b": 9, "d": 1, "e": 2}) == ("e", "b")
    calls = {f"t{i:03}": i for i in range(6)}
    found = compare(one_each("000000"), one_each("000111"), calls)
    assert found.harder is not None and found.easier is not None
    assert (found.harder.difference, found.easier.difference) == (1.0, 0.0)
    assert (found.harder.tasks, found.easier.tasks) == (3, 3)
    assert compare(one_each("0"), one_each("1")).harder is None


def test_nothing_in_common_is_no_number() -> None:
    found = compare(one_each("1")[:0], one_each("1"))
    assert found.overall.difference is None and found.overall.p is None and found.only_after == 1


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_scipys_binomial_test(gained: int, lost: int) -> None:
    peer = binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(peer, rel=1e-9, abs=1e-300)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(1, 30))
def test_newcombe_holds_the_difference_and_mirrors(both: int, gained: int, lost: int, neither: int) -> None:
    n = both + gained + lost + neither
    low, high = newcombe(both, gained, lost, neither)
    assert -1.0 <= low <= (gained - lost) / n <= high <= 1.0
    assert low < high
    assert newcombe(both, lost, gained, neither) == pytest.approx((-high, -low), abs=2e-6)


def test_newcombe_covers_the_truth_about_as_often_as_it_says() -> None:
    """Pairs with a known difference of 0.2: the interval holds it in about 95 of 100 samples."""
    rng = Random("coverage/newcombe")
    cells = ("both", "gained", "lost", "neither")
    hits = 0
    for _ in range(1_000):
        drawn = rng.choices(cells, weights=(0.3, 0.25, 0.05, 0.4), k=40)
        low, high = newcombe(*(drawn.count(c) for c in cells))
        hits += low <= 0.2 <= high
    assert 0.93 <= hits / 1_000 <= 0.985


def test_the_bootstrap_of_trials_agrees_with_the_score_interval_of_single_ones() -> None:
    rng = Random("bootstrap")
    before = "".join(rng.choice("0001") for _ in range(300))
    after = "".join("1" if b == "1" or rng.random() < 0.3 else "0" for b in before)
    single = compare(one_each(before), one_each(after)).overall
    doubled = compare(_twice(one_each(before)), _twice(one_each(after))).overall
    assert single.ci95 is not None and doubled.ci95 is not None
    assert doubled.difference == pytest.approx(single.difference)
    assert doubled.ci95 == pytest.approx(single.ci95, abs=0.02)
    assert doubled == compare(_twice(one_each(before)), _twice(one_each(after))).overall


def _twice(rows: Iterable[Trajectory]) -> list[Trajectory]:
    return [t.model_copy(update={"seed": seed}) for t in rows for seed in (0, 1)]


def test_floors_stand_beside_every_score_of_a_suite() -> None:
    calls = {f"t{i:03}": i for i in range(4)}
    found = standings(
        {
            "evolved@held_out": one_each("0111"),
            "random@held_out": one_each("0001"),
            "null@held_out": one_each("0000"),
            "base@held_out": one_each("0011"),
            "base@held_out_domains": one_each("00"),
            "scripted": one_each("1111"),
        },
        calls,
    )
    names = [(s.suite, s.policy) for s in found]
    assert names == [
        *(("held_out", p) for p in ("null", "random", "base", "evolved")),
        ("held_out_domains", "base"),
    ]
    assert [s.floor for s in found] == [0.25, 0.25, 0.25, 0.25, None]
    assert [s.harder.pass_at_1 for s in found if s.harder is not None][:4] == [0.0, 0.5, 1.0, 1.0]
    assert all(s.reliability[0].pass_hat_k == s.overall.pass_at_1 for s in found)


def test_names_of_evaluations() -> None:
    assert (parse_name("rl@held_out").policy, parse_name("rl@held_out").suite) == ("rl", "held_out")
    assert parse_name("scripted").suite is None
    assert sorted(["scripted", "other", "evolved", "base", "random", "null"], key=policy_order) == [
        *("null", "random", "base", "evolved", "other", "scripted")
    ]
    assert sorted(["sft", "mine", "held_out_domains", "held_out"], key=suite_order) == [
        *("held_out", "held_out_domains", "sft", "mine")
    ]
