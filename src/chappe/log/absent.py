"""Wanted topics that nobody has: most often a name that is misspelt, which would be waited for without a word."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Final

from chappe.data.topic import Filter, similar
from chappe.log.events import TopicAbsent

ABSENT_S: Final = 1.0  # after a store has listed what it has: who publishes just now is heard by then
NAMES_S: Final = 2.0  # a store gets this long to tell the names of its topics


class Absent:
    """Finds each wanted topic that is not there, once; prefixes are never missing."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # topics that were not there when a store had listed
        self._waiting: list[str] = []  # those of them that are to be told, once the names of others are known
        self._told: set[str] = set()
        self._names_by = math.inf

    def look(self, filters: Iterable[Filter], listed: Callable[[Filter], bool], now: float) -> bool:
        """Whether to ask a store for the names of its topics now, because a topic is not there.

        ``listed``: whether any store has listed what it has of a filter.
        """
        for each in filters:
            if not each.prefix and each.name not in self._told and listed(each):
                self._told.add(each.name)
                self._due[each.name] = now + ABSENT_S
        over = [name for name, at in self._due.items() if now >= at]
        for name in over:
            del self._due[name]
        if over and not self._waiting:
            self._names_by = now + NAMES_S
            self._waiting = over
            return True
        self._waiting += over
        return False

    def found(self, there: Collection[str]) -> bool:
        """Forget topics that are there; returns whether any is still missing."""
        self._waiting = [each for each in self._waiting if each not in there]
        if not self._waiting:
            self._names_by = math.inf
        return bool(self._waiting)

    def tell(self, names: Iterable[str]) -> list[TopicAbsent]:
        """What to report, now that the names of other topics are known, or are not to be had."""
        known = list(names)
        told = [TopicAbsent(each, tuple(similar(each, known))) for each in self._waiting]
        self._waiting = []
        self._names_by = math.inf
        return told

    def late(self, now: float) -> bool:
        """Whether the names have not come in time."""
        return now >= self._names_by

    def forget(self, name: str) -> None:
        """A topic is wanted no longer."""
        self._told.discard(name)
        self._due.pop(name, None)
        self._waiting = [each for each in self._waiting if each != name]

    def next_timeout(self) -> float:
        """When to look again."""
        return min(self._names_by, min(self._due.values(), default=math.inf))
