"""Figures as inline SVG: small pure functions from numbers to markup.

Colours are classes of the page's style sheet, so that a figure follows the light and the dark scheme. Bars and
intervals are as wide as the cell they stand in; what holds text has a size of its own and is never scaled up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from markupsafe import Markup

from agentomnia.report.distribution import Bin, Distribution
from agentomnia.report.layers import Box, Point, place

_CELL, _CELL_GAP, _CELLS_A_ROW = 13, 3, 9
_CHARACTER, _SMALL_CHARACTER = 6.7, 5.6
"""Widths of a character of the two text sizes, with room to spare for wider fonts."""
_NOTE_CHARACTERS = 24
_FRAME = (30.0, 334.0, 20.0, 112.0)
"""Left, right, top and foot of a histogram."""


def bar(value: float, most: float) -> Markup:
    """A horizontal bar, full at `most`."""
    share = 100 * value / most if most else 0.0
    return Markup(
        '<svg class="bar" width="100%" height="10" aria-hidden="true">'
        '<rect class="rail" width="100%" height="10" rx="1"/>'
        '<rect class="fill" width="{:.2f}%" height="10" rx="1"/></svg>'
    ).format(share)


def interval(low: float, middle: float, high: float) -> Markup:
    """A share between 0 and 1 with its interval, on a rail from 0 to 100 %."""
    return Markup(
        '<svg class="interval" width="100%" height="16" aria-hidden="true">'
        '<line class="axis" x1="0" x2="100%" y1="8" y2="8"/>'
        '<line class="spread" x1="{:.2f}%" x2="{:.2f}%" y1="8" y2="8"/>'
        '<circle class="dot" cx="{:.2f}%" cy="8" r="5"/></svg>'
    ).format(100 * low, 100 * high, 100 * middle)


def histogram(found: Distribution, unit: str) -> Markup:
    """Counts per bin, with the mean marked.

    Args:
        found: the distribution; one without values gives no figure.
        unit: what is counted on the vertical axis, in the plural.
    """
    if not found.bins:
        return Markup("")
    left, right, top, foot = _FRAME
    most = max(b.count for b in found.bins)
    step = (right - left) / len(found.bins)
    columns = Markup("").join(_column(b, left + i * step, step, most) for i, b in enumerate(found.bins))
    return Markup(
        '<svg class="histogram" viewBox="0 0 340 132" role="img" aria-label="{label}">{columns}'
        '<line class="axis" x1="{left}" x2="{right}" y1="{foot}" y2="{foot}"/>'
        '<text x="{at}" y="{high}" text-anchor="end">{most}</text>'
        '<text x="{at}" y="{foot}" text-anchor="end">0</text>{labels}{mean}</svg>'
    ).format(
        label=f"{found.name}: histogram of {found.count} {unit}", columns=columns, left=left, right=right, foot=foot,
        at=left - 6, high=top + 4, most=most, labels=Markup("").join(_bin_labels(found, left, step, foot)),
        mean=_mean_mark(found, left, step),
    )  # fmt: skip


def _column(found: Bin, x: float, step: float, most: int) -> Markup:
    _, _, top, foot = _FRAME
    height = found.count / most * (foot - top)
    return Markup(
        '<rect class="fill" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}: {}</title></rect>'
    ).format(x + 1, foot - height, max(1.0, step - 2), height, found.label, found.count)


def _bin_labels(found: Distribution, left: float, step: float, foot: float) -> Iterable[Markup]:
    """Labels under the bins, as many as fit."""
    longest = max(len(b.label) for b in found.bins)
    every = max(1, -(-int(longest * 6.5 + 8) // max(1, int(step))))
    for i, b in enumerate(found.bins):
        if i % every == 0:
            yield Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
                left + (i + 0.5) * step, foot + 15, b.label
            )


def _mean_mark(found: Distribution, left: float, step: float) -> Markup:
    assert found.mean is not None
    width = found.bins[0].high - found.bins[0].low + 1
    x = left + ((found.mean - found.bins[0].low) / width + 0.5 / width) * step
    side = "end" if x > 250 else "start"
    return Markup(
        '<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="112"/>'
        '<text class="mean-label" x="{tx:.1f}" y="14" text-anchor="{side}">mean {mean:.1f}</text>'
    ).format(x=x, tx=x - 5 if side == "end" else x + 5, side=side, mean=found.mean)


def shade(count: int, most: int) -> str:
    """The class of a cell of the heat map: `h0` for none, then four steps up to the highest count."""
    return "h0" if count == 0 else f"h{min(4, -(-4 * count // max(most, 1)))}"


def cells(values: Sequence[tuple[str, int]], most: int, label: str) -> Markup:
    """One level-1 domain of the heat map: a square for each of its level-2 domains.

    Args:
        values: what a cell says and its count.
        most: the highest count of the whole map.
        label: read aloud instead of the squares.
    """
    pitch = _CELL + _CELL_GAP
    columns, rows = min(len(values), _CELLS_A_ROW), -(-len(values) // _CELLS_A_ROW)
    squares = Markup("").join(
        Markup('<rect class="{}" x="{}.5" y="{}.5" width="{}" height="{}" rx="2"><title>{}</title></rect>').format(
            shade(count, most), i % _CELLS_A_ROW * pitch, i // _CELLS_A_ROW * pitch, _CELL, _CELL, text
        )
        for i, (text, count) in enumerate(values)
    )
    return Markup('<svg class="cells" width="{}" height="{}" role="img" aria-label="{}">{}</svg>').format(
        columns * pitch, rows * pitch, label, squares
    )


def legend(most: int) -> list[tuple[Markup, str]]:
    """The steps of the heat map with the counts they stand for."""
    ranges: dict[str, list[int]] = {}
    for count in range(most + 1):
        ranges.setdefault(shade(count, most), []).append(count)
    return [(cells([("", found[-1])], most, ""), _range(found[0], found[-1])) for found in ranges.values()]


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"


NodeKind = Literal["call", "virtual"]


@dataclass(frozen=True)
class Node:
    """A node of a drawn DAG."""

    id: str
    kind: NodeKind
    title: str
    note: str = ""


@dataclass(frozen=True)
class Dag:
    """A task's DAG; `order` holds edges that only say what comes first."""

    nodes: tuple[Node, ...]
    flow: tuple[tuple[str, str], ...]
    order: tuple[tuple[str, str], ...] = ()


def dag(found: Dag) -> Markup:
    """A task's calls and virtual nodes in layers, from top to bottom."""
    sizes = {node.id: _node_size(node) for node in found.nodes}
    late = [node.id for node in found.nodes if node.kind == "virtual"]
    placed = place(sizes, [*found.flow, *found.order], late)
    lines = Markup("").join(
        Markup('<path class="{}" d="{}"/>').format("order" if edge in found.order else "flow", _path(points))
        for edge, points in placed.routes.items()
    )
    nodes = Markup("").join(_node(node, placed.boxes[node.id]) for node in found.nodes)
    calls = sum(1 for node in found.nodes if node.kind == "call")
    label = f"DAG of {calls} calls and {len(found.nodes) - calls} virtual nodes"
    width, height = placed.width + 4, placed.height + 4
    return Markup(
        '<svg class="dag" width="{w:.0f}" height="{h:.0f}" viewBox="-2 -2 {w:.0f} {h:.0f}" role="img" '
        'aria-label="{label}">{lines}{nodes}</svg>'
    ).format(w=width, h=height, label=label, lines=lines, nodes=nodes)


def _node_size(node: Node) -> tuple[float, float]:
    if node.kind == "call":
        return (round(len(node.title) * _CHARACTER + 46, 1), 30.0)
    lines = _note_lines(node.note)
    longest = max(len(line) for line in (node.title, *lines)) * _SMALL_CHARACTER
    return (round(longest + 22, 1), 25.0 + 13 * len(lines))


def _note_lines(note: str) -> list[str]:
    """A note on at most two lines."""
    return wrap(note, _NOTE_CHARACTERS, max_lines=2, placeholder="…")


def _node(node: Node, box: Box) -> Markup:
    middle = box.x + box.width / 2
    if node.kind == "call":
        number = node.id.rpartition(":")[2]
        return Markup(
            '<g class="call"><rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4"/>'
            '<text class="index" x="{nx:.1f}" y="{ty:.1f}">{number}</text>'
            '<text class="tool" x="{tx:.1f}" y="{ty:.1f}">{title}</text></g>'
        ).format(
            x=box.x, y=box.y, w=box.width, h=box.height, nx=box.x + 11, tx=box.x + 32, ty=box.y + 19.5,
            number=int(number) + 1, title=node.title,
        )  # fmt: skip
    lines = Markup("").join(
        Markup('<text class="note" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(
            middle, box.y + 29 + 13 * i, line
        )
        for i, line in enumerate(_note_lines(node.note))
    )
    return Markup(
        '<g class="virtual"><title>{title}: {note}</title><rect x="{x}" y="{y}" width="{w}" height="{h}" rx="17"/>'
        '<text class="type" x="{m:.1f}" y="{top:.1f}" text-anchor="middle">{title}</text>{lines}</g>'
    ).format(
        title=node.title, note=node.note, lines=lines, x=box.x, y=box.y, w=box.width, h=box.height, m=middle,
        top=box.y + 16,
    )  # fmt: skip


def _path(points: Sequence[Point]) -> str:
    """A smooth line that leaves and arrives vertically."""
    slopes = [_slope(points, i) for i in range(len(points))]
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for (x, y), (sx, sy), (nx, ny), (tx, ty) in zip(points, slopes, points[1:], slopes[1:]):
        parts.append(f"C{x + sx:.1f} {y + sy:.1f} {nx - tx:.1f} {ny - ty:.1f} {nx} {ny}")
    return "".join(parts)


def _slope(points: Sequence[Point], at: int) -> Point:
    """The way to the control point at a point: vertical at the ends, along its neighbours between them."""
    if at == 0:
        return (0.0, (points[1][1] - points[0][1]) / 2)
    if at == len(points) - 1:
        return (0.0, (points[at][1] - points[at - 1][1]) / 2)
    (x, y), (nx, ny) = points[at - 1], points[at + 1]
    return ((nx - x) / 6, (ny - y) / 6)


FIGURES: Mapping[str, object] = {
    "bar": bar, "interval": interval, "histogram": histogram, "cells": cells, "legend": legend, "dag": dag,
}  # fmt: skip
"""What templates may call."""
