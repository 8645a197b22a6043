"""The socket that a node publishes on: who gets what, and what becomes of a peer that does not take it."""

from __future__ import annotations

import math
import time
from typing import Final

import zmq

from chappe.defaults import FULL_PEER_LOSSY_MAX_S, FULL_PEER_LOSSY_S
from chappe.drivers.node_sockets import open_socket
from chappe.errors import ProtocolError

LINGER_MS: Final = 2_000
RETRY_S: Final = 0.0005  # a full peer is tried again so often
_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class PublishingSocket:
    """An XPUB whose subscriptions are set by hand.

    Args:
        full_peer_wait_s: How long ``send`` waits for a peer whose queue is full.
    """

    def __init__(self, full_peer_wait_s: float) -> None:
        self.socket = open_socket(zmq.XPUB)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)
        self.socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._full_peer_wait_s = full_peer_wait_s
        self._lossy = False
        self._lossy_until = -math.inf
        self._lossy_s = FULL_PEER_LOSSY_S

    def send(self, frames: list[bytes]) -> None:
        """Send to whoever subscribed.

        A peer whose queue is full is waited for a little; if it stays full, it loses what is published for a while
        (and fetches that later), each time longer, so that it cannot hold up the others for long.
        """
        deadline = 0.0
        last = len(frames) - 1
        if self._lossy and time.monotonic() >= self._lossy_until:
            self._lossy = False
            self.socket.setsockopt(zmq.XPUB_NODROP, 1)
        for index, frame in enumerate(frames):
            while True:
                try:
                    self.socket.send(frame, _MORE if index < last else _LAST)
                    break
                except zmq.Again:
                    now = time.monotonic()
                    deadline = deadline or now + self._full_peer_wait_s
                    if now >= deadline:
                        self._lose(now)
                    else:
                        time.sleep(RETRY_S)

    def _lose(self, now: float) -> None:
        """Drop what full peers would get, for a while."""
        soon = now - self._lossy_until < 2 * self._full_peer_wait_s
        self._lossy_s = min(2 * self._lossy_s, FULL_PEER_LOSSY_MAX_S) if soon else FULL_PEER_LOSSY_S
        self._lossy, self._lossy_until = True, now + self._lossy_s
        self.socket.setsockopt(zmq.XPUB_NODROP, 0)

    def subscription(self, frames: list[bytes]) -> tuple[bytes, bool]:
        """A peer, the one whose message was just received, wants a prefix or no longer: which, and whether it does.

        Raises:
            ProtocolError: It sent something else.
        """
        raw = frames[0]
        on, prefix = raw[:1] == b"\1", raw[1:]
        if len(frames) != 1 or (not on and raw[:1] != b"\0"):
            raise ProtocolError("message to a publishing socket")
        self.socket.setsockopt(zmq.SUBSCRIBE if on else zmq.UNSUBSCRIBE, prefix)
        if on and prefix[:1] == b"R":
            # This very peer knows batches: spare it the single records, which it also had to ask for because it
            # cannot know who sends them only.
            self.socket.setsockopt(zmq.UNSUBSCRIBE, b"M" + prefix[1:])
        return prefix, on
