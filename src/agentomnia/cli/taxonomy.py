"""`omnia taxonomy`: list the domains, show one, and measure how much of the taxonomy a file covers.

Each command prints tables for people, or with `--json` exactly one JSON object. Errors are left to `main`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from agentomnia.taxonomy.axes import Domain
    from agentomnia.taxonomy.coverage import Coverage

app = typer.Typer(
    name="taxonomy", help="Domains, capabilities and difficulties, and their coverage.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


@app.command("list")
def list_domains(
    split: Annotated[str | None, typer.Option(help="Only this split: toc, tob or toe.")] = None,
    l1: Annotated[str | None, typer.Option(help="Only this level-1 domain, by name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the level-2 domains."""
    from agentomnia.taxonomy.axes import domains_in

    chosen = domains_in(split, l1)
    if as_json:
        _print_json({"domains": [_brief(item) for item in chosen]})
        return
    table = _table("id", "split", "level 1", "level 2", "description")
    for item in chosen:
        table.add_row(str(item.id), item.split, item.l1, item.l2, item.description)
    console = _console()
    console.print(table)
    console.print(f"{len({(item.split, item.l1) for item in chosen})} level-1, {len(chosen)} level-2 domains")


@app.command()
def show(
    id: Annotated[int, typer.Argument(metavar="ID", help="Id of a level-2 domain.")], as_json: AsJson = False
) -> None:
    """Show one level-2 domain: its objects, constraints and operations."""
    from agentomnia.taxonomy.axes import domain

    found = domain(id)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        _print_domain(_console(), found)


@app.command()
def coverage(
    path: Annotated[Path, typer.Argument(help="A .jsonl file of rows with coordinates, or a run directory.")],
    as_json: AsJson = False,
) -> None:
    """Count the rows of a file per split, domain, capability and difficulty."""
    from agentomnia.taxonomy.coverage import coverage as measure
    from agentomnia.taxonomy.coverage import read_coordinates

    measured = measure(read_coordinates(path))
    if as_json:
        _print_json(measured.model_dump(mode="json"))
    else:
        _print_coverage(_console(), measured)


def _brief(item: Domain) -> dict[str, Any]:
    return item.model_dump(mode="json", include={"id", "split", "l1", "l2", "description"})


def _print_domain(console: Console, item: Domain) -> None:
    console.print(f"{item.id}  {item.path}", style="bold")
    console.print(item.description)
    objects = _table("object", "attributes", "mutable")
    for entity in item.objects:
        lifecycle = [
            name if states == "value" else f"{name}: {' | '.join(states)}" for name, states in entity["mutable"].items()
        ]
        objects.add_row(entity["name"], ", ".join(entity["attributes"]), "\n".join(lifecycle))
    console.print(objects)
    operations = _table("operation", "kind")
    for operation in item.operations:
        operations.add_row(operation["name"], operation["kind"])
    console.print(operations)
    for constraint in item.constraints:
        console.print(f"constraint: {constraint}")


def _print_coverage(console: Console, measured: Coverage) -> None:
    splits = _table("split", "rows", "level 1", "level 2")
    for split, of in measured.splits.items():
        splits.add_row(split, str(of.rows), f"{of.l1} of {of.l1_total}", f"{of.l2} of {of.l2_total}")
    console.print(splits)
    console.print(_level1_table(measured))
    capabilities = _table("capability", "rows")
    for name, rows in measured.capabilities.items():
        capabilities.add_row(name, str(rows))
    console.print(capabilities)
    difficulty = _table("difficulty", "rows", "primary")
    for name, rows in measured.difficulty.items():
        difficulty.add_row(name, str(rows), str(measured.primary[name]))
    console.print(difficulty)
    missing = sum(not rows for rows in measured.l2.values())
    console.print(
        f"{measured.rows} rows; {missing} of {len(measured.l2)} level-2 domains have none (--json names them)"
    )


def _level1_table(measured: Coverage) -> Table:
    table = _table("split", "level 1 with rows", "rows")
    for split, names in measured.l1.items():
        for name, rows in names.items():
            if rows:
                table.add_row(split, name, str(rows))
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, header_style="bold")


def _console() -> Console:
    from rich.console import Console

    # Names and texts are data: square brackets in them are not markup.
    return Console(markup=False, emoji=False, highlight=False)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))
