"""`write_report`: the report of a run as one HTML file that needs nothing else.

Same run, same bytes: no time of day, no path. The file is written whole or not at all. It loads nothing:
style and script stand in the page, and its content security policy allows those two by their hashes and
nothing more, so that text from a run can never be run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from agentomnia.report.figures import FIGURES
from agentomnia.report.gather import Report, gather
from agentomnia.report.loop_figures import LOOP_FIGURES
from agentomnia.synthesis.environments.package import write_text

FILE = "report.html"


def write_report(run_path: Path) -> Path:
    """Write the report of a run beside its files.

    Args:
        run_path: a run directory with at least its environment stage; what later stages have not made is left out.

    Returns:
        The file.

    Raises:
        InputError: the directory holds no environment stage, or a file of it cannot be read.
    """
    path = run_path / FILE
    write_text(path, render(gather(run_path)))
    return path


def render(report: Report) -> str:
    """The page of what was gathered."""
    style, script = _asset("style.css") + _asset("loop.css"), _asset("script.js")
    page = _environment().get_template("report.html.j2")
    return page.render(
        report=report, style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script)
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """The templates, compiled once in a process."""
    environment = Environment(
        loader=PackageLoader("agentomnia.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(FIGURES)
    environment.globals.update(LOOP_FIGURES)
    environment.filters.update(number=number, decimal=decimal, percent=percent, plural=plural, span=span, points=points)
    return environment


def _asset(name: str) -> str:
    return resources.files("agentomnia.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """A source of the content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def number(value: int) -> str:
    """A count with separated thousands."""
    return f"{value:,}"


def decimal(value: float | None) -> str:
    """A mean or a median: whole numbers stay whole, no value is a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def percent(share: float | None) -> str:
    """A share between 0 and 1; no share is a dash."""
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def span(interval: tuple[float, float]) -> str:
    """An interval of shares, in per cent."""
    return f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}"


def points(difference: float | None) -> str:
    """A difference of two shares in points of per cent, with its sign; no difference is a dash."""
    if difference is None:
        return "–"
    shown = round(100 * difference, 1)
    return f"{'+' if shown > 0 else '−' if shown < 0 else '±'}{abs(shown):.1f}"


def plural(count: int, noun: str, many: str = "") -> str:
    """A count with its noun."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
