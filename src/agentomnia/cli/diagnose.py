"""`omnia diagnose`: from an evaluation to task diagnoses, capability gaps and PRDs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentomnia.cli.options import DEFAULT_OUT, Json, print_json

if TYPE_CHECKING:
    from agentomnia.runs.evolution import Diagnosis


def diagnose(
    path: Annotated[Path, typer.Argument(help="Run directory with an evaluation.")] = DEFAULT_OUT,
    evaluation: Annotated[str, typer.Option("--evaluation", help="Folder under evaluations/ to diagnose.")] = "chat",
    most: Annotated[int, typer.Option("--most", min=1, help="PRDs at most.")] = 24,
    out: Annotated[Path | None, typer.Option("--out", help="Another way to name the run directory.")] = None,
    json_output: Json = False,
) -> None:
    """Say why episodes failed, group that into capability gaps, and write PRDs for the next round."""
    from agentomnia.runs.evolution import diagnose_evaluation
    from agentomnia.runs.run import Run

    folder = out or path
    with Run(folder) as run:
        run.configure("diagnosis", {"evaluation": evaluation, "most": most})
        found = diagnose_evaluation(run, evaluation, most=most)
        run.write_manifest()
    if json_output:
        print_json(_as_json(found, folder))
    else:
        _print(found, folder)


def _as_json(found: Diagnosis, folder: Path) -> dict[str, object]:
    gaps = [
        {"kind": g.kind, "capability": g.capability, "tasks": g.tasks, "primary": g.primary, "share": g.share,
         "severity": g.severity, "cause": g.cause}
        for g in found.gaps
    ]  # fmt: skip
    prds = [
        {"id": p.id, "priority": p.priority, "scenario": p.scenario.name, "domains": list(p.targets.domains)}
        for p in found.prds
    ]
    return {"diagnosed": len(found.diagnoses), "skipped": found.skipped, "gaps": gaps, "prds": prds, "out": str(folder)}


def _print(found: Diagnosis, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    skipped = ", ".join(f"{count} {reason}" for reason, count in found.skipped.items())
    title = f"{len(found.diagnoses)} failed episodes diagnosed" + (f" ({skipped})" if skipped else "")
    table = Table(title=title, title_justify="left")
    for column in ("failure", "capability", "decides", "occurs", "severity", "shared cause"):
        number = column in ("decides", "occurs", "severity")
        table.add_column(column, justify="right" if number else "left", no_wrap=column in ("failure", "capability"))
    for gap in found.gaps:
        cells = (gap.kind, gap.capability, str(gap.primary), str(gap.tasks), f"{gap.severity:.2f}", gap.cause)
        table.add_row(*cells)
    console = Console()
    console.print(table)
    prds = Table(title=f"{len(found.prds)} PRDs → {folder / 'prds'}", title_justify="left")
    for column in ("PRD", "priority", "scenario", "level-1 domain", "failures"):
        prds.add_column(column, justify="right" if column == "failures" else "left")
    for prd in found.prds:
        failures = sum(prd.guidance.failures.values())
        prds.add_row(prd.id, prd.priority, prd.scenario.name, _place(prd.targets.domains[0]), str(failures))
    console.print(prds)


def _place(id: int) -> str:
    from agentomnia.taxonomy.axes import domain

    return f"{domain(id).split} / {domain(id).l1}"
