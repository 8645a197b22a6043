"""A node of the log on its sockets: one that publishes, those that hear members, those that ask stores."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from chappe.core import Ask, Close, Dial, Effect, Publish, Send, Subscribe
from chappe.defaults import FULL_PEER_WAIT_S
from chappe.errors import ProtocolError
from chappe.log.events import PermissionsChanged, Stopped
from chappe.log.guard import GIVERS, Guard
from chappe.log.handing_on import PERMISSIONS
from chappe.log.messages import encode
from chappe.log.node import Discovers, LogNode, LogRole
from chappe.permissions.rules import Verbs
from chappe.runtime.dealers import Dealers, StoreLink
from chappe.runtime.driver import Driver, Frames, Inlet, Ports
from chappe.runtime.meeting import Meeting, Members
from chappe.system import time
from chappe.transports.zeromq import RETRY_S, PublishingSocket

logger = logging.getLogger(__name__)

KEYS_S: Final = 1.0  # between two looks at refusals and permissions, where there are keys
SUBSCRIPTIONS: Final = "subscriptions"  # the link over which peers say what they listen to


class LogPorts(Ports):
    """The sockets of every node of the log.

    Args:
        role: The core of a store, of producers or of consumers.
        meeting: How it meets others.
        on_report: Called with every event, with the lock held: it must be quick and not call back.
        full_peer_wait_s: How long a peer whose queue is full is waited for.
        takes: Where there are keys, the rights of which a member needs one to hand us records.
        views: Whether large messages stay in ZeroMQ's memory. A store, which copies them to its disk anyway, would have
            twice as much of it.
    """

    def __init__(
        self,
        role: LogRole,
        meeting: Meeting,
        *,
        on_report: Callable[[object], None],
        full_peer_wait_s: float = FULL_PEER_WAIT_S,
        takes: Verbs = GIVERS,
        views: bool = True,
    ) -> None:
        self.meeting = meeting
        self.gate = gate = meeting.gate
        self.guard = None if gate is None else Guard(gate.decisions, gate.refusals.add_refusal, takes)
        self.views = views
        self.tapped: Callable[[list[bytes]], None] | None = None  # is shown what comes, while somebody looks
        self.core = LogNode(role, self.guard)
        self._on_report = on_report
        self._changes = 0 if gate is None else gate.changes
        self._retry_at = math.inf  # when full peers are tried again
        self._left = False  # something was left in a queue, as the role has no room ...
        self._held_up = False  # ... or as what would come of it would have to wait for full peers
        driver = Driver(self.core, self, "member")
        self._dealers = Dealers(driver, self.core, gate)
        try:
            self._pub = PublishingSocket(full_peer_wait_s, gate, self.guard)
            self._subscriptions = driver.watch(Inlet(self._pub.socket, SUBSCRIPTIONS, copied=False))
            self.core.meet(meeting.open(self, self._pub.socket))
            self._pub.dialled = meeting.subscribers
            self._pub.strangers = meeting.strangers
        except BaseException:
            driver.release()
            raise

    @property
    def address(self) -> str:
        return self.core.address

    @property
    def endpoint(self) -> str:
        """Where others listen to it; empty if it dials them for that."""
        return self.meeting.endpoint

    @property
    def discovery(self) -> Discovers:
        return self.core.discovery

    def start(self) -> None:
        """Begin; call once everything else is set up."""
        self.driver.start(self.core.start(time.monotonic()))
        if self.gate is not None:
            with self.driver.lock:
                self.driver.call_idle(self, time.monotonic() + KEYS_S)

    def idle(self) -> float:
        """Look for refused connections, peers that may be dialled by now, and changed permissions."""
        self.meeting.look()
        self._dealers.look()
        if self.gate is not None and self.gate.changes != self._changes:
            self._changes = self.gate.changes
            self._pub.judge_again()
            self.driver.suspect(self._subscriptions)
            self.report(PermissionsChanged(self.gate.version))
        return KEYS_S

    # -- effects ---------------------------------------------------------------------------------------

    def publish(self, effect: Publish) -> None:
        """Send to all subscribers, without waiting; the driving thread waits for full peers a little."""
        self.publish_frames(encode(effect.message))

    def publish_frames(self, frames: list[bytes]) -> None:
        self.driver.suspect(self._subscriptions)
        self._pub.send(frames)
        if self._pub.waits:
            self._wait_for_peers(time.monotonic())

    def subscribe(self, effect: Subscribe) -> None:
        self.meeting.subscribe(zmq.SUBSCRIBE if effect.on else zmq.UNSUBSCRIBE, effect.prefix)

    def ask(self, effect: Ask) -> None:
        self._dealers.ask(effect)

    def send(self, effect: Send) -> None:
        self.meeting.beacon(effect.message)

    def dial(self, effect: Dial) -> None:
        """Listen to a member, unless that is done already: another one may have taken over its endpoint."""
        logger.info("member %s is at %s", effect.address, effect.link)
        self.meeting.connect(effect.link)

    def close_link(self, effect: Close) -> None:
        """Disconnect from a member once everything that it sent is read."""
        logger.info("nobody is at %s any longer", effect.link)
        self.meeting.disconnect(effect.link)

    def report(self, event: object) -> None:
        self._on_report(event)

    # -- input -----------------------------------------------------------------------------------------

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        if type(link) is Members:
            return self.hear_member(frames, link.who)
        if link is SUBSCRIPTIONS:
            return self._hear_subscriptions(frames)
        if type(link) is StoreLink:
            return self._dealers.hear(link, frames)
        return self.meeting.hear(link, frames)

    def hear_member(self, frames: Frames, who: str) -> Sequence[Effect]:
        """Take a message that a member published; with keys its identity is ``who``."""
        if self.tapped is not None:
            self.tapped([bytes(each) for each in frames])
        return self.core.handle_frames(frames, who, time.monotonic())

    def _hear_subscriptions(self, frames: list[zmq.Frame]) -> Sequence[Effect]:
        """Take a subscription; one to single records with those that came behind it, in case one is to batches.

        They come in the order of their bytes, and whatever is published in between would come without keys to a peer
        that knows batches.
        """
        effects = self._hear_subscription(frames)
        while self._pub.midway:
            try:
                effects = [*effects, *self._hear_subscription(self._subscriptions.take())]  # type: ignore[arg-type]
            except zmq.Again:
                break
            except ProtocolError as error:
                self.driver.complain(error)
        return effects

    def _hear_subscription(self, frames: list[zmq.Frame]) -> Sequence[Effect]:
        found = self._pub.subscription(frames)
        if self.guard is not None and found == (PERMISSIONS, True):
            self.meeting.joined()
        return () if found is None else self.core.handle_subscription(*found, time.monotonic())

    def holds(self, link: Any) -> bool:
        """True to leave messages in the bounded queue while there is no room; what is missed is read from a store."""
        if self._pub.choked:
            self._held_up = True
        elif isinstance(link, Members) and self.core.paused:
            self._left = True
        else:
            return False
        return True

    def flushed(self) -> None:
        if (self._left and not self.core.paused) or (self._held_up and not self._pub.choked):
            self._left = self._held_up = False
            self.driver.suspect_all()

    # -- full peers ------------------------------------------------------------------------------------

    @property
    def choked(self) -> bool:
        return self._pub.choked

    def published(self) -> Callable[[], bool]:
        """Tells whether everything published before this call was taken, by full peers too, or lost by them."""
        mark = self._pub.kept
        return lambda: self._pub.sent >= mark

    def subscriptions(self) -> tuple[int, Callable[[], dict[str, list[bytes]]]]:
        """Return a number that rises when members subscribe, and a getter of the subscriptions; the lock is held."""
        return self._pub.changes, self._pub.subscriptions

    def next_timeout(self) -> float:
        return self._retry_at

    def handle_timeout(self, now: float) -> None:
        self._pub.retry()
        if self._pub.waits:
            self._wait_for_peers(now)
        else:
            self._retry_at = math.inf
            self.driver.perform(self.core.handle_taken(now))

    def _wait_for_peers(self, now: float) -> None:
        self._retry_at = now + RETRY_S
        self.driver.look_at(self._retry_at)
        self.driver.perform(self.core.handle_full(self._pub.kept - self._pub.sent, self._pub.choked, now))

    # -- its end ---------------------------------------------------------------------------------------

    def halted(self, reason: str) -> None:
        self.report(Stopped(reason))

    def leave(self) -> None:
        self._pub.retry(patient=False)
        self.driver.perform(self.core.discovery.goodbye())

    def release(self) -> None:
        self.meeting.close()
        self._dealers.close()
