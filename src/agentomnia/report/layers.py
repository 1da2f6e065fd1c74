"""A small acyclic graph placed in layers from top to bottom, for drawing.

The usual three steps: each node goes below everything it depends on; edges that cross a layer get a bend in
it; the nodes of a layer are ordered, then shifted, towards their neighbours. Deterministic: the same graph
gives the same places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentomnia.errors import InputError

_GAP_X, _GAP_Y = 18.0, 34.0
_BEND_WIDTH = 8.0
_SWEEPS = 6

Edge = tuple[str, str]
Point = tuple[float, float]
_Neighbours = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Box:
    """Where a node is: its top left corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Placement:
    """Where everything is."""

    width: float
    height: float
    boxes: dict[str, Box]
    routes: dict[Edge, tuple[Point, ...]]
    """The points an edge passes, from the foot of one box to the head of another."""


def place(sizes: Mapping[str, tuple[float, float]], edges: Iterable[Edge], late: Iterable[str] = ()) -> Placement:
    """Place the nodes of a graph.

    Args:
        sizes: width and height of each node, in a fixed order.
        edges: from what comes first to what follows.
        late: nodes that go directly above what follows them instead of as high as they could.

    Raises:
        InputError: the edges have a cycle.
    """
    known = list(dict.fromkeys(e for e in edges if e[0] in sizes and e[1] in sizes))
    layer = layers(list(sizes), known, late)
    rows, chains = _with_bends(list(sizes), known, layer)
    links = [link for chain in chains.values() for link in pairwise(chain)]
    above, below = _neighbours(links, first=1), _neighbours(links, first=0)
    rows = _ordered(rows, above, below)
    widths = {n: sizes[n][0] if n in sizes else _BEND_WIDTH for row in rows for n in row}
    return _placement(rows, chains, _centres(rows, above, below, widths), sizes)


def layers(nodes: Sequence[str], edges: Sequence[Edge], late: Iterable[str] = ()) -> dict[str, int]:
    """The layer of each node: one below the lowest of what comes before it.

    Raises:
        InputError: the edges have a cycle.
    """
    before: dict[str, list[str]] = {n: [] for n in nodes}
    after: dict[str, list[str]] = {n: [] for n in nodes}
    for first, then in edges:
        before[then].append(first)
        after[first].append(then)
    found: dict[str, int] = {}
    left = list(nodes)
    while left:
        ready = [n for n in left if all(b in found for b in before[n])]
        if not ready:
            raise InputError(f"the graph has a cycle through {left[0]}; make the task again")
        found |= {n: max((found[b] + 1 for b in before[n]), default=0) for n in ready}
        left = [n for n in left if n not in found]
    for node in late:
        if after[node] and not before[node]:
            found[node] = max(0, min(found[a] for a in after[node]) - 1)
    return found


def _with_bends(
    nodes: Sequence[str], edges: Sequence[Edge], layer: Mapping[str, int]
) -> tuple[list[list[str]], dict[Edge, list[str]]]:
    """The nodes of each layer with the bends of longer edges, and what each edge passes."""
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in nodes:
        rows[layer[node]].append(node)
    chains = {}
    for first, then in edges:
        bends = [f"bend:{first}>{then}:{step}" for step in range(layer[first] + 1, layer[then])]
        for step, bend in enumerate(bends, layer[first] + 1):
            rows[step].append(bend)
        chains[(first, then)] = [first, *bends, then]
    return rows, chains


def _neighbours(links: Iterable[Edge], first: int) -> dict[str, list[str]]:
    """For each node what stands at the other end of its links: above it where `first` is 1, else below it."""
    found: dict[str, list[str]] = {}
    for link in links:
        found.setdefault(link[first], []).append(link[1 - first])
    return found


def _ordered(rows: list[list[str]], above: _Neighbours, below: _Neighbours) -> list[list[str]]:
    """Rows with their nodes sorted towards their neighbours, downwards and upwards in turn."""
    rows = [list(row) for row in rows]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for index in range(len(rows)) if down else reversed(range(len(rows))):
            other = index - 1 if down else index + 1
            if 0 <= other < len(rows):
                place = {n: float(i) for i, n in enumerate(rows[other])}
                own = {n: float(i) for i, n in enumerate(rows[index])}
                rows[index].sort(key=lambda n: _mean((above if down else below).get(n, ()), place, own[n]))
    return rows


def _mean(names: Iterable[str], place: Mapping[str, float], otherwise: float) -> float:
    found = [place[n] for n in names if n in place]
    return sum(found) / len(found) if found else otherwise


def _centres(
    rows: list[list[str]], above: _Neighbours, below: _Neighbours, widths: Mapping[str, float]
) -> dict[str, float]:
    """The horizontal centre of every node, pulled towards its neighbours without changing the order."""
    centres: dict[str, float] = {}
    for row in rows:
        centres |= _apart(row, dict.fromkeys(row, 0.0), widths)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {n: _mean((*above.get(n, ()), *below.get(n, ())), centres, centres[n]) for n in row}
            centres |= _apart(row, wanted, widths)
    return centres


def _apart(row: Sequence[str], wanted: Mapping[str, float], widths: Mapping[str, float]) -> dict[str, float]:
    """Centres near the wanted ones that leave a gap between neighbours of a row."""
    found: dict[str, float] = {}
    edge = None
    for node in row:
        half = widths[node] / 2
        found[node] = wanted[node] if edge is None else max(wanted[node], edge + _GAP_X + half)
        edge = found[node] + half
    drift = sum(found[n] - wanted[n] for n in row) / max(1, len(row))
    return {n: x - drift for n, x in found.items()}


def _placement(
    rows: list[list[str]],
    chains: Mapping[Edge, list[str]],
    centres: Mapping[str, float],
    sizes: Mapping[str, tuple[float, float]],
) -> Placement:
    left = min((centres[n] - sizes[n][0] / 2 for n in sizes), default=0.0)
    boxes: dict[str, Box] = {}
    bends: dict[str, Point] = {}
    top = 0.0
    for row in rows:
        height = max((sizes[n][1] for n in row if n in sizes), default=0.0)
        for node in row:
            x = round(centres[node] - left, 1)
            if node in sizes:
                width, own = sizes[node]
                boxes[node] = Box(round(x - width / 2, 1), round(top + (height - own) / 2, 1), width, own)
            else:
                bends[node] = (max(2.0, x), round(top + height / 2, 1))
        top += height + _GAP_Y
    routes = {edge: tuple(_points(chain, boxes, bends)) for edge, chain in chains.items()}
    across = [box.x + box.width for box in boxes.values()] + [x + 2 for x, _ in bends.values()]
    return Placement(round(max(across, default=0.0), 1), round(max(0.0, top - _GAP_Y), 1), boxes, routes)


def _points(chain: Sequence[str], boxes: Mapping[str, Box], bends: Mapping[str, Point]) -> Iterable[Point]:
    first, last = boxes[chain[0]], boxes[chain[-1]]
    yield (round(first.x + first.width / 2, 1), round(first.y + first.height, 1))
    yield from (bends[name] for name in chain[1:-1])
    yield (round(last.x + last.width / 2, 1), last.y)
