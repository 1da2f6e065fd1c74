"""What a rollout costs, generation and training, beside TRL's GRPOTrainer on the same policy and the same tasks.

    python benchmarks/rollout.py RUN [--policy sft] [--suite rl] [--prompts 8] [--group 16] [--steps 4] [--json]

RUN is a directory that the loop has filled: environments, tasks, splits and `checkpoints/`. Ours is the step of
`training/engines/local` without rollback: P prompts times G rollouts, filtering, advantages, one update. TRL's is its
GRPOTrainer with `environment_factory` (trl_side.py), in a virtual environment of its own that this script makes on its
first start. Both see the same prompts in the same order, play them on the real environments, are graded by the
criterion of the task, and use one thread. CPU seconds of the process are counted, and the sides make their steps in
turn, since even CPU seconds grow on a machine that does other work; the first step warms up and is left out.

TRL's update is measured in float32 and in bfloat16 (as ours, whose weights are float32 and whose training forward pass
is bfloat16), and the ratio takes the cheaper one. What is not alike is listed at the end of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import torch

from agentomnia.errors import InfrastructureError, InputError
from agentomnia.runs.episodes import read_tasks
from agentomnia.runs.run import read_jsonl
from agentomnia.training.engines.local.crew import SHARES, Crew
from agentomnia.training.engines.local.policy import load_policy
from agentomnia.training.engines.local.rl import RlSettings, rl_step
from agentomnia.training.engines.local.rollout import LIMITS, Rollout
from agentomnia.training.engines.local.worker import PolicyTask, RolloutGroup, StepTotals, Weighting
from agentomnia.training.rl.rollback import PromptState, RollbackSettings

TARGET = 2.5
"""TRL's CPU seconds for a rollout over ours, at least."""
_VENV = Path("~/.cache/agentomnia/trl-1.16").expanduser()
_PINS = ("trl>=1.16,<1.17", "transformers>=5.13,<5.25")
_PRECISIONS = ("float32", "bfloat16")
_UNLIKE = (
    "ours trains on groups with signal alone (dynamic filtering), TRL on every rollout",
    "ours stops an episode after 16 calls or 4 refusals in a row, TRL has no such stop",
    "ours records the state's digest after every call, TRL's side does not",
    "an unreadable call is answered with an error by ours and ends the episode in TRL",
)


@dataclass(frozen=True)
class Plan:
    """What both sides do."""

    run: str
    policy: str
    """Name of a folder below `checkpoints/`."""
    tasks: tuple[str, ...]
    """Ids of the tasks, `prompts` of them for each step."""
    prompts: int
    group: int
    steps: int
    """With the first one, which warms up."""
    context: int = 640
    turns: int = LIMITS.turns
    turn_tokens: int = 96
    rate: float = 1e-4
    warmup: int = 4
    """Updates until the full rate; nothing to do with the step that is left out."""
    beta2: float = 0.99
    micro_batch: int = 32
    """Rollouts of one forward pass in TRL's update."""
    precision: str = "float32"
    """Of TRL's update."""
    seed: int = 0

    def tokenizer(self) -> Path:
        """The policy's tokenizer."""
        return Path(self.run, "checkpoints", "tokenizer.json")

    def checkpoint(self) -> Path:
        """The policy's weights."""
        return Path(self.run, "checkpoints", self.policy)

    def policy_tasks(self) -> list[PolicyTask]:
        """The tasks of all steps in order."""
        wanted = set(self.tasks)
        found = {t.id: (t, p) for t, p in read_tasks(Path(self.run)) if t.id in wanted}
        environments = Path(self.run, "environments")
        return [PolicyTask(environments, *found[name]) for name in self.tasks]


@dataclass(frozen=True)
class StepCost:
    """One step of one side, in sums over its rollouts."""

    rollouts: int
    generation: float
    """CPU seconds of sampling, environments and grading."""
    training: float
    """CPU seconds of the rest."""
    wall: float
    passed: float
    """Rollouts with the full reward."""
    tokens: int
    """Whole sequences, prompt included."""
    own_tokens: int
    """Tokens that the policy chose."""
    trained: int
    """Rollouts that entered the update."""
    training_on_all: float
    """CPU seconds of the rest, had every rollout entered the update."""


@dataclass(frozen=True)
class Side:
    """Means over the measured steps."""

    name: str
    rollouts: int
    cpu_s_per_rollout: float
    generation: float
    training: float
    training_on_all: float
    spread: float
    """Standard deviation of `cpu_s_per_rollout` over steps."""
    wall_s_per_rollout: float
    reward: float
    tokens_per_rollout: float
    own_tokens_per_rollout: float
    trained_share: float

    @property
    def on_all(self) -> float:
        """CPU seconds for a rollout, had every rollout entered the update."""
        return self.generation + self.training_on_all

    @property
    def per_token(self) -> float:
        """The same for a token of the sequences: rollouts of the two sides differ in length."""
        return self.on_all / self.tokens_per_rollout


def main() -> None:
    """Run the benchmark."""
    options = _options()
    plan = make_plan(options)
    python = trl_python(options.venv)
    with ExitStack() as stack:
        theirs = {p: stack.enter_context(TrlSide(python, plan, p)) for p in options.precision}
        steps = measure(plan, theirs)
        versions = {"ours": _versions(), "trl": next(iter(theirs.values())).versions}
    ours = summarize("ours", steps["ours"])
    sides = [summarize(f"TRL, update in {p}", steps[p]) for p in theirs]
    trl = min(sides, key=lambda s: s.cpu_s_per_rollout)
    told = {
        "ours": asdict(ours),
        "trl": asdict(trl),
        "trl_all": [asdict(s) for s in sides],
        **{name: round(value, 2) for name, value in ratios(ours, trl).items()},
        "target": TARGET,
        "plan": {k: v for k, v in asdict(plan).items() if k not in ("tasks", "precision")},
        "unlike": _UNLIKE,
        "versions": versions,
    }
    print(json.dumps(told) if options.json else table(ours, sides, plan))


def measure(plan: Plan, theirs: Mapping[str, TrlSide]) -> dict[str, list[StepCost]]:
    """Steps of all sides, the first ones included, in turn: a machine that is busy for a while is so for all."""
    steps: dict[str, list[StepCost]] = {"ours": [], **{p: [] for p in theirs}}
    for number, ours in enumerate(our_steps(plan)):
        steps["ours"].append(ours)
        for precision, side in theirs.items():
            steps[precision].append(side.step())
        for name, found in steps.items():
            each = (found[-1].generation + found[-1].training) / found[-1].rollouts
            print(f"step {number}: {name} {each:.4f} CPU s for a rollout", file=sys.stderr)
    return steps


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory with checkpoints")
    parser.add_argument("--policy", default="sft", help="which of its checkpoints")
    parser.add_argument("--suite", default="rl", help="which of its suites")
    parser.add_argument("--prompts", type=int, default=8, help="P, tasks of a step")
    parser.add_argument("--group", type=int, default=16, help="G, rollouts of a task")
    parser.add_argument("--steps", type=int, default=4, help="measured steps, beside one that warms up")
    parser.add_argument("--micro-batch", type=int, default=32, help="rollouts of a forward pass in TRL's update")
    parser.add_argument("--precision", nargs="+", choices=_PRECISIONS, default=_PRECISIONS, help="of TRL's update")
    parser.add_argument("--venv", type=Path, default=_VENV, help="where TRL's virtual environment is, or is made")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser.parse_args()


def make_plan(options: argparse.Namespace) -> Plan:
    """Draw the tasks of all steps; none twice.

    Raises:
        InputError: the suite has too few tasks.
    """
    run: Path = options.run.resolve()
    wanted = {row["task"] for row in read_jsonl(run / "splits.jsonl") if row["suite"] == options.suite}
    tasks = sorted(wanted)
    steps, count = options.steps + 1, options.prompts * (options.steps + 1)
    if len(tasks) < count:
        raise InputError(f"{run}: suite {options.suite} has {len(tasks)} tasks, {count} are needed; take fewer steps")
    drawn = tuple(Random("rollout benchmark").sample(tasks, count))
    plan = Plan(str(run), options.policy, drawn, options.prompts, options.group, steps)
    return Plan(**{**asdict(plan), "tasks": drawn, "micro_batch": options.micro_batch})


class _MeteredCrew(Crew):
    """A crew that counts what passes through it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(load_policy(plan.checkpoint()), plan.tokenizer(), jobs=1)
        self.generation, self.learning = 0.0, 0.0
        self.rollouts: list[Rollout] = []
        self.trained = 0

    def share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `method` for each share; count rollouts made and rollouts learned from."""
        started = time.process_time()
        results = super().share(method, arguments)
        spent = time.process_time() - started
        if method == "roll":
            self.generation += spent
            self.rollouts += [r for share in results for r in share]
        else:
            self.learning += spent
            groups: list[RolloutGroup] = [g for share in arguments for g in share[0]]
            self.trained += sum(len(g.rollouts) for g in groups)
        return results


def our_steps(plan: Plan) -> Iterator[StepCost]:
    """Steps of the local engine, the first one included, each made when it is asked for."""
    torch.set_num_threads(1)
    settings = RlSettings(
        steps=plan.steps, prompts=plan.prompts, group=plan.group, iterations=1, rate=plan.rate, warmup=plan.warmup,
        context=plan.context, rollback=RollbackSettings(retries=0, rollback=False),
    )  # fmt: skip
    tasks = plan.policy_tasks()
    by_id = {t.task.id: t for t in tasks}
    crew = _MeteredCrew(plan)
    with crew:
        for number in range(plan.steps):
            drawn = tasks[number * plan.prompts : (number + 1) * plan.prompts]
            states = [PromptState(task=t.task.id, golden_turns=1) for t in drawn]
            crew.generation, crew.learning, crew.rollouts, crew.trained = 0.0, 0.0, [], 0
            wall, cpu = time.perf_counter(), time.process_time()
            rl_step(crew, by_id, states, settings, step=number, epoch=0, seed=str(plan.seed))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            yield _our_step(crew, cpu, wall, _learn_all(crew, plan.group))


def _learn_all(crew: _MeteredCrew, size: int) -> float:
    """CPU seconds of a gradient over every rollout of the step, as if each group had signal; it is dropped."""
    rollouts = crew.rollouts
    signs = tuple((-1.0) ** i for i in range(size))
    groups = [RolloutGroup(tuple(rollouts[i : i + size]), signs) for i in range(0, len(rollouts), size)]
    shares = [groups[i::SHARES] for i in range(SHARES)]
    totals = [StepTotals(tuple(sum(sum(r.own) for r in g.rollouts) for g in s), len(groups), 0) for s in shares]
    started = time.process_time()
    Crew.share(crew, "learn_rollouts", [(s, t, Weighting(ce=0.0)) for s, t in zip(shares, totals)])
    return time.process_time() - started


def _our_step(crew: _MeteredCrew, cpu: float, wall: float, learning_all: float) -> StepCost:
    return StepCost(
        rollouts=len(crew.rollouts),
        generation=crew.generation,
        training=cpu - crew.generation,
        wall=wall,
        passed=sum(r.trajectory.reward == 1.0 for r in crew.rollouts),
        tokens=sum(len(r.ids) for r in crew.rollouts),
        own_tokens=sum(sum(r.own) for r in crew.rollouts),
        trained=crew.trained,
        training_on_all=cpu - crew.generation - crew.learning + learning_all,
    )


def trl_python(folder: Path) -> Path:
    """The interpreter of TRL's virtual environment, which is made where it is missing.

    It has the torch of this one, this project, and TRL with what it wants.
    """
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        print(f"making {folder}", file=sys.stderr)
        project = str(Path(__file__).resolve().parents[1])
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([*install, f"torch=={torch.__version__.split('+')[0]}"], check=True)
        subprocess.run([*install, *_PINS, "--editable", project], check=True)
        done.touch()
    return python


class TrlSide:
    """TRL's trainer in a process of its own, which makes a step when asked. Use as a context manager."""

    def __init__(self, python: Path, plan: Plan, precision: str) -> None:
        """Start it; it loads and checks the model, and tells its versions."""
        script = Path(__file__).with_name("trl_side.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._say(json.dumps({**asdict(plan), "precision": precision}))
        self.versions: dict[str, str] = self._hear()

    def step(self) -> StepCost:
        """Let it make its next step."""
        self._say("step")
        return StepCost(**self._hear())

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise InfrastructureError("TRL's process has ended; read what it wrote above")
        return json.loads(line)

    def __enter__(self) -> TrlSide:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let it end."""
        self._process.communicate(timeout=600)


def summarize(name: str, steps: Sequence[StepCost]) -> Side:
    """Means over all steps but the first."""
    measured = steps[1:]
    rollouts = sum(s.rollouts for s in measured)
    generation, training = sum(s.generation for s in measured), sum(s.training for s in measured)
    each = [(s.generation + s.training) / s.rollouts for s in measured]
    return Side(
        name=name,
        rollouts=rollouts,
        cpu_s_per_rollout=round((generation + training) / rollouts, 5),
        generation=round(generation / rollouts, 5),
        training=round(training / rollouts, 5),
        training_on_all=round(sum(s.training_on_all for s in measured) / rollouts, 5),
        spread=round(statistics.stdev(each), 5) if len(each) > 1 else 0.0,
        wall_s_per_rollout=round(sum(s.wall for s in measured) / rollouts, 5),
        reward=round(sum(s.passed for s in measured) / rollouts, 4),
        tokens_per_rollout=round(sum(s.tokens for s in measured) / rollouts, 1),
        own_tokens_per_rollout=round(sum(s.own_tokens for s in measured) / rollouts, 1),
        trained_share=round(sum(s.trained for s in measured) / rollouts, 3),
    )


def ratios(ours: Side, trl: Side) -> dict[str, float]:
    """How many times dearer TRL is: as the steps went, had ours learned from every rollout, and that for a token."""
    return {
        "ratio": trl.cpu_s_per_rollout / ours.cpu_s_per_rollout,
        "ratio_on_all": trl.on_all / ours.on_all,
        "ratio_per_token": trl.per_token / ours.per_token,
    }


def table(ours: Side, theirs: Sequence[Side], plan: Plan) -> str:
    """The sides as text, each of TRL's with how many times dearer it is."""
    lines = [
        f"{plan.prompts} prompts of {plan.group} rollouts, {plan.steps - 1} steps after one of warm-up, one thread; "
        "CPU seconds for a rollout",
        f"{'side':<24} {'total':>8} {'generation':>11} {'training':>9} {'on all':>8} {'reward':>7} {'tokens':>7} "
        f"{'own':>6} {'trained':>8}",
    ]
    for side in (ours, *theirs):
        lines.append(
            f"{side.name:<24} {side.cpu_s_per_rollout:>8.4f} {side.generation:>11.4f} {side.training:>9.4f} "
            f"{side.training_on_all:>8.4f} {side.reward:>7.3f} {side.tokens_per_rollout:>7.1f} "
            f"{side.own_tokens_per_rollout:>6.1f} {side.trained_share:>8.2f}"
        )
    found = ratios(ours, min(theirs, key=lambda s: s.cpu_s_per_rollout))
    lines += [
        f"TRL's cheaper setting costs {found['ratio']:.2f} times ours a rollout (wanted: {TARGET}, "
        f"{'met' if found['ratio'] >= TARGET else 'MISSED'}); {found['ratio_on_all']:.2f} times had ours learned from "
        f"every rollout; and that {found['ratio_per_token']:.2f} times a token",
        "not alike:",
    ]
    return "\n".join([*lines, *(f"- {line}" for line in _UNLIKE)])


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": version("torch")}


if __name__ == "__main__":
    main()
