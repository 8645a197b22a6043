"""Large answers that clients of a chain have not read: ZeroMQ bounds the messages of a connection, and not their bytes.

Small answers are bounded by that. Of large ones a client gets so many bytes until it says something again, which a
client does when it is answered, and five times a second while it waits: one that stands still costs no more.
"""

from __future__ import annotations

from typing import Final

from chappe.defaults import KIB, MIB

LARGE_BYTES: Final = 256 * KIB  # smaller frames are not counted
UNREAD_BYTES_MAX: Final = 64 * MIB  # of one client; one frame may pass it. What is dropped is asked for again
CLIENTS_MAX: Final = 10_000  # that are counted; the one that was counted first is forgotten


class UnreadAnswers:
    """The bytes sent to each client since its last message."""

    def __init__(self, bytes_max: int = UNREAD_BYTES_MAX, clients_max: int = CLIENTS_MAX) -> None:
        self._bytes_max = bytes_max
        self._clients_max = clients_max
        self._bytes: dict[bytes, int] = {}

    def said(self, client: bytes) -> None:
        self._bytes.pop(client, None)

    def may_send(self, client: bytes, size: int) -> bool:
        """Return True if a frame of so many bytes may be sent to it now; then it counts as sent."""
        if size <= LARGE_BYTES:
            return True
        before = self._bytes.get(client, 0)
        if before and before + size > self._bytes_max:
            return False
        if not before and len(self._bytes) >= self._clients_max:
            del self._bytes[next(iter(self._bytes))]
        self._bytes[client] = before + size
        return True
