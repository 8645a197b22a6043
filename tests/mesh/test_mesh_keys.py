"""Ids and the keys that peers have shown: who may come with an id that is in the mesh already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.mesh.net_rig import Net, Node
from tests.mesh.rogue_rig import VICTIM, Peer, Rig, frame_of

from chappe.errors import PeerUnavailable
from chappe.mesh.events import PeerAdded, PeerLost, PeerRefused
from chappe.mesh.links.greetings import (
    Code,
    DropConn,
    Hello,
    OriginatorAck,
    OriginatorSyn,
    ResponderSynAck,
    VersionSelect,
    parse_greeting,
)

KEY, OTHER_KEY, FRIENDS_KEY, LIARS_KEY, OURS = (bytes([each]) * 16 for each in b"kofl0")
FRIEND, SECOND, LIAR = b"\x33" * 16, b"\x44" * 16, b"\x99" * 16
SMALLER, GREATER = b"\x11" * 16, b"\xee" * 16  # ids that lead the handshake, or do not
WHY = "the endpoint id 11111111-1111-1111-1111-111111111111 is in the mesh with another key"

both_roles = pytest.mark.parametrize("id", [SMALLER, GREATER])


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.want(b"/a")
    return made


def far(rig: Rig, id: bytes, words: dict[bytes, tuple[bytes, bytes]]) -> list[Peer]:
    """An endpoint behind neighbours of ours: by their ids, with which key they come, and with which it came."""
    peers = [Peer(rig, each, key=own) for each, (own, _) in words.items()]
    for peer, (_, told) in zip(peers, words.values(), strict=True):
        peer.send(peer.state(chappe={VICTIM: OURS, id: told}))
        peer.send(peer.state(id, 1, (b"/x",), chappe={each: own for each, (own, _) in words.items()}))
    assert rig.core.reaches(id)
    return peers


def is_admitted(peer: Peer) -> bool:
    return peer.conn not in peer.rig.closed and any(
        each.established_at is not None for each in peer.rig.core.links.values() if each.conn == peer.conn
    )


@both_roles
@pytest.mark.parametrize("chappe", [True, False])
def test_an_id_that_is_in_the_mesh_is_refused_with_another_key(rig: Rig, id: bytes, chappe: bool) -> None:
    [friend] = far(rig, id, {FRIEND: (FRIENDS_KEY, KEY)})
    friend.take()
    before = len(rig.events)

    rogues = [Peer(rig, id, chappe=chappe, key=OTHER_KEY, wanted=(b"/forged",)) for _ in range(3)]

    assert not any(map(is_admitted, rogues))
    drop = parse_greeting(rogues[0].heard[-1])
    assert isinstance(drop, DropConn)
    assert drop.code == Code.LOGIC_ERROR
    [refused] = rig.events[before:]
    assert isinstance(refused, PeerRefused)
    assert (refused.peer_id, refused.reason) == (id, drop.reason)
    assert drop.reason == f"the endpoint id {refused.id} is in the mesh with another key"
    assert rig.core.filters()[id] == (b"/x",)
    assert friend.take() == []
    assert rig.core.invariants() == []


def test_a_refusal_reads_well(rig: Rig) -> None:
    far(rig, SMALLER, {FRIEND: (FRIENDS_KEY, KEY)})
    Peer(rig, SMALLER, key=OTHER_KEY)
    assert str(rig.events[-1]) == f"refused to peer with 11111111-1111-1111-1111-111111111111 at 127.0.0.1:2: {WHY}"


@both_roles
def test_another_link_of_the_same_key_is_admitted(rig: Rig, id: bytes) -> None:
    far(rig, id, {FRIEND: (FRIENDS_KEY, KEY)})
    assert is_admitted(Peer(rig, id, key=KEY))


@both_roles
def test_without_certificates_nothing_is_bound(rig: Rig, id: bytes) -> None:
    far(rig, id, {FRIEND: (b"", b"")})
    assert is_admitted(Peer(rig, id))


def test_what_others_say_counts_for_nobody_who_shows_no_key(rig: Rig) -> None:
    far(rig, SMALLER, {FRIEND: (b"", KEY)})
    assert is_admitted(Peer(rig, SMALLER))


@both_roles
def test_who_is_named_by_a_certificate_is_admitted_whatever_others_say(rig: Rig, id: bytes) -> None:
    far(rig, id, {FRIEND: (FRIENDS_KEY, KEY), SECOND: (b"2" * 16, KEY)})
    assert is_admitted(Peer(rig, id, key=OTHER_KEY, named=(id,)))


def test_an_id_is_free_once_nobody_has_it(rig: Rig) -> None:
    [friend] = far(rig, SMALLER, {FRIEND: (FRIENDS_KEY, KEY)})
    friend.send(friend.state(version=2, chappe={VICTIM: OURS}))
    assert is_admitted(Peer(rig, SMALLER, key=OTHER_KEY))


def test_what_one_end_alone_says_does_not_count(rig: Rig) -> None:
    """Whoever says that somebody is beside it has to be named by it."""
    friend, liar = Peer(rig, FRIEND, key=FRIENDS_KEY), Peer(rig, LIAR, key=LIARS_KEY)
    liar.send(liar.state(chappe={VICTIM: OURS, SMALLER: OTHER_KEY}))
    true = Peer(rig, SMALLER, key=KEY)
    assert is_admitted(true)
    rig.do(rig.core.handle_gone(true.conn, "it left", rig.now))

    friend.send(friend.state(chappe={VICTIM: OURS, SMALLER: KEY}), friend.state(SMALLER, 5, chappe={FRIEND: KEY}))
    true = Peer(rig, SMALLER, key=KEY)
    assert is_admitted(true)
    rig.do(rig.core.handle_gone(true.conn, "it left", rig.now))
    assert not is_admitted(Peer(rig, SMALLER, key=OTHER_KEY))


HONEST, MORE, LIE = (FRIENDS_KEY, KEY), (b"2" * 16, KEY), (LIARS_KEY, OTHER_KEY)


@pytest.mark.parametrize(
    ("words", "true", "rogue"),
    [
        ({FRIEND: HONEST, SECOND: MORE, LIAR: LIE}, True, False),
        ({FRIEND: HONEST, LIAR: LIE}, True, True),
        ({LIAR: LIE}, False, True),
        ({FRIEND: HONEST, LIAR: LIE, b"\x98" * 16: LIE, b"\x97" * 16: LIE}, True, True),
        ({FRIEND: HONEST, SECOND: MORE, LIAR: LIE, b"\x98" * 16: LIE, b"\x97" * 16: LIE}, True, False),
        ({FRIEND: HONEST, LIAR: (LIARS_KEY, b"")}, True, False),
    ],
)
def test_the_keys_of_those_beside_it_vote(
    rig: Rig, words: dict[bytes, tuple[bytes, bytes]], true: bool, rogue: bool
) -> None:
    far(rig, SMALLER, words)
    peer = Peer(rig, SMALLER, key=OTHER_KEY)
    assert is_admitted(peer) is rogue
    rig.do(rig.core.handle_gone(peer.conn, "it left", rig.now))
    assert is_admitted(Peer(rig, SMALLER, key=KEY)) is true


def test_beside_us_an_endpoint_has_the_key_that_it_has_shown(rig: Rig) -> None:
    true = Peer(rig, SMALLER, key=KEY)
    liars = [Peer(rig, bytes([each]) * 16, key=bytes([each]) * 16) for each in (0x97, 0x98, 0x99)]
    ids = {each.id: each.id for each in liars}
    true.send(true.state(chappe={VICTIM: OURS, **ids}))
    for liar in liars:
        liar.send(liar.state(chappe={VICTIM: OURS, SMALLER: OTHER_KEY}))

    assert not is_admitted(Peer(rig, SMALLER, key=OTHER_KEY))

    assert is_admitted(true)
    assert [each.reason for each in rig.events if isinstance(each, PeerRefused)] == [WHY]


@both_roles
def test_it_is_looked_at_again_when_the_handshake_is_done(rig: Rig, id: bytes) -> None:
    """While one of them takes its time, the other may have come elsewhere."""
    conn = rig.open()
    rig.core.secured(conn, OTHER_KEY, ())
    first, rest = [Hello(id, 1, 2)], [VersionSelect(id, 2), OriginatorSyn(())]
    last: Any = OriginatorAck()
    if id > VICTIM:
        rest, last = [], ResponderSynAck(())
    for each in first + rest:
        rig.do(rig.core.handle_frames(conn, [frame_of(each)], rig.now))
    far(rig, id, {FRIEND: (FRIENDS_KEY, KEY)})
    assert conn not in rig.closed

    rig.do(rig.core.handle_frames(conn, [frame_of(last)], rig.now))

    assert "is in the mesh with another key" in rig.closed[conn]
    assert not any(isinstance(each, PeerAdded) and each.peer_id == id for each in rig.events)
    assert is_admitted(Peer(rig, id, key=KEY))  # the place is free


# -- whole meshes -----------------------------------------------------------------------------------


class Twin(Node):
    """A further node, which states the id of another one."""

    def __init__(self, number: int, id: bytes, first_number: int) -> None:
        super().__init__(number)
        Rig.__init__(self, id, first_number=first_number)


class KeyedNet(Net):
    """Nodes with certificates: the key of each is its number, unless ``keys`` says otherwise."""

    def __init__(self, count: int, links: Sequence[tuple[int, int]] = (), keys: dict[int, bytes] | None = None) -> None:
        self.keys = keys or {}
        super().__init__(count, links)

    def link(self, one: int, two: int) -> None:
        super().link(one, two)
        for here, there in ((one, two), (two, one)):
            node = self.nodes[here]
            node.core.secured(node.conns[there], self.keys.get(there, bytes([there]) * 16), ())

    def twin(self, number: int, of: int, first_number: int = 50_000) -> Twin:
        """Add one that states the id of another."""
        made = Twin(number, self.nodes[of].id, first_number)
        self.nodes.append(made)
        return made

    def are_linked(self, one: int, two: int) -> bool:
        self.pump()
        node, other = self.nodes[one], self.nodes[two]
        ends = node.core.links.get(node.conns[two]), other.core.links.get(other.conns[one])
        return all(each is not None and each.established_at is not None for each in ends)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_nobody_comes_in_anywhere_with_the_id_of_another(at: int) -> None:
    net = KeyedNet(4, [(0, 1), (1, 2), (2, 3)])
    net.want(0, 3)
    rogue = net.twin(4, of=0)

    net.link(4, at)

    assert not net.are_linked(4, at)
    net[1].publish(b"one")
    net[0].publish(b"two")
    net.pass_time(1.0)
    assert net[0].payloads == [b"one"]
    assert net[3].payloads == [b"one", b"two"]
    assert not any(isinstance(each, PeerLost) for node in net.nodes for each in node.events)
    [failed] = [each for each in rogue.events if isinstance(each, PeerUnavailable)]
    assert str(failed).endswith(
        "the peer refused the connection: the endpoint id 01010101-0101-0101-0101-010101010101 is in the mesh with"
        " another key"
    )


def test_those_who_share_a_key_are_not_told_apart() -> None:
    net = KeyedNet(3, [(0, 1), (1, 2)], keys=dict.fromkeys(range(4), KEY))
    net.twin(3, of=0)
    net.link(3, 2)
    assert net.are_linked(3, 2)


def test_a_new_life_with_another_key_is_admitted_once_the_former_one_is_known_to_be_gone() -> None:
    net = KeyedNet(3, [(0, 1), (1, 2)])
    net.twin(3, of=0)
    net.link(3, 2)
    assert not net.are_linked(3, 2)

    net.kill(0)
    net.pump()
    net.link(3, 2)

    assert net.are_linked(3, 2)


def test_in_a_network_that_was_split_each_half_keeps_the_one_that_it_had() -> None:
    net = KeyedNet(6, [(0, 1), (1, 2), (3, 4)])
    net.twin(6, of=0)
    net.link(6, 3)
    net.want(1, 2, 3, 4)
    assert net.are_linked(6, 3)
    events = [len(node.events) for node in net.nodes]

    net.link(2, 4)
    for _ in range(5):
        net.pass_time(1.0)

    assert net.are_linked(0, 1)
    assert net.are_linked(6, 3)
    assert not [e for node, at in zip(net.nodes, events, strict=True) for e in node.events[at:] if type(e) is PeerLost]
    net[0].publish(b"first")
    net[6].publish(b"second")
    net.pass_time(1.0)
    assert net[1].payloads == net[2].payloads == [b"first"]
    assert net[3].payloads == net[4].payloads == [b"second"]
    for one, two, taken in ((0, 2, True), (0, 4, False), (6, 4, True), (6, 2, False)):
        net.link(one, two)
        assert net.are_linked(one, two) is taken, (one, two)
