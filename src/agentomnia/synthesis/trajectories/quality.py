"""Trajectory quality: continuity, consistency, grounding and leakage by programs (paper, section 4.5.3).

continuity    every turn reasons; every call is announced, or named by its object or an argument; a record is picked
              from a list by what was known before; no change is announced and never made
consistency   the record of steps agrees with the messages; what is said of a record equals what was last seen of it;
              identifiers announced are those given; counts and dates agree; nothing refused is said to have worked; the
              final message agrees with the reasoning before it and claims no change that was not made
grounding     every literal of reasoning, arguments and final message has an observable source
leakage       no words of the privileged part

All but the comparison of steps are heuristics over words: they find literals, claims and announcements by their shape.
What they find is wrong in the trajectory or said in a way that cannot be checked; both are left out of training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.llm.message import ToolCall
from agentomnia.row import Row
from agentomnia.synthesis.trajectories.consistency import consistency_faults
from agentomnia.synthesis.trajectories.grounding import grounding_faults, leakage_faults
from agentomnia.synthesis.trajectories.turns import (
    CLAUSE,
    INTENDS,
    NEGATES,
    Case,
    Faults,
    Turn,
    scalars,
    words_of,
)
from agentomnia.task.task import Task
from agentomnia.task.trajectory import Trajectory

Check = Literal["continuity", "consistency", "grounding", "leakage"]

_COMMON = frozenset("get list find search look read show fetch the of by to for a an and is all id with my".split())

_VERB = re.compile(r"\b(?:I|[Tt]o|can|will|must|should|shall|first|now|me|and|also|then)\s+(?=([a-z]+)\b)")
"""A word where a verb stands: "I cancel", "to cancel", "will cancel"."""

_PICKS = re.compile(r"\bis the (?:one|only [a-z ]+?) with\b")


class QualityFinding(Row):
    """One fault of one trajectory."""

    check: Check
    message: int
    """Index of the message at fault."""
    evidence: str


def check_quality(trajectory: Trajectory, task: Task, spec: EnvironmentSpec) -> tuple[QualityFinding, ...]:
    """Every fault of a trajectory; none for one that may be learned from.

    Args:
        trajectory: an episode with the reasoning of its assistant.
        task: the public part of its task.
        spec: the environment it took place in.

    Returns:
        Findings in the order of the checks, then of the messages.
    """
    case = Case(trajectory, task, spec)
    return tuple(
        QualityFinding(check=check, message=message, evidence=evidence)
        for check, examine in _EXAMINERS.items()
        for message, evidence in examine(case)
    )


def _continuity(case: Case) -> Faults:
    for number, turn in enumerate(case.turns):
        if not turn.reasoning.strip():
            yield turn.index, "the turn has no reasoning"
            continue
        before = case.turns[number - 1].reasoning if number else ""
        for call in turn.message.tool_calls:
            if not _leads_to(f"{before} {turn.reasoning}", call):
                yield turn.index, f"nothing said leads to the call of {call.name}"
        if number:
            for key in _unfounded_picks(case, case.turns[number - 1], turn.reasoning):
                yield turn.index, f"a record is picked by {key}, whose it is was not known before the list"
        later = {call.name for follower in case.turns[number:] for call in follower.message.tool_calls}
        for promised in _promises(case, turn.reasoning):
            if not later & promised:
                yield turn.index, f"{' or '.join(sorted(promised))} is announced and never called"


def _leads_to(said: str, call: ToolCall) -> bool:
    """Whether words name the call's object, or one of the texts it is given."""
    named = words_of(call.name.replace("_", " "))
    if ((named - _COMMON) or named) & words_of(said):
        return True
    texts = re.findall(r'"((?:[^"\\]|\\.)+)"\s*[,}\]]', call.arguments)
    return any(text.casefold() in said.casefold() for text in texts)


def _unfounded_picks(case: Case, before: Turn, reasoning: str) -> Iterator[str]:
    """`APP-0042 is the one with client CLI-0005`: the identifiers beside it were seen before the list was read."""
    known = {value for record in before.records for value in scalars(record)}
    known |= set(case.keyed.findall(f"{case.task.query} {before.said}"))
    for clause in CLAUSE.split(reasoning):
        picked = _PICKS.search(clause)
        if picked is not None:
            yield from (key for key in case.keyed.findall(clause[picked.end() :]) if key not in known)


def _promises(case: Case, reasoning: str) -> Iterator[set[str]]:
    """For each sentence of intent, the changing tools that it says with their verb as a verb: one is announced."""
    for sentence in CLAUSE.split(reasoning):
        if INTENDS.search(sentence) and not NEGATES.search(sentence):
            words, verbs = words_of(sentence), set(_VERB.findall(sentence))
            said = {name for name in case.changing if _says_call(name, words, verbs)}
            if said:
                yield said


def _says_call(tool: str, words: set[str], verbs: set[str]) -> bool:
    return tool.partition("_")[0] in verbs and words_of(tool.replace("_", " ")) <= words


_EXAMINERS: dict[Check, Callable[[Case], Faults]] = {
    "continuity": _continuity,
    "consistency": consistency_faults,
    "grounding": grounding_faults,
    "leakage": leakage_faults,
}
