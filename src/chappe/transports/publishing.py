"""The socket that a node publishes on: who gets what, and what becomes of a peer that does not take it."""

from __future__ import annotations

import math
import os
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from chappe.defaults import (
    BACKLOG_BYTES_MAX,
    FULL_PEER_LOSSY_MAX_S,
    FULL_PEER_LOSSY_S,
    SUBSCRIBED_BYTES_MAX,
    SUBSCRIBED_PEER_BYTES_MAX,
    SUBSCRIPTION_BYTES_MAX,
)
from chappe.errors import ProtocolError
from chappe.system import time
from chappe.transports.gate import Gate
from chappe.transports.zeromq import open_socket

LINGER_MS: Final = 2_000
RETRY_S: Final = 0.001  # how often a full peer is tried again
_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class PublishingSocket:
    """An XPUB whose subscriptions are set by hand. Nothing waits in it: what a full peer holds up is kept here.

    A peer whose queue is full is waited for a little, and everything behind it waits too; if it stays full, it loses
    what is published for a while (and fetches that later), each time longer, so that it cannot hold up the others for
    long.
    """

    def __init__(self, full_peer_wait_s: float, gate: Gate | None = None) -> None:
        self.socket = open_socket(zmq.XPUB, gate)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)
        self.socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        self._greedy = Greedy()
        self.changes = 0  # rises when somebody subscribes, or no longer does
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
        """Whether something waits for a full peer: ``retry`` is to be called soon."""
        return bool(self._waiting)

    @property
    def choked(self) -> bool:
        """Whether so much waits that nothing more should be published."""
        return self.waiting_bytes >= BACKLOG_BYTES_MAX

    def send(self, frames: list[bytes]) -> None:
        """Send to whoever subscribed, or keep it behind what waits already."""
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
        """Send what waits, as far as it goes by now; if not ``patient`` full peers lose at once."""
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
        """Drop what full peers would get, for a while."""
        soon = now - self._lossy_until < 2 * self._full_peer_wait_s
        self._lossy_s = min(2 * self._lossy_s, FULL_PEER_LOSSY_MAX_S) if soon else FULL_PEER_LOSSY_S
        self._lossy, self._lossy_until = True, now + self._lossy_s
        self.socket.setsockopt(zmq.XPUB_NODROP, 0)

    def subscription(self, frames: list[zmq.Frame]) -> tuple[bytes, bool]:
        """A peer, the one whose message was just received, wants a prefix or no longer: which, and whether it does.

        Raises:
            ProtocolError: It sent something else, or wants too much and was cut off.
        """
        raw = frames[0].bytes
        on, prefix = raw[:1] == b"\1", raw[1:]
        if len(frames) != 1 or (not on and raw[:1] != b"\0"):
            raise ProtocolError("message to a publishing socket")
        # A peer that knows batches is spared the single records, which it also had to ask for because it cannot know
        # who sends them only; it may ask for either first.
        spared = self._greedy.count(frames[0], prefix, on)
        self.changes += 1
        self.socket.setsockopt(zmq.SUBSCRIBE if on and not spared else zmq.UNSUBSCRIBE, prefix)
        if on and prefix[:1] == b"R":
            self.socket.setsockopt(zmq.UNSUBSCRIBE, b"M" + prefix[1:])
        return prefix, on

    def subscriptions(self) -> dict[str, list[bytes]]:
        """Who wants which prefixes: connections, by their addresses."""
        return self._greedy.subscriptions()


PREFIX_BYTES: Final = 64  # each counts so much more than its length


@dataclass(slots=True)
class _Connection:
    peer: Any  # its address: a descriptor may be another connection's by now
    prefixes: set[bytes] = field(default_factory=set)
    bytes: int = 0


class Greedy:
    """The connections of one publishing socket: how much each subscribes to, and an end to those that do to too much.

    libzmq keeps every prefix of every peer, some fifty bytes for each byte of it, before the program is asked. A
    publishing socket does not say whose subscription it is, but the message knows the descriptor of its connection. A
    connection that is shut down takes its subscriptions along.
    """

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}  # as many as there may be descriptors
        self._bytes = 0  # of all of them together
        self._ended = False  # some of them, perhaps

    def count(self, frame: zmq.Frame, prefix: bytes, on: bool) -> bool:
        """One more subscription, or one less; returns whether it is to single records of what it gets batches of.

        Raises:
            ProtocolError: A connection had too many, and was cut off.
        """
        descriptor = _descriptor(frame)
        if descriptor < 0:
            self._ended = True
            return False  # a connection ended: its subscriptions end one by one
        if self._ended:  # what is new may have the descriptor of one that ended
            self._forget_ended()
        connection = self._connections.get(descriptor)
        if connection is None:
            connection = self._connections[descriptor] = _Connection(_peer(descriptor))
        (connection.prefixes.add if on else connection.prefixes.discard)(prefix)
        size = PREFIX_BYTES + len(prefix)
        change = size if on else -min(size, connection.bytes)
        connection.bytes += change
        self._bytes += change
        if on and connection.bytes > SUBSCRIBED_PEER_BYTES_MAX:
            self._cut(descriptor)
        elif on and self._bytes > SUBSCRIBED_BYTES_MAX:
            self._forget_ended()
            if self._bytes > SUBSCRIBED_BYTES_MAX:
                self._cut(max(self._connections, key=lambda each: self._connections[each].bytes))
        return prefix[:1] == b"M" and b"R" + prefix[1:] in connection.prefixes

    def subscriptions(self) -> dict[str, list[bytes]]:
        """See ``PublishingSocket.subscriptions``."""
        self._forget_ended()
        return {f"{each.peer[0]}:{each.peer[1]}": sorted(each.prefixes) for each in self._connections.values()}

    def _forget_ended(self) -> None:
        """Which connection ended is not told, so they are looked for when it matters."""
        self._ended = False
        for descriptor, connection in list(self._connections.items()):
            if connection.peer is None or _peer(descriptor) != connection.peer:
                self._forget(descriptor)

    def _forget(self, descriptor: int) -> _Connection:
        connection = self._connections.pop(descriptor)
        self._bytes -= connection.bytes
        return connection

    def _cut(self, descriptor: int) -> None:
        connection = self._forget(descriptor)
        peer = _peer(descriptor)
        if peer is None or peer != connection.peer:
            return  # that one has ended; another one has its descriptor, and is counted anew
        try:
            with socket.socket(fileno=os.dup(descriptor)) as doubled:
                doubled.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has just ended by itself
        raise ProtocolError(f"the member at {peer[0]}:{peer[1]} subscribed to more than anybody needs, and was cut off")


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def _peer(descriptor: int) -> Any:
    """The address at the other end; None if there is none any more."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as doubled:
            return doubled.getpeername()
    except OSError:
        return None
