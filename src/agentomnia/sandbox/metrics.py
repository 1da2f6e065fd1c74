"""Counters and latencies of the gateway as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the latency buckets, in seconds."""


class Histogram:
    """Latencies of one face."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        """Empty."""
        self.counts = [0] * (len(BUCKETS) + 1)
        """By bucket, not cumulative; the last holds what is over every end."""
        self.total = 0.0
        """Seconds."""


class Metrics:
    """What the gateway has answered since its start."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._requests: dict[tuple[str, int], int] = {}
        self._latencies: dict[str, Histogram] = {}

    def observe(self, face: str, status: int, seconds: float) -> None:
        """Count one answer."""
        key = (face, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        latency = self._latencies.get(face)
        if latency is None:
            latency = self._latencies[face] = Histogram()
        latency.counts[bisect_left(BUCKETS, seconds)] += 1
        latency.total += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything, with the gauges of now, each under the prefix `omnia_`."""
        return "\n".join([*self._counters(), *self._histograms(), *_gauges(gauges)]) + "\n"

    def _counters(self) -> Iterator[str]:
        yield "# HELP omnia_requests_total Requests and frames answered, by face and HTTP status."
        yield "# TYPE omnia_requests_total counter"
        for (face, status), count in sorted(self._requests.items()):
            yield f'omnia_requests_total{{face="{face}",status="{status}"}} {count}'

    def _histograms(self) -> Iterator[str]:
        yield "# HELP omnia_request_seconds Time from a request's arrival to its answer."
        yield "# TYPE omnia_request_seconds histogram"
        for face, latency in sorted(self._latencies.items()):
            seen = 0
            for end, count in zip((*map(str, BUCKETS), "+Inf"), latency.counts):
                seen += count
                yield f'omnia_request_seconds_bucket{{face="{face}",le="{end}"}} {seen}'
            yield f'omnia_request_seconds_sum{{face="{face}"}} {latency.total:.6f}'
            yield f'omnia_request_seconds_count{{face="{face}"}} {seen}'


def _gauges(gauges: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(gauges.items()):
        yield f"# TYPE omnia_{name} gauge"
        yield f"omnia_{name} {value:g}"
