"""One step of reinforcement learning with rollback curriculum on the local policy (paper, section 5.2.4, Algorithm 1).

Lines 5 to 19 collect a mini-batch of groups, retrying failed prompts behind longer golden prefixes; lines 20 to 22
update the policy on the last group of each. Curriculum, filtering, advantages and losses are functions of
`training/rl`; here they meet a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentomnia.training.engines.local.crew import SHARES, Crew
from agentomnia.training.engines.local.optimizer import AdamW
from agentomnia.training.engines.local.rollout import Rollout
from agentomnia.training.engines.local.sampler import Sampling
from agentomnia.training.engines.local.worker import (
    LossReport,
    PolicyTask,
    RolloutGroup,
    StepTotals,
    Weighting,
)
from agentomnia.training.rl.advantage import group_advantages, group_signal
from agentomnia.training.rl.filtering import FilterReport, filter_batch
from agentomnia.training.rl.rollback import Collected, PromptState, RollbackSettings, Round


@dataclass(frozen=True)
class RlSettings:
    """Sizes and rates; the rates are those at which a policy of a million weights improves and is not destroyed."""

    steps: int = 12
    prompts: int = 12
    """Tasks of a mini-batch."""
    group: int = 8
    """G, rollouts of a group."""
    iterations: int = 1
    """J, updates on each mini-batch."""
    rate: float = 5e-5
    embedding_rate: float = 1e-5
    confidence_rate: float = 0.08
    """How fast it learns how sure to be, see `optimizer`."""
    warmup: int = 4
    context: int = 768
    lambda_ce: float = 0.3
    rollback: RollbackSettings = field(default_factory=lambda: RollbackSettings(retries=2))

    def optimizer(self) -> AdamW:
        """AdamW with these rates; slower second moments than in SFT, since gradients of rewards are noisier."""
        return AdamW(self.rate, self.embedding_rate, self.confidence_rate, beta2=0.99)

    def sampling(self) -> Sampling:
        """Temperature 1 and top-p 1: the action space of training (paper, "training-inference mismatch correction")."""
        return Sampling(temperature=1.0, context=self.context)


@dataclass(frozen=True)
class StepReport:
    """What a step did."""

    metrics: dict[str, Any]
    """A row of `metrics.jsonl`."""
    collected: tuple[Collected, ...]


def rl_step(
    crew: Crew,
    tasks: Mapping[str, PolicyTask],
    states: Sequence[PromptState],
    settings: RlSettings,
    *,
    step: int,
    epoch: int,
    seed: str,
) -> StepReport:
    """Lines 5 to 22 of Algorithm 1 for one mini-batch.

    Args:
        crew: the policy and its processes.
        tasks: by id, with golden trajectories.
        states: of the mini-batch's prompts.
        settings: of the run.
        step: counted from 0 over all epochs.
        epoch: counted from 0.
        seed: names the randomness.
    """
    groups, collected, spent = _collect(crew, tasks, states, settings, epoch, f"{seed}/{step}")
    kept, rewards, report = _filter(groups)
    last = _update(crew, [g for g in kept if g is not None], settings, step)
    signals = [group_signal(r) for r in rewards]
    reached = [r for group in groups for r in group]
    metrics = {
        "step": step + 1,
        "epoch": epoch,
        "rollouts": spent,
        "reward": _mean([x for group in rewards for x in group if x is not None]),
        "pass_rate": _mean([float(r.trajectory.reward == 1.0) for r in reached]),
        "groups": {k: signals.count(k) for k in ("mixed", "all_fail", "all_pass", "single", "empty", "flat")},
        "dropped": {"corrupted": report.corrupted, "truncated": report.truncated},
        "negative": report.negative,
        "alarm": report.alarm,
        "clip_fraction": last.clipped / max(last.tokens, 1),
        "ratio_mean": last.ratio / max(last.tokens, 1) if last.tokens else 1.0,
        "loss_rl": last.rl,
        "loss_ce": last.ce,
        "prefix_mean": _mean([float(c.prefix) for c in collected]),
        "tokens": sum(len(r.ids) for r in reached),
    }
    return StepReport(metrics, collected)


def _collect(
    crew: Crew,
    tasks: Mapping[str, PolicyTask],
    states: Sequence[PromptState],
    settings: RlSettings,
    epoch: int,
    seed: str,
) -> tuple[list[list[Rollout]], tuple[Collected, ...], int]:
    """The last group of each prompt, what became of its prefix, and all rollouts spent."""
    latest: dict[str, list[Rollout]] = {}
    going = Round(states, epoch, settings.rollback)
    spent = 0
    for attempt in range(1_000):
        pending = going.pending()
        if not pending:
            break
        shares = [pending[i::SHARES] for i in range(SHARES)]
        starts = [[(tasks[t], p) for t, p in share for _ in range(settings.group)] for share in shares]
        how = settings.sampling()
        found = crew.share("roll", [(s, "policy", f"{seed}/{attempt}/{i}", how) for i, s in enumerate(starts)])
        sampled: dict[str, list[Rollout]] = {}
        for share, rollouts in zip(shares, found):
            for number, (task, _) in enumerate(share):
                sampled[task] = rollouts[number * settings.group : (number + 1) * settings.group]
        spent += sum(map(len, sampled.values()))
        latest |= sampled
        ordered = [sampled[t] for t, _ in pending]
        going.submit({t: r for (t, _), r in zip(pending, _filter(ordered)[1])})
    return [latest[s.task] for s in states], going.collected(), spent


def _filter(
    groups: Sequence[Sequence[Rollout]],
) -> tuple[list[RolloutGroup | None], list[tuple[float | None, ...]], FilterReport]:
    """Dynamic filtering over all rollouts; each group's survivors with advantages, and its rewards."""
    verdicts, report = filter_batch([r.outcome for group in groups for r in group])
    kept: list[RolloutGroup | None] = []
    rewards: list[tuple[float | None, ...]] = []
    place = 0
    for group in groups:
        mine = tuple(v.reward for v in verdicts[place : place + len(group)])
        place += len(group)
        rewards.append(mine)
        advantages = group_advantages(mine)
        alive = [(r, a) for r, a, reward in zip(group, advantages, mine) if reward is not None]
        learns = any(a for _, a in alive) or any(any(r.golden) and any(r.own) for r, _ in alive)
        kept.append(RolloutGroup(tuple(r for r, _ in alive), tuple(a for _, a in alive)) if learns else None)
    return kept, rewards, report


def _update(crew: Crew, groups: Sequence[RolloutGroup], settings: RlSettings, step: int) -> LossReport:
    """J updates on the groups that teach something, none where there is no such group; the last one's losses."""
    if not groups:
        return LossReport()
    shares = [list(groups[i::SHARES]) for i in range(SHARES)]
    golden = sum(sum(g.rollouts[0].golden) for g in groups)
    signal = sum(1 for g in groups if any(g.advantages))
    weights = Weighting(ce=settings.lambda_ce)
    counts = [tuple(sum(sum(r.own) for r in g.rollouts) for g in share) for share in shares]
    arguments = [(share, StepTotals(tokens, signal, golden), weights) for share, tokens in zip(shares, counts)]
    report = LossReport()
    for _ in range(settings.iterations):
        report = LossReport()
        for part in crew.share("learn_rollouts", arguments):
            report = report.plus(part)
        scale = min(1.0, (step + 1) / settings.warmup)
        crew.weights.step(crew.gradient(), settings.optimizer(), scale)
    return report


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None
