"""Which session of a chain gives way when there are too many: by who opened it, and whether it was ever used.

A session that never did anything goes first, as its end costs nobody a command. Among those, and then among all others,
one goes of the origin, an identity or an address, that has most of them: one client that opens thousands pushes out its
own before those of others. All members decide alike, as this depends on the committed entries alone.
"""

from __future__ import annotations

from typing import Final

ORIGIN_BYTES_MAX: Final = 64  # of the name of an origin; a longer one is cut off


class Origins:
    """The open sessions by origin, each time least recently used first."""

    def __init__(self) -> None:
        self._unused: dict[bytes, dict[int, None]] = {}
        self._used: dict[bytes, dict[int, None]] = {}

    def put(self, session: int, origin: bytes, *, used: bool) -> None:
        """Add a session, or note that one was used just now."""
        if used:
            self._take(self._unused, session, origin)
        sessions = (self._used if used else self._unused).setdefault(origin, {})
        sessions.pop(session, None)
        sessions[session] = None

    def remove(self, session: int, origin: bytes) -> None:
        """A session has ended."""
        self._take(self._unused, session, origin)
        self._take(self._used, session, origin)

    def next_to_go(self, newest: int) -> int:
        """Which of the sessions gives way to the newest one."""
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
    """The least recently used session, but not the newest one, of the origin with most of them."""
    counts = [(len(sessions) - (newest in sessions), origin) for origin, sessions in origins.items()]
    count, origin = max(counts, default=(0, b""))
    return next(iter(origins[origin])) if count else None
