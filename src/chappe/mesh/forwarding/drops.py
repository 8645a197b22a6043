"""Messages that were dropped: counted at once, reported at most once a second for each place."""

from __future__ import annotations

from math import inf

from chappe.core import Report
from chappe.defaults import DROPS_REPORT_S
from chappe.mesh.actions import Action
from chappe.mesh.events import MessagesDropped


class Drops:
    """Counts by place, which is a part of a sentence: where and why."""

    def __init__(self) -> None:
        self.total = 0
        self.due = inf  # when a report is
        self._counts: dict[str, int] = {}
        self._reported_at = -inf

    def add(self, where: str, count: int = 1) -> None:
        """Count. The places are few: a peer and a reason."""
        self.total += count
        self.due = self._reported_at + DROPS_REPORT_S
        self._counts[where] = self._counts.get(where, 0) + count

    def handle_timeout(self, now: float) -> list[Action]:
        """Report what is due."""
        if now < self.due:
            return []
        self.due = inf
        counts, self._counts = self._counts, {}
        self._reported_at = now
        return [Report(MessagesDropped(where, count)) for where, count in counts.items()]
