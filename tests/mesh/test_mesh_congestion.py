"""Whom to read less from, because others are full."""

from __future__ import annotations

import pytest

from chappe.defaults import CLAIMS_MAX, PASS_ON_WAIT_S
from chappe.mesh.forwarding.boxes import Outbox
from chappe.mesh.forwarding.congestion import Congestion
from chappe.mesh.links.handshake import PeerHandshake
from chappe.mesh.links.link import Link
from chappe.mesh.links.peers import PeerTable

OWN, SINK, PATIENCE_S = b"o" * 16, b"s" * 16, 6.0


def congested(own: bytes = OWN) -> Congestion:
    return Congestion(own, 1, PATIENCE_S)


def claim(endpoint: bytes, number: int) -> bytes:
    return endpoint + number.to_bytes(8, "big")


def link(conn: int) -> Link:
    unused = PeerHandshake(1, b"o" * 16, True, (), PeerTable(), 0.0)
    return Link(conn, ("127.0.0.1", 1), None, unused, Outbox(), 0.0)


@pytest.fixture
def full() -> Link:
    made = link(1)
    for number in range(10):
        made.outbox.put(bytes([number]))
    return made


def test_only_those_who_fill_it_are_held_back_and_until_there_is_room(full: Link) -> None:
    congestion = congested()
    congestion.note(full, link(2), 0.0)
    congestion.note(full, link(4), 0.0)
    assert [congestion.holds_back(conn, 0.1) for conn in (1, 2, 3, 4)] == [False, True, False, True]
    congestion.is_over(full.conn)
    assert not congestion.holds_back(2, 0.1)
    assert not congestion.holds_back(4, 0.1)


def test_a_peer_that_takes_something_is_waited_for_and_another_is_not(full: Link) -> None:
    congestion = congested()
    congestion.note(full, link(2), 0.0)
    now = 0.0
    for _ in range(5):
        now += 0.9 * PASS_ON_WAIT_S
        full.outbox.take(1)
        assert congestion.holds_back(2, now)
    assert not congestion.holds_back(2, now + 1.1 * PASS_ON_WAIT_S)


def test_a_peer_that_claims_to_get_on_is_waited_for_while_its_number_rises(full: Link) -> None:
    congestion = congested()
    congestion.note(full, link(2), 0.0)
    for second in range(1, 60):
        assert congestion.claimed(full, claim(SINK, second), float(second))
        assert congestion.holds_back(2, second + 0.9)
    for later in range(60, 70):
        assert not congestion.claimed(full, claim(SINK, 59), float(later))
    assert not congestion.holds_back(2, 59 + PATIENCE_S)


def test_an_answer_of_a_full_peer_shows_that_it_gets_on(full: Link) -> None:
    congestion = congested()
    assert not congestion.progressed(full, 0.0)
    congestion.note(full, link(2), 0.0)
    assert congestion.progressed(full, 0.1)
    full.progress_at = 0.1
    assert congestion.holds_back(2, PATIENCE_S)
    assert congestion.claim(0.2) == claim(OWN, 2)
    assert congestion.claim(0.2 + PATIENCE_S) == b""


def test_a_claim_is_passed_on_as_it_is_and_only_to_those_who_wait(full: Link) -> None:
    congestion = congested()
    assert not congestion.claimed(full, claim(SINK, 5), 0.0)
    assert congestion.claim(0.1) == b""
    congestion.note(full, link(2), 0.2)
    assert congestion.claimed(full, claim(SINK, 6), 0.3)
    assert congestion.claim(0.4) == claim(SINK, 6)
    congestion.is_over(full.conn)
    assert congestion.claim(0.5) == b""


def test_a_claim_does_not_go_round_in_a_ring_of_full_endpoints() -> None:
    ring = [congested(bytes([number]) * 16) for number in range(3)]
    links = [link(1) for _ in ring]
    for each, its in zip(ring, links, strict=True):
        each.note(its, link(2), 0.0)
    assert ring[0].claimed(links[0], claim(SINK, 1), 0.0)
    waiting = []
    for step in range(1, 100):
        now = step / 10
        for at, each in enumerate(ring):
            told = ring[(at + 1) % 3].claim(now)
            if told:
                each.claimed(links[at], told, now)
        waiting.append(any(each.holds_back(2, now) for each in ring))

    assert waiting[50]
    assert not waiting[-1]


@pytest.mark.parametrize("wrong", [b"", b"x", claim(OWN, 9), bytes(23), bytes(25)])
def test_what_is_no_claim_of_another_is_ignored(wrong: bytes, full: Link) -> None:
    congestion = congested()
    congestion.note(full, link(2), 0.0)
    assert not congestion.claimed(full, wrong, 0.0)


def test_claims_of_any_number_of_endpoints_take_bounded_memory(full: Link) -> None:
    congestion = congested()
    for number in range(CLAIMS_MAX + 10):
        congestion.claimed(full, claim(number.to_bytes(16, "big"), 1), 0.0)
    assert len(congestion._heard) == CLAIMS_MAX
