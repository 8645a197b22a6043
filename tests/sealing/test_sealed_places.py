"""What is sealed before its offsets are known."""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.sealing.people import SPAN, Group, text_of

from chappe.errors import ProtocolError
from chappe.log.batch import PLACE_AT, Batch, encode_sealed, rebase
from chappe.sealing.records import HEAD, PLACED_LATER, OpenedRecords, Opener, Outcome, RecordSpan
from chappe.sealing.senders import SealRefused


def at(raw: bytes, base: int) -> bytes:
    """As the store writes it that gives offsets."""
    found = Batch.parse(rebase(encode_sealed(0, SPAN.count, SPAN.low, SPAN.high, raw), base))
    assert found.base == base
    assert found.sealed is not None
    return bytes(found.sealed)


def span(base: int) -> RecordSpan:
    return RecordSpan(base, SPAN.count, SPAN.low, SPAN.high)


def opened(group: Group, opener: Opener, raw: bytes, base: int) -> Outcome:
    return group.opened(at(raw, base), opener=opener, span=span(base))


def test_the_batch_and_the_frame_agree_where_the_offset_stands() -> None:
    assert HEAD.size == PLACE_AT
    assert Group().sealed(place=7)[0] == PLACED_LATER


@pytest.mark.parametrize("base", [0, 40, 1 << 40])
def test_it_is_opened_wherever_the_store_puts_it(base: int) -> None:
    group = Group()
    found = opened(group, Opener(), group.sealed(span=span(0), place=7), base)
    assert isinstance(found, OpenedRecords)
    assert (found.placed_later, found.span) == (True, span(base))
    part = group.opened(
        at(group.sealed(span=span(0), place=7), base), span=RecordSpan(base + 1, 1, SPAN.low, SPAN.high)
    )
    assert text_of(part)
    elsewhere = group.opened(at(group.sealed(span=span(0), place=7), base), span=span(base + 1))
    assert isinstance(elsewhere, SealRefused)


def test_any_bit_but_those_of_the_offset_is_bound() -> None:
    group = Group()
    raw = at(group.sealed(span=span(0), place=7), 40)
    for place in range(len(raw)):
        for bit in range(8):
            changed = raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]
            assert isinstance(group.opened(changed, span=span(40)), SealRefused), place


def test_what_is_bound_to_offsets_cannot_be_given_others() -> None:
    raw = encode_sealed(SPAN.base, SPAN.count, SPAN.low, SPAN.high, Group().sealed())
    with pytest.raises(ProtocolError, match="nowhere else than where it was sealed"):
        rebase(raw, 0)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_places_come_in_order_and_once(order: tuple[int, ...]) -> None:
    group, opener = Group(), Opener()
    pieces = [group.sealed(span=span(0), place=each) for each in range(3)]  # each of a life of its own
    found = [opened(group, opener, pieces[each], 10 * n) for n, each in enumerate(order)]
    highest = -1
    for each, outcome in zip(order, found, strict=True):
        assert isinstance(outcome, OpenedRecords) is (each > highest)
        highest = max(highest, each) if isinstance(outcome, OpenedRecords) else highest
    assert isinstance(opened(group, opener, pieces[order[0]], 90), SealRefused) is (order[0] <= highest)


@pytest.mark.parametrize("base", [0, 40])
def test_a_batch_is_at_one_offset_alone_and_the_only_one_there(base: int) -> None:
    group, opener = Group(), Opener()
    first, second = (group.sealed(span=span(0), place=each) for each in (1, 2))
    assert isinstance(opened(group, opener, second, 20), OpenedRecords)
    assert isinstance(opened(group, opener, second, base), SealRefused)
    assert isinstance(opened(group, opener, first, 20), SealRefused)


def test_who_reads_again_gets_the_same() -> None:
    group, opener = Group(), Opener()
    pieces = [group.sealed(span=span(0), place=each) for each in range(3)]
    for _ in range(3):
        for each in (0, 1, 2, 2, 1):
            assert isinstance(opened(group, opener, pieces[each], 10 * each), OpenedRecords)


def test_lives_may_have_the_next_epoch_before_others() -> None:
    group, opener = Group(), Opener()
    former = group.keys
    group.rotate()
    assert isinstance(opened(group, opener, group.sealed(span=span(0), place=1), 0), OpenedRecords)
    assert isinstance(opened(group, opener, group.sealed(span=span(0), place=2, keys=former), 10), OpenedRecords)


def test_a_partition_has_one_sender_and_one_way() -> None:
    group, opener = Group(), Opener()
    assert isinstance(opened(group, opener, group.sealed(span=span(0), place=1), 0), OpenedRecords)
    assert isinstance(opened(group, opener, group.sealed("bob", span=span(0), place=2), 10), SealRefused)
    bound = group.opened(group.sealed(span=span(10)), opener=opener, span=span(10))
    assert bound == SealRefused("they were sealed in another way than others of the partition")
