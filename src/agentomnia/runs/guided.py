"""PRD-guided synthesis in a run: which environments and tasks orders become (paper, section 6.2).

The loop's second round makes small tasks, one new variant of each domain (`runs/loop.py`). Here are what both share,
and the full size for `omnia synth … --prd`: as many variants of a domain as an order says, ordinary tasks that show
every tool. A run with `--prd` holds nothing but what its PRDs ask for; its tasks are the suite `prd`.

Orders are conditions for sampling, not promises: `tools` and `operators` steer groups and states, `goals` bounds the
number of goals, and a task is kept where it passes the gate, also where it is shallower than `depth`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentomnia.errors import RunError
from agentomnia.evolution.guidance import TASKS_PER_ENVIRONMENT, SynthesisOrder, apportion, plan, uncovered
from agentomnia.evolution.prd import Prd
from agentomnia.runs.environments import EnvironmentItem
from agentomnia.runs.evolution import read_prds
from agentomnia.runs.run import Run
from agentomnia.runs.tasks import TaskItem
from agentomnia.synthesis.environments.author import BuiltinAuthor
from agentomnia.synthesis.tasks.dag.generate import DagProfile

SUITE = "prd"
"""Suite of guided tasks in `splits.jsonl`."""


@dataclass(frozen=True)
class Guidance:
    """What some PRDs ask for."""

    prds: tuple[Prd, ...]
    tasks: int
    """Tasks in all, before the gate."""
    orders: tuple[SynthesisOrder, ...]
    uncovered: tuple[tuple[str, int], ...]
    """Targets, as (PRD, domain), that no card covers: nothing is made for them."""

    def to_config(self, seed: int) -> dict[str, Any]:
        """The settings of a stage; a PRD counts by what it says."""
        return {"prds": [f"{p.id} {p.identity[:16]}" for p in self.prds], "guided_tasks": self.tasks, "seed": seed}


def read_guidance(path: Path, count: int | None = None) -> Guidance:
    """Plan for the PRDs of a file or a folder, in the domains that have a card.

    Args:
        path: a PRD as Markdown, or a folder of them.
        count: tasks wanted in all; by default 7 for each target of an active PRD, one environment's worth.

    Raises:
        InputError: there is no PRD, one cannot be read, or none of them gives anything to do.
    """
    prds, domains = read_prds(path), BuiltinAuthor().domains
    targets = sum(len(prd.targets.domains) for prd in prds if prd.status == "Active")
    wanted = count or max(1, targets) * TASKS_PER_ENVIRONMENT
    return Guidance(tuple(prds), wanted, plan(prds, wanted, domains), uncovered(prds, domains))


def guidance_of(run: Run, path: Path) -> Guidance:
    """The guidance that a run's environments were made for, read again.

    Raises:
        RunError: they were made for something else.
        InputError: as `read_guidance`.
    """
    made_for = run.config().get("environments", {})
    again = f"start a new run: omnia synth environments --prd {path} --out NEW"
    if "guided_tasks" not in made_for:
        raise RunError(f"{run.path} has environments that no PRD asked for; {again}")
    found = read_guidance(path, made_for["guided_tasks"])
    if found.to_config(0)["prds"] != made_for["prds"]:
        raise RunError(f"{run.path} has environments for other PRDs than {path} holds now; {again}")
    return found


def guided_environments(orders: Sequence[SynthesisOrder], seed: int) -> list[EnvironmentItem]:
    """For each order, its variants of the domain."""
    return [
        EnvironmentItem(_name(order, n), f"{seed}/{_name(order, n)}", domain=order.domain, variant=n + 1)
        for order in orders
        for n in range(order.environments)
    ]


def guided_tasks(run: Run, orders: Sequence[SynthesisOrder], seed: int) -> list[TaskItem]:
    """For each order, its tasks in equal parts on those of its environments that passed their gate.

    An order without such an environment gives no tasks; `rejected.jsonl` has the reason.
    """
    made = made_environments(run, "environments")
    items = []
    for order in orders:
        places = [n for n in range(order.environments) if _name(order, n) in made]
        shares = apportion([1.0] * len(places), order.tasks) if places else []
        for n, count in zip(places, shares):
            item = TaskItem(
                environment=run.path / "environments" / made[_name(order, n)],
                count=count,
                seed=f"{seed}/{_name(order, n)}",
                name=_name(order, n),
                states=f"{order.prd}-{order.target}-{n}-",
                profile=DagProfile(least_goals=order.goals[0], most_goals=order.goals[1]),
                suite=SUITE,
            )
            items.append(conditioned(item, order))
    return [item for item in items if item.count]


def conditioned(item: TaskItem, order: SynthesisOrder) -> TaskItem:
    """An item under an order's conditions: the tools that its tasks need, the operators of its states."""
    return replace(item, focus=frozenset(order.tools) or item.focus, operators=order.operators)


def made_environments(run: Run, stage: str) -> dict[str, str]:
    """Ids of the environments that a stage made, by the item they were made for."""
    entries = [e for e in run.journal if e["stage"] == stage]
    if not entries:
        return {}
    rows = (run.path / "environments.jsonl").read_bytes()[entries[0]["sizes"]["environments.jsonl"] :].splitlines()
    kept = [e["item"] for e in entries if e["event"] == "item" and e["kept"]]
    return {item: json.loads(row)["id"] for item, row in zip(kept, rows)}


def _name(order: SynthesisOrder, number: int) -> str:
    return f"prd/{order.seed}/{number}"
