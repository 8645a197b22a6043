"""Endpoints of the API in a world of the mesh, and the programs that use them, as checkers and faults see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any
from uuid import UUID

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.filters import as_published, show
from tests.worlds.mesh.record import Spans

from chappe import Endpoint
from chappe.api.mesh.forwarded import Forwarded
from chappe.api.mesh.subscriber import Subscriber
from chappe.api.mesh.waiting import Asked
from chappe.errors import PeeringError, Unreachable
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.events import (
    DefectContained,
    EndpointDiscovered,
    EndpointHalted,
    EndpointUnreachable,
    MessagesDropped,
    PeerAdded,
    PeerLost,
    PeerRemoved,
)
from chappe.mesh.filters import LAST_ASK
from chappe.mesh.messages import COMMAND, DATA, NOBODY, Message
from chappe.sim.world import Violation
from chappe.system import time

SUBSCRIBER = 1
LAST = 4  # one that wants last values
QUICK = 3  # a further one, to other prefixes, that takes all at once
COMMANDED = 2  # a subscriber to the same, for commands
MANY = tuple([b"/many/%d/" % each for each in range(20)])  # prefixes that are wanted besides
INBOX_MAX = 64  # messages that a slow subscriber lets wait; then those who publish are to wait
SURPLUS_MAX = 256  # so many more are taken from everybody, and twice as many before its endpoint reads nothing
SIP_S = 0.1  # a slow subscriber takes some so often
HOST = "127.0.0.1"
ANY_AGE_S = 1e6  # messages are asked for their times, and none is too old


class EndpointSubject(MeshHost):
    """An endpoint of the API, whose program publishes, and takes what comes."""

    world: Any

    def __init__(
        self, world: Any, name: str, life: str, own_id: bytes, options: EndpointOptions, make: type[EndpointCore]
    ) -> None:
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
        self.full = Spans()  # the subscriber was
        self.taken_at = 0.0  # something, by the subscriber
        self._late: list[Callable[[], None]] = []  # what it is asked while it stands still
        self._takes = False  # soon
        self._budget = 0.0  # messages that it may take now
        self._sips = 0.0
        self._commanded: int | None = None  # number of the taker of commands
        self._queued: dict[int, deque[bytes]] = {each: deque() for each in (SUBSCRIBER, QUICK, LAST)}  # not yet taken
        self._subscribers: dict[int, Subscriber] = {}
        self.world.stage.host(name).steady_s = self.now - world.now
        with self.world.stage.on(name):
            self.face = Endpoint(
                id=str(UUID(bytes=own_id)),
                security=world.security(self),
                forwarding=options.forwarding,
                paths=options.paths,
                on_full=options.peer_policy.value,
                peer_messages_max=options.peer_messages_max,
                peer_bytes_max=options.peer_bytes_max,
                heartbeat_s=options.heartbeat_s,
                last_values=options.last_values,
                on_forward=_forward if world.filters and options.forwarding else None,
            )
            self.core = self.face.core
            self.options = replace(options, first_number=world.first_number)
            self.face.listening[self] = None  # as a ``StatusSubscriber``, whose queue would be read later
            self.face.node.tapped = self._read
            age_s = ANY_AGE_S if self.asks_times else None
            self._add(SUBSCRIBER, on_full="block", messages_max=INBOX_MAX, max_age_s=age_s, on_gap=self._gap)
            self.face.listen(port=self.port)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """Act as a program on this host; what checkers find there fails the world and no member."""
        try:
            with self.world.stage.on(self.name):
                yield
        except Violation as violation:
            self.world.broken = self.world.broken or violation

    def _do(self, act: Callable[[], Any]) -> None:
        """Have its program do something, once it goes on."""
        if self.frozen:
            self._late.append(act)
        elif self.alive:
            with self._here():
                act()

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def read_s(self) -> float:
        """How long it takes for each piece that it reads."""
        found: float = self.world.stage.host(self.name).read_s
        return found

    @read_s.setter
    def read_s(self, seconds: float) -> None:
        self.world.stage.host(self.name).read_s = seconds

    @property
    def now(self) -> float:
        return float(self.world.steady(self.name))

    @property
    def paused(self) -> bool:
        return self.face.node.member.paused

    @property
    def connections(self) -> int:
        return self.face.node.links

    @property
    def waiting(self) -> float:
        return self._subscribers[SUBSCRIBER].available

    @property
    def heartbeat_s(self) -> float:
        """How often it pings."""
        return self.options.heartbeat_s

    # -- hosts die and stand still --------------------------------------------------------------------

    def freeze(self, on: bool) -> None:
        super().freeze(on)
        if on:
            self.world.stage.pause(self.name)
            return
        self.world.stage.resume(self.name)
        late, self._late = self._late, []
        for each in late:
            self._do(each)
        self._soon()

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        super().die(goodbye=goodbye, notice_s=notice_s)
        self.world.stage.kill(self.name)

    # -- the program ----------------------------------------------------------------------------------

    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        self._do(lambda: self.face.peer_nosync(HOST, address[1], retry_s=retry_s))

    def unpeer(self, address: tuple[str, int]) -> None:
        self.left.setdefault(address[0], self.world.now)
        self._do(lambda: self.face.unpeer_nosync(HOST, address[1]))

    def await_peer(self, peer_id: bytes, timeout_s: float) -> None:
        self._do(lambda: self._ask(self.face.begin_await_peer(str(UUID(bytes=peer_id)), timeout_s), timeout_s))

    def ping(self, peer_id: bytes) -> None:
        """See ``EndpointSubject``; ``Endpoint.ping`` up to its wait."""

        def act() -> None:
            asked = self.face.question()
            self.face.node.do(self.core.ping(peer_id, asked.ticket, time.monotonic()))
            self._ask(asked, inf)

        self._do(act)

    def _ask(self, asked: Asked, timeout_s: float) -> None:
        self.calls[asked.ticket] = self.world.now, self.world.now + timeout_s
        asked.then(lambda: self.resolved.update({asked.ticket: asked.outcome}))

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """See ``MeshHost``; ``Endpoint.publish`` up to its wait."""
        if self.frozen:
            return False
        to, to_id = self._to(topic, kind, receiver), NOBODY if receiver is None else receiver.own_id
        found: int | None = None
        with self._here():
            try:
                found = self.face.try_publish(topic, payload, to_id, kind=kind)
            except Unreachable:
                return False
            if found is None:
                self.world.see("on_refused", self, topic, receiver)
            else:
                self._published(topic, payload, kind, receiver, to)
        return found is not None

    def publish_many(self, topic: bytes, payloads: list[bytes]) -> bool:
        """Publish at once, as long as there is room."""
        if not self.core.room((topic,)):
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
        with self._here():
            if self.face.try_publish_many(messages) is None:
                self.world.fail("room", f"{self.life} has no room for what it had room for just now")

    def want(self, topics: Sequence[bytes]) -> None:
        self._do(lambda: self._want({*topics, *(MANY if self.wants_many else ())}))

    def _want(self, new: set[bytes]) -> None:
        gone = self.topics - new
        self._take(inf)  # what is there was wanted
        self._note_wanted(new)
        self.world.see("on_wanted", self)
        subscriber = self._subscribers[SUBSCRIBER]
        subscriber.add(*_texts(new))
        if gone:
            subscriber.remove(*_texts(gone))
        if not self.world.settings.plain:
            before, face = self._commanded, self.face
            self._commanded = next(face.numbers)
            face._subscribers[self._commanded] = _Commands(self)
            face.node.do(self.core.subscribe(self._commanded, sorted(new), COMMAND, now=time.monotonic()))
            if before is not None:
                face.forget(before)

    def want_quickly(self, topics: Sequence[bytes]) -> None:
        self.quick |= {*topics}
        self._do(lambda: self._more(QUICK, topics))

    def want_last(self, topics: Sequence[bytes]) -> None:
        self.lasting |= {*topics}
        self._do(lambda: self._more(LAST, topics, last=True))

    def _more(self, which: int, topics: Sequence[bytes], **options: Any) -> None:
        if which not in self._subscribers:
            self._add(which, **options)
        self._subscribers[which].add(*_texts(topics))

    def _add(self, which: int, **options: Any) -> None:
        subscriber = self._subscribers[which] = self.face.subscribe(**options)
        deliver = subscriber.deliver

        def came(messages: list[Message]) -> None:
            self._came(which, messages)
            deliver(messages)
            self._look_at_level()
            self._soon()

        subscriber.deliver = came  # type: ignore[method-assign]

    # -- taking what comes ----------------------------------------------------------------------------

    def sip(self, per_s: float) -> None:
        sipped, self._sips = self._sips > 0, per_s
        if per_s and not sipped:
            self._budget = 0.0
            self.world.clock.after(SIP_S, self._sip)
        self._soon()

    def _sip(self) -> None:
        if not self.alive or not self._sips:
            return
        self.world.clock.after(SIP_S, self._sip)
        self._budget += self._sips * SIP_S
        self._soon()

    def _soon(self) -> None:
        """Have its program take what is there."""
        if not self._takes and self.alive:
            self._takes = True
            self.world.clock.after(0.0, self._wake)

    def _wake(self) -> None:
        self._takes = False
        if self.alive and not self.frozen:
            with self._here():
                self._take(self._budget if self._sips else inf)

    def _take(self, most: float) -> None:
        for which, subscriber in self._subscribers.items():
            count = subscriber.available
            if which == SUBSCRIBER and most < count:
                count = int(most)
            if not count:
                if which == SUBSCRIBER:
                    subscriber._tell_gaps()
                continue
            found = subscriber.take_messages(count, 0.0)
            if which == SUBSCRIBER:
                self._budget = max(0.0, self._budget - len(found))
                self.taken_at = self.world.now
            for message in found:
                expected = self._queued[which].popleft()
                if message.payload != expected:
                    self.world.fail("queue", f"{self.life} takes {message.payload!r}, {expected!r} came before")
        self._look_at_level()

    def _look_at_level(self) -> None:
        (self.full.begin if self._subscribers[SUBSCRIBER]._level else self.full.end)(self.world.now)

    # -- what it hears, in the midst of its work ------------------------------------------------------

    def _came(self, which: int, messages: Sequence[Message]) -> None:
        with self._here():
            if which in self._queued:
                self._queued[which] += [each.payload for each in messages]
            self.came(which, messages)

    def _gap(self, gap: Any) -> None:
        self.world.see("on_gap", self, gap)

    def report(self, event: object) -> None:
        """As of a ``StatusSubscriber``."""
        with self._here():
            if isinstance(event, DefectContained | EndpointHalted):
                self.world.fail("crash", f"{self.life}: {event}")
            if isinstance(event, MessagesDropped) and event.where.startswith("for a subscriber to"):
                self.world.fail("queue", f"{self.life}: {event}")
            self.reported(event)

    def _read(self, link: int, frames: list[bytes]) -> None:
        with self._here():
            self.world.has_read(self, link, frames)

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


class _Commands:
    """Takes commands, as a data store does."""

    def __init__(self, host: EndpointSubject) -> None:
        self._host = host

    def deliver(self, messages: list[Message]) -> None:
        self._host._came(COMMANDED, messages)

    def close(self) -> None:
        pass


def _forward(shown: Forwarded) -> Forwarded | None:
    payload = show(shown.message)
    if payload is None or payload == shown.payload:
        return None if payload is None else shown
    came = shown.message
    return Forwarded(Message(came.topic, payload, came.kind, came.sender, came.receiver, origin=came.origin), came)


def _texts(topics: Any) -> list[str]:
    return sorted([each.decode() for each in topics])
