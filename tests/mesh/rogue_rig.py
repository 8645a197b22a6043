"""An endpoint's core, and peers of it that send what they like: each frame of a valid connection is the test's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chappe.core import Close, Deliver, Persist, Report, Resolve
from chappe.defaults import TTL
from chappe.mesh.endpoint import EndpointCore, EndpointOptions
from chappe.mesh.flows import (
    DETOUR,
    KIND_AT,
    PUBLICATIONS,
    pack_hops,
    pack_publication,
    pack_tree,
    parse_detour,
    parse_publications,
)
from chappe.mesh.forwarding.group_keys import OfferKeys
from chappe.mesh.links.greetings import (
    Hello,
    OriginatorAck,
    OriginatorSyn,
    ResponderSynAck,
    VersionSelect,
    pack_greeting,
)
from chappe.mesh.messages import (
    BYE,
    DATA,
    ENVELOPE_BYTES,
    ID_BYTES,
    LINK_STATE,
    NOBODY,
    RESERVED_TOPIC,
    LinkState,
    Message,
    Neighbour,
    pack_link_state,
    pack_message,
    parse_link_state,
    parse_message,
)
from chappe.mesh.rules import MeshRules, OfferRules

PREFIX = 4  # bytes of a frame's length
VICTIM = b"\x80" * ID_BYTES
SUBSCRIBER = 1
DIALLED = ("victim", 9999)


def frame_of(greeting: Any) -> bytes:
    """A body of the handshake."""
    return pack_greeting(greeting)[PREFIX:]


class Rig:
    """A core without sockets: connections are numbers, and what it did is kept."""

    def __init__(self, own: bytes = VICTIM, **options: Any) -> None:
        self.core = EndpointCore(own, EndpointOptions(**options), 0.0)
        self.now = 0.0
        self.closed: dict[int, str] = {}
        self.delivered: list[Message] = []
        self.events: list[object] = []
        self.resolved: dict[int, object] = {}
        self.offered: list[bytes] = []  # permissions that somebody handed on
        self.offered_keys: list[tuple[str, bytes]] = []  # keys of groups that somebody handed on
        self.signed: dict[bytes, MeshRules] = {}  # what such files mean, if they are signed
        self._conns = 0

    def take_keys(self, group: str, raw: bytes) -> None:
        """Look at keys of a group that somebody hands on; here nobody has signed them."""

    def do(self, actions: Sequence[Any]) -> None:
        """Carry out what a call into the core answered."""
        for action in actions:
            match action:
                case Close(conn, reason):
                    assert conn not in self.closed, "a connection is closed once"
                    self.closed[conn] = reason
                case Deliver(_, messages):
                    self.delivered += messages
                case Report(event):
                    self.events.append(event)
                case Persist(OfferRules(raw)):
                    self.offered.append(raw)
                    if raw in self.signed:
                        self.do(self.core.set_rules(self.signed[raw], self.now))
                case Persist(OfferKeys(group, raw)):
                    self.offered_keys.append((group, raw))
                    self.take_keys(group, raw)
                case Resolve(ticket, outcome):
                    assert ticket not in self.resolved, "a call is answered once"
                    self.resolved[ticket] = outcome

    def open(self) -> int:
        """A connection comes in."""
        self._conns += 1
        self.do(self.core.handle_link(self._conns, ("127.0.0.1", self._conns), self.now))
        return self._conns

    def pass_time(self, seconds: float) -> None:
        """Let time pass and everything happen that is due."""
        self.now += seconds
        for _ in range(100):
            if self.core.next_timeout() > self.now:
                return
            self.do(self.core.handle_timeout(self.now))
        raise AssertionError("it has something to do at once, again and again")

    def want(self, *topics: bytes) -> None:
        """Subscribe."""
        self.do(self.core.subscribe(SUBSCRIBER, topics, now=self.now))


class Peer:
    """One connection to a rig whose other end is the test."""

    def __init__(
        self,
        rig: Rig,
        id: bytes,
        *,
        chappe: bool = True,
        wanted: Sequence[bytes] = (),
        key: bytes = b"",
        named: Sequence[bytes] = (),
        identity: str = "",
    ) -> None:
        """``key``, ``named`` and ``identity`` are those of its certificate, if it has one."""
        self.rig = rig
        self.id = id
        self.conn = rig.open()
        if key:
            rig.core.secured(self.conn, key, named, identity)
        self.heard: list[bytes] = []
        self.labels: dict[tuple[bytes, tuple[bytes, ...]], int] = {}  # of the trees that it told of
        version = 2 if chappe else 1
        self.send(frame_of(Hello(id, 1, version)))
        if id < rig.core.own_id:
            self.send(frame_of(VersionSelect(id, version)))
            self.send(frame_of(OriginatorSyn(tuple(wanted))))
            self.send(frame_of(OriginatorAck()))
        else:
            self.send(frame_of(ResponderSynAck(tuple(wanted))))
        self.greeted = len(self.take())  # what was said in the handshake

    def send(self, *bodies: bytes) -> None:
        """Have bodies of frames arrive in one read."""
        if self.conn not in self.rig.closed:
            self.rig.do(self.rig.core.handle_frames(self.conn, bodies, self.rig.now))

    def take(self) -> list[bytes]:
        """The bodies that wait for this peer."""
        found: list[bytes] = []
        while frames := self.rig.core.take(self.conn, 1 << 20):
            found += [frame[PREFIX:] for frame in frames]
        self.heard += found
        return found

    def messages(self) -> list[Message]:
        """What waits for this peer, without what belongs to the handshake; what is on a detour as it was published."""
        found = []
        for body in self.take():
            if len(body) < ENVELOPE_BYTES:
                continue
            if body[KIND_AT] == DETOUR:
                body = parse_detour(body)[1]
            flows = body[KIND_AT] in PUBLICATIONS
            found += parse_publications(body, self.rig.core.own_id) if flows else [parse_message(body)]
        return found

    def link_states(self) -> list[LinkState]:
        """The link states that wait for this peer."""
        return [parse_link_state(each.payload) for each in self.messages() if each.kind == LINK_STATE]

    def state(
        self,
        origin: bytes | None = None,
        version: int = 1,
        wanted: Sequence[bytes] = (),
        chappe: Sequence[bytes] | Mapping[bytes, bytes] = (),
        forwards: bool = True,
    ) -> bytes:
        """The body of a link state, of this peer by default. Its neighbours of chappe may come with their keys."""
        keys = chappe if isinstance(chappe, Mapping) else dict.fromkeys(chappe, b"")
        neighbours = tuple([Neighbour(each, key=key) for each, key in keys.items()])
        made = LinkState(self.id if origin is None else origin, version, forwards, tuple(wanted), neighbours)
        return pack_link_state(self.id, made)[PREFIX:]

    def publication(
        self,
        topic: bytes,
        payload: bytes = b"",
        origin: bytes | None = None,
        sequence: int = 1,
        below: Sequence[bytes] = (),
        receiver: bytes = NOBODY,
    ) -> bytes:
        """The body of a publication, of this peer by default; its tree is told before the first.

        The rig is a receiver, and so are those ``below`` it.
        """
        origin = self.id if origin is None else origin
        label = self.labels.get((origin, tuple(below)))
        if label is None:
            label = self.labels[origin, tuple(below)] = len(self.labels) + 1
            self.send(self.tree(label, origin, below))
        return pack_publication(origin, sequence, label, DATA, receiver, topic, payload)[PREFIX:]

    def tree(self, label: int, origin: bytes | None = None, below: Sequence[bytes] = ()) -> bytes:
        """The body that tells the rig of its part of a tree; see ``publication``."""
        own = self.rig.core.own_id
        hops = pack_hops(NOBODY, frozenset((own, *below)), {NOBODY: [own], own: list(below)})
        return pack_tree(self.id, self.id if origin is None else origin, label, hops[0].subtree)[PREFIX:]

    def plain(self, kind: int, topic: bytes = RESERVED_TOPIC, payload: bytes = b"") -> bytes:
        """The body of a message without origin."""
        return pack_message(self.id, NOBODY, kind, TTL, topic, payload)[PREFIX:]

    def goodbye_token(self) -> bytes:
        """The token of the goodbye that waits for this peer."""
        return next(each.payload for each in self.messages() if each.payload.startswith(BYE))
