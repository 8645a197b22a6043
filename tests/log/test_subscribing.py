"""Topics of a consumer come and go while it runs: what is kept of them, and what is not asked for any longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.log.consumer_rig import ConsumerRig
from tests.log.effects import is_end
from tests.log.store_rig import WALL, StoreRig

from chappe.core import Ask, Publish, Subscribe
from chappe.data.topic import Filter
from chappe.limits import LOG_LIMITS
from chappe.log.batch import encode_batch
from chappe.log.consumer import EARLIEST, LATEST, Reset
from chappe.log.messages import Fetch
from chappe.log.queries import HeadsRequest, ReadRequest
from chappe.log.storage import AppendRecords
from chappe.log.wishes import ALONE_S

HELLO = Filter("hello")
KEY = ("hello", "P")
ALL_RESETS = pytest.mark.parametrize("reset", [EARLIEST, LATEST, Reset("time", WALL), Reset("offset", 0)], ids=repr)


def leave(rig: ConsumerRig, wanted: Filter = HELLO) -> None:
    rig.do(rig.core.unsubscribe(wanted, rig.now))
    assert rig.core.invariants() == []


def come(rig: ConsumerRig, wanted: Filter = HELLO) -> None:
    rig.do(rig.core.subscribe(wanted, rig.now))
    assert rig.core.invariants() == []


def stored(*values: bytes) -> StoreRig:
    store = StoreRig("S")
    for offset, value in enumerate(values):
        store.keep(offset, value)
    return store


@ALL_RESETS
def test_a_topic_goes_on_at_its_position(reset: Reset) -> None:
    rig, store = ConsumerRig(reset), StoreRig("S")
    rig.meet(store)
    store.keep(0, b"a")
    rig.batch(0, b"a")
    rig.wait(5)
    assert rig.values() == [b"a"]

    leave(rig)
    store.keep(1, b"b")
    rig.batch(1, b"b")
    rig.wait(5)
    assert rig.values() == [b"a"]
    assert rig.core.positions() == {KEY: 1}

    come(rig)
    rig.wait(5)
    assert rig.values() == [b"a", b"b"]
    rig.batch(2, b"c")
    assert rig.values() == [b"a", b"b", b"c"]


def test_a_position_is_kept_where_nothing_was_delivered_yet() -> None:
    """With the latest, a partition begins behind what there was when it was listed first."""
    rig, store = ConsumerRig(LATEST), stored(b"a", b"b")
    rig.meet(store)
    leave(rig)
    store.keep(2, b"c")
    come(rig)
    rig.wait(5)
    assert rig.values() == [b"c"]


def test_topics_of_a_pattern_go_on_at_their_positions() -> None:
    rig, store = ConsumerRig(EARLIEST, "hel*"), stored(b"a")
    rig.meet(store)
    wanted = Filter("hel", prefix=True)
    leave(rig, wanted)
    store.keep(1, b"b")
    come(rig, wanted)
    rig.wait(5)
    assert rig.values() == [b"a", b"b"]


def test_nothing_is_asked_for_what_is_not_wanted_any_more() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(5, b"held")
    rig.head(7)
    leave(rig)
    assert rig.core.load().held_bytes == 0
    rig.published.clear()
    rig.wait(60)
    assert [each for each in rig.published if isinstance(each, Fetch)] == []
    rig.batch(0, b"0")
    assert rig.delivered == []


def test_a_topic_that_another_name_selects_stays() -> None:
    rig = ConsumerRig(EARLIEST, "hello", "hello*", "hel*")
    assert not any(is_end(each) for each in rig.core.unsubscribe(HELLO, rig.now))
    rig.batch(0, b"a")
    assert list(rig.core.unsubscribe(Filter("hello", prefix=True), rig.now)) == [
        Subscribe(id_ + b"hello", False) for id_ in (b"M", b"R", b"H")
    ]
    rig.batch(1, b"b")
    assert rig.values() == [b"a", b"b"]


def questions(rig: ConsumerRig) -> list[Ask]:
    return [each for each in rig.late or () if isinstance(each.request, HeadsRequest)]


def test_an_answer_from_before_hides_nothing_of_what_is_subscribed_again() -> None:
    """It lists what changed since the one before it, which is forgotten."""
    rig, store = ConsumerRig(EARLIEST), stored(b"a")
    rig.meet(store)
    rig.late = []
    rig.wait(1.5)
    (before,) = questions(rig)
    leave(rig)
    store.keep(1, b"b")
    come(rig)
    rig.reply_to(before)
    rig.late = None
    rig.wait(5)
    assert rig.values() == [b"a", b"b"]


def test_an_answer_to_a_read_of_what_is_not_wanted_any_more_is_ignored() -> None:
    rig, store = ConsumerRig(EARLIEST), stored(b"a")
    rig.late = []
    rig.meet(store)
    rig.reply_to(rig.late.pop())
    (read,) = [each for each in rig.late if isinstance(each.request, ReadRequest)]
    leave(rig)
    assert rig.core.load().reads == 0
    rig.reply_to(read)
    assert rig.delivered == []
    rig.late = None
    come(rig)
    rig.wait(5)
    assert rig.values() == [b"a"]


def test_the_latest_of_a_topic_is_what_comes_after_it_was_subscribed() -> None:
    """It was ready, so whatever it met of its other topic was new."""
    rig = ConsumerRig(LATEST, "other")
    rig.wait(ALONE_S)
    assert rig.core.ready(rig.now - ALONE_S, rig.now)
    come(rig)
    assert not rig.core.ready(0.0, rig.now)
    rig.batch(5, b"five")
    rig.batch(3, b"three", topic="other")
    rig.wait(5)
    assert ("hello", "P", 5, b"five") in rig.delivered
    assert not any(isinstance(each, Fetch) and each.subject == "hello" for each in rig.published)
    assert Fetch("P", "C", "other", 0, 3) in rig.published, "of the other topic all is new"
    assert rig.core.ready(0.0, rig.now)


def test_who_seeks_in_a_topic_that_is_not_subscribed_finds_its_place_there_later() -> None:
    rig, store = ConsumerRig(EARLIEST), stored(b"a", b"b", b"c")
    rig.meet(store)
    leave(rig)
    rig.do(rig.core.seek("hello", "P", 1, rig.now))
    rig.do(rig.core.seek("hello", "Q", 7, rig.now))
    rig.wait(5)
    assert rig.core.positions() == {KEY: 1, ("hello", "Q"): 7}
    come(rig)
    rig.wait(5)
    assert rig.values() == [b"a", b"b", b"c", b"b", b"c"]


def test_a_committed_position_is_gone_on_from_when_its_topic_is_subscribed() -> None:
    rig, store = ConsumerRig(EARLIEST, "other", positions={KEY: 1, ("hello", "Q"): 2}), stored(b"a", b"b")
    rig.meet(store)
    rig.do(rig.core.seek("hello", "Q", 4, rig.now))
    come(rig)
    rig.wait(5)
    assert rig.values() == [b"b"]
    assert rig.core.positions() == {KEY: 2, ("hello", "Q"): 4}


def test_a_time_in_the_midst_of_a_batch_is_still_waited_for() -> None:
    stamps = (WALL, WALL + 1, WALL + 2)
    store = StoreRig("S")
    body = encode_batch(0, [b"0", b"1", b"2"], WALL, timestamps=stamps)
    store.storage.publish(store.storage.write([AppendRecords("hello", "P", 0, 3, stamps[0], stamps[-1], body)]))
    rig = ConsumerRig(Reset("time", WALL + 1))
    rig.late = []
    rig.meet(store)
    while not isinstance(rig.late[-1].request, ReadRequest):
        rig.reply_to(rig.late.pop())
    leave(rig)
    rig.late = None
    come(rig)
    rig.wait(5)
    assert rig.offsets() == [1, 2]


def test_an_offset_that_is_not_there_is_an_error_also_after_it_was_subscribed_again() -> None:
    rig, store = ConsumerRig(Reset("offset", 9)), stored(b"a")
    leave(rig)
    come(rig)
    rig.meet(store)
    rig.wait(5)
    (event,) = rig.events
    assert getattr(event, "strict", False)


def test_positions_of_topics_that_are_not_wanted_have_a_bound() -> None:
    rig = ConsumerRig(EARLIEST, limits=replace(LOG_LIMITS, settled_max=2))
    for name in "abc":
        rig.batch(0, b"x", partition=name)
    leave(rig)
    rig.wait(1)
    rig.do(rig.core.handle_timeout(rig.now + LOG_LIMITS.settled_s))
    assert len(rig.core.positions()) == 2


def test_what_is_published_meanwhile_is_not_asked_of_originals() -> None:
    rig = ConsumerRig(EARLIEST)
    leave(rig)
    assert not any(isinstance(each, Publish) for each in rig.core.handle_subscription(b"G", True, rig.now))
