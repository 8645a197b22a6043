"""The addresses and sockets of shared maps: three ports in a row, for snapshots, updates and writes.

Two servers of a pair tell each other of themselves over a fourth one, or over others where the partner is one of the
Guide's programs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from chappe.defaults import MAP_PORT, SUBSCRIPTION_BYTES_MAX, TOWER_HOST
from chappe.errors import AddressInUse, UsageError
from chappe.permissions.rules import ATTACH_MASTER
from chappe.replication.binary_star.messages import BEAT, STATES
from chappe.security import IDENTITY
from chappe.transports.addresses import bind, is_dialled, named
from chappe.transports.gate import Gate
from chappe.transports.zeromq import open_socket

UPDATES_MAX: Final = 10_000  # waiting for one subscriber, or from one server; a slow one loses further ones
WAITING_MAX: Final = 4_096  # connections to be accepted; a crowd that comes back after a restart connects at once
# Clients are not pinged as often as others, as there may be thousands (see below); nothing but these are subscribers.
SUBSCRIBER_PING_MS: Final = 10_000
ASKER_PING_MS: Final = 30_000  # who is silent the core gives up by itself
ROUTING_BYTES: Final = 17  # of a name that nobody guesses
_TRIES: Final = 50  # to find three free ports in a row
_PORTS: Final = range(1, 65533)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(frozen=True, slots=True)
class MapAddress:
    """A server of a map: snapshots at ``port``, updates at the next one, writes at the one after; or one of a chain."""

    host: str
    port: int
    name: str = ""  # of its identity, where that is not clear

    @classmethod
    def parse(cls, text: str, usual: int = MAP_PORT, what: str = "a map server") -> MapAddress:
        """Parse ``[NAME@]HOST[:PORT]``; the ``usual`` port by default, the Guide's, 0: any. Raises UsageError."""
        name, address = named(text.strip().removeprefix("tcp://"))
        host, mark, port = address.partition(":")
        try:
            number = int(port) if mark else usual
        except ValueError:
            number = -1
        if not host.isprintable() or any(each in host for each in " /:") or not (number in _PORTS or number == 0):
            raise UsageError(f"{text!a} is not the address of {what}: HOST:PORT is wanted, with ports up to 65532")
        return cls(host or TOWER_HOST, number, name)

    def endpoint(self, offset: int) -> str:
        """Return the endpoint to connect to, and its identity: offset 0 for snapshots, 1 for updates, 2 for writes."""
        return f"tcp://{self.host}:{self.port + offset}{'#' if self.name else ''}{self.name}"

    def check_dialled(self) -> None:
        """Raise UsageError if one can only listen there, or not even that."""
        if not (is_dialled(self.host) and self.port):
            raise UsageError(f"{str(self)!a} is not an address to connect to: give HOST:PORT or NAME@HOST:PORT")

    def known(self, gate: Gate | None) -> MapAddress:
        """Return the address with the identity that is to be dialled there, if there are keys. Raises UsageError: the
        identity is not clear, or cannot be dialled there.
        """
        self.check_dialled()
        if gate is None and self.name:
            raise UsageError(f"{self} has keys, and we have none: name an identity ({IDENTITY})")
        name = "" if gate is None else gate.server(ATTACH_MASTER, self.host, self.name)
        return MapAddress(self.host, self.port, name)

    def __str__(self) -> str:
        return f"{self.name}{'@' if self.name else ''}{self.host}:{self.port}"


class ServerSockets:
    """The three sockets of a server, bound.

    Args:
        published: Writes are published by clients, as in model 6, and not pushed, as in model 5.
        gate: Of a server with keys; None for a plain one.

    Raises:
        AddressInUse: One of the three ports is taken.
    """

    def __init__(self, address: MapAddress, *, published: bool, gate: Gate | None = None) -> None:
        self._gate = gate
        self.router = open_socket(zmq.ROUTER, gate)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue is said, and nothing dropped
        self.publisher = open_socket(zmq.XPUB, gate)
        if gate is None:
            self.publisher.setsockopt(zmq.XPUB_VERBOSER, 1)  # subscribers are counted
        else:
            self.publisher.setsockopt(zmq.XPUB_MANUAL, 1)
            self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # who is back is the same, by a name that only he knows
        self.publisher.setsockopt(zmq.SNDHWM, UPDATES_MAX)
        self.publisher.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        self.collector = open_socket(zmq.SUB if published else zmq.PULL, gate)
        if published:
            self.collector.setsockopt(zmq.SUBSCRIBE, b"")
        for each in (self.router, self.publisher, self.collector):
            each.setsockopt(zmq.BACKLOG, WAITING_MAX)
        # For each answer to a ping ZeroMQ looks through the timers of all connections: 7,000 of them, idle, took a
        # third of a core, and further ones were lost before they stood.
        self.router.setsockopt(zmq.HEARTBEAT_IVL, ASKER_PING_MS)
        self.publisher.setsockopt(zmq.HEARTBEAT_IVL, SUBSCRIBER_PING_MS)
        try:
            self.port = self._bind(address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for each in (self.router, self.publisher, self.collector):
            each.close()

    def _bind(self, address: MapAddress) -> int:
        for attempt in range(_TRIES):
            port = bind(self.router, address.host, address.port, self._gate)
            bound = [(self.router, port)]
            try:
                for offset, each in ((1, self.publisher), (2, self.collector)):
                    bound.append((each, bind(each, address.host, port + offset, self._gate)))
                return port
            except (AddressInUse, UsageError):
                if address.port or attempt == _TRIES - 1:
                    raise
                for each, number in bound:
                    each.unbind(f"tcp://{address.host}:{number}")
        raise AssertionError


def subscriber(gate: Gate | None = None) -> zmq.Socket[bytes]:
    """Return a socket that is to hear a server's publications."""
    made = open_socket(zmq.SUB, gate)
    made.setsockopt(zmq.RCVHWM, UPDATES_MAX)
    return made


def requester(gate: Gate | None = None) -> zmq.Socket[bytes]:
    made = open_socket(zmq.DEALER, gate)
    if gate is not None:  # nobody else is to be given what is offered to us, after we are gone
        made.setsockopt(zmq.ROUTING_ID, os.urandom(ROUTING_BYTES))
    return made


def send(sock: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """Send now, a microsecond a frame faster than ``send_multipart``. Raises zmq.Again: no room; other ZMQErrors."""
    more = sock.send
    for frame in frames[:-1]:
        more(frame, _MORE)
    more(frames[-1], _NOBLOCK)


class PairSockets:
    """The sockets by which a server of a pair sends and hears heartbeats, and asks the witness.

    Args:
        own: Where it is heard.
        witness: Whether there is one to be asked.
        gate: Of a server with keys.

    Raises:
        AddressInUse: The port is taken.
    """

    def __init__(self, own: MapAddress, *, witness: bool, gate: Gate | None = None) -> None:
        self.telling = open_socket(zmq.XPUB, gate)
        self.hearing = open_socket(zmq.SUB, gate)
        self.telling.setsockopt(zmq.XPUB_VERBOSER if gate is None else zmq.XPUB_MANUAL, 1)
        self.telling.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        try:
            bind(self.telling, own.host, own.port, gate)
            for prefix in (BEAT, *STATES):
                self.hearing.setsockopt(zmq.SUBSCRIBE, prefix)
            self.asking = requester(gate) if witness else None
        except BaseException:
            self.telling.close()
            self.hearing.close()
            raise
