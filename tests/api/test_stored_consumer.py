"""``Consumer(stored=True)``: what came is on a disk, on real sockets."""

from __future__ import annotations

from pathlib import Path

from tests.api.members import PATIENCE_S, read, values, wait_until

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store


def test_nothing_comes_before_a_store_has_it(tower: str, tmp_path: Path) -> None:
    with (
        Producer("hello", tower=tower, min_acks=0) as producer,
        Consumer("hello", tower=tower) as live,
        Consumer("hello", tower=tower, stored=True) as stored,
    ):
        producer.send(b"0")
        assert values(read(live, 1)) == [b"0"]
        wait_until(lambda: stored.heads())  # it was told of it
        assert stored.poll(0) is None
        with Store(tmp_path / "s", tower=tower) as store:
            assert values(read(stored, 1)) == [b"0"]
            for number in range(1, 20):
                producer.send(b"%d" % number)
                (record,) = read(stored, 1)
                assert record.value == b"%d" % number
                assert store.status().written_records > record.offset
        assert values(read(live, 19)) == [b"%d" % number for number in range(1, 20)]


def test_it_goes_on_at_its_position_and_reads_what_its_producer_left(tower: str, store: Store, tmp_path: Path) -> None:
    with Producer("hello", tower=tower) as producer:
        producer.send_many([b"0", b"1"])
        producer.flush(PATIENCE_S)
    for wanted in (b"0", b"1"):
        with Consumer("hello", tower=tower, stored=True, identity="me", directory=tmp_path) as consumer:
            records = consumer.to_end(PATIENCE_S)
            assert next(records).value == wanted
            consumer.commit()
