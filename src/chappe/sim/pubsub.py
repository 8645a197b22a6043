"""Publish and subscribe, and questions, as ZeroMQ over TCP has them: ordered, bounded, broken now and then.

A ``Pipe`` carries things one way, in order. A ``Link`` is one member's subscriber connected to another's
publisher: subscriptions travel up, messages down; what is published before a subscription arrived is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from chappe.core import Dial, Publish, Subscribe
from chappe.log.messages import Message
from chappe.sim.network import SimNetwork
from chappe.sim.world import SimWorld

REDIAL_S = (0.1, 1.0)


class PubSub(SimNetwork):
    """All publishing sockets, all sockets that are asked, and their ports."""

    def __init__(self, world: SimWorld) -> None:
        rng = world.rng
        self.queue_max = rng.choice((8, 30, 200, 1000))
        super().__init__(world, rng.choice((0.000_1, 0.001, 0.005, 0.02)), rng.choice((0.0, 0.01, 0.05)))
        self.publishers: dict[str, SimPublisher] = {}
        self.routers: dict[str, Any] = {}  # query sockets
        self.dialogues = 0
        self.stuck: dict[Pipe, None] = {}  # pipes that deliver nothing until ``unstick``
        self.query_loss = 0.0
        self.message_loss = 0.0

    def unstick(self) -> None:
        """Look again at pipes that waited for no time that is known."""
        stuck, self.stuck = self.stuck, {}
        for each in stuck:
            each.resume()


class SimSubscriber(Protocol):
    name: str

    @property
    def alive(self) -> bool: ...

    @property
    def stalled_until(self) -> float: ...

    @property
    def wants(self) -> dict[bytes, int]: ...

    def on_message(self, message: Message) -> None: ...

    def flush(self) -> None:
        """Called when no more messages are pending."""

    def paused(self) -> bool: ...


class SimPublisher(Protocol):
    name: str
    alive: bool
    stalled_until: float
    listeners: dict[SimLink, None]

    def on_subscription(self, link: SimLink, prefix: bytes, on: bool) -> None:
        """Note that a listener subscribed to a prefix, or unsubscribed."""

    def on_listener_gone(self, link: SimLink, asked: list[bytes]) -> None:
        """Note that a listener's connection broke: all its subscriptions are over."""


class Receiver(Protocol):
    """The end of a pipe."""

    @property
    def alive(self) -> bool: ...

    @property
    def stalled_until(self) -> float: ...


class Pipe:
    """One direction of a connection.

    Args:
        receiver: While it is stalled nothing is delivered.
        deliver: Called with each thing that arrives.
        bound: Things under way; further ones are dropped.
        paused: Whether the receiver leaves everything where it is for now; ``resume`` ends that.
        what: The class of the actions that put things into it.
        flush: Called when everything is delivered that has arrived, or is wanted.
    """

    __slots__ = ("_armed", "_bound", "_closed", "_deliver", "_flush", "_last_at", "_net", "_paused", "_queue",
                 "_receiver", "_what", "held_until")  # fmt: skip

    def __init__(
        self,
        net: PubSub,
        receiver: Receiver,
        deliver: Callable[[Any], None],
        bound: int,
        paused: Callable[[], bool] | None = None,
        what: type = object,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self._what = what
        self._flush = flush
        self._net = net
        self._receiver = receiver
        self._deliver = deliver
        self._bound = bound
        self._paused = paused
        self._queue: deque[tuple[float, Any]] = deque()
        self._armed = False
        self._closed = False
        self._last_at = 0.0
        self.held_until = 0.0  # the network delivers nothing before this

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, thing: Any) -> None:
        if self._closed:
            return
        if len(self._queue) >= self._bound:
            self._net.failed[self._what] += 1
            return
        self._last_at = max(self._last_at, self._net.clock.now + self._net.delay())
        self._queue.append((self._last_at, thing))
        self._arm(self._last_at)

    def resume(self) -> None:
        if self._queue:
            self._arm(self._queue[0][0])

    def close(self) -> None:
        self._closed = True
        self._net.failed[self._what] += len(self._queue)
        self._queue.clear()

    def _arm(self, when: float) -> None:
        if not self._armed:
            self._armed = True
            self._net.clock.at(when, self._pump)

    def _pump(self) -> None:
        self._armed = False
        self._deliver_arrived()
        if self._flush is not None:
            self._flush()

    def _deliver_arrived(self) -> None:
        now = self._net.clock.now
        while self._queue and not self._closed:
            wait = max(self._queue[0][0], self.held_until, self._receiver.stalled_until)
            if wait == inf:
                self._net.stuck[self] = None
                return
            if wait > now:
                self._arm(wait)
                return
            if self._paused is not None and self._paused():
                return
            _, thing = self._queue.popleft()
            self._deliver(thing)


class SimLink:
    """One subscriber's connection to one endpoint, redialled until it is closed."""

    __slots__ = (
        "_matches",
        "_net",
        "asked",
        "closed",
        "down",
        "endpoint",
        "publisher",
        "rest",
        "subscriber",
        "up",
        "wanted",
    )

    def __init__(self, net: PubSub, subscriber: SimSubscriber, endpoint: str) -> None:
        self._net = net
        self.subscriber = subscriber
        self.endpoint = endpoint
        self.closed = False
        self.publisher: SimPublisher | None = None
        self.up: Pipe | None = None  # subscriptions
        self.down: Pipe | None = None  # messages
        self.rest: Pipe | None = None  # messages of a publisher that has ended
        self.asked: list[bytes] = []  # what the subscriber told this publisher
        self.wanted: dict[bytes, None] = {}  # what the publisher sends: it may know better, see Host.on_subscription
        self._matches: tuple[bytes, ...] | None = None
        net.clock.after(net.delay(), self._dial)

    def _dial(self) -> None:
        if self.closed or self.publisher is not None or not self.subscriber.alive:
            return
        net = self._net
        publisher = net.publishers.get(self.endpoint)
        if publisher is None or not net.reachable(self.subscriber.name, publisher.name):
            net.failed[Dial] += 1
            self._redial()
            return
        if not self.admitted(publisher):
            net.failed[Dial] += 1
            return
        self.publisher = publisher
        self.asked, self.wanted, self._matches = [], {}, None
        self.up = Pipe(net, publisher, self._on_subscription, 10_000, what=Subscribe)
        subscriber = self.subscriber
        self.down = Pipe(net, subscriber, self.hearing(), net.queue_max, subscriber.paused, Publish, subscriber.flush)
        publisher.listeners[self] = None
        # All in one piece: libzmq sends what a new connection subscribes to in one go.
        self.up.send([(True, prefix) for prefix in sorted(subscriber.wants)])

    def admitted(self, publisher: SimPublisher) -> bool:
        """Shake hands; return False if it was refused, and is not dialled again."""
        return True

    def hearing(self) -> Callable[[Message], None]:
        """Return the function that takes the publisher's messages."""
        return self.subscriber.on_message

    def _redial(self) -> None:
        self._net.clock.after(self._net.clock.rng.uniform(*REDIAL_S), self._dial)

    def subscribe(self, on: bool, prefix: bytes) -> None:
        """Tell the publisher, if there is one at present."""
        if self.up is not None:
            self.up.send([(on, prefix)])

    def _on_subscription(self, changes: list[tuple[bool, bytes]]) -> None:
        for on, prefix in changes:
            if on:
                self.asked.append(prefix)
            elif prefix in self.asked:
                self.asked.remove(prefix)
            if self.publisher is not None:
                self._matches = None
                self.publisher.on_subscription(self, prefix, on)

    def want(self, prefix: bytes, on: bool) -> None:
        if on:
            self.wanted[prefix] = None
        else:
            self.wanted.pop(prefix, None)
        self._matches = None

    def full(self, raw: bytes) -> bool:
        full = self.down is not None and len(self.down) >= self._net.queue_max
        return full and raw.startswith(tuple(self.wanted))

    def offer(self, raw: bytes, message: Message) -> None:
        if self._matches is None:
            self._matches = tuple(self.wanted)
        if raw.startswith(self._matches) and self.down is not None:
            if self._net.message_loss and self._net.clock.rng.random() < self._net.message_loss:
                self._net.failed[Publish] += 1
            else:
                self.down.send(message)

    def resume(self) -> None:
        for pipe in (self.rest, self.down):
            if pipe is not None:
                pipe.resume()

    def end(self) -> None:
        """End the publisher in order: the kernel still delivers its messages to the subscriber."""
        if self.publisher is not None:
            if self.rest is not None:
                self.rest.close()
            self.rest, self.down = self.down, Pipe(self._net, self.subscriber, self.hearing(), 0)
            self.break_()

    def break_(self, notice_s: float = 0.0) -> None:
        """Break the connection; the publisher notices after ``notice_s``, the subscriber redials."""
        publisher, down, up = self.publisher, self.down, self.up
        if publisher is None or down is None or up is None:
            return
        self.publisher = self.up = self.down = None
        down.close()
        up.close()
        if notice_s:
            self._net.clock.after(notice_s, publisher.on_listener_gone, self, self.asked)
        else:
            publisher.on_listener_gone(self, self.asked)
        if not self.closed:
            self._redial()

    def close(self) -> None:
        """Disconnect the subscriber and drop unread messages."""
        self.closed = True
        if self.rest is not None:
            self.rest.close()
        self.break_()

    def hold(self, until: float) -> None:
        """Let nothing through before ``until``."""
        for pipe in (self.up, self.down):
            if pipe is not None:
                pipe.held_until = max(pipe.held_until, until)
