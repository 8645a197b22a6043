"""A member in the simulation: one core on simulated sockets, carried out as ``runtime.log_ports`` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tests.worlds.log.standin.towers import Line
from tests.worlds.log.standin.world import HOST, LogWorld

from chappe.core import Ask, Close, Dial, Halt, Publish, Report, Send, Subscribe
from chappe.log.batch import Batch
from chappe.log.beacon import BEACON
from chappe.log.consuming import ConsumingMember
from chappe.log.introducing import Leaving
from chappe.log.member import OfPart, PartBroken, ProducingMember
from chappe.log.messages import BatchMessage, Message, RecordMessage, StoreInfo, decode, encode
from chappe.log.queries import decode_answer, encode_query
from chappe.sim.host import SimHost
from chappe.sim.pubsub import Dialogue, SimLink

DECODE_EVERY = 16  # of the messages published one in so many goes through its bytes, which takes time


def brief(message: Message) -> str:
    """A message in one short line, for people."""
    if isinstance(message, BatchMessage):
        batch = Batch.parse(message.body, check=False)
        kind = "direct batch" if message.direct else "batch"
        return f"{kind} {message.subject}/{message.address[:6]} {batch.base}..{batch.next - 1} to {message.topic[:6]}"
    if isinstance(message, RecordMessage):
        kind = "direct record" if message.direct else "record"
        return f"{kind} {message.subject}/{message.address[:6]} {message.sequence} to {message.topic[:6]}"
    values = (str(getattr(message, each.name)) for each in fields(message))
    return f"{type(message).__name__} {' '.join(each[:6] if len(each) == 32 else each for each in values)}"


class NodeHost(SimHost):
    """One life of a member of the log; ``role`` is the core that is driven as ``runtime.log_ports`` does it."""

    world: LogWorld

    def __init__(self, world: LogWorld, name: str, role: Any) -> None:
        super().__init__(world, name)
        self.net = world.net
        self.role = role
        self.address = role.address
        self.port = self.net.port()
        self.endpoint = f"tcp://{HOST}:{self.port}"
        self._open()
        self.wants: dict[bytes, int] = {}
        self.links: dict[str, SimLink] = {}  # what we listen to, by endpoint
        self.leaving: dict[str, SimLink] = {}  # closing connections, until they are read
        self._leaving = Leaving()
        self.listeners: dict[SimLink, None] = {}
        self.lines: list[Line] = []
        self.halted: str | None = None
        self.doomed = False  # a producer dies in the midst of its next Persist, a store when another one asks it
        self.discovery: Any = world.discovery(self)
        self._dialogues: dict[str, Dialogue] = {}
        self._published = 0
        if isinstance(role, ProducingMember):
            role.claims = self.discovery
        self._met: dict[str, str] = {}  # whom we dialled where
        self._held = False  # messages were left in a queue
        self.table = {
            Publish: self._publish,
            Subscribe: self._subscribe,
            Report: self._report,
            Halt: self._halt,
            Ask: self._ask,
            Send: self._send_beacon,
            Dial: self._dial,
            Close: self._disconnect,
        }
        self.net.publishers[self.endpoint] = self

    # -- life -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take a port."""

    def _close(self) -> None:
        """Give it back."""
        self.net.release(self.port)

    def start(self) -> None:
        """Begin."""
        self.world.trace(self, "starts at %s as %s", self.endpoint, self.role.address[:6])
        self.call(self.role.start, self.world.now)
        self.world.meet(self)
        self.arm()

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Stop at once, or with a goodbye; others notice the broken connections after ``notice_s``."""
        if goodbye:
            self.perform(self.discovery.goodbye())
        self.alive = False
        self.world.trace(self, "leaves" if goodbye else "dies")
        del self.net.publishers[self.endpoint]
        for link in self._dialled():
            link.closed = True
            link.break_(notice_s)
        for link in list(self.listeners):
            self._hang_up(link)
        for line in self.lines:
            line.close()
        self._close()
        self.world.part(self)

    def _hang_up(self, link: SimLink) -> None:
        """End a listener's connection, and drop everything in transit, when the host dies."""
        link.break_()

    def _dialled(self) -> list[SimLink]:
        return list(dict.fromkeys((*self.links.values(), *self.leaving.values())))

    @property
    def wall_us(self) -> int:
        """Its time of day."""
        return self.world.wall_us(self.name)

    def paused(self) -> bool:
        """Whether the core wants nothing more for now."""
        self._held = bool(getattr(self.role, "paused", False))
        return self._held

    def perform(self, actions: Sequence[Any]) -> None:
        """As every host's; if messages were left in a queue, and are wanted now, they come."""
        super().perform(actions)
        if self._held and self.alive and not self.paused():
            self.resume()

    def resume(self) -> None:
        """The core is no longer paused."""
        for link in self._dialled():
            link.resume()

    # -- driving --------------------------------------------------------------------------------------

    def due(self) -> float:
        """When the core or the discovery wants to be called."""
        due: float = min(self.role.next_timeout(), self.discovery.next_timeout(), self._leaving.next_timeout())
        return due

    def handle_due(self) -> None:
        """Have them do what is due."""
        now = self.world.now
        if now >= self.discovery.next_timeout():
            self.perform(self.discovery.handle_timeout(now))
        for endpoint in self._leaving.look(lambda each: self.leaving[each].unread, now):
            self.leaving.pop(endpoint).close()
        if self.alive and now >= self.role.next_timeout():
            self.call(self.role.handle_timeout, now)

    # -- what arrives -----------------------------------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """A peer published something that we subscribed to."""
        if isinstance(message, StoreInfo):
            self.discovery.store_heard(message.address, self.world.now)
        self.call(self.role.handle_message, message, self.world.now)

    def flush(self) -> None:
        """Flush the role when no more messages are pending."""
        if isinstance(self.role, ConsumingMember):
            self.call(self.role.flush, self.world.now)

    def on_subscription(self, link: SimLink, prefix: bytes, on: bool) -> None:
        """A listener subscribed to something, or no longer; see ``drivers.publishing.PublishingSocket``."""
        if on:
            if prefix[:1] != b"M" or b"R" + prefix[1:] not in link.wanted:
                link.wanted[prefix] = None
            if prefix[:1] == b"R":
                link.wanted.pop(b"M" + prefix[1:], None)
        else:
            link.wanted.pop(prefix, None)
        self.call(self.role.handle_subscription, prefix, on, self.world.now)

    def on_listener_gone(self, link: SimLink, asked: list[bytes]) -> None:
        """The connection of a listener broke: all that it had asked for is over."""
        if link.publisher is not self:
            self.listeners.pop(link, None)
        for prefix in asked:
            self.call(self.role.handle_subscription, prefix, False, self.world.now)

    def on_tower_ready(self) -> None:
        """A tower subscribed to our beacons."""
        self.call(self.discovery.handle_subscription, BEACON, True, self.world.now)

    def on_beacon(self, frames: list[bytes]) -> None:
        """A tower sent a beacon or a welcome."""
        self.world.see("on_beacon", self, frames)
        actions = self.discovery.handle_frames(frames, self.world.now)
        if actions:
            self.perform(actions)
            self.arm()

    def on_answer(self, thing: tuple[int, bytes, tuple[bytes, ...]]) -> None:
        """A store answered our query."""
        request_id, raw, batches = thing
        self.call(self.role.handle_answer, request_id, decode_answer(raw), list(batches), self.world.now)

    def on_query(self, dialogue: Dialogue, request_id: int, raw: bytes, payload: bytes) -> None:
        """Somebody asks us: only stores are asked."""
        raise AssertionError(f"{self.name} is not a store")

    # -- actions ------------------------------------------------------------------------------------------

    def _publish(self, action: Publish) -> None:
        message = action.message
        frames = encode(message)
        self._published += 1
        if self._published % DECODE_EVERY == 0:
            message = decode(frames)
        if self.world.telling:
            self.world.trace(self, "publishes %s", brief(message))
        self.world.see("on_published", self, action.message)
        for link in list(self.listeners):
            link.offer(frames[0], message)

    def _subscribe(self, action: Subscribe) -> None:
        if not action.on:
            self._unsubscribe(action)
            return
        count = self.wants[action.prefix] = self.wants.get(action.prefix, 0) + 1
        if count == 1:
            for link in self.links.values():
                link.subscribe(True, action.prefix)

    def _unsubscribe(self, action: Subscribe) -> None:
        count = self.wants.get(action.prefix, 0) - 1
        if count > 0:
            self.wants[action.prefix] = count
        elif count == 0:
            del self.wants[action.prefix]
            for link in self.links.values():
                link.subscribe(False, action.prefix)

    def _report(self, action: Report) -> None:
        event = action.event
        if isinstance(event, OfPart):
            self.host_of(event.address).told(event.event)
        else:
            self.told(event)

    def host_of(self, address: str) -> NodeHost:
        """Whose part has this address."""
        return self

    def told(self, event: object) -> None:
        """The core has reported something."""
        if isinstance(event, PartBroken):
            raise event.error
        self.world.trace(self, "reports: %s", event)
        self.world.see("on_report", self, event)

    def _halt(self, action: Halt) -> None:
        self.halted = action.reason

    def _ask(self, action: Ask) -> None:
        self.world.trace(self, "asks %s: %s", action.to, action.request)
        dialogue = self._dialogues.get(action.to)
        if dialogue is None:
            dialogue = self._dialogues[action.to] = Dialogue(self.net, self, action.to)
        dialogue.ask(action.ticket, encode_query(action.request))

    def _send_beacon(self, action: Send) -> None:
        for line in self.lines:
            line.beacon(action.message)

    def _dial(self, action: Dial) -> None:
        endpoint = action.link
        if endpoint in self.links:  # ZeroMQ dials again by itself
            assert self._met[endpoint] != action.address, f"{self.name} connects to {endpoint} twice"
            self.links.pop(endpoint).close()
        self._met[endpoint] = action.address
        if self._leaving.stay(endpoint):
            self.links[endpoint] = self.leaving.pop(endpoint)
        else:
            self.links[endpoint] = SimLink(self.net, self, endpoint)

    def _disconnect(self, action: Close) -> None:
        link = self.links.pop(action.link, None)
        if link is not None:
            self.leaving[action.link] = link
            oldest = self._leaving.leave(action.link, self.world.now)
            if oldest is not None:
                self.leaving.pop(oldest).close()
