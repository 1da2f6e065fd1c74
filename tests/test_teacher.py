"""The builtin teacher: plays every task in the order of need, from what it observes, in words of what it has seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.environment.instance import Instance
from agentomnia.episodes.loop import Stage, run_episode
from agentomnia.errors import InputError, ModelOutputError
from agentomnia.llm.message import Message
from agentomnia.runs.episodes import make_references, reference_player
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import Run
from agentomnia.synthesis.tasks.gate import Evaluated
from agentomnia.synthesis.trajectories.plan import order_by_need
from agentomnia.synthesis.trajectories.quality import check_quality
from agentomnia.synthesis.trajectories.reasoning import MOST_WORDS, ReasoningWriter, past
from agentomnia.synthesis.trajectories.teacher import TeacherAgent, bound
from agentomnia.task.grade import find_answer
from agentomnia.task.task import ReferenceCall, Source, TaskDag, VirtualNode
from agentomnia.task.trajectory import Trajectory


def play(subject: Evaluated, seed: int = 0) -> Trajectory:
    spec = subject.spec
    stage = Stage(subject.task, subject.private, subject.program, subject.state, spec.introduction, spec.policies)
    instance = Instance(subject.program, subject.state)
    agent = TeacherAgent(subject.task, subject.private, spec, seed)

    async def episode() -> Trajectory:
        return await run_episode(stage, agent, instance, seed=seed)

    return anyio.run(episode)


def turns(trajectory: Trajectory) -> list[Message]:
    return [m for m in trajectory.messages if m.role == "assistant"]


def reply(agent: TeacherAgent, messages: Sequence[Message]) -> Message:
    async def turn() -> Message:
        return await agent.respond(messages, [])

    return anyio.run(turn)


def test_every_task_is_played_to_full_reward_and_passes_the_checks(subjects: list[Evaluated]) -> None:
    for subject in subjects:
        for seed in (0, 1):
            trajectory = play(subject, seed)
            assert (trajectory.reward, trajectory.failures) == (1.0, ())
            assert check_quality(trajectory, subject.task, subject.spec) == ()


def test_the_calls_are_the_references_and_each_identifier_was_shown_before(subjects: list[Evaluated]) -> None:
    for subject in subjects:
        trajectory, shown = play(subject), ""
        made = [(s.tool, s.arguments) for s in trajectory.steps]
        wanted = [(c.tool, c.arguments) for c in subject.private.calls]
        assert sorted(map(repr, made)) == sorted(map(repr, wanted))
        for message in trajectory.messages:
            for call in message.tool_calls:
                for value in call.parse_arguments().values():
                    if isinstance(value, str) and value in _keys(subject):
                        assert value in shown
            shown += message.content or "" if message.role == "tool" else ""


def _keys(subject: Evaluated) -> set[str]:
    return {k for e in subject.spec.entities for k in subject.state[e.plural]}


def test_words_are_few_and_every_turn_has_some(subjects: list[Evaluated]) -> None:
    lengths = [len((m.reasoning_content or "").split()) for s in subjects for m in turns(play(s))]
    assert min(lengths) >= 5 and max(lengths) <= MOST_WORDS + 10
    assert sum(8 <= n <= MOST_WORDS for n in lengths) >= 0.85 * len(lengths)


def test_a_seed_changes_words_and_no_call(subjects: list[Evaluated]) -> None:
    first, again, other = play(subjects[0], 0), play(subjects[0], 0), play(subjects[0], 1)
    assert first == again
    assert [s.arguments for s in first.steps] == [s.arguments for s in other.steps]
    assert [m.reasoning_content for m in turns(first)] != [m.reasoning_content for m in turns(other)]


# what it observes decides


def located(subjects: list[Evaluated]) -> Evaluated:
    """A task whose first call finds an identifier that a later call is given."""
    for subject in subjects:
        order = order_by_need(subject.private.calls, subject.private.dag)
        second = subject.private.calls[order[1]] if len(order) > 1 else None
        if second is not None and any(s.call == order[0] for s in second.sources.values()):
            return subject
    raise AssertionError("no task of the run looks a record up before its first use")


def answered(call: Message, data: Any) -> Message:
    return Message.tool_result(call.tool_calls[0].id, {"ok": True, "data": data})


def test_an_argument_is_taken_from_the_live_observation(subjects: list[Evaluated]) -> None:
    subject = located(subjects)
    agent = TeacherAgent(subject.task, subject.private, subject.spec)
    user = Message(role="user", content=subject.task.query)
    first = reply(agent, [user])
    order = order_by_need(subject.private.calls, subject.private.dag)
    source = next(s for s in subject.private.calls[order[1]].sources.values() if s.call == order[0])
    instance = Instance(subject.program, subject.state)
    data = instance.call(first.tool_calls[0].name, first.tool_calls[0].parse_arguments())["data"]
    row = data
    for step in source.path[:-1]:
        row = row[step]
    old = row[source.path[-1]]
    row[source.path[-1]] = old[:-4] + "9876"
    second = reply(agent, [user, first, answered(first, data)])
    assert f"{old[:-4]}9876" in second.tool_calls[0].arguments
    assert f"{old[:-4]}9876" in (second.reasoning_content or "") and old not in (second.reasoning_content or "")


def test_after_a_refusal_it_stops_and_says_so(subjects: list[Evaluated]) -> None:
    subject = located(subjects)
    agent = TeacherAgent(subject.task, subject.private, subject.spec)
    user = Message(role="user", content=subject.task.query)
    first = reply(agent, [user])
    error = {"code": "conflict", "message": "The desk is closed.", "hint": "Come back."}
    refused = Message.tool_result(first.tool_calls[0].id, {"ok": False, "error": error})
    last = reply(agent, [user, first, refused])
    assert last.tool_calls == () and "The desk is closed." in (last.content or "")
    assert "done" not in (last.content or "").lower()


def test_an_answer_is_what_was_observed(subjects: list[Evaluated]) -> None:
    asked = [s for s in subjects if s.task.answer]
    assert asked
    for subject in asked:
        trajectory = play(subject)
        names = {a.name for a in subject.task.answer}
        assert find_answer(turns(trajectory)[-1].content or "", names) == subject.private.answer
        # the same observations with every number raised: the answer follows
        agent, told = TeacherAgent(subject.task, subject.private, subject.spec), list(trajectory.messages[:2])
        for message in trajectory.messages[2:]:
            if message.role == "tool":
                data = json.loads(message.content or "")["data"]
                told.append(Message.tool_result(message.tool_call_id or "", {"ok": True, "data": _raised(data)}))
            else:
                told.append(reply(agent, told))
        given = find_answer(told[-1].content or "", names)
        assert given is not None
        numbers = {n: v for n, v in subject.private.answer.items() if isinstance(v, int | float)}
        assert all(given[name] != value for name, value in numbers.items())


def _raised(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _raised(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_raised(v) for v in value]
    return value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else value


def test_an_unanswered_call_is_an_error(subjects: list[Evaluated]) -> None:
    agent = TeacherAgent(subjects[0].task, subjects[0].private, subjects[0].spec)
    user = Message(role="user", content="x")
    reply(agent, [user])
    with pytest.raises(ModelOutputError, match="answer each call"):
        reply(agent, [user])


def test_a_path_that_leads_nowhere_leaves_the_references_value() -> None:
    source = Source(origin="observation", call=0, path=("rows", 3, "row_id"))
    call = ReferenceCall(tool="take", arguments={"row_id": "ROW-0001"}, sources={"row_id": source})
    assert bound(call, {0: {"rows": []}}) == {"row_id": "ROW-0001"}
    assert bound(call, {0: {"rows": [0, 0, 0, {"row_id": "ROW-0009"}]}}) == {"row_id": "ROW-0009"}
    assert bound(call, {}) == {"row_id": "ROW-0001"}


# in a run


def bare_run(finished_run: Path, path: Path) -> Path:
    """A run with environments and tasks and nothing else."""
    shutil.copytree(finished_run / "environments", path / "environments")
    for name in ("tasks.jsonl", "tasks.private.jsonl"):
        shutil.copy(finished_run / name, path / name)
    return path


def test_a_run_keeps_what_is_clean(finished_run: Path, tmp_path: Path) -> None:
    path = bare_run(finished_run, tmp_path / "run")
    with Run(path) as run:
        report = make_references(run, 1, "teacher")
    kept = list(read_rows(path / "trajectories.jsonl", Trajectory))
    assert report.kept == len(kept) == len((path / "tasks.jsonl").read_text().splitlines())
    assert all(t.agent == "teacher" and t.reward == 1.0 for t in kept)
    assert all(m.reasoning_content for t in kept for m in turns(t))
    assert not (path / "rejected.jsonl").exists() or not (path / "rejected.jsonl").read_text()


def test_a_run_rejects_with_check_and_evidence(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bare_run(finished_run, tmp_path / "run")
    clean = ReasoningWriter.at_end
    with monkeypatch.context() as patch:
        patch.setattr(ReasoningWriter, "at_end", lambda *a: f"{clean(*a)} That agrees with the expected state.")
        with Run(path) as run:
            report = make_references(run, 1, "teacher")
    rows = [json.loads(line) for line in (path / "rejected.jsonl").read_text().splitlines()]
    assert report.kept == 0 and rows
    assert {(r["stage"], r["reason"]) for r in rows} == {("trajectories", "quality: leakage")}
    assert all("'expected state'" in r["evidence"] and r["evidence"].startswith("message ") for r in rows)


def test_the_player_is_the_one_asked_for_or_the_one_the_run_began_with(finished_run: Path, tmp_path: Path) -> None:
    with Run(bare_run(finished_run, tmp_path / "run")) as run:
        assert reference_player(run, None) == "teacher"
        assert reference_player(run, "scripted") == "scripted"
        run.configure("trajectories", {"agent": "scripted", "seed": 0})
        assert reference_player(run, None) == "scripted"
        with pytest.raises(InputError, match="use builtin or scripted"):
            reference_player(run, "gpt")


# the order of need


@st.composite
def solutions(draw: st.DrawFn) -> list[ReferenceCall]:
    calls = []
    for index in range(draw(st.integers(1, 9))):
        before = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        seen = draw(st.sets(st.sampled_from(sorted(before)))) if before else set()
        sources = {f"a{i}": Source(origin="observation", call=i) for i in sorted(seen)}
        calls.append(ReferenceCall(tool="t", arguments={}, sources=sources, after=tuple(sorted(before))))
    return calls


@settings(deadline=None)
@given(solutions())
def test_calls_come_when_they_are_needed(calls: list[ReferenceCall]) -> None:
    order = order_by_need(calls)
    place = {index: number for number, index in enumerate(order)}
    assert sorted(order) == list(range(len(calls)))
    assert all(place[earlier] < place[index] for index, call in enumerate(calls) for earlier in call.after)
    for index in order:
        users = [i for i, call in enumerate(calls) if index in call.after]
        if users:
            first = min(users, key=place.__getitem__)
            between = order[place[index] + 1 : place[first]]
            assert all(i in _closure(calls, first) for i in between), "something came in between that was not needed"


def _closure(calls: list[ReferenceCall], index: int) -> set[int]:
    found: set[int] = set()
    left = [index]
    while left:
        for earlier in calls[left.pop()].after:
            if earlier not in found:
                found.add(earlier)
                left.append(earlier)
    return found


def test_a_reader_stands_right_before_its_first_use() -> None:
    def seen(*calls: int) -> dict[str, Source]:
        return {f"a{i}": Source(origin="observation", call=i) for i in calls}

    calls = [
        ReferenceCall(tool="find_a", arguments={}),
        ReferenceCall(tool="find_b", arguments={}),
        ReferenceCall(tool="change_b", arguments={}, sources=seen(1), after=(1,)),
        ReferenceCall(tool="change_a", arguments={}, sources=seen(0), after=(0, 2)),
    ]
    assert order_by_need(calls) == (1, 2, 0, 3)


def test_what_a_list_is_filtered_by_is_known_before_the_list() -> None:
    first = {"a": Source(origin="observation", call=1)}
    calls = [
        ReferenceCall(tool="find_person", arguments={}),
        ReferenceCall(tool="list_visits", arguments={}),
        ReferenceCall(tool="cancel_visit", arguments={}, sources=first, after=(1,)),
        ReferenceCall(tool="pay_person", arguments={}, sources={"a": Source(origin="observation", call=0)}, after=(0,)),
    ]
    node = VirtualNode(id="think:0", type="FILTER", note="the one that fits: person")
    dag = TaskDag(virtual=(node,), edges=(("call:1", "think:0"), ("call:0", "think:0"), ("think:0", "call:2")))
    assert order_by_need(calls) == (1, 2, 0, 3)
    assert order_by_need(calls, dag) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("verb", "wanted"),
    [("book", "booked"), ("move", "moved"), ("apply", "applied"), ("pay", "paid"), ("cancel", "cancelled")],
)
def test_past_tense(verb: str, wanted: str) -> None:
    assert past(verb) == wanted
