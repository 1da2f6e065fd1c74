"""The losses of reinforcement learning with rollback curriculum (paper, section 5.2.4, Eq. 8 and 11).

A batch is flat and padded: B rollouts of T positions, where `groups` says which rollouts answer the same prompt.
There is no KL term and no entropy bonus ("removing KL and entropy regularization").

Gradient accumulation: what divides (tokens of a group, number of groups, golden tokens) is an argument. Take it
once from the whole optimisation step (`group_totals`) and pass it with every micro-batch; then the micro-batches'
losses, and gradients, add up to those of the whole, also where a group is cut in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentomnia.errors import InputError

EPS_LOW = 0.2
EPS_HIGH = 0.28
"""ε_low and ε_high of the paper."""

LAMBDA_CE = 0.1
LAMBDA_RL = 1.0
"""λ_CE and λ_RL of Eq. 11. The paper gives no values: these are ours, exploration first."""

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here, or one token whose ratio overflows would make the whole gradient NaN."""


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of one (micro-)batch, and what to log of it.

    The means are over the batch's own tokens: to average micro-batches, weigh each with its `tokens`.
    """

    loss: Tensor
    """Scalar with gradient; 0, still with a graph, where no group carries signal."""
    clip_fraction: float
    """Share of tokens whose clipped term is the smaller one, so that they give no gradient."""
    ratio_mean: float
    """Mean ratio r of Eq. 9; far from 1 the sampler and the trainer disagree."""
    tokens: int
    """The policy's own tokens."""


@dataclass(frozen=True)
class GroupTotals:
    """What the losses of one optimisation step are divided by."""

    tokens: Tensor
    """(n_groups,) long, Σ|y_i| of each group."""
    count: int
    """Groups that carry signal."""


def group_totals(mask: Tensor, advantages: Tensor, groups: Tensor, n_groups: int | None = None) -> GroupTotals:
    """Count each group's own tokens, and the groups that carry signal, over a whole optimisation step.

    A group carries signal where one of its own tokens has an advantage other than 0.

    Args:
        mask: (B, T) 1 on the policy's own tokens, of rollouts that were kept.
        advantages: (B,) of each rollout.
        groups: (B,) long, the index of each rollout's group.
        n_groups: number of groups; by default the largest index + 1.

    Returns:
        The totals, `tokens` on the device of `mask`.

    Raises:
        InputError: shapes disagree, or an index is outside 0..n_groups-1.
    """
    n = int(groups.max()) + 1 if n_groups is None and len(groups) else n_groups or 0
    _check_rows(mask, advantages, groups, n)
    rows = (mask > 0).sum(dim=1)
    tokens = rows.new_zeros(n).index_add(0, groups, rows)
    live = rows.new_zeros(n).index_add(0, groups, rows * (advantages != 0))
    return GroupTotals(tokens, int((live > 0).sum()))


def policy_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    advantages: Tensor,
    groups: Tensor,
    *,
    group_tokens: Tensor | None = None,
    group_count: int | None = None,
    eps_low: float = EPS_LOW,
    eps_high: float = EPS_HIGH,
) -> PolicyLoss:
    """L_GRPO: Eq. 8 negated. Token-level mean within each group, then the mean over the groups that carry signal.

    Eq. 8 is an expectation over prompts. Groups whose rewards are all the same contribute 0; they are also left out
    of the number divided by, so that a batch with few informative prompts is not a smaller step.

    A dropped rollout is left out of the batch, or its row of `mask` is 0: it then contributes nothing, also
    not to Σ|y_i|. Values where `mask` is 0 are never read, so padding may hold anything, NaN too.

    Args:
        logprobs: (B, T) log π_θ^train of each token, with gradient, in float32 or wider.
        behaviour: (B, T) log π_θold^infer: the sampler's raw log-probabilities, taken as constants.
        mask: (B, T) 1 on the policy's own tokens, 0 on prompts, golden prefix, observations, padding.
        advantages: (B,) Â of each rollout, the same for all its tokens (`advantage.group_advantages`).
        groups: (B,) long, the index of each rollout's group.
        group_tokens: (n_groups,) own tokens of each group in the whole step; by default counted in this batch.
        group_count: groups that carry signal in the whole step; by default counted in this batch.
        eps_low: ε_low of the clip.
        eps_high: ε_high of the clip.

    Returns:
        The loss and what to log. Beyond e^±20 (`MAX_LOG_RATIO`) a ratio is a constant: no gradient.

    Raises:
        InputError: shapes disagree, a group has no entry in `group_tokens` or more tokens than it says.
    """
    if behaviour.shape != logprobs.shape or mask.shape != logprobs.shape:
        raise InputError(
            f"log-probabilities of shape {tuple(logprobs.shape)} came with behaviour {tuple(behaviour.shape)} and mask "
            f"{tuple(mask.shape)}: pad all three alike"
        )
    here = group_totals(mask, advantages, groups, None if group_tokens is None else len(group_tokens))
    totals = here.tokens if group_tokens is None else group_tokens.to(here.tokens)
    count = here.count if group_count is None else group_count
    _check_totals(here, totals, count)

    own = mask > 0
    # `where` before `exp`: what lies under the mask must reach neither the loss nor, as 0 · NaN, the gradient
    log_ratio = torch.where(own, logprobs - behaviour.detach(), 0.0)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantage = advantages.to(ratio)[:, None]
    unclipped = ratio * advantage
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high) * advantage
    share = own.to(ratio) / (totals.clamp(min=1).to(ratio)[groups] * max(count, 1))[:, None]
    loss = -(torch.minimum(unclipped, clipped) * share).sum()

    tokens = int(own.sum())
    return PolicyLoss(
        loss=loss,
        clip_fraction=float((own & (clipped < unclipped)).sum()) / max(tokens, 1),
        ratio_mean=float(ratio.detach()[own].mean()) if tokens else 1.0,
        tokens=tokens,
    )


def golden_loss(logprobs: Tensor, golden_mask: Tensor, total: float | None = None) -> Tensor:
    """L_SFT of Eq. 11: the mean cross-entropy of the golden prefix's tokens.

    Args:
        logprobs: (B, T) log π_θ of each token, with gradient.
        golden_mask: (B, T) 1 on what the assistant says in the golden prefix; values elsewhere are never read.
        total: golden tokens of the whole optimisation step; by default those of this batch.

    Returns:
        A scalar; 0, still with a graph, where there is no golden prefix.

    Raises:
        InputError: shapes disagree, or the batch has more golden tokens than `total` says.
    """
    if golden_mask.shape != logprobs.shape:
        raise InputError(
            f"log-probabilities of shape {tuple(logprobs.shape)} came with a golden mask {tuple(golden_mask.shape)}: "
            "pad both alike"
        )
    golden = golden_mask > 0
    here = int(golden.sum())
    if total is not None and total < here:
        raise InputError(f"{here} golden tokens in one micro-batch of {total} in all: pass the whole step's number")
    return -torch.where(golden, logprobs, 0.0).sum() / max(here if total is None else total, 1)


def hybrid_loss(
    golden: Tensor, policy: Tensor, *, lambda_ce: float = LAMBDA_CE, lambda_rl: float = LAMBDA_RL
) -> Tensor:
    """L_RCRL, Eq. 11: λ_CE · L_SFT(τ* up to P_q) + λ_RL · L_GRPO(τ after P_q)."""
    return lambda_ce * golden + lambda_rl * policy


def _check_rows(mask: Tensor, advantages: Tensor, groups: Tensor, n: int) -> None:
    if mask.dim() != 2 or advantages.shape != mask.shape[:1] or groups.shape != mask.shape[:1]:
        raise InputError(
            f"mask {tuple(mask.shape)}, advantages {tuple(advantages.shape)} and groups {tuple(groups.shape)} "
            "do not fit: give (B, T), (B,) and (B,)"
        )
    # a negative index would silently count from the end
    if len(groups) and (int(groups.min()) < 0 or int(groups.max()) >= n):
        raise InputError(
            f"groups {int(groups.min())}..{int(groups.max())} of {n}: number them from 0, one total for each group"
        )


def _check_totals(here: GroupTotals, totals: Tensor, count: int) -> None:
    short = (totals < here.tokens).nonzero().flatten().tolist()
    if short or count < here.count:
        raise InputError(
            f"a micro-batch exceeds the totals (groups {short}, {here.count} of {count} with signal): take "
            "group_tokens and group_count from the whole optimisation step, with group_totals"
        )
