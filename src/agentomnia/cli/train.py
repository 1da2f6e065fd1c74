"""`omnia train`: a policy of a run, from demonstrations to rewards, with the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentomnia.cli.options import DEFAULT_JOBS, Jobs, Json, Seed, print_json

if TYPE_CHECKING:
    from agentomnia.runs.policies import Trained

app = typer.Typer(
    help="Train and evaluate the small policy of a run (settings and files: docs/training.md).", no_args_is_help=True
)

RunPath = Annotated[Path, typer.Option("--out", help="Run directory with suites, such as one that `omnia demo` made.")]
Name = Annotated[str, typer.Option("--name", help="Of the new policy: checkpoints/NAME.")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Updates (SFT) or mini-batches (RL).")]
Rate = Annotated[float | None, typer.Option("--rate", help="Learning rate of all weights but the embeddings.")]

DEFAULT_RUN = Path("runs/demo")


@app.command()
def sft(
    suite: Annotated[str, typer.Option("--suite", help="Whose verified trajectories are learned.")] = "sft",
    start: Annotated[str, typer.Option("--start", help="Policy to begin with; base is made where missing.")] = "base",
    name: Name = "sft",
    steps: Steps = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Demonstrations of an update.")] = None,
    rate: Rate = None,
    out: RunPath = DEFAULT_RUN,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Fine-tune a policy on the teacher's trajectories of a suite."""
    from agentomnia.runs.policies import fine_tune, require_training
    from agentomnia.runs.run import Run

    require_training()
    from agentomnia.training.engines.local.sft import SftSettings

    settings = SftSettings(**_given(steps=steps, batch=batch, rate=rate))
    with Run(out) as run:
        trained = fine_tune(run, name, start, suite, settings, seed=seed, jobs=jobs)
        run.write_manifest()
    _show(trained, json_output, f"loss {trained.last['loss']:.3f}")


@app.command()
def rl(
    suite: Annotated[str, typer.Option("--suite", help="Tasks that are rolled out.")] = "rl",
    start: Annotated[str, typer.Option("--start", help="Policy to begin with.")] = "sft",
    name: Name = "rl",
    steps: Steps = None,
    prompts: Annotated[int | None, typer.Option("--prompts", min=1, help="Tasks of a mini-batch.")] = None,
    group: Annotated[int | None, typer.Option("--group", min=2, help="G, rollouts of a task.")] = None,
    rate: Rate = None,
    rollback: Annotated[bool, typer.Option("--rollback/--no-rollback", help="RCRL, or plain GRPO.")] = True,
    out: RunPath = DEFAULT_RUN,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Reinforcement learning with rollback curriculum on the tasks of a suite."""
    from agentomnia.runs.policies import reinforce, require_training
    from agentomnia.runs.run import Run

    require_training()
    from agentomnia.training.engines.local.rl import RlSettings
    from agentomnia.training.rl.rollback import RollbackSettings

    curriculum = RollbackSettings() if rollback else RollbackSettings(retries=0, rollback=False)
    settings = RlSettings(rollback=curriculum, **_given(steps=steps, prompts=prompts, group=group, rate=rate))
    with Run(out) as run:
        trained = reinforce(run, name, start, suite, settings, seed=seed, jobs=jobs)
        run.write_manifest()
    passed = trained.last["pass_rate"]
    _show(trained, json_output, "no rollout survived" if passed is None else f"pass rate {100 * passed:.0f} %")


@app.command(name="eval")
def evaluate(
    policy: Annotated[str, typer.Option("--policy", help="Folder under checkpoints/.")] = "rl",
    suite: Annotated[str, typer.Option("--suite", help="Tasks that are played.")] = "held_out",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Episodes of each task.")] = 1,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token.")] = 1.0,
    out: RunPath = DEFAULT_RUN,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Pass@1 of a policy on a suite, into evaluations/POLICY@SUITE."""
    from agentomnia.cli.scores import print_summary, summary_json
    from agentomnia.runs.policies import require_training, score_policy
    from agentomnia.runs.run import Run

    require_training()
    with Run(out) as run:
        summary = score_policy(run, policy, suite, trials=trials, temperature=temperature, seed=seed, jobs=jobs)
        run.write_manifest()
    if json_output:
        print_json({"policy": policy, "suite": suite, **summary_json(summary)})
    else:
        print_summary(summary, f"{policy} on {suite}")


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; for the others the settings have defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _show(trained: Trained, as_json: bool, told: str) -> None:
    if as_json:
        print_json({"policy": trained.policy, "path": trained.path, "last": trained.last})
    else:
        typer.echo(f"{trained.policy}: {trained.last['step']} steps, {told} → {trained.path}")
