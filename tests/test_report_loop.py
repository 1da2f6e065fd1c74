"""The loop's section of the report, over a run whose loop files are made up from its real tasks."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentomnia.errors import InputError
from agentomnia.evolution.attribution import TaskDiagnosis
from agentomnia.evolution.capability import find_gaps
from agentomnia.evolution.prd import SynthesisGuidance, example_prd, make_prds
from agentomnia.report.write import write_report

Rows = list[dict[str, Any]]
POLICIES = {"null": 0.0, "random": 0.02, "base": 0.2, "sft": 0.45, "rl": 0.6, "evolved": 0.7}
"""Made-up pass rates."""
ALARM = "more truncated rollouts than may be dropped"


def rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def put(path: Path, found: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


def make_loop(run: Path, seed: int = 0, steps: int = 60) -> None:
    """Write every file of a loop into a run with tasks and reference trajectories."""
    tasks = rows(run / "tasks.jsonl")
    suites = ("held_out", "rl", "sft", "held_out_domains")
    last = sorted({t["coordinate"]["domain"] for t in tasks})[-1]
    splits = {
        t["id"]: "held_out_domains" if t["coordinate"]["domain"] == last else suites[i % 3] for i, t in enumerate(tasks)
    }
    put(run / "splits.jsonl", ({"task": t, "suite": s} for t, s in splits.items()))
    golden = {t["task"]: t for t in rows(run / "trajectories.jsonl")}
    for policy, rate in POLICIES.items():
        for suite in suites:
            rng = Random(f"{seed}/{policy}/{suite}")
            chosen = [t for t, s in splits.items() if s == suite]
            passed = rng.sample(chosen, round(rate * len(chosen)))
            found = [episode(golden[t], policy, t in passed, rng) for t in chosen]
            put(run / f"evaluations/{policy}@{suite}/results.jsonl", found)
    make_training(run, [t for t, s in splits.items() if s == "rl"], Random(f"{seed}/training"), steps)
    make_diagnosis(run)
    loop = {
        "policy": POLICIES,
        "kl": {"original": 0.603, "prd": 0.196},
        "rescued": {"grpo": 1, "rcrl": 2, "of": 3},
        "domains": {"prd": {"toc/Lifestyle": 5, "tob/Hospitality": 2}},
    }
    (run / "loop.json").write_text(json.dumps(loop), encoding="utf-8")


def episode(golden: dict[str, Any], policy: str, passed: bool, rng: Random) -> dict[str, Any]:
    """The golden trajectory, or, for a failed one, a part of it with a wrong argument."""
    row = {k: v for k, v in golden.items() if k != "tools"} | {"id": f"{golden['task']}-{policy}", "agent": policy}
    if passed:
        return row
    kept = rng.randrange(1, len(golden["steps"]) + 1)
    steps = [dict(s) for s in golden["steps"][:kept]]
    calls = {s["call_id"] for s in steps}
    steps[-1] |= {"ok": False, "error": "not_found", "arguments": {"id": "WRONG-0001"}}
    messages = []
    for m in golden["messages"]:
        asked = [dict(c) for c in m.get("tool_calls", ()) if c["id"] in calls]
        if asked and asked[-1]["id"] == steps[-1]["call_id"]:
            asked[-1]["arguments"] = '{"id": "WRONG-0001"}'
        if m["role"] in ("system", "user") or asked or m.get("tool_call_id") in calls:
            messages.append({**m, "tool_calls": asked} if asked else m)
    messages.append({"role": "assistant", "content": "I could not find it."})
    extra = {"reward": 0.0, "failure_owner": "agent", "failures": ["a record was not changed"]}
    return row | {"steps": steps, "messages": messages} | extra


def make_training(run: Path, tasks: list[str], rng: Random, steps: int) -> None:
    put(
        run / "sft/metrics.jsonl",
        (
            {"step": i, "tokens": 900, "loss": 2.5 * math.exp(-i / 15) + rng.random() / 9, "lr": 1e-3}
            for i in range(steps)
        ),
    )
    for name, base in (("grpo", 0.2), ("rcrl", 0.5)):
        put(run / f"rl/{name}/metrics.jsonl", (rl_step(name, i, base, steps, rng) for i in range(steps)))
        put(
            run / f"rl/{name}/prefixes.jsonl",
            (
                {
                    "step": i, "epoch": 2 * i // steps, "task": task, "golden_turns": 5, "reward": i / steps,
                    "prefix": max(0, 3 - 5 * i // steps) * (name == "rcrl"), "retries": 0,
                }
                for i in range(0, steps, 5)
                for task in tasks
            ),
        )  # fmt: skip


def rl_step(name: str, i: int, base: float, steps: int, rng: Random) -> dict[str, Any]:
    reward = base + 0.3 * i / steps + rng.uniform(-0.1, 0.1)
    prefix = 2.0 * (1 - i / steps) if name == "rcrl" else 0.0
    return {
        "step": i, "epoch": 2 * i // steps, "reward": reward, "pass_rate": max(0.0, reward), "negative": i % 3 == 0,
        "groups": {"mixed": 4 + i % 3, "all_fail": 3 - i % 3, "all_pass": 1, "single": 0, "empty": 0},
        "dropped": {"corrupted": i % 2, "truncated": i % 5}, "alarm": ALARM if i == 30 else None,
        "clip_fraction": 0.01 + 0.001 * i, "ratio_mean": 1 + rng.uniform(-0.01, 0.01), "loss_rl": -0.1 + i / 1000,
        "loss_ce": 1 / (1 + i), "prefix_mean": prefix, "tokens": 2048,
    }  # fmt: skip


def make_diagnosis(run: Path) -> None:
    kinds = ("wrong_entity", "missing_step", "bad_argument", "premature_stop")
    found = []
    for results in sorted(run.glob("evaluations/rl@*/results.jsonl")):
        for t in rows(results):
            if t["reward"] != 1.0:
                found.append(diagnosis(t, kinds[len(found) % len(kinds)]))
    put(run / "diagnosis/tasks.jsonl", found)
    diagnoses = [TaskDiagnosis.model_validate(d) for d in found]
    gaps = find_gaps(diagnoses)
    put(run / "diagnosis/capabilities.jsonl", (g.to_json() for g in gaps))
    plain = example_prd(10006).model_copy(update={"guidance": SynthesisGuidance(), "id": "PRD-TU-900"})
    put(run / "prds/prds.jsonl", (p.to_json() for p in (*make_prds(gaps, diagnoses), example_prd(20014), plain)))


def diagnosis(t: dict[str, Any], kind: str) -> dict[str, Any]:
    turn = sum(1 for m in t["messages"] if m["role"] == "assistant") - 2
    quote = {"message": len(t["messages"]) - 2, "text": "not_found"}
    failure = {
        "kind": kind, "turn": max(0, turn), "tool": t["steps"][-1]["tool"], "called": t["steps"][-1]["tool"],
        "evidence": [quote], "failed_step": "It named a record that is not there.",
        "expected_step": "It names the record that the search showed.",
    }  # fmt: skip
    return {
        "schema_version": 1, "task": t["task"], "trajectory": t["id"], "environment": t["environment"],
        "coordinate": t["coordinate"], "query": t["messages"][1]["content"], "turns": turn + 2, "primary": kind,
        "failures": [failure],
    }  # fmt: skip


@pytest.fixture(scope="module")
def plain_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a loop."""
    path = tmp_path_factory.mktemp("plain") / "run"
    shutil.copytree(finished_run, path, ignore=shutil.ignore_patterns(".lock"))
    # no environment is shown in full: colouring their sources would take most of the time
    (path / "environments.jsonl").write_text("")
    return path


@pytest.fixture(scope="module")
def loop_run(plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(shutil.copytree(plain_run, tmp_path_factory.mktemp("loop") / "run"))
    make_loop(path)
    return path


@pytest.fixture(scope="module")
def page(loop_run: Path) -> str:
    return write_report(loop_run).read_text(encoding="utf-8")


@pytest.fixture
def run(loop_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(loop_run, tmp_path / "run"))


def section(text: str) -> str:
    """The loop's section of a page."""
    start = text.index('<section id="loop">')
    return text[start : text.index("</section>", start)]


PARTS = (
    "Overall",
    "From policy to policy",
    "Level-1 domains",
    "Training",
    "Diagnosis",
    "PRDs",
    "Rollouts side by side",
)


def test_every_part_is_there_and_every_task_of_a_suite_is_counted(page: str, loop_run: Path) -> None:
    text = section(page)
    for part in PARTS:
        assert f"<h3>{part}" in text
    assert 'href="#loop"' in page
    for path in loop_run.glob("evaluations/*@held_out*/results.jsonl"):
        found = rows(path)
        passed = sum(1 for r in found if r["reward"] == 1.0)
        assert f"{passed} of {len(found)}" in text


def test_scores_of_suites_are_counted_from_the_episodes(page: str, loop_run: Path) -> None:
    """A second count, straight from the files, in the order of the table."""
    text = html.unescape(section(page))
    start = text.index("<h3>Held-out tasks</h3>")
    table = text[text.index("<tbody>", start) : text.index("</table>", start)]
    shown = re.findall(r'<tr.*?><th>(\w+).*?<td class="n">([\d.]+)\s%', table, re.S)
    expected = []
    for policy in POLICIES:
        rewards = [r["reward"] for r in rows(loop_run / f"evaluations/{policy}@held_out/results.jsonl")]
        expected.append((policy, f"{100 * rewards.count(1.0) / len(rewards):.1f}"))
    assert shown == expected


def test_evaluations_of_suites_are_the_loops_alone(page: str) -> None:
    assert '<section id="evaluation">' not in page
    assert "rl@held_out" not in page


def test_without_its_files_there_is_no_section(plain_run: Path) -> None:
    text = write_report(plain_run).read_text(encoding="utf-8")
    assert 'id="loop"' not in text and 'href="#loop"' not in text


GONE = {
    "evaluations": ("<h3>Overall", "<h3>From policy to policy", "<h3>Level-1 domains", "<h3>Rollouts side by side"),
    "sft": ("SFT loss",),
    "rl": ("RL reward", "Golden prefixes", "Alarms"),
    "loop.json": ("Rescued of", "<sub>KL</sub>"),
    "diagnosis": ("<h3>Diagnosis</h3>\n<p>", "Where the next round"),
    "diagnosis/capabilities.jsonl": ("Capability gaps", "that the failure belongs to"),
    "prds": ("<h3>PRDs", "Part I, core specification"),
    "splits.jsonl": ("Tasks by suite",),
    "rl/rcrl/prefixes.jsonl": ("Golden prefixes",),
}


@pytest.mark.parametrize("name", GONE)
def test_a_part_without_its_files_is_left_out(run: Path, page: str, name: str) -> None:
    gone = run / name
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    text = section(write_report(run).read_text(encoding="utf-8"))
    for mark in GONE[name]:
        assert mark in section(page)
        assert mark not in text


ALONE = {
    "evaluations/base@held_out/results.jsonl": "<h3>Held-out tasks</h3>",
    "evaluations/rl@sft/results.jsonl": "<h3>SFT tasks</h3>",
    "evaluations/null@mine/results.jsonl": "<h3>mine</h3>",
    "sft/metrics.jsonl": "SFT loss",
    "rl/grpo/metrics.jsonl": "RL reward",
    "loop.json": "Rescued of 3",
    "diagnosis/tasks.jsonl": "under every capability that it has",
    "prds/prds.jsonl": "Part I, core specification",
}


@pytest.mark.parametrize("name", ALONE)
def test_any_file_of_the_loop_alone_has_a_section(plain_run: Path, loop_run: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(plain_run, tmp_path / "alone"))
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(loop_run / name.replace("@mine", "@rl"), path / name)
    text = section(write_report(path).read_text(encoding="utf-8"))
    assert ALONE[name] in text


def test_episodes_without_a_reward_are_no_score(run: Path) -> None:
    for path in run.glob("evaluations/rl@held_out/results.jsonl"):
        put(path, ({**row, "reward": None, "failure_owner": "infrastructure"} for row in rows(path)))
    text = section(write_report(run).read_text(encoding="utf-8"))
    assert "0 of 0" in text and "unpaired" in text


@pytest.mark.parametrize(
    "name",
    [
        "splits.jsonl", "sft/metrics.jsonl", "rl/grpo/metrics.jsonl", "rl/rcrl/prefixes.jsonl", "diagnosis/tasks.jsonl",
        "diagnosis/capabilities.jsonl", "prds/prds.jsonl", "evaluations/rl@held_out/results.jsonl",
    ],
)  # fmt: skip
def test_a_half_written_file_is_named_with_its_line(run: Path, name: str) -> None:
    with (run / name).open("a", encoding="utf-8") as file:
        file.write('{"step": 1')
    with pytest.raises(InputError, match=rf"{re.escape(name)} line \d+: .*half-written"):
        write_report(run)


def test_a_broken_loop_file_says_what_to_do(run: Path) -> None:
    (run / "loop.json").write_text('{"kl": {"prd": "much"}}', encoding="utf-8")
    with pytest.raises(InputError, match=r"loop\.json: kl\.prd: .*run the loop's last stage again"):
        write_report(run)


def test_the_same_run_gives_the_same_bytes(loop_run: Path, page: str, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(loop_run, tmp_path / "moved"))
    assert write_report(moved).read_text(encoding="utf-8") == page


def test_anchors_are_unique_and_links_lead_somewhere(page: str) -> None:
    anchors = re.findall(r'\bid="([^"]+)"', page)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(anchors)


HOSTILE = '<script>alert("x")</script><img src=//evil.example/x onerror=alert(1)>'


def test_text_of_the_loop_is_never_markup(run: Path) -> None:
    def poison(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        put(path, [change(row) for row in rows(path)])

    poison(run / "rl/grpo/metrics.jsonl", lambda r: r | {"alarm": HOSTILE})
    poison(run / "rl/rcrl/prefixes.jsonl", lambda r: r | {"task": HOSTILE})
    poison(run / "splits.jsonl", lambda r: r | {"suite": HOSTILE})
    poison(run / "diagnosis/tasks.jsonl", lambda r: r | {"query": HOSTILE, "primary": HOSTILE})
    poison(run / "prds/prds.jsonl", lambda r: r | {"scenario": {"name": HOSTILE, "description": HOSTILE}})
    poison(run / "diagnosis/capabilities.jsonl", lambda r: r | {"cause": HOSTILE, "tools": {HOSTILE: 1}})
    (run / "rl" / "grpo").rename(run / "rl" / "<b>grpo")
    for path in sorted(run.glob("evaluations/*/results.jsonl")):
        poison(
            path,
            lambda r: r | {"messages": [m if m["role"] == "tool" else m | {"content": HOSTILE} for m in r["messages"]]},
        )
        path.parent.rename(path.parent.with_name(path.parent.name.replace("held_out", "<i>x")))
    text = write_report(run).read_text(encoding="utf-8")
    assert "<img" not in text and "<b>grpo" not in text and "<i>x" not in text
    assert text.count("<script>") == 1


class Nesting(HTMLParser):
    """Checks that every tag is closed where it should be, and collects figures and tables with what they stand in."""

    VOID = frozenset({"col", "meta", "br", "input", "img", "link", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.figures: list[tuple[dict[str, str | None], str]] = []
        self.tables: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "svg":
            self.figures.append((found, self.get_following()))
        if tag == "table":
            self.tables.append((found.get("class") or "", [kind for _, kind in self.open]))
        if tag not in self.VOID:
            self.open.append((tag, found.get("class") or ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Shapes of figures close themselves."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1:]} at {self.getpos()}"
        self.open.pop()

    def get_following(self) -> str:
        line, column = self.getpos()
        return "\n".join(self.rawdata.split("\n")[line - 1 :])[column : column + 2_000]


def test_the_page_is_well_nested_and_its_figures_can_be_heard(page: str) -> None:
    parser = Nesting()
    parser.feed(section(page) + "</section>")
    assert not parser.open
    assert len(parser.figures) > 30
    for found, text in parser.figures:
        assert "viewbox" in found or found.get("width") == "100%", found
        assert found.get("aria-hidden") == "true" or re.match(r"<svg[^>]*><title>[^<]+</title>", text), text[:200]


def test_no_table_can_push_the_page_wide(page: str) -> None:
    parser = Nesting()
    parser.feed(section(page) + "</section>")
    for kind, around in parser.tables:
        assert "scroll" in around or {"fixed", "bars"} & set(kind.split()), kind


def test_an_unfinished_evaluation_says_so(run: Path) -> None:
    path = run / "evaluations/evolved@held_out/results.jsonl"
    put(path, rows(path)[:1])
    assert "not finished" in section(write_report(run).read_text(encoding="utf-8"))


def test_several_trials_give_a_table_of_reliability(run: Path, page: str) -> None:
    assert "pass^2" not in page
    for path in run.glob("evaluations/*@held_out/results.jsonl"):
        once = rows(path)
        put(path, [*once, *({**row, "seed": 1} for row in once)])
    text = section(write_report(run).read_text(encoding="utf-8"))
    assert "pass^2" in text and "pass@2" in text


def test_every_prd_is_a_card_with_its_two_parts(page: str, loop_run: Path) -> None:
    text = html.unescape(section(page))
    found = rows(loop_run / "prds/prds.jsonl")
    assert len(found) > 2
    for row in found:
        assert row["id"] in text and row["scenario"]["description"] in text and row["case_study"]["query"] in text
        for point in row["requirements"][0]["points"]:
            assert point in text
        for note in row.get("guidance", {}).get("environment", ()):
            assert note["text"] in text
    assert text.count("Part II, synthesis guidance") == len(found)
    assert text.count("Not given; it is optional.") == 1


def test_the_place_of_a_failure_is_marked(page: str) -> None:
    text = section(page)
    panels = text.count('data-panel="pair"')
    assert panels > 0
    assert text.count('class="here">Lost here') == panels
