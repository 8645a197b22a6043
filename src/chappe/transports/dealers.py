"""A node's connections to the query sockets of stores: each is dialled when something is asked there first."""

from __future__ import annotations

import logging
import math
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import zmq

from chappe.data.endpoint import identity_of
from chappe.errors import ProtocolError
from chappe.log.actions import Action, Ask
from chappe.log.events import QueryDenied
from chappe.log.guard import DENIED, Guard
from chappe.log.queries import Answer, ErrorAnswer, decode_answer, encode_query
from chappe.log.traffic import Traffic
from chappe.permissions.rules import STORE
from chappe.system import time
from chappe.transports.dialled import Dialled
from chappe.transports.gate import Gate
from chappe.transports.zeromq import open_socket

logger = logging.getLogger(__name__)

DEALERS_MAX: Final = 64  # connections; beyond it the one that was idle longest gives way ...
BUSY_S: Final = 5.0  # ... as does one that has not answered for so long: whoever asked has given up by then
DENIED_S: Final = 10.0  # that we may not ask is told at most so often ...
REASON_MAX: Final = 500  # ... in so many characters
QUEUED_MAX: Final = 10_000  # requests that wait for a connection; further ones are dropped, and asked again

Drain = Callable[[], bool]


class Watcher(Protocol):
    """The part of ``Node`` that watches sockets."""

    def watch_socket(self, sock: zmq.Socket[bytes], drain: Drain) -> None:
        """See ``Node.watch_socket``."""

    def unwatch_socket(self, sock: zmq.Socket[bytes]) -> None:
        """See ``Node.unwatch_socket``."""

    def suspect(self, drain: Drain) -> None:
        """See ``Node.suspect``."""

    def receive_views(
        self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes | memoryview]], Sequence[Action]]
    ) -> bool:
        """See ``Node.receive_views``."""


@dataclass(slots=True)
class _Dealer:
    socket: zmq.Socket[bytes]
    drain: Drain
    dialled: Dialled
    asked: int = 0  # requests without an answer yet
    asked_at: float = 0.0

    def close(self) -> None:
        """Nothing more is asked here."""
        self.dialled.close()
        self.socket.close()

    def idle(self, now: float) -> bool:
        """Whether nothing is lost by closing it."""
        return not self.asked or now - self.asked_at >= BUSY_S


class Dealers:
    """The connections of one node; all is called with its lock held.

    Args:
        node: Watches them, and carries out what ``answered`` returns.
        answered: Takes the request's number, the answer and its batches.
        gate: Of the stores' keys; None for plain connections.
        report: Told of connections that are refused.
        guard: Where there are keys, says what a store may know, and what of its answers is believed.
        traffic: Counts what is asked and answered.
    """

    def __init__(
        self,
        node: Watcher,
        answered: Callable[[int, Answer, Sequence[bytes | memoryview]], Sequence[Action]],
        gate: Gate | None = None,
        report: Callable[[object], None] = lambda event: None,
        guard: Guard | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._guard = guard
        self._traffic = traffic if traffic is not None else Traffic()
        self._node = node
        self._answered = answered
        self._gate = gate
        self._report = report
        self._dialled: OrderedDict[str, _Dealer] = OrderedDict()  # the one used last comes last
        self._queued: deque[Ask] = deque()
        self._denied_at = -math.inf

    def ask(self, action: Ask) -> None:
        """Send a request; nothing comes of it if the store does not take it: the core asks again or elsewhere."""
        if self._guard is not None:
            request = self._guard.asking(identity_of(action.endpoint)[1], action.request)
            if request is None:
                return
            action = Ask(action.endpoint, action.request_id, request)
        if len(self._queued) < QUEUED_MAX:
            self._queued.append(action)
        self._send_queued()

    def close(self) -> None:
        """Close all; nothing is waited for any more."""
        for dealer in self._dialled.values():
            dealer.close()

    def look(self) -> None:
        """What is to be done once a second where there are keys."""
        for dealer in self._dialled.values():
            dealer.dialled.look()

    def _send_queued(self) -> None:
        now = time.monotonic()
        while self._queued:
            action = self._queued[0]
            dealer = self._dialled.get(action.endpoint)
            if dealer is None:
                if len(self._dialled) >= DEALERS_MAX and not self._make_room(now):
                    return  # an answer makes room
                dealer = self._dial(action.endpoint)
            self._queued.popleft()
            if dealer is not None:
                self._send(action, dealer, now)

    def _send(self, action: Ask, dealer: _Dealer, now: float) -> None:
        self._dialled.move_to_end(action.endpoint)
        try:
            frames = [struct.pack(">Q", action.request_id), encode_query(action.request)]
            dealer.socket.send_multipart(frames, zmq.NOBLOCK)
            dealer.asked += 1
            self._traffic.asked(action.endpoint)
            dealer.asked_at = now
        except zmq.Again:
            pass
        self._node.suspect(dealer.drain)

    def _make_room(self, now: float) -> bool:
        """Close a connection that nobody waits for; returns whether there was one."""
        endpoint = next((each for each, dealer in self._dialled.items() if dealer.idle(now)), None)
        if endpoint is None:
            return False
        dealer = self._dialled.pop(endpoint)
        self._node.unwatch_socket(dealer.socket)
        dealer.close()
        return True

    def _dial(self, endpoint: str) -> _Dealer | None:
        sock = None
        try:
            sock = open_socket(zmq.DEALER, self._gate)
            dialled = Dialled(sock, self._gate, self._report, STORE)
            dialled.connect(endpoint)
        except zmq.ZMQError as error:  # of the address, or no descriptor is left
            if sock is not None:
                sock.close()
            logger.warning("cannot connect to the store at %s: %s", endpoint, error.strerror)
            return None
        opened = sock

        def drain() -> bool:
            return not opened.closed and self._node.receive_views(
                opened, lambda frames: self._on_answer(endpoint, frames)
            )

        dealer = self._dialled[endpoint] = _Dealer(opened, drain, dialled)
        self._node.watch_socket(opened, drain)
        return dealer

    def _on_answer(self, endpoint: str, frames: Sequence[bytes | memoryview]) -> Sequence[Action]:
        dealer = self._dialled.get(endpoint)
        if dealer is not None:
            dealer.asked = max(0, dealer.asked - 1)
        if len(frames) < 2 or len(frames[0]) != 8:
            raise ProtocolError("answer without a request id")
        self._traffic.answered(endpoint, sum(map(len, frames)))
        (request_id,) = struct.unpack(">Q", frames[0])
        answer = decode_answer(bytes(frames[1]))
        if self._guard is not None:
            if isinstance(answer, ErrorAnswer) and answer.kind == DENIED:
                self._denied(endpoint, answer.text)
            answer = self._guard.answered(identity_of(endpoint)[1], answer)
        actions = self._answered(request_id, answer, frames[2:])
        self._send_queued()
        return actions

    def _denied(self, endpoint: str, reason: str) -> None:
        now = time.monotonic()
        if now >= self._denied_at:
            self._denied_at = now + DENIED_S
            self._report(QueryDenied(identity_of(endpoint)[0], reason[:REASON_MAX]))
