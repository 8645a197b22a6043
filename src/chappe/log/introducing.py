"""How a node joins others without a tower, and how it lets them leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chappe.core import Effect, Report, Send
from chappe.data.topic import decode_topic, identity_of
from chappe.defaults import BEACON_TIMEOUT_S
from chappe.errors import ProtocolError
from chappe.log.beacon import BEACON, REPLAY_S, TOWER, Discovery, Left, beacon_of
from chappe.log.events import ForwarderFound, ForwarderLost, TowerFound, TowerLost


class Introducer:
    """The members that a forwarder has met: the ``forwarders`` that it dials, and programs that beacon to it.

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
        return self._forwarders.tower

    @property
    def told(self) -> ForwarderFound | ForwarderLost | None:
        return self._forwarders.told

    @property
    def peers(self) -> int:
        return self._forwarders.peers + self._nodes.peers

    @property
    def met(self) -> list[tuple[str, str]]:
        return self._forwarders.met + self._nodes.met

    def handle_frames(self, frames: list[bytes], peer_host: str, now: float) -> list[Effect]:
        """Take a program's beacon, without keys, from ``peer_host`` (empty: unknown). Raises ProtocolError."""
        beacon = beacon_of(frames, peer_host, self._host)
        if identity_of(decode_topic(beacon[2]))[1]:
            raise ProtocolError("a beacon that names an identity, without its key")
        return self._taken(self._nodes.handle_frames(beacon, now), now)

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Announce us at once to a program that subscribed to beacons."""
        if on and prefix == BEACON:
            self._tell_at = min(self._tell_at, max(now, self._told_at + REPLAY_S))
        return self.handle_timeout(now) if now >= self._tell_at else []

    def handle_timeout(self, now: float) -> list[Effect]:
        """Announce us; drop members that have been silent."""
        actions = self._nodes.handle_timeout(now)
        if now >= self._tell_at:
            actions += self._nodes.announce(now)
        return [*self._taken(actions, now), *self._forwarders.handle_timeout(now)]

    def next_timeout(self) -> float:
        return min(self._tell_at, self._nodes.next_timeout(), self._forwarders.next_timeout())

    def heard(self, place: int, address: str, now: float) -> list[Effect]:
        return self._forwarders.heard(place, address, now)

    def store_heard(self, address: str, now: float) -> None: ...

    def claim(self, identity: str, now: float) -> list[Effect]:
        """Do nothing: a forwarder has no identities."""
        return []

    def disclaim(self, identity: str) -> list[Effect]:
        return []

    def newcomer(self, identity: str, now: float) -> bool:
        return False

    def goodbye(self) -> list[Effect]:
        """Tell everybody that we leave; originals do not hear it."""
        return [self._published(each) for each in self._nodes.goodbye() if isinstance(each, Send)]

    def _taken(self, actions: Sequence[Effect], now: float) -> list[Effect]:
        """Translate actions of the beacon side: one of our beacons leaves, which we hear ourselves as a tower."""
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


@dataclass(slots=True)
class _Heard:
    at: str  # as people are told of it
    lost_at: float  # if it is silent until then
    address: str | None = None  # of its present life


class Forwarders:
    """The forwarders that one node dials, in place of ``beacon.Discovery`` where there is no tower.

    Such a node is not found and finds nobody; it takes what all forwarders send. A forwarder says once a second who it
    is (STORE-INFO); one that is silent for some seconds is gone, until it is heard again.

    Source: chappe's own.

    Args:
        role: Told of each forwarder that is gone.
        places: How users call the forwarders.
    """

    def __init__(self, role: Left, places: Sequence[str], *, now: float) -> None:
        self._role = role
        self._heard = [_Heard(each, now + BEACON_TIMEOUT_S) for each in places]

    @property
    def tower(self) -> bool:
        return self.peers > 0

    @property
    def told(self) -> ForwarderFound | ForwarderLost | None:
        """The last report on the first one that is there, or else of the first one that is not."""
        here = [each for each in self._heard if each.address is not None]
        if here:
            return ForwarderFound(here[0].at)
        return next((ForwarderLost(each.at) for each in self._heard if each.lost_at == math.inf), None)

    @property
    def peers(self) -> int:
        return sum(each.address is not None for each in self._heard)

    @property
    def met(self) -> list[tuple[str, str]]:
        return [(each.address, each.at) for each in self._heard if each.address is not None]

    def heard(self, place: int, address: str, now: float) -> list[Effect]:
        """Note that the forwarder at a place said its address."""
        found = self._heard[place]
        former, found.address, found.lost_at = found.address, address, now + BEACON_TIMEOUT_S
        if former == address:
            return []
        return [Report(ForwarderFound(found.at))] if former is None else self._role.handle_gone(former, now)

    def store_heard(self, address: str, now: float) -> None:
        """Do nothing: ``heard`` tells what a forwarder says of itself, and no other store is met."""

    def handle_timeout(self, now: float) -> list[Effect]:
        actions: list[Effect] = []
        for each in self._heard:
            if now >= each.lost_at:
                if each.address is not None:
                    actions += self._role.handle_gone(each.address, now)
                each.address, each.lost_at = None, math.inf
                actions.append(Report(ForwarderLost(each.at)))
        return actions

    def next_timeout(self) -> float:
        return min((each.lost_at for each in self._heard), default=math.inf)

    def claim(self, identity: str, now: float) -> list[Effect]:
        """Do nothing: members that go on with an identity do not hear each other here."""
        return []

    def disclaim(self, identity: str) -> list[Effect]:
        return []

    def newcomer(self, identity: str, now: float) -> bool:
        return False

    def goodbye(self) -> list[Effect]:
        """Do nothing: a connection that ends says enough."""
        return []


LOOK_S: Final = 0.1  # between two checks
LEAVING_S: Final = 60.0  # the longest wait of a closing connection
LEAVING_MAX: Final = 64  # closing connections; each may hold as many messages as a socket queues


class Leaving:
    """Delays the end of the connection to a departed member until everything that it sent is read.

    A member may leave as soon as a store has acknowledged its records, while a listener is still reading. The rest
    waits in the socket and in the kernel, and is lost with the connection. So a closing connection is checked
    regularly, and ends when two checks in a row found nothing unread: between them the kernel delivers the rest.

    Their number and waiting time are bounded, since a member that is not read cannot exit. Beyond the bounds a
    connection ends at once, and stores are asked for the rest.

    Source: chappe's own; the original disconnects at once.
    """

    def __init__(self) -> None:
        self._empty: dict[str, bool] = {}  # True if the last check found nothing unread; the oldest first
        self._until: dict[str, float] = {}  # deadlines
        self._look_at = math.inf

    def leave(self, endpoint: str, now: float) -> str | None:
        """Close a connection once it is read; return one that must be closed now, if there are too many."""
        oldest = next(iter(self._empty)) if len(self._empty) >= LEAVING_MAX else None
        if oldest is not None:
            self.stay(oldest)
        self._empty[endpoint] = False
        self._until[endpoint] = now + LEAVING_S
        self._look_at = min(self._look_at, now + LOOK_S)
        return oldest

    def stay(self, endpoint: str) -> bool:
        """Keep the connection, whose endpoint is back; return False if it has already ended."""
        self._until.pop(endpoint, None)
        return self._empty.pop(endpoint, None) is not None

    def look(self, unread: Callable[[str], bool], now: float) -> list[str]:
        """Return the connections to end now; ``unread`` tells whether input of one may be pending."""
        if now < self._look_at:
            return []
        ended: list[str] = []
        for endpoint, empty in self._empty.items():
            found = not unread(endpoint)
            self._empty[endpoint] = found
            if (empty and found) or now >= self._until[endpoint]:
                ended.append(endpoint)
        for endpoint in ended:
            self.stay(endpoint)
        self._look_at = now + LOOK_S if self._empty else math.inf
        return ended

    def next_timeout(self) -> float:
        return self._look_at
