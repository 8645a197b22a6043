"""Positions of a consumer's earlier life that lie beyond the end of their partition.

A position may be ahead of what stores list: its records came live, and the stores write them yet, or their producer
died with them. So nothing is said for ``ALONE_S``, in which stores list what they have and producers tell their ends.
If stores alone list less, that is told, and the position stays: its producer may have more, and come back. Once the
producer itself ends before it, the position is wrong: it is out of range, and reading goes on where the partition
ended when its producer was first heard, so that nothing new is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from chappe.core import Report
from chappe.data.topic import Filter
from chappe.defaults import BEACON_INTERVAL_S
from chappe.log.actions import Action
from chappe.log.delivery import Delivery
from chappe.log.events import PositionBeyondEnd
from chappe.log.sources import Key, Sources

MEET_S = 0.3  # members are met within milliseconds: after the first store, others get this long
ALONE_S = BEACON_INTERVAL_S + MEET_S  # once a second members say that they are there, and producers their heads


class Beyond:
    """What is not known yet to be within its partition.

    Attributes:
        told: Positions that are beyond what all stores list, and stay.
    """

    def __init__(self, positions: Mapping[Key, int], delivery: Delivery, sources: Sources) -> None:
        self._doubtful = {key: at for key, at in positions.items() if at}
        self._delivery = delivery
        self._sources = sources
        self._live: dict[Key, tuple[int, int]] = {}  # where the producer ended when it was first heard, and ends now
        self.told: dict[Key, int] = {}
        self.due = math.inf

    def heard(self, key: Key, first: int, end: int, now: float) -> None:
        """A producer speaks of its partition: what is new begins at ``first``, all of it ends at ``end``."""
        if key in self._doubtful:
            known = self._live.get(key, (first, end))
            self._live[key] = known[0], max(known[1], end)
            self.due = min(self.due, now + ALONE_S)

    def listed(self, now: float) -> None:
        """A store has listed what it has."""
        if self._doubtful:
            self.due = min(self.due, now + ALONE_S)

    @property
    def unsure(self) -> bool:
        """Whether a position is beyond all that is known of its partition, and that is not told yet."""
        return self.due < math.inf and any(
            0 < self._end(key) < at and key not in self.told for key, at in self._doubtful.items()
        )

    def look(self, filters: Iterable[Filter], now: float) -> list[Action]:
        """Tell what is beyond its end, and go on elsewhere where that is sure."""
        if now < self.due:
            return []
        self.due = math.inf
        actions: list[Action] = []
        listed = not self._sources.stores or self._sources.synced(filters)
        for key, at in list(self._doubtful.items()):
            part = self._delivery.partitions.get(key)
            end = self._end(key)
            if (part is not None and part.gap.next != at) or end >= at:
                self._settled(key)
            elif part is None or not end:
                continue  # nobody has spoken of it
            elif not listed:
                self.due = now + ALONE_S
            elif key in self._live:
                actions += self._delivery.beyond(key, part, self._live[key][0], end, now)
                self._settled(key)
            elif key not in self.told:
                self.told[key] = at
                actions.append(Report(PositionBeyondEnd(*key, at, end)))
        return actions

    def _end(self, key: Key) -> int:
        """Where a partition ends, as far as anybody has said."""
        ends = [next_ for _, next_ in self._sources.ranges(key)]
        return max([self._live.get(key, (0, 0))[1], *ends])

    def _settled(self, key: Key) -> None:
        del self._doubtful[key]
        self._live.pop(key, None)
        self.told.pop(key, None)
