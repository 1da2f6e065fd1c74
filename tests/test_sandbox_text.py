"""JSON on the wire: read and written as the standard library does, only quicker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.errors import EnvironmentFault
from agentomnia.sandbox.faces import text
from agentomnia.sandbox.faces.refusal import Refusal
from agentomnia.sandbox.faces.text import json_text, read_json, write_json

TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
"""Halves of surrogate pairs too."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal, with the same types and the same order of keys."""
    return repr(one) == repr(other)


@settings(deadline=None)
@given(VALUES, st.sampled_from([None, 1]))
def test_values_are_read_and_written_as_by_the_standard_library(value: Any, indent: int | None) -> None:
    written = json.dumps(value, indent=indent)
    assert same(read_json(written), json.loads(written)) and same(read_json(written.encode()), json.loads(written))
    assert write_json(value).decode() == json.dumps(value, separators=(",", ":"))
    assert json_text(value) == json.dumps(value, ensure_ascii=False)


JUNK = st.text(st.sampled_from(list('[]{}",:\\/ \n\t\x00u00e9d8-+.eE0123456789truefalsnNaInity\ufeffü')), max_size=14)


@settings(deadline=None, max_examples=1000)
@given(JUNK)
def test_what_is_no_json_is_refused_as_by_the_standard_library(junk: str) -> None:
    try:
        expected = text._read_exactly(junk)
    except Refusal as refusal:
        with pytest.raises(Refusal) as refused:
            read_json(junk.encode())
        assert str(refused.value) == str(refusal)
    else:
        assert same(read_json(junk.encode()), expected) and same(read_json(junk), expected)


@pytest.mark.parametrize(
    "body",
    [b"", b"nul", b"NaN", b"[Infinity]", b"-Infinity", b"\xff", b'"\xed\xa0\x80"', b"[" * 100_000, b"9" * 5000, b"1 2"],
)
def test_refused_bodies(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for quick in (text._decode_quickly, text._refuse):  # with msgspec, and without
        monkeypatch.setattr(text, "_decode_quickly", quick)
        with pytest.raises(Refusal) as refused:
            read_json(body)
        assert refused.value.status == 400


def test_half_a_pair_is_read() -> None:
    assert read_json(b'{"a": "\\ud800"}') == {"a": "\ud800"} and json.loads(write_json("\ud800")) == "\ud800"


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": b"bytes"}, {1, 2}, {(1,): 2}])
def test_what_json_has_not_is_the_environments_fault(value: Any) -> None:
    for write in (write_json, json_text):
        with pytest.raises(EnvironmentFault, match="correct the tool"):
            write(value)
