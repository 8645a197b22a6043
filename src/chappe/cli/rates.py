"""Rates of counters, from one look to the next; and a rate that is kept."""

from __future__ import annotations

import time
from typing import Final

SMOOTH_S: Final = 2.0  # rates for people are averages of about this time
BURST_S: Final = 0.1  # a sender that was held up makes up for as much
STEP_S: Final = 0.1  # the longest wait at a time


class Rate:
    """The growth of a counter a second, since the look before; with ``smooth_s`` about over so many seconds."""

    def __init__(self, count: float = 0, now: float | None = None, *, smooth_s: float = 0.0) -> None:
        self.per_s = 0.0
        self._smooth_s = smooth_s
        self.begin(count, now)

    def begin(self, count: float, now: float | None = None) -> None:
        self._count, self._at = count, time.monotonic() if now is None else now

    def look(self, count: float, now: float | None = None) -> float:
        """Take the current counter; return the rate."""
        now = time.monotonic() if now is None else now
        passed = now - self._at
        if passed > 0:
            weight = min(1.0, passed / self._smooth_s) if self._smooth_s else 1.0
            self.per_s += weight * ((count - self._count) / passed - self.per_s)
            self.begin(count, now)
        return self.per_s


class Throttle:
    """Lets so many records a second go, evenly."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._due: float | None = None  # when the next one may go

    def wait(self, wanted: int) -> int:
        """Wait a moment at most; return how many of the ``wanted`` records may go now."""
        now = time.monotonic()
        due = now if self._due is None else max(self._due, now - BURST_S)
        if due > now:
            time.sleep(min(due - now, STEP_S))
            return 0
        count = min(wanted, 1 + int((now - due) * self._per_s))
        self._due = due + count / self._per_s
        return count
