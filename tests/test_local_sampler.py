"""The sampler against one full pass over each finished row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch

from agentomnia.training.engines.local.mimetic import new_policy
from agentomnia.training.engines.local.policy import Fresh, Policy, PolicyShape
from agentomnia.training.engines.local.sampler import Row, Sampling, sample

END = 2
SHAPE = PolicyShape(
    vocab_size=14, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=64, max_position_embeddings=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy(SHAPE, 11).double()


@dataclass
class Conversation:
    """Says something of its own after each turn, and keeps the turns it was given."""

    name: str
    turns: int
    """After so many it ends."""

    def __post_init__(self) -> None:
        self.taken: list[list[int]] = []
        self.said: list[list[int]] = []

    def reply(self, turn: list[int]) -> list[int] | None:
        assert turn[-1] == END and END not in turn[:-1]
        self.taken.append(list(turn))
        if len(self.taken) == self.turns:
            return None
        rng = Random(f"{self.name}/{len(self.taken)}")
        said = [rng.randrange(SHAPE.vocab_size) for _ in range(rng.choice((1, 2, 5, 17)))]
        self.said.append(said)
        return said


def opening(name: str, n: int) -> list[int]:
    rng = Random(name)
    return [rng.randrange(SHAPE.vocab_size) for _ in range(n)]


def play(
    policy: Policy, how: Sampling, openings: Sequence[Sequence[int]], seed: int = 0, turns: int = 4
) -> tuple[list[Row], list[Conversation]]:
    conversations = [Conversation(str(n), 1 + n % turns) for n in range(len(openings))]
    draw = torch.Generator().manual_seed(seed)
    return sample(policy, openings, [c.reply for c in conversations], END, draw, how), conversations


OPENINGS = [*(opening(f"own {n}", 1 + 3 * n) for n in range(9)), *[opening("common", 20)] * 6, opening("last", 59)]
CASES = {
    "ordinary": Sampling(context=250, turn_tokens=60),
    "greedy": Sampling(temperature=0, context=250, turn_tokens=20),
    "warm": Sampling(temperature=1.7, context=250, turn_tokens=60),
    "tight context": Sampling(context=60),
    "short turns": Sampling(context=250, turn_tokens=5),
    "few rows": Sampling(context=120, turn_tokens=40, rows=5),
    "one row": Sampling(context=120, turn_tokens=40, rows=1),
}


def logits_of(policy: Policy, ids: Sequence[int]) -> torch.Tensor:
    n = len(ids)
    with torch.no_grad():
        return policy.logits(policy(torch.tensor([ids]), torch.arange(n)[None], Fresh()))[0]


def check_row(policy: Policy, row: Row, how: Sampling, tolerance: float) -> None:
    logits = logits_of(policy, row.ids)
    logprobs = logits.log_softmax(dim=-1)
    for place, (token, own, logprob) in enumerate(zip(row.ids, row.mask, row.logprobs, strict=True)):
        if not own:
            assert logprob == 0.0
            continue
        assert logprob == pytest.approx(float(logprobs[place - 1, token]), abs=tolerance)
        if how.temperature == 0:
            assert float(logits[place - 1, token]) >= float(logits[place - 1].max()) - tolerance


def check_structure(row: Row, conversation: Conversation, begin: Sequence[int], how: Sampling) -> None:
    """The row is opening, turn, reply, turn, …; exactly the turns are the policy's."""
    unfinished = row.turn if row.truncated else []
    ids, mask = list(begin), [0] * len(begin)
    for number in range(len(conversation.taken)):
        ids += conversation.taken[number]
        mask += [1] * len(conversation.taken[number])
        if number < len(conversation.said):
            ids += conversation.said[number]
            mask += [0] * len(conversation.said[number])
    assert row.ids == [*ids, *unfinished]
    assert row.mask == [*mask, *([1] * len(unfinished))]
    assert row.opening == len(begin)
    over = len(conversation.taken) == conversation.turns
    assert row.truncated == (not over)
    if row.truncated:
        assert len(row.ids) >= how.context or len(row.turn) == how.turn_tokens
    assert max(place for place, own in enumerate(row.mask) if own) < how.context


@pytest.mark.parametrize("name", CASES)
def test_rows_equal_one_full_pass(policy: Policy, name: str) -> None:
    how = CASES[name]
    begins = [o for o in OPENINGS if len(o) < how.context]
    rows, conversations = play(policy, how, begins)
    assert len(rows) == len(begins)
    for row, conversation, begin in zip(rows, conversations, begins):
        check_structure(row, conversation, begin, how)
        check_row(policy, row, how, 1e-9)


def test_the_cases_hold_what_they_are_for(policy: Policy) -> None:
    """Several turns, both ways to be truncated, and rows that end at different times."""
    ordinary, conversations = play(policy, CASES["ordinary"], OPENINGS)
    assert sum(len(c.taken) == 4 for c in conversations) >= 2
    assert len({len(r.ids) for r in ordinary}) > 8
    tight, _ = play(policy, CASES["tight context"], OPENINGS)
    assert any(len(r.ids) > 60 for r in tight) and any(len(r.ids) == 60 for r in tight)
    short, _ = play(policy, CASES["short turns"], OPENINGS)
    assert any(len(r.turn) == 5 for r in short)


def test_single_precision_is_near() -> None:
    policy = new_policy(SHAPE, 11)
    how = CASES["ordinary"]
    for row in play(policy, how, OPENINGS)[0]:
        check_row(policy, row, how, 1e-4)


def test_equal_seeds_give_equal_rows(policy: Policy) -> None:
    first, again, other = (play(policy, CASES["ordinary"], OPENINGS, seed)[0] for seed in (0, 0, 1))
    assert first == again != other


def test_greedy_rows_do_not_depend_on_company(policy: Policy) -> None:
    how = CASES["greedy"]
    together = play(policy, how, OPENINGS, turns=1)[0]
    alone = [play(policy, how, [o], seed=7, turns=1)[0][0].ids for o in OPENINGS]
    assert [r.ids for r in together] == alone


def test_sampled_tokens_have_the_policys_distribution(policy: Policy) -> None:
    begin = opening("common", 20)
    wanted = logits_of(policy, begin)[-1].softmax(dim=-1)
    rows, _ = play(policy, Sampling(context=21, rows=4000), [begin] * 4000)
    counts = torch.bincount(torch.tensor([r.ids[20] for r in rows]), minlength=SHAPE.vocab_size)
    deviation = (counts / 4000 - wanted).abs() / (wanted * (1 - wanted) / 4000).sqrt()
    assert float(deviation.max()) < 4.5


def test_an_opening_is_read_once_for_its_group(policy: Policy) -> None:
    read: list[int] = []
    hook = policy.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0].numel()))
    rows, _ = play(policy, Sampling(context=40), [*[opening("one", 20)] * 30, *[opening("two", 18)] * 30])
    hook.remove()
    assert read[0] == 2 * 20
    assert len({tuple(r.ids) for r in rows}) > 30


def test_finished_rows_leave_the_cache(policy: Policy) -> None:
    widths: list[int] = []
    hook = policy.register_forward_pre_hook(lambda _, arguments: widths.append(len(arguments[0])))
    play(policy, replace(CASES["ordinary"], rows=64), OPENINGS)
    hook.remove()
    assert max(widths) == len(OPENINGS) and widths[-1] <= 4


def test_no_conversation_gives_no_row(policy: Policy) -> None:
    assert play(policy, Sampling(), []) == ([], [])
