"""The loop in one section: training, scores from policy to policy, diagnosis, PRDs and rollouts side by side.

Everything is read from the files of the run; a part whose files do not exist is left out, and without any of
them there is no section.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from agentomnia.report.loop_diagnosis import DiagnosisView, diagnosis_view
from agentomnia.report.loop_domains import AlignmentView, alignment_view
from agentomnia.report.loop_prds import PrdsView, read_prds
from agentomnia.report.loop_rollouts import PairView, rollout_pairs
from agentomnia.report.loop_rows import DiagnosisRow, GapRow, SplitRow, read_loop, rows_of
from agentomnia.report.loop_scores import ScoresView, Suites, learners, read_suites, scores_view
from agentomnia.report.loop_training import TrainingView, training_view
from agentomnia.runs.episodes import read_tasks
from agentomnia.task.task import PrivateTask
from agentomnia.taxonomy.coordinate import Coordinate


@dataclass(frozen=True)
class LoopView:
    """What the section shows; a part that a run does not have is `None` or empty."""

    scores: ScoresView | None
    training: TrainingView | None
    alignment: AlignmentView | None
    diagnosis: DiagnosisView | None
    prds: PrdsView | None
    pairs: tuple[PairView, ...]
    splits: tuple[tuple[str, int], ...]
    """Suites with their numbers of tasks."""


def gather_loop(run_path: Path) -> LoopView | None:
    """Read what the loop left in a run; nothing where it left nothing.

    Raises:
        InputError: a file cannot be read; names file and line.
    """
    splits = {r.task: r.suite for r in rows_of(run_path / "splits.jsonl", SplitRow)}
    suites = read_suites(run_path)
    loop = read_loop(run_path / "loop.json")
    diagnoses = list(rows_of(run_path / "diagnosis" / "tasks.jsonl", DiagnosisRow))
    private, coordinates = _tasks(run_path)
    counts = Counter(splits.values())
    view = LoopView(
        scores=scores_view(suites, {task: len(p.calls) for task, p in private.items()}, counts),
        training=training_view(run_path, loop),
        alignment=alignment_view(coordinates, splits, (d.coordinate for d in diagnoses), loop),
        diagnosis=diagnosis_view(diagnoses, list(rows_of(run_path / "diagnosis" / "capabilities.jsonl", GapRow))),
        prds=read_prds(run_path / "prds" / "prds.jsonl"),
        pairs=rollout_pairs(run_path, _candidates(suites), private, {d.trajectory: d for d in diagnoses}),
        splits=tuple(counts.items()),
    )
    parts = (view.scores, view.training, view.alignment, view.diagnosis, view.prds)
    return view if any(parts) else None


def _tasks(run_path: Path) -> tuple[dict[str, PrivateTask], dict[str, Coordinate]]:
    if not (run_path / "tasks.jsonl").exists():
        return {}, {}
    pairs = list(read_tasks(run_path))
    return {t.id: p for t, p in pairs}, {t.id: t.coordinate for t, _ in pairs}


def _candidates(suites: Suites) -> list[tuple[str, str]]:
    """Evaluations to take failed rollouts from: the latest policy before evolution first, unseen suites first."""
    found = [(suite, policy) for suite, by in suites.items() for policy in learners(list(by))]
    late = {p: i for i, p in enumerate(("rl", "sft", "evolved"))}
    return sorted(found, key=lambda pair: late.get(pair[1], len(late)))
