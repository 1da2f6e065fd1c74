"""Two policies on the same tasks: the difference of Pass@1, which tasks were gained and which lost.

Only tasks that both policies have a scored trial of are compared; the others are counted. With one trial a task
the interval is Newcombe's score interval for paired proportions (1998, method 10), which has a width even where no
task changed. With several trials it is a percentile bootstrap over tasks. `p` is that of the exact McNemar test,
the sign test over the tasks whose rate rose or fell. Intervals and `p` of single labels are not corrected for
how many labels there are: among twenty labels one `p` below 0.05 is what chance gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from random import Random
from statistics import fmean

from agentomnia.evaluation.outcome import AXES, Outcome, harder_half, outcomes, places
from agentomnia.evaluation.summary import wilson
from agentomnia.row import Row
from agentomnia.task.trajectory import Trajectory

_RESAMPLES = 4_000


class Difference(Row):
    """Pass@1 of two policies on some tasks."""

    tasks: int
    before: float | None
    after: float | None
    difference: float | None
    """`after - before`, a share between -1 and 1; `None` without tasks."""
    ci95: tuple[float, float] | None
    p: float | None
    """Exact McNemar test; 1.0 where no task changed."""
    gained: tuple[str, ...] = ()
    """Tasks with a higher pass rate than before, by id."""
    lost: tuple[str, ...] = ()


class Comparison(Row):
    """Everything that two policies differ in."""

    overall: Difference
    by: dict[str, dict[str, Difference]]
    """By axis (split, l1, domain, capability, difficulty) and label."""
    easier: Difference | None = None
    harder: Difference | None = None
    """The half of the tasks with more reference calls (a heuristic, see `harder_half`); `None` when not known."""
    only_before: int
    """Tasks without a scored trial of the second policy."""
    only_after: int


@dataclass(frozen=True)
class _Pair:
    before: Outcome
    after: Outcome

    @property
    def change(self) -> float:
        return self.after.rate - self.before.rate


def compare(
    before: Iterable[Trajectory], after: Iterable[Trajectory], calls: Mapping[str, int] | None = None
) -> Comparison:
    """Compare two policies task by task.

    Args:
        before: episodes of the first policy; several trials of a task are rows with different seeds.
        after: episodes of the second.
        calls: number of reference calls by task id, for the harder half; tasks that it lacks are in neither half.

    Raises:
        InputError: a task has two rows with one seed.
    """
    return compare_outcomes(outcomes(before), outcomes(after), calls)


def compare_outcomes(
    before: Mapping[str, Outcome], after: Mapping[str, Outcome], calls: Mapping[str, int] | None = None
) -> Comparison:
    """Compare two policies of which only the outcomes are at hand; see `compare`."""
    pairs = {task: _Pair(before[task], after[task]) for task in sorted(before.keys() & after.keys())}
    groups: dict[str, dict[str, list[_Pair]]] = {axis: {} for axis in AXES}
    for pair in pairs.values():
        for axis, label in places(pair.before.coordinate):
            groups[axis].setdefault(label, []).append(pair)
    known = {task: calls[task] for task in pairs if task in calls} if calls is not None else {}
    harder = frozenset(harder_half(known))
    return Comparison(
        overall=_difference(list(pairs.values())),
        by={axis: {label: _difference(found[label]) for label in sorted(found)} for axis, found in groups.items()},
        easier=_difference([pairs[t] for t in known if t not in harder]) if known else None,
        harder=_difference([pairs[t] for t in known if t in harder]) if known else None,
        only_before=len(before) - len(pairs),
        only_after=len(after) - len(pairs),
    )


def _difference(pairs: Sequence[_Pair]) -> Difference:
    if not pairs:
        return Difference(tasks=0, before=None, after=None, difference=None, ci95=None, p=None)
    gained = tuple(p.before.task for p in pairs if p.change > 0)
    lost = tuple(p.before.task for p in pairs if p.change < 0)
    before, after = fmean(p.before.rate for p in pairs), fmean(p.after.rate for p in pairs)
    return Difference(
        tasks=len(pairs),
        before=before,
        after=after,
        difference=after - before,
        ci95=_interval(pairs),
        p=mcnemar(len(gained), len(lost)),
        gained=gained,
        lost=lost,
    )


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact McNemar test of as many gains as losses: both tails of a fair coin, in whole numbers."""
    n = gained + lost
    tail = sum(comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << n))


def _interval(pairs: Sequence[_Pair]) -> tuple[float, float] | None:
    if any(p.before.trials > 1 or p.after.trials > 1 for p in pairs):
        return _bootstrap([p.change for p in pairs])
    both = sum(1 for p in pairs if p.before.passed and p.after.passed)
    gained = sum(1 for p in pairs if p.change > 0)
    lost = sum(1 for p in pairs if p.change < 0)
    return newcombe(both, gained, lost, len(pairs) - both - gained - lost)


def newcombe(both: int, gained: int, lost: int, neither: int) -> tuple[float, float]:
    """Score interval at 95 % for the difference of two paired proportions (Newcombe 1998, method 10).

    Args:
        both: tasks that both policies pass.
        gained: tasks that only the second passes.
        lost: tasks that only the first passes.
        neither: tasks that no policy passes.
    """
    n = both + gained + lost + neither
    after, before = (both + gained) / n, (both + lost) / n
    (low_a, high_a), (low_b, high_b) = wilson(both + gained, n), wilson(both + lost, n)
    phi = _phi(both, gained, lost, neither)
    down = _hybrid(after - low_a, high_b - before, phi)
    up = _hybrid(high_a - after, before - low_b, phi)
    return round(after - before - down, 6), round(after - before + up, 6)


def _hybrid(one: float, other: float, phi: float) -> float:
    """The two distances to a Wilson limit as one, less what the pairs share."""
    return sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def _phi(both: int, gained: int, lost: int, neither: int) -> float:
    """The correlation of the pairs, with Newcombe's continuity correction where it is positive."""
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if margins == 0:
        return 0.0
    cross = float(both * neither - gained * lost)
    if cross > 0:
        cross = max(0.0, cross - (both + gained + lost + neither) / 2)
    return cross / sqrt(margins)


def _bootstrap(changes: list[float]) -> tuple[float, float] | None:
    """Percentile bootstrap of a mean change over tasks; nothing for a single task."""
    from numpy import mean
    from numpy.random import default_rng
    from scipy.stats import bootstrap

    if len(changes) < 2:
        return None
    rng = default_rng(Random(f"{len(changes)}/compare").getrandbits(64))
    found = bootstrap((changes,), mean, n_resamples=_RESAMPLES, method="percentile", rng=rng).confidence_interval
    return round(float(found.low), 6), round(float(found.high), 6)
