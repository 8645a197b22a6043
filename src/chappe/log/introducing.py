"""How programs of the original find a forwarder: it is a tower to them, which makes nobody known but itself.

They beacon as they do to any tower, hear the forwarder's own beacon, and listen to what it publishes; it listens to
what they publish. As they do not hear of each other, everything goes through the forwarder, and nothing comes twice.

Source: Dafka's beacon and tower actors, see ``log.beacon``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from chappe.core import Effect, Report, Send
from chappe.data.topic import decode_topic, identity_of
from chappe.errors import ProtocolError
from chappe.log.beacon import BEACON, REPLAY_S, TOWER, Discovery, Left, beacon_of
from chappe.log.events import ForwarderFound, ForwarderLost, TowerFound, TowerLost
from chappe.log.forwarders import Forwarders


class Introducer:
    """Whom a forwarder has met: the ``forwarders`` that it dials, and programs that beacon to it.

    Args:
        role: Told of members that are gone.
        address: Of the forwarder.
        host: Where its publishing socket is reached, at ``port``. Beacons without a host from this very machine get it.
    """

    def __init__(self, role: Left, address: str, host: str, port: int, forwarders: Forwarders, *, now: float) -> None:
        self._forwarders = forwarders
        self._nodes = Discovery(role, address, host, port, now=now)
        self._host = host
        self._endpoint = f"tcp://{host}:{port}".encode()
        self._tell_at = math.inf
        self._told_at = -math.inf

    @property
    def tower(self) -> bool:
        """Whether another forwarder is there."""
        return self._forwarders.tower

    @property
    def told(self) -> ForwarderFound | ForwarderLost | None:
        """See ``Forwarders.told``."""
        return self._forwarders.told

    @property
    def peers(self) -> int:
        """Number of forwarders and programs known."""
        return self._forwarders.peers + self._nodes.peers

    @property
    def met(self) -> list[tuple[str, str]]:
        """See ``Discovers.met``."""
        return self._forwarders.met + self._nodes.met

    def handle_frames(self, frames: list[bytes], peer_host: str, now: float) -> list[Effect]:
        """A program's beacon; ``peer_host`` is where its connection comes from, or empty. Raises ProtocolError.

        It comes without keys, so it belongs to no identity.
        """
        beacon = beacon_of(frames, peer_host, self._host)
        if identity_of(decode_topic(beacon[2]))[1]:
            raise ProtocolError("a beacon that names an identity, without its key")
        return self._taken(self._nodes.handle_frames(beacon, now), now)

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """A program wants to hear beacons, or no longer: it is told of us at once."""
        if on and prefix == BEACON:
            self._tell_at = min(self._tell_at, max(now, self._told_at + REPLAY_S))
        return self.handle_timeout(now) if now >= self._tell_at else []

    def handle_timeout(self, now: float) -> list[Effect]:
        """Say who we are; drop who has been silent."""
        actions = self._nodes.handle_timeout(now)
        if now >= self._tell_at:
            actions += self._nodes.announce(now)
        return [*self._taken(actions, now), *self._forwarders.handle_timeout(now)]

    def next_timeout(self) -> float:
        """When something is due."""
        return min(self._tell_at, self._nodes.next_timeout(), self._forwarders.next_timeout())

    def heard(self, place: int, address: str, now: float) -> list[Effect]:
        """See ``Forwarders.heard``."""
        return self._forwarders.heard(place, address, now)

    def store_heard(self, address: str, now: float) -> None:
        """See ``Forwarders.store_heard``."""

    def claim(self, identity: str, now: float) -> list[Effect]:
        """A forwarder has no identities."""
        return []

    def disclaim(self, identity: str) -> list[Effect]:
        """See ``claim``."""
        return []

    def newcomer(self, identity: str, now: float) -> bool:
        """See ``claim``."""
        return False

    def goodbye(self) -> list[Effect]:
        """Tell everybody that we leave; originals do not hear it."""
        return [self._published(each) for each in self._nodes.goodbye() if isinstance(each, Send)]

    def _taken(self, actions: Sequence[Effect], now: float) -> list[Effect]:
        """What follows from what the beacon side says: of ours goes one, which as a tower we hear ourselves."""
        found: list[Effect] = []
        for each in actions:
            if not isinstance(each, Send):
                if not (isinstance(each, Report) and isinstance(each.event, TowerFound | TowerLost)):
                    found.append(each)
            elif now > self._told_at:
                self._told_at, self._tell_at = now, math.inf
                published = self._published(each)
                self._nodes.handle_frames(list(published.message), now)
                found.append(published)
        return found

    def _published(self, beacon: Send) -> Send:
        kind, address, *_ = beacon.message
        return Send(TOWER, (kind, address, self._endpoint))
