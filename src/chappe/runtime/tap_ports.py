"""A tap: a socket at which others see what passes through a member, without slowing it.

The member puts what passes into a feed, a bounded list, and only while somebody looks; nothing is read of it then. When
somebody asks, a thread that does not hold the member's lock reads what the feed has, as much as it may in the time that
has gone by, and answers. The rest is counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import zmq

from chappe.core import Effect, Reply
from chappe.defaults import MIB
from chappe.errors import ProtocolError
from chappe.log.guard import LogRefusal
from chappe.permissions.rules import ADMINISTER
from chappe.runtime.driver import SYSTEM_CLOCK, Driver, Frames, Inlet, Ports
from chappe.system import time
from chappe.tapping.messages import QUESTION_BYTES_MAX, Look, Passed, Refused, decode_look, encode, unknown_kind
from chappe.tapping.sessions import Sessions, Wants
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate, sender_of
from chappe.transports.zeromq import open_socket

logger = logging.getLogger(__name__)

FEED_MESSAGES_MAX: Final = 16_384  # that wait to be looked at ...
FEED_BYTES_MAX: Final = 16 * MIB  # ... and bytes in them
LOOKS_PER_S: Final = 5_000  # messages that are read for those who look; some percent of a processor ...
LOOKS_MAX: Final = 2_000  # ... at most so many at once
_NOBLOCK: Final = int(zmq.NOBLOCK)

# Reads what has one of these topics, and says which of the messages it is, from 1 on.
Read = Callable[[tuple[bytes, ...]], Iterable[tuple[int, Passed]]]


class Feed:
    """Messages that passed and were not looked at yet. Put in with the member's lock held; taken by another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Read]] = []
        self._messages = self._bytes = self._missed = 0

    def put(self, count: int, size: int, read: Read) -> None:
        """Note that so many messages pass, of so many bytes; ``read`` is called later or never."""
        with self._lock:
            if self._messages + count > FEED_MESSAGES_MAX or self._bytes + size > FEED_BYTES_MAX:
                self._missed += count
                return
            self._waiting.append((count, read))
            self._messages += count
            self._bytes += size

    def take(self) -> tuple[list[tuple[int, Read]], int]:
        """Take everything that waits; return also how much had no room."""
        with self._lock:
            waiting, missed = self._waiting, self._missed
            self._waiting = []
            self._messages = self._bytes = self._missed = 0
        return waiting, missed


class Tapped(Protocol):
    """A member that is looked at; called without its lock."""

    def feed(self, feed: Feed | None) -> None:
        """Put passing messages into a feed from now on; None: nobody looks any more."""

    def wants(self) -> Wants | None:
        """Return the subscriptions; None if they are unchanged since the last call."""


class TapPorts(Ports):
    """The socket and the feed by which one member is looked at.

    Args:
        host: Where to listen; port 0: any.
        gate: Lets in identities that may ``administer`` what they look at; None: everybody who reaches the port.

    Raises:
        AddressInUse: Somebody listens there.
        UsageError: The host is not one of this machine.
    """

    def __init__(self, tapped: Tapped, host: str, port: int, gate: Gate | None = None) -> None:
        self._tapped = tapped
        self.core = Sessions(SYSTEM_CLOCK)
        self._feed: Feed | None = None  # while somebody looks
        self._looked_at = 0.0
        self._left = float(LOOKS_MAX)  # messages that may be read now
        self._gate = gate
        driver = Driver(self.core, self, "tap")
        try:
            self._router = open_socket(zmq.ROUTER, gate)
            self._questions = driver.watch(Inlet(self._router, None, copied=False))
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._router.setsockopt(zmq.MAXMSGSIZE, QUESTION_BYTES_MAX)
            self.port = bind(self._router, host, port, gate)
        except BaseException:
            driver.release()
            raise
        driver.start()

    def close(self) -> None:
        """Stop answering; safe to call twice."""
        self.driver.close()

    def ending(self) -> None:
        self._unfeed()

    def halted(self, reason: str) -> None:
        logger.error("a tap has stopped: %s", reason)
        self._unfeed()

    def report(self, event: object) -> None:
        """Log a refusal of the machine: a tap has no events."""
        logger.warning("%s", event)

    def flushed(self) -> None:
        """Stop asking the member once nobody looks."""
        if not self.core:
            self._unfeed()

    def _unfeed(self) -> None:
        if self._feed is not None:
            self._feed = None
            self._tapped.feed(None)

    def hear(self, link: None, frames: Frames) -> Sequence[Effect]:
        if len(frames) != 2:
            raise ProtocolError(f"a question of {len(frames)} frames")
        client, question, now = frames[0].bytes, frames[1].bytes, time.monotonic()
        unknown = unknown_kind(question)
        if unknown is not None:
            return (Reply(client, unknown),)
        look = decode_look(question)
        self._look(now)
        refusal = self._forbidden(sender_of(frames), look)
        refused = Refused(str(refusal)) if refusal is not None else self.core.look(client, look, now)
        if refused is not None:
            return (Reply(client, refused),)
        if self._feed is None:
            self._feed, self._looked_at = Feed(), now
            self._tapped.feed(self._feed)
        return (Reply(client, self.core.take(client)),)

    def reply(self, effect: Reply) -> None:
        """Answer; a client that has left, or asks without taking answers, is forgotten."""
        try:
            self._router.send_multipart([effect.to, encode(effect.message)], _NOBLOCK)
        except zmq.ZMQError:
            self.core.forget(effect.to)
        self.driver.suspect(self._questions)

    def _forbidden(self, who: str, look: Look) -> LogRefusal | None:
        if self._gate is None:
            return None
        topics = [each.decode("utf-8", "surrogateescape") for each in look.topics] or [""]
        found = [self._gate.forbids(who, ADMINISTER, each, subtree=True) for each in topics]
        refusal = next(filter(None, found), None)
        if refusal is not None:
            self._gate.refuse(refusal)
        return refusal

    def _look(self, now: float) -> None:
        wants = self._tapped.wants()
        if wants is not None:
            self.core.show_wants(wants)
        if self._feed is None:
            return
        waiting, missed = self._feed.take()
        self._left = min(LOOKS_MAX, self._left + (now - self._looked_at) * LOOKS_PER_S)
        self._looked_at = now
        wanted = self.core.prefixes
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
        self.core.show(seen, missed)
