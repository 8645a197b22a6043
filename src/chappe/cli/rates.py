"""A rate that is kept."""

from __future__ import annotations

import time
from typing import Final

BURST_S: Final = 0.1  # a sender that was held up makes up for as much
STEP_S: Final = 0.1  # the longest wait at a time


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
