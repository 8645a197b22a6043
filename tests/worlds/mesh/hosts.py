"""Endpoints in a world: a core, what carries out its actions, and its subscribers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tests.worlds.mesh.base import MeshHost, WiredHost
from tests.worlds.mesh.subjects import COMMANDED, INBOX_MAX, MANY, SIP_S, SUBSCRIBER, SURPLUS_MAX, EndpointSubject
from tests.worlds.mesh.world import MeshWorld

from chappe.core import Close, Deliver, Dial, Flush, Report, Resolve
from chappe.defaults import CLOSE_FLUSH_S, HANDSHAKE_FRAME_BYTES_MAX
from chappe.member import MeshMember
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.filters import minimal
from chappe.mesh.flows import portion
from chappe.mesh.links.dialling import Retry
from chappe.mesh.messages import COMMAND, DATA, NOBODY
from chappe.mesh.places import MessageGaps
from chappe.sim.streams import StreamSide

ROUNDING_S = 1e-6  # of clocks that differ
HELD_LOOK_S = 0.02  # how often it is checked whether what is held back may be read again


class EndpointHost(EndpointSubject, WiredHost):
    """An endpoint of chappe."""

    world: MeshWorld
    tick_s = 0.0

    def __init__(
        self, world: MeshWorld, name: str, life: str, own_id: bytes, options: EndpointOptions, make: type[EndpointCore]
    ) -> None:
        super().__init__(world, name, life, own_id)
        self.options = options
        self.core = make(own_id, options, self.now)
        self.member = MeshMember(self.core, world.clock)
        self.sips = 0.0  # messages per second that its subscriber takes; 0: all at once
        self.gaps = MessageGaps()  # of its subscriber
        self.waiting = 0.0
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
        }

    @property
    def paused(self) -> bool:
        """Whether nothing is to be read from peers."""
        return self.member.paused

    @property
    def now(self) -> float:
        """What its steady clock shows."""
        return self.world.steady(self.name)

    @property
    def connections(self) -> int:
        return len(self.sides)

    # -- the network ------------------------------------------------------------------------------

    def accept(self, side: StreamSide) -> None:
        """A connection came in."""
        self.call(self.member.handle_link, self._add(side), side.address, self.now)

    def connected(self, dial: int, side: StreamSide) -> None:
        """A dial succeeded."""
        side.conn = dial
        self.sides[dial] = side
        self.call(self.member.handle_link, dial, side.address, self.now)

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
        return 0 if over < 0 else 1 + min(2, over // SURPLUS_MAX)

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

    def send_many(self, messages: list[tuple[bytes, bytes]]) -> None:
        self.ask(lambda now: self.core.publish_many(messages, now)[0])

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
        self.came(action.to, action.messages)
        if action.to == SUBSCRIBER:
            for each in action.messages:
                self.gaps.came([each])
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
        self.reported(action.event)
