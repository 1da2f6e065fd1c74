"""A distribution of whole numbers: its moments, and bins of equal width for a histogram.

The standard deviation is that of a sample and is `None` below two values; nothing is `None` in silence
elsewhere: a distribution of no values has no mean, no extremes and no bins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean, median, stdev

_MOST_BINS = 14


@dataclass(frozen=True)
class Bin:
    """The values from `low` to `high`, both included."""

    low: int
    high: int
    count: int

    @property
    def label(self) -> str:
        """The range in words."""
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


@dataclass(frozen=True)
class Distribution:
    """What is known of a set of whole numbers."""

    name: str
    count: int
    total: int
    mean: float | None
    std: float | None
    lowest: int | None
    middle: float | None
    highest: int | None
    bins: tuple[Bin, ...]

    @classmethod
    def of(cls, name: str, values: Iterable[int]) -> Distribution:
        """Measure values, in any order."""
        found = sorted(values)
        return cls(
            name=name,
            count=len(found),
            total=sum(found),
            mean=fmean(found) if found else None,
            std=stdev(found) if len(found) > 1 else None,
            lowest=found[0] if found else None,
            middle=median(found) if found else None,
            highest=found[-1] if found else None,
            bins=tuple(_bins(found)) if found else (),
        )


def _bins(values: list[int]) -> Iterator[Bin]:
    width = _bin_width(values[-1] - values[0] + 1)
    counts: dict[int, int] = {}
    for value in values:
        counts[value // width] = counts.get(value // width, 0) + 1
    for step in range(values[0] // width, values[-1] // width + 1):
        yield Bin(low=step * width, high=step * width + width - 1, count=counts.get(step, 0))


def _bin_width(span: int) -> int:
    """The smallest round width that needs few enough bins."""
    scale = 1
    while True:
        for factor in (1, 2, 5):
            if span <= factor * scale * _MOST_BINS:
                return factor * scale
        scale *= 10
