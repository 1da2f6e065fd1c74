"""The quality checks find nothing in what the teacher says, and every way of spoiling it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentomnia.llm.message import Message
from agentomnia.synthesis.tasks.gate import Evaluated
from agentomnia.synthesis.trajectories.literals import Seen, literals
from agentomnia.synthesis.trajectories.quality import check_quality
from agentomnia.synthesis.trajectories.reasoning import past
from agentomnia.task.render import say
from agentomnia.task.trajectory import Trajectory
from test_teacher import play

Spoil = Callable[[Trajectory, Evaluated, Random], Trajectory | None]

KEY = re.compile(r"\b[A-Z]{2,}-\d{4}\b")


class Played(list[tuple[Evaluated, Trajectory]]):
    """Tasks and trajectories that a failing example does not print in full."""

    def __repr__(self) -> str:
        return f"{len(self)} trajectories"


@pytest.fixture(scope="module")
def played(subjects: list[Evaluated]) -> Played:
    return Played((subject, play(subject)) for subject in subjects)


def changed(trajectory: Trajectory, index: int, **parts: object) -> Trajectory:
    messages = list(trajectory.messages)
    messages[index] = messages[index].model_copy(update=parts)
    return trajectory.model_copy(update={"messages": tuple(messages)})


def speaking(trajectory: Trajectory, pattern: str = "") -> list[int]:
    """Indices of the turns whose reasoning has something."""
    messages = enumerate(trajectory.messages)
    return [i for i, m in messages if m.role == "assistant" and re.search(pattern, m.reasoning_content or "")]


def reasoning(trajectory: Trajectory, index: int) -> str:
    return trajectory.messages[index].reasoning_content or ""


def edited(trajectory: Trajectory, index: int, text: str) -> Trajectory | None:
    return None if text == reasoning(trajectory, index) else changed(trajectory, index, reasoning_content=text)


# ways to spoil a trajectory; `None` where there is nothing of the kind to spoil


def other_argument(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """An identifier given to a call is replaced by one nobody has seen, in message and step alike."""
    calls = [i for i, m in enumerate(trajectory.messages) for c in m.tool_calls if KEY.search(c.arguments)]
    if not calls:
        return None
    index = rng.choice(calls)
    call = trajectory.messages[index].tool_calls[0]
    text = KEY.sub(lambda m: f"{m[0][:-4]}{7000 + rng.randrange(1000)}", call.arguments, count=1)
    spoiled = changed(trajectory, index, tool_calls=(call.model_copy(update={"arguments": text}),))
    return _with_step(spoiled, call.id, text)


def seen_argument(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A call is given another record of the same kind than the one its reasoning names, and one that was seen."""
    shown: set[str] = set()
    for index, message in enumerate(trajectory.messages):
        shown |= set(KEY.findall(message.content or "")) if message.role == "tool" else set()
        for call in message.tool_calls:
            own = [k for k in KEY.findall(call.arguments) if k in (message.reasoning_content or "").split(". ")[-1]]
            others = sorted(k for k in shown if own and k != own[0] and k[:-4] == own[0][:-4])
            if others:
                text = call.arguments.replace(own[0], rng.choice(others))
                spoiled = changed(trajectory, index, tool_calls=(call.model_copy(update={"arguments": text}),))
                return _with_step(spoiled, call.id, text)
    return None


def other_field(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A field of a record is said to have another value than the one that was seen."""
    places = speaking(trajectory, r"[A-Z]{2,}-\d{4} has [a-z ]+ \d")
    if not places:
        return None
    index, more = rng.choice(places), rng.randrange(1, 9)
    raised = re.compile(r"(?<=[a-z] )(\d+)")
    return edited(trajectory, index, raised.sub(lambda m: str(int(m[1]) + more), reasoning(trajectory, index), count=1))


def _with_step(trajectory: Trajectory, call_id: str, arguments: str) -> Trajectory:
    given = {"arguments": json.loads(arguments)}
    steps = [s.model_copy(update=given) if s.call_id == call_id else s for s in trajectory.steps]
    return trajectory.model_copy(update={"steps": tuple(steps)})


def other_step(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A step says that something else was called."""
    number = rng.randrange(len(trajectory.steps))
    steps = list(trajectory.steps)
    steps[number] = steps[number].model_copy(update={"arguments": {"other": rng.random()}})
    return trajectory.model_copy(update={"steps": tuple(steps)})


def unseen_identifier(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """Reasoning names a record that was never shown."""
    places = speaking(trajectory, KEY.pattern)
    if not places:
        return None
    index = rng.choice(places)
    return edited(
        trajectory, index, KEY.sub(f"{subject.spec.entities[0].prefix}-8421", reasoning(trajectory, index), 1)
    )


def unseen_value(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """Reasoning cites a number, a name or a date from nowhere."""
    index = rng.choice(speaking(trajectory))
    said = rng.choice((
        f"It costs {rng.randrange(10**6, 10**7)} in all.", "I know that Xaver Quillfeather waits for it.",
        "It has to be ready by 2031-05-17.", "They meet on Tuesday 17 May 2033 at 23:59.",
    ))  # fmt: skip
    return edited(trajectory, index, f"{said} {reasoning(trajectory, index)}")


def no_reasoning(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A turn acts without a word."""
    return changed(trajectory, rng.choice(speaking(trajectory)), reasoning_content=rng.choice((None, "", " \n")))


def other_status(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A record is said to be in another state than the one it was seen in."""
    states = {s for e in subject.spec.entities if e.lifecycle is not None for s in e.lifecycle.states}
    for index in speaking(trajectory, r"\b[A-Z]{2,}-\d{4} is now [a-z ]+\."):
        said = re.search(r"is now ([a-z ]+)\.", reasoning(trajectory, index))
        assert said is not None
        key = KEY.search(reasoning(trajectory, index))
        entity = next(e for e in subject.spec.entities if key and key[0].startswith(f"{e.prefix}-"))
        assert entity.lifecycle is not None
        words = say(rng.choice([s for s in entity.lifecycle.states if say(s, "enum", "") != said[1]]), "enum", "")
        assert states
        return edited(trajectory, index, reasoning(trajectory, index).replace(said[0], f"is now {words}.", 1))
    return None


def other_count(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A count in reasoning is not what the list before it shows."""
    places = speaking(trajectory, r"\b(?:There are|There is|Of the) \d+")
    if not places:
        return None
    index = rng.choice(places)
    more = 50 + rng.randrange(40)
    text = re.sub(
        r"\b(There are|There is|Of the) (\d+)", lambda m: f"{m[1]} {int(m[2]) + more}", reasoning(trajectory, index)
    )
    return edited(trajectory, index, text)


def other_owner(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A record is called by the name of another one that was also seen."""
    person = r"[A-Z][a-z]+ [A-Z][a-z]+"
    named = speaking(trajectory, rf"[A-Z]{{2,}}-\d{{4}} is (?:the [a-z ]+)?{person}[.;]")
    names = sorted({name for i in named for name in re.findall(person, reasoning(trajectory, i).split(".")[0])})
    if len(named) < 2 or len(names) < 2:
        return None
    index = named[-1]
    first, *rest = reasoning(trajectory, index).split(".")
    mine = re.findall(person, first)[0]
    other = next(n for n in names if n != mine)
    return edited(trajectory, index, ".".join([first.replace(mine, other), *rest]))


def leak(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """Reasoning speaks of what only the privileged part has."""
    index = rng.choice(speaking(trajectory))
    said = rng.choice((
        "According to the reference, this comes next.", "The golden trajectory goes on like this.",
        "That is the expected state.", "The success criterion wants it.", "This creates $1.",
        "As the hint says, I go on.",
    ))  # fmt: skip
    return edited(trajectory, index, f"{reasoning(trajectory, index)} {said}")


def other_answer(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """The final message gives another number than the reasoning before it."""
    content = trajectory.messages[-1].content or ""
    text = re.sub(r'(?<=":)-?\d+(?:\.\d+)?', lambda m: str(float(m[0]) + rng.randrange(1, 9)), content, count=1)
    return None if text == content else changed(trajectory, len(trajectory.messages) - 1, content=text)


def false_claim(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """The final message claims a change that nobody made."""
    called = {s.tool for s in trajectory.steps}
    words = {w for name in called for w in name.split("_")}
    names = [t.name for t in subject.spec.tools if t.kind == "modify" and t.name.split("_")[0] not in words]
    verb, _, rest = rng.choice([n for n in names if "_" in n]).partition("_")
    content = f"I also {past(verb)} the {rest.replace('_', ' ')}. {trajectory.messages[-1].content}"
    return changed(trajectory, len(trajectory.messages) - 1, content=content)


def empty_promise(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """Reasoning announces a change that is never made."""
    called = {s.tool for s in trajectory.steps}
    tool = rng.choice([t.name for t in subject.spec.tools if t.kind == "modify" and t.name not in called])
    verb, _, rest = tool.partition("_")
    index = rng.choice(speaking(trajectory))
    said = f"After that I will {verb} the {rest.replace('_', ' ')}."
    if any(set(name.split("_")) <= set(f"{verb} {rest}".replace("_", " ").split()) for name in called):
        return None
    return edited(trajectory, index, f"{reasoning(trajectory, index)} {said}")


def said_to_work(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """The last change was refused, and the words go on as if it had worked."""
    changing = [s for s in trajectory.steps if subject.spec.tool(s.tool).kind == "modify"]
    if not changing:
        return None
    step = changing[-1]
    index = next(i for i, m in enumerate(trajectory.messages) if m.tool_call_id == step.call_id)
    error = {"code": "conflict", "message": "It is too late.", "hint": "Nothing can be done."}
    spoiled = changed(trajectory, index, content=json.dumps({"ok": False, "error": error}))
    steps = [s.model_copy(update={"ok": False, "error": "conflict"}) if s is step else s for s in trajectory.steps]
    return spoiled.model_copy(update={"steps": tuple(steps)})


def leap(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A change is made although the words before it speak of nothing of the kind."""
    index = rng.choice([i for i, m in enumerate(trajectory.messages) if m.tool_calls])
    spoiled = changed(trajectory, index, reasoning_content="Hm, well.")
    before = [i for i in speaking(trajectory) if i < index]
    return changed(spoiled, before[-1], reasoning_content="Hm, well.") if before else spoiled


def early_pick(trajectory: Trajectory, subject: Evaluated, rng: Random) -> Trajectory | None:
    """A record is picked from a list by an identifier that nothing before the list had shown."""
    known = ""
    for index, message in enumerate(trajectory.messages[:-1]):
        rows = re.findall(r"\{[^{}]*\}", message.content or "") if message.role == "tool" else []
        for row in rows:
            first, *others = KEY.findall(row) or [""]
            new = [k for k in others if k not in known and k != first]
            if new and trajectory.messages[index + 1].role == "assistant":
                said = f"{first} is the one with {new[0]}. {reasoning(trajectory, index + 1)}"
                return edited(trajectory, index + 1, said)
        known += f"{message.content} {message.reasoning_content} {[c.arguments for c in message.tool_calls]}"
    return None


SPOILS: dict[Spoil, str] = {
    early_pick: "continuity",
    other_argument: "grounding",
    other_step: "consistency",
    seen_argument: "consistency",
    other_field: "consistency",
    unseen_identifier: "grounding",
    unseen_value: "grounding",
    no_reasoning: "continuity",
    other_status: "consistency",
    other_count: "consistency",
    other_owner: "consistency",
    leak: "leakage",
    other_answer: "consistency",
    false_claim: "consistency",
    empty_promise: "continuity",
    said_to_work: "consistency",
    leap: "continuity",
}


def checks(trajectory: Trajectory, subject: Evaluated) -> set[str]:
    return {f.check for f in check_quality(trajectory, subject.task, subject.spec)}


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda s: s.__name__)
def test_every_kind_of_fault_is_caught_wherever_it_fits(spoil: Spoil, played: Played) -> None:
    fitting = 0
    for subject, trajectory in played:
        spoiled = spoil(trajectory, subject, Random(f"{trajectory.id}/{spoil.__name__}"))
        if spoiled is not None:
            fitting += 1
            assert SPOILS[spoil] in checks(spoiled, subject), f"{spoil.__name__} in {trajectory.task}"
    assert fitting >= 1, "the small run has no place for this fault"


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 63), spoil=st.sampled_from(list(SPOILS)), number=st.integers(0, 999))
def test_faults_are_caught_anywhere(played: Played, place: int, spoil: Spoil, number: int) -> None:
    subject, trajectory = played[place % len(played)]
    spoiled = spoil(trajectory, subject, Random(number))
    assume(spoiled is not None)
    assert spoiled is not None and SPOILS[spoil] in checks(spoiled, subject)


def test_findings_name_message_and_evidence(played: Played) -> None:
    subject, trajectory = played[0]
    last = len(trajectory.messages) - 1
    (finding,) = check_quality(changed(trajectory, last, reasoning_content=None), subject.task, subject.spec)[:1]
    assert (finding.check, finding.message) == ("continuity", last) and "no reasoning" in finding.evidence


def test_rows_without_tools_are_judged_by_the_environments(played: Played) -> None:
    for subject, trajectory in played:
        bare = trajectory.model_copy(update={"tools": ()})
        assert check_quality(bare, subject.task, subject.spec) == ()


# literals

CLOCK = "2026-03-09T09:00"


def test_literals_of_a_sentence() -> None:
    text = (
        "Of the 7 rows, APP-0042 is Paula Kaur on Friday 13 March at 12:30 (2026-03-13T12:30) for “two cats”, 46.5 EUR."
    )
    assert [(f.kind, f.value) for f in literals(text, CLOCK)] == [
        ("number", 7.0), ("identifier", "APP-0042"), ("name", "Paula Kaur"), ("date", "2026-03-13T12:30"),
        ("date", "2026-03-13T12:30"), ("quote", "two cats"), ("number", 46.5), ("name", "EUR"),
    ]  # fmt: skip


@settings(deadline=None)
@given(st.datetimes().filter(lambda d: 1600 < d.year < 2900))
def test_dates_in_words_are_the_dates_they_say(moment: object) -> None:
    iso = f"{moment:%Y-%m-%dT%H:%M}"
    (found,) = literals(f"it is on {say(iso, 'datetime', CLOCK)}.", CLOCK)
    assert (found.kind, found.value) == ("date", iso)
    seen = Seen(CLOCK)
    seen.add_value({"at": iso})
    assert seen.shows(found)


def test_a_part_of_what_was_seen_is_not_seen() -> None:
    seen = Seen(CLOCK)
    seen.add_text("STY-0042 is Paula Kaurova, 120 EUR")
    seen.add_value({"rows": [{"price": 1.5}, {"price": 2.25}]})
    shown = {t: all(seen.shows(f) for f in literals(f"see {t}", CLOCK)) for t in (
        "STY-0042", "STY-004", "Paula Kaur", "Paula Kaurova", "120", "12", "3.75", "2", "4",
    )}  # fmt: skip
    assert [t for t, ok in shown.items() if ok] == ["STY-0042", "Paula Kaurova", "120", "3.75", "2"]


def test_messages_of_another_kind_are_no_crash(played: Played) -> None:
    subject, trajectory = played[0]
    silent = trajectory.model_copy(
        update={"messages": (*trajectory.messages[:2], Message(role="assistant", content="")), "steps": ()}
    )
    assert "continuity" in checks(silent, subject)
