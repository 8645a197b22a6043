"""When the connection to a member that has gone ends: once everything is read that came over it.

A member may leave as soon as a store has acknowledged what it sent, while we are still reading. Until then the rest
waits in our socket and in the kernel, and is lost with the connection. So a connection that is to end is looked at now
and then, and ends when nothing was unread twice in a row: between the two, what the kernel still had comes up.

There may be only so many of them, and each waits only so long: who is not read cannot end its process. Beyond that a
connection ends at once, and the rest is asked of the stores.

Source: chappe's own; the original disconnects at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.1  # between two looks
LEAVING_S: Final = 60.0  # that a connection waits to end
LEAVING_MAX: Final = 64  # connections that wait to end; each may hold as many messages as a socket queues


class Leaving:
    """The connections of one node that are to end, by their endpoints."""

    def __init__(self) -> None:
        self._empty: dict[str, bool] = {}  # whether nothing was unread at the last look; the oldest first
        self._until: dict[str, float] = {}  # when they end in any case
        self._look_at = math.inf

    def leave(self, endpoint: str, now: float) -> str | None:
        """End a connection as soon as it is read; returns one that has to end at once, as there are too many."""
        oldest = next(iter(self._empty)) if len(self._empty) >= LEAVING_MAX else None
        if oldest is not None:
            self.stay(oldest)
        self._empty[endpoint] = False
        self._until[endpoint] = now + LEAVING_S
        self._look_at = min(self._look_at, now + LOOK_S)
        return oldest

    def stay(self, endpoint: str) -> bool:
        """Somebody is there again: keep the connection; returns whether there still is one."""
        self._until.pop(endpoint, None)
        return self._empty.pop(endpoint, None) is not None

    def look(self, unread: Callable[[str], bool], now: float) -> list[str]:
        """Find the connections that end now; ``unread`` tells whether something that came over one may be unread."""
        if now < self._look_at:
            return []
        ended: list[str] = []
        for endpoint, empty in self._empty.items():
            found = not unread(endpoint)
            self._empty[endpoint] = found
            if (empty and found) or now >= self._until[endpoint]:
                ended.append(endpoint)
        for endpoint in ended:
            self.stay(endpoint)
        self._look_at = now + LOOK_S if self._empty else math.inf
        return ended

    def next_timeout(self) -> float:
        """When ``look`` has something to do."""
        return self._look_at
