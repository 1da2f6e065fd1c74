"""Guidance: orders follow the PRDs, and what is made by an order is about what the PRDs are about."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentomnia.errors import InputError
from agentomnia.evolution.alignment import kl, level1_counts
from agentomnia.evolution.guidance import (
    OPERATOR_TITLES,
    PRIORITY_WEIGHTS,
    SynthesisOrder,
    apportion,
    dependency_depth,
    needs_a_focus_tool,
    plan,
    uncovered,
)
from agentomnia.evolution.prd import Note, Prd, Priority, SynthesisGuidance, Targets, example_prd
from agentomnia.row import digest
from agentomnia.synthesis.environments.author import BuiltinAuthor
from agentomnia.synthesis.environments.compiler import build_program, compile_environment
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.generate import Candidate, TaskSite, generate
from agentomnia.synthesis.tasks.dag.graph import build_graph
from agentomnia.synthesis.tasks.dag.groups import sample_groups
from agentomnia.synthesis.tasks.gate import Evaluated, verify_task
from agentomnia.synthesis.tasks.operators import OPERATORS, enrich
from agentomnia.task.task import PrivateTask, ReferenceCall, Source
from agentomnia.taxonomy.axes import domain, domains

AVAILABLE = BuiltinAuthor().domains


def prd(
    number: int, targets: dict[int, int], rank: Priority = "High", tools: tuple[str, ...] = (), titles: str = ""
) -> Prd:
    notes = tuple(Note(title=t, text="x") for t in titles.split("|") if t)
    guidance = SynthesisGuidance(failures=targets, tools=tools, environment=notes, depth=3)
    return example_prd(10006).model_copy(
        update={
            "id": f"PRD-TU-{number:03d}",
            "priority": rank,
            "status": "Active",
            "targets": Targets(domains=tuple(targets), capabilities=("tool_use",)),
            "guidance": guidance,
        }
    )


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=9), st.integers(0, 300))
def test_shares_are_whole_fair_and_complete(weights: list[float], count: int) -> None:
    shares = apportion(weights, count)
    assert sum(shares) == count
    for share, weight in zip(shares, weights):
        assert abs(share - weight * count / sum(weights)) < 1


def test_tasks_follow_priority_times_failures() -> None:
    wanted = [prd(1, {10006: 6, 10012: 2}), prd(2, {20014: 4}, "Medium"), prd(3, {30017: 4}, "Low")]
    orders = plan(wanted, 360, AVAILABLE)
    weights = {10006: 18, 10012: 6, 20014: 8, 30017: 4}
    assert {o.domain: o.tasks for o in orders} == {d: w * 10 for d, w in weights.items()}
    assert PRIORITY_WEIGHTS["High"] / PRIORITY_WEIGHTS["Low"] == 3
    assert [o.environments for o in orders] == [26, 9, 12, 6]
    assert len({o.seed for o in orders}) == len(orders) and plan(wanted, 360, AVAILABLE) == orders


def test_orders_say_how() -> None:
    titles = "Distractor Injection|multi-candidate construction|Anything Else|Dynamic Availability"
    (order,) = plan([prd(1, {10006: 1}, tools=("book_appointment",), titles=titles)], 10, AVAILABLE)
    assert order.operators == ("distractor", "multi_candidate", "mutable_object")
    assert (order.tools, order.depth, order.goals) == (("book_appointment",), 3, (2, 4))
    assert set(OPERATOR_TITLES) >= set(OPERATORS)


def test_unknown_targets_go_next_door_or_are_named() -> None:
    near = next(d.id for d in domains() if d.id not in AVAILABLE and (d.split, d.l1) == ("toc", domain(10006).l1))
    taken = {(domain(i).split, domain(i).l1) for i in AVAILABLE}
    far = next(d.id for d in domains() if (d.split, d.l1) not in taken)
    orders = plan([prd(1, {near: 1, far: 5})], 8, AVAILABLE)
    assert [(o.target, o.domain, o.tasks) for o in orders] == [(near, 10006, 8)]
    assert uncovered([prd(1, {near: 1, far: 5})], AVAILABLE) == (("PRD-TU-001", far),)
    closed = prd(2, {10006: 1}).model_copy(update={"status": "Closed"})
    for prds, count in (([prd(1, {far: 1})], 8), ([], 8), ([closed], 8), ([prd(1, {10006: 1})], 0)):
        with pytest.raises(InputError, match="Active"):
            plan(prds, count, AVAILABLE)


def test_orders_are_closer_to_the_failures_than_the_original_mixture() -> None:
    """Section 7.3, Figure 18, on failures that are not spread as the original tasks are."""
    failures = {10006: 14, 10012: 7, 20014: 4, 30017: 2}
    orders = plan([prd(1, {10006: 14, 10012: 7}), prd(2, {20014: 4, 30017: 2}, "Medium")], 120, AVAILABLE)
    lost = level1_counts([i for i, n in failures.items() for _ in range(n)])
    guided = level1_counts([o.domain for o in orders for _ in range(o.tasks)])
    original = level1_counts([i for i in AVAILABLE for _ in range(10)])
    assert kl(guided, lost) < 0.25 * kl(original, lost)


def test_depth_is_the_longest_chain_of_needs() -> None:
    calls = (
        ReferenceCall(tool="a", arguments={}),
        ReferenceCall(tool="b", arguments={}, after=(0,)),
        ReferenceCall(tool="c", arguments={"x": 1}, sources={"x": Source(origin="observation", call=1)}),
        ReferenceCall(tool="d", arguments={}, after=(0,)),
    )
    private = PrivateTask.model_construct(id="t", calls=calls)
    assert dependency_depth(private) == 3
    assert dependency_depth(PrivateTask.model_construct(id="t", calls=())) == 0


def kept_tasks(order: SynthesisOrder, guided: bool, count: int) -> list[Candidate]:
    """Tasks that pass the gate in a fresh variant of the order's domain."""
    spec = BuiltinAuthor().draft(order.domain, 1, order.seed).spec
    maker, compiled = StateMaker(spec), compile_environment(spec)
    program = build_program(spec, compiled)
    state = maker.make(order.seed)
    enrich(spec, maker, state, Random(order.seed), only=order.operators if guided else ())
    site = TaskSite("E", spec, program, dict(compiled.facts), "s0", state)
    focus = frozenset(order.tools) if guided else frozenset()
    groups = islice(sample_groups(spec, build_graph(spec), Random(order.seed), focus=focus), count)
    made = [generate(site, group, f"{order.seed}/{i}") for i, group in enumerate(groups)]
    found = [m for m in made if isinstance(m, Candidate)]
    return [m for m in found if not verify_task(Evaluated(m.public, m.private, spec, program, state))]


@pytest.mark.parametrize(
    ("place", "tools"), [(10006, ("book_appointment",)), (20014, ("search_alerts",)), (10012, ("apply_coupon",))]
)
def test_guided_tasks_are_about_the_tools_of_the_order(place: int, tools: tuple[str, ...]) -> None:
    titles = "Distractor Injection|Multi-candidate Construction"
    (order,) = plan([prd(1, {place: 1}, tools=tools, titles=titles)], 24, AVAILABLE)
    assert set(order.tools) <= {t.name for t in BuiltinAuthor().draft(place, 1, order.seed).spec.tools}
    guided, free = kept_tasks(order, True, 24), kept_tasks(order, False, 24)
    assert len(guided) >= 12 and len(free) >= 12
    with_focus = sum(needs_a_focus_tool(order, m.private) for m in guided) / len(guided)
    without = sum(needs_a_focus_tool(order, m.private) for m in free) / len(free)
    assert with_focus > 2 * without and with_focus > 0.3, (with_focus, without)


def test_the_operators_of_an_order_are_the_only_ones_applied() -> None:
    spec = BuiltinAuthor().draft(10006, 0, "guidance").spec
    maker = StateMaker(spec)
    state = maker.make("guidance")
    log = enrich(spec, maker, state, Random(3), rounds=40, only=("distractor", "history"))
    assert {e.operator for e in log} == {"distractor", "history"}


def test_without_a_focus_nothing_changes() -> None:
    spec = BuiltinAuthor().draft(10006, 0, "guidance").spec
    graph = build_graph(spec)
    plain = list(islice(sample_groups(spec, graph, Random(5)), 30))
    assert list(islice(sample_groups(spec, graph, Random(5), focus=frozenset()), 30)) == plain
    assert list(islice(sample_groups(spec, graph, Random(5), focus=frozenset({"no_such_tool"})), 30)) == plain
    maker = StateMaker(spec)
    states = [maker.make("same"), maker.make("same")]
    logs = [enrich(spec, maker, states[0], Random(1)), enrich(spec, maker, states[1], Random(1), only=OPERATORS)]
    assert logs[0] == logs[1] and digest(states[0]) == digest(states[1])
