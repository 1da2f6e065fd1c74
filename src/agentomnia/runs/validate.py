"""Validation: the gates over what a run, or somebody else, has written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from agentomnia.errors import InputError, OmniaError
from agentomnia.row import Row
from agentomnia.runs.environments import worker_replayer
from agentomnia.runs.episodes import EpisodeItem, read_tasks
from agentomnia.runs.parallel import in_order, progress
from agentomnia.synthesis.environments.gate import ENVIRONMENT_CHECKS, Finding, verify_environment
from agentomnia.synthesis.environments.package import load_package, package_of
from agentomnia.synthesis.tasks.gate import TASK_CHECKS, Evaluated, TaskFinding, verify_task

Subject = TypeVar("Subject")


class CheckCount(Row):
    """How often a check passed and failed."""

    passed: int
    failed: int


class Validation(Row):
    """What a gate found over many subjects."""

    subjects: int
    passed: int
    checks: dict[str, CheckCount]
    failures: tuple[TaskFinding, ...]


def validate_tasks(path: Path, jobs: int) -> Validation:
    """Run the task gate over every task of a run directory.

    Raises:
        InputError: the directory has no tasks that can be read.
    """
    items = [EpisodeItem(path / "environments", t, p, "scripted", 0) for t, p in read_tasks(path)]
    if not items:
        raise InputError(f"{path} holds no tasks; make some with `omnia synth tasks`, or give another run directory")
    return _validation(_gated("task gate", _check_task, items, jobs), TASK_CHECKS)


def _check_task(item: EpisodeItem) -> list[TaskFinding]:
    try:
        package = package_of(item.environments, item.task.environment)
        state = package.state(item.task.state)
    except OmniaError as error:
        return [TaskFinding(task=item.task.id, check="reference", evidence=str(error))]
    return verify_task(Evaluated(item.task, item.private, package.spec, package.program, state))


def validate_environments(path: Path, jobs: int) -> Validation:
    """Run the environment gate over every package of a run directory, or over one package.

    Raises:
        InputError: there are no packages.
    """
    folders = (
        [path]
        if (path / "spec.json").exists()
        else sorted(p.parent for p in (path / "environments").glob("*/spec.json"))
    )
    if not folders:
        raise InputError(f"{path} holds no environment packages; give a run directory or one package")
    return _validation(_gated("environment gate", _check_environment, folders, jobs), ENVIRONMENT_CHECKS)


def _check_environment(folder: Path) -> list[TaskFinding]:
    try:
        findings: Iterable[Finding] = verify_environment(load_package(folder).spec, replayer=worker_replayer()).findings
    except OmniaError as error:
        findings = [Finding(check="load", evidence=str(error))]
    return [
        TaskFinding(task=folder.name, check=f.check, evidence=f"{f.tool}: {f.evidence}" if f.tool else f.evidence)
        for f in findings
    ]


def _gated(
    what: str, check: Callable[[Subject], list[TaskFinding]], subjects: Sequence[Subject], jobs: int
) -> list[list[TaskFinding]]:
    """The findings of a gate for each subject, with progress."""
    found = []
    with progress(what, len(subjects)) as advance:
        for findings in in_order(check, subjects, jobs):
            found.append(findings)
            advance("")
    return found


def _validation(found: list[list[TaskFinding]], checks: Iterable[str]) -> Validation:
    subjects = len(found)
    counts = {}
    for check in checks:
        failed = sum(1 for findings in found if any(f.check == check for f in findings))
        counts[check] = CheckCount(passed=subjects - failed, failed=failed)
    failures = tuple(f for findings in found for f in findings)
    return Validation(subjects=subjects, passed=sum(1 for f in found if not f), checks=counts, failures=failures)
