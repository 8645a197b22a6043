"""Whom to read less from, because others are full."""

from __future__ import annotations

import pytest

from chappe.defaults import PASS_ON_WAIT_S
from chappe.mesh.congestion import Congestion
from chappe.mesh.handshake import Handshake
from chappe.mesh.links import Link
from chappe.mesh.outbox import Outbox


def link(conn: int) -> Link:
    unused: Handshake = None  # type: ignore[assignment]
    return Link(conn, ("127.0.0.1", 1), None, unused, Outbox(), 0.0)


@pytest.fixture
def full() -> Link:
    made = link(1)
    for number in range(10):
        made.outbox.put(bytes([number]))
    return made


def test_only_those_who_fill_it_are_held_back_and_until_there_is_room(full: Link) -> None:
    congestion = Congestion()
    congestion.note(full, link(2), 0.0)
    assert [congestion.holds_back(conn, 0.1) for conn in (1, 2, 3)] == [False, True, False]
    congestion.is_over(full.conn)
    assert not congestion.holds_back(2, 0.1)


def test_a_peer_that_takes_something_is_waited_for_and_another_is_not(full: Link) -> None:
    congestion = Congestion()
    congestion.note(full, link(2), 0.0)
    now = 0.0
    for _ in range(5):
        now += 0.9 * PASS_ON_WAIT_S
        full.outbox.take(1)
        assert congestion.holds_back(2, now)
    assert not congestion.holds_back(2, now + 1.1 * PASS_ON_WAIT_S)
