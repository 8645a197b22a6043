"""How one of a pair of masters asks the witness: a ZeroMQ socket that the endpoint's own thread looks after."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Final

import zmq

from chappe.runtime.turns import Turns
from chappe.transports.maps import MapAddress, requester

_NOBLOCK: Final = int(zmq.NOBLOCK)
_ANSWERS_MAX: Final = 100  # read in one go; there is one for each question


class WitnessLink:
    """A connection to a witness; called with the lock held.

    Args:
        turns: Whose selector waits for it.
        answered: Called with what the witness has answered.
    """

    def __init__(self, turns: Turns, address: MapAddress, answered: Callable[[bytes], None]) -> None:
        self._turns = turns
        self._answered = answered
        self._socket = requester(address)
        self.used = False  # ``read`` has to follow
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        turns.register(self._descriptor, selectors.EVENT_READ, lambda mask: self.read())

    def ask(self, payload: bytes) -> None:
        """Send a question, or drop it: it is asked again. ``read`` follows, as the descriptor may tell of nothing."""
        self.used = True
        try:
            self._socket.send(payload, _NOBLOCK)
        except zmq.Again:
            pass

    def close(self) -> None:
        """Ask no more."""
        if not self._socket.closed:
            self._turns.unregister(self._descriptor)
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
