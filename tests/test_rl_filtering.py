"""Dynamic filtering: which rollouts are dropped, which are punished, and what the cap does."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentomnia.task.trajectory import Owner, Step, StopReason, Trajectory
from agentomnia.taxonomy.axes import CAPABILITIES, domains
from agentomnia.taxonomy.coordinate import Coordinate
from agentomnia.training.rl.filtering import (
    Call,
    RolloutOutcome,
    RolloutStop,
    filter_batch,
    judge,
    outcome_of,
    passes_validity,
)

LOOK = Call("get_order", '{"id":"7"}')
OTHER = Call("get_order", '{"id":"8"}')
STOPS: tuple[RolloutStop, ...] = (*get_args(StopReason), "length")
TRUNCATED: tuple[RolloutStop, ...] = ("length", "max_turns", "max_tool_calls")


def cut_off(*calls: Call, tokens: int = 0, stop: RolloutStop = "length") -> RolloutOutcome:
    return RolloutOutcome(0.0, stop, "agent", calls, tokens)


@pytest.mark.parametrize(
    ("calls", "valid"),
    [
        ((), True),
        ((LOOK, OTHER), True),
        ((LOOK, Call("cancel_order", LOOK.arguments)), True),
        ((LOOK, OTHER, LOOK), False),
        ((LOOK, Call("get_order", LOOK.arguments, "not_found")), False),
        ((Call("get_order", '{"id":"9"}', "not_found"), LOOK), True),
        ((Call("get_order", "null", "malformed_arguments"),), False),
        ((Call("get_ordre", "{}", "unknown_tool"),), False),
        ((LOOK, Call("get_order", "{}", "invalid_argument")), False),
        ((Call("cancel_order", "{}", "precondition_failed"),), True),
    ],
)
def test_low_level_validity(calls: tuple[Call, ...], valid: bool) -> None:
    assert passes_validity(calls) is valid
    for stop in TRUNCATED:
        expected = "dropped_truncated" if valid else "negative"
        assert judge(cut_off(*calls, stop=stop)).kind == expected
    assert judge(RolloutOutcome(1.0, "completed", None, calls)).kind == "keep"


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("owner", ["environment", "infrastructure", "judge", "user"])
def test_extrinsic_failures_are_dropped_whatever_else_holds(stop: RolloutStop, owner: Owner) -> None:
    for reward in (None, 0.0, 1.0):
        verdict = judge(RolloutOutcome(reward, stop, owner, (LOOK, LOOK)))
        assert (verdict.kind, verdict.reward) == ("dropped_corrupted", None)


@pytest.mark.parametrize("stop", ["environment_fault", "infrastructure_error"])
def test_faults_are_corrupted_without_an_owner(stop: RolloutStop) -> None:
    assert judge(RolloutOutcome(0.0, stop)).kind == "dropped_corrupted"


def test_an_unscored_rollout_is_corrupted_unless_it_was_cut_off() -> None:
    assert judge(RolloutOutcome(None, "completed")).kind == "dropped_corrupted"
    assert judge(RolloutOutcome(None, "length")).kind == "dropped_truncated"
    assert judge(RolloutOutcome(None, "max_turns", None, (LOOK, LOOK))).reward == -1.0


@pytest.mark.parametrize("stop", ["completed", "invalid_streak", "model_output_error"])
@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
def test_the_policys_own_endings_keep_their_reward(stop: RolloutStop, reward: float) -> None:
    verdict = judge(RolloutOutcome(reward, stop, "agent", (LOOK, LOOK)))
    assert (verdict.kind, verdict.reward) == ("keep", reward)


def test_the_negative_reward_is_a_constant_of_choice() -> None:
    assert judge(cut_off(LOOK, LOOK)).reward == -1.0
    assert judge(cut_off(LOOK, LOOK), negative=-0.5).reward == -0.5


def test_above_the_cap_the_longest_are_punished() -> None:
    done = [RolloutOutcome(1.0, "completed")] * 4
    cut = [cut_off(LOOK, tokens=90), cut_off(LOOK, tokens=300), cut_off(LOOK, OTHER, tokens=90), cut_off(tokens=10)]
    verdicts, report = filter_batch([*done, *cut])
    assert [v.kind for v in verdicts[4:]] == ["dropped_truncated", "negative", "negative", "dropped_truncated"]
    assert [v.reward for v in verdicts[4:]] == [None, -1.0, -1.0, None]
    assert (report.truncated, report.negative, report.capped) == (2, 2, 2)
    assert report.truncated_share == 0.25
    assert report.alarm is not None
    assert "2 valid truncated rollouts of 8" in report.alarm


def test_at_the_cap_nothing_is_said() -> None:
    outcomes = [*[RolloutOutcome(0.0, "completed")] * 6, cut_off(LOOK), cut_off(OTHER)]
    _, report = filter_batch(outcomes)
    assert (report.truncated, report.negative, report.alarm) == (2, 0, None)


def test_the_cap_is_not_lost_to_rounding() -> None:
    _, report = filter_batch([cut_off()] * 100, cap=0.29)
    assert (report.truncated, report.negative) == (29, 71)


def test_much_corruption_raises_the_alarm_and_is_not_capped() -> None:
    outage = [RolloutOutcome(None, "infrastructure_error", "infrastructure")]
    fine = [RolloutOutcome(1.0, "completed")]
    assert filter_batch(outage * 2 + fine * 6)[1].alarm is None
    verdicts, report = filter_batch(outage * 3 + fine * 5)
    assert report.alarm is not None
    assert "3 of 8 rollouts were corrupted" in report.alarm
    assert report.corrupted_share == 0.375
    assert [v.kind for v in verdicts[:3]] == ["dropped_corrupted"] * 3


def test_an_empty_batch() -> None:
    verdicts, report = filter_batch([])
    assert verdicts == ()
    assert (report.corrupted_share, report.truncated_share, report.alarm) == (0.0, 0.0, None)


OUTCOMES = st.builds(
    RolloutOutcome,
    reward=st.sampled_from([None, 0.0, 1.0]),
    stop=st.sampled_from(STOPS),
    owner=st.sampled_from([None, *get_args(Owner)]),
    calls=st.lists(st.sampled_from([LOOK, OTHER, Call("x", "null", "malformed_arguments")]), max_size=3).map(tuple),
    tokens=st.integers(0, 5),
)


@given(st.lists(OUTCOMES, max_size=20), st.sampled_from([0.0, 0.1, 0.25, 1.0]))
def test_the_cap_only_turns_drops_into_punishment(outcomes: list[RolloutOutcome], cap: float) -> None:
    verdicts, report = filter_batch(outcomes, cap=cap)
    free = [judge(o) for o in outcomes]
    assert report.truncated <= cap * len(outcomes) + 1e-9
    changed = [i for i, (v, f) in enumerate(zip(verdicts, free)) if v != f]
    assert len(changed) == report.capped
    assert all(free[i].kind == "dropped_truncated" and verdicts[i].kind == "negative" for i in changed)
    spared = [o.tokens for o, v in zip(outcomes, verdicts) if v.kind == "dropped_truncated"]
    assert all(outcomes[i].tokens >= max(spared, default=0) for i in changed)
    kinds = [v.kind for v in verdicts]
    assert (report.corrupted, report.truncated, report.negative) == tuple(
        kinds.count(k) for k in ("dropped_corrupted", "dropped_truncated", "negative")
    )
    assert all((v.reward is None) == v.kind.startswith("dropped") for v in verdicts)
    assert (report.alarm is None) == (report.capped == 0 and report.corrupted <= 0.25 * len(outcomes))


def test_an_episode_becomes_an_outcome() -> None:
    place = Coordinate(domain=domains()[0].id, capabilities=(CAPABILITIES[0].id,))

    def step(arguments: dict[str, object] | None, error: str | None = None) -> Step:
        return Step(call_id="c", tool="get", arguments=arguments, ok=error is None, error=error, digest="d")

    def episode(*steps: Step) -> Trajectory:
        return Trajectory(
            id="i", task="t", environment="e", state="s", agent="a", coordinate=place,
            messages=(), steps=steps, stop_reason="max_turns", reward=0.0, failure_owner="agent", initial_digest="d",
        )  # fmt: skip

    once = outcome_of(episode(step({"a": 1, "b": 2})), tokens=9)
    assert once == RolloutOutcome(0.0, "max_turns", "agent", (Call("get", '{"a":1,"b":2}'),), 9)
    assert judge(once).kind == "dropped_truncated"
    assert judge(outcome_of(episode(step({"a": 1, "b": 2}), step({"b": 2, "a": 1})))).kind == "negative"
    assert judge(outcome_of(episode(step(None, "malformed_arguments")))).kind == "negative"
