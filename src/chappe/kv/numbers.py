"""The numbers of a durable order, of a master's events or a map's updates: each is used in one life only.

The backend keeps one number that is above all that were used, in a row beside those of writers; it reserves
many at once. A life begins there, so a clock that was set back does no harm, or at the time of day in microseconds if
that is later, so a file that was restored from a copy does none.
"""

from __future__ import annotations

from typing import Final

from chappe.channel import FIRST
from chappe.core import Clock
from chappe.kv.backend import Loaded, WriterRow
from chappe.kv.entity import NOBODY

AHEAD: Final = 1 << 20  # a second of the clock in microseconds
_LEAST: Final = AHEAD // 2  # more than the changes that are not durable yet: two commits at most wait behind one


class EventNumbers:
    """The numbers of one life. ``base`` is the one before that of its first event.

    Args:
        loaded: What the backend has.
    """

    def __init__(self, loaded: Loaded, clock: Clock) -> None:
        kept = [row.applied for row in loaded.writers if row.entity == NOBODY]
        self.base = max(FIRST, clock.wall_ns() // 1000, *kept)
        self._kept = 0  # reserved up to here, in the backend or in a commit under way

    def reserve(self, last: int) -> WriterRow | None:
        """Reserve numbers for events behind ``last`` by a row for the backend; None if enough are reserved."""
        if last + _LEAST < self._kept:
            return None
        self._kept = last + AHEAD
        return WriterRow(NOBODY, self._kept, (), 0)

    def refused(self) -> None:
        """A commit failed, perhaps the one with the row."""
        self._kept = 0
