"""The table of peers: statuses, paused connections, and its bound."""

from __future__ import annotations

import pytest

from chappe.defaults import PAUSED_MAX
from chappe.mesh.links.peers import HandshakeRole, PeerClaim, PeerStatus, PeerTable

PEER = b"\xee" * 16
OTHER = b"\xdd" * 16


def test_a_peering_goes_through_its_statuses() -> None:
    table = PeerTable()
    assert table.status(PEER) is PeerStatus.UNKNOWN
    assert table.claim(1, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PROCEED
    assert table.status(PEER) is PeerStatus.CONNECTING
    assert table.settle(1, PEER) == ()
    assert table.status(PEER) is PeerStatus.CONNECTED
    table.peered(PEER)
    assert table.status(PEER) is PeerStatus.PEERED
    assert table.release(1, PEER) == ()
    assert table.status(PEER) is PeerStatus.UNKNOWN
    assert table.connection(PEER) is None
    assert table.claim(2, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PROCEED


def test_peers_do_not_concern_each_other() -> None:
    table = PeerTable()
    assert table.claim(1, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PROCEED
    assert table.claim(2, OTHER, HandshakeRole.RESPONDER) is PeerClaim.PROCEED
    assert (table.connection(PEER), table.connection(OTHER)) == (1, 2)


@pytest.mark.parametrize("connected", [False, True])
def test_only_an_originator_pauses_and_only_while_the_first_is_on_its_way(connected: bool) -> None:
    table = PeerTable()
    table.claim(1, PEER, HandshakeRole.ORIGINATOR)
    if connected:
        table.settle(1, PEER)
    assert table.claim(2, PEER, HandshakeRole.RESPONDER) is PeerClaim.REDUNDANT
    assert table.claim(3, PEER, HandshakeRole.ORIGINATOR) is (PeerClaim.REDUNDANT if connected else PeerClaim.PAUSE)
    assert table.connection(PEER) == 1


def test_a_claim_may_be_repeated() -> None:
    table = PeerTable()
    for _ in range(2):
        assert table.claim(1, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PROCEED
        assert table.claim(2, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PAUSE
    assert table.settle(1, PEER) == (2,)


def test_who_waited_is_woken_once_in_order() -> None:
    table = PeerTable()
    for conn in (1, 2, 3, 4):
        table.claim(conn, PEER, HandshakeRole.ORIGINATOR)
    assert table.release(3, PEER) == ()
    assert table.release(1, PEER) == (2, 4)
    assert table.claim(2, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PROCEED
    assert table.settle(2, PEER) == ()


def test_only_so_many_wait() -> None:
    table = PeerTable()
    table.claim(0, PEER, HandshakeRole.ORIGINATOR)
    for conn in range(1, PAUSED_MAX + 1):
        assert table.claim(conn, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.PAUSE
    assert table.claim(PAUSED_MAX + 1, PEER, HandshakeRole.ORIGINATOR) is PeerClaim.REDUNDANT
    assert len(table.settle(0, PEER)) == PAUSED_MAX


def test_a_connection_without_the_peer_takes_nothing_with_it() -> None:
    table = PeerTable()
    table.claim(1, PEER, HandshakeRole.RESPONDER)
    assert table.release(2, PEER) == ()
    assert table.release(1, OTHER) == ()
    assert table.connection(PEER) == 1


def test_another_connection_counts_while_it_lives() -> None:
    table = PeerTable()
    assert not table.has_other(2, PEER)
    table.claim(1, PEER, HandshakeRole.RESPONDER)
    assert table.has_other(2, PEER)
    assert not table.has_other(1, PEER)
    table.release(1, PEER)
    assert not table.has_other(2, PEER)
