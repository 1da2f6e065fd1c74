"""The losses against Eq. 8 written as loops, against finite differences, and cut into micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentomnia.errors import InputError
from agentomnia.training.rl.advantage import group_advantages
from agentomnia.training.rl.loss import (
    GroupTotals,
    PolicyLoss,
    golden_loss,
    group_totals,
    hybrid_loss,
    policy_loss,
)

EPS_LOW, EPS_HIGH = 0.2, 0.28

# below, inside, above the clip range, and far out; never on a bound, where the minimum has no derivative
LOG_RATIO = st.one_of(
    st.floats(-3, math.log(0.8) - 0.01),
    st.floats(math.log(0.8) + 0.01, math.log(1.28) - 0.01),
    st.floats(math.log(1.28) + 0.01, 3),
    st.just(0.0),
)


@dataclass(frozen=True)
class Batch:
    """One optimisation step as nested lists: [rollout][position]."""

    logprobs: list[list[float]]
    behaviour: list[list[float]]
    mask: list[list[int]]
    advantages: list[float]
    groups: list[int]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        f = torch.float64
        return (
            torch.tensor(self.logprobs, dtype=f, requires_grad=True),
            torch.tensor(self.behaviour, dtype=f),
            torch.tensor(self.mask, dtype=f),
            torch.tensor(self.advantages, dtype=f),
            torch.tensor(self.groups),
        )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to three groups of up to four rollouts, interleaved, some dropped, some without own tokens."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    width = draw(st.integers(1, 5))
    rows: list[tuple[list[float], list[float], list[int], float, int]] = []
    for group, size in enumerate(sizes):
        rewards = draw(st.lists(st.sampled_from([None, 0.0, 1.0, -1.0]), min_size=size, max_size=size))
        for reward, advantage in zip(rewards, group_advantages(rewards)):
            old = draw(st.lists(st.floats(-5, -0.01), min_size=width, max_size=width))
            shift = draw(st.lists(LOG_RATIO, min_size=width, max_size=width))
            own = draw(st.lists(st.integers(0, 1), min_size=width, max_size=width))
            mask = own if reward is not None else [0] * width
            rows.append(([o + s for o, s in zip(old, shift)], old, mask, advantage, group))
    columns = zip(*draw(st.permutations(rows)))
    return Batch(*(list(column) for column in columns))


def objective(batch: Batch) -> tuple[float, list[list[float]]]:
    """-J of Eq. 8 and its derivative by each log-probability, literally: no tensor, no mask arithmetic."""
    gradient = [[0.0 for _ in row] for row in batch.logprobs]
    values: list[float] = []
    live: list[list[tuple[int, int, float]]] = []
    for group in sorted(set(batch.groups)):
        members = [i for i, g in enumerate(batch.groups) if g == group]
        y = {i: [t for t, own in enumerate(batch.mask[i]) if own] for i in members}
        length = sum(len(y[i]) for i in members)
        total, slopes, signal = 0.0, [], False
        for i in members:
            a = batch.advantages[i]
            for t in y[i]:
                r = math.exp(batch.logprobs[i][t]) / math.exp(batch.behaviour[i][t])
                plain = r * a
                clipped = min(max(r, 1 - EPS_LOW), 1 + EPS_HIGH) * a
                total += min(plain, clipped)
                slopes.append((i, t, -r * a / length if plain <= clipped else 0.0))
                signal = signal or a != 0
        if signal:
            values.append(total / length)
            live.append(slopes)
    for slopes in live:
        for i, t, slope in slopes:
            gradient[i][t] = slope / len(live)
    return -sum(values) / max(len(values), 1), gradient


def run(batch: Batch, **arguments: object) -> tuple[PolicyLoss, Tensor]:
    logprobs, *rest = batch.tensors()
    result = policy_loss(logprobs, *rest, **arguments)  # type: ignore[arg-type]
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return result, logprobs.grad


def close(got: Tensor, wanted: Tensor | list[list[float]]) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted, dtype=torch.float64), atol=1e-9, rtol=1e-9)


@given(batches())
@settings(deadline=None, max_examples=150)
def test_loss_and_gradient_are_equation_8(batch: Batch) -> None:
    result, gradient = run(batch)
    loss, slopes = objective(batch)
    assert result.loss.item() == pytest.approx(loss, abs=1e-9)
    close(gradient, slopes)


@given(batches(), st.data())
@settings(deadline=None, max_examples=80)
def test_micro_batches_add_up(batch: Batch, data: st.DataObject) -> None:
    whole, gradient = run(batch)
    _, _, mask, advantages, groups = batch.tensors()
    totals = group_totals(mask, advantages, groups)
    rows = len(batch.groups)
    parts = data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    loss, summed, tokens = 0.0, torch.zeros_like(gradient), 0
    for part in sorted(set(parts)):
        chosen = [i for i in range(rows) if parts[i] == part]
        piece = Batch(*([column[i] for i in chosen] for column in vars(batch).values()))
        result, slopes = run(piece, group_tokens=totals.tokens, group_count=totals.count)
        loss += result.loss.item()
        summed[chosen] = slopes
        tokens += result.tokens
    assert loss == pytest.approx(whole.loss.item(), abs=1e-9)
    close(summed, gradient)
    assert tokens == whole.tokens == int(totals.tokens.sum())


@given(batches())
@settings(deadline=None, max_examples=30)
def test_gradient_is_the_finite_difference(batch: Batch) -> None:
    logprobs, *rest = batch.tensors()
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, *rest).loss, (logprobs,), eps=1e-6, atol=1e-6)


def two_groups() -> Batch:
    """A group with signal (2 + 1 tokens), and one without (2 tokens)."""
    return Batch(
        logprobs=[[-1.0, -2.0], [-1.5, -0.5], [-1.0, -1.0]],
        behaviour=[[-1.1, -2.0], [-1.5, -9.0], [-1.0, -1.2]],
        mask=[[1, 1], [1, 0], [1, 1]],
        advantages=[1.0, -1.0, 0.0],
        groups=[0, 0, 1],
    )


def test_dropped_rollouts_are_as_if_never_sampled() -> None:
    batch = two_groups()
    dropped = Batch(
        logprobs=[*batch.logprobs, [math.nan, -math.inf]],
        behaviour=[*batch.behaviour, [0.0, math.nan]],
        mask=[*batch.mask, [0, 0]],
        advantages=[*batch.advantages, 0.0],
        groups=[*batch.groups, 0],
    )
    (without, gradient), (with_it, wider) = run(batch), run(dropped)
    assert with_it.loss.item() == without.loss.item()
    assert (with_it.tokens, with_it.clip_fraction) == (without.tokens, without.clip_fraction)
    assert torch.equal(wider[:3], gradient)
    assert torch.equal(wider[3], torch.zeros(2, dtype=torch.float64))


def test_groups_without_signal_do_not_dilute() -> None:
    batch = two_groups()
    alone = Batch(*(column[:2] for column in vars(batch).values()))
    assert run(batch)[0].loss.item() == run(alone)[0].loss.item()
    (mask, advantages, groups) = batch.tensors()[2:]
    assert group_totals(mask, advantages, groups).count == 1
    silent = replace(batch, advantages=[0.0, 0.0, 0.0])
    result, gradient = run(silent)
    assert result.loss.item() == 0.0
    assert not gradient.any()


def test_clipping_is_one_sided_and_asymmetric() -> None:
    def slope(ratio: float, advantage: float) -> tuple[float, float]:
        batch = Batch([[math.log(ratio)]], [[0.0]], [[1]], [advantage], [0])
        result, gradient = run(batch)
        return gradient.item(), result.clip_fraction

    for ratio, advantage, gradient, clipped in (
        (1.27, 1.0, -1.27, 0.0),
        (1.29, 1.0, 0.0, 1.0),
        (0.5, 1.0, -0.5, 0.0),
        (0.81, -1.0, 0.81, 0.0),
        (0.79, -1.0, 0.0, 1.0),
        (3.0, -1.0, 3.0, 0.0),
        (3.0, 0.0, 0.0, 0.0),
    ):
        assert slope(ratio, advantage) == pytest.approx((gradient, clipped), abs=1e-12)


def test_on_policy_gradient_is_the_plain_policy_gradient() -> None:
    batch = two_groups()
    result, gradient = run(replace(batch, behaviour=batch.logprobs))
    close(gradient, [[-1 / 3, -1 / 3], [1 / 3, 0.0], [0.0, 0.0]])
    assert (result.ratio_mean, result.clip_fraction, result.tokens) == (1.0, 0.0, 5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_overflowing_ratio_leaves_the_gradient_finite(advantage: float) -> None:
    logprobs = torch.tensor([[-0.1, -1.0]], requires_grad=True)
    behaviour = torch.tensor([[-1000.0, -1.0]])
    result = policy_loss(logprobs, behaviour, torch.ones(1, 2), torch.tensor([advantage]), torch.tensor([0]))
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert result.loss.isfinite()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, -advantage / 2]]


def test_the_sampler_is_a_constant() -> None:
    logprobs, behaviour, mask, advantages, groups = two_groups().tensors()
    behaviour.requires_grad_()
    policy_loss(logprobs, behaviour, mask, advantages, groups).loss.backward()  # type: ignore[no-untyped-call]
    assert behaviour.grad is None


def test_golden_loss_is_a_token_mean_that_adds_up() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, math.nan], [-4.0, -8.0, -16.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    whole = golden_loss(logprobs, mask)
    assert whole.item() == pytest.approx(19 / 3)
    parts = golden_loss(logprobs[:1], mask[:1], 3) + golden_loss(logprobs[1:], mask[1:], 3)
    assert parts.item() == pytest.approx(whole.item())
    parts.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    close(logprobs.grad, [[-1 / 3, -1 / 3, 0.0], [0.0, 0.0, -1 / 3]])
    assert golden_loss(logprobs[:, :0], mask[:, :0]).item() == 0.0


def test_hybrid_loss_weighs_both() -> None:
    golden, policy = torch.tensor(3.0), torch.tensor(-2.0)
    assert hybrid_loss(golden, policy, lambda_ce=0.5, lambda_rl=2.0).item() == -2.5
    assert hybrid_loss(golden, policy, lambda_ce=0.0, lambda_rl=1.0).item() == policy.item()


def test_misuse_is_named() -> None:
    logprobs, behaviour, mask, advantages, groups = two_groups().tensors()
    with pytest.raises(InputError, match="pad all three alike"):
        policy_loss(logprobs, behaviour, mask[:1], advantages, groups)
    with pytest.raises(InputError, match=r"give \(B, T\), \(B,\) and \(B,\)"):
        policy_loss(logprobs, behaviour, mask, advantages[:1], groups)
    with pytest.raises(InputError, match="number them from 0"):
        policy_loss(logprobs, behaviour, mask, advantages, groups - 1)
    with pytest.raises(InputError, match="with group_totals"):
        policy_loss(logprobs, behaviour, mask, advantages, groups, group_tokens=torch.tensor([2, 2]))
    with pytest.raises(InputError, match="with group_totals"):
        policy_loss(logprobs, behaviour, mask, advantages, groups, group_count=0)
    with pytest.raises(InputError, match="pad both alike"):
        golden_loss(logprobs, mask[:1])
    with pytest.raises(InputError, match="pass the whole step's number"):
        golden_loss(logprobs, mask, 2)


def test_an_empty_batch_has_a_loss() -> None:
    nothing = torch.zeros(0, 3, requires_grad=True)
    empty = torch.zeros(0)
    result = policy_loss(nothing, torch.zeros(0, 3), torch.zeros(0, 3), empty, empty.long())
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert (result.loss.item(), result.tokens) == (0.0, 0)
    assert isinstance(group_totals(torch.zeros(0, 3), empty, empty.long(), 2), GroupTotals)
