"""A set of offsets, kept as ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


def _first(each: tuple[int, int]) -> int:
    return each[0]


def _end(each: tuple[int, int]) -> int:
    return each[1]


class RangeSet:
    """Ranges ``first`` <= n < ``end``: in order, never empty, and apart from each other."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def lowest(self) -> tuple[int, int]:
        """The first of the ranges; there is one."""
        return self._ranges[0]

    @property
    def end(self) -> int:
        """The offset after the last one; 0 if there is none."""
        return self._ranges[-1][1] if self._ranges else 0

    def add(self, first: int, end: int) -> None:
        """These are in it from now on."""
        if first >= end:
            return
        at = bisect_left(self._ranges, first, key=_end)
        stop = bisect_right(self._ranges, end, lo=at, key=_first)
        if at < stop:
            first, end = min(first, self._ranges[at][0]), max(end, self._ranges[stop - 1][1])
        self._ranges[at:stop] = [(first, end)]

    def remove(self, first: int, end: int) -> None:
        """These are not in it any more."""
        at = bisect_right(self._ranges, first, key=_end)
        stop = bisect_left(self._ranges, end, lo=at, key=_first)
        if first < end and at < stop:
            rest = ((self._ranges[at][0], first), (end, self._ranges[stop - 1][1]))
            self._ranges[at:stop] = [(low, high) for low, high in rest if low < high]

    def end_of(self, offset: int) -> int:
        """The end of the range that an offset lies in; the offset itself if it lies in none."""
        at = bisect_right(self._ranges, offset, key=_end)
        return self._ranges[at][1] if at < len(self._ranges) and self._ranges[at][0] <= offset else offset
