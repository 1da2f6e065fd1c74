"""PRDs as Markdown with a YAML front matter, both ways without loss (paper, Table 8 and section 6.4).

The front matter holds what programs read: id, priority, status, targets, tools, depth, failures. The body holds the
prose under fixed headings, and is read back: what people edit there counts.

    # Part I: …            headings of this level are free
    ## Scenario            a section, from the closed list below
    ### Multi-tool …       a title of the author's own, then its text, points or labelled lines

Texts are escaped so that any text survives and shows as it is: marks of Markdown by a backslash, spaces at the edges of
a line and characters that do not print as `&#N;`, line breaks as a backslash at the end of a line. Who writes by hand
need not escape anything but a line that begins with `#`: lines are joined as Markdown joins them, blank lines part
paragraphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import ValidationError

from agentomnia.errors import InputError
from agentomnia.evolution.prd import Note, Prd, Requirement
from agentomnia.row import Row

FRONT_KEYS = ("id", "priority", "status", "domains", "capabilities", "tools", "depth", "failures")
SECTIONS = (
    "Scenario", "Requirements", "Case study", "Failure analysis", "Failure trajectory", "Correct trajectory",
    "Environment synthesis", "Task synthesis", "Extra information",
)  # fmt: skip
_MANDATORY = SECTIONS[:3]
_SINGLE = frozenset(("Scenario", "Case study", "Failure analysis", "Failure trajectory", "Correct trajectory"))
"""Sections that hold one title only."""
_PART_I = "# Part I: Core Specification (mandatory)"
_PART_II = "# Part II: Synthesis Guidance (optional)"


class Problem(Row):
    """What is wrong with a file, and where."""

    line: int
    message: str
    """Ends with the next action."""


# Writing


def to_markdown(prd: Prd) -> str:
    """The document of a PRD; `from_markdown` gives the same PRD back."""
    guidance = prd.guidance
    analysis = guidance.analysis
    parts = [f"---\n{_front(prd)}---", _PART_I]
    parts += _section("Scenario", (prd.scenario.name, escape(prd.scenario.description)))
    points = [(r.title, "\n".join(f"- {escape(p)}" for p in r.points)) for r in prd.requirements]
    case = f"**Query:** {escape(prd.case_study.query)}\n\n**Logic:** {escape(prd.case_study.logic)}"
    parts += [*_section("Requirements", *points), *_section("Case study", (prd.case_study.title, case))]
    second = [
        *_section("Failure analysis", *_notes(analysis.failure_analysis)),
        *_section("Failure trajectory", *_notes(analysis.failure_trajectory)),
        *_section("Correct trajectory", *_notes(analysis.correct_trajectory)),
        *_section("Environment synthesis", *_notes(*guidance.environment)),
        *_section("Task synthesis", *_notes(*guidance.tasks)),
        *_section("Extra information", *_notes(*guidance.extra)),
    ]
    return "\n\n".join([*parts, *([_PART_II, *second] if second else [])]) + "\n"


def _front(prd: Prd) -> str:
    guidance = prd.guidance
    front: dict[str, Any] = {
        "id": prd.id,
        "priority": prd.priority,
        "status": prd.status,
        "domains": list(prd.targets.domains),
        "capabilities": list(prd.targets.capabilities),
    }
    if guidance.tools:
        front["tools"] = list(guidance.tools)
    if guidance.depth is not None:
        front["depth"] = guidance.depth
    if guidance.failures:
        front["failures"] = dict(guidance.failures)
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _notes(*notes: Note | None) -> list[tuple[str, str]]:
    return [(note.title, escape(note.text)) for note in notes if note is not None]


def _section(name: str, *titled: tuple[str, str]) -> list[str]:
    if not titled:
        return []
    return [f"## {name}", *(f"### {escape(title, heading=True)}\n\n{text}" for title, text in titled)]


def escape(text: str, *, heading: bool = False) -> str:
    """A text as Markdown that shows it as it is, on one line where it is a heading."""
    body = text.rstrip("\n")
    ending = "&#10;" * (len(text) - len(body))
    joint = "&#10;" if heading else "\\\n"
    return joint.join(_escape_line(line, heading) for line in body.split("\n")) + ending


_LINE_START = re.compile(r"[#+\-=>|~:]|[0-9]+(?=[.)])")


def _escape_line(line: str, heading: bool) -> str:
    inner = line.strip(" ")
    left = len(line) - len(line.lstrip(" ")) if inner else len(line)
    right = len(line) - left - len(inner)
    words = "".join(_escape_character(inner, i, heading) for i in range(len(inner)))
    start = _LINE_START.match(words)
    if start is not None and left == 0:
        cut = start.end() if start[0].isdigit() else 0
        words = f"{words[:cut]}\\{words[cut:]}"
    return "&#32;" * left + words + "&#32;" * right


def _escape_character(text: str, index: int, heading: bool) -> str:
    character = text[index]
    if character in "\\`*<" or (heading and character == "#"):
        return f"\\{character}"
    if character == "_":
        around = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
        return "_" if len(around) == 2 and around.isalnum() else "\\_"
    if character == "&":
        return "&amp;"
    return character if character.isprintable() else f"&#{ord(character)};"


# Reading


_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])|&(?:#([0-9]{1,7})|(amp|lt|gt));")
_NAMED = {"amp": "&", "lt": "<", "gt": ">"}


def unescape(text: str) -> str:
    """The text behind an escaped line."""

    def one(found: re.Match[str]) -> str:
        character, number, name = found.groups()
        if number is not None:
            code = int(number)
            return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else found[0]
        return character if character is not None else _NAMED[name]

    return _ESCAPED.sub(one, text)


@dataclass
class _Titled:
    """A title with the raw lines under it."""

    title: str
    line: int
    lines: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class _Document:
    """A document taken apart."""

    front: dict[str, Any] = field(default_factory=dict)
    front_lines: dict[str, int] = field(default_factory=dict)
    sections: dict[str, list[_Titled]] = field(default_factory=dict)
    section_lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def blame(self, line: int, message: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(line=line, message=message))


def from_markdown(text: str, source: str = "PRD") -> Prd:
    """Read a document.

    Raises:
        InputError: it is no PRD; names the first problem with its line, and counts the rest.
    """
    prd, problems = read_markdown(text)
    if prd is None:
        more = f" (and {len(problems) - 1} more: `omnia prd check` lists them)" if len(problems) > 1 else ""
        raise InputError(f"{source} line {problems[0].line}: {problems[0].message}{more}")
    return prd


def read_markdown(text: str) -> tuple[Prd | None, list[Problem]]:
    """Read a document as far as possible.

    Returns:
        The PRD, or `None`; every problem found, in the order of lines, none exactly where there is a PRD.
    """
    document = _Document()
    _take_apart(document, text.replace("\r\n", "\n").split("\n"))
    for name in _MANDATORY:
        if name not in document.sections:
            document.blame(1, f"section `## {name}` is missing; add it, as in `omnia prd new`")
    for name, titled in document.sections.items():
        if not titled:
            document.blame(document.section_lines[name], f"`## {name}` is empty; add `### A title` and its text")
        if name in _SINGLE and len(titled) > 1:
            document.blame(titled[1].line, f"`## {name}` holds one title only; move this one or drop it")
    prd = None
    if not document.problems:
        prd = _built(document)
    return prd, sorted(document.problems, key=lambda p: p.line)


def _take_apart(document: _Document, lines: list[str]) -> None:
    body = _read_front(document, lines)
    section: str | None = None
    titled: _Titled | None = None
    for number, line in enumerate(lines[body:], body + 1):
        level = next((m for m in ("### ", "## ", "# ") if line.startswith(m)), "")
        heading = line[len(level) :].strip()
        if level == "# " or (line.startswith("<!--") and line.rstrip().endswith("-->")):
            continue
        if level == "## ":
            section, titled = _open_section(document, number, heading), None
        elif level == "### " and section is not None:
            titled = _Titled(unescape(heading), number)
            document.sections[section].append(titled)
        elif level or (line.strip() and titled is None):
            if section is not None or line.strip() not in ("", "#"):
                document.blame(number, "this stands under no title; put `## Section` and `### A title` before it")
        elif titled is not None:
            titled.lines.append((number, line))


def _open_section(document: _Document, number: int, heading: str) -> str | None:
    name = next((s for s in SECTIONS if s.casefold() == heading.casefold()), None)
    if name is None:
        document.blame(number, f"there is no section {heading!r}; use one of {', '.join(SECTIONS)}")
        name = f"unknown {number}"
        document.sections[name] = [_Titled("", number)]
    elif name in document.sections:
        document.blame(number, f"section {name!r} appears twice; make the two one")
    document.sections.setdefault(name, [])
    document.section_lines.setdefault(name, number)
    return name


def _read_front(document: _Document, lines: list[str]) -> int:
    """Read the front matter; returns the index of the first line behind it."""
    end = next((i for i, line in enumerate(lines) if i and line.rstrip() == "---"), None)
    if lines[0].rstrip() != "---" or end is None:
        document.blame(1, "there is no front matter; begin with `---`, keys such as `id: PRD-TU-001`, and `---`")
        return 0
    try:
        front = yaml.safe_load("\n".join(lines[1:end]))
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        what = error.problem if isinstance(error, yaml.MarkedYAMLError) else "it cannot be read"
        document.blame(2 + (mark.line if mark else 0), f"the front matter is no YAML: {what}; correct it")
        return end + 1
    if not isinstance(front, dict):
        document.blame(2, "the front matter holds no keys; write `id: PRD-TU-001` and so on")
        return end + 1
    document.front = {str(key): value for key, value in front.items()}
    for number, line in enumerate(lines[1:end], 2):
        document.front_lines.setdefault(line.partition(":")[0].strip().strip("\"'"), number)
    for key in document.front:
        if key not in FRONT_KEYS:
            document.blame(document.front_lines.get(key, 2), f"unknown key {key!r}; use {', '.join(FRONT_KEYS)}")
    return end + 1


def _built(document: _Document) -> Prd | None:
    """The PRD of a document with all its sections."""
    front, sections = document.front, document.sections
    case = sections["Case study"][0]
    query, logic = _labelled(document, case, "Query", "Logic")
    lists: dict[str, Any] = {f: tuple(_note([t]) for t in sections.get(s, [])) for f, s in _LISTS.items()}
    raw: dict[str, Any] = {
        "id": front.get("id"),
        "priority": front.get("priority"),
        "status": front.get("status"),
        "scenario": {"name": sections["Scenario"][0].title, "description": _text(sections["Scenario"][0].lines)},
        "requirements": tuple(_requirement(document, t) for t in sections["Requirements"]),
        "case_study": {"title": case.title, "query": query, "logic": logic},
        "targets": {"domains": front.get("domains"), "capabilities": front.get("capabilities")},
        "guidance": {
            "analysis": {f: _note(sections.get(s, [])) for f, s in _ANALYSIS.items()},
            **lists,
            **{key: front[key] for key in ("tools", "depth", "failures") if key in front},
        },
    }
    if document.problems:
        return None
    try:
        return Prd.model_validate(raw)
    except ValidationError as error:
        for item in error.errors():
            document.blame(*_placed(document, item["loc"], item["msg"]))
        return None


_ANALYSIS = {
    "failure_analysis": "Failure analysis",
    "failure_trajectory": "Failure trajectory",
    "correct_trajectory": "Correct trajectory",
}
_LISTS = {"environment": "Environment synthesis", "tasks": "Task synthesis", "extra": "Extra information"}


def _note(titled: list[_Titled]) -> dict[str, str] | None:
    return {"title": titled[0].title, "text": _text(titled[0].lines)} if titled else None


def _requirement(document: _Document, titled: _Titled) -> Requirement | None:
    points: list[list[tuple[int, str]]] = []
    for number, line in titled.lines:
        if line.startswith(("- ", "* ")):
            points.append([(number, line[2:])])
        elif points:
            points[-1].append((number, line))
        elif line.strip():
            document.blame(number, "requirements are points; begin the line with `- `")
    texts = tuple(_text(point) for point in points)
    if not texts or not all(texts):
        document.blame(titled.line, f"requirement {titled.title!r} lacks points; write lines that begin with `- `")
        return None
    if not titled.title:
        document.blame(titled.line, "a requirement needs a title; write it behind `### `")
        return None
    return Requirement(title=titled.title, points=texts)


def _labelled(document: _Document, titled: _Titled, *labels: str) -> Iterator[str]:
    """The texts behind `**Label:**`, in the order of the labels."""
    found: dict[str, list[tuple[int, str]]] = {}
    current: list[tuple[int, str]] | None = None
    for number, line in titled.lines:
        label = next((name for name in labels if line.startswith(f"**{name}:**")), None)
        if label is not None:
            current = found.setdefault(label, [])
            current.append((number, line[len(f"**{label}:**") :]))
        elif current is not None:
            current.append((number, line))
        elif line.strip():
            document.blame(number, f"a case study has {' and '.join(f'`**{name}:**`' for name in labels)}; begin there")
    for name in labels:
        text = _text(found.get(name, []))
        if not text:
            document.blame(titled.line, f"case study {titled.title!r} has no `**{name}:**`; add such a line")
        yield text


def _text(lines: list[tuple[int, str]]) -> str:
    """Lines as one text: joined by spaces, parted by blank lines, broken where a line ends with a backslash."""
    found, joint = "", ""
    for _, line in lines:
        piece = line.strip(" \t")
        if not piece:
            joint = "\n\n" if found else ""
            continue
        broken = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
        found += joint + unescape(piece[:-1] if broken else piece)
        joint = "\n" if broken else " "
    return found


def _placed(document: _Document, place: tuple[int | str, ...], message: str) -> tuple[int, str]:
    """The line that a field came from, and what is wrong with it."""
    names = [str(part) for part in place]
    key = next((n for n in names if n in FRONT_KEYS), None)
    told = message.removeprefix("Value error, ")
    if key is not None:
        line = document.front_lines.get(key)
        if line is None:
            return 2, f"`{key}` is missing; add it to the front matter, as in `omnia prd new`"
        return line, f"{key}: {told}"
    core = {"scenario": "Scenario", "requirements": "Requirements", "case_study": "Case study"}
    fields: dict[str, str] = {**core, **_ANALYSIS, **_LISTS}
    section = next((fields[n] for n in names if n in fields), "Scenario")
    index = next((part for part in place if isinstance(part, int)), 0)
    titled = document.sections[section]
    return titled[min(index, len(titled) - 1)].line, f"{section}, {names[-1]}: {told}; give some text"
