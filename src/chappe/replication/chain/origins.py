"""Chooses the session that a full chain evicts.

That is the least recently used one, as long as no flood shows. More than a few unused sessions are one: then the oldest
of the origin (identity or address) with most of them goes, since its end costs no command. So are more than a few
sessions of one origin, which then loses its least recently used one: a client that opens thousands evicts only its own.
A client whose request to open came twice keeps both for a moment, since it may be using either. All members decide
alike, since this depends on committed entries alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

ORIGIN_BYTES_MAX: Final = 64  # of an origin's name; longer ones are truncated
FEW: Final = 8  # so many sessions may be about to be used, or belong to one origin, before that is taken for a flood


class Origins:
    """The open sessions by origin, and those that were never used, oldest first."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}
        self._counts: Counter[bytes] = Counter()
        self._unused: dict[int, None] = {}

    def put(self, session: int, origin: bytes, *, used: bool) -> None:
        """Add a session, or mark it as used."""
        if session not in self._of:
            self._of[session] = origin
            self._counts[origin] += 1
        if used:
            self._unused.pop(session, None)
        else:
            self._unused[session] = None

    def remove(self, session: int) -> None:
        """Remove a session."""
        origin = self._of.pop(session)
        self._counts[origin] -= 1
        if not self._counts[origin]:
            del self._counts[origin]
        self._unused.pop(session, None)

    def next_to_go(self, sessions: Iterable[int]) -> int:
        """Return the one to evict.

        Args:
            sessions: All that are open, the least recently used one first.
        """
        if len(self._unused) > FEW:
            unused = Counter(map(self._of.__getitem__, self._unused))
            return self._first_of_most(self._unused, unused)
        if max(self._counts.values()) > FEW:
            return self._first_of_most(sessions, self._counts)
        return next(iter(sessions))

    def _first_of_most(self, sessions: Iterable[int], counts: Counter[bytes]) -> int:
        most = max(counts.values())
        return next(each for each in sessions if counts[self._of[each]] == most)
