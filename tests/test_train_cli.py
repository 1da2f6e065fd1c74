"""`omnia train`: names, settings and errors on the command line; what is trained is tested in `test_local_training`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentomnia.runs import policies
from agentomnia.runs.run import Run, read_jsonl

Done = subprocess.CompletedProcess[str]


def value_of(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def refusal(done: Done) -> str:
    """Exit code 2, nothing on standard output, a last line that ends with what to do."""
    assert done.returncode == 2 and done.stdout == "", (done.returncode, done.stdout, done.stderr)
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("error: ") and re.search(r"[;,:] \S", message[7:]), message
    return message


def fresh(policy_run: Path, tmp_path: Path) -> Path:
    # another test may have trained a tokenizer in the shared run
    ignored = shutil.ignore_patterns(".lock", "checkpoints")
    return Path(shutil.copytree(policy_run, tmp_path / "run", ignore=ignored))


def test_from_nothing_to_scores(policy_run: Path, tmp_path: Path, inside: Callable[..., Done]) -> None:
    path = fresh(policy_run, tmp_path)
    common = ("--out", str(path), "--jobs", "1", "--json")
    sft = ("train", "sft", "--steps", "2", "--batch", "1", *common)
    first = value_of(inside(*sft))
    assert first["policy"] == "sft" and first["last"]["step"] == 2 and first["last"]["loss"] > 0
    assert (path / "checkpoints/base/config.json").exists() and (path / "checkpoints/sft/model.safetensors").exists()
    weights = (path / "checkpoints/sft/model.safetensors").read_bytes()
    assert value_of(inside(*sft)) == first
    assert (path / "checkpoints/sft/model.safetensors").read_bytes() == weights

    assert "other steps" in refusal(inside("train", "sft", "--steps", "3", "--batch", "1", *common))
    assert "'base'" in refusal(inside("train", "sft", "--name", "base", *common))
    assert "'sft'" in refusal(inside("train", "rl", "--name", "sft", *common))
    assert "'environments'" in refusal(inside("train", "sft", "--name", "environments", *common))
    assert "small letters" in refusal(inside("train", "rl", "--name", "../rl", *common))

    rl = value_of(inside("train", "rl", "--steps", "1", "--prompts", "1", "--group", "2", "--no-rollback", *common))
    assert rl["last"]["rollouts"] == 2, "without rollback a failed group is not sampled again"
    assert [row["prefix"] for row in read_jsonl(path / "rl/rl/prefixes.jsonl")] == [0]

    scores = value_of(inside("train", "eval", "--policy", "rl", "--suite", "rl", "--trials", "2", *common))
    tasks = sum(row["suite"] == "rl" for row in read_jsonl(path / "splits.jsonl"))
    assert scores["tasks"] == 2 * tasks == len(list(read_jsonl(path / "evaluations/rl@rl/results.jsonl")))
    again = inside("train", "eval", "--policy", "rl", "--suite", "rl", *common)
    assert "other trials" in refusal(again)


def test_what_is_missing_is_said(
    policy_run: Path, finished_run: Path, tmp_path: Path, inside: Callable[..., Done]
) -> None:
    path = fresh(policy_run, tmp_path)
    out = ("--out", str(path))
    assert "omnia train sft" in refusal(inside("train", "rl", *out))
    assert "omnia train sft" in refusal(inside("train", "eval", "--policy", "sft", "--suite", "rl", *out))
    assert "use one of rl, sft" in refusal(inside("train", "sft", "--suite", "nothing", *out))
    (path / "checkpoints/sft").mkdir(parents=True)
    (path / "checkpoints/sft/model.safetensors").touch()
    assert "tokenizer.json" in refusal(inside("train", "rl", *out))
    plain = Path(shutil.copytree(finished_run, tmp_path / "plain", ignore=shutil.ignore_patterns(".lock")))
    assert "docs/training.md" in refusal(inside("train", "sft", "--out", str(plain)))


def test_stages_of_the_loop_are_not_trained_over(policy_run: Path, tmp_path: Path, inside: Callable[..., Done]) -> None:
    """A stage that no `omnia train` began, whether it finished or was stopped, keeps its name."""
    path = fresh(policy_run, tmp_path)
    with Run(path) as run:
        run.stage("sft", ("sft/metrics.jsonl",))
    before = (path / "journal.jsonl").read_bytes()
    assert "another --name" in refusal(inside("train", "sft", "--out", str(path)))
    assert (path / "journal.jsonl").read_bytes() == before


def test_without_the_packages_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inside: Callable[..., Done]
) -> None:
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    message = refusal(inside("train", "sft", "--out", str(tmp_path / "run")))
    assert "torch" in message and "agentomnia[train]" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("sft", "--steps", "0"), ("rl", "--group", "1"), ("eval", "--trials", "0"), ("x",)])
def test_wrong_usage_ends_with_2(words: tuple[str, ...], inside: Callable[..., Done]) -> None:
    done = inside("train", *words)
    assert done.returncode == 2 and done.stdout == "" and "Usage" in done.stderr


def test_help_imports_no_torch() -> None:
    code = (
        "import sys\nsys.argv = ['omnia', 'train', 'sft', '--help']\nfrom agentomnia.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint(' '.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "agentomnia" in loaded and not loaded & {"torch", "numpy", "tokenizers", "openai", "scipy"}
