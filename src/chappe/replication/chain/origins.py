"""Chooses the session that a full chain evicts.

The origin (identity or address) with most used sessions loses one, so a client that opens thousands evicts only its
own, and so do clients at many addresses, unless there are more addresses than sessions. Of origins with equally many,
the least recently used session goes. More than a few unused sessions are a flood: then the oldest of the origin with
most of them goes first, since its end costs no command. A few stay, as their clients are about to use them, or one of
two if a request to open came twice.

All members decide alike: this depends on committed entries alone, and a restored state gives the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ORIGIN_BYTES_MAX: Final = 64  # of an origin's name; longer ones are truncated
FEW: Final = 8  # so many sessions may be about to be used before that is taken for a flood


class Origins:
    """The open sessions by origin, those that were never used apart."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}
        self._unused = _Shares()
        self._used = _Shares()

    def put(self, session: int, origin: bytes, *, used: bool) -> None:
        if used:
            self._unused.remove(session, origin)
            self._used.put(session, origin)
        else:
            self._unused.put(session, origin)
        self._of[session] = origin

    def remove(self, session: int) -> None:
        origin = self._of.pop(session)
        self._unused.remove(session, origin)
        self._used.remove(session, origin)

    def next_to_go(self, sessions: Iterable[int]) -> int:
        """Return the one to evict. ``sessions``: all that are open, the least recently used one first."""
        if len(self._unused) > FEW:
            return self._unused.first_of_most()
        return self._used.first_of_most() if self._used.most > 1 else next(iter(sessions))


class _Shares:
    """Sessions by origin, and how many each origin has; those first that were put least recently."""

    def __init__(self) -> None:
        self._puts = 0
        self._sessions: dict[int, None] = {}  # of all origins
        self._by_origin: dict[bytes, dict[int, int]] = {}  # ... and when each was put
        self._with: dict[int, dict[bytes, None]] = {}  # origins by how many sessions they have
        self.most = 0  # sessions of one origin

    def __len__(self) -> int:
        return len(self._sessions)

    def put(self, session: int, origin: bytes) -> None:
        its = self._by_origin.setdefault(origin, {})
        if session in its:
            del its[session], self._sessions[session]
        else:
            self._count(origin, len(its), len(its) + 1)
        self._puts += 1
        its[session] = self._puts
        self._sessions[session] = None

    def remove(self, session: int, origin: bytes) -> None:
        if session not in self._sessions:
            return
        del self._sessions[session]
        its = self._by_origin[origin]
        del its[session]
        self._count(origin, len(its) + 1, len(its))
        if not its:
            del self._by_origin[origin]

    def first_of_most(self) -> int:
        """Return the session that was put least recently, of the origins with most sessions."""
        if self.most == 1:
            return next(iter(self._sessions))
        firsts = [next(iter(self._by_origin[origin].items())) for origin in self._with[self.most]]
        return min(firsts, key=lambda each: each[1])[0]

    def _count(self, origin: bytes, before: int, after: int) -> None:
        if before:
            del self._with[before][origin]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[origin] = None
        if after > self.most or (before == self.most and before not in self._with):
            self.most = after
