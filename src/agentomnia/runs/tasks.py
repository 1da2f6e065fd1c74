"""The task stage: enriched initial states, DAG tasks on them, the task gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from agentomnia.environment.state import State
from agentomnia.errors import OmniaError
from agentomnia.runs.parallel import in_order, progress
from agentomnia.runs.run import Run, StageReport, read_jsonl
from agentomnia.synthesis.environments.package import Package, load_package, write_state
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.generate import Dropped, TaskSite, generate
from agentomnia.synthesis.tasks.dag.graph import build_graph
from agentomnia.synthesis.tasks.dag.groups import sample_groups
from agentomnia.synthesis.tasks.gate import Evaluated, verify_task
from agentomnia.synthesis.tasks.operators import enrich

FILES = ("tasks.jsonl", "tasks.private.jsonl", "states.jsonl", "rejected.jsonl")
_TASKS_PER_STATE = 5
_ATTEMPTS_PER_TASK = 6


@dataclass(frozen=True)
class TaskItem:
    """One environment to make tasks for."""

    environment: Path
    count: int
    seed: str


@dataclass
class TaskResult:
    """What one environment gave."""

    environment: str
    tasks: list[dict[str, Any]] = field(default_factory=list)
    private: list[dict[str, Any]] = field(default_factory=list)
    states: list[tuple[str, State, list[dict[str, Any]]]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)


def make_tasks(run: Run, per_environment: int, seed: int, jobs: int) -> StageReport:
    """Make and verify tasks for every environment of the run."""
    finished = run.finished("tasks")
    if finished is not None:
        return finished
    stage = run.stage("tasks", FILES)
    ids = [row["id"] for row in read_jsonl(run.path / "environments.jsonl")]
    items = [
        TaskItem(run.path / "environments" / i, per_environment, f"{seed}/{i}") for i in ids if i not in stage.done
    ]
    with progress("tasks", len(ids), len(ids) - len(items)) as advance:
        for result in in_order(_make, items, jobs):
            _commit(run, stage, result)
            advance(f"{stage.report.kept} kept")
    return stage.end()


def _commit(run: Run, stage: Any, result: TaskResult) -> None:
    for name, state, _ in result.states:
        write_state(run.path / "environments" / result.environment, name, state)
    states = [{"environment": result.environment, "state": n, "enrichments": log} for n, _, log in result.states]
    rows = {
        "tasks.jsonl": result.tasks,
        "tasks.private.jsonl": result.private,
        "states.jsonl": states,
        "rejected.jsonl": result.rejected,
    }
    stage.commit(result.environment, rows, len(result.tasks), [r["reason"] for r in result.rejected])


def _make(item: TaskItem) -> TaskResult:
    """One environment's tasks, in a worker process."""
    result = TaskResult(item.environment.name)
    try:
        package = load_package(item.environment)
        _fill(result, package, item)
    except OmniaError as error:
        result.rejected.append(_rejection(item.environment.name, "no tasks for this environment", str(error)))
    return result


def _fill(result: TaskResult, package: Package, item: TaskItem) -> None:
    spec = package.spec
    graph = build_graph(spec, package.facts)
    groups = sample_groups(spec, graph, Random(f"{item.seed}/groups"))
    maker = StateMaker(spec)
    queries: set[str] = set()
    site: TaskSite | None = None
    on_state = 0
    for attempt in range(item.count * _ATTEMPTS_PER_TASK):
        if len(result.tasks) == item.count:
            return
        group = next(groups, None)
        if group is None:
            result.rejected.append(_rejection(package.id, "no tool group", "no chain of tools ends in a change"))
            return
        if site is None or on_state == _TASKS_PER_STATE:
            site, on_state = _new_site(result, package, maker, item.seed), 0
        made = _one(result, package, site, group, f"{item.seed}/{attempt}", queries)
        on_state += made


def _new_site(result: TaskResult, package: Package, maker: StateMaker, seed: str) -> TaskSite:
    name = f"s{len(result.states)}"
    state = maker.make(f"{seed}/{name}")
    log = enrich(package.spec, maker, state, Random(f"{seed}/{name}/enrich"))
    result.states.append((name, state, [e.to_json() for e in log]))
    return TaskSite(package.id, package.spec, package.program, package.facts, name, state)


def _one(result: TaskResult, package: Package, site: TaskSite, group: Any, seed: str, queries: set[str]) -> bool:
    """Try one task; whether it was kept."""
    candidate = generate(site, group, seed)
    if isinstance(candidate, Dropped):
        result.rejected.append(_rejection(package.id, candidate.reason, ", ".join(sorted(group.tools))))
        return False
    if candidate.public.query in queries:
        result.rejected.append(_rejection(package.id, "said before", candidate.public.query))
        return False
    subject = Evaluated(candidate.public, candidate.private, package.spec, package.program, site.state)
    findings = verify_task(subject)
    if findings:
        evidence = f"{findings[0].evidence} | {candidate.public.query}"
        result.rejected.append(_rejection(package.id, f"gate: {findings[0].check}", evidence))
        return False
    queries.add(candidate.public.query)
    result.tasks.append(candidate.public.to_json())
    result.private.append(candidate.private.to_json())
    return True


def _rejection(environment: str, reason: str, evidence: str) -> dict[str, Any]:
    return {"stage": "tasks", "item": environment, "reason": reason, "evidence": evidence}
