"""Domain alignment of PRD-guided data: how three sets of tasks lie over level-1 domains (Figure 18).

The failures are the diagnosed tasks, the original data the tasks of the training suites, the PRD data the tasks of the
suite `prd` in `splits.jsonl`; counts under `domains` in `loop.json` go before all three. The two divergences
are read from `loop.json`, never counted again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agentomnia.report.evaluation import label_words
from agentomnia.report.loop_rows import LoopRow
from agentomnia.taxonomy.axes import level1
from agentomnia.taxonomy.coordinate import Coordinate

MOST = 50
"""Domains shown, as in the paper."""
_TRAINING = ("sft", "rl")
_NAMES = {"prd": "PRD-guided data", "original": "original data", "failures": "failed tasks"}


@dataclass(frozen=True)
class AlignmentRow:
    """A level-1 domain with its share of each set."""

    name: str
    shares: tuple[tuple[str, float], ...]
    """Name of a set and the domain's share of it."""


@dataclass(frozen=True)
class AlignmentView:
    """The three distributions, the domains with most failures first."""

    rows: tuple[AlignmentRow, ...]
    sets: tuple[tuple[str, int], ...]
    """The sets with their numbers of tasks."""
    most: float
    """The highest share."""
    kl: tuple[tuple[str, float], ...]
    """Divergence of each set from the failures, where `loop.json` says it."""


def alignment_view(
    coordinates: Mapping[str, Coordinate], splits: Mapping[str, str], failed: Iterable[Coordinate], loop: LoopRow
) -> AlignmentView | None:
    """Arrange the distributions; nothing unless failures and one other set are known.

    Args:
        coordinates: of every task.
        splits: the suite of each task.
        failed: coordinates of the diagnosed tasks.
        loop: what `loop.json` says.
    """
    known = set(_labels())
    counts = {
        "prd": _count(coordinates[t] for t, s in splits.items() if s == "prd" and t in coordinates),
        "original": _count(coordinates[t] for t, s in splits.items() if s in _TRAINING and t in coordinates),
        "failures": _count(failed),
    }
    counts |= {name: Counter(c) for name, c in loop.domains.items() if name in counts and known.issuperset(c)}
    counts = {name: c for name, c in counts.items() if c.total()}
    if "failures" not in counts or len(counts) < 2:
        return None
    labels = [label for label in _labels() if any(c[label] for c in counts.values())]
    ranked = sorted(labels, key=lambda label: tuple(-counts[n][label] for n in reversed(counts)))
    share = {name: {label: c[label] / c.total() for label in labels} for name, c in counts.items()}
    return AlignmentView(
        rows=tuple(
            AlignmentRow(label_words("l1", label), tuple((_NAMES[n], share[n][label]) for n in counts))
            for label in ranked[:MOST]
        ),
        sets=tuple((_NAMES[name], c.total()) for name, c in counts.items()),
        most=max(max(found.values()) for found in share.values()),
        kl=tuple((_NAMES[n], value) for n in ("prd", "original") if (value := loop.kl.get(n)) is not None),
    )


def _labels() -> list[str]:
    return [f"{split}/{name}" for split, name in level1()]


def _count(found: Iterable[Coordinate]) -> Counter[str]:
    return Counter(f"{z.split}/{z.l1}" for z in found)
