"""`omnia demo`: the main job from beginning to end, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentomnia.cli.options import DEFAULT_JOBS, Jobs, Json, Out, Seed, print_json


def demo(
    out: Out = Path("runs/demo"),
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the size: shows that it runs.")] = False,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """The whole loop: environments, tasks, gates, teacher, SFT, RL, diagnosis, PRDs, a second round, a report."""
    from agentomnia.runs.demo import run_demo

    outcome = run_demo(out, seed, jobs, quick)
    if json_output:
        print_json(outcome.to_json())
    else:
        typer.echo(outcome.text())
    if not outcome.passed:
        raise typer.Exit(1)
