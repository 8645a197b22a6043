"""What a task reads, from stores that fail in every way; without Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.spark.fake_store import FakeStore
from tests.spark.silence import ImpatientClient
from tests.waiting import PATIENCE_S, until

from chappe.errors import OffsetOutOfRange, TimedOut
from chappe.log.batch import encode_batch
from chappe.reading import fetch
from chappe.reading.fetch import ReadTask, read_task
from chappe.reading.offsets import Range


@pytest.fixture(autouse=True)
def _only_the_silent_are_given_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fetch, "StoreClient", ImpatientClient)
    yield
    for endpoint in list(fetch._clients):
        fetch.forget_client(*endpoint)


def fill(store: FakeStore, partition: str = "p", batches: int = 10, rows: int = 100, topic: str = "t") -> None:
    for n in range(batches):
        store.put(topic, partition, [f"{partition}{n * rows + i}".encode() for i in range(rows)])


def offsets(task: ReadTask, patience_s: float = PATIENCE_S) -> list[int]:
    return [n for part in read_task(replace(task, patience_s=patience_s)) for n in part.column("offset").to_pylist()]


def one(start: int, end: int, *stores: FakeStore, size: int = 100) -> Range:
    return Range("t", "p", start, end, tuple(store.endpoint for store in stores), size)


def test_a_range_within_batches() -> None:
    with FakeStore() as store:
        fill(store)
        (part,) = read_task(ReadTask((one(250, 777, store),)))
    assert part.column("offset").to_pylist() == list(range(250, 777))
    assert part.column("value").to_pylist() == [f"p{n}".encode() for n in range(250, 777)]


@pytest.mark.parametrize(
    ("columns", "bare"), [(("offset", "timestamp"), True), (("topic",), True), (("offset", "key"), False)]
)
def test_values_are_asked_for_where_a_column_needs_them(columns: tuple[str, ...], bare: bool) -> None:
    with FakeStore() as store:
        fill(store, batches=2)
        (part,) = read_task(ReadTask((one(50, 150, store),), columns=columns))
        assert {each.bare for each in store.reads} == {bare}
    assert (part.schema.names, part.num_rows) == ([*columns], 100)


def test_many_small_answers_become_one_arrow_batch() -> None:
    with FakeStore() as store:
        fill(store, batches=50)
        parts = list(read_task(ReadTask((one(0, 5000, store, size=1),))))
        assert len(store.reads) > 5
    assert [part.num_rows for part in parts] == [5000]


def test_what_comes_behind_the_next_answer_is_under_way_before_that_is_wanted() -> None:
    with FakeStore() as store:
        store.foresight = 0
        for _ in range(5):
            store.put("t", "p", [b"v" * 200] * 10_000)
        parts = read_task(ReadTask((one(0, 50_000, store, size=300),)))
        assert next(parts).num_rows == 10_000
        until(lambda: [each.offset for each in store.reads] == [0, 10_000, 20_000])
        assert sum(part.num_rows for part in parts) == 40_000
        assert [each.offset for each in store.reads] == [0, 10_000, 20_000, 30_000, 40_000]


@pytest.mark.parametrize("foresight", [-150, -1, 1, 150])
def test_a_store_that_foresees_wrongly_is_asked_again(foresight: int) -> None:
    with FakeStore() as store:
        fill(store)
        store.foresight = foresight
        assert offsets(ReadTask((one(0, 1000, store, size=1),))) == list(range(1000))


def test_large_batches_may_become_arrow_batches_as_they_came() -> None:
    columns = ("offset", "value")
    with FakeStore() as store:
        for size, rows in ((100, 1000), (1, 10), (1, 20), (100, 2000)):
            store.put("t", "p", [b"v" * size] * rows)
        wanted = ReadTask((one(500, 3000, store),), columns=columns, apart=True)
        parts = list(read_task(wanted))
        (joined,) = read_task(replace(wanted, columns=("offset",)))  # would keep values that nobody wants
    assert [part.num_rows for part in parts] == [500, 30, 1970]
    assert [n for part in parts for n in part.column("offset").to_pylist()] == list(range(500, 3000))
    assert joined.num_rows == 2500


def test_many_small_partitions_become_one_arrow_batch_in_order() -> None:
    with FakeStore() as store:
        names = [f"p{n:03}" for n in range(200)]
        for name in names:
            fill(store, name, 1, 5)
        ranges = tuple(Range("t", name, 0, 5, (store.endpoint,)) for name in names)
        (part,) = read_task(ReadTask(ranges))
    assert part.column("partition").to_pylist() == [name for name in names for _ in range(5)]


def test_a_large_range_is_handed_over_in_parts() -> None:
    with FakeStore() as store:
        for _ in range(4):
            store.put("t", "p", [b"v" * 200] * 8000)
        parts = list(read_task(ReadTask((one(0, 32_000, store),))))
    assert len(parts) > 1
    assert sum(part.num_rows for part in parts) == 32_000


def test_a_store_that_falls_silent_is_replaced_by_another() -> None:
    with FakeStore(reads_max=2) as first, FakeStore() as second:
        fill(first)
        fill(second)
        assert offsets(ReadTask((one(0, 1000, first, second, size=1),))) == list(range(1000))
        assert first.reads
        assert second.reads


def test_a_dead_store_is_waited_for_once_and_not_for_each_range() -> None:
    with FakeStore(reads_max=0) as dead, FakeStore() as alive:
        ranges = []
        for n in range(20):
            fill(alive, f"p{n}", 1, 10)
            ranges.append(Range("t", f"p{n}", 0, 10, (dead.endpoint, alive.endpoint)))
        assert len(offsets(ReadTask(tuple(ranges)))) == 200
        assert len(dead.reads) <= 3


def test_what_one_store_retired_is_read_from_another() -> None:
    with FakeStore() as first, FakeStore() as second:
        fill(first)
        fill(second)
        first.retire("t", "p", 500)
        assert offsets(ReadTask((one(100, 900, first, second),))) == list(range(100, 900))


def test_what_one_store_does_not_have_yet_is_read_from_another() -> None:
    with FakeStore() as behind, FakeStore() as ahead:
        fill(behind, batches=3)
        fill(ahead)
        assert offsets(ReadTask((one(0, 1000, behind, ahead),))) == list(range(1000))


def test_a_hole_is_read_from_another_store() -> None:
    with FakeStore() as damaged, FakeStore() as whole:
        fill(damaged)
        fill(whole)
        damaged.holes["t", "p"] = (0, 99)
        assert offsets(ReadTask((one(0, 1000, damaged, whole),))) == list(range(1000))


def test_damaged_bytes_are_read_from_another_store() -> None:
    with FakeStore() as damaged, FakeStore() as whole:
        fill(damaged, batches=1)
        fill(whole, batches=1)
        raw = bytearray(damaged.batches["t", "p"][0])
        raw[-1] ^= 1
        damaged.batches["t", "p"][0] = bytes(raw)
        assert offsets(ReadTask((one(0, 100, damaged, whole),))) == list(range(100))


def test_lost_records_are_an_error_that_names_them() -> None:
    with FakeStore() as store:
        fill(store)
        store.retire("t", "p", 500)
        with pytest.raises(OffsetOutOfRange, match=r"no store has offsets 100\.\.499 of partition p of topic t"):
            offsets(ReadTask((one(100, 900, store),)))


def test_lost_records_are_skipped_if_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    with FakeStore() as store, caplog.at_level(logging.WARNING):
        fill(store)
        store.retire("t", "p", 500)
        store.holes["t", "p"] = (600, 699)
        task = ReadTask((one(100, 900, store, size=1),), fail_on_data_loss=False)
        assert offsets(task) == [*range(500, 600), *range(700, 900)]
    assert "offsets 100..499 of partition p" in caplog.text
    assert "offsets 600..699 of partition p" in caplog.text


def test_a_partition_lost_as_a_whole_is_skipped_if_that_is_wanted() -> None:
    with FakeStore() as store:
        fill(store, "q", 1, 10)
        ranges = (one(0, 10, store), Range("t", "q", 0, 10, (store.endpoint,)))
        assert len(offsets(ReadTask(ranges, fail_on_data_loss=False), 0.1)) == 10
        with pytest.raises(OffsetOutOfRange, match=r"offsets 0\.\.9 of partition p"):
            offsets(ReadTask(ranges), 0.1)


def test_a_store_that_catches_up_is_waited_for() -> None:
    with FakeStore() as store:
        fill(store, batches=1)
        later = threading.Timer(0.2, fill, (store, "p", 1))
        later.start()
        assert offsets(ReadTask((one(0, 200, store),))) == list(range(200))
        later.join()


def test_a_store_that_restarts_is_waited_for() -> None:
    with FakeStore() as first:
        fill(first)
        endpoint, batches = first.endpoint, first.batches["t", "p"]
    task = ReadTask((Range("t", "p", 0, 1000, (endpoint,)),))
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(offsets(task)))
    reader.start()
    with FakeStore(endpoint=endpoint) as second:
        for raw in batches:
            second.put_raw("t", "p", raw)
        reader.join()
    assert found == list(range(1000))


def test_a_store_that_stays_away_is_no_data_loss() -> None:
    with FakeStore(reads_max=0) as store:
        task = ReadTask((one(0, 10, store),), fail_on_data_loss=False)
        with pytest.raises(TimedOut, match="start the store and run again"):
            offsets(task, 0.1)


def test_a_reader_that_stops_early_leaves_nothing_behind() -> None:
    with FakeStore() as store:
        fill(store, batches=10, rows=20_000)
        reading = read_task(ReadTask((one(0, 200_000, store),)))
        next(reading)
        reading.close()  # type: ignore[attr-defined]
        assert fetch._clients[store.endpoint, None]._waiting == {}
        assert len(offsets(ReadTask((one(0, 10, store),)))) == 10


def test_a_batch_of_several_topics_keeps_keys_and_headers() -> None:
    with FakeStore() as store:
        store.put_raw("t", "p", encode_batch(0, [b"v"], 5, keys=[b"k"], headers=[(("h", b"x"),)]))
        fill(store, "q", 1, 1, "u")
        (part,) = read_task(ReadTask((one(0, 1, store), Range("u", "q", 0, 1, (store.endpoint,)))))
    rows = part.to_pylist()
    assert (rows[0]["key"], rows[0]["headers"]) == (b"k", [{"key": "h", "value": b"x"}])
    assert (rows[1]["topic"], rows[1]["key"], rows[1]["headers"]) == ("u", None, [])
