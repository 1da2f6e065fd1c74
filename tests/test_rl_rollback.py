"""Algorithm 1: a trace written out by hand, a literal second reading, and what must hold of every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentomnia.errors import InputError
from agentomnia.training.rl.rollback import (
    Attempt,
    Collected,
    PromptState,
    RollbackSettings,
    Round,
    coarse_increment,
    collect_group,
    delta,
    increment,
)

Group = list[float | None]

SETTINGS = RollbackSettings(alpha=0.2, retries=3, threshold=0.5, margin=0.25, delta_max=2)

FAIL: Group = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
ONE: Group = [1.0, *FAIL[1:]]
TWO: Group = [1.0, 1.0, *FAIL[2:]]
HALF: Group = [1.0, 1.0, 1.0, 1.0, *FAIL[4:]]
ALL: Group = [1.0] * 8
GONE: Group = [None] * 8
PUNISHED: Group = [0.0, -1.0, *FAIL[2:]]
SURVIVOR: Group = [1.0, *GONE[1:]]

# Three prompts, two epochs: what each group earns, in the order sampled.
SCRIPT: list[dict[str, list[Group]]] = [
    {"a": [FAIL, FAIL, TWO], "b": [ONE], "c": [FAIL, FAIL, FAIL]},
    {"a": [FAIL, ALL], "b": [FAIL, HALF], "c": [GONE, PUNISHED, SURVIVOR]},
]
# Worked out by hand from Algorithm 1: (P sampled with, average, turns added by line 14).
TRACE: list[dict[str, list[tuple[int, float | None, int]]]] = [
    {
        # |τ*| = 10, M = 2: fails at 0 and 2, then 0.25 is near R_th: δ = -1, P = 4 - 1
        "a": [(0, 0.0, 2), (2, 0.0, 2), (4, 0.25, 0)],
        # |τ*| = 5: 0.125 is far below R_th, though no retry is needed: δ = 1, P = 0 + 1
        "b": [(0, 0.125, 0)],
        # |τ*| = 3, M = max(1, 0.6): 0, 1, 2, then no turn is left to give; δ = 1 finds none either
        "c": [(0, 0.0, 1), (1, 0.0, 1), (2, 0.0, 0)],
    },
    {
        # δ was -1, so M = 1: 3, then 4 succeeds throughout: δ = -2, P = 4 - 2
        "a": [(3, 0.0, 1), (4, 1.0, 0)],
        # M = δ = 1: 1, then 2 is near R_th: δ = -1, P = 2 - 1
        "b": [(1, 0.0, 1), (2, 0.5, 0)],
        # nobody survives: as it was; punished without success: a failure; one survivor succeeds: δ = -2, P = 0
        "c": [(2, None, 0), (2, 0.0, 0), (2, 1.0, 0)],
    },
]
AFTER = [
    {"a": (3, 0.25, -1), "b": (1, 0.125, 1), "c": (2, 0.0, 1)},
    {"a": (2, 1.0, -2), "b": (1, 0.5, -1), "c": (0, 1.0, -2)},
]


def start() -> dict[str, PromptState]:
    return {t: PromptState(task=t, golden_turns=n) for t, n in (("a", 10), ("b", 5), ("c", 3))}


def reader(groups: Sequence[Group]) -> Callable[[int], Group]:
    """A sampler that reads its rewards from a script, whatever the prefix."""
    left = iter(groups)
    return lambda prefix: next(left)


def by_round(states: Sequence[PromptState], epoch: int, script: dict[str, list[Group]],
             rules: RollbackSettings) -> dict[str, Collected]:  # fmt: skip
    """The same as `collect_group` for each prompt, by the batched form."""
    samplers = {task: reader(groups) for task, groups in script.items()}
    batch = Round(states, epoch, rules)
    while batch.pending():
        batch.submit({task: samplers[task](prefix) for task, prefix in batch.pending()})
    return {c.state.task: c for c in batch.collected()}


def one_by_one(states: Sequence[PromptState], epoch: int, script: dict[str, list[Group]],
               rules: RollbackSettings) -> dict[str, Collected]:  # fmt: skip
    return {s.task: collect_group(s, epoch, reader(script[s.task]), rules) for s in states}


@pytest.mark.parametrize("form", [one_by_one, by_round])
def test_two_epochs_by_hand(form: Callable[..., dict[str, Collected]]) -> None:
    states = start()
    for epoch in range(2):
        collected = form(list(states.values()), epoch, SCRIPT[epoch], SETTINGS)
        for task, wanted in TRACE[epoch].items():
            got = collected[task]
            assert [(a.prefix, a.reward, a.extended) for a in got.attempts] == wanted
            assert (got.prefix, got.retries) == (wanted[-1][0], len(wanted) - 1)
            assert list(got.rewards) == SCRIPT[epoch][task][-1]
            state = got.state
            assert (state.prefix, state.reward, state.delta) == AFTER[epoch][task]
            assert state.visits == epoch + 1
        states = {task: c.state for task, c in collected.items()}


def test_the_batched_form_asks_for_all_pending_prompts_at_once() -> None:
    batch = Round(list(start().values()), 0, SETTINGS)
    assert batch.pending() == (("a", 0), ("b", 0), ("c", 0))
    batch.submit({"c": FAIL, "b": ONE, "a": FAIL})
    assert batch.pending() == (("a", 2), ("c", 1))
    with pytest.raises(InputError, match="2 groups are pending"):
        batch.collected()
    with pytest.raises(InputError, match=r"pending are \['a', 'c'\]"):
        batch.submit({"a": FAIL})
    with pytest.raises(InputError, match="submit exactly these"):
        batch.submit({"a": FAIL, "b": FAIL, "c": FAIL})
    batch.submit({"a": ALL, "c": ALL})
    assert batch.pending() == ()
    assert [c.state.prefix for c in batch.collected()] == [0, 1, 0]


def literal(state: PromptState, epoch: int, groups: Sequence[Group], rules: RollbackSettings) -> tuple[int, int]:
    """Lines 8 to 18 once more, as the paper has them, with plain variables: final P_q and the groups used."""
    p, last, t, used = state.prefix, state.golden_turns - 1, 0, 0
    m = max(1, int(rules.alpha * state.golden_turns + 0.5 + 1e-9))
    if epoch > 0 and state.delta is not None:
        m = max(1, state.delta)
    while True:
        kept = [max(0.0, r) for r in groups[used] if r is not None]
        used += 1
        mean = sum(kept) / len(kept) if kept else None
        if mean == 0 and rules.rollback:
            p = min(p + m, last)
        if not mean:
            t += 1
        if mean or t >= rules.retries:
            break
    if mean is None or not rules.rollback:
        return p, used
    if mean > rules.threshold + rules.margin + 1e-9:
        step = -rules.delta_max
    elif mean >= rules.threshold - rules.margin - 1e-9:
        step = -1
    else:
        step = 1
    return min(max(p + step, 0), last), used


RULES = st.builds(
    RollbackSettings,
    alpha=st.sampled_from([0.05, 0.2, 0.35, 1.0]),
    retries=st.integers(0, 5),
    rollback=st.booleans(),
    threshold=st.sampled_from([0.3, 0.5, 0.7]),
    margin=st.sampled_from([0.0, 0.1, 0.25]),
    delta_max=st.integers(1, 4),
)
GROUP = st.lists(st.sampled_from([None, 0.0, 0.0, 1.0, -1.0]), min_size=1, max_size=4)
ROUNDS = st.lists(st.lists(st.one_of(st.just(FAIL), GROUP), min_size=6, max_size=6), min_size=1, max_size=4)


@given(st.integers(1, 30), ROUNDS, RULES)
@settings(max_examples=200)
def test_every_round(turns: int, rounds: list[list[Group]], rules: RollbackSettings) -> None:
    state = PromptState(task="q", golden_turns=turns)
    for epoch, groups in enumerate(rounds):
        got = collect_group(state, epoch, reader(groups), rules)
        assert (got.state.prefix, len(got.attempts)) == literal(state, epoch, groups, rules)
        assert len(got.attempts) <= max(1, rules.retries)
        prefixes = [a.prefix for a in got.attempts]
        assert prefixes == sorted(prefixes)
        assert all(0 <= p < turns for p in (*prefixes, got.state.prefix))
        assert all(not a.reward for a in got.attempts[:-1])
        state = got.state
        assert PromptState.model_validate(state.to_json()) == state


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 2), RULES, st.data())
@settings(max_examples=60)
def test_both_forms_agree(turns: list[int], epoch: int, rules: RollbackSettings, data: st.DataObject) -> None:
    states = [
        PromptState(task=f"q{i}", golden_turns=n, prefix=data.draw(st.integers(0, n - 1)),
                    delta=data.draw(st.sampled_from([None, -2, -1, 1])))
        for i, n in enumerate(turns)
    ]  # fmt: skip
    script = {s.task: data.draw(st.lists(GROUP, min_size=6, max_size=6)) for s in states}
    assert by_round(states, epoch, script, rules) == one_by_one(states, epoch, script, rules)


def test_plain_grpo_samples_once_and_moves_nothing() -> None:
    plain = RollbackSettings(retries=0, rollback=False)
    for group, reward in ((FAIL, 0.0), (ONE, 0.125), (ALL, 1.0)):
        got = collect_group(PromptState(task="q", golden_turns=9), 0, reader([group]), plain)
        assert got.attempts == (Attempt(prefix=0, reward=reward),)
        assert (got.state.prefix, got.state.delta, got.state.visits) == (0, None, 1)


def test_retries_without_rollback_sample_the_same_prefix() -> None:
    rules = RollbackSettings(retries=3, rollback=False)
    got = collect_group(PromptState(task="q", golden_turns=9), 0, reader([FAIL, GONE, ALL]), rules)
    assert [a.prefix for a in got.attempts] == [0, 0, 0]
    assert list(got.rewards) == ALL


def test_a_prompt_that_succeeds_from_the_start_stays_there() -> None:
    state = PromptState(task="q", golden_turns=9)
    for epoch, group in enumerate([TWO, HALF, ALL]):
        state = collect_group(state, epoch, reader([group]), SETTINGS).state
        assert state.prefix == 0


def test_infrastructure_makes_no_task_easier() -> None:
    state = PromptState(task="q", golden_turns=9, prefix=4, reward=0.5, delta=-1, visits=2)
    got = collect_group(state, 2, reader([GONE, GONE, GONE]), SETTINGS)
    assert got.state == state.model_copy(update={"visits": 3})
    assert got.attempts == (Attempt(prefix=4, reward=None),) * 3


def test_the_coarse_increment_is_for_the_first_epoch_and_the_first_draw() -> None:
    fresh = PromptState(task="q", golden_turns=20)
    assert increment(fresh, 0, SETTINGS) == increment(fresh, 3, SETTINGS) == 4
    assert [increment(fresh.model_copy(update={"delta": d}), 3, SETTINGS) for d in (-2, -1, 1)] == [1, 1, 1]
    assert increment(fresh.model_copy(update={"delta": 1}), 0, SETTINGS) == 4


@pytest.mark.parametrize(
    ("turns", "alpha", "expected"),
    [(1, 0.2, 1), (5, 0.2, 1), (7, 0.2, 1), (8, 0.2, 2), (5, 0.1, 1), (15, 0.1, 2), (25, 0.1, 3), (100, 0.145, 15)],
)
def test_the_coarse_increment_rounds_half_up(turns: int, alpha: float, expected: int) -> None:
    assert coarse_increment(turns, alpha) == expected


def test_delta_is_equation_10() -> None:
    found = {r: delta(r, 0.5, 3, 0.25) for r in (0.0, 0.2, 0.25, 0.5, 0.75, 0.8, 1.0)}
    assert found == {0.0: 1, 0.2: 1, 0.25: -1, 0.5: -1, 0.75: -1, 0.8: -3, 1.0: -3}
    assert delta(0.25, 0.54, 3, 0.29) == -1  # 0.54 - 0.29 is above 0.25
    assert delta(0.8, 0.7, 3, 0.1) == -1  # 0.7 + 0.1 is 0.79999…


def test_contradictions_are_refused() -> None:
    with pytest.raises(InputError, match="choose a margin below the threshold"):
        RollbackSettings(threshold=0.25, margin=0.25)
    with pytest.raises(InputError, match="leaves nothing to the policy"):
        PromptState(task="q", golden_turns=3, prefix=3)
    with pytest.raises(ValidationError):
        PromptState(task="q", golden_turns=0)
    with pytest.raises(InputError, match="draw it without replacement"):
        Round([PromptState(task="q", golden_turns=3)] * 2, 0, SETTINGS)
