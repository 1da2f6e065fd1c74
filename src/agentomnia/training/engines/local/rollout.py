"""Rollouts of the local policy: many episodes at once, token-in/token-out, from the start or behind a golden prefix.

A golden prefix is replayed on the instance turn by turn, its tokens stand before the policy's own, and the state it
leaves must have the digest that the golden trajectory recorded there; otherwise the rollout is corrupted and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from agentomnia.environment.instance import Instance
from agentomnia.episodes.loop import Episode, Limits, Stage, tool_list
from agentomnia.llm.message import Message
from agentomnia.task.trajectory import Trajectory
from agentomnia.training.chat import END, assistant_text, parse_assistant, tool_responses
from agentomnia.training.engines.local import view
from agentomnia.training.engines.local.policy import Policy
from agentomnia.training.engines.local.sampler import Row, Sampling, sample
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.rl.filtering import RolloutOutcome, outcome_of

LIMITS = Limits(turns=10, tool_calls=12, invalid_streak=3)
"""A small policy gets fewer turns than a large one: repeating itself costs tokens that others need."""


@dataclass(frozen=True)
class Golden:
    """The assistant's turns of a golden trajectory τ*, with the state's digest after each."""

    turns: tuple[Message, ...]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, trajectory: Trajectory) -> Golden:
        """Take the turns of a verified trajectory."""
        turns = tuple(m for m in trajectory.messages if m.role == "assistant")
        digests, made = [], 0
        for turn in turns:
            made += len(turn.tool_calls)
            digests.append(trajectory.steps[made - 1].digest if made else trajectory.initial_digest)
        return cls(turns, tuple(digests))


@dataclass(frozen=True)
class Start:
    """Where a rollout begins: a task, and behind how many golden turns."""

    stage: Stage
    golden: Golden | None = None
    prefix: int = 0


@dataclass(frozen=True)
class Rollout:
    """One finished rollout: its tokens, and the episode they are."""

    ids: tuple[int, ...]
    own: tuple[int, ...]
    """1 on tokens the policy chose, which Eq. 8 is about."""
    golden: tuple[int, ...]
    """1 on what the assistant says in the golden prefix, which L_SFT of Eq. 11 is about."""
    logprobs: tuple[float, ...]
    """Raw log-probabilities of the behaviour policy where `own`; 0 elsewhere."""
    opening: int
    """Tokens that all rollouts of its group share."""
    trajectory: Trajectory
    outcome: RolloutOutcome


class PolicyEpisode:
    """An episode whose agent is the policy: texts of the episode as tokens, tokens of the policy as messages."""

    def __init__(self, start: Start, tokenizer: WordTokenizer) -> None:
        """Open the episode and replay the golden prefix."""
        stage = start.stage
        self.episode = Episode(stage, Instance(stage.program, stage.state), LIMITS)
        self._tokenizer = tokenizer
        self.ids = tokenizer.encode(view.opening(stage.task, stage.state, tool_list(stage)))
        self.golden = [0] * len(self.ids)
        self._turn = 0
        if start.golden is not None:
            for number in range(start.prefix):
                if self.episode.stop is None:
                    self._replay(start.golden, number)

    def _replay(self, golden: Golden, number: int) -> None:
        turn = golden.turns[number]
        said = self._tokenizer.encode(assistant_text(turn, thinking=False) + END)
        following = self._follow(turn)
        self.ids += [*said, *following]
        self.golden += [*([1] * len(said)), *([0] * len(following))]
        if self.episode.instance.digest() != golden.digests[number]:
            self.episode.abandon("environment_fault", f"golden turn {number} replays to another state")

    def reply(self, turn: list[int]) -> list[int] | None:
        """What follows the policy's turn, `None` where the episode is over."""
        message = parse_assistant(self._tokenizer.decode(turn[:-1]), self._turn)
        following = self._follow(message)
        return following if self.episode.stop is None else None

    def _follow(self, message: Message) -> list[int]:
        self._turn += 1
        observations = self.episode.take(message)
        shown = [view.observation(m.content or "") for m in observations]
        return self._tokenizer.encode(tool_responses(shown)) if shown else []

    def finish(self, row: Row, agent: str, seed: int) -> Rollout:
        """The rollout that a finished row of tokens is."""
        if self.episode.stop is None:
            self.episode.stop = "max_turns"  # the context was full; nothing the policy said last is a message
        trajectory = self.episode.trajectory(agent, seed)
        outcome = outcome_of(trajectory, tokens=len(row.ids))
        if row.truncated:
            outcome = RolloutOutcome(0.0, "length", outcome.owner, outcome.calls, outcome.tokens)
        golden = (*self.golden, *([0] * (len(row.ids) - len(self.golden))))
        return Rollout(tuple(row.ids), tuple(row.mask), golden, tuple(row.logprobs), row.opening, trajectory, outcome)


def roll_out(
    policy: Policy, tokenizer: WordTokenizer, starts: Sequence[Start], *, agent: str, seed: str, how: Sampling
) -> list[Rollout]:
    """Play one episode from each start; starts that are equal share the reading of their opening.

    Args:
        policy: the network.
        tokenizer: its tokenizer.
        starts: where to begin; for a group, the same start several times.
        agent: name in the trajectories.
        seed: names the randomness; equal seeds and weights give equal rollouts.
        how: temperature and limits of the sampler.
    """
    episodes = [PolicyEpisode(start, tokenizer) for start in starts]
    draw = torch.Generator(device=policy.model.embed_tokens.weight.device)
    draw.manual_seed(Random(seed).getrandbits(63))
    playable = [e.episode.stop is None and len(e.ids) < how.context for e in episodes]
    played = [e for e, yes in zip(episodes, playable) if yes]
    rows = iter(sample(policy, [e.ids for e in played], [e.reply for e in played], tokenizer.end, draw, how))
    return [
        episode.finish(next(rows) if yes else _unplayed(episode), agent, number)
        for number, (episode, yes) in enumerate(zip(episodes, playable))
    ]


def _unplayed(episode: PolicyEpisode) -> Row:
    """The row of an episode that was over before the policy's turn, or whose opening fills the context."""
    n = len(episode.ids)
    return Row(list(episode.ids), [0] * n, [0.0] * n, n, truncated=episode.episode.stop is None)
