"""Attribution: a reference solution is broken in one known way, and the diagnosis names that way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

import anyio
import pytest

from agentomnia.environment.instance import Instance
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.episodes.loop import Limits, Stage, run_episode
from agentomnia.errors import InputError
from agentomnia.evolution.attribution import TaskDiagnosis, diagnose
from agentomnia.evolution.matching import call_text
from agentomnia.evolution.rules import GUARDED
from agentomnia.llm.message import Message, ToolCall
from agentomnia.synthesis.environments.compiler import build_program, compile_environment
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.generate import Candidate, TaskSite, criterion_changes, generate
from agentomnia.synthesis.tasks.dag.graph import build_graph
from agentomnia.synthesis.tasks.dag.groups import sample_groups
from agentomnia.synthesis.tasks.gate import Evaluated
from agentomnia.synthesis.tasks.operators import enrich
from agentomnia.task.criterion import AnswerField, Criterion, Expected
from agentomnia.task.task import PrivateTask, ReferenceCall, Source, Task, TaskDag, answer_message
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coordinate import Coordinate
from conftest import Salon, library_spec


@dataclass(frozen=True)
class Script:
    """What an agent says: calls as it writes them, then a last message."""

    calls: tuple[tuple[str, str], ...]
    final: str
    expected: str
    """The kind that the diagnosis must name first."""
    tool: str | None = None
    """The tool of the reference that was broken."""
    parameter: str | None = None
    hidden: str | None = None
    """A key that the fault must have kept from the agent; where something else shows it, there was no harm."""


class Player:
    """Plays a script."""

    name = "player"

    def __init__(self, script: Script) -> None:
        self.left = list(script.calls)
        self.final = script.final
        self.number = 0

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        if not self.left:
            return Message(role="assistant", content=self.final)
        name, arguments = self.left.pop(0)
        self.number += 1
        call = ToolCall(id=f"call_{self.number}", name=name, arguments=arguments)
        return Message(role="assistant", content=None, tool_calls=(call,))


def play(subject: Evaluated, script: Script) -> Trajectory:
    stage = Stage(subject.task, subject.private, subject.program, subject.state, subject.spec.introduction)
    instance = Instance(subject.program, subject.state)
    limits = Limits(turns=len(subject.private.calls) + 8)
    return anyio.run(lambda: run_episode(stage, Player(script), instance, limits=limits))


def reference(subject: Evaluated) -> Script:
    calls = tuple((c.tool, json.dumps(c.arguments)) for c in subject.private.calls)
    return Script(calls, answer_message(subject.private.answer), "none")


def changes(subject: Evaluated) -> list[int]:
    return [i for i, c in enumerate(subject.private.calls) if subject.spec.tool(c.tool).kind == "modify"]


def with_call(script: Script, index: int, *calls: tuple[str, str], **parts: Any) -> Script:
    """The script with other calls in the place of one."""
    return replace(script, calls=(*script.calls[:index], *calls, *script.calls[index + 1 :]), **parts)


Breaker = Callable[[Evaluated, Random], Iterator[Script]]


def drop_a_call(subject: Evaluated, rng: Random) -> Iterator[Script]:
    for i in changes(subject):
        if i + 1 < len(subject.private.calls):
            tool = subject.private.calls[i].tool
            yield with_call(reference(subject), i, expected="missing_step", tool=tool)


def stop_early(subject: Evaluated, rng: Random) -> Iterator[Script]:
    script, last = reference(subject), changes(subject)[-1]
    cut = rng.randint(0, last)
    yield replace(script, calls=script.calls[:cut], final="That is all.", expected="premature_stop")


def swap_the_tool(subject: Evaluated, rng: Random) -> Iterator[Script]:
    spec, used = subject.spec, {c.tool for c in subject.private.calls}
    sampler = ArgumentSampler(subject.program, rng)
    for i in changes(subject):
        call = subject.private.calls[i]
        keys = {spec.target(p.carries): call.arguments.get(p.name) for p in spec.tool(call.tool).parameters}
        for other in spec.tools:
            same = {p.name: keys[t] for p in other.parameters if (t := spec.target(p.carries)) and keys.get(t)}
            if other.kind == "modify" and other.name not in used and same:
                arguments = sampler.sample(other.name, subject.state) | same
                wrong = (other.name, json.dumps(arguments))
                yield with_call(reference(subject), i, wrong, expected="wrong_tool", tool=call.tool)
                break


def swap_an_id(subject: Evaluated, rng: Random) -> Iterator[Script]:
    spec = subject.spec
    for i in changes(subject):
        call = subject.private.calls[i]
        for parameter in spec.tool(call.tool).parameters:
            target = spec.target(parameter.carries)
            if target is None or parameter.name not in call.arguments:
                continue
            keys = [k for k in subject.state[spec.entity(target).plural] if k != call.arguments[parameter.name]]
            wrong = (call.tool, json.dumps(call.arguments | {parameter.name: rng.choice(keys)}))
            yield with_call(
                reference(subject), i, wrong, expected="wrong_entity", tool=call.tool, parameter=parameter.name
            )


def other_value(value: Any, choices: Sequence[str], rng: Random) -> Any:
    if choices:
        return rng.choice([c for c in choices if c != value])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and value[:2] == "20":
        return value[:9] + ("1" if value[9] != "1" else "2") + value[10:]
    return [7]  # what no schema of a text allows


def alter_a_value(subject: Evaluated, rng: Random) -> Iterator[Script]:
    """`bad_argument`, or `constraint_broken` where a guard refuses the value: the test looks at the answer."""
    spec = subject.spec
    for i in changes(subject):
        call = subject.private.calls[i]
        for parameter in spec.tool(call.tool).parameters:
            if spec.target(parameter.carries) is not None or parameter.name not in call.arguments:
                continue
            value = other_value(call.arguments[parameter.name], parameter.json_schema.get("enum", ()), rng)
            wrong = (call.tool, json.dumps(call.arguments | {parameter.name: value}))
            script = with_call(reference(subject), i, wrong, tool=call.tool, parameter=parameter.name)
            yield replace(script, expected=f"value of call {i}")


def malformed_json(subject: Evaluated, rng: Random) -> Iterator[Script]:
    for i in changes(subject):
        name, arguments = reference(subject).calls[i]
        yield with_call(reference(subject), i, (name, arguments[:-1]), expected="malformed_call", tool=name)


def unknown_name(subject: Evaluated, rng: Random) -> Iterator[Script]:
    for i in changes(subject):
        name, arguments = reference(subject).calls[i]
        yield with_call(reference(subject), i, (f"{name}_now", arguments), expected="unknown_tool", tool=name)


def go_in_circles(subject: Evaluated, rng: Random) -> Iterator[Script]:
    readings = [i for i, c in enumerate(subject.private.calls) if i < changes(subject)[-1]]
    for i in readings[:1]:
        script = reference(subject)
        if i not in changes(subject):
            yield replace(script, calls=(*script.calls[: i + 1], *[script.calls[i]] * 100), expected="loop")


def repeat_a_change(subject: Evaluated, rng: Random) -> Iterator[Script]:
    for i in changes(subject):
        call = reference(subject).calls[i]
        yield with_call(reference(subject), i, call, call, expected="extra_change")


def change_something_else(subject: Evaluated, rng: Random) -> Iterator[Script]:
    used = {c.tool for c in subject.private.calls}
    others = [t.name for t in subject.spec.tools if t.kind == "modify" and t.name not in used]
    sampler = ArgumentSampler(subject.program, rng)
    for name in rng.sample(others, min(2, len(others))):
        extra = (name, json.dumps(sampler.sample(name, subject.state)))
        script, place = reference(subject), rng.randint(0, len(subject.private.calls))
        calls = (*script.calls[:place], extra, *script.calls[place:])
        yield replace(script, calls=calls, expected="extra_change")


def too_early(subject: Evaluated, rng: Random) -> Iterator[Script]:
    """A change before one that it depends on; a question asked before the change it should have seen."""
    for early in range(len(subject.private.calls)):
        before = [i for i in subject.private.calls[early].after if i in changes(subject)]
        for late in before[:1]:
            script = reference(subject)
            moved = script.calls[early]
            calls = [c for i, c in enumerate(script.calls) if i != early]
            calls.insert(late, moved)
            yield replace(script, calls=tuple(calls), expected="wrong_order", tool=moved[0])


def wrong_answer(subject: Evaluated, rng: Random) -> Iterator[Script]:
    for name, value in subject.private.answer.items():
        wrong = value + 3 if isinstance(value, int | float) else f"not {value}"
        final = answer_message(subject.private.answer | {name: wrong})
        yield replace(reference(subject), final=final, expected="wrong_answer")


def mislead_the_search(subject: Evaluated, rng: Random) -> Iterator[Script]:
    """A search with other words finds nothing, and the agent gives up."""
    for i, call in enumerate(subject.private.calls):
        words = [p for p, s in call.sources.items() if s.origin == "query" and isinstance(call.arguments[p], str)]
        feeds = [
            c.arguments[p]
            for c in subject.private.calls
            for p, s in c.sources.items()
            if s.call == i and subject.spec.tool(c.tool).kind == "modify"
        ]
        if i not in changes(subject) and len(words) == 1 and "name" in words[0] and feeds:
            wrong = (call.tool, json.dumps(call.arguments | {words[0]: "Nobody Known"}))
            script = with_call(reference(subject), i, wrong)
            yield replace(
                script,
                calls=script.calls[: i + 1],
                final="I cannot find it.",
                expected="bad_argument",
                tool=call.tool,
                parameter=words[0],
                hidden=feeds[0],
            )


BREAKERS: dict[Breaker, int] = {
    drop_a_call: 20,
    stop_early: 20,
    swap_the_tool: 20,
    swap_an_id: 40,
    alter_a_value: 20,
    malformed_json: 20,
    unknown_name: 20,
    go_in_circles: 10,
    repeat_a_change: 5,
    change_something_else: 10,
    too_early: 1,
    wrong_answer: 8,
    mislead_the_search: 5,
}
"""With the number of episodes that each must really lose."""


def broken(subject: Evaluated, breaker: Breaker) -> Iterator[tuple[Script, Trajectory]]:
    """Episodes lost by one injected fault; what still earns the reward was harmless and is left out."""
    if not changes(subject) and breaker is not wrong_answer:
        return
    for script in breaker(subject, Random(f"{subject.task.id}/{breaker.__name__}")):
        trajectory = play(subject, script)
        told = any(script.hidden and script.hidden in (m.content or "") for m in trajectory.messages)
        if trajectory.reward != 1.0 and not told:
            yield _resolved(script, trajectory), trajectory


def _resolved(script: Script, trajectory: Trajectory) -> Script:
    if not script.expected.startswith("value of call "):
        return script
    step = trajectory.steps[int(script.expected.rsplit(" ", 1)[1])]
    return replace(script, expected="constraint_broken" if step.error in GUARDED else "bad_argument")


@pytest.fixture(scope="module")
def many(salon: Salon, subjects: list[Evaluated]) -> list[Evaluated]:
    """Tasks of two domains: those of the run, and more on the salon."""
    maker = StateMaker(salon.spec)
    facts = dict(compile_environment(salon.spec).facts)
    found = list(subjects)
    for number in range(2):
        state = maker.make(f"attribution/{number}")
        enrich(salon.spec, maker, state, Random(number))
        site = TaskSite(salon.environment.id, salon.spec, salon.program, facts, f"s{number}", state)
        groups = islice(sample_groups(salon.spec, build_graph(salon.spec), Random(number)), 12)
        made = [generate(site, group, f"{number}/{i}") for i, group in enumerate(groups)]
        found += [Evaluated(m.public, m.private, salon.spec, salon.program, state)
                  for m in made if isinstance(m, Candidate)]  # fmt: skip
    assert len(found) >= 20
    return found


def check(subject: Evaluated, script: Script, trajectory: Trajectory) -> TaskDiagnosis:
    """The diagnosis, with what must hold of every one."""
    found = diagnose(trajectory, subject.task, subject.private, subject.spec)
    assert found.failures[0].kind == found.primary and found.first is found.failures[0]
    assert TaskDiagnosis.model_validate(found.to_json()) == found
    for failure in found.failures:
        assert failure.evidence and failure.failed_step and failure.expected_step
        assert 0 <= failure.turn < found.turns
        for quote in failure.evidence:
            message = trajectory.messages[quote.message]
            spoken = [message.content or "", *(call_text(c.name, c.arguments) for c in message.tool_calls)]
            assert quote.text and any(quote.text in text for text in spoken)
    return found


@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda b: b.__name__)
def test_the_injected_fault_is_the_primary_one(many: list[Evaluated], breaker: Breaker) -> None:
    lost = 0
    for subject in many:
        for script, trajectory in broken(subject, breaker):
            found = check(subject, script, trajectory)
            lost += 1
            assert found.primary == script.expected, (script, [f.to_json() for f in found.failures])
            if script.tool is not None:
                assert found.first.tool == script.tool
            if script.parameter is not None:
                assert found.first.parameter == script.parameter
    assert lost >= BREAKERS[breaker]


def test_doing_nothing_is_stopping_early(many: list[Evaluated]) -> None:
    for subject in many:
        for final in ("", "I am sorry, but I cannot help with that."):
            script = Script((), final, "premature_stop")
            assert check(subject, script, play(subject, script)).primary == "premature_stop"


def test_what_is_not_a_lost_episode_is_refused(subjects: list[Evaluated]) -> None:
    subject = subjects[0]
    won = play(subject, reference(subject))
    assert won.reward == 1.0
    nobody = won.model_copy(update={"reward": None, "failure_owner": "infrastructure"})
    other = next(s for s in subjects if s.task.id != subject.task.id)
    for trajectory, against in ((won, subject), (nobody, subject), (won.model_copy(update={"reward": 0.0}), other)):
        with pytest.raises(InputError):
            diagnose(trajectory, against.task, against.private, against.spec)


# Order and keys, on a task by hand: a lent book comes back, goes to somebody else, and one is told who has it


SPEC = library_spec()
PROGRAM = build_program(SPEC)
STATE = StateMaker(SPEC).make("attribution")
LENT = next(b for b in STATE["books"].values() if b["status"] == "lent")
NEXT = next(m for m in STATE["members"] if m != LENT["holder_id"])
SHELF = next(iter(STATE["shelves"]))


def by_hand(calls: Sequence[ReferenceCall], answer: dict[str, Any], edges: Sequence[tuple[str, str]] = ()) -> Evaluated:
    """A task whose criterion is what its calls do."""
    instance = Instance(PROGRAM, STATE)
    for call in calls:
        assert instance.call(call.tool, call.arguments)["ok"]
    criterion = Criterion(
        changes=criterion_changes(SPEC, STATE, instance.live_state),
        answers={name: Expected(value=value) for name, value in answer.items()},
    )
    task = Task(
        id="by-hand",
        environment="library",
        state="s0",
        kind="dag",
        query="Please.",
        answer=tuple(AnswerField(name=n, description=n, type="string") for n in answer),
        coordinate=Coordinate(domain=10006, capabilities=("tool_use",)),
        lineage="tests",
    )
    private = PrivateTask(
        id=task.id, criterion=criterion, calls=tuple(calls), answer=answer, dag=TaskDag(edges=tuple(edges))
    )
    return Evaluated(task, private, SPEC, PROGRAM, STATE)


def lending() -> Evaluated:
    book = LENT["book_id"]
    calls = (
        ReferenceCall(tool="return_book", arguments={"book_id": book}),
        ReferenceCall(tool="lend_book", arguments={"book_id": book, "member_id": NEXT}, after=(0,)),
        ReferenceCall(tool="get_book", arguments={"book_id": book}, after=(1,)),
    )
    return by_hand(calls, {"answer": NEXT}, (("call:2", "think:0"),))


@pytest.mark.parametrize(("order", "tool", "holder"), [((1, 0, 2), "lend_book", NEXT), ((2, 0, 1), "get_book", None)])
def test_what_comes_too_early_is_out_of_order(order: tuple[int, ...], tool: str, holder: str | None) -> None:
    subject = lending()
    assert play(subject, reference(subject)).reward == 1.0
    script = reference(subject)
    final = answer_message({"answer": holder or LENT["holder_id"]})
    moved = replace(script, calls=tuple(script.calls[i] for i in order), final=final)
    found = check(subject, moved, play(subject, moved))
    assert (found.primary, found.first.tool, found.first.turn) == ("wrong_order", tool, 0)
    assert found.first.expected_step.startswith("return_book")


def test_a_refused_call_that_is_put_right_is_no_fault() -> None:
    """The primary fault is the wrong answer, not what was tried and corrected before."""
    subject = lending()
    script = reference(subject)
    unknown, torn = ("borrow", "{}"), (script.calls[0][0], "{")
    calls = (script.calls[1], unknown, torn, *script.calls)
    found = check(subject, script, play(subject, replace(script, calls=calls, final="Done.")))
    assert [f.kind for f in found.failures] == ["wrong_answer"]


def test_keys_of_created_records_depend_on_the_order_of_calls() -> None:
    first, second = ({"shelf_id": SHELF, "title": title} for title in ("Tides", "Dunes"))
    instance = Instance(PROGRAM, STATE)
    answers = [instance.call("add_book", arguments) for arguments in (first, second)]
    before = set(STATE["books"])
    keys = [k for k in instance.state["books"] if k not in before]
    assert all(a["ok"] for a in answers) and len(keys) == 2
    path = next(p for p in (("book", "book_id"), ("book_id",)) if _has(answers[0]["data"], p))
    calls = (
        ReferenceCall(tool="add_book", arguments=first),
        ReferenceCall(tool="add_book", arguments=second),
        ReferenceCall(
            tool="lend_book",
            arguments={"book_id": keys[0], "member_id": NEXT},
            sources={"book_id": Source(origin="observation", call=0, path=path)},
            after=(0,),
        ),
    )
    subject = by_hand(calls, {"answer": "yes"})
    script = reference(subject)
    other_order = (script.calls[1], script.calls[0])
    right = ("lend_book", json.dumps({"book_id": keys[1], "member_id": NEXT}))
    found = check(subject, script, play(subject, replace(script, calls=(*other_order, right), final="Done.")))
    assert [f.kind for f in found.failures] == ["wrong_answer"]
    found = check(subject, script, play(subject, replace(script, calls=(*other_order, script.calls[2]))))
    assert (found.primary, found.first.parameter) == ("wrong_entity", "book_id")


def _has(data: dict[str, Any], path: tuple[str, ...]) -> bool:
    value: Any = data
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value is not None


def test_a_goal_reached_by_another_tool_is_not_held_against_the_agent() -> None:
    """The shelf is reached by two moves, the last one right; what is lost is the loan, and only that is named."""
    shelf = next(s for s in STATE["shelves"] if s != LENT["shelf_id"])
    other = next(s for s in STATE["shelves"] if s not in (shelf, LENT["shelf_id"]))
    book = LENT["book_id"]
    calls = (
        ReferenceCall(tool="move_book", arguments={"book_id": book, "shelf_id": shelf}),
        ReferenceCall(tool="return_book", arguments={"book_id": book}),
    )
    subject = by_hand(calls, {})
    detour = ("move_book", json.dumps({"book_id": book, "shelf_id": other}))
    script = reference(subject)
    stopped = replace(script, calls=(detour, script.calls[0]), final="Moved.")
    found = check(subject, stopped, play(subject, stopped))
    assert ("premature_stop", "return_book") in {(f.kind, f.tool) for f in found.failures}
    assert "missing_step" not in {f.kind for f in found.failures}
