"""How a node meets others: through towers, by dialling forwarders, or as a forwarder that is dialled.

Each opens the sockets that subscribe, and those that nodes find each other by; the node's driver reads them all.
"""

from __future__ import annotations

import logging
import os
import selectors
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import zmq

from chappe.core import Effect
from chappe.data.topic import identity_of
from chappe.defaults import SUBSCRIPTION_BYTES_MAX
from chappe.errors import UsageError
from chappe.log.beacon import BEACON, GOODBYE, NAMED, WELCOME, Discovery
from chappe.log.guard import Guard
from chappe.log.handing_on import GROUPS, PERMISSIONS, WORD_BYTES, Middle, PermissionsMember, is_handed_on
from chappe.log.introducing import Forwarders, Introducer, Leaving
from chappe.log.messages import StoreInfo, decode
from chappe.log.node import Discovers, LogNode
from chappe.permissions.rules import AND, INTRODUCE, STORE
from chappe.runtime.driver import Driver, Frames, Inlet
from chappe.system import machine, time
from chappe.transports.addresses import ForwarderAddress, TowerAddress, bind, reachable_host
from chappe.transports.dialled import Dialled
from chappe.transports.gate import ORIGINALS, Gate, user_of
from chappe.transports.zeromq import open_socket, taking

logger = logging.getLogger(__name__)

BEACON_BYTES_MAX = 4096  # larger messages close the connection
INFO = b"I"  # what a forwarder says once a second
TOWER_ASKS: Final = "tower asks"  # the link over which towers ask for our beacons ...
TOWER_SAYS: Final = "tower says"  # ... and the one over which they send those of others
PROGRAM_ASKS: Final = "program asks"  # the same of programs to which a forwarder is a tower
PROGRAM_SAYS: Final = "program says"


class Members:
    """The link over which members are heard; ``who``: the publisher's identity, empty if there are no keys."""

    __slots__ = ("who",)

    def __init__(self, who: str = "") -> None:
        self.who = who


class Everybody(Members):
    """The link of a forwarder with keys: each message names the identity of its connection."""

    __slots__ = ()


class OfForwarder(Members):
    """The link to a forwarder that was dialled, by its ``place``."""

    __slots__ = ("place",)

    def __init__(self, place: int, who: str) -> None:
        super().__init__(who)
        self.place = place


class Meets(Protocol):
    driver: Driver
    core: LogNode
    guard: Guard | None
    views: bool

    def hear_member(self, frames: Frames, who: str) -> Sequence[Effect]: ...

    def publish_frames(self, frames: list[bytes]) -> None: ...

    def report(self, event: object) -> None: ...


class Meeting(Protocol):
    """The sockets by which one node meets others; made for it, and opened once.

    ``endpoint`` is where others listen to its publications; empty if it dials them for that. ``subscribers`` are then
    the identities that it has dialled, if there are keys.
    """

    endpoint: str
    subscribers: str
    strangers: str  # the identity of those who come without keys, where they may
    gate: Gate | None  # of sockets with keys

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        """Open the node's sockets, bind or connect the one that it publishes on. Raises AddressInUse, UsageError."""

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        """Return a socket for queries, which the caller has watched, and where others reach it."""

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        """Take a message of a link that ``open`` made, except of plain ``Members``."""

    def subscribe(self, option: int, prefix: bytes) -> None:
        """Ask for messages that begin so, or take that back; ``option`` says which."""

    def beacon(self, frames: Sequence[bytes]) -> None: ...

    def connect(self, endpoint: str) -> None:
        """Listen to a member, unless that is done already."""

    def disconnect(self, endpoint: str) -> None:
        """Disconnect from a member once everything that it sent is read."""

    def look(self) -> None:
        """Do the work of each second where there are keys."""

    def joined(self) -> None:
        """Note a member that wants to be told of permissions."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Dialled:
    inlet: Inlet
    connection: Dialled


class _MembersHeard:
    """The sockets that subscribe, at which members are listened to as a tower names them.

    With keys there is one for each identity that is dialled, so the sender of a message is known: the other end may put
    anything into its messages. Without keys there is one.
    """

    endpoint = ""
    subscribers = ""
    strangers = ""

    def __init__(self, gate: Gate | None) -> None:
        self.gate = gate
        self._node: Meets
        self._heard: dict[str, _Dialled] = {}  # by identity
        self._others: list[Dialled] = []
        self._wanted: dict[bytes, None] = {}  # prefixes
        self._connected: set[str] = set()  # endpoints
        self._leaving = Leaving()

    def subscribe(self, option: int, prefix: bytes) -> None:
        if option == zmq.SUBSCRIBE:
            self._wanted[prefix] = None
        else:
            self._wanted.pop(prefix, None)
        for each in self._heard.values():
            each.inlet.sock.setsockopt(option, prefix)

    def connect(self, endpoint: str) -> None:
        name = "" if self.gate is None else identity_of(endpoint)[1]
        if self._leaving.stay(endpoint) or endpoint in self._connected:
            return
        self._connected.add(endpoint)
        heard = self._heard.get(name) or self._hear(name)
        try:
            heard.connection.connect(endpoint)
        except zmq.ZMQError as error:
            logger.warning("cannot connect to the member at %s: %s", endpoint, error.strerror)
        self._node.driver.suspect(heard.inlet)

    def disconnect(self, endpoint: str) -> None:
        if self._socket_of(endpoint) is None:
            return
        oldest = self._leaving.leave(endpoint, time.monotonic())
        if oldest is not None:
            self._end(oldest)
        self._node.driver.call_idle(self, self._leaving.next_timeout())

    def idle(self) -> float:
        now = time.monotonic()
        for endpoint in self._leaving.look(self._unread, now):
            self._end(endpoint)
        return self._leaving.next_timeout() - now

    def _socket_of(self, endpoint: str) -> _Dialled | None:
        return self._heard.get("" if self.gate is None else identity_of(endpoint)[1])

    def _unread(self, endpoint: str) -> bool:
        """Return True if input is pending that may be of this connection; a socket does not tell its sender."""
        heard = self._socket_of(endpoint)
        assert heard is not None
        self._node.driver.suspect(heard.inlet)
        return bool(int(heard.inlet.sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _end(self, endpoint: str) -> None:
        self._connected.discard(endpoint)
        heard = self._socket_of(endpoint)
        assert heard is not None
        try:
            heard.connection.disconnect(endpoint)
        except zmq.ZMQError:
            pass  # it never was connected
        self._node.driver.suspect(heard.inlet)

    def look(self) -> None:
        for dialled in self._others:
            dialled.look()
        for heard in self._heard.values():
            heard.connection.look()
            if self.gate is not None:
                self._node.driver.suspect(heard.inlet)

    def joined(self) -> None: ...

    def close(self) -> None:
        for each in self._others:
            each.close()
        for heard in self._heard.values():
            heard.connection.close()

    def _hear(self, who: str) -> _Dialled:
        sub = open_socket(zmq.SUB, self.gate)
        inlet = _read(self._node, sub, Members(who))
        for prefix in self._wanted:
            sub.setsockopt(zmq.SUBSCRIBE, prefix)
        made = self._heard[who] = _Dialled(inlet, Dialled(sub, self.gate, self._node.report))
        return made


class AtTowers(_MembersHeard):
    """Members find each other through towers, and connect to each other.

    Args:
        towers: Where to announce the node and to learn of others.
        listen: Host to listen on; ``*`` for all interfaces.
        gate: Of sockets with keys; None for plain ones.
    """

    def __init__(self, towers: Sequence[TowerAddress], listen: str, gate: Gate | None = None) -> None:
        super().__init__(gate)
        self._permissions: PermissionsMember | None = None
        self._towers = towers
        self._listen = listen
        self._host = reachable_host(listen)

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        self._node = node
        names = [_name(self.gate, INTRODUCE, tower) for tower in self._towers]
        port = f"{bind(pub, self._listen, gate=self.gate)}{_mark(self.gate)}"
        self.endpoint = f"tcp://{self._host}:{port}"
        if self.gate is None:
            self._hear("")
        self._beacon_pub = open_socket(zmq.XPUB, self.gate)
        self._asks = node.driver.watch(Inlet(self._beacon_pub, TOWER_ASKS))
        self._beacon_pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._beacon_pub.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        beacon_sub = open_socket(zmq.SUB, self.gate)
        node.driver.watch(Inlet(beacon_sub, TOWER_SAYS))
        for kind in (NAMED, BEACON, GOODBYE, WELCOME):  # who subscribes to beacons is told of everybody, and the name
            beacon_sub.setsockopt(zmq.SUBSCRIBE, kind)
        if self.gate is not None:
            self._permissions = PermissionsMember(self.gate, self.beacon, _word())
            for kind in self._permissions.kinds:
                beacon_sub.setsockopt(zmq.SUBSCRIBE, kind)
        self._discovery = Discovery(
            node.core.role, node.core.address, self._host, port, now=time.monotonic(), guard=node.guard
        )
        # Both are refused together, which is told once.
        telling = Dialled(self._beacon_pub, self.gate, lambda event: None, INTRODUCE)
        hearing = Dialled(beacon_sub, self.gate, node.report, INTRODUCE)
        self._others = [telling, hearing]
        _watch(node, hearing)
        for tower, name in zip(self._towers, names, strict=True):
            telling.connect(f"tcp://{tower.host}:{tower.sub_port}{name}")
            hearing.connect(f"tcp://{tower.host}:{tower.pub_port}{name}")
        return self._discovery

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        router = open_socket(zmq.ROUTER, self.gate)
        try:
            return router, f"tcp://{self._host}:{bind(router, self._listen, gate=self.gate)}{_mark(self.gate)}"
        except BaseException:
            router.close()
            raise

    def beacon(self, frames: Sequence[bytes]) -> None:
        self._beacon_pub.send_multipart(frames, zmq.NOBLOCK)
        self._node.driver.suspect(self._asks)

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        if link is TOWER_ASKS:
            return self._discovery.handle_subscription(frames[0][1:], frames[0][:1] == b"\1", time.monotonic())
        assert link is TOWER_SAYS
        if self._permissions is not None and is_handed_on(frames[0]):
            self._permissions.hear(frames, time.monotonic())
            return ()
        return self._discovery.handle_frames(frames, time.monotonic())


class _Dialling:
    """A socket for each forwarder, so senders are known, and asked where they were found, whatever they name."""

    def __init__(self, forwarders: Sequence[ForwarderAddress], gate: Gate | None, *, all_groups: bool = False) -> None:
        self._where = forwarders
        self._gate = gate
        self._all_groups = all_groups
        self._dialled: list[_Dialled] = []
        self._permissions: PermissionsMember | None = None
        self.names: list[str] = []

    def open(self, node: Meets) -> Forwarders:
        """Dial all of them; their STORE-INFO is wanted in any case."""
        self._node = node
        if self._gate is not None:
            self._permissions = PermissionsMember(self._gate, node.publish_frames, _word(), all_groups=self._all_groups)
        self.names = [_name(self._gate, STORE, each) for each in self._where]
        self.known = Forwarders(node.core.role, [str(each) for each in self._where], now=time.monotonic())
        for place, each in enumerate(self._where):
            sub = open_socket(zmq.SUB, self._gate)
            inlet = _read(node, sub, OfForwarder(place, self.names[place].removeprefix("#")))
            dialled = Dialled(sub, self._gate, node.report, STORE)
            self._dialled.append(_Dialled(inlet, dialled))
            for kind in (INFO,) if self._permissions is None else (INFO, *self._permissions.kinds):
                sub.setsockopt(zmq.SUBSCRIBE, kind)
            _watch(node, dialled)
            dialled.connect(f"tcp://{each.host}:{each.out_port}{self.names[place]}")
        return self.known

    def look(self) -> None:
        for each in self._dialled:
            each.connection.look()
            self._node.driver.suspect(each.inlet)

    def close(self) -> None:
        for each in self._dialled:
            each.connection.close()

    def subscribe(self, option: int, prefix: bytes) -> None:
        if prefix != INFO:
            for each in self._dialled:
                each.inlet.sock.setsockopt(option, prefix)
                self._node.driver.suspect(each.inlet)

    def hear(self, link: OfForwarder, frames: Frames) -> Sequence[Effect]:
        if self._permissions is not None and is_handed_on(bytes(frames[0])):
            self._permissions.hear([bytes(each) for each in frames], time.monotonic())
            return ()
        if frames[0][:1] != INFO:
            return self._node.hear_member(frames, link.who)
        message = decode(frames)
        assert isinstance(message, StoreInfo)
        now, where = time.monotonic(), self._where[link.place]
        effects = self.known.heard(link.place, message.address, now)
        # Who asks it would have to reach what the forwarder takes for its own address.
        told = replace(message, endpoint=f"tcp://{where.host}:{where.query_port}{self.names[link.place]}")
        return [*effects, *self._node.core.role.handle_message(told, now)]


class AtForwarders:
    """A node that listens nowhere, and dials forwarders alone."""

    endpoint = ""
    subscribers = ""
    strangers = ""

    def __init__(self, forwarders: Sequence[ForwarderAddress], gate: Gate | None = None) -> None:
        self.gate = gate
        self._where = forwarders
        self._dialling = _Dialling(forwarders, gate)
        self._publishing: Dialled | None = None

    def subscribe(self, option: int, prefix: bytes) -> None:
        self._dialling.subscribe(option, prefix)

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        assert isinstance(link, OfForwarder)
        return self._dialling.hear(link, frames)

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        pub.setsockopt(zmq.IMMEDIATE, 1)  # ZeroMQ is to keep nothing for one that is not there
        found = self._dialling.open(node)
        self._publishing = Dialled(pub, self.gate, lambda event: None, STORE)  # who listens there tells
        self.subscribers = AND.join(dict.fromkeys(each.removeprefix("#") for each in self._dialling.names))
        for each, name in zip(self._where, self._dialling.names, strict=True):
            self._publishing.connect(f"tcp://{each.host}:{each.in_port}{name}")
        return found

    def look(self) -> None:
        self._dialling.look()
        if self._publishing is not None:
            self._publishing.look()

    def joined(self) -> None: ...

    def close(self) -> None:
        self._dialling.close()
        if self._publishing is not None:
            self._publishing.close()

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        """Return no address: a node that listens nowhere cannot be asked."""
        raise NotImplementedError

    def beacon(self, frames: Sequence[bytes]) -> None:
        """Do nothing: there is no tower."""

    def connect(self, endpoint: str) -> None: ...

    def disconnect(self, endpoint: str) -> None: ...


class AsForwarder(_MembersHeard):
    """A forwarder: members dial it, to publish, to listen and to ask.

    Args:
        address: Where it listens; ports that are 0 are known once it is open.
        peers: Other forwarders, which have what this one misses.
        originals: Where programs of the original find it, as they find a tower; None: nowhere. They have no keys.
        gate: Of sockets with keys; None for plain ones.
    """

    def __init__(
        self,
        address: ForwarderAddress,
        peers: Sequence[ForwarderAddress],
        originals: TowerAddress | None = None,
        gate: Gate | None = None,
    ) -> None:
        super().__init__(gate)
        if originals is not None and gate is not None:
            if not gate.knows(ORIGINALS):
                raise UsageError(
                    f"programs of the original have no keys: what they may do is what the identity {ORIGINALS} may, "
                    f"and there is none: `chappe keys add {ORIGINALS} --role member`"
                )
            self.strangers = ORIGINALS
        self._permissions: Middle | None = None
        self.originals = originals
        self._host = address.host
        self._peers = _Dialling(peers, gate, all_groups=True)
        self._asks: Inlet | None = None  # over which programs ask for beacons
        self._known: Introducer | None = None
        self.address = replace(address, host=reachable_host(address.host))

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        self._node = node
        sub = open_socket(zmq.SUB, self.gate)
        if self.gate is None:
            inlet = _read(node, sub, Members())
        else:
            inlet = node.driver.watch(Inlet(sub, Everybody(), copied=False, gathers=True))
        self._heard[""] = _Dialled(inlet, Dialled(sub, None, node.report))  # which dials originals, at most
        if self.gate is not None:
            self._permissions = Middle(self.gate, node.publish_frames)
            for kind in (PERMISSIONS, GROUPS):
                sub.setsockopt(zmq.SUBSCRIBE, kind)
        in_port = bind(sub, self._host, self.address.in_port, self.gate)
        out_port = bind(pub, self._host, self.address.out_port, self.gate)
        self.address = replace(self.address, in_port=in_port, out_port=out_port)
        self.endpoint = f"tcp://{self.address.host}:{out_port}{_mark(self.gate)}"
        forwarders = self._peers.open(node)
        if self.originals is None:
            return forwarders
        host, port = self.address.host, out_port
        if self.gate is not None:  # they dial another port of the same socket, and are dialled by the other
            where = self.originals
            for each in (sub, pub):
                self.gate.admit_plain(each)
            host, port = reachable_host(where.host), bind(pub, where.host, where.pub_port and where.pub_port + 1)
        role, address = node.core.role, node.core.address
        self._known = Introducer(role, address, host, port, forwarders, now=time.monotonic())
        self._introduce(node, self.originals)
        return self._known

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        if isinstance(link, Everybody):
            return self._hear_somebody(frames)
        if isinstance(link, OfForwarder):
            return self._peers.hear(link, frames)
        assert self._known is not None
        if link is PROGRAM_ASKS:
            return self._known.handle_subscription(frames[0][1:], frames[0][:1] == b"\1", time.monotonic())
        assert link is PROGRAM_SAYS
        return self._known.handle_frames([each.bytes for each in frames], _host_of(frames[0]), time.monotonic())

    def _hear_somebody(self, frames: list[zmq.Frame]) -> Sequence[Effect]:
        who = user_of(frames[0])
        if self._permissions is not None and who and is_handed_on(frames[0].bytes):
            self._permissions.hear([each.bytes for each in frames], time.monotonic())
            return ()
        return self._node.hear_member([each.bytes for each in frames], who or self.strangers)

    def _introduce(self, node: Meets, where: TowerAddress) -> None:
        beacons, pub = open_socket(zmq.SUB), open_socket(zmq.XPUB)
        node.driver.watch(Inlet(beacons, PROGRAM_SAYS, copied=False))
        self._asks = node.driver.watch(Inlet(pub, PROGRAM_ASKS))
        for kind in (BEACON, GOODBYE):
            beacons.setsockopt(zmq.SUBSCRIBE, kind)
        beacons.setsockopt(zmq.MAXMSGSIZE, BEACON_BYTES_MAX)
        pub.setsockopt(zmq.MAXMSGSIZE, BEACON_BYTES_MAX)
        pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        pub.setsockopt(zmq.XPUB_WELCOME_MSG, WELCOME)
        sub_port, pub_port = bind(beacons, where.host, where.sub_port), bind(pub, where.host, where.pub_port)
        self.originals = TowerAddress(reachable_host(where.host), sub_port, pub_port)

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        router = open_socket(zmq.ROUTER, self.gate)
        try:
            port = bind(router, self._host, self.address.query_port, self.gate)
        except BaseException:
            router.close()
            raise
        self.address = replace(self.address, query_port=port)
        return router, f"tcp://{self.address.host}:{port}{_mark(self.gate)}"

    def look(self) -> None:
        super().look()
        self._peers.look()
        if self._permissions is not None:
            self._permissions.look(time.monotonic())

    def joined(self) -> None:
        if self._permissions is not None:
            self._permissions.joined(time.monotonic())

    def close(self) -> None:
        super().close()
        self._peers.close()

    def beacon(self, frames: Sequence[bytes]) -> None:
        """Send a beacon to programs that look for a tower."""
        assert self._asks is not None
        self._asks.sock.send_multipart(frames, zmq.NOBLOCK)
        self._node.driver.suspect(self._asks)


def _read(node: Meets, sub: zmq.Socket[bytes], link: Members) -> Inlet:
    return node.driver.watch(Inlet(sub, link, taking(sub, views=node.views), gathers=True))


def _word() -> bytes:
    """Return a word by which only this member is answered."""
    return os.urandom(WORD_BYTES // 2).hex().encode()


def _mark(gate: Gate | None) -> str:
    """Return the suffix of our own endpoints: our identity, if that is asked."""
    return "" if gate is None else f"#{gate.name}"


def _name(gate: Gate | None, verb: str, where: TowerAddress | ForwarderAddress) -> str:
    """Return the suffix of an endpoint whose address we were given: its identity."""
    return "" if gate is None else f"#{gate.server(verb, where.host, where.name)}"


def _watch(node: Meets, dialled: Dialled) -> None:
    """Report at once that a peer has keys, where we have none and so do not look each second. Call it before anything
    is dialled: ZeroMQ gives up on a peer that refused it, so there is one event, which may come at once.
    """
    if machine.current() is machine.SYSTEM and (refusals := dialled.listen()) is not None:
        node.driver.turns.register(int(refusals.getsockopt(zmq.FD)), selectors.EVENT_READ, lambda mask: dialled.look())
        dialled.look()  # its descriptor tells of what comes after that


def _host_of(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
