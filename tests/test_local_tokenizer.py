"""The word tokenizer: nothing is lost, words keep one form, names are single tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentomnia.training.engines.local.tokenizer import MARKUP, SPECIAL, WordTokenizer, train_tokenizer

IDENTIFIERS = ("book_appointment", "client_id", "starts_at", "min_price_2", "note", "search_x")
TEXTS = [
    "<tools>\nbook_appointment(client_id, starts_at, note)\n</tools>\nNow: 2026-03-09T09:00\nAnswer: total",
    "Please book Ada Löwe, client CLI-0012, a cut on Monday 9 March at 14:30 – for 12.50 €.",
    "Please book Bo Ångström, client CLI-0013, a cut on Monday 16 March at 08:05.",
    '<tool_call>\n{"name": "book_appointment", "arguments": {"client_id": "CLI-0012", "note": "Ada"}}\n</tool_call>',
    '\n<tool_response>\n{"client": {"client_id": "CLI-0012", "total": 12.5, "tags": ["a", "b"]}}\n</tool_response>',
    '{"ok": false, "error": {"code": "not_found", "message": "There is no client \\"CLI-0099\\"."}}',
]
CHARACTERS = sorted({c for text in TEXTS for c in text} | {chr(n) for n in range(32, 127)})
PIECES = (
    "Ada", "ada", "Quixotic", "x", "CLI-0012", "ABCDEFG-0012", "CLI-12", "9CLI-0012", "2026-03-09T09:00", "007",
    "12.50", "123456789", "ö", "€", " ", "  ", "   ", "\n", "\n\n", '{"', '"}', '": "', '", "', "\\", "_", "__", "-",
    "(", ")", ".", ", ", *IDENTIFIERS, "book_appointments", "xclient_id", *MARKUP, *SPECIAL,
)  # fmt: skip
SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(CHARACTERS, max_size=12)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(PIECES), v, max_size=3)
)


@pytest.fixture(scope="module")
def tokenizer() -> WordTokenizer:
    return train_tokenizer(TEXTS, IDENTIFIERS)


@pytest.fixture(scope="module")
def official(tokenizer: WordTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(path)
    return PreTrainedTokenizerFast(tokenizer_file=str(path))


def check(tokenizer: WordTokenizer, official: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert official.encode(text, add_special_tokens=False) == ids
    assert official.decode(ids) == text


@settings(deadline=None, max_examples=60)
@given(text=st.text(CHARACTERS, max_size=60))
@example("x" * 300)
@example("-" * 300)
@example("7" * 300)
@example(" ")
@example("a b  c   d\n e \n")
@example("a 1 b2 3c 4 5")
def test_any_text_of_known_characters_comes_back(tokenizer: WordTokenizer, official: Any, text: str) -> None:
    check(tokenizer, official, text)


@settings(deadline=None, max_examples=60)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_pieces_in_any_order_come_back(tokenizer: WordTokenizer, official: Any, pieces: list[str]) -> None:
    check(tokenizer, official, "".join(pieces))


@settings(deadline=None, max_examples=60)
@given(value=VALUES)
def test_json_comes_back(tokenizer: WordTokenizer, official: Any, value: Any) -> None:
    check(tokenizer, official, json.dumps(value, ensure_ascii=False))


def test_a_saved_tokenizer_is_the_same(tokenizer: WordTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = WordTokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.inner.to_str() == tokenizer.inner.to_str()
    assert (loaded.size, loaded.pad, loaded.end) == (tokenizer.size, tokenizer.pad, tokenizer.end)


def test_equal_texts_give_equal_tokenizers() -> None:
    again = train_tokenizer(iter(TEXTS), reversed(IDENTIFIERS))
    assert again.inner.to_str() == train_tokenizer(TEXTS, IDENTIFIERS).inner.to_str()


@pytest.mark.parametrize("name", [*MARKUP, *SPECIAL, *(i for i in IDENTIFIERS if "_" in i)])
@pytest.mark.parametrize("around", ["{}", "say {}, now", '{{"name": "{}", "x"}}', "{}(", "\n{}\n"])
def test_a_name_is_one_token_everywhere(tokenizer: WordTokenizer, name: str, around: str) -> None:
    own = tokenizer.encode(name)
    assert len(own) == 1
    assert tokenizer.encode(around.format(name)).count(own[0]) == 1


@pytest.mark.parametrize("longer", ["book_appointments", "xclient_id", "client_id2", "client_id_2"])
def test_a_name_within_a_longer_name_is_not_taken_out(tokenizer: WordTokenizer, longer: str) -> None:
    short = [tokenizer.encode(i)[0] for i in ("book_appointment", "client_id")]
    assert not any(token in tokenizer.encode(longer) for token in short)


@pytest.mark.parametrize("word", ["Ada", "cut", "CLI-0012", "Monday", "14"])
def test_a_word_is_the_same_tokens_in_a_query_and_in_json(tokenizer: WordTokenizer, word: str) -> None:
    own = tokenizer.encode(word)
    assert len(own) <= 3
    for around in ("Please {} it.", "{} it", "Please {}", '{{"note": "{}"}}', '{{"note": "a {} b"}}', "({})", ", {},"):
        found = tokenizer.encode(around.format(word))
        assert any(found[i : i + len(own)] == own for i in range(len(found))), around


def test_single_spaces_between_words_cost_no_token(tokenizer: WordTokenizer) -> None:
    assert len(tokenizer.encode("Please book Ada")) == 3
    assert tokenizer.encode("Please book Ada") != tokenizer.encode("PleasebookAda")


def test_parts_are_the_words_of_a_name(tokenizer: WordTokenizer) -> None:
    parts = tokenizer.parts()
    name = tokenizer.encode("book_appointment")[0]
    assert parts[name] == [*tokenizer.encode("book"), *tokenizer.encode("appointment")]
    assert set(parts) == {tokenizer.encode(i)[0] for i in IDENTIFIERS if "_" in i}


def test_joining_token_lists_joins_their_texts(tokenizer: WordTokenizer) -> None:
    """A conversation is encoded piece by piece: a piece begins and ends at markup."""
    pieces = [TEXTS[0] + "<|im_end|>", "\n<|im_start|>assistant\n", TEXTS[3] + "<|im_end|>", TEXTS[4] + "<|im_end|>"]
    ids = [token for piece in pieces for token in tokenizer.encode(piece)]
    assert tokenizer.decode(ids) == "".join(pieces)
    assert ids == tokenizer.encode("".join(pieces))
