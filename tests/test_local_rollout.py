"""Rollouts of the local policy, and one step of reinforcement learning around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentomnia.environment.instance import Instance
from agentomnia.runs.run import Run
from agentomnia.runs.training import golden_trajectories, make_tokenizer, suites
from agentomnia.task.grade import grade
from agentomnia.training.engines.local.mimetic import new_policy
from agentomnia.training.engines.local.policy import Policy, PolicyShape
from agentomnia.training.engines.local.rl import RlSettings, StepReport, rl_step
from agentomnia.training.engines.local.rollout import Golden, Rollout, Start, roll_out
from agentomnia.training.engines.local.sampler import Sampling
from agentomnia.training.engines.local.sft import demonstration, dialogue_tokens
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.engines.local.worker import Demonstration, LossReport, PolicyTask, RolloutGroup, StepTotals
from agentomnia.training.rl.filtering import RolloutOutcome
from agentomnia.training.rl.rollback import PromptState, RollbackSettings

LONG = Sampling(temperature=0, context=2000, turn_tokens=200)


@dataclass(frozen=True)
class Play:
    """A task to play, with its golden trajectory as the policy should say it."""

    task: PolicyTask
    golden: Golden
    shown: Demonstration

    def said(self, turn: int) -> list[int]:
        """Tokens that the policy says from a golden turn on."""
        turns: list[list[int]] = [[]]
        for token, own, following in zip(self.shown.ids, self.shown.mask, (*self.shown.mask[1:], 0)):
            if own:
                turns[-1].append(token)
            if own and not following:
                turns.append([])
        return [token for said in turns[turn:] for token in said]


@pytest.fixture(scope="module")
def tokenizer(policy_run: Path) -> WordTokenizer:
    with Run(policy_run) as run:
        return WordTokenizer.load(make_tokenizer(run, "sft"))


@pytest.fixture(scope="module")
def plays(policy_run: Path, tokenizer: WordTokenizer) -> list[Play]:
    with Run(policy_run) as run:
        golden, chosen = golden_trajectories(run), suites(run)["rl"]
    found = []
    for task, private in chosen:
        turns = Golden.of(golden[task.id])
        policy_task = PolicyTask(policy_run / "environments", task, private, turns)
        stage = policy_task.stage()
        tools = [stage.program.tools[name].to_openai() for name in task.tools]
        dialogue = dialogue_tokens(golden[task.id].messages, tokenizer)
        found.append(Play(policy_task, turns, demonstration(task, stage.state, tools, dialogue, tokenizer)))
    return found


def shape(tokenizer: WordTokenizer) -> PolicyShape:
    return PolicyShape(
        vocab_size=tokenizer.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=32, max_position_embeddings=2048,
    )  # fmt: skip


class Scripted(Policy):
    """Says given tokens one by one, whatever it reads."""

    def __init__(self, of: PolicyShape, script: Sequence[int]) -> None:
        super().__init__(of)
        self.script: Iterator[int] = iter(script)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        found = torch.full((len(hidden), self.shape.vocab_size), -30.0)
        for row in found:
            row[next(self.script)] = 30.0
        return found


Say = Callable[[Play, Sequence[int], int], Rollout]


@pytest.fixture
def say(tokenizer: WordTokenizer) -> Say:
    def act(play: Play, script: Sequence[int], prefix: int) -> Rollout:
        start = Start(play.task.stage(), play.golden, prefix)
        policy = Scripted(shape(tokenizer), script)
        return roll_out(policy, tokenizer, [start], agent="policy", seed="0", how=LONG)[0]

    return act


def regraded(play: Play, rollout: Rollout) -> float:
    """The reward of the same calls on a fresh instance."""
    stage, trajectory = play.task.stage(), rollout.trajectory
    instance = Instance(stage.program, stage.state)
    assert instance.digest() == trajectory.initial_digest
    for step in trajectory.steps:
        if step.arguments is not None and step.error != "unknown_tool":
            answer = instance.call(step.tool, step.arguments)
            assert answer["ok"] == step.ok
        assert instance.digest() == step.digest
    last = trajectory.messages[-1].content or ""
    reward = grade(stage.private.criterion, stage.state, instance.live_state, last).reward
    return reward if trajectory.stop_reason == "completed" else 0.0


# Golden prefixes


def test_behind_any_prefix_the_golden_turns_earn_the_reward(plays: list[Play], say: Say) -> None:
    assert len(plays) == 6 and max(len(p.golden.turns) for p in plays) >= 6
    for play in plays:
        for prefix in range(len(play.golden.turns)):
            rollout = say(play, play.said(prefix), prefix)
            trajectory = rollout.trajectory
            assert (trajectory.reward, trajectory.stop_reason) == (1.0, "completed"), trajectory.failures
            assert regraded(play, rollout) == 1.0
            assert rollout.ids == play.shown.ids  # what SFT reads and what rollouts make are the same tokens
            assert [o or g for o, g in zip(rollout.own, rollout.golden, strict=True)] == list(play.shown.mask)
            assert sum(rollout.own) == len(play.said(prefix))
            assert not any(rollout.own[: rollout.opening]) and not any(rollout.golden[rollout.opening :])
            assert [m.role for m in trajectory.messages].count("assistant") == len(play.golden.turns)


def test_golden_digests_are_those_after_each_turn(plays: list[Play]) -> None:
    for play in plays:
        stage = play.task.stage()
        instance = Instance(stage.program, stage.state)
        for turn, digest in zip(play.golden.turns, play.golden.digests, strict=True):
            for call in turn.tool_calls:
                instance.call(call.name, call.parse_arguments())
            assert instance.digest() == digest


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_prefix_that_replays_to_another_state_is_corrupted(plays: list[Play], say: Say, wrong: int) -> None:
    play = plays[2]
    digests = [*play.golden.digests]
    digests[wrong] = "0" * 64
    rollout = say(replace(play, golden=Golden(play.golden.turns, tuple(digests))), [], 3)
    assert rollout.trajectory.stop_reason == "environment_fault" and rollout.trajectory.reward is None
    assert rollout.outcome.owner == "environment" and not any(rollout.own)
    assert [m.role for m in rollout.trajectory.messages].count("assistant") == wrong + 1
    assert say(play, play.said(wrong), wrong).trajectory.reward == 1.0  # behind a prefix that is still right


def test_an_opening_that_fills_the_context_is_truncated(plays: list[Play], say: Say, tokenizer: WordTokenizer) -> None:
    play = plays[2]
    starts = [Start(play.task.stage(), play.golden, prefix) for prefix in (0, 5)]
    policy = new_policy(shape(tokenizer), 0)
    how = Sampling(context=say(play, play.said(5), 5).opening)
    short, full = roll_out(policy, tokenizer, starts, agent="policy", seed="0", how=how)
    assert any(short.own) and not any(full.own)
    assert (full.outcome.stop, full.trajectory.reward, full.trajectory.stop_reason) == ("length", 0.0, "max_turns")
    assert len(full.ids) == full.opening == how.context


# Token-in, token-out


def test_a_turn_keeps_its_tokens_where_its_text_has_others(
    plays: list[Play], say: Say, tokenizer: WordTokenizer
) -> None:
    play = plays[0]
    script, vocabulary = play.said(0), tokenizer.inner.get_vocab()
    words = {token: word for word, token in vocabulary.items()}
    place = next(i for i, token in enumerate(script) if words[token].isalpha() and len(words[token]) > 3)
    word = words[script[place]]
    pieces = [vocabulary[word[0]], *(vocabulary["\u2059" + c] for c in word[1:])]
    spelled = [*script[:place], *pieces, *script[place + 1 :]]
    assert tokenizer.decode(spelled) == tokenizer.decode(script)
    assert tokenizer.encode(tokenizer.decode(spelled)) != spelled
    rollout, ordinary = say(play, spelled, 0), say(play, script, 0)
    assert [token for token, own in zip(rollout.ids, rollout.own) if own] == spelled
    assert rollout.trajectory == ordinary.trajectory and rollout.trajectory.reward == 1.0


def test_garbage_is_an_episode_with_a_reward(plays: list[Play], tokenizer: WordTokenizer) -> None:
    """A policy that knows nothing: each episode ends, is graded as its replay is, and its masks are apart."""
    policy = new_policy(shape(tokenizer), 0)
    with torch.no_grad():
        policy.model.embed_tokens.weight[tokenizer.end] *= 3  # so that turns end
    starts = [Start(p.task.stage(), p.golden, n) for p in plays for n in (0, 1, 2) for _ in range(2)]
    how = Sampling(context=1000, turn_tokens=40)
    rollouts = roll_out(policy, tokenizer, starts, agent="policy", seed="x", how=how)
    again = roll_out(policy, tokenizer, starts, agent="policy", seed="x", how=how)
    assert rollouts == again
    for number, rollout in enumerate(rollouts):
        assert rollout.trajectory.reward == regraded(plays[number // 6], rollout)
        assert not any(o and g for o, g in zip(rollout.own, rollout.golden))
        assert all((logprob < 0) == bool(o) for logprob, o in zip(rollout.logprobs, rollout.own, strict=True))


# One step of reinforcement learning, on a crew that plays from a table


@dataclass
class TableCrew:
    """Rollouts and their outcomes from a table; counts what training would do."""

    outcome: Callable[[str, int, int], RolloutOutcome]
    """Of a task, a prefix and a place in the group."""
    rolled: list[tuple[str, tuple[tuple[str, int], ...], str]] = field(default_factory=list)
    learned: list[tuple[Sequence[RolloutGroup], StepTotals]] = field(default_factory=list)
    updates: int = 0

    @property
    def weights(self) -> Any:
        return self

    def step(self, gradient: Any, settings: Any, scale: float) -> float:
        self.updates += 1
        return 0.0

    def gradient(self) -> None:
        return None

    def share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert len(arguments) == 2
        if method == "roll":
            return [self._roll(*a) for a in arguments]
        assert method == "learn_rollouts"
        self.learned += [(groups, totals) for groups, totals, _ in arguments]
        return [LossReport(0.5, 0.25, 1.0, 10.0, 10) for _ in arguments]

    def _roll(self, starts: Sequence[tuple[str, int]], agent: str, seed: str, how: Sampling) -> list[Rollout]:
        self.rolled.append((seed, tuple(starts), agent))
        places: dict[tuple[str, int], int] = {}
        found = []
        for task, prefix in starts:
            place = places[task, prefix] = places.get((task, prefix), -1) + 1
            outcome = self.outcome(task, prefix, place)
            golden = (*([0] * 4), *([1] * prefix), 0, 0)
            own = (*([0] * (4 + prefix)), 1, 1)
            trajectory: Any = SimpleNamespace(reward=outcome.reward)
            ids = tuple(range(6 + prefix))
            found.append(Rollout(ids, own, golden, (-1.0,) * len(ids), 4 + prefix, trajectory, outcome))
        return found


FAIL, PASS = RolloutOutcome(0.0, "completed", "agent"), RolloutOutcome(1.0, "completed")
LOST = RolloutOutcome(None, "environment_fault", "environment")
CUT = RolloutOutcome(0.0, "max_turns", "agent")
PLAIN = RollbackSettings(retries=0, rollback=False)


def step_on(
    outcome: Callable[[str, int, int], RolloutOutcome],
    tasks: Sequence[str] = ("a",),
    rollback: RollbackSettings = PLAIN,
    golden_turns: int = 5,
    prefix: int = 0,
) -> tuple[TableCrew, StepReport]:
    crew: Any = TableCrew(outcome)
    table: Any = {t: t for t in tasks}
    states = [PromptState(task=t, golden_turns=golden_turns, prefix=prefix) for t in tasks]
    settings = RlSettings(group=4, iterations=2, rollback=rollback)
    return crew, rl_step(crew, table, states, settings, step=3, epoch=0, seed="s")


def groups_of(report: StepReport) -> dict[str, int]:
    return {kind: n for kind, n in report.metrics["groups"].items() if n}


@pytest.mark.parametrize(
    ("kind", "outcomes"),
    [
        ("all_fail", [FAIL] * 4),
        ("all_pass", [PASS] * 4),
        ("single", [LOST, PASS, LOST, LOST]),
        ("empty", [LOST] * 4),
        ("flat", [RolloutOutcome(-1.0, "completed", "agent")] * 4),
    ],
)
@pytest.mark.parametrize("prefix", [0, 2])
def test_without_signal_only_a_golden_prefix_teaches(kind: str, outcomes: list[RolloutOutcome], prefix: int) -> None:
    crew, report = step_on(lambda t, p, n: outcomes[n], prefix=prefix)
    assert groups_of(report) == {kind: 1}
    if prefix == 0 or kind == "empty":
        assert (crew.updates, crew.learned) == (0, [])
        assert report.metrics["loss_rl"] == report.metrics["loss_ce"] == 0.0
        assert (report.metrics["clip_fraction"], report.metrics["ratio_mean"]) == (0.0, 1.0)
        return
    assert crew.updates == 2
    (groups, totals), *_ = crew.learned
    assert (totals.groups, totals.golden) == (0, 2)
    assert len(groups[0].rollouts) == sum(o is not LOST for o in outcomes)


def test_a_mixed_group_updates_on_its_survivors() -> None:
    outcomes = [PASS, FAIL, LOST, FAIL]
    crew, report = step_on(lambda t, p, n: outcomes[n])
    assert groups_of(report) == {"mixed": 1} and crew.updates == 2
    (groups, totals), (nothing, _) = crew.learned[:2]
    assert nothing == [] and (totals.groups, totals.golden, totals.tokens) == (1, 0, (6,))
    assert groups[0].advantages == pytest.approx((2**0.5, -(0.5**0.5), -(0.5**0.5)))
    assert report.metrics["dropped"] == {"corrupted": 1, "truncated": 0}
    assert report.metrics["reward"] == pytest.approx(1 / 3, abs=1e-6)
    assert report.metrics["pass_rate"] == 0.25  # of all that were played


def test_truncated_rollouts_are_dropped_up_to_the_cap() -> None:
    outcomes = [PASS, FAIL, CUT, CUT]
    _, report = step_on(lambda t, p, n: outcomes[n])
    assert report.metrics["dropped"] == {"corrupted": 0, "truncated": 1}
    assert report.metrics["negative"] == 1 and "endless turns" in report.metrics["alarm"]


def test_all_kinds_of_groups_are_counted_in_one_step() -> None:
    table = {"a": [PASS, FAIL] * 2, "b": [FAIL] * 4, "c": [PASS] * 4, "d": [LOST] * 3 + [PASS], "e": [LOST] * 4}
    crew, report = step_on(lambda t, p, n: table[t][n], tasks=tuple(table))
    assert groups_of(report) == {"mixed": 1, "all_fail": 1, "all_pass": 1, "single": 1, "empty": 1}
    assert sum(len(groups) for groups, _ in crew.learned[:2]) == 1
    assert "corrupted" in report.metrics["alarm"]
    assert [c.state.task for c in report.collected] == list(table)


def test_failed_groups_are_sampled_again_behind_longer_prefixes() -> None:
    rollback = RollbackSettings(alpha=0.2, retries=3)

    def outcome(task: str, prefix: int, place: int) -> RolloutOutcome:
        needed = {"a": 0, "b": 2, "c": 9}[task]
        return PASS if prefix >= needed and place < 2 else FAIL

    crew, report = step_on(outcome, ("a", "b", "c"), rollback, golden_turns=5)
    a, b, c = report.collected
    assert [[x.prefix for x in one.attempts] for one in (a, b, c)] == [[0], [0, 1, 2], [0, 1, 2]]
    assert [one.retries for one in (a, b, c)] == [0, 2, 2]
    assert report.metrics["rollouts"] == 4 * 7
    assert report.metrics["prefix_mean"] == pytest.approx(4 / 3, abs=1e-6)
    assert groups_of(report) == {"mixed": 2, "all_fail": 1}
    trained = {len(r.ids) - 6: len(g.rollouts) for groups, _ in crew.learned[:2] for g in groups for r in g.rollouts}
    assert trained == {0: 4, 2: 4}  # the last group of each prompt and no earlier one
    assert all(t.golden == 4 and t.groups == 2 for _, t in crew.learned)
    assert c.state.prefix == 4  # extended after its last failure, and once more for being far below the threshold
    seeds = [seed for seed, _, _ in crew.rolled]
    assert len(seeds) == len(set(seeds)) == 6


def test_an_empty_group_makes_no_task_easier() -> None:
    _, report = step_on(lambda t, p, n: LOST, rollback=RollbackSettings(retries=3))
    (collected,) = report.collected
    assert [a.prefix for a in collected.attempts] == [0, 0, 0] and collected.state.prefix == 0


def test_the_same_step_again_is_the_same() -> None:
    def outcome(task: str, prefix: int, place: int) -> RolloutOutcome:
        return PASS if place == prefix else FAIL

    (crew, first), (other, second) = (step_on(outcome, ("b", "a"), RollbackSettings()) for _ in range(2))
    assert first == second and crew.rolled == other.rolled


def test_a_row_of_metrics_is_complete_and_json() -> None:
    import json

    _, report = step_on(lambda t, p, n: [PASS, FAIL, FAIL, LOST][n])
    wanted = {
        "step", "epoch", "reward", "pass_rate", "groups", "dropped", "negative", "alarm", "clip_fraction", "ratio_mean",
        "loss_rl", "loss_ce", "prefix_mean", "tokens",
    }  # fmt: skip
    assert wanted <= report.metrics.keys()
    assert {"mixed", "all_fail", "all_pass", "single", "empty"} <= report.metrics["groups"].keys()
    assert (report.metrics["step"], report.metrics["epoch"], report.metrics["tokens"]) == (4, 0, 24)
    assert (report.metrics["clip_fraction"], report.metrics["ratio_mean"]) == (0.1, 1.0)
    assert (report.metrics["loss_rl"], report.metrics["loss_ce"]) == (1.0, 0.5)
    assert json.loads(json.dumps(report.metrics, allow_nan=False)) == report.metrics
