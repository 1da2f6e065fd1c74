"""The `omnia` command: quick to help, one JSON object on standard output, exit codes, errors with a next action."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentomnia.llm.message import ToolCall
from agentomnia.llm.scripted import Answer, Fault, ScriptedServer
from agentomnia.runs.episodes import read_tasks
from agentomnia.synthesis.environments.gate import ENVIRONMENT_CHECKS
from agentomnia.synthesis.tasks.gate import TASK_CHECKS

Copy = Callable[[], Path]
Done = subprocess.CompletedProcess[str]
OMNIA = "from agentomnia.cli.main import main; main()"
HEAVY = {
    "scipy",
    "networkx",
    "pydantic",
    "openai",
    "yaml",
    "jinja2",
    "rapidfuzz",
    "jsonschema",
    "msgpack",
    "anyio",
    "numpy",
}
COMMANDS = (
    (), ("synth",), ("synth", "environments"), ("synth", "tasks"), ("synth", "trajectories"), ("validate",), ("eval",),
    ("export",), ("report",), ("demo",), ("card",), ("card", "check"), ("taxonomy",),
)  # fmt: skip


def omnia(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OMNIA, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=env, cwd=cwd)


def json_of(done: Done) -> dict[str, Any]:
    """The one object that standard output holds, and nothing else."""
    assert done.stdout.count("\n") == 1 and done.stdout.endswith("\n"), done.stdout
    value: dict[str, Any] = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def assert_error(done: Done) -> str:
    """Exit code 2, nothing on standard output, one last line that says what to do next."""
    assert done.returncode == 2 and done.stdout == "", (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("error: ") and re.search(r"[;:?,] \S", message[7:]), message
    return message


# Quick to help


@pytest.mark.parametrize("words", [(), ("synth",), ("synth", "tasks"), ("eval",), ("taxonomy",), ("validate",)])
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nsys.argv = ['omnia', *sys.argv[1:], '--help']\nfrom agentomnia.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint(' '.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "agentomnia" in loaded and "Usage" in done.stdout
    # typer itself looks at pydantic once it prints the types of options
    assert not loaded & (HEAVY if not words else HEAVY - {"pydantic"})


def test_help_takes_half_a_second_at_most() -> None:
    """In processor time, so that a busy machine does not fail it; a quiet one needs half of that."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert omnia("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) <= 0.5, times


@pytest.mark.parametrize("words", COMMANDS, ids=lambda w: " ".join(w) or "omnia")
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    done = omnia(*words, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout and done.stderr == ""


# The JSON contracts


def assert_stage(value: dict[str, Any], kept: int, out: Path) -> None:
    assert set(value) == {"kept", "rejected", "seconds", "out"}
    assert value["kept"] == kept and isinstance(value["rejected"], dict) and value["out"] == str(out)
    assert all(isinstance(n, int) and n > 0 for n in value["rejected"].values())
    assert isinstance(value["seconds"], float) and value["seconds"] >= 0


def test_synthesis_from_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    common = ("--out", str(out), "--json", "--jobs", "1")
    done = omnia("synth", "environments", "--domain", "10006", *common)
    assert done.returncode == 0, done.stderr
    assert_stage(json_of(done), 1, out)
    assert "environments: 1/1" in done.stderr
    done = omnia("synth", "tasks", "--per-environment", "2", *common)
    assert done.returncode == 0, done.stderr
    assert_stage(json_of(done), 2, out)
    done = omnia("synth", "trajectories", *common)
    assert done.returncode == 0, done.stderr
    assert_stage(json_of(done), 2, out)
    for target in ("trl", "openai"):
        value = json_of(omnia("export", "--out", str(out), "--to", target, "--json"))
        assert value == {"target": target, "rows": 2, "path": str(out / "exports" / f"{target}.jsonl")}
        assert len((out / "exports" / f"{target}.jsonl").read_text().splitlines()) == 2


def test_a_finished_stage_says_what_it_said(finished_run: Path, run_copy: Copy, inside: Callable[..., Done]) -> None:
    path = run_copy()
    manifest = json.loads((finished_run / "manifest.json").read_text())["stages"]
    for stage, words in (
        ("environments", ("--domain", "10006", "--domain", "20014")), ("tasks", ("--per-environment", "4")),
        ("trajectories", ()),
    ):  # fmt: skip
        value = json_of(inside("synth", stage, *words, "--out", str(path), "--json"))
        assert_stage(value, manifest[stage]["kept"], path)
        assert value["rejected"] == manifest[stage]["rejected"]


def test_validation_of_tasks(run_copy: Copy) -> None:
    path = run_copy()
    done = omnia("validate", str(path), "--json", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert json_of(done) == {
        "tasks": 8, "passed": 8, "checks": {c: {"passed": 8, "failed": 0} for c in TASK_CHECKS}, "failures": [],
    }  # fmt: skip
    rows = [json.loads(line) for line in (path / "tasks.jsonl").read_text().splitlines()]
    rows[1]["query"] += f" Use {next(iter(read_tasks(path)))[1].calls[0].tool}."
    (path / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    done = omnia("validate", str(path), "--json", "--jobs", "1")
    value = json_of(done)
    assert done.returncode == 1 and value["passed"] == 7 and value["checks"]["leakage"] == {"passed": 7, "failed": 1}
    (failure,) = value["failures"]
    assert set(failure) == {"task", "check", "evidence"} and failure["task"] == rows[1]["id"]
    assert failure["check"] == "leakage" and failure["evidence"]
    done = omnia("validate", str(path), "--jobs", "1")
    assert done.returncode == 1 and "7 of 8" in done.stdout and rows[1]["id"] in done.stdout


def test_validation_of_environments(run_copy: Copy) -> None:
    path = run_copy()
    done = omnia("validate", "--out", str(path), "--environments", "--json", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    value = json_of(done)
    assert value == {
        "environments": 2, "passed": 2,
        "checks": {c: {"passed": 2, "failed": 0} for c in ENVIRONMENT_CHECKS}, "failures": [],
    }  # fmt: skip
    one = sorted((path / "environments").iterdir())[0]
    source = one / "environment.py"
    source.write_text(source.read_text() + "\nimport os\n")
    done = omnia("validate", str(one), "--environments", "--json")
    value = json_of(done)
    assert done.returncode == 1 and (value["environments"], value["passed"]) == (1, 0)
    assert value["checks"]["load"] == {"passed": 0, "failed": 1}
    assert [(f["environment"], f["check"]) for f in value["failures"]] == [(one.name, "load")]


def assert_evaluation(value: dict[str, Any], tasks: int) -> None:
    assert set(value) == {"tasks", "pass_at_1", "ci95", "by", "infrastructure_errors"}
    assert set(value["by"]) == {"split", "l1", "capability", "difficulty"} and value["tasks"] == tasks
    for groups in value["by"].values():
        for group in groups.values():
            assert set(group) == {"tasks", "passed", "pass_at_1", "ci95"}
            assert group["pass_at_1"] == pytest.approx(group["passed"] / group["tasks"])
            low, high = group["ci95"]
            assert 0 <= low <= group["pass_at_1"] <= high <= 1


@pytest.mark.parametrize(("agent", "wanted"), [("null", 0.0), ("apology", 0.0), ("random", 0.0), ("scripted", 1.0)])
def test_evaluation(run_copy: Copy, agent: str, wanted: float, inside: Callable[..., Done]) -> None:
    path = run_copy()
    done = inside("eval", str(path), "--agent", agent, "--json", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    value = json_of(done)
    assert_evaluation(value, 8)
    assert value["pass_at_1"] == wanted and value["infrastructure_errors"] == 0
    assert value["by"]["split"]["toc"]["tasks"] == 4 and value["by"]["split"]["tob"]["tasks"] == 4
    low, high = value["ci95"]
    assert (low == 0.0) == (wanted == 0.0) and (high == 1.0) == (wanted == 1.0)
    assert (path / "evaluations" / agent / "results.jsonl").exists()


def playing(path: Path, faults: int = 0) -> Callable[[dict[str, Any]], Answer | Fault]:
    """A served model that knows every reference, and fails the first tasks it meets."""
    by_query = {task.query: private for task, private in read_tasks(path)}
    failing: list[str] = []

    def turn(body: dict[str, Any]) -> Answer | Fault:
        query = next(m["content"] for m in body["messages"] if m["role"] == "user")
        if query not in failing and len(failing) < faults:
            failing.append(query)
        if query in failing:
            return Fault(status=500)
        calls, done = by_query[query].calls, sum(m["role"] == "tool" for m in body["messages"])
        if done < len(calls):
            made = ToolCall(id=f"c{done}", name=calls[done].tool, arguments=json.dumps(calls[done].arguments))
            return Answer(tool_calls=(made,))
        return Answer(content="Done. " + json.dumps(by_query[query].answer))

    return turn


def test_evaluation_of_a_served_model(run_copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that the server fails are counted apart, and neither help nor hurt the score."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    path = run_copy()
    with ScriptedServer(playing(path)) as server:
        words = ("eval", str(path), "--agent", "chat", "--model", "m", "--base-url", server.base_url)
        done = omnia(*words, "--json", "--jobs", "1", "--name", "good-1.0")
        value = json_of(done)
        assert_evaluation(value, 8)
        assert (done.returncode, value["pass_at_1"], value["infrastructure_errors"]) == (0, 1.0, 0)
        again = json_of(omnia(*words, "--json", "--jobs", "1", "--name", "good-1.0"))
        assert again == value
    assert (path / "ledger.sqlite").exists()


@pytest.mark.slow
def test_evaluation_of_a_failing_model(run_copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client retries for half a minute and more before it gives a task up."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    path = run_copy()
    with ScriptedServer(playing(path, faults=1)) as server:
        words = ("eval", str(path), "--agent", "chat", "--model", "m", "--base-url", server.base_url)
        value = json_of(omnia(*words, "--json", "--jobs", "1"))
    assert value["infrastructure_errors"] == 1 and value["pass_at_1"] == 1.0 and value["tasks"] == 8
    assert sum(g["tasks"] for g in value["by"]["split"].values()) == 7


def test_cards_are_checked(tmp_path: Path) -> None:
    from agentomnia.synthesis.environments.card import card_paths

    good = next(p for p in card_paths() if p.name.startswith("10006"))
    done = omnia("card", "check", str(good), "--json", "--source", str(tmp_path / "out.py"))
    (row,) = json_of(done)["cards"]
    assert done.returncode == 0 and row["passed"] and row["findings"] == [] and row["tools"] >= 30
    compile((tmp_path / "out.py").read_text(), "out.py", "exec")
    bad = tmp_path / "10006_bad.yaml"
    bad.write_text("domain: 10006\ntitle: Bad\nentities:\n  A: {fields: {x: {type: nothing}}}\n")
    message = assert_error(omnia("card", "check", str(bad), "--json"))
    assert "10006_bad.yaml" in message and "entities.A.fields.x.type" in message and "docs/cards.md" in message


# Exit codes and errors


def test_what_cannot_run_ends_with_2_and_a_next_action(
    tmp_path: Path, run_copy: Copy, inside: Callable[..., Done]
) -> None:
    path = run_copy()
    (tmp_path / "file").write_text("x")
    (tmp_path / "bad.json").write_text("{")
    out, served = str(tmp_path / "new"), ("--agent", "chat", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    for words in (
        ("validate", str(tmp_path / "nothing")),
        ("validate", str(tmp_path / "nothing"), "--environments", "--json"),
        ("validate", str(path / "environments"), "--json"),
        ("eval", str(tmp_path / "nothing2"), "--json"),
        ("eval", str(path), "--agent", "genius", "--json"),
        ("eval", str(path), "--agent", "chat", "--json"),
        ("eval", str(path), *served, "--api-key-env", "NO_SUCH_KEY"),
        ("export", str(path), "--to", "nothing"),
        ("export", str(tmp_path / "nothing3")),
        ("synth", "environments", "--domain", "10006", "--out", str(tmp_path / "file")),
        ("synth", "environments", "--domain", "10006", "--out", str(path)),
        ("synth", "tasks", "--out", str(path), "--seed", "9", "--per-environment", "4"),
        ("synth", "tasks", "--out", out),
        ("synth", "trajectories", "--out", out),
        ("card", "check", str(tmp_path / "none.yaml")),
        ("card", "check", str(tmp_path / "file")),
    ):  # fmt: skip
        assert_error(inside(*words))
    assert_error(omnia("validate", str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",), ("synth", "nothing"), ("validate", "--nothing"), ("synth", "tasks", "--per-environment", "0"),
        ("synth", "tasks", "--jobs", "0"), ("synth", "environments", "--domain", "x"), ("eval", "--seed", "1.5"),
    ],
)  # fmt: skip
def test_wrong_usage_ends_with_2(words: tuple[str, ...], tmp_path: Path) -> None:
    done = omnia(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert "Usage" in done.stderr and list(tmp_path.iterdir()) == []


def test_what_cannot_be_made_is_said_and_counted(tmp_path: Path) -> None:
    """An unknown domain is a rejection with its reason, not a crash."""
    done = omnia("synth", "environments", "--domain", "99999", "--out", str(tmp_path / "run"), "--json", "--jobs", "1")
    value = json_of(done)
    assert value["kept"] == 0 and value["rejected"] == {"cannot be drafted": 1} and done.returncode == 1
    bad = tmp_path / "api.json"
    bad.write_text("{")
    done = omnia("synth", "environments", "--from", str(bad), "--out", str(tmp_path / "run2"), "--json", "--jobs", "1")
    value = json_of(done)
    assert value["kept"] == 0 and sum(value["rejected"].values()) == 1
    assert "api.json" in (tmp_path / "run2" / "rejected.jsonl").read_text()


def test_people_get_tables(run_copy: Copy, inside: Callable[..., Done]) -> None:
    path = run_copy()
    done = inside("eval", str(path), "--agent", "null", "--jobs", "1")
    assert done.returncode == 0 and "Pass@1" in done.stdout and "0.0 %" in done.stdout
    done = inside("synth", "trajectories", "--out", str(path))
    assert done.returncode == 0 and "trajectories: 8 kept" in done.stdout.replace("\n", " ")
    done = inside("validate", str(path), "--jobs", "1")
    assert done.returncode == 0 and "8 of 8 tasks pass every check" in done.stdout


def test_running_out_of_pipe_is_no_crash(finished_run: Path) -> None:
    """`omnia validate | head -0`: the reader is gone before the answer comes."""
    command = [sys.executable, "-c", OMNIA, "validate", str(finished_run), "--json", "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=120)
    assert "Traceback" not in stderr, stderr
