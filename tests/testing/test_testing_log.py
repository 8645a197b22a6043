"""Programs of the log in a test's own world."""

from __future__ import annotations

from chappe import Consumer, Producer
from chappe.testing import Log


def test_what_is_sent_is_stored_and_comes(chappe_log: Log) -> None:
    with Producer("readings") as producer:
        producer.send("20", key="a")
        producer.flush(10)
        assert producer.stored == 1
    with Consumer("readings") as consumer:
        assert [(each.key, each.value) for each in consumer.to_end()] == [(b"a", b"20")]


def test_what_a_test_writes_it_can_read(chappe_log: Log) -> None:
    chappe_log.write("readings", "1", "2")
    assert [each.value for each in chappe_log.read("readings")] == [b"1", b"2"]
