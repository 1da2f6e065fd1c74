"""Log-probabilities of tokens under the policy, with gradients: a group's common opening is computed once.

The rollouts of a group share the system turn, the query and the golden prefix. Those are read once, and each rollout
continues from their keys and values, through which gradients flow back. The result is that of separate passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from agentomnia.training.engines.local.policy import Continued, Fresh, Policy

PADDING = 32
"""Rows are padded to a multiple of this."""


@dataclass(frozen=True)
class Family:
    """Token sequences with a common beginning: the rollouts of one group."""

    opening: Sequence[int]
    """At least one token."""
    continuations: Sequence[Sequence[int]]
    """Each may be empty."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of a list of families, padded with zeros."""

    openings: Tensor
    """(families, longest opening): of each opening token but the first, whose place is 0."""
    continuations: Tensor
    """(all continuations in order, longest continuation)."""


def score(policy: Policy, families: Sequence[Family], wanted: Tensor, wanted_openings: Tensor | None = None) -> Scores:
    """Log-probability of each wanted token given the tokens before it.

    Args:
        policy: the network; gradients flow where they are enabled.
        families: what to score.
        wanted: (continuations, longest) 1 where a continuation's token is wanted; the others stay 0.
        wanted_openings: (families, longest opening) the same for openings; none are wanted by default.
    """
    device = policy.model.embed_tokens.weight.device
    openings, opening_lengths = _padded([f.opening for f in families], device)
    tails, lengths = _padded([c for f in families for c in f.continuations], device)
    owners = torch.tensor([i for i, f in enumerate(families) for _ in f.continuations], device=device)
    past = Fresh()
    places = torch.arange(openings.shape[1], device=device)
    hidden = policy(openings, places.expand_as(openings), _causal(opening_lengths, openings.shape[1]), past)
    last = hidden[owners, opening_lengths[owners] - 1]
    if tails.shape[1] > 1:
        inner = _continue(policy, past, owners, opening_lengths, tails, lengths)
        before = torch.cat([last[:, None], inner[:, :-1]], dim=1)
    else:
        before = last[:, None]
    scored_openings = torch.zeros(openings.shape, device=device)
    if wanted_openings is not None and bool(wanted_openings.any()):
        shifted = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
        scored_openings = _token_logprobs(policy, shifted, openings, wanted_openings)
    return Scores(scored_openings, _token_logprobs(policy, before, tails, wanted))


def score_whole(policy: Policy, rows: Sequence[Sequence[int]], wanted: Tensor) -> Tensor:
    """Log-probability of each wanted token of rows that share nothing; of a first token it is not defined.

    Args:
        policy: the network; gradients flow where they are enabled.
        rows: token ids, each at least one.
        wanted: (rows, longest) 1 where a token is wanted, 0 on the first.

    Returns:
        (rows, longest), 0 where not wanted.
    """
    ids, lengths = _padded(rows, policy.model.embed_tokens.weight.device)
    places = torch.arange(ids.shape[1], device=ids.device)
    hidden = policy(ids, places.expand_as(ids), _causal(lengths, ids.shape[1]), Fresh())
    return _token_logprobs(policy, torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1), ids, wanted)


def _continue(
    policy: Policy, past: Fresh, owners: Tensor, opening_lengths: Tensor, tails: Tensor, lengths: Tensor
) -> Tensor:
    """Hidden states of the continuations, each behind its family's opening."""
    n, earlier = tails.shape[1], past.made[0][0].shape[2]
    starts = opening_lengths[owners]
    positions = starts[:, None] + torch.arange(n, device=tails.device)[None, :]
    seen_before = torch.arange(earlier, device=tails.device)[None, None, None, :] < starts[:, None, None, None]
    seen = torch.cat([seen_before.expand(-1, -1, n, -1), _causal(lengths, n)], dim=3)
    positions = positions.clamp(max=policy.shape.max_position_embeddings - 1)
    return policy(tails, positions, seen, Continued(past, owners))  # type: ignore[no-any-return]


def _token_logprobs(policy: Policy, before: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
    """Log-probabilities of wanted tokens from the hidden states before them; the vocabulary is wide, so only those."""
    chosen = wanted > 0
    logits = policy.logits(before[chosen])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    found = -functional.cross_entropy(logits, tokens[chosen], reduction="none")
    return torch.zeros(tokens.shape, device=tokens.device, dtype=found.dtype).masked_scatter(chosen, found)


def padded_length(lengths: Iterable[int]) -> int:
    """A common length for rows: the longest, rounded up, since every new shape of a matrix costs compilation."""
    return -(-max([1, *lengths]) // PADDING) * PADDING


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    lengths = [len(r) for r in rows]
    longest = padded_length(lengths)
    ids = torch.tensor([[*r, *([0] * (longest - len(r)))] for r in rows], dtype=torch.long, device=device)
    return ids, torch.tensor(lengths, device=device)


def _causal(lengths: Tensor, n: int) -> Tensor:
    """(rows, 1, n, n): each token sees itself and earlier ones of its row, and padding sees itself alone."""
    places = torch.arange(n, device=lengths.device)
    seen = (places[:, None] >= places[None, :])[None] & (places[None, None, :] < lengths[:, None, None])
    return (seen | torch.eye(n, dtype=torch.bool, device=lengths.device)[None])[:, None]
