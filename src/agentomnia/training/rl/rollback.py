"""The rollback curriculum: how many golden turns each prompt starts behind (paper, section 5.2.4, Algorithm 1).

`collect_group` is lines 8 to 18 for one prompt; `Round` runs them for a mini-batch at once, so that a sampler gets
the pending prompts of all together. Both advance one prompt with the same function and give the same states.

How the paper is read where it leaves room:

- A *turn* is one message of the assistant in the golden trajectory τ*. The prefix P_q stays in 0..|τ*|-1: the last
  turn is always the policy's.
- R̄_q is `success_share`: over the rollouts that survived filtering, a negative reward read as 0.
- A group without a survivor says nothing about the prompt. It uses up a retry, since sampling must end, but extends
  no prefix: an unavailable server must not make tasks easier. After a round that ends in one, line 18 is left out.
- Line 14 after the first epoch: M_q becomes δ_q of the prompt's last round where that is positive, and 1 where it
  is not (M = 0 would repeat the same group, M < 0 would make a failed task harder). With Eq. 10 that is always 1.
  A prompt without a δ_q yet, because it was not drawn in the first epoch, still uses the coarse M^(0).
- Line 17 as written: a failed group is counted after its extension, so T_max groups are sampled at most, one
  where T_max is 0, and after the last failure both lines 14 and 18 extend the prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from agentomnia.errors import InputError
from agentomnia.row import Row
from agentomnia.training.rl.advantage import success_share

Rewards = Sequence[float | None]
"""Of one group; `None` where a rollout was dropped."""

_CLOSE = 1e-9
"""Averages this near to a bound are on it: 0.7 + 0.1 is below 0.8."""


class RollbackSettings(Row):
    """Parameters of the curriculum; `retries=0, rollback=False` is plain GRPO."""

    alpha: float = Field(default=0.2, gt=0, le=1)
    """α, the coarse increment's share of the golden trajectory (the paper's example)."""
    retries: int = Field(default=3, ge=0)
    """T_max: failed groups after which a prompt is left for this round. The paper gives no value."""
    rollback: bool = True
    """Whether prefixes move at all. Without, failed groups are sampled again at the same prefix."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """R_th. The paper gives no value; half the group is where binary rewards vary most."""
    margin: float = Field(default=0.25, ge=0)
    """R̄ ≫ R_th means above R_th + margin, R̄ ≪ R_th below R_th - margin, R̄ ≈ R_th between, bounds included. Ours."""
    delta_max: int = Field(default=2, ge=1)
    """δ_max, in turns. The paper gives no value."""

    @model_validator(mode="after")
    def _failing_is_far_below(self) -> RollbackSettings:
        if self.margin >= self.threshold:
            raise InputError(
                f"with threshold {self.threshold} and margin {self.margin} a prompt that always fails would lose its "
                "prefix; choose a margin below the threshold"
            )
        return self


class PromptState(Row):
    """Where a prompt q stands in the curriculum; a row of the checkpoint."""

    schema_version: Literal[1] = 1
    task: str
    golden_turns: int = Field(ge=1)
    """|τ*|."""
    prefix: int = Field(default=0, ge=0)
    """P_q, golden turns that the next rollout starts behind."""
    reward: float = 0.0
    """R̄_q of the latest group that had a survivor."""
    delta: int | None = None
    """δ_q of the latest round, before the clamp."""
    visits: int = Field(default=0, ge=0)
    """Rounds in which the prompt was drawn."""

    @model_validator(mode="after")
    def _leaves_a_turn(self) -> PromptState:
        if self.prefix >= self.golden_turns:
            raise InputError(
                f"task {self.task}: a prefix of {self.prefix} of {self.golden_turns} golden turns leaves nothing to "
                "the policy; read the state of the same trajectories"
            )
        return self


class Attempt(Row):
    """One group of one prompt, lines 10 to 16."""

    prefix: int
    """P_q that the group was sampled with."""
    reward: float | None
    """R̄_q; `None` where no rollout survived."""
    extended: int = 0
    """Golden turns that line 14 added after it."""


@dataclass(frozen=True)
class Collected:
    """What a round gives for one prompt."""

    state: PromptState
    """After line 18: where the next round starts."""
    rewards: tuple[float | None, ...]
    """Of the last group, the one to train on, as sampled behind `prefix`."""
    attempts: tuple[Attempt, ...]

    @property
    def prefix(self) -> int:
        """P_q of the last group."""
        return self.attempts[-1].prefix

    @property
    def retries(self) -> int:
        """Groups sampled before the last."""
        return len(self.attempts) - 1


def coarse_increment(golden_turns: int, alpha: float) -> int:
    """M_q^(0) = α|τ*| in whole turns: halves round up, and at least 1."""
    return max(1, math.floor(alpha * golden_turns + 0.5 + _CLOSE))


def increment(state: PromptState, epoch: int, settings: RollbackSettings) -> int:
    """M_q^(epoch) of line 14, at least 1; epochs count from 0."""
    if epoch == 0 or state.delta is None:
        return coarse_increment(state.golden_turns, settings.alpha)
    return max(1, state.delta)


def delta(reward: float, threshold: float, delta_max: int, margin: float) -> int:
    """δ_q of Eq. 10, in turns: -δ_max far above the threshold, -1 near it, 1 far below.

    Args:
        reward: R̄_q.
        threshold: R_th.
        delta_max: δ_max.
        margin: how far "far" is; an average exactly this far away is still near.
    """
    if reward > threshold + margin + _CLOSE:
        return -delta_max
    return 1 if reward < threshold - margin - _CLOSE else -1


def extend(state: PromptState, epoch: int, settings: RollbackSettings) -> PromptState:
    """Line 14: the golden prefix extended by M_q turns, as far as it goes."""
    return _moved(state, increment(state, epoch, settings)) if settings.rollback else state


def settle(state: PromptState, reward: float | None, settings: RollbackSettings) -> PromptState:
    """Line 18: the prefix moved by δ_q, and the visit counted.

    Args:
        state: after the round's retries.
        reward: R̄_q of the round's last group; `None`, nobody survived, moves nothing.
        settings: of the curriculum.
    """
    seen = state.model_copy(update={"visits": state.visits + 1})
    if reward is None or not settings.rollback:
        return seen
    step = delta(reward, settings.threshold, settings.delta_max, settings.margin)
    return _moved(seen.model_copy(update={"delta": step}), step)


def collect_group(
    state: PromptState, epoch: int, sample: Callable[[int], Rewards], settings: RollbackSettings
) -> Collected:
    """Lines 8 to 18 for one prompt.

    Args:
        state: of the prompt, before the round.
        epoch: counted from 0.
        sample: rolls out one group behind a prefix of so many golden turns, and gives its rewards.
        settings: of the curriculum.

    Returns:
        The new state, the last group's rewards, and each attempt.
    """
    prompt = _Prompt(state)
    while not prompt.done:
        prompt = _advance(prompt, tuple(sample(prompt.state.prefix)), epoch, settings)
    return prompt.collected()


class Round:
    """Lines 7 to 19 for a mini-batch, all its pending prompts sampled together.

    round = Round(states, epoch, settings)
    while round.pending():
        round.submit({task: rewards_of(task, prefix) for task, prefix in round.pending()})
    for collected in round.collected(): ...
    """

    def __init__(self, states: Sequence[PromptState], epoch: int, settings: RollbackSettings) -> None:
        """Begin a round.

        Args:
            states: of the mini-batch's prompts, each task once.
            epoch: counted from 0.
            settings: of the curriculum.

        Raises:
            InputError: a task is there twice.
        """
        self._epoch = epoch
        self._settings = settings
        self._prompts = {state.task: _Prompt(state) for state in states}
        if len(self._prompts) < len(states):
            raise InputError("a mini-batch holds a task twice: draw it without replacement")

    def pending(self) -> tuple[tuple[str, int], ...]:
        """The task and prefix of each group to sample now, in the mini-batch's order; empty when done."""
        return tuple((task, p.state.prefix) for task, p in self._prompts.items() if not p.done)

    def submit(self, rewards: Mapping[str, Rewards]) -> None:
        """Take the rewards of every pending group, and move on.

        Raises:
            InputError: tasks are missing, or were not pending.
        """
        asked = [task for task, _ in self.pending()]
        if sorted(asked) != sorted(rewards):
            raise InputError(f"rewards came for {sorted(rewards)}, pending are {sorted(asked)}: submit exactly these")
        for task in asked:
            self._prompts[task] = _advance(self._prompts[task], tuple(rewards[task]), self._epoch, self._settings)

    def collected(self) -> tuple[Collected, ...]:
        """What the round gives for each prompt, in the mini-batch's order.

        Raises:
            InputError: groups are still pending.
        """
        if self.pending():
            raise InputError(f"{len(self.pending())} groups are pending: sample and submit them first")
        return tuple(prompt.collected() for prompt in self._prompts.values())


@dataclass(frozen=True)
class _Prompt:
    """A prompt within a round."""

    state: PromptState
    rewards: tuple[float | None, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    done: bool = False

    def collected(self) -> Collected:
        return Collected(self.state, self.rewards, self.attempts)


def _advance(prompt: _Prompt, rewards: tuple[float | None, ...], epoch: int, settings: RollbackSettings) -> _Prompt:
    """Lines 11 to 18 after one group."""
    average = success_share(rewards)
    before = prompt.state if average is None else prompt.state.model_copy(update={"reward": average})
    state = extend(before, epoch, settings) if average == 0 else before
    attempt = Attempt(prefix=before.prefix, reward=average, extended=state.prefix - before.prefix)
    attempts = (*prompt.attempts, attempt)
    # a prompt is here only while every group before failed or was empty: their number is the retry counter t
    done = bool(average) or len(attempts) >= settings.retries
    return _Prompt(settle(state, average, settings) if done else state, rewards, attempts, done)


def _moved(state: PromptState, turns: int) -> PromptState:
    return state.model_copy(update={"prefix": min(max(state.prefix + turns, 0), state.golden_turns - 1)})
