"""Checks of what a consumer asks for: wanted topics that nobody has, and positions beyond the end of a partition.

A misspelt topic would be waited for silently, so each absent topic is reported once.

A position may be ahead of what stores list: its records arrived live, and the stores are still writing them, or their
producer died with them. So nothing is reported for ``ALONE_S``: stores list partitions and producers announce ends.
If only stores list less, that is reported and the position stays: its producer may have more, and return. Once the
producer itself ends before it, the position is wrong: it is out of range, and reading goes on where the partition
ended when its producer was first heard, so no new record is skipped. A producer whose journal was restored from a copy
ends before what stores hold already: what they held then is not delivered again. So a store that listens to us or has
said hello is waited for, too, until it lists what it has: it may be the only one that holds more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from chappe.core import Effect, Report
from chappe.data.topic import Filter, similar
from chappe.deadlines import Deadlines
from chappe.defaults import BEACON_INTERVAL_S
from chappe.log.delivery import Delivery
from chappe.log.events import PositionBeyondEnd, TopicAbsent
from chappe.log.sources import Key, Sources

ABSENT_S: Final = 1.0  # after a store has listed what it has: who publishes just now is heard by then
NAMES_S: Final = 2.0  # a store gets this long to tell the names of its topics


class Absent:
    """Finds each wanted topic that is not there, once; prefixes are never missing."""

    def __init__(self, delivery: Delivery, sources: Sources) -> None:
        self._delivery = delivery
        self._sources = sources
        self._looked_at: set[str] = set()
        self._due: Deadlines[str] = Deadlines()  # topics that were not there when a store had listed
        self._waiting: list[str] = []  # those of them that are to be told, once the names of others are known
        self._names_by = math.inf

    def look(self, filters: Iterable[Filter], now: float) -> list[Effect]:
        """Ask a store for the names of its topics, because a topic is absent; it is reported even if none answers."""
        if now >= self._names_by:
            return self.tell(())
        for each in filters:
            if not each.prefix and each.name not in self._looked_at and self._sources.listed_by_any(each):
                self._looked_at.add(each.name)
                self._due.set(each.name, now + ABSENT_S)
        over = self._due.due(now)
        begin = bool(over) and not self._waiting
        self._waiting += over
        if begin:
            self._names_by = now + NAMES_S
        return self._sources.names(now) if begin and self._still_absent() else []

    def tell(self, names: Iterable[str]) -> list[Effect]:
        """Report absent topics, now that the names of others are known, or unavailable."""
        known = list(names)
        told: list[Effect] = [Report(TopicAbsent(each, tuple(similar(each, known)))) for each in self._still_absent()]
        self._waiting, self._names_by = [], math.inf
        return told

    def _still_absent(self) -> list[str]:
        """Return the topics to report that nobody has spoken of since."""
        listed = (key for store in self._sources.stores.values() for key in store.heads)
        there = {topic for topic, _ in chain(self._delivery.partitions, self._delivery.settled, listed)}
        self._waiting = [each for each in self._waiting if each not in there]
        if not self._waiting:
            self._names_by = math.inf
        return self._waiting

    def forget(self, name: str) -> None:
        self._looked_at.discard(name)
        self._due.clear(name)
        self._waiting = [each for each in self._waiting if each != name]

    def next_timeout(self) -> float:
        return min(self._names_by, self._due.next)


MEET_S = 0.3  # members meet within milliseconds: time for others after the first store
ALONE_S = BEACON_INTERVAL_S + MEET_S  # beacons and producers' heads come once a second
HELLO_S = 10.0  # a store that listens and lists nothing is waited for so long: Dafka's never do
HELLOS_MAX = 1_000  # stores that are waited for; further ones are not


class Beyond:
    """Positions not yet confirmed to lie within their partitions. ``told``: reported as beyond all stores, and kept."""

    def __init__(self, positions: Mapping[Key, int], delivery: Delivery, sources: Sources) -> None:
        self._doubtful = {key: at for key, at in positions.items() if at}
        self._delivery = delivery
        self._sources = sources
        self._live: dict[Key, tuple[int, int]] = {}  # the producer's end when it was first heard, and now
        self._greeted: dict[str, float] = {}  # stores that listen or have said hello, and since when
        self.told: dict[Key, int] = {}
        self.due = math.inf

    def heard(self, key: Key, first: int, end: int, now: float) -> None:
        """Note a producer's announcement: its new records begin at ``first``, its partition ends at ``end``."""
        if key in self._doubtful:
            known = self._live.get(key)
            begins = max(first, self._end(key)) if known is None else known[0]
            self._live[key] = begins, max(end, 0 if known is None else known[1])
            self.due = min(self.due, now + ALONE_S)

    def doubt(self, key: Key, at: int) -> None:
        """Note a position that was committed by others."""
        if at:
            self._doubtful[key] = at

    def forget(self, key: Key) -> None:
        if key in self._doubtful:
            self._settled(key)

    def greeted(self, store: str, now: float) -> None:
        """Note a store that listens or has said hello, and is not asked yet as its endpoint is unknown."""
        if self._doubtful and len(self._greeted) < HELLOS_MAX:
            self._greeted.setdefault(store, now)

    def gone(self, store: str) -> None:
        self._greeted.pop(store, None)

    def listed(self, now: float) -> None:
        if self._doubtful:
            self.due = min(self.due, now + ALONE_S)

    @property
    def unsure(self) -> bool:
        """True if a position is beyond its partition's known end and not yet reported."""
        return self.due < math.inf and any(
            0 < self._end(key) < at and key not in self.told for key, at in self._doubtful.items()
        )

    def look(self, filters: Iterable[Filter], now: float) -> list[Effect]:
        """Report positions beyond the end, and move those that their producers refute."""
        if now < self.due:
            return []
        self.due = math.inf
        actions: list[Effect] = []
        listed = (not self._sources.stores or self._sources.synced(filters)) and not self._awaited(now)
        for key, at in list(self._doubtful.items()):
            part = self._delivery.partitions.get(key)
            end = self._end(key)
            if (part is not None and part.gap.next != at) or end >= at:
                self._settled(key)
            elif part is None or not end:
                continue  # no end is known
            elif not listed:
                self.due = now + ALONE_S
            elif key in self._live:
                actions += self._delivery.beyond(key, part, self._live[key][0], end, now)
                self._settled(key)
            elif key not in self.told:
                self.told[key] = at
                actions.append(Report(PositionBeyondEnd(*key, at, end)))
        return actions

    def _awaited(self, now: float) -> bool:
        """True if a store that listens or has said hello may still list what it has."""
        stores = self._sources.stores
        return any(each not in stores and now < at + HELLO_S for each, at in self._greeted.items())

    def _end(self, key: Key) -> int:
        """Return the largest end of a partition that stores or its producer have named."""
        ends = [next_ for _, next_ in self._sources.ranges(key)]
        return max([self._live.get(key, (0, 0))[1], *ends])

    def _settled(self, key: Key) -> None:
        del self._doubtful[key]
        self._live.pop(key, None)
        self.told.pop(key, None)
