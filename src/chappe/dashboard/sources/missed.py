"""Stores that were there and are not: those that stopped to answer, and those that left. No I/O.

A store that was killed is silent at first; some seconds later nobody hears its beacon any more either. It stays one
that does not answer then: only a store that was heard to the end has left of its own will.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

GONE_S: Final = 5.0  # a store that is not heard for so long has left ...
MISSED_S: Final = 600.0  # ... and is missed for so long


class Missed:
    """The missed stores of one system; it is told after each look which stores are there."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, float]] = {}  # ids: where, and when they were there last
        self._silent: set[str] = set()  # where they were asked in vain, and have not answered since

    def note(self, there: Mapping[str, str], away: Collection[str], answering: Collection[str], now: float) -> None:
        """After a look.

        Args:
            there: Whose beacons are heard: ids, and where they are asked.
            away: Where stores do not answer.
            answering: Where they do.
            now: Monotonic seconds.
        """
        self._seen |= {store_id: (endpoint, now) for store_id, endpoint in there.items()}
        self._seen = {each: (at, seen) for each, (at, seen) in self._seen.items() if now - seen < MISSED_S}
        heard = set(there.values())
        self._silent |= {each for each in away if each in heard}
        self._silent &= {at for at, _ in self._seen.values()}
        self._silent -= set(answering)

    def silent(self) -> list[str]:
        """The endpoints of stores that do not answer, with a beacon or without."""
        return sorted(self._silent)

    def left(self, now: float) -> list[tuple[str, str]]:
        """The ids and former endpoints of stores that left."""
        return [
            (store_id, at)
            for store_id, (at, seen) in self._seen.items()
            if now - seen > GONE_S and at not in self._silent
        ]
