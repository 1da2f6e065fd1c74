"""`omnia synth … --prd`: environments and tasks as PRDs ask for them, hand-written ones too."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agentomnia.errors import InputError
from agentomnia.evolution.guidance import SynthesisOrder
from agentomnia.evolution.markdown import to_markdown
from agentomnia.evolution.prd import Prd, example_prd
from agentomnia.runs.environments import EnvironmentItem, make_environments
from agentomnia.runs.guided import (
    conditioned,
    guided_environments,
    guided_tasks,
    made_environments,
    read_guidance,
)
from agentomnia.runs.run import Run, read_jsonl
from agentomnia.runs.tasks import TaskItem

Done = subprocess.CompletedProcess[str]
SALON = 10006


def prd(number: int, **changes: object) -> Prd:
    """A PRD by hand, active."""
    found = example_prd(SALON).model_copy(update={"id": f"PRD-TU-{number:03d}", "status": "Active"})
    return found.model_copy(update=changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two PRDs of which one is no longer active."""
    path = tmp_path / "prds"
    path.mkdir()
    for found in (prd(1), prd(2, status="Closed")):
        (path / f"{found.id}.md").write_text(to_markdown(found), encoding="utf-8")
    return path


def order(number: int, tasks: int, environments: int) -> SynthesisOrder:
    return SynthesisOrder(
        prd=f"PRD-TU-{number:03d}", target=SALON, domain=SALON, environments=environments, tasks=tasks,
        operators=("distractor",), tools=("book_appointment",), goals=(2, 4), depth=3,
        seed=f"PRD-TU-{number:03d}/{SALON}",
    )  # fmt: skip


def test_a_hand_written_prd_becomes_tasks(folder: Path, tmp_path: Path, inside: Callable[..., Done]) -> None:
    run = tmp_path / "run"
    common = ("--prd", str(folder), "--out", str(run), "--jobs", "1", "--json")
    assert inside("synth", "tasks", *common).returncode == 2, "environments come first"
    done = inside("synth", "environments", "--tasks", "3", *common)
    assert json.loads(done.stdout)["kept"] == 1, done.stderr
    rows = list(read_jsonl(run / "environments.jsonl"))
    assert [row["domains"][0] for row in rows] == [SALON] and rows[0]["tools"] > 20

    done = inside("synth", "tasks", *common)
    assert json.loads(done.stdout)["kept"] == 3, done.stderr
    assert Counter(row["suite"] for row in read_jsonl(run / "splits.jsonl")) == {"prd": 3}
    assert all(not row.get("tools") for row in read_jsonl(run / "tasks.jsonl")), "every tool is shown"
    applied = [e["operator"] for row in read_jsonl(run / "states.jsonl") for e in row["enrichments"]]
    assert applied and set(applied) == {"distractor"}

    (folder / "PRD-TU-001.md").write_text(to_markdown(prd(1, priority="High")), encoding="utf-8")
    done = inside("synth", "tasks", *common)
    assert done.returncode == 2 and "start a new run" in done.stderr


def test_other_sources_are_not_mixed_in(
    folder: Path, finished_run: Path, tmp_path: Path, run_copy: Callable[[], Path], inside: Callable[..., Done]
) -> None:
    path = str(folder)
    done = inside("synth", "environments", "--prd", path, "--domain", "10006", "--out", str(tmp_path / "run"))
    assert done.returncode == 2 and "--domain" in done.stderr and not (tmp_path / "run").exists()
    done = inside("synth", "tasks", "--prd", path, "--out", str(run_copy()))
    assert done.returncode == 2 and "omnia synth environments --prd" in done.stderr
    done = inside("synth", "environments", "--prd", str(tmp_path), "--out", str(tmp_path / "run"))
    assert done.returncode == 2 and "omnia prd new" in done.stderr


def test_only_active_prds_count(folder: Path) -> None:
    found = read_guidance(folder)
    assert [p.id for p in found.prds] == ["PRD-TU-001", "PRD-TU-002"]
    assert {o.prd for o in found.orders} == {"PRD-TU-001"} and found.tasks == sum(o.tasks for o in found.orders) == 7
    inactive = folder / "PRD-TU-002.md"
    with pytest.raises(InputError, match="Active"):
        read_guidance(inactive)


def test_every_order_gets_its_variants_and_its_share(tmp_path: Path) -> None:
    """Without synthesis: a journal in which two of three environments were kept."""
    orders = [order(1, 15, 3), order(2, 5, 1)]
    items = guided_environments(orders, 7)
    assert len({i.name for i in items}) == len({i.seed for i in items}) == len(items) == 4
    with Run(tmp_path / "run") as run:
        stage = run.stage("environments", ("environments.jsonl",))
        for item in items:
            kept = item.name != "prd/PRD-TU-001/10006/1" and "PRD-TU-002" not in item.name
            rows = [{"id": f"E{item.variant}"}] if kept else []
            stage.commit(item.name, {"environments.jsonl": rows}, int(kept), () if kept else ("gate",))
        stage.end()
        assert made_environments(run, "environments") == {items[0].name: "E1", items[2].name: "E3"}
        assert made_environments(run, "another stage") == {}
        tasks = guided_tasks(run, orders, 7)
    assert [(t.environment.name, t.count) for t in tasks] == [("E1", 8), ("E3", 7)]
    assert len({t.states for t in tasks}) == len({t.seed for t in tasks}) == 2
    assert all(t.focus == {"book_appointment"} and t.operators == ("distractor",) for t in tasks)
    assert all((t.profile.least_goals, t.profile.most_goals) == (2, 4) and t.exposure is None for t in tasks)


def test_environments_are_told_apart_from_those_made_before(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        for name, ids in (("environments", ("A", "B")), ("later", ("C",)), ("last", ("D",))):
            stage = run.stage(name, ("environments.jsonl",))
            for id in ids:
                stage.commit(f"item {id}", {"environments.jsonl": [{"id": id}]}, 1, ())
            stage.end()
        assert made_environments(run, "later") == {"item C": "C"}
        report = make_environments(run, [EnvironmentItem("x", "x", domain=99999)], 1, "failing")
        assert report.kept == 0 and made_environments(run, "failing") == {}


def test_an_order_without_tools_leaves_the_focus(tmp_path: Path) -> None:
    item = TaskItem(tmp_path, 1, "s", focus=frozenset({"a"}))
    assert conditioned(item, order(1, 1, 1).model_copy(update={"tools": ()})).focus == {"a"}
    assert conditioned(item, order(1, 1, 1)).focus == {"book_appointment"}
