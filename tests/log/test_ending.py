"""Where a consumer's topics end, and from when on nothing that is sent is missed."""

from __future__ import annotations

from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import StoreRig

from chappe.log.consumer import EARLIEST, LATEST
from chappe.log.sources import Key
from chappe.log.wishes import ALONE_S, MEET_S

P: Key = ("hello", "P")


def stored(count: int, name: str = "S") -> StoreRig:
    """A store that has ``count`` records of one partition, or nothing."""
    store = StoreRig(name)
    if count:
        store.written(store.batch(0, *(b"%d" % n for n in range(count))))
    return store


def end(rig: ConsumerRig, since: float) -> dict[Key, int] | None:
    return rig.core.end(since, rig.now)


def test_the_end_is_what_stores_list_that_were_asked_after_it_was_sought() -> None:
    rig, store = ConsumerRig(EARLIEST), stored(3)
    rig.meet(store)
    rig.wait(MEET_S)
    store.written(store.batch(3, b"later"))

    since = rig.now
    assert end(rig, since) is None
    rig.do(rig.core.seek_end(since))
    assert end(rig, since) == {P: 4}


def test_an_answer_to_what_was_asked_before_does_not_count() -> None:
    rig, store = ConsumerRig(EARLIEST), stored(3)
    rig.meet(store)
    rig.wait(MEET_S)
    rig.late = []
    rig.wait(1.0)  # it asks for news
    (asked,) = rig.late
    since = rig.now + 0.001
    rig.now = since
    rig.do(rig.core.seek_end(since))
    rig.late = None
    rig.reply_to(asked)
    assert end(rig, since) is None  # it has not asked again

    rig.wait(0.0)
    assert end(rig, since) == {P: 3}


def test_all_stores_are_waited_for_also_those_that_are_met_a_little_later() -> None:
    rig, full, empty = ConsumerRig(EARLIEST), stored(5, "A"), stored(0, "B")
    since = rig.now
    rig.meet(empty)
    assert end(rig, since) is None
    rig.wait(MEET_S / 2)
    rig.deaf.add(full.endpoint)
    rig.meet(full)
    rig.wait(10.0)
    assert end(rig, since) is None
    rig.deaf.clear()
    rig.wait(10.0)
    assert end(rig, since) == {P: 5}


def test_a_store_that_does_not_answer_is_waited_for_until_it_is_gone() -> None:
    rig, well, hung = ConsumerRig(EARLIEST), stored(2, "A"), stored(0, "B")
    since = rig.now
    rig.deaf.add(hung.endpoint)
    rig.meet(well)
    rig.meet(hung)
    rig.wait(60.0)
    assert end(rig, since) is None
    rig.lose(hung)
    assert end(rig, since) == {P: 2}


def test_a_topic_that_nobody_has_has_an_end() -> None:
    rig = ConsumerRig(EARLIEST, "nothing")
    rig.meet(stored(3))
    rig.wait(MEET_S)

    assert end(rig, 0.0) == {}


def test_without_a_store_it_is_what_producers_tell_when_each_had_time_to() -> None:
    rig = ConsumerRig(EARLIEST)
    since = rig.now
    rig.wait(60.0)
    assert end(rig, since) is None  # nobody was heard
    rig.head(4)
    rig.wait(ALONE_S - 0.1)
    assert end(rig, since) is None
    rig.wait(0.1)
    assert end(rig, since) == {P: 5}
    assert end(rig, rig.now) is None


def test_it_is_reached_when_everything_before_it_was_delivered() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(0, b"a", b"b")
    assert rig.core.lacking({P: 2}) == {}
    rig.head(4)
    assert rig.core.lacking({P: 5}) == {P: 5}
    rig.batch(2, b"c", b"d", b"e", b"f")
    assert rig.core.lacking({P: 5}) == {}


def test_what_was_told_of_and_nobody_has_does_not_keep_from_the_end() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(0, b"a")
    rig.head(9)
    assert rig.core.lacking({P: 10}) == {P: 10}
    rig.wait(60.0)
    assert rig.core.lacking({P: 10}) == {}


def test_partitions_without_news_for_long_have_been_read() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.meet(stored(3))
    rig.wait(1000.0)

    assert rig.core._delivery.settled == {P: 3}
    assert end(rig, 0.0) == {P: 3}
    assert rig.core.lacking({P: 3}) == {}


# -- ready ---------------------------------------------------------------------------------------------------


def test_who_starts_at_the_latest_is_ready_when_the_stores_have_listed() -> None:
    rig, store = ConsumerRig(LATEST), stored(3)
    rig.deaf.add(store.endpoint)
    rig.meet(store)
    rig.wait(30.0)
    assert not rig.core.ready(0.0, rig.now)
    rig.deaf.clear()
    rig.wait(3.0)
    assert rig.core.ready(0.0, rig.now)

    rig.batch(0, b"first", partition="new")
    rig.batch(3, b"next")
    assert rig.delivered == [("hello", "new", 0, b"first"), ("hello", "P", 3, b"next")]


def test_without_a_store_a_producer_that_is_met_later_is_read_from_its_beginning() -> None:
    rig = ConsumerRig(LATEST)
    rig.head(4)
    assert not rig.core.ready(rig.now, rig.now)
    rig.wait(ALONE_S)
    assert rig.core.ready(rig.now - ALONE_S, rig.now)

    rig.batch(1, b"one", partition="Q")
    rig.batch(0, b"zero", partition="Q", direct=True)
    rig.batch(5, b"five")
    assert rig.delivered == [("hello", "Q", 0, b"zero"), ("hello", "Q", 1, b"one"), ("hello", "P", 5, b"five")]
