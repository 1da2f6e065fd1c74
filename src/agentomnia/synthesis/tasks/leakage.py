"""Leakage: what a query must not say (paper, section 4.4.2 "Leakage mitigation").

No tool name, no parameter key, no identifier that its author could not know, no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agentomnia.environment.program import Program
from agentomnia.environment.state import State
from agentomnia.task.diff import BOOKKEEPING
from agentomnia.task.task import PrivateTask, Task

_WORDS = re.compile(r"[A-Za-z0-9_\-]+")


def leaks(task: Task, private: PrivateTask, program: Program, state: State) -> Iterator[str]:
    """What the public text gives away; nothing when it is clean."""
    text = " ".join((task.query, *(field.description for field in task.answer)))
    tokens = set(_WORDS.findall(text))
    parameters = {p for t in program.tools.values() for p in t.parameters.get("properties", {})}
    for token in sorted(tokens):
        if token in program.tools:
            yield f"names the tool {token}"
        # a key of one plain word is a word like any other
        elif "_" in token and token in parameters:
            yield f"names the parameter {token}"
    keys = {
        key
        for name, records in state.items()
        if name not in BOOKKEEPING and isinstance(records, dict)
        for key in records
    }
    for key in sorted(keys & tokens):
        yield f"names the identifier {key}"
    for name, value in private.answer.items():
        if _gives_away(value, private, task.query):
            yield f"gives the answer {name}"


def _gives_away(answer: Any, private: PrivateTask, query: str) -> bool:
    """Whether the query says the answer; a number that it says for another reason (a value to set) does not count."""
    spoken = str(answer)
    if len(spoken) <= 3 or not re.search(rf"\b{re.escape(spoken)}\b", query):
        return False
    return isinstance(answer, str) or not any(spoken in mention for mention in private.mentions)
