"""Python source coloured for reading: every character is kept, classes only are added.

Tokens come from the standard library's `tokenize`. A source that it cannot read is shown plain.

    k keyword   s string   n number   c comment   d name that is defined   b the name `self` or a builtin
"""

from __future__ import annotations

import builtins
import io
import keyword
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

_BUILTINS = frozenset(dir(builtins)) | {"self"}
_DEFINING = frozenset(("def", "class"))


@dataclass(frozen=True)
class Source:
    """A source, cut to a limit, as markup with one anchor for each method."""

    code: Markup
    lines: int
    shown: int
    """Lines in `code`; fewer than `lines` where the source was cut."""

    @property
    def numbers(self) -> str:
        """The line numbers, one a line."""
        return "\n".join(str(number) for number in range(1, self.shown + 1))


def colour(text: str, anchor: str, limit: int) -> Source:
    """Colour a source.

    Args:
        text: Python source.
        anchor: prefix of the anchors: the method `f` gets `<anchor>-f`.
        limit: characters to show at most; the cut falls between lines.
    """
    lines = text.splitlines(keepends=True)
    kept = _kept_lines(lines, limit)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return Source(escape("".join(lines[:kept])), len(lines), kept)
    pieces = _pieces(tokens, lines, anchor, kept)
    return Source(Markup("").join(pieces), len(lines), kept)


def _kept_lines(lines: list[str], limit: int) -> int:
    size = 0
    for number, line in enumerate(lines):
        size += len(line)
        if size > limit:
            return number
    return len(lines)


def _pieces(tokens: list[tokenize.TokenInfo], lines: list[str], anchor: str, kept: int) -> Iterator[Markup]:
    at = (1, 0)
    before = ""
    for token in tokens:
        if token.start[0] > kept or token.type == tokenize.ENDMARKER:
            break
        # a token may begin before the place reached: dedents do, and parts of f-strings since Python 3.12
        start = max(token.start, at)
        end = max(token.end, start)
        yield escape(_between(lines, at, start))
        yield _marked(token, before, escape(_between(lines, start, end)), anchor)
        at = end
        if token.type == tokenize.NAME:
            before = token.string
    yield escape(_between(lines, at, (kept + 1, 0)))


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (first, column), (last, stop) = start, end
    if first > len(lines) or (first, column) >= (last, stop):
        return ""
    if first == last:
        return lines[first - 1][column:stop]
    tail = lines[last - 1][:stop] if last <= len(lines) else ""
    return lines[first - 1][column:] + "".join(lines[first : last - 1]) + tail


def _marked(token: tokenize.TokenInfo, before: str, text: Markup, anchor: str) -> Markup:
    kind = _kind(token, before)
    if kind == "d" and before == "def":
        return Markup('<span class="d" id="{}-{}">{}</span>').format(anchor, token.string, text)
    return Markup('<span class="{}">{}</span>').format(kind, text) if kind and text else text


def _kind(token: tokenize.TokenInfo, before: str) -> str:
    name = tokenize.tok_name[token.type]
    if name == "NAME":
        if keyword.iskeyword(token.string):
            return "k"
        if before in _DEFINING:
            return "d"
        return "b" if token.string in _BUILTINS else ""
    if name == "STRING" or name.startswith("FSTRING"):
        return "s"
    return {"NUMBER": "n", "COMMENT": "c"}.get(name, "")
