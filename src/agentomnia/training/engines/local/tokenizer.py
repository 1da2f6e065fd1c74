"""A word tokenizer, trained on the spot, whose tokens are whole words and numbers.

What decides whether a small policy solves a task is whether it copies arguments, and copying is easy where the word
in the request and the word in the call are the same token. So a single space between two words is no token but is
implied; words keep one form wherever they stand; a record's key is a prefix and a number; names of tools, parameters
and fields are single tokens, and so are runs of JSON punctuation. A word that was never seen falls into pieces. It is a
`tokenizers` file, so `PreTrainedTokenizerFast` reads it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
          "</think>")  # fmt: skip
_SPACE, _JOIN, _PIECE, _WORD = "\u2581", "\u2040", "\u2059", "\u23b5"
"""A space that is not implied; two words without a space; a later piece of a word; the start of a word (decoding)."""
_ALNUM = "A-Za-z0-9"
_WORDS = r"[A-Z]{2,5}-(?=[0-9]{4})|[A-Za-z]+|[0-9]+"
"""A key's prefix such as `CLI-`, a word, a number."""
_LONGEST = 1000
"""Longest word, or run of punctuation, that is told in pieces; a longer one is one unknown token."""
_RUN = re.compile(rf"{_WORDS}|[^A-Za-z0-9]+")


_KEYS, _YEARS = 200, range(2020, 2036)
"""Numbers of records' keys, and years, that are single tokens."""


class WordTokenizer:
    """Text to token ids and back, without loss for characters of the training texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Wrap a `tokenizers` tokenizer."""
        self.inner = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.pad = vocabulary["<|endoftext|>"]
        self.end = vocabulary["<|im_end|>"]

    @property
    def size(self) -> int:
        """Number of token ids."""
        return int(self.inner.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; markup such as `<|im_end|>` is one token each."""
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, markup included."""
        return str(self.inner.decode(list(ids), skip_special_tokens=False))

    def parts(self) -> dict[int, list[int]]:
        """For each identifier's token, the tokens of the words it is made of, as far as they are words."""
        vocabulary = self.inner.get_vocab()
        found = {}
        for text, token in vocabulary.items():
            words = [vocabulary[w] for w in text.split("_") if w in vocabulary]
            if "_" in text.strip("_") and text[0].isalpha() and words:
                found[token] = words
        return dict(sorted(found.items()))

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`."""
        path.write_text(self.inner.to_str(pretty=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> WordTokenizer:
        """Read `tokenizer.json`."""
        return cls(Tokenizer.from_str(path.read_text(encoding="utf-8")))


def train_tokenizer(texts: Iterable[str], identifiers: Iterable[str] = (), most: int = 3000) -> WordTokenizer:
    """Learn the vocabulary of some texts.

    Args:
        texts: what the policy will read and write.
        identifiers: names of tools, parameters and fields, each a token of its own.
        most: how many words and runs of punctuation get a token of their own, most frequent first.
    """
    counts: Counter[str] = Counter()
    characters: set[str] = set(map(chr, range(32, 127))) | {"\n"}
    for text in texts:
        for marked in _split_markup(text):
            characters.update(marked)
            counts.update(_runs(marked))
    words = (w for w, n in counts.items() if n > 1 and not w.isdigit())
    ranked = sorted(words, key=lambda w: (-counts[w], w))[:most]
    alphabet = sorted({_SPACE if c == " " else c for c in characters} | {_JOIN})
    pairs = [*map(str, range(100)), *(f"{n:02d}" for n in range(100))]
    # every other number falls into pairs of digits, seen in training or not: unseen ones are then nothing new
    numbers = [*pairs, *(f"{n:04d}" for n in range(1, _KEYS)), *map(str, _YEARS)]
    pieces = [_PIECE + piece for piece in (*alphabet, *pairs)]
    vocabulary = [*SPECIAL, *MARKUP, *alphabet, *pieces, *numbers, *ranked]
    names = sorted({i for i in identifiers if "_" in i})
    return WordTokenizer(_build({token: i for i, token in enumerate(dict.fromkeys(vocabulary))}, names))


def _split_markup(text: str) -> list[str]:
    pattern = "|".join(map(re.escape, (*SPECIAL, *MARKUP)))
    return [part for part in re.split(pattern, text) if part]


def _runs(text: str) -> list[str]:
    return [run.replace(" ", _SPACE) for run in _RUN.findall(text) if run != " "]


def _build(vocabulary: dict[str, int], identifiers: Sequence[str]) -> Tokenizer:
    model = models.WordPiece(
        vocabulary, unk_token="<|endoftext|>", continuing_subword_prefix=_PIECE, max_input_chars_per_word=_LONGEST
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Replace(Regex(r"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"), _JOIN),
        normalizers.Replace(Regex(rf"(?<![{_ALNUM}]) | (?![{_ALNUM}])"), _SPACE),
    ])  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(" "), "removed"),
        pre_tokenizers.Split(Regex(_WORDS), "isolated"),
    ])  # fmt: skip
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace(Regex(rf"^(?=[{_ALNUM}])"), _WORD),
        decoders.Fuse(),
        decoders.Replace(Regex(rf"(?<=[{_ALNUM}]){_WORD}"), " "),
        decoders.Replace(Regex(f"[{_WORD}{_JOIN}{_PIECE}]"), ""),
        decoders.Replace(_SPACE, " "),
    ])  # fmt: skip
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_special_tokens(list(MARKUP))
    tokenizer.add_tokens([AddedToken(name, single_word=True, normalized=False) for name in identifiers])
    return tokenizer
