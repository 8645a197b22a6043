"""A producer as a function: what it is told, and the list of what it then wants done."""

from __future__ import annotations

import math

import pytest
from tests.fixed_clock import FixedClock

from chappe.core import Effect, Persist, Publish, Report, Subscribe
from chappe.defaults import BATCH_BYTES, BULK_BYTES, HEAD_HURRY_S, HEAD_IDLE_S, HEAD_INTERVAL_S, RECORD_BYTES_MAX
from chappe.errors import ProtocolError, RecordTooLarge, StorageError, UsageError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.events import WritesRefused, WritesResumed
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, PeerSubscriptions, RecordMessage, Stored
from chappe.log.producer import GREET_S, STORES, JournalBatch, JournalTrim, LogProducer

NOW = 100.0
WALL = 1_700_000_000_000_000
BATCH = JournalBatch("P", "hello", b"")
CLOCK = FixedClock(us=WALL)


def made(
    *values: bytes, min_acks: int = 1, journal: list[bytes] | None = None, limits: LogLimits = LOG_LIMITS
) -> LogProducer:
    """A producer that published these values, one batch each; an original, ME, listens to its answers."""
    producer = LogProducer("hello", "P", min_acks=min_acks, journal=journal, limits=limits, clock=CLOCK)
    producer.handle_subscription(b"DME", True, NOW)
    for value in values:
        producer.append(value)
        producer.flush(NOW)
    return producer


def publish(producer: LogProducer, *values: bytes) -> list[Effect]:
    for value in values:
        producer.append(value)
    return producer.flush(NOW)


def journaled(producer: LogProducer, *values: bytes) -> list[Effect]:
    """Have the journal take these values as one batch; returns what follows."""
    (persist,) = publish(producer, *values)
    assert isinstance(persist, Persist)
    return producer.handle_done(BATCH, None, NOW)


def head(sequence: int) -> Publish:
    return Publish(Head("hello", "P", "hello", sequence))


def direct(sequence: int, content: bytes) -> Publish:
    return Publish(RecordMessage("ME", "P", "hello", sequence, content, direct=True))


def batch(base: int, *values: bytes, to: str | None = None) -> Publish:
    body = encode_batch(base, values, WALL)
    return Publish(BatchMessage(to or "hello", "P", "hello", body, direct=to is not None))


# -- publishing -------------------------------------------------------------------------------------------


def test_it_subscribes_to_acknowledgements_and_to_questions_of_those_who_missed_something() -> None:
    assert made().start(NOW) == [Subscribe(each) for each in (b"AP", b"TP", b"FP", b"KP", b"Ghello")]


def test_offsets_are_given_at_once_and_records_leave_together() -> None:
    producer = made()

    assert [producer.append(b"a"), producer.append(b"b"), producer.append(None)] == [0, 1, 2]
    assert producer.flush(NOW) == [
        Publish(BatchMessage("hello", "P", "hello", encode_batch(0, [b"a", b"b", None], WALL)))
    ]
    assert producer.append(b"c") == 3


def test_nothing_gathered_is_nothing_published() -> None:
    assert made().flush(NOW) == []


def test_keys_headers_and_times_travel_from_the_first_record_that_has_one() -> None:
    producer = made()
    producer.append(b"a")
    producer.append(b"b", key=b"k", headers=(("h", b"x"),), timestamp=5)
    producer.append(None)
    (action,) = producer.flush(NOW)

    assert isinstance(action, Publish)
    assert isinstance(action.message, BatchMessage)
    records = list(Batch.parse(action.message.body).records("hello", "P"))
    assert [(r.key, r.value, r.headers, r.timestamp) for r in records] == [
        (None, b"a", (), WALL),
        (b"k", b"b", (("h", b"x"),), 5),
        (None, None, (), WALL),
    ]


def test_extras_of_one_batch_do_not_reach_the_next() -> None:
    producer = made()
    producer.append(b"a", key=b"k", timestamp=1)
    producer.flush(NOW)

    assert publish(producer, b"b") == [batch(1, b"b")]


def test_many_values_are_taken_in_pieces_that_fill_a_batch() -> None:
    producer = made()
    values = [b"x" * 100] * 12_000
    done, sizes = 0, []
    while done < len(values):
        done = producer.append_many(values, done)
        (action,) = producer.flush(NOW)
        assert isinstance(action, Publish)
        assert isinstance(action.message, BatchMessage)
        sizes.append(len(Batch.parse(action.message.body)))

    assert sum(sizes) == producer.next_offset == 12_000
    assert all(size * 104 <= 2 * BULK_BYTES for size in sizes)
    assert max(sizes) * 104 > BULK_BYTES / 2


def test_many_values_of_very_different_sizes_keep_their_order() -> None:
    producer = made()
    values = [b"a" * (70_000 if index % 7 == 0 else index) for index in range(50)]
    done, found = 0, []
    while done < len(values):
        done = producer.append_many(values, done)
        for action in producer.flush(NOW):
            assert isinstance(action, Publish)
            assert isinstance(action.message, BatchMessage)
            found += Batch.parse(action.message.body).values()

    assert found == values


def test_a_batch_is_full_at_its_bound_of_bytes() -> None:
    producer = made()
    while not producer.full:
        producer.append(b"x" * 1000)

    assert producer.next_offset == math.ceil(BATCH_BYTES / 1004)


def test_a_record_over_the_bound_is_refused_and_takes_no_offset() -> None:
    producer = made()
    for value, key in ((b"x" * (RECORD_BYTES_MAX + 1), None), (b"x" * RECORD_BYTES_MAX, b"k")):
        with pytest.raises(RecordTooLarge, match="at most 8388608"):
            producer.append(value, key)
    with pytest.raises(RecordTooLarge):
        producer.append_many([b"x" * (RECORD_BYTES_MAX + 1)], 0)

    assert producer.append(b"x" * RECORD_BYTES_MAX) == 0
    (action,) = producer.flush(NOW)
    assert isinstance(action, Publish)


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1])
def test_a_time_that_does_not_fit_is_refused_before_it_can_do_harm(timestamp: int) -> None:
    producer = made()
    with pytest.raises(UsageError, match="timestamp"):
        producer.append(b"x", timestamp=timestamp)

    assert publish(producer, b"y") == [batch(0, b"y")]


def test_originals_that_listen_get_single_records_too() -> None:
    producer = made()
    producer.handle_subscription(b"Mhello", True, NOW)
    record = Publish(RecordMessage("hello", "P", "hello", 0, b"a"))

    assert publish(producer, b"a") == [batch(0, b"a"), record]

    producer.handle_subscription(b"Mhello", False, NOW)
    assert publish(producer, b"b") == [batch(1, b"b")]


def test_members_that_know_batches_get_only_those() -> None:
    producer = made()
    producer.handle_subscription(b"Mhello", True, NOW)
    producer.handle_subscription(b"Rhello", True, NOW)

    assert publish(producer, b"a") == [batch(0, b"a")]


def test_a_journaled_batch_is_on_disk_before_it_is_published() -> None:
    producer = made(journal=[])

    assert publish(producer, b"a") == [Persist(JournalBatch("P", "hello", encode_batch(0, [b"a"], WALL)))]
    assert producer.handle_message(Fetch("P", "ME", "hello", 0, 1), NOW) == []
    assert producer.handle_done(BATCH, None, NOW) == [batch(0, b"a")]


def test_nobody_hears_of_a_batch_that_the_journal_refuses_and_its_offsets_are_not_skipped() -> None:
    producer = made(journal=[])
    producer.start(NOW)
    journaled(producer, b"a")
    publish(producer, b"b")

    assert producer.handle_done(BATCH, StorageError("full"), NOW) == [Report(WritesRefused("full"))]
    assert producer.handle_timeout(NOW + 10) == [head(0)]
    assert producer.handle_message(Fetch("P", "ME", "hello", 0, 9), NOW) == [direct(0, b"a")]

    assert producer.flush(NOW) == [Persist(JournalBatch("P", "hello", encode_batch(1, [b"b"], WALL)))]
    assert producer.handle_done(BATCH, StorageError("full"), NOW) == []  # it was said already
    producer.flush(NOW)
    assert producer.handle_done(BATCH, None, NOW) == [Report(WritesResumed()), batch(1, b"b")]
    assert journaled(producer, b"c") == [batch(2, b"c")]


def test_a_sender_takes_back_what_the_journal_refuses_and_what_came_before_stays() -> None:
    producer = made(journal=[])
    producer.append(b"a", key=b"k")
    room = producer.room
    offset = producer.append(b"b", headers=(("h", b"x"),), timestamp=5)
    producer.flush(NOW)
    producer.handle_done(BATCH, StorageError("full"), NOW)
    producer.take_back(offset)

    assert (producer.room, producer.next_offset, producer.published) == (room, 1, 0)
    assert producer.append(b"c") == 1
    (persist,) = producer.flush(NOW)
    assert isinstance(persist, Persist)
    found = Batch.parse(persist.job.body)
    assert (found.values(), found.keys()) == ([b"a", b"c"], [b"k", None])
    assert list(found.records("hello", "P"))[1].timestamp == WALL


def test_a_sender_may_take_back_all_that_is_gathered() -> None:
    producer = made(journal=[])
    producer.append_many([b"a" * 10] * 3, 0)
    producer.flush(NOW)
    producer.handle_done(BATCH, StorageError("full"), NOW)
    producer.take_back(0)

    assert (producer.pending, producer.room, producer.next_offset) == (False, BATCH_BYTES, 0)
    assert producer.flush(NOW) == []
    assert journaled(producer, b"b")[-1] == batch(0, b"b")


def test_a_batch_that_the_journal_refuses_was_not_added() -> None:
    producer = made(journal=[])
    raw = encode_batch(7, [b"a", b"b"], WALL)
    assert producer.append_batch(raw, NOW) == [Persist(JournalBatch("P", "hello", encode_batch(0, [b"a", b"b"], WALL)))]
    producer.handle_done(BATCH, StorageError("full"), NOW)

    assert (producer.next_offset, producer.kept_bytes) == (0, 0)
    assert journaled(producer, b"c")[-1] == batch(0, b"c")


# -- HEAD -------------------------------------------------------------------------------------------------


def test_there_is_no_head_before_the_first_record() -> None:
    producer = made()

    assert producer.next_timeout() == math.inf
    assert producer.handle_timeout(NOW) == []


def test_head_follows_the_first_record_after_a_second_and_then_for_ever() -> None:
    producer = made(b"a", b"b")

    assert producer.next_timeout() == NOW + HEAD_INTERVAL_S
    assert producer.handle_timeout(NOW + 0.5) == []
    for second in range(1, 6):
        assert producer.handle_timeout(NOW + second * HEAD_INTERVAL_S) == [head(1)]


def test_head_comes_less_often_while_every_store_has_everything() -> None:
    def pauses(count: int) -> list[float]:
        found = []
        for _ in range(count):
            before = producer.next_timeout()
            assert len(producer.handle_timeout(before)) == 1
            found.append(producer.next_timeout() - before)
        return found

    producer = made()
    for _ in range(2):
        producer.handle_subscription(STORES, True, NOW)
    publish(producer, b"a")
    producer.handle_message(Stored("P", "S1", "hello", 0), NOW)
    assert pauses(3) == [1, 1, 1]
    producer.handle_message(Stored("P", "S2", "hello", 0), NOW)
    assert pauses(7) == [1, 2, 4, 8, 16, HEAD_IDLE_S, HEAD_IDLE_S]
    producer.handle_subscription(STORES, True, NOW + 100)  # one more, which may have nothing
    assert pauses(2) == [1, 1]
    producer.handle_message(Stored("P", "S3", "hello", 0), NOW)
    assert pauses(3) == [1, 2, 4]
    publish(producer, b"b")
    assert producer.next_timeout() == NOW + HEAD_INTERVAL_S
    assert pauses(2) == [1, 1]
    producer.handle_message(Stored("P", "S1", "hello", 1), NOW)
    producer.handle_message(Stored("P", "S2", "hello", 1), NOW)
    producer.handle_message(Stored("P", "S3", "hello", 1), NOW)
    producer.handle_subscription(b"Mhello", True, NOW + 200)  # an original
    assert pauses(3)[1:] == [1, 1]


def test_head_names_what_was_published_not_what_is_gathered() -> None:
    producer = made(b"a")
    producer.append(b"b")

    assert producer.handle_timeout(NOW + 1) == [head(0)]


def test_a_new_listener_soon_hears_head_and_those_who_come_together_share_it() -> None:
    producer = made(b"a")

    assert producer.handle_subscription(b"Rhello", True, NOW) == []
    producer.handle_subscription(b"Rhello", True, NOW + 0.001)
    assert producer.next_timeout() == NOW + GREET_S
    assert producer.handle_timeout(NOW + GREET_S) == [head(0)]


def test_an_original_consumer_hears_head_only_when_it_is_due() -> None:
    """Its first FETCH may go nowhere that early, and it never repeats it."""
    producer = made(b"a")
    due = producer.next_timeout()
    producer.handle_subscription(b"Mhello", True, NOW)
    producer.handle_subscription(b"Hhello", True, NOW)
    assert producer.next_timeout() == due

    producer.handle_subscription(b"M", True, NOW)
    assert producer.next_timeout() == NOW + GREET_S


def test_who_waits_for_acknowledgements_makes_head_hurry_until_they_are_there() -> None:
    producer = made(b"a")
    producer.hurry(NOW, True)

    assert producer.handle_timeout(NOW + HEAD_HURRY_S) == [head(0)]
    assert producer.next_timeout() == pytest.approx(NOW + 2 * HEAD_HURRY_S)
    producer.handle_message(Stored("P", "S", "hello", 0), NOW)
    producer.handle_timeout(NOW + 1)
    assert producer.next_timeout() == NOW + 1 + HEAD_INTERVAL_S


def test_conformance_p2_what_a_peer_hears_is_records_and_heads() -> None:
    producer = made()
    producer.handle_subscription(b"Mhello", True, NOW)
    heard = publish(producer, b"CONTENT")[1:]
    for tick in range(1, 5):
        heard += producer.handle_timeout(NOW + tick)

    assert heard == [Publish(RecordMessage("hello", "P", "hello", 0, b"CONTENT")), *[head(0)] * 4]


# -- acknowledgements -------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_let_go() -> None:
    producer = made(b"a", b"b")
    kept = producer.kept_bytes

    assert producer.handle_message(Ack("P", "hello", 0), NOW) == []
    assert (producer.stored, producer.kept_bytes) == (1, kept // 2)
    producer.handle_message(Ack("P", "hello", 1), NOW)
    assert (producer.stored, producer.kept_bytes) == (2, 0)


def test_a_batch_acknowledged_in_part_is_kept_whole() -> None:
    producer = made()
    publish(producer, b"a", b"b", b"c")
    kept = producer.kept_bytes
    producer.handle_message(Ack("P", "hello", 1), NOW)

    assert (producer.stored, producer.kept_bytes) == (2, kept)


def test_min_acks_counts_distinct_stores() -> None:
    producer = made(b"a", b"b", min_acks=2)

    for _ in range(3):
        producer.handle_message(Stored("P", "S1", "hello", 1), NOW)
    assert producer.stored == 0
    producer.handle_message(Stored("P", "S2", "hello", 0), NOW)
    assert producer.stored == 1
    producer.handle_message(Stored("P", "S3", "hello", 1), NOW)
    assert producer.stored == 2


def test_all_original_stores_count_as_one_for_their_acknowledgements_have_no_name() -> None:
    producer = made(b"a", min_acks=2)
    producer.handle_subscription(b"WREADER", True, NOW)

    for _ in range(3):
        producer.handle_message(Ack("P", "hello", 0), NOW)
    assert producer.stored == 0
    producer.handle_message(Stored("P", "S1", "hello", 0), NOW)
    assert producer.stored == 1


@pytest.mark.parametrize(
    "ack",
    [
        Ack("Q", "hello", 0),
        Ack("P", "other", 0),
        Stored("Q", "S", "hello", 0),
        Stored("P", "S", "other", 0),
        Ack("P", "hello", 1),
        Ack("P", "hello", 2**64 - 1),
        Stored("P", "S", "hello", 2**64 - 1),
    ],
    ids=str,
)
def test_acknowledgements_of_others_or_of_what_was_never_sent_are_ignored(ack: Ack | Stored) -> None:
    producer = made(b"a")

    assert producer.handle_message(ack, NOW) == []
    assert producer.stored == 0


def test_an_older_acknowledgement_takes_nothing_back() -> None:
    producer = made(b"a", b"b")
    producer.handle_message(Ack("P", "hello", 1), NOW)
    producer.handle_message(Ack("P", "hello", 0), NOW)

    assert producer.stored == 2


def test_one_store_does_not_count_twice_if_it_acknowledged_before_it_heard_our_subscription() -> None:
    producer = made(b"a", min_acks=2)
    for prefix in (b"SSTORE", b"WSTORE"):
        producer.handle_subscription(prefix, True, NOW)
    producer.handle_message(Ack("P", "hello", 0), NOW)
    producer.handle_message(Stored("P", "S1", "hello", 0), NOW)
    assert producer.stored == 0

    producer.handle_message(Stored("P", "S2", "hello", 0), NOW)
    assert producer.stored == 1


def test_an_acknowledgement_without_a_name_counts_once_an_original_store_is_known() -> None:
    producer = made(b"a", min_acks=2)
    producer.handle_message(Ack("P", "hello", 0), NOW)
    producer.handle_message(Stored("P", "S1", "hello", 0), NOW)
    producer.handle_subscription(b"WREADER", True, NOW)

    assert producer.stored == 1


def test_the_journal_is_trimmed_when_whole_batches_are_stored() -> None:
    producer = made(journal=[])
    journaled(producer, b"a")
    journaled(producer, b"b", b"c")

    assert producer.handle_message(Stored("P", "S", "hello", 0), NOW) == [Persist(JournalTrim("P", "hello", 1))]
    assert producer.handle_message(Stored("P", "S", "hello", 1), NOW) == []
    assert producer.handle_message(Stored("P", "S", "hello", 2), NOW) == [Persist(JournalTrim("P", "hello", 3))]


def test_without_acknowledgements_the_newest_are_kept_for_those_who_missed_them() -> None:
    producer = made(*[b"x" * 500] * 20, min_acks=0, limits=LogLimits(producer_ring_bytes=3_000))
    producer.handle_subscription(b"SME", True, NOW)

    assert producer.stored == 20
    assert producer.kept_bytes <= 3_000
    answer = producer.handle_message(Fetch("P", "ME", "hello", 0, 100), NOW)
    assert answer == [batch(offset, b"x" * 500, to="ME") for offset in range(15, 20)]


def test_the_newest_batch_is_kept_even_when_it_alone_is_over_the_bound() -> None:
    producer = made(b"x" * 500, b"y" * 500, min_acks=0, limits=LogLimits(producer_ring_bytes=100))
    producer.handle_subscription(b"SME", True, NOW)

    assert producer.handle_message(Fetch("P", "ME", "hello", 1, 1), NOW) == [batch(1, b"y" * 500, to="ME")]


# -- FETCH ------------------------------------------------------------------------------------------------


def test_conformance_p1_a_fetch_is_answered_with_the_record() -> None:
    producer = made(b"CONTENT")

    assert producer.handle_message(Fetch("P", "ME", "hello", 0, 1), NOW) == [direct(0, b"CONTENT")]


def test_fetched_records_have_the_content_they_were_published_with() -> None:
    """The original answers with record n mod 256 for record n."""
    values = [b"record %d" % index for index in range(600)]
    producer = made(*values)

    answer = producer.handle_message(Fetch("P", "ME", "hello", 0, 600), NOW)

    assert answer == [direct(index, value) for index, value in enumerate(values)]


def test_fetched_records_are_right_after_an_acknowledgement_in_part() -> None:
    """The original answers with record 0 for record 100."""
    values = [b"record %d" % index for index in range(200)]
    producer = made()
    publish(producer, *values)
    producer.handle_message(Ack("P", "hello", 99), NOW)

    assert producer.handle_message(Fetch("P", "ME", "hello", 100, 2), NOW) == [
        direct(100, b"record 100"),
        direct(101, b"record 101"),
    ]


def test_a_fetch_for_more_than_there_is_ends_with_what_there_is() -> None:
    """The original loops for ever once a chunk was recycled."""
    producer = made(*[b"x"] * 300)
    producer.handle_message(Ack("P", "hello", 255), NOW)

    answer = producer.handle_message(Fetch("P", "ME", "hello", 256, 100_000), NOW)

    assert answer == [direct(index, b"x") for index in range(256, 300)]


@pytest.mark.parametrize(("first", "count"), [(2, 5), (2**64 - 1, 2**32 - 1), (0, 0)])
def test_a_fetch_for_what_is_not_there_has_no_answer(first: int, count: int) -> None:
    producer = made(b"a", b"b")

    assert producer.handle_message(Fetch("P", "ME", "hello", first, count), NOW) == []


def test_nobody_is_answered_before_the_subscription_to_the_answer_is_there() -> None:
    """It may come later than the question, over another connection; who is it then, an original or not?"""
    producer = made(b"a")

    assert producer.handle_message(Fetch("P", "YOU", "hello", 0, 1), NOW) == []


def test_a_fetch_for_another_partition_or_topic_is_not_for_us() -> None:
    producer = made(b"a")

    assert producer.handle_message(Fetch("Q", "ME", "hello", 0, 1), NOW) == []
    assert producer.handle_message(Fetch("P", "ME", "other", 0, 1), NOW) == []


def test_what_is_no_longer_kept_is_not_answered_to_an_original() -> None:
    producer = made(b"a", b"b")
    producer.handle_message(Ack("P", "hello", 0), NOW)

    assert producer.handle_message(Fetch("P", "ME", "hello", 0, 2), NOW) == []


def test_who_knows_batches_is_told_where_what_is_kept_begins() -> None:
    producer = made(b"a", b"b")
    producer.handle_message(Ack("P", "hello", 0), NOW)
    producer.handle_subscription(b"SME", True, NOW)

    assert producer.handle_message(Fetch("P", "ME", "hello", 0, 2), NOW) == [batch(1, b"b", to="ME")]


def test_an_answer_has_a_bound_and_at_least_one_batch() -> None:
    producer = made(*[b"x" * 200] * 5, limits=LogLimits(read_bytes_max=100))
    producer.handle_subscription(b"SME", True, NOW)

    assert producer.handle_message(Fetch("P", "ME", "hello", 1, 5), NOW) == [batch(1, b"x" * 200, to="ME")]


# -- a further life ---------------------------------------------------------------------------------------


def test_after_a_restart_it_goes_on_where_its_journal_ends_and_announces_that_at_once() -> None:
    journal = [encode_batch(4, [b"e", b"f"], WALL), encode_batch(6, [b"g"], WALL)]
    producer = made(journal=journal)
    producer.start(NOW)

    assert (producer.next_offset, producer.stored) == (7, 4)
    assert producer.handle_timeout(NOW) == [head(6)]
    assert producer.handle_message(Fetch("P", "ME", "hello", 5, 2), NOW) == [direct(5, b"f"), direct(6, b"g")]


def test_after_a_restart_with_everything_stored_the_next_offset_is_neither_skipped_nor_repeated() -> None:
    producer = LogProducer("hello", "P", journal=[], next_offset=7, clock=CLOCK)
    producer.start(NOW)

    assert producer.handle_timeout(NOW) == [head(6)]
    assert journaled(producer, b"h") == [batch(7, b"h")]


def test_who_asks_for_what_was_damaged_in_the_journal_is_told_where_it_goes_on() -> None:
    """However few are asked for at once, so that nobody waits for ever for what is nowhere."""
    journal = [encode_batch(0, [b"a"], WALL), encode_batch(100, [b"b"], WALL)]
    producer = made(journal=journal)
    producer.start(NOW)
    producer.handle_subscription(b"SME", True, NOW)

    assert producer.handle_message(Fetch("P", "ME", "hello", 1, 5), NOW) == [batch(100, b"b", to="ME")]


# -- who listens ------------------------------------------------------------------------------------------


def test_subscribers_are_counted_not_remembered() -> None:
    subscriptions = PeerSubscriptions()
    for on in (True, True, False):
        subscriptions.change(b"Sx", on)
    assert subscriptions.has(b"Sx")
    subscriptions.change(b"Sx", False)
    subscriptions.change(b"Sx", False)
    assert not subscriptions.has(b"Sx")
    subscriptions.change(b"Sx", True)
    assert subscriptions.has(b"Sx")


@pytest.mark.parametrize(
    ("prefixes", "wanted"),
    [
        ([b"Mhello"], True),
        ([b"Mhel"], True),
        ([b"M"], True),
        ([b"Mhello", b"Rhello"], False),
        ([b"M", b"R"], False),
        ([b"Mhello", b"Mhello", b"Rhello"], True),
        ([b"M", b"R", b"Mhello"], True),
        ([b"Mhello2"], False),
        ([b"Hhello"], False),
        ([b"Rhello"], False),
    ],
    ids=str,
)
def test_an_original_listens_where_records_are_wanted_more_often_than_batches(
    prefixes: list[bytes], wanted: bool
) -> None:
    subscriptions = PeerSubscriptions()
    for prefix in prefixes:
        subscriptions.change(prefix, True)

    assert subscriptions.originals(b"hello") is wanted


# -- batches that are encoded already ---------------------------------------------------------------------


def test_a_batch_gets_the_offsets_that_come_next() -> None:
    producer = made(b"a")
    raw = encode_batch(700, [b"b", None], WALL - 5, keys=[b"k", None])
    assert producer.append_batch(raw, NOW) == [
        Publish(BatchMessage("hello", "P", "hello", encode_batch(1, [b"b", None], WALL - 5, keys=[b"k", None])))
    ]
    assert publish(producer, b"c") == [batch(3, b"c")]


def test_a_batch_is_journaled_first_and_sent_to_originals_as_single_records() -> None:
    producer = made(journal=[])
    producer.handle_subscription(b"Mhello", True, NOW)
    body = encode_batch(0, [b"a", b"b"], WALL)
    assert producer.append_batch(body, NOW) == [Persist(JournalBatch("P", "hello", body))]
    assert producer.handle_done(BATCH, None, NOW) == [
        batch(0, b"a", b"b"),
        Publish(RecordMessage("hello", "P", "hello", 0, b"a")),
        Publish(RecordMessage("hello", "P", "hello", 1, b"b")),
    ]


def test_what_is_no_batch_is_refused() -> None:
    producer = made()
    with pytest.raises(ProtocolError):
        producer.append_batch(encode_batch(0, [b"a"], WALL)[:-1] + b"x", NOW)
    assert producer.next_offset == 0
