"""Ranges that a store went past without having them, and without being told that they are gone.

An acknowledgement covers everything before it, and a producer lets go of what is acknowledged. So nothing behind
such a range is acknowledged until it is filled, by its producer or by another store, or until the producer says that
it has nothing earlier. On disk such a range is a hole like any other: after a restart every hole counts as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from chappe.defaults import RETRY_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.ranges import RangeSet
from chappe.log.sources import Key


@dataclass(slots=True)
class _Part:
    """The ranges of one partition, and the question to its producer for the first of them."""

    ranges: RangeSet = field(default_factory=RangeSet)
    ask_at: float = -math.inf
    tries: int = 0  # questions without an answer
    asked: bool = False
    begun: bool = False  # the answer to this question has begun
    said: int = 0  # the answer before began here


class Unfilled:
    """Of all partitions. Bounded by the holes of the storage."""

    def __init__(self, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self._parts: dict[Key, _Part] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._parts))

    def miss(self, key: Key, first: int, end: int, ask_at: float = -math.inf) -> None:
        """The store goes on at ``end`` without ``first`` <= n < ``end``."""
        part = self._parts.setdefault(key, _Part())
        part.ranges.add(first, end)
        part.ask_at = max(part.ask_at, ask_at)

    def filled(self, key: Key, first: int, end: int) -> bool:
        """These were written, or are wanted no longer; returns whether more can be acknowledged now."""
        part = self._parts.get(key)
        if part is None:
            return False
        before = part.ranges.lowest
        part.ranges.remove(first, end)
        if not part.ranges:
            del self._parts[key]
            return True
        if part.ranges.lowest != before:
            part.tries, part.said = 0, 0
        return part.ranges.lowest[0] > before[0]

    def gone(self, key: Key, before: int) -> None:
        """Nobody has anything earlier than ``before``."""
        self.filled(key, 0, before)

    def limit(self, key: Key, end: int) -> int:
        """The offset after the last one that may be acknowledged, where ``end`` comes after the last one stored."""
        part = self._parts.get(key)
        return end if part is None else min(end, part.ranges.lowest[0])

    def wait(self, key: Key, until: float) -> None:
        """Its producer is asked for something else: what it answers until then says nothing of these ranges."""
        part = self._parts.get(key)
        if part is not None:
            part.ask_at, part.asked = until, False

    def ask(self, key: Key, now: float) -> tuple[int, int] | None:
        """First and count to ask the producer for now, if it is time to."""
        part = self._parts.get(key)
        if part is None or now < part.ask_at:
            return None
        part.ask_at = now + RETRY_S
        part.asked, part.begun = True, False
        part.tries += 1
        first, end = part.ranges.lowest
        return first, min(end - first, self._limits.fetch_records_max)

    def tries(self, key: Key) -> int:
        """How often in a row the producer was asked for the first range and did not answer."""
        part = self._parts.get(key)
        return 0 if part is None else part.tries

    def answer(self, key: Key, base: int) -> tuple[int, int] | None:
        """The producer sends a batch that begins at ``base``; returns the range that was asked for.

        What comes before the beginning of an answer is gone. It must begin there twice: the first message of one
        may be lost on its way.
        """
        part = self._parts.get(key)
        if part is None or not part.asked:
            return None
        if not part.begun:
            part.begun = True
            part.tries = 0
            said, part.said = min(part.said, base), base
            if said > part.ranges.lowest[0]:
                self.gone(key, said)
        return part.ranges.lowest if part.ranges else None
