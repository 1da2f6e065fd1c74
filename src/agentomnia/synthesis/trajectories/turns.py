"""A trajectory turn by turn: what the assistant had observed when it spoke.

The three checks of `quality.py` look at the same turns; only grounding also needs the texts seen (`seen_turns`), which
grow from turn to turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentomnia.environment.spec import Entity, EnvironmentSpec, Tool
from agentomnia.llm.message import Message
from agentomnia.synthesis.trajectories.literals import Seen
from agentomnia.task.task import Task
from agentomnia.task.trajectory import Trajectory

CLAUSE = re.compile(r"(?<=[.;!?])\s+")
"""Between two clauses of reasoning."""
INTENDS = re.compile(r"\b(?:I|let me|let us|we)\b")
"""Somebody speaks of what they do, not of what there is."""
NEGATES = re.compile(r"\b(?:not|cannot|never|refused|instead)\b|n't\b")

Faults = Iterator[tuple[int, str]]
"""Index of a message, and what is wrong with it."""


@dataclass(frozen=True)
class Turn:
    """One turn of the assistant, and what it knows by then."""

    index: int
    """Of its message."""
    message: Message
    records: tuple[dict[str, Any], ...]
    """Every record observed so far, oldest first."""
    latest: tuple[Any, ...]
    """Data of the observations since the turn before."""
    refused: tuple[str, ...]
    """Changing tools whose last call was refused."""
    made: tuple[str, ...]
    """Tools whose last call was accepted."""

    @property
    def reasoning(self) -> str:
        """Its reasoning, empty where there is none."""
        return self.message.reasoning_content or ""

    @property
    def said(self) -> str:
        """Reasoning and content."""
        return f"{self.reasoning}\n{self.message.content or ''}"


@dataclass
class Case:
    """One trajectory under examination."""

    trajectory: Trajectory
    task: Task
    spec: EnvironmentSpec
    changing: dict[str, Tool] = field(init=False)
    """Tools that modify, by name."""

    def __post_init__(self) -> None:
        """Index the tools."""
        self.changing = {tool.name: tool for tool in self.spec.tools if tool.kind == "modify"}

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The assistant's turns in order."""
        return tuple(_turns(self))

    @cached_property
    def keyed(self) -> re.Pattern[str]:
        """Identifiers of the environment's records."""
        prefixes = sorted({re.escape(e.prefix) for e in self.spec.entities})
        return re.compile(rf"\b(?:{'|'.join(prefixes)})-\d+\b")

    def entity_of(self, record: dict[str, Any]) -> Entity | None:
        """The entity whose record this is."""
        return next((e for e in self.spec.entities if e.key in record and record.keys() <= {*e.fields}), None)


def seen_turns(case: Case) -> Iterator[tuple[Turn, Seen]]:
    """Each turn with what was seen before it; one object that grows, so read it before the next turn."""
    seen = Seen(case.spec.clock)
    seen.add_text(case.spec.clock)
    for tool in case.trajectory.tools or [_shown(t) for t in case.spec.tools]:
        seen.add_schema(tool)
    turns = {turn.index: turn for turn in case.turns}
    for index, message in enumerate(case.trajectory.messages):
        if index in turns:
            yield turns[index], seen
        elif message.role == "tool":
            seen.add_value(json.loads(message.content or "null"))
        else:
            seen.add_text(message.content or "")


def words_of(text: str) -> set[str]:
    """Stems of the plain words of a text, identifiers left out."""
    return {stem(w) for w in re.findall(r"[a-z0-9]+", re.sub(r"\b\w+-\d+\b", " ", text).lower())}


def stem(word: str) -> str:
    """A word without its plural; a heuristic that is applied to both sides of a comparison."""
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("ses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def scalars(record: dict[str, Any]) -> list[Any]:
    """Plain values of a record, those of its lists among them."""
    values: list[Any] = []
    for value in record.values():
        values += value if isinstance(value, list) else [value]
    return [v for v in values if not isinstance(v, dict | list)]


def _shown(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}


def _turns(case: Case) -> Iterator[Turn]:
    records: list[dict[str, Any]] = []
    latest: list[Any] = []
    outcome: dict[str, bool] = {}
    calls = {c.id: c.name for m in case.trajectory.messages for c in m.tool_calls}
    for index, message in enumerate(case.trajectory.messages):
        if message.role == "assistant":
            refused = tuple(n for n, ok in outcome.items() if not ok and n in case.changing)
            made = tuple(n for n, ok in outcome.items() if ok)
            yield Turn(index, message, tuple(records), tuple(latest), refused, made)
            latest = []
        elif message.role == "tool":
            answer = json.loads(message.content or "null")
            if isinstance(answer, dict):
                outcome[calls.get(message.tool_call_id or "", "")] = answer.get("ok") is True
                latest.append(answer.get("data"))
                records += _records(answer.get("data"))


def _records(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a value that holds a plain value."""
    if isinstance(value, dict):
        if any(not isinstance(inner, dict | list) for inner in value.values()):
            yield value
        for inner in value.values():
            yield from _records(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _records(inner)
