"""The rules of task-level analysis: from an aligned episode to its failures, earliest first.

Each rule looks at one way of failing and yields `Found` facts with the place in the episode where it shows.
What is missing shows where something later came instead, or at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from agentomnia.evolution.case import Case, Evidence, FailureKind, Found
from agentomnia.evolution.matching import Attempt, differences, shown
from agentomnia.row import canonical_json

GUARDED = frozenset(("precondition_failed", "forbidden", "conflict", "limit_exceeded"))
"""Error codes of guards: the arguments were understood, the rules say no."""
LOOP = 3
"""The same call with the same answer so often is a loop."""
_QUOTED = 400
"""Characters quoted of an observation."""


def find_failures(case: Case) -> list[Found]:
    """Every failure of an episode, earliest first; never none."""
    changes = [*_substituted(case), *_refused(case), *_left_out(case)]
    found = [*changes, *_not_found_out(case, changes), *_extra(case), *_answers(case), *_loops(case)]
    if not found:
        found = [*_out_of_order(case)][:1] or [_unexplained(case)]
    return sorted(found, key=lambda f: f.at)


# What was done instead


def _substituted(case: Case) -> Iterator[Found]:
    """Another call in the place of a missing one."""
    for index, attempt in case.pairs.items():
        yield _compared(case, index, attempt)


def _compared(case: Case, index: int, attempt: Attempt) -> Found:
    kind, parameter = _kind(case, index, attempt)
    return _at_attempt(case, kind, attempt, index, parameter)


def _kind(case: Case, index: int, attempt: Attempt) -> tuple[FailureKind, str | None]:
    """How an attempt differs from the reference call in whose place it stands, and in which argument."""
    call, step = case.reference.calls[index], attempt.step
    if step.error == "unknown_tool":
        return "unknown_tool", None
    if step.arguments is None:
        return "malformed_call", None
    if step.tool != call.tool:
        return "wrong_tool", None
    wanted = case.alignment.wanted[index]
    differing = differences(case.reference, call.tool, wanted, step.arguments)
    others = [p for p in differing if _names_other(case, attempt, p, wanted)]
    plain = [p for p in differing if p not in others]
    if plain and (step.error == "invalid_argument" or not others):
        kind: FailureKind = "constraint_broken" if step.error in GUARDED else "bad_argument"
        return kind, next((p for p in plain if p in attempt.observation), plain[0])
    return "wrong_entity", next(iter(others), None)


def _names_other(case: Case, attempt: Attempt, parameter: str, wanted: Mapping[str, Any]) -> bool:
    """Whether an argument names a record of the right kind that exists.

    A heuristic: the key begins as keys of that entity do, and no `not_found` that names it was answered.
    """
    target = case.reference.target(attempt.tool, parameter)
    value = (attempt.step.arguments or {}).get(parameter)
    if target is None or not isinstance(value, str) or parameter not in wanted:
        return False
    if attempt.step.error == "not_found" and value in attempt.observation:
        return False
    return value.startswith(f"{case.reference.spec.entity(target).prefix}-")


def _refused(case: Case) -> Iterator[Found]:
    """A reference call tried as wanted and refused: out of order, or the state no longer allows it."""
    for index, attempt in case.alignment.refused.items():
        if index not in case.missing:
            continue
        early = [k for k in case.alignment.made if index in case.reference.changes_before(k)]
        overtaking = [k for k in early if case.alignment.made[k][0].index < attempt.index and not case.reads(k)]
        if overtaking:
            yield _at_attempt(case, "wrong_order", case.alignment.made[overtaking[0]][0], overtaking[0], None)
            continue
        before = case.reference.changes_before(index)
        late = [i for i in before if any(a.index > attempt.index for a in case.alignment.made.get(i, ())[:1])]
        never = [i for i in before if i in case.missing]
        if late or any(case.alignment.refused[i].index > attempt.index for i in never if i in case.alignment.refused):
            yield _at_attempt(case, "wrong_order", attempt, index, None)
        elif not never:
            kind: FailureKind = "constraint_broken" if attempt.step.error in GUARDED else "bad_argument"
            yield _at_attempt(case, kind, attempt, index, None)


# What was not done


def _left_out(case: Case) -> Iterator[Found]:
    """Calls that nothing stands in place of: skipped, or behind an early end."""
    done = case.alignment.made.keys() | case.alignment.refused.keys() | case.pairs.keys()
    stopped = False
    for index in case.missing:
        if index in case.pairs or index in case.alignment.refused:
            continue
        later = [a for i in done if i > index for a in _places(case, i)]
        answered = case.reads(index) and case.given is not None
        if later or answered or case.cut_off:
            yield _missing_step(case, index, min(later, key=lambda a: a.index, default=None))
        elif not stopped:
            stopped = True
            yield _at_end(case, "premature_stop", index, "the episode ended here")


def _places(case: Case, index: int) -> tuple[Attempt, ...]:
    """The attempts at a reference call, the first one first."""
    made = case.alignment.made.get(index, ())
    other = [a for a in (case.alignment.refused.get(index), case.pairs.get(index)) if a is not None]
    return (*made, *other)


def _missing_step(case: Case, index: int, instead: Attempt | None) -> Found:
    if instead is None:
        return _at_end(case, "missing_step", index, "the final message came without it")
    return Found(
        "missing_step",
        (instead.index, 0),
        instead.turn,
        ((instead.message, instead.text), *_closing(case)),
        f"skipped, went on with {_attempt_words(instead)}",
        step_words(case, index),
        tool=case.reference.calls[index].tool,
        called=instead.tool,
        reading=case.reads(index),
    )


def _not_found_out(case: Case, changes: list[Found]) -> Iterator[Found]:
    """Readings behind a failed change that never showed the key which the change needed."""
    reported: set[int] = set()
    for index in case.missing:
        place = case.pairs[index].index if index in case.pairs else case.end
        for reading in _blind_readings(case, index, place):
            tried = [a for a in case.alignment.rest if a.tool == case.reference.calls[reading].tool and a.index < place]
            if tried and reading not in reported and not any(f.at[0] == tried[-1].index for f in changes):
                reported.add(reading)
                yield _compared(case, reading, tried[-1])


def _blind_readings(case: Case, index: int, place: int) -> Iterator[int]:
    """Reference readings that should have shown a key of a call, and did not; the deepest first."""
    call = case.reference.calls[index]
    for name, source in call.sources.items():
        if source.call is None or not case.reads(source.call) or source.call in case.alignment.made:
            continue
        if not shown(case.alignment.attempts, call.arguments.get(name), place):
            yield from _blind_readings(case, source.call, place)
            yield source.call


# What was too much, what was answered, what went round in circles


def _extra(case: Case) -> Iterator[Found]:
    """Changes nobody asked for, and refusals after which nothing more came."""
    paired = {a.index for a in case.pairs.values()}
    serving = [case.alignment.wanted[i] for i in case.otherwise if i not in case.alignment.made]
    helped = {v for wanted in serving for v in wanted.values() if isinstance(v, str)}
    accepted = max((a.index for a in case.alignment.attempts if a.step.ok), default=-1)
    for attempt in case.alignment.rest:
        if attempt.index in paired:
            continue
        keys = case.reference.keys(attempt.tool, attempt.step.arguments or {})
        if attempt.step.ok and attempt.changed and not keys & helped and (case.too_much or not case.missing):
            yield _at_attempt(case, "extra_change", attempt, None, None)
        elif not attempt.step.ok and attempt.index > accepted and case.missing:
            yield _at_attempt(case, _refusal_kind(attempt), attempt, None, None)


def _refusal_kind(attempt: Attempt) -> FailureKind:
    kinds: dict[str | None, FailureKind] = {"unknown_tool": "unknown_tool", "malformed_arguments": "malformed_call"}
    return kinds.get(attempt.step.error, "constraint_broken" if attempt.step.error in GUARDED else "bad_argument")


def _answers(case: Case) -> Iterator[Found]:
    """A wrong final message; read too early where the reading came before a change it should have seen."""
    if not case.wrong_answers:
        return
    for index in case.reference.answering():
        readings = case.alignment.made.get(index, ())
        changes = [a[0] for i in case.reference.changes_before(index) if (a := case.alignment.made.get(i))]
        if readings and any(all(r.index < change.index for r in readings) for change in changes):
            yield _at_attempt(case, "wrong_order", readings[-1], index, None)
    wanted = {n: case.reference.private.criterion.answers[n].value for n in case.wrong_answers}
    given = {n: case.given[n] for n in case.wrong_answers} if case.given is not None else None
    yield Found(
        "wrong_answer",
        (case.end + 1, 0),
        case.last_turn,
        _closing(case),
        f"answered {canonical_json(given)}" if given is not None else "gave no answer in the form asked for",
        f"answer {canonical_json(wanted)}",
        tool=next((case.reference.calls[i].tool for i in case.reference.answering()), None),
        reading=True,
    )


def _loops(case: Case) -> Iterator[Found]:
    """The same call with the same answer at least `LOOP` times, where the episode ended with it or was cut off."""
    count = Counter((a.text, a.observation) for a in case.alignment.attempts)
    for (text, seen), times in count.items():
        rounds = [a for a in case.alignment.attempts if (a.text, a.observation) == (text, seen)]
        if times >= LOOP and (case.cut_off or rounds[-1].index == case.end - 1):
            first = rounds[1]
            failed = f"{_attempt_words(first)}, {times} times with the same answer"
            yield Found(
                "loop",
                (first.index, 2),
                first.turn,
                _quotes(first),
                failed,
                _next_step(case, first),
                called=first.tool,
                reading=not case.reference.modifies(first.tool),
            )


def _next_step(case: Case, attempt: Attempt) -> str:
    open_calls = [i for i in case.missing if i not in case.pairs]
    return step_words(case, open_calls[0]) if open_calls else "the final message"


def _out_of_order(case: Case) -> Iterator[Found]:
    """Accepted changes that came before one they depend on: looked at only where nothing else explains the loss."""
    for index, attempts in sorted(case.alignment.made.items()):
        for earlier in sorted(case.reference.changes_before(index)):
            if any(a.index > attempts[0].index for a in case.alignment.made.get(earlier, ())[:1]):
                yield _at_attempt(case, "wrong_order", attempts[0], index, None)


def _unexplained(case: Case) -> Found:
    """All was done, and yet: no final message, or one that could not be read, or a change that no call tells."""
    kind: FailureKind
    if case.trajectory.stop_reason == "model_output_error":
        failed, kind = "the agent's output could not be read", "malformed_call"
    elif case.cut_off:
        failed, kind = f"went on until {case.trajectory.stop_reason}", "loop"
    else:
        failed, kind = "; ".join(case.trajectory.failures) or "the state is not the wanted one", "extra_change"
    return Found(kind, (case.end, 1), case.last_turn, _closing(case), failed, "the final message")


# Words and quotes


def _at_attempt(case: Case, kind: FailureKind, attempt: Attempt, index: int | None, parameter: str | None) -> Found:
    expected = step_words(case, index, parameter) if index is not None else "no such call"
    if kind == "wrong_order" and index is not None:
        before = [case.reference.calls[i].tool for i in sorted(case.reference.changes_before(index))]
        expected = " → ".join([*dict.fromkeys(before), expected])
    return Found(
        kind,
        (attempt.index, 1),
        attempt.turn,
        _quotes(attempt),
        f"{_attempt_words(attempt)} → {attempt.step.error or 'accepted'}",
        expected,
        tool=case.reference.calls[index].tool if index is not None else None,
        called=attempt.tool,
        parameter=parameter,
        reading=case.reads(index) if index is not None else not case.reference.modifies(attempt.tool),
    )


def _at_end(case: Case, kind: FailureKind, index: int, failed: str) -> Found:
    return Found(
        kind,
        (case.end, 0),
        case.last_turn,
        _closing(case),
        failed,
        step_words(case, index),
        tool=case.reference.calls[index].tool,
        reading=case.reads(index),
    )


def step_words(case: Case, index: int, parameter: str | None = None) -> str:
    """A reference call in the form of Table 8: `search_clients → client_id=CLI-0005 → book(client_id=CLI-0005, …)`."""
    call, wanted = case.reference.calls[index], case.alignment.wanted[index]
    source = call.sources.get(parameter) if parameter is not None else None
    words = _call_words(call.tool, wanted)
    if parameter is None or source is None or source.call is None:
        return words
    value = canonical_json(wanted.get(parameter))
    return f"{case.reference.calls[source.call].tool} → {parameter}={value} → {words}"


def _attempt_words(attempt: Attempt) -> str:
    return attempt.text if attempt.step.arguments is None else _call_words(attempt.tool, attempt.step.arguments)


def _call_words(tool: str, arguments: Any) -> str:
    return f"{tool}({', '.join(f'{n}={canonical_json(v)}' for n, v in arguments.items())})"


def _quotes(attempt: Attempt) -> Evidence:
    return ((attempt.message, attempt.text), (attempt.reply, attempt.observation[:_QUOTED]))


def _closing(case: Case) -> Evidence:
    """The final message; where it is empty, the last message with words in it."""
    for index in range(len(case.trajectory.messages) - 1, -1, -1):
        content = case.trajectory.messages[index].content
        if content and content.strip():
            return ((index, content[-_QUOTED:] if index == len(case.trajectory.messages) - 1 else content[:_QUOTED]),)
    return ()
