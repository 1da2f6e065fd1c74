"""Everything a report shows, gathered from the files of a run.

The environment stage is the only one that a report needs; what a later stage has not made is `None` or
empty. Files are read row by row: memory grows with what is embedded and with one number a task, not with the
run. What is embedded is drawn at even distances over a file, so that nobody chose it, and is capped:

    ENVIRONMENTS environments, TASKS tasks, REFERENCES reference trajectories, and for each evaluation the
    episode on the first of those tasks; for an agent that is no floor and no reference FAILURES failed ones more;
    EPISODES in all
"""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentomnia import __version__
from agentomnia.errors import InputError
from agentomnia.evaluation.suite import parse_name, role_of
from agentomnia.report.coverage import CoverageView, coverage_view
from agentomnia.report.environment import EnvironmentView, read_environment
from agentomnia.report.episode import LIMIT, EpisodeView, episode_view
from agentomnia.report.evaluation import Evaluation, EvaluationsView, measure, side_by_side
from agentomnia.report.gates import Check, environment_checks, task_checks
from agentomnia.report.index import IndexRow
from agentomnia.report.loop import LoopView, gather_loop
from agentomnia.report.statistics import (
    EnvironmentStatistics,
    GateWork,
    Refinement,
    TaskCounter,
    TaskStatistics,
    environment_statistics,
    gate_work,
    refinement,
)
from agentomnia.report.task import Site, TaskView, task_view
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import read_journal
from agentomnia.synthesis.environments.gate import Verification
from agentomnia.synthesis.environments.package import read_verification
from agentomnia.synthesis.environments.toolset import ToolDecision
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.coverage import Span

ENVIRONMENTS, TASKS, REFERENCES, FAILURES = 6, 30, 6, 3
EPISODES = 30
_EXAMPLE = 180
_NOT_MODELLED = "not modelled"
"""Operations of a seed file that no tool could be made of: listed, but no candidate was dropped."""


class Rejection(BaseModel):
    """One row of `rejected.jsonl`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stage: str
    reason: str
    evidence: str = ""


@dataclass(frozen=True)
class Reason:
    """A reason for dropping, with the evidence of the first case."""

    reason: str
    count: int
    example: str


@dataclass(frozen=True)
class StageView:
    """What a stage kept and dropped."""

    name: str
    kept: int
    dropped: int
    finished: bool
    reasons: tuple[Reason, ...]

    @property
    def made(self) -> int:
        """Candidates in all."""
        return self.kept + self.dropped


@dataclass(frozen=True)
class TasksView:
    """The tasks of a run: all of them measured, some of them in full."""

    count: int
    statistics: TaskStatistics
    checks: tuple[Check, ...]
    shown: tuple[TaskView, ...]


@dataclass(frozen=True)
class Section:
    """The settings of one stage."""

    name: str
    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    version: str
    fingerprint: str
    """Head of the SHA-256 of the index of environments and the tasks."""
    settings: tuple[Section, ...]
    stages: tuple[StageView, ...]
    coverage: CoverageView
    environments: int
    environment_statistics: EnvironmentStatistics
    environment_checks: tuple[Check, ...]
    gate: GateWork
    refinement: Refinement
    shown_environments: tuple[EnvironmentView, ...]
    tasks: TasksView | None
    references: int | None
    """Reference trajectories; `None` where the stage has not run."""
    full_rewards: int
    """Reference trajectories with reward 1.0."""
    episodes: tuple[EpisodeView, ...]
    evaluations: EvaluationsView | None
    """Evaluations of all tasks; those of a suite are the loop's."""
    loop: LoopView | None

    @property
    def task_stage(self) -> StageView | None:
        """What the task stage kept and dropped, where it has run."""
        return next((s for s in self.stages if s.name == "tasks"), None)

    @property
    def short_table(self) -> int:
        """Rows up to which a table of scores stands open."""
        return 20

    @property
    def text_limit(self) -> int:
        """Characters of a message or an observation that are shown."""
        return LIMIT

    @property
    def environment_anchors(self) -> dict[str, str]:
        """Anchors of the embedded environments by id."""
        return {e.id: e.anchor for e in self.shown_environments}

    @property
    def environment_titles(self) -> dict[str, str]:
        """Titles of the embedded environments by id."""
        return {e.id: e.title for e in self.shown_environments}

    @property
    def task_anchors(self) -> dict[str, str]:
        """Anchors of the embedded tasks by id."""
        return {t.id: t.anchor for t in self.tasks.shown} if self.tasks is not None else {}


def gather(run_path: Path) -> Report:
    """Read a run.

    Raises:
        InputError: there is no environment stage, or a file cannot be read; the message names file and line.
    """
    index = list(read_rows(run_path / "environments.jsonl", IndexRow))
    folders = [run_path / "environments" / row.id for row in index]
    rejected = _rejected(run_path / "rejected.jsonl")
    counter, spans = _count_tasks(run_path)
    tasks = None if counter is None else _tasks(run_path, counter, rejected.get("tasks", ()))
    picked = _Picker([t.id for t in tasks.shown] if tasks is not None else [])
    references = _references(run_path / "trajectories.jsonl", picked)
    files = sorted(run_path.glob("evaluations/*/results.jsonl"))
    scores = [_evaluation(p, picked) for p in files if parse_name(p.parent.name).suite is None]
    kept = {"environments": len(index), "tasks": len(spans), "trajectories": references}
    return Report(
        version=__version__,
        fingerprint=_fingerprint(run_path),
        settings=_settings(run_path / "config.toml"),
        stages=_stages(run_path, kept, rejected),
        coverage=coverage_view((Span.of(*row.domains) for row in index), spans),
        environments=len(index),
        environment_statistics=environment_statistics(index),
        environment_checks=environment_checks(_by_reason(rejected.get("environments", ()))),
        gate=gate_work(_verification(f) for f in folders),
        refinement=refinement(d for f in folders for d in read_rows(f / "tools.jsonl", ToolDecision)),
        shown_environments=_shown_environments(folders),
        tasks=tasks,
        references=references,
        full_rewards=picked.full_rewards,
        episodes=picked.views(),
        evaluations=side_by_side(scores) if scores else None,
        loop=gather_loop(run_path),
    )


def spread(count: int, most: int) -> list[int]:
    """At most so many of `count` indices, at even distances from the first on."""
    shown = min(count, most)
    return [i * count // shown for i in range(shown)]


def _shown_environments(folders: list[Path]) -> tuple[EnvironmentView, ...]:
    chosen = [folders[i] for i in spread(len(folders), ENVIRONMENTS)]
    return tuple(read_environment(folder, f"environment-{i}") for i, folder in enumerate(chosen, 1))


def _verification(folder: Path) -> Verification:
    path = folder / "verification.json"
    try:
        return read_verification(path)
    except ValidationError as error:
        raise InputError(f"{path}: {error.errors()[0]['msg']}; make the environment again") from None


def _count_tasks(run_path: Path) -> tuple[TaskCounter | None, list[Span]]:
    """Measure every task; nothing where the stage has not run."""
    if not (run_path / "tasks.jsonl").exists():
        return None, []
    counter, spans = TaskCounter(), []
    for task, private in read_tasks(run_path):
        counter.add(task, private)
        spans.append(Span.of(task.coordinate))
    return counter, spans


def _tasks(run_path: Path, counter: TaskCounter, rejected: Iterable[Reason]) -> TasksView:
    count = len(counter.calls)
    chosen = set(spread(count, TASKS))
    site = Site(run_path / "environments")
    pairs = [pair for i, pair in enumerate(read_tasks(run_path)) if i in chosen]
    return TasksView(
        count=count,
        statistics=counter.statistics(),
        checks=task_checks(_by_reason(rejected)),
        shown=tuple(task_view(t, p, site, f"task-{i}") for i, (t, p) in enumerate(pairs, 1)),
    )


class _Picker:
    """Chooses the episodes to embed while the files are read once."""

    def __init__(self, tasks: list[str]) -> None:
        """Choose among episodes on these tasks."""
        self._wanted = {tasks[i] for i in spread(len(tasks), REFERENCES)}
        self._first = tasks[0] if tasks else None
        self._picked: list[tuple[Trajectory, str]] = []
        self._failures: dict[str, int] = {}
        self.full_rewards = 0

    def reference(self, found: Trajectory) -> None:
        """Consider a reference trajectory, and count it where its reward is full."""
        self.full_rewards += found.reward == 1.0
        if found.task in self._wanted:
            self._picked.append((found, ""))

    def evaluated(self, found: Trajectory, evaluation: str) -> None:
        """Consider an episode of an evaluation; the reference agent's are the reference trajectories again."""
        role = role_of(found.agent)
        if role == "reference":
            return
        failures = self._failures.get(evaluation, 0)
        failed = role == "agent" and found.reward != 1.0 and failures < FAILURES
        if (found.task == self._first or failed) and len(self._picked) < EPISODES:
            self._picked.append((found, evaluation))
            self._failures[evaluation] = failures + failed

    def views(self) -> tuple[EpisodeView, ...]:
        """The chosen episodes, references first."""
        return tuple(episode_view(t, name, f"episode-{i}") for i, (t, name) in enumerate(self._picked, 1))


def _references(path: Path, picked: _Picker) -> int | None:
    """The number of reference trajectories, or `None` where the stage has not run."""
    if not path.exists():
        return None
    count = 0
    for trajectory in read_rows(path, Trajectory):
        picked.reference(trajectory)
        count += 1
    return count


def _evaluation(path: Path, picked: _Picker) -> Evaluation:
    name = path.parent.name

    def watched() -> Iterator[Trajectory]:
        for trajectory in read_rows(path, Trajectory):
            picked.evaluated(trajectory, name)
            yield trajectory

    return measure(name, watched())


def _rejected(path: Path) -> dict[str, tuple[Reason, ...]]:
    """What was dropped, by stage and reason, the most frequent first."""
    if not path.exists():
        return {}
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for row in read_rows(path, Rejection):
        key = (row.stage, row.reason)
        counts[key] += 1
        examples.setdefault(key, row.evidence)
    found: dict[str, list[Reason]] = {}
    for (stage, reason), count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        found.setdefault(stage, []).append(Reason(reason, count, _shortened(examples[(stage, reason)])))
    return {stage: tuple(reasons) for stage, reasons in found.items()}


def _shortened(text: str) -> str:
    return text if len(text) <= _EXAMPLE else text[: _EXAMPLE - 1].rstrip() + "…"


def _by_reason(reasons: Iterable[Reason]) -> dict[str, int]:
    return {r.reason: r.count for r in reasons}


def _stages(
    run_path: Path, kept: dict[str, int | None], rejected: dict[str, tuple[Reason, ...]]
) -> tuple[StageView, ...]:
    ended = {e["stage"] for e in read_journal(run_path) if e["event"] == "end"}
    stages = []
    for name, count in kept.items():
        if count is not None and (run_path / f"{name}.jsonl").exists():
            reasons = rejected.get(name, ())
            dropped = sum(r.count for r in reasons if r.reason != _NOT_MODELLED)
            stages.append(StageView(name, count, dropped, name in ended, reasons))
    return tuple(stages)


def _fingerprint(run_path: Path) -> str:
    """The head of a hash over the environments and tasks, so that two pages of the same data can be told."""
    found = hashlib.sha256()
    for name in ("environments.jsonl", "tasks.jsonl"):
        path = run_path / name
        found.update(path.read_bytes() if path.exists() else b"")
    return found.hexdigest()[:12]


def _settings(path: Path) -> tuple[Section, ...]:
    """The resolved settings by stage; addresses say where a run was made and are left out."""
    if not path.exists():
        return ()
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it or start a new run") from None
    return tuple(Section(name, tuple(_entries(section))) for name, section in config.items())


def _entries(section: dict[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        if key != "base_url" and value not in ("", []):
            yield key.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)
