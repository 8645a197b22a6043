"""A neighbour's steady clock, as far as its answers to pings tell: when something was published, by our own.

What is published has a time where somebody asks for it, and that is of steady clocks, which nobody sets. Each endpoint
says it by its own, and whoever gets it puts it into his own: so how long it lay anywhere, and was on its way, counts.

A pong between endpoints of chappe ends with what the clock of its sender showed. That was before it came here: so that
clock is ahead of ours by that much at least, and the quickest pong tells best. What comes out is the latest moment at
which something can have been published. It seems younger than it is by the quickest way there ever was between the two,
and by what the clocks may have drifted since then; never older.

It was also after the ping left. What contradicts that tells that the other clock has stood still, as those of machines
do that are suspended.
"""

from __future__ import annotations

import struct
from math import inf
from typing import Final

DRIFT: Final = 0.000_5  # seconds a second: as fast as a clock that is being corrected may run away (adjtime)
TIME: Final = struct.Struct(">q")  # microseconds of a steady clock
_DRIFT_US: Final = DRIFT * 1e6
_ROUNDING_US: Final = 1_000
_OLD_US: Final = 10 * 365 * 86_400 * 1_000_000  # what claims to be older is as old


class NeighbourClock:
    """Of one neighbour."""

    __slots__ = ("_ahead_us", "_at")

    def __init__(self) -> None:
        self._ahead_us: int | None = None  # of ours, at least; None: it was never read
        self._at = 0.0  # when that was known

    def read(self, shown_us: int, now: float, asked_at: float = -inf) -> None:
        """It showed this, before now and after it was asked."""
        ahead_us = shown_us - micros(now)
        known = self._least(now)
        stood_still = asked_at > -inf and known is not None and shown_us - micros(asked_at) < known - _ROUNDING_US
        if known is None or ahead_us >= known or stood_still:
            self._ahead_us, self._at = ahead_us, now

    def ours_us(self, theirs_us: int, now: float) -> int:
        """What ours showed when it showed this, at the latest; now, if it was never read."""
        now_us = int(now * 1e6)
        if self._ahead_us is None:
            return now_us
        found = theirs_us - self._ahead_us + int(_DRIFT_US * (now - self._at))
        if found >= now_us:
            return now_us
        return found if found > now_us - _OLD_US else now_us - _OLD_US

    def _least(self, now: float) -> int | None:
        if self._ahead_us is None:
            return None
        return self._ahead_us - int(_DRIFT_US * (now - self._at))


def micros(now: float) -> int:
    """A steady clock's seconds as they are sent."""
    return int(now * 1e6)
