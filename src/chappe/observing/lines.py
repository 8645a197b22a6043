"""The last minutes, hour and day of counters and gauges, for lines: in bounded memory, however many topics there are.

A counter is kept at the moments at which it changed, so what is idle costs nothing. Coarser tiers keep the last value
of each of their steps. Only the series that changed last are remembered; one that comes back begins anew.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

Point = tuple[float, float]  # when, how much


class LineSpan(NamedTuple):
    """The time that a line goes back, and the distance of its points, in seconds."""

    last_s: float
    step_s: float


MINUTES: Final = LineSpan(300.0, 2.0)
HOUR: Final = LineSpan(3_600.0, 10.0)
DAY: Final = LineSpan(86_400.0, 300.0)

POINTS_MAX: Final = 300  # of one series: five minutes where something changes every second
SERIES_MAX: Final = 2_000  # 16 bytes a point: 15 KiB each with hour and day, 30 MiB all, if all change all day
RATE_S: Final = 5.0  # a rate is of the last seconds ...
RATE_POINTS_MAX: Final = 12  # ... for which so many points are enough
SHARE_MIN: Final = 0.2  # of a step; a rate over less of one says nothing


class _Tier:
    """Values at the moments at which they changed; with a step, the last one of each step."""

    __slots__ = ("_points", "_points_max", "_step_s")

    def __init__(self, points_max: int, step_s: float = 0.0) -> None:
        self._points = array("d")  # when, how much, when, how much, ...
        self._points_max = points_max
        self._step_s = step_s

    def __bool__(self) -> bool:
        return bool(self._points)

    @property
    def begin(self) -> float:
        return self._points[0]

    @property
    def last(self) -> float:
        return self._points[-1]

    def note(self, value: float, now: float) -> None:
        points = self._points
        # the first one stays, as what came before it is not known
        if self._step_s and len(points) > 2 and points[-2] // self._step_s == now // self._step_s:
            points[-2], points[-1] = now, value
            return
        points.append(now)
        points.append(value)
        if len(points) > 2 * self._points_max:
            del points[:2]

    def at(self, when: float) -> float:
        """The value at a moment: that of the last change before it."""
        points = self._points
        index = bisect_right(range(0, len(points), 2), when, key=points.__getitem__)
        return points[2 * index - 1] if index else points[1]


class TimeSeries:
    """Series by key. Times are seconds of a clock that only goes forward.

    Args:
        series_max: How many are remembered.
        points_max: Changes of one that are remembered as they were.
        coarser: Longer spans of which one value for each step is remembered, in the order of their steps.
    """

    def __init__(
        self, series_max: int = SERIES_MAX, points_max: int = POINTS_MAX, coarser: Sequence[LineSpan] = ()
    ) -> None:
        self._series: OrderedDict[Hashable, list[_Tier]] = OrderedDict()
        self._series_max = series_max
        self._points_max = points_max
        self._coarser = tuple(coarser)

    def __len__(self) -> int:
        return len(self._series)

    def note(self, key: Hashable, value: float, now: float) -> None:
        """A value was seen. What did not change is not kept again; a counter that fell begins anew."""
        tiers = self._series.get(key)
        if tiers is None:
            tiers = self._series[key] = [_Tier(self._points_max)]
            tiers += [_Tier(int(each.last_s / each.step_s) + 1, each.step_s) for each in self._coarser]
            if len(self._series) > self._series_max:
                self._series.popitem(last=False)
        if tiers[0] and tiers[0].last == value:
            return
        self._series.move_to_end(key)
        for tier in tiers:
            tier.note(value, now)

    def forget(self, key: Hashable) -> None:
        self._series.pop(key, None)

    def rate(self, key: Hashable, now: float, over_s: float = RATE_S) -> float:
        """The rise of a counter per second lately; 0 where it fell, or is not known for so long."""
        tiers = self._series.get(key)
        if tiers is None:
            return 0.0
        begin = max(now - over_s, tiers[0].begin)
        passed = now - begin
        return max(0.0, tiers[0].last - tiers[0].at(begin)) / passed if passed > 0 else 0.0

    def rise(self, key: Hashable, value: float, now: float) -> float:
        """Note a counter; return its rise per second lately."""
        self.note(key, value, now)
        return self.rate(key, now)

    def gauge(self, key: Hashable, now: float, span: LineSpan) -> list[Point]:
        """Values at the steps of a span; times are seconds before now, negative."""
        tiers = self._series.get(key)
        if tiers is None:
            return []
        tier = tiers[self._place(span)]
        return [(at - now, tier.at(at)) for at in self._steps(now, span) if at >= tier.begin]

    def rates(self, key: Hashable, now: float, span: LineSpan) -> list[Point]:
        """The rise of a counter per second in each step of a span."""
        tiers = self._series.get(key)
        if tiers is None:
            return []
        tier, finest = tiers[self._place(span)], tiers[0]
        found = []
        for begin, end in pairwise(self._steps(now, span)):
            since = max(begin, tier.begin)
            if end - since >= SHARE_MIN * span.step_s:
                # what a coarse tier has of a step that is not over may be younger than its begin
                former = finest if end == now and finest.begin <= since else tier
                found.append((end - now, max(0.0, tier.at(end) - former.at(since)) / (end - since)))
        return found

    def _place(self, span: LineSpan) -> int:
        """Find the tier whose steps are those of a span, or the next finer ones."""
        return sum(each.step_s <= span.step_s for each in self._coarser)

    def _steps(self, now: float, span: LineSpan) -> list[float]:
        """The ends of a span's steps: in a coarse tier at multiples of the step, and now."""
        last = now // span.step_s * span.step_s if self._place(span) else now
        steps = [last - span.step_s * each for each in range(int(span.last_s / span.step_s), -1, -1)]
        return steps if last == now else [*steps, now]
