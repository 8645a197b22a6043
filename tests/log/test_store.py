"""A store as a function: what it hears, and the list of what it then wants done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.log.memory_storage import MemoryLogStorage
from tests.log.store_rig import WALL, StoreRig, asks, published, writes

from chappe.core import Ask, Effect, Persist, Publish, Reply, Report, Subscribe
from chappe.defaults import DISK_RETRY_S, RECORD_BYTES_MAX, RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.backfill import FOUND_S
from chappe.log.batch import Batch, encode_batch
from chappe.log.events import DamageFound, RecordsLost, WritesRefused, WritesResumed
from chappe.log.messages import (
    Ack,
    BatchMessage,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
)
from chappe.log.queries import HeadsAnswer, HeadsRequest, ReadAnswer, ReadRequest, SeekAnswer, SeekRequest
from chappe.log.storage import Hole, RunRetention


def ack(sequence: int) -> Publish:
    return Publish(Ack("P", "hello", sequence))


def fetch(sequence: int, count: int) -> Publish:
    return Publish(Fetch("P", "S", "hello", sequence, count))


def fetches(actions: Sequence[Effect]) -> list[Effect]:
    return [each for each in actions if isinstance(each, Publish) and isinstance(each.message, Fetch)]


# -- writing and acknowledging ----------------------------------------------------------------------------


def test_it_subscribes_to_everything_and_to_what_is_meant_for_it() -> None:
    rig = StoreRig()

    assert {each.prefix for each in rig.core.start(rig.now) if isinstance(each, Subscribe)} == {
        *(b"M", b"R", b"H", b"F", b"G", b"I", b"T"),
        *(b"WS", b"DS", b"ES", b"SS", b"CS"),
    }


def test_it_acknowledges_only_what_is_on_disk() -> None:
    rig = StoreRig()
    actions = rig.batch(0, b"a", b"b")
    body = encode_batch(0, [b"a", b"b"], WALL)

    (write,) = writes(actions)
    assert len(actions) == 1
    assert [(each.base, each.count, each.body) for each in write.appends] == [(0, 2, body)]
    assert rig.finish(write) == [ack(1)]
    assert rig.contents() == [(0, b"a"), (1, b"b")]


def test_whatever_arrives_during_a_write_goes_into_the_next_one() -> None:
    rig = StoreRig()
    first = rig.batch(0, b"a")
    for base in range(1, 6):
        assert rig.batch(base, b"x") == []
    assert rig.batch(0, b"y", partition="Q") == []

    after = rig.written(first)

    assert after[0] == ack(0)
    (write,) = writes(after)
    assert [(each.partition, each.base, each.count) for each in write.appends] == [("P", 1, 5), ("Q", 0, 1)]
    assert rig.finish(write) == [ack(5), Publish(Ack("Q", "hello", 0))]


def test_a_producer_that_can_tell_stores_apart_hears_which_one_it_was() -> None:
    rig = StoreRig()
    rig.subscribe(b"AP")

    assert rig.written(rig.batch(0, b"a")) == [Publish(Stored("P", "id-S", "hello", 0))]


def test_single_records_of_an_original_become_one_batch() -> None:
    rig = StoreRig()
    first = rig.record(0, b"r0")
    for sequence in range(1, 100):
        assert rig.record(sequence, b"r%d" % sequence) == []

    after = rig.written(first)

    (write,) = writes(after)
    assert [(each.base, each.count) for each in write.appends] == [(1, 99)]
    assert rig.finish(write) == [ack(99)]
    assert rig.contents() == [(n, b"r%d" % n) for n in range(100)]


def test_records_and_batches_of_one_partition_keep_their_order() -> None:
    rig = StoreRig()
    actions = rig.record(0, b"a")
    rig.record(1, b"b")
    rig.batch(2, b"c", b"d")
    rig.record(4, b"e")
    rig.settle(actions)

    assert [value for _, value in rig.contents()] == [b"a", b"b", b"c", b"d", b"e"]


def test_a_batch_that_overlaps_what_is_there_adds_only_what_is_new() -> None:
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a", b"b"))

    rig.settle(rig.batch(1, b"b", b"c"))

    assert rig.contents() == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_lost_acknowledgement_is_repeated_on_head_and_on_records_sent_again() -> None:
    """An original store is silent then, and its producer never ends."""
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))

    assert rig.head(0) == [ack(0)]
    assert rig.batch(0, b"a") == [ack(0)]
    assert rig.record(0, b"a") == [ack(0)]
    assert rig.core.duplicates == 2


def test_what_is_staged_but_not_written_is_not_acknowledged_again() -> None:
    rig = StoreRig()
    rig.batch(0, b"a")

    assert rig.head(0) == []
    assert rig.batch(0, b"a") == []


def test_a_batch_that_is_none_is_a_protocol_error_and_leaves_no_trace() -> None:
    rig = StoreRig()
    with pytest.raises(ProtocolError):
        rig.core.handle_message(BatchMessage("hello", "P", "hello", b"garbage"), rig.now)

    assert rig.settle(rig.batch(0, b"a")) == [ack(0)]


def test_messages_without_a_topic_or_partition_are_ignored() -> None:
    rig = StoreRig()
    body = encode_batch(0, [b"x"], WALL)
    for topic, partition in (("", "P"), ("hello", "")):
        for message in (
            BatchMessage(topic, partition, topic, body),
            RecordMessage(topic, partition, topic, 0, b"x"),
            Head(topic, partition, topic, 5),
        ):
            assert rig.core.handle_message(message, rig.now) == []


@pytest.mark.parametrize("sequence", [2**63 - 1, 2**64 - 1])
def test_offsets_that_cannot_be_are_refused(sequence: int) -> None:
    rig = StoreRig()

    with pytest.raises(ProtocolError):
        rig.record(sequence, b"x")
    assert rig.head(sequence) == []
    assert rig.settle(rig.batch(0, b"a")) == [ack(0)]


def test_a_record_too_large_for_a_batch_is_refused_and_does_not_stop_the_others() -> None:
    rig = StoreRig()
    with pytest.raises(ProtocolError):
        rig.record(0, bytes(RECORD_BYTES_MAX + 1))

    assert rig.settle(rig.batch(0, b"a", partition="Q")) == [Publish(Ack("Q", "hello", 0))]
    assert rig.settle(rig.record(0, bytes(RECORD_BYTES_MAX))) == [ack(0)]


def evil_headers(base: int) -> bytes:
    """A batch that parses, whose headers are malformed."""
    return encode_batch(base, [b"x", b"y"], WALL, headers=[b"\xff\xff", b"\1\0"])


def test_headers_that_are_none_are_stored_as_they_are_and_stop_nobody() -> None:
    rig = StoreRig()
    first = rig.batch(0, b"a")
    for base in (1, 3):
        rig.core.handle_message(BatchMessage("hello", "P", "hello", evil_headers(base)), rig.now)
    rig.batch(0, b"b", partition="Q")

    assert rig.settle(first) == [ack(0), ack(4), Publish(Ack("Q", "hello", 0))]


def test_it_pauses_when_the_disk_cannot_follow_and_goes_on_after() -> None:
    rig = StoreRig()
    first = rig.batch(0, b"x")
    big = bytes(1 << 20)
    base = 1
    while not rig.core.paused:
        assert base <= LOG_LIMITS.staged_bytes_max >> 20
        rig.batch(base, big)
        base += 1

    rig.settle(first)

    assert not rig.core.paused
    assert rig.storage.partition("hello", "P") is not None
    assert rig.core.written_records == base


# -- what was missed --------------------------------------------------------------------------------------


def test_a_gap_is_fetched_and_what_came_early_is_kept() -> None:
    """An original store throws it away and fetches it again."""
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))

    assert rig.batch(3, b"d") == [fetch(1, 2)]
    assert rig.batch(4, b"e") == []
    actions = rig.batch(1, b"b", b"c", direct=True)

    assert rig.settle(actions) == [ack(4)]
    assert [value for _, value in rig.contents()] == [b"a", b"b", b"c", b"d", b"e"]


def test_head_beyond_what_is_there_is_fetched_but_never_more_than_exists() -> None:
    """An original producer asked for more than it has goes into an endless loop."""
    rig = StoreRig()

    assert rig.head(41) == [fetch(0, 42)]


def test_a_fetch_without_an_answer_is_repeated() -> None:
    """An original asks once; if nobody listens yet the records never come."""
    rig = StoreRig()
    rig.head(2)
    again = [each for _ in range(4) for each in [*rig.wait(0.25), *rig.head(2)]]

    assert again.count(fetch(0, 3)) >= 1


def test_what_arrives_is_not_asked_for_again() -> None:
    """Each FETCH is answered with all that it asks for, by the producer and by every original store."""
    rig = StoreRig()
    actions = rig.head(999)
    for sequence in range(500):
        actions += rig.settle(rig.record(sequence, b"", direct=True))
        actions += rig.settle(rig.wait(0.01))
    assert fetches(actions) == [fetch(0, 1000)]

    assert fetches(rig.wait(1.0))[:1] == [fetch(500, 500)]


def test_an_original_store_is_asked_what_it_has() -> None:
    """Its reader is known by what it subscribes to."""
    rig = StoreRig()
    assert rig.subscribe(b"G") == [Publish(GetHeads("", "S"))]
    assert fetches(rig.head(4)) == [fetch(0, 5)]


def test_catching_up_goes_on_past_the_first_hundred_thousand() -> None:
    """An original stops for ever at 100,001."""
    rig = StoreRig()
    size = 50_000
    asked: list[object] = published(rig.head(249_999))
    for base in range(0, 250_000, size):
        rig.settle(rig.batch(base, *[b""] * size, direct=True))
        rig.now += RETRY_S
        asked += [each for each in published(rig.head(249_999)) if isinstance(each, Fetch)]

    info = rig.storage.partition("hello", "P")
    assert info is not None
    assert info.next == 250_000
    assert {each.count for each in asked if isinstance(each, Fetch)} <= {100_000, 50_000}
    assert len(asked) >= 3


def test_a_gap_that_nobody_can_fill_is_reported_and_skipped() -> None:
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))
    actions = [*rig.batch(5, b"f"), *rig.wait(LOG_LIMITS.give_up_s + 10)]

    lost = [each.event for each in actions if isinstance(each, Report)]
    assert [(e.first, e.last) for e in lost if isinstance(e, RecordsLost)] == [(1, 4)]
    rig.settle(actions)
    assert [offset for offset, _ in rig.contents()][-1] == 5


def test_a_partition_met_in_the_middle_is_stored_from_there_without_a_word_of_loss() -> None:
    rig = StoreRig()
    actions = [*rig.batch(5, b"f"), *rig.wait(LOG_LIMITS.give_up_s + 10)]

    assert not [each for each in actions if isinstance(each, Report)]
    rig.settle(actions)
    assert rig.contents() == [(5, b"f")]


def test_what_is_held_back_has_a_bound() -> None:
    rig = StoreRig(limits=LogLimits(held_bytes_max=10_000))
    for base in range(1, 100):
        rig.batch(base, bytes(1000))

    assert rig.core.load().held_bytes <= 10_000
    rig.settle(rig.batch(0, b"a", direct=True))
    assert rig.core.load().held_bytes == 0
    kept = len(rig.contents())
    rig.now += RETRY_S
    assert fetch(kept, 100 - kept) in [*rig.head(99), *rig.wait(2.0)]


# -- the disk refuses -------------------------------------------------------------------------------------


def test_a_refused_write_is_reported_once_and_nothing_of_it_acknowledged() -> None:
    rig = StoreRig(storage=MemoryLogStorage("id-S", capacity_bytes=0))

    (report,) = rig.written(rig.batch(0, b"a"))
    assert isinstance(report, Report)
    assert isinstance(report.event, WritesRefused)
    assert rig.core.refusing
    assert rig.batch(1, b"b") == []
    assert rig.head(1) == []


def test_after_a_full_disk_what_was_forgotten_is_fetched_and_service_resumes() -> None:
    rig = StoreRig(storage=MemoryLogStorage("id-S", capacity_bytes=0))
    rig.written(rig.batch(0, b"a"))
    rig.batch(1, b"b")
    rig.storage.capacity_bytes = None

    actions = [*rig.wait(DISK_RETRY_S), *rig.wait(1.5)]
    assert fetch(0, 2) in actions
    assert rig.settle(rig.batch(0, b"a", b"b", direct=True)) == [Report(WritesResumed()), ack(1)]
    assert not rig.core.refusing


def test_a_disk_that_stays_full_is_tried_again_but_not_reported_again() -> None:
    rig = StoreRig(storage=MemoryLogStorage("id-S", capacity_bytes=0))
    rig.written(rig.batch(0, b"a"))
    rig.wait(DISK_RETRY_S)

    assert rig.written(rig.batch(0, b"a")) == []
    assert rig.core.refusing


def test_what_arrived_during_a_write_that_failed_is_forgotten_too() -> None:
    """It would leave a gap behind what is stored."""
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))
    rig.storage.capacity_bytes = 0
    actions = rig.batch(1, b"b")
    rig.batch(2, b"c")
    rig.written(actions)
    rig.storage.capacity_bytes = None
    actions = rig.wait(DISK_RETRY_S + 0.1)
    actions += rig.batch(3, b"d")
    actions += rig.wait(RETRY_S)

    asked = [each for each in published(actions) if isinstance(each, Fetch)]
    assert asked[0] in (Fetch("P", "S", "hello", 1, 2), Fetch("P", "S", "hello", 1, 1))
    assert rig.settle(rig.batch(1, b"b", b"c")) == [Report(WritesResumed()), ack(3)]


# -- originals that ask -----------------------------------------------------------------------------------


def test_a_fetch_is_answered_exactly() -> None:
    """An original store sends one record more than was asked for."""
    rig = StoreRig()
    rig.keep(0, b"a", b"b", b"c")
    answer = rig.core.handle_message(Fetch("P", "C", "hello", 0, 2), rig.now)

    assert answer == [
        Publish(RecordMessage("C", "P", "hello", 0, b"a", direct=True)),
        Publish(RecordMessage("C", "P", "hello", 1, b"b", direct=True)),
        Publish(Head("C", "P", "hello", 2, direct=True)),
    ]


def test_a_fetch_that_reaches_the_end_has_no_head_behind_it() -> None:
    rig = StoreRig()
    rig.keep(0, b"a", b"b", b"c")

    assert rig.core.handle_message(Fetch("P", "C", "hello", 1, 100_000), rig.now) == [
        Publish(RecordMessage("C", "P", "hello", 1, b"b", direct=True)),
        Publish(RecordMessage("C", "P", "hello", 2, b"c", direct=True)),
    ]


@pytest.mark.parametrize("message", [Fetch("P", "C", "hello", 3, 1), Fetch("Q", "C", "hello", 0, 1)], ids=str)
def test_a_fetch_for_what_is_not_there_has_no_answer(message: Fetch) -> None:
    rig = StoreRig()
    rig.keep(0, b"a", b"b", b"c")

    assert rig.core.handle_message(message, rig.now) == []


def test_nobody_is_answered_before_the_subscription_to_the_answer_is_there() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")

    assert rig.core.handle_message(Fetch("P", "D", "hello", 0, 1), rig.now) == []


def test_our_own_fetch_is_not_answered() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")

    assert rig.core.handle_message(Fetch("P", "S", "hello", 0, 1), rig.now) == []


def test_members_that_know_queries_are_not_answered_by_publication() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")
    rig.subscribe(b"SC")

    assert rig.core.handle_message(Fetch("P", "C", "hello", 0, 1), rig.now) == []
    assert rig.core.handle_message(GetHeads("hello", "C"), rig.now) == []


def test_heads_are_told_of_all_topics_that_start_with_the_wanted_one() -> None:
    rig = StoreRig()
    rig.settle(rig.record(0, b"a"))
    rig.settle(rig.core.handle_message(RecordMessage("help", "Q", "help", 0, b"a"), rig.now))
    hello, help_ = Head("C", "P", "hello", 0, direct=True), Head("C", "Q", "help", 0, direct=True)

    def told(prefix: str) -> list[object]:
        return published(rig.core.handle_message(GetHeads(prefix, "C"), rig.now))

    assert told("hello") == [hello]
    assert told("hel") == [hello, help_]
    assert told("") == [hello, help_]
    assert told("x") == []


def test_a_hello_is_answered_with_the_heads_of_its_topics() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")

    hello = ConsumerHello("S", "C", ("nothing", "hello"))
    assert rig.core.handle_message(hello, rig.now) == [Publish(Head("C", "P", "hello", 0, direct=True))]
    assert rig.core.handle_message(ConsumerHello("S", "C", ()), rig.now) == []
    assert rig.core.handle_message(ConsumerHello("OTHER", "C", ("hello",)), rig.now) == []


def test_a_consumer_that_begins_to_listen_is_told_that_a_store_is_here() -> None:
    rig = StoreRig()

    assert rig.subscribe(b"LC") == [Publish(StoreHello("C", "S"))]
    assert rig.core.handle_subscription(b"LC", False, rig.now) == []
    assert rig.subscribe(b"L") == []


@pytest.mark.parametrize("prefix", [b"L" + b"x" * 300, b"L\0", b"La\0b"])
def test_a_subscription_to_what_cannot_be_an_address_does_no_harm(prefix: bytes) -> None:
    assert StoreRig().subscribe(prefix) == []


def test_who_listens_for_stores_soon_hears_where_to_ask_and_newcomers_share_it() -> None:
    rig = StoreRig()
    rig.subscribe(b"I", b"I", b"I")

    infos = [each for each in published(rig.wait(0.1)) if isinstance(each, StoreInfo)]
    assert infos == [StoreInfo("", "S", "id-S", "tcp://S:1")]


# -- queries ----------------------------------------------------------------------------------------------


def ask(rig: StoreRig, request: ReadRequest | HeadsRequest | SeekRequest) -> Reply:
    reply, *_ = rig.core.handle_request(b"client", b"12345678", request, b"", rig.now)
    assert isinstance(reply, Reply)
    assert (reply.to, reply.message.request_id) == (b"client", b"12345678")
    return reply


def test_a_read_is_answered_with_the_batch_that_contains_the_offset() -> None:
    rig = StoreRig()
    rig.keep(0, b"a", b"b")
    rig.keep(2, b"c")

    reply = ask(rig, ReadRequest(b"hello", b"P", 1))

    assert reply.message.answer == ReadAnswer(b"hello", b"P", 0, 3, known=True)
    assert [Batch.parse(raw).base for raw in reply.message.batches] == [0, 2]


def test_who_needs_offsets_and_times_alone_is_sent_no_more() -> None:
    rig = StoreRig()
    rig.keep(0, bytes(1000), bytes(1000))
    rig.keep(2, bytes(1000))

    reply = ask(rig, ReadRequest(b"hello", b"P", 0, 5000, bare=True))

    assert [list(Batch.parse(raw).values()) for raw in reply.message.batches] == [[b"", b""], [b""]]
    assert sum(map(len, reply.message.batches)) < 200


@pytest.mark.parametrize("offset", [3, 2**63 - 1, -1])
def test_a_read_out_of_range_is_answered_with_the_range(offset: int) -> None:
    rig = StoreRig()
    rig.keep(0, b"a", b"b", b"c")

    reply = ask(rig, ReadRequest(b"hello", b"P", offset))

    assert (reply.message.answer, reply.message.batches) == (ReadAnswer(b"hello", b"P", 0, 3, known=True), ())


def test_a_read_of_an_unknown_partition_says_so() -> None:
    assert ask(StoreRig(), ReadRequest(b"hello", b"P", 0)).message.answer == ReadAnswer(
        b"hello", b"P", 0, 0, known=False
    )


def test_a_read_has_the_bound_that_was_asked_for_but_at_least_one_batch() -> None:
    rig = StoreRig()
    for base in range(5):
        rig.keep(base, bytes(1000))

    assert len(ask(rig, ReadRequest(b"hello", b"P", 0, 1)).message.batches) == 1
    assert len(ask(rig, ReadRequest(b"hello", b"P", 0, -5)).message.batches) == 1
    assert len(ask(rig, ReadRequest(b"hello", b"P", 0, 2**62)).message.batches) == 5


def test_heads_are_told_page_by_page_and_then_only_news() -> None:
    rig = StoreRig()
    for name in ("P", "Q", "R"):
        rig.keep(0, b"a", partition=name)

    first = ask(rig, HeadsRequest(b"", 0, 2)).message.answer
    assert isinstance(first, HeadsAnswer)
    assert ([i.partition for i in first.infos()], first.more) == (["P", "Q"], True)
    second = ask(rig, HeadsRequest(b"", first.version, 2)).message.answer
    assert isinstance(second, HeadsAnswer)
    assert ([i.partition for i in second.infos()], second.more) == (["R"], False)
    rig.keep(1, b"b", partition="Q")
    third = ask(rig, HeadsRequest(b"", second.version, 2)).message.answer
    assert isinstance(third, HeadsAnswer)
    assert [(i.partition, i.next) for i in third.infos()] == [("Q", 2)]


def test_a_time_is_answered_with_an_offset() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")

    assert ask(rig, SeekRequest(b"hello", b"P", WALL)).message.answer == SeekAnswer(b"hello", b"P", 0)
    assert ask(rig, SeekRequest(b"hello", b"P", WALL + 1)).message.answer == SeekAnswer(b"hello", b"P", 1)
    assert ask(rig, SeekRequest(b"hello", b"Q", WALL)).message.answer == SeekAnswer(b"hello", b"Q", -1)


def test_damage_met_while_reading_is_reported_once() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")
    rig.keep(1, b"b")
    rig.storage.damage("hello", "P", 1)
    found = Report(DamageFound("hello", "P", 1, 1, "damaged"))

    reply, *reports = rig.core.handle_request(b"c", b"12345678", ReadRequest(b"hello", b"P", 1), b"", rig.now)
    assert isinstance(reply, Reply)
    assert reply.message.answer == ReadAnswer(b"hello", b"P", 0, 2, known=True, hole_last=1)
    assert reports == [found]
    assert rig.core.handle_request(b"c", b"12345678", ReadRequest(b"hello", b"P", 1), b"", rig.now)[1:] == []


def test_damage_found_at_the_start_is_reported() -> None:
    rig = StoreRig()
    rig.keep(0, b"a")
    rig.keep(1, b"b")
    rig.storage.damage("hello", "P", 0)

    reports = [each for each in StoreRig(storage=rig.storage).core.start(0.0) if isinstance(each, Report)]
    assert reports == []  # it was reported by the rig's own start
    again = StoreRig(storage=rig.storage)
    assert again.core._backfill.reported == {("hello", "P", 0, 0)}


def test_what_every_store_has_forgotten_is_acknowledged_by_a_new_one_too() -> None:
    """Who waits for two stores would wait for ever, as nothing comes that it could keep."""
    rig, other = StoreRig(), StoreRig("OTHER")
    question = asks(rig.meet(other))[0]
    rig.head(5)
    there = (b"hello", b"P", 6, 6, 0, 0, 0, 0)
    rig.answer(question, HeadsAnswer([there], 9, False))

    rig.wait(FOUND_S + 1.0)

    assert published(rig.head(5)) == [Ack("P", "hello", 5)]
    assert rig.contents() == []


# -- time -------------------------------------------------------------------------------------------------


def test_retention_runs_now_and_then_but_never_twice_at_once() -> None:
    rig = StoreRig()

    assert rig.wait(LOG_LIMITS.maintain_s).count(Persist(RunRetention())) == 1
    assert rig.wait(5 * LOG_LIMITS.maintain_s).count(Persist(RunRetention())) == 0
    rig.core.handle_done(RunRetention(), None, rig.now)
    assert rig.wait(LOG_LIMITS.maintain_s).count(Persist(RunRetention())) == 1


def test_an_idle_store_asks_for_no_time() -> None:
    """Its next timeout is never due again and again without anything being done."""
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))
    rig.head(0)

    assert not rig.core._writer.streams
    assert rig.wait(30.0).count(Persist(RunRetention())) == 1


# -- bounds ---------------------------------------------------------------------------------------------------


def test_partitions_that_are_only_spoken_of_have_a_bound_and_are_forgotten() -> None:
    rig = StoreRig(limits=LogLimits(unknown_partitions_max=50))
    for number in range(500):
        rig.head(7, partition=f"N{number}")
    rig.batch(3, b"x", partition="M")  # a gap, and nothing but it
    assert len(rig.core._writer.streams) == 50

    rig.written(rig.batch(0, b"a", partition="REAL"))  # what sends is kept all the same
    assert rig.storage.partition("hello", "REAL") is not None
    rig.head(1, partition="REAL")
    assert ("hello", "REAL") in rig.core._writer.streams

    rig.wait(120.0)
    assert rig.core._writer.streams.keys() <= {("hello", "REAL")}
    rig.head(7, partition="N7")
    assert ("hello", "N7") in rig.core._writer.streams


def test_stores_that_never_answered_give_way_to_a_further_one() -> None:
    rig = StoreRig(limits=LogLimits(stores_max=5))
    for number in range(20):
        rig.meet(StoreRig(f"FAKE{number}"))
    assert len(rig.core._sources.stores) == 5

    real = StoreRig("REAL")
    asks = [each for each in rig.meet(real) if isinstance(each, Ask) and each.to == real.endpoint]
    rig.answer(asks[0], HeadsAnswer([], 9, False))
    for number in range(20, 40):
        rig.meet(StoreRig(f"FAKE{number}"))
    assert "REAL" in rig.core._sources.stores
    assert len(rig.core._sources.stores) == 5


def test_holes_are_reported_a_few_at_a_time_and_in_the_end_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StoreRig(limits=LogLimits(damage_reports_max=3))
    holes = [Hole("hello", f"P{number}", 0, 1, "bad") for number in range(8)]
    monkeypatch.setattr(rig.storage, "holes", lambda: holes)
    found = [each for _ in range(4) for each in rig.wait(1.1) if isinstance(each, Report)]
    assert sorted(each.event.partition for each in found if isinstance(each.event, DamageFound)) == sorted(
        each.partition for each in holes
    )


def test_what_a_peer_chose_is_shown_without_control_characters() -> None:
    event = DamageFound("to\x1b[2Jpic", "\x1b]0;P\x07\udcff", 0, 1, "bad")
    assert str(event).isprintable()
    assert "\\x1b]0;P\\x07\\udcff" in str(event)
