"""Chooses the session that a full chain evicts, by origin and by whether the session was ever used.

An unused session goes first, since its end costs no command. Among those, and then among all others,
the origin (identity or address) with most sessions loses one: a client that opens thousands evicts only
its own. All members decide alike, since this depends on committed entries alone.
"""

from __future__ import annotations

from typing import Final

ORIGIN_BYTES_MAX: Final = 64  # of an origin's name; longer ones are truncated


class Origins:
    """The open sessions by origin, each in least recently used order."""

    def __init__(self) -> None:
        self._unused: dict[bytes, dict[int, None]] = {}
        self._used: dict[bytes, dict[int, None]] = {}

    def put(self, session: int, origin: bytes, *, used: bool) -> None:
        """Add a session, or mark it as just used."""
        if used:
            self._take(self._unused, session, origin)
        sessions = (self._used if used else self._unused).setdefault(origin, {})
        sessions.pop(session, None)
        sessions[session] = None

    def remove(self, session: int, origin: bytes) -> None:
        """Remove a session."""
        self._take(self._unused, session, origin)
        self._take(self._used, session, origin)

    def next_to_go(self, newest: int) -> int:
        """Return the session to evict for the newest one."""
        found = _of_most(self._unused, newest)
        if found is None:
            found = _of_most(self._used, newest)
        assert found is not None
        return found

    @staticmethod
    def _take(origins: dict[bytes, dict[int, None]], session: int, origin: bytes) -> None:
        sessions = origins.get(origin)
        if sessions is not None:
            sessions.pop(session, None)
            if not sessions:
                del origins[origin]


def _of_most(origins: dict[bytes, dict[int, None]], newest: int) -> int | None:
    """Return the least recently used session, except the newest, of the origin with most."""
    counts = [(len(sessions) - (newest in sessions), origin) for origin, sessions in origins.items()]
    count, origin = max(counts, default=(0, b""))
    return next(iter(origins[origin])) if count else None
