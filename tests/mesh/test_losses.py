"""What is told of dropped messages: its bytes, how often, and within which bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mesh.rogue_rig import Peer, Rig

from chappe.defaults import DROPS_REPORT_S, LOSSES_MAX
from chappe.errors import ProtocolError
from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.flows import FLOW_LOSS, KIND_AT, PREFIX, pack_publication, parse_publication
from chappe.mesh.forwarding.losses import Loss, Losses, LossReason
from chappe.mesh.messages import DATA, LOSS, NOBODY, RESERVED_TOPIC, pack_message

PLACE, PEER, ORIGIN = b"l" * 16, b"p" * 16, b"o" * 16
TOPIC = b"/t"
MISSING = frozenset((PEER,))


@pytest.mark.parametrize("topic", [b"", b"/topic", b"x" * 255])
@pytest.mark.parametrize("why", LossReason)
def test_a_loss_travels_as_it_is(why: LossReason, topic: bytes) -> None:
    loss = Loss(PEER, ORIGIN, 2**64 - 1, why, topic)
    body = pack_publication(PLACE, 7, 3, LOSS, ORIGIN, RESERVED_TOPIC, loss.pack())[PREFIX:]
    message = parse_publication(body, PEER)

    assert body[KIND_AT] == FLOW_LOSS == 0x28
    assert (message.kind, message.origin, message.sequence, message.receiver) == (LOSS, PLACE, 7, ORIGIN)
    assert Loss.parse(message.payload) == loss


@pytest.mark.parametrize("size", [0, 1, 40, 41 + 256])
def test_a_loss_that_is_cut_off_or_too_long_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        Loss.parse(bytes(size))


def test_a_loss_for_an_unknown_reason_is_refused() -> None:
    for why in (len(LossReason), 255):
        with pytest.raises(ProtocolError):
            Loss.parse(bytes(40) + bytes((why,)))


@given(st.binary(max_size=60) | st.binary(min_size=30, max_size=60).map(lambda some: bytes(40) + b"\1" + some))
def test_other_bytes_are_a_loss_or_refused(payload: bytes) -> None:
    try:
        assert Loss.parse(payload).pack() == payload
    except ProtocolError:
        pass


def test_losses_are_told_once_a_second_and_added_up() -> None:
    losses = Losses(b"\x01" * 16)
    for origin in (ORIGIN, NOBODY, ORIGIN):
        losses.add(PEER, origin, TOPIC, LossReason.FULL, MISSING)
    found, _ = losses.take(0.0)
    assert found == [
        (Loss(PEER, ORIGIN, 2, LossReason.FULL, TOPIC), MISSING),
        (Loss(PEER, NOBODY, 1, LossReason.FULL, TOPIC), MISSING),
    ]
    for _ in range(3):
        losses.add(PEER, ORIGIN, TOPIC, LossReason.NO_WAY, MISSING)
        losses.heard(PLACE, Loss(PEER, ORIGIN, 4, LossReason.FULL, b"/heard"))
    assert losses.take(DROPS_REPORT_S - 0.1) == ([], [])
    found, reports = losses.take(losses.due)
    assert found == [(Loss(PEER, ORIGIN, 3, LossReason.NO_WAY, TOPIC), MISSING)]
    assert [each.event for each in reports] == [  # type: ignore[union-attr]
        LostElsewhere(PLACE, PEER, ORIGIN, 12, LossReason.FULL.text, b"/heard")
    ]
    assert losses.take(losses.due) == ([], [])


def test_losses_are_told_apart_by_topic_and_reason_and_name_all_who_miss_them() -> None:
    losses = Losses(b"\x01" * 16)
    losses.add(PEER, ORIGIN, b"/1", LossReason.FULL, frozenset((b"r1",)))
    losses.add(PEER, ORIGIN, b"/2", LossReason.FULL, frozenset((b"r1",)))
    losses.add(PEER, ORIGIN, b"/2", LossReason.NO_WAY, frozenset((b"r1",)))
    losses.add(PEER, ORIGIN, b"/1", LossReason.FULL, frozenset((b"r2", b"r3")))
    assert losses.take(0.0)[0] == [
        (Loss(PEER, ORIGIN, 2, LossReason.FULL, b"/1"), frozenset((b"r1", b"r2", b"r3"))),
        (Loss(PEER, ORIGIN, 1, LossReason.FULL, b"/2"), frozenset((b"r1",))),
        (Loss(PEER, ORIGIN, 1, LossReason.NO_WAY, b"/2"), frozenset((b"r1",))),
    ]


def test_of_a_long_topic_the_beginning_is_told() -> None:
    losses = Losses(b"\x01" * 16)
    for number in range(2):
        losses.add(PEER, ORIGIN, b"x" * 255 + b"%d" % number, LossReason.FULL, MISSING)
    [(loss, _)] = losses.take(0.0)[0]
    assert (loss.topic, loss.count) == (b"x" * 255, 2)
    assert Loss.parse(loss.pack()) == loss


def test_a_peer_that_comes_back_is_told_once() -> None:
    losses = Losses(b"\x01" * 16)
    losses.owe(PEER, 3)
    losses.owe(PEER, 4)
    losses.owe(ORIGIN, 0)
    assert [losses.owed(PEER), losses.owed(PEER), losses.owed(ORIGIN)] == [7, 0, 0]


def test_any_number_of_origins_peers_topics_and_places_takes_bounded_memory() -> None:
    losses = Losses(b"\x01" * 16)
    for number in range(1, LOSSES_MAX + 11):
        each = number.to_bytes(16, "big")
        losses.add(PEER, ORIGIN if number % 2 else each, each, LossReason.FULL, frozenset((each,)))
        losses.owe(each, 1)
        losses.heard(each, Loss(PEER, each, 1, LossReason.FULL))
    found, reports = losses.take(0.0)
    assert sum([each.count for each, _ in found]) == LOSSES_MAX + 10
    last = frozenset([number.to_bytes(16, "big") for number in range(LOSSES_MAX + 1, LOSSES_MAX + 11)])
    assert found[-1] == (Loss(PEER, NOBODY, 10, LossReason.FULL), last)
    assert len(reports) == LOSSES_MAX


def brought(rig: Rig, ttl: int, *, wanted_by_original: bool = False, wanted_by_chappe: bool = False) -> list[object]:
    """What an endpoint says after an original brought it two messages, beside an original and an endpoint of chappe."""
    rig.want(TOPIC)
    wanted = {False: (), True: (TOPIC,)}
    source = Peer(rig, PEER, chappe=False, wanted=[TOPIC])
    Peer(rig, ORIGIN, chappe=False, wanted=wanted[wanted_by_original])
    near = Peer(rig, PLACE, wanted=wanted[wanted_by_chappe])
    near.send(near.state(version=1, chappe=(rig.core.own_id,), wanted=wanted[wanted_by_chappe]))
    rig.pass_time(DROPS_REPORT_S)
    for number in range(2):
        source.send(pack_message(PEER, NOBODY, DATA, ttl, TOPIC, b"%d" % number)[PREFIX:])
    rig.pass_time(DROPS_REPORT_S)
    assert [each.payload for each in rig.delivered] == [b"0", b"1"]
    return [each for each in rig.events if isinstance(each, MessagesDropped)]


@pytest.mark.parametrize("others", [{"wanted_by_original": True}, {"wanted_by_chappe": True}])
def test_what_an_original_brings_with_no_ttl_left_is_counted_where_others_would_have_got_it(
    others: dict[str, bool],
) -> None:
    rig = Rig()
    assert brought(rig, 0, **others) == [MessagesDropped(f"from {PEER.hex()}, whose TTL is used up", 2)]
    assert rig.core.dropped == 2


@pytest.mark.parametrize(
    ("ttl", "forwarding", "others"),
    [
        pytest.param(0, True, False, id="nobody else wants it"),
        pytest.param(0, False, True, id="nothing passes here"),
        pytest.param(1, True, True, id="it goes on"),
    ],
)
def test_what_an_original_brings_is_not_counted(ttl: int, forwarding: bool, others: bool) -> None:
    rig = Rig(forwarding=forwarding)
    assert brought(rig, ttl, wanted_by_original=others, wanted_by_chappe=others) == []
