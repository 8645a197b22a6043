"""How a node meets others: through towers, by dialling forwarders, or as a forwarder that is dialled.

Each opens the sockets that subscribe, and those that nodes find each other by; the node drives them all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import zmq

from chappe.data.endpoint import identity_of
from chappe.defaults import SUBSCRIPTION_BYTES_MAX
from chappe.errors import UsageError
from chappe.log.actions import Action, Beacon, Connect, Disconnect
from chappe.log.beacon import BEACON, GOODBYE, NAMED, WELCOME, Discovery
from chappe.log.events import ForwarderFound, ForwarderLost, TowerFound, TowerLost
from chappe.log.forwarders import Forwarders
from chappe.log.guard import Guard
from chappe.log.handing_on import GROUPS, PERMISSIONS, WORD_BYTES, Member, Middle, is_handed_on
from chappe.log.introducing import Introducer
from chappe.log.leaving import Leaving
from chappe.log.messages import Message, StoreInfo, decode
from chappe.permissions.decisions import AND
from chappe.permissions.rules import INTRODUCE, STORE
from chappe.system import machine, time
from chappe.transports.addresses import ForwarderAddress, TowerAddress, bind, reachable_host
from chappe.transports.dialled import Dialled
from chappe.transports.gate import ORIGINALS, Gate, user_of
from chappe.transports.zeromq import open_socket

logger = logging.getLogger(__name__)

Drain = Callable[[], bool]
Handle = Callable[[list[bytes]], Sequence[Action]]
BEACON_BYTES_MAX = 4096  # larger messages close the connection
INFO = b"I"  # what a forwarder says once a second


class Gatherer(Hashable, Protocol):
    """A task of a node that is due from time to time, such as sending gathered records."""

    def idle(self) -> float:
        """Run it under the lock. Return the seconds until the next call; infinity for none."""


class Discovers(Protocol):
    """The core that knows whom a node has met."""

    @property
    def tower(self) -> bool:
        """Whether whoever makes others known is there: a tower, or a forwarder."""

    @property
    def told(self) -> TowerFound | TowerLost | ForwarderFound | ForwarderLost | None:
        """What was last reported of that."""

    @property
    def peers(self) -> int:
        """Number of members known."""

    @property
    def met(self) -> list[tuple[str, str]]:
        """Their addresses, and where each is."""

    def store_heard(self, address: str, now: float) -> None:
        """A store published its STORE-INFO."""

    def claim(self, identity: str, now: float) -> list[Action]:
        """Tell everybody that we go on with an identity."""

    def disclaim(self, identity: str) -> list[Action]:
        """Take a claim back."""

    def newcomer(self, identity: str, now: float) -> bool:
        """Whether we claim an identity only since now."""

    def goodbye(self) -> list[Action]:
        """Tell everybody that we leave."""

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due."""

    def next_timeout(self) -> float:
        """When something is due."""


class Meets(Protocol):
    """The part of ``Node`` that sockets are opened for."""

    @property
    def address(self) -> str:
        """Of the node's core."""

    @property
    def guard(self) -> Guard | None:
        """Checks other members, where connections have keys."""

    def keep(self, sock: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """See ``Node.keep``."""

    def hear(self, sock: zmq.Socket[bytes], handle: Callable[[list[bytes | memoryview]], Sequence[Action]]) -> Drain:
        """See ``Node.hear``."""

    def hear_frames(self, sock: zmq.Socket[bytes], handle: Callable[[list[zmq.Frame]], Sequence[Action]]) -> Drain:
        """See ``Node.hear_frames``."""

    def watch_socket(self, sock: zmq.Socket[bytes], drain: Drain) -> None:
        """See ``Node.watch_socket``."""

    def suspect(self, drain: Drain) -> None:
        """See ``Node.suspect``."""

    def receive(self, sock: zmq.Socket[bytes], handle: Handle) -> bool:
        """See ``Node.receive``."""

    def receive_frames(self, sock: zmq.Socket[bytes], handle: Callable[[list[zmq.Frame]], Sequence[Action]]) -> bool:
        """See ``Node.receive_frames``."""

    def on_message(self, frames: Sequence[bytes | memoryview], who: str = "") -> Sequence[Action]:
        """See ``Node.on_message``."""

    def told(self, message: Message) -> Sequence[Action]:
        """See ``Node.told``."""

    def report(self, event: object) -> None:
        """See ``Node.report``."""

    def publish(self, frames: list[bytes]) -> None:
        """See ``Node.publish``."""

    def call_idle(self, gatherer: Gatherer, at: float) -> None:
        """See ``Node.call_idle``."""


class Meeting(Protocol):
    """How one node meets others; made for it, and opened once.

    ``endpoint`` is where others listen to what it publishes; empty if it dials them for that. ``subscribers`` are then
    the identities that it has dialled, if there are keys.
    """

    endpoint: str
    subscribers: str
    strangers: str  # the identity of those who come without keys, where they may
    gate: Gate | None  # of sockets with keys

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        """Open the node's sockets, bind or connect the one that it publishes on. Raises AddressInUse, UsageError."""

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        """A socket for queries, which the caller watches and closes, and where others reach it."""

    def subscribe(self, option: int, prefix: bytes) -> None:
        """Ask for messages that begin so, or take that back; ``option`` says which."""

    def beacon(self, action: Beacon) -> None:
        """Send a beacon."""

    def connect(self, action: Connect) -> None:
        """Listen to a member."""

    def disconnect(self, action: Disconnect) -> None:
        """Disconnect from a member once everything that it sent is read."""

    def look(self) -> None:
        """What is to be done once a second where there are keys."""

    def joined(self) -> None:
        """Somebody wants to be told of permissions."""

    def close(self) -> None:
        """Before its sockets are closed."""


@dataclass(slots=True)
class _Dialled:
    """A socket that subscribes, and what it dials."""

    sub: zmq.Socket[bytes]
    drain: Drain
    connection: Dialled


class _Listening:
    """The sockets that subscribe, at which members are listened to as a tower tells of them.

    With keys there is one for each identity that is dialled, so that it is known who says what: the other end may put
    into its messages what it likes. Else there is one.
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
        self._leaving = Leaving()

    def subscribe(self, option: int, prefix: bytes) -> None:
        """See ``Meeting.subscribe``."""
        if option == zmq.SUBSCRIBE:
            self._wanted[prefix] = None
        else:
            self._wanted.pop(prefix, None)
        for each in self._heard.values():
            each.sub.setsockopt(option, prefix)

    def connect(self, action: Connect) -> None:
        """See ``Meeting.connect``."""
        name = "" if self.gate is None else identity_of(action.endpoint)[1]
        if self._leaving.stay(action.endpoint):
            return
        heard = self._heard.get(name) or self._hear(name)
        try:
            heard.connection.connect(action.endpoint)
        except zmq.ZMQError as error:
            logger.warning("cannot connect to the member at %s: %s", action.endpoint, error.strerror)
        self._node.suspect(heard.drain)

    def disconnect(self, action: Disconnect) -> None:
        """See ``Meeting.disconnect``."""
        if self._socket_of(action.endpoint) is None:
            return
        oldest = self._leaving.leave(action.endpoint, time.monotonic())
        if oldest is not None:
            self._end(oldest)
        self._node.call_idle(self, self._leaving.next_timeout())

    def idle(self) -> float:
        """End closing connections that are fully read; a ``Gatherer`` method."""
        now = time.monotonic()
        for endpoint in self._leaving.look(self._unread, now):
            self._end(endpoint)
        return self._leaving.next_timeout() - now

    def _socket_of(self, endpoint: str) -> _Dialled | None:
        return self._heard.get("" if self.gate is None else identity_of(endpoint)[1])

    def _unread(self, endpoint: str) -> bool:
        """True if input is pending that may be of this connection; a socket does not tell its sender."""
        heard = self._socket_of(endpoint)
        assert heard is not None
        self._node.suspect(heard.drain)
        return bool(int(heard.sub.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _end(self, endpoint: str) -> None:
        heard = self._socket_of(endpoint)
        assert heard is not None
        try:
            heard.connection.disconnect(endpoint)
        except zmq.ZMQError:
            pass  # it never was connected
        self._node.suspect(heard.drain)

    def look(self) -> None:
        """See ``Meeting.look``."""
        for dialled in self._others:
            dialled.look()
        for heard in self._heard.values():
            heard.connection.look()
            if self.gate is not None:
                self._node.suspect(heard.drain)

    def joined(self) -> None:
        """See ``Meeting.joined``."""

    def close(self) -> None:
        """See ``Meeting.close``."""
        for each in self._others:
            each.close()
        for heard in self._heard.values():
            heard.connection.close()

    def _hear(self, who: str) -> _Dialled:
        """A socket that dials one identity."""
        sub = open_socket(zmq.SUB, self.gate)
        drain = self._node.hear(sub, partial(self._node.on_message, who=who) if who else self._node.on_message)
        for prefix in self._wanted:
            sub.setsockopt(zmq.SUBSCRIBE, prefix)
        made = self._heard[who] = _Dialled(sub, drain, Dialled(sub, self.gate, self._node.report))
        return made


class AtTowers(_Listening):
    """Members find each other through towers, and connect to each other.

    Args:
        towers: Where to announce the node and to learn of others.
        listen: Host to listen on; ``*`` for all interfaces.
        gate: Of sockets with keys; None for plain ones.
    """

    def __init__(self, towers: Sequence[TowerAddress], listen: str, gate: Gate | None = None) -> None:
        super().__init__(gate)
        self._permissions: Member | None = None
        self._towers = towers
        self._listen = listen
        self._host = reachable_host(listen)

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        """See ``Meeting.open``."""
        self._node = node
        names = [_name(self.gate, INTRODUCE, tower) for tower in self._towers]
        port = f"{bind(pub, self._listen, gate=self.gate)}{_mark(self.gate)}"
        self.endpoint = f"tcp://{self._host}:{port}"
        if self.gate is None:
            self._hear("")
        self._beacon_pub = node.keep(open_socket(zmq.XPUB, self.gate))
        self._beacon_pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._beacon_pub.setsockopt(zmq.MAXMSGSIZE, SUBSCRIPTION_BYTES_MAX)
        beacon_sub = node.keep(open_socket(zmq.SUB, self.gate))
        for kind in (NAMED, BEACON, GOODBYE, WELCOME):  # who subscribes to beacons is told of everybody, and the name
            beacon_sub.setsockopt(zmq.SUBSCRIBE, kind)
        if self.gate is not None:
            self._permissions = Member(self.gate, lambda frames: self._send(frames), _word())
            for kind in self._permissions.kinds:
                beacon_sub.setsockopt(zmq.SUBSCRIBE, kind)
        self._discovery = Discovery(node.address, self._host, port, now=time.monotonic(), guard=node.guard)
        # Both are refused together, which is told once.
        telling = Dialled(self._beacon_pub, self.gate, lambda event: None, INTRODUCE)
        hearing = Dialled(beacon_sub, self.gate, node.report, INTRODUCE)
        self._others = [telling, hearing]
        _watch(node, hearing)
        for tower, name in zip(self._towers, names, strict=True):
            telling.connect(f"tcp://{tower.host}:{tower.sub_port}{name}")
            hearing.connect(f"tcp://{tower.host}:{tower.pub_port}{name}")
        node.watch_socket(self._beacon_pub, self._drain_beacon_pub)
        node.watch_socket(beacon_sub, lambda: node.receive(beacon_sub, self._on_beacon))
        return self._discovery

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        """See ``Meeting.open_router``."""
        router = open_socket(zmq.ROUTER, self.gate)
        try:
            return router, f"tcp://{self._host}:{bind(router, self._listen, gate=self.gate)}{_mark(self.gate)}"
        except BaseException:
            router.close()
            raise

    def beacon(self, action: Beacon) -> None:
        """See ``Meeting.beacon``."""
        self._send(action.frames)

    def _send(self, frames: Sequence[bytes]) -> None:
        self._beacon_pub.send_multipart(frames, zmq.NOBLOCK)
        self._node.suspect(self._drain_beacon_pub)

    def _drain_beacon_pub(self) -> bool:
        return self._node.receive(self._beacon_pub, self._on_tower)

    def _on_tower(self, frames: list[bytes]) -> Sequence[Action]:
        return self._discovery.handle_tower_ready(time.monotonic()) if frames[0] == b"\1" + BEACON else ()

    def _on_beacon(self, frames: list[bytes]) -> Sequence[Action]:
        if self._permissions is not None and is_handed_on(frames[0]):
            self._permissions.hear(frames, time.monotonic())
            return ()
        return self._discovery.handle_beacon(frames, time.monotonic())


class _Dialling:
    """What is heard of forwarders, each on a socket of its own.

    So it is known who says what, and that a forwarder is asked where it was found, whatever it takes for its address.
    """

    def __init__(self, forwarders: Sequence[ForwarderAddress], gate: Gate | None, *, all_groups: bool = False) -> None:
        self._where = forwarders
        self._gate = gate
        self._all_groups = all_groups
        self._dialled: list[_Dialled] = []
        self._permissions: Member | None = None
        self.names: list[str] = []

    def hear(self, node: Meets) -> Forwarders:
        """Dial all of them; what they say of themselves is wanted in any case."""
        self._node = node
        if self._gate is not None:
            self._permissions = Member(self._gate, node.publish, _word(), all_groups=self._all_groups)
        self.names = [_name(self._gate, STORE, each) for each in self._where]
        self.known = Forwarders([str(each) for each in self._where], now=time.monotonic())
        for place, each in enumerate(self._where):
            sub = open_socket(zmq.SUB, self._gate)
            drain = node.hear(sub, partial(self._on_message, place))
            dialled = Dialled(sub, self._gate, node.report, STORE)
            self._dialled.append(_Dialled(sub, drain, dialled))
            for kind in (INFO,) if self._permissions is None else (INFO, *self._permissions.kinds):
                sub.setsockopt(zmq.SUBSCRIBE, kind)
            _watch(node, dialled)
            dialled.connect(f"tcp://{each.host}:{each.out_port}{self.names[place]}")
        return self.known

    def look(self) -> None:
        """See ``Meeting.look``."""
        for each in self._dialled:
            each.connection.look()
            self._node.suspect(each.drain)

    def close(self) -> None:
        """See ``Meeting.close``."""
        for each in self._dialled:
            each.connection.close()

    def subscribe(self, option: int, prefix: bytes) -> None:
        """See ``Meeting.subscribe``."""
        if prefix != INFO:
            for each in self._dialled:
                each.sub.setsockopt(option, prefix)
                self._node.suspect(each.drain)

    def _on_message(self, place: int, frames: list[bytes | memoryview]) -> Sequence[Action]:
        if self._permissions is not None and is_handed_on(bytes(frames[0])):
            self._permissions.hear([bytes(each) for each in frames], time.monotonic())
            return ()
        if frames[0][:1] != INFO:
            return self._node.on_message(frames, self.names[place].removeprefix("#"))
        message = decode(frames)
        assert isinstance(message, StoreInfo)
        actions = self.known.heard(place, message.address, time.monotonic())
        where = self._where[place]
        # Who asks it would have to reach what the forwarder takes for its own address.
        told = replace(message, endpoint=f"tcp://{where.host}:{where.query_port}{self.names[place]}")
        return [*actions, *self._node.told(told)]


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
        self.subscribe = self._dialling.subscribe

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        """See ``Meeting.open``."""
        pub.setsockopt(zmq.IMMEDIATE, 1)  # ZeroMQ is to keep nothing for one that is not there
        found = self._dialling.hear(node)
        self._publishing = Dialled(pub, self.gate, lambda event: None, STORE)  # who listens there tells
        self.subscribers = AND.join(dict.fromkeys(each.removeprefix("#") for each in self._dialling.names))
        for each, name in zip(self._where, self._dialling.names, strict=True):
            self._publishing.connect(f"tcp://{each.host}:{each.in_port}{name}")
        return found

    def look(self) -> None:
        """See ``Meeting.look``."""
        self._dialling.look()
        if self._publishing is not None:
            self._publishing.look()

    def joined(self) -> None:
        """See ``Meeting.joined``."""

    def close(self) -> None:
        """See ``Meeting.close``."""
        self._dialling.close()
        if self._publishing is not None:
            self._publishing.close()

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        """Who listens nowhere cannot be asked."""
        raise NotImplementedError

    def beacon(self, action: Beacon) -> None:
        """There is nobody to send one to."""

    def connect(self, action: Connect) -> None:
        """There is nobody else."""

    def disconnect(self, action: Disconnect) -> None:
        """There is nobody else."""


class AsForwarder(_Listening):
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
        self._beacon_pub: zmq.Socket[bytes] | None = None
        self._drain_beacon_pub: Drain
        self.address = replace(address, host=reachable_host(address.host))

    def open(self, node: Meets, pub: zmq.Socket[bytes]) -> Discovers:
        """See ``Meeting.open``."""
        self._node = node
        sub = open_socket(zmq.SUB, self.gate)
        drain = node.hear(sub, node.on_message) if self.gate is None else node.hear_frames(sub, self._on_frames)
        self._heard[""] = _Dialled(sub, drain, Dialled(sub, None, node.report))  # which dials originals, at most
        if self.gate is not None:
            self._permissions = Middle(self.gate, node.publish)
            for kind in (PERMISSIONS, GROUPS):
                sub.setsockopt(zmq.SUBSCRIBE, kind)
        in_port = bind(sub, self._host, self.address.in_port, self.gate)
        out_port = bind(pub, self._host, self.address.out_port, self.gate)
        self.address = replace(self.address, in_port=in_port, out_port=out_port)
        self.endpoint = f"tcp://{self.address.host}:{out_port}{_mark(self.gate)}"
        forwarders = self._peers.hear(node)
        if self.originals is None:
            return forwarders
        host, port = self.address.host, out_port
        if self.gate is not None:  # they dial another port of the same socket, and are dialled by the other
            where = self.originals
            for each in (sub, pub):
                self.gate.admit_plain(each)
            host, port = reachable_host(where.host), bind(pub, where.host, where.pub_port and where.pub_port + 1)
        return self._introduce(
            node, self.originals, Introducer(node.address, host, port, forwarders, now=time.monotonic())
        )

    def _on_frames(self, frames: list[zmq.Frame]) -> Sequence[Action]:
        who = user_of(frames[0])
        if self._permissions is not None and who and is_handed_on(frames[0].bytes):
            self._permissions.hear([each.bytes for each in frames], time.monotonic())
            return ()
        return self._node.on_message([each.bytes for each in frames], who or self.strangers)

    def _introduce(self, node: Meets, where: TowerAddress, known: Introducer) -> Introducer:
        """Let programs find the forwarder that look for a tower."""
        beacons, pub = node.keep(open_socket(zmq.SUB)), node.keep(open_socket(zmq.XPUB))
        for kind in (BEACON, GOODBYE):
            beacons.setsockopt(zmq.SUBSCRIBE, kind)
        beacons.setsockopt(zmq.MAXMSGSIZE, BEACON_BYTES_MAX)
        pub.setsockopt(zmq.MAXMSGSIZE, BEACON_BYTES_MAX)
        pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        pub.setsockopt(zmq.XPUB_WELCOME_MSG, WELCOME)
        sub_port, pub_port = bind(beacons, where.host, where.sub_port), bind(pub, where.host, where.pub_port)
        self.originals = TowerAddress(reachable_host(where.host), sub_port, pub_port)

        def take(frames: list[zmq.Frame]) -> Sequence[Action]:
            return known.handle_beacon([each.bytes for each in frames], _host_of(frames[0]), time.monotonic())

        def drain() -> bool:
            return node.receive(pub, lambda frames: known.handle_subscription(frames[0], time.monotonic()))

        self._beacon_pub, self._drain_beacon_pub = pub, drain
        node.watch_socket(beacons, lambda: node.receive_frames(beacons, take))
        node.watch_socket(pub, drain)
        return known

    def open_router(self) -> tuple[zmq.Socket[bytes], str]:
        """See ``Meeting.open_router``."""
        router = open_socket(zmq.ROUTER, self.gate)
        try:
            port = bind(router, self._host, self.address.query_port, self.gate)
        except BaseException:
            router.close()
            raise
        self.address = replace(self.address, query_port=port)
        return router, f"tcp://{self.address.host}:{port}{_mark(self.gate)}"

    def look(self) -> None:
        """See ``Meeting.look``."""
        super().look()
        self._peers.look()
        if self._permissions is not None:
            self._permissions.look(time.monotonic())

    def joined(self) -> None:
        """See ``Meeting.joined``."""
        if self._permissions is not None:
            self._permissions.joined(time.monotonic())

    def close(self) -> None:
        """See ``Meeting.close``."""
        super().close()
        self._peers.close()

    def beacon(self, action: Beacon) -> None:
        """Tell programs that look for a tower."""
        assert self._beacon_pub is not None
        self._beacon_pub.send_multipart(action.frames, zmq.NOBLOCK)
        self._node.suspect(self._drain_beacon_pub)


def _word() -> bytes:
    """By which a member is answered, and nobody else."""
    return os.urandom(WORD_BYTES // 2).hex().encode()


def _mark(gate: Gate | None) -> str:
    """What our own endpoints end in: who we are, if that is asked."""
    return "" if gate is None else f"#{gate.name}"


def _name(gate: Gate | None, verb: str, where: TowerAddress | ForwarderAddress) -> str:
    """What the endpoint of somebody ends in whose address we were given."""
    return "" if gate is None else f"#{gate.server(verb, where.host, where.name)}"


def _watch(node: Meets, dialled: Dialled) -> None:
    """Hear at once that somebody has keys, where we have none and so do not look by the second.

    Before anything is dialled: ZeroMQ gives up who refused it, so there is one event, and it may come at once.
    """
    if machine.current() is machine.SYSTEM and (refusals := dialled.listen()) is not None:
        node.watch_socket(refusals, dialled.look)


def _host_of(frame: zmq.Frame) -> str:
    """Where a connection comes from; empty if nobody knows."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
