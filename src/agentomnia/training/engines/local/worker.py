"""What one process does in a training step: roll out, and compute the gradient of its share.

Workers keep no state between calls but weights, tokenizer and loaded environments: everything else comes with the
call, so that a step gives the same numbers on one process and on several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from agentomnia.episodes.loop import Stage
from agentomnia.synthesis.environments.package import package_of
from agentomnia.task.task import PrivateTask, Task
from agentomnia.training.engines.local.policy import Policy, PolicyShape
from agentomnia.training.engines.local.rollout import Golden, Rollout, Start, roll_out
from agentomnia.training.engines.local.sampler import Sampling
from agentomnia.training.engines.local.scoring import Family, score
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.rl.loss import EPS_HIGH, EPS_LOW, golden_loss, hybrid_loss, policy_loss

MICRO_TOKENS = 12_000
"""Tokens of one forward pass in training: bounds memory."""


@dataclass(frozen=True)
class PolicyTask:
    """A task that the policy plays, with its golden trajectory where there is one."""

    environments: Path
    task: Task
    private: PrivateTask
    golden: Golden | None = None

    def stage(self) -> Stage:
        """Where its episodes take place."""
        package = package_of(self.environments, self.task.environment)
        spec = package.spec
        state = package.state(self.task.state)
        return Stage(self.task, self.private, package.program, state, spec.introduction, spec.policies)


@dataclass(frozen=True)
class Demonstration:
    """A trajectory as tokens, with what is trained."""

    ids: Sequence[int]
    mask: Sequence[int]


@dataclass(frozen=True)
class RolloutGroup:
    """Rollouts of one prompt that entered the update, with their advantages."""

    rollouts: tuple[Rollout, ...]
    advantages: tuple[float, ...]


@dataclass(frozen=True)
class StepTotals:
    """What the losses of one optimisation step are divided by, counted over all shares."""

    tokens: tuple[int, ...]
    """Own tokens of each group of this share."""
    groups: int
    """Groups of the step that carry signal."""
    golden: int
    """Golden tokens of the step."""


@dataclass(frozen=True)
class Weighting:
    """The weights of Eq. 11 and the clip of Eq. 8."""

    ce: float
    rl: float = 1.0
    eps_low: float = EPS_LOW
    eps_high: float = EPS_HIGH


@dataclass(frozen=True)
class LossReport:
    """Parts of a step's loss, summed over shares by `plus`."""

    rl: float = 0.0
    ce: float = 0.0
    clipped: float = 0.0
    """Clipped tokens."""
    ratio: float = 0.0
    """Sum of ratios."""
    tokens: int = 0

    def plus(self, other: LossReport) -> LossReport:
        """The sum of two shares."""
        return LossReport(
            self.rl + other.rl,
            self.ce + other.ce,
            self.clipped + other.clipped,
            self.ratio + other.ratio,
            self.tokens + other.tokens,
        )


class Worker:
    """One process's policy."""

    def __init__(self, policy: Policy, tokenizer: WordTokenizer) -> None:
        """Take the policy, whose weights somebody else may change between calls."""
        self.policy, self.tokenizer = policy, tokenizer

    @classmethod
    def load(cls, shape: PolicyShape, tokenizer: Path) -> Worker:
        """A worker whose weights are still to come."""
        return cls(Policy(shape), WordTokenizer.load(tokenizer))

    def roll(self, starts: Sequence[tuple[PolicyTask, int]], agent: str, seed: str, how: Sampling) -> list[Rollout]:
        """Play one rollout for each (task, golden turns to begin behind)."""
        stages = {id(t): t.stage() for t, _ in starts}
        begun = [Start(stages[id(task)], task.golden, prefix) for task, prefix in starts]
        return roll_out(self.policy, self.tokenizer, begun, agent=agent, seed=seed, how=how)

    def learn_demonstrations(self, batch: Sequence[Demonstration], total: int) -> float:
        """Add the gradient of the mean loss of trained tokens, of which the step has `total`; returns this share."""
        if not batch:
            return 0.0
        wanted = _padded([(0, *d.mask[1:]) for d in batch], self._device)
        with self._precision():
            scores = score(self.policy, [Family(d.ids) for d in batch], wanted_openings=wanted)
        loss = -scores.openings.sum() / max(total, 1)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def learn_rollouts(self, groups: Sequence[RolloutGroup], totals: StepTotals, weights: Weighting) -> LossReport:
        """Add the gradient of Eq. 11 over some groups; returns this share of the losses."""
        report = LossReport()
        for start, end in _micro_batches(groups):
            report = report.plus(self._learn(groups[start:end], totals, totals.tokens[start:end], weights))
        return report

    def _learn(
        self, groups: Sequence[RolloutGroup], totals: StepTotals, tokens: Sequence[int], weights: Weighting
    ) -> LossReport:
        rollouts = [r for g in groups for r in g.rollouts]
        families = [
            Family(g.rollouts[0].ids[: g.rollouts[0].opening], [r.ids[r.opening :] for r in g.rollouts]) for g in groups
        ]
        own = _padded([r.own[r.opening :] for r in rollouts], self._device)
        golden = _padded([f.rollouts[0].golden[: len(x.opening)] for f, x in zip(groups, families)], self._device)
        behaviour = _padded([r.logprobs[r.opening :] for r in rollouts], self._device)
        with self._precision():
            scores = score(self.policy, families, own, golden)
        advantages = torch.tensor([a for g in groups for a in g.advantages], device=self._device)
        indices = torch.tensor([i for i, g in enumerate(groups) for _ in g.rollouts], device=self._device)
        loss = policy_loss(
            scores.continuations,
            behaviour,
            own,
            advantages,
            indices,
            group_tokens=torch.tensor(tokens, device=self._device),
            group_count=totals.groups,
            eps_low=weights.eps_low,
            eps_high=weights.eps_high,
        )
        ce = golden_loss(scores.openings, golden, totals.golden)
        hybrid_loss(ce, loss.loss, lambda_ce=weights.ce, lambda_rl=weights.rl).backward()  # type: ignore[no-untyped-call]
        return LossReport(
            float(loss.loss.detach()),
            float(ce.detach()),
            loss.clip_fraction * loss.tokens,
            loss.ratio_mean * loss.tokens,
            loss.tokens,
        )

    @property
    def _device(self) -> torch.device:
        return self.policy.model.embed_tokens.weight.device

    def _precision(self) -> torch.autocast:
        """Training runs in bfloat16 where weights are float32; tests of exactness run in float64."""
        dtype = self.policy.model.embed_tokens.weight.dtype
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=dtype == torch.float32)


def _micro_batches(groups: Sequence[RolloutGroup]) -> list[tuple[int, int]]:
    """Ranges of groups whose tokens fit one pass."""
    ranges: list[tuple[int, int]] = []
    start, tokens = 0, 0
    for number, group in enumerate(groups):
        more = sum(len(r.ids) - r.opening for r in group.rollouts) + group.rollouts[0].opening
        if number > start and tokens + more > MICRO_TOKENS:
            ranges.append((start, number))
            start, tokens = number, 0
        tokens += more
    return [*ranges, (start, len(groups))] if groups else []


def _padded(rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*r, *([0.0] * (longest - len(r)))] for r in rows], device=device)
