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
        self.embedding = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
        self.confidence = self.embedding.clone()
        offset = 0
        for name, parameter in parameters:
            n = parameter.numel()
            parameter.data = self.values[offset : offset + n].view_as(parameter)
            self.embedding[offset : offset + n] = "embed_tokens" in name
            self.confidence[offset : offset + n] = name == "model.norm.weight"
            offset += n
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
        gradient = gradient * min(1.0, settings.largest_norm / (norm + 1e-6))
        if settings.confidence_rate is not None:
            gradient[self.confidence] = _along(self.values[self.confidence], gradient[self.confidence])
        self.updates += 1
        self.first.mul_(settings.beta1).add_(gradient, alpha=1 - settings.beta1)
        self.second.mul_(settings.beta2).addcmul_(gradient, gradient, value=1 - settings.beta2)
        mean = self.first / (1 - settings.beta1**self.updates)
        spread = (self.second / (1 - settings.beta2**self.updates)).sqrt_().add_(settings.epsilon)
        change = mean.div_(spread)
        rates = torch.where(self.embedding, settings.embedding_rate, settings.rate)
        if settings.confidence_rate is not None:
            rates[self.confidence] = settings.confidence_rate
        change.mul_(rates * scale)
        self.values.sub_(change)
        return norm

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
