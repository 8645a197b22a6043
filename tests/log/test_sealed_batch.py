"""Sealed batches where nobody opens them: producers, stores and forwarders pass them on as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixed_clock import FixedClock
from tests.log.effects import jobs
from tests.log.store_rig import WALL, StoreRig

from chappe.core import Persist, Publish, Reply
from chappe.data.topic import encode_topic
from chappe.errors import ProtocolError, RecordTooLarge, Sealed, UsageError
from chappe.log.batch import SEALED, Batch, encode_batch, encode_record, encode_sealed, rebase
from chappe.log.gap import PartitionGap
from chappe.log.messages import BatchMessage, Fetch, RecordMessage
from chappe.log.producer import LogProducer
from chappe.log.queries import ErrorAnswer, LastRequest, ReadRequest
from chappe.log.storage import WriteRecords
from chappe.log.writing import Stream
from chappe.storage.journal import Journal

CLOCK = FixedClock(us=WALL)

BODY = bytes(range(8)) * 3


def sealed(base: int, count: int = 10, body: bytes = BODY) -> bytes:
    return encode_sealed(base, count, 5, 9, body)


def body_of(batch: Batch | bytes) -> bytes | None:
    found = (batch if isinstance(batch, Batch) else Batch.parse(batch)).sealed
    return None if found is None else bytes(found)


def seal(raw: bytes) -> bytes:
    """What a producer is given to seal with, without its cryptography."""
    batch = Batch.parse(raw)
    return encode_sealed(batch.base, batch.count, batch.timestamp_min, batch.timestamp_max, BODY)


def test_offsets_and_times_are_known_and_nothing_else() -> None:
    batch = Batch.parse(sealed(7))
    assert (batch.base, batch.count, batch.next, len(batch)) == (7, 10, 17, 10)
    assert (batch.timestamp_min, batch.timestamp_max) == (5, 9)
    assert body_of(batch) == BODY
    for look in (batch.values, batch.keys, batch.headers, lambda: list(batch.records("t", "p"))):
        with pytest.raises(Sealed, match="sealed for a group"):
            look()


def test_a_part_of_it_is_all_of_it_with_fewer_records() -> None:
    part = Batch.parse(Batch.parse(sealed(7)).slice(10, 12))
    assert (part.base, part.count, body_of(part)) == (10, 2, BODY)
    assert (part.timestamp_min, part.timestamp_max) == (5, 9)


def test_it_can_be_nowhere_else() -> None:
    assert rebase(sealed(7), 7) == sealed(7)
    with pytest.raises(ProtocolError, match="nowhere else"):
        rebase(sealed(7), 8)


@given(st.integers(0, len(sealed(7)) - 1), st.integers(1, 255))
def test_damage_is_noticed(at: int, change: int) -> None:
    raw = bytearray(sealed(7))
    raw[at] ^= change
    with pytest.raises(ProtocolError):
        Batch.parse(bytes(raw))


def test_the_flag_stands_alone() -> None:
    raw = bytearray(sealed(7))
    raw[3] = SEALED | 1
    with pytest.raises(ProtocolError, match="newer version"):
        Batch.parse(bytes(raw), check=False)


# -- producers ------------------------------------------------------------------------------------------------


def test_a_producer_publishes_what_was_sealed_and_no_single_records_for_originals() -> None:
    producer = LogProducer("hello", "P", seal=seal, clock=CLOCK)
    producer.handle_subscription(b"Rhello", True, 1.0)  # an original listens
    producer.append(b"secret", b"key", (("h", b"v"),))
    producer.append(b"secret")
    published = [each.message for each in producer.flush(1.0) if isinstance(each, Publish)]
    assert published == [BatchMessage("hello", "P", "hello", encode_sealed(0, 2, WALL, WALL, BODY))]
    published = [each.message for each in producer.append_batch(encode_batch(0, [b"more"], 3), 1.0)
                 if isinstance(each, Publish)]  # fmt: skip
    assert published == [BatchMessage("hello", "P", "hello", encode_sealed(2, 1, 3, 3, BODY))]


def test_the_journal_gets_what_was_sealed() -> None:
    producer = LogProducer("hello", "P", seal=seal, journal=[], clock=CLOCK)
    producer.append(b"secret")
    (persist,) = producer.flush(1.0)
    assert isinstance(persist, Persist)
    assert persist.job.body == encode_sealed(0, 1, WALL, WALL, BODY)


def test_what_is_sealed_already_or_too_large_is_not_sent() -> None:
    producer = LogProducer("hello", "P", seal=lambda raw: encode_sealed(0, 1, 0, 0, bytes(9 << 20)), clock=CLOCK)
    with pytest.raises(UsageError, match="sealed already"):
        producer.append_batch(sealed(0), 1.0)
    with pytest.raises(RecordTooLarge, match="the sealed batch has"):
        producer.append_batch(encode_batch(0, [b"x"], 3), 1.0)
    assert producer.next_offset == 0


def test_records_that_were_sealed_and_pending_are_batches_of_the_next_life(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "hello", "P")
    journal.append(seal(encode_batch(0, [b"a", b"b"], 1)), 2)
    for offset in (2, 3):
        journal.pend(seal(encode_record(offset, b"secret", 1)))
    journal.close()
    for _ in range(2):
        journal = Journal(tmp_path, "hello", "P")
        assert [(each.base, each.next) for each in map(Batch.parse, journal.batches)] == [(0, 2), (2, 3), (3, 4)]
        assert (journal.pending, journal.next_offset) == ([], 4)
        journal.close()
    journal = Journal(tmp_path, "hello", "P")
    journal.append(seal(encode_batch(4, [b"c"], 1)), 5)
    journal.close()
    journal = Journal(tmp_path, "hello", "P")
    assert len(journal.batches) == 4
    journal.close()


# -- stores ---------------------------------------------------------------------------------------------------


def test_small_ones_are_never_merged() -> None:
    stream = Stream(PartitionGap(0))
    plain = [encode_batch(base, [b"x"], 1) for base in (0, 1, 12, 13)]
    for raw in (plain[0], plain[1], sealed(2, 5), sealed(7, 5), plain[2], plain[3]):
        stream.stage(Batch.parse(raw))
    taken = [(each.base, each.count, body_of(each.body)) for each in stream.take(("hello", "P"))]
    assert taken == [(0, 2, None), (2, 5, BODY), (7, 5, BODY), (12, 2, None)]


def test_one_that_begins_before_what_is_there_is_kept_whole() -> None:
    stream = Stream(PartitionGap(4))
    stream.stage(Batch.parse(sealed(0)))
    (append,) = stream.take(("hello", "P"))
    assert (append.base, append.count, body_of(append.body)) == (4, 6, BODY)


def stored(rig: StoreRig, raw: bytes) -> None:
    actions = rig.core.handle_message(BatchMessage("hello", "P", "hello", raw), rig.now)
    (write,) = jobs(actions, WriteRecords)
    rig.storage.publish(rig.storage.write(list(write.appends)))
    rig.core.handle_done(write, None, rig.now)


def test_a_store_keeps_and_tells_it_as_it_is() -> None:
    rig = StoreRig()
    stored(rig, sealed(0))
    (reply,) = rig.core.handle_request(b"c", b"r", ReadRequest(b"hello", b"P", 3, 1000), b"", rig.now)
    assert isinstance(reply, Reply)
    (raw,) = reply.message.batches
    assert body_of(raw) == BODY
    assert len(Batch.parse(raw)) == 10
    (reply,) = rig.core.handle_request(b"c", b"r", ReadRequest(b"hello", b"P", 3, 1000, bare=True), b"", rig.now)
    assert isinstance(reply, Reply)
    assert reply.message.batches == (raw,), "times are sealed, too"


def test_a_table_of_newest_records_is_refused_in_one_sentence() -> None:
    rig = StoreRig()
    stored(rig, sealed(0))
    (reply,) = rig.core.handle_request(b"c", b"r", LastRequest(encode_topic("hello")), b"", rig.now)
    assert isinstance(reply, Reply)
    assert reply.message.answer == ErrorAnswer("topic 'hello' is sealed: what its keys are is not known here")


def test_an_original_that_asks_gets_all_of_it_as_its_first_record() -> None:
    rig = StoreRig()
    stored(rig, sealed(0, 3))
    actions = rig.core.handle_message(Fetch("P", "C", "hello", 0, 3), rig.now) + rig.wait(1.0)
    told = [each.message for each in actions if isinstance(each, Publish)]
    records = [(each.sequence, each.content) for each in told if isinstance(each, RecordMessage)]
    assert records == [(0, BODY), (1, b""), (2, b"")]
