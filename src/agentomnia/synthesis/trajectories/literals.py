"""Literals of a text (identifiers, numbers, dates, names, quoted words), and what somebody has seen of them.

Heuristic: literals are found by their looks. A name is a run of capitalised words that does not merely begin a
sentence; facts said in plain lower-case words are not literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from agentomnia.task.criterion import is_number
from agentomnia.task.render import same_value, unsay

LiteralKind = Literal["date", "quote", "identifier", "number", "name"]

_ISO = re.compile(r"\b\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?)?\b")
_SAID = re.compile(r"\b[A-Z][a-z]+day \d{1,2} [A-Z][a-z]+(?: \d{4})?(?: at \d\d:\d\d)?")
_QUOTE = re.compile(r"“([^”]*)”")
_TOKEN = re.compile(r"[^\W_][\w#/+-]*", re.UNICODE)
_TIME = re.compile(r"\b\d\d:\d\d\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_WORD = re.compile(r"[^\W_][\w'’-]*")
_NOT_NAMES = frozenset(("I", "I'm", "I'll", "I've", "JSON", "ID"))


@dataclass(frozen=True)
class Found:
    """A literal of a text."""

    kind: LiteralKind
    text: str
    """As it is written."""
    value: str | float
    """Dates in ISO form, numbers as numbers, anything else as written."""
    start: int


def literals(text: str, clock: str) -> list[Found]:
    """The literals of a text, in order.

    Args:
        text: any prose.
        clock: the environment's clock, for the year of dates said without one.
    """
    found: list[Found] = []
    rest = text
    for pattern, kind in ((_QUOTE, "quote"), (_ISO, "date"), (_SAID, "date"), (_TOKEN, "identifier"), (_TIME, "date")):
        for match in list(pattern.finditer(rest)):
            literal = _literal(kind, match, clock)
            if literal is not None:
                found.append(literal)
                rest = rest[: match.start()] + " " * len(match[0]) + rest[match.end() :]
    found += [Found("number", m[0], float(m[0]), m.start()) for m in _NUMBER.finditer(rest)]
    found += _names(rest)
    return sorted(found, key=lambda literal: literal.start)


def _literal(kind: str, match: re.Match[str], clock: str) -> Found | None:
    text = match[0]
    if kind == "quote":
        return Found("quote", text, match[1], match.start())
    if kind == "date":
        value = text if text[0].isdigit() else unsay(text, "date", clock)
        return None if value is None else Found("date", text, str(value), match.start())
    text = text.rstrip("-/+")
    mixed = any(c.isdigit() for c in text) and any(c.isalpha() or c in "-/" for c in text)
    return Found("identifier", text, text, match.start()) if mixed else None


def _names(text: str) -> Iterator[Found]:
    """Runs of capitalised words; a single one at the start of a sentence is a word like any other."""
    run: list[re.Match[str]] = []
    for match in [*_WORD.finditer(text), None]:
        joins = match is not None and run and text[run[-1].end() : match.start()] == " "
        if match is not None and match[0][0].isupper() and match[0] not in _NOT_NAMES:
            if run and not joins:
                yield from _name(text, run)
                run = []
            run.append(match)
        else:
            yield from _name(text, run)
            run = []


def _name(text: str, run: list[re.Match[str]]) -> Iterator[Found]:
    if run and (not text[: run[0].start()].rstrip() or text[: run[0].start()].rstrip()[-1] in ".;:!?({"):
        run = run[1:] if len(run) == 1 or run[0][0] in _OPENERS else run
    if run:
        yield Found("name", text[run[0].start() : run[-1].end()], text[run[0].start() : run[-1].end()], run[0].start())


_OPENERS = frozenset(
    "Now Next Then So To Of There Therefore With Everything Nothing Done Here The A An My For And".split()
)


@dataclass
class Seen:
    """What the assistant has seen so far: texts, values, and what counting and adding up makes of them."""

    clock: str
    text: str = ""
    """Everything seen, case folded."""
    tokens: set[str] = field(default_factory=set)
    numbers: set[float] = field(default_factory=set)
    dates: set[str] = field(default_factory=set)
    times: set[str] = field(default_factory=set)

    def add_text(self, text: str) -> None:
        """Take in prose."""
        self.text += "\n" + text.casefold()
        self.tokens.update(_TOKEN.findall(text))
        self.times.update(_TIME.findall(text))
        for literal in literals(text, self.clock):
            if literal.kind == "number":
                self.numbers.add(float(literal.value))
            elif literal.kind == "date":
                self._add_date(str(literal.value))
        for quoted in _QUOTE.findall(text):
            self.add_text(quoted)

    def add_value(self, value: Any) -> None:
        """Take in a JSON value, with the length of each list and the sum, least and most of each column."""
        if isinstance(value, dict):
            for name, inner in value.items():
                self._add_name(str(name))
                self.add_value(inner)
        elif isinstance(value, list):
            self.numbers |= {float(len(value)), *_computed(value)}
            for inner in value:
                self.add_value(inner)
        elif is_number(value):
            self.numbers.add(float(value))
        elif isinstance(value, str):
            self.add_text(value)
            if "_" in value:
                self.text += "\n" + value.casefold().replace("_", " ")

    def add_schema(self, tool: dict[str, Any]) -> None:
        """Take in a tool as it is shown: names, descriptions, listed values; no limits, which are no facts."""
        for name, inner in tool.items():
            if name in ("description", "name") and isinstance(inner, str):
                self.add_text(inner)
            elif name in ("enum", "default", "const"):
                self.add_value(inner)
            elif isinstance(inner, dict):
                self._add_name(name)
                self.add_schema(inner)

    def _add_name(self, name: str) -> None:
        self.text += f"\n{name.casefold()}\n{name.casefold().replace('_', ' ')}"
        self.tokens.add(name)

    def shows(self, literal: Found) -> bool:
        """Whether a literal has an observable source."""
        if literal.kind == "number":
            return any(same_value(literal.value, number) for number in self.numbers)
        if literal.kind == "date":
            return self._shows_date(str(literal.value))
        return literal.text in self.tokens if literal.kind == "identifier" else self.says(str(literal.value))

    def says(self, text: str) -> bool:
        """Whether a text was seen, and not only as a part of longer words."""
        return re.search(rf"(?<![\w-]){re.escape(text.casefold())}(?![\w-])", self.text) is not None

    def _shows_date(self, value: str) -> bool:
        day, _, time = value.rpartition("T") if "T" in value else (value, "", "")
        if ":" in day:
            return day in self.times
        return value in self.dates or (day in self.dates and (not time or time[:5] in self.times))

    def _add_date(self, value: str) -> None:
        self.dates |= {value, value[:16], value[:10]}
        if len(value) > 10:
            self.times.add(value[11:16])


def _computed(rows: list[Any]) -> Iterator[float]:
    """Sum, least and most of each number column."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            if is_number(value):
                columns.setdefault(name, []).append(float(value))
    for values in columns.values():
        yield from (round(sum(values), 2), min(values), max(values))
