"""A gateway: forwards chosen topics between two domains, each a mesh of its own."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from chappe.api.faces import Closeable
from chappe.api.mesh.arguments import OnFull, as_id, encode_topic
from chappe.api.mesh.endpoint import Endpoint
from chappe.core import Send
from chappe.defaults import (
    HEARTBEAT_S,
    PEER_BYTES_MAX,
    PEER_MESSAGES_MAX,
    SUBSCRIBER_BYTES_MAX,
    SUBSCRIBER_MESSAGES_MAX,
)
from chappe.errors import Closed, MemberStopped, NotPermitted, Unreachable, UsageError
from chappe.gateway.announcement import MARKED, as_chosen
from chappe.gateway.core import GatewayCore, SideOptions, SideStatus, SubscribeAtSide
from chappe.mesh.messages import DATA, NOBODY
from chappe.runtime.driver import SYSTEM_CLOCK, Driver, Ports
from chappe.runtime.worker import CALLBACKS, run_once
from chappe.security import Keys, Security
from chappe.system import time
from chappe.system.forking import own

logger = logging.getLogger("chappe.mesh")

CHUNK: Final = 256  # messages taken at once
LOOK_S: Final = 1.0  # the endpoints are looked at this often though they have no news
TELL_REFUSED_S: Final = 10.0  # between two words on what our identity may not publish


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
    domains one passes and the others take over. Close it, or use it in a ``with``.

    Its events (``chappe.gateway.events``) come with the statuses of the first side's endpoint.

    Raises:
        UsageError: An argument or a file of the security is wrong.
    """

    def __init__(self, one: GatewaySide, two: GatewaySide) -> None:
        own(self)
        sides = (one, two)
        chosen = [as_chosen(map(encode_topic, _prefixes(each)), each.domain) for each in sides]
        self._endpoints: list[Endpoint] = []
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
            self._driver = _GatewayPorts(self._core, self._endpoints).driver
        except BaseException:
            self._close_endpoints()
            raise
        self._driver.start(self._core.start(time.monotonic()))

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
        """Return state and counts. Raises Closed, MemberStopped: it, or one of its endpoints, was closed or broke."""
        self._driver.turns.check()
        for each in self._endpoints:
            each.check()
        with self._driver.lock:
            state, reason, sides = self._core.state, self._core.reason(), self._core.sides()
        return GatewayStatus(state, reason, sides, sum([each.dropped for each in self._endpoints]))

    def close(self) -> None:
        """Leave both domains; others take over. Messages that wait to be passed are lost. Safe to call twice."""
        self._driver.close()
        self._close_endpoints()

    def _close_endpoints(self) -> None:
        for each in self._endpoints:
            each.close()

    def __repr__(self) -> str:
        return f"<Gateway between {' and '.join(self._core.domains)}, {self._core.state}>"


class _GatewayPorts(Ports):
    """Takes messages at one endpoint and publishes them at the other.

    The queue of each direction is a subscriber's, which slows publishers down when it is full. What an endpoint has no
    room for waits, and nothing more is taken for it meanwhile; the other direction goes on.

    An endpoint's lock may be taken while the gateway's is held, never the other way round: endpoints that have news
    nudge the loop, which takes no lock.
    """

    eager = False

    def __init__(self, core: GatewayCore, endpoints: Sequence[Endpoint]) -> None:
        self.core = core
        self._endpoints = endpoints
        self._subscribers = [
            each.subscribe(on_full="block", messages_max=SUBSCRIBER_MESSAGES_MAX, bytes_max=SUBSCRIBER_BYTES_MAX)
            for each in endpoints
        ]
        self._waiting: tuple[_Parcels, _Parcels] = (deque(), deque())  # to be published at each endpoint
        self._settled = [-1, -1]  # how often each network had changed when it was looked at
        self._look_at = -math.inf
        self._ended = False
        self._told_at = [-TELL_REFUSED_S, -TELL_REFUSED_S]  # that something is not passed into each
        Driver(core, self, "gateway")
        for side, endpoint in enumerate(endpoints):
            endpoint.node.turns.listen(partial(self._news, side))

    def _news(self, side: int) -> None:
        """Have the loop drive the gateway if an endpoint has something for it; that one's lock is held."""
        if self._look_at == -math.inf or self._ended:
            return
        core, turns = self._endpoints[side].core, self._endpoints[side].node.turns
        ended = turns.closed or turns.halted is not None
        changed = core.settled != self._settled[side]
        if ended or changed or self._waiting[side] or self._subscribers[side].available:
            self._look_at = -math.inf
            self.driver.turns.nudge()

    def next_timeout(self) -> float:
        return self._look_at

    def handle_timeout(self, now: float) -> None:
        self._look_at = now + LOOK_S  # before looking: news of meanwhile are looked at again
        try:
            for each in self._endpoints:
                each.check()
            for side in (0, 1):
                self._pass(side, now)
        except (Closed, MemberStopped):
            logger.info("a gateway ends, as one of its endpoints was closed")
            self._end()

    def _pass(self, side: int, now: float) -> None:
        subscriber, other = self._subscribers[side], 1 - side
        found = subscriber.take_messages(CHUNK, 0.0) if self._publish(other) and subscriber.available else []
        self._look_at_networks(now)  # behind the messages: the core knows who sent them
        if found:
            self.driver.perform(self.core.handle_message(side, found, now))
        if subscriber.available and not self._waiting[other]:
            self._look_at = -math.inf

    def _look_at_networks(self, now: float) -> None:
        for side, endpoint in enumerate(self._endpoints):
            with endpoint.node.lock:
                settled = endpoint.core.settled
                if settled == self._settled[side]:
                    continue
                self._settled[side] = settled
                filters = endpoint.core.filters()
            self.driver.perform(self.core.handle_subscription(side, filters, now))

    # -- effects ----------------------------------------------------------------------------------------------

    def send(self, effect: Send) -> None:
        side, message = effect.to, effect.message
        endpoint = self._endpoints[side]
        if isinstance(message, SubscribeAtSide):
            with endpoint.node.lock:
                if endpoint.node.runs():
                    number = self._subscribers[side].number
                    endpoint.node.do(endpoint.core.resubscribe(number, message.topics, now=time.monotonic()))
            return
        messages = self._permitted(side, message.messages)
        for at in range(0, len(messages), endpoint.at_once):
            self._waiting[side].append((NOBODY, messages[at : at + endpoint.at_once]))
        self._waiting[side].extend((receiver, [(MARKED, payload)]) for receiver, payload in message.marked)
        self._publish(side)

    def _permitted(self, side: int, messages: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        permitted = self._endpoints[side].permitted
        if permitted is None:
            return messages
        found = [each for each in messages if permitted.may_publish(each[0], DATA)]
        if len(found) < len(messages) and time.monotonic() >= self._told_at[side] + TELL_REFUSED_S:
            self._told_at[side] = time.monotonic()
            logger.warning("the permissions do not let %s publish what comes from the other domain", permitted.name)
        return found

    def _publish(self, side: int) -> bool:
        """Publish what waits for a side; returns False if some has no room."""
        endpoint, waiting = self._endpoints[side], self._waiting[side]
        while waiting:
            receiver, messages = waiting[0]
            try:
                if receiver == NOBODY:
                    reached = endpoint.try_publish_many(messages)
                else:
                    reached = endpoint.try_publish(MARKED, messages[0][1], receiver)
                if reached is None:
                    return False
            except (NotPermitted, Unreachable):
                pass  # since a moment ago
            except UsageError as error:  # with its mark it is larger than a message can be
                logger.warning("a message is not passed on to further domains: %s", error)
            waiting.popleft()
        return True

    def report(self, event: object) -> None:
        endpoint = self._endpoints[0]
        with endpoint.node.lock:
            endpoint.report(event)
            endpoint.node.turns.tell()

    def halted(self, reason: str) -> None:
        self._end()

    def _end(self) -> None:
        """Have both domains left, so that others take over; the face is still to be closed."""
        if not self._ended:
            self._ended = True
            run_once(CALLBACKS, self.driver.run, self._leave_domains, lambda _: None)
        self._look_at = math.inf

    def _leave_domains(self) -> None:
        for each in self._endpoints:
            each.close()


_Parcels: TypeAlias = deque[tuple[bytes, list[tuple[bytes, bytes]]]]  # each for all, or for one gateway


def _prefixes(side: GatewaySide) -> Sequence[str]:
    if isinstance(side.passes, str):
        raise UsageError(f"passes of domain {side.domain} is a list of prefixes, not {side.passes!r}")
    return side.passes


def _believed(side: GatewaySide) -> frozenset[bytes] | None:
    return None if side.gateways is None else frozenset([as_id(each).bytes for each in side.gateways])
