"""The cost of a rollout beside TRL: the arithmetic, the drawing of tasks, and our side on a small policy."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agentomnia.errors import InputError
from agentomnia.runs.run import Run
from agentomnia.runs.training import make_tokenizer
from agentomnia.training.engines.local.mimetic import new_policy
from agentomnia.training.engines.local.policy import PolicyShape, save_policy
from agentomnia.training.engines.local.sampler import Sampling
from agentomnia.training.engines.local.tokenizer import WordTokenizer

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "rollout.py"


@pytest.fixture(scope="module")
def rollout() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollout", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rollout"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(policy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollout") / "run"
    shutil.copytree(policy_run, path)
    with Run(path) as opened:
        tokenizer = WordTokenizer.load(make_tokenizer(opened, "sft"))
    shape = PolicyShape(
        vocab_size=tokenizer.size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=16,
    )  # fmt: skip
    save_policy(new_policy(shape, 0, tokenizer.parts()), path / "checkpoints" / "sft")
    return path


def options(run: Path, **changes: object) -> argparse.Namespace:
    values = {"run": run, "suite": "rl", "policy": "sft", "prompts": 2, "group": 3, "steps": 1, "micro_batch": 6}
    return argparse.Namespace(**(values | changes))


def test_each_step_has_tasks_of_its_own_and_a_short_suite_is_refused(rollout: ModuleType, run: Path) -> None:
    plan = rollout.make_plan(options(run))
    assert plan.steps == 2  # with the one that warms up
    assert len(set(plan.tasks)) == len(plan.tasks) == 4
    assert [t.task.id for t in plan.policy_tasks()] == list(plan.tasks)
    with pytest.raises(InputError, match="take fewer steps"):
        rollout.make_plan(options(run, steps=50))


def test_our_side_counts_every_rollout(rollout: ModuleType, run: Path) -> None:
    steps = list(rollout.our_steps(rollout.make_plan(options(run))))
    assert [s.rollouts for s in steps] == [6, 6]
    for step in steps:
        assert 0 < step.own_tokens < step.tokens
        assert step.passed == 0 and 0 <= step.trained <= 6
        assert step.generation > 0 and step.training > 0 and step.training_on_all > 0


def test_learning_from_all_leaves_policy_and_counters(rollout: ModuleType, run: Path) -> None:
    plan = rollout.make_plan(options(run))
    crew = rollout._MeteredCrew(plan)
    crew.share("roll", [([(task, 0)] * plan.group, "policy", "s", Sampling()) for task in plan.policy_tasks()[:2]])
    assert len(crew.rollouts) == 6
    before, generation = crew.weights.values.clone(), crew.generation
    assert rollout._learn_all(crew, plan.group) > 0
    assert crew.gradient().abs().sum() > 0
    assert (crew.weights.values == before).all()
    assert (crew.trained, crew.learning, crew.generation) == (0, 0.0, generation)


def test_the_first_step_is_left_out_and_ratios_are_of_means(rollout: ModuleType) -> None:
    def step(rollouts: int, generation: float, training: float, on_all: float, tokens: int) -> object:
        return rollout.StepCost(rollouts, generation, training, 1.0, 1.0, tokens, 10, rollouts, on_all)

    warm = step(10, 100.0, 100.0, 100.0, 1000)
    ours = rollout.summarize("ours", [warm, step(10, 1.0, 0.5, 1.0, 1000), step(10, 2.0, 0.5, 1.0, 1000)])
    theirs = rollout.summarize("TRL", [warm, step(10, 4.0, 3.0, 3.0, 2000), step(10, 4.0, 5.0, 5.0, 2000)])
    assert (ours.generation, ours.training, ours.cpu_s_per_rollout) == (0.15, 0.05, 0.2)
    found = rollout.ratios(ours, theirs)
    assert found["ratio"] == pytest.approx(0.8 / 0.2)
    assert found["ratio_on_all"] == pytest.approx(0.8 / 0.25)
    assert found["ratio_per_token"] == pytest.approx((0.8 / 200) / (0.25 / 100))
    text = rollout.table(ours, [theirs], rollout.Plan("run", "sft", (), 1, 10, 3))
    assert "4.00 times ours a rollout (wanted: 2.5, met)" in text
    assert "MISSED" in rollout.table(theirs, [ours], rollout.Plan("run", "sft", (), 1, 10, 3))
