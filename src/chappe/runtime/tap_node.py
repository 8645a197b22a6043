"""A tap: a socket at which others see what passes through a member, without slowing it.

The member puts what passes into a feed, a bounded list, and only while somebody looks; nothing is read of it then. When
somebody asks, a thread that does not hold the member's lock reads what the feed has, as much as it may in the time that
has gone by, and answers. The rest is counted.
"""

from __future__ import annotations

import logging
import selectors
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import zmq

from chappe.defaults import MIB
from chappe.errors import ProtocolError
from chappe.log.guard import Refusal
from chappe.permissions.rules import ADMINISTER
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.turns import Ready, Turns
from chappe.system import time
from chappe.system.forking import own
from chappe.tapping.messages import QUESTION_BYTES_MAX, Look, Passed, Refused, Shown, decode_look, encode, unknown_kind
from chappe.tapping.sessions import Sessions, Wants
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate, sender_of
from chappe.transports.zeromq import open_socket

logger = logging.getLogger(__name__)

FEED_MESSAGES_MAX: Final = 16_384  # that wait to be looked at ...
FEED_BYTES_MAX: Final = 16 * MIB  # ... and bytes in them
LOOKS_PER_S: Final = 5_000  # messages that are read for those who look; some percent of a processor ...
LOOKS_MAX: Final = 2_000  # ... at most so many at once
DRAIN_MAX: Final = 64  # questions taken before others get their turn
_NOBLOCK: Final = int(zmq.NOBLOCK)

# Reads what has one of these topics, and says which of the messages it is, from 1 on.
Read = Callable[[tuple[bytes, ...]], Iterable[tuple[int, Passed]]]


class Feed:
    """What has passed and was not looked at yet. Put into it with the member's lock held; taken by another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Read]] = []
        self._messages = self._bytes = self._missed = 0

    def put(self, count: int, size: int, read: Read) -> None:
        """So many messages pass, of so many bytes; ``read`` is called later or never."""
        with self._lock:
            if self._messages + count > FEED_MESSAGES_MAX or self._bytes + size > FEED_BYTES_MAX:
                self._missed += count
                return
            self._waiting.append((count, read))
            self._messages += count
            self._bytes += size

    def take(self) -> tuple[list[tuple[int, Read]], int]:
        """All that waits, and how much had no room."""
        with self._lock:
            waiting, missed = self._waiting, self._missed
            self._waiting = []
            self._messages = self._bytes = self._missed = 0
        return waiting, missed


class Tapped(Protocol):
    """A member that is looked at; called without its lock."""

    def feed(self, feed: Feed | None) -> None:
        """Put into it from now on what passes; None: nobody looks any more."""

    def wants(self) -> Wants | None:
        """Who wants what; None if that is as it was when it was asked last."""


class TapNode:
    """Answers those who look at one member.

    Args:
        host: Where to listen; port 0: any.
        gate: Lets in who has keys, to look at what he may ``administer``; None: whoever reaches the port may look.

    Raises:
        AddressInUse: Somebody listens there.
        UsageError: The host is not one of this machine.
    """

    def __init__(self, tapped: Tapped, host: str, port: int, gate: Gate | None = None) -> None:
        own(self)
        self._tapped = tapped
        self._sessions = Sessions(SYSTEM_CLOCK)
        self._feed: Feed | None = None  # while somebody looks
        self._looked_at = 0.0
        self._left = float(LOOKS_MAX)  # messages that may be read now
        self._gate = gate
        self._router = open_socket(zmq.ROUTER, gate)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.MAXMSGSIZE, QUESTION_BYTES_MAX)
        try:
            self.port = bind(self._router, host, port, gate)
        except BaseException:
            self._router.close()
            raise
        self.turns = Turns(self._handle, self._sessions.next_timeout, self._halted, what="tap", eager=True)
        self.turns.register(int(self._router.getsockopt(zmq.FD)), selectors.EVENT_READ, lambda mask: None)
        self.turns.start()

    def close(self) -> None:
        """Stop answering; safe to call twice."""
        with self.turns.lock:
            if self.turns.closed:
                return
            self.turns.closed = True
        self.turns.stop()
        self._unfeed()
        with self.turns.lock:
            self._router.close()
            self.turns.release()

    def _halted(self, reason: str) -> None:
        logger.error("a tap has stopped: %s", reason)
        self._unfeed()

    def _unfeed(self) -> None:
        if self._feed is not None:
            self._feed = None
            self._tapped.feed(None)

    def _handle(self, ready: Ready) -> bool:
        for key, mask in ready:
            key.data(mask)
        more = self._answer()
        self._sessions.handle_timeout(time.monotonic())
        if not self._sessions:
            self._unfeed()
        return more

    def _answer(self) -> bool:
        for _ in range(DRAIN_MAX):
            try:
                frames = self._router.recv_multipart(_NOBLOCK, copy=False)
            except zmq.Again:
                return False
            try:
                self._on_question([each.bytes for each in frames], sender_of(frames))
            except ProtocolError as error:
                logger.info("a tap was sent something else: %s", error)
        return True

    def _on_question(self, frames: list[bytes], who: str) -> None:
        if len(frames) != 2:
            raise ProtocolError(f"a question of {len(frames)} frames")
        client, now = frames[0], time.monotonic()
        unknown = unknown_kind(frames[1])
        if unknown is not None:
            self._reply(client, unknown)
            return
        look = decode_look(frames[1])
        self._look(now)
        refusal = self._forbidden(who, look)
        answer: Refused | Shown | None
        answer = Refused(str(refusal)) if refusal is not None else self._sessions.look(client, look, now)
        if answer is None:
            if self._feed is None:
                self._feed, self._looked_at = Feed(), now
                self._tapped.feed(self._feed)
            answer = self._sessions.take(client)
        self._reply(client, answer)

    def _reply(self, client: bytes, answer: Refused | Shown) -> None:
        try:
            self._router.send_multipart([client, encode(answer)], _NOBLOCK)
        except zmq.ZMQError:  # it has left, or asks without taking answers
            self._sessions.forget(client)

    def _forbidden(self, who: str, look: Look) -> Refusal | None:
        """Why somebody with keys may not see that; None if he may."""
        if self._gate is None:
            return None
        topics = [each.decode("utf-8", "surrogateescape") for each in look.topics] or [""]
        found = [self._gate.forbids(who, ADMINISTER, each, subtree=True) for each in topics]
        refusal = next(filter(None, found), None)
        if refusal is not None:
            self._gate.refuse(refusal)
        return refusal

    def _look(self, now: float) -> None:
        """Read what has passed, for all who look."""
        wants = self._tapped.wants()
        if wants is not None:
            self._sessions.show_wants(wants)
        if self._feed is None:
            return
        waiting, missed = self._feed.take()
        self._left = min(LOOKS_MAX, self._left + (now - self._looked_at) * LOOKS_PER_S)
        self._looked_at = now
        wanted = self._sessions.prefixes
        seen: list[Passed] = []
        for count, read in waiting:
            place = 0
            if len(seen) < self._left:
                for at, passed in read(wanted):
                    seen.append(passed)
                    if len(seen) >= self._left:
                        place = at
                        break
                else:
                    continue
            missed += count - place
        self._left -= len(seen)
        self._sessions.show(seen, missed)
