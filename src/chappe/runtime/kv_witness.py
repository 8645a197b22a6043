"""How one of a pair of masters asks the witness: a ZeroMQ socket that the endpoint's own thread looks after."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from typing import Final

import zmq

from chappe.permissions.rules import ATTACH_MASTER
from chappe.runtime.turns import Turns
from chappe.transports.dialled import Dialled
from chappe.transports.gate import gate_of, keys_of
from chappe.transports.maps import MapAddress, requester

logger = logging.getLogger(__name__)

_NOBLOCK: Final = int(zmq.NOBLOCK)
_ANSWERS_MAX: Final = 100  # read in one go; there is one for each question


class WitnessLink:
    """A connection to a witness; called with the lock held.

    Args:
        turns: Whose selector waits for it.
        address: With the identity that is there, if it has keys; then we are who the environment names.
        answered: Called with what the witness has answered.
    """

    def __init__(self, turns: Turns, address: MapAddress, answered: Callable[[bytes], None]) -> None:
        self._turns = turns
        self._answered = answered
        gate = gate_of(keys_of(None)) if address.name else None
        self._socket = requester(gate)
        self._dialled = Dialled(self._socket, gate, lambda event: logger.warning("%s", event), ATTACH_MASTER)
        self._dialled.connect(address.endpoint(0))
        self.used = False  # ``read`` has to follow
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        turns.register(self._descriptor, selectors.EVENT_READ, lambda mask: self.read())

    def ask(self, payload: bytes) -> None:
        """Send a question, or drop it: it is asked again. ``read`` follows, as the descriptor may tell of nothing."""
        self.used = True
        self._dialled.look()
        try:
            self._socket.send(payload, _NOBLOCK)
        except zmq.Again:
            pass

    def close(self) -> None:
        """Ask no more."""
        if not self._socket.closed:
            self._turns.unregister(self._descriptor)
            self._dialled.close()
            self._socket.close()

    def read(self) -> None:
        """Hand on what has come."""
        self.used = False
        for _ in range(_ANSWERS_MAX):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 1:
                self._answered(frames[0])
