"""Scores and gradients with shared openings, against separate full passes in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from agentomnia.training.engines.local import worker as worker_module
from agentomnia.training.engines.local.mimetic import new_policy
from agentomnia.training.engines.local.policy import Fresh, Policy, PolicyShape
from agentomnia.training.engines.local.rollout import Rollout
from agentomnia.training.engines.local.scoring import Family, score
from agentomnia.training.engines.local.tokenizer import train_tokenizer
from agentomnia.training.engines.local.worker import Demonstration, RolloutGroup, StepTotals, Weighting, Worker
from agentomnia.training.rl.filtering import RolloutOutcome

SHAPE = PolicyShape(
    vocab_size=60, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=64, max_position_embeddings=256,
)  # fmt: skip


def tokens(name: str, n: int) -> tuple[int, ...]:
    rng = Random(name)
    return tuple(rng.randrange(SHAPE.vocab_size) for _ in range(n))


def logprobs_alone(policy: Policy, ids: Sequence[int]) -> Tensor:
    """Log-probability of each token but the first, by one pass over this row alone."""
    n = len(ids)
    hidden = policy(torch.tensor([ids]), torch.arange(n)[None], Fresh())[0]
    return policy.logits(hidden)[:-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


def gradient(policy: Policy) -> Tensor:
    parts = [p.grad.reshape(-1) for p in policy.parameters() if p.grad is not None]
    policy.zero_grad(set_to_none=True)
    return torch.cat(parts)


@pytest.fixture
def policy() -> Policy:
    return new_policy(SHAPE, 4).double()


FAMILIES: dict[str, list[Family]] = {
    "one": [Family(tokens("o", 20), [tokens("a", 30)])],
    "unlike lengths": [
        Family(tokens("o", 20), [tokens("a", 30), tokens("b", 3), tokens("c", 64)]),
        Family(tokens("p", 70), [tokens("d", 1), tokens("e", 40)]),
        Family(tokens("q", 1), [tokens("f", 12)]),
    ],
    "no filling": [Family(tokens("o", 32), [tokens("a", 31)]), Family(tokens("p", 64), [tokens("b", 1)])],
    "openings alone": [Family(tokens("o", 20)), Family(tokens("p", 9))],
    "nothing said": [Family(tokens("o", 20), [(), tokens("a", 5)]), Family(tokens("p", 9), [()])],
    "one token each": [Family(tokens("o", 5), [tokens("a", 1), tokens("b", 1)])],
}


def draw_wanted(rows: Sequence[Sequence[int]], name: str) -> Tensor:
    """1 on about two thirds of the tokens, never on padding."""
    rng = Random(name)
    n = max(map(len, rows), default=0)
    drawn = [[float(i < len(r) and rng.random() < 0.67) for i in range(n)] for r in rows]
    return torch.tensor(drawn).view(len(rows), n)


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_and_gradients_equal_separate_passes(policy: Policy, name: str) -> None:
    families = FAMILIES[name]
    tails = [c for f in families for c in f.continuations]
    wanted, wanted_openings = draw_wanted(tails, "tails"), draw_wanted([f.opening for f in families], "openings")
    wanted_openings[:, 0] = 0
    scores = score(policy, families, wanted, wanted_openings)
    weights = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (scores.continuations * weights).sum().add(3 * scores.openings.sum()).backward()
    found = gradient(policy)

    total = torch.zeros((), dtype=torch.float64)
    row = 0
    for number, family in enumerate(families):
        n = len(family.opening)
        if n > 1:
            alone = logprobs_alone(policy, family.opening)
            kept = alone * wanted_openings[number, 1:n]
            torch.testing.assert_close(scores.openings[number, 1:n], kept, rtol=0, atol=1e-9)
            total = total + 3 * kept.sum()
        for tail in family.continuations:
            kept = logprobs_alone(policy, [*family.opening, *tail])[n - 1 :] * wanted[row, : len(tail)]
            torch.testing.assert_close(scores.continuations[row, : len(tail)], kept, rtol=0, atol=1e-9)
            assert not scores.continuations[row, len(tail) :].any()
            total = total + (kept * weights[row, : len(tail)]).sum()
            row += 1
    total.backward()
    assert float(found.abs().max()) > 0.1
    torch.testing.assert_close(found, gradient(policy), rtol=0, atol=1e-9)


def test_openings_are_not_scored_unless_wanted(policy: Policy) -> None:
    scores = score(policy, FAMILIES["one"], torch.ones(1, 30))
    assert not scores.openings.any()


@pytest.fixture
def worker(policy: Policy) -> Worker:
    return Worker(policy, train_tokenizer(["a"]))


def rollout(name: str, opening: int, tail: int, golden: int) -> Rollout:
    """A rollout whose opening ends in some golden tokens, and whose tail is partly its own."""
    rng = Random(name)
    group = name.split("/")[0]
    ids = (*tokens(group, opening), *tokens(name, tail))
    own = (*([0] * opening), *(int(rng.random() < 0.7) for _ in range(tail)))
    behaviour = [rng.randrange(-512, 0) / 128 if o else 0.0 for o in own]  # exact in single precision
    marks = [*([0] * (opening - golden)), *([1] * golden), *([0] * tail)]
    nothing: Any = None
    return Rollout(ids, own, tuple(marks), tuple(behaviour), opening, nothing, RolloutOutcome(0.0, "completed"))


def groups_of_a_step() -> list[RolloutGroup]:
    first = tuple(rollout(f"g/{n}", 30, 20 + n, 8) for n in range(3))
    second = tuple(rollout(f"h/{n}", 12, 40 - n, 0) for n in range(2))
    unsignalled = tuple(rollout(f"i/{n}", 25, 10, 5) for n in range(2))
    return [
        RolloutGroup(first, (1.25, -0.25, -1.0)),
        RolloutGroup(second, (1.0, -1.0)),
        RolloutGroup(unsignalled, (0.0, 0.0)),
    ]


def own_tokens(group: RolloutGroup) -> int:
    return sum(sum(r.own) for r in group.rollouts)


def eq_11(policy: Policy, groups: Sequence[RolloutGroup], ce: float) -> Tensor:
    """Eq. 8 and 11, token by token and rollout by rollout."""
    loss, golden_total, signal = torch.zeros((), dtype=torch.float64), 0, 2
    golden_sum = torch.zeros((), dtype=torch.float64)
    for group in groups:
        first = group.rollouts[0]
        alone = logprobs_alone(policy, first.ids)
        golden_sum = golden_sum + sum(alone[i - 1] for i, g in enumerate(first.golden) if g)
        golden_total += sum(first.golden)
        for r, advantage in zip(group.rollouts, group.advantages):
            alone = logprobs_alone(policy, r.ids)
            for i, own in enumerate(r.own):
                if own and advantage:
                    ratio = (alone[i - 1] - r.logprobs[i]).exp()
                    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
                    loss = loss - surrogate / own_tokens(group) / signal
    return loss - ce * golden_sum / golden_total


@pytest.mark.parametrize("micro", [12_000, 200])
def test_the_gradient_of_rollouts_is_that_of_eq_11(worker: Worker, micro: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "MICRO_TOKENS", micro)
    groups = groups_of_a_step()
    totals = StepTotals(tuple(map(own_tokens, groups)), groups=2, golden=13)
    report = worker.learn_rollouts(groups, totals, Weighting(ce=0.3))
    found = gradient(worker.policy)
    wanted = eq_11(worker.policy, groups, 0.3)
    wanted.backward()
    torch.testing.assert_close(found, gradient(worker.policy), rtol=0, atol=1e-9)
    assert report.rl + 0.3 * report.ce == pytest.approx(float(wanted.detach()), abs=1e-9)
    assert report.tokens == sum(map(own_tokens, groups))
    assert 0 < report.clipped < report.tokens


def test_shares_of_a_step_add_up(worker: Worker) -> None:
    groups = groups_of_a_step()
    worker.learn_rollouts(groups, StepTotals(tuple(map(own_tokens, groups)), 2, 13), Weighting(ce=0.3))
    whole = gradient(worker.policy)
    parts = [groups[::2], groups[1::2]]
    for part in parts:
        worker.learn_rollouts(part, StepTotals(tuple(map(own_tokens, part)), 2, 13), Weighting(ce=0.3))
    torch.testing.assert_close(gradient(worker.policy), whole, rtol=0, atol=1e-12)


def test_the_gradient_of_demonstrations_is_the_mean_loss_of_trained_tokens(worker: Worker) -> None:
    rows = [tokens(f"d/{n}", 20 + 30 * n) for n in range(3)]
    batch = [Demonstration(r, tuple(int(i > 4 and i % 3 > 0) for i in range(len(r)))) for r in rows]
    total = sum(sum(d.mask) for d in batch)
    loss = worker.learn_demonstrations(batch, total)
    found = gradient(worker.policy)
    terms = [logprobs_alone(worker.policy, d.ids) @ torch.tensor(d.mask[1:], dtype=torch.float64) for d in batch]
    wanted = -torch.stack(terms).sum() / total
    wanted.backward()
    assert loss == pytest.approx(float(wanted.detach()), abs=1e-9)
    torch.testing.assert_close(found, gradient(worker.policy), rtol=0, atol=1e-9)


def test_an_empty_share_has_no_gradient(worker: Worker) -> None:
    assert worker.learn_demonstrations([], 5) == 0.0
    assert worker.learn_rollouts([], StepTotals((), 2, 13), Weighting(ce=0.3)).tokens == 0
    assert all(p.grad is None for p in worker.policy.parameters())


def test_training_in_single_precision_is_near(tmp_path: Path) -> None:
    """bfloat16 inside, float32 gradients: the direction is that of double precision."""
    gradients = []
    for policy in (new_policy(SHAPE, 4), new_policy(SHAPE, 4).double()):
        groups = groups_of_a_step()
        totals = StepTotals(tuple(map(own_tokens, groups)), 2, 13)
        Worker(policy, train_tokenizer(["a"])).learn_rollouts(groups, totals, Weighting(ce=0.3))
        gradients.append(gradient(policy).double())
    assert float(torch.cosine_similarity(*gradients, dim=0)) > 0.9
