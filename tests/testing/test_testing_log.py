"""Programs of the log in a test's own world."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from chappe import Consumer, Producer, read_batches
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage
from chappe.testing import Log


def test_what_is_sent_is_stored_and_comes(chappe_log: Log) -> None:
    with Producer("readings") as producer:
        producer.send("20", key="a")
        producer.flush(10)
        assert producer.stored == 1
    with Consumer("readings") as consumer:
        assert [(each.key, each.value) for each in consumer.to_end()] == [(b"a", b"20")]


def test_a_record_does_not_wait_for_the_disk_of_a_store(chappe_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    write = SegmentStorage.write

    def slow(storage: SegmentStorage, appends: Sequence[AppendRecords]) -> object:
        time.sleep(60)
        return write(storage, appends)

    monkeypatch.setattr(SegmentStorage, "write", slow)
    with Consumer("readings") as consumer, Producer("readings") as producer:
        consumer.wait_ready()
        producer.wait_ready()
        for number in range(3):
            began = time.monotonic()
            producer.send(str(number))
            batch = consumer.poll(10)
            assert batch is not None
            assert [each.value for each in consumer.iterate(batch)] == [b"%d" % number]
            assert time.monotonic() - began < 0.1
        assert producer.stored == 0
        producer.flush(600)
        assert producer.stored == 3


def test_what_a_test_writes_it_can_read(chappe_log: Log) -> None:
    chappe_log.write("readings", "1", "2")
    assert [each.value for each in chappe_log.read("readings")] == [b"1", b"2"]


def test_a_test_waits_for_what_a_program_makes(chappe_log: Log) -> None:
    def later() -> None:
        time.sleep(5)
        chappe_log.write("readings", "1", "2")

    chappe_log.world.start(later)
    assert [each.value for each in chappe_log.wait_for("readings", 2)] == [b"1", b"2"]
    with pytest.raises(AssertionError, match="there are 2 records of topic 'readings' after 10 s, not 3"):
        chappe_log.wait_for("readings", 3)


@pytest.mark.parametrize("world", ["the first", "the next, where nothing is left of it"])
def test_stores_are_read_without_a_member(world: str, chappe_log: Log) -> None:
    pytest.importorskip("pyarrow")
    chappe_log.write("readings", "1", "2")
    assert sum(each.num_rows for each in read_batches("readings")) == 2


def test_who_comes_back_goes_on_where_it_was(chappe_log: Log) -> None:
    chappe_log.write("readings", "1", "2")
    for expected in ([b"1", b"2"], [b"3"]):
        with Consumer("readings", identity="alarms") as consumer:
            assert [each.value for each in consumer.to_end()] == expected
            consumer.commit()
        chappe_log.write("readings", "3")
