"""A node: one core on its sockets; what the core is a composition of, it does not ask.

Whose turn it is to drive it, ``turns`` knows: any thread may. So records reach a waiting user, and leave a sending one,
without changing threads.
"""

from __future__ import annotations

import errno
import logging
import math
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import zmq

from chappe.core import Halt, Report
from chappe.data.topic import encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import FULL_PEER_WAIT_S, MIB
from chappe.errors import ProtocolError, StorageError
from chappe.log.actions import (
    Action,
    Ask,
    Beacon,
    Claim,
    Connect,
    Disclaim,
    Disconnect,
    Gone,
    Publish,
    Resume,
    Subscribe,
    TakeOver,
    Unsubscribe,
)
from chappe.log.events import MachineRefused, PermissionsChanged, Stopped
from chappe.log.guard import GIVERS, Guard
from chappe.log.handing_on import PERMISSIONS
from chappe.log.member import Carrying, Part
from chappe.log.messages import AskTraffic, Message, StoreInfo, decode, encode
from chappe.log.queries import Answer
from chappe.log.traffic import Traffic
from chappe.permissions.decisions import Verbs
from chappe.runtime.meeting import Discovers, Gatherer, Meeting
from chappe.runtime.turns import Ready, Turns
from chappe.system import time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors
from chappe.transports.dealers import Dealers
from chappe.transports.publishing import RETRY_S, PublishingSocket
from chappe.transports.zeromq import take, taking

logger = logging.getLogger(__name__)

DRAIN_MAX: Final = 64  # messages taken from one socket before the others get their turn ...
DRAIN_BYTES: Final = MIB  # ... or so many bytes: what a user takes next is still in the processor's cache
COMPLAIN_S: Final = 10.0  # malformed messages are logged at most this often, and so is what the machine refuses
YIELD_S: Final = 0.000_1  # enough for a thread that waits for the lock to get it
TICK_S: Final = 0.001  # while users send, a node looks this often whether something gathered was left behind ...
ACTIVE_S: Final = 0.05  # ... until nobody began to gather for this long; so nobody who sends has to wake it
KEYS_S: Final = 1.0  # between two looks at refusals and permissions, where there are keys
REFUSED_S: Final = 1.0  # what is due waits this long after the machine refused it
# What a machine refuses today and may grant tomorrow. Everything else that is raised is a defect of ours.
REFUSALS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.ENOSPC,
                             errno.EDQUOT, errno.ESTALE})  # fmt: skip
ASKS: Final = b"Q"  # how a question begins that the node itself answers (``log.traffic``)
T = TypeVar("T", bytes, zmq.Frame, bytes | memoryview)
_NOBLOCK: Final = int(zmq.NOBLOCK)


def is_refusal(error: Exception) -> bool:
    """Whether it is the machine that refuses, and not a defect of ours."""
    if isinstance(error, (OSError, zmq.ZMQError)):
        return error.errno in REFUSALS
    return isinstance(error, StorageError)


class Role(Part, Protocol):
    """What a node runs: the core of a producer, a consumer or a store."""

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """A peer subscribed to our publications, or no longer."""

    def handle_message(self, message: Message, now: float) -> list[Action]:
        """A peer published something."""

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A member left."""


class Asking(Role, Protocol):
    """What asks stores, too: only such a one gives ``Ask``."""

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Action]:
        """A store answered."""


class Node:
    """Runs one core.

    Args:
        meeting: How it meets others.
        on_report: Called with every event, with the lock held: it must be quick and not call back.
        perform: Further actions by their class.
        full_peer_wait_s: How long ``publish`` waits for a peer whose queue is full.
        takes: Where there are keys, what who hands on records has to be allowed.
        views: Whether large messages stay in ZeroMQ's memory. A store, which copies them to its disk anyway, would have
            twice as much of it.

    ``traffic`` also names its members for who looks.

    An exception that is neither of the protocol nor of the machine is a defect: ``halted`` says so from then on, a
    ``Stopped`` event is reported, and every thread that waits is woken.
    """

    def __init__(
        self,
        role: Role,
        meeting: Meeting,
        *,
        on_report: Callable[[object], None],
        perform: dict[type, Callable[[Any], None]] | None = None,
        full_peer_wait_s: float = FULL_PEER_WAIT_S,
        takes: Verbs = GIVERS,
        views: bool = True,
    ) -> None:
        own(self)
        need_descriptors()
        self.role = role
        self._flush_role: Callable[[float], Sequence[Action]] | None = getattr(role, "flush", None)
        gate = meeting.gate
        self.guard = None if gate is None else Guard(gate.decisions, gate.refusals.add_refusal, takes)
        self._changes = 0 if gate is None else gate.changes
        self.turns = Turns(self._handle, self._due, self._stopped, what="member", eager=True)
        self.lock = self.turns.lock
        self.malformed = 0
        self._views = views
        self.tapped: Callable[[list[bytes]], None] | None = None  # is shown what comes, while somebody looks
        self.halt_event = self.turns.machine.event()
        self._on_report = on_report
        self.traffic = Traffic()
        self._dealers = Dealers(self, self._answered, gate, self.report, self.guard, self.traffic)
        self._perform: dict[type, Callable[[Any], None]] = {
            Publish: lambda action: self.publish(encode(action.message)),
            Subscribe: lambda action: meeting.subscribe(zmq.SUBSCRIBE, action.prefix),
            Unsubscribe: lambda action: meeting.subscribe(zmq.UNSUBSCRIBE, action.prefix),
            Report: lambda action: on_report(action.event),
            Halt: self._halt,
            Ask: self._dealers.ask,
            Beacon: meeting.beacon,
            Connect: self._connect,
            Disconnect: self._disconnect,
            TakeOver: lambda action: self._gone(action.former),
            Gone: lambda action: self._gone(action.address),
            Claim: lambda action: self.perform(self.discovery.claim(action.identity, time.monotonic())),
            Disclaim: lambda action: self.perform(self.discovery.disclaim(action.identity)),
            Resume: lambda action: self.resume(),
            **(perform or {}),
        }
        self._drains: dict[int, Callable[[], bool]] = {}
        self._suspects: dict[Callable[[], bool], None] = {}  # sockets used since their descriptor was last looked at
        self._gathering: Deadlines[Gatherer] = Deadlines()
        self._lone = False  # members' messages came one by one last
        self._hurried = False  # what somebody waits for has just come
        self._active_until = -math.inf
        self._look_at = math.inf  # whether something gathered, or kept for a full peer, is to leave
        self._callers: deque[None] = deque()  # threads that wait for the lock in ``run``
        self._complain_at = -math.inf
        self._refused_at = -math.inf  # when the machine refused something last, and it was reported
        self._due_from = -math.inf  # what is due is not done before
        self._sockets: list[zmq.Socket[bytes]] = []
        self._hearing: list[Callable[[], bool]] = []  # what takes messages from those that subscribe
        self._meeting = meeting
        try:
            self._open(full_peer_wait_s)
        except BaseException:
            self._release()
            raise

    # -- life -----------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Of the core."""
        return self.role.address

    @property
    def endpoint(self) -> str:
        """Where others listen to it; empty if it dials them for that."""
        return self._meeting.endpoint

    def _open(self, full_peer_wait_s: float) -> None:
        self._pub = PublishingSocket(full_peer_wait_s, self._meeting.gate, self.guard)
        self.watch_socket(self.keep(self._pub.socket), self._drain_pub)
        self.discovery: Discovers = self._meeting.open(self, self._pub.socket)
        self._pub.dialled = self._meeting.subscribers
        self._pub.strangers = self._meeting.strangers

    def keep(self, sock: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Close the socket when the node is closed."""
        self._sockets.append(sock)
        return sock

    def hear(
        self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes | memoryview]], Sequence[Action]]
    ) -> Callable[[], bool]:
        """Take what members publish from a socket, while the core has room; returns what to ``suspect``."""
        # What is left in the queue is bounded there, and whoever is missed by it is read from a store later.
        take_next = taking(sock, views=self._views)
        return self._heard(sock, lambda: self._receive(sock, take_next, handle, self._paused))

    def hear_frames(
        self, sock: zmq.Socket[bytes], handle: Callable[[list[zmq.Frame]], Sequence[Action]]
    ) -> Callable[[], bool]:
        """As ``hear``, with frames that know who was let in."""
        return self._heard(
            sock, lambda: self._receive(sock, lambda: sock.recv_multipart(_NOBLOCK, copy=False), handle, self._paused)
        )

    def _heard(self, sock: zmq.Socket[bytes], take: Callable[[], bool]) -> Callable[[], bool]:
        def drain() -> bool:
            try:
                return take()
            finally:
                self._flush()

        self._hearing.append(drain)
        self.watch_socket(self.keep(sock), drain)
        return drain

    def start(self) -> None:
        """Begin; call once everything else is set up."""
        self.call(self.role.start)
        with self.lock:
            self._meeting.subscribe(zmq.SUBSCRIBE, ASKS + encode_topic(self.address))
        self.turns.start()
        if self._meeting.gate is not None:
            with self.lock:
                self.call_idle(self, time.monotonic() + KEYS_S)

    def idle(self) -> float:
        """See who was refused, whom we may dial by now, and who may what. See ``Gatherer.idle``."""
        self._meeting.look()
        self._dealers.look()
        gate = self._meeting.gate
        if gate is not None and gate.changes != self._changes:
            self._changes = gate.changes
            self._pub.judge_again()
            self.suspect(self._drain_pub)
            self.report(PermissionsChanged(gate.version))
        return KEYS_S

    def report(self, event: object) -> None:
        """Something that is no core's affair happened; the lock is held."""
        self._on_report(event)

    def close(self) -> None:
        """Say goodbye and release everything; safe to call twice."""
        with self.lock:
            if self.turns.closed:
                return
            self._pub.retry(patient=False)
            self.perform(self.discovery.goodbye())
            self.turns.closed = True
        self.turns.stop()
        with self.lock:
            self._release()

    def _release(self) -> None:
        self._meeting.close()
        for each in self._sockets:
            each.close()
        self._dealers.close()
        self.turns.release()

    # -- driving --------------------------------------------------------------------------------------

    def call(self, method: Callable[..., Sequence[Action]], *args: object) -> None:
        """Make one call into the core and carry out its answer; from any thread."""
        self.run(lambda: self.perform(method(*args, now=time.monotonic())))

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """See ``Turns.run``; gets its turn also while much is to be driven."""
        self._callers.append(None)
        with self.lock:
            self._callers.pop()
            self.turns.news = True
            self.turns.run(function, *args)

    def _refused(self, error: Exception) -> None:
        """Report what the machine refuses; raises the error again if it is a defect of ours."""
        if not is_refusal(error):
            raise error
        now = time.monotonic()
        if now >= self._refused_at + COMPLAIN_S:
            self._refused_at = now
            self._on_report(MachineRefused(str(error)))

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order; the lock is held."""
        table = self._perform
        for action in actions:
            table[type(action)](action)

    def gathered(self, gatherer: Gatherer, at: float) -> None:
        """Something was gathered, and nobody may come to send it: look at it at ``at``; the lock is held."""
        self._active_until = at + ACTIVE_S
        self.call_idle(gatherer, at)

    def call_idle(self, gatherer: Gatherer, at: float) -> None:
        """Call its ``idle`` at ``at``; the lock is held."""
        self._gathering.set(gatherer, at)
        if at < self._look_at:
            self._look_at = at
            self.turns.look_again_at(at)

    def _handle(self, ready: Ready) -> bool:
        """Handle what is there and what is due; returns whether there is more."""
        self._retry()
        for key, mask in ready:
            key.data(mask)
        suspects, self._suspects = self._suspects, {}
        for drain in suspects:
            if drain():
                self._suspects[drain] = None
        if self._hurried:  # nothing is missed: whoever drives next, at once or when the alarm rings, does the rest
            self._hurried = False
            self._look_at = -math.inf
            self.turns.news = True
            return True
        now = self._timeouts()
        for gatherer in self._gathering.due(now):
            rest_s = gatherer.idle()
            self._gathering.set(gatherer, now + rest_s)
        self._plan(now)
        self.turns.news = True
        return bool(self._suspects) and not self._callers and not self._pub.choked

    def _plan(self, now: float) -> None:
        self._look_at = self._gathering.next
        if now < self._active_until:
            self._look_at = min(self._look_at, now + TICK_S)
        if self._pub.waits:
            self._look_at = min(self._look_at, now + RETRY_S)
        elif self._suspects:
            self._look_at = min(self._look_at, now + YIELD_S)  # the lock is not fair: let others have it for once

    def _due(self) -> float:
        due = min(self.discovery.next_timeout(), self._look_at)
        return due if self._pub.choked else min(due, max(self.role.next_timeout(), self._due_from))

    def _timeouts(self) -> float:
        now = time.monotonic()
        if now >= self.discovery.next_timeout():
            self.perform(self.discovery.handle_timeout(now))
        if now >= max(self.role.next_timeout(), self._due_from) and not self._pub.choked:
            try:
                self.perform(self.role.handle_timeout(now))
            except Exception as error:
                self._refused(error)
                self._due_from = now + REFUSED_S
        return now

    # -- sockets in -------------------------------------------------------------------------------------

    def watch_socket(self, sock: zmq.Socket[bytes], drain: Callable[[], bool]) -> None:
        """Have ``drain`` called when the socket may have something; it returns whether more is there."""
        descriptor = int(sock.getsockopt(zmq.FD))
        self._drains[descriptor] = drain
        self.turns.register(descriptor, selectors.EVENT_READ, lambda mask: self.suspect(drain))
        self.suspect(drain)

    def unwatch_socket(self, sock: zmq.Socket[bytes]) -> None:
        """Take back ``watch_socket``."""
        descriptor = int(sock.getsockopt(zmq.FD))
        self.turns.unregister(descriptor)
        self._drains.pop(descriptor, None)

    def suspect(self, drain: Callable[[], bool]) -> None:
        """The socket of ``drain`` was used otherwise: its descriptor may not tell what arrived meanwhile."""
        self._suspects[drain] = None

    def receive(self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes]], Sequence[Action]]) -> bool:
        """Handle what a socket has; returns whether there may be more. Malformed messages are counted."""
        return self._receive(sock, lambda: sock.recv_multipart(_NOBLOCK), handle)

    def receive_views(
        self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes | memoryview]], Sequence[Action]]
    ) -> bool:
        """As ``receive``, without a copy of parts that are large."""
        return self._receive(sock, lambda: take(sock), handle)

    def receive_frames(self, sock: zmq.Socket[bytes], handle: Callable[[list[zmq.Frame]], Sequence[Action]]) -> bool:
        """As ``receive``, with frames that know the connection they came over."""
        return self._receive(sock, lambda: sock.recv_multipart(_NOBLOCK, copy=False), handle)

    def _receive(
        self,
        sock: zmq.Socket[bytes],
        receive: Callable[[], list[T]],
        handle: Callable[[list[T]], Sequence[Action]],
        paused: Callable[[], bool] | None = None,
    ) -> bool:
        size = 0
        for number in range(DRAIN_MAX):
            if size >= DRAIN_BYTES:
                return True
            if self._pub.choked or (paused is not None and paused()):
                return False  # left in the queue, until there is room for it and for what comes of it
            try:
                frames = receive()
            except zmq.Again:
                if paused is not None:
                    self._lone = number <= 1
                return False
            except zmq.ZMQError:
                if sock.closed:  # by what was just handled
                    return False
                raise
            size += len(frames[-1])
            try:
                self.perform(handle(frames))
            except ProtocolError as error:
                self._complain(error)
            except Exception as error:  # this message alone is lost, and whoever sent it asks again
                self._refused(error)
            if not number and self._lone and paused is not None:
                self._flush()
            if self._lone and paused is not None and self.turns.over:
                self._lone = False  # unless nothing was behind it
                self._hurried = True
                return True  # whoever waited for it gets it first
        return True

    def _flush(self) -> None:
        """Make the core deliver what it gathered while more input was pending."""
        if self._flush_role is not None:
            self.perform(self._flush_role(time.monotonic()))

    def _complain(self, error: ProtocolError) -> None:
        self.malformed += 1
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            logger.warning("dropped a malformed message (%s); %d so far", error, self.malformed)

    def _retry(self) -> None:
        """Send what waited for a full peer; receiving goes on if too much did."""
        choked = self._pub.choked
        self._pub.retry()
        if choked and not self._pub.choked:
            for drain in self._drains.values():
                self.suspect(drain)

    def _paused(self) -> bool:
        return getattr(self.role, "paused", False)

    def resume(self) -> None:
        """The core is no longer paused."""
        for each in self._hearing:
            self.suspect(each)
        self.turns.wake()

    def on_message(self, frames: Sequence[bytes | memoryview], who: str = "") -> Sequence[Action]:
        """A member published something; with keys ``who`` did is known."""
        if self.tapped is not None:
            self.tapped([bytes(each) for each in frames])
        message = decode(frames)
        if self.guard is not None:
            allowed = self.guard.message(who, message)
            if allowed is None:
                return ()
            message = allowed
        self.traffic.took(message, len(frames[0]) + len(frames[-1]) * (len(frames) > 1))
        if isinstance(message, AskTraffic):
            return self._tell_traffic(message)
        if isinstance(message, StoreInfo):
            self.discovery.store_heard(message.address, time.monotonic())
        return self.role.handle_message(message, time.monotonic())

    def _tell_traffic(self, question: AskTraffic) -> Sequence[Action]:
        """Somebody looks at what passes."""
        role = self.role
        carries = role.carries if isinstance(role, Carrying) else ()
        full = self._paused() or self._pub.choked
        told = self.traffic.answer(question, carries, self._pub.kept - self._pub.sent, full, time.monotonic())
        return () if told is None or question.topic != self.address else (Publish(told),)

    def told(self, message: Message) -> Sequence[Action]:
        """As ``on_message``, where the message was looked at already."""
        return self.role.handle_message(message, time.monotonic())

    def _drain_pub(self) -> bool:
        return self.receive_frames(self._pub.socket, self._on_subscription)

    def _on_subscription(self, frames: list[zmq.Frame]) -> Sequence[Action]:
        found = self._pub.subscription(frames)
        if self.guard is not None and found == (PERMISSIONS, True):
            self._meeting.joined()
        return () if found is None or found[0][:1] == ASKS else self.role.handle_subscription(*found, time.monotonic())

    def _answered(self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview]) -> Sequence[Action]:
        return cast(Asking, self.role).handle_answer(request_id, answer, batches, time.monotonic())

    # -- sockets out --------------------------------------------------------------------------------------

    def publish(self, frames: list[bytes]) -> None:
        """Send to whoever subscribed, without waiting; full peers are waited for a little by whoever drives."""
        self.suspect(self._drain_pub)
        self._pub.send(frames)
        if self._pub.waits:
            self._look_at = min(self._look_at, time.monotonic() + RETRY_S)
            self.turns.look_again_at(self._look_at)

    def published(self) -> Callable[[], bool]:
        """Tells whether everything published before this call was taken, by full peers too, or lost by them."""
        mark = self._pub.kept
        return lambda: self._pub.sent >= mark

    def subscriptions(self) -> tuple[int, Callable[[], dict[str, list[bytes]]]]:
        """A number that rises when members subscribe, and what tells who did to what; the lock is held."""
        return self._pub.changes, self._pub.subscriptions

    @property
    def choked(self) -> bool:
        """Whether so much waits for full peers that nothing more should be published."""
        return self._pub.choked

    def _connect(self, action: Connect) -> None:
        logger.info("member %s is at %s", action.address, action.endpoint)
        self._meeting.connect(action)

    def _disconnect(self, action: Disconnect) -> None:
        logger.info("member %s is no longer at %s", action.address, action.endpoint)
        self._meeting.disconnect(action)
        self._gone(action.address)

    def _gone(self, address: str) -> None:
        if address:  # else it is still there, at another endpoint
            self.perform(self.role.handle_gone(address, time.monotonic()))

    def _halt(self, action: Halt) -> None:
        raise RuntimeError(action.reason)

    def _stopped(self, reason: str) -> None:
        self._on_report(Stopped(reason))
        self.halt_event.set()
