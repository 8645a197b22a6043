"""Peers whose connection is valid and whose messages are not what an endpoint sends."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from tests.mesh.net_rig import TOPIC, Net
from tests.mesh.rogue_rig import VICTIM, Peer, Rig

from chappe.defaults import (
    CLOSE_FLUSH_S,
    COMPARE_PAUSE_S,
    DOUBT_S,
    DOUBTS_BYTES_MAX,
    DROPS_REPORT_S,
    EARLY_S,
    LIFE_NUMBERS,
    LINK_STATE_AHEAD,
    LINK_STATE_KEPT_S,
    ROUTES_BYTES_MAX,
    TELL_PAUSE_MAX_S,
    TREES_BYTES_MAX,
    TTL,
)
from chappe.limits import MESH_LIMITS, MeshLimits
from chappe.mesh import topology
from chappe.mesh.events import EndpointDiscovered, PeerRemoved
from chappe.mesh.flows import (
    ENTRIES_MAX,
    FLOW_LOSS,
    KIND_AT,
    PUBLICATIONS,
    pack_confirm,
    pack_forget,
    pack_publication,
    pack_tree,
    parse_forget,
    parse_publication,
    parse_tree,
)
from chappe.mesh.forwarding import boxes, kept
from chappe.mesh.forwarding import branches as told
from chappe.mesh.forwarding.branches import CHILD_BYTES
from chappe.mesh.forwarding.losses import Loss, LossReason
from chappe.mesh.messages import (
    CONFIRM,
    DATA,
    ENVELOPE_BYTES,
    FORGET,
    LINK_STATE,
    LINK_STATES_HAD,
    LOSS,
    NOBODY,
    PONG,
    RESERVED_TOPIC,
    ROUTING_UPDATE,
    TREE,
    LinkState,
    Neighbour,
    pack_filter,
    pack_link_state,
    pack_message,
    parse_link_state,
    parse_message,
)

SMALLER, GREATER = b"\x11" * 16, b"\xee" * 16


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.want(b"/a")
    return made


# -- after the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chappe", [True, False])
@pytest.mark.parametrize("id", [SMALLER, GREATER])
def test_nothing_counts_that_follows_the_answer_to_a_goodbye_in_the_same_read(
    rig: Rig, id: bytes, chappe: bool
) -> None:
    peer = Peer(rig, id, chappe=chappe)
    rig.do(rig.core.unpeer("127.0.0.1", peer.conn, 7, rig.now))
    token = peer.goodbye_token()

    pong = peer.plain(PONG, payload=token)
    update = peer.plain(ROUTING_UPDATE, payload=pack_filter((b"/late",)))
    late = peer.publication(b"/a") if chappe else peer.plain(DATA, b"/a")
    peer.send(pong, pong, update, peer.state(), late)

    assert rig.resolved == {7: True}
    assert [type(each) for each in rig.events].count(PeerRemoved) == 1
    assert rig.delivered == []
    assert not rig.core.reaches(id)
    assert rig.core.own_id == VICTIM


# -- in another's name ------------------------------------------------------------------------------

FAR = b"\x55" * 16  # an endpoint behind another
HIGHEST = 2**64 - 1


def far_behind(peer: Peer, version: int = 1, wanted: tuple[bytes, ...] = ()) -> None:
    """``peer`` says that FAR is its neighbour, and brings the link state of that."""
    peer.send(peer.state(chappe=(VICTIM, FAR)), peer.state(FAR, version, wanted, chappe=(peer.id,)))


@pytest.mark.parametrize("version", [HIGHEST, 2**63, 2**52, 2**52 + 1, 1_800_000_000_000_000])
def test_a_link_state_in_our_own_name_is_outdone_or_refused(rig: Rig, version: int) -> None:
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    before = [parse_message(each) for each in friend.heard if len(each) > ENVELOPE_BYTES]
    [first] = [parse_link_state(each.payload) for each in before if each.kind == LINK_STATE]

    rogue.send(rogue.state(VICTIM, version, (b"/forged",)))
    rig.want(b"/b")

    told = [each for each in friend.link_states() if each.origin == VICTIM]
    assert told[-1].filter == (b"/a", b"/b")
    assert told[-1].version > first.version
    assert told[-1].version > version or version > LINK_STATE_AHEAD


def test_outdoing_never_ends(rig: Rig) -> None:
    rogue = Peer(rig, SMALLER)
    version = LINK_STATE_AHEAD
    for _ in range(100):
        rogue.send(rogue.state(VICTIM, version, (b"/forged",)))
        told = rogue.link_states()[-1]
        assert told.version == version + 1
        version = told.version + 2**20
        rig.pass_time(DOUBT_S)


def test_who_speaks_for_us_very_often_is_outdone_now_and_then(rig: Rig) -> None:
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    friend.take()
    for version in range(2**40, 2**40 + 1_000):
        rogue.send(rogue.state(VICTIM, version, (b"/forged",)))
        rig.do(rig.core.publish(b"/x", b"", now=rig.now))
    assert len(friend.link_states()) == 1

    rig.pass_time(DOUBT_S)

    [told] = friend.link_states()
    assert (told.version, told.filter) == (2**40 + 1_000, (b"/a",))


def test_an_endpoint_that_was_driven_to_the_limit_is_believed_by_who_never_heard_of_it(rig: Rig) -> None:
    """The limit rises with time, and faster than versions."""
    rogue = Peer(rig, SMALLER)
    rogue.send(rogue.state(VICTIM, LINK_STATE_AHEAD, (b"/forged",)))
    told = rogue.link_states()[-1]
    newcomer = Rig(b"\x70" * 16)
    newcomer.pass_time(0.001)
    between = Peer(newcomer, GREATER)
    between.send(
        between.state(chappe=(newcomer.core.own_id, VICTIM)), between.state(VICTIM, told.version, (b"/a",), (GREATER,))
    )
    assert newcomer.core.filters()[VICTIM] == (b"/a",)


def test_who_speaks_for_a_neighbour_of_ours_is_not_believed_and_the_neighbour_hears_of_it(rig: Rig) -> None:
    friend, rogue = Peer(rig, SMALLER, wanted=(b"/f",)), Peer(rig, GREATER)
    friend.send(friend.state(wanted=(b"/f",), chappe=(VICTIM,)))
    friend.take()

    rogue.send(rogue.state(SMALLER, 2**52 - 1, (b"/forged",)))

    assert rig.core.filters()[SMALLER] == (b"/f",)
    assert [each.version for each in friend.link_states()] == [2**52 - 1]
    friend.send(friend.state(version=2**52, wanted=(b"/g",), chappe=(VICTIM,)))
    assert rig.core.filters()[SMALLER] == (b"/g",)


def test_who_speaks_for_an_endpoint_that_is_elsewhere_is_not_believed(rig: Rig) -> None:
    friend, rogue = Peer(rig, SMALLER), Peer(rig, GREATER)
    far_behind(friend, 5, (b"/f",))

    rogue.send(rogue.state(FAR, 2**52 - 1, (b"/forged",), chappe=(GREATER,)))
    rogue.send(rogue.state(version=2, chappe=(VICTIM, FAR)))

    assert rig.core.filters()[FAR] == (b"/f",)
    friend.send(friend.state(FAR, 6, (b"/g",), chappe=(SMALLER,)))
    assert rig.core.filters()[FAR] == (b"/g",)


def test_what_is_doubted_travels_to_its_endpoint_and_is_believed_by_nobody_on_the_way(rig: Rig) -> None:
    friend, rogue = Peer(rig, SMALLER), Peer(rig, GREATER)
    far_behind(friend, 5, (b"/f",))
    friend.take()

    rogue.send(rogue.state(FAR, 6, (b"/forged",)))
    [passed] = friend.messages()
    assert (passed.kind, passed.receiver, passed.ttl) == (LINK_STATE, FAR, TTL)
    onward = pack_message(GREATER, FAR, LINK_STATE, 7, RESERVED_TOPIC, rogue_state := passed.payload)[4:]
    back = pack_message(SMALLER, FAR, LINK_STATE, 7, RESERVED_TOPIC, rogue_state)[4:]
    over = pack_message(GREATER, FAR, LINK_STATE, 1, RESERVED_TOPIC, rogue_state)[4:]
    rogue.send(onward, over)
    friend.send(back)

    [passed] = friend.messages()
    assert (passed.receiver, passed.ttl) == (FAR, 6)
    assert [each for each in rogue.link_states() if each.origin == FAR and each.version == 6] == []
    assert rig.core.filters()[FAR] == (b"/f",)


def test_an_endpoint_that_moves_is_believed_once_it_has_left(rig: Rig) -> None:
    friend, other = Peer(rig, SMALLER), Peer(rig, GREATER)
    far_behind(friend, 5, (b"/f",))

    other.send(other.state(FAR, 6, (b"/g",), chappe=(GREATER,)), other.state(version=2, chappe=(VICTIM, FAR)))
    assert rig.core.filters()[FAR] == (b"/f",)
    friend.send(friend.state(version=2, chappe=(VICTIM,)))
    rig.pass_time(0.0)

    assert rig.core.filters()[FAR] == (b"/g",)
    assert rig.core.reaches(FAR)
    assert FAR in {each.origin for each in friend.link_states()}


def test_what_is_published_is_taken_from_where_its_origin_is(rig: Rig) -> None:
    friend, rogue = Peer(rig, SMALLER), Peer(rig, GREATER)
    far_behind(friend)

    for number in range(3):
        rogue.send(rogue.publication(b"/a", b"forged", FAR, 2**62 + number))
        rogue.send(rogue.publication(b"/a", b"forged", SMALLER, 2**62 + number))
        rogue.send(rogue.publication(b"/a", b"forged", b"\x99" * 16, number))
    friend.send(friend.publication(b"/a", b"own", sequence=1), friend.publication(b"/a", b"far", FAR, 1))

    assert [each.payload for each in rig.delivered] == [b"own", b"far"]
    rig.pass_time(EARLY_S)
    assert rig.core.dropped == 9


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_what_is_refused_for_its_origin_may_have_any_number(rig: Rig, number: int) -> None:
    rogue = Peer(rig, GREATER)
    rogue.send(rogue.publication(b"/a", b"forged", FAR, number))
    rig.pass_time(EARLY_S)
    assert (rig.core.dropped, rig.closed, rig.core.invariants()) == (1, {}, [])


def test_numbers_in_anothers_name_silence_nobody() -> None:
    rig = Rig(limits=MeshLimits(seen_max=16))
    rig.want(b"/a")
    friend, rogue = Peer(rig, SMALLER), Peer(rig, GREATER)
    far_behind(friend)
    for number in range(64):
        rogue.send(rogue.publication(b"/a", b"", SMALLER, 2**62 + number))
        rogue.send(rogue.publication(b"/a", b"", FAR, 2**62 + number))

    friend.send(friend.publication(b"/a", b"own"), friend.publication(b"/a", b"far", FAR))

    assert [each.payload for each in rig.delivered] == [b"own", b"far"]


def test_what_was_on_its_way_when_its_origin_moved_is_taken(rig: Rig) -> None:
    friend = Peer(rig, SMALLER)
    far_behind(friend)
    friend.send(friend.state(version=2, chappe=(VICTIM,)))
    assert not rig.core.reaches(FAR)

    friend.send(friend.publication(b"/a", b"late", FAR))
    rig.pass_time(LINK_STATE_KEPT_S + 1)
    rig.want(b"/a", b"/b")
    friend.send(friend.publication(b"/a", b"too late", FAR, 2))

    assert [each.payload for each in rig.delivered] == [b"late"]


def test_who_moved_is_spoken_for_by_nobody_else_meanwhile(rig: Rig) -> None:
    """What was on its way comes from where its origin was."""
    friend, rogue, other = Peer(rig, SMALLER), Peer(rig, GREATER), Peer(rig, b"\xdd" * 16)
    far_behind(friend)
    friend.send(friend.state(version=2, chappe=(VICTIM,)))
    other.send(other.state(FAR, 2, (), chappe=(other.id,)), other.state(version=2, chappe=(VICTIM, FAR)))
    assert rig.core.reaches(FAR)

    rogue.send(rogue.publication(b"/a", b"forged", FAR, 5))
    friend.send(friend.publication(b"/a", b"on its way", FAR, 6))
    other.send(other.publication(b"/a", b"new", FAR, 7))

    assert [each.payload for each in rig.delivered] == [b"on its way", b"new"]


@pytest.mark.parametrize("number", [2**63, HIGHEST])
def test_a_number_out_of_bounds_is_dropped(rig: Rig, number: int) -> None:
    peer = Peer(rig, SMALLER)
    peer.send(peer.publication(b"/a", b"", None, number), peer.publication(b"/a", b"good"))
    assert [each.payload for each in rig.delivered] == [b"good"]


# -- clocks that were set back ----------------------------------------------------------------------


@pytest.mark.parametrize("forwarding", [True, False])
def test_a_new_life_with_an_earlier_clock_is_told_what_its_former_one_told(forwarding: bool) -> None:
    rig = Rig(forwarding=forwarding)
    rig.want(b"/a")
    former = Peer(rig, SMALLER)
    former.send(former.state(version=9_000, wanted=(b"/former",), chappe=(VICTIM,)))
    rig.do(rig.core.handle_gone(former.conn, "it was killed", rig.now))

    life = Rig(SMALLER, first_number=5_000)
    life.want(b"/new")
    peer = Peer(rig, SMALLER)
    other_end = Peer(life, VICTIM)
    states = [each for each in peer.heard if len(each) > 37 and each[32] == LINK_STATE]
    assert [parse_link_state(parse_message(each).payload).version for each in states if SMALLER in each[40:60]] == [
        9_000
    ]
    other_end.send(*states)
    told = other_end.link_states()[-1]

    assert (told.version, told.filter) == (9_001, (b"/new",))
    other_end.send(other_end.state(version=100, wanted=(b"/x",), chappe=(SMALLER,)))
    life.do(life.core.publish(b"/x", b"", now=0.0))
    [published] = [each for each in other_end.messages() if each.topic == b"/x"]
    assert published.sequence > 9_000 + LIFE_NUMBERS


def test_a_new_life_that_nobody_near_remembers_is_told_from_afar(rig: Rig) -> None:
    """Its neighbour never knew it; another one does, and thinks it gone."""
    friend = Peer(rig, GREATER)
    far_behind(friend, 9_000, (b"/former",))
    friend.send(friend.state(version=2, chappe=(VICTIM,)))
    newcomer = Peer(rig, SMALLER)
    newcomer.take()

    newcomer.send(newcomer.state(FAR, 5_000, (b"/new",), chappe=(SMALLER,)))

    assert [each.version for each in newcomer.link_states()] == [9_000]


def test_what_another_says_of_a_neighbour_goes_to_that_neighbour_alone(rig: Rig) -> None:
    friend, rogue, third = Peer(rig, SMALLER), Peer(rig, GREATER), Peer(rig, b"\xdd" * 16)
    friend.send(friend.state(chappe=(VICTIM,)))
    for peer in (friend, rogue, third):
        peer.take()

    rogue.send(rogue.state(SMALLER, 7))

    assert [each.version for each in friend.link_states()] == [7]
    assert third.link_states() == rogue.link_states() == []


# -- bounds -----------------------------------------------------------------------------------------


def test_topics_that_nobody_wants_leave_little(rig: Rig) -> None:
    peer = Peer(rig, SMALLER)
    for number in range(200):
        peer.send(peer.publication(b"%60000d" % number, sequence=number))
        rig.core.publish(b"%60000d" % -number, b"", now=rig.now)
        assert sum(map(len, rig.core.router.routes.known)) <= ROUTES_BYTES_MAX


def test_doubts_are_bounded_for_each_neighbour(rig: Rig) -> None:
    friend, rogue = Peer(rig, SMALLER), Peer(rig, GREATER)
    far_behind(friend)
    ids = [number.to_bytes(2, "big") * 8 for number in range(600)]
    friend.send(friend.state(version=2, chappe=(VICTIM, FAR, *ids)))
    friend.send(*[friend.state(each, chappe=(SMALLER,)) for each in ids])
    rogue.send(*[rogue.state(each, 2, (b"x" * 60_000,)) for each in (FAR, *ids)])

    doubts = rig.core.router.topology.states._doubts[GREATER]
    assert len(doubts) <= MESH_LIMITS.doubts_max
    assert sum(len(each.frame) for each in doubts.values()) <= DOUBTS_BYTES_MAX
    rig.do(rig.core.handle_gone(rogue.conn, "it left", rig.now))
    assert GREATER not in rig.core.router.topology.states._doubts


def test_more_filters_behind_one_neighbour_than_can_be_kept_apart_mean_everything(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "FILTERS_TOPICS_MAX", 3)
    friend = Peer(rig, SMALLER)
    friend.send(friend.state(wanted=(b"/1", b"/2", b"/3"), chappe=(VICTIM,)))
    assert rig.core.peer_subscriptions() == (b"/1", b"/2", b"/3")
    friend.send(friend.state(version=2, wanted=(b"/1", b"/2", b"/3", b"/4"), chappe=(VICTIM,)))
    assert rig.core.peer_subscriptions() == (b"",)


# -- many neighbours --------------------------------------------------------------------------------


def joined(rig: Rig, count: int) -> list[Peer]:
    """Neighbours that each tell of themselves."""
    found = [Peer(rig, bytes([number + 1]) * 16) for number in range(count)]
    for peer in found:
        peer.send(peer.state(chappe=(VICTIM,)))
    return found


def test_of_many_who_join_at_once_not_each_is_told_at_once(rig: Rig) -> None:
    peers = joined(rig, 100)
    told = [len([each for each in peer.link_states() if each.origin == VICTIM]) for peer in peers]
    assert sum(told) < 20 * len(peers)

    rig.pass_time(TELL_PAUSE_MAX_S)

    [last] = [each for each in peers[0].link_states() if each.origin == VICTIM]
    assert {each.id for each in last.neighbours} == {peer.id for peer in peers}


def test_what_is_wanted_is_told_at_once_however_many_join(rig: Rig) -> None:
    peers = joined(rig, 100)
    peers[0].take()
    rig.want(b"/new")
    [last] = [each for each in peers[0].link_states() if each.origin == VICTIM]
    assert last.filter == (b"/a", b"/new")


def test_nobody_gets_a_message_before_it_knows_where_its_origin_is(rig: Rig) -> None:
    """Others take it only from where its origin is: so they are told of the new neighbour first."""
    peers = joined(rig, 100)
    peers[0].send(peers[0].state(version=2, wanted=(b"/m",), chappe=(VICTIM,)))
    peers[0].take()

    peers[-1].send(peers[-1].publication(b"/m", b"first", below=(peers[0].id,)))

    *states, tree, message = peers[0].messages()
    assert tree.kind == TREE
    told = {each.origin: each for each in map(parse_link_state, [each.payload for each in states])}
    assert peers[-1].id in {each.id for each in told[VICTIM].neighbours}
    assert peers[-1].id in told
    assert message.payload == b"first"


def test_a_closed_connection_that_takes_nothing_is_not_waited_for_long(rig: Rig) -> None:
    conn = rig.open()
    rig.do(rig.core.handle_frames(conn, [b"nonsense"], rig.now))
    assert conn in rig.closed
    rig.pass_time(CLOSE_FLUSH_S)
    assert rig.core.take(conn, 1 << 20) == []
    assert rig.core.next_timeout() > rig.now


# -- what others are made to carry ------------------------------------------------------------------


def beside(rig: Rig, *peers: Peer) -> None:
    """Peers tell of themselves, and that they want /b."""
    for peer in peers:
        peer.send(peer.state(wanted=(b"/b",), chappe=(VICTIM,)))
        peer.take()


def tree_label(body: bytes) -> int:
    """The label of a tree that somebody was told of."""
    return int.from_bytes(parse_message(body).payload[16:24])


@pytest.fixture
def control_frames_max(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many may wait for a neighbour."""
    monkeypatch.setattr(boxes, "CONTROL_FRAMES_MAX", 64)
    return 64


def test_a_neighbour_that_changes_its_link_state_without_end_cuts_nobody_off(rig: Rig, control_frames_max: int) -> None:
    """Another one that takes less is told later what it lacks."""
    rogue, slow = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, rogue, slow)
    count = 2 * control_frames_max
    for version in range(2, count + 2):
        rogue.send(rogue.state(version=version, wanted=(b"/%d" % version,), chappe=(VICTIM,)))
    rig.pass_time(COMPARE_PAUSE_S)
    assert slow.conn not in rig.closed
    assert len(slow.link_states()) <= control_frames_max // 2

    rig.pass_time(COMPARE_PAUSE_S)
    [asked] = [each for each in slow.messages() if each.kind == LINK_STATES_HAD]
    entries = [asked.payload[at : at + 28] for at in range(1, len(asked.payload), 28)]
    assert rogue.id + (count + 1).to_bytes(8) in {each[:24] for each in entries}
    slow.send(slow.plain(LINK_STATES_HAD, payload=b"\0" + rogue.id + bytes(12)))
    assert [each.version for each in slow.link_states()] == [count + 1]


def test_trees_of_one_neighbour_cut_off_nobody_who_is_told_of_them(rig: Rig, control_frames_max: int) -> None:
    rogue, slow = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, rogue, slow)
    for label in range(2, 2 * control_frames_max):
        rogue.labels.clear()
        rogue.labels[rogue.id, (GREATER,)] = label
        rogue.send(rogue.tree(label, below=(GREATER,)), rogue.publication(b"/b", b"", below=(GREATER,), sequence=label))
    rig.pass_time(DROPS_REPORT_S)
    assert slow.conn not in rig.closed
    assert len([each for each in slow.take() if each[KIND_AT] == TREE]) <= control_frames_max // 2

    rogue.take()
    rig.do(rig.core.publish(b"/b", b"of its own", now=rig.now))
    assert [each.payload for each in slow.messages() if each.kind == DATA] == [b"of its own"]
    assert rig.core.invariants() == []


def test_trees_that_are_forgotten_at_once_cut_off_nobody_who_was_told_of_them(
    rig: Rig, control_frames_max: int
) -> None:
    rogue, slow = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, rogue, slow)
    told_of: set[int] = set()
    for label in range(2, 4 * control_frames_max):
        rogue.labels[rogue.id, (GREATER,)] = label
        rogue.send(rogue.tree(label, below=(GREATER,)), rogue.publication(b"/b", b"", below=(GREATER,), sequence=label))
        bodies = slow.take()
        told_of |= {tree_label(each) for each in bodies if each[KIND_AT] == TREE}
        entries = [(int.from_bytes(each[24:32]), label) for each in bodies if each[KIND_AT] in PUBLICATIONS]
        slow.send(pack_confirm(GREATER, entries)[4:])
        rogue.take()
    assert len(told_of) > 2 * control_frames_max

    rogue.send(pack_forget(rogue.id, range(2, 4 * control_frames_max))[4:])

    assert slow.conn not in rig.closed
    frames = [each for each in slow.take() if each[KIND_AT] == FORGET]
    assert {label for each in frames for label in parse_forget(parse_message(each).payload)} == told_of
    assert rig.core.router.trees._above == {}


def test_reports_of_losses_cut_off_nobody_who_gets_them(rig: Rig, control_frames_max: int) -> None:
    rogue, slow = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, rogue, slow)
    rogue.send(rogue.tree(7, below=(GREATER,)))
    loss = Loss(rogue.id, rogue.id, 1, LossReason.FULL).pack()
    for number in range(1, 2 * control_frames_max):
        rogue.send(pack_publication(rogue.id, number, 7, LOSS, NOBODY, RESERVED_TOPIC, loss)[4:])
    assert slow.conn not in rig.closed
    assert len([each for each in slow.take() if each[KIND_AT] == FLOW_LOSS]) <= control_frames_max // 2


def test_trees_that_one_neighbour_tells_take_no_room_from_those_of_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told and is idle is taken back, and told again before something comes along it."""
    monkeypatch.setattr(told, "TREES_TOLD_BYTES_MAX", 20_000)
    rogue, friend, below = Peer(rig, SMALLER), Peer(rig, b"\x33" * 16), Peer(rig, GREATER)
    beside(rig, rogue, friend, below)
    rogue.take()
    labels: dict[int, int] = {}  # of the trees that ``below`` knows, and how often it was told of each
    got: list[bytes] = []

    def hear() -> None:
        for each in below.take():
            if each[KIND_AT] == TREE:
                labels[tree_label(each)] = labels.get(tree_label(each), 0) + 1
            elif each[KIND_AT] == FORGET:
                for label in parse_forget(parse_message(each).payload):
                    del labels[label]
            elif each[KIND_AT] in PUBLICATIONS:
                assert int.from_bytes(each[24:32]) in labels
                got.append(parse_publication(each, VICTIM).payload)
                below.send(pack_confirm(GREATER, [(int.from_bytes(each[24:32]), int.from_bytes(each[16:24]))])[4:])

    for number in range(1, 200):
        friend.send(friend.publication(b"/b", b"good %d" % number, sequence=number, below=(GREATER,)))
        hear()
        for label in range(10 * number, 10 * number + 10):
            rogue.send(rogue.tree(label, below=(GREATER,)))
            rogue.labels[rogue.id, (GREATER,)] = label
            rogue.send(rogue.publication(b"/b", b"", sequence=label, below=(GREATER,)))
        hear()
        assert len(labels) < 20
        assert rig.core.invariants() == []

    assert [each for each in got if each] == [b"good %d" % number for number in range(1, 200)]


def test_what_a_neighbours_trees_take_is_counted(rig: Rig) -> None:
    """A tree of a thousand hops side by side takes more than one in a row."""
    rogue = Peer(rig, SMALLER)
    ids = [number.to_bytes(4, "big") * 4 for number in range(1, 1_001)]
    flat = [rogue.tree(label, below=ids) for label in range(1, 6)]
    rogue.send(rogue.tree(100, below=(GREATER,)))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        rogue.send(*flat)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = rig.core.router.trees._sizes[SMALLER]
    assert len(flat) * 1_000 * CHILD_BYTES < counted
    assert taken < 1.5 * counted
    assert counted <= TREES_BYTES_MAX


@pytest.mark.parametrize("forged", [CONFIRM, FORGET])
def test_nobody_is_kept_busy_with_one_frame(rig: Rig, forged: int) -> None:
    rogue = Peer(rig, SMALLER)
    size = 16 if forged == CONFIRM else 8
    rogue.send(rogue.plain(forged, payload=bytes(size * ENTRIES_MAX)))
    assert rig.core.dropped == 0
    rogue.send(rogue.plain(forged, payload=bytes(size * (ENTRIES_MAX + 1))))
    assert rig.core.dropped == 1


# -- endpoints that are called originals ------------------------------------------------------------


def test_who_is_called_an_original_by_somebody_stays_in_reach_and_so_do_all_behind_it(rig: Rig) -> None:
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    beyond = b"\x66" * 16
    friend.send(
        friend.state(chappe=(VICTIM, FAR)),
        friend.state(FAR, 1, (b"/far",), chappe=(GREATER, beyond)),
        friend.state(beyond, 1, (b"/beyond",), chappe=(FAR,)),
    )
    friend.take()

    named = (Neighbour(VICTIM), *[Neighbour(each, True, (b"",)) for each in (FAR, GREATER, beyond)])
    rogue.send(pack_link_state(SMALLER, LinkState(SMALLER, 1, True, (), named))[4:])
    rig.do(rig.core.publish(b"/far", b"one", now=rig.now))
    rig.do(rig.core.publish(b"/beyond", b"two", now=rig.now))
    rig.do(rig.core.publish(b"/x", b"three", receiver=beyond, now=rig.now))

    assert [each.payload for each in friend.messages() if each.kind == DATA] == [b"one", b"two", b"three"]
    assert rig.core.network().ways[FAR] == (2, GREATER)
    assert rig.core.filters()[FAR] == (b"/far",)


def test_nobody_hears_of_itself(rig: Rig) -> None:
    rogue = Peer(rig, SMALLER)
    named = (Neighbour(VICTIM, True, (b"",)),)
    rogue.send(pack_link_state(SMALLER, LinkState(SMALLER, 1, True, (), named))[4:])
    assert not rig.core.reaches(VICTIM)
    assert VICTIM not in rig.core.filters()
    assert VICTIM not in {each.peer_id for each in rig.events if isinstance(each, EndpointDiscovered)}


# -- confirmations, and trees that lead back --------------------------------------------------------


def test_nobody_waits_for_confirmations_that_are_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 10_000)
    rig = Rig(limits=MeshLimits(ahead_bytes=5_000))
    rig.want(b"/a")
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, rogue, friend)
    got: list[bytes] = []
    for number in range(1_000):
        assert rig.core.room()
        rig.do(rig.core.publish(b"/b", b"%d" % number, now=rig.now))
        rogue.take()
        for body in friend.take():
            if body[KIND_AT] in PUBLICATIONS:
                got.append(parse_publication(body, VICTIM).payload)
                friend.send(pack_confirm(GREATER, [(int.from_bytes(body[24:32]), int.from_bytes(body[16:24]))])[4:])
        assert rig.core.router.links[SMALLER].kept_bytes <= 10_000
        assert rig.core.router.links[GREATER].kept_bytes == 0
    assert got == [b"%d" % number for number in range(1_000)]
    assert rig.core.invariants() == []


def test_who_confirms_what_was_not_sent_confirms_nothing_that_is_sent_later(rig: Rig) -> None:
    rogue = Peer(rig, SMALLER)
    beside(rig, rogue)
    rig.do(rig.core.publish(b"/b", b"first", now=rig.now))
    [label] = [tree_label(each) for each in rogue.take() if each[KIND_AT] == TREE]
    rogue.send(pack_confirm(SMALLER, [(label, 2**62), (label + 1, 2**62), (HIGHEST, HIGHEST)])[4:])
    rig.do(rig.core.publish(b"/b", b"second", now=rig.now))
    assert rig.core.router.links[SMALLER].kept_bytes > 0
    other = Peer(rig, GREATER)
    other.send(
        other.state(version=2, chappe=(VICTIM, SMALLER)), other.state(SMALLER, 2, (b"/b",), chappe=(VICTIM, GREATER))
    )
    rogue.send(rogue.state(version=2, wanted=(b"/b",), chappe=(VICTIM, GREATER)))
    rig.do(rig.core.handle_gone(rogue.conn, "it broke", rig.now))
    assert [each.payload for each in other.messages() if each.kind == DATA] == [b"second"]


def test_a_tree_that_leads_back_ends_where_it_began(rig: Rig) -> None:
    """Everybody hands on what is below it, which is less than it got: nothing goes round."""
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, friend)
    far_behind(rogue)
    rogue.send(rogue.publication(b"/b", b"x", FAR, below=(SMALLER, GREATER)))
    bodies = {GREATER: friend.take(), SMALLER: rogue.take()}
    told = {id: [each for each in found if each[KIND_AT] == TREE] for id, found in bodies.items()}
    for id, [tree] in told.items():
        assert parse_tree(parse_message(tree).payload, id)[4] == []
    assert [len([each for each in found if each[KIND_AT] in PUBLICATIONS]) for found in bodies.values()] == [1, 1]


@pytest.mark.parametrize("times", [2, 1_000])
def test_a_tree_that_names_a_hop_more_than_once_is_refused(rig: Rig, times: int) -> None:
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, rogue, friend)
    node = struct.Struct(">16sBH")
    for again in (GREATER, VICTIM):
        side_by_side = node.pack(VICTIM, 1, times) + times * node.pack(again, 1, 0)
        in_a_row = node.pack(VICTIM, 1, 1) + (times - 1) * node.pack(again, 1, 1) + node.pack(again, 1, 0)
        for label, subtree in enumerate((side_by_side, in_a_row), 1):
            rogue.send(pack_tree(SMALLER, SMALLER, label, subtree)[4:])
            rogue.send(pack_publication(SMALLER, label, label, DATA, NOBODY, b"/a", b"")[4:])
    assert rig.core.dropped == 8
    assert rig.delivered == []
    assert {each[KIND_AT] for each in friend.take()} == {LINK_STATE}


# -- numbers that are still to come -----------------------------------------------------------------


def test_an_origin_goes_on_above_the_numbers_that_a_hop_used_up() -> None:
    """While that hop is on the way it may do worse; once it is gone, it has silenced nobody."""
    net = Net(3, [(0, 1), (1, 2)], limits=MeshLimits(seen_max=16))
    net.want(2)
    origin, hop, receiver = net.nodes
    origin.publish(b"before")
    net.settle()
    [label] = receiver.trees._above[hop.id]
    high = 2**51
    forged = [pack_publication(origin.id, high + each, label, DATA, NOBODY, TOPIC, b"")[4:] for each in range(64)]
    receiver.do(receiver.core.handle_frames(receiver.conns[1], forged, receiver.now))
    net.cut(1, 2)
    net.link(0, 2)
    net.pump()
    receiver.delivered.clear()

    origin.publish(b"late")
    for _ in range(3):
        net.pass_time(DROPS_REPORT_S)
    origin.publish(b"again")
    net.pass_time(0.2)

    assert receiver.payloads == [b"again"]
    assert receiver.core.dropped == 1
    net.check()


def test_nobody_goes_on_above_numbers_that_others_would_refuse(rig: Rig) -> None:
    rogue, friend = Peer(rig, SMALLER), Peer(rig, GREATER)
    beside(rig, friend)
    rogue.send(rogue.tree(1))
    published = 0

    def number(told: int) -> int:
        nonlocal published
        published += 1
        loss = Loss(NOBODY, VICTIM, told, LossReason.LATE).pack()
        rogue.send(pack_publication(SMALLER, published, 1, LOSS, VICTIM, RESERVED_TOPIC, loss)[4:])
        rig.do(rig.core.publish(b"/b", b"", now=rig.now))
        return [each for each in friend.messages() if each.kind == DATA][-1].sequence

    assert number(2**63) < 100
    assert number(HIGHEST) < 100
    assert number(LINK_STATE_AHEAD + LIFE_NUMBERS + 1) < 100
    assert number(2**40) == 2**40 + 2  # the label of a new tree is a number too
    assert number(2**41) == 2**40 + 3  # so soon not again
    rig.pass_time(DOUBT_S)
    assert number(2**40) == 2**40 + 4
    assert number(2**41) == 2**41 + 2


def test_a_number_that_no_clock_could_have_led_to_is_refused(rig: Rig) -> None:
    peer = Peer(rig, SMALLER)
    limit = LINK_STATE_AHEAD + LIFE_NUMBERS + 1
    peer.send(peer.publication(b"/a", b"highest", sequence=limit - 1), peer.publication(b"/a", b"over", sequence=limit))
    assert [each.payload for each in rig.delivered] == [b"highest"]
    rig.pass_time(1.0)
    peer.send(peer.publication(b"/a", b"later", sequence=limit + 999_999))
    assert [each.payload for each in rig.delivered] == [b"highest", b"later"]
