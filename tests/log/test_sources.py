"""What a consumer knows of stores, and what it asks of them."""

from __future__ import annotations

import math

from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import WALL, StoreRig

from chappe.core import Ask
from chappe.data.topic import Filter
from chappe.defaults import POLL_HEADS_S
from chappe.limits import LogLimits
from chappe.log.consumer import EARLIEST, Reset
from chappe.log.queries import HeadsRequest, ReadRequest, SeekRequest
from chappe.log.sources import ANSWER_S, Sources

KEY = ("hello", "P")
HELLO = Filter.parse("hello")


def known(*names: str) -> Sources:
    """Stores that have the offsets 0 to 999."""
    sources = Sources(32)
    for name in names:
        sources.found(name, f"tcp://{name}:1", 0.0)
        sources.stores[name].note(KEY, 0, 1000)
    return sources


# -- who is there ---------------------------------------------------------------------------------------------


def test_a_store_is_news_once_and_again_at_another_endpoint() -> None:
    sources = Sources(32)
    assert not sources.ever
    assert sources.found("A", "tcp://a:1", 0.0)
    assert not sources.found("A", "tcp://a:1", 0.0)
    assert sources.found("A", "tcp://a:2", 0.0)
    assert sources.ever


def test_what_a_store_that_left_was_asked_is_under_way_no_longer() -> None:
    sources = known("A", "B")
    sources.read(sources.stores["A"], KEY, 0, 0.0)
    sources.read(sources.stores["B"], ("hello", "Q"), 0, 0.0)
    left = sources.gone("A", 5.0)
    assert left is not None
    assert [(each.key, each.offset) for each in left] == [(KEY, 0)]
    assert sources.gone("A", 6.0) is None

    assert (sources.reads, sources.gone_at, sources.answered(1)) == (1, 5.0, None)
    assert sources.answered(2) is not None
    assert sources.reads == 0


def test_a_late_store_is_passed_over_for_a_while() -> None:
    sources = known("A", "B")
    sources.seek(sources.stores["A"], KEY, WALL, 0.0)
    assert sources.overdue(ANSWER_S / 2) == []
    assert sources.reads == 1

    assert [each.key for each in sources.overdue(ANSWER_S)] == [KEY]
    assert sources.reads == 0
    assert [each.address for each in sources.having(KEY, 999, ANSWER_S)] == ["B"]
    assert [each.address for each in sources.having(KEY, 999, 2 * ANSWER_S)] == ["A", "B"]
    assert sources.having(KEY, 1000, 2 * ANSWER_S) == []
    assert sources.ranges(KEY) == [(0, 1000)] * 2


def test_news_are_asked_for_once_a_second_from_where_the_last_answer_ended() -> None:
    sources = known("A")
    sources.stores["A"].since[HELLO] = 7
    (asked,) = sources.polls([HELLO], 0.0)
    assert isinstance(asked, Ask)
    assert asked.request == HeadsRequest(b"hello", 7)
    assert sources.polls([HELLO], 10.0) == []  # the first is not answered

    assert sources.answered(asked.ticket) is not None
    assert sources.next_timeout() == POLL_HEADS_S
    assert len(sources.polls([HELLO], POLL_HEADS_S)) == 1


def test_nobody_is_asked_of_nothing() -> None:
    sources = Sources(32, ever=True)
    assert sources.ever
    assert sources.next_timeout() == math.inf
    assert not sources.synced([HELLO])
    assert sources.ranges(KEY) == []


def test_a_time_is_asked_for_by_its_partition() -> None:
    sources = known("A")
    asked = sources.seek(sources.stores["A"], KEY, WALL, 0.0)
    assert isinstance(asked, Ask)
    assert asked.request == SeekRequest(b"hello", b"P", WALL)


# -- together with the consumer -------------------------------------------------------------------------------


SMALL = LogLimits(read_bytes=4_000)  # an answer has some batches only


def store_of(*counts: int) -> StoreRig:
    """Batches of so many records."""
    store = StoreRig()
    base = 0
    for count in counts:
        store.keep(base, *[b"%d:" % n + bytes(90) for n in range(base, base + count)])
        base += count
    return store


def all_of(rig: ConsumerRig, count: int) -> bool:
    return rig.offsets() == list(range(count))


def test_one_read_is_under_way_for_a_partition_and_nothing_is_asked_for_twice() -> None:
    """Delivering the first batch of an answer must not ask for what else is in it."""
    rig = ConsumerRig(EARLIEST, limits=SMALL)
    rig.late = []
    rig.meet(store_of(*[10] * 40))
    asked: list[int] = []
    while rig.late:
        requests = [each.request for each in rig.late]
        asked += [each.offset for each in requests if isinstance(each, ReadRequest)]
        assert sum(isinstance(each, ReadRequest) for each in requests) <= 1
        rig.reply_to(rig.late.pop(0))

    assert all_of(rig, 400)
    assert rig.core.duplicates == 0
    assert len(set(asked)) <= 40 / 3 + 2


def test_damage_where_a_reader_was_before_it_sought_says_nothing_of_where_it_is() -> None:
    rig = ConsumerRig(Reset("offset", 60), limits=SMALL)
    rig.late = []
    store = store_of(*[10] * 12)
    store.storage.damage("hello", "P", 65)
    rig.meet(store)
    rig.reply_to(rig.late.pop(0))  # what there is
    rig.do(rig.core.seek("hello", "P", 5, rig.now))
    waiting, rig.late = rig.late, None
    assert [each.request.offset for each in waiting if isinstance(each.request, ReadRequest)] == [60]
    rig.reply_to(waiting[0])

    assert rig.offsets() == list(range(5, 60))
    assert rig.events == []
