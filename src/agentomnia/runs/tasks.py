"""The task stage: enriched initial states, DAG tasks on them, the task gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from agentomnia.environment.state import State
from agentomnia.errors import OmniaError
from agentomnia.runs.parallel import in_order, progress
from agentomnia.runs.run import Run, Stage, StageReport, read_jsonl
from agentomnia.synthesis.environments.package import Package, package_of, write_state
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.generate import STANDARD_PROFILE, DagProfile, Dropped, TaskSite, generate
from agentomnia.synthesis.tasks.dag.graph import build_graph
from agentomnia.synthesis.tasks.dag.groups import STANDARD, GroupProfile, ToolGroup, sample_groups
from agentomnia.synthesis.tasks.exposure import Exposure, expose
from agentomnia.synthesis.tasks.gate import Evaluated, verify_task
from agentomnia.synthesis.tasks.operators import Operator, enrich
from agentomnia.task.task import PrivateTask

FILES = ("tasks.jsonl", "tasks.private.jsonl", "states.jsonl", "rejected.jsonl")
_ATTEMPTS_PER_TASK = 6


@dataclass(frozen=True)
class TaskItem:
    """One environment to make tasks for."""

    environment: Path
    count: int
    seed: str
    name: str = ""
    """Of the item in the journal; the environment's id by default."""
    states: str = "s"
    """What the names of its initial states begin with."""
    profile: DagProfile = STANDARD_PROFILE
    groups: GroupProfile = STANDARD
    focus: frozenset[str] = frozenset()
    """Tools that tasks should need (paper, section 6.2)."""
    operators: tuple[Operator, ...] = ()
    """Operators for the initial states; all of them when empty."""
    exposure: Exposure | None = None
    """Which tools a task shows; all of the environment's where there is none."""
    suite: str | None = None
    """Written to `splits.jsonl`."""
    scale: float = 1.0
    """Size of the initial states, as a factor on each entity's ordinary number of records."""
    records: int | None = None
    """How many records of a list a policy sees; tasks that need later ones are dropped. All where it is `None`."""
    per_state: int = 5
    """Tasks on each initial state."""

    @property
    def key(self) -> str:
        """Name in the journal."""
        return self.name or self.environment.name


@dataclass
class TaskResult:
    """What one item gave."""

    item: TaskItem
    tasks: list[dict[str, Any]] = field(default_factory=list)
    private: list[dict[str, Any]] = field(default_factory=list)
    states: list[tuple[str, State, list[dict[str, Any]]]] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)


def make_tasks(run: Run, per_environment: int, seed: int, jobs: int) -> StageReport:
    """Make and verify tasks for every environment of the run."""
    ids = [row["id"] for row in read_jsonl(run.path / "environments.jsonl")]
    items = [TaskItem(run.path / "environments" / i, per_environment, f"{seed}/{i}") for i in ids]
    return make_task_items(run, "tasks", items, jobs)


def make_task_items(run: Run, name: str, items: Sequence[TaskItem], jobs: int) -> StageReport:
    """Make and verify the tasks of some items, as a stage of the given name; they join the run's other tasks."""
    finished = run.finished(name)
    if finished is not None:
        return finished
    suites = ("splits.jsonl",) if any(i.suite is not None for i in items) else ()
    stage = run.stage(name, (*FILES, *suites))
    left = [i for i in items if i.key not in stage.done]
    with progress(name, len(items), len(items) - len(left)) as advance:
        for result in in_order(_make, left, jobs):
            _commit(run, stage, result)
            advance(f"{stage.report.kept} kept")
    return stage.end()


def _commit(run: Run, stage: Stage, result: TaskResult) -> None:
    environment = result.item.environment.name
    for name, state, _ in result.states:
        write_state(run.path / "environments" / environment, name, state)
    states = [{"environment": environment, "state": n, "enrichments": log} for n, _, log in result.states]
    rows = {
        "tasks.jsonl": result.tasks,
        "tasks.private.jsonl": result.private,
        "states.jsonl": states,
        "rejected.jsonl": result.rejected,
        "splits.jsonl": [{"task": t["id"], "suite": result.item.suite} for t in result.tasks],
    }
    stage.commit(result.item.key, rows, len(result.tasks), [r["reason"] for r in result.rejected])


def _make(item: TaskItem) -> TaskResult:
    """One item's tasks, in a worker process."""
    result = TaskResult(item)
    try:
        _fill(result, package_of(item.environment.parent, item.environment.name))
    except OmniaError as error:
        result.rejected.append(_rejection(item.environment.name, "no tasks for this environment", str(error)))
    return result


def _fill(result: TaskResult, package: Package) -> None:
    item, spec = result.item, package.spec
    graph = build_graph(spec, package.facts)
    groups = sample_groups(spec, graph, Random(f"{item.seed}/groups"), item.groups, item.focus)
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
        if site is None or on_state == item.per_state:
            site, on_state = _new_site(result, package, maker), 0
        on_state += _one(result, package, site, group, f"{item.seed}/{attempt}", queries)


def _new_site(result: TaskResult, package: Package, maker: StateMaker) -> TaskSite:
    item = result.item
    number = len(result.states)
    seed = f"{item.seed}/s{number}"
    state = maker.make(seed, item.scale)
    log = enrich(package.spec, maker, state, Random(f"{seed}/enrich"), only=item.operators)
    name = f"{item.states}{number}"
    result.states.append((name, state, [e.to_json() for e in log]))
    return TaskSite(package.id, package.spec, package.program, package.facts, name, state)


def _one(result: TaskResult, package: Package, site: TaskSite, group: ToolGroup, seed: str, queries: set[str]) -> bool:
    """Try one task; whether it was kept."""
    candidate = generate(site, group, seed, result.item.profile)
    if isinstance(candidate, Dropped):
        result.rejected.append(_rejection(package.id, candidate.reason, ", ".join(sorted(group.tools))))
        return False
    if candidate.public.query in queries:
        result.rejected.append(_rejection(package.id, "said before", candidate.public.query))
        return False
    if result.item.records is not None and not _within(candidate.private, result.item.records):
        result.rejected.append(_rejection(package.id, "needs a record that a short view cuts", candidate.public.query))
        return False
    if result.item.exposure is not None:
        candidate = expose(candidate, package.spec, result.item.exposure, seed)
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


def _within(private: PrivateTask, records: int) -> bool:
    """Whether every argument that an observation shows is among the first records of its list."""
    paths = [source.path for call in private.calls for source in call.sources.values()]
    return all(not isinstance(step, int) or step < records for path in paths for step in path)


def _rejection(environment: str, reason: str, evidence: str) -> dict[str, Any]:
    return {"stage": "tasks", "item": environment, "reason": reason, "evidence": evidence}
