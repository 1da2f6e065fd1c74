"""Figures of the loop as inline SVG: lines over steps, a scatter of domains, shares side by side.

Like the other figures they take their colours from the style sheet; lines of one chart differ by dashes too, so
that they can be told without colour. Every figure carries its title for who hears the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10, sqrt

from markupsafe import Markup

from agentomnia.report.figures import shade

_LEFT, _RIGHT, _TOP, _FOOT = 44.0, 332.0, 10.0, 128.0
_SCATTER = 260.0
_MOST_POINTS = 300
"""Points of a drawn line; of a longer one every n-th is drawn."""


@dataclass(frozen=True)
class Series:
    """One line of a chart: its name and its points, from left to right."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: int = 0
    """Which of the four line styles; a run keeps its own over all charts."""


@dataclass(frozen=True)
class Chart:
    """Lines over the same steps."""

    title: str
    series: tuple[Series, ...]
    note: str = ""
    named: bool = True
    """Whether the names of the lines say something."""
    share: bool = False
    """Whether the values are shares, shown in per cent from 0 to 100."""
    marks: tuple[tuple[float, str], ...] = ()
    """Steps to mark, and what each mark says."""


@dataclass(frozen=True)
class Dot:
    """A level-1 domain before and after; `area` is its number of tasks."""

    name: str
    before: float
    after: float
    area: int
    unseen: bool = False
    """Whether nothing of the domain was trained on."""


def running_mean(points: Sequence[tuple[float, float]], width: int) -> tuple[tuple[float, float], ...]:
    """Each value replaced by the mean of itself and the values before it, `width` in all."""
    found = []
    for i, (x, _) in enumerate(points):
        window = [y for _, y in points[max(0, i + 1 - width) : i + 1]]
        found.append((x, sum(window) / len(window)))
    return tuple(found)


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Round values that enclose a range, three to six of them; around a single value, two."""
    size = max(1.0, abs(low), abs(high))
    span = high - low if high - low > size * 1e-8 else size
    scale = 10.0 ** floor(log10(span / 2))
    step = next(f * scale for f in (1, 2, 2.5, 5, 10) if span / (f * scale) <= 4)
    first = floor(low / step + 1e-9)
    found = [first * step]
    while found[-1] < high - step * 1e-6 or len(found) < 2:
        found.append((first + len(found)) * step)
    return tuple(round(t, 10) for t in found)


def lines(chart: Chart) -> Markup:
    """A chart of lines; one without points gives no figure."""
    values = [p for s in chart.series for p in s.points]
    if not values:
        return Markup("")
    marks = ticks(0.0, 1.0) if chart.share else ticks(min(y for _, y in values), max(y for _, y in values))
    steps = (min(x for x, _ in values), max(x for x, _ in values))
    x, y = _scale(steps, (_LEFT, _RIGHT)), _scale((marks[0], marks[-1]), (_FOOT, _TOP))
    return Markup(
        '<svg class="lines" viewBox="0 0 340 148" role="img"><title>{title}</title>{grid}{alarms}{lines}'
        '<text x="{left}" y="145">step {first:.0f}</text><text x="{right}" y="145" text-anchor="end">{last:.0f}</text>'
        "</svg>"
    ).format(
        title=f"{chart.title}: {', '.join(s.name for s in chart.series)} over steps {steps[0]:.0f} to {steps[1]:.0f}",
        grid=_join(_grid(t, y(t), chart.share) for t in marks),
        alarms=_join(_alarm(x(at), text) for at, text in chart.marks),
        lines=_join(_line(s, x, y) for s in chart.series),
        left=_LEFT, right=_RIGHT, first=steps[0], last=steps[1],
    )  # fmt: skip


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _scale(source: tuple[float, float], target: tuple[float, float]) -> Callable[[float], float]:
    width = (source[1] - source[0]) or 1.0
    return lambda value: target[0] + (value - source[0]) / width * (target[1] - target[0])


def _grid(value: float, y: float, share: bool) -> Markup:
    text = f"{100 * value:.0f} %" if share else f"{value:g}"
    return Markup(
        '<line class="axis" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
        '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
    ).format(_LEFT, _RIGHT, y, y, _LEFT - 6, y + 4, text)


def _alarm(x: float, text: str) -> Markup:
    return Markup(
        '<g class="alarm"><title>{}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"/>'
        '<path d="M{x:.1f} {} l4 -7 h-8 z"/></g>'
    ).format(text, _TOP, _FOOT, _TOP + 3, x=x)


def _line(series: Series, x: Callable[[float], float], y: Callable[[float], float]) -> Markup:
    if not series.points:
        return Markup("")
    shown = series.points[:: -(-len(series.points) // _MOST_POINTS)]
    if len(shown) == 1:
        return Markup('<circle class="s{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(
            series.style % 4, x(shown[0][0]), y(shown[0][1])
        )
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in shown)
    return Markup('<polyline class="s{}" points="{}"><title>{}</title></polyline>').format(
        series.style % 4, path, series.name
    )


def key(style: int) -> Markup:
    """The sample of a line that stands before its name."""
    return Markup(
        '<svg class="lines key" width="26" height="10" viewBox="0 0 26 10" aria-hidden="true">'
        '<polyline class="s{}" points="0,5 26,5"/></svg>'
    ).format(style % 4)


def scatter(dots: Sequence[Dot], label: str, most: int, axes: tuple[str, str]) -> Markup:
    """Pass@1 of each domain before (right) and after (up); the area of a dot is its number of tasks.

    Args:
        dots: the domains.
        label: read aloud.
        most: the highest number of tasks of a domain in all panels.
        axes: what stands to the right and what stands up.
    """
    place = _scale((0.0, 1.0), (48.0, _SCATTER - 14))
    low, high, up = place(0.0), place(1.0), _scale((0.0, 1.0), (_SCATTER - 46, 14.0))
    return Markup(
        '<svg class="scatter" viewBox="0 0 {size} {size}" role="img"><title>{label}</title>{grid}'
        '<line class="even" x1="{low}" y1="{zero}" x2="{high}" y2="{one}"/>{dots}'
        '<text x="{middle}" y="{foot}" text-anchor="middle">{across}</text>'
        '<text transform="translate(10 {half}) rotate(-90)" text-anchor="middle">{along}</text></svg>'
    ).format(
        size=int(_SCATTER), label=label, low=low, high=high, zero=up(0.0), one=up(1.0), middle=(low + high) / 2,
        foot=_SCATTER - 4, half=(up(0.0) + up(1.0)) / 2, across=f"{axes[0]}, %", along=f"{axes[1]}, %",
        grid=_join(_scatter_grid(t, place(t), up(t), (low, high, up(0.0), up(1.0))) for t in (0.0, 0.5, 1.0)),
        dots=_join(_dot(d, place(d.before), up(d.after), most) for d in sorted(dots, key=lambda d: (-d.area, d.name))),
    )  # fmt: skip


def _scatter_grid(value: float, x: float, y: float, box: tuple[float, float, float, float]) -> Markup:
    return Markup(
        '<line class="axis" x1="{x}" x2="{x}" y1="{top}" y2="{foot}"/><line class="axis" x1="{left}" x2="{right}" '
        'y1="{y}" y2="{y}"/><text x="{x}" y="{under}" text-anchor="middle">{text}</text>'
        '<text x="{before}" y="{beside}" text-anchor="end">{text}</text>'
    ).format(
        x=x, y=y, left=box[0], right=box[1], foot=box[2], top=box[3], under=box[2] + 24, before=box[0] - 13,
        beside=y + 4, text=f"{100 * value:.0f}",
    )  # fmt: skip


def _dot(dot: Dot, x: float, y: float, most: int) -> Markup:
    text = f"{dot.name}: {100 * dot.before:.1f} % → {100 * dot.after:.1f} %, {dot.area} tasks"
    return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"><title>{}</title></circle>').format(
        "domain unseen" if dot.unseen else "domain", x, y, max(2.5, 12 * sqrt(dot.area / max(1, most))), text
    )


def shares(values: Sequence[tuple[str, float]], most: float, label: str) -> Markup:
    """Shares below each other, full at `most`, as wide as the cell they stand in."""
    rows = _join(
        Markup('<rect class="p{}" width="{:.2f}%" y="{}" height="6"><title>{}: {}</title></rect>').format(
            i, 100 * value / most if most else 0.0, i * 8, name, f"{100 * value:.1f} %"
        )
        for i, (name, value) in enumerate(values)
    )
    return Markup('<svg class="shares" width="100%" height="{}" role="img"><title>{}</title>{}</svg>').format(
        8 * len(values), label, rows
    )


def steps_line(values: Sequence[tuple[float, float]], last: float, label: str) -> Markup:
    """A small line of shares between 0 and 1 that keep their value until the next one, over steps up to `last`."""
    x, y = _scale((0.0, last or 1.0), (2.0, 158.0)), _scale((0.0, 1.0), (26.0, 3.0))
    path = "".join(
        f"M{x(at):.1f} {y(value):.1f}" if i == 0 else f"H{x(at):.1f}V{y(value):.1f}"
        for i, (at, value) in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 160 29" role="img"><title>{}</title>'
        '<line class="axis" x1="2" x2="158" y1="26" y2="26"/><path d="{}"/></svg>'
    ).format(label, path + f"H{x(last):.1f}" if path else "")


def sample(index: int) -> Markup:
    """The sample of a bar that stands before its name."""
    return Markup(
        '<svg width="12" height="10" viewBox="0 0 12 10" aria-hidden="true"><rect class="p{}" width="12" height="10"/>'
        "</svg>"
    ).format(index)


LOOP_FIGURES: Mapping[str, object] = {
    "lines": lines, "key": key, "scatter": scatter, "shares": shares, "steps_line": steps_line, "sample": sample,
    "shade": shade,
}  # fmt: skip
"""What templates of the loop may call."""
