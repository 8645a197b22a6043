"""The last minutes of counters and gauges, for lines: in bounded memory, whatever number of topics there is.

A counter is kept at the moments at which it changed, so what is idle costs nothing. Only the series that changed last
are remembered; one that comes back begins anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final

POINTS_MAX: Final = 300  # of one series: five minutes where something changes every second
SERIES_MAX: Final = 2_000  # about 20 KiB each when full
RATE_S: Final = 5.0  # a rate is of the last seconds

Point = tuple[float, float]  # when, how much


class Lines:
    """Series by key. Times are seconds of a clock that only goes forward."""

    def __init__(self, series_max: int = SERIES_MAX, points_max: int = POINTS_MAX) -> None:
        self._series: OrderedDict[Hashable, deque[Point]] = OrderedDict()
        self._series_max = series_max
        self._points_max = points_max

    def __len__(self) -> int:
        return len(self._series)

    def note(self, key: Hashable, value: float, now: float) -> None:
        """A value was seen. What did not change is not kept again; a counter that fell begins anew."""
        points = self._series.get(key)
        if points is None:
            points = self._series[key] = deque(maxlen=self._points_max)
            if len(self._series) > self._series_max:
                self._series.popitem(last=False)
        if points and points[-1][1] == value:
            return
        self._series.move_to_end(key)
        points.append((now, value))

    def forget(self, key: Hashable) -> None:
        """It is no more."""
        self._series.pop(key, None)

    def rate(self, key: Hashable, now: float, over_s: float = RATE_S) -> float:
        """How much a counter rose a second lately; 0 where it fell, or is not known for so long."""
        points = self._series.get(key)
        if not points:
            return 0.0
        begin = max(now - over_s, points[0][0])
        passed = now - begin
        return max(0.0, points[-1][1] - _at(list(points), begin)) / passed if passed > 0 else 0.0

    def gauge(self, key: Hashable, now: float, last_s: float, step_s: float) -> list[Point]:
        """What was there at each step of the last seconds; times are seconds before now, negative."""
        points = list(self._series.get(key, ()))
        return [(at - now, _at(points, at)) for at in _steps(now, last_s, step_s) if points and at >= points[0][0]]

    def rates(self, key: Hashable, now: float, last_s: float, step_s: float) -> list[Point]:
        """How much a counter rose a second in each step of the last seconds."""
        points = list(self._series.get(key, ()))
        if not points:
            return []
        found = []
        for at in _steps(now, last_s, step_s):
            if at - step_s >= points[0][0]:
                found.append((at - now, max(0.0, _at(points, at) - _at(points, at - step_s)) / step_s))
        return found


def _steps(now: float, last_s: float, step_s: float) -> list[float]:
    count = int(last_s / step_s)
    return [now - step_s * each for each in range(count, -1, -1)]


def _at(points: list[Point], when: float) -> float:
    """The value at a moment: that of the last change before it."""
    index = bisect_right(points, when, key=lambda point: point[0])
    return points[index - 1][1] if index else points[0][1]
