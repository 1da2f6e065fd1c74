"""Counters and latencies of the gateway as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the latency buckets, in seconds."""


class Tally:
    """What one face has answered."""

    __slots__ = ("buckets", "seconds", "statuses")

    def __init__(self) -> None:
        """Nothing yet."""
        self.statuses: dict[int, int] = {}
        """Answers by HTTP status."""
        self.buckets = [0] * (len(BUCKETS) + 1)
        """Answers by latency, not cumulative; the last holds what is over every end."""
        self.seconds = 0.0
        """Of all answers together."""

    def observe(self, status: int, seconds: float) -> None:
        """Count one answer."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class Metrics:
    """What the gateway has answered since its start."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._tallies: dict[str, Tally] = {}

    def tally(self, face: str) -> Tally:
        """What a face has answered; to be kept by who counts for it."""
        return self._tallies.setdefault(face, Tally())

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything, with the gauges of now, each under the prefix `omnia_`."""
        return "\n".join([*self._counters(), *self._histograms(), *_gauges(gauges)]) + "\n"

    def _counters(self) -> Iterator[str]:
        yield "# HELP omnia_requests_total Requests and frames answered, by face and HTTP status."
        yield "# TYPE omnia_requests_total counter"
        for face, tally in sorted(self._tallies.items()):
            for status, count in sorted(tally.statuses.items()):
                yield f'omnia_requests_total{{face="{face}",status="{status}"}} {count}'

    def _histograms(self) -> Iterator[str]:
        yield "# HELP omnia_request_seconds Time from a request's arrival to its answer."
        yield "# TYPE omnia_request_seconds histogram"
        for face, tally in sorted(self._tallies.items()):
            seen = 0
            if not tally.statuses:
                continue
            for end, count in zip((*map(str, BUCKETS), "+Inf"), tally.buckets):
                seen += count
                yield f'omnia_request_seconds_bucket{{face="{face}",le="{end}"}} {seen}'
            yield f'omnia_request_seconds_sum{{face="{face}"}} {tally.seconds:.6f}'
            yield f'omnia_request_seconds_count{{face="{face}"}} {seen}'


def _gauges(gauges: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(gauges.items()):
        yield f"# TYPE omnia_{name} gauge"
        yield f"omnia_{name} {value:g}"
