"""Weights to train from: a mimetic initialisation, in which copying is there before the first step.

A small policy trained from random weights learns the form of calls in a hundred steps and the copying of their
arguments not at all within minutes. So it starts with the circuit that trained models have for it. In layer 0 two heads
look one and two tokens back, by position alone, and write what they see into a subspace of their own. In
layer 1 two heads look for places whose two tokens before are the two that end here (one head for both, one for the last
alone), and what stands there is likely next. All value and output projections start near each other's transpose
(OV-identity), so that attending to a token raises its own logit. It is an initialisation and nothing else: the network
is a plain Qwen3, and every weight is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentomnia.training.engines.local.policy import Attention, Layer, Policy, PolicyShape

_SHARPEST = 4
"""Rotary frequencies by which a head finds the token before: the fastest, which tell neighbours apart."""
_SLOWEST = 0.004
"""Largest angle per token of the frequencies that content is matched by: they hardly turn over a context."""


def new_policy(
    shape: PolicyShape,
    seed: int,
    parts: Mapping[int, Sequence[int]] | None = None,
    *,
    ov_identity: float = 1.5,
    induction: bool = True,
) -> Policy:
    """A policy to train from scratch.

    Args:
        shape: sizes; at least two layers, and two heads to a key-value head, for the circuit.
        seed: equal seeds give equal weights.
        parts: tokens made of words, and those words' tokens: such a token starts half as the sum of its words, so that
            `cancel_meeting` is found from "cancel" and "meeting" also where it was never trained.
        ov_identity: how much of each head's transposed value projection its output projection starts with.
        induction: whether the copying circuit is put in; without it, copying is left to training.
    """
    draw = torch.Generator().manual_seed(seed)
    policy = Policy(shape)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(2.0 if name.endswith("q_norm.weight") else 1.0)
            else:
                parameter.normal_(0.0, 0.09 if name.endswith("embed_tokens.weight") else 0.02, generator=draw)
        _compose(policy.model.embed_tokens.weight, parts or {})
        circuit = _Circuit(policy, draw)
        for layer in _layers(policy):
            circuit.blind(layer)
            _add_ov_identity(layer.self_attn, ov_identity)
        if induction:
            circuit.install()
    return policy


def _layers(policy: Policy) -> list[Layer]:
    return [layer for layer in policy.model.layers if isinstance(layer, Layer)]


def _add_ov_identity(attention: Attention, amount: float) -> None:
    size, share = attention.size, attention.heads // attention.groups
    for head in range(attention.heads):
        group = head // share
        value = attention.v_proj.weight[group * size : (group + 1) * size]
        attention.o_proj.weight[:, head * size : (head + 1) * size] += amount * value.T


def _compose(embeddings: Tensor, parts: Mapping[int, Sequence[int]]) -> None:
    for token, words in parts.items():
        summed = embeddings[list(words)].sum(dim=0) / math.sqrt(len(words))
        embeddings[token] = math.sqrt(0.5) * (embeddings[token] + summed)


def _rows(matrix: Tensor, n: int) -> Tensor:
    """The matrix with rows of zeros below, up to `n`."""
    return torch.cat([matrix, torch.zeros(n - len(matrix), matrix.shape[1])])


CODE, COPY = 1.0, 1.0


class _Circuit:
    """The two previous-token heads and the two induction heads."""

    def __init__(self, policy: Policy, draw: torch.Generator) -> None:
        shape = policy.shape
        self.policy, self.size, self.width = policy, shape.head_dim, shape.hidden_size
        self.first, self.second = (layer.self_attn for layer in _layers(policy)[:2])
        frequencies = 1.0 / shape.rope_theta ** (torch.arange(0, self.size, 2).double() / self.size)
        self.frequencies = frequencies.float()
        basis = torch.linalg.qr(torch.randn(self.width, self.width, generator=draw, dtype=torch.float64))[0].float()
        n = min(self.size, (self.width - 1) // 3)
        self.constant = basis[:, 0]
        """A direction that all embeddings share: what a head that ignores content reads."""
        self.read = basis[:, 1 : 1 + n].T
        """(n, width): the part of a token's embedding that is passed on as its code."""
        self.back = (basis[:, 1 + n : 1 + 2 * n], basis[:, 1 + 2 * n : 1 + 3 * n])
        """(width, n) each: where the codes of the tokens one and two back are written."""
        spare = basis[:, 1 + 3 * n : 1 + 3 * n + self.size - n].T
        self.copied = _rows(torch.cat([self.read, spare]), self.size)
        """(head size, width): the part of an embedding that is copied, free of codes."""
        slow = [f for f in range(self.size // 2) if float(self.frequencies[f]) < _SLOWEST]
        codes = torch.linalg.qr(torch.randn(n, n, generator=draw, dtype=torch.float64))[0].float()
        self.near, self.far = self._code(slow[::2], codes), self._code(slow[1::2], codes.flip(0))

    def _code(self, frequencies: Sequence[int], codes: Tensor) -> Tensor:
        """(head size, n): a token's code in the dimensions of some frequencies."""
        code = torch.zeros(self.size, codes.shape[1])
        dimensions = [*frequencies, *(f + self.size // 2 for f in frequencies)][: codes.shape[1]]
        code[dimensions] = codes[: len(dimensions)]
        return code

    def blind(self, layer: Layer) -> None:
        """Keep what all embeddings share out of what is written, or it would raise the same tokens everywhere."""
        for weight in (layer.self_attn.v_proj.weight, layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight):
            weight -= torch.outer(weight @ self.constant, self.constant)

    def install(self) -> None:
        """Write the circuit into the weights."""
        embeddings = self.policy.model.embed_tokens.weight
        embeddings += self.constant  # shifts all logits alike
        size = self.size
        self.first.q_norm.weight.fill_(3.0)
        self.first.k_proj.weight[:size] = torch.outer(self._position(0), self.constant)
        self.first.v_proj.weight[:size] = torch.zeros(size, self.width)
        self.first.v_proj.weight[: len(self.read)] = self.read * 0.5
        for head, back in enumerate(self.back):
            rows = slice(head * size, (head + 1) * size)
            self.first.q_proj.weight[rows] = torch.outer(self._position(head + 1), self.constant)
            self.first.o_proj.weight[:, rows] = 0.0
            self.first.o_proj.weight[:, head * size : head * size + back.shape[1]] = back * CODE
        one, two = self.back
        last = self.near @ self.read * 0.5
        for group in range(self.second.groups):
            rows = slice(group * size, (group + 1) * size)
            self.second.k_proj.weight[rows] = self.near @ one.T + self.far @ two.T
            self.second.v_proj.weight[rows] = self.copied
            for head, query in ((0, last + self.far @ one.T), (1, last)):
                number = group * (self.second.heads // self.second.groups) + head
                columns = slice(number * size, (number + 1) * size)
                self.second.q_proj.weight[columns] = query
                self.second.o_proj.weight[:, columns] = self.copied.T * COPY

    def _position(self, back: int) -> Tensor:
        """A query that fits best the key so many tokens back (0 gives the key)."""
        half = self.size // 2
        vector = torch.zeros(self.size)
        angles = -back * self.frequencies[:_SHARPEST]
        vector[:_SHARPEST], vector[half : half + _SHARPEST] = angles.cos(), angles.sin()
        return vector
