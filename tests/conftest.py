"""Shared by all tests: one verified environment, and one small finished run that nobody may change."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.replay import ReplayProcess
from agentomnia.environment.spec import EnvironmentSpec
from agentomnia.environment.state import State, pack, unpack
from agentomnia.runs.environments import card_items, make_environments, worker_replayer
from agentomnia.runs.episodes import make_references, read_tasks
from agentomnia.runs.run import Run
from agentomnia.runs.tasks import make_tasks
from agentomnia.synthesis.environments.author import BuiltinAuthor, VerifiedEnvironment, verify_draft
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.package import load_package
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.gate import Evaluated

DOMAINS = (10006, 20014)
TASKS_PER_ENVIRONMENT = 4
SEED = 0


@dataclass(frozen=True)
class Salon:
    """The salon environment, verified, with one valid initial state."""

    environment: VerifiedEnvironment
    program: Program
    snapshot: bytes

    @property
    def spec(self) -> EnvironmentSpec:
        return self.environment.spec

    @property
    def state(self) -> State:
        """A state of the caller's own."""
        return unpack(self.snapshot)

    def instance(self) -> Instance:
        return Instance(self.program, self.state)


@pytest.fixture(scope="session")
def replayer() -> Iterator[ReplayProcess]:
    with ReplayProcess(hash_seed=4242) as process:
        yield process


@pytest.fixture(scope="session")
def salon(replayer: ReplayProcess) -> Salon:
    environment = verify_draft(BuiltinAuthor().draft(10006, 0, "tests"), replayer=replayer)
    assert environment.verification.passed, environment.verification.findings
    state = StateMaker(environment.spec).make("tests/state")
    return Salon(environment, build_program(environment.spec), pack(state))


def make_small_run(path: Path, jobs: int = 1, per_environment: int = TASKS_PER_ENVIRONMENT) -> None:
    """What `omnia synth environments|tasks|trajectories` does, for two cards."""
    with Run(path) as run:
        settings = {"domains": list(DOMAINS), "files": [], "per_domain": 1, "seed": SEED}
        run.configure("environments", settings)
        make_environments(run, card_items(DOMAINS, 1, SEED), jobs)
        run.configure("tasks", {"per_environment": per_environment, "seed": SEED})
        make_tasks(run, per_environment, SEED, jobs)
        run.configure("trajectories", {"agent": "scripted", "seed": SEED})
        make_references(run, jobs)
        run.write_manifest()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Path]:
    """A finished run, made once for all workers. Read it; copy it (`run_copy`) to change it."""
    base = tmp_path_factory.getbasetemp()
    root = base if worker_id == "master" else base.parent
    with (root / "finished_run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = root / "finished_run"
        if not path.exists():
            making = root / "finished_run.making"
            make_small_run(making)
            making.rename(path)
    yield path
    if worker_replayer.cache_info().currsize:
        worker_replayer().close()
        worker_replayer.cache_clear()


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes copies of the finished run, each in a folder of its own."""
    count = iter(range(100))

    def copy() -> Path:
        target = tmp_path / f"copy{next(count)}"
        shutil.copytree(finished_run, target, ignore=shutil.ignore_patterns(".lock"))
        return target

    return copy


def evaluated_tasks(run: Path) -> list[Evaluated]:
    """Every task of a run with what the gate needs."""
    found = []
    for task, private in read_tasks(run):
        package = load_package(run / "environments" / task.environment)
        found.append(Evaluated(task, private, package.spec, package.program, package.state(task.state)))
    return found


@pytest.fixture(scope="session")
def subjects(finished_run: Path) -> list[Evaluated]:
    return evaluated_tasks(finished_run)
