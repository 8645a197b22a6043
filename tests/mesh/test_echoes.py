"""Loops that originals close, and how they are told from what merely comes more than once."""

from __future__ import annotations

from tests.mesh.rogue_rig import PREFIX, Peer, Rig

from chappe.defaults import ECHO_CONTENTS, ECHO_DOUBTFUL, ECHO_OWN_REPEATS, ECHO_REPEATS, ECHO_S, TTL
from chappe.mesh.events import PeerBlocked
from chappe.mesh.forwarding.echoes import MESH, TOO_OFTEN, Echoes
from chappe.mesh.messages import DATA, NOBODY, pack_message

ONE, OTHER = b"1" * 16, b"2" * 16


def test_different_contents_that_come_back_from_another_original_prove_a_loop() -> None:
    echoes = Echoes()
    verdicts = []
    for number in range(ECHO_CONTENTS):
        payload = str(number).encode()
        echoes.note(ONE, b"t", payload, 0.1)
        verdicts.append(echoes.came(OTHER, b"t", payload, 0.2))
    assert verdicts == [None] * (ECHO_CONTENTS - 1) + [OTHER]


def test_the_same_content_proves_a_loop_only_when_it_comes_very_often() -> None:
    echoes = Echoes()
    echoes.note(ONE, b"t", b"same", 0.0)
    assert [echoes.came(OTHER, b"t", b"same", 0.1) for _ in range(ECHO_REPEATS)] == [None] * ECHO_REPEATS
    assert echoes.came(OTHER, b"t", b"same", 0.1) == OTHER


def test_what_never_went_out_or_long_ago_is_no_echo() -> None:
    echoes = Echoes()
    echoes.note(ONE, b"t", b"old", 0.0)
    assert echoes.came(OTHER, b"t", b"old", ECHO_S + 0.1) is None
    assert echoes.came(OTHER, b"t", b"new", 0.1) is None
    echoes.note(ONE, b"t", b"own", 0.0)
    assert [echoes.came(ONE, b"t", b"own", 0.1) for _ in range(2 * ECHO_REPEATS)] == [None] * 2 * ECHO_REPEATS


def test_a_blocked_link_is_tried_again_later_or_when_the_network_has_changed() -> None:
    echoes = Echoes()
    seconds = echoes.block(OTHER, ONE, 0.0)
    assert echoes.tick(seconds - 0.1) == []
    echoes.forget(1.0)
    assert echoes.due == 1.0 + ECHO_S
    assert echoes.tick(1.0 + ECHO_S) == [OTHER]
    assert echoes.block(OTHER, ONE, 5.0) > seconds


def test_until_it_is_settled_who_speaks_copies_are_limited_and_nobody_is_cut_off() -> None:
    echoes = Echoes()
    echoes.forget(0.0)
    echoes.note(MESH, b"t", b"same", 0.1)
    assert [echoes.came(ONE, b"t", b"same", 0.2) for _ in range(ECHO_DOUBTFUL)] == [None] * ECHO_DOUBTFUL
    assert [echoes.came(ONE, b"t", b"same", 0.2) for _ in range(ECHO_REPEATS)] == [TOO_OFTEN] * ECHO_REPEATS
    for number in range(2 * ECHO_CONTENTS):
        payload = str(number).encode()
        echoes.note(MESH, b"t", payload, 0.1)
        assert echoes.came(ONE, b"t", payload, 0.2) is None


def test_what_was_published_here_proves_a_loop_with_fewer_copies() -> None:
    echoes = Echoes()
    echoes.note(ONE, b"t", b"own", 0.0, own=True)
    assert [echoes.came(OTHER, b"t", b"own", 0.1) for _ in range(ECHO_OWN_REPEATS)] == [None] * ECHO_OWN_REPEATS
    assert echoes.came(OTHER, b"t", b"own", 0.1) == OTHER


def test_copies_on_all_ways_count_together_and_begin_again_when_one_is_cut() -> None:
    echoes = Echoes()
    third = b"3" * 16
    for place in (ONE, OTHER, third):
        echoes.note(place, b"t", b"same", 0.0)
    ways = [(ONE, OTHER, third)[number % 3] for number in range(ECHO_REPEATS)]
    assert [echoes.came(way, b"t", b"same", 0.1) for way in ways] == [None] * ECHO_REPEATS
    assert echoes.came(ONE, b"t", b"same", 0.1) is not None
    assert echoes.came(ONE, b"t", b"same", 0.1) is None


def test_what_comes_only_from_where_it_was_sent_is_nothing_however_often() -> None:
    echoes = Echoes()
    echoes.note(ONE, b"t", b"own", 0.0, own=True)
    assert [echoes.came(ONE, b"t", b"own", 0.1) for _ in range(2 * ECHO_REPEATS)] == [None] * 2 * ECHO_REPEATS
    echoes.note(MESH, b"t", b"own", 0.2)
    assert echoes.came(ONE, b"t", b"own", 0.3) is None  # the first copy that may have run in a loop


def test_the_links_that_close_a_loop_are_cut_and_not_that_of_who_published() -> None:
    publisher = b"\x90" * 16  # the greatest id, which would be cut off if it were one of the pair
    rig = Rig()
    rig.want(b"t")
    rig.pass_time(1.0)
    peers = [Peer(rig, each, chappe=False, wanted=[b"t"]) for each in (ONE, OTHER, publisher)]
    rig.pass_time(2 * ECHO_S)  # it is settled who speaks with them
    for number in range(ECHO_CONTENTS):
        for peer in (peers[2], peers[1]):  # published there, and come back from another, as the third passed it on
            peer.send(pack_message(peer.id, NOBODY, DATA, TTL, b"t", b"%d" % number)[PREFIX:])
    assert [each.peer_id for each in rig.events if isinstance(each, PeerBlocked)] == [OTHER]
