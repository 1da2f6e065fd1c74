"""Logical consistency: what is said agrees with what was done and seen (paper, section 4.5.3).

The comparison of calls with steps is exact. The rest are heuristics over clauses of a few shapes; a clause of
another shape is not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentomnia.errors import ModelOutputError
from agentomnia.synthesis.trajectories.literals import Found, literals
from agentomnia.synthesis.trajectories.reasoning import past
from agentomnia.synthesis.trajectories.turns import CLAUSE, INTENDS, NEGATES, Case, Faults, Turn, scalars, words_of
from agentomnia.task.criterion import is_number
from agentomnia.task.grade import find_answer
from agentomnia.task.render import same_value, say

_CODE = re.compile(r"\b[A-Za-z]+-\d+\b")
_COPULA = re.compile(r"\b(?:is|has|have|was|are|costs)\b")
_OF_ALL = re.compile(r"\b[Oo]f the (\d+)\b[^,]*,?")
_THERE_ARE = re.compile(r"\bThere (?:is|are) (\d+)\b")
_DONE = re.compile(r"\b(?:done|successfully|succeeded|completed|worked)\b", re.IGNORECASE)


def consistency_faults(case: Case) -> Faults:
    """What contradicts steps, observations or earlier words."""
    yield from _steps_agree(case)
    for turn in case.turns:
        for clause in CLAUSE.split(turn.reasoning):
            yield from ((turn.index, e) for e in _claim_faults(case, turn, clause))
            yield from ((turn.index, e) for e in _count_faults(turn, clause))
            yield from ((turn.index, e) for e in _date_faults(case, clause))
        yield from ((turn.index, e) for e in _given_faults(turn))
        yield from ((turn.index, e) for e in _refusal_faults(case, turn))
    yield from _final_faults(case)


def _steps_agree(case: Case) -> Faults:
    """Each call with its step and its answer."""
    made = [(i, c) for i, m in enumerate(case.trajectory.messages) for c in m.tool_calls]
    answers = {m.tool_call_id: m.content or "" for m in case.trajectory.messages if m.role == "tool"}
    if len(made) != len(case.trajectory.steps):
        yield made[-1][0] if made else 0, f"{len(made)} calls were made, {len(case.trajectory.steps)} steps recorded"
    for (index, call), step in zip(made, case.trajectory.steps):
        try:
            arguments: dict[str, Any] | None = call.parse_arguments()
        except ModelOutputError:
            arguments = None
        if (call.id, call.name, arguments) != (step.call_id, step.tool, step.arguments):
            yield index, f"the call {call.name}({call.arguments}) differs from its step {step.tool}({step.arguments})"
        answer = json.loads(answers.get(call.id) or "null")
        if isinstance(answer, dict) and bool(answer.get("ok")) != step.ok:
            yield index, f"the answer to {call.name} says ok={answer.get('ok')}, its step {step.ok}"


def _claim_faults(case: Case, turn: Turn, clause: str) -> Iterator[str]:
    """`APP-0042 is …`, `X has …`: every literal beside an identifier must stand in one record with it."""
    key = case.keyed.search(clause)
    if key is None or _COPULA.search(clause) is None or INTENDS.search(clause) is not None:
        return
    records = [r for r in turn.records if key[0] in scalars(r)]
    if not records:
        return  # nothing was seen of it: a matter of grounding
    plain = _THERE_ARE.sub("", _OF_ALL.sub("", clause))
    said = [f for f in literals(plain, case.spec.clock) if f.text != key[0]]
    if not any(all(_in_record(r, f) for f in said) for r in records):
        yield f"no record seen with {key[0]} holds {', '.join(f.text for f in said)}"
    yield from _field_faults(case, records, key[0], clause[key.end() :].rstrip(".;!?"))


def _field_faults(case: Case, records: Sequence[dict[str, Any]], key: str, rest: str) -> Iterator[str]:
    """`APP-0042 is now cancelled`, `SER-0008 has price 60` against the record as it was last seen."""
    own = [(r, e) for r in records if (e := case.entity_of(r)) is not None and r[e.key] == key]
    if not own:
        return
    record, entity = own[-1]
    status = re.match(r" is (?:now )?([a-z ]+?)(?:,|$)", rest)
    cycle = entity.lifecycle
    if status is not None and cycle is not None and cycle.field in record:
        states = {say(s, "enum", case.spec.clock): s for s in cycle.states}
        if states.get(status[1], record[cycle.field]) != record[cycle.field]:
            yield f"{key} is said to be {status[1]}, it was last seen {record[cycle.field]}"
    has = re.match(r" has (?:the )?([a-z].*)", rest)
    if has is None:
        return
    for attribute in entity.attributes:
        words = attribute.name.replace("_", " ")
        if attribute.name in record and has[1].startswith(f"{words} "):
            said, value = has[1].removeprefix(f"{words} "), record[attribute.name]
            if not _same_said(said, value, attribute.type, case.spec.clock):
                yield f"{key} is said to have {words} {said}, it was last seen with {value}"


def _same_said(said: str, value: Any, kind: str, clock: str) -> bool:
    try:
        return same_value(float(said), value)
    except ValueError:
        ways = {str(value), json.dumps(value), say(value, kind, clock) if value is not None else "nothing"}
        return said.strip("“”") in ways


def _in_record(record: dict[str, Any], literal: Found) -> bool:
    """Whether a record holds a literal."""
    bare = re.compile(rf"(?<![\w-]){re.escape(literal.text.strip('“”'))}(?![\w-])", re.IGNORECASE)
    for value in scalars(record):
        if literal.kind == "number" and same_value(literal.value, value):
            return True
        if isinstance(value, str) and literal.kind == "date" and value.startswith(str(literal.value)):
            return True
        if isinstance(value, str) and bare.search(value):
            return True
    return False


def _count_faults(turn: Turn, clause: str) -> Iterator[str]:
    """`There are 3 …`, `of the 7 …` against the observation before the turn."""
    for match in (*_THERE_ARE.finditer(clause), *_OF_ALL.finditer(clause)):
        if turn.latest and not any(int(match[1]) in _counts(data) for data in turn.latest):
            yield f"{match[0].strip(' ,')!r} is not what the last observation shows"


def _counts(value: Any) -> set[int]:
    found: set[int] = set()
    if isinstance(value, list):
        found.add(len(value))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        if isinstance(item, dict | list):
            found |= _counts(item)
    if isinstance(value, dict):
        found |= {v for k, v in value.items() if k in ("total", "count") and isinstance(v, int)}
    return found


def _date_faults(case: Case, clause: str) -> Iterator[str]:
    """`Friday 13 March is 2026-03-13`: both dates of an equation are the same."""
    dates = [f for f in literals(clause, case.spec.clock) if f.kind == "date" and ":" not in str(f.value)[:3]]
    if len(dates) == 2 and re.fullmatch(r"\s*is\s*", clause[dates[0].start + len(dates[0].text) : dates[1].start]):
        left, right = (str(d.value)[:16] for d in dates)
        if left != right:
            yield f"{dates[0].text} is not {dates[1].text}"


def _given_faults(turn: Turn) -> Iterator[str]:
    """Codes that the last sentence names (`APP-0042`, `IV-3635`), of the kinds the call is given, are those given."""
    named = _CODE.findall(CLAUSE.split(turn.reasoning.strip())[-1])
    for call in turn.message.tool_calls:
        given = _CODE.findall(call.arguments)
        for kind in dict.fromkeys(code.partition("-")[0] for code in named):
            mine = {code for code in given if code.partition("-")[0] == kind}
            said = {code for code in named if code.partition("-")[0] == kind}
            if not mine <= said:
                yield f"{', '.join(sorted(said))} is announced, {', '.join(sorted(mine))} is given to {call.name}"


def _refusal_faults(case: Case, turn: Turn) -> Iterator[str]:
    if NEGATES.search(turn.said):
        return
    for name in turn.refused:
        if _claimed(name) <= words_of(turn.said) or _DONE.search(turn.said):
            yield f"{name} was refused, and the turn says it worked"


def _final_faults(case: Case) -> Faults:
    if not case.turns or case.turns[-1].message.tool_calls:
        return
    last = case.turns[-1]
    content = last.message.content or ""
    wanted = {a.name for a in case.task.answer}
    answer = find_answer(content, wanted) if wanted else {}
    if answer is None:
        yield last.index, "the final message lacks the answers asked for"
    for name, value in (answer or {}).items():
        if not _established(last.reasoning, name, value, case.spec.clock):
            yield last.index, f"the answer {name} = {value!r} is not what the last reasoning says"
    prose = words_of(content.partition("{")[0])
    made = {word for name in last.made for word in _claimed(name) | words_of(name.replace("_", " "))}
    for name in case.changing:
        if name not in last.made and _claimed(name) <= prose and not _claimed(name) <= made:
            yield last.index, f"the final message claims {name}, which was not made"


def _claimed(tool: str) -> set[str]:
    """The words that say that a tool's call was made: `cancelled`, `appointment`."""
    verb, _, rest = tool.partition("_")
    return {past(verb)} | words_of(rest.replace("_", " "))


def _established(reasoning: str, name: str, value: Any, clock: str) -> bool:
    """Whether the last reasoning says an answer; under its name, where it says the name."""
    named = re.search(rf"\b{re.escape(name)} is (-?\d+(?:\.\d+)?)(?![\w-])", reasoning)
    if is_number(value):
        if named is not None:
            return same_value(float(named[1]), value)
        spoken = literals(reasoning, clock)
        return any(f.kind == "number" and same_value(f.value, value) for f in spoken)
    told = reasoning.casefold()
    return str(value).casefold() in told or str(value).replace("_", " ").casefold() in told
