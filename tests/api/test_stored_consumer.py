"""``Consumer(stored=True)``: what came is on disks, of as many stores as are asked for, on real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, read, values, wait_until

from chappe import Keys, Tower
from chappe.api import permissions
from chappe.api.log.consumer import Consumer, ResetLike
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.errors import TimedOut, UsageError


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


def test_with_keys_a_record_comes_once_two_stores_say_that_they_have_it(tmp_path: Path) -> None:
    home = tmp_path / "keys"
    permissions.init(home, "hub", "server")
    permissions.add(home, "hub2", "server")
    permissions.add(home, "sensor", "member")
    with Tower("127.0.0.1:0", security=Keys(home / "hub")) as tower:
        at, own = f"hub@{tower.address}", Keys(home / "sensor")
        with (
            Producer("hello", tower=at, security=own, min_acks=1) as producer,
            Consumer("hello", tower=at, security=own, stored=True, min_acks=2) as consumer,
            Store(tmp_path / "one", tower=at, security=Keys(home / "hub")),
        ):
            producer.send(b"0")
            producer.flush(PATIENCE_S)
            wait_until(lambda: consumer.heads().get(("hello", producer.partition)) == 1)
            with pytest.raises(TimedOut, match="2 stores"):
                list(consumer.to_end(0.5))
            with Store(tmp_path / "two", tower=at, security=Keys(home / "hub2")) as two:
                assert values(read(consumer, 1)) == [b"0"]
                for number in range(1, 10):
                    producer.send(b"%d" % number)
                    (record,) = read(consumer, 1)
                    assert record.value == b"%d" % number
                    assert two.status().written_records > record.offset
            for member in (two, consumer):
                assert not [each for each in member.events() if "may not" in str(each)], "nobody was refused anything"


@pytest.mark.parametrize(
    ("stored", "min_acks", "reset"), [(True, 0, "earliest"), (False, 2, "earliest"), (True, 2, "last-value")]
)
def test_a_number_of_stores_that_makes_no_sense_is_refused(stored: bool, min_acks: int, reset: ResetLike) -> None:
    with pytest.raises(UsageError):
        Consumer("hello", stored=stored, min_acks=min_acks, reset=reset)
