"""Every card that ships can be drafted, starts, and passes the environment gate."""

from pathlib import Path

import pytest

from agentomnia.synthesis.environments.author import draft_from_card
from agentomnia.synthesis.environments.card import card_paths, load_card
from agentomnia.synthesis.environments.gate import verify_environment


@pytest.mark.parametrize("path", card_paths(), ids=lambda p: p.stem)
def test_a_shipped_card_passes_the_gate(path: Path) -> None:
    verification = verify_environment(draft_from_card(load_card(path), path.name).spec)
    assert not verification.findings


def test_there_are_five_cards_a_split() -> None:
    heads = [int(p.stem.partition("_")[0]) // 10000 for p in card_paths()]
    assert all(heads.count(split) >= 5 for split in (1, 2, 3))
