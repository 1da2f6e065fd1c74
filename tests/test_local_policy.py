"""The policy network is Qwen3, and the weights it starts from can copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentomnia.training.engines.local.mimetic import new_policy
from agentomnia.training.engines.local.optimizer import AdamW, FlatWeights
from agentomnia.training.engines.local.policy import Fresh, Policy, PolicyShape, load_policy, save_policy
from agentomnia.training.engines.local.scoring import Family, score

TINY = PolicyShape(
    vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=64, max_position_embeddings=128,
)  # fmt: skip


def random_ids(rows: int, n: int, seed: int, vocabulary: int = TINY.vocab_size) -> torch.Tensor:
    return torch.randint(0, vocabulary, (rows, n), generator=torch.Generator().manual_seed(seed))


def logits_of(policy: Policy, ids: torch.Tensor) -> torch.Tensor:
    rows, n = ids.shape
    return policy.logits(policy(ids, torch.arange(n).expand(rows, n), Fresh()))


def official(folder: Path) -> Any:
    from transformers import Qwen3ForCausalLM

    return Qwen3ForCausalLM.from_pretrained(folder).eval()


def train_one_step(policy: Policy) -> None:
    weights = FlatWeights(policy)
    (-score(policy, [Family([1], [list(range(2, 30))])], torch.ones(1, 28)).continuations.sum()).backward()
    assert weights.step(weights.gradient(), AdamW(1e-2, 1e-3), 1.0) > 0


@pytest.mark.parametrize("trained", [False, True])
def test_transformers_reads_the_same_network(trained: bool, tmp_path: Path) -> None:
    policy = new_policy(TINY, 3)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    if trained:
        train_one_step(policy)
        assert all(not torch.equal(p, before[name]) for name, p in policy.named_parameters())
    save_policy(policy, tmp_path)
    ids = random_ids(3, 100, 0)
    with torch.no_grad():
        wanted = official(tmp_path)(input_ids=ids).logits
        assert (logits_of(policy, ids) - wanted).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max()))


def test_every_weight_of_the_network_is_in_the_file_and_no_other(tmp_path: Path) -> None:
    from safetensors.torch import load

    policy = new_policy(TINY, 0)
    save_policy(policy, tmp_path)
    wanted = {n for n in official(tmp_path).state_dict() if n != "lm_head.weight"}  # tied to the embeddings
    assert set(load((tmp_path / "model.safetensors").read_bytes())) == wanted
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def test_equal_weights_give_equal_bytes_and_come_back(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_policy(new_policy(TINY, 5), tmp_path / name)
    save_policy(load_policy(tmp_path / "a"), tmp_path / "c")
    save_policy(new_policy(TINY, 6), tmp_path / "d")
    a, b, c, d = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abcd")
    assert a == b == c != d
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["config.json", "model.safetensors"]
    assert load_policy(tmp_path / "a").shape == TINY


def test_flat_weights_keep_the_bytes(tmp_path: Path) -> None:
    policy = new_policy(TINY, 5)
    save_policy(policy, tmp_path / "before")
    FlatWeights(policy)
    save_policy(policy, tmp_path / "after")
    before, after = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("before", "after"))
    assert before == after


def test_the_optimizer_is_adamw_of_torch() -> None:
    ours, theirs = new_policy(TINY, 1), new_policy(TINY, 1)
    weights = FlatWeights(ours)
    named = dict(theirs.named_parameters())
    embeddings = named.pop("model.embed_tokens.weight")
    groups = [{"params": list(named.values()), "lr": 1e-2}, {"params": [embeddings], "lr": 1e-3}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for step in range(3):
        for policy in (ours, theirs):
            logits_of(policy, random_ids(2, 20, step)).square().mean().mul(1 + 100 * step).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()
        reference.zero_grad()
        assert weights.step(weights.gradient(), AdamW(1e-2, 1e-3), 1.0) == pytest.approx(float(norm), rel=1e-5)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_with_a_confidence_rate_the_last_norm_only_grows_or_shrinks(sign: float) -> None:
    policy = new_policy(TINY, 1)
    weights, norm = FlatWeights(policy), policy.get_parameter("model.norm.weight")
    before = norm.detach().clone()
    torch.manual_seed(3)
    noise = torch.randn_like(before)
    noise -= before * (noise @ before) / (before @ before)
    gradient = torch.zeros_like(weights.values)
    gradient[weights.confidence] = 100 * noise - sign * before
    weights.step(gradient, AdamW(1e-2, 1e-3, 5e-2), 1.0)
    torch.testing.assert_close(norm, before + sign * 5e-2 * before.sign(), rtol=1e-3, atol=1e-4)
    still = FlatWeights(new_policy(TINY, 1))
    still.step(gradient, AdamW(1e-2, 1e-3, 0.0), 1.0)
    assert torch.equal(still.values[still.confidence], before)


def test_an_update_that_is_not_finite_is_left_out() -> None:
    weights = FlatWeights(new_policy(TINY, 1))
    before = weights.values.clone()
    gradient = torch.ones_like(before)
    gradient[7] = float("nan")
    norm = weights.step(gradient, AdamW(1e-2, 1e-3), 1.0)
    assert norm != norm
    assert torch.equal(weights.values, before) and weights.updates == 0 and not weights.first.any()


def test_a_restored_optimizer_goes_on_with_the_same_bytes() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(FlatWeights(new_policy(TINY, 1)).values.shape) for _ in range(4)]
    straight, stopped = FlatWeights(new_policy(TINY, 1)), FlatWeights(new_policy(TINY, 1))
    for g in gradients:
        straight.step(g, AdamW(1e-2, 1e-3), 1.0)
    for g in gradients[:2]:
        stopped.step(g, AdamW(1e-2, 1e-3), 1.0)
    resumed = FlatWeights(new_policy(TINY, 2))
    resumed.restore({name: t.clone() for name, t in stopped.state().items()})
    for g in gradients[2:]:
        resumed.step(g, AdamW(1e-2, 1e-3), 1.0)
    assert all(torch.equal(a, b) for a, b in zip(straight.state().values(), resumed.state().values()))


def repeated_hits(policy: Policy, length: int = 40) -> float:
    """In the second half of repeated random tokens, how often the next is first choice, the present one left out."""
    once = random_ids(8, length, 1, policy.shape.vocab_size)
    ids = torch.cat([once, once], dim=1)
    with torch.inference_mode():
        logits = logits_of(policy, ids).scatter(2, ids[:, :, None], float("-inf"))
    best = logits.argmax(dim=-1)[:, length:-1]
    return float((best == ids[:, length + 1 :]).float().mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_circuit_copies_before_the_first_step(seed: int) -> None:
    demo = PolicyShape(vocab_size=2000)
    assert repeated_hits(new_policy(demo, seed)) > 0.5
    assert repeated_hits(new_policy(demo, seed, induction=False)) < 0.02


def test_a_name_starts_near_its_words_and_other_tokens_do_not_move() -> None:
    plain, composed = (new_policy(TINY, 0, parts).model.embed_tokens.weight for parts in ({}, {90: [10, 11]}))
    centred = (composed - composed.mean(dim=0)).detach()

    def likeness(a: int, b: int) -> float:
        return float(torch.cosine_similarity(centred[a], centred[b], dim=0))

    assert min(likeness(90, 10), likeness(90, 11)) > 0.3 > abs(likeness(90, 12))
    others = [n for n in range(TINY.vocab_size) if n != 90]
    assert torch.equal(plain[others], composed[others])
