"""Durations, counted in buckets of equal ratio, so that memory stays the same however many there are.

Source: HdrHistogram's buckets. Departures: five bits of precision, and nothing is configured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

PRECISION: Final = 5  # bits: the bounds of a bucket are 1/32 apart, 3 %
EXACT: Final = 2 << PRECISION  # durations below it, in nanoseconds, have a bucket each
SIZE: Final = ((62 - PRECISION) << PRECISION) + EXACT
LONGEST_NS: Final = (1 << 63) - 1
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


class Histogram:
    """Counts durations in nanoseconds. ``add`` may run in one thread while another one reads."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.least_ns = LONGEST_NS
        self.most_ns = 0
        self._buckets = [0] * SIZE

    def add(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration; a negative one, of a clock that two processes see differently, is 0."""
        duration_ns = min(max(duration_ns, 0), LONGEST_NS)
        self._buckets[_bucket(duration_ns)] += times
        self.count += times
        self.sum_ns += times * duration_ns
        if duration_ns < self.least_ns:
            self.least_ns = duration_ns
        if duration_ns > self.most_ns:
            self.most_ns = duration_ns

    def merge(self, other: Histogram) -> None:
        for bucket, count in enumerate(other._buckets):
            self._buckets[bucket] += count
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.least_ns = min(self.least_ns, other.least_ns)
        self.most_ns = max(self.most_ns, other.most_ns)

    def percentile_ns(self, percent: float) -> int:
        """Return a duration that this percentage of all does not exceed, at most 3 % above the shortest such one."""
        left = self.count * percent / 100
        for bucket, count in enumerate(self._buckets):
            left -= count
            if count and left <= 1e-6 * count:  # a rounding error is not a duration
                return min(_end(bucket) - 1, self.most_ns)
        return self.most_ns

    def buckets(self) -> Iterator[tuple[int, int, int]]:
        """Yield those that are not empty: from, to (excluded), both in nanoseconds, and the count."""
        for bucket, count in enumerate(self._buckets):
            if count:
                yield _end(bucket - 1), _end(bucket), count

    def octaves(self) -> list[tuple[int, int, int]]:
        """Return coarse buckets without gaps between them, each twice as wide as the one before, as ``buckets``."""
        counts: dict[int, int] = {}
        for start, _, count in self.buckets():
            octave = start.bit_length()
            counts[octave] = counts.get(octave, 0) + count
        if not counts:
            return []
        return [(1 << each >> 1, 1 << each, counts.get(each, 0)) for each in range(min(counts), max(counts) + 1)]

    def packed(self) -> dict[str, Any]:
        filled = [[bucket, count] for bucket, count in enumerate(self._buckets) if count]
        return {
            "count": self.count, "sum_ns": self.sum_ns, "least_ns": self.least_ns, "most_ns": self.most_ns,
            "buckets": filled,
        }  # fmt: skip

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Histogram:
        made = cls()
        made.count, made.sum_ns = packed["count"], packed["sum_ns"]
        made.least_ns, made.most_ns = packed["least_ns"], packed["most_ns"]
        for bucket, count in packed["buckets"]:
            made._buckets[bucket] = count
        return made


def _bucket(duration_ns: int) -> int:
    shift = max(0, duration_ns.bit_length() - PRECISION - 1)
    return (shift << PRECISION) + (duration_ns >> shift)


def _end(bucket: int) -> int:
    shift = max(0, (bucket >> PRECISION) - 1)
    return (bucket - (shift << PRECISION) + 1) << shift
