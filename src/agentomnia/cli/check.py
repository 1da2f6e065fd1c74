"""`omnia validate`, `omnia eval`, `omnia export`, `omnia report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentomnia.cli.options import DEFAULT_JOBS, DEFAULT_OUT, Jobs, Json, Seed, print_json

if TYPE_CHECKING:
    from agentomnia.runs.validate import Validation


def validate(
    path: Annotated[Path, typer.Argument(help="Run directory, or one environment package.")] = DEFAULT_OUT,
    environments: Annotated[bool, typer.Option("--environments", help="Check environments instead of tasks.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Another way to name the run directory.")] = None,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Run the task gate, or the environment gate, over what a run holds; changes nothing."""
    from agentomnia.runs.validate import validate_environments, validate_tasks

    found = (validate_environments if environments else validate_tasks)(out or path, jobs)
    subject = "environment" if environments else "task"
    if json_output:
        failures = [{subject: f.task, "check": f.check, "evidence": f.evidence} for f in found.failures]
        checks = {name: {"passed": c.passed, "failed": c.failed} for name, c in found.checks.items()}
        print_json({f"{subject}s": found.subjects, "passed": found.passed, "checks": checks, "failures": failures})
    else:
        _print_validation(found, subject)
    if found.passed < found.subjects:
        raise typer.Exit(1)


def _print_validation(found: Validation, subject: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.passed} of {found.subjects} {subject}s pass every check", title_justify="left")
    for column in ("check", "passed", "failed"):
        table.add_column(column, justify="left" if column == "check" else "right")
    for name, count in found.checks.items():
        table.add_row(name, str(count.passed), str(count.failed))
    console = Console()
    console.print(table)
    for failure in found.failures[:20]:
        console.print(f"{failure.task}  {failure.check}: {failure.evidence}", markup=False, highlight=False)
    if len(found.failures) > 20:
        console.print(f"… and {len(found.failures) - 20} more; --json lists all")


def evaluate(
    path: Annotated[Path, typer.Argument(help="Run directory with tasks.")] = DEFAULT_OUT,
    agent: Annotated[str, typer.Option("--agent", help="null, apology, random, scripted or chat.")] = "null",
    model: Annotated[str | None, typer.Option("--model", help="Model name, for --agent chat.")] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="OpenAI-compatible endpoint, for --agent chat.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Name of the environment variable with the key.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature")] = 0.5,
    name: Annotated[
        str | None, typer.Option("--name", help="Folder under evaluations/; default: the agent's name.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Another way to name the run directory.")] = None,
    seed: Seed = 0,
    jobs: Jobs = DEFAULT_JOBS,
    json_output: Json = False,
) -> None:
    """Run an agent over every task of a run; Pass@1 with intervals along the axes of the taxonomy."""
    from agentomnia.cli.scores import print_summary, summary_json
    from agentomnia.episodes.agent import AGENT_NAMES
    from agentomnia.errors import InputError
    from agentomnia.llm.client import ModelEndpoint
    from agentomnia.runs.episodes import evaluate as run_evaluation
    from agentomnia.runs.run import Run

    folder = name or agent
    if agent not in AGENT_NAMES:
        raise InputError(f"there is no agent {agent!r}; use {', '.join(AGENT_NAMES[:-1])} or {AGENT_NAMES[-1]}")
    if Path(folder).name != folder or folder == "..":
        raise InputError(f"--name {folder!r} is no name of a folder; leave slashes and dots out")
    endpoint = None
    if agent == "chat":
        if model is None or base_url is None:
            raise InputError("--agent chat needs --model and --base-url; any OpenAI-compatible endpoint will do")
        endpoint = ModelEndpoint(model=model, base_url=base_url, api_key_env=api_key_env, temperature=temperature)
    with Run(out or path) as run:
        run.require("tasks", "omnia synth tasks")
        settings: dict[str, object] = {"agent": agent, "seed": seed}
        if endpoint is not None:
            settings |= {"model": endpoint.model, "base_url": endpoint.base_url, "temperature": temperature}
        run.configure(f"evaluation-{folder}", settings)
        summary = run_evaluation(run, agent, seed=seed, jobs=jobs, endpoint=endpoint, name=folder)
        run.write_manifest()
    if json_output:
        print_json(summary_json(summary))
    else:
        print_summary(summary, agent)


def export(
    path: Annotated[Path, typer.Argument(help="Run directory with trajectories.")] = DEFAULT_OUT,
    to: Annotated[str, typer.Option("--to", help="trl, openai or qwen3-sft.")] = "trl",
    out: Annotated[Path | None, typer.Option("--out", help="Another way to name the run directory.")] = None,
    json_output: Json = False,
) -> None:
    """Write the kept trajectories in the form of a trainer."""
    from agentomnia.runs.exports import export_trajectories

    file, rows = export_trajectories(out or path, to)
    if json_output:
        print_json({"target": to, "rows": rows, "path": str(file)})
    else:
        typer.echo(f"{rows} rows → {file}")


def report(
    path: Annotated[Path, typer.Argument(help="Run directory.")] = DEFAULT_OUT,
    out: Annotated[Path | None, typer.Option("--out", help="Another way to name the run directory.")] = None,
    json_output: Json = False,
) -> None:
    """Write the run's report: one HTML file that opens from disk, without a network."""
    from agentomnia.report.write import write_report

    file = write_report(out or path)
    if json_output:
        print_json({"report": str(file)})
    else:
        typer.echo(f"report → {file}")
