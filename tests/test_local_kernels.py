"""Norms and rotations with backward passes of their own, against torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from agentomnia.training.engines.local.kernels import RMSNorm, rotate


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def check_gradients(found: Tensor, wanted: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weights = drawn(*found.shape)
    ours, theirs = torch.autograd.grad(found, inputs, weights), torch.autograd.grad(wanted, inputs, weights)
    for one, other in zip(ours, theirs, strict=True):
        assert float(other.abs().max()) > 0.1
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 7, 4, 6), (1, 1, 64)])
def test_the_norm_is_that_of_torch(shape: tuple[int, ...]) -> None:
    ours, theirs = RMSNorm(shape[-1], eps=1e-3).double(), nn.RMSNorm(shape[-1], eps=1e-3).double()
    with torch.no_grad():
        ours.weight.copy_(drawn(shape[-1]))
    theirs.weight = ours.weight
    x = drawn(*shape).requires_grad_()
    check_gradients(ours(x), theirs(x), (x, ours.weight))


def test_the_norm_takes_gradients_of_any_layout() -> None:
    ours, theirs = RMSNorm(6, eps=1e-6).double(), nn.RMSNorm(6, eps=1e-6).double()
    x = drawn(2, 7, 4, 6).requires_grad_()
    check_gradients(ours(x).transpose(1, 2).contiguous(), theirs(x).transpose(1, 2).contiguous(), (x,))


def test_a_rotation_turns_pairs_that_are_half_the_size_apart() -> None:
    angles = drawn(7, 3)
    cosines, sines = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    x = drawn(2, 4, 7, 6).requires_grad_()
    as_complex = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(angles), angles)
    check_gradients(rotate(x, cosines, sines), torch.cat([as_complex.real, as_complex.imag], dim=-1), (x,))
