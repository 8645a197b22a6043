"""A committed position that lies beyond the end of its partition: it is told, and nothing new is passed over."""

from __future__ import annotations

import pytest
from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import StoreRig
from tests.log.test_ending import P, stored

from chappe.data.topic import encode_topic
from chappe.log.consumer import EARLIEST, LATEST, Reset
from chappe.log.events import OutOfRange, PositionBeyondEnd
from chappe.log.messages import StoreHello
from chappe.log.wishes import ALONE_S, HELLO_S


def resumed(reset: Reset = EARLIEST) -> tuple[ConsumerRig, StoreRig]:
    """A consumer at offset 9 of a partition that has 3 at a store."""
    rig, store = ConsumerRig(reset, positions={P: 9}), stored(3)
    rig.meet(store)
    return rig, store


def test_what_all_stores_list_ends_before_it_is_told_once_and_the_position_stays() -> None:
    rig, _ = resumed()
    assert rig.core.unsure
    rig.wait(30.0)
    assert rig.events == [PositionBeyondEnd(*P, 9, 3)]
    assert rig.core.beyond == {P: 9}
    assert not rig.core.unsure
    assert rig.core.positions() == {P: 9}


def test_a_store_that_writes_what_came_live_is_waited_for() -> None:
    rig, store = resumed()
    rig.wait(ALONE_S / 2)
    store.written(store.batch(3, *[b"x"] * 6))
    rig.wait(30.0)
    assert rig.events == []
    assert rig.core.beyond == {}


@pytest.mark.parametrize("reset", [EARLIEST, LATEST])
def test_once_the_producer_ends_before_it_reading_goes_on_where_it_ended(reset: Reset) -> None:
    rig, _ = resumed(reset)
    rig.head(3)  # four records; one is not stored yet
    rig.batch(4, b"new")
    rig.wait(30.0)
    rig.batch(5, b"newer")
    rig.wait(1.0)
    assert rig.events == [OutOfRange(*P, 9, 0, 4)]
    assert rig.core.beyond == {}
    rig.batch(4, b"new", direct=True)
    assert rig.values() == [b"new", b"newer"]
    assert rig.core.positions() == {P: 6}


def test_for_who_named_an_offset_it_is_an_error() -> None:
    rig, _ = resumed(Reset("offset", 0))
    rig.head(2)
    rig.wait(30.0)
    assert rig.events == [OutOfRange(*P, 9, 0, 3, strict=True)]
    assert rig.core.positions() == {P: 3}


def test_a_producer_that_has_more_than_the_stores_settles_it() -> None:
    rig, _ = resumed()
    rig.head(8)
    rig.wait(30.0)
    assert rig.events == []
    rig.batch(9, b"next")
    assert rig.values() == [b"next"]


def test_what_stores_held_before_a_producer_with_an_old_journal_came_is_not_delivered_again() -> None:
    rig, _ = resumed()
    rig.head(1)  # two records, of three that the store holds
    rig.wait(30.0)
    assert rig.events == [OutOfRange(*P, 9, 0, 3)]
    assert rig.core.positions() == {P: 3}
    assert rig.values() == []


@pytest.mark.parametrize("listens", [False, True])
def test_a_store_is_waited_for_before_a_producer_with_an_old_journal_is_believed(listens: bool) -> None:
    rig, _ = resumed()
    other = stored(9, "S2")  # has what the consumer got in its earlier life
    address = other.core.address
    if listens:  # and refuses to say anything yet
        rig.do(rig.core.handle_subscription(b"W" + encode_topic(address), True, rig.now))
    else:
        rig.do(rig.core.handle_message(StoreHello(rig.core.address, address), rig.now))
    rig.head(1)
    rig.wait(HELLO_S - 2.0)
    assert rig.events == []
    rig.meet(other)
    rig.wait(30.0)
    assert rig.events == []
    assert rig.core.positions() == {P: 9}


@pytest.mark.parametrize("gone", [False, True])
def test_a_store_that_never_lists_or_has_left_is_not_waited_for(gone: bool) -> None:
    rig, _ = resumed()
    rig.do(rig.core.handle_message(StoreHello(rig.core.address, "original"), rig.now))
    rig.head(1)
    rig.wait(1.0)
    if gone:
        rig.core.handle_gone("original", rig.now)
    rig.wait(ALONE_S + 2.0 if gone else HELLO_S + 2.0)
    assert rig.events == [OutOfRange(*P, 9, 0, 3)]
