"""The report of a small run: complete, deterministic, self-contained, and safe with hostile text."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from agentomnia.errors import InputError
from agentomnia.report.distribution import Distribution
from agentomnia.report.figures import Dag, Node, bar, dag, histogram, shade
from agentomnia.report.layers import layers, place
from agentomnia.report.source import colour
from agentomnia.report.task import query_pieces
from agentomnia.report.write import write_report
from agentomnia.runs.environments import card_items, make_environments
from agentomnia.runs.episodes import evaluate, make_references
from agentomnia.runs.run import Run
from agentomnia.runs.tasks import make_tasks

LOADS = re.compile(
    r"""(?:\b(?:src|href|srcset|action|data|poster)\s*=\s*["']?|url\(|@import\s+["']?)\s*(?:https?:)?//""", re.I
)
HOSTILE = '<script>alert("x")</script> & <img src=//evil.example/x>'


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "whole"
    with Run(path) as run:
        make_environments(run, card_items([10006], 1, 0), 1)
        make_tasks(run, 3, 0, 1)
        make_references(run, 1)
        for agent in ("null", "scripted"):
            evaluate(run, agent, seed=0, jobs=1)
    return path


@pytest.fixture
def run_path(whole_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rewrite(path: Path, changed: Iterable[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")


def page(path: Path) -> str:
    return write_report(path).read_text(encoding="utf-8")


def test_it_is_one_file_that_loads_nothing(run_path: Path) -> None:
    written = write_report(run_path)
    assert written == run_path / "report.html"
    text = written.read_text(encoding="utf-8")
    assert not LOADS.search(text)
    assert "<link" not in text and "<iframe" not in text
    assert "default-src 'none'" in text
    assert not list(run_path.glob(".report*"))


def test_every_section_is_there(run_path: Path) -> None:
    text = page(run_path)
    for section in ("coverage", "statistics", "environments", "tasks", "episodes", "evaluation", "settings"):
        assert f'<section id="{section}">' in text
    for task in rows(run_path / "tasks.jsonl"):
        assert str(task["query"]) in html.unescape(text)
        assert str(task["id"]) in text
    assert 'class="dag"' in text
    assert "50.9 ± 13.4" in text
    assert "0.0\N{NO-BREAK SPACE}%" in text and "100.0\N{NO-BREAK SPACE}%" in text


def test_the_same_run_gives_the_same_bytes_anywhere(run_path: Path, tmp_path: Path) -> None:
    first = write_report(run_path).read_bytes()
    assert write_report(run_path).read_bytes() == first
    moved = Path(shutil.copytree(run_path, tmp_path / "elsewhere" / "other name"))
    assert write_report(moved).read_bytes() == first
    assert str(run_path).encode() not in first


def test_anchors_are_unique_and_links_lead_somewhere(run_path: Path) -> None:
    text = page(run_path)
    anchors = re.findall(r'\bid="([^"]+)"', text)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(anchors)


def test_text_of_a_run_is_never_markup(run_path: Path) -> None:
    public = rows(run_path / "tasks.jsonl")
    rewrite(run_path / "tasks.jsonl", [{**row, "query": HOSTILE} for row in public])
    spec_path = next(run_path.glob("environments/*/spec.json"))
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    spec_path.write_text(json.dumps({**spec, "introduction": HOSTILE}), encoding="utf-8")
    text = page(run_path)
    assert HOSTILE not in text
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert html.escape(HOSTILE).replace("&quot;", "&#34;") in text


def test_the_environment_stage_is_enough(run_path: Path) -> None:
    for name in ("tasks.jsonl", "tasks.private.jsonl", "trajectories.jsonl", "states.jsonl", "config.toml"):
        (run_path / name).unlink(missing_ok=True)
    shutil.rmtree(run_path / "evaluations")
    text = page(run_path)
    assert "<h1>1 environment</h1>" in text
    for section in ("tasks", "episodes", "evaluation"):
        assert f'<section id="{section}">' not in text and f'href="#{section}"' not in text


def test_a_run_that_kept_nothing_has_a_report(run_path: Path) -> None:
    for name in ("environments.jsonl", "tasks.jsonl", "tasks.private.jsonl", "trajectories.jsonl"):
        (run_path / name).write_text("")
    for results in run_path.glob("evaluations/*/results.jsonl"):
        results.write_text("")
    assert "<h1>0 environments, 0 tasks, 0 reference trajectories</h1>" in page(run_path)


def test_an_unfinished_evaluation_says_so(run_path: Path) -> None:
    results = run_path / "evaluations/null/results.jsonl"
    rewrite(results, rows(results)[:1])
    assert "not finished" in page(run_path)


FILES = (
    "environments.jsonl",
    "tasks.jsonl",
    "tasks.private.jsonl",
    "trajectories.jsonl",
    "rejected.jsonl",
    "evaluations/null/results.jsonl",
)


@pytest.mark.parametrize("name", FILES)
def test_a_half_written_file_is_named_with_its_line(run_path: Path, name: str) -> None:
    before = page(run_path)
    with (run_path / name).open("a", encoding="utf-8") as file:
        file.write('{"id": "cut of')
    with pytest.raises(InputError, match=rf"{re.escape(name)} line \d+: .*half-written"):
        write_report(run_path)
    assert (run_path / "report.html").read_text(encoding="utf-8") == before


def test_a_task_without_its_private_part_is_refused(run_path: Path) -> None:
    private = run_path / "tasks.private.jsonl"
    rewrite(private, rows(private)[:-1])
    with pytest.raises(InputError, match="differ at line 3"):
        write_report(run_path)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is it a run directory"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_distribution_counts_every_value_once() -> None:
    found = Distribution.of("x", [3, 1, 4, 1, 5, 9, 2, 6, 250])
    assert sum(b.count for b in found.bins) == 9
    assert len(found.bins) <= 15
    assert (found.lowest, found.middle, found.highest) == (1, 4, 250)
    assert Distribution.of("x", []).mean is None
    assert Distribution.of("x", [7]).std is None
    assert histogram(Distribution.of("x", []), "things") == ""


def test_colours_keep_every_character() -> None:
    text = 'class A:\n    """Doc & <b>."""\n\n    def f(self, x=1):  # why\n\n        return f"{x!r} {{}}"\n'
    found = colour(text, "a", 10_000)
    assert html.unescape(re.sub(r"</?span[^>]*>", "", found.code)) == text
    assert '<span class="d" id="a-f">f</span>' in found.code
    assert (found.lines, found.shown) == (6, 6)


def test_a_long_source_is_cut_between_lines() -> None:
    found = colour("a = 1\nb = 2\nc = '''\nx\n'''\n", "a", 13)
    assert (found.lines, found.shown) == (5, 2)
    assert re.sub(r"</?span[^>]*>", "", found.code) == "a = 1\nb = 2\n"


def test_what_is_no_python_is_shown_plain() -> None:
    assert colour("def (:\n  '''<", "a", 100).code == "def (:\n  &#39;&#39;&#39;&lt;"


def test_pieces_of_a_query_are_the_query() -> None:
    pieces = query_pieces("Book Ann with Ann Lee, please", ["Ann", "Ann Lee"])
    assert "".join(p.text for p in pieces) == "Book Ann with Ann Lee, please"
    assert [p.text for p in pieces if p.used] == ["Ann", "Ann Lee"]
    assert query_pieces("", ["x"]) == ()


def test_layers_put_what_follows_below() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("t", "c")]
    assert layers(["a", "b", "c", "t"], edges, late=["t"]) == {"a": 0, "b": 1, "c": 2, "t": 1}
    with pytest.raises(InputError, match="cycle"):
        layers(["a", "b"], [("a", "b"), ("b", "a")])


def test_boxes_of_a_layer_do_not_overlap() -> None:
    sizes = {f"n{i}": (50.0 + 10 * i, 20.0) for i in range(8)}
    edges = [("n0", f"n{i}") for i in range(1, 7)] + [(f"n{i}", "n7") for i in range(1, 7)]
    placed = place(sizes, [*edges, ("n0", "n7")])
    row = sorted((b for n, b in placed.boxes.items() if n not in ("n0", "n7")), key=lambda b: b.x)
    assert all(left.x + left.width < right.x for left, right in pairwise(row))
    assert min(b.x for b in placed.boxes.values()) >= 0
    assert len(placed.routes["n0", "n7"]) == 3


def test_figures_escape_their_text() -> None:
    nodes = (Node("call:0", "call", "<a>"), Node("think:0", "virtual", "EXTRACT", "<b>"))
    drawn = dag(Dag(nodes, (("call:0", "think:0"),)))
    assert "<a>" not in drawn and "<b>" not in drawn and "&lt;a&gt;" in drawn
    assert 'width="50.00%"' in bar(1, 2) and 'width="0.00%"' in bar(0, 0)
    assert [shade(n, 8) for n in (0, 1, 4, 8)] == ["h0", "h1", "h2", "h4"]
