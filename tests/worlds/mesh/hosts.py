"""Endpoints in a world: a core, what carries out its actions, and its subscribers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.filters import as_published, show
from tests.worlds.mesh.record import Spans
from tests.worlds.mesh.world import MeshWorld

from chappe.core import Close, Deliver, Dial, Flush, Persist, Report, Resolve
from chappe.defaults import CLOSE_FLUSH_S, HANDSHAKE_FRAME_BYTES_MAX
from chappe.errors import PeeringError
from chappe.member import MeshMember
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import (
    EndpointDiscovered,
    EndpointUnreachable,
    MessagesDropped,
    PeerAdded,
    PeerLost,
    PeerRemoved,
)
from chappe.mesh.filters import LAST_ASK, minimal
from chappe.mesh.flows import portion
from chappe.mesh.links.dialling import Retry
from chappe.mesh.messages import COMMAND, DATA, NOBODY
from chappe.mesh.places import MessageGaps
from chappe.mesh.rules import OfferRules
from chappe.sim.streams import StreamSide

SUBSCRIBER = 1
LAST = 4  # one that wants last values
QUICK = 3  # a further one, to other prefixes, that takes all at once
COMMANDED = 2  # a subscriber to the same, for commands
MANY = tuple([b"/many/%d/" % each for each in range(20)])  # prefixes that are wanted besides
INBOX_MAX = 64  # messages that a slow subscriber lets wait; then those who publish are to wait
SURPLUS_MAX = 256  # so many more are taken from everybody, and twice as many before its endpoint reads nothing
ROUNDING_S = 1e-6  # of clocks that differ
SIP_S = 0.1  # a slow subscriber takes some so often
HELD_LOOK_S = 0.02  # how often it is checked whether what is held back may be read again


class EndpointHost(MeshHost):
    """An endpoint of chappe."""

    world: MeshWorld
    tick_s = 0.0

    def __init__(
        self, world: MeshWorld, name: str, life: str, own_id: bytes, options: EndpointOptions, make: type[EndpointCore]
    ) -> None:
        super().__init__(world, name, life, own_id)
        self.options = options
        self.wants_many = not world.settings.plain and world.more_rng.random() < 0.2
        self.left: dict[str, float] = {}  # since when peerings are ended
        self.calls: dict[int, tuple[float, float]] = {}  # tickets of calls that end: when made, and until when they end
        self.asks_times = world.asks_times()
        self.core = make(own_id, options, self.now)
        if world.filters:
            self.core.router.passing.shows = show
        self.member = MeshMember(self.core, world.clock)
        self.peered: set[bytes] = set()  # as its statuses say
        self.discovered: set[bytes] = set()
        self.resolved: dict[int, object] = {}
        self.received = 0
        self.told_dropped = 0  # messages, as its statuses say
        self.quick: set[bytes] = set()  # prefixes of the further subscriber
        self.careless = False  # publishes whether there is room or not
        self.sips = 0.0  # messages per second that its subscriber takes; 0: all at once
        self.surplus_max = SURPLUS_MAX
        self.lasting: set[bytes] = set()  # prefixes of the one that wants last values
        self.gaps = MessageGaps()  # of its subscriber
        self.full = Spans()  # the subscriber was
        self.taken_at = 0.0  # something, by the subscriber
        self.waiting = 0.0  # messages that the subscriber has not taken
        self._level = 0  # what it has told the core of that
        self._sipping = False
        self._held: set[StreamSide] = set()
        self._ticket = 0
        self.table = {
            Deliver: self._deliver,
            Flush: self._flush,
            Close: self._close,
            Dial: self._dial,
            Resolve: self._resolve,
            Report: self._report,
            Persist: self._persist,
        }
        if world.charter is not None:
            self.go_by(world.charter.held.get(name, 1))

    @property
    def paused(self) -> bool:
        """Whether nothing is to be read from peers."""
        return self.member.paused

    @property
    def now(self) -> float:
        """What its steady clock shows."""
        return self.world.steady(self.name)

    # -- the network ------------------------------------------------------------------------------

    def accept(self, side: StreamSide) -> None:
        """A connection came in."""
        self.call(self.member.handle_link, self._add(side), side.address, self.now)
        self._secured(side)

    def connected(self, dial: int, side: StreamSide) -> None:
        """A dial succeeded."""
        side.conn = dial
        self.sides[dial] = side
        self.call(self.member.handle_link, dial, side.address, self.now)
        self._secured(side)

    def _secured(self, side: StreamSide) -> None:
        """Where there are permissions, both know who the other is before anything else is said."""
        if self.world.charter is not None:
            name = side.other.host.name
            self.core.secured(side.conn, name.encode().ljust(16), self.world.charter.named(name), name)

    def go_by(self, number: int) -> None:
        """Another version of the permissions is in force here."""
        assert self.world.charter is not None
        self.world.trace(self, "goes by version %d", number)
        self.ask(self.core.set_rules, self.world.charter.take(self.name, number, self.world.now))

    def _persist(self, action: Persist) -> None:
        """Take the authority's files at once."""
        assert self.world.charter is not None
        assert isinstance(action.job, OfferRules)
        number = self.world.charter.read(self.name, action.job.raw)
        if number is not None:
            self.go_by(number)

    def dial_failed(self, dial: int, reason: str) -> None:
        """A dial failed."""
        self.call(self.member.handle_gone, dial, reason, self.now)

    def read(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Frames came; they are handed in so many messages at a time, as the driver does."""
        self.world.see("on_read", side, bodies)
        at = 0
        while at < len(bodies):
            end = portion(bodies, self.core.messages_max(side.conn), at)
            self.call(self.member.handle_frames, side.conn, bodies[at:end], self.now)
            at = end

    def broken(self, side: StreamSide, reason: str) -> None:
        """A connection is gone."""
        if self.sides.pop(side.conn, None) is not None:
            self.call(self.member.handle_gone, side.conn, reason, self.now)

    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        """What is to be written."""
        return self.core.take(conn, bytes_max)

    def moved(self, side: StreamSide) -> None:
        """There is room again in a connection that was full."""
        self.core.moved(side.conn, self.now)

    def reads(self, side: StreamSide) -> bool:
        """Whether it reads from a connection: not while its subscriber is full, or a peer that it passes this on to."""
        if self.frozen or (self.paused and self.core.frame_bytes_max(side.conn) > HANDSHAKE_FRAME_BYTES_MAX):
            return False
        if not self.core.holds_back(side.conn, self.now):
            return True
        if side not in self._held:
            self._held.add(side)
            self.world.clock.after(HELD_LOOK_S, self._look_at_held, side)
        return False

    def _look_at_held(self, side: StreamSide) -> None:
        self._held.discard(side)
        if self.alive and not self.frozen:
            self.core.heard(side.conn, self.now)
            side.resume()

    # -- a slow subscriber ------------------------------------------------------------------------

    def sip(self, per_s: float) -> None:
        """Have the subscriber take so many messages in a second; 0: all at once."""
        self.sips = per_s
        if not per_s:
            self.waiting = 0.0
            self._fill(0)
        elif not self._sipping:
            self._sipping = True
            self.world.clock.after(SIP_S, self._sip)

    def _sip(self) -> None:
        self._sipping = self.alive and self.sips > 0
        if not self._sipping:
            return
        self.world.clock.after(SIP_S, self._sip)
        if self.frozen:
            return
        before = self.waiting
        self.waiting = max(0.0, before - self.sips * SIP_S)
        if int(self.waiting) < int(before):
            self.taken_at = self.world.now
        if self._level and int(self.waiting) < int(before):
            self.core.handle_taken(SUBSCRIBER, self.now)
            if self.paused:
                self.core.drained(int(before) - int(self.waiting), self.now)
            self.arm()
        if 2 * self.waiting <= INBOX_MAX:
            self._fill(0)
        elif self._level > 1:
            self._fill(max(1, min(self._level, self._found_level())))

    def _found_level(self) -> int:
        over = int(self.waiting) - INBOX_MAX
        return 0 if over < 0 else 1 + min(2, over // self.surplus_max)

    def _fill(self, level: int) -> None:
        """As the application's face does."""
        if level == self._level or not self.alive:
            return
        self._level = level
        (self.full.begin if level else self.full.end)(self.world.now)
        self.core.handle_full(SUBSCRIBER, level > 0, level > 1, self.now)
        was = self.paused
        self.member.handle_full(SUBSCRIBER, level > 2, self.now)
        self.arm()
        if was and not self.paused and not self.frozen:
            for side in list(self.sides.values()):
                side.resume()

    # -- the application --------------------------------------------------------------------------

    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        """Dial."""
        self.ask(self.core.peer, *address, Retry(retry_s), self._next_ticket())

    def unpeer(self, address: tuple[str, int]) -> None:
        """End a peering."""
        self.left.setdefault(address[0], self.world.now)
        self.ask(self.core.unpeer, *address, self._next_ticket())

    def await_peer(self, peer_id: bytes, timeout_s: float) -> None:
        """Wait for an endpoint."""
        ticket = self._next_ticket()
        self.calls[ticket] = self.world.now, self.world.now + timeout_s
        self.ask(self.core.await_peer, peer_id, timeout_s, ticket)

    def ping(self, peer_id: bytes) -> None:
        """Ping somebody: that ends when it answers, or the link ends."""
        ticket = self._next_ticket()
        self.calls[ticket] = self.world.now, inf
        self.ask(self.core.ping, peer_id, ticket)

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """Publish, to all who want it or to one of them; False if there is no room."""
        if not self.core.room((topic,), NOBODY if receiver is None else receiver.own_id) and not self.careless:
            self.world.see("on_refused", self, topic, receiver)
            return False
        self._published(topic, payload, kind, receiver, self._to(topic, kind, receiver))
        self.ask(self.core.publish, topic, payload, kind, NOBODY if receiver is None else receiver.own_id)
        return True

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
        self.ask(lambda now: self.core.publish_many([(topic, payload) for payload in payloads], now)[0])
        return True

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

    def want(self, topics: Sequence[bytes]) -> None:
        """Subscribe to exactly these prefixes."""
        new = {*topics, *(MANY if self.wants_many else ())}
        gone = self.topics - new
        self._note_wanted(new)
        self.gaps.wants(minimal(new))
        self.world.see("on_wanted", self)
        self.ask(self.core.subscribe, SUBSCRIBER, sorted(new), DATA, self.asks_times)
        if gone:
            self.ask(self.core.unsubscribe, SUBSCRIBER, sorted(gone))
        if not self.world.settings.plain:
            self.ask(self.core.subscribe, COMMANDED, sorted(new), COMMAND)
            self.ask(self.core.unsubscribe, COMMANDED, sorted(gone))

    def want_quickly(self, topics: Sequence[bytes]) -> None:
        """Have a further subscriber, that takes all at once, want these prefixes, too."""
        self.quick |= {*topics}
        self.ask(self.core.subscribe, QUICK, sorted(topics))

    def want_last(self, topics: Sequence[bytes]) -> None:
        """Have a further subscriber want these prefixes, and the last values of their topics."""
        self.lasting |= {*topics}
        self.ask(self.core.subscribe, LAST, sorted(topics), DATA, False, True)

    @property
    def wanted(self) -> set[bytes]:
        """See ``MeshHost``."""
        return self.topics | self.quick | self.lasting | ({LAST_ASK} if self.options.last_values else set())

    def peer_lives(self) -> list[str]:
        """The lives that it is peered with."""
        return [self.world.lives[each.peer_id] for each in self.core.peers() if each.peer_id is not None]

    def freeze(self, on: bool) -> None:
        """Stop it, or let it go on."""
        super().freeze(on)
        if not on and self.alive:
            self.wake()

    # -- inside -----------------------------------------------------------------------------------

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def due(self) -> float:
        """When the core wants to be called."""
        behind_s = self.world.now - self.now
        return self.member.next_timeout() + behind_s + (ROUNDING_S if behind_s else 0.0)

    def handle_due(self) -> None:
        """Have the core do what is due."""
        self.call(self.member.handle_timeout, self.now)

    def ask(self, method: Callable[..., Sequence[Any]], *args: object) -> None:
        """Make one call into the core and carry out its answer."""

        def act() -> Sequence[Any]:
            return self.member.take(method(*args, now=self.now), self.now)

        self.call(act)

    def _deliver(self, action: Deliver) -> None:
        if action.to == LAST:
            for message in action.messages:
                self.world.see("on_last", self, message)
            return
        for message in action.messages if action.to == QUICK else ():
            self.world.see("on_quick", self, message)
        for message in action.messages if action.to != QUICK else ():
            self.received += 1
            if self.world.filters and message.kind == DATA:
                message, wrong = as_published(message)
                if wrong:
                    self.world.fail("filters", f"{self.life} got {message}, but {wrong}")
            if (action.to == COMMANDED) != (message.kind == COMMAND):
                self.world.fail("delivery", f"{self.life} got for {action.to} what is not for it: {message}")
            self.world.see("on_delivered", self, message)
            if action.to == SUBSCRIBER:
                self.gaps.came([message])
                for gap in self.gaps.take():
                    self.world.see("on_gap", self, gap)
        if self.sips and action.to == SUBSCRIBER:
            self.waiting += len(action.messages)
            self._fill(max(self._level, self._found_level()))

    def _flush(self, action: Flush) -> None:
        side = self.sides.get(action.link)
        if side is not None:
            side.write()

    def _close(self, action: Close) -> None:
        self.world.trace(self, "closes %d: %s", action.link, action.reason)
        side = self.sides.pop(action.link, None)
        if side is not None:
            side.close()
            self.world.clock.after(CLOSE_FLUSH_S, self.world.streams.drop, side)

    def _dial(self, action: Dial) -> None:
        self.world.streams.dial(self, action.link, action.address)

    def _resolve(self, action: Resolve) -> None:
        if action.ticket in self.resolved:
            self.world.fail("statuses", f"{self.life} resolves call {action.ticket} twice")
        self.resolved[action.ticket] = action.outcome

    def _report(self, action: Report) -> None:
        self.world.trace(self, "%s", action.event)
        self._note(action.event)
        self.world.see("on_report", self, action.event)

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
