"""A node's connections to the query sockets of stores: each is dialled when something is asked there first."""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import zmq

from chappe.drivers.node_sockets import open_socket
from chappe.errors import ProtocolError
from chappe.log.actions import Action, Ask
from chappe.log.queries import Answer, decode_answer, encode_query

if TYPE_CHECKING:
    from chappe.drivers.node import Node

logger = logging.getLogger(__name__)

DEALERS_MAX: Final = 64  # connections; the oldest is closed beyond it

Drain = Callable[[], bool]


class Dealers:
    """The connections of one node; all is called with its lock held.

    Args:
        node: Watches them, and carries out what ``answered`` returns.
        answered: Takes the request's number, the answer and its batches.
    """

    def __init__(self, node: Node, answered: Callable[[int, Answer, list[bytes]], Sequence[Action]]) -> None:
        self._node = node
        self._answered = answered
        self._dialled: OrderedDict[str, tuple[zmq.Socket[bytes], Drain]] = OrderedDict()

    def ask(self, action: Ask) -> None:
        """Send a request; nothing comes of it if the store does not take it: the core asks again or elsewhere."""
        found = self._dialled.get(action.endpoint) or self._dial(action.endpoint)
        if found is None:
            return
        dealer, drain = found
        try:
            frames = [struct.pack(">Q", action.request_id), encode_query(action.request)]
            dealer.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            pass
        self._node.suspect(drain)

    def close(self) -> None:
        """Close all; nothing is waited for any more."""
        for dealer, _ in self._dialled.values():
            dealer.close()

    def _dial(self, endpoint: str) -> tuple[zmq.Socket[bytes], Drain] | None:
        dealer = None
        try:
            dealer = open_socket(zmq.DEALER)
            dealer.connect(endpoint)
        except zmq.ZMQError as error:  # of the address, or no descriptor is left
            if dealer is not None:
                dealer.close()
            logger.warning("cannot connect to the store at %s: %s", endpoint, error.strerror)
            return None
        while len(self._dialled) >= DEALERS_MAX:
            _, (oldest, _) = self._dialled.popitem(last=False)
            self._node.unwatch_socket(oldest)
            oldest.close()

        def drain() -> bool:
            return not dealer.closed and self._node.receive(dealer, self._on_answer)

        self._node.watch_socket(dealer, drain)
        self._dialled[endpoint] = dealer, drain
        return dealer, drain

    def _on_answer(self, frames: list[bytes]) -> Sequence[Action]:
        if len(frames) < 2 or len(frames[0]) != 8:
            raise ProtocolError("answer without a request id")
        (request_id,) = struct.unpack(">Q", frames[0])
        return self._answered(request_id, decode_answer(frames[1]), frames[2:])
