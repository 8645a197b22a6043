"""A gateway: forwards chosen topics between two domains, each a mesh of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from chappe.api.faces import Closeable
from chappe.api.mesh.arguments import OnFull, as_id, encode_topic, topics_of
from chappe.api.mesh.endpoint import Endpoint
from chappe.api.mesh.identity import Own
from chappe.api.mesh.subscriber import Subscriber
from chappe.core import Effect, Report, Send
from chappe.defaults import (
    HEARTBEAT_S,
    PEER_BYTES_MAX,
    PEER_MESSAGES_MAX,
    SUBSCRIBER_BYTES_MAX,
    SUBSCRIBER_MESSAGES_MAX,
)
from chappe.errors import ChappeError, Closed, NotPermitted, Unreachable, UsageError
from chappe.gateway.announcement import MARKED, as_chosen
from chappe.gateway.core import GatewayCore, PublishToSide, SideOptions, SideStatus, SubscribeAtSide
from chappe.mesh.messages import DATA, NOBODY
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.security import Keys, Security
from chappe.system import machine, time
from chappe.system.forking import own

logger = logging.getLogger("chappe.mesh")

CHUNK: Final = 256  # messages passed at once
LOOK_S: Final = 1.0  # longest wait
LOOK_BLOCKED_S: Final = 0.1  # while a side has no room: how often the other side's network is looked at
TELL_REFUSED_S: Final = 10.0  # between two words on what our identity may not publish
JOIN_S: Final = 2.0  # closing waits so long for what is being passed


@dataclass(frozen=True)
class GatewaySide:
    """One of the two domains of a gateway, and its endpoint there.

    Args:
        domain: Its name, the same at all gateways of the domain: letters, digits, ``.``, ``_`` and ``-``.
        passes: Prefixes of topics that pass from this domain into the other; the empty one is all topics but those that
            begin with ``<``.
        id: The endpoint's id, as of ``Endpoint``.
        security: The security of this domain (``chappe.security``).
        on_full: The policy when a peer in this domain is slower than the gateway, as of ``Endpoint``. With
            ``block`` publishers in the other domain are slowed down.
        gateways: The ids of the endpoints that are trusted as gateways of this domain; by default all that claim it.
        paths: The number of routes to each receiver in this domain; the rest is as of ``Endpoint``, too.
        peer_messages_max: How many messages may wait for each peer.
        peer_bytes_max: How many bytes.
        heartbeat_s: A peer that is silent for three times as long is lost.
    """

    domain: str
    passes: Sequence[str] = ()
    id: str | UUID | None = None
    security: Security | Keys = None
    on_full: OnFull = "block"
    gateways: Iterable[str | UUID] | None = None
    paths: int = 1
    peer_messages_max: int = PEER_MESSAGES_MAX
    peer_bytes_max: int = PEER_BYTES_MAX
    heartbeat_s: float = HEARTBEAT_S


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The state of a gateway: ``passing``, ``standing by``, ``listening``, ``waiting`` or ``misjoined``.

    ``reason`` says why nothing passes; ``dropped`` counts messages that an endpoint of the gateway had no room for.
    """

    state: str
    reason: str
    sides: tuple[SideStatus, SideStatus]
    dropped: int


class Gateway(Closeable):
    """Joins two domains of the mesh: passes chosen topics, and hides everything else of one from the other.

    It has an endpoint in each, on which its user calls ``listen`` and ``peer``. Of several gateways between the same
    domains one passes and the others take over. It works in threads of its own. Close it, or use it in a ``with``.

    Its events (``chappe.gateway.events``) come with the statuses of the first side's endpoint.

    Raises:
        UsageError: An argument or a file of the security is wrong.
    """

    def __init__(self, one: GatewaySide, two: GatewaySide) -> None:
        own(self)
        sides = (one, two)
        chosen = [as_chosen(map(encode_topic, _prefixes(each)), each.domain) for each in sides]
        self._closing = False
        self._failed: ChappeError | None = None
        self._lock = threading.RLock()  # taken before the locks of the endpoints, never while one of them is held
        self._endpoints: list[Endpoint] = []
        self._subscribers: list[Subscriber] = []
        self._looked = [-1, -1]  # the state of each network at the last look
        self._told_at = [-TELL_REFUSED_S, -TELL_REFUSED_S]  # the time of the last warning of each side
        try:
            for each in sides:
                self._endpoints.append(
                    Endpoint(
                        id=each.id,
                        security=each.security,
                        paths=each.paths,
                        on_full=each.on_full,
                        peer_messages_max=each.peer_messages_max,
                        peer_bytes_max=each.peer_bytes_max,
                        heartbeat_s=each.heartbeat_s,
                    )
                )
                self._endpoints[-1].node.pass_sealed()
            options = [
                SideOptions(each.domain, as_id(self._endpoints[side].id).bytes, chosen[side], _believed(each))
                for side, each in enumerate(sides)
            ]
            self._core = GatewayCore((options[0], options[1]), SYSTEM_CLOCK)
            for endpoint in self._endpoints:
                self._subscribers.append(
                    endpoint.subscribe(
                        on_full="block", messages_max=SUBSCRIBER_MESSAGES_MAX, bytes_max=SUBSCRIBER_BYTES_MAX
                    )
                )
            self._do(self._core.start(time.monotonic()))
        except BaseException:
            for endpoint in self._endpoints:
                endpoint.close()
            raise
        self._threads = [
            machine.current().thread(partial(self._run, side), f"chappe-gateway-{each.domain}")
            for side, each in enumerate(sides)
        ]
        for thread in self._threads:
            thread.start()

    def endpoint(self, domain: str) -> Endpoint:
        """Return the endpoint in a domain, to listen, peer and observe. Subscribe and publish with others.

        Raises:
            UsageError: The gateway has no side of that name.
        """
        if domain not in self._core.domains:
            raise UsageError(f"this gateway joins {' and '.join(self._core.domains)}, not {domain}")
        return self._endpoints[self._core.domains.index(domain)]

    @property
    def domains(self) -> tuple[str, str]:
        """The names of its two domains."""
        return self._core.domains

    def status(self) -> GatewayStatus:
        """Return the state and the counts.

        Raises:
            ChappeError: It has stopped; the text says why.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            state, reason, sides = self._core.state, self._core.reason(), self._core.sides()
        return GatewayStatus(state, reason, sides, sum([each.dropped for each in self._endpoints]))

    def close(self) -> None:
        """Leave both domains; others take over. Messages that wait to be passed are lost. Safe to call twice."""
        self._closing = True
        for endpoint in self._endpoints:
            endpoint.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)

    def __repr__(self) -> str:
        return f"<Gateway between {' and '.join(self._core.domains)}, {self._core.state}>"

    # -- a thread for each side -------------------------------------------------------------------------------

    def _run(self, side: int) -> None:
        """Pass the messages of a side, until the gateway is closed."""
        try:
            while not self._closing:
                self._pass(side)
        except ChappeError as error:
            self._fail(error)
        except Exception as error:
            logger.error("the gateway stopped", exc_info=error, extra={"defect": True})
            self._fail(ChappeError(f"the gateway stopped because of a defect: {error!r}; close it, and make another"))

    def _fail(self, error: ChappeError) -> None:
        if self._closing:
            return
        with self._lock:
            self._failed = self._failed or error
        if isinstance(error, Closed):
            logger.info("a gateway ends, as one of its endpoints was closed")
        self._closing = True
        for endpoint in self._endpoints:
            endpoint.close()  # others take over

    def _pass(self, side: int) -> None:
        subscriber = self._subscribers[side]
        self._wait(side, subscriber.ready, self._left())
        self._attend()
        found = subscriber.get_many(CHUNK, 0.0)
        if not found:
            return
        with self._lock:
            actions = self._core.handle_message(side, [each.message for each in found], time.monotonic())
        for action in actions:
            if isinstance(action, Send):
                self._publish(action.to, action.message)

    def _publish(self, side: int, passed: PublishToSide) -> None:
        messages = passed.messages
        endpoint = self._endpoints[side]
        if endpoint.permitted is not None:
            messages = self._permitted(side, endpoint.permitted, messages)
        at = 0
        while at < len(messages):
            chunk = messages[at : at + endpoint.at_once]
            at += len(chunk)
            try:
                while endpoint.try_publish_many(chunk) is None:
                    self._wait_for_room(side, dict.fromkeys(topics_of(chunk)))
            except NotPermitted:
                pass  # since a moment ago
        for receiver, payload in passed.marked:
            try:
                while endpoint.try_publish(MARKED, payload, receiver) is None:
                    self._wait_for_room(side, (MARKED,), receiver)
            except Unreachable:
                pass  # that gateway is gone meanwhile
            except UsageError as error:  # with its mark it is larger than a message can be
                logger.warning("a message is not passed on to further domains: %s", error)

    def _permitted(self, side: int, permitted: Own, messages: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        found = [each for each in messages if permitted.may_publish(each[0], DATA)]
        refused = len(messages) - len(found)
        if refused and time.monotonic() >= self._told_at[side] + TELL_REFUSED_S:
            self._told_at[side] = time.monotonic()
            logger.warning("the permissions do not let %s publish what comes from the other domain", permitted.name)
        return found

    def _wait_for_room(self, side: int, topics: Iterable[bytes], receiver: bytes = NOBODY) -> None:
        self._wait(side, lambda: self._endpoints[side].room(topics, receiver), LOOK_BLOCKED_S)
        self._attend()
        if self._closing:
            raise Closed("the gateway was closed")

    def _wait(self, side: int, ready: Callable[[], bool], timeout_s: float) -> None:
        endpoint, looked = self._endpoints[side], self._looked
        core = endpoint.core
        endpoint.node.turns.wait(lambda: ready() or core.settled != looked[side] or self._closing, timeout_s)

    def _left(self) -> float:
        return max(0.0, min(LOOK_S, self._core.next_timeout() - time.monotonic()))

    def _attend(self) -> None:
        """Tell the core the changes of the networks, and the time."""
        if self._closing:
            return
        with self._lock:
            for side, endpoint in enumerate(self._endpoints):
                with endpoint.node.lock:
                    settled = endpoint.core.settled
                    if settled == self._looked[side]:
                        continue
                    self._looked[side] = settled
                    filters = endpoint.core.filters()
                self._do(self._core.handle_subscription(side, filters, time.monotonic()))
            if time.monotonic() >= self._core.next_timeout():
                self._do(self._core.handle_timeout(time.monotonic()))

    def _do(self, actions: Iterable[Effect]) -> None:
        """Carry out effects that do not wait."""
        for action in actions:
            if isinstance(action, Send):
                assert isinstance(action.message, SubscribeAtSide)
                endpoint = self._endpoints[action.to]
                number = self._subscribers[action.to].number
                with endpoint.node.lock:
                    if endpoint.node.runs():
                        effects = endpoint.core.resubscribe(number, action.message.topics, now=time.monotonic())
                        endpoint.node.do(effects)
            elif isinstance(action, Report):
                with self._endpoints[0].node.lock:
                    self._endpoints[0].report(action.event)
                    self._endpoints[0].node.turns.tell()


def _prefixes(side: GatewaySide) -> Sequence[str]:
    if isinstance(side.passes, str):
        raise UsageError(f"passes of domain {side.domain} is a list of prefixes, not {side.passes!r}")
    return side.passes


def _believed(side: GatewaySide) -> frozenset[bytes] | None:
    return None if side.gateways is None else frozenset([as_id(each).bytes for each in side.gateways])
