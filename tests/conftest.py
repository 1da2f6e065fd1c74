"""Shared by all tests: one verified environment, and one small finished run that nobody may change."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentomnia.cli.main import main
from agentomnia.environment.instance import Instance
from agentomnia.environment.program import Program
from agentomnia.environment.replay import ReplayProcess
from agentomnia.environment.spec import (
    Attribute,
    Entity,
    EnvironmentSpec,
    Filter,
    Guard,
    Lifecycle,
    Lineage,
    Lookup,
    Parameter,
    Procedure,
    Rule,
    Search,
    Tool,
)
from agentomnia.environment.state import State, pack, unpack
from agentomnia.runs.environments import card_items, make_environments, worker_replayer
from agentomnia.runs.episodes import make_references, read_tasks
from agentomnia.runs.run import Run
from agentomnia.runs.tasks import TaskItem, make_task_items, make_tasks
from agentomnia.synthesis.environments.author import BuiltinAuthor, VerifiedEnvironment, verify_draft
from agentomnia.synthesis.environments.compiler import build_program
from agentomnia.synthesis.environments.package import load_package
from agentomnia.synthesis.environments.states import StateMaker
from agentomnia.synthesis.tasks.dag.generate import DagProfile
from agentomnia.synthesis.tasks.exposure import Exposure
from agentomnia.synthesis.tasks.gate import Evaluated

Done = subprocess.CompletedProcess[str]

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
        run.configure("trajectories", {"agent": "teacher", "seed": SEED})
        make_references(run, jobs, "teacher", SEED)
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


SHORT_TASKS = DagProfile(most_goals=1, most_questions=1, question_share=0.15, only_questions=0.15)
LONG_TASKS = DagProfile(most_goals=2, most_questions=1, question_share=0.4, only_questions=0.0)


def make_policy_run(path: Path, environments: Path) -> None:
    """Tasks that a policy with a short context can see whole, with the teacher's trajectories."""
    path.mkdir()
    shutil.copytree(environments / "environments", path / "environments")
    shutil.copy(environments / "environments.jsonl", path)
    items = [
        TaskItem(
            folder, 3, f"{folder.name}/{suite}", f"{folder.name}/{suite}", f"{suite}-", profile=profile,
            exposure=Exposure(4, 6), suite=suite, scale=0.3,
        )
        for folder in sorted((path / "environments").iterdir())
        for suite, profile in (("sft", SHORT_TASKS), ("rl", LONG_TASKS))
    ]  # fmt: skip
    with Run(path) as run:
        make_task_items(run, "tasks", items, 1)
        make_references(run, 1, "teacher")


@pytest.fixture(scope="session")
def policy_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to train a policy in: suites `sft` and `rl`. Read it; copy it to change it."""
    path = tmp_path_factory.mktemp("policy") / "run"
    make_policy_run(path, finished_run)
    return path


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


def library_spec(**changes: object) -> EnvironmentSpec:
    """A small hand-made environment: members borrow books; every test may change a part of it."""
    parts: dict[str, object] = {
        "name": "LendingLibrary",
        "title": "Lending library",
        "introduction": "Members borrow books from shelves.",
        "domains": (10006,),
        "clock": "2026-03-09T09:00",
        "entities": library_entities(),
        "rules": library_rules(),
        "tools": library_tools(),
        "lineage": Lineage(kind="card", source="tests"),
    }
    return EnvironmentSpec.model_validate(parts | changes)


def library_entities() -> tuple[Entity, ...]:
    shelf = Entity(
        name="Shelf",
        plural="shelves",
        key="shelf_id",
        prefix="SHE",
        noun="shelf",
        label="name",
        count=3,
        attributes=(
            Attribute(name="name", type="string", unique=True, vocabulary=("North", "South", "East", "West")),
            Attribute(name="floor", type="integer", minimum=0, maximum=4),
        ),
    )
    member = Entity(
        name="Member",
        plural="members",
        key="member_id",
        prefix="MEM",
        noun="member",
        label="name",
        count=5,
        attributes=(
            Attribute(name="name", type="string", unique=True, maker="person"),
            Attribute(name="joined_on", type="date", maker="day(-400, 0)"),
            Attribute(
                name="loans",
                type="integer",
                minimum=0,
                maximum=99,
                derive="sum(1 for b in Book if b.holder_id == it.member_id)",
            ),
            Attribute(name="sponsor_id", type="reference", target="Member", nullable=True),
        ),
    )
    book = Entity(
        name="Book",
        plural="books",
        key="book_id",
        prefix="BOO",
        noun="book",
        label="title",
        count=12,
        lifecycle=Lifecycle(
            field="status", initial="kept", moves=(("kept", "lent"), ("lent", "kept"), ("lent", "lost"))
        ),
        attributes=(
            Attribute(name="title", type="string", unique=True, maker='code("Volume @@-##")'),
            Attribute(name="pages", type="integer", minimum=1, maximum=2000),
            Attribute(name="price", type="number", minimum=0, maximum=500, unit="EUR"),
            Attribute(name="status", type="enum", choices=("kept", "lent", "lost")),
            Attribute(name="shelf_id", type="reference", target="Shelf"),
            Attribute(
                name="holder_id", type="reference", target="Member", nullable=True, present_if='it.status == "lent"'
            ),
            Attribute(name="tags", type="list", vocabulary=("new", "red", "thin", "old")),
            Attribute(name="note", type="text", nullable=True, mutable=True),
        ),
    )
    return shelf, member, book


def library_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            name="lent_books_have_a_holder",
            sentence="A book has a holder exactly while it is lent.",
            entity="Book",
            predicate='(it.status == "lent") == (it.holder_id is not None)',
        ),
    )


KEY_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 64}


def key_parameter(entity: str, field: str, binds: str | None = None) -> Parameter:
    return Parameter(name=field, json_schema=KEY_SCHEMA, carries=f"{entity}.{field}", binds=binds)


def procedure_tool(name: str, *, body: str = "", kind: str = "modify", **parts: object) -> Tool:
    """A tool over one book, `book`, unless `parameters` says otherwise."""
    action = Procedure.model_validate({k: v for k, v in parts.items() if k != "parameters"} | {"body": body})
    parameters = parts.get("parameters", (key_parameter("Book", "book_id", "book"),))
    return Tool.model_validate(
        {"name": name, "kind": kind, "description": f"{name}.", "parameters": parameters, "action": action}
    )


def library_tools() -> tuple[Tool, ...]:
    lend = procedure_tool(
        "lend_book",
        parameters=(key_parameter("Book", "book_id", "book"), key_parameter("Member", "member_id", "member")),
        steps=(Guard(that='book.status == "kept"', code="conflict", message="{book.title} is {book.status}."),),
        body='book.status = "lent"\nbook.holder_id = member.member_id\nmember.loans += 1',
    )
    back = procedure_tool(
        "return_book",
        steps=(Guard(that='book.status == "lent"', message="{book.title} is not lent."),),
        body='holder = book.holder\nholder.loans -= 1\nbook.status = "kept"\nbook.holder_id = None',
        returns=(("book", "book"),),
    )
    add = procedure_tool(
        "add_book",
        parameters=(
            key_parameter("Shelf", "shelf_id", "shelf"),
            Parameter(
                name="title", json_schema={"type": "string", "minLength": 1, "maxLength": 40}, carries="Book.title"
            ),
            Parameter(name="tags", json_schema={"type": "array", "items": {"type": "string"}}, required=False),
        ),
        steps=(
            Guard(that="not any(b.title == title for b in Book)", code="conflict", message="There is {title} already."),
        ),
        body="book = new(Book, title=title, pages=10, price=5, shelf_id=shelf.shelf_id, tags=tags or [])",
    )
    move = procedure_tool(
        "move_book",
        parameters=(key_parameter("Book", "book_id", "book"), key_parameter("Shelf", "shelf_id", "shelf")),
        steps=(Guard(that="book.shelf_id != shelf.shelf_id", code="conflict", message="It stands there."),),
        body="book.shelf_id = shelf.shelf_id",
    )
    get = Tool(
        name="get_book",
        kind="query",
        description="One book.",
        parameters=(key_parameter("Book", "book_id"),),
        action=Lookup(entity="Book", include=("shelf_id", "holder_id")),
    )
    search = Tool(
        name="search_books",
        kind="query",
        description="Books by state.",
        parameters=(
            Parameter(
                name="status",
                json_schema={"type": "string", "enum": ["kept", "lent", "lost"]},
                required=False,
                carries="Book.status",
            ),
            Parameter(
                name="limit", json_schema={"type": "integer", "minimum": 1, "maximum": 200}, required=False, default=50
            ),
        ),
        action=Search(entity="Book", filters=(Filter(parameter="status", field="status", op="equals"),)),
    )
    return lend, back, add, move, get, search


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The command in this process: the same `main`, without the time that an interpreter needs to start."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["omnia", *words])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return run
