"""Questions to a store's query socket from somebody who goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import zmq

from chappe.log.queries import Answer, Request, decode_answer, encode_query
from chappe.sim.world import Violation
from chappe.testing.pubsub import KINDS

ID_BYTES: Final = 8


class Questions:
    """One connection to a store.

    Args:
        host: Where the one who asks lives.
        answered: Called with the number of a question and its answer.
    """

    def __init__(self, world: Any, host: str, endpoint: str, answered: Callable[[int, Answer], None]) -> None:
        self._world = world
        self._answered = answered
        self._socket: Any = KINDS[zmq.DEALER](world.stage.host(host))
        self._socket.arrived = self._arrived  # type: ignore[method-assign, assignment]
        self._socket.connect(endpoint)

    def ask(self, number: int, request: Request, payload: bytes = b"") -> None:
        """Send a question; lost if there is no room."""
        frames = [number.to_bytes(ID_BYTES), encode_query(request)]
        try:
            self._socket.send_multipart([*frames, payload] if payload else frames)
        except zmq.Again:
            self._world.trace(None, "there is no room for %s", request)

    def _arrived(self, frames: list[bytes], *_: object) -> None:
        try:
            self._answered(int.from_bytes(frames[0]), decode_answer(frames[1]))
        except Violation as violation:
            self._world.broken = self._world.broken or violation

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()
