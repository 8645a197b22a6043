"""Discovery: a node tells the towers where it is and learns from them where the others are.

A beacon is sent once a second, and at once when a new member is heard, so that newcomers meet everybody
within milliseconds.

Source: Dafka's beacon actor. Departures: the clock is monotonic; members are not dropped while no tower is
heard (the original then drops everybody); an endpoint taken over by another member counts as new; a member
that leaves says so with a beacon whose first frame is ``G``, which towers pass on and originals never hear.
"""

from __future__ import annotations

from typing import Final

from chappe.core import Report
from chappe.data.endpoint import is_endpoint
from chappe.data.topic import decode_topic, encode_topic
from chappe.defaults import ADDRESS_BYTES_MAX, BEACON_INTERVAL_S, BEACON_TIMEOUT_S, BEACONS_MAX, ENDPOINT_BYTES_MAX
from chappe.errors import ProtocolError
from chappe.log.actions import Action, Beacon, Connect, Disconnect, TakeOver
from chappe.log.events import IdentityClash, TowerFound, TowerLost

BEACON: Final = b"B"
GOODBYE: Final = b"G"
WELCOME: Final = b"W"


def parse_beacon(frames: list[bytes]) -> tuple[bytes, str, str]:
    """Kind, address and endpoint of a beacon as a tower sends it; raises ProtocolError."""
    if len(frames) != 3 or frames[0] not in (BEACON, GOODBYE):
        raise ProtocolError("beacon that is not three frames")
    _, address, endpoint = frames
    if not 0 < len(address) <= ADDRESS_BYTES_MAX:
        raise ProtocolError(f"beacon with an address of {len(address)} bytes")
    text = decode_topic(endpoint)
    if not is_endpoint(text):
        raise ProtocolError(f"beacon with the endpoint {text[:ENDPOINT_BYTES_MAX]!r}")
    return frames[0], decode_topic(address), text


class Discovery:
    """The beacon side of one node.

    Args:
        address: Our own address.
        host: Host that others reach us at.
        port: Port of our publishing socket.
    """

    def __init__(self, address: str, host: str, port: int, *, now: float) -> None:
        self._address = address
        self._endpoint = f"tcp://{host}:{port}"
        self._frames = (encode_topic(address), host.encode(), str(port).encode())
        self._peers: dict[str, tuple[str, float]] = {}  # endpoint -> address, silent after
        self._started = now
        self._beacon_at = now
        self._expire_at = now + BEACON_INTERVAL_S
        self._echo_at = now
        self._tower: bool | None = None
        self._clash_at: float | None = None
        self._clashing = False

    @property
    def tower(self) -> bool:
        """Whether a tower hears us."""
        return self._tower is True

    @property
    def peers(self) -> int:
        """Number of members known."""
        return len(self._peers)

    def handle_tower_ready(self, now: float) -> list[Action]:
        """A tower subscribed to our beacons or welcomed us: it hears what we send from now on."""
        return self._beacon(now)

    def handle_beacon(self, frames: list[bytes], now: float) -> list[Action]:
        """A message of a tower. Raises ProtocolError for anything but a welcome or a beacon."""
        if frames == [WELCOME]:
            return self._beacon(now)
        kind, address, endpoint = parse_beacon(frames)
        if address == self._address:
            return self._own(kind, endpoint, now)
        if endpoint == self._endpoint:
            return []  # of somebody dead, who had our port before
        known = self._peers.get(endpoint)
        if kind == GOODBYE:
            if known is None or known[0] != address:
                return []
            del self._peers[endpoint]
            return [Disconnect(endpoint, address)]
        if known is None and len(self._peers) >= BEACONS_MAX:
            return []
        self._peers[endpoint] = (address, now + BEACON_TIMEOUT_S)
        if known is None:
            return [Connect(endpoint, address), *self._beacon(now)]
        if known[0] != address:
            return [TakeOver(endpoint, known[0], address), *self._beacon(now)]
        return []

    def goodbye(self) -> list[Action]:
        """Tell everybody that we leave."""
        return [Beacon((GOODBYE, *self._frames))]

    def handle_timeout(self, now: float) -> list[Action]:
        """Send the beacon that is due; drop members that have been silent while a tower was there."""
        actions: list[Action] = []
        if now >= self._beacon_at:
            actions += self._beacon(now)
        if now >= self._expire_at:
            self._expire_at = now + BEACON_INTERVAL_S
            if now - self._echo_at > 2.5 * BEACON_INTERVAL_S:
                if self._tower is not False:
                    self._tower = False
                    actions.append(Report(TowerLost()))
            else:
                actions += self._expire(now)
        return actions

    def next_timeout(self) -> float:
        """When the next beacon or expiry is due."""
        return min(self._beacon_at, self._expire_at)

    def _beacon(self, now: float) -> list[Action]:
        self._beacon_at = now + BEACON_INTERVAL_S
        return [Beacon((BEACON, *self._frames))]

    def _expire(self, now: float) -> list[Action]:
        gone = [(endpoint, address) for endpoint, (address, until) in self._peers.items() if now >= until]
        for endpoint, _ in gone:
            del self._peers[endpoint]
        return [Disconnect(endpoint, address) for endpoint, address in gone]

    def _own(self, kind: bytes, endpoint: str, now: float) -> list[Action]:
        if endpoint != self._endpoint:
            return self._clash(endpoint, now) if kind == BEACON else []
        actions: list[Action] = []
        if now - self._echo_at > 2.5 * BEACON_INTERVAL_S:
            # The tower was away: what was silent meanwhile may be well.
            for peer, (address, _) in self._peers.items():
                self._peers[peer] = (address, now + BEACON_TIMEOUT_S)
        self._echo_at = now
        if self._tower is not True:
            self._tower = True
            actions.append(Report(TowerFound()))
        return actions

    def _clash(self, endpoint: str, now: float) -> list[Action]:
        """Someone else beacons our address; a single one may be an echo of our own former life."""
        if self._clash_at is None or now - self._clash_at > BEACON_TIMEOUT_S:
            self._clash_at = now
            return []
        if now - self._clash_at < BEACON_INTERVAL_S / 2 or self._clashing:
            return []
        self._clashing = True
        return [Report(IdentityClash(self._address, endpoint))]

    def newcomer(self, now: float) -> bool:
        """Whether we started only now: in a clash of identities the newcomer gives way."""
        return now - self._started < 2 * BEACON_TIMEOUT_S
