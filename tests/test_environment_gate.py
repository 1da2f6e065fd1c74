"""The environment gate: hand-made faults, each found by the right check and pinned on the right tool."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.replay import Call, ReplayProcess, trace
from agentomnia.environment.spec import EnvironmentSpec, Filter, Guard, Let, Parameter, Rule, Search, Tool
from agentomnia.environment.state import State, state_problems
from agentomnia.errors import InfrastructureError, OmniaError, SpecError
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.correct import MINIMUM_TOOLS, correct_environment
from agentomnia.synthesis.environments.gate import ENVIRONMENT_CHECKS, Verification, verify_environment
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.environments.toolset import check_facts
from conftest import KEY_SCHEMA, Salon, key_parameter, library_entities, library_spec, library_tools, procedure_tool

GOOD = library_tools()


def with_tool(tool: Tool) -> EnvironmentSpec:
    return library_spec(tools=(*GOOD, tool))


def found(verification: Verification) -> set[tuple[str, str | None]]:
    return {(f.check, f.tool) for f in verification.findings}


def test_the_library_passes(replayer: ReplayProcess) -> None:
    verification = verify_environment(library_spec(), replayer=replayer)
    assert verification.passed, verification.findings
    assert verification.tools == len(GOOD) and verification.declared_errors >= 8
    assert verification.bad_inputs > 50 and verification.walked_calls == 240
    assert 0 < verification.accepted_calls < 240


def test_the_gate_is_deterministic(salon: Salon, replayer: ReplayProcess) -> None:
    again = verify_environment(salon.spec, replayer=replayer)
    assert again == salon.environment.verification
    assert verify_environment(library_spec(), replayer=replayer) == verify_environment(library_spec())


WORDS = "{'amber', 'birch', 'cedar', 'delta', 'ember', 'flint', 'grove', 'heath', 'inlet', 'jade', 'kelp', 'lumen'}"
LOOSE = Parameter(name="loose", json_schema={})
BROKEN: dict[str, tuple[str, Tool]] = {
    "breaks a rule": ("rules", procedure_tool("broken", body='book.status = "lent"\nbook.holder_id = None')),
    "breaks a bound": ("rules", procedure_tool("broken", body="book.price += 300")),
    "breaks a type": ("rules", procedure_tool("broken", body="book.pages = 1.5")),
    "breaks a choice": (
        "rules",
        procedure_tool(
            "broken",
            steps=(Guard(that='book.status == "kept"', message="No."),),
            body='book.status = "burnt"',
        ),
    ),
    "breaks uniqueness": ("rules", procedure_tool("broken", body="book.title = 'Volume'")),
    "dangles": ("rules", procedure_tool("broken", body="shelf = book.shelf\ndelete(shelf)")),
    "moves against the lifecycle": (
        "rules",
        procedure_tool(
            "broken",
            steps=(Guard(that='book.status != "lost"', message="It is lost."),),
            body='book.holder_id = None\nbook.status = "lost"',
        ),
    ),
    "has an error that cannot happen": (
        "errors",
        procedure_tool("broken", steps=(Guard(that="book.pages > 0", message="Empty."),), body="book.pages = 7"),
    ),
    "cannot succeed": (
        "accepted",
        procedure_tool("broken", steps=(Guard(that="book.pages < 0", message="Too thick."),), body="book.pages = 7"),
    ),
    "modifies nothing": ("accepted", procedure_tool("broken", body="book.pages = book.pages")),
    "fails on an absent reference": (
        "accepted",
        procedure_tool("broken", kind="query", returns=(("holder", "book.holder.name"),)),
    ),
    "fails in a guard": (
        "accepted",
        procedure_tool("broken", steps=(Guard(that="book.holder.loans > 0", message="No."),), body="book.pages = 7"),
    ),
    "fails in its message": (
        "accepted",
        procedure_tool(
            "broken",
            steps=(Guard(that='book.status != "lost"', message="{book.holder.name} lost it."),),
            body="book.pages = 7",
        ),
    ),
    "fails sorting what may be absent": (
        "accepted",
        Tool(
            name="broken",
            kind="query",
            description="Sorts.",
            parameters=(
                Parameter(name="sort_by", json_schema={"type": "string", "enum": ["note"]}),
                Parameter(name="descending", json_schema={"type": "boolean"}, required=False, default=False),
            ),
            action=Search(entity="Book", sort_fields=("note",)),
        ),
    ),
    "answers with the order of a set": (
        "replay",
        procedure_tool("broken", kind="query", parameters=(), returns=(("words", f"list({WORDS})"),)),
    ),
    "stores the order of a set": (
        "replay",
        procedure_tool("broken", body=f"book.tags = [w for w in {WORDS}]"),
    ),
    "joins a set": (
        "replay",
        procedure_tool(
            "broken", kind="query", parameters=(), returns=(("word", f"'-'.join(w for w in set({WORDS}))"),)
        ),
    ),
    "stores a set": ("accepted", procedure_tool("broken", body=f"book.tags = {WORDS}", returns=(("done", "True"),))),
    "answers with a set": ("accepted", procedure_tool("broken", kind="query", returns=(("words", WORDS),))),
    "queries but writes": (
        "query",
        procedure_tool("broken", kind="query", body="book.pages = 7", returns=(("done", "True"),)),
    ),
    "takes anything": (
        "bad_input",
        procedure_tool(
            "broken",
            kind="query",
            parameters=(LOOSE,),
            returns=(("echo", "1"),),
        ),
    ),
}


@pytest.mark.parametrize(("check", "tool"), BROKEN.values(), ids=BROKEN)
def test_each_fault_is_found_and_pinned_on_its_tool(check: str, tool: Tool, replayer: ReplayProcess) -> None:
    verification = verify_environment(with_tool(tool), replayer=replayer)
    assert (check, "broken") in found(verification), verification.findings
    assert check in verification.failed_checks() and not verification.passed
    assert {f.tool for f in verification.findings} == {"broken"}, verification.findings
    assert all(f.evidence and f.check in ENVIRONMENT_CHECKS for f in verification.findings)


def test_an_unreachable_error_is_named_by_its_place(replayer: ReplayProcess) -> None:
    tool = procedure_tool(
        "broken",
        steps=(
            Guard(that='book.status == "kept"', message="Not here."),
            Let(name="pages", value="book.pages"),
            Guard(that="pages > 0", code="limit_exceeded", message="Empty {pages}."),
        ),
        body="book.pages = 7",
    )
    (finding,) = verify_environment(with_tool(tool), replayer=replayer).findings
    assert (finding.check, finding.error) == ("errors", 2) and "limit_exceeded: Empty {pages}." in finding.evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": (Rule(name="never", sentence="Never.", entity="Shelf", predicate="it.floor > 99"),)},
        {"rules": (Rule(name="fails", sentence="Fails.", entity="Book", predicate="it.holder.loans >= 0"),)},
        {"rules": (Rule(name="odd", sentence="Odd.", entity="Book", predicate="it.tags[9] == 'x'"),)},
    ],
    ids=["no state keeps it", "follows an absent reference", "fails"],
)
def test_rules_that_no_state_keeps_are_a_finding(changes: dict[str, Any], replayer: ReplayProcess) -> None:
    """Also a rule that raises: it is the specification's fault and no crash of the gate."""
    verification = verify_environment(library_spec(**changes), replayer=replayer)
    assert [f.check for f in verification.findings] == ["state"], verification.findings
    name = changes["rules"][0].name
    assert name in verification.findings[0].evidence


@pytest.mark.parametrize("which", ["derive", "present_if"])
def test_a_derived_field_that_fails_is_a_finding(which: str, replayer: ReplayProcess) -> None:
    *others, book = library_entities()
    attributes = [a for a in book.attributes if a.name != "note"]
    attributes += [book.attribute("note").model_copy(update={which: "it.holder.name"})]
    entities = (*others, book.model_copy(update={"attributes": tuple(attributes)}))
    verification = verify_environment(library_spec(entities=entities), replayer=replayer)
    assert [f.check for f in verification.findings] == ["state"], verification.findings
    assert "Book" in verification.findings[0].evidence


@pytest.mark.parametrize(
    "maker",
    ["nothing", "int(1)", "int('a', 'b')", "words('a|b', 5, 9)", "money(1, 2, 0)", "person(1, 2, 3)", "code(3)",
     "pick()", "day(10**9, 10**9)", "int(", "__import__('os')", "int(1, 2) + 1", "slot(0, 1, 9, 3)"],
)  # fmt: skip
def test_a_maker_that_fails_is_a_finding(maker: str, replayer: ReplayProcess) -> None:
    *others, book = library_entities()
    attributes = tuple(a.model_copy(update={"maker": maker}) if a.name == "pages" else a for a in book.attributes)
    entities = (*others, book.model_copy(update={"attributes": attributes}))
    verification = verify_environment(library_spec(entities=entities), replayer=replayer)
    assert verification.failed_checks() in (("load",), ("state",)), verification.findings


@pytest.mark.parametrize(
    "tool",
    [
        procedure_tool("broken", body="book.colour = 1"),
        procedure_tool("broken", body="import os"),
        procedure_tool("broken", steps=(Guard(that="nothing > 1", message="No."),), body="book.pages = 1"),
        procedure_tool("broken", steps=(Guard(that="book.pages > 1", message="{nothing}"),), body="book.pages = 1"),
        procedure_tool("broken", kind="query"),
        procedure_tool(
            "broken", parameters=(Parameter(name="x", json_schema=KEY_SCHEMA, binds="book"),), body="book.pages = 1"
        ),
    ],
    ids=["field", "statement", "guard", "message", "returns nothing", "binds no record"],
)
def test_what_does_not_compile_is_a_finding(tool: Tool, replayer: ReplayProcess) -> None:
    verification = verify_environment(with_tool(tool), replayer=replayer)
    assert [f.check for f in verification.findings] == ["load"]
    assert "broken" in verification.findings[0].evidence
    assert verification.walked_calls == 0


def test_when_every_tool_fails_the_gate_says_so_and_does_not(replayer: ReplayProcess) -> None:
    tools = tuple(procedure_tool(f"broken_{i}", body="book.note = book.tags[99]") for i in range(4))
    verification = verify_environment(library_spec(tools=tools), replayer=replayer)
    assert {t.name for t in tools} == {f.tool for f in verification.findings}
    assert verification.accepted_calls == 0 and verification.walked_calls == 240


class FakeReplayer(ReplayProcess):
    """Answers a replay as told, without a process."""

    def __init__(self, answer: list[str] | OmniaError | None = None) -> None:
        self.answer = answer
        self.calls: list[Call] = []

    def trace(self, program: Program, state: State, calls: Sequence[Call]) -> list[str]:
        self.calls = list(calls)
        if isinstance(self.answer, OmniaError):
            raise self.answer
        return trace(program, state, calls) if self.answer is None else self.answer

    def close(self) -> None:
        """Nothing to stop."""


def test_a_replay_that_fails_elsewhere_is_a_finding() -> None:
    """A tool may fault in the other process only: it depends on the order of a set, say."""
    failed = FakeReplayer(OmniaError("replay in another process failed: LendingLibrary.lend_book: KeyError: 'x'"))
    verification = verify_environment(library_spec(), replayer=failed)
    assert [f.check for f in verification.findings] == ["replay"] and "KeyError" in verification.findings[0].evidence
    with pytest.raises(InfrastructureError):
        verify_environment(library_spec(), replayer=FakeReplayer(InfrastructureError("the process is gone; run again")))


def test_a_shorter_or_other_replay_is_a_finding() -> None:
    honest = FakeReplayer()
    assert verify_environment(library_spec(), replayer=honest).passed and honest.calls
    for answer in ([], ["x"], ["x"] * len(honest.calls), ["x"] * (len(honest.calls) + 1)):
        verification = verify_environment(library_spec(), replayer=FakeReplayer(answer))
        assert verification.failed_checks() == ("replay",)


def test_kinds_and_effects_must_agree() -> None:
    check_facts(library_spec())
    for tool in (
        procedure_tool("broken", kind="query", body="book.pages = 7", returns=(("done", "True"),)),
        procedure_tool("broken", kind="modify", returns=(("pages", "book.pages"),)),
    ):
        with pytest.raises(SpecError, match="broken"):
            check_facts(with_tool(tool))


# Correction


def corrected(tools: Sequence[Tool], replayer: ReplayProcess) -> tuple[EnvironmentSpec, Verification, dict[str, Any]]:
    spec, verification, log = correct_environment(library_spec(tools=tuple(tools)), replayer=replayer)
    return spec, verification, {d.tool: d for d in log}


def test_an_unreachable_error_is_taken_out(replayer: ReplayProcess) -> None:
    tool = procedure_tool(
        "thin",
        steps=(
            Guard(that="book.pages > 0", message="Empty."),
            Guard(that="book.pages > 9", message="Thin."),
        ),
        body="book.pages = 7",
    )
    spec, verification, log = corrected((*GOOD, tool), replayer)
    assert verification.passed and verification.spec == spec.identity
    assert [s.message for s in spec.tool("thin").action.steps] == ["Thin."]  # type: ignore[union-attr]
    assert log["thin"].decision == "rewritten" and "Empty." in log["thin"].reason
    assert {t.name for t in spec.tools} == {t.name for t in (*GOOD, tool)} and set(log) == {"thin"}


@pytest.mark.parametrize("what", [w for w in BROKEN if BROKEN[w][0] != "errors"])
def test_a_tool_that_cannot_be_mended_is_dropped(what: str, replayer: ReplayProcess) -> None:
    check, tool = BROKEN[what]
    spec, verification, log = corrected((*GOOD, tool), replayer)
    assert verification.passed, verification.findings
    assert [t.name for t in spec.tools] == [t.name for t in GOOD]
    assert log["broken"].decision == "removed" and log["broken"].reason.partition(":")[0] in ENVIRONMENT_CHECKS
    assert check in log["broken"].reason or what in ("breaks uniqueness",)


def test_an_environment_that_loses_too_much_fails(replayer: ReplayProcess) -> None:
    bad = [procedure_tool(f"broken_{i}", body="book.price += 300") for i in range(6)]
    few = GOOD[: MINIMUM_TOOLS - 1]
    _, verification, log = corrected((*few, *bad), replayer)
    assert not verification.passed and "tools are left" in verification.findings[0].evidence
    assert {d.decision for d in log.values()} == {"removed"}
    readers = tuple(
        procedure_tool(f"read_{i}", kind="query", returns=(("pages", "book.pages"),)) for i in range(MINIMUM_TOOLS)
    )
    _, verification, _ = corrected((*readers, *bad), replayer)
    assert not verification.passed, "nothing modifies"
    _, verification, _ = corrected(bad, replayer)
    assert not verification.passed


def test_what_no_repair_can_reach_stays_a_finding(replayer: ReplayProcess) -> None:
    rule = Rule(name="never", sentence="Never.", entity="Shelf", predicate="it.floor > 99")
    spec, verification, log = correct_environment(library_spec(rules=(rule,)), replayer=replayer)
    assert not verification.passed and not log and spec == library_spec(rules=(rule,))


# Specifications that contradict themselves


def test_contradictions_are_named_when_a_specification_is_made() -> None:
    shelf, member, book = library_entities()
    colour = Filter(parameter="status", field="colour", op="equals")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Book", {"entities": (shelf, member, book, book)}),
        ("lend_book", {"tools": (*GOOD, GOOD[0])}),
        ("Author", {"rules": (Rule(name="r", sentence="R.", entity="Author", predicate="True"),)}),
        ("Author", {"speaker": "Author"}),
        ("Member", {"entities": (shelf, book), "rules": (), "tools": ()}),
        ("label", {"entities": (shelf.model_copy(update={"label": "colour"}), member, book)}),
        ("clock", {"entities": (shelf.model_copy(update={"plural": "clock"}), member, book)}),
        ("get_book", {"tools": (GOOD[4].model_copy(update={"parameters": ()}),)}),
        ("modifies", {"tools": (GOOD[5].model_copy(update={"kind": "modify"}),)}),
        ("colour", {"tools": (GOOD[5].model_copy(update={"action": Search(entity="Book", filters=(colour,))}),)}),
        ("from", {"tools": (procedure_tool("t", parameters=(Parameter(name="from", json_schema=KEY_SCHEMA),)),)}),
        ("self", {"tools": (procedure_tool("t", parameters=(Parameter(name="self", json_schema=KEY_SCHEMA),)),)}),
        ("import", {"tools": (procedure_tool("import"),)}),
        ("colour", {"tools": (procedure_tool("t", parameters=(key_parameter("Book", "colour"),)),)}),
        ("text", {"tools": (procedure_tool("t", parameters=(Parameter(name="x", json_schema={"type": "text"}),)),)}),
    ]  # fmt: skip
    for word, changes in cases:
        with pytest.raises(SpecError, match=word):
            library_spec(**changes)


# States of a specification


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_made_states_are_valid_and_named_by_their_seed(salon: Salon, scale: float) -> None:
    maker = StateMaker(salon.spec)
    for seed in ("a", "b", "c"):
        state = maker.make(seed, scale)
        assert not list(state_problems(salon.spec, state)) and not list(maker.broken(state))
        assert not Instance(salon.program, state).broken_rules()
        assert state == StateMaker(salon.spec).make(seed, scale)
    assert maker.make("a") != maker.make("b")


def test_the_gates_rules_are_the_programs_rules(salon: Salon) -> None:
    """The state maker and the compiled program read every rule alike."""
    maker = StateMaker(salon.spec)
    state = salon.state
    for appointment in list(state["appointments"].values())[:8]:
        for status in ("held", "confirmed", "served", "no_show", "cancelled"):
            changed = copy.deepcopy(state)
            changed["appointments"][appointment["appointment_id"]]["status"] = status
            said = {problem.partition(" breaks ")[2] for problem in maker.broken(changed)}
            assert said == set(Instance(salon.program, changed).broken_rules())


def test_one_changed_field_is_judged_like_the_whole_state(salon: Salon) -> None:
    """`broken_by` looks at less than `broken`, and says the same."""
    maker, rng, seen = StateMaker(salon.spec), Random(11), set()
    state = salon.state
    for _ in range(1500):
        entity = rng.choice([e for e in salon.spec.entities if state[e.plural]])
        record = rng.choice(list(state[entity.plural].values()))
        attribute = rng.choice(entity.attributes)
        before = record[attribute.name]
        others = [r[attribute.name] for r in state[entity.plural].values()]
        record[attribute.name] = rng.choice([*others, *attribute.choices, *([None] if attribute.nullable else [])])
        broken = any(maker.broken(state))
        assert maker.broken_by(state, entity, record, attribute.name) == broken, (record, attribute.name)
        seen.add(broken)
        if broken or rng.random() < 0.7:
            record[attribute.name] = before
    assert seen == {True, False}


def test_clock_and_counters_are_part_of_a_valid_state() -> None:
    state = StateMaker(library_spec()).make("tests")
    for change in (
        {"clock": {}}, {"clock": None}, {"clock": {"now": "today"}}, {"clock": {"now": "2026-03-09"}}, {"counters": {}},
        {"counters": None}, {"counters": {**state["counters"], "books": "12"}},
        {"counters": {**state["counters"], "books": -1}},
        {"counters": {**state["counters"], "books": True}}, {"counters": {**state["counters"], "books": 0}},
    ):  # fmt: skip
        assert list(state_problems(library_spec(), {**state, **change})), change


def test_a_new_record_never_takes_the_place_of_an_old_one() -> None:
    spec = library_spec()
    state = StateMaker(spec).make("tests")
    instance = Instance(build_program(spec), state)
    shelf = next(iter(state["shelves"]))
    for number in range(30):
        before = instance.state["books"]
        answer = instance.call("add_book", {"shelf_id": shelf, "title": f"T{number}"})
        assert answer["ok"] and answer["data"]["book"]["book_id"] not in before
        assert len(instance.state["books"]) == len(before) + 1
