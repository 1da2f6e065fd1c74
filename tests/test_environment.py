"""The contract of a live environment: atomic, isolated, replayable; faults are never the agent's."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections import OrderedDict
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import load_class
from agentomnia.environment.replay import ReplayProcess, trace
from agentomnia.environment.result import protocol_breach
from agentomnia.environment.sampling import ArgumentSampler
from agentomnia.environment.state import State, pack, state_problems, unpack, value_problem
from agentomnia.errors import EnvironmentFault, InfrastructureError, OmniaError, SpecError
from agentomnia.row import canonical_json, digest
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.gate import bad_arguments
from agentomnia.synthesis.environments.states import StateMaker
from conftest import Salon, library_spec, procedure_tool

SPEC = library_spec()
PROGRAM = build_program(SPEC)
STATE = StateMaker(SPEC).make("tests")


def library() -> Instance:
    return Instance(PROGRAM, STATE)


def some_call(instance: Instance, rng: Random) -> tuple[str, dict[str, Any]]:
    name = rng.choice(sorted(instance.program.tools))
    return name, ArgumentSampler(instance.program, rng).sample(name, instance.live_state)


def accepted_write(instance: Instance, rng: Random) -> tuple[str, dict[str, Any]]:
    """A call that an instance in this state would accept and be changed by."""
    scratch = instance.fork()
    before = scratch.digest()
    for _ in range(500):
        name, arguments = some_call(scratch, rng)
        if scratch.call(name, arguments)["ok"] and scratch.digest() != before:
            return name, arguments
        scratch.reset()
    raise AssertionError("no write was accepted")


# Refusals


def assert_refused(instance: Instance, name: Any, arguments: Any, code: str | None = None) -> dict[str, Any]:
    before = instance.snapshot()
    answer = instance.call(name, arguments)
    assert answer["ok"] is False and protocol_breach(answer) is None, (name, arguments, answer)
    assert code is None or answer["error"]["code"] == code, answer
    assert instance.snapshot() == before
    json.dumps(answer, allow_nan=False).encode()
    canonical_json(answer).encode()
    return answer


def test_bad_input_is_refused_by_every_tool_and_changes_nothing(salon: Salon) -> None:
    instance = salon.instance()
    sampler = ArgumentSampler(salon.program, Random(1))
    for name, tool in salon.program.tools.items():
        good = sampler.sample(name, instance.live_state)
        for fault, arguments in bad_arguments(tool.parameters, good):
            answer = assert_refused(instance, name, arguments, "invalid_argument")
            assert answer["error"]["message"] and answer["error"]["hint"], fault


@pytest.mark.parametrize(
    "value",
    [
        "\ud800", "a\udfffb", 2**63, 2**64, -(2**63) - 1, 10**400, math.nan, math.inf, -math.inf, 1e400, [], {}, [[[]]],
        {"a": {"b": []}}, b"bytes", {1, 2}, (1,), object(), lambda: 1, 1j,
        "9999-12-31", "0001-01-01", "9999-12-31T23:59",
    ],
    ids=lambda v: repr(v)[:20] if not callable(v) else "callable",
)  # fmt: skip
def test_no_value_makes_a_tool_fault(salon: Salon, value: Any) -> None:
    """Whatever an agent writes into an argument, the environment answers."""
    instance = salon.instance()
    sampler = ArgumentSampler(salon.program, Random(2))
    for name, tool in salon.program.tools.items():
        for parameter in tool.parameters.get("properties", {}):
            arguments = {**sampler.sample(name, instance.live_state), parameter: value}
            before = instance.snapshot()
            answer = instance.call(name, arguments)
            assert protocol_breach(answer) is None
            instance.digest()
            if not answer["ok"]:
                assert instance.snapshot() == before
            instance.restore(before)


def test_lists_are_checked_to_the_bottom() -> None:
    instance = library()
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    shelf = next(iter(STATE["shelves"]))
    for tags in (["\ud800"], [1], [None], [["a"]], [math.nan], [{"a": 1}], "abc", ("a",), {"a"}, [2**70], deep):
        assert_refused(instance, "add_book", {"shelf_id": shelf, "title": "T", "tags": tags}, "invalid_argument")
    assert instance.call("add_book", {"shelf_id": shelf, "title": "漢 😀", "tags": ["é"]})["ok"]


@pytest.mark.parametrize(
    "name",
    ["", "lend", "LEND_BOOK", "lend_book ", "__init__", "_next_id", "_broken_rules", "__class__", "books", "clock",
     "__dict__", "lend_book\0", "\ud800", "x" * 10_000, None, 3, ["lend_book"], {}],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_unknown_tool(name: Any) -> None:
    answer = assert_refused(library(), name, {}, "not_found")
    assert len(answer["error"]["message"]) < 500


@pytest.mark.parametrize("arguments", [None, [], ["a"], "text", 3, True, [("book_id", "x")], {"a"}, iter(())])
def test_arguments_that_are_no_object(arguments: Any) -> None:
    for name in PROGRAM.tools:
        assert_refused(library(), name, arguments, "invalid_argument")


@pytest.mark.parametrize("key", ["self", "__class__", "__init__", "surprise", "", "\ud800", "a b", 1, None, ("a",)])
def test_arguments_with_unknown_names(key: Any) -> None:
    book = next(iter(STATE["books"]))
    assert_refused(library(), "get_book", {"book_id": book, key: 1}, "invalid_argument")


def test_a_moment_has_one_spelling_so_that_rules_cannot_be_walked_around(salon: Salon) -> None:
    """`T10:00` and `T10:00:00` are one start: booking both would break the rule against double bookings."""
    instance = salon.instance()
    rng = Random(3)
    for _ in range(300):
        arguments = ArgumentSampler(salon.program, rng).sample("book_appointment", instance.live_state)
        answer = instance.call("book_appointment", arguments)
        if answer["ok"]:
            break
    assert answer["ok"]
    start = answer["data"]["appointment"]["starts_at"]
    for same in (f"{start}:00", f"{start}:00.000", start.replace("T", " "), f"{start}Z", f"{start}+00:00"):
        assert_refused(instance, "book_appointment", {**arguments, "starts_at": same})
    assert_refused(instance, "book_appointment", arguments)


def test_answers_hold_what_the_protocol_says(salon: Salon) -> None:
    instance, rng = salon.instance(), Random(4)
    codes = set()
    for _ in range(400):
        answer = instance.call(*some_call(instance, rng))
        assert protocol_breach(answer) is None
        codes.add("ok" if answer["ok"] else answer["error"]["code"])
    assert {"ok", "precondition_failed", "conflict"} <= codes


# Nothing is shared


def test_the_callers_state_is_copied() -> None:
    state = copy.deepcopy(STATE)
    instance = Instance(PROGRAM, state)
    mark = instance.digest()
    next(iter(state["books"].values()))["title"] = "changed outside"
    state["books"].clear()
    assert instance.digest() == mark
    instance.state["books"].clear()
    assert instance.digest() == mark
    instance.reset()
    assert instance.digest() == mark == digest(STATE)


@pytest.mark.parametrize("wrap", [list, type("Listed", (list,), {})], ids=["list", "subclass"])
def test_arguments_are_copied(wrap: Any) -> None:
    instance = library()
    tags = wrap(["new"])
    arguments = {"shelf_id": next(iter(STATE["shelves"])), "title": "T", "tags": tags}
    kept = copy.deepcopy(arguments)
    answer = instance.call("add_book", arguments)
    assert answer["ok"] and arguments == kept
    mark = instance.digest()
    tags.append("slipped in")
    assert instance.digest() == mark
    answer["data"]["book"]["tags"].append("slipped in")
    answer["data"]["book"]["title"] = "slipped in"
    assert instance.digest() == mark


def test_mappings_of_any_kind_are_arguments() -> None:
    from types import MappingProxyType

    book = next(iter(STATE["books"]))
    for arguments in (OrderedDict(book_id=book), MappingProxyType({"book_id": book})):
        assert library().call("get_book", arguments)["ok"]


def test_answers_share_nothing_with_the_state(salon: Salon) -> None:
    instance, rng = salon.instance(), Random(5)
    for name in salon.program.tools:
        answer = instance.call(name, ArgumentSampler(salon.program, rng).sample(name, instance.live_state))
        mark = instance.digest()
        scramble(answer)
        assert instance.digest() == mark, name


def scramble(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            scramble(inner)
        value.clear()
    elif isinstance(value, list):
        for inner in value:
            scramble(inner)
        value.append("scrambled")


def test_two_instances_never_see_each_other(salon: Salon) -> None:
    first, second = salon.instance(), salon.instance()
    mark, rng = second.digest(), Random(6)
    for _ in range(100):
        first.call(*some_call(first, rng))
    assert first.digest() != mark == second.digest()
    third = first.fork()
    mark = third.digest()
    assert mark == first.digest()
    name, arguments = accepted_write(first, rng)
    assert first.call(name, arguments)["ok"]
    assert third.digest() == mark != first.digest()
    third.call(name, arguments)
    assert third.digest() == first.digest()


# Snapshots


def test_snapshot_restore_rerun_gives_the_same(salon: Salon) -> None:
    """Branching for rollback training: same observations, identifiers, clock and digest after a restore."""
    instance, rng = salon.instance(), Random(7)
    for _ in range(3):
        assert instance.call(*accepted_write(instance, rng))["ok"]
    snapshot = instance.snapshot()
    calls, answers, marks = [], [], []
    for _ in range(5):
        call = accepted_write(instance, rng)
        calls.append(call)
        answers.append(instance.call(*call))
        marks.append(instance.digest())
    instance.restore(snapshot)
    assert instance.snapshot() == snapshot
    assert [instance.call(*call) for call in calls] == answers and instance.digest() == marks[-1]
    instance.reset()
    assert instance.digest() == digest(salon.state)


def test_snapshot_restores_in_another_process(salon: Salon, replayer: ReplayProcess) -> None:
    instance, rng = salon.instance(), Random(8)
    for _ in range(3):
        instance.call(*accepted_write(instance, rng))
    snapshot = instance.snapshot()
    calls = [some_call(instance, rng) for _ in range(40)]
    here = trace(salon.program, unpack(snapshot), calls)
    assert replayer.trace(salon.program, unpack(snapshot), calls) == here
    assert len(set(here)) > 20


CHILD = """
import json, sys
from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program, ToolSchema, load_class
from agentomnia.environment.state import unpack
request = json.load(sys.stdin)
tools = {t["name"]: ToolSchema(**t) for t in request["tools"]}
program = Program(request["name"], request["source"], load_class(request["source"], request["name"]), tools)
instance = Instance(program, request["initial"])
instance.restore(bytes.fromhex(request["snapshot"]))
answers = [instance.call(name, arguments) for name, arguments in request["calls"]]
print(json.dumps([answers, instance.digest(), instance.snapshot().hex()]))
"""


def test_snapshot_bytes_travel(salon: Salon) -> None:
    instance, rng = salon.instance(), Random(9)
    instance.call(*accepted_write(instance, rng))
    snapshot = instance.snapshot()
    calls = [some_call(instance, rng) for _ in range(30)]
    request = {
        "name": salon.program.name, "source": salon.program.source, "snapshot": snapshot.hex(), "calls": calls,
        "tools": [vars(t) for t in salon.program.tools.values()], "initial": salon.state,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    answers, mark, after = json.loads(done.stdout)
    assert [instance.call(*call) for call in calls] == answers
    assert instance.digest() == mark and instance.snapshot().hex() == after


def test_digest_says_equal_exactly_for_equal_states() -> None:
    state = copy.deepcopy(STATE)
    turned = {k: dict(reversed(v.items())) for k, v in reversed(state.items())}
    assert Instance(PROGRAM, state).digest() == Instance(PROGRAM, turned).digest() == digest(STATE)
    for value in (None, "", "0", 0, 0.5, False, [], {}):
        other = copy.deepcopy(STATE)
        next(iter(other["books"].values()))["note"] = value
        changed = next(iter(STATE["books"].values()))["note"] != value
        assert (Instance(PROGRAM, other).digest() != digest(STATE)) == changed
    state["counters"]["books"] += 1
    assert Instance(PROGRAM, state).digest() != digest(STATE)


def test_states_pack_without_loss(salon: Salon) -> None:
    assert unpack(pack(salon.state)) == salon.state
    assert canonical_json(unpack(pack(salon.state))) == canonical_json(salon.state)
    with pytest.raises(TypeError):
        pack({"books": {"a": object()}})


# Faults


def faulty(body: str, **parts: Any) -> Instance:
    """A library with a tool `break_it` that writes, then fails."""
    tool = procedure_tool("break_it", body=body, returns=(("done", "True"),), **parts)
    program = build_program(library_spec(tools=(*SPEC.tools, tool)))
    return Instance(program, STATE)


@pytest.mark.parametrize(
    "failing",
    ["book.pages = 1 // (book.pages - 1)", "book.note = Member[book.title].name",
     "book.title = book.tags[99]", "book.note = book.title + 1"],
)  # fmt: skip
def test_an_escaped_exception_is_a_fault_until_restored(failing: str) -> None:
    instance = faulty(f"book.pages = 1\n{failing}")
    mark, snapshot = instance.digest(), instance.snapshot()
    book = next(iter(STATE["books"]))
    with pytest.raises(EnvironmentFault, match="break_it"):
        instance.call("break_it", {"book_id": book})
    for name, arguments in (("get_book", {"book_id": book}), ("break_it", {"book_id": book})):
        with pytest.raises(EnvironmentFault, match="restore"):
            instance.call(name, arguments)
    with pytest.raises(EnvironmentFault):
        instance.fork().call("get_book", {"book_id": book})
    instance.restore(snapshot)
    assert instance.digest() == mark and instance.call("get_book", {"book_id": book})["ok"]
    with pytest.raises(EnvironmentFault):
        instance.call("break_it", {"book_id": book})
    instance.reset()
    assert instance.digest() == mark and instance.call("get_book", {"book_id": book})["ok"]


@pytest.mark.parametrize("value", ["{'a', 'b'}", "(b for b in Book)", "1e308 * 10", "Book"])
def test_what_no_state_can_hold_is_a_fault(value: str) -> None:
    """Also where the answer does not show it."""
    instance = faulty(f"book.tags = {value}")
    mark, snapshot = instance.digest(), instance.snapshot()
    book = next(iter(STATE["books"]))
    with pytest.raises(EnvironmentFault):
        instance.call("break_it", {"book_id": book})
        instance.digest()
    instance.restore(snapshot)
    assert instance.digest() == mark and instance.call("get_book", {"book_id": book})["ok"]


def test_an_answer_outside_the_protocol_is_a_fault() -> None:
    source = PROGRAM.source.replace('return {"ok": True, "data": data}', 'return {"ok": "yes", "data": data}')
    program = build_program(SPEC)
    broken = type(program)(program.name, source, load_class(source, program.name), program.tools)
    instance = Instance(broken, STATE)
    with pytest.raises(EnvironmentFault, match="get_book"):
        instance.call("get_book", {"book_id": next(iter(STATE["books"]))})


def answering(expression: str) -> Instance:
    source = PROGRAM.source.replace('{"ok": True, "data": data}', f'{{"ok": True, "data": {expression}}}')
    assert source != PROGRAM.source
    return Instance(type(PROGRAM)(PROGRAM.name, source, load_class(source, PROGRAM.name), PROGRAM.tools), STATE)


@pytest.mark.parametrize(
    "expression",
    ["b''", "b'a'", "[{'a': b'b'}]", "float('nan')", "[1.0, float('inf')]", "{'a': -float('inf')}", "{1: 'a'}",
     "{b'a': 1}", "{'a': {'b': {b'': 1}}}"],
)  # fmt: skip
def test_an_answer_that_json_does_not_have_is_a_fault(expression: str) -> None:
    instance = answering(expression)
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="get_book"):
            instance.call("get_book", {"book_id": next(iter(STATE["books"]))})


@pytest.mark.parametrize(
    "expression",
    ["1.7e308", "[-1.7e308, 0.1, 5e-324]", "[127, 203, 255, 52095, 52223, 13369216]",
     "'\u0107\u0119 \u05d0\u0628 \u0394\u00e9 \x7f'",
     "{'\u0107': [None, True, 0.5, 'a', {}]}", "'x' * 196", "list(range(-300, 300))"],
)  # fmt: skip
def test_an_answer_whose_bytes_only_look_like_that_is_none(expression: str) -> None:
    answer = answering(expression).call("get_book", {"book_id": next(iter(STATE["books"]))})
    assert answer == {"ok": True, "data": eval(expression)}


@pytest.mark.parametrize(
    "answer",
    [None, [], "ok", 1, {}, {"ok": True}, {"ok": True, "data": 1, "more": 2}, {"ok": 1, "data": 1}, {"ok": False},
     {"ok": False, "error": "no"}, {"ok": False, "error": {"code": "not_found"}}, {"ok": None, "error": {}},
     {"ok": False, "error": {"code": "teapot", "message": "m", "hint": "h"}}, {1: 2, "ok": False}],
)  # fmt: skip
def test_protocol_breaches(answer: Any) -> None:
    assert protocol_breach(answer)


def test_a_state_without_its_containers_is_a_fault() -> None:
    for missing in STATE:
        with pytest.raises(EnvironmentFault, match="LendingLibrary cannot start"):
            Instance(PROGRAM, {k: v for k, v in STATE.items() if k != missing})


@pytest.mark.parametrize(
    "source",
    ["", "x = 1", "class Other: pass", "LendingLibrary = 3", "class LendingLibrary(:", "import nothing_like_this",
     "1/0", "raise SystemError('x')", "class LendingLibrary:\n  x = 1 + '1'", "\0", "'\ud800'"],
    ids=range(11),
)  # fmt: skip
def test_source_that_does_not_load(source: str) -> None:
    with pytest.raises(SpecError, match="LendingLibrary"):
        load_class(source, "LendingLibrary")


def test_the_replay_process_tells_failures_apart() -> None:
    with ReplayProcess() as process:
        program = build_program(library_spec(tools=(procedure_tool("break_it", body="book.title = book.tags[99]"),)))
        with pytest.raises(OmniaError, match="break_it"):
            process.trace(program, STATE, [("break_it", {"book_id": next(iter(STATE["books"]))})])
        assert process.trace(PROGRAM, STATE, [("get_book", {"book_id": "none"})])
        process._process.kill()
        process._process.wait()
        with pytest.raises(InfrastructureError, match="run again"):
            process.trace(PROGRAM, STATE, [])


# States


def test_every_way_to_spoil_a_state_is_seen() -> None:
    def spoiled(change: Any) -> State:
        state = copy.deepcopy(STATE)
        change(state)
        return state

    def first(state: State, container: str = "books") -> dict[str, Any]:
        record: dict[str, Any] = next(iter(state[container].values()))
        return record

    changes: list[Any] = [
        lambda s: s.pop("books"),
        lambda s: s.pop("clock"),
        lambda s: s.update(more={}),
        lambda s: s.update(books=[]),
        lambda s: s.update(books=None),
        lambda s: s["books"].update(x="no record"),
        lambda s: s["books"].update(x=None),
        lambda s: s["books"].update(x={}),
        lambda s: first(s).pop("note"),
        lambda s: first(s).update(more=1),
        lambda s: first(s).update(book_id="other"),
        lambda s: first(s).update(title=None),
        lambda s: first(s).update(title=3),
        lambda s: first(s).update(title=["a"]),
        lambda s: first(s).update(title={}),
        lambda s: first(s).update(pages=0),
        lambda s: first(s).update(pages=2001),
        lambda s: first(s).update(pages=3.0),
        lambda s: first(s).update(pages=True),
        lambda s: first(s).update(price=math.nan),
        lambda s: first(s).update(price=math.inf),
        lambda s: first(s).update(price="3"),
        lambda s: first(s).update(status="burnt"),
        lambda s: first(s).update(status=["kept"]),
        lambda s: first(s).update(shelf_id="SHE-9999"),
        lambda s: first(s).update(shelf_id=["SHE-0001"]),
        lambda s: first(s).update(holder_id="none"),
        lambda s: first(s).update(tags="new"),
        lambda s: first(s).update(tags={"a": 1}),
        lambda s: first(s, "members").update(joined_on="2026-02-30"),
        lambda s: first(s, "members").update(joined_on="2026-W11-1"),
        lambda s: first(s, "members").update(joined_on="2026-03-09T10:00"),
        lambda s: [b.update(title="same") for b in s["books"].values()],
    ]
    assert not list(state_problems(SPEC, STATE))
    for number, change in enumerate(changes):
        assert list(state_problems(SPEC, spoiled(change))), number


def test_value_problems_name_the_value() -> None:
    status = SPEC.entity("Book").attribute("status")
    assert "burnt" in (value_problem(status, "burnt") or "") and "kept" in (value_problem(status, "burnt") or "")
    assert value_problem(status, "kept") is None


# Random lives


class Life(RuleBasedStateMachine):
    """An environment under random calls, good and bad, with snapshots, restores and forks."""

    def __init__(self, salon: Salon, replayer: ReplayProcess) -> None:
        super().__init__()
        self.salon, self.replayer = salon, replayer
        self.instance = salon.instance()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.marks: list[str] = []
        self.kept: tuple[bytes, int] | None = None

    def make(self, name: str, arguments: dict[str, Any]) -> None:
        before = self.instance.digest()
        answer = self.instance.call(name, arguments)
        assert protocol_breach(answer) is None
        after = self.instance.digest()
        if not answer["ok"] or self.salon.program.tools[name].kind == "query":
            assert after == before, "only an accepted write may change the state"
        self.calls.append((name, arguments))
        self.marks.append(digest([answer, self.instance.digest()]))

    @rule(seed=st.integers(0, 2**32), writes=st.booleans())
    def call(self, seed: int, writes: bool) -> None:
        rng = Random(seed)
        tools = self.salon.program.tools
        name = rng.choice(sorted(n for n, t in tools.items() if t.kind == "modify" or not writes))
        self.make(name, ArgumentSampler(self.salon.program, rng).sample(name, self.instance.live_state))

    @rule(seed=st.integers(0, 2**32))
    def bad_call(self, seed: int) -> None:
        rng = Random(seed)
        name = rng.choice(sorted(self.salon.program.tools))
        good = ArgumentSampler(self.salon.program, rng).sample(name, self.instance.live_state)
        _, arguments = rng.choice(list(bad_arguments(self.salon.program.tools[name].parameters, good)))
        before = self.instance.digest()
        answer = self.instance.call(name, arguments)
        assert not answer["ok"] and self.instance.digest() == before

    @rule()
    def keep(self) -> None:
        self.kept = (self.instance.snapshot(), len(self.calls))

    @precondition(lambda self: self.kept is not None)
    @rule()
    def go_back(self) -> None:
        assert self.kept is not None
        snapshot, length = self.kept
        self.instance.restore(snapshot)
        assert self.instance.snapshot() == snapshot
        del self.calls[length:], self.marks[length:]

    @rule()
    def move_into_a_fork(self) -> None:
        mark, old = self.instance.digest(), self.instance
        self.instance = self.instance.fork()
        assert self.instance.digest() == mark
        old.restore(pack(self.salon.state))
        assert self.instance.digest() == mark

    @invariant()
    def the_state_is_valid(self) -> None:
        assert not list(state_problems(self.salon.spec, self.instance.live_state))
        assert not self.instance.broken_rules()

    def teardown(self) -> None:
        assert trace(self.salon.program, self.salon.state, self.calls) == self.marks
        assert self.replayer.trace(self.salon.program, self.salon.state, self.calls) == self.marks


def test_random_lives(salon: Salon, replayer: ReplayProcess) -> None:
    run_state_machine_as_test(
        lambda: Life(salon, replayer),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
