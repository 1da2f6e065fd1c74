"""PRD-guided synthesis: from PRDs to orders for environments and tasks (paper, section 6.2).

An order says where (a level-2 domain that an author knows), how much, and under which conditions: operators for the
initial states, tools that tasks should need, how deep they should be. Nothing is made here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentomnia.errors import InputError
from agentomnia.evolution.prd import Prd, Priority
from agentomnia.row import Row
from agentomnia.synthesis.tasks.operators import OPERATORS, Operator
from agentomnia.task.task import PrivateTask
from agentomnia.taxonomy.axes import domain

PRIORITY_WEIGHTS: dict[Priority, float] = {"High": 3.0, "Medium": 2.0, "Low": 1.0}
"""How many tasks a failure of each priority gets, relative to a Low one; this project's own."""
TASKS_PER_ENVIRONMENT = 7
"""Section 7.3: 804 tasks in 121 environments."""

OPERATOR_TITLES: dict[str, tuple[Operator, ...]] = {
    "multi-candidate construction": ("multi_candidate",),
    "distractor injection": ("distractor",),
    "boundary and tie construction": ("boundary_tie",),
    "cross-entity evidence distribution": ("cross_entity",),
    "aggregatable history construction": ("history",),
    "mutable-object construction": ("mutable_object",),
    "closed-loop opportunity construction": ("closed_loop",),
    "dynamic availability": ("distractor", "mutable_object"),
    **{name: (name,) for name in OPERATORS},
}
"""Titles of environment guidance, in lower case, with the operators of hard initial states that realise them: the names
of section 11.1, our own, and "Dynamic Availability" of Table 8 (look-alikes in a state that excludes them)."""


class SynthesisOrder(Row):
    """What to make in one domain for one PRD."""

    prd: str
    """Id of the PRD."""
    target: int
    """The level-2 domain that the PRD targets."""
    domain: int
    """The level-2 domain to synthesize in: the target, or another of its level 1 where no author knows the target."""
    environments: int
    """Variants of the domain."""
    tasks: int
    """Tasks in all, over the variants."""
    operators: tuple[Operator, ...] = ()
    """Operators for the initial states; all of them when empty."""
    tools: tuple[str, ...] = ()
    """Tools that tasks should need; a variant may lack some."""
    goals: tuple[int, int]
    """Fewest and most goals of a task."""
    depth: int
    """Least dependency depth of a task, see `dependency_depth`."""
    seed: str
    """Suffix for the seeds of what is made, so that no two orders make the same."""


def operators_of(prd: Prd) -> tuple[Operator, ...]:
    """The operators that a PRD's environment guidance names by its titles; other titles guide people only."""
    named = [o for note in prd.guidance.environment for o in OPERATOR_TITLES.get(note.title.strip().casefold(), ())]
    return tuple(dict.fromkeys(named))


def plan(prds: Sequence[Prd], count: int, available_domains: Collection[int]) -> tuple[SynthesisOrder, ...]:
    """Share a number of tasks out among the active PRDs and their target domains.

    A target weighs its failures times the weight of its PRD's priority; tasks are shared out in proportion, by largest
    remainders. Targets that no author knows go to available domains of the same level 1 in turn, and fall away
    where there is none (`uncovered` lists them).

    Args:
        prds: PRDs; only those with status Active count.
        count: tasks wanted in all.
        available_domains: level-2 domains that can be synthesized in.

    Returns:
        Orders with at least one task each, in the order of the PRDs; their tasks add up to `count`.

    Raises:
        InputError: no active PRD has a target that can be synthesized.
    """
    placed = [(prd, target, place) for prd in prds for target, place in _places(prd, available_domains)]
    if not placed or count < 1:
        raise InputError(
            f"{len(prds)} PRDs give nothing to do for {count} tasks: set a status to Active, target a domain of a "
            "level 1 that has a card (docs/cards.md), and ask for at least one task"
        )
    weights = [PRIORITY_WEIGHTS[prd.priority] * prd.guidance.failures.get(target, 1) for prd, target, _ in placed]
    shares = apportion(weights, count)
    return tuple(_order(prd, target, place, tasks) for (prd, target, place), tasks in zip(placed, shares) if tasks)


def uncovered(prds: Sequence[Prd], available_domains: Collection[int]) -> tuple[tuple[str, int], ...]:
    """Targets of active PRDs that nothing can be synthesized for, as `(PRD, domain)`."""
    return tuple(
        (prd.id, target)
        for prd in prds
        if prd.status == "Active"
        for target in prd.targets.domains
        if _substitutes(target, available_domains) == ()
    )


def _places(prd: Prd, available: Collection[int]) -> list[tuple[int, int]]:
    """Each target of an active PRD with the domain that stands for it."""
    if prd.status != "Active":
        return []
    found = [(target, _substitutes(target, available)) for target in prd.targets.domains]
    return [(target, places[i % len(places)]) for i, (target, places) in enumerate(found) if places]


def _substitutes(target: int, available: Collection[int]) -> tuple[int, ...]:
    if target in available:
        return (target,)
    wanted = domain(target)
    return tuple(i for i in sorted(available) if (domain(i).split, domain(i).l1) == (wanted.split, wanted.l1))


def _order(prd: Prd, target: int, place: int, tasks: int) -> SynthesisOrder:
    depth = prd.guidance.depth or 1
    return SynthesisOrder(
        prd=prd.id,
        target=target,
        domain=place,
        environments=-(-tasks // TASKS_PER_ENVIRONMENT),
        tasks=tasks,
        operators=operators_of(prd),
        tools=prd.guidance.tools,
        # a heuristic: what must be deep or complete needs several goals, what tests one step is clearest with few
        goals=(2, 4) if depth >= 3 else (1, 2),
        depth=depth,
        seed=f"{prd.id}/{target}",
    )


def apportion(weights: Sequence[float], count: int) -> list[int]:
    """Whole numbers in proportion to weights that add up to `count`: the method of largest remainders."""
    total = sum(weights)
    exact = [weight * count / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for index in by_remainder[: count - sum(shares)]:
        shares[index] += 1
    return shares


def dependency_depth(private: PrivateTask) -> int:
    """The length in calls of the longest chain of a reference in which each call needs one before it."""
    depths: list[int] = []
    for call in private.calls:
        needed = {*call.after, *(s.call for s in call.sources.values() if s.call is not None)}
        depths.append(1 + max((depths[i] for i in needed if i < len(depths)), default=0))
    return max(depths, default=0)


def needs_a_focus_tool(order: SynthesisOrder, private: PrivateTask) -> bool:
    """Whether the reference of a task calls one of the tools that the order is about."""
    return not order.tools or any(call.tool in order.tools for call in private.calls)
