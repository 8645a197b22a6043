"""Whom to read less from: peers whose messages go on to a peer that is full, where its policy is to block.

Who publishes here waits for room; who publishes elsewhere cannot. So nothing is read from the peer that its messages
come from, whose own outbox then fills, and so on back to the publisher: nothing is lost on the way.

In a ring of endpoints that are all full each could wait for the next one for ever. So it is only waited for a peer that
takes something now and then; beyond that messages are dropped at the bound, and counted.
"""

from __future__ import annotations

from chappe.defaults import PASS_ON_WAIT_S
from chappe.mesh.links import Link


class _Full:
    """A link that had no room for what came from other links."""

    __slots__ = ("link", "moved_at", "sources", "taken")

    def __init__(self, link: Link, now: float) -> None:
        self.link = link
        self.sources: set[int] = set()
        self.taken = link.outbox.taken
        self.moved_at = now


class Congestion:
    """Links that are full of what other links bring."""

    def __init__(self) -> None:
        self._full: dict[int, _Full] = {}

    def note(self, full: Link, source: Link, now: float) -> None:
        """What came from ``source`` filled a link."""
        found = self._full.get(full.conn)
        if found is None:
            found = self._full[full.conn] = _Full(full, now)
        found.sources.add(source.conn)

    def is_over(self, conn: int) -> None:
        """A link has room again, or is gone."""
        self._full.pop(conn, None)

    def holds_back(self, conn: int, now: float) -> bool:
        """Whether nothing is to be read from a link for a while."""
        held = False
        for each in self._full.values():
            if conn in each.sources:
                if each.taken != each.link.outbox.taken:
                    each.taken = each.link.outbox.taken
                    each.moved_at = now
                held = held or now < each.moved_at + PASS_ON_WAIT_S
        return held
