"""Links: the connections of an endpoint as its core keeps them, and how an application sees them.

A neighbour's steady clock, as far as its answers to pings tell: when something was published, by our own.

What is published has a time where somebody asks for it, and that is of steady clocks, which nobody sets. Each endpoint
says it by its own, and whoever gets it puts it into his own: so how long it lay anywhere, and was on its way, counts.

A pong between endpoints of chappe ends with what the clock of its sender showed. That was before it came here: so that
clock is ahead of ours by that much at least, and the quickest pong tells best. What comes out is the latest moment at
which something can have been published. It seems younger than it is by the quickest way there ever was between the two,
and by what the clocks may have drifted since then; never older.

It was also after the ping left. What contradicts that tells that the other clock has stood still, as those of machines
do that are suspended.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final
from uuid import UUID

from chappe.core import Flush
from chappe.defaults import HEARTBEAT_S, PEER_BYTES_MAX, PEER_MESSAGES_MAX
from chappe.errors import Address
from chappe.limits import MESH_LIMITS, MeshLimits
from chappe.mesh.filters import NOTHING, Filter
from chappe.mesh.forwarding.boxes import Outbox, Policy
from chappe.mesh.links.dialling import Target
from chappe.mesh.links.greetings import VERSIONS
from chappe.mesh.links.handshake import PeerHandshake
from chappe.mesh.links.peers import PeerStatus
from chappe.mesh.messages import NOBODY

DRIFT: Final = 0.000_5  # seconds a second: as fast as a clock that is being corrected may run away (adjtime)
TIME: Final = struct.Struct(">q")  # microseconds of a steady clock
_DRIFT_US: Final = DRIFT * 1e6
_ROUNDING_US: Final = 1_000
_OLD_US: Final = 10 * 365 * 86_400 * 1_000_000  # what claims to be older is as old


class NeighbourClock:
    __slots__ = ("_ahead_us", "_at")

    def __init__(self) -> None:
        self._ahead_us: int | None = None  # of ours, at least; None: it was never read
        self._at = 0.0  # when that was known

    def read(self, shown_us: int, now: float, asked_at: float = -inf) -> None:
        """Note that it showed this, before now and after it was asked."""
        ahead_us = shown_us - micros(now)
        known = self._least(now)
        stood_still = asked_at > -inf and known is not None and shown_us - micros(asked_at) < known - _ROUNDING_US
        if known is None or ahead_us >= known or stood_still:
            self._ahead_us, self._at = ahead_us, now

    def ours_us(self, theirs_us: int, now: float) -> int:
        """Return the latest time of our clock at which theirs showed this; now, if it was never read."""
        now_us = int(now * 1e6)
        if self._ahead_us is None:
            return now_us
        found = theirs_us - self._ahead_us + int(_DRIFT_US * (now - self._at))
        if found >= now_us:
            return now_us
        return found if found > now_us - _OLD_US else now_us - _OLD_US

    def _least(self, now: float) -> int | None:
        if self._ahead_us is None:
            return None
        return self._ahead_us - int(_DRIFT_US * (now - self._at))


def micros(now: float) -> int:
    """A steady clock's seconds as they are sent."""
    return int(now * 1e6)


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """How an endpoint behaves.

    Args:
        forwarding: Whether messages pass through it from one peer to another.
        paths: In how many ways what it publishes goes to each receiver: 1 or 2.
        heartbeat_s: Every link is pinged so often, and lost when it was silent for three times that.
        peer_messages_max: How many messages may wait for one peer.
        peer_surplus: How many more are taken for a full one, with ``block``, before less is read; twice that at most.
        contains: Whether a defect of ours that something from a peer brings to light costs that connection alone, and
            is reported. Otherwise it is raised, which ends the endpoint: what simulators and tests want.
        first_number: Of publications and of link states. Higher than any of an earlier life of this id: microseconds
            since 1970, say; an endpoint with a random id needs none.
        last_values: Of how many topics it keeps the newest message, for subscribers that come late.
        version_max: The highest version of the protocol that it offers: 1 is what originals speak.
    """

    forwarding: bool = True
    paths: int = 1
    heartbeat_s: float = HEARTBEAT_S
    peer_messages_max: int = PEER_MESSAGES_MAX
    peer_surplus: int = 0
    peer_bytes_max: int = PEER_BYTES_MAX
    peer_policy: Policy = Policy.BLOCK
    contains: bool = False
    first_number: int = 1
    last_values: int = 0
    version_max: int = VERSIONS[-1]
    limits: MeshLimits = MESH_LIMITS


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A direct peer, or an address being dialled, without ``peer_id``. Counters only rise while a link lasts."""

    peer_id: bytes | None
    address: Address
    status: PeerStatus
    dialled: bool  # by us, or for us
    original: bool = False  # an original program
    buffered: int = 0  # messages that wait for it
    sent: int = 0  # frames, some of them with many messages
    sent_bytes: int = 0
    received: int = 0
    dropped: int = 0  # messages, because it took less than was published

    @property
    def id(self) -> str | None:
        return None if self.peer_id is None else str(UUID(bytes=self.peer_id))


class Link:
    def __init__(
        self, conn: int, address: Address, target: Target | None, handshake: PeerHandshake, outbox: Outbox, now: float
    ) -> None:
        self.conn = conn
        self.address = address
        self.target = target  # it was dialled for this one
        self.handshake = handshake
        self.outbox = outbox
        self.flush = Flush(conn)
        self.peer_id = NOBODY  # until it is established
        self.key = b""  # what tells the key of the peer's certificate from others; empty without certificates
        self.named: Collection[bytes] = ()  # the endpoint ids that this certificate names
        self.identity = ""  # that this certificate names
        self.chappe = False  # it speaks version 2 of the protocol
        self.established_at: float | None = None
        self.ended = False  # nothing that came with what ended it counts any more
        self.filter: Filter = NOTHING  # what an original wants
        self.announced: Filter | None = None  # what an original was told that we want
        self.told = False  # others know of this link to another endpoint of chappe
        self.blocked = False  # nothing passes to or from this original
        self.bye: bytes | None = None  # we are leaving: the token whose return we wait for
        self.left = False  # the peer is leaving
        self.tickets: list[int] = []  # of those who wait for the end
        self.heard_at = now  # something came
        self.moved_at = now  # it took bytes again after it had been full
        self.pinged_at = now
        self.probes: deque[tuple[int, float]] = deque()  # of heartbeats: messages sent before each, and when if known
        self.clock = NeighbourClock()  # of an endpoint of chappe
        self.unprobed = 0  # bytes sent since the last of them
        self.confirmed = 0  # messages that the peer has certainly read
        self.progress_at = -inf  # it showed that it reads, or claimed that it will
        self.pings: dict[bytes, int] = {}  # tokens of pings that somebody waits for: their tickets
        self.received = 0
        self.dropped_told = 0
        self.kept_bytes = 0  # of messages that were put for it and not confirmed by it and all behind it

    def info(self) -> PeerInfo:
        outbox = self.outbox
        return PeerInfo(
            self.peer_id,
            self.address,
            PeerStatus.PEERED,
            self.target is not None,
            not self.chappe,
            len(outbox),
            outbox.taken,
            outbox.taken_bytes,
            self.received,
            outbox.dropped,
        )
