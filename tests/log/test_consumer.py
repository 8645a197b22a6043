"""A consumer as a function: what it hears, what it delivers, and whom it asks for the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixed_clock import FixedClock
from tests.log.consumer_rig import ConsumerRig
from tests.log.store_rig import WALL, StoreRig

from chappe.core import Ask, Deliver, Effect, Publish, Subscribe
from chappe.data.topic import Filter
from chappe.defaults import FETCH_RECORDS_MAX, RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import encode_batch
from chappe.log.consumer import EARLIEST, LATEST, LogConsumer, Reset
from chappe.log.events import OutOfRange, PartitionsLeftOut, RecordsLost, RecordsMissing
from chappe.log.messages import (
    BatchMessage,
    ConsumerHello,
    Fetch,
    GetHeads,
    PeerSubscriptions,
    RecordMessage,
    StoreHello,
    StoreInfo,
)
from chappe.log.queries import ErrorAnswer, HeadsRequest, ReadAnswer, ReadRequest, SeekRequest
from chappe.log.sources import ANSWER_S
from chappe.log.storage import AppendRecords

CLOCK = FixedClock(us=WALL)


def store_with(*values: bytes, name: str = "S", base: int = 0, partition: str = "P") -> StoreRig:
    rig = StoreRig(name)
    for offset, value in enumerate(values, base):
        rig.keep(offset, value, partition=partition)
    return rig


# -- conformance with the original (C1 to C5) -------------------------------------------------------------


def test_conformance_c1_a_store_hello_without_topics_is_answered_with_none() -> None:
    core = LogConsumer("C", [], EARLIEST, clock=CLOCK)

    assert core.handle_message(StoreHello("C", "S"), 0.0) == [Publish(ConsumerHello("S", "C", ()))]


def test_conformance_c2_a_store_hello_is_answered_with_the_topics() -> None:
    rig = ConsumerRig(EARLIEST)

    assert rig.core.handle_message(StoreHello("C", "S"), 0.0) == [Publish(ConsumerHello("S", "C", ("hello",)))]


def test_conformance_c3_subscribing_asks_for_heads() -> None:
    assert Publish(GetHeads("hello", "C")) in ConsumerRig(EARLIEST).start_actions
    assert Publish(GetHeads("more", "C")) in ConsumerRig(EARLIEST).core.subscribe(Filter("more"), 0.0)


def test_conformance_c4_a_record_beyond_a_gap_is_delivered_behind_what_was_fetched() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.record(1, b"SECOND")
    assert rig.published[-1] == Fetch("P", "C", "hello", 0, 1)
    assert rig.delivered == []

    rig.record(0, b"CONTENT")

    assert rig.delivered == [("hello", "P", 0, b"CONTENT"), ("hello", "P", 1, b"SECOND")]


def test_conformance_c5_latest_delivers_the_first_record_that_it_hears() -> None:
    rig = ConsumerRig(LATEST)
    rig.record(2, b"CONTENT")

    assert rig.delivered == [("hello", "P", 2, b"CONTENT")]


# -- subscriptions ----------------------------------------------------------------------------------------


def test_it_subscribes_to_records_batches_and_heads_and_to_what_is_meant_for_it() -> None:
    rig = ConsumerRig(LATEST)

    assert {each.prefix for each in rig.start_actions if isinstance(each, Subscribe)} == {
        *(b"DC", b"EC", b"LC", b"SC", b"I"),
        *(b"Mhello", b"Rhello", b"Hhello"),
    }
    assert not [each for each in rig.start_actions if isinstance(each, Publish)]


def test_an_original_beside_it_is_never_overlooked_while_its_subscriptions_come_and_go() -> None:
    subscriptions = PeerSubscriptions()
    rig = ConsumerRig(LATEST)
    wanted = Filter("more", prefix=True)
    topics = (b"hello", b"more", b"moreover")

    def changes() -> Iterator[Effect]:
        yield from rig.start_actions
        yield from rig.core.subscribe(wanted, 0.0)
        assert not any(map(subscriptions.originals, topics)) or original
        yield from rig.core.unsubscribe(wanted, 0.0)
        yield from rig.core.unsubscribe(Filter("hello"), 0.0)
        assert not any(map(subscriptions.originals, topics)) or original

    for original in (False, True):
        if original:
            rig = ConsumerRig(LATEST)
            for each in (b"M", b"H"):
                subscriptions.change(each, True)
        for action in changes():
            if isinstance(action, Subscribe):
                subscriptions.change(action.prefix, action.on)
            assert not original or all(map(subscriptions.originals, topics))
            assert not subscriptions.original(b"C")


def test_topics_come_and_go_while_it_runs() -> None:
    rig = ConsumerRig(LATEST)

    assert [each.prefix for each in rig.core.subscribe(Filter("more"), 0.0) if isinstance(each, Subscribe)] == [
        *(b"Hmore", b"Rmore", b"Mmore")
    ]
    assert rig.core.subscribe(Filter("more"), 0.0) == []
    assert rig.core.unsubscribe(Filter("more"), 0.0) == [Subscribe(id_ + b"more", False) for id_ in (b"M", b"R", b"H")]
    assert rig.core.unsubscribe(Filter("more"), 0.0) == []


def test_only_wanted_topics_are_delivered() -> None:
    """An original consumer of ``hello`` also delivers the records of ``helloX``."""
    rig = ConsumerRig(EARLIEST)
    rig.batch(0, b"x", topic="helloX")
    assert rig.delivered == []

    prefix = ConsumerRig(EARLIEST, "hello*")
    prefix.batch(0, b"x", topic="helloX")
    assert prefix.delivered == [("helloX", "P", 0, b"x")]


def test_a_store_that_begins_to_listen_is_told_what_is_wanted() -> None:
    rig = ConsumerRig(EARLIEST)
    hello = [Publish(ConsumerHello("S", "C", ("hello",)))]

    assert rig.core.handle_subscription(b"WS", True, 0.0) == hello
    assert rig.core.handle_subscription(b"WS", False, 0.0) == []
    assert ConsumerRig(LATEST).core.handle_subscription(b"WS", True, 0.0) == [Publish(ConsumerHello("S", "C", ()))]


@pytest.mark.parametrize("prefix", [b"W", b"W" + b"x" * 300, b"W\0", b""])
def test_a_subscription_to_what_cannot_be_an_address_does_no_harm(prefix: bytes) -> None:
    assert ConsumerRig(EARLIEST).core.handle_subscription(prefix, True, 0.0) == []


# -- order, gaps, repeats ---------------------------------------------------------------------------------


def test_records_are_delivered_once_and_in_order() -> None:
    rig = ConsumerRig(EARLIEST)
    for base in (0, 0, 2, 2, 4, 0):
        rig.batch(base, b"a", b"b")

    assert rig.offsets() == [0, 1, 2, 3, 4, 5]
    assert rig.core.duplicates == 3


def test_a_batch_that_overlaps_is_delivered_from_the_next_offset_on() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(0, b"a", b"b")
    rig.batch(1, b"b", b"c")

    assert rig.values() == [b"a", b"b", b"c"]


def test_partitions_do_not_wait_for_each_other() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(5, b"late", partition="P")
    rig.batch(0, b"now", partition="Q")

    assert rig.delivered == [("hello", "Q", 0, b"now")]


def test_what_came_early_is_kept_until_the_gap_is_filled() -> None:
    """The original throws it away and fetches it again."""
    rig = ConsumerRig(EARLIEST)
    rig.batch(2, b"c")
    rig.batch(3, b"d")
    assert [each for each in rig.published if isinstance(each, Fetch)] == [Fetch("P", "C", "hello", 0, 2)]

    rig.batch(0, b"a", b"b", direct=True)

    assert rig.values() == [b"a", b"b", b"c", b"d"]
    assert rig.core.next_timeout() == math.inf


@settings(max_examples=50)
@given(st.permutations(range(8)), st.integers(0, 8))
def test_in_whatever_order_batches_come_records_are_delivered_in_theirs(order: list[int], head: int) -> None:
    rig = ConsumerRig(EARLIEST)
    if head:
        rig.head(head * 2 - 1)
    for piece in order:
        rig.batch(piece * 2, b"%d" % (piece * 2), b"%d" % (piece * 2 + 1))

    assert rig.offsets() == list(range(len(rig.delivered)))
    rig.wait(0.1)
    for piece in range(8):  # whatever was dropped on the way comes again
        rig.batch(piece * 2, b"%d" % (piece * 2), b"%d" % (piece * 2 + 1), direct=True)
    assert rig.values() == [b"%d" % offset for offset in range(16)]


def test_what_is_held_has_a_bound_and_what_was_dropped_is_fetched() -> None:
    rig = ConsumerRig(EARLIEST, limits=LogLimits(held_bytes_max=5_000))
    for base in range(1, 50):
        rig.batch(base, bytes(1000))
    assert rig.core.load().held_bytes <= 5_000

    rig.batch(0, b"first", direct=True)
    reached = len(rig.delivered)
    assert rig.core.load().held_bytes == 0
    assert reached < 50
    rig.wait(2 * RETRY_S)
    assert Fetch("P", "C", "hello", reached, 50 - reached) in rig.published


@pytest.mark.parametrize("body", [b"", b"garbage", b"CB\x01" + bytes(60)])
def test_a_batch_that_is_none_is_a_protocol_error_and_leaves_no_trace(body: bytes) -> None:
    rig = ConsumerRig(EARLIEST)
    with pytest.raises(ProtocolError):
        rig.core.handle_message(BatchMessage("hello", "P", "hello", body), rig.now)

    assert rig.core.positions() == {}
    rig.batch(0, b"a")
    assert rig.values() == [b"a"]


@pytest.mark.parametrize("sequence", [2**63 - 1, 2**64 - 1])
def test_offsets_that_cannot_be_are_refused(sequence: int) -> None:
    rig = ConsumerRig(EARLIEST)
    with pytest.raises(ProtocolError):
        rig.core.handle_message(RecordMessage("hello", "P", "hello", sequence, b""), rig.now)
    rig.head(sequence)

    assert rig.core.heads() == {}


# -- asking producers and original stores -----------------------------------------------------------------


def test_a_lost_fetch_is_repeated() -> None:
    """The original asks once: if nobody listened yet it never gets the records."""
    rig = ConsumerRig(EARLIEST)
    rig.head(2)
    wanted = Fetch("P", "C", "hello", 0, 3)
    assert rig.published.count(wanted) == 1
    rig.wait(1.2)

    assert rig.published.count(wanted) >= 3


def test_a_producer_is_never_asked_for_more_than_exists() -> None:
    """An original producer goes into an endless loop then."""
    rig = ConsumerRig(EARLIEST)
    rig.head(9)
    rig.batch(5, b"f")
    rig.wait(3.0)

    for each in rig.published:
        if isinstance(each, Fetch):
            assert each.sequence + each.count <= 10


def test_what_arrives_is_not_asked_for_again() -> None:
    """Each FETCH is answered with all that it asks for: one for each record received would be a flood."""
    rig = ConsumerRig(EARLIEST)
    rig.head(999)
    for sequence in range(500):
        rig.record(sequence, b"", direct=True)
        rig.wait(RETRY_S / 50)
    assert [each for each in rig.published if isinstance(each, Fetch)] == [Fetch("P", "C", "hello", 0, 1000)]

    rig.wait(2 * RETRY_S)
    assert Fetch("P", "C", "hello", 500, 500) in rig.published


def test_catching_up_goes_on_past_the_first_hundred_thousand() -> None:
    """The original stops for ever at 100,001."""
    rig = ConsumerRig(EARLIEST)
    size = 50_000
    rig.head(249_999)
    for base in range(0, 250_000, size):
        rig.batch(base, *[b""] * size, direct=True)
        rig.wait(2 * RETRY_S)

    assert rig.core.positions() == {("hello", "P"): 250_000}
    fetches = [each for each in rig.published if isinstance(each, Fetch)]
    assert max(each.count for each in fetches) == FETCH_RECORDS_MAX
    assert Fetch("P", "C", "hello", 200_000, 50_000) in fetches


def test_a_gap_that_nobody_can_fill_is_reported_and_skipped() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(0, b"a")
    rig.batch(3, b"d")
    rig.wait(10.0)

    assert rig.values() == [b"a", b"d"]
    (lost,) = rig.events
    assert isinstance(lost, RecordsLost)
    assert (lost.first, lost.last) == (1, 2)


def test_latest_without_stores_starts_after_the_head_not_at_it() -> None:
    """The original fetches and delivers the last old record."""
    rig = ConsumerRig(LATEST)
    rig.head(41)
    rig.wait(3.0)
    assert rig.delivered == []
    assert rig.published == []

    rig.batch(42, b"new")
    assert rig.offsets() == [42]


# -- reading from stores ----------------------------------------------------------------------------------


def test_everything_stored_is_read_from_the_beginning() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.meet(store_with(*[b"%d" % n for n in range(300)]))

    assert rig.values() == [b"%d" % n for n in range(300)]
    assert rig.core.synced
    assert rig.core.caught_up
    assert not [each for each in rig.published if isinstance(each, Fetch)]


def test_what_is_live_and_what_is_stored_come_together_without_a_seam() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(5, b"5")
    rig.batch(6, b"6")
    rig.meet(store_with(*[b"%d" % n for n in range(6)]))
    rig.wait(0.5)

    assert rig.values() == [b"%d" % n for n in range(7)]


def test_many_partitions_are_read_though_only_some_at_once() -> None:
    store = StoreRig()
    for number in range(400):
        store.keep(0, b"%d" % number, partition=f"P{number}")
    rig = ConsumerRig(EARLIEST)
    rig.meet(store)
    rig.wait(2.0)

    assert len(rig.delivered) == len(set(rig.delivered)) == 400


def test_many_partitions_with_held_batches_are_filled_by_one_store() -> None:
    """Delivering one partition must not trip over others that became complete meanwhile."""
    store = StoreRig()
    rig = ConsumerRig(EARLIEST)
    for number in range(300):
        store.keep(0, b"0", partition=f"P{number}")
        rig.batch(1, b"1", partition=f"P{number}")
    rig.meet(store)
    rig.wait(2.0)

    assert all(rig.values(f"P{number}") == [b"0", b"1"] for number in range(300))


def test_a_time_decides_for_many_partitions_with_live_batches_waiting() -> None:
    store = StoreRig()
    rig = ConsumerRig(Reset("time", WALL + 1))
    for number in range(300):
        store.keep(0, b"0", partition=f"P{number}")
    rig.meet(store)
    for number in range(300):
        rig.batch(1, b"1", partition=f"P{number}")
    rig.wait(2.0)

    assert all(rig.values(f"P{number}") == [b"1"] for number in range(300))


def test_many_partitions_that_nobody_can_place_start_with_what_came_live() -> None:
    rig = ConsumerRig(Reset("time", 1))
    rig.meet(StoreRig())  # it knows nothing
    for number in range(300):
        rig.batch(7, b"7", partition=f"P{number}")
        rig.batch(9, b"9", partition=f"P{number}")
    rig.wait(3.0)
    for number in range(300):
        rig.batch(8, b"8", partition=f"P{number}")

    assert all(rig.values(f"P{number}") == [b"7", b"8", b"9"] for number in range(300))


def test_news_of_a_store_are_asked_for_every_second() -> None:
    store = store_with(b"a")
    rig = ConsumerRig(EARLIEST)
    rig.meet(store)
    store.keep(1, b"b")
    store.keep(0, b"x", partition="Q")
    rig.wait(2.5)

    assert (rig.values("P"), rig.values("Q")) == ([b"a", b"b"], [b"x"])
    polls = [each for each in rig.asked if isinstance(each.request, HeadsRequest)]
    assert 3 <= len(polls) <= 5


def test_what_its_producer_let_go_just_now_is_soon_read_from_the_store_that_wrote_it() -> None:
    """Who joins while the first records are written must not wait for the next round of news."""
    store = StoreRig()
    rig = ConsumerRig(EARLIEST)
    rig.meet(store)  # it has nothing yet
    rig.head(0)
    store.keep(0, b"a")  # and now the producer keeps it no longer
    rig.wait(0.2)

    assert rig.values() == [b"a"]


def test_a_store_that_does_not_answer_is_passed_over_for_another() -> None:
    one, two = store_with(b"a", b"b", name="ONE"), store_with(b"a", b"b", name="TWO")
    rig = ConsumerRig(EARLIEST)
    rig.deaf.add(one.endpoint)
    rig.meet(one)
    rig.meet(two)
    rig.wait(2 * ANSWER_S)

    assert rig.values() == [b"a", b"b"]


def test_a_store_that_falls_silent_in_the_middle_is_replaced() -> None:
    values = [b"%d" % n for n in range(10)]
    one, two = store_with(*values[:5], name="ONE"), store_with(*values, name="TWO")
    rig = ConsumerRig(EARLIEST)
    rig.meet(one)
    rig.deaf.add(one.endpoint)
    rig.meet(two)
    rig.wait(2 * ANSWER_S)

    assert rig.values() == values


def test_what_a_store_that_left_did_not_answer_is_asked_elsewhere() -> None:
    one, two = store_with(b"a", name="ONE"), store_with(b"a", name="TWO")
    rig = ConsumerRig(EARLIEST)
    rig.deaf.add(one.endpoint)
    rig.meet(one)
    rig.meet(two)
    rig.lose(one)
    rig.wait(0.5)

    assert rig.values() == [b"a"]


def test_a_store_that_answers_garbage_is_passed_over() -> None:
    one, two = store_with(b"a", name="ONE"), store_with(b"a", name="TWO")
    rig = ConsumerRig(EARLIEST)
    rig.deaf = {one.endpoint, two.endpoint}
    rig.meet(one)
    for ask in list(rig.asked):
        rig.deaf.clear()
        rig.deaf.add(two.endpoint)
        store = rig.stores.pop(one.endpoint)
        reply = store.core.handle_request(b"", b"12345678", ask.request, b"", rig.now)[0]
        actions = rig.core.handle_answer(ask.ticket, reply.message.answer, [], rig.now)  # type: ignore[union-attr]
        (read,) = [each for each in actions if isinstance(each, Ask)]
        with pytest.raises(ProtocolError):
            rig.core.handle_answer(read.ticket, ReadAnswer(b"hello", b"P", 0, 1, known=True), [b"x"], rig.now)
    rig.deaf.clear()
    rig.meet(two)
    rig.wait(1.0)

    assert rig.values() == [b"a"]


@pytest.mark.parametrize("answer", [ErrorAnswer("no"), ReadAnswer(b"hello", b"P", 0, 0, known=False)], ids=str)
def test_a_store_that_refuses_is_not_asked_in_a_loop(answer: ErrorAnswer | ReadAnswer) -> None:
    store = store_with(b"a")
    rig = ConsumerRig(EARLIEST)

    rig.refusal = answer
    rig.meet(store)
    rig.wait(2.0)

    assert len([each for each in rig.asked if isinstance(each.request, ReadRequest)]) < 10


def test_an_answer_nobody_waits_for_is_ignored() -> None:
    rig = ConsumerRig(EARLIEST)

    assert rig.core.handle_answer(99, ErrorAnswer("no"), [], rig.now) == []


def test_a_damaged_range_is_read_from_another_store() -> None:
    values = [b"%d" % n for n in range(5)]
    hurt, whole = store_with(*values, name="HURT"), store_with(*values, name="WHOLE")
    hurt.storage.damage("hello", "P", 2)
    rig = ConsumerRig(EARLIEST)
    rig.meet(hurt)
    rig.meet(whole)
    rig.wait(3.0)

    assert rig.values() == values
    assert rig.events == []


def test_a_range_damaged_everywhere_is_reported_and_skipped() -> None:
    hurt = store_with(*[b"%d" % n for n in range(5)])
    hurt.storage.damage("hello", "P", 2)
    rig = ConsumerRig(EARLIEST)
    rig.meet(hurt)
    rig.wait(2 * LOG_LIMITS.missing_told_s)
    assert rig.events == [RecordsMissing("hello", "P", 2, 2)]  # who waits is told so, once
    rig.wait(LOG_LIMITS.pass_over_s * 0.9 - 2 * LOG_LIMITS.missing_told_s)
    assert rig.offsets() == [0, 1]  # another store that has them may come back
    rig.wait(LOG_LIMITS.pass_over_s * 0.2)

    assert rig.offsets() == [0, 1, 3, 4]
    _, lost = rig.events
    assert isinstance(lost, RecordsLost)
    assert (lost.first, lost.last) == (2, 2)


# -- where to start ---------------------------------------------------------------------------------------


def test_latest_starts_after_what_stores_hold() -> None:
    rig = ConsumerRig(LATEST)
    rig.meet(store_with(b"old", b"old"))
    rig.wait(2.0)
    assert rig.delivered == []
    assert rig.core.positions() == {("hello", "P"): 2}

    rig.batch(2, b"new")
    assert rig.values() == [b"new"]


def test_latest_misses_nothing_of_a_partition_that_is_new() -> None:
    """All stores listed what they had, and it was not among it."""
    rig = ConsumerRig(LATEST)
    store = store_with(b"old")
    rig.meet(store)
    store.keep(0, b"first", partition="NEW")
    rig.batch(1, b"second", partition="NEW")
    rig.wait(2.5)

    assert rig.values("NEW") == [b"first", b"second"]


def test_partitions_that_a_store_lists_have_a_bound_and_those_that_are_known_go_on() -> None:
    rig = ConsumerRig(EARLIEST, limits=LogLimits(listed_partitions_max=3))
    store = store_with()
    for number in range(9):
        store.keep(0, b"x", partition=f"P{number}")
    rig.meet(store)
    rig.wait(3.0)
    known = {partition for _, partition, _, _ in rig.delivered}
    assert len(known) == 3
    assert rig.events == [PartitionsLeftOut("S", 3)]

    for partition in known:
        store.keep(1, b"y", partition=partition)
    rig.wait(3.0)
    assert len(rig.delivered) == 6
    assert len(rig.events) == 1


def test_earliest_starts_where_retention_left_off_without_a_word() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.meet(store_with(b"x", b"y", base=40))

    assert rig.offsets() == [40, 41]
    assert rig.events == []


def test_an_offset_starts_there_in_every_partition() -> None:
    rig = ConsumerRig(Reset("offset", 2))
    store = store_with(*[b"%d" % n for n in range(5)])
    for offset in range(4):
        store.keep(offset, b"q%d" % offset, partition="Q")
    rig.meet(store)
    rig.wait(1.0)

    assert rig.offsets("P") == [2, 3, 4]
    assert rig.offsets("Q") == [2, 3]


@pytest.mark.parametrize(("offset", "base"), [(9, 0), (1, 3)])
def test_an_offset_out_of_range_is_an_error_for_who_named_it(offset: int, base: int) -> None:
    rig = ConsumerRig(Reset("offset", offset))
    rig.meet(store_with(b"a", b"b", base=base))
    rig.wait(1.0)

    assert rig.events == [OutOfRange("hello", "P", offset, base, base + 2, strict=True)]


def test_the_next_offset_is_in_range() -> None:
    rig = ConsumerRig(Reset("offset", 2))
    rig.meet(store_with(b"a", b"b"))
    rig.wait(1.0)
    rig.batch(2, b"c")

    assert rig.values() == [b"c"]
    assert rig.events == []


@pytest.mark.parametrize(("time", "wanted"), [(WALL - 1, [0, 1]), (WALL, [0, 1]), (WALL + 1, [])])
def test_a_time_starts_with_the_first_record_as_young(time: int, wanted: list[int]) -> None:
    rig = ConsumerRig(Reset("time", time))
    rig.meet(store_with(b"a", b"b"))
    rig.wait(2.0)

    assert rig.offsets() == wanted
    rig.batch(2, b"c")
    assert rig.offsets() == [*wanted, 2]


def test_a_partition_of_which_everything_was_trimmed_is_begun_at_its_end_and_at_once() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.late = []
    for name in ("S", "T"):
        store = store_with(b"0", b"1", b"2", name=name)
        store.storage.reset("hello", "P", 3)
        rig.meet(store)
    first, second = rig.late
    rig.reply_to(first)
    rig.wait(0.2)  # the other one may have what comes before
    rig.late = None
    rig.reply_to(second)

    assert rig.core.invariants() == []
    assert rig.core.positions() == {("hello", "P"): 3}
    assert rig.core.caught_up


@pytest.mark.parametrize(
    ("second", "answers", "expected"),
    [((b"a", b"b", b"c", b"d"), True, [0, 1, 2, 3]), ((), True, [2, 3]), ((b"a", b"b", b"c", b"d"), False, [2, 3])],
)
def test_of_stores_that_begin_at_different_offsets_all_are_asked_where(
    second: tuple[bytes, ...], answers: bool, expected: list[int]
) -> None:
    """The second one answers late, or has nothing of it, or does not answer at all."""
    rig = ConsumerRig(EARLIEST)
    rig.late = []
    rig.meet(store_with(b"c", b"d", base=2))
    rig.meet(store_with(*second, name="T"))
    first, *others = rig.late
    rig.reply_to(first)
    rig.wait(0.0)
    assert rig.delivered == []
    rig.late = None
    if answers:
        for ask in others:
            rig.reply_to(ask)
    else:
        rig.deaf.add("tcp://T:1")
    rig.wait(2 * ANSWER_S)
    assert rig.offsets() == expected
    assert not rig.events


def test_a_time_in_the_middle_is_looked_up_by_a_store() -> None:
    store = StoreRig()

    for base in range(5):
        body = encode_batch(base, [b"%d" % base], base * 10)
        store.storage.publish(store.storage.write([AppendRecords("hello", "P", base, 1, base * 10, base * 10, body)]))
    rig = ConsumerRig(Reset("time", 25))
    rig.meet(store)
    rig.wait(1.0)

    assert rig.offsets() == [3, 4]


def with_times(*batches: tuple[int, ...], name: str = "S", base: int = 0) -> StoreRig:
    """A store with records of these times."""
    store = StoreRig(name)
    for stamps in batches:
        body = encode_batch(base, [b"%d" % each for each in stamps], stamps[0], timestamps=stamps)
        append = AppendRecords("hello", "P", base, len(stamps), min(stamps), max(stamps), body)
        store.storage.publish(store.storage.write([append]))
        base += len(stamps)
    return store


@pytest.mark.parametrize(
    ("time", "first"), [(0, 0), (10, 0), (11, 1), (20, 1), (21, 4), (30, 4), (35, 4), (45, 6), (60, 7), (61, 8)]
)
def test_a_time_within_a_batch_begins_at_the_first_record_that_is_not_older(time: int, first: int) -> None:
    """Also where times go up and down."""
    rig = ConsumerRig(Reset("time", time))
    rig.meet(with_times((10, 20, 12), (5, 40, 7), (50, 60)))
    rig.wait(1.0)
    if time > 60:
        rig.batch(8, b"x")

    assert rig.offsets() == [*range(first, 9 if time > 60 else 8)]
    assert rig.core.positions() == {("hello", "P"): rig.offsets()[-1] + 1}
    assert rig.core.invariants() == []
    assert rig.core.load().waiting_bytes == 0


def test_batches_that_are_older_than_the_time_are_left_out_also_where_stores_cut_them_otherwise() -> None:
    rig = ConsumerRig(Reset("time", 35))
    rig.late = []
    one = with_times((10, 20, 30, 40, 50))
    rig.meet(one)
    (heads,) = rig.late
    rig.reply_to(heads)
    (seek,) = [each for each in rig.late if isinstance(each.request, SeekRequest)]
    rig.reply_to(seek)  # it begins at 0
    rig.late = None
    rig.lose(one)
    rig.meet(with_times((10,), (20, 30), (40,), (50,)))
    rig.wait(2.0)

    assert rig.offsets() == [3, 4]
    assert rig.core.invariants() == []


@pytest.mark.parametrize("first_listed", [0, 1])
def test_of_stores_that_have_different_parts_all_say_where_a_time_begins(first_listed: int) -> None:
    stores = [with_times((10, 20), (30, 40)), with_times((30, 40), (50, 60), name="T", base=2)]
    for time, wanted in ((15, [1, 2, 3, 4, 5]), (25, [2, 3, 4, 5]), (45, [4, 5])):
        rig = ConsumerRig(Reset("time", time))
        rig.late = []
        for each in stores:
            rig.meet(each)
        asked, rig.late = [*rig.late], None
        for ask in asked[:: -1 if first_listed else 1]:
            rig.reply_to(ask)
        rig.wait(3.0)
        assert rig.offsets() == wanted


def test_a_seek_after_a_start_by_time_leaves_nothing_out() -> None:
    rig = ConsumerRig(Reset("time", 35))
    rig.meet(with_times((10, 20, 30, 40)))
    rig.refusal = None
    rig.do(rig.core.seek("hello", "P", 1, rig.now))
    rig.wait(1.0)

    assert rig.offsets()[-3:] == [1, 2, 3]


def test_a_time_without_stores_starts_with_what_comes_live() -> None:
    rig = ConsumerRig(Reset("time", WALL + 1))
    rig.batch(7, b"x")
    rig.wait(3.0)

    assert rig.offsets() == [7]


# -- positions --------------------------------------------------------------------------------------------


def test_positions_of_an_earlier_life_are_gone_on_from() -> None:
    rig = ConsumerRig(EARLIEST, positions={("hello", "P"): 3})
    rig.meet(store_with(*[b"%d" % n for n in range(5)]))
    rig.wait(1.0)

    assert rig.offsets() == [3, 4]


@pytest.mark.parametrize(("reset", "wanted"), [(EARLIEST, [40, 41]), (LATEST, [])])
def test_a_position_that_retention_removed_restarts_where_the_policy_says_and_is_reported(
    reset: Reset, wanted: list[int]
) -> None:
    rig = ConsumerRig(reset, positions={("hello", "P"): 3})
    rig.meet(store_with(b"x", b"y", base=40))
    rig.wait(2.0)

    assert rig.offsets() == wanted
    assert rig.events == [OutOfRange("hello", "P", 3, 40, 42, strict=False)]


def test_seek_goes_back_and_forth() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.meet(store_with(*[b"%d" % n for n in range(5)]))
    rig.do(rig.core.seek("hello", "P", 3, rig.now))
    rig.wait(0.5)
    rig.do(rig.core.seek("hello", "P", 0, rig.now))
    rig.wait(0.5)

    assert rig.offsets() == [0, 1, 2, 3, 4, 3, 4, 0, 1, 2, 3, 4]


def test_seek_to_the_head_waits_for_what_comes_next() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.meet(store_with(b"a", b"b"))
    rig.do(rig.core.seek("hello", "P", 2, rig.now))
    rig.wait(2.0)
    rig.batch(2, b"c")

    assert rig.offsets() == [0, 1, 2]
    assert rig.events == []


def test_seek_out_of_range_is_an_error() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.meet(store_with(b"a", b"b"))
    rig.do(rig.core.seek("hello", "P", 99, rig.now))
    rig.wait(1.0)

    assert rig.events == [OutOfRange("hello", "P", 99, 0, 2, strict=True)]


def test_seek_while_a_read_is_under_way_is_not_undone_by_its_answer() -> None:
    store = store_with(*[b"%d" % n for n in range(5)])
    rig = ConsumerRig(EARLIEST)
    rig.deaf.add(store.endpoint)
    rig.meet(store)
    heads, rest = rig.asked[0], rig.asked[1:]
    assert rest == []
    rig.deaf.clear()
    rig.late = []
    rig.reply_to(heads)
    rig.do(rig.core.seek("hello", "P", 3, rig.now))
    late, rig.late = rig.late, None
    for ask in late:
        rig.answer(ask)
    rig.wait(1.0)

    assert rig.offsets() == [3, 4]


def test_positions_and_heads_tell_how_far_behind_it_is() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.batch(0, b"a")
    rig.head(9)

    assert rig.core.positions() == {("hello", "P"): 1}
    assert rig.core.heads() == {("hello", "P"): 10}
    assert not rig.core.caught_up
    assert not rig.core.synced


# -- a slow application -----------------------------------------------------------------------------------


def test_it_pauses_when_the_application_does_not_take_what_was_delivered() -> None:
    core = LogConsumer("C", [Filter("hello")], EARLIEST, clock=CLOCK)
    size = 1 << 20
    base = 0
    while not core.paused:
        body = encode_batch(base, [bytes(size)], WALL)
        (action,) = core.handle_message(BatchMessage("hello", "P", "hello", body), 0.0)
        assert isinstance(action, Deliver)
        base += 1
    assert base <= LOG_LIMITS.consumer_queue_bytes // size + 1

    core.taken(size * 2, 0.0)
    assert not core.paused


def test_while_it_is_paused_no_store_is_asked_for_more() -> None:
    rig = ConsumerRig(EARLIEST)
    rig.core._delivery.queued_bytes = LOG_LIMITS.consumer_queue_bytes
    rig.meet(store_with(b"a"))
    rig.wait(3.0)
    assert not [each for each in rig.asked if isinstance(each.request, ReadRequest)]

    rig.do(rig.core.taken(LOG_LIMITS.consumer_queue_bytes, rig.now))
    rig.wait(0.2)
    assert rig.values() == [b"a"]


def test_an_idle_consumer_asks_for_no_time() -> None:
    rig = ConsumerRig(EARLIEST)
    assert rig.core.next_timeout() == math.inf
    rig.batch(0, b"a")
    assert rig.core.next_timeout() == math.inf


def test_the_same_store_heard_twice_is_one_store() -> None:
    rig = ConsumerRig(EARLIEST)
    store = store_with(b"a")
    rig.meet(store)
    asked = len(rig.asked)
    info = StoreInfo("", store.core.address, store.storage.store_id, store.endpoint)

    assert rig.core.handle_message(info, rig.now) == []
    assert len(rig.asked) == asked
