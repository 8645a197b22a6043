"""Delays the end of the connection to a departed member until everything that it sent is read.

A member may leave as soon as a store has acknowledged its records, while a listener is still reading. The rest waits
in the socket and in the kernel, and is lost with the connection. So a closing connection is checked regularly, and
ends when two checks in a row found nothing unread: between them the kernel delivers the rest.

Their number and waiting time are bounded, since a member that is not read cannot exit. Beyond the bounds a connection
ends at once, and stores are asked for the rest.

Source: chappe's own; the original disconnects at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.1  # between two checks
LEAVING_S: Final = 60.0  # the longest wait of a closing connection
LEAVING_MAX: Final = 64  # closing connections; each may hold as many messages as a socket queues


class Leaving:
    """The closing connections of one node, by endpoint."""

    def __init__(self) -> None:
        self._empty: dict[str, bool] = {}  # True if the last check found nothing unread; the oldest first
        self._until: dict[str, float] = {}  # deadlines
        self._look_at = math.inf

    def leave(self, endpoint: str, now: float) -> str | None:
        """Close a connection once it is read; return one that must be closed now, if there are too many."""
        oldest = next(iter(self._empty)) if len(self._empty) >= LEAVING_MAX else None
        if oldest is not None:
            self.stay(oldest)
        self._empty[endpoint] = False
        self._until[endpoint] = now + LEAVING_S
        self._look_at = min(self._look_at, now + LOOK_S)
        return oldest

    def stay(self, endpoint: str) -> bool:
        """Keep the connection, whose endpoint is back; return False if it has already ended."""
        self._until.pop(endpoint, None)
        return self._empty.pop(endpoint, None) is not None

    def look(self, unread: Callable[[str], bool], now: float) -> list[str]:
        """Return the connections to end now; ``unread`` tells whether input of one may be pending."""
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
        """Return when ``look`` is due."""
        return self._look_at
