"""Room for the clients of a WebSocket server: who is in, and who gives way when it is full.

A client that has not sent its first frame gives way to any that comes. Where all have, one of the host that has the
most gives way to a client of a host that has fewer; so nobody can keep all others out.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from chappe.defaults import WEBSOCKET_CLIENTS_MAX


class Guest(Protocol):
    """A client that can be asked to go."""

    def give_way(self) -> None:
        """End it, soon."""


class Room:
    """The clients of one server; in a single thread."""

    def __init__(self) -> None:
        self._silent: dict[Guest, str] = {}  # by host, the oldest first
        self._speaking: dict[Guest, str] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._speaking)

    def enter(self, guest: Guest, host: str) -> bool:
        """A client comes; False if there is no room for it."""
        if len(self) >= WEBSOCKET_CLIENTS_MAX:
            loser = self._loser(host)
            if loser is None:
                return False
            self.leave(loser)
            loser.give_way()
        self._silent[guest] = host
        return True

    def spoke(self, guest: Guest) -> None:
        """A client has sent its first frame."""
        if guest in self._silent:
            self._speaking[guest] = self._silent.pop(guest)

    def leave(self, guest: Guest) -> None:
        """A client has gone; safe to call twice."""
        self._silent.pop(guest, None)
        self._speaking.pop(guest, None)

    def _loser(self, host: str) -> Guest | None:
        if self._silent:
            return next(iter(self._silent))
        counts = Counter(self._speaking.values())
        greedy, most = counts.most_common(1)[0]
        if counts[host] + 1 >= most:
            return None
        return next(each for each in reversed(self._speaking) if self._speaking[each] == greedy)
