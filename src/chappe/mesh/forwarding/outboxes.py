"""What is put for peers, and which of them are full."""

from __future__ import annotations

from chappe.mesh.forwarding.congestion import Congestion
from chappe.mesh.forwarding.holds import Holds
from chappe.mesh.forwarding.losses import Drops, LossReason
from chappe.mesh.links.link import Link


class Outboxes:
    """The outboxes of all links.

    Args:
        blocks: Nothing is dropped while somebody can be made to wait.
    """

    def __init__(self, congestion: Congestion, holds: Holds, drops: Drops, blocks: bool) -> None:
        self.full: dict[int, Link] = {}  # nothing more is taken for them, or older messages give way
        self.overflowed: dict[int, Link] = {}  # to be disconnected
        self.source: tuple[Link, float] | None = None  # whose messages are handled, and when
        self._congestion = congestion
        self._holds = holds
        self._drops = drops
        self._blocks = blocks

    def put(self, link: Link, frame: bytes) -> bool:
        """Put a message; False if it was dropped."""
        outbox = link.outbox
        if outbox.add(frame):  # nearly always
            return True
        taken = outbox.put(frame)
        if outbox.full:
            self._note_full(link)
        return taken

    def put_batch(self, link: Link, frame: bytes) -> bool:
        """The same with a frame that may have several."""
        taken = link.outbox.put_batch(frame)
        if link.outbox.full:
            self._note_full(link)
        return taken

    def put_control(self, link: Link, frame: bytes) -> None:
        """Put a frame that is not a message."""
        if not link.outbox.put_control(frame):
            self.overflowed[link.conn] = link

    def _note_full(self, link: Link) -> None:
        self.full[link.conn] = link
        if link.outbox.overflowed:
            self.overflowed[link.conn] = link
        if self._blocks and self.source is not None:
            source, now = self.source
            self._holds.fill(link, now)
            if not source.chappe or link.outbox.pressed:  # who publishes on the other side of it was told to wait
                self._congestion.note(link, source, now)

    def taken(self, link: Link) -> bool:
        """Something of what waited for a link is gone; whether it was full, and is not any more."""
        has_room = link.conn in self.full and not link.outbox.full
        if has_room:
            self.note_drops_of(self.full.pop(link.conn))
            self._congestion.is_over(link.conn)
        elif link.conn in self.full and not link.outbox.pressed:
            self._congestion.eased(link.conn)
        if link.outbox.half_empty:
            self._holds.free(link)
        return has_room

    def note_drops(self) -> None:
        """Look for what was dropped."""
        for link in self.full.values():
            self.note_drops_of(link)

    def note_drops_of(self, link: Link) -> None:
        """The same, for one of them."""
        count = link.outbox.dropped - link.dropped_told
        if count:
            link.dropped_told = link.outbox.dropped
            self._drops.add(f"to {link.peer_id.hex()}, {LossReason.FULL.text}", count)

    def link_down(self, link: Link) -> None:
        """A link ended."""
        self.note_drops_of(link)
        self.full.pop(link.conn, None)
        self.overflowed.pop(link.conn, None)
        self._congestion.forget(link.conn)
        self._holds.forget_link(link)

    def invariants(self, links: dict[bytes, Link]) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        full = {link.conn for link in links.values() if link.outbox.full}
        if full <= self.full.keys() <= {link.conn for link in links.values()}:
            return []
        return [f"the boxes of {sorted(full)} are full, {sorted(self.full)} are noted"]
