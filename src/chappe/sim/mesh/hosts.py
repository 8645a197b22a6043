"""Endpoints in a world: a core, what carries out its actions, and its subscribers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from chappe.core import Report
from chappe.defaults import CLOSE_FLUSH_S, HANDSHAKE_FRAME_BYTES_MAX
from chappe.errors import PeeringError
from chappe.mesh.actions import Action, Close, Deliver, Dial, Flush, Resolve
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import EndpointDiscovered, EndpointUnreachable, PeerAdded, PeerLost, PeerRemoved
from chappe.mesh.messages import DATA, NOBODY
from chappe.sim.mesh.network import Side
from chappe.sim.mesh.record import Publication

if TYPE_CHECKING:
    from chappe.sim.mesh.world import MeshWorld

PORT = 9999
SUBSCRIBER = 1
TICKS_MAX = 100  # of one host without any time passing
INBOX_MAX = 64  # messages that a slow subscriber lets wait; then its endpoint reads nothing
SIP_S = 0.1  # a slow subscriber takes some so often
HELD_LOOK_S = 0.02  # so often it is looked whether what is held back may be read again


class Host(ABC):
    """What endpoints of chappe and originals have in common: a name, lives, connections."""

    original = False

    def __init__(self, world: MeshWorld, name: str, life: str, own_id: bytes) -> None:
        self.world = world
        self.name = name
        self.life = life
        self.own_id = own_id
        self.alive = True
        self.frozen = False
        self.read_s = 0.0
        self.sides: dict[int, Side] = {}
        self.topics: set[bytes] = set()
        self._conns = 0
        world.lives[own_id] = life
        world.net.listeners[name, PORT] = self

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self.name, PORT

    def _add(self, side: Side) -> int:
        self._conns += 1
        side.conn = self._conns
        self.sides[self._conns] = side
        return self._conns

    def freeze(self, on: bool) -> None:
        """Stop it, as SIGSTOP does, or let it go on."""
        self.frozen = on
        if not on:
            for side in list(self.sides.values()):
                side.resume()

    def reads(self, side: Side) -> bool:
        """Whether it reads from a connection now."""
        return not self.frozen

    @abstractmethod
    def moved(self, side: Side) -> None:
        """There is room again in a connection that was full."""

    def die(self) -> None:
        """Crash: its connections are reset."""
        self.alive = False
        for side in list(self.sides.values()):
            side.open = False
            self.world.net.forget(side)
            self.world.clock.after(0.001, side.other.reset, "connection reset by peer")
        self.world.record.sound[self.life].end(self.world.now)
        for (one, _), spans in self.world.record.links.items():
            if one == self.life:
                spans.end(self.world.now)

    @abstractmethod
    def accept(self, side: Side) -> None:
        """A connection came in."""

    @abstractmethod
    def connected(self, dial: int, side: Side) -> None:
        """A dial succeeded."""

    @abstractmethod
    def dial_failed(self, dial: int, reason: str) -> None:
        """A dial failed."""

    @abstractmethod
    def read(self, side: Side, bodies: list[bytes]) -> None:
        """Frames came."""

    @abstractmethod
    def broken(self, side: Side, reason: str) -> None:
        """A connection is gone."""

    @abstractmethod
    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        """What is to be written next."""

    @abstractmethod
    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        """Dial."""

    @abstractmethod
    def publish(self, topic: bytes, payload: bytes) -> bool:
        """Publish; False if there is no room."""

    @abstractmethod
    def want(self, topics: Sequence[bytes]) -> None:
        """Subscribe to exactly these prefixes."""

    @abstractmethod
    def peer_lives(self) -> list[str]:
        """The lives that it is peered with."""

    def _note_wanted(self, topics: set[bytes]) -> None:
        for topic in self.topics - topics:
            self.world.record.want(self.life, topic).end(self.world.now)
        for topic in topics - self.topics:
            self.world.record.want(self.life, topic).begin(self.world.now)
        self.topics = topics

    def _published(self, topic: bytes, payload: bytes) -> None:
        self.world.record.publications[payload] = Publication(topic, self.life, self.world.now)


class EndpointHost(Host):
    """An endpoint of chappe."""

    def __init__(
        self, world: MeshWorld, name: str, life: str, own_id: bytes, options: EndpointOptions, make: type[EndpointCore]
    ) -> None:
        super().__init__(world, name, life, own_id)
        self.options = options
        self.core = make(own_id, options, world.now)
        self.peered: set[bytes] = set()  # as its statuses say
        self.discovered: set[bytes] = set()
        self.resolved: dict[int, object] = {}
        self.received = 0
        self.sips = 0.0  # messages per second that its subscriber takes; 0: all at once
        self.paused = False
        self._waiting = 0.0  # messages that the subscriber has not taken
        self._sipping = False
        self._held: set[Side] = set()
        self._ticket = 0
        self._timer_at = inf
        self._ticked_at = -inf
        self._ticks = 0  # at that moment

    # -- the network ------------------------------------------------------------------------------

    def accept(self, side: Side) -> None:
        """A connection came in."""
        self._call(self.core.handle_accepted(self._add(side), side.address, self.world.now))

    def connected(self, dial: int, side: Side) -> None:
        """A dial succeeded."""
        self._call(self.core.handle_dialled(self._add(side), dial, side.address, self.world.now))

    def dial_failed(self, dial: int, reason: str) -> None:
        """A dial failed."""
        self._call(self.core.handle_dial_failed(dial, reason, self.world.now))

    def read(self, side: Side, bodies: list[bytes]) -> None:
        """Frames came; they are handed in so many at a time, as the driver does."""
        at = 0
        while at < len(bodies):
            end = at + self.core.frames_max(side.conn)
            self._call(self.core.handle_frames(side.conn, bodies[at:end], self.world.now))
            at = end

    def broken(self, side: Side, reason: str) -> None:
        """A connection is gone."""
        if self.sides.pop(side.conn, None) is not None:
            self._call(self.core.handle_closed(side.conn, reason, self.world.now))

    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        """What is to be written."""
        return self.core.take(conn, bytes_max)

    def moved(self, side: Side) -> None:
        """There is room again in a connection that was full."""
        self.core.handle_moved(side.conn, self.world.now)

    def reads(self, side: Side) -> bool:
        """Whether it reads from a connection: not while its subscriber is full, or a peer that it passes this on to."""
        if self.frozen or (self.paused and self.core.frame_bytes_max(side.conn) > HANDSHAKE_FRAME_BYTES_MAX):
            return False
        if not self.core.holds_back(side.conn, self.world.now):
            return True
        if side not in self._held:
            self._held.add(side)
            self.world.clock.after(HELD_LOOK_S, self._look_at_held, side)
        return False

    def _look_at_held(self, side: Side) -> None:
        self._held.discard(side)
        if self.alive and not self.frozen:
            self.core.handle_heard(side.conn, self.world.now)
            side.resume()

    # -- a slow subscriber ------------------------------------------------------------------------

    def sip(self, per_s: float) -> None:
        """Have the subscriber take so many messages in a second; 0: all at once."""
        self.sips = per_s
        if not per_s:
            self._waiting = 0.0
            self._unpause()
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
        before = self._waiting
        self._waiting = max(0.0, before - self.sips * SIP_S)
        if self.paused and int(self._waiting) < int(before):
            self.core.handle_drained(int(before) - int(self._waiting), self.world.now)
            self._set_timer()
        if 2 * self._waiting <= INBOX_MAX:
            self._unpause()

    def _unpause(self) -> None:
        if self.paused and self.alive:
            self.paused = False
            self._call(self.core.handle_paused(False, self.world.now))
            if not self.frozen:
                for side in list(self.sides.values()):
                    side.resume()

    # -- the application --------------------------------------------------------------------------

    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        """Dial."""
        self._call(self.core.peer(*address, retry_s, self._next_ticket(), self.world.now))

    def unpeer(self, address: tuple[str, int]) -> None:
        """End a peering."""
        self._call(self.core.unpeer(*address, self._next_ticket(), self.world.now))

    def publish(self, topic: bytes, payload: bytes) -> bool:
        """Publish; False if there is no room."""
        if not self.core.room():
            return False
        self._published(topic, payload)
        self._call(self.core.publish(topic, payload, DATA, NOBODY, self.world.now))
        return True

    def want(self, topics: Sequence[bytes]) -> None:
        """Subscribe to exactly these prefixes."""
        now, new = self.world.now, set(topics)
        gone = self.topics - new
        self._note_wanted(new)
        self._call(self.core.subscribe(SUBSCRIBER, sorted(new), now=now))
        if gone:
            self._call(self.core.unsubscribe(SUBSCRIBER, sorted(gone), now=now))

    def peer_lives(self) -> list[str]:
        """The lives that it is peered with."""
        return [self.world.lives[each.peer_id] for each in self.core.peers() if each.peer_id is not None]

    def freeze(self, on: bool) -> None:
        """Stop it, or let it go on."""
        super().freeze(on)
        if not on:
            self._tick()

    # -- inside -----------------------------------------------------------------------------------

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _call(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._do(action)
        self._set_timer()

    def _do(self, action: Action) -> None:
        match action:
            case Deliver(subscriber, messages):
                for message in messages:
                    self.received += 1
                    self.world.delivered(self, message, subscriber)
                if self.sips:
                    self._waiting += len(messages)
                    if self._waiting >= INBOX_MAX and not self.paused:
                        self.paused = True
                        self._call(self.core.handle_paused(True, self.world.now))
            case Flush(conn):
                if conn in self.sides:
                    self.sides[conn].write()
            case Close(conn, reason):
                self.world.trace(self, "closes %d: %s", conn, reason)
                side = self.sides.pop(conn, None)
                if side is not None:
                    side.close()
                    self.world.clock.after(CLOSE_FLUSH_S, self._drop, side)
            case Dial(dial, host, port):
                self.world.net.dial(self, dial, (host, port))
            case Resolve(ticket, outcome):
                if ticket in self.resolved:
                    self.world.fail("statuses", f"{self.life} resolves call {ticket} twice")
                self.resolved[ticket] = outcome
            case Report(event):
                self.world.trace(self, "%s", event)
                self._note(event)

    def _drop(self, side: Side) -> None:
        if side.open:
            side.open = False
            self.world.net.forget(side)
            side.other.reset("connection reset by peer")

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
                record.link(self.life, self.world.lives[peer_id]).begin(now)
            case PeerLost(peer_id) | PeerRemoved(peer_id):
                self._expect(peer_id in self.peered, event)
                for checker in self.world.checkers:
                    checker.on_lost(self, peer_id, event.reason)
                self.peered.discard(peer_id)
                record.link(self.life, self.world.lives[peer_id]).end(now)
            case PeeringError():
                str(event)

    def _expect(self, right: bool, event: object) -> None:
        if not right:
            self.world.fail("statuses", f"{self.life} reports {event!r} out of order")

    def _set_timer(self) -> None:
        due = max(self.core.next_timeout(), self.world.now)
        if due < self._timer_at:
            self._timer_at = due
            self.world.clock.at(due, self._ring, due)

    def _ring(self, due: float) -> None:
        if due == self._timer_at:
            self._timer_at = inf
            self._tick()

    def _tick(self) -> None:
        if self.alive and not self.frozen:
            self._ticks = self._ticks + 1 if self._ticked_at == self.world.now else 0
            self._ticked_at = self.world.now
            if self._ticks > TICKS_MAX:
                self.world.fail("no spinning", f"{self.life} has something to do at once, again and again")
            if self.core.next_timeout() <= self.world.now:
                self._call(self.core.handle_timeout(self.world.now))
            else:
                self._set_timer()
