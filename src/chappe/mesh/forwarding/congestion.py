"""Backpressure: nothing is read from peers whose messages go on to a full peer, where its policy is to block.

A publisher here waits for room; one elsewhere cannot. So nothing is read from the peer that its messages come from,
whose own outbox then fills, and so on back to the publisher: nothing is lost on the way.

In a ring of endpoints that are all full each could wait for the next one for ever. So it is only waited for a peer that
takes something now and then; beyond that messages are dropped at the bound, and counted.

A slow subscriber takes something from its own queue now and then, while its endpoint reads nothing for much longer. So
an endpoint that does not read *claims* that it gets on, to all its peers of chappe, in the token of its pings: its id
and a number that rises whenever its subscriber takes something. A waiting endpoint passes the claim on as it is, so
that those wait too who wait for him. A claim counts only while its number rises: it cannot go round in a ring for ever,
and a subscriber that has stopped is not waited for.

``Outboxes`` knows which peers are full.
"""

from __future__ import annotations

import struct
from math import inf
from typing import Final

from chappe.defaults import CLAIMS_MAX, PASS_ON_WAIT_S
from chappe.mesh.forwarding.holds import Holds
from chappe.mesh.forwarding.losses import Drops, LossReason
from chappe.mesh.links.link import Link

_CLAIM: Final = struct.Struct(">16sQ")  # whose, and its number
CLAIM_BYTES: Final = _CLAIM.size


class _FullPeer:
    """A link that had no room for messages of other links."""

    __slots__ = ("link", "moved_at", "sources", "taken")

    def __init__(self, link: Link, now: float) -> None:
        self.link = link
        self.sources: dict[int, bool] = {}  # connections; whether it is of an endpoint of chappe
        self.taken = link.outbox.taken
        self.moved_at = now


class Congestion:
    """Links that are full of other links' messages, and claims about them.

    Args:
        number: Of its first claim; higher than any of an earlier life of this id.
        patience_s: The longest wait for a peer that claims, or shows by its answers, that it gets on.
    """

    def __init__(self, own: bytes, number: int, patience_s: float) -> None:
        self._own = own
        self._number = number
        self._patience_s = patience_s
        self._rose_at = -inf  # when our number rose last
        self.waits = False  # nothing may be read from some link, so that its pings are not answered
        self._paused = False
        self._full: dict[int, _FullPeer] = {}
        self._heard: dict[bytes, int] = {}  # endpoint: its highest number
        self._claims: dict[int, tuple[bytes, float]] = {}  # connection: its last claim that was news, and when

    def note(self, full: Link, source: Link, now: float) -> None:
        found = self._full.get(full.conn)
        if found is None:
            found = self._full[full.conn] = _FullPeer(full, now)
            self.waits = True
        found.sources[source.conn] = source.chappe

    def is_over(self, conn: int) -> None:
        self._full.pop(conn, None)
        self.waits = self._paused or bool(self._full)

    def eased(self, conn: int) -> None:
        """Note that a link is not pressed any more: of its sources only originals are held back, which cannot wait."""
        full = self._full.get(conn)
        if full is not None and any(full.sources.values()):
            full.sources = {source: chappe for source, chappe in full.sources.items() if not chappe}
            if not full.sources:
                self.is_over(conn)

    def forget(self, conn: int) -> None:
        self.is_over(conn)
        self._claims.pop(conn, None)

    def holds_back(self, conn: int, now: float) -> bool:
        """Return whether nothing is to be read from a link for a while."""
        held = False
        for each in self._full.values():
            if conn in each.sources:
                if each.taken != each.link.outbox.taken:
                    each.taken = each.link.outbox.taken
                    each.moved_at = now
                until = max(each.moved_at + PASS_ON_WAIT_S, each.link.progress_at + self._patience_s)
                held = held or now < until
        return held

    # -- claims -----------------------------------------------------------------------------------

    def pause(self, on: bool, now: float) -> None:
        """Note that a subscriber here is full, so that nothing is read, or no longer."""
        self._paused = on
        self.waits = on or bool(self._full)
        if on:
            self.drained(1, now)  # it has only just become full

    def drained(self, count: int, now: float) -> None:
        """Note that the full subscriber has taken so many messages."""
        self._number += count
        self._rose_at = now

    def progressed(self, link: Link, now: float) -> bool:
        """Note that a peer reads; return whether somebody waits for that."""
        if link.conn not in self._full:
            return False
        self._number += 1
        self._rose_at = now
        return True

    def claim(self, now: float) -> bytes:
        """Return the claim to send; it is empty while nobody waits for us, or while nothing gets on."""
        found = (self._rose_at, _CLAIM.pack(self._own, self._number)) if self.waits else (-inf, b"")
        for conn in self._full:
            if conn in self._claims:
                claim, heard_at = self._claims[conn]
                found = max(found, (heard_at, claim))
        return found[1] if now < found[0] + self._patience_s else b""

    def claimed(self, link: Link, claim: bytes, now: float) -> bool:
        """Take a claim of a peer of chappe; return whether it is to be passed on at once."""
        if len(claim) != _CLAIM.size:
            return False
        endpoint, number = _CLAIM.unpack(claim)
        if endpoint == self._own or number <= self._heard.get(endpoint, 0):
            return False
        while len(self._heard) >= CLAIMS_MAX and endpoint not in self._heard:
            del self._heard[next(iter(self._heard))]
        self._heard[endpoint] = number
        self._claims[link.conn] = (claim, now)
        link.progress_at = now
        return link.conn in self._full


class Outboxes:
    """The outboxes of all links. ``blocks``: nothing is dropped while somebody can be made to wait."""

    def __init__(self, congestion: Congestion, holds: Holds, drops: Drops, blocks: bool) -> None:
        self.full: dict[int, Link] = {}  # nothing more is taken for them, or older messages give way
        self.overflowed: dict[int, Link] = {}  # to be disconnected
        self.source: tuple[Link, float] | None = None  # whose messages are handled, and when
        self._congestion = congestion
        self._holds = holds
        self._drops = drops
        self._blocks = blocks

    def put(self, link: Link, frame: bytes) -> bool:
        outbox = link.outbox
        if outbox.add(frame):  # nearly always
            return True
        taken = outbox.put(frame)
        if outbox.full:
            self._note_full(link)
        return taken

    def put_batch(self, link: Link, frame: bytes) -> bool:
        taken = link.outbox.put_batch(frame)
        if link.outbox.full:
            self._note_full(link)
        return taken

    def put_control(self, link: Link, frame: bytes) -> None:
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
        """Note that something that waited for a link is gone; return whether it was full, and is not any more."""
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
        for link in self.full.values():
            self.note_drops_of(link)

    def note_drops_of(self, link: Link) -> None:
        count = link.outbox.dropped - link.dropped_told
        if count:
            link.dropped_told = link.outbox.dropped
            self._drops.add(f"to {link.peer_id.hex()}, {LossReason.FULL.text}", count)

    def link_down(self, link: Link) -> None:
        self.note_drops_of(link)
        self.full.pop(link.conn, None)
        self.overflowed.pop(link.conn, None)
        self._congestion.forget(link.conn)
        self._holds.forget_link(link)

    def invariants(self, links: dict[bytes, Link]) -> list[str]:
        full = {link.conn for link in links.values() if link.outbox.full}
        if full <= self.full.keys() <= {link.conn for link in links.values()}:
            return []
        return [f"the boxes of {sorted(full)} are full, {sorted(self.full)} are noted"]
