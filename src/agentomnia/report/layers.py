"""A small acyclic graph placed in layers from top to bottom, for drawing.

The usual three steps: each node goes below everything it depends on; edges that cross a layer get a bend in
it; the nodes of a layer are ordered, then shifted, towards their neighbours. Deterministic: the same graph
gives the same places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentomnia.errors import InputError

_GAP_X, _GAP_Y = 18.0, 34.0
_BEND = "bend"
_SWEEPS = 6

Edge = tuple[str, str]
Point = tuple[float, float]


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
    links = [link for chain in chains.values() for link in zip(chain, chain[1:])]
    widths = {n: sizes[n][0] if n in sizes else 8.0 for row in rows for n in row}
    for row in _ordered(rows, links):
        row_before = rows.index(row) if row in rows else 0
        rows[row_before] = row
    centres = _centres(rows, links, widths)
    return _placement(rows, chains, centres, sizes)


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
