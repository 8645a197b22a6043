"""One connection per pair of endpoints, whoever dials and however often.

An endpoint knows whom it talks to only in the middle of a handshake. There the connection *claims* the peer; the first
one has it. Of two that dial each other the originator, who has the smaller id, decides for both: it lets its further
connections to the peer wait (``PAUSE``) until the first is settled or has failed, and tells the responder then.

Source: Broker's ``internal/peer_status_map`` and ``internal/connector``. Departures: a paused connection goes on when
the first one fails, so that no peering is lost with it; the number of paused ones has a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from chappe.defaults import PAUSED_MAX

_SETTLING: Final = "only a connection that claimed the peer can settle"


class PeerStatus(IntEnum):
    """The progress of a peering, by Broker's numbers."""

    CONNECTING = 1
    CONNECTED = 2
    PEERED = 3
    DISCONNECTED = 4
    UNKNOWN = 6


class HandshakeRole(Enum):
    """The role in a handshake: the endpoint with the smaller id is the originator, even if the other dialled."""

    ORIGINATOR = "originator"
    RESPONDER = "responder"


class PeerClaim(Enum):
    """The answer to a connection's claim of a peer: PROCEED has it, PAUSE waits for another, REDUNDANT gives up."""

    PROCEED = "proceed"
    PAUSE = "pause"
    REDUNDANT = "redundant"


@dataclass(slots=True)
class _PeerEntry:
    status: PeerStatus
    conn: int
    paused: list[int] = field(default_factory=list)


class PeerTable:
    """The connection of each peer. ``conn`` are the numbers of connections, unique among the living."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _PeerEntry] = {}

    def claim(self, conn: int, peer_id: bytes, role: HandshakeRole) -> PeerClaim:
        """Ask for ``peer_id``. A paused connection asks again when it is woken."""
        entry = self._entries.get(peer_id)
        if entry is None:
            self._entries[peer_id] = _PeerEntry(PeerStatus.CONNECTING, conn)
            return PeerClaim.PROCEED
        if entry.conn == conn:
            return PeerClaim.PROCEED
        if entry.status is not PeerStatus.CONNECTING or role is HandshakeRole.RESPONDER:
            return PeerClaim.REDUNDANT
        if conn not in entry.paused:
            if len(entry.paused) >= PAUSED_MAX:
                return PeerClaim.REDUNDANT
            entry.paused.append(conn)
        return PeerClaim.PAUSE

    def settle(self, conn: int, peer_id: bytes) -> tuple[int, ...]:
        """Note that the handshake of ``conn`` succeeded. Return the paused connections, to be woken in order."""
        entry = self._entries[peer_id]
        assert entry.conn == conn, _SETTLING
        assert entry.status is PeerStatus.CONNECTING, _SETTLING
        entry.status = PeerStatus.CONNECTED
        paused, entry.paused = tuple(entry.paused), []
        return paused

    def peered(self, peer_id: bytes) -> None:
        """Note that the connected peer takes part in routing now."""
        entry = self._entries[peer_id]
        assert entry.status is PeerStatus.CONNECTED, "a peering follows a handshake"
        entry.status = PeerStatus.PEERED

    def release(self, conn: int, peer_id: bytes) -> tuple[int, ...]:
        """Note that ``conn`` is gone; return those that it paused, to be woken in order: the first gets the peer."""
        entry = self._entries.get(peer_id)
        if entry is None:
            return ()
        if entry.conn != conn:
            if conn in entry.paused:
                entry.paused.remove(conn)
            return ()
        del self._entries[peer_id]
        return tuple(entry.paused)

    def status(self, peer_id: bytes) -> PeerStatus:
        """Return the progress of the peering with ``peer_id``; UNKNOWN for an id never met."""
        entry = self._entries.get(peer_id)
        return PeerStatus.UNKNOWN if entry is None else entry.status

    def connection(self, peer_id: bytes) -> int | None:
        entry = self._entries.get(peer_id)
        return None if entry is None else entry.conn

    def has_other(self, conn: int, peer_id: bytes) -> bool:
        """Return whether a connection other than ``conn`` has the peer or is on the way to it."""
        entry = self._entries.get(peer_id)
        return entry is not None and entry.conn != conn
