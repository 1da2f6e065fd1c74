"""Training steps on one process and on two, and the training stages of a run: killed anywhere, the same bytes."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentomnia.errors import InfrastructureError, InputError
from agentomnia.evaluation.summary import summarize
from agentomnia.runs import training
from agentomnia.runs.rows import read_rows
from agentomnia.runs.run import Run, Stage, read_jsonl
from agentomnia.runs.training import (
    TrainingSite,
    begin_policy,
    demonstrations,
    evaluate_policy,
    golden_trajectories,
    make_tokenizer,
    suites,
    train_rl,
    train_sft,
)
from agentomnia.task.trajectory import Trajectory
from agentomnia.training.engines.local import rl as rl_module
from agentomnia.training.engines.local import sft as sft_module
from agentomnia.training.engines.local.crew import Crew
from agentomnia.training.engines.local.mimetic import new_policy
from agentomnia.training.engines.local.policy import PolicyShape
from agentomnia.training.engines.local.rl import RlSettings, rl_step
from agentomnia.training.engines.local.sampler import Sampling
from agentomnia.training.engines.local.sft import SftSettings, draw_batch, sft_step
from agentomnia.training.engines.local.tokenizer import WordTokenizer
from agentomnia.training.engines.local.worker import Demonstration
from agentomnia.training.rl.rollback import PromptState, RollbackSettings

SFT = SftSettings(steps=5, batch=3, context=2000, warmup=2)


class ShortTurns(RlSettings):
    """A policy that knows nothing ends no turn; it need not talk for long."""

    def sampling(self) -> Sampling:
        return replace(super().sampling(), turn_tokens=12)


RL = ShortTurns(steps=3, prompts=2, group=2, context=700, warmup=2, rollback=RollbackSettings(retries=2))


def site_of(run: Run, jobs: int = 1) -> TrainingSite:
    tokenizer = make_tokenizer(run, "sft")
    shape = PolicyShape(
        vocab_size=WordTokenizer.load(tokenizer).size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=32, max_position_embeddings=2048,
    )  # fmt: skip
    return TrainingSite(run, tokenizer, shape, jobs, "0")


def shown(site: TrainingSite) -> list[list[Demonstration]]:
    tokenizer = WordTokenizer.load(site.tokenizer)
    return demonstrations(site.run, tokenizer, suites(site.run)["sft"], SFT.context, "0")


def train(path: Path, jobs: int = 1) -> None:
    """Both training stages, from wherever the run is."""
    with Run(path) as run:
        site = site_of(run, jobs)
        begin_policy(site, "base")
        train_sft(site, "sft", "base", shown(site), SFT)
        train_rl(site, "rl", "sft", site.tasks(suites(run)["rl"], golden_trajectories(run)), RL)


def files_of(run: Path) -> dict[str, bytes]:
    """Every file of a run but its lock."""
    found = (p for p in sorted(run.rglob("*")) if p.is_file() and p.name != ".lock" and "environments/" not in str(p))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in found}


def assert_same(found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []


@pytest.fixture(scope="module")
def chunks() -> Iterator[None]:
    """Commits after two updates and after four episodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_SFT_CHUNK", 2)
        patch.setattr(training, "_EVALUATION_CHUNK", 4)
        yield


@pytest.fixture(scope="module")
def trained(policy_run: Path, tmp_path_factory: pytest.TempPathFactory, chunks: None) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    shutil.copytree(policy_run, path)
    train(path)
    return path


@pytest.fixture(scope="module")
def workplace(policy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are interrupted; always the same folder, so that environments are loaded once."""
    path = tmp_path_factory.mktemp("workplace") / "run"
    shutil.copytree(policy_run, path)
    return path


@pytest.fixture
def untrained(policy_run: Path, workplace: Path, chunks: None) -> Path:
    for made in workplace.iterdir():
        if made.name == "environments":
            continue
        if made.is_dir():
            shutil.rmtree(made)
        else:
            made.unlink()
    for file in policy_run.iterdir():
        if file.is_file() and file.name != ".lock":
            shutil.copy(file, workplace)
    return workplace


# What the stages write


def test_rows_of_sft_metrics(trained: Path) -> None:
    rows = list(read_jsonl(trained / "sft/metrics.jsonl"))
    assert [r["step"] for r in rows] == [2, 4, 5]
    assert all(r.keys() == {"step", "tokens", "loss", "lr"} and r["tokens"] > 0 and r["loss"] > 0 for r in rows)
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["lr"] < SFT.rate


def test_rows_of_rl_metrics_and_prefixes(trained: Path) -> None:
    metrics = list(read_jsonl(trained / "rl/rl/metrics.jsonl"))
    prefixes = list(read_jsonl(trained / "rl/rl/prefixes.jsonl"))
    assert [(r["step"], r["epoch"]) for r in metrics] == [(1, 0), (2, 0), (3, 0)]  # six tasks, two a step
    assert len({r["task"] for r in prefixes}) == len(prefixes) == 6
    for row in prefixes:
        assert {"step", "epoch", "task", "prefix", "golden_turns", "reward", "retries"} <= row.keys()
        assert 0 <= row["prefix"] < row["golden_turns"]
    for step in metrics:
        mine = [r for r in prefixes if r["step"] == step["step"]]
        assert step["rollouts"] == RL.group * sum(1 + r["retries"] for r in mine)
        assert step["prefix_mean"] == sum(r["prefix"] for r in mine) / 2
        assert sum(step["groups"].values()) == 2


def test_checkpoints_hold_finished_policies_and_nothing_else(trained: Path) -> None:
    assert sorted(p.name for p in (trained / "checkpoints").iterdir()) == ["base", "rl", "sft", "tokenizer.json"]
    weights = [(trained / "checkpoints" / n / "model.safetensors").read_bytes() for n in ("base", "sft", "rl")]
    assert len(set(weights)) == 3


def test_asking_again_changes_nothing(trained: Path) -> None:
    before = files_of(trained)
    train(trained)
    assert_same(files_of(trained), before)


# Interruptions


class Interruption(KeyboardInterrupt):
    pass


LEFT_OPEN = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""An interrupted stage leaves its files open; in life the process ends there."""


Interrupt = Callable[[pytest.MonkeyPatch], None]


def before_call(owner: Any, name: str, number: int) -> Interrupt:
    """Interrupts the call of that number, counted from 0, before it does anything."""

    def arm(patch: pytest.MonkeyPatch) -> None:
        real, calls = getattr(owner, name), iter(range(1000))

        def act(*arguments: Any, **named: Any) -> Any:
            if next(calls) == number:
                raise Interruption
            return real(*arguments, **named)

        patch.setattr(owner, name, act)

    return arm


def after_commit(number: int) -> Interrupt:
    """Interrupts between a commit and the removal of the checkpoint before it."""

    def arm(patch: pytest.MonkeyPatch) -> None:
        real, calls = Stage.commit, iter(range(1000))

        def act(*arguments: Any) -> None:
            real(*arguments)
            if next(calls) == number:
                raise Interruption

        patch.setattr(Stage, "commit", act)

    return arm


def interrupted(moment: Interrupt, work: Callable[[], Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        moment(patch)
        with pytest.raises(Interruption):
            work()
    gc.collect()  # the files left open are closed here, where their warning is expected


# commits: sft after 2, 4 and 5 updates (0, 1, 2), rl after each step (3, 4, 5)
MOMENTS = {
    "in the first update": before_call(sft_module, "sft_step", 0),
    "within a chunk": before_call(sft_module, "sft_step", 3),
    "sft: checkpoint written, not counted": before_call(Stage, "commit", 1),
    "sft: counted, old checkpoint still there": after_commit(1),
    "sft: policy not written": before_call(training, "_finish", 0),
    "in the first rl step": before_call(rl_module, "rl_step", 0),
    "in a later rl step": before_call(rl_module, "rl_step", 2),
    "rl: checkpoint written, not counted": before_call(Stage, "commit", 4),
    "rl: counted, old checkpoint still there": after_commit(4),
    "rl: policy written, not ended": before_call(Stage, "end", 2),
}


QUICK = ("within a chunk", "sft: counted, old checkpoint still there", "rl: checkpoint written, not counted")


@LEFT_OPEN
@pytest.mark.parametrize("moment", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS])
def test_interrupted_it_ends_with_the_same_bytes(moment: str, trained: Path, untrained: Path) -> None:
    interrupted(MOMENTS[moment], lambda: train(untrained))
    train(untrained)
    assert_same(files_of(untrained), files_of(trained))


@pytest.mark.slow
def test_killed_with_two_processes_it_ends_with_the_same_bytes(trained: Path, untrained: Path) -> None:
    """A kill after the first commit of each stage, of the process and its members."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_local_training as t\n"
        "if __name__ == '__main__':\n    t.training._SFT_CHUNK = 2\n    t.train(Path(sys.argv[1]), jobs=2)\n"
    )
    script = untrained.parent / "train.py"
    script.write_text(code)
    command = [sys.executable, str(script), str(untrained), str(Path(__file__).parent)]
    for stage in ("sft", "rl/rl"):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_for_rows(untrained / stage / "metrics.jsonl", process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (untrained / "checkpoints" / stage.split("/")[0] / "model.safetensors").exists()
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert_same(files_of(untrained), files_of(trained))


def wait_for_rows(file: Path, process: subprocess.Popen[bytes]) -> None:
    while not (file.exists() and file.read_bytes()):
        assert process.poll() is None, "it ended before its first commit"
        time.sleep(0.02)


# Refusals


def test_without_demonstrations_the_stage_does_not_begin(untrained: Path) -> None:
    with Run(untrained) as run:
        site = site_of(run)
        with pytest.raises(InputError, match=r"no demonstration for sft fits 2000 tokens; make shorter tasks"):
            train_sft(site, "sft", "base", [], SFT)
        with pytest.raises(InputError, match="golden trajectory"):
            train_rl(site, "rl", "base", site.tasks(suites(run)["rl"], {}), RL)
        assert not any(e["stage"] in ("sft", "rl rl") for e in run.journal)


# Budgets


def test_a_budget_of_rollouts_is_not_passed_by_another_step(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, path := tmp_path / "run")
    plain = replace(RL, rollback=RollbackSettings(retries=0, rollback=False))
    with Run(path) as run:
        site = site_of(run)
        tasks = site.tasks(suites(run)["rl"], golden_trajectories(run))
        train_rl(site, "grpo", "sft", tasks, plain, most_rollouts=10)
        train_rl(site, "rcrl", "sft", tasks, RL, most_rollouts=3)
    spent = {arm: [r["rollouts"] for r in read_jsonl(path / f"rl/{arm}/metrics.jsonl")] for arm in ("grpo", "rcrl")}
    assert spent["grpo"] == [4, 4, 2]
    assert len(spent["rcrl"]) == 1


# Evaluation


@LEFT_OPEN
def test_an_evaluation_is_resumed_and_summarised(trained: Path, tmp_path: Path) -> None:
    calm, disturbed = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("calm", "disturbed"))

    def play(path: Path) -> Any:
        with Run(path) as run:
            return evaluate_policy(site_of(run), "rl", "rl", suites(run)["rl"], context=700, trials=2)

    summary = play(calm)
    interrupted(before_call(Stage, "commit", 2), lambda: play(disturbed))
    assert play(disturbed) == summary == play(disturbed)
    assert_same(files_of(disturbed), files_of(calm))
    rows = list(read_rows(calm / "evaluations/rl@rl/results.jsonl", Trajectory))
    with Run(calm) as run:
        ids = [t.id for t, _ in suites(run)["rl"]]
    assert [(r.task, r.seed) for r in rows] == [(t, trial) for trial in (0, 1) for t in ids]
    assert summarize(rows) == summary
    assert not any("tools" in row for row in read_jsonl(calm / "evaluations/rl@rl/results.jsonl"))
    assert json.loads((calm / "evaluations/rl@rl/summary.json").read_text()) == summary.model_dump(mode="json")


# The crew


def test_batches_visit_every_task_once_an_epoch_after_the_short_ones() -> None:
    variants = [[Demonstration((n, v), (0, 1)) for v in range(3)] for n in range(6)]
    settings = SftSettings(steps=20, batch=3, growth=0.5)
    early = [d.ids[0] for seed in "abcde" for d in draw_batch(variants, settings, seed, 0)]
    assert set(early) == {0, 1}
    drawn = [d.ids for step in range(10, 30) for d in draw_batch(variants, settings, "seed", step)]
    epochs = [drawn[i : i + 6] for i in range(0, len(drawn), 6)]
    assert all(sorted(n for n, _ in epoch) == list(range(6)) for epoch in epochs)
    assert len({tuple(n for n, _ in epoch) for epoch in epochs}) > 5 and {v for _, v in drawn} == {0, 1, 2}


def crew_steps(path: Path, jobs: int) -> tuple[list[Any], torch.Tensor]:
    """Two SFT steps and an RL step: what they report, and the weights they leave."""
    with Run(path) as run:
        site = site_of(run)
        variants = shown(site)
        tasks = site.tasks(suites(run)["rl"][:3], golden_trajectories(run))
    states = [PromptState(task=n, golden_turns=len(t.golden.turns)) for n, t in tasks.items() if t.golden is not None]
    with Crew(new_policy(site.shape, 0), site.tokenizer, jobs) as crew:
        reports: list[Any] = [sft_step(crew, draw_batch(variants, SFT, "0", n), SFT, n) for n in range(2)]
        reports.append(sft_step(crew, draw_batch(variants, SFT, "0", 2)[:1], SFT, 2))  # one share has nothing
        reports.append(rl_step(crew, tasks, states, RL, step=0, epoch=0, seed="0"))
        return reports, crew.weights.values.clone()


@pytest.fixture
def pair(untrained: Path) -> Iterator[Crew]:
    """A crew of two processes."""
    with Run(untrained) as run:
        site = site_of(run)
    with Crew(new_policy(site.shape, 0), site.tokenizer, 2) as crew:
        yield crew


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_one(untrained: Path) -> None:
    (one, alone), (two, together) = (crew_steps(untrained, jobs) for jobs in (1, 2))
    assert one[:-1] == two[:-1]
    assert (one[-1].metrics, one[-1].collected) == (two[-1].metrics, two[-1].collected)
    assert torch.equal(alone, together)


@pytest.mark.slow
def test_a_member_that_fails_or_dies_is_said(pair: Crew) -> None:
    batch = [Demonstration((1, 2, 3), (0, 1, 1))]
    first, second = pair.share("learn_demonstrations", [(batch, 2), (batch, 2)])
    assert first == second and torch.equal(*pair.gradients)
    unreadable = [Demonstration((1, 10**6), (0, 1))]
    with pytest.raises(
        InfrastructureError, match=r"(?s)a training process failed; start the command again.*IndexError"
    ):
        pair.share("learn_demonstrations", [(batch, 2), (unreadable, 2)])
    assert pair.share("learn_demonstrations", [(batch, 2), (batch, 2)]) == [first, second]  # it goes on
    ((process, _),) = pair._members
    process.kill()
    process.join()
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="a training process died; start the same command again"):
            pair.share("learn_demonstrations", [(batch, 2), (batch, 2)])


@pytest.mark.slow
def test_a_closed_crew_leaves_no_process(pair: Crew) -> None:
    ((process, _),) = pair._members
    pair.close()
    assert not process.is_alive()
