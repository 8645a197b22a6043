"""A tower: passes the beacons of nodes on to all nodes, and carries nothing else.

A node's beacon arrives as ``B``, address, host, port; it leaves as ``B``, address, endpoint. Subscriptions of
the nodes are relayed to the nodes' own publishing sockets, so that they know when they are heard.

Source: Dafka's tower actor. Departures: beacons are checked; a node that subscribes is told at once about all
members that were heard lately; on a loopback tower a beacon without host gets the loopback address.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from chappe.defaults import BEACON_TIMEOUT_S, BEACONS_MAX
from chappe.errors import ProtocolError
from chappe.log.actions import Action, Forward, Relay
from chappe.log.beacon import BEACON, GOODBYE, IDENTITY, WELCOME, parse_beacon

REPLAY_S = 0.1  # newcomers within this time share one replay of what is known


class TowerCore:
    """The state of a tower.

    Args:
        own_host: Host put into beacons that came without one from this very machine.
    """

    def __init__(self, own_host: str) -> None:
        self._own_host = own_host
        self._nodes: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # address -> endpoint, until
        self._names: dict[bytes, str] = {}  # endpoint -> address
        self._replay_at = math.inf
        self._replayed_at = -math.inf

    def nodes(self, now: float) -> int:
        """Number of members heard lately."""
        self._expire(now)
        return len(self._nodes)

    def handle_beacon(self, frames: list[bytes], peer_host: str, now: float) -> list[Action]:
        """A node's beacon; ``peer_host`` is where its connection comes from, or empty.

        Raises:
            ProtocolError: It is not a beacon, or its endpoint cannot be one.
        """
        if len(frames) != 4:
            raise ProtocolError(f"beacon of {len(frames)} frames")
        kind, address, host, port = frames
        if not host:
            local = not peer_host or peer_host.startswith("127.") or peer_host == "::1"
            host = (self._own_host if local else peer_host).encode()
        endpoint = b"tcp://%b:%b" % (host, port)
        _, name, _ = parse_beacon([kind, address, endpoint])
        self._expire(now)
        if name.startswith(IDENTITY):
            pass  # a claim is repeated every second, and its node has a beacon of its own
        elif kind == GOODBYE:
            self._forget(name)
        elif name in self._nodes or len(self._nodes) < BEACONS_MAX:
            former = self._names.get(endpoint, name)
            if former != name:
                self._forget(former)  # it is dead, its port was taken over: a replay of it would do harm
            if name in self._nodes:
                self._forget(name)
            self._nodes[name] = (endpoint, now + BEACON_TIMEOUT_S)
            self._names[endpoint] = name
        return [Forward((kind, address, endpoint))]

    def handle_subscription(self, raw: bytes, now: float) -> list[Action]:
        """A node's subscription or its end, as an XPUB socket gives it."""
        if raw[:1] not in (b"\0", b"\1") or raw[1:2] == WELCOME:
            return []
        if raw == b"\1" + BEACON:
            self._replay_at = min(self._replay_at, max(now, self._replayed_at + REPLAY_S))
        return [Relay(raw), *self.handle_timeout(now)]

    def handle_timeout(self, now: float) -> list[Action]:
        """Replay what is known, if a newcomer waits for it."""
        if now < self._replay_at:
            return []
        self._replay_at = math.inf
        self._replayed_at = now
        self._expire(now)
        return [
            Forward((BEACON, name.encode("utf-8", "surrogateescape"), endpoint))
            for name, (endpoint, _) in self._nodes.items()
        ]

    def next_timeout(self) -> float:
        """When a replay is due."""
        return self._replay_at

    def _expire(self, now: float) -> None:
        while self._nodes:
            name, (_, until) = next(iter(self._nodes.items()))
            if now < until:
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        endpoint, _ = self._nodes.pop(name, (b"", 0.0))
        self._names.pop(endpoint, None)
