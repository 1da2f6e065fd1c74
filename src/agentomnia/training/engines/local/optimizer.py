"""AdamW on one flat vector of all weights, with a lower rate for the embeddings.

The vector is the policy's own memory: its parameters are views of it. Worker processes share it, so that an update is
seen by all at once, and a checkpoint is three vectors and a number. A low rate for the tied embeddings matters at
this size: a high one drowns the random part that copying stands on.

The last norm can learn in another way, for reinforcement learning. Its weights scale the logits: together they are
how sure the policy is of itself, which every rewarded rollout says something about. Alone each follows noise, and at
the rate that the matrices bear (weights near 0.1) their size (near 2) stays where it is. With a `confidence_rate` only
their common size is learned, at that rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from agentomnia.training.engines.local.policy import Policy


@dataclass(frozen=True)
class AdamW:
    """Settings of the optimiser; decay is off, since the runs are short."""

    rate: float
    embedding_rate: float
    confidence_rate: float | None = None
    """Of the last norm's common size; `None` treats it like any other weight."""
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    largest_norm: float = 1.0
    """The gradient is scaled down to this norm."""


class FlatWeights:
    """A policy's weights as one vector, with the optimiser's two moments."""

    def __init__(self, policy: Policy, storage: Tensor | None = None) -> None:
        """Move the policy's parameters into one vector.

        Args:
            policy: its parameters become views of the vector.
            storage: the vector to use, such as one in shared memory; its values are taken over where it is given.
        """
        parameters = list(policy.named_parameters())
        flat = torch.cat([p.detach().reshape(-1) for _, p in parameters])
        self.values = flat if storage is None else storage
        if len(self.values) != len(flat):
            raise ValueError(f"the storage holds {len(self.values)} weights, the policy has {len(flat)}")
        places, offset = {}, 0
        for name, parameter in parameters:
            places[name] = slice(offset, offset := offset + parameter.numel())
            parameter.data = self.values[places[name]].view_as(parameter)
        self.embedding = places["model.embed_tokens.weight"]
        """Where the embeddings are: in front."""
        self.confidence = places["model.norm.weight"]
        """Where the last norm is: at the end."""
        self.matrices = slice(self.embedding.stop, self.confidence.start)
        self._parameters = [p for _, p in parameters]
        self.first = torch.zeros_like(self.values)
        self.second = torch.zeros_like(self.values)
        self.updates = 0

    def gradient(self) -> Tensor:
        """The gradient as one vector; clears it."""
        parts = [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in self._parameters]
        gradient = torch.cat(parts)
        for parameter in self._parameters:
            parameter.grad = None
        return gradient

    def step(self, gradient: Tensor, settings: AdamW, scale: float) -> float:
        """One update in place.

        Args:
            gradient: of the loss, flat.
            settings: rates and moments.
            scale: factor on both rates (warm-up, decay).

        Returns:
            The norm of the gradient before it was scaled down; an update that is not finite is left out.
        """
        norm = float(gradient.norm())
        if norm != norm or norm == float("inf"):
            return norm
        if norm > settings.largest_norm:
            gradient = gradient * (settings.largest_norm / (norm + 1e-6))
        self._update(self.embedding, gradient[self.embedding], settings, settings.embedding_rate * scale)
        self._update(self.matrices, gradient[self.matrices], settings, settings.rate * scale)
        size = gradient[self.confidence]
        if settings.confidence_rate is None:
            self._update(self.confidence, size, settings, settings.rate * scale)
        else:
            size = _along(self.values[self.confidence], size)
            self._update(self.confidence, size, settings, settings.confidence_rate * scale)
        self.updates += 1
        return norm

    def _update(self, part: slice, gradient: Tensor, settings: AdamW, rate: float) -> None:
        """Torch's fused AdamW, which reads and writes everything once, on a part of the vector."""
        adamw(
            [self.values[part]], [gradient], [self.first[part]], [self.second[part]], [],
            [torch.tensor(float(self.updates), device=gradient.device)], fused=True, amsgrad=False, maximize=False,
            beta1=settings.beta1, beta2=settings.beta2, lr=rate, weight_decay=0.0, eps=settings.epsilon,
        )  # fmt: skip

    def take(self, policy: Policy) -> None:
        """Become another policy of the same shape, with nothing remembered of earlier gradients."""
        self.values.copy_(torch.cat([p.detach().reshape(-1) for p in policy.parameters()]))
        self.first.zero_()
        self.second.zero_()
        self.updates = 0

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs."""
        return {
            "values": self.values,
            "first": self.first,
            "second": self.second,
            "updates": torch.tensor([self.updates]),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.values.copy_(state["values"])
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.updates = int(state["updates"][0])


def _along(weights: Tensor, gradient: Tensor) -> Tensor:
    """The part of a gradient that only makes the weights larger or smaller together."""
    return weights * (gradient @ weights) / (weights @ weights)
