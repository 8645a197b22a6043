"""Links: the connections of an endpoint as its core keeps them, and how an application sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from uuid import UUID

from chappe.core import Flush
from chappe.defaults import HEARTBEAT_S, PEER_BYTES_MAX, PEER_MESSAGES_MAX
from chappe.errors import Address
from chappe.limits import MESH_LIMITS, MeshLimits
from chappe.mesh.filters import NOTHING, Filter
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.links.clock import NeighbourClock
from chappe.mesh.links.dialling import Target
from chappe.mesh.links.greetings import VERSIONS
from chappe.mesh.links.handshake import PeerHandshake
from chappe.mesh.links.peers import PeerStatus
from chappe.mesh.messages import NOBODY
from chappe.mesh.policy import Policy


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
    """A direct peer, or what is being dialled; then ``peer_id`` is None. Counters only rise while a link lasts."""

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
        """The id as people read it."""
        return None if self.peer_id is None else str(UUID(bytes=self.peer_id))


class Link:
    """One connection, from its first byte on."""

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
        """How an application sees it."""
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
