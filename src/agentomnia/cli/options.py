"""Options that every command shares, and how results are printed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option("--out", help="Run directory; a later stage reads what earlier ones left there.")]
Seed = Annotated[int, typer.Option("--seed", help="Same inputs and seed, same bytes.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Worker processes.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output; logs go to standard error.")]

DEFAULT_OUT = Path("runs/default")
DEFAULT_JOBS = max(1, os.cpu_count() or 1)


def print_json(value: dict[str, Any]) -> None:
    """The one object of `--json`."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_counts(title: str, kept: int, rejected: dict[str, int], seconds: float, out: Path) -> None:
    """A stage's counts as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}: {kept} kept in {seconds:.1f} s → {out}", title_justify="left")
    table.add_column("dropped because")
    table.add_column("count", justify="right")
    for reason, count in rejected.items():
        table.add_row(reason, str(count))
    console = Console()
    console.print(table if rejected else table.title)
