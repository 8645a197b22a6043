"""Endpoints of chappe as checkers and faults see them, whatever runs their cores."""

from __future__ import annotations

from collections.abc import Sequence

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.filters import as_published
from tests.worlds.mesh.record import Spans
from tests.worlds.mesh.world import MeshWorld

from chappe.errors import PeeringError
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import (
    EndpointDiscovered,
    EndpointUnreachable,
    MessagesDropped,
    PeerAdded,
    PeerLost,
    PeerRemoved,
)
from chappe.mesh.filters import LAST_ASK
from chappe.mesh.messages import COMMAND, DATA, Message

SUBSCRIBER = 1
LAST = 4  # one that wants last values
QUICK = 3  # a further one, to other prefixes, that takes all at once
COMMANDED = 2  # a subscriber to the same, for commands
MANY = tuple([b"/many/%d/" % each for each in range(20)])  # prefixes that are wanted besides
INBOX_MAX = 64  # messages that a slow subscriber lets wait; then those who publish are to wait
SURPLUS_MAX = 256  # so many more are taken from everybody, and twice as many before its endpoint reads nothing
SIP_S = 0.1  # a slow subscriber takes some so often


class EndpointSubject(MeshHost):
    """An endpoint of chappe."""

    world: MeshWorld
    core: EndpointCore
    options: EndpointOptions
    waiting: float  # messages that the subscriber has not taken

    def __init__(self, world: MeshWorld, name: str, life: str, own_id: bytes) -> None:
        super().__init__(world, name, life, own_id)
        self.wants_many = not world.settings.plain and world.more_rng.random() < 0.2
        self.left: dict[str, float] = {}  # since when peerings are ended
        self.calls: dict[int, tuple[float, float]] = {}  # tickets of calls that end: when made, and until when they end
        self.resolved: dict[int, object] = {}
        self.asks_times = world.asks_times()
        self.peered: set[bytes] = set()  # as its statuses say
        self.discovered: set[bytes] = set()
        self.received = 0
        self.told_dropped = 0  # messages, as its statuses say
        self.quick: set[bytes] = set()  # prefixes of the further subscriber
        self.lasting: set[bytes] = set()  # prefixes of the one that wants last values
        self.careless = False  # publishes whether there is room or not
        self.full = Spans()  # the subscriber was
        self.taken_at = 0.0  # something, by the subscriber

    @property
    def now(self) -> float:
        """What its steady clock shows."""
        raise NotImplementedError

    @property
    def paused(self) -> bool:
        """Whether nothing is to be read from peers."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        """How many it has."""
        raise NotImplementedError

    @property
    def heartbeat_s(self) -> float:
        """How often it pings."""
        return self.options.heartbeat_s

    # -- what it can be asked -----------------------------------------------------------------------

    def unpeer(self, address: tuple[str, int]) -> None:
        """End a peering."""
        raise NotImplementedError

    def await_peer(self, peer_id: bytes, timeout_s: float) -> None:
        """Wait for an endpoint."""
        raise NotImplementedError

    def ping(self, peer_id: bytes) -> None:
        """Ping somebody: that ends when it answers, or the link ends."""
        raise NotImplementedError

    def want_quickly(self, topics: Sequence[bytes]) -> None:
        """Have a further subscriber, that takes all at once, want these prefixes, too."""
        raise NotImplementedError

    def want_last(self, topics: Sequence[bytes]) -> None:
        """Have a further subscriber want these prefixes, and the last values of their topics."""
        raise NotImplementedError

    def sip(self, per_s: float) -> None:
        """Have the subscriber take so many messages in a second; 0: all at once."""
        raise NotImplementedError

    def publish_many(self, topic: bytes, payloads: list[bytes]) -> bool:
        """Publish at once, as long as there is room."""
        if not self.core.room((topic,)) and not self.careless:
            self.world.see("on_refused", self, topic, None)
            return False
        fitting = min(self.options.peer_messages_max, self.options.peer_bytes_max // (2 * max(map(len, payloads))))
        fitting //= self.options.paths
        if len(payloads) > max(1, fitting):  # so many at a time, as the application's calls do
            first, rest = payloads[: max(1, fitting)], payloads[max(1, fitting) :]
            return self.publish_many(topic, first) and self.publish_many(topic, rest)
        to = self._to(topic)
        for payload in payloads:
            self._published(topic, payload, to=to)
        self.send_many([(topic, payload) for payload in payloads])
        return True

    def send_many(self, messages: list[tuple[bytes, bytes]]) -> None:
        """Publish these, for which there is room."""
        raise NotImplementedError

    def _to(self, topic: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> frozenset[bytes]:
        """Whom it believes to want what it publishes, and to be in reach, and who does want it."""
        if not self.world.accounts:
            return frozenset()
        topology = self.core.router.topology
        hosts = self.world.hosts.values() if receiver is None else (receiver,)
        wanting = {
            each.own_id for each in hosts
            if any(map(topic.startswith, each.wanted if kind == DATA else each.topics))
        }  # fmt: skip
        return frozenset(filter(topology.has_way, topology.receivers(topic) & wanting))

    @property
    def wanted(self) -> set[bytes]:
        return self.topics | self.quick | self.lasting | ({LAST_ASK} if self.options.last_values else set())

    def peer_lives(self) -> list[str]:
        """The lives that it is peered with."""
        return [self.world.lives[each.peer_id] for each in self.core.peers() if each.peer_id is not None]

    # -- what it is told ------------------------------------------------------------------------------

    def came(self, to: int, messages: Sequence[Message]) -> None:
        """Messages came for one of its subscribers."""
        if to in (LAST, QUICK):
            for message in messages:
                self.world.see("on_last" if to == LAST else "on_quick", self, message)
            return
        for message in messages:
            self.received += 1
            if self.world.filters and message.kind == DATA:
                message, wrong = as_published(message)
                if wrong:
                    self.world.fail("filters", f"{self.life} got {message}, but {wrong}")
            if (to == COMMANDED) != (message.kind == COMMAND):
                self.world.fail("delivery", f"{self.life} got for {to} what is not for it: {message}")
            self.world.see("on_delivered", self, message)

    def reported(self, event: object) -> None:
        """It reports something."""
        self.world.trace(self, "%s", event)
        self._note(event)
        self.world.see("on_report", self, event)

    def _note(self, event: object) -> None:
        """Check the order of statuses."""
        record, now = self.world.record, self.world.now
        match event:
            case EndpointDiscovered(peer_id):
                self._expect(peer_id not in self.discovered, event)
                self.discovered.add(peer_id)
            case EndpointUnreachable(peer_id):
                self._expect(peer_id in self.discovered and peer_id not in self.peered, event)
                self.discovered.discard(peer_id)
            case PeerAdded(peer_id):
                self._expect(peer_id in self.discovered and peer_id not in self.peered, event)
                self.peered.add(peer_id)
                self.left.pop(self.world.lives[peer_id].partition("#")[0], None)
                record.link(self.life, self.world.lives[peer_id]).begin(now)
            case PeerLost(peer_id) | PeerRemoved(peer_id):
                self._expect(peer_id in self.peered, event)
                self.world.see("on_lost", self, event)
                self.peered.discard(peer_id)
                record.link(self.life, self.world.lives[peer_id]).end(now)
            case MessagesDropped(_, count):
                self.told_dropped += count
            case PeeringError():
                str(event)

    def _expect(self, right: bool, event: object) -> None:
        if not right:
            self.world.fail("statuses", f"{self.life} reports {event!r} out of order")
