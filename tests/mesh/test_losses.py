"""What is told of dropped messages: its bytes, how often, and within which bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.defaults import DROPS_REPORT_S, LOSSES_MAX
from chappe.errors import ProtocolError
from chappe.mesh.events import LostElsewhere
from chappe.mesh.forwarding.losses import Loss, Losses, Why
from chappe.mesh.messages import (
    DATA,
    ENVELOPE_BYTES,
    LOSS,
    NOBODY,
    ORIGIN_LOSS,
    RESERVED_TOPIC,
    origin_of,
    pack_message,
    pack_origin_message,
    parse_message,
)

PLACE, PEER, ORIGIN = b"l" * 16, b"p" * 16, b"o" * 16


@pytest.mark.parametrize("why", Why)
def test_a_loss_travels_as_it_is(why: Why) -> None:
    loss = Loss(PEER, ORIGIN, 2**64 - 1, why)
    frame = pack_origin_message(PLACE, ORIGIN, LOSS, 255, RESERVED_TOPIC, loss.pack(), PLACE, 7)
    message = parse_message(frame[4:])

    assert frame[4 + 32] == ORIGIN_LOSS == 0x18
    assert (message.kind, message.origin, message.sequence, message.receiver) == (LOSS, PLACE, 7, ORIGIN)
    assert Loss.parse(message.payload) == loss


@given(st.binary(max_size=60))
def test_other_bytes_are_a_loss_or_refused(payload: bytes) -> None:
    try:
        assert Loss.parse(payload).pack() == payload
    except ProtocolError:
        pass


def test_the_origin_is_found_in_a_frame_that_names_it() -> None:
    topic = b"t" * 300
    assert origin_of(pack_origin_message(PLACE, NOBODY, DATA, 1, topic, b"payload", ORIGIN, 1)) == ORIGIN
    assert origin_of(pack_message(PLACE, NOBODY, DATA, 1, topic, b"payload")) == NOBODY
    assert origin_of(bytes(ENVELOPE_BYTES)) == NOBODY


def test_losses_are_told_once_a_second_and_added_up() -> None:
    losses = Losses()
    losses.add(PEER, {ORIGIN: 2, NOBODY: 1}, Why.FULL)
    assert losses.take(0.0)[0] == [Loss(PEER, ORIGIN, 2, Why.FULL), Loss(PEER, NOBODY, 1, Why.FULL)]
    for _ in range(3):
        losses.add(PEER, {ORIGIN: 5}, Why.TOO_FAR)
        losses.heard(PLACE, Loss(PEER, ORIGIN, 4, Why.FULL))
    assert losses.take(DROPS_REPORT_S - 0.1) == ([], [])
    found, reports = losses.take(losses.due)
    assert found == [Loss(PEER, ORIGIN, 15, Why.TOO_FAR)]
    assert [each.event for each in reports] == [LostElsewhere(PLACE, PEER, ORIGIN, 12, Why.FULL.text)]  # type: ignore[union-attr]


def test_a_peer_that_comes_back_is_told_once() -> None:
    losses = Losses()
    losses.owe(PEER, 3)
    losses.owe(PEER, 4)
    losses.owe(ORIGIN, 0)
    assert [losses.owed(PEER), losses.owed(PEER), losses.owed(ORIGIN)] == [7, 0, 0]


def test_any_number_of_origins_peers_and_places_takes_bounded_memory() -> None:
    losses = Losses()
    for number in range(1, LOSSES_MAX + 11):
        each = number.to_bytes(16, "big")
        losses.add(PEER, {each: 1}, Why.FULL)
        losses.owe(each, 1)
        losses.heard(each, Loss(PEER, each, 1, Why.FULL))
    found, reports = losses.take(0.0)
    assert sum(each.count for each in found) == LOSSES_MAX + 10
    assert found[-1] == Loss(PEER, NOBODY, 10, Why.FULL)
    assert len(reports) == LOSSES_MAX
