"""`omnia synth`: environments, tasks and reference trajectories into a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentomnia.cli.options import DEFAULT_JOBS, DEFAULT_OUT, Jobs, Json, Out, Seed, print_counts, print_json

if TYPE_CHECKING:
    from agentomnia.runs.run import StageReport

app = typer.Typer(help="Synthesize environments, tasks and trajectories.", no_args_is_help=True)


@app.command()
def environments(
    domain: Annotated[
        list[int] | None,
        typer.Option("--domain", help="Level-2 domain id; repeat for more. Default: every card."),
    ] = None,
    from_file: Annotated[
        list[Path] | None,
        typer.Option("--from", help="OpenAPI file or MCP tools/list dump; repeat for more."),
    ] = None,
    per_domain: Annotated[int, typer.Option("--per-domain", min=1, help="Variants of each domain.")] = 1,
    prd: Annotated[
        Path | None,
        typer.Option("--prd", help="PRD file, or a folder of them: make what they ask for, and nothing else."),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", min=1, help="With --prd: tasks to plan for in all. Default: 7 for each target."),
    ] = None,
    out: Out = DEFAULT_OUT,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Make, correct and verify environments from domain cards, from seed files, or as PRDs ask for them."""
    from time import perf_counter

    from agentomnia.errors import InputError
    from agentomnia.runs.environments import card_items, environment_settings, file_items, make_environments
    from agentomnia.runs.run import Run
    from agentomnia.synthesis.environments.author import BuiltinAuthor

    started = perf_counter()
    if prd is not None:
        if domain or from_file:
            raise InputError("--prd goes with neither --domain nor --from; make those in a run of their own")
        _guided_environments(prd, tasks, out, seed, jobs, json_output)
        return
    files = from_file or []
    domains = domain if domain is not None else ([] if files else list(BuiltinAuthor().domains))
    with Run(out) as run:
        settings = environment_settings(domains, files, per_domain, seed)
        run.configure("environments", settings)
        report = make_environments(run, [*card_items(domains, per_domain, seed), *file_items(files, seed)], jobs)
        run.write_manifest()
    _finish("environments", report, perf_counter() - started, out, json_output)


def _guided_environments(prd: Path, tasks: int | None, out: Path, seed: int, jobs: int, json_output: bool) -> None:
    from time import perf_counter

    from agentomnia.runs.environments import make_environments
    from agentomnia.runs.guided import guided_environments, read_guidance
    from agentomnia.runs.run import Run

    started = perf_counter()
    guidance = read_guidance(prd, tasks)
    with Run(out) as run:
        run.configure("environments", guidance.to_config(seed))
        report = make_environments(run, guided_environments(guidance.orders, seed), jobs)
        run.write_manifest()
    for id, target in guidance.uncovered:
        typer.echo(f"{id}: no card covers domain {target}; nothing is made for it (docs/cards.md)", err=True)
    _finish("environments", report, perf_counter() - started, out, json_output)


@app.command()
def tasks(
    per_environment: Annotated[
        int, typer.Option("--per-environment", min=1, help="Tasks wanted for each environment.")
    ] = 10,
    prd: Annotated[
        Path | None,
        typer.Option("--prd", help="The PRDs that the run's environments were made for: as many tasks as planned."),
    ] = None,
    out: Out = DEFAULT_OUT,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Make and verify DAG-Standard tasks for the environments of a run."""
    from time import perf_counter

    from agentomnia.runs.guided import guidance_of, guided_tasks
    from agentomnia.runs.run import Run
    from agentomnia.runs.tasks import make_task_items, make_tasks

    started = perf_counter()
    with Run(out) as run:
        run.require("environments", "omnia synth environments")
        if prd is not None:
            guidance = guidance_of(run, prd)
            run.configure("tasks", guidance.to_config(seed))
            report = make_task_items(run, "tasks", guided_tasks(run, guidance.orders, seed), jobs)
        else:
            run.configure("tasks", {"per_environment": per_environment, "seed": seed})
            report = make_tasks(run, per_environment, seed, jobs)
        run.write_manifest()
    _finish("tasks", report, perf_counter() - started, out, json_output)


@app.command()
def trajectories(
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher", help="builtin (reasons, checked for quality) or scripted. Default: the run's, else builtin."
        ),
    ] = None,
    out: Out = DEFAULT_OUT,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Play the reference of every task and keep what earns the full reward and passes the quality checks."""
    from time import perf_counter

    from agentomnia.runs.episodes import make_references, reference_player
    from agentomnia.runs.run import Run

    started = perf_counter()
    with Run(out) as run:
        run.require("tasks", "omnia synth tasks")
        player = reference_player(run, teacher)
        run.configure("trajectories", {"agent": player, "seed": seed})
        report = make_references(run, jobs, player, seed)
        run.write_manifest()
    _finish("trajectories", report, perf_counter() - started, out, json_output)


def _finish(what: str, report: StageReport, seconds: float, out: Path, as_json: bool) -> None:
    rejected = report.sorted_reasons()
    if as_json:
        print_json({"kept": report.kept, "rejected": rejected, "seconds": round(seconds, 3), "out": str(out)})
    else:
        print_counts(what, report.kept, rejected, seconds, out)
    if report.kept == 0:
        raise typer.Exit(1)
