"""Capability gaps, protocol validation, PRDs from a diagnosis, alignment of domains, and the stage on disk."""

from __future__ import annotations

import gc
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from typer.testing import CliRunner

from agentomnia.cli.main import app
from agentomnia.errors import InputError
from agentomnia.evolution.alignment import kl, level1_counts
from agentomnia.evolution.attribution import Failure, Quote, TaskDiagnosis
from agentomnia.evolution.capability import CapabilityGap, capability_of, find_gaps, gap_key, severity
from agentomnia.evolution.case import FailureKind
from agentomnia.evolution.markdown import from_markdown, to_markdown
from agentomnia.evolution.prd import make_prds, priority
from agentomnia.evolution.profiles import KINDS
from agentomnia.evolution.protocol import report_problems, require_valid
from agentomnia.runs import evolution
from agentomnia.runs.episodes import evaluate
from agentomnia.runs.evolution import diagnose_evaluation, read_diagnosis, read_prds
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import Run
from agentomnia.task.trajectory import Trajectory
from agentomnia.taxonomy.axes import domain, domains
from agentomnia.taxonomy.coordinate import Coordinate


def failure(kind: FailureKind, turn: int = 0, **parts: Any) -> Failure:
    quote = Quote(message=2, text="go")
    return Failure(kind=kind, turn=turn, evidence=(quote,), failed_step="a", expected_step="b", **parts)


def diagnosis(number: int, *failures: Failure, domain: int = 10006, turns: int = 5) -> TaskDiagnosis:
    return TaskDiagnosis(
        task=f"t{number}",
        trajectory=f"e{number}",
        environment="E",
        coordinate=Coordinate(domain=domain, capabilities=("tool_use",)),
        query="Please.",
        turns=turns,
        primary=failures[0].kind,
        failures=failures,
    )


# Gaps


@pytest.mark.parametrize(
    ("kind", "reading", "capability"),
    [
        ("wrong_tool", False, "tool_use"),
        ("bad_argument", False, "tool_use"),
        ("bad_argument", True, "information_gathering"),
        ("missing_step", False, "task_understanding"),
        ("missing_step", True, "information_gathering"),
        ("wrong_order", True, "planning_decision_making"),
        ("premature_stop", False, "state_management"),
        ("extra_change", False, "reliability_safety"),
        ("wrong_answer", True, "data_analysis"),
    ],
)
def test_a_failure_belongs_to_a_dimension(kind: FailureKind, reading: bool, capability: str) -> None:
    assert capability_of(failure(kind, reading=reading)) == capability


def test_severity_is_how_often_it_decides_and_how_early() -> None:
    key = ("wrong_tool", "tool_use")
    at_once, late = diagnosis(0, failure("wrong_tool")), diagnosis(1, failure("wrong_tool", 4))
    beside = diagnosis(2, failure("loop"), failure("wrong_tool", 2))
    assert severity([at_once], key) == 1.0
    assert severity([late], key) == 0.5
    assert severity([at_once, late], key) == 0.75
    assert severity([at_once, beside], key) == 0.5
    assert severity([beside], key) == 0.0


DIAGNOSES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.booleans()), min_size=1, max_size=4),
        st.sampled_from([10006, 10012, 20014, 30017]),
    ),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        diagnosis(i, *(failure(k, t, reading=r, tool=f"tool_{t}") for k, t, r in found), domain=place)
        for i, (found, place) in enumerate(rows)
    ]
)


@given(DIAGNOSES)
def test_gaps_count_what_the_task_reports_say(found: list[TaskDiagnosis]) -> None:
    gaps = find_gaps(found)
    assert {(g.kind, g.capability) for g in gaps} == {gap_key(f) for d in found for f in d.failures}
    assert sum(g.primary for g in gaps) == len(found)
    assert [g.score for g in gaps] == sorted((g.score for g in gaps), reverse=True)
    for gap in gaps:
        assert sum(gap.domains.values()) == gap.tasks >= gap.primary == sum(gap.decided.values())
        assert 0 <= gap.severity <= 1 and "{" not in gap.cause
        assert CapabilityGap.model_validate(json.loads(json.dumps(gap.to_json()))) == gap


@given(DIAGNOSES, st.integers(1, 20))
def test_one_prd_for_each_gap_and_level_1(found: list[TaskDiagnosis], most: int) -> None:
    every, some = make_prds(find_gaps(found), found, 1000), make_prds(find_gaps(found), found, most)
    assert some == every[:most] and len({p.id for p in every}) == len(every)
    clusters = {(*gap_key(d.first), d.coordinate.split, d.coordinate.l1) for d in found}
    assert len(every) == len(clusters)
    lost = Counter(d.coordinate.domain for d in found)
    assert sum((Counter(p.guidance.failures) for p in every), Counter[int]()) == lost
    ranks = [("High", "Medium", "Low").index(p.priority) for p in every]
    assert ranks == sorted(ranks)
    for prd in every:
        assert len({(domain(i).split, domain(i).l1) for i in prd.targets.domains}) == 1
        assert from_markdown(to_markdown(prd)) == prd


def test_a_prd_says_what_was_seen() -> None:
    found = [
        diagnosis(i, failure("wrong_entity", 1, tool="pay", called="pay", parameter="order_id"), domain=10012)
        for i in range(3)
    ] + [diagnosis(9, failure("loop", 2))]
    prd = make_prds(find_gaps(found), found)[0]
    assert prd.id == "PRD-IG-001" and prd.priority == priority(0.75, 0.875) == "High"
    assert prd.targets.domains == (10012,) and prd.guidance.failures == {10012: 3} and prd.guidance.tools == ("pay",)
    assert prd.guidance.analysis.failure_analysis is not None
    assert "order_id" in prd.guidance.analysis.failure_analysis.text
    assert "3 of 4" in prd.guidance.analysis.failure_analysis.text


# Alignment


COUNTS = st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 50), min_size=1).filter(lambda c: sum(c.values()))


@given(COUNTS, COUNTS, st.floats(0.01, 5))
def test_kl_is_scipys_entropy(p: dict[str, int], q: dict[str, int], smoothing: float) -> None:
    labels = sorted({*p, *q})
    first, second = ([c.get(label, 0) + smoothing for label in labels] for c in (p, q))
    assert kl(p, q, smoothing) == pytest.approx(float(entropy(first, second)), abs=1e-12)
    assert kl(p, p, smoothing) == pytest.approx(0, abs=1e-12)


def test_kl_without_smoothing_needs_every_label() -> None:
    assert kl({"a": 1}, {"a": 3, "b": 1}, 0) == pytest.approx(float(entropy([1, 0], [0.75, 0.25])))
    for p, q, smoothing in [({"a": 1, "b": 1}, {"a": 1}, 0), ({}, {"a": 1}, 1), ({"a": -1}, {"a": 1}, 1),
                            ({"a": 1}, {"a": 0}, 1), ({"a": 1}, {"a": 1}, -1)]:  # fmt: skip
        with pytest.raises(InputError):
            kl(p, q, smoothing)


def test_level_1_labels_do_not_mix_splits() -> None:
    finance = [d.id for d in domains() if d.l1 == "Finance"]
    assert set(level1_counts(finance)) == {f"{domain(i).split}/Finance" for i in finance} and len(finance) > 1
    assert sum(level1_counts(finance).values()) == len(finance)


# On disk


@pytest.fixture(scope="module")
def evaluated(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with an evaluation of the random agent, before any diagnosis."""
    path = tmp_path_factory.mktemp("evolution") / "run"
    shutil.copytree(finished_run, path, ignore=shutil.ignore_patterns(".lock"))
    with Run(path) as run:
        evaluate(run, "random", seed=0, jobs=1)
    return path


@pytest.fixture
def fresh(evaluated: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(evaluated, tmp_path / name, ignore=shutil.ignore_patterns(".lock")))

    return copy


def contents(run: Path) -> dict[str, bytes]:
    folders = ("diagnosis", "prds")
    return {str(f.relative_to(run)): f.read_bytes() for n in folders for f in sorted((run / n).iterdir())}


def test_the_stage_writes_valid_reports(fresh: Callable[[str], Path]) -> None:
    path = fresh("a")
    with Run(path) as run:
        found = diagnose_evaluation(run, "random")
        assert diagnose_evaluation(run, "random") == found
    lost = {t.id: t for t in read_rows(path / "evaluations/random/results.jsonl", Trajectory) if t.reward == 0.0}
    assert [d.trajectory for d in found.diagnoses] == list(lost)
    assert report_problems(found.diagnoses, found.gaps, lost) == []
    assert sorted(read_prds(path / "prds"), key=lambda p: p.id) == sorted(found.prds, key=lambda p: p.id)
    assert found.prds and read_diagnosis(path).gaps == found.gaps


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a stage that is interrupted leaves its files to the end
def test_a_stopped_diagnosis_goes_on_to_the_same_bytes(
    fresh: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = fresh("whole"), fresh("broken")
    with Run(whole) as run:
        diagnose_evaluation(run, "random")
    for name, allowed in (("diagnose", 3), ("to_markdown", 1)):
        left = [allowed]
        real = getattr(evolution, name)

        def stop(*arguments: Any, real: Any = real, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return real(*arguments)

        monkeypatch.setattr(evolution, name, stop)
        with pytest.raises(KeyboardInterrupt), Run(broken) as run:
            diagnose_evaluation(run, "random")
        monkeypatch.undo()
        gc.collect()
    with Run(broken) as run:
        diagnose_evaluation(run, "random")
    assert contents(broken) == contents(whole)


def test_the_command_prints_what_it_wrote(fresh: Callable[[str], Path]) -> None:
    path, runner = fresh("cli"), CliRunner()
    shown = runner.invoke(app, ["diagnose", "--out", str(path), "--evaluation", "random", "--json"])
    assert shown.exit_code == 0, shown.output
    value = json.loads(shown.stdout)
    assert value["diagnosed"] == len(read_diagnosis(path).diagnoses) == sum(g["primary"] for g in value["gaps"])
    assert [p["id"] for p in value["prds"]] == [p.id for p in read_diagnosis(path).prds]
    table = runner.invoke(app, ["diagnose", str(path), "--evaluation", "random"])
    assert table.exit_code == 0 and "PRD-" in table.stdout
    files = [str(f) for f in sorted((path / "prds").glob("*.md"))]
    assert runner.invoke(app, ["prd", "check", *files]).exit_code == 0
    missing = runner.invoke(app, ["diagnose", str(fresh("other")), "--evaluation", "none"])
    assert isinstance(missing.exception, InputError) and "this run has random" in str(missing.exception)


# Protocol


def test_reports_that_claim_too_much_are_refused(fresh: Callable[[str], Path]) -> None:
    path = fresh("protocol")
    with Run(path) as run:
        found = diagnose_evaluation(run, "random")
    lost = {t.id: t for t in read_rows(path / "evaluations/random/results.jsonl", Trajectory)}
    first, gap = found.diagnoses[0], found.gaps[0]
    one = first.first

    def with_failure(**parts: Any) -> TaskDiagnosis:
        return first.model_copy(update={"failures": (one.model_copy(update=parts), *first.failures[1:])})

    other_place = Coordinate(domain=10012, capabilities=("tool_use",))
    damaged: list[tuple[str, TaskDiagnosis]] = [
        ("there is no trajectory", first.model_copy(update={"trajectory": "nowhere"})),
        ("another task or coordinate", first.model_copy(update={"coordinate": other_place})),
        ("names no failure", first.model_copy(update={"failures": ()})),
        ("make them agree", first.model_copy(update={"primary": next(k for k in KINDS if k != one.kind)})),
        ("count assistant messages", first.model_copy(update={"turns": first.turns + 1})),
        ("is not in the episode", with_failure(turn=99)),
        ("failed_step is empty", with_failure(failed_step=" ")),
        ("has no evidence", with_failure(evidence=())),
        ("does not exist", with_failure(evidence=(Quote(message=999, text="a"),))),
        ("quote it word by word", with_failure(evidence=(Quote(message=2, text="never said so"),))),
    ]
    for words, report in damaged:
        problems = report_problems([report, *found.diagnoses[1:]], found.gaps, lost)
        assert any(words in p for p in problems), (words, problems)
    gaps: list[tuple[str, CapabilityGap]] = [
        ("no capability", gap.model_copy(update={"capability": "magic"})),
        ("no atomic difficulty", gap.model_copy(update={"atoms": ("luck",)})),
        ("tasks is", gap.model_copy(update={"tasks": gap.tasks + 1})),
        ("primary is", gap.model_copy(update={"primary": gap.primary + 1})),
        ("share is", gap.model_copy(update={"share": 0.987})),
        ("severity is", gap.model_copy(update={"severity": 0.123})),
        ("domains add up", gap.model_copy(update={"domains": {10006: 999}})),
        ("has no cause", gap.model_copy(update={"cause": ""})),
        ("has no example", gap.model_copy(update={"examples": ()})),
        ("is in no task-level report", gap.model_copy(
            update={"examples": (gap.examples[0].model_copy(update={"failed_step": "x"}),)})),
    ]  # fmt: skip
    for words, summary in gaps:
        problems = report_problems(found.diagnoses, [summary, *found.gaps[1:]], lost)
        assert any(words in p for p in problems), (words, problems)
    assert any("is missing" in p for p in report_problems(found.diagnoses, found.gaps[1:], lost))
    assert any("appears twice" in p for p in report_problems(found.diagnoses, [gap, *found.gaps], lost))
    require_valid(found.diagnoses, found.gaps, lost)
    with pytest.raises(InputError, match=r"\(and \d+ more\)"):
        require_valid(found.diagnoses, (), lost)
