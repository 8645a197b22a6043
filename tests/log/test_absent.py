"""Wanted topics that nobody has are told of."""

from __future__ import annotations

import pytest
from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import StoreRig

from chappe.data.topic import Filter, similar
from chappe.log.consumer import EARLIEST, LATEST
from chappe.log.delivery import Reset
from chappe.log.events import TopicAbsent
from chappe.log.wishes import ABSENT_S, NAMES_S


def store_of(*topics: str) -> StoreRig:
    store = StoreRig()
    for topic in topics:
        store.keep(0, b"value", topic=topic)
    return store


@pytest.mark.parametrize("reset", [EARLIEST, LATEST])
def test_a_topic_that_no_store_lists_is_told_once_with_names_like_it(reset: Reset) -> None:
    rig = ConsumerRig(reset, "greatings", "greet*", "hello")
    rig.wait(10 * ABSENT_S)
    assert rig.events == []  # no store has said anything

    rig.meet(store_of("greetings", "greetings.old", "hello", "metrics"))
    rig.wait(ABSENT_S / 2)
    assert rig.events == []
    rig.wait(10 * ABSENT_S)
    assert rig.events == [TopicAbsent("greatings", ("greetings", "greetings.old"))]


def test_who_is_heard_or_listed_in_time_is_not_absent() -> None:
    rig = ConsumerRig(EARLIEST, "live", "headed", "stored")
    store = store_of("other")
    rig.meet(store)
    rig.batch(0, b"value", topic="live")
    rig.batch(0, b"value", topic="headed")
    store.keep(0, b"value", topic="stored")
    rig.wait(5 * ABSENT_S)
    assert rig.events == []


def test_a_store_that_does_not_tell_its_names_delays_it_only() -> None:
    rig = ConsumerRig(EARLIEST, "hello")
    store = store_of("hallo")
    rig.meet(store)
    rig.deaf = {store.endpoint}
    rig.wait(ABSENT_S + NAMES_S + 0.1)
    assert rig.events == [TopicAbsent("hello")]


def test_what_is_wanted_no_longer_is_not_missed_and_what_is_wanted_later_is() -> None:
    rig = ConsumerRig(EARLIEST, "one")
    rig.meet(store_of("other"))
    rig.do(rig.core.subscribe(Filter.parse("two"), rig.now))
    rig.do(rig.core.unsubscribe(Filter.parse("one"), rig.now))
    rig.wait(5 * ABSENT_S)
    assert rig.events == [TopicAbsent("two")]
    rig.do(rig.core.subscribe(Filter.parse("one"), rig.now))
    rig.wait(5 * ABSENT_S)
    assert rig.events == [TopicAbsent("two"), TopicAbsent("one")]


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ((), "nobody has a topic 'a' yet; still waiting for it"),
        (("b",), "nobody has a topic 'a' yet; 'b' is there; still waiting for it"),
        (("b", "c"), "nobody has a topic 'a' yet; 'b', 'c' are there; still waiting for it"),
    ],
)
def test_what_is_said(others: tuple[str, ...], text: str) -> None:
    assert str(TopicAbsent("a", others)) == text


def test_similar_names_are_bounded_and_never_the_name_itself() -> None:
    assert similar("metrics", ["metrics", "metric", "x", "metric"]) == ["metric"]
    assert len(similar("topic", (f"topic{number}" for number in range(100)))) == 3
    endless = iter(lambda: "a", "b")
    assert similar("topic", endless) == []
    assert similar("x", []) == []
