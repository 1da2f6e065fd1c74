"""Episodes over a run's tasks: reference trajectories, and the evaluation of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any, Literal

from agentomnia.environment.instance import Instance
from agentomnia.episodes.agent import (
    Agent,
    ApologisingAgent,
    ChatAgent,
    NullAgent,
    RandomAgent,
    ScriptedAgent,
)
from agentomnia.episodes.loop import Stage as EpisodeStage
from agentomnia.episodes.loop import run_episode
from agentomnia.errors import InputError
from agentomnia.evaluation.summary import Summary, summarize
from agentomnia.llm.client import ChatClient, ModelEndpoint
from agentomnia.runs.parallel import in_order, progress
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import Run, StageReport, read_jsonl
from agentomnia.synthesis.environments.package import Package, package_of, write_text
from agentomnia.synthesis.trajectories.quality import QualityFinding, check_quality
from agentomnia.synthesis.trajectories.teacher import TeacherAgent
from agentomnia.task.task import PrivateTask, Task
from agentomnia.task.trajectory import Trajectory

ReferencePlayer = Literal["teacher", "scripted"]
"""Who plays the references: the teacher reasons and is checked for quality, the scripted agent only calls."""


@dataclass(frozen=True)
class EpisodeItem:
    """One episode to run."""

    environments: Path
    task: Task
    private: PrivateTask
    agent: str
    seed: int
    endpoint: ModelEndpoint | None = None
    ledger: Path | None = None


def read_tasks(run_path: Path) -> Iterator[tuple[Task, PrivateTask]]:
    """Tasks of a run with their privileged parts, in file order.

    Raises:
        InputError: a row is no task, or the two files do not go together; names the line.
    """
    public = read_rows(run_path / "tasks.jsonl", Task)
    private = read_rows(run_path / "tasks.private.jsonl", PrivateTask)
    for number, (task, hidden) in enumerate(zip_longest(public, private), 1):
        if task is None or hidden is None or task.id != hidden.id:
            message = f"tasks.jsonl and tasks.private.jsonl differ at line {number}; make the tasks again"
            raise InputError(f"{run_path}: {message}")
        yield task, hidden


def _episode(item: EpisodeItem) -> dict[str, Any]:
    """One episode, in a worker process."""
    import anyio

    package = package_of(item.environments, item.task.environment)
    state = package.state(item.task.state)
    spec = package.spec
    stage = EpisodeStage(item.task, item.private, package.program, state, spec.introduction, spec.policies)
    instance = Instance(package.program, state)

    async def play() -> Trajectory:
        if item.endpoint is None:
            return await run_episode(stage, _offline_agent(item, package, instance), instance, seed=item.seed)
        from agentomnia.llm.ledger import Ledger

        ledger = Ledger(item.ledger) if item.ledger is not None else None
        async with ChatClient(item.endpoint, ledger=ledger) as client:
            agent = ChatAgent(client, attempt=item.seed)
            trajectory = await run_episode(stage, agent, instance, seed=item.seed)
            return trajectory.model_copy(update={"usage": agent.usage})

    return anyio.run(play).to_json()


def _offline_agent(item: EpisodeItem, package: Package, instance: Instance) -> Agent:
    match item.agent:
        case "null":
            return NullAgent()
        case "apology":
            return ApologisingAgent()
        case "random":
            rng = Random(f"{item.seed}/{item.task.id}")
            return RandomAgent(instance, rng, calls=max(4, len(item.private.calls)))
        case "scripted":
            return ScriptedAgent(item.private)
        case "teacher":
            return TeacherAgent(item.task, item.private, package.spec, item.seed)
    raise InputError(f"there is no agent {item.agent!r}; use null, apology, random, scripted, teacher or chat")


def reference_player(run: Run, teacher: str | None) -> ReferencePlayer:
    """Who plays the references: the teacher asked for, else the one that the run began with, else the builtin.

    Raises:
        InputError: there is no such teacher.
    """
    chosen = teacher
    if chosen is None:
        chosen = "scripted" if run.config().get("trajectories", {}).get("agent") == "scripted" else "builtin"
    if chosen not in ("builtin", "scripted"):
        raise InputError(f"there is no teacher {chosen!r}; use builtin or scripted")
    return "teacher" if chosen == "builtin" else "scripted"


def make_references(
    run: Run,
    jobs: int,
    player: ReferencePlayer = "scripted",
    seed: int = 0,
    *,
    name: str = "trajectories",
    suites: Sequence[str] = (),
) -> StageReport:
    """Reference trajectories of every task; only those of full reward, and clean where they reason, are kept.

    Args:
        run: the run; rejections go to its `rejected.jsonl` with the check and the evidence.
        jobs: processes.
        player: who plays.
        seed: varies the teacher's words.
        name: of the stage; a later round has its own and adds to the same file.
        suites: suites of `splits.jsonl` whose tasks are played; every task when empty.
    """
    finished = run.finished(name)
    if finished is not None:
        return finished
    stage = run.stage(name, ("trajectories.jsonl", "rejected.jsonl"))
    rows = read_jsonl(run.path / "splits.jsonl") if suites else ()
    wanted = {row["task"] for row in rows if row["suite"] in suites}
    chosen = ((t, p) for t, p in read_tasks(run.path) if not suites or t.id in wanted)
    items = [EpisodeItem(run.path / "environments", t, p, player, seed) for t, p in chosen]
    left = [i for i in items if i.task.id not in stage.done]
    with progress(name, len(items), len(items) - len(left)) as advance:
        for item, (row, findings) in zip(left, in_order(_reference, left, jobs)):
            rejection = _rejection(item, row, findings)
            if rejection is None:
                stage.commit(item.task.id, {"trajectories.jsonl": [row]}, 1, ())
            else:
                stage.commit(item.task.id, {"rejected.jsonl": [rejection]}, 0, (rejection["reason"],))
            advance(f"{stage.report.kept} kept")
    return stage.end()


def _reference(item: EpisodeItem) -> tuple[dict[str, Any], list[QualityFinding]]:
    """One reference episode with its quality findings, in a worker process."""
    row = _episode(item)
    if item.agent != "teacher" or row.get("reward") != 1.0:
        return row, []
    spec = package_of(item.environments, item.task.environment).spec
    return row, list(check_quality(Trajectory.model_validate(row), item.task, spec))


def _rejection(item: EpisodeItem, row: dict[str, Any], findings: list[QualityFinding]) -> dict[str, Any] | None:
    """Why a reference trajectory is not kept, as a row; `None` where it is."""
    if row.get("reward") != 1.0:
        reason, evidence = f"reference stopped by {row['stop_reason']}", "; ".join(row.get("failures", ()))
    elif findings:
        reason = f"quality: {findings[0].check}"
        evidence = "; ".join(f"message {f.message}: {f.evidence}" for f in findings[:5])
    else:
        return None
    return {"stage": "trajectories", "item": item.task.id, "reason": reason, "evidence": evidence}


def _of_suite(run: Run, suite: str | None) -> Iterator[tuple[Task, PrivateTask]]:
    """The tasks of a suite of `splits.jsonl`, or every task."""
    if suite is None:
        return read_tasks(run.path)
    wanted = {row["task"] for row in read_jsonl(run.path / "splits.jsonl") if row["suite"] == suite}
    return ((t, p) for t, p in read_tasks(run.path) if t.id in wanted)


def evaluate(
    run: Run,
    agent: str,
    *,
    seed: int,
    jobs: int,
    endpoint: ModelEndpoint | None = None,
    name: str | None = None,
    most: int | None = None,
    suite: str | None = None,
    ledger: bool = True,
) -> Summary:
    """Run an agent over every task of a run, the first `most`, or those of a suite, and summarise.

    Results go to `evaluations/NAME/results.jsonl`, the summary beside them; model calls to `ledger.sqlite` unless
    `ledger` is off.
    """
    folder = f"evaluations/{name or agent}"
    results = f"{folder}/results.jsonl"
    stage = run.stage(f"evaluation {name or agent}", (results,))
    ledger_path = run.path / "ledger.sqlite" if endpoint is not None and ledger else None
    items = [
        EpisodeItem(run.path / "environments", t, p, agent, seed, endpoint, ledger_path)
        for t, p in islice(_of_suite(run, suite), most)
    ]
    left = [i for i in items if i.task.id not in stage.done]
    if left and run.finished(stage.name) is None:
        with progress(f"evaluation {name or agent}", len(items), len(items) - len(left)) as advance:
            for item, row in zip(left, in_order(_episode, left, jobs)):
                row.pop("tools", None)
                stage.commit(item.task.id, {results: [row]}, 1, ())
                advance("")
    stage.end()
    summary = summarize(read_rows(run.path / results, Trajectory))
    text = json.dumps(summary.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    write_text(run.path / folder / "summary.json", text)
    return summary
