"""Domain alignment: how close synthesized tasks are to the failures they should answer (paper, section 7.3, Figure 18).

The paper reports D_KL(P_PRD‖P_failure) = 0.196 and D_KL(P_original‖P_failure) = 0.603 over level-1 domains, and says
neither base nor smoothing: natural logarithms here, and additive smoothing, since domains without failures would make
the divergence infinite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from agentomnia.errors import InputError
from agentomnia.taxonomy.axes import domain

SMOOTHING = 0.5
"""Added to the count of every label of the union, in both distributions (Jeffreys' prior)."""


def level1_counts(domains: Iterable[int]) -> dict[str, int]:
    """Counts by level-1 domain, `split/name`, of level-2 domain ids; sorted by label.

    Raises:
        TaxonomyError: an id is not in the taxonomy.
    """
    labels = Counter(f"{domain(id).split}/{domain(id).l1}" for id in domains)
    return dict(sorted(labels.items()))


def distribution(counts: Mapping[str, float], labels: Iterable[str], smoothing: float) -> dict[str, float]:
    """The normalized distribution over labels, after `smoothing` has been added to each count."""
    raised = {label: counts.get(label, 0) + smoothing for label in labels}
    total = sum(raised.values())
    return {label: value / total for label, value in raised.items()}


def kl(p: Mapping[str, float], q: Mapping[str, float], smoothing: float = SMOOTHING) -> float:
    """D_KL(P‖Q) = Σ p·ln(p/q), in nats, over the union of the labels.

    Args:
        p: counts or weights by label.
        q: counts or weights by label, of the reference distribution.
        smoothing: added to every count of both before they are normalized; 0 for none.

    Raises:
        InputError: one is empty or negative, or Q lacks a label of P and nothing is smoothed.
    """
    for name, counts in (("P", p), ("Q", q)):
        if not counts or min(counts.values()) < 0 or sum(counts.values()) <= 0:
            raise InputError(f"{name} is no distribution: {dict(counts)!r}; give counts of which one is above 0")
    if smoothing < 0:
        raise InputError(f"smoothing {smoothing} is negative; use 0 or more")
    labels = sorted({*p, *q})
    first, second = distribution(p, labels, smoothing), distribution(q, labels, smoothing)
    lacking = [label for label in labels if first[label] > 0 and second[label] == 0]
    if lacking:
        raise InputError(f"Q has nothing of {lacking[0]!r}, so the divergence is infinite; use a smoothing above 0")
    return sum(value * math.log(value / second[label]) for label, value in first.items() if value > 0)
