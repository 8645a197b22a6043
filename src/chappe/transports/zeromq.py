"""The ZeroMQ sockets of a node: their bounds, how they notice a lost peer, and how a publisher treats a slow one."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from chappe.defaults import (
    BACKLOG_BYTES_MAX,
    FULL_PEER_LOSSY_MAX_S,
    FULL_PEER_LOSSY_S,
    HANDSHAKE_TIMEOUT_S,
    HEARTBEAT_S,
    KIB,
    MESSAGE_BYTES_MAX,
    QUEUE_MESSAGES_MAX,
    RECONNECT_MAX_S,
    RECONNECT_S,
    SUBSCRIBED_BYTES_MAX,
    SUBSCRIBED_PEER_BYTES_MAX,
    SUBSCRIPTION_BYTES_MAX,
)
from chappe.errors import ProtocolError, TooManyOpenFiles
from chappe.log.guard import Guard
from chappe.log.handing_on import is_handed_on
from chappe.system import machine, time
from chappe.system.limits import EXHAUSTED, TEXT
from chappe.transports.gate import Gate, user_of

_HEARTBEAT: Final = ((zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000)), (zmq.HEARTBEAT_TIMEOUT, int(3 * HEARTBEAT_S * 1000)))
# A SUB that is not read for a while does not see the answers to its pings either. It would redial, and libzmq then
# ends the process with "Assertion failed: _input_stopped" (its issue 3937). The kernel's probes know no such wait.
_KEEPALIVE: Final = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, int(HEARTBEAT_S)),
    (zmq.TCP_KEEPALIVE_INTVL, int(HEARTBEAT_S)),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)


# How long a closed socket goes on sending. A message of several parts that is given up halfway, while its peer goes,
# would have libzmq end the process with "Resource temporarily unavailable" (its issue 3442). So it is longer than a
# peer can be silent before its connection ends. What is closed in order is sent in milliseconds.
LINGER_MS: Final = 30_000
# What dials keeps its descriptors so long for a peer that is not there, to which it has little to say.
DIALLING_LINGER_MS: Final = 2_000
_LINGER_MS: Final[dict[int, int]] = {zmq.DEALER: DIALLING_LINGER_MS, zmq.SUB: 100}  # what a SUB sends has one part each
SOCKETS_MAX: Final = 16_384  # of this process; what ZeroMQ allows by default is 250 members


def new_socket(kind: int, gate: Gate | None = None) -> zmq.Socket[bytes]:
    """Return a socket of this kind with ZeroMQ's defaults, except that silent connections end sooner.

    Args:
        gate: Of a socket that is to have keys.

    Raises:
        TooManyOpenFiles: There are too many.
    """
    try:
        made = machine.current().zeromq(kind, SOCKETS_MAX) if gate is None else gate.context.socket(kind)
    except zmq.ZMQError as error:
        if error.errno in EXHAUSTED:
            raise TooManyOpenFiles(TEXT) from None
        raise
    made.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_TIMEOUT_S * 1000))
    return made


def open_socket(kind: int, gate: Gate | None = None) -> zmq.Socket[bytes]:
    """Return a socket of this kind, neither bound nor connected; closed, it goes on sending for a while."""
    made = new_socket(kind, gate)
    for option, value in (
        (zmq.LINGER, _LINGER_MS.get(kind, LINGER_MS)),
        # A SUB sends nothing but subscriptions, and would drop those beyond the bound.
        (zmq.SNDHWM, 0 if kind == zmq.SUB else QUEUE_MESSAGES_MAX),
        (zmq.RCVHWM, QUEUE_MESSAGES_MAX),
        (zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX),
        (zmq.RECONNECT_IVL, int(RECONNECT_S * 1000)),
        (zmq.RECONNECT_IVL_MAX, int(RECONNECT_MAX_S * 1000)),
        *(_KEEPALIVE if kind == zmq.SUB else _HEARTBEAT),
    ):
        made.setsockopt(option, value)
    return made


# Copying so much takes longer than looking at it where it came: measured, half as long at 16 KiB, and twice at 32 KiB.
VIEWED_BYTES: Final = 24 * KIB
_NOBLOCK: Final = int(zmq.NOBLOCK)


def take(sock: zmq.Socket[bytes]) -> list[bytes | memoryview]:
    """Return the parts of the next message; large ones behind the first are not copied.

    Such a part has its memory to itself, which is freed once nobody holds the view any more, or a view of it.

    Raises:
        zmq.Again: There is none.
    """
    head, *rest = sock.recv_multipart(_NOBLOCK, copy=False)
    return [head.bytes, *(each.bytes if len(each) < VIEWED_BYTES else each.buffer for each in rest)]


def taking(sock: zmq.Socket[bytes], *, views: bool = True) -> Callable[[], list[bytes | memoryview]]:
    """Return a ``take`` that copies small messages and those behind them, which is faster; without ``views``, all."""
    large = False

    def take_next() -> list[bytes | memoryview]:
        nonlocal large
        parts: list[bytes | memoryview] = take(sock) if large else sock.recv_multipart(_NOBLOCK)  # type: ignore[assignment]
        large = views and len(parts[-1]) >= VIEWED_BYTES
        return parts

    return take_next


RETRY_S: Final = 0.001  # how often a full peer is tried again
_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class PublishingSocket:
    """An XPUB whose subscriptions are set by hand. Messages that a full peer holds up wait here, not in ZeroMQ.

    A peer whose queue is full is waited for a little, and everything behind it waits too; if it stays full, it loses
    publications for a while (and fetches them later), each time longer, so that it cannot hold up the others for
    long.

    Args:
        guard: Narrows subscriptions; None where there are no keys.

    Attributes:
        dialled: The identities that we dial and whose subscriptions come; else each comes with the identity let in.
        strangers: The identity of those that come without keys, where they may.
    """

    def __init__(self, full_peer_wait_s: float, gate: Gate | None = None, guard: Guard | None = None) -> None:
        self.dialled = ""
        self.strangers = ""
        self._guard = guard
        self._refused: Counter[bytes] = Counter()  # subscriptions that are not honoured
        self.socket = open_socket(zmq.XPUB, gate)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)
        self.socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        self._greedy = Greedy()
        self.changes = 0  # rises when somebody subscribes, or no longer does
        self.midway = False  # a subscription to batches may follow one to single records
        self._full_peer_wait_s = full_peer_wait_s
        self._lossy = False
        self._lossy_until = -math.inf
        self._lossy_s = FULL_PEER_LOSSY_S
        self._waiting: deque[tuple[bytes, int]] = deque()  # frames with their flags
        self.waiting_bytes = 0
        self.kept = self.sent = 0  # frames that ever waited, and those of them that wait no more
        self._deadline = math.inf  # when the peer that the first of them waits for begins to lose

    @property
    def waits(self) -> bool:
        """True if something waits for a full peer: ``retry`` is to be called soon."""
        return bool(self._waiting)

    @property
    def choked(self) -> bool:
        """True if so much waits that nothing more should be published."""
        return self.waiting_bytes >= BACKLOG_BYTES_MAX

    def send(self, frames: list[bytes]) -> None:
        """Send to all subscribers, or keep it behind messages that wait already."""
        if self._lossy and time.monotonic() >= self._lossy_until:
            self._lossy = False
            self.socket.setsockopt(zmq.XPUB_NODROP, 1)
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            flags = _MORE if index < last else _LAST
            if not self._waiting:
                try:
                    self.socket.send(frame, flags)
                    continue
                except zmq.Again:
                    self._deadline = time.monotonic() + self._full_peer_wait_s
            self._waiting.append((frame, flags))
            self.waiting_bytes += len(frame)
            self.kept += 1

    def retry(self, *, patient: bool = True) -> None:
        """Send waiting messages, as far as possible by now; if not ``patient`` full peers lose at once."""
        while self._waiting:
            frame, flags = self._waiting[0]
            try:
                self.socket.send(frame, flags)
            except zmq.Again:
                now = time.monotonic()
                if patient and now < self._deadline:
                    return
                self._lose(now)
                continue
            self._waiting.popleft()
            self.waiting_bytes -= len(frame)
            self.sent += 1
            self._deadline = time.monotonic() + self._full_peer_wait_s

    def _lose(self, now: float) -> None:
        """Drop messages to full peers, for a while."""
        soon = now - self._lossy_until < 2 * self._full_peer_wait_s
        self._lossy_s = min(2 * self._lossy_s, FULL_PEER_LOSSY_MAX_S) if soon else FULL_PEER_LOSSY_S
        self._lossy, self._lossy_until = True, now + self._lossy_s
        self.socket.setsockopt(zmq.XPUB_NODROP, 0)

    def subscription(self, frames: list[zmq.Frame]) -> tuple[bytes, bool] | None:
        """Return the prefix that the sender of the last message wants, or no longer wants, and which of the two.

        None if it may not.

        Raises:
            ProtocolError: It sent something else, or wants too much and was cut off.
        """
        self.midway = False
        raw = frames[0].bytes
        on, prefix = raw[:1] == b"\1", raw[1:]
        if len(frames) != 1 or (not on and raw[:1] != b"\0"):
            raise ProtocolError("message to a publishing socket")
        # A peer that knows batches is spared the single records, which it also had to ask for because it cannot know
        # who sends them only; it may ask for either first.
        connection = self._greedy.count(frames[0], prefix, on)
        self.midway = on and connection is not None and b"M" <= prefix[:1] < b"R"
        self.changes += 1
        if self._guard is not None:
            return (prefix, on) if self._judged(self._guard, frames[0], connection, prefix, on) else None
        spared = connection is not None and connection.spared(prefix)
        self.socket.setsockopt(zmq.SUBSCRIBE if on and not spared else zmq.UNSUBSCRIBE, prefix)
        if on and prefix[:1] == b"R":
            self.socket.setsockopt(zmq.UNSUBSCRIBE, b"M" + prefix[1:])
        return prefix, on

    def _judged(self, guard: Guard, frame: zmq.Frame, connection: Connection | None, prefix: bytes, on: bool) -> bool:
        """Honour the allowed part of a subscription; return whether the core is to know of it."""
        if connection is None:  # whose it was is not told: of several the first to end counts as one that was refused
            if self._refused[prefix]:
                self._less_refused(prefix)
                return False
            guard.unsubscribed(prefix)
            return True
        if not on:
            return self._ended(guard, connection, prefix)
        if prefix in connection.honoured:  # a second time
            return False
        known = self.dialled or user_of(frame)
        connection.who = known or self.strangers
        private = is_handed_on(prefix) and not known  # who has no keys is not told who has some
        honoured = connection.honoured[prefix] = [] if private else guard.subscribed(connection.who, prefix)
        if not honoured:
            self._refused[prefix] += 1
            return False
        if not connection.spared(prefix):
            for each in honoured:
                self.socket.setsockopt(zmq.SUBSCRIBE, each)
        if prefix[:1] == b"R":
            for each in connection.honoured.get(b"M" + prefix[1:], ()):
                self.socket.setsockopt(zmq.UNSUBSCRIBE, each)
        return True

    def _ended(self, guard: Guard, connection: Connection, prefix: bytes) -> bool:
        honoured = connection.honoured.pop(prefix, None)
        if honoured is None:
            return False
        if not honoured and self._refused[prefix]:
            self._less_refused(prefix)
            return False
        needed = {each for others in connection.honoured.values() for each in others}
        for each in honoured:
            if each not in needed:
                self.socket.setsockopt(zmq.UNSUBSCRIBE, each)
        guard.unsubscribed(prefix)
        return True

    def _less_refused(self, prefix: bytes) -> None:
        self._refused[prefix] -= 1
        if not self._refused[prefix]:
            del self._refused[prefix]

    def judge_again(self) -> None:
        """Cut off peers whose rights have changed with the permissions; they subscribe anew."""
        if self._guard is not None:
            self._greedy.judge_again(self._guard)

    def subscriptions(self) -> dict[str, list[bytes]]:
        """Return the prefixes wanted by each connection, by their addresses."""
        return self._greedy.subscriptions()


PREFIX_BYTES: Final = 64  # each counts so much more than its length


@dataclass(slots=True)
class Connection:
    """A connection of a publishing socket; with keys its identity ``who``, and the honoured part of each prefix."""

    ends: Any  # both addresses: a descriptor may be another connection's by now, also to the same peer if we dial it
    prefixes: set[bytes] = field(default_factory=set)
    size: int = 0
    who: str = ""
    honoured: dict[bytes, list[bytes]] = field(default_factory=dict)

    def spared(self, prefix: bytes) -> bool:
        """Return True if it is sent batches of what it wants single records of, too."""
        return prefix[:1] == b"M" and b"R" + prefix[1:] in self.prefixes


class Greedy:
    """The connections of one publishing socket: how much each subscribes to, and an end to those that do to too much.

    libzmq keeps every prefix of every peer, some fifty bytes for each byte of it, before the program is asked. A
    publishing socket does not name the connection of a subscription, but the message knows its descriptor. A
    connection that is shut down takes its subscriptions along.
    """

    def __init__(self) -> None:
        self._connections: dict[int, Connection] = {}  # as many as there may be descriptors
        self._bytes = 0  # of all of them together
        self._ended = False  # some of them, perhaps

    def count(self, frame: zmq.Frame, prefix: bytes, on: bool) -> Connection | None:
        """Count a subscription or its end; return its live connection, or None. Raises ProtocolError: too many."""
        descriptor = _descriptor(frame)
        if descriptor < 0:
            self._ended = True
            return None  # a connection ended: its subscriptions end one by one
        if self._ended:  # what is new may have the descriptor of one that ended
            self._forget_ended()
        connection = self._connections.get(descriptor)
        if (
            connection is not None
            and on
            and prefix in connection.honoured
            and machine.current().ends(descriptor) != connection.ends
        ):
            self._forget(descriptor)  # it ended, and another one has its descriptor
            connection = None
        if connection is None:
            connection = self._connections[descriptor] = Connection(machine.current().ends(descriptor))
        (connection.prefixes.add if on else connection.prefixes.discard)(prefix)
        size = PREFIX_BYTES + len(prefix)
        change = size if on else -min(size, connection.size)
        connection.size += change
        self._bytes += change
        if on and connection.size > SUBSCRIBED_PEER_BYTES_MAX:
            self._cut(descriptor)
        elif on and self._bytes > SUBSCRIBED_BYTES_MAX:
            self._forget_ended()
            if self._bytes > SUBSCRIBED_BYTES_MAX:
                self._cut(max(self._connections, key=lambda each: self._connections[each].size))
        return connection

    def subscriptions(self) -> dict[str, list[bytes]]:
        self._forget_ended()
        return {_shown(each.ends): sorted(each.prefixes) for each in self._connections.values()}

    def judge_again(self, guard: Guard) -> None:
        """Cut off connections whose prefixes would be honoured differently by now."""
        self._forget_ended()
        for descriptor, each in list(self._connections.items()):
            if any(guard.scope(each.who, prefix) != granted for prefix, granted in each.honoured.items()):
                self._ended = True
                machine.current().shut_down(descriptor)

    def _forget_ended(self) -> None:
        """Forget ended connections; ZeroMQ does not say which ended, so they are looked for when it matters."""
        self._ended = False
        for descriptor, connection in list(self._connections.items()):
            if connection.ends is None or machine.current().ends(descriptor) != connection.ends:
                self._forget(descriptor)

    def _forget(self, descriptor: int) -> Connection:
        connection = self._connections.pop(descriptor)
        self._bytes -= connection.size
        return connection

    def _cut(self, descriptor: int) -> None:
        connection = self._forget(descriptor)
        ends = machine.current().ends(descriptor)
        if ends is None or ends != connection.ends:
            return  # that one has ended; another one has its descriptor, and is counted anew
        if not machine.current().shut_down(descriptor):
            return  # it has just ended by itself
        raise ProtocolError(f"the member at {_shown(ends)} subscribed to more than anybody needs, and was cut off")


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def _shown(ends: Any) -> str:
    peer = ends[0]
    return f"{peer[0]}:{peer[1]}"
