"""The sockets by which one of two map servers tells the other of itself, hears of it, and asks the witness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zmq

from chappe.errors import ProtocolError
from chappe.replication.binary_star.messages import BEAT, PARTNER, WITNESS, PartnerBeat
from chappe.runtime.dialling import Connections
from chappe.runtime.driver import Driver, Frames, Inlet
from chappe.runtime.map_rules import MapRules
from chappe.transports.gate import Gate, sender_of
from chappe.transports.maps import MapAddress, PairSockets

LISTENERS: Final = "listeners"  # the link by which others subscribe to heartbeats
_NOBLOCK: Final = int(zmq.NOBLOCK)


@dataclass(frozen=True, slots=True)
class PairAddresses:
    """The others' addresses, ``peer`` for the map and ``partner`` for heartbeats, and our ``own`` for heartbeats."""

    peer: MapAddress
    own: MapAddress
    partner: MapAddress
    witness: MapAddress | None


class PairLink:
    """The sockets of a pair, linked as ``LISTENERS``, which ``hear`` takes, ``PARTNER`` and ``WITNESS``. ``rules``: of
    a server with keys.
    """

    def __init__(
        self, driver: Driver, dialling: Connections, addresses: PairAddresses, gate: Gate | None, rules: MapRules | None
    ) -> None:
        self._driver = driver
        self._rules = rules
        self._beats = False  # somebody has subscribed to heartbeats: they are told ever after
        self._originals = 0  # so many have subscribed to everything
        witness = addresses.witness
        sockets = PairSockets(addresses.own, witness=witness is not None, gate=gate)
        self._telling = driver.watch(Inlet(sockets.telling, LISTENERS, copied=gate is None))
        hearing = driver.watch(Inlet(sockets.hearing, PARTNER))
        dialling.connect(hearing, addresses.partner.endpoint(0))
        self._asking: Inlet | None = None
        if sockets.asking is not None and witness is not None:
            self._asking = driver.watch(Inlet(sockets.asking, WITNESS))
            dialling.connect(self._asking, witness.endpoint(0))

    def hear(self, frames: Frames) -> None:
        """Take a subscription to heartbeats; with keys only the partner may."""
        raw: list[bytes] = frames if self._rules is None else [each.bytes for each in frames]
        on, prefix = subscription(raw)
        if self._rules is not None and on:
            if not self._rules.is_partner(sender_of(frames)):
                return
            self._telling.sock.setsockopt(zmq.SUBSCRIBE, prefix)
        if prefix == BEAT:  # anybody may unsubscribe, also from what he never subscribed to
            self._beats |= on
        elif not prefix:
            self._originals = max(0, self._originals + (1 if on else -1))

    def tell(self, heartbeat: PartnerBeat) -> None:
        """Send a heartbeat: an original subscribes to everything, an end of chappe to heartbeats by their name."""
        sock = self._telling.sock
        if self._beats:
            sock.send(heartbeat.beat, _NOBLOCK)
        if self._originals and heartbeat.state:
            sock.send(heartbeat.state, _NOBLOCK)
        self._driver.suspect(self._telling)

    def ask(self, claim: bytes) -> None:
        """Send a claim to the witness; the core repeats one that its queue does not take."""
        assert self._asking is not None
        try:
            self._asking.sock.send(claim, _NOBLOCK)
        except zmq.Again:
            pass
        self._driver.suspect(self._asking)


def subscription(frames: list[bytes]) -> tuple[bool, bytes]:
    """Return True if a message to a publishing socket subscribes, and to which prefix. Raises ProtocolError."""
    if len(frames) != 1 or frames[0][:1] not in (b"\0", b"\1"):
        raise ProtocolError("a message to a publishing socket")
    return frames[0][:1] == b"\1", frames[0][1:]
