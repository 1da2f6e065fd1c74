"""The quick demo: the whole loop at a size that shows only that it runs."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from agentomnia.runs.demo import run_demo

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")
def test_the_quick_demo_runs_the_loop_and_goes_on_where_it_was(tmp_path: Path) -> None:
    outcome = run_demo(tmp_path / "demo", seed=3, jobs=2, quick=True)
    assert outcome.passed
    values = outcome.to_json()
    assert list(values["policy"]) == ["base", "sft", "rl", "evolved"]
    assert all(0 <= score <= 1 for score in values["policy"].values())
    assert values["held_out_tasks"] > 0 and values["kl"].keys() == {"original", "prd"}
    assert values["rescued"]["of"] >= max(values["rescued"]["grpo"], values["rescued"]["rcrl"])
    arms = values["arms"]
    assert not arms or arms["rcrl"]["rollouts"] == arms["grpo"]["rollouts"]
    assert json.loads((tmp_path / "demo" / "loop.json").read_text()) == asdict(outcome.loop)
    rows = (tmp_path / "demo" / "sft" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["loss"] < json.loads(rows[0])["loss"]

    before = {p: p.read_bytes() for p in sorted((tmp_path / "demo").rglob("*")) if p.is_file()}
    again = run_demo(tmp_path / "demo", seed=3, jobs=1, quick=True)
    assert again.loop == outcome.loop
    assert {p: p.read_bytes() for p in sorted((tmp_path / "demo").rglob("*")) if p.is_file()} == before
