"""`omnia card`: check domain cards while writing them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Check domain cards and archetypes while writing them.", no_args_is_help=True)


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(help="Card files, DOMAINID_words.yaml.")],
    source: Annotated[Path | None, typer.Option("--source", help="Write the compiled program to this file.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Weave, compile and verify cards; says what the gate found, without repairing anything."""
    import json

    from agentomnia.environment.replay import ReplayProcess
    from agentomnia.synthesis.environments.author import draft_from_card
    from agentomnia.synthesis.environments.card import load_card
    from agentomnia.synthesis.environments.compiler import compile_environment
    from agentomnia.synthesis.environments.gate import verify_environment
    from agentomnia.synthesis.environments.layout import lay_out

    rows: list[dict[str, Any]] = []
    with ReplayProcess() as replayer:
        for path in paths:
            spec = draft_from_card(load_card(path), path.name).spec
            verification = verify_environment(spec, replayer=replayer)
            if source is not None:
                source.write_text(lay_out(compile_environment(spec).source), encoding="utf-8")
            attributes = sum(len(e.fields) for e in spec.entities)
            findings = [f.to_json() for f in verification.findings]
            rows.append({"card": path.name, "entities": len(spec.entities), "attributes": attributes,
                         "tools": len(spec.tools), "passed": verification.passed, "findings": findings})  # fmt: skip
    if json_output:
        typer.echo(json.dumps({"cards": rows}, ensure_ascii=False))
    else:
        for row in rows:
            verdict = "passed" if row["passed"] else "FAILED"
            typer.echo(
                f"{row['card']}: {verdict}, {row['entities']} entities, "
                f"{row['attributes']} attributes, {row['tools']} tools"
            )
            for finding in row["findings"]:
                typer.echo(f"  {finding['check']}: {finding.get('tool', '')}: {finding['evidence']}")
    if not all(row["passed"] for row in rows):
        raise typer.Exit(1)
