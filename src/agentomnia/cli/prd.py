"""`omnia prd`: write Product Requirement Documents by hand, and check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentomnia.cli.options import Json, print_json

app = typer.Typer(help="Write and check Product Requirement Documents.", no_args_is_help=True)


@app.command()
def new(
    domain: Annotated[int, typer.Option("--domain", help="Level-2 domain id (omnia taxonomy list).")] = 10006,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: print it.")] = None,
    json_output: Json = False,
) -> None:
    """Write a filled-in PRD to edit; it is valid as it is."""
    from agentomnia.errors import InputError
    from agentomnia.evolution.markdown import to_markdown
    from agentomnia.evolution.prd import example_prd

    text = to_markdown(example_prd(domain))
    if out is not None:
        if out.exists():
            raise InputError(f"{out} exists already; give another --out, or remove it first")
        out.write_text(text, encoding="utf-8")
    if json_output:
        print_json({"path": str(out) if out is not None else None, "markdown": text})
    elif out is not None:
        typer.echo(f"PRD → {out}; edit it, then: omnia prd check {out}")
    else:
        typer.echo(text, nl=False)


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(help="PRDs as Markdown files.")],
    json_output: Json = False,
) -> None:
    """Check PRDs; says every problem with its line and what to do."""
    from agentomnia.evolution.markdown import read_markdown
    from agentomnia.runs.evolution import read_document

    rows: list[dict[str, Any]] = []
    for path in paths:
        prd, problems = read_markdown(read_document(path))
        found = [{"line": p.line, "message": p.message} for p in problems]
        rows.append({"path": str(path), "id": prd.id if prd else None, "passed": prd is not None, "problems": found})
    if json_output:
        print_json({"prds": rows})
    else:
        for row in rows:
            typer.echo(f"{row['path']}: {'passed, ' + row['id'] if row['passed'] else 'FAILED'}")
            for problem in row["problems"]:
                typer.echo(f"{row['path']} line {problem['line']}: {problem['message']}")
    if not all(row["passed"] for row in rows):
        raise typer.Exit(1)
