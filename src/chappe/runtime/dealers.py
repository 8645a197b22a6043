"""A node's connections to the query sockets of stores: each is dialled when something is asked there first."""

from __future__ import annotations

import logging
import math
import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import zmq

from chappe.core import Ask, Effect
from chappe.data.topic import identity_of
from chappe.errors import ProtocolError
from chappe.log.events import QueryDenied
from chappe.log.guard import DENIED
from chappe.log.node import LogNode
from chappe.log.queries import ErrorAnswer, decode_answer, encode_query
from chappe.permissions.rules import STORE
from chappe.runtime.driver import Driver, Inlet
from chappe.system import time
from chappe.transports.dialled import Dialled
from chappe.transports.gate import Gate
from chappe.transports.zeromq import open_socket, take

logger = logging.getLogger(__name__)

DEALERS_MAX: Final = 64  # connections; beyond it the one that was idle longest gives way ...
BUSY_S: Final = 5.0  # ... as does one that has not answered for so long: whoever asked has given up by then
DENIED_S: Final = 10.0  # that we may not ask is told at most so often ...
REASON_MAX: Final = 500  # ... in so many characters
QUEUED_MAX: Final = 10_000  # requests that wait for a connection; further ones are dropped, and asked again


class StoreLink:
    __slots__ = ("asked", "asked_at", "dialled", "endpoint", "inlet")

    def __init__(self, endpoint: str, sock: zmq.Socket[bytes], dialled: Dialled) -> None:
        self.endpoint = endpoint
        self.inlet = Inlet(sock, self, partial(take, sock))
        self.dialled = dialled
        self.asked = 0  # requests without an answer yet
        self.asked_at = 0.0

    def idle(self, now: float) -> bool:
        return not self.asked or now - self.asked_at >= BUSY_S


class Dealers:
    """The connections of one node, called with its lock held; ``gate`` has the stores' keys, None: plain ones."""

    def __init__(self, driver: Driver, node: LogNode, gate: Gate | None = None) -> None:
        self._driver = driver
        self._node = node
        self._gate = gate
        self._dialled: OrderedDict[str, StoreLink] = OrderedDict()  # the one used last comes last
        self._queued: deque[Ask] = deque()
        self._denied_at = -math.inf

    def ask(self, effect: Ask) -> None:
        """Send a request; if the store does not take it, it is dropped: the core asks again or elsewhere."""
        guard = self._node.guard
        if guard is not None:
            request = guard.asking(identity_of(effect.to)[1], effect.request)
            if request is None:
                return
            effect = Ask(effect.to, effect.ticket, request)
        if len(self._queued) < QUEUED_MAX:
            self._queued.append(effect)
        self._send_queued()

    def hear(self, link: StoreLink, frames: Sequence[bytes | memoryview]) -> Sequence[Effect]:
        link.asked = max(0, link.asked - 1)
        if len(frames) < 2 or len(frames[0]) != 8:
            raise ProtocolError("answer without a request id")
        self._node.traffic.answered(link.endpoint, sum(map(len, frames)))
        (ticket,) = struct.unpack(">Q", frames[0])
        answer = decode_answer(bytes(frames[1]))
        guard = self._node.guard
        if guard is not None:
            if isinstance(answer, ErrorAnswer) and answer.kind == DENIED:
                self._denied(link.endpoint, answer.text)
            answer = guard.answered(identity_of(link.endpoint)[1], answer)
        effects = self._node.role.handle_answer(ticket, answer, frames[2:], time.monotonic())
        self._send_queued()
        return effects

    def close(self) -> None:
        """Wait for no answers; the driver closes the sockets."""
        for link in self._dialled.values():
            link.dialled.close()

    def look(self) -> None:
        """Take refusals, and dial again; to be called once a second where there are keys."""
        for link in self._dialled.values():
            link.dialled.look()

    def _send_queued(self) -> None:
        now = time.monotonic()
        while self._queued:
            effect = self._queued[0]
            link = self._dialled.get(effect.to)
            if link is None:
                if len(self._dialled) >= DEALERS_MAX and not self._make_room(now):
                    return  # an answer makes room
                link = self._dial(effect.to)
            self._queued.popleft()
            if link is not None:
                self._send(effect, link, now)

    def _send(self, effect: Ask, link: StoreLink, now: float) -> None:
        self._dialled.move_to_end(effect.to)
        try:
            frames = [struct.pack(">Q", effect.ticket), encode_query(effect.request)]
            link.inlet.sock.send_multipart(frames, zmq.NOBLOCK)
            link.asked += 1
            self._node.traffic.asked(effect.to)
            link.asked_at = now
        except zmq.Again:
            pass
        self._driver.suspect(link.inlet)

    def _make_room(self, now: float) -> bool:
        endpoint = next((each for each, link in self._dialled.items() if link.idle(now)), None)
        if endpoint is None:
            return False
        link = self._dialled.pop(endpoint)
        link.dialled.close()
        self._driver.unwatch(link.inlet)
        return True

    def _dial(self, endpoint: str) -> StoreLink | None:
        sock = None
        try:
            sock = open_socket(zmq.DEALER, self._gate)
            dialled = Dialled(sock, self._gate, self._driver.ports.report, STORE)
            dialled.connect(endpoint)
        except zmq.ZMQError as error:  # of the address, or no descriptor is left
            if sock is not None:
                sock.close()
            logger.warning("cannot connect to the store at %s: %s", endpoint, error.strerror)
            return None
        link = self._dialled[endpoint] = StoreLink(endpoint, sock, dialled)
        self._driver.watch(link.inlet)
        return link

    def _denied(self, endpoint: str, reason: str) -> None:
        now = time.monotonic()
        if now >= self._denied_at:
            self._denied_at = now + DENIED_S
            self._driver.ports.report(QueryDenied(identity_of(endpoint)[0], reason[:REASON_MAX]))
