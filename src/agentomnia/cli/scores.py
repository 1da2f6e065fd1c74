"""How an evaluation's summary is shown: to programs and to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentomnia.evaluation.summary import Score, Summary


def summary_json(summary: Summary) -> dict[str, object]:
    """The part of a summary that `--json` gives."""
    axes = ("split", "l1", "capability", "difficulty")
    return {
        "tasks": summary.tasks,
        "pass_at_1": summary.pass_at_1,
        "ci95": list(summary.ci95) if summary.ci95 else None,
        "by": {axis: {k: s.model_dump(mode="json") for k, s in summary.by[axis].items()} for axis in axes},
        "infrastructure_errors": summary.infrastructure_errors,
    }


def print_summary(summary: Summary, agent: str) -> None:
    """Pass@1 with intervals as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{agent}: {summary.tasks} tasks, {summary.infrastructure_errors} infrastructure errors",
        title_justify="left",
    )
    for column in ("where", "tasks", "Pass@1", "95 %"):
        table.add_column(column, justify="left" if column == "where" else "right")
    rows: list[tuple[str, Score]] = [
        (f"{axis} {label}", s)
        for axis in ("split", "capability", "difficulty")
        for label, s in summary.by[axis].items()
    ]
    table.add_row("all", str(summary.tasks), _percent(summary.pass_at_1), _interval(summary.ci95))
    for label, score in rows:
        table.add_row(label, str(score.tasks), _percent(score.pass_at_1), _interval(score.ci95))
    Console().print(table)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}"
