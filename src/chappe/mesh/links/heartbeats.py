"""Signs of life: what keeps a link from being given up, and what we do to be heard ourselves.

Every link is pinged once in a heartbeat, whether or not something came from it: a peer that is only fed says nothing
by itself, and whoever feeds it has to hear of it. So between endpoints of chappe silence means that the peer, or the
way to it, is dead. An original never pings, and its answer to ours waits behind all that it has not read yet. So there
is also a ping after every ``PROBE_BYTES`` of what is sent: a peer that reads at all answers. And a full connection that
takes bytes again is a sign of life, for instance while a single large message is on its way.

Pings go before what waits. The answer to one confirms what was sent before it: so what is lost with a link is known.
Answers to endpoints of chappe do too, and tell what our clock showed (``clock``).

While the driver does not read, because a subscriber has no room, silence means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from chappe.core import Effect
from chappe.defaults import CLAIM_S, LOST_AFTER, PROBE_BYTES, PROBES_MAX
from chappe.mesh.forwarding.congestion import CLAIM_BYTES, Congestion
from chappe.mesh.links.link import TIME, Link, micros
from chappe.mesh.messages import pack_ping

HEARTBEAT: Final = b"heartbeat"  # how the token of such a ping begins; a claim may follow


class Heartbeats:
    """Pings the established links of the endpoint ``own``, and finds those that are silent."""

    def __init__(self, own: bytes, heartbeat_s: float, congestion: Congestion) -> None:
        self.at = inf  # not before then is there anything to do
        self._own = own
        self._heartbeat_s = heartbeat_s
        self._congestion = congestion
        self._beat_at = -inf  # the last one
        self._paused = False  # nothing is read

    def begin(self, link: Link, now: float) -> None:
        link.heard_at = link.moved_at = link.pinged_at = link.progress_at = now
        if link.chappe:  # nothing is on its way yet, so that its clock is seen best
            link.pinged_at = -inf
            self.at = min(self.at, now)
        self.at = min(self.at, now + self._heartbeat_s)

    def pause(self, on: bool, links: Iterable[Link], now: float) -> None:
        """Note that nothing is read from any link, or that it is read again."""
        self._paused = on
        self._congestion.pause(on, now)
        if on:
            self.at = min(self.at, now)  # those who wait for us are to know it at once
        else:
            for link in links:
                link.heard_at = now

    def drained(self, count: int, now: float) -> None:
        """Note that a subscriber that has no room yet has taken so many messages."""
        self._congestion.drained(count, now)
        self.at = min(self.at, now + CLAIM_S)

    def due(self) -> float:
        """Return when ``beat`` is due: often while pings of some peer, whose heartbeat may be short, wait."""
        return min(self.at, self._beat_at + CLAIM_S) if self._congestion.waits else self.at

    def claims(self, now: float) -> None:
        self.at = min(self.at, now)

    def beat(self, links: Iterable[Link], now: float) -> tuple[list[Effect], list[Link]]:
        """Ping links that are due; return what to write, and the links that were silent for too long."""
        actions: list[Effect] = []
        silent: list[Link] = []
        claim = self._congestion.claim(now)
        self.at = inf
        self._beat_at = now
        often = self._congestion.waits
        for link in links:
            lost_at = inf if self._paused else max(link.heard_at, link.moved_at) + LOST_AFTER * self._heartbeat_s
            if now >= lost_at:
                silent.append(link)
                continue
            told = claim if link.chappe else b""
            pause_s = min(CLAIM_S, self._heartbeat_s) if link.chappe and often else self._heartbeat_s
            if now >= link.pinged_at + pause_s:
                link.pinged_at = now
                if self._may_probe(link, now):
                    link.outbox.put_first(pack_ping(self._own, link.peer_id, HEARTBEAT + told))
                    actions.append(link.flush)
            self.at = min(self.at, link.pinged_at + pause_s, lost_at)
        return actions, silent

    def take(self, link: Link, bytes_max: int) -> list[bytes]:
        """Remove and return the next frames to write, with a ping after every ``PROBE_BYTES``."""
        outbox = link.outbox
        size = outbox.bytes + outbox.control_bytes
        if size <= bytes_max and size < PROBE_BYTES - link.unprobed and link.established_at is not None:
            link.unprobed += size  # nearly always: all that waits, and no ping is due after it
            return outbox.take(bytes_max)
        if link.established_at is None:
            return outbox.take(bytes_max)
        taken: list[bytes] = []
        while outbox and bytes_max > 0:
            before = outbox.taken_bytes
            taken += outbox.take(min(PROBE_BYTES - link.unprobed, bytes_max))
            size = outbox.taken_bytes - before
            bytes_max -= size
            link.unprobed += size
            if link.unprobed >= PROBE_BYTES:
                link.unprobed = 0
                if self._may_probe(link):
                    taken.append(pack_ping(self._own, link.peer_id, HEARTBEAT))
        return taken

    def answer(self, token: bytes, now: float) -> bytes:
        """Return the token of the pong for a ping of an endpoint of chappe: the ping's, and the time of our clock."""
        return token + TIME.pack(micros(now))

    def answered(self, link: Link, token: bytes, now: float) -> None:
        if link.probes:
            link.confirmed, asked_at = link.probes.popleft()
            link.progress_at = now
            said = token[len(HEARTBEAT) :]
            if link.chappe and len(said) % CLAIM_BYTES == TIME.size:
                (shown_us,) = TIME.unpack(said[-TIME.size :])
                link.clock.read(shown_us, now, asked_at)
            if self._congestion.progressed(link, now):
                self.claims(now)

    def _may_probe(self, link: Link, now: float = -inf) -> bool:
        if len(link.probes) >= PROBES_MAX:
            return False
        link.probes.append((link.outbox.messages, now))
        return True
