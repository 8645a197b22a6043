"""Wanted topics that nobody has: most often a name that is misspelt, which would be waited for without a word."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Final

from chappe.core import Effect, Report
from chappe.data.topic import Filter, similar
from chappe.deadlines import Deadlines
from chappe.log.delivery import Delivery
from chappe.log.events import TopicAbsent
from chappe.log.sources import Sources

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
        """Ask a store for the names of its topics, because a topic is not there; it is told even if none answers."""
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
        """Report topics, now that the names of others are known, or are not to be had."""
        known = list(names)
        told: list[Effect] = [Report(TopicAbsent(each, tuple(similar(each, known)))) for each in self._still_absent()]
        self._waiting, self._names_by = [], math.inf
        return told

    def _still_absent(self) -> list[str]:
        """Those to be told that nobody has told us of since."""
        listed = (key for store in self._sources.stores.values() for key in store.heads)
        there = {topic for topic, _ in chain(self._delivery.partitions, self._delivery.settled, listed)}
        self._waiting = [each for each in self._waiting if each not in there]
        if not self._waiting:
            self._names_by = math.inf
        return self._waiting

    def forget(self, name: str) -> None:
        """A topic is wanted no longer."""
        self._looked_at.discard(name)
        self._due.clear(name)
        self._waiting = [each for each in self._waiting if each != name]

    def next_timeout(self) -> float:
        """When to look again."""
        return min(self._names_by, self._due.next)
