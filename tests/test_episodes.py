"""Episodes: what each agent earns, and whose failure each failure is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.environment.instance import Instance
from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State
from agentomnia.episodes.agent import (
    AGENT_NAMES,
    Agent,
    ApologisingAgent,
    ChatAgent,
    NullAgent,
    RandomAgent,
    ScriptedAgent,
)
from agentomnia.episodes.loop import Limits, Stage, run_episode, system_prompt, tool_list
from agentomnia.errors import InfrastructureError, InputError, ModelOutputError
from agentomnia.evaluation.summary import score, summarize, wilson
from agentomnia.llm.client import ChatClient, ModelEndpoint
from agentomnia.llm.message import Message, ToolCall, check_conversation
from agentomnia.llm.scripted import Answer, Fault, ScriptedServer
from agentomnia.row import digest
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.gate import Evaluated
from agentomnia.task.criterion import AnswerField, Change, Criterion, Expected
from agentomnia.task.render import moment_in_words
from agentomnia.task.task import PrivateTask, ReferenceCall, Task
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coordinate import Coordinate
from conftest import library_spec, library_tools, procedure_tool

SPEC = library_spec(tools=(*library_tools(), procedure_tool("break_it", body="book.title = book.tags[99]")))
PROGRAM = build_program(SPEC)
STATE: State = StateMaker(SPEC).make("episodes")
BOOK = next(b for b in STATE["books"].values() if b["status"] == "kept")
SHELF = next(k for k in STATE["shelves"] if k != BOOK["shelf_id"])
MOVE = ("move_book", {"book_id": BOOK["book_id"], "shelf_id": SHELF})
LOOK = ("get_book", {"book_id": BOOK["book_id"]})
NO_SUCH = ("get_book", {"book_id": "none"})


@pytest.fixture(autouse=True)
def _no_proxy_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def stage(tools: tuple[str, ...] = (), spec: EnvironmentSpec = SPEC) -> Stage:
    """Move a book to another shelf, and say how many pages it has."""
    task = Task(
        id="move-1", environment="LendingLibrary", state="s0", kind="dag", query=f"Put {BOOK['title']} elsewhere.",
        answer=(AnswerField(name="answer", description="The pages", type="number"),), tools=tools, lineage="by hand",
        coordinate=Coordinate(domain=10006, capabilities=("tool_use",)),
    )  # fmt: skip
    private = PrivateTask(
        id="move-1",
        criterion=Criterion(
            changes=(
                Change(
                    kind="updated", container="books", key=BOOK["book_id"], values={"shelf_id": Expected(value=SHELF)}
                ),
            ),
            answers={"answer": Expected(value=BOOK["pages"], comparison="number")},
        ),
        calls=(ReferenceCall(tool=LOOK[0], arguments=LOOK[1]), ReferenceCall(tool=MOVE[0], arguments=MOVE[1])),
        answer={"answer": BOOK["pages"]},
    )  # fmt: skip
    return Stage(task, private, PROGRAM, STATE, spec.introduction, ("Handle with care.",))


DONE = Message(role="assistant", content=f'Done. {{"answer": {BOOK["pages"]}}}')


def calling(*calls: tuple[str, Any], number: int = 0) -> Message:
    made = tuple(
        ToolCall(id=f"c{number}_{i}", name=name, arguments=a if isinstance(a, str) else json.dumps(a))
        for i, (name, a) in enumerate(calls)
    )
    return Message(role="assistant", content=None, tool_calls=made)


class Playing:
    """Answers from a list, then the last one for ever; remembers what it saw."""

    name = "playing"

    def __init__(self, *turns: Any) -> None:
        self.turns = turns
        self.seen: list[Message] = []
        self.asked = 0

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        self.seen = list(messages)
        turn = self.turns[min(self.asked, len(self.turns) - 1)]
        self.asked += 1
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, Message) and turn.tool_calls:
            renamed = tuple(c.model_copy(update={"id": f"t{self.asked}_{i}"}) for i, c in enumerate(turn.tool_calls))
            return turn.model_copy(update={"tool_calls": renamed})
        assert isinstance(turn, Message)
        return turn


def play(
    where: Stage, agent: Agent | Callable[[Instance], Agent], limits: Limits | None = None, seed: int = 0
) -> tuple[Trajectory, Instance]:
    instance = Instance(where.program, where.state)
    who = agent if hasattr(agent, "respond") else agent(instance)
    trajectory = anyio.run(lambda: run_episode(where, who, instance, seed=seed, limits=limits))  # type: ignore[arg-type]
    assert_sound(where, trajectory, instance)
    return trajectory, instance


def assert_sound(where: Stage, trajectory: Trajectory, instance: Instance) -> None:
    """What holds of every trajectory, whatever happened."""
    text = json.dumps(trajectory.to_json(), ensure_ascii=False, allow_nan=False)
    text.encode()
    assert Trajectory.model_validate(json.loads(text)) == trajectory
    assert trajectory.initial_digest == digest(where.state)
    if trajectory.stop_reason == "completed":
        check_conversation(trajectory.messages)
    for message in trajectory.messages:
        assert Message.from_wire(message.to_wire()) == message
    assert (trajectory.reward == 1.0) == (trajectory.failure_owner is None)
    if trajectory.reward is None:
        assert trajectory.failure_owner in ("environment", "infrastructure") and trajectory.failures
    else:
        assert trajectory.failure_owner in (None, "agent")
        assert not trajectory.steps or trajectory.steps[-1].digest == instance.digest()


def stage_of(subject: Evaluated) -> Stage:
    spec = subject.spec
    return Stage(subject.task, subject.private, subject.program, subject.state, spec.introduction, spec.policies)


# Five agents


def test_the_scripted_agent_proves_every_task(subjects: list[Evaluated]) -> None:
    for subject in subjects:
        trajectory, _ = play(stage_of(subject), ScriptedAgent(subject.private))
        assert (trajectory.reward, trajectory.stop_reason, trajectory.failures) == (1.0, "completed", ())
        assert [(s.tool, s.arguments, s.ok) for s in trajectory.steps] == [
            (c.tool, c.arguments, True) for c in subject.private.calls
        ]


@pytest.mark.parametrize("agent", [NullAgent, ApologisingAgent])
def test_who_does_nothing_earns_nothing(subjects: list[Evaluated], agent: type[NullAgent]) -> None:
    for subject in subjects:
        trajectory, instance = play(stage_of(subject), agent())
        assert (trajectory.reward, trajectory.stop_reason, trajectory.failure_owner) == (0.0, "completed", "agent")
        assert trajectory.failures and not trajectory.steps and instance.digest() == trajectory.initial_digest


def test_the_random_agent_acts_and_earns_nothing(subjects: list[Evaluated]) -> None:
    ok = 0
    for subject in subjects:
        where = stage_of(subject)
        trajectory, _ = play(where, lambda instance: RandomAgent(instance, Random(3), 12))
        again, _ = play(where, lambda instance: RandomAgent(instance, Random(3), 12))
        assert trajectory == again and trajectory.reward == 0.0 and len(trajectory.steps) == 12
        ok += sum(s.ok for s in trajectory.steps)
    assert ok > 12, "random calls are often accepted"


def test_names_of_agents() -> None:
    classes = (NullAgent, ApologisingAgent, RandomAgent, ScriptedAgent, ChatAgent)
    assert tuple(c.name for c in classes) == AGENT_NAMES


def reference_model(subject_stage: Stage) -> Callable[[dict[str, Any]], Answer]:
    """A served model that knows the reference: one call a turn, then the answer."""

    def turn(body: dict[str, Any]) -> Answer:
        done = sum(m["role"] == "tool" for m in body["messages"])
        calls = subject_stage.private.calls
        if done < len(calls):
            made = ToolCall(id=f"call_{done}", name=calls[done].tool, arguments=json.dumps(calls[done].arguments))
            return Answer(reasoning_content=f"Step {done}.", tool_calls=(made,))
        return Answer(content="Done. " + json.dumps(subject_stage.private.answer))

    return turn


def chat(where: Stage, script: Any, **endpoint: Any) -> Trajectory:
    async def main(base_url: str) -> Trajectory:
        model = ModelEndpoint(model="scripted", base_url=base_url, **{"max_retries": 0, **endpoint})
        async with ChatClient(model) as client:
            instance = Instance(where.program, where.state)
            agent = ChatAgent(client)
            trajectory = await run_episode(where, agent, instance)
            assert_sound(where, trajectory, instance)
            return trajectory.model_copy(update={"usage": agent.usage})

    with ScriptedServer(script) as server:
        return anyio.run(main, server.base_url)


def test_the_chat_agent_plays_over_http(subjects: list[Evaluated]) -> None:
    for where in (stage(), stage_of(subjects[0]), stage_of(subjects[-1])):
        trajectory = chat(where, reference_model(where))
        assert trajectory.reward == 1.0 and trajectory.agent == "chat"
        assert trajectory.usage["prompt_tokens"] > 0 and trajectory.usage["completion_tokens"] > 0
        assert next(m.reasoning_content for m in trajectory.messages if m.tool_calls) == "Step 0."


@pytest.mark.parametrize(
    "turns", [[Fault()], [Answer(tool_calls=calling(LOOK).tool_calls), Fault()], [Fault(dropped=True)]]
)
def test_a_server_that_fails_is_nobodys_fault(turns: list[Any]) -> None:
    trajectory = chat(stage(), turns)
    assert trajectory.reward is None
    assert (trajectory.stop_reason, trajectory.failure_owner) == ("infrastructure_error", "infrastructure")
    assert len(trajectory.steps) == len(turns) - 1


@pytest.mark.parametrize(
    "body",
    ["{", "[]", '{"choices": []}', '{"choices": [{"message": {"role": "user", "content": "x"}}]}', "NaN", ""],
)
def test_an_answer_outside_the_protocol_is_the_models_fault(body: str) -> None:
    trajectory = chat(stage(), [Fault(status=200, body=body)])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failure_owner) == ("model_output_error", 0.0, "agent")


def test_a_refused_key_stops_the_user_not_the_episode() -> None:
    with pytest.raises(InputError):
        chat(stage(), [Fault(status=401)])


# Whose failure it is


def test_doing_it_right_earns_one() -> None:
    trajectory, _ = play(stage(), Playing(calling(LOOK), calling(MOVE), DONE))
    assert trajectory.reward == 1.0
    trajectory, _ = play(stage(), Playing(calling(LOOK, NO_SUCH, MOVE), DONE))
    assert trajectory.reward == 1.0, "a refused look harms nobody"


def test_doing_it_and_never_stopping_earns_nothing() -> None:
    trajectory, instance = play(stage(), Playing(calling(MOVE), calling(LOOK)), Limits(turns=5))
    assert (trajectory.reward, trajectory.stop_reason, len(trajectory.steps)) == (0.0, "max_turns", 5)
    assert instance.state["books"][BOOK["book_id"]]["shelf_id"] == SHELF


@pytest.mark.parametrize("name", ["", "no_such_tool", "_next_id", "__init__", "break it", "x" * 5000, "move_book "])
def test_unknown_tools_are_answered(name: str) -> None:
    agent = Playing(calling((name, {})), calling(MOVE), DONE)
    trajectory, _ = play(stage(), agent)
    assert trajectory.reward == 1.0
    assert [(s.ok, s.error) for s in trajectory.steps] == [(False, "unknown_tool"), (True, None)]
    answer = json.loads(agent.seen[3].content or "")
    assert answer["ok"] is False and answer["error"]["code"] == "not_found"
    assert trajectory.steps[0].digest == trajectory.initial_digest


def test_tools_that_the_task_does_not_expose_are_unknown() -> None:
    where = stage(tools=("get_book", "search_books"))
    assert [t["function"]["name"] for t in tool_list(where)] == ["get_book", "search_books"]
    trajectory, instance = play(where, Playing(calling(MOVE), calling(LOOK), DONE))
    assert [s.error for s in trajectory.steps] == ["unknown_tool", None]
    assert trajectory.reward == 0.0 and instance.digest() == trajectory.initial_digest
    assert [t["function"]["name"] for t in trajectory.tools] == ["get_book", "search_books"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '"a"', "1", '{"book_id": NaN}', '{"book_id": Infinity}', '{"book_id": 1e999}', "{'a': 1}",
     '{"a": 1}}',
     '{"book_id": "\\ud800"}', '{"\\udfff": 1}', "[" * 100_000, '{"a": ' * 100_000, '{"n": ' + "9" * 5000 + "}",
     "\0", "{}{}"],
    ids=range(17),
)  # fmt: skip
def test_malformed_arguments_are_the_agents(text: str) -> None:
    agent = Playing(calling((LOOK[0], text)), calling(MOVE), DONE)
    trajectory, _ = play(stage(), agent)
    assert trajectory.reward == 1.0
    assert trajectory.steps[0].error == "malformed_arguments" and trajectory.steps[0].arguments is None
    answer = json.loads(agent.seen[3].content or "")
    assert answer["ok"] is False and answer["error"]["code"] == "invalid_argument"


@pytest.mark.parametrize(
    "text", ["", "  ", "{}", '{"book_id": null}', '{"book_id": []}', '{"book_id": 5}', '{"x": {"y": [1]}}']
)
def test_wrong_arguments_are_refused_by_the_environment(text: str) -> None:
    trajectory, _ = play(stage(), Playing(calling((LOOK[0], text)), calling(MOVE), DONE))
    assert trajectory.reward == 1.0 and trajectory.steps[0].error == "invalid_argument"
    assert trajectory.steps[0].arguments is not None


def test_the_same_failing_call_for_ever_is_cut_off() -> None:
    trajectory, _ = play(stage(), Playing(calling(NO_SUCH)))
    assert trajectory.stop_reason == "invalid_streak" and len(trajectory.steps) == Limits().invalid_streak == 8
    assert trajectory.reward == 0.0 and trajectory.failures[0] == "stopped by invalid_streak"


def test_a_success_ends_the_streak() -> None:
    bad, good = calling(*[NO_SUCH] * 7), calling(LOOK)
    trajectory, _ = play(stage(), Playing(bad, good, bad, good, calling(MOVE), DONE))
    assert trajectory.reward == 1.0


@pytest.mark.parametrize("count", [9, 500])
def test_limits_hold_inside_one_message(count: int) -> None:
    """A message with hundreds of calls is cut off where a conversation would be."""
    trajectory, _ = play(stage(), Playing(calling(*[NO_SUCH] * count, LOOK), DONE))
    assert trajectory.stop_reason == "invalid_streak" and len(trajectory.steps) == 8
    trajectory, _ = play(stage(), Playing(calling(*[LOOK] * count), DONE), Limits(tool_calls=6))
    assert trajectory.stop_reason == "max_tool_calls" and len(trajectory.steps) == 6
    assert trajectory.reward == 0.0


def test_calls_and_turns_are_limited() -> None:
    trajectory, _ = play(stage(), Playing(calling(LOOK)), Limits(turns=200, tool_calls=11))
    assert trajectory.stop_reason == "max_tool_calls" and len(trajectory.steps) == 11
    trajectory, _ = play(stage(), Playing(calling(LOOK)), Limits(turns=3))
    assert trajectory.stop_reason == "max_turns" and len(trajectory.steps) == 3
    trajectory, _ = play(stage(), Playing(DONE), Limits(turns=1))
    assert trajectory.stop_reason == "completed"


def test_an_environment_fault_is_the_environments() -> None:
    trajectory, _ = play(stage(), Playing(calling(MOVE), calling(("break_it", LOOK[1])), DONE))
    assert trajectory.reward is None
    assert (trajectory.stop_reason, trajectory.failure_owner) == ("environment_fault", "environment")
    assert "break_it" in trajectory.failures[0] and len(trajectory.steps) == 1


@pytest.mark.parametrize("turns", [(), (calling(LOOK),)])
def test_errors_of_the_agents_side(turns: tuple[Message, ...]) -> None:
    trajectory, _ = play(stage(), Playing(*turns, ModelOutputError("unreadable; ask again")))
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failure_owner) == ("model_output_error", 0.0, "agent")
    trajectory, _ = play(stage(), Playing(*turns, InfrastructureError("no answer; run again")))
    assert (trajectory.stop_reason, trajectory.reward) == ("infrastructure_error", None)
    assert "no answer; run again" in trajectory.failures


def test_the_last_message_only_is_read() -> None:
    early = Message(role="assistant", content=DONE.content, tool_calls=calling(MOVE).tool_calls)
    trajectory, _ = play(stage(), Playing(early, Message(role="assistant", content="All done.")))
    assert trajectory.reward == 0.0
    trajectory, _ = play(stage(), Playing(calling(MOVE), Message(role="assistant", content=None)))
    assert trajectory.reward == 0.0


# What an agent sees


def test_the_prompt_tells_what_is_needed_and_nothing_privileged(subjects: list[Evaluated]) -> None:
    for subject in subjects:
        where = stage_of(subject)
        text = system_prompt(where.introduction, where.policies, where.state, where.task.answer)
        assert subject.spec.introduction in text and all(p in text for p in subject.spec.policies)
        assert f"It is now {moment_in_words(subject.spec.clock)}." in text
        for field in subject.task.answer:
            assert field.name in text and field.description in text
        keys = {k for e in subject.spec.entities for k in subject.state[e.plural]}
        shown = text + subject.task.query + json.dumps(tool_list(where))
        assert not [k for k in keys if k in shown]
        assert not [c.tool for c in subject.private.calls if c.tool in text + subject.task.query]


class Meddling:
    """Tries to change what it is shown."""

    name = "meddling"

    async def respond(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Message:
        if isinstance(messages, list):
            messages.append(Message(role="user", content="ignore the rest"))
        for tool in tools:
            tool["function"]["parameters"].get("properties", {}).clear()
            tool["function"]["name"] = "renamed"
        if isinstance(tools, list):
            tools.clear()
        return Message(role="assistant", content="Done.")


def test_an_agent_cannot_reach_into_the_record_or_the_tools() -> None:
    before = copy.deepcopy([t.to_openai() for t in PROGRAM.tools.values()])
    trajectory, _ = play(stage(), Meddling())
    assert [m.role for m in trajectory.messages] == ["system", "user", "assistant"]
    assert [t.to_openai() for t in PROGRAM.tools.values()] == before == list(trajectory.tools)


# Long observations


def long_stage(count: int, title: str = "x" * 60) -> Stage:
    state = copy.deepcopy(STATE)
    for number in range(count):
        key = f"BOO-{number + 100:04d}"
        state["books"][key] = {**BOOK, "book_id": key, "title": f"{title}{number}"}
    where = stage()
    return Stage(where.task, where.private, where.program, state, where.introduction)


@pytest.mark.parametrize("limit", [400, 1000, 5000])
@pytest.mark.parametrize("title", ["plain", '"quoted"\\', "漢字", "\x00\x1f"])
def test_a_cut_observation_stays_json_and_says_so(limit: int, title: str) -> None:
    agent = Playing(calling(("search_books", {"limit": 200})), DONE)
    play(long_stage(150, title), agent, Limits(observation_characters=limit))
    text = agent.seen[3].content or ""
    answer = json.loads(text)
    assert len(text) <= limit and answer["ok"] is True and "characters in full" in answer["cut"]
    full = int(answer["cut"].split()[0])
    assert full > limit
    if "data" in answer:
        assert answer["data"]["total"] == 150 + len(STATE["books"]) and answer["data"]["books"]


@pytest.mark.parametrize("field", ["title", "note"])
def test_one_long_record_is_cut_too(field: str) -> None:
    state = copy.deepcopy(STATE)
    state["books"][BOOK["book_id"]][field] = '"\\' * 4000
    where = stage()
    agent = Playing(calling(LOOK), DONE)
    play(Stage(where.task, where.private, where.program, state, ""), agent, Limits(observation_characters=500))
    answer = json.loads(agent.seen[3].content or "")
    assert len(agent.seen[3].content or "") <= 500 and "cut" in answer


def test_what_fits_is_not_touched() -> None:
    agent = Playing(calling(LOOK), DONE)
    play(stage(), agent)
    assert json.loads(agent.seen[3].content or "") == Instance(PROGRAM, STATE).call(*LOOK)


# Anything at all


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([*PROGRAM.tools, "nothing", ""]),
                st.one_of(
                    st.dictionaries(
                        st.sampled_from(["book_id", "shelf_id", "member_id", "title", "tags", "limit", "x"]),
                        st.one_of(
                            st.sampled_from([*STATE["books"], *STATE["shelves"], *STATE["members"]]),
                            st.text(max_size=4), st.integers(), st.floats(allow_nan=False), st.none(),
                            st.lists(st.text(max_size=3), max_size=2),
                        ),
                        max_size=3,
                    ),
                    st.text(max_size=12),
                ),
            ),
            max_size=3,
        ),
        max_size=4,
    )
)  # fmt: skip
def test_no_agent_breaks_the_loop(turns: list[Any]) -> None:
    messages = [calling(*[(n, a) for n, a in turn if n != "break_it"], number=i) for i, turn in enumerate(turns)]
    trajectory, _ = play(stage(), Playing(*messages, DONE))
    assert trajectory.reward in (0.0, 1.0) and trajectory.stop_reason in ("completed", "invalid_streak")


def test_episodes_side_by_side_do_not_meet() -> None:
    async def main() -> list[Trajectory]:
        results: dict[int, Trajectory] = {}

        async def one(number: int) -> None:
            instance = Instance(PROGRAM, STATE)
            turns = (calling(LOOK), calling(MOVE), DONE) if number % 2 else (calling(LOOK), DONE)
            results[number] = await run_episode(stage(), Playing(*turns), instance, seed=number)

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(one, number)
        return [results[n] for n in range(10)]

    rewards = [t.reward for t in anyio.run(main)]
    assert rewards == [0.0, 1.0] * 5


# Summaries


def episode(reward: float | None, **changes: Any) -> Trajectory:
    trajectory, _ = play(stage(), Playing(calling(NO_SUCH), DONE))
    owner = "infrastructure" if reward is None else None if reward == 1.0 else "agent"
    return trajectory.model_copy(update={"reward": reward, "failure_owner": owner, **changes})


def test_what_says_nothing_about_the_agent_enters_no_mean() -> None:
    fault = {"failure_owner": "environment", "stop_reason": "environment_fault"}
    rows = [episode(1.0), episode(0.0), episode(None), episode(None), episode(None, **fault), episode(1.0)]
    summary = summarize(rows)
    assert summary.tasks == 6 and summary.pass_at_1 == pytest.approx(2 / 3)
    assert (summary.infrastructure_errors, summary.environment_faults) == (2, 1)
    assert summary.by["split"]["toc"].tasks == 3 and summary.by["domain"]["10006"].passed == 2
    assert summary.by["capability"] == {"tool_use": summary.by["split"]["toc"]} and summary.by["difficulty"] == {}
    assert summary.errors == {"not_found": 6}
    assert sum(summary.stop_reasons.values()) == 6


def test_no_scored_episode_no_score() -> None:
    for rows in ([], [episode(None)]):
        summary = summarize(rows)
        assert summary.pass_at_1 is None and summary.ci95 is None and all(not g for g in summary.by.values())
    assert score([]).pass_at_1 is None


@pytest.mark.parametrize(("passed", "total"), [(0, 1), (1, 1), (0, 40), (13, 40), (40, 40)])
def test_wilson_interval(passed: int, total: int) -> None:
    z = 1.959963984540054
    share = passed / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    low, high = wilson(passed, total)
    assert low == pytest.approx(max(0, centre - half), abs=2e-6) and high == pytest.approx(
        min(1, centre + half), abs=2e-6
    )
    assert 0.0 <= low <= share <= high <= 1.0
