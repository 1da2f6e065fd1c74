"""Normalisation and rotary positions with backward passes of their own.

Both are limited by memory, and what torch derives for them reads and writes the activations twice as often. Norms and
rotations are a quarter of a training step at this size; so written they are half of that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension; as `torch.nn.RMSNorm`, which has no fused backward on CPUs."""

    def __init__(self, size: int, eps: float) -> None:
        """Begin with weights of one."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (…, size)."""
        return _Norm.apply(x, self.weight, self.eps)  # type: ignore[no-any-return,no-untyped-call]


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = (x * scale).mul_(weight)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """With s = 1 / rms(x): dx = s·w·g − x · s³ · mean(w·g·x), dw = Σ s·g·x."""
        gradient = gradients[0].contiguous()
        x, weight, scale = ctx.saved_tensors
        size = x.shape[-1]
        product, scales = (gradient * x).view(-1, size), scale.view(-1)
        along = (product @ weight).mul_(scales.pow(3)).div_(-size).view_as(scale)
        return (gradient * scale).mul_(weight).addcmul_(x, along), scales @ product, None


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions, pairs being half the size apart as in Qwen3.

    Args:
        x: (…, size) queries or keys.
        cosines: broadcastable to `x`, both halves alike.
        sines: likewise.
    """
    return _Rotation.apply(x, cosines, sines)  # type: ignore[no-any-return,no-untyped-call]


class _Rotation(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turned(x, cosines, sines, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """A rotation's transpose turns back."""
        cosines, sines = ctx.saved_tensors
        return _turned(gradients[0], cosines, sines, -1), None, None


def _turned(x: Tensor, cosines: Tensor, sines: Tensor, way: int) -> Tensor:
    half = x.shape[-1] // 2
    turned = x * cosines
    turned[..., :half].addcmul_(x[..., half:], sines[..., :half], value=-way)
    turned[..., half:].addcmul_(x[..., :half], sines[..., half:], value=way)
    return turned
