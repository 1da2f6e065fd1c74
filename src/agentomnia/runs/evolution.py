"""The diagnosis stage: task diagnoses, capability gaps and PRDs of one evaluation (paper, section 6.1).

    diagnosis/tasks.jsonl           one TaskDiagnosis for each lost episode, in the order of the results
    diagnosis/capabilities.jsonl    one CapabilityGap a row, by frequency times severity
    prds/prds.jsonl, prds/ID.md     the PRDs, as rows and for people

Episodes that earned the reward, or say nothing about the agent, are counted and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.errors import InputError
from agentomnia.evolution.attribution import TaskDiagnosis, diagnose
from agentomnia.evolution.capability import CapabilityGap, find_gaps
from agentomnia.evolution.markdown import from_markdown, to_markdown
from agentomnia.evolution.prd import Prd, make_prds
from agentomnia.evolution.protocol import require_valid
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.parallel import progress
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import Run, Stage
from agentomnia.synthesis.environments.package import read_spec, write_text
from agentomnia.task.task import PrivateTask, Task
from agentomnia.task.trajectory import Trajectory

TASKS, GAPS, PRDS = "diagnosis/tasks.jsonl", "diagnosis/capabilities.jsonl", "prds/prds.jsonl"
STAGE = "diagnosis"
_GROUPED = "capabilities and PRDs"
"""The last item of the stage: what can be written once every episode is diagnosed."""


@dataclass(frozen=True)
class Diagnosis:
    """What a diagnosis holds."""

    diagnoses: tuple[TaskDiagnosis, ...]
    gaps: tuple[CapabilityGap, ...]
    prds: tuple[Prd, ...]
    skipped: dict[str, int]
    """Episodes that were not diagnosed, by reason."""


def diagnose_evaluation(run: Run, evaluation: str, *, most: int = 24) -> Diagnosis:
    """Diagnose the lost episodes of an evaluation and write the reports and PRDs; goes on where it was stopped.

    Args:
        run: a run with tasks and that evaluation.
        evaluation: name of the folder under `evaluations/`.
        most: how many PRDs at most.

    Raises:
        InputError: the evaluation is missing, belongs to other tasks, or a report does not keep its protocol.
    """
    results = results_path(run.path, evaluation)
    finished = run.finished(STAGE)
    if finished is None:
        stage = run.stage(STAGE, (TASKS, GAPS, PRDS))
        _diagnose_tasks(run, stage, results)
        _group(run, stage, results, most)
        finished = stage.end()
    found = read_diagnosis(run.path)
    return Diagnosis(found.diagnoses, found.gaps, found.prds, finished.sorted_reasons())


def results_path(run: Path, evaluation: str) -> Path:
    """The results of an evaluation.

    Raises:
        InputError: there are none; names those there are.
    """
    path = run / "evaluations" / evaluation / "results.jsonl"
    if not path.exists():
        known = sorted(p.parent.name for p in (run / "evaluations").glob("*/results.jsonl"))
        told = f"this run has {', '.join(known)}" if known else "first run: omnia eval"
        raise InputError(f"{run} has no evaluation {evaluation!r}; {told}")
    return path


def read_diagnosis(run: Path) -> Diagnosis:
    """The diagnosis that a run holds.

    Raises:
        InputError: it has none, or a row cannot be read.
    """
    return Diagnosis(
        tuple(read_rows(run / TASKS, TaskDiagnosis)),
        tuple(read_rows(run / GAPS, CapabilityGap)),
        tuple(read_rows(run / PRDS, Prd)),
        {},
    )


def read_document(path: Path) -> str:
    """The text of a PRD file.

    Raises:
        InputError: it is missing or no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is the path right?") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no UTF-8 text; give a PRD as Markdown (omnia prd new)") from None


def read_prds(path: Path) -> list[Prd]:
    """The PRDs of a folder of Markdown files, or of one file; what people edited there counts.

    Raises:
        InputError: there are none, one is no PRD, or two have one id.
    """
    files = sorted(path.glob("*.md")) if path.is_dir() else [path]
    found = [from_markdown(read_document(file), str(file)) for file in files]
    if not found:
        raise InputError(f"{path} holds no PRDs; make some with `omnia diagnose` or `omnia prd new`")
    ids = [prd.id for prd in found]
    for repeated in sorted({i for i in ids if ids.count(i) > 1}):
        raise InputError(f"{path}: two files have the id {repeated}; give one of them another number")
    return found


def _diagnose_tasks(run: Run, stage: Stage, results: Path) -> None:
    tasks: dict[str, tuple[Task, PrivateTask]] = {t.id: (t, p) for t, p in read_tasks(run.path)}
    spec_of = _specs(run.path)
    episodes = [(t.id, t.reward) for t in read_rows(results, Trajectory)]
    done = sum(1 for id, _ in episodes if id in stage.done)
    with progress(STAGE, len(episodes), done) as advance:
        for trajectory in read_rows(results, Trajectory):
            if trajectory.id in stage.done:
                continue
            if trajectory.task not in tasks:
                raise InputError(f"{results}: {trajectory.task} is no task of this run; evaluate this run's tasks")
            reason = _left_out(trajectory)
            if reason is None:
                found = diagnose(trajectory, *tasks[trajectory.task], spec_of(trajectory.environment))
                stage.commit(trajectory.id, {TASKS: [found.to_json()]}, 1, ())
            else:
                stage.commit(trajectory.id, {}, 0, (reason,))
            advance(f"{stage.report.kept} diagnosed")


def _left_out(trajectory: Trajectory) -> str | None:
    """Why an episode is not diagnosed, or `None` where it is."""
    if trajectory.reward is None:
        return "without reward"
    return "passed" if trajectory.reward >= 1.0 else None


def _specs(run: Path) -> Callable[[str], EnvironmentSpec]:
    return cache(lambda name: read_spec(run / "environments" / name / "spec.json"))


def _group(run: Run, stage: Stage, results: Path, most: int) -> None:
    """Gaps and PRDs over all diagnoses; the documents are written before the rows that vouch for them."""
    if _GROUPED in stage.done:
        return
    diagnoses = list(read_rows(run.path / TASKS, TaskDiagnosis))
    gaps = find_gaps(diagnoses)
    require_valid(diagnoses, gaps, {t.id: t for t in _lost(results)})
    prds = make_prds(gaps, diagnoses, most)
    (run.path / "prds").mkdir(exist_ok=True)
    for prd in prds:
        write_text(run.path / "prds" / f"{prd.id}.md", to_markdown(prd))
    rows = {GAPS: [g.to_json() for g in gaps], PRDS: [p.to_json() for p in prds]}
    stage.commit(_GROUPED, rows, 0, ())


def _lost(results: Path) -> Iterator[Trajectory]:
    return (t for t in read_rows(results, Trajectory) if _left_out(t) is None)
