"""Bounds on the age of messages: the arguments, and the sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

from chappe.defaults import DROPS_REPORT_S
from chappe.errors import TooSlow, UsageError
from chappe.system import time

OnStale = Literal["end", "drop"]
WAYS: Final = ("end", "drop")


def check_age(max_age_s: float | None, on_stale: OnStale) -> None:
    """Raise UsageError for a wrong bound."""
    if on_stale not in WAYS:
        raise UsageError(f"on_stale is 'end' or 'drop', not {on_stale!r}")
    if max_age_s is None:
        return
    number = isinstance(max_age_s, (int, float)) and not isinstance(max_age_s, bool)
    if not number or not 0 < max_age_s < math.inf:
        raise UsageError(f"max_age_s is a number of seconds above 0, not {max_age_s!r}")


class Stale:
    """Ends or drops on messages that are too old; reports the number dropped at most once a second."""

    def __init__(self, max_age_s: float, on_stale: OnStale, report: Callable[[int, float], object]) -> None:
        self.max_age_s = max_age_s
        self.ends = on_stale == "end"
        self.dropped = 0
        self._report = report
        self._new = 0  # dropped and not reported yet ...
        self._oldest_s = 0.0  # ... and how old they were at most
        self._reported_at = -math.inf

    def drop(self, count: int, age_s: float) -> None:
        self.dropped += count
        self._new += count
        self._oldest_s = max(self._oldest_s, age_s)
        if time.monotonic() >= self._reported_at + DROPS_REPORT_S:
            self.tell()

    def tell(self) -> None:
        if self._new:
            self._reported_at = time.monotonic()
            new, oldest_s, self._new, self._oldest_s = self._new, self._oldest_s, 0, 0.0
            self._report(new, oldest_s)

    def error(self, what: str, age_s: float, count: int) -> TooSlow:
        return TooSlow(
            f"{what} was {age_s:.1f} s old when it was taken, at most {self.max_age_s:g} s are allowed, and {count} "
            "that waited were too old: whoever takes them is too slow, and this has ended; share the work out, or have "
            "what is too old dropped with on_stale='drop'",
            age_s,
            count,
        )
