"""Tasks: the gate finds each fault, what is said can be understood, and what is built keeps its promises."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.environment.instance import Instance
from agentomnia.environment.spec import EnvironmentSpec, Filter, Parameter, Search, Tool
from agentomnia.environment.state import State, pack, state_problems, unpack
from agentomnia.row import digest
from agentomnia.synthesis.environments.compiler import build_program, compile_environment
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.describe import Describer, Description
from agentomnia.synthesis.tasks.dag.generate import Candidate, Dropped, TaskSite, generate
from agentomnia.synthesis.tasks.dag.graph import MINIMUM_CONFIDENCE, ToolGraph, build_graph
from agentomnia.synthesis.tasks.dag.groups import MAXIMUM_JACCARD, STANDARD, sample_groups
from agentomnia.synthesis.tasks.evidence import difficulty_evidence
from agentomnia.synthesis.tasks.gate import TASK_CHECKS, Evaluated, altered_states, verify_task
from agentomnia.synthesis.tasks.leakage import leaks
from agentomnia.synthesis.tasks.operators import OPERATORS, Site, apply_operator, enrich
from agentomnia.task.criterion import AnswerField, Change, Criterion, Expected
from agentomnia.task.grade import grade
from agentomnia.task.render import moment_in_words, same_value, say, unsay
from agentomnia.task.task import Evidence, PrivateTask, ReferenceCall, Source, Task, TaskDag, VirtualNode
from agentomnia.taxonomy.coordinate import Coordinate
from conftest import Salon, key_parameter, library_entities, library_spec, library_tools, procedure_tool

# Generated tasks


def test_every_check_holds_for_what_was_kept(subjects: list[Evaluated]) -> None:
    assert len(subjects) == 8
    for subject in subjects:
        assert verify_task(subject) == [], subject.task.query
        again = replace(subject, task=Task.model_validate(subject.task.to_json()))
        assert again.task == subject.task and again.task.identity == subject.task.identity
        private = PrivateTask.model_validate(subject.private.to_json())
        assert private == subject.private and private.identity == subject.private.identity


def test_ids_and_queries_are_unique_and_the_public_part_is_public(subjects: list[Evaluated]) -> None:
    assert len({s.task.id for s in subjects}) == len({s.task.query for s in subjects}) == len(subjects)
    for subject in subjects:
        public = set(subject.task.to_json())
        assert not public & {"criterion", "calls", "dag", "evidence", "mentions", "sources"}
        assert subject.task.coordinate.domain in subject.spec.domains
        assert {a.name for a in subject.task.answer} == set(subject.private.answer)
        assert set(subject.private.answer) == set(subject.private.criterion.answers)


def site_of(salon: Salon, seed: str = "tests") -> TaskSite:
    maker = StateMaker(salon.spec)
    state = maker.make(seed)
    enrich(salon.spec, maker, state, Random(seed))
    facts = dict(compile_environment(salon.spec).facts)
    return TaskSite(salon.environment.id, salon.spec, salon.program, facts, "s0", state)


def test_generation_is_deterministic_and_leaves_the_state_alone(salon: Salon) -> None:
    site, graph = site_of(salon), build_graph(salon.spec)
    mark = digest(site.state)
    groups = list(itertools.islice(sample_groups(salon.spec, graph, Random(1)), 25))
    made = [generate(site, group, f"seed/{i}") for i, group in enumerate(groups)]
    again = [generate(site, group, f"seed/{i}") for i, group in enumerate(groups)]
    assert made == again and digest(site.state) == mark
    assert sum(isinstance(m, Candidate) for m in made) >= 10
    assert all(m.reason for m in made if isinstance(m, Dropped))


def test_candidates_pass_the_gate_or_are_told_apart_by_it(salon: Salon) -> None:
    """What the generator makes is nearly always right; the gate is there for the rest."""
    site, graph = site_of(salon, "more"), build_graph(salon.spec)
    groups = itertools.islice(sample_groups(salon.spec, graph, Random(2)), 40)
    made = [generate(site, group, f"seed/{i}") for i, group in enumerate(groups)]
    kept = [m for m in made if isinstance(m, Candidate)]
    found = [verify_task(Evaluated(m.public, m.private, salon.spec, salon.program, site.state)) for m in kept]
    assert sum(not f for f in found) >= 0.8 * len(kept) > 10, [f for f in found if f]


# A task by hand: every part is known, so that every part can be broken


def lending_spec(**changes: Any) -> EnvironmentSpec:
    """The library with readers and an update, so that a person's words lead to every record."""
    finder = Tool(
        name="find_book_by_title",
        kind="query",
        description="Books of that title.",
        parameters=(Parameter(name="title", json_schema={"type": "string", "minLength": 1}, carries="Book.title"),),
        action=Search(entity="Book", filters=(Filter(parameter="title", field="title", op="equals"),)),
    )
    members = Tool(
        name="find_member_by_name",
        kind="query",
        description="Members of that name.",
        parameters=(Parameter(name="name", json_schema={"type": "string"}, carries="Member.name"),),
        action=Search(entity="Member", filters=(Filter(parameter="name", field="name", op="equals"),)),
    )
    note = procedure_tool(
        "set_pages",
        parameters=(
            key_parameter("Book", "book_id", "book"),
            Parameter(
                name="pages", json_schema={"type": "integer", "minimum": 1, "maximum": 2000}, carries="Book.pages"
            ),
            Parameter(name="page_unit", json_schema={"type": "string", "enum": ["sheets", "leaves"]}, required=False),
        ),
        body="book.pages = pages",
    )
    touch = procedure_tool(
        "touch_shelf",
        parameters=(),
        body="shelf = new(Shelf, name='x', floor=1)\ndelete(shelf)",
        returns=(("done", "True"),),
    )
    return library_spec(tools=(*library_tools(), finder, members, note, touch), **changes)


SPEC = lending_spec()
PROGRAM = build_program(SPEC)
STATE = StateMaker(SPEC).make("tasks")
KEPT = next(b for b in STATE["books"].values() if b["status"] == "kept" and b["pages"] != 321)
MEMBER = next(iter(STATE["members"].values()))


def observed(call: int, *path: str | int) -> Source:
    return Source(origin="observation", call=call, path=path)


def said(text: str) -> Source:
    return Source(origin="query", text=text)


def lending() -> Evaluated:
    """Set the pages of a book, lend it to a member, and tell how many loans the member has then."""
    title, name = KEPT["title"], MEMBER["name"]
    book, member = KEPT["book_id"], MEMBER["member_id"]
    loans = MEMBER["loans"] + 1
    calls = (
        ReferenceCall(tool="find_book_by_title", arguments={"title": title}, sources={"title": said(title)}),
        ReferenceCall(tool="find_member_by_name", arguments={"name": name}, sources={"name": said(name)}),
        ReferenceCall(
            tool="set_pages",
            arguments={"book_id": book, "pages": 321},
            sources={"book_id": observed(0, "books", 0, "book_id"), "pages": said("321")},
            after=(0,),
        ),
        ReferenceCall(
            tool="lend_book",
            arguments={"book_id": book, "member_id": member},
            sources={
                "book_id": observed(0, "books", 0, "book_id"),
                "member_id": observed(1, "members", 0, "member_id"),
            },
            after=(0, 1),
        ),
        ReferenceCall(tool="find_member_by_name", arguments={"name": name}, sources={"name": said(name)}, after=(3,)),
    )
    changes = (
        Change(
            kind="updated",
            container="books",
            key=book,
            values={
                "pages": Expected(value=321, comparison="number"),
                "status": Expected(value="lent"),
                "holder_id": Expected(value=member),
            },
        ),
        Change(
            kind="updated",
            container="members",
            key=member,
            values={"loans": Expected(value=loans, comparison="number")},
        ),
    )
    task = Task(
        id="hand-1",
        environment="LendingLibrary",
        state="s0",
        kind="dag",
        query=f"Please note 321 pages for “{title}”, lend it to {name}, and tell me how many loans they have then.",
        answer=(AnswerField(name="answer", description="The number of loans, as a whole number", type="number"),),
        coordinate=Coordinate(
            domain=10006, capabilities=("tool_use",), difficulty=("dynamic_planning",), primary="dynamic_planning"
        ),
        lineage="by hand",
    )
    private = PrivateTask(
        id="hand-1",
        criterion=Criterion(changes=changes, answers={"answer": Expected(value=loans, comparison="number")}),
        calls=calls,
        answer={"answer": loans},
        dag=TaskDag(
            virtual=(VirtualNode(id="think:0", type="FILTER", note="the one"),),
            edges=(("call:0", "think:0"), ("think:0", "call:2")),
        ),
        evidence=(
            Evidence(label="dynamic_planning", measures={"calls": 6, "depth": 3}, threshold="calls ≥ 6 and depth ≥ 3"),
        ),
        mentions=("321", title, name),
    )
    return Evaluated(task, private, SPEC, PROGRAM, STATE)


def public(subject: Evaluated, **changes: Any) -> Evaluated:
    return replace(subject, task=subject.task.model_copy(update=changes))


def private(subject: Evaluated, **changes: Any) -> Evaluated:
    return replace(subject, private=subject.private.model_copy(update=changes))


def call(subject: Evaluated, index: int, **changes: Any) -> Evaluated:
    calls = list(subject.private.calls)
    calls[index] = calls[index].model_copy(update=changes)
    return private(subject, calls=tuple(calls))


def source(subject: Evaluated, index: int, name: str, changed: Source | None) -> Evaluated:
    sources = {**subject.private.calls[index].sources, name: changed}
    return call(subject, index, sources={k: v for k, v in sources.items() if v is not None})


def evidence(subject: Evaluated, **changes: Any) -> Evaluated:
    return private(subject, evidence=(subject.private.evidence[0].model_copy(update=changes),))


def criterion(subject: Evaluated, **changes: Any) -> Evaluated:
    """A criterion that no file could hold: its own validation is left out."""
    return private(subject, criterion=subject.private.criterion.model_copy(update=changes))


def without_change(subject: Evaluated, container: str) -> Evaluated:
    left = tuple(c for c in subject.private.criterion.changes if c.container != container)
    return criterion(subject, changes=left)


def weakened(subject: Evaluated, field: str, expected: Expected) -> Evaluated:
    changes = tuple(
        c.model_copy(update={"values": {**c.values, field: expected}}) if field in c.values else c
        for c in subject.private.criterion.changes
    )
    return criterion(subject, changes=changes)


def query(subject: Evaluated, old: str, new: str) -> Evaluated:
    assert old in subject.task.query
    return public(subject, query=subject.task.query.replace(old, new))


def only_asks(subject: Evaluated) -> Evaluated:
    """The question alone: nothing changes."""
    calls = (subject.private.calls[1],)
    loans = MEMBER["loans"]
    answers = {"answer": Expected(value=loans, comparison="number")}
    asked = private(
        subject,
        calls=calls,
        criterion=Criterion(answers=answers),
        answer={"answer": loans},
        mentions=(MEMBER["name"],),
        dag=TaskDag(),
    )
    return public(asked, query=f"How many loans does {MEMBER['name']} have?")


def touching(subject: Evaluated) -> Evaluated:
    """A reference in which one call only touches the counters: leaving it out changes nothing that is graded."""
    extra = ReferenceCall(tool="touch_shelf", arguments={})
    return private(subject, calls=(*subject.private.calls, extra))


def test_the_hand_made_task_passes() -> None:
    assert verify_task(lending()) == [] and verify_task(only_asks(lending())) == []


OTHER = next(b["book_id"] for b in STATE["books"].values() if b["status"] == "kept" and b is not KEPT)
BROKEN: dict[str, tuple[str, Callable[[Evaluated], Evaluated]]] = {
    # reference
    "another value": ("reference", lambda s: call(s, 2, arguments={"book_id": KEPT["book_id"], "pages": 322})),
    "another record": (
        "reference",
        lambda s: source(call(s, 2, arguments={"book_id": OTHER, "pages": 321}), 2, "book_id", said(OTHER)),
    ),
    "a refused call": ("reference", lambda s: call(s, 2, arguments={"book_id": KEPT["book_id"], "pages": 0})),
    "an unknown tool": ("reference", lambda s: call(s, 2, tool="set_the_pages")),
    "an unknown argument": (
        "reference",
        lambda s: call(s, 2, arguments={**s.private.calls[2].arguments, "colour": "red"}),
    ),
    "a call too few": ("reference", lambda s: private(s, calls=s.private.calls[:3])),
    "a call twice": ("reference", lambda s: private(s, calls=(*s.private.calls, s.private.calls[3]))),
    "a wrong answer": ("reference", lambda s: private(s, answer={"answer": 99})),
    "no answer": ("reference", lambda s: private(s, answer={})),
    "a change not wanted": ("reference", lambda s: without_change(s, "members")),
    "true before": ("reference", lambda s: weakened(s, "status", Expected(value="kept"))),
    # the floors
    "nothing is asked": ("null", lambda s: criterion(only_asks(s), answers={})),
    "anybody passes": ("random", lambda s: criterion(only_asks(s), answers={})),
    # effects
    "a call that could be left out": ("omission", touching),
    "any text will do": ("alteration", lambda s: weakened(s, "status", Expected(value="x", comparison="free"))),
    # order
    "no order behind an observation": ("reordered", lambda s: call(s, 3, after=())),
    "half an order": ("reordered", lambda s: call(s, 3, after=(0,))),
    # derivation
    "no source": ("derivable", lambda s: source(s, 2, "pages", None)),
    "words not said": ("derivable", lambda s: source(s, 2, "pages", said("322"))),
    "words that mean something else": ("derivable", lambda s: source(s, 2, "pages", said("pages"))),
    "no words": ("derivable", lambda s: source(s, 2, "pages", said(""))),
    "part of a word": ("derivable", lambda s: query(source(s, 2, "pages", said("321")), "321 pages", "4321 pages")),
    "part of a number": ("derivable", lambda s: query(s, "321 pages", "9.321 pages")),
    "an observation of itself": (
        "derivable",
        lambda s: source(s, 2, "book_id", observed(2, "book", "book_id")),
    ),
    "an observation too late": (
        "derivable",
        lambda s: source(s, 2, "book_id", observed(3, "book", "book_id")),
    ),
    "an observation from behind": ("derivable", lambda s: source(s, 0, "title", observed(-1, "members", 0, "name"))),
    "an observation of nothing": ("derivable", lambda s: source(s, 2, "book_id", observed(99, "book", "book_id"))),
    "an observation elsewhere": ("derivable", lambda s: source(s, 2, "book_id", observed(0, "books", 7, "book_id"))),
    "an observation without a call": (
        "derivable",
        lambda s: source(s, 2, "book_id", Source(origin="observation", path=("books", 0, "book_id"))),
    ),
    "the clock": ("derivable", lambda s: source(s, 2, "pages", Source(origin="clock"))),
    "a computation nobody declared": ("derivable", lambda s: source(s, 2, "pages", Source(origin="computation"))),
    # leakage
    "a tool's name": ("leakage", lambda s: query(s, "Please", "Please use lend_book:")),
    "a parameter's key": ("leakage", lambda s: query(s, "Please", "Please (page_unit)")),
    "an identifier": ("leakage", lambda s: query(s, "Please", f"Please ({OTHER})")),
    "an identifier in a sentence": ("leakage", lambda s: query(s, " then.", f" then, not of {OTHER}.")),
    "an identifier in the answer's description": (
        "leakage",
        lambda s: public(s, answer=(s.task.answer[0].model_copy(update={"description": f"Loans of {OTHER}"}),)),
    ),
    "a tool in the answer's description": (
        "leakage",
        lambda s: public(s, answer=(s.task.answer[0].model_copy(update={"description": "See lend_book"}),)),
    ),
    # mentions
    "a mention is lost": ("mentions", lambda s: private(s, mentions=(*s.private.mentions, "by tomorrow"))),
    "a mention is part of a word": ("mentions", lambda s: private(s, mentions=(*s.private.mentions, "loan"))),
    # evidence
    "no evidence": ("evidence", lambda s: private(s, evidence=())),
    "evidence for something else": (
        "evidence",
        lambda s: evidence(s, label="long_context_evidence"),
    ),
    "measures below": (
        "evidence",
        lambda s: evidence(s, measures={"calls": 6, "depth": 2}),
    ),
    "measures missing": (
        "evidence",
        lambda s: evidence(s, measures={}),
    ),
    "no threshold": (
        "evidence",
        lambda s: evidence(s, threshold=""),
    ),
    "a threshold of the task's own": (
        "evidence",
        lambda s: evidence(s, threshold="calls ≥ 0"),
    ),
    # frame
    "a change that asks for nothing": (
        "frame",
        lambda s: criterion(
            s, changes=(*s.private.criterion.changes, Change(kind="updated", container="books", key=OTHER))
        ),
    ),
    # the augmented DAG
    "an edge to nowhere": (
        "dag",
        lambda s: private(s, dag=TaskDag(edges=(("call:0", "think:9"),))),
    ),
    "a circle": ("dag", lambda s: private(s, dag=TaskDag(edges=(("call:2", "call:0"),)))),
}  # fmt: skip
ALSO = {
    "nothing is asked": {"random", "omission", "alteration"}, "anybody passes": {"null", "omission", "alteration"},
    "part of a word": {"mentions"}, "part of a number": {"mentions"},
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_each_fault_is_reported_by_its_check(what: str) -> None:
    check, change = BROKEN[what]
    findings = verify_task(change(lending()))
    found = {f.check for f in findings}
    assert check in found, findings
    assert found <= {check} | ALSO.get(what, set()), findings
    assert all(f.task == "hand-1" and f.evidence and f.check in TASK_CHECKS for f in findings)


def test_every_check_of_the_gate_has_been_broken() -> None:
    assert {"unrelated", *(check for check, _ in BROKEN.values())} == set(TASK_CHECKS)


def test_a_write_that_the_grade_does_not_see_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader without a frame condition: everything outside the criterion is forgiven."""

    def forgiving(wanted: Criterion, before: State, after: State, text: str) -> Any:
        named = {(c.container, c.key) for c in wanted.changes}
        masked = {
            container: {k: after[container].get(k, v) if (container, k) in named else v for k, v in records.items()}
            for container, records in before.items()
        }
        return grade(wanted, before, masked, text)

    monkeypatch.setattr("agentomnia.synthesis.tasks.gate.grade", forgiving)
    assert {f.check for f in verify_task(lending())} == {"unrelated"}


@pytest.mark.parametrize("which", range(8))
def test_generated_tasks_are_broken_alike(subjects: list[Evaluated], which: int) -> None:
    """The same mutations on what the generator made."""
    subject = subjects[which]
    assert {f.check for f in verify_task(private(subject, calls=subject.private.calls[:-1]))} <= {
        "reference", "derivable", "dag", "reordered",
    }  # fmt: skip
    tool = subject.private.calls[-1].tool
    assert {f.check for f in verify_task(public(subject, query=f"{subject.task.query} Use {tool}."))} == {"leakage"}
    for number, mention in enumerate(subject.private.mentions):
        lost = query(subject, mention, "")
        assert "mentions" in {f.check for f in verify_task(lost)}, (number, mention)
    for index, made in enumerate(subject.private.calls):
        for name in made.arguments:
            found = {f.check for f in verify_task(source(subject, index, name, None))}
            assert found == {"derivable"}, (index, name)
        if any(s.origin == "observation" for s in made.sources.values()):
            found = {f.check for f in verify_task(call(subject, index, after=()))}
            assert found == {"reordered"}, index
    for change in subject.private.criterion.changes:
        for field, expected in change.values.items():
            if expected.comparison in ("exact", "text") and isinstance(expected.value, str):
                free = weakened(subject, field, Expected(value=expected.value, comparison="free"))
                assert {f.check for f in verify_task(free)} == {"alteration"}, field


HOSTILE: dict[str, Callable[[Evaluated], Evaluated]] = {
    "waits for itself": lambda s: call(s, 0, after=(0,)),
    "wait for each other": lambda s: call(call(s, 0, after=(1,)), 1, after=(0,)),
    "waits for a stranger": lambda s: call(s, 1, after=(99,)),
    "waits for what comes later": lambda s: call(s, 1, after=(2,)),
    "waits for call -7": lambda s: call(s, 1, after=(-7,)),
    "observes call 99": lambda s: source(s, 1, "name", observed(99, "x")),
    "observes call -99": lambda s: source(s, 1, "name", observed(-99, "x")),
    "odd threshold": lambda s: private(s, evidence=(Evidence(label="x", measures={}, threshold="a > b or ≥ x"),)),
    "infinite threshold": lambda s: private(s, evidence=(Evidence(label="x", measures={}, threshold="a ≥ nan"),)),
    "no calls": lambda s: private(s, calls=()),
    "arguments of other types": lambda s: call(s, 0, arguments={"title": [[]]}),
    "half a surrogate pair": lambda s: call(s, 0, arguments={"title": "\ud800"}),
    "unknown container": lambda s: criterion(s, changes=(Change(kind="deleted", container="x", key="y"),)),
    "source of an argument that is not there": lambda s: source(s, 0, "colour", said("red")),
    "impossible date": lambda s: query(source(s, 2, "pages", said("Monday 31 June")), "Please", "Monday 31 June"),
    "unhashable answer": lambda s: criterion(s, answers={"answer": Expected(value=[{}])}),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_rows_of_others_never_crash_the_gate(what: str) -> None:
    findings = verify_task(HOSTILE[what](lending()))
    assert findings and all(f.check in TASK_CHECKS for f in findings)


def test_an_environment_fault_is_a_finding() -> None:
    spec = lending_spec()
    tools = (
        *spec.tools[:-2],
        procedure_tool("set_pages", parameters=spec.tools[-2].parameters, body="book.note = book.tags[99]"),
    )
    broken = spec.replace_tools(tools)
    subject = replace(lending(), spec=broken, program=build_program(broken))
    assert [f.check for f in verify_task(subject)] == ["reference"]


def test_altered_states_change_one_effect_at_a_time(subjects: list[Evaluated]) -> None:
    for subject in (lending(), *subjects):
        instance = Instance(subject.program, subject.state)
        for made in subject.private.calls:
            assert instance.call(made.tool, made.arguments)["ok"]
        final = instance.state
        mark = digest(final), digest(subject.state)
        effects = list(altered_states(subject.state, final))
        assert bool(effects) == bool(subject.private.criterion.changes)
        for what, altered in effects:
            assert altered != final, what
        assert mark == (digest(final), digest(subject.state))


def test_every_field_of_a_created_record_counts(subjects: list[Evaluated]) -> None:
    """A created record with one field altered earns nothing."""
    creating = [s for s in subjects if any(c.kind == "created" for c in s.private.criterion.changes)]
    assert creating
    for subject in creating:
        instance = Instance(subject.program, subject.state)
        for made in subject.private.calls:
            instance.call(made.tool, made.arguments)
        text = f'{{"answer": 0, {", ".join(f"{k!r}: 0" for k in ())}}}'
        for container, records in instance.state.items():
            if container in ("clock", "counters"):
                continue
            for key in records.keys() - subject.state[container].keys():
                for field in list(records[key])[1:]:
                    final = copy.deepcopy(instance.state)
                    value = final[container][key][field]
                    final[container][key][field] = None if value is not None else "else"
                    assert grade(subject.private.criterion, subject.state, final, text).reward == 0.0


# Leakage


def leaking(text: str, **changes: Any) -> list[str]:
    subject = lending()
    task = subject.task.model_copy(update={"query": text})
    return list(leaks(task, subject.private.model_copy(update=changes), PROGRAM, STATE))


@pytest.mark.parametrize(
    "text",
    ["Call lend_book.", "lend_book", "(lend_book)", "“set_pages”", f"Lend {OTHER}.", f"Lend “{OTHER}”, please",
     f"{OTHER}", "The book_id is known.", "member_id=3", f"a/{OTHER}/b"],
)  # fmt: skip
def test_leaks(text: str) -> None:
    assert leaking(text)


@pytest.mark.parametrize(
    "text", ["Lend a book.", "Set pages", "lend book", "lend-book", f"{OTHER}9", f"X{OTHER}", "limit it to a title"]
)
def test_no_leaks(text: str) -> None:
    assert not leaking(text)


def test_answers_leak() -> None:
    assert leaking("It is lent already, is it?", answer={"answer": "lent"}, mentions=())
    assert leaking("It costs 12345 EUR.", answer={"answer": 12345}, mentions=())
    assert not leaking("It is silent.", answer={"answer": "lent"}, mentions=())


# Words and back

CLOCK = "2026-03-09T09:00"
DAYS = st.dates(date(1600, 1, 1), date(2999, 12, 31))
MOMENTS = st.datetimes(datetime(1600, 1, 1), datetime(2999, 12, 31))
CHOICES = st.from_regex(r"[a-z]+(_[a-z0-9]+){0,3}", fullmatch=True)
WORDS = st.from_regex(r"[a-z]+", fullmatch=True).filter(lambda word: word != "and")
UNITS = st.sampled_from(["", "EUR", "nights", "people", "pieces", "hour", "%", "km", "EUR per night"])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_said_is_understood(data: st.DataObject) -> None:
    kind = data.draw(
        st.sampled_from(["date", "datetime", "enum", "boolean", "integer", "number", "string", "text", "list"])
    )
    unit = data.draw(UNITS) if kind in ("integer", "number") else ""
    value = data.draw(
        {
            "date": DAYS.map(date.isoformat),
            "datetime": MOMENTS.map(lambda m: m.isoformat()[:16]),
            "enum": CHOICES,
            "boolean": st.booleans(),
            "integer": st.integers(-(2**53), 2**53),
            "number": st.integers(-(10**9), 10**9).map(lambda n: n / 100) | st.floats(-1e6, 1e6) | st.integers(-99, 99),
            "string": st.text(max_size=20),
            "text": st.text(max_size=20),
            "list": st.lists(WORDS, min_size=1, max_size=4),
        }[kind]
    )  # fmt: skip
    words = say(value, kind, CLOCK, unit)
    back = unsay(words, kind, CLOCK, unit)
    assert same_value(back, value), (words, back)
    if kind == "boolean":
        assert back is value


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(max_size=24) | st.from_regex(r"(Mon|Tues)day \d{1,2} (February|March|June)( \d{4})?( at \d\d:\d\d)?")
)
def test_nonsense_is_understood_as_nothing(text: str) -> None:
    for kind in ("date", "datetime"):
        value = unsay(text, kind, CLOCK)
        if value is not None:
            assert unsay(say(value, kind, CLOCK), kind, CLOCK) == value
    for kind in ("integer", "number", "boolean"):
        unsay(text, kind, CLOCK, "EUR")


@pytest.mark.parametrize(
    "text",
    ["Monday 31 February", "Monday 30 February 2027", "Monday 0 March", "Monday 9 March at 25:00",
     "Monday 9 March at 09:75", "Tuesday 9 March", "Monday 9 Martch", "9 March", "Monday 9 March 99999",
     "Monday 9 March\n", "monday 9 march", ""],
)  # fmt: skip
def test_no_date_in_words(text: str) -> None:
    assert unsay(text, "date", CLOCK) is None and unsay(text, "datetime", CLOCK) is None


def test_words() -> None:
    assert say("2026-03-10T15:30", "datetime", CLOCK) == "Tuesday 10 March at 15:30"
    assert say("2027-03-10", "date", CLOCK) == "Wednesday 10 March 2027"
    assert say(25.0, "number", CLOCK, "EUR") == "25 EUR" and say(0.5, "number", CLOCK) == "0.50"
    assert say("no_show", "enum", CLOCK) == "no show" and say(["a", "b", "c"], "list", CLOCK) == "a, b and c"
    assert moment_in_words(CLOCK) == "Monday 9 March 2026, 09:00"


def test_same_value_tells_truth_from_numbers() -> None:
    assert same_value(25, 25.0) and same_value("a", "a") and same_value(None, None) and same_value(0.1, 0.1000001)
    for left, right in ((1, True), (True, 1), (0, False), (False, 0.0), ("1", 1), (None, 0), (25, 26), ("a", "A")):
        assert not same_value(left, right), (left, right)


# Referring expressions


def fitting(description: Description, state: State, spec: EnvironmentSpec) -> list[str]:
    """Keys of all records that have every property the description mentions."""
    records = state[spec.entity(description.entity).plural]
    return [k for k, r in records.items() if all(r[d.field] == d.value for d in description.descriptors)]


def described(salon: Salon, seed: str, speaker: bool) -> dict[tuple[str, str], Description | None]:
    site = site_of(salon, seed)
    who = next(iter(site.state["clients"])) if speaker else None
    describer = Describer(salon.spec, site.state, who)
    return {
        (entity.name, key): describer.describe(entity.name, key)
        for entity in salon.spec.entities
        for key in site.state[entity.plural]
    }


@pytest.mark.parametrize("speaker", [True, False])
@pytest.mark.parametrize("seed", ["a", "b"])
def test_a_description_picks_exactly_one_record(salon: Salon, seed: str, speaker: bool) -> None:
    state = site_of(salon, seed).state
    phrases: dict[tuple[str, str], str] = {}
    made = described(salon, seed, speaker)
    assert sum(d is not None for d in made.values()) > 0.7 * len(made)
    for (entity, key), description in made.items():
        if description is None:
            continue
        assert fitting(description, state, salon.spec) == [key], description.phrase
        assert phrases.setdefault((entity, description.phrase), key) == key, description.phrase
        assert key not in description.phrase and "_" not in description.phrase
        for descriptor in description.descriptors:
            attribute = salon.spec.entity(entity).attribute(descriptor.field)
            assert (
                descriptor.text in description.phrase
                or description.phrase == "me"
                or (descriptor.target is not None and description.phrase.startswith("my "))
            ), description
            if descriptor.target is None:
                understood = unsay(descriptor.text, attribute.type, salon.spec.clock, attribute.unit)
                assert same_value(understood, descriptor.value), description
            else:
                target = salon.spec.entity(descriptor.target)
                assert state[target.plural][descriptor.value][target.label or ""] == descriptor.text


def test_records_that_cannot_be_told_apart_are_not_described() -> None:
    state = copy.deepcopy(STATE)
    describer = Describer(SPEC, state, None)
    first, second, *_ = state["books"].values()
    assert describer.describe("Book", first["book_id"]) is not None
    second.update({k: v for k, v in first.items() if k != "book_id"})
    assert describer.describe("Book", first["book_id"]) is None
    assert describer.describe("Book", second["book_id"]) is None
    assert describer.describe("Book", "none") is None


def test_labels_differing_in_case_only_are_no_names() -> None:
    state = copy.deepcopy(STATE)
    first, second, *_ = state["books"].values()
    first["title"], second["title"] = "Oak", "OAK "
    for key in (first["book_id"], second["book_id"]):
        description = Describer(SPEC, state, None).describe("Book", key)
        if description is not None:
            assert fitting(description, state, SPEC) == [key]
            assert {d.field for d in description.descriptors} != {"title"}


def test_fields_to_avoid_are_avoided(salon: Salon) -> None:
    state = site_of(salon).state
    avoid = frozenset((("Appointment", "starts_at"), ("Appointment", "status")))
    describer = Describer(salon.spec, state, None, avoid)
    for key in state["appointments"]:
        description = describer.describe("Appointment", key)
        if description is not None:
            assert not {d.field for d in description.descriptors} & {"starts_at", "status"}
            assert fitting(description, state, salon.spec) == [key]


# Hard states


@pytest.mark.parametrize("seed", range(6))
def test_enriched_states_stay_valid(salon: Salon, seed: int) -> None:
    maker = StateMaker(salon.spec)
    state = maker.make(f"enrich/{seed}")
    before = copy.deepcopy(state)
    log = enrich(salon.spec, maker, state, Random(seed), rounds=30)
    assert log and not list(state_problems(salon.spec, state)) and not list(maker.broken(state))
    assert not Instance(salon.program, state).broken_rules()
    added = {key for entry in log for key in entry.added}
    new = {key for entity in salon.spec.entities for key in state[entity.plural].keys() - before[entity.plural].keys()}
    assert added == new and all(entry.operator in OPERATORS for entry in log)
    for entity in salon.spec.entities:
        assert before[entity.plural].keys() <= state[entity.plural].keys()
    assert enrich(salon.spec, maker, maker.make(f"enrich/{seed}"), Random(seed), rounds=30) == log


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_adds_or_takes_back_whole(salon: Salon, operator: Any) -> None:
    maker, rng, worked = StateMaker(salon.spec), Random(5), 0
    states = [pack(maker.make(f"operator/{number}")) for number in range(3)]
    for number in range(40):
        state = unpack(states[number % 3])
        entity = rng.choice([e for e in salon.spec.entities if state[e.plural]])
        key = rng.choice(list(state[entity.plural]))
        before = pack(state)
        done = apply_operator(operator, Site(salon.spec, maker, state, entity, key, rng))
        assert not list(state_problems(salon.spec, state)) and not list(maker.broken(state))
        if done is None:
            assert pack(state) == before
            continue
        worked += 1
        assert done.added and (done.operator, done.entity, done.around) == (operator, entity.name, key)
    assert worked, operator


def test_a_twin_differs_in_one_field_that_people_see(salon: Salon) -> None:
    maker, rng, seen = StateMaker(salon.spec), Random(6), 0
    states = [pack(maker.make(f"twin/{number}")) for number in range(4)]
    for number in range(60):
        state = unpack(states[number % 4])
        entity = rng.choice([e for e in salon.spec.entities if state[e.plural]])
        key = rng.choice(list(state[entity.plural]))
        operator = rng.choice(("multi_candidate", "distractor"))
        done = apply_operator(operator, Site(salon.spec, maker, state, entity, key, rng))
        if done is None:
            continue
        (added,) = done.added
        record, twin = state[entity.plural][key], state[entity.plural][added]
        differ = {
            a.name for a in entity.attributes if record[a.name] != twin[a.name] and not a.unique and a.derive is None
        }
        assert len(differ) <= 1 or any(a.present_if for a in entity.attributes), (operator, differ)
        seen += 1
    assert seen > 10


# The dependency graph and its groups


def test_the_graph_has_three_relations_and_no_loops(salon: Salon) -> None:
    graph: ToolGraph = build_graph(salon.spec)
    tools = {t.name: t for t in salon.spec.tools}
    assert set(graph.graph.nodes) == set(tools)
    edges = [e["dependency"] for _, _, e in graph.graph.edges(data=True)]
    assert {e.relation for e in edges} == {"parameter", "entity_anchor", "state_transition"}
    assert all(e.upstream != e.downstream for e in edges)
    assert len({(e.upstream, e.downstream, e.relation) for e in edges}) == len(edges)
    assert all(MINIMUM_CONFIDENCE <= e.confidence <= 1.0 for e in edges)
    for edge in edges:
        if edge.relation == "entity_anchor":
            targets = {salon.spec.target(p.carries) for p in tools[edge.downstream].parameters}
            assert tools[edge.upstream].kind == "query" and edge.what in targets
        if edge.relation == "state_transition":
            assert tools[edge.upstream].kind == "modify"
            assert edge.what in {e for e, _ in graph.facts[edge.upstream].writes}
    again = build_graph(salon.spec)
    assert all(graph.successors(name) == again.successors(name) for name in tools)


def test_facts_name_what_tools_read_and_write() -> None:
    facts = build_graph(SPEC).facts
    assert facts["lend_book"].writes == {("Book", "status"), ("Book", "holder_id"), ("Member", "loans")}
    assert facts["add_book"].writes == {("Book", "+")} and facts["get_book"].writes == frozenset()
    assert facts["touch_shelf"].writes == {("Shelf", "+"), ("Shelf", "-")}
    assert {"Book", "Shelf", "Member"} == facts["get_book"].reads
    assert [e.code for e in facts["lend_book"].errors] == ["not_found", "not_found", "conflict"]


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_chains_and_scattered_queries_and_unlike_each_other(salon: Salon, seed: int) -> None:
    graph = build_graph(salon.spec)
    kinds = {t.name: t.kind for t in salon.spec.tools}
    groups = list(itertools.islice(sample_groups(salon.spec, graph, Random(seed)), 8))
    for group in groups:
        assert STANDARD.chains[0] <= len(group.chains) <= STANDARD.chains[1]
        assert STANDARD.scattered[0] <= len(group.scattered) <= STANDARD.scattered[1]
        for chain in group.chains:
            assert STANDARD.chain_length[0] <= len(chain) <= STANDARD.chain_length[1]
            assert len(set(chain)) == len(chain) and any(kinds[t] == "modify" for t in chain)
            assert all(graph.relations(a, b) for a, b in itertools.pairwise(chain))
        assert all(kinds[t] == "query" for t in group.scattered)
        assert not set(group.scattered) & {t for chain in group.chains for t in chain}
    for left, right in itertools.combinations(groups, 2):
        assert len(left.tools & right.tools) <= MAXIMUM_JACCARD * len(left.tools | right.tools)
    assert groups == list(itertools.islice(sample_groups(salon.spec, graph, Random(seed)), 8))


def test_groups_of_a_small_environment_never_run_dry() -> None:
    graph = build_graph(SPEC)
    assert len(list(itertools.islice(sample_groups(SPEC, graph, Random(0)), 60))) == 60
    readers = SPEC.replace_tools(tuple(t for t in SPEC.tools if t.kind == "query"))
    assert list(itertools.islice(sample_groups(readers, build_graph(readers), Random(0)), 5)) == []


# Difficulty


def test_labels_follow_from_their_measures(subjects: list[Evaluated]) -> None:
    for subject in subjects:
        labels = [e.label for e in subject.private.evidence]
        assert set(labels) == set(subject.task.coordinate.difficulty)
        assert subject.task.coordinate.primary == (labels[0] if labels else None)
    from agentomnia.synthesis.tasks.evidence import Structure

    nothing = Structure(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert difficulty_evidence(nothing) == ()
    for change, label in (
        ({"candidates": 12}, "structured_information"), ({"joins": 2}, "structured_information"),
        ({"near_duplicates": 6, "inferred_arguments": 2}, "tool_parameter_grounding"),
        ({"path_tokens": 3000}, "long_context_evidence"), ({"calls": 6, "depth": 3}, "dynamic_planning"),
        ({"irreversible": 1, "candidates": 2}, "risk_reliability_clarification"),
    ):  # fmt: skip
        assert [e.label for e in difficulty_evidence(replace(nothing, **change))] == [label]
        for field in change:
            less = replace(nothing, **{**change, field: change[field] - 1})
            assert difficulty_evidence(less) == (), (change, field)


def test_the_library_states_are_rich_enough() -> None:
    """The doubles of this file mean something: lent and kept books, tags, notes."""
    assert {b["status"] for b in STATE["books"].values()} == {"kept", "lent", "lost"}
    assert not list(state_problems(SPEC, STATE)) and len(library_entities()) == 3
