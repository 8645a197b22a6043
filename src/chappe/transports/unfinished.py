"""Frames that peers have begun and not finished: what is kept of them has a bound for all connections together.

Whoever has begun a frame has a time to finish it that grows with its size. And where all begun frames together are too
large, the connection that has been the slowest with its own is given up: it may only want to use up memory.
"""

from __future__ import annotations

import math
from typing import Final

from chappe.defaults import UNFINISHED_BYTES_MAX
from chappe.transports.tcp import Link

TOO_MUCH: Final = (
    "it has begun a message and sends it slower than others, and all begun messages are too large together"
)


class Unfinished:
    """The links of one node that have an unfinished frame. The node's lock is held."""

    def __init__(self) -> None:
        self.links: dict[int, Link] = {}  # by number
        self._bytes = 0

    def note(self, link: Link, now: float) -> None:
        """Something was read from a link."""
        self._count(link, link.unfinished)
        if not link.unfinished:
            link.begun_at = None
        elif link.begun_at is None:
            link.begun_at = now

    def forget(self, link: Link) -> None:
        """A link is gone."""
        self._count(link, 0)

    def begin_again(self, link: Link, now: float) -> None:
        """Nothing was read from a link for a while: that was not its fault."""
        if link.begun_at is not None:
            link.begun_at = now

    def surplus(self, now: float) -> Link | None:
        """The slowest link, if all together have too much."""
        if self._bytes <= UNFINISHED_BYTES_MAX:
            return None
        return min(self.links.values(), key=lambda link: _speed(link, now))

    def due(self) -> float:
        """When the first one is too late."""
        return min([link.too_late_at() for link in self.links.values() if link.reading], default=math.inf)

    def too_late(self, now: float) -> list[Link]:
        """The links that have taken too long."""
        return [link for link in self.links.values() if link.reading and now >= link.too_late_at()]

    def _count(self, link: Link, size: int) -> None:
        self._bytes += size - link.counted
        link.counted = size
        if size:
            self.links[link.number] = link
        else:
            self.links.pop(link.number, None)


def _speed(link: Link, now: float) -> float:
    return link.unfinished / max(1e-3, now - (now if link.begun_at is None else link.begun_at))
