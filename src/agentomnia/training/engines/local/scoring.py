"""Log-probabilities of tokens under the policy, with gradients: no padding, and a common opening is computed once.

The rollouts of a group share the system turn, the query and the golden prefix. All tokens of a pass stand in one long
row, each opening before its continuations; a continuation attends to its opening and to itself, and gradients flow back
into the opening. The result is that of separate passes. Rollouts are of very unlike lengths, and rows of a common
length would be half padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from agentomnia.training.engines.local.policy import Policy

_GRAIN = 64
"""The long row is filled up to a multiple of this, since every new size of a matrix costs compilation."""


@dataclass(frozen=True)
class Family:
    """Token sequences with a common beginning: the rollouts of one group."""

    opening: Sequence[int]
    """At least one token."""
    continuations: Sequence[Sequence[int]] = ()
    """Each may be empty."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of a list of families, padded with zeros."""

    openings: Tensor
    """(families, longest opening): of each opening token but the first, whose place is 0."""
    continuations: Tensor
    """(all continuations in order, longest continuation)."""


@dataclass(frozen=True)
class Span:
    """Neighbouring tokens of the long row that belong together."""

    begin: int
    end: int
    opening: int | None
    """Number of the span that comes before it in its conversation; `None` where it begins one."""

    @property
    def size(self) -> int:
        """How many tokens."""
        return self.end - self.begin


class Packed:
    """The memory of one long row: a token sees its span's opening, and of its span itself and what is before it."""

    def __init__(self, spans: Sequence[Span], length: int, device: torch.device) -> None:
        """Lay spans, which leave no gaps, into a row of some length; behind the last is filling that sees nothing."""
        self._spans = spans
        self._sizes = [*(s.size for s in spans), length - spans[-1].end]
        self._seen = [_visible(s, spans, device) for s in spans]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention, span by span."""
        coarse = v.dtype  # under autocast norms leave queries and keys finer than they are attended with
        queries, keys, values = (torch.split(x.to(coarse), self._sizes, dim=2) for x in (q, k, v))
        found = []
        for number, (span, seen) in enumerate(zip(self._spans, self._seen)):
            key, value = keys[number], values[number]
            if span.opening is not None:
                key = torch.cat([keys[span.opening], key], dim=2)
                value = torch.cat([values[span.opening], value], dim=2)
            found.append(
                functional.scaled_dot_product_attention(
                    queries[number], key, value, attn_mask=seen, is_causal=seen is None, enable_gqa=True
                )
            )
        filling = found[0].new_zeros(*q.shape[:2], self._sizes[-1], q.shape[3])
        return torch.cat([*found, filling], dim=2)


def _visible(span: Span, spans: Sequence[Span], device: torch.device) -> Tensor | None:
    """Which keys a continuation's tokens see, (n, opening + n); `None` where that is simply those before."""
    if span.opening is None:
        return None
    n, before = span.size, spans[span.opening].size
    return torch.ones(n, before + n, dtype=torch.bool, device=device).tril(before)


def score(
    policy: Policy,
    families: Sequence[Family],
    wanted: Tensor | None = None,
    wanted_openings: Tensor | None = None,
) -> Scores:
    """Log-probability of each wanted token given the tokens before it.

    Args:
        policy: the network; gradients flow where they are enabled.
        families: what to score.
        wanted: (continuations, longest) 1 where a continuation's token is wanted; none are by default.
        wanted_openings: (families, longest opening) the same for openings; never the first token.

    Returns:
        Scores of the same shapes, 0 where not wanted; where nothing was, of no columns.
    """
    row = _Row(families)
    device = policy.model.embed_tokens.weight.device
    ids, places = torch.tensor(row.ids, device=device), torch.tensor(row.places, device=device)
    hidden = policy(ids[None], places[None], Packed(row.spans, len(row.ids), device))[0]
    before = torch.tensor(row.before, device=device)

    def scored(starts: Sequence[int], chosen: Tensor | None) -> Tensor:
        if chosen is None:
            return torch.zeros(len(starts), 0, device=device)
        chosen = chosen > 0
        columns = torch.arange(chosen.shape[1], device=device)
        found = (torch.tensor(starts, dtype=torch.long, device=device)[:, None] + columns)[chosen]
        logprobs = _logprobs(policy, hidden[before[found]], ids[found])
        return logprobs.new_zeros(chosen.shape).masked_scatter(chosen, logprobs)

    return Scores(scored(row.openings, wanted_openings), scored(row.continuations, wanted))


class _Row:
    """Families as one long row of tokens, with filling behind them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self.ids: list[int] = []
        self.places: list[int] = []
        """Position of each token in its conversation."""
        self.before: list[int] = []
        """Where the token before each one stands; of a first token, itself."""
        self.spans: list[Span] = []
        self.openings: list[int] = []
        """Where each opening begins."""
        self.continuations: list[int] = []
        """Where each continuation begins."""
        for family in families:
            self.openings.append(len(self.ids))
            opening = self._append(family.opening, None)
            for continuation in family.continuations:
                self.continuations.append(len(self.ids))
                if continuation:
                    self._append(continuation, opening)
        self._fill(-len(self.ids) % _GRAIN)

    def _append(self, tokens: Sequence[int], opening: int | None) -> int:
        """Add a span; its number."""
        begin, n = len(self.ids), len(tokens)
        earlier, last = (0, begin) if opening is None else (self.spans[opening].size, self.spans[opening].end - 1)
        self.ids += tokens
        self.places += range(earlier, earlier + n)
        self.before += [last, *range(begin, begin + n - 1)]
        self.spans.append(Span(begin, begin + n, opening))
        return len(self.spans) - 1

    def _fill(self, n: int) -> None:
        for column in (self.ids, self.places, self.before):
            column += [0] * n


def _logprobs(policy: Policy, before: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens from the hidden states before them; the vocabulary is wide, so only those wanted."""
    logits = policy.logits(before)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    found: Tensor = -functional.cross_entropy(logits, tokens, reduction="none")
    return found
