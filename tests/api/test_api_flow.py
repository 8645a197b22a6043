"""Producers, stores and consumers in one process, on real sockets and a real disk."""

from __future__ import annotations

import json
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.api.members import PATIENCE_S, patience, read, values, wait_until
from tests.ports import free_address
from tests.waiting import interrupt

from chappe.api.log.consumer import Consumer
from chappe.api.log.discovery import StoreAddress, discover
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.defaults import KIB
from chappe.errors import AddressInUse, Closed, OffsetOutOfRange, StorageFormat, StorageLocked, UsageError
from chappe.limits import LOG_LIMITS
from chappe.log.events import OutOfRange, PositionBeyondEnd, RecordsLost
from chappe.reading.topic import read_topic

TEN = [b"%d" % n for n in range(10)]


def published(tower: str, topic: str = "hello", records: list[bytes] = TEN) -> str:
    """Publish records, wait until they are stored; returns the partition."""
    with Producer(topic, tower=tower) as producer:
        for value in records:
            producer.send(value)
    return producer.partition


def published_at_once(tower: str) -> str:
    """The same in one batch."""
    with Producer("hello", tower=tower) as producer:
        producer.send_many(TEN)
    return producer.partition


def test_a_record_arrives_as_it_was_sent(tower: str, store: Store) -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC)
    with Consumer("hello", tower=tower, reset="earliest") as consumer, Producer("hello", tower=tower) as producer:
        headers: dict[str, str | bytes] = {"a": "1", "b": b"\0"}
        assert producer.send("tëxt", key="k", headers=headers, timestamp=moment) == 0
        assert producer.send(b"bytes") == 1
        assert producer.send(None, key=b"k") == 2
        assert producer.send_many([b"x", "y", None]) == range(3, 6)
        producer.flush(PATIENCE_S)
        records = read(consumer, 6)

    assert producer.stored == producer.next_offset == 6
    first = records[0]
    assert (first.topic, first.partition, first.offset) == ("hello", producer.partition, 0)
    assert (first.key, first.value) == (b"k", "tëxt".encode())
    assert first.headers == (("a", b"1"), ("b", b"\0"))
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=first.timestamp) == moment
    assert values(records[1:]) == [b"bytes", None, b"x", b"y", None]
    assert store.status().written_records == 6


def test_a_late_consumer_reads_everything_though_the_producer_is_gone(tower: str, store: Store) -> None:
    published(tower)
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert values(read(consumer, 10)) == TEN
        wait_until(consumer.at_end)
        assert set(consumer.lag().values()) == {0}


def test_what_is_stored_survives_the_store(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path / "s", tower=tower) as store:
        published(tower)
        name = store.store_id
    with Store(tmp_path / "s", tower=tower) as store, Consumer("hello", tower=tower, reset="earliest") as consumer:
        assert store.store_id == name
        assert values(read(consumer, 10)) == TEN


def test_two_stores_acknowledge_and_either_alone_has_everything(tower: str, tmp_path: Path) -> None:
    one, two = (Store(tmp_path / name, tower=tower) for name in "ab")
    with Producer("hello", tower=tower, min_acks=2) as producer:
        producer.send_many(TEN)
    for survivor, other in ((one, two),):
        other.close()
        assert survivor.status().written_records == 10
        with Consumer("hello", tower=tower, reset="earliest") as consumer:
            assert values(read(consumer, 10)) == TEN
        survivor.close()


def test_a_store_that_comes_late_copies_the_others(tower: str, store: Store, tmp_path: Path) -> None:
    published(tower)
    with Store(tmp_path / "late", tower=tower) as late:
        wait_until(lambda: late.status().written_records == 10)


def test_a_prefix_selects_topics_and_a_name_only_one(tower: str, store: Store) -> None:
    for topic in ("m.cpu", "m.disk", "m", "n"):
        published(tower, topic, [topic.encode()])
    with Consumer("m.*", tower=tower, reset="earliest") as prefix, Consumer("m", tower=tower, reset="earliest") as one:
        assert sorted(record.topic for record in read(prefix, 2)) == ["m.cpu", "m.disk"]
        assert values(read(one, 1)) == [b"m"]
        wait_until(prefix.at_end)
        wait_until(one.at_end)


def test_latest_gets_only_what_comes_after(tower: str, store: Store) -> None:
    published(tower, records=[b"old"])
    with Consumer("hello", tower=tower, reset="latest") as consumer, Producer("hello", tower=tower) as producer:
        consumer.wait_ready(PATIENCE_S)
        producer.send(b"new")
        producer.flush(PATIENCE_S)
        assert values(read(consumer, 1)) == [b"new"]


def test_records_flow_without_any_store(tower: str) -> None:
    with (
        Consumer("hello", tower=tower, reset="earliest") as consumer,
        Producer("hello", tower=tower, min_acks=0) as producer,
    ):
        wait_until(lambda: producer.connected and consumer.connected)
        producer.send_many(TEN)
        producer.flush()
        assert values(read(consumer, 10)) == TEN


def test_without_a_store_nothing_is_lost_while_nobody_reads(tower: str) -> None:
    value = bytes(60 * KIB)  # a batch; many of them are taken at a time
    with (
        Consumer("hello", tower=tower, reset="earliest") as consumer,
        Producer("hello", tower=tower, min_acks=0) as producer,
    ):
        # A producer may know a consumer whose subscription it has not read yet. A record that is sent then is lost, and
        # all behind it is held until it is given up: more than fits there.
        wait_until(lambda: producer.send(b"heard?") >= 0 and consumer.poll(0.05) is not None)
        begins = producer.next_offset
        wait_until(lambda: consumer.poll(0.05) is None and consumer.position()["hello", producer.partition] == begins)
        consumer.events()
        for _ in range(
            LOG_LIMITS.consumer_queue_bytes // len(value) + 500
        ):  # more than it queues, less than libzmq does
            producer.send(value)
        producer.flush()
        end = producer.next_offset
        assert [record.offset for record in read(consumer, end - begins)] == list(range(begins, end))
        assert not [each for each in consumer.events() if isinstance(each, RecordsLost)]


# -- positions --------------------------------------------------------------------------------------------


def test_seek_position_and_lag(tower: str, store: Store) -> None:
    key = ("hello", published(tower))
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        wait_until(lambda: consumer.heads().get(key) == 10)
        assert consumer.position() == {key: 0}
        assert consumer.lag() == {key: 10}
        read(consumer, 10)
        assert (consumer.position(), consumer.lag()) == ({key: 10}, {key: 0})
        consumer.seek(*key, 7)
        assert (consumer.position(), consumer.lag()) == ({key: 7}, {key: 3})
        assert values(read(consumer, 3)) == TEN[7:]


def test_position_counts_record_by_record_and_a_loop_left_early_goes_on_there(tower: str, store: Store) -> None:
    key = ("hello", published(tower))
    with Consumer("hello", tower=tower, reset="earliest") as consumer, patience(consumer):
        for record in consumer:
            if record.offset == 3:
                break
        assert consumer.position() == {key: 4}
        rest = []
        for record in consumer:
            rest.append(record.offset)
            if record.offset == 5:
                break
        assert rest == [4, 5]
        assert [record.offset for record in read(consumer, 4)] == [6, 7, 8, 9]


def test_seek_in_a_loop_left_early_forgets_the_rest(tower: str, store: Store) -> None:
    key = ("hello", published(tower))
    with Consumer("hello", tower=tower, reset="earliest") as consumer, patience(consumer):
        for record in consumer:
            if record.offset == 3:
                break
        consumer.seek(*key, 8)
        assert [record.offset for record in read(consumer, 2)] == [8, 9]


def test_seek_elsewhere_in_a_loop_left_early_keeps_the_rest(tower: str, store: Store) -> None:
    one, two = ("hello", published(tower)), ("hello", published(tower))
    with Consumer("hello", tower=tower, reset="earliest") as consumer, patience(consumer):
        wait_until(lambda: len(consumer._inbox.queue) >= 2)
        for record in consumer:
            if record.offset == 3:
                break
        left, other = (one, two) if record.partition == one[1] else (two, one)
        consumer.seek(*other, 9)
        assert consumer.position() == {left: 4, other: 9}
        records = [(record.partition, record.offset) for record in read(consumer, 7)]
        assert sorted(records) == sorted([*((left[1], offset) for offset in range(4, 10)), (other[1], 9)])
        assert consumer._core._delivery.queued_bytes == 0


def test_seek_inside_of_a_loop_counts_for_its_next_record(tower: str, store: Store) -> None:
    key = ("hello", published(tower))
    for max_age_s in (None, 1e6):
        with Consumer("hello", tower=tower, max_age_s=max_age_s) as consumer, patience(consumer):
            found = []
            for record in consumer:
                found.append(record.offset)
                assert consumer.position() == {key: record.offset + 1}
                if found == [0, 1, 2]:
                    consumer.seek(*key, 8)
                    assert consumer.position() == {key: 8}
                elif found == [0, 1, 2, 8]:
                    consumer.seek(*key, 1)
                elif record.offset == 9:
                    break
        assert found == [0, 1, 2, 8, *range(1, 10)]


def test_seek_elsewhere_inside_of_a_loop_leaves_the_rest_to_it(tower: str, store: Store) -> None:
    one, two = ("hello", published(tower)), ("hello", published(tower))
    with Consumer("hello", tower=tower) as consumer, patience(consumer):
        wait_until(lambda: len(consumer._inbox.queue) >= 2)
        found = []
        for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) == 4:
                consumer.seek(*(two if record.partition == one[1] else one), 9)
            if len(found) == 11:
                break
        assert sorted(offset for _, offset in found) == sorted([*range(10), 9])
        assert consumer._core._delivery.queued_bytes == 0


def test_what_is_polled_inside_of_a_loop_is_not_in_the_loop(tower: str, store: Store) -> None:
    published(tower)
    published(tower)
    for max_age_s in (None, 1e6):
        with Consumer("hello", tower=tower, max_age_s=max_age_s) as consumer, patience(consumer):
            found = []
            for record in consumer:
                found.append(record)
                if len(found) == 3:
                    batch = consumer.poll(PATIENCE_S)
                    assert batch is not None
                    found += batch
                if len(found) == 20:
                    break
            assert len({(each.partition, each.offset) for each in found}) == 20


def test_a_batch_whose_loop_was_left_for_that_of_another_one_comes_again(tower: str, store: Store) -> None:
    one, two = (published_at_once(tower) for _ in range(2))
    with Consumer("hello", tower=tower) as consumer:
        batches = [consumer.poll(PATIENCE_S), consumer.poll(PATIENCE_S)]
        found = []
        for batch in batches:
            assert batch is not None
            for record in consumer.iterate(batch):
                found.append(record)
                if record.offset == 3:
                    break
        assert consumer.position() == {("hello", one): 4, ("hello", two): 4}
        found += read(consumer, 12)
        assert len({(each.partition, each.offset) for each in found}) == 20
        assert consumer._core._delivery.queued_bytes == 0


def test_each_record_goes_to_one_of_several_loops(tower: str, store: Store) -> None:
    published(tower)
    for max_age_s in (None, 1e6):
        with Consumer("hello", tower=tower, max_age_s=max_age_s) as consumer, patience(consumer):
            loops = [iter(consumer) for _ in range(3)]
            assert [next(loops[number % 3]).offset for number in range(10)] == [*range(10)]


def test_each_record_goes_to_one_of_several_threads_that_loop(tower: str, store: Store) -> None:
    count = 20_000
    published(tower, records=[b"%d" % number for number in range(count)])
    with Consumer("hello", tower=tower) as consumer, patience(consumer):
        found: deque[int] = deque()

        def loop() -> None:
            with suppress(Closed):
                for record in consumer:
                    found.append(record.offset)

        threads = [threading.Thread(target=loop) for _ in range(4)]
        for each in threads:
            each.start()
        wait_until(lambda: len(found) >= count, lambda: f"{len(found)} records came")
        consumer.close()
        for each in threads:
            each.join()
    assert sorted(found) == [*range(count)]


def test_committed_positions_survive_a_restart(tower: str, store: Store, tmp_path: Path) -> None:
    published(tower)

    def made() -> Consumer:
        return Consumer("hello", tower=tower, reset="earliest", identity="me", directory=tmp_path)

    with made() as consumer, patience(consumer):
        for record in consumer:
            if record.offset == 3:
                consumer.commit()
                break
    with made() as consumer:
        assert values(read(consumer, 6)) == TEN[4:]
    with made() as consumer:  # the second life did not commit
        assert values(read(consumer, 6)) == TEN[4:]


def test_a_committed_position_beyond_the_end_is_told_and_not_committed_again(
    tower: str, store: Store, tmp_path: Path
) -> None:
    def made() -> Consumer:
        return Consumer("hello", tower=tower, identity="me", directory=tmp_path)

    key = ("hello", published(tower))
    with made() as consumer:
        consumer.commit({key: 9000})
    with made() as consumer:
        assert list(consumer.to_end(PATIENCE_S)) == []
        assert PositionBeyondEnd(*key, 9000, 10) in consumer.events()
        committed = [*kept_positions(tmp_path)]
        consumer.commit()
        assert [*kept_positions(tmp_path)] == committed
        consumer.seek(*key, 4)
        assert values(read(consumer, 6)) == TEN[4:]
        consumer.commit()
    assert [*kept_positions(tmp_path)] == [("hello", key[1], 10)]


def test_a_committed_position_beyond_its_producer_does_not_hide_what_is_new(
    tower: str, store: Store, tmp_path: Path
) -> None:
    with Producer("hello", tower=tower) as producer:
        producer.send_many([b"a", b"b"])
        producer.flush(PATIENCE_S)
        key = ("hello", producer.partition)
        with Consumer("hello", tower=tower, identity="me", directory=tmp_path) as consumer:
            consumer.commit({key: 9000})
        with Consumer("hello", tower=tower, identity="me", directory=tmp_path) as consumer:
            wait_until(lambda: OutOfRange(*key, 9000, 0, 2) in consumer.events())
            producer.send(b"c")
            assert values(read(consumer, 1)) == [b"c"]
            consumer.commit()
    assert [*kept_positions(tmp_path)] == [("hello", key[1], 3)]


def kept_positions(directory: Path) -> list[tuple[str, str, int]]:
    found = json.loads((directory / "consumers" / "me" / "positions.json").read_text())
    return [(topic, partition, offset) for topic, partition, offset in found["positions"]]


def test_positions_of_topics_that_are_not_utf8_survive_too(tower: str, tmp_path: Path) -> None:
    key = (b"\xff\xfe".decode("utf-8", "surrogateescape"), "P")
    for wanted in (0, 5):
        with Consumer("*", tower=tower, identity="me", directory=tmp_path) as consumer:
            assert consumer.position().get(key, 0) == wanted
            consumer._inbox.taken[key] = 5
            consumer.commit()


@pytest.mark.parametrize("content", [b"", b"{}", b'[["t","p"]]', b'[["t","p","x"]]', b"\xff"])
def test_positions_that_are_none_are_refused(tower: str, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "consumers" / "me" / "positions.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    with pytest.raises(StorageFormat, match="remove it to start anew"):
        Consumer("hello", tower=tower, identity="me", directory=tmp_path)


def test_only_a_consumer_with_an_identity_can_commit(tower: str) -> None:
    with Consumer("hello", tower=tower) as consumer, pytest.raises(UsageError, match="identity"):
        consumer.commit()


def test_seek_out_of_range_is_an_error_and_reading_goes_on(tower: str, store: Store) -> None:
    key = ("hello", published(tower))
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        read(consumer, 10)
        consumer.seek(*key, 99)
        with pytest.raises(OffsetOutOfRange, match=r"offset 99 .* offsets 0 to 9 are there"):
            consumer.poll(PATIENCE_S)
        assert consumer.position()[key] <= 10
        consumer.seek(*key, 9)
        assert values(read(consumer, 1)) == TEN[9:]


@pytest.mark.parametrize(("reset", "first"), [(7, 7), (datetime(1970, 1, 1, tzinfo=UTC), 0)], ids=str)
def test_an_offset_or_a_time_is_a_place_to_start(tower: str, store: Store, reset: int | datetime, first: int) -> None:
    published(tower)
    with Consumer("hello", tower=tower, reset=reset) as consumer:
        assert values(read(consumer, 10 - first)) == TEN[first:]


def test_a_first_offset_out_of_range_is_an_error(tower: str, store: Store) -> None:
    published(tower)
    with Consumer("hello", tower=tower, reset=11) as consumer, pytest.raises(OffsetOutOfRange, match="offset 11"):
        consumer.poll(PATIENCE_S)


@pytest.mark.parametrize("minute", [0, 1, 500, 999])
def test_a_time_is_the_first_record_that_is_not_older_as_in_a_read_of_the_topic(
    tower: str, store: Store, minute: int
) -> None:
    """Two days of records in one batch: the first ones are not read."""
    begun = datetime(2024, 1, 1, tzinfo=UTC)
    with Producer("hello", tower=tower) as producer:
        for number in range(1_000):
            producer.send(b"%d" % number, timestamp=begun + timedelta(minutes=number))
    moment = begun + timedelta(minutes=minute, microseconds=-1)
    with Consumer("hello", tower=tower, reset=moment) as consumer:
        found = [record.offset for record in consumer.to_end(PATIENCE_S)]
    assert found == [*range(minute, 1_000)]
    assert found == read_topic("hello", tower=tower, start=moment)["offset"].to_pylist()


@pytest.mark.parametrize("reset", ["first", -1, 1.5, True, None, datetime(2024, 1, 1)], ids=str)
def test_a_place_to_start_that_is_none_is_refused(tower: str, reset: object) -> None:
    with pytest.raises(UsageError):
        Consumer("hello", tower=tower, reset=reset)  # type: ignore[arg-type]


@pytest.mark.parametrize("topics", [(), ("",), ("a" * 300,), ("a\0b",)], ids=str)
def test_topics_that_are_none_are_refused(tower: str, topics: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        Consumer(*topics, tower=tower)


# -- batches ----------------------------------------------------------------------------------------------


def test_a_batch_becomes_arrow_and_pandas(tower: str, store: Store) -> None:
    pytest.importorskip("pandas")
    partition = published(tower)
    with Consumer("hello", tower=tower, reset=3) as consumer:
        batch = consumer.poll(PATIENCE_S)

    assert batch is not None
    assert (batch.topic, batch.partition, batch.first) == ("hello", partition, 3)
    assert len(batch) == batch.next - 3 == len(batch.values())
    table = batch.to_arrow()
    assert table.column("value").to_pylist() == batch.values() == TEN[3 : batch.next]
    assert table.column("offset").to_pylist() == list(range(3, batch.next))
    frame = batch.to_pandas()
    assert list(frame["value"]) == TEN[3 : batch.next]
    assert str(frame["timestamp"].dt.tz) == "UTC"


def test_batches_end_when_nothing_comes(tower: str, store: Store) -> None:
    published(tower)
    with Consumer("hello", tower=tower, reset="earliest") as consumer:
        wait_until(lambda: sum(map(len, consumer._inbox.queue)) == 10)
        assert sum(len(batch) for batch in consumer.batches(0.1)) == 10
        assert consumer.poll(0.0) is None


# -- waiting and ending -----------------------------------------------------------------------------------


def test_ctrl_c_ends_a_wait_for_records(tower: str) -> None:
    with Consumer("hello", tower=tower) as consumer:
        interrupt(lambda: consumer.poll(None))
        assert consumer.poll(0.0) is None


def test_ctrl_c_ends_a_wait_for_stores(tower: str) -> None:
    producer = Producer("hello", tower=tower)
    producer.send(b"x")
    interrupt(producer.flush)
    producer._node.close()


def test_what_is_closed_says_so(tower: str) -> None:
    consumer, producer = Consumer("hello", tower=tower), Producer("hello", tower=tower)
    for each in (consumer, producer):
        each.close()
        each.close()
    with pytest.raises(Closed):
        consumer.poll(0.0)
    with pytest.raises(Closed):
        producer.send(b"x")
    with pytest.raises(Closed):
        producer.send_many([b"x"])


def test_members_without_a_tower_keep_trying(tmp_path: Path) -> None:
    address = free_address(2)
    with Store(tmp_path, tower=address) as store, Producer("hello", tower=address) as producer:
        producer.send(b"x")
        assert not store.status().tower
        with Tower(address):
            producer.flush(PATIENCE_S)
            assert producer.tower


def test_a_port_in_use_is_a_clear_error() -> None:
    with Tower("127.0.0.1:0") as tower, pytest.raises(AddressInUse, match="in use"):
        Tower(tower.address)


def test_a_directory_has_one_store_at_a_time(store: Store, tower: str, tmp_path: Path) -> None:
    with pytest.raises(StorageLocked):
        Store(tmp_path / "store", tower=tower)


def test_stores_are_found_through_the_tower(tower: str, store: Store) -> None:
    assert discover(tower, PATIENCE_S) == [StoreAddress(store.store_id, store.endpoint)]


def test_without_stores_none_are_found(tower: str) -> None:
    assert discover(tower, 0.2) == []
