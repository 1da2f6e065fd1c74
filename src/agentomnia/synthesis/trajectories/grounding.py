"""Evidence grounding and leakage: everything said has an observable source (paper, section 4.5.3).

Observable are the system text, the query, the tools shown (names, descriptions, listed values), earlier observations,
the clock, what `task.render` says and unsays of them, and counts and sums over observed lists. Heuristic: literals
are found by their looks (`literals.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentomnia.errors import ModelOutputError
from agentomnia.llm.message import ToolCall
from agentomnia.synthesis.trajectories.literals import Found, Seen, literals
from agentomnia.synthesis.trajectories.turns import Case, Faults, seen_turns
from agentomnia.task.criterion import is_number
from agentomnia.task.grade import find_answer

_LEAKS = re.compile(
    r"\b(?:according to the (?:reference|solution|criterion|rubric|hint|guidance|answer key|plan)|"
    r"(?:reference|golden|gold|privileged|model) (?:solution|answer|calls?|trajectory|path|information|guidance)|"
    r"expected (?:state|answer|result|output|value|json|changes?)|target state|ground truth|answer key|"
    r"success criteri(?:on|a))\b|(?<!\w)\$\d(?!\d|[.,]\d)",
    re.IGNORECASE,
)
_PRIVILEGED_WORDS = frozenset("criterion criteria rubric golden privileged verifier reference hint guidance".split())


def grounding_faults(case: Case) -> Faults:
    """Literals of reasoning, arguments and final message that nothing shows."""
    for turn, seen in seen_turns(case):
        content = turn.message.content or ""
        for literal in literals(f"{turn.reasoning}\n{content.partition('{')[0]}", case.spec.clock):
            if not seen.shows(literal):
                yield turn.index, f"{literal.text!r} was not seen before it is said"
        for call in turn.message.tool_calls:
            for value in _unseen(seen, _arguments(call)):
                yield turn.index, f"{call.name} is given {value!r}, which was not seen"
        for value in _unseen(seen, find_answer(content, set())):
            yield turn.index, f"the answer {value!r} was not seen"


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Readable arguments; others are refused by the environment and ground nothing."""
    try:
        return call.parse_arguments()
    except ModelOutputError:
        return {}


def _unseen(seen: Seen, value: Any) -> Iterator[Any]:
    """Values inside a JSON value that nothing shows; a text is shown as a whole or by all its literals."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _unseen(seen, inner)
    elif isinstance(value, str):
        if not (seen.says(value) or seen.says(value.replace("_", " ")) or _literally_seen(seen, value)):
            yield value
    elif is_number(value) and not seen.shows(Found("number", str(value), float(value), 0)):
        yield value


def _literally_seen(seen: Seen, text: str) -> bool:
    found = literals(text, seen.clock)
    return bool(found) and all(seen.shows(literal) for literal in found)


def leakage_faults(case: Case) -> Faults:
    """Words of the privileged part; where the environment itself speaks them, only whole phrases count."""
    for turn, seen in seen_turns(case):
        found = [m[0] for m in _LEAKS.finditer(turn.said)]
        found += [w for w in re.findall(r"[A-Za-z]+", turn.said) if w.lower() in _PRIVILEGED_WORDS]
        for phrase in dict.fromkeys(found):
            if not seen.says(phrase):
                yield turn.index, f"{phrase!r} speaks of what the assistant cannot see"
