"""Peers whose connection is valid and whose messages are not what an endpoint sends."""

from __future__ import annotations

import pytest
from tests.mesh.rogue_rig import VICTIM, Peer, Rig

from chappe.mesh.events import PeerRemoved
from chappe.mesh.messages import DATA, PONG, ROUTING_UPDATE, pack_filter

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
