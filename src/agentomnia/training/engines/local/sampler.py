"""A batched sampler that keeps its keys and values over tool turns, strictly token-in/token-out.

Rows are conversations. A row whose turn has ended hands its tokens to its conversation and gets the tokens that
follow; those are read in one go, together with those of other rows, and nothing is ever rendered or encoded twice
(paper, section 5.2.4 "Token-in/token-out alignment"). Equal openings, a group's common prompt, are read once.
Log-probabilities are the raw ones of the sampling distribution at temperature 1 and top-p 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from agentomnia.training.engines.local.policy import Policy

Reply = Callable[[list[int]], list[int] | None]
"""Takes the tokens of a finished turn (its end token last); returns the tokens that follow, `None` at the end."""


@dataclass
class Row:
    """One conversation as tokens."""

    ids: list[int]
    mask: list[int]
    """1 where the policy chose the token."""
    logprobs: list[float]
    """Log-probability of each chosen token under the policy that chose it; 0 elsewhere."""
    opening: int
    """Length of the opening."""
    truncated: bool = False
    """The context or the turn's limit ended it, not the conversation."""
    turn: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen."""

    temperature: float = 1.0
    """0 takes the likeliest."""
    context: int = 640
    turn_tokens: int = 96
    """Longest turn of the policy."""
    rows: int = 64
    """Conversations at once."""


class _Cache:
    """Keys and values of all rows, written in place; one spare position behind the context takes padding."""

    def __init__(self, policy: Policy, rows: int, context: int) -> None:
        shape, weight = policy.shape, policy.model.embed_tokens.weight
        size = (shape.num_hidden_layers, rows, shape.num_key_value_heads, context + 1, shape.head_dim)
        self.keys = torch.zeros(size, device=weight.device, dtype=weight.dtype)
        self.values = torch.zeros_like(self.keys)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a row the first keys and values of another."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def keep(self, rows: Tensor) -> None:
        """Leave out all rows but these."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


class _Window:
    """The part of a cache that one forward pass reads and writes: some rows, up to some position."""

    def __init__(self, cache: _Cache, rows: Tensor, places: Tensor, seen: Tensor) -> None:
        self._cache, self._rows, self._places, self._seen = cache, rows, places, seen
        self._width = seen.shape[-1]
        self._whole = len(rows) == cache.keys.shape[1]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._extend(layer, k, v)
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=self._seen, enable_gqa=True)

    def _extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        rows = self._rows[:, None].expand_as(self._places)
        keys[rows, :, self._places] = k.transpose(1, 2)
        values[rows, :, self._places] = v.transpose(1, 2)
        if self._whole:
            return keys[:, :, : self._width], values[:, :, : self._width]
        return keys[self._rows, :, : self._width], values[self._rows, :, : self._width]


def sample(
    policy: Policy,
    openings: Sequence[Sequence[int]],
    replies: Sequence[Reply],
    end: int,
    draw: torch.Generator,
    how: Sampling = Sampling(),
) -> list[Row]:
    """Let the policy continue conversations until each has ended.

    Args:
        policy: the network.
        openings: tokens before the policy's first one, each shorter than the context.
        replies: for each conversation, what follows a turn of the policy.
        end: the token that ends a turn.
        draw: source of randomness.
        how: temperature and limits.

    Returns:
        The conversations as tokens, in the order given.
    """
    finished: list[Row] = []
    with torch.inference_mode():
        for start in range(0, len(openings), how.rows):
            part = slice(start, start + how.rows)
            finished += _Batch(policy, openings[part], replies[part], end, draw, how).run()
    return finished


class _Batch:
    """Some conversations at once; `slots[i]` is the conversation in row `i` of the cache, `None` once it has ended."""

    def __init__(
        self,
        policy: Policy,
        openings: Sequence[Sequence[int]],
        replies: Sequence[Reply],
        end: int,
        draw: torch.Generator,
        how: Sampling,
    ) -> None:
        self.policy, self.replies, self.end, self.draw, self.how = policy, replies, end, draw, how
        self.rows = [Row(list(o), [0] * len(o), [0.0] * len(o), len(o)) for o in openings]
        self.cache = _Cache(policy, len(self.rows), how.context)
        self.device = self.cache.keys.device
        self.slots: list[int | None] = list(range(len(self.rows)))
        self.read = [0] * len(self.rows)
        """How many tokens of each conversation have been read into the cache."""

    def run(self) -> list[Row]:
        """One token for every conversation that waits for nothing, texts for those that do, until all have ended."""
        active, hidden = self._open()
        while True:
            self._choose(active, hidden)
            self._compact()
            live = [s for s, c in enumerate(self.slots) if c is not None]
            if not live:
                return self.rows
            texts = [s for s in live if self._waiting(s) > 1]
            single = [s for s in live if self._waiting(s) == 1]
            # a text costs a pass of its own: wait until some have gathered
            reads = [self._read_texts(texts)] if texts and (len(texts) * 4 >= len(live) or not single) else []
            active = [*(texts if reads else []), *single]
            hidden = torch.cat([*reads, *([self._read_single(single)] if single else [])])

    def _waiting(self, slot: int) -> int:
        conversation = self.slots[slot]
        assert conversation is not None
        return len(self.rows[conversation].ids) - self.read[conversation]

    def _open(self) -> tuple[list[int], Tensor]:
        """Read the distinct openings, and copy where several rows have the same."""
        first: dict[tuple[int, ...], int] = {}
        for number, row in enumerate(self.rows):
            first.setdefault(tuple(row.ids), number)
        owners = list(first.values())
        found = self._read_texts(owners)
        places = {owner: i for i, owner in enumerate(owners)}
        order = []
        for number, row in enumerate(self.rows):
            source = first[tuple(row.ids)]
            order.append(places[source])
            if source != number:
                self.cache.copy(source, number, len(row.ids))
                self.read[number] = self.read[source]
        return list(range(len(self.rows))), found[order]

    def _read_texts(self, slots: list[int]) -> Tensor:
        """Read what waits in some slots; the hidden states of their last tokens (slots, width)."""
        conversations = [c for s in slots if (c := self.slots[s]) is not None]
        waiting = [self.rows[c].ids[self.read[c] :] for c in conversations]
        lengths = self._long([len(w) for w in waiting])
        starts = self._long([self.read[c] for c in conversations])
        n = int(lengths.max())
        ids = self._long([w + [0] * (n - len(w)) for w in waiting])
        steps = torch.arange(n, device=self.device)[None, :]
        places = torch.where(steps < lengths[:, None], starts[:, None] + steps, self.how.context)
        hidden = self._pass(self._long(slots), ids, places, int((starts + lengths).max()))
        for conversation, text in zip(conversations, waiting):
            self.read[conversation] += len(text)
        return hidden[torch.arange(len(slots), device=self.device), lengths - 1]

    def _read_single(self, slots: list[int]) -> Tensor:
        """Read one token in some slots. All rows take part, so that no keys are copied; the others' go to the spare."""
        ids, places, wide = [0] * len(self.slots), [self.how.context] * len(self.slots), 1
        for slot in slots:
            conversation = self.slots[slot]
            assert conversation is not None
            ids[slot], places[slot] = self.rows[conversation].ids[-1], self.read[conversation]
            self.read[conversation] += 1
            wide = max(wide, self.read[conversation])
        rows = torch.arange(len(self.slots), device=self.device)
        return self._pass(rows, self._long(ids)[:, None], self._long(places)[:, None], wide)[slots, 0]

    def _pass(self, rows: Tensor, ids: Tensor, places: Tensor, width: int) -> Tensor:
        positions = places.clamp(max=self.how.context - 1)
        seen = torch.arange(width, device=self.device)[None, None, :] <= positions[:, :, None]
        hidden: Tensor = self.policy(ids, positions, _Window(self.cache, rows, places, seen[:, None]))
        return hidden

    def _long(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _choose(self, active: list[int], hidden: Tensor) -> None:
        """Choose one token in every active slot, and give each to its conversation."""
        logits = self.policy.logits(hidden)
        logprobs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
        if self.how.temperature == 0:
            chosen = logprobs.argmax(dim=-1)
        else:
            # one uniform number a row, looked up in the cumulative distribution
            likely = torch.softmax(logprobs / self.how.temperature, dim=-1).cumsum(dim=-1)
            uniform = torch.rand(len(active), 1, generator=self.draw, device=self.device, dtype=likely.dtype)
            found = torch.searchsorted(likely, uniform * likely[:, -1:], right=True)
            chosen = found[:, 0].clamp(max=likely.shape[1] - 1)
        picked = logprobs.gather(1, chosen[:, None])[:, 0]
        for slot, token, logprob in zip(active, chosen.tolist(), picked.tolist()):
            if self._take(slot, token, logprob):
                self.slots[slot] = None

    def _take(self, slot: int, token: int, logprob: float) -> bool:
        """Append a chosen token; whether the conversation is over."""
        conversation = self.slots[slot]
        assert conversation is not None
        row = self.rows[conversation]
        row.ids.append(token)
        row.mask.append(1)
        row.logprobs.append(logprob)
        row.turn.append(token)
        if token == self.end:
            turn, row.turn = row.turn, []
            following = self.replies[conversation](turn)
            if following is None:
                return True
            row.ids += following
            row.mask += [0] * len(following)
            row.logprobs += [0.0] * len(following)
        row.truncated = len(row.ids) >= self.how.context or len(row.turn) >= self.how.turn_tokens
        return row.truncated

    def _compact(self) -> None:
        """Shrink the cache once a quarter of its rows are done: copying it costs, and so do dead rows."""
        live = [s for s, c in enumerate(self.slots) if c is not None]
        if live and len(live) <= 0.75 * len(self.slots):
            self.cache.keep(self._long(live))
            self.slots = [self.slots[s] for s in live]
