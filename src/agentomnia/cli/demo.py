"""`omnia demo`: the main job from beginning to end, offline."""

from __future__ import annotations

from pathlib import Path

import typer

from agentomnia.cli.options import DEFAULT_JOBS, Jobs, Json, Out, Seed, print_json


def demo(
    out: Out = Path("runs/demo"),
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Cards and an API file to environments, tasks, gates, episodes of the agents, exports and a report."""
    from agentomnia.runs.demo import run_demo

    outcome = run_demo(out, seed, jobs)
    if json_output:
        print_json(outcome.to_json())
    else:
        typer.echo(outcome.text())
    if not outcome.passed:
        raise typer.Exit(1)
