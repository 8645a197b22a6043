"""Discovery: a node tells the towers where it is and learns from them where the others are.

A beacon is sent once a second, and at once when a new member is heard, so that newcomers meet everybody
within milliseconds.

A node carries any number of partitions, or of consumers, and its beacon has an address of its own. That begins with
what the node does: nodes that produce do not connect to each other, nor do those that consume. Every other address is
connected to. A member that goes on with an identity claims it with a beacon of its own, which is
not that of a node, and which only those look at that claim the same.

Source: Dafka's beacon actor. Departures: the clock is monotonic; members are not dropped while no tower is
heard (the original then drops everybody); an endpoint taken over by another member counts as new; a member
that leaves says so with a beacon whose first frame is ``G``, which towers pass on and originals never hear. Nor do
these hear what people call the tower, ``T`` and a name, which follows a subscription to beacons. A store that answers
at the endpoint of a dead member while no tower is there has no beacon: it is gone once its STORE-INFO stays away.

A tower passes the beacons of nodes on to all nodes, and carries nothing else. A node's beacon arrives as ``B``,
address, host, port; it leaves as ``B``, address, endpoint. Subscriptions of the nodes are relayed to the nodes'
own publishing sockets, so that they know when they are heard.

Source: Dafka's tower actor. Departures: beacons are checked; a node that subscribes is told at once about all
members that were heard lately; on a loopback tower a beacon without host gets the loopback address.

Where connections have keys, a beacon names an identity in its endpoint. A tower forwards a beacon only if its sender
names itself and has the right (``Guard.announces``), and members check it again by their own permissions.

Floods are bounded, with keys and without: the table of members is bounded, also per identity, and so is the rate at
which new members are dialled and answered. The table ignores newcomers while it is full; members beyond the rate
wait.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from chappe.core import Close, Dial, Effect, Publish, Report, Send, Subscribe
from chappe.data.label import is_label
from chappe.data.topic import decode_topic, encode_topic, identity_of, is_endpoint
from chappe.deadlines import Deadlines
from chappe.defaults import (
    ADDRESS_BYTES_MAX,
    BEACON_INTERVAL_S,
    BEACON_TIMEOUT_S,
    BEACONS_MAX,
    DIALS_AT_ONCE,
    DIALS_RATE,
    ENDPOINT_BYTES_MAX,
    IDENTITY_BEACONS_MAX,
    STORE_SILENT_S,
)
from chappe.errors import ProtocolError
from chappe.log.events import IdentityClash, TowerFound, TowerLost
from chappe.log.guard import LISTERS, PRODUCERS, Guard
from chappe.permissions.rules import Verbs

BEACON: Final = b"B"
GOODBYE: Final = b"G"
WELCOME: Final = b"W"
NAMED: Final = b"T"  # what people call a tower
DIAL_S: Final = 0.05  # between two rounds of dialling
REPLAY_S: Final = 0.1  # newcomers within this time share one replay of what a tower knows
PRODUCING: Final = "producing-"  # an address that begins so is that of a node which carries producers ...
CONSUMING: Final = "consuming-"  # ... or consumers
TOWER: Final = "tower"  # to whom beacons are sent
IDENTITY: Final = "identity-"  # somebody goes on with this identity: no node


def kind_of(address: str) -> str:
    """Return the kind of a node by its address: ``PRODUCING``, ``CONSUMING``, or "" if the address does not say."""
    return next((each for each in (PRODUCING, CONSUMING) if address.startswith(each)), "")


def verbs_of(address: str) -> Verbs:
    """Return the rights of which a member with keys needs one to announce this address: for a node, any in the log."""
    return PRODUCERS if address.startswith(IDENTITY) else LISTERS


def parse_beacon(frames: list[bytes]) -> tuple[bytes, str, str]:
    """Return kind, address and endpoint of a beacon as a tower sends it; raises ProtocolError."""
    if len(frames) != 3 or frames[0] not in (BEACON, GOODBYE):
        raise ProtocolError("beacon that is not three frames")
    _, address, endpoint = frames
    if not 0 < len(address) <= ADDRESS_BYTES_MAX:
        raise ProtocolError(f"beacon with an address of {len(address)} bytes")
    text = decode_topic(endpoint)
    if not is_endpoint(text):
        raise ProtocolError(f"beacon with the endpoint {text[:ENDPOINT_BYTES_MAX]!r}")
    return frames[0], decode_topic(address), text


def beacon_of(frames: list[bytes], peer_host: str, own_host: str) -> list[bytes]:
    """Return a node's beacon as a tower passes it on. Raises ProtocolError: it is not four frames.

    One without a host gets that of its connection, ``peer_host``, or ``own_host`` if it is of this very machine.
    """
    if len(frames) != 4:
        raise ProtocolError(f"beacon of {len(frames)} frames")
    kind, address, host, port = frames
    if not host:
        local = not peer_host or peer_host.startswith("127.") or peer_host == "::1"
        host = (own_host if local else peer_host).encode()
    return [kind, address, b"tcp://%b:%b" % (host, port)]


@dataclass(slots=True)
class _Claim:
    since: float
    clash_at: float | None = None
    clashing: bool = False


class _Dials:
    """A rate limiter for dialling new members: ``DIALS_AT_ONCE``, then ``DIALS_RATE`` per second."""

    def __init__(self, now: float) -> None:
        self._left = float(DIALS_AT_ONCE)
        self._at = now

    def take(self, now: float) -> bool:
        self._left = min(DIALS_AT_ONCE, self._left + (now - self._at) * DIALS_RATE)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Left(Protocol):
    """The core that is told which members are gone."""

    def handle_gone(self, address: str, now: float) -> list[Effect]: ...


class Discovery:
    """The beacon side of one node; others reach its publishing socket at ``host`` and ``port``.

    Args:
        role: Told of members that are gone.
        port: Where connections have keys, ``#NAME`` of our identity follows.
        guard: Judges other members' claims, where connections have keys.
    """

    def __init__(
        self, role: Left, address: str, host: str, port: int | str, *, now: float, guard: Guard | None = None
    ) -> None:
        self._role = role
        self._endpoint = f"tcp://{host}:{port}"
        self._where = (host.encode(), str(port).encode())
        self._guard = guard
        self._peers: dict[str, tuple[str, float]] = {}  # endpoint -> address, silent after
        self._places: Counter[str] = Counter()  # number of endpoints per address: several after a restart, or by fraud
        self._of_identity: Counter[str] = Counter()  # members of each identity
        self._undialled: dict[str, None] = {}  # endpoints of members that wait to be dialled
        self._unannounced: Deadlines[str] = Deadlines()  # stores without a beacon, and when their silence is too long
        self._dials = _Dials(now)
        self._claims: dict[str, _Claim] = {}
        self.heard = 0  # messages of towers
        self.tower_name = ""  # for people; of several towers, the one that told it last
        self.beacons: dict[str, int] = {}  # of each node that is known, by its endpoint
        self._address = address
        self._kind = kind_of(address)
        self._timers: Deadlines[str] = Deadlines()
        self._timers.set("beacon", now)
        self._timers.set("expire", now + BEACON_INTERVAL_S)
        self._echo_at = now
        self._tower: bool | None = None

    @property
    def tower(self) -> bool:
        return self._tower is True

    @property
    def told(self) -> TowerFound | TowerLost | None:
        return None if self._tower is None else TowerFound() if self._tower else TowerLost()

    @property
    def peers(self) -> int:
        return len(self._peers)

    @property
    def met(self) -> list[tuple[str, str]]:
        return [(address, endpoint) for endpoint, (address, _) in self._peers.items()]

    def claim(self, identity: str, now: float) -> list[Effect]:
        self._claims[identity] = _Claim(now)
        return [self._frames(BEACON, IDENTITY + identity)]

    def disclaim(self, identity: str) -> list[Effect]:
        del self._claims[identity]
        return [self._frames(GOODBYE, IDENTITY + identity)]

    def newcomer(self, identity: str, now: float) -> bool:
        """Return True if we claim an identity only since now: in a clash the newcomer gives way."""
        claim = self._claims.get(identity)
        return claim is not None and now - claim.since < 2 * BEACON_TIMEOUT_S

    def goodbye(self) -> list[Effect]:
        return [self._frames(GOODBYE, each) for each in self._addresses()]

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Announce us: a tower that subscribed to our beacons hears them from now on."""
        return self.announce(now) if on and prefix == BEACON else []

    def handle_frames(self, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message of a tower. Raises ProtocolError for anything but a welcome, its name or a beacon."""
        if len(frames) == 2 and frames[0] == NAMED:
            name = frames[1].decode("utf-8", "replace")
            self.tower_name = name if is_label(name) else ""
            return []
        self.heard += 1
        if frames == [WELCOME]:
            return self.announce(now)
        kind, address, endpoint = parse_beacon(frames)
        who = identity_of(endpoint)[1]
        if self._guard is not None and not self._guard.may_announce(who, verbs_of(address)):
            return []
        if address.startswith(IDENTITY):
            return self._claimed(kind, address.removeprefix(IDENTITY), endpoint, now)
        if endpoint == self._endpoint:
            return self._echo(now) if address == self._address else []  # else of somebody dead, who had our port before
        known = self._peers.get(endpoint)
        if kind == GOODBYE:
            if known is None or known[0] != address:
                return []
            return self._lost(endpoint, now)
        if known is None and not self._has_room(who):
            return []
        self._peers[endpoint] = (address, now + BEACON_TIMEOUT_S)
        self.beacons[endpoint] = self.beacons.get(endpoint, 0) + 1
        if known is None:
            self._of_identity[who] += 1
        elif known[0] == address:
            return []
        else:
            self._leaves(known[0])
        self._places[address] += 1
        self._unannounced.clear(address)
        return self._met(endpoint, None if known is None else known[0], address, now)

    def store_heard(self, address: str, now: float) -> None:
        """Note a store's STORE-INFO: if no beacon names the store, it is gone once it stops publishing these."""
        known = address in self._places
        if not known and (address in self._unannounced or len(self._unannounced) < BEACONS_MAX):
            self._unannounced.set(address, now + STORE_SILENT_S)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Send the beacon that is due; drop nodes that have been silent while a tower was there."""
        actions: list[Effect] = []
        for timer in self._timers.due(now):
            if timer == "beacon":
                actions += self.announce(now)
                continue
            if timer == "dial":
                actions += self._dial(now)
                continue
            self._timers.set("expire", now + BEACON_INTERVAL_S)
            if now - self._echo_at <= 2.5 * BEACON_INTERVAL_S:
                actions += self._expire(now)
            elif self._tower is not False:
                self._tower = False
                actions.append(Report(TowerLost()))
        for address in self._unannounced.due(now):
            actions += self._role.handle_gone(address, now)
        return actions

    def next_timeout(self) -> float:
        return min(self._timers.next, self._unannounced.next)

    def _addresses(self) -> list[str]:
        return [self._address, *(IDENTITY + each for each in self._claims)]

    def _frames(self, kind: bytes, address: str) -> Send:
        return Send(TOWER, (kind, encode_topic(address), *self._where))

    def announce(self, now: float) -> list[Effect]:
        self._timers.set("beacon", now + BEACON_INTERVAL_S)
        return [self._frames(BEACON, each) for each in self._addresses()]

    def _needs(self, address: str) -> bool:
        """Return True if we and another node may have something to say to each other."""
        return not self._kind or not address.startswith(self._kind)

    def _has_room(self, who: str) -> bool:
        """True if there is room for another member, of this identity where connections have keys."""
        if len(self._peers) >= BEACONS_MAX:
            return False
        return self._guard is None or self._of_identity[who] < IDENTITY_BEACONS_MAX

    def _met(self, endpoint: str, former: str | None, address: str, now: float) -> list[Effect]:
        """Connect to a node that is new, or that took over the endpoint of another one."""
        connected = former is not None and self._needs(former) and endpoint not in self._undialled
        if not self._needs(address):
            self._undialled.pop(endpoint, None)
            return [Close(endpoint), *self._gone(former, now)] if former is not None and connected else []
        if former is not None and connected:
            return [*self._gone(former, now), Dial(endpoint, address), *self.announce(now)]
        self._undialled[endpoint] = None
        return self._dial(now)

    def _dial(self, now: float) -> list[Effect]:
        """Dial waiting members as far as the rate allows, and answer them."""
        actions: list[Effect] = []
        while self._undialled and self._dials.take(now):
            endpoint = next(iter(self._undialled))
            del self._undialled[endpoint]
            actions.append(Dial(endpoint, self._peers[endpoint][0]))
        if self._undialled:
            self._timers.set("dial", now + DIAL_S)
        return [*actions, *self.announce(now)] if actions else []

    def _lost(self, endpoint: str, now: float) -> list[Effect]:
        address, _ = self._peers.pop(endpoint)
        self.beacons.pop(endpoint, None)
        _count_down(self._of_identity, identity_of(endpoint)[1])
        self._leaves(address)
        waited = endpoint in self._undialled
        self._undialled.pop(endpoint, None)
        return [] if waited or not self._needs(address) else [Close(endpoint), *self._gone(address, now)]

    def _leaves(self, address: str) -> None:
        _count_down(self._places, address)

    def _gone(self, address: str, now: float) -> list[Effect]:
        """A member is gone, unless another endpoint still has its address."""
        return [] if address in self._places else self._role.handle_gone(address, now)

    def _expire(self, now: float) -> list[Effect]:
        gone = [endpoint for endpoint, (_, until) in self._peers.items() if now >= until]
        return [action for endpoint in gone for action in self._lost(endpoint, now)]

    def _echo(self, now: float) -> list[Effect]:
        if now - self._echo_at > 2.5 * BEACON_INTERVAL_S:
            # It was away: what was silent meanwhile may be well.
            for peer, (address, _) in self._peers.items():
                self._peers[peer] = (address, now + BEACON_TIMEOUT_S)
        self._echo_at = now
        if self._tower is True:
            return []
        self._tower = True
        return [Report(TowerFound())]

    def _claimed(self, kind: bytes, identity: str, endpoint: str, now: float) -> list[Effect]:
        """Judge a claim. If it is for one of our identities, a single beacon may be an echo of our own former life."""
        claim = self._claims.get(identity)
        if claim is None or kind != BEACON or endpoint == self._endpoint:
            return []
        if claim.clash_at is None or now - claim.clash_at > BEACON_TIMEOUT_S:
            claim.clash_at = now
            return []
        if now - claim.clash_at < BEACON_INTERVAL_S / 2 or claim.clashing:
            return []
        claim.clashing = True
        return [Report(IdentityClash(identity, endpoint))]


def _count_down(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class TowerCore:
    """The state of a tower; beacons that came without a host from this very machine get ``own_host``.

    Args:
        guard: Judges members' claims, where connections have keys.
        name: Its name for people; newcomers that ask for it are told.
    """

    def __init__(self, own_host: str, guard: Guard | None = None, *, name: str = "") -> None:
        self._own_host = own_host
        self._name = name
        self._guard = guard
        # By address and identity, so that no identity replaces another: the endpoint, and until when it counts.
        self._nodes: OrderedDict[tuple[str, str], tuple[bytes, float]] = OrderedDict()
        self._names: dict[bytes, tuple[str, str]] = {}  # of endpoints
        self._of_identity: Counter[str] = Counter()  # nodes of each
        self._replay_at = math.inf
        self._replayed_at = -math.inf

    def nodes(self, now: float) -> int:
        self._expire(now)
        return len(self._nodes)

    def handle_frames(self, frames: list[bytes], peer_host: str, who: str, now: float) -> list[Effect]:
        """Take a node's beacon; ``peer_host`` is where its connection comes from, or empty, and ``who`` its identity.

        Raises ProtocolError: it is not a beacon, or its endpoint cannot be one.
        """
        passed_on = beacon_of(frames, peer_host, self._own_host)
        kind, _, endpoint = passed_on
        _, address, where = parse_beacon(passed_on)
        if self._guard is not None and not self._guard.announces(who, identity_of(where)[1], verbs_of(address)):
            return []
        self._expire(now)
        name = (address, who)
        if address.startswith(IDENTITY):
            pass  # a claim is repeated every second, and its node has a beacon of its own
        elif kind == GOODBYE:
            self._forget(name)
        elif name not in self._nodes and not self._has_room(who):
            return []
        else:
            former = self._names.get(endpoint, name)
            if former != name:
                self._forget(former)  # it is dead, its port was taken over: a replay of it would do harm
            if name in self._nodes:
                self._forget(name)
            self._nodes[name] = (endpoint, now + BEACON_TIMEOUT_S)
            self._names[endpoint] = name
            self._of_identity[who] += 1
        return [Publish(tuple(passed_on))]

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        if prefix[:1] in (WELCOME, NAMED):
            return []
        if on and prefix == BEACON:
            self._replay_at = min(self._replay_at, max(now, self._replayed_at + REPLAY_S))
        return [Subscribe(prefix, on), *self.handle_timeout(now)]

    def handle_timeout(self, now: float) -> list[Effect]:
        """Replay what is known, if a newcomer waits for it."""
        if now < self._replay_at:
            return []
        self._replay_at = math.inf
        self._replayed_at = now
        self._expire(now)
        known = [
            Publish((BEACON, encode_topic(address), endpoint)) for (address, _), (endpoint, _) in self._nodes.items()
        ]
        return [*([Publish((NAMED, self._name.encode()))] if self._name else []), *known]

    def flush(self, now: float) -> list[Effect]:
        """Do nothing: beacons are passed on at once."""
        return []

    def next_timeout(self) -> float:
        return self._replay_at

    def _expire(self, now: float) -> None:
        while self._nodes:
            name, (_, until) = next(iter(self._nodes.items()))
            if now < until:
                return
            self._forget(name)

    def _has_room(self, who: str) -> bool:
        """True if there is room for another node, of this identity where connections have keys."""
        if len(self._nodes) >= BEACONS_MAX:
            return False
        return self._guard is None or self._of_identity[who] < IDENTITY_BEACONS_MAX

    def _forget(self, name: tuple[str, str]) -> None:
        endpoint, _ = self._nodes.pop(name, (b"", 0.0))
        if endpoint:
            del self._names[endpoint]
            _count_down(self._of_identity, name[1])
