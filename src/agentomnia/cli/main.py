"""The `omnia` command. Exit codes: 0 done, 1 checks failed, 2 could not run."""

from __future__ import annotations

import sys

import typer

from agentomnia.cli import card, check, demo, diagnose, importing, prd, serve, synth, taxonomy, train
from agentomnia.errors import OmniaError

app = typer.Typer(
    help="From requirements to executable environments, proved tasks, trajectories and a trained policy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(taxonomy.app, name="taxonomy")
app.add_typer(card.app, name="card")
app.add_typer(synth.app, name="synth")
app.add_typer(train.app, name="train")
app.add_typer(prd.app, name="prd")
app.add_typer(importing.app, name="import")
app.command()(check.validate)
app.command(name="eval")(check.evaluate)
app.command()(check.export)
app.command()(check.report)
app.command()(diagnose.diagnose)
app.command()(demo.demo)
app.command()(serve.serve)
app.command()(serve.mcp)


def main() -> None:
    """Run the command; errors of ours become one line on standard error and exit code 2."""
    try:
        app()
    except OmniaError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        print(
            f"error: {error.strerror or error}{place}; check the path and the disk, then start again",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
