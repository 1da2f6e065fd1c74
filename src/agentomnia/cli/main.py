"""The `omnia` command. Exit codes: 0 done, 1 checks failed, 2 could not run."""

from __future__ import annotations

import sys

import typer

from agentomnia.cli import card, taxonomy
from agentomnia.errors import OmniaError

app = typer.Typer(
    help="From requirements to executable environments, proved tasks and trajectories.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(taxonomy.app, name="taxonomy")
app.add_typer(card.app, name="card")


def main() -> None:
    """Run the command; errors of ours become one line on standard error and exit code 2."""
    try:
        app()
    except OmniaError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
