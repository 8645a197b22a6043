"""Which link states an endpoint passes to whom, what waits while many links come, and how tables become the same."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from tests.mesh.net_rig import Net, Node
from tests.mesh.rogue_rig import PREFIX, VICTIM, Peer, Rig

from chappe.defaults import (
    COMPARE_PAUSE_S,
    COMPARE_S,
    LINK_STATE_KEPT_S,
    LINK_STATE_OFFERED_S,
    LINK_STATE_STEP_MAX,
    TELL_PAUSE_MAX_S,
    TTL,
)
from chappe.mesh.messages import LINK_STATE, LINK_STATES_HAD, RESERVED_TOPIC, LinkState, pack_message, parse_message

A, B, C, FAR = (bytes((number,)) * 16 for number in (1, 2, 3, 9))
ALL, SOME = b"\x01", b"\x00"


@pytest.fixture
def rig() -> Rig:
    return Rig(heartbeat_s=1000.0)  # nobody here answers pings


def peers_of(rig: Rig, *ids: bytes) -> list[Peer]:
    """Neighbours that have told of their link to the rig, long ago."""
    found = [Peer(rig, each) for each in ids]
    for peer in found:
        peer.send(peer.state(version=10, chappe=(VICTIM,)))
    rig.pass_time(2 * TELL_PAUSE_MAX_S)
    rig.want(b"/calm")  # told after a long pause: nothing is counted as recent
    for peer in found:
        peer.take()
    return found


def origins(peer: Peer) -> list[bytes]:
    """Whose link states wait for a peer."""
    return [each.origin for each in peer.link_states()]


def listed(body: bytes) -> tuple[bytes, dict[bytes, tuple[int, int]]]:
    """What a list of versions says."""
    message = parse_message(body)
    assert message.kind == LINK_STATES_HAD
    entries = struct.iter_unpack(">16sQI", message.payload[1:])
    return message.payload[:1], {origin: (version, check) for origin, version, check in entries}


def lists(peer: Peer) -> list[tuple[bytes, dict[bytes, tuple[int, int]]]]:
    """The lists of versions that wait for a peer."""
    return [listed(body) for body in peer.take() if body[32:33] == bytes((LINK_STATES_HAD,))]


def had(peer: Peer, scope: bytes, *states: LinkState | bytes) -> bytes:
    """The body of a list of versions: of bodies of link states."""
    entries = b""
    for body in states:
        assert isinstance(body, bytes)
        payload = parse_message(body).payload
        entries += payload[:24] + crc32(payload).to_bytes(4)
    return peer.plain(LINK_STATES_HAD, payload=scope + entries)


def test_a_link_state_goes_to_those_that_its_endpoint_does_not_tell_itself(rig: Rig) -> None:
    a, b, c = peers_of(rig, A, B, C)
    b.send(b.state(version=11, chappe=(VICTIM, A)))
    a.take(), c.take()

    a.send(a.state(version=11, chappe=(VICTIM, B, C)))  # C does not say so

    assert origins(b) == []
    assert origins(c) == [A]


def test_what_may_not_have_come_over_a_link_that_ended_is_sent_after_all(rig: Rig) -> None:
    a, b, c = peers_of(rig, A, B, C)
    b.send(b.state(version=11, chappe=(VICTIM, A)))
    a.send(a.state(version=11, chappe=(VICTIM, B), wanted=(b"/a",)))
    for peer in (a, b, c):
        peer.take()

    b.send(b.state(version=12, chappe=(VICTIM,)))  # B has lost A, and A does not know it yet

    [state] = b.link_states()
    assert (state.origin, state.filter) == (A, (b"/a",))


def test_while_links_come_the_newer_replaces_the_older_and_who_has_it_is_left_out(rig: Rig) -> None:
    a, b, c = peers_of(rig, A, B, C)
    for number in range(20, 24):
        Peer(rig, bytes((number,)) * 16)
    for peer in (a, b, c):
        peer.take()
    far = [a.state(FAR, version=each, chappe=(A, B)) for each in (1, 2)]
    a.send(a.state(version=11, chappe=(VICTIM, FAR)), far[0])
    a.send(far[1])
    b.send(b.state(version=11, chappe=(VICTIM, FAR)))
    b.send(far[1])
    assert origins(c) == []

    rig.pass_time(TELL_PAUSE_MAX_S)

    told = [(each.origin, each.version) for each in c.link_states() if each.origin != VICTIM]
    assert sorted(told) == [(A, 11), (B, 11), (FAR, 2)]
    assert FAR not in origins(b)


def test_what_somebody_wants_does_not_wait_for_links_that_come(rig: Rig) -> None:
    a, _, c = peers_of(rig, A, B, C)
    for number in range(20, 24):
        Peer(rig, bytes((number,)) * 16)
    c.take()

    a.send(a.state(version=11, chappe=(VICTIM,), wanted=(b"/a",)))

    [state] = [each for each in c.link_states() if each.origin == A]
    assert state.filter == (b"/a",)


def test_who_could_be_reached_before_is_told_versions_and_gets_what_it_lacks(rig: Rig) -> None:
    a, _ = peers_of(rig, A, B)
    new = Peer(rig, C)
    new.rig.do(rig.core.handle_gone(new.conn, "it is too early", rig.now))
    a.send(a.state(version=11, chappe=(VICTIM, C)))
    a.send(a.state(C, chappe=(A,)))
    rig.pass_time(TELL_PAUSE_MAX_S)

    new = Peer(rig, C)

    [(scope, versions)] = [listed(body) for body in new.heard if body[32:33] == bytes((LINK_STATES_HAD,))]
    assert scope == ALL
    assert {each: version for each, (version, _) in versions.items() if each != VICTIM} == {A: 11, B: 10, C: 1}
    assert not any(
        body[32:33] == bytes((LINK_STATE,)) and parse_message(body).payload[:16] != VICTIM for body in new.heard
    )
    new.send(had(new, SOME, a.state(version=10, chappe=(VICTIM,))))
    assert origins(new) == [A]


def test_of_whole_lists_what_the_other_lacks_is_sent_and_what_we_lack_is_asked_for(rig: Rig) -> None:
    a, _ = peers_of(rig, A, B)
    a.send(had(a, ALL, a.state(version=10, chappe=(VICTIM,)), a.state(FAR, version=7)))

    bodies = a.take()
    states = [parse_message(body).payload[:16] for body in bodies if body[32] == LINK_STATE]
    assert sorted(states) == sorted([B, VICTIM])
    [asked] = [listed(body) for body in bodies if body[32] == LINK_STATES_HAD]
    assert asked == (SOME, {FAR: (0, 0)})


def test_a_neighbour_that_asks_over_and_over_is_answered_once_in_a_while(rig: Rig) -> None:
    a, _ = peers_of(rig, A, B)
    answered = 0
    for _ in range(100):
        a.send(had(a, ALL))
        answered += bool(a.link_states())
    assert answered == 1
    rig.pass_time(COMPARE_PAUSE_S)
    a.send(had(a, ALL))
    assert origins(a)


@pytest.mark.parametrize("payload", [b"", ALL + bytes(27), SOME + bytes(29)])
def test_a_list_that_is_cut_off_is_refused(rig: Rig, payload: bytes) -> None:
    a, _ = peers_of(rig, A, B)
    a.send(a.plain(LINK_STATES_HAD, payload=payload))
    assert a.take() == []
    assert rig.core.dropped == 1


def test_each_neighbour_in_turn_is_compared_with_and_a_table_that_lost_something_heals(rig: Rig) -> None:
    a, b = peers_of(rig, A, B)
    states = rig.core.router.topology.states
    states._forget(B)  # nothing like that is known to happen
    asked = []
    for _ in range(2):
        rig.pass_time(COMPARE_S)
        for peer in (a, b):
            for scope, versions in lists(peer):
                assert scope == ALL
                assert B not in versions
                asked.append(peer.id)
    assert sorted(asked) == [A, B]

    a.send(had(a, ALL, a.state(version=10, chappe=(VICTIM,)), b.state(version=10, chappe=(VICTIM,))))

    [(scope, versions)] = lists(a)
    assert (scope, versions) == (SOME, {B: (0, 0)})


def test_of_two_that_say_different_things_in_one_version_lists_show_it(rig: Rig) -> None:
    a, _ = peers_of(rig, A, B)
    other = a.state(B, version=10, chappe=(VICTIM, A))

    a.send(had(a, ALL, a.state(version=10, chappe=(VICTIM,)), other))

    bodies = a.take()
    assert B in [parse_message(body).payload[:16] for body in bodies if body[32] == LINK_STATE]
    [(_, versions)] = [listed(body) for body in bodies if body[32] == LINK_STATES_HAD]
    assert versions.keys() == {B}


@pytest.mark.parametrize("version", [2**64 - 1, 2**63, 10 + 2**52 + 2 * LINK_STATE_STEP_MAX])
def test_a_version_that_nobody_could_outdo_is_refused(rig: Rig, version: int) -> None:
    a, b = peers_of(rig, A, B)
    a.send(a.state(version=version, chappe=(VICTIM,), wanted=(b"/wrong",)))
    a.send(a.state(FAR, version=version, chappe=(A,)))
    a.send(a.state(VICTIM, version=version))

    states = rig.core.router.topology.states
    assert states.version(A) == 10
    assert states.version(FAR) is None
    assert states.refused == 2
    assert origins(b) == []
    rig.want(b"/more")
    [own] = b.link_states()
    assert own.version < 100


def remembered(net: Net, number: int) -> set[int]:
    """Of whom one node has a link state."""
    ids = {node.id: node.number for node in net.nodes}
    return {ids[each] for each in net[number].core.router.topology.remembered}


def parted(*cut: int) -> Net:
    """A line of four that was cut at these links for so long that the first node has forgotten who was behind them.

    The second one has not: it forgets when something changes.
    """
    net = Net(4, [(0, 1), (1, 2), (2, 3)], heartbeat_s=1000.0)
    for one in cut:
        net.cut(one, one + 1)
    net.pump()
    net.pass_time(LINK_STATE_KEPT_S + 1.0)
    forget(net[0])
    return net


def forget(node: Node) -> None:
    """Have one alone look for who has been gone for too long, as if something had changed for it."""
    node.core.router.topology.changed = True
    node.pass_time(0.0)


def test_who_has_forgotten_an_endpoint_that_is_gone_is_not_taught_it_again() -> None:
    net = parted(2)
    assert 3 not in remembered(net, 0)
    for _ in range(int(2 * COMPARE_S)):  # all compare with each of their neighbours
        net.pass_time(1.0)
        assert 3 not in remembered(net, 0)
    for each in (1, 2):
        forget(net[each])
    assert all(3 not in remembered(net, each) for each in (0, 1, 2))


def test_who_joins_is_not_told_of_who_has_been_gone_for_long() -> None:
    for seconds, told in ((LINK_STATE_OFFERED_S - 1.0, {0, 2, 3}), (LINK_STATE_OFFERED_S + 1.0, {0, 2})):
        net = Net(4, [(0, 2), (2, 3)], heartbeat_s=1000.0)
        net.cut(2, 3)
        net.pump()
        net.pass_time(seconds)
        net.link(1, 2)
        net.pump()
        assert remembered(net, 1) == told


def test_when_two_parts_meet_again_who_has_forgotten_the_other_learns_of_all_in_it_at_once() -> None:
    net = parted(1)
    assert remembered(net, 0) == {1}
    assert remembered(net, 1) == {0, 2, 3}

    net.link(1, 2)
    net.pump()

    assert remembered(net, 0) == {1, 2, 3}
    assert net[0].core.router.topology.has_way(net[3].id)


def test_parts_that_meet_again_soon_are_not_told_again_what_they_had() -> None:
    net = Net(4, [(0, 1), (1, 2), (2, 3)], heartbeat_s=1000.0)
    net.cut(1, 2)
    net.pump()
    net.pass_time(LINK_STATE_OFFERED_S - 1.0)
    net.crossed.clear()
    net.link(1, 2)
    net.pump()

    told = [parse_message(body).payload[:16] for one, two, body in net.of(LINK_STATE) if (one, two) == (1, 0)]
    assert net[3].id not in told
    assert net[0].core.router.topology.has_way(net[3].id)


@pytest.mark.parametrize("asked", [False, True])
def test_who_was_gone_when_it_was_doubted_is_told_of_once_it_is_back(rig: Rig, asked: bool) -> None:
    a, b = peers_of(rig, A, B)
    a.send(a.state(version=11, chappe=(VICTIM, FAR)), a.state(FAR, version=1, chappe=(A,)))
    a.send(a.state(version=12, chappe=(VICTIM,)))
    b.take()
    doubted = parse_message(b.state(FAR, version=100)).payload
    if asked:
        b.send(pack_message(B, FAR, LINK_STATE, TTL, RESERVED_TOPIC, doubted)[PREFIX:])
    a.send(a.state(version=13, chappe=(VICTIM, FAR)))
    assert origins(b) == ([A, FAR] if asked else [A])


def test_an_earlier_life_that_is_long_gone_is_outdone_by_who_still_has_it(rig: Rig) -> None:
    a, b = peers_of(rig, A, B)
    a.send(a.state(version=11, chappe=(VICTIM, FAR)))
    a.send(a.state(FAR, version=100, chappe=(A,)))
    a.send(a.state(version=12, chappe=(VICTIM,)))
    rig.pass_time(LINK_STATE_OFFERED_S + 1.0)
    a.take(), b.take()

    b.send(had(b, ALL, b.state(version=10, chappe=(VICTIM,)), b.state(FAR, version=7)))

    assert [(each.origin, each.version) for each in b.link_states() if each.origin == FAR] == [(FAR, 100)]
