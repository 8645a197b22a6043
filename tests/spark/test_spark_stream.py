"""Streams that go on: new partitions and topics, limits, times, and checkpoints that do not fit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.fake_store import FakeStore
from tests.spark.test_spark_source import fill, held, rows
from tests.waiting import SPARK_S

from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from chappe.spark import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: SparkSession, store: FakeStore, **options: object) -> DataFrame:
    given: dict[str, Any] = {"stores": store.endpoint, "startingOffsets": "earliest"} | options
    if not given.keys() & {"subscribe", "subscribePattern", "assign"}:
        given["subscribe"] = "t"
    return spark.readStream.format("chappe").options(**given).load()


def drain(spark: SparkSession, store: FakeStore, folder: Path, **options: object) -> list[int]:
    """Read what is there into Parquet; the rows of each batch that had any."""
    writer = load(spark, store, **options).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.format("parquet").trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination(SPARK_S)
    assert not query.isActive
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def written(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder / "out"))


def end_of(folder: Path) -> Any:
    """The offsets of the newest batch in the checkpoint."""
    newest = max((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return json.loads(newest.read_text().splitlines()[-1])


def test_new_partitions_and_topics_join_a_running_stream(spark: SparkSession, store: FakeStore) -> None:
    fill(store, "p", 1, topic="m.one")
    fill(store, "p", 1, topic="other")
    frame = load(spark, store, subscribePattern=r"m\.(one|two)")
    query = frame.writeStream.format("memory").queryName("joined").start()
    try:
        query.processAllAvailable()
        fill(store, "q", 1, topic="m.one")
        fill(store, "p", 1, topic="m.two")
        fill(store, "p", 1, topic="m.three")
        query.processAllAvailable()
        assert {(topic, partition) for topic, partition, *_ in rows(spark.table("joined"))} == {
            ("m.one", "p"),
            ("m.one", "q"),
            ("m.two", "p"),
        }
        assert spark.table("joined").count() == 300
    finally:
        query.stop()


def test_single_partitions_and_columns(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for name in "pqr":
        fill(store, name, 1)
    drain(spark, store, tmp_path, assign='{"t": ["p", "r"]}', columns="value,partition")
    found = written(spark, tmp_path)
    assert found.columns == ["value", "partition"]
    assert {row.partition for row in found.distinct().collect()} == {"p", "r"}
    assert found.count() == 200


def test_both_limits_hold_in_an_available_now_run(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for _ in range(10):
        store.put("t", "p", [b"v" * 1000] * 100)
    size = sum(map(len, store.batches["t", "p"])) // 1000
    by_bytes = drain(spark, store, tmp_path / "bytes", maxBytesPerTrigger=100 * size, maxRecordsPerTrigger=400)
    assert by_bytes == [100] * 10
    by_rows = drain(spark, store, tmp_path / "rows", maxBytesPerTrigger=10_000 * size, maxRecordsPerTrigger=400)
    assert by_rows == [400, 400, 200]


def test_a_stream_from_a_moment(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for second in (100, 200, 300):
        store.put("t", "p", [b"v"] * 10, timestamp=second * 1_000_000)
    store.put("t", "old", [b"v"] * 10, timestamp=1)
    drain(spark, store, tmp_path, startingTimestamp="150000", startingOffsets="earliest")
    assert sorted(row.offset for row in written(spark, tmp_path).collect()) == list(range(10, 30))
    fill(store, "new", 1, 5)
    drain(spark, store, tmp_path, startingTimestamp="900000")  # the checkpoint wins
    assert written(spark, tmp_path).count() == 25


def test_a_batch_between_moments(spark: SparkSession, store: FakeStore) -> None:
    for second in (100, 200, 300):
        store.put("t", "p", [b"v"] * 10, timestamp=second * 1_000_000)
    given = {"startingTimestamp": "1970-01-01T00:02:30Z", "endingTimestamp": "300000"}
    frame = spark.read.format("chappe").options(stores=store.endpoint, subscribe="t", **given).load()
    assert sorted(row.offset for row in frame.collect()) == list(range(10, 20))


def test_a_checkpoint_of_another_topic(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    fill(store, "p", 1, topic="u")
    drain(spark, store, tmp_path)
    before = end_of(tmp_path)
    with pytest.raises(PySparkException, match="the checkpoint is of a query that reads topic t, and this one reads u"):
        drain(spark, store, tmp_path, subscribe="u")
    assert end_of(tmp_path) == before
    drain(spark, store, tmp_path, subscribe="t,u")
    assert rows(written(spark, tmp_path)) == held(store)
    fill(store, "p", 1, topic="u")
    drain(spark, store, tmp_path, subscribe="u", failOnDataLoss="false")
    assert rows(written(spark, tmp_path)) == held(store)


def test_a_checkpoint_of_a_newer_format(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    drain(spark, store, tmp_path)
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    lines = newest.read_text().splitlines()
    newest.write_text("\n".join([*lines[:-1], json.dumps({"": {"format": 2}, "t": {"p": 100}})]))
    checksum = newest.with_name(f".{newest.name}.crc")
    checksum.unlink(missing_ok=True)
    fill(store, "p", 1)
    with pytest.raises(PySparkException, match="the checkpoint was written by a newer chappe"):
        drain(spark, store, tmp_path)


def test_a_topic_that_vanished(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    drain(spark, store, tmp_path)
    before = end_of(tmp_path)
    with FakeStore() as empty:
        fill(empty, "p", 1, topic="other")
        with pytest.raises(PySparkException, match="no store has topic t any more, which this query has read"):
            drain(spark, empty, tmp_path)
        assert drain(spark, empty, tmp_path, failOnDataLoss="false") == []
    assert end_of(tmp_path) == before
    fill(store, "p", 1)
    drain(spark, store, tmp_path)
    assert rows(written(spark, tmp_path)) == held(store)


def test_a_partition_that_ends_before_what_was_read(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 3)
    drain(spark, store, tmp_path)
    with FakeStore() as behind:
        fill(behind, "p", 2)
        with pytest.raises(
            PySparkException, match="p of topic t ends before offset 200, and this query has read up to"
        ):
            drain(spark, behind, tmp_path)
        fill(behind, "p", 2)  # it has caught up
        drain(spark, behind, tmp_path)
        assert rows(written(spark, tmp_path)) == held(behind)


def test_a_start_behind_the_end(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    start = '{"t": {"p": 500}}'
    with pytest.raises(PySparkException, match="500 in `startingOffsets` is not there yet"):
        drain(spark, store, tmp_path, startingOffsets=start)
    with pytest.raises(PySparkException, match="500 in `startingOffsets` is not there yet"):
        spark.read.format("chappe").options(stores=store.endpoint, subscribe="t", startingOffsets=start).load().count()


def test_what_was_read_and_emptied_is_no_loss(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for n in range(20):
        fill(store, f"p{n}", 1, 5)
    drain(spark, store, tmp_path)
    assert len(end_of(tmp_path)["t"]) == 20
    for n in range(15):
        store.retire("t", f"p{n}", 5)
    fill(store, "p19", 1, 5)
    drain(spark, store, tmp_path)
    assert len(end_of(tmp_path)["t"]) == 20
    fill(store, "p0", 1, 5)  # one of them goes on
    drain(spark, store, tmp_path)
    found = written(spark, tmp_path)
    assert found.where("partition = 'p0'").count() == 10
    assert found.count() == 110


LATE = r"no store has offsets 0\.\.9 of partition q of topic t any more"


def appear(store: FakeStore, partition: str, first: int = 10, topic: str = "t") -> None:
    """A partition of 20 records of which retention has taken some when it is first seen."""
    store.put_raw(topic, partition, encode_batch(first, [b"late"] * (20 - first), 0))


def test_a_partition_that_was_trimmed_before_it_was_seen(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    drain(spark, store, tmp_path)
    appear(store, "q")
    with pytest.raises(PySparkException, match=LATE):
        drain(spark, store, tmp_path)
    with pytest.raises(PySparkException, match=LATE):  # also by the checkpoint of the run that failed
        drain(spark, store, tmp_path)
    assert drain(spark, store, tmp_path, failOnDataLoss="false") == [10]
    appear(store, "all", 0)
    store.retire("t", "all", 20)
    with pytest.raises(PySparkException, match=r"no store has offsets 0\.\.19 of partition all of topic t any more"):
        drain(spark, store, tmp_path)


@pytest.mark.parametrize("start", ["earliest", "latest", '{"t": {"r": -1}}'])
def test_a_running_stream_misses_no_partition_that_was_trimmed(
    spark: SparkSession, store: FakeStore, start: str
) -> None:
    fill(store, "p", 1, topic="u")
    frame = load(spark, store, subscribe="t,u", startingOffsets=start)
    query = frame.writeStream.format("memory").queryName("trimmed").start()
    try:
        query.processAllAvailable()
        appear(store, "q")
        with pytest.raises(PySparkException, match=LATE):
            query.processAllAvailable()
    finally:
        query.stop()


def test_a_first_start_begins_with_what_is_left(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for n in range(5):
        appear(store, f"p{n}", n)
    starts = {"a": "earliest", "b": '{"t": {"p3": 15}}', "c": '{"t": {"p3": -1, "p4": -2}}'}
    rows = {"a": 20 + 19 + 18 + 17 + 16, "b": 20 + 19 + 18 + 5 + 16, "c": 20 + 19 + 18 + 16}
    for name, start in starts.items():
        read = drain(spark, store, tmp_path / name, startingOffsets=start, maxRecordsPerTrigger=30)
        assert sum(read) == rows[name]


def test_a_store_that_was_replaced_by_an_empty_one(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    drain(spark, store, tmp_path)
    with FakeStore() as other:
        fill(other, "q", 1)  # what goes on there is a new producer
        with pytest.raises(PySparkException, match="no store has partition p of topic t any more, of which this query"):
            drain(spark, other, tmp_path)
        assert drain(spark, other, tmp_path, failOnDataLoss="false") == [100]


def test_a_batch_waits_for_records_and_not_too_long(spark: SparkSession, store: FakeStore) -> None:
    for delay, waits in (("1h", True), ("1 ms", False)):
        store.put("t", "p", [b"v"] * 5)
        frame = load(spark, store, minRecordsPerTrigger=10, maxTriggerDelay=delay, maxRecordsPerPartition=3)
        query = frame.writeStream.format("memory").queryName("waited").start()
        table = spark.table("waited")
        try:
            query.processAllAvailable()
            first = table.count()
            assert first == store.next["t", "p"]  # the first batch of a run does not wait
            store.put("t", "p", [b"v"] * 9)
            query.processAllAvailable()
            assert table.count() == first + (0 if waits else 9)
            store.put("t", "p", [b"v"])
            query.processAllAvailable()
            assert table.count() == first + 10
        finally:
            query.stop()


def test_the_lag_of_a_query(spark: SparkSession, store: FakeStore) -> None:
    fill(store, "p", 3)
    fill(store, "p", 1, topic="u")
    frame = load(spark, store, subscribe="t,u", maxRecordsPerTrigger=80)
    waiting, go = threading.Event(), threading.Event()

    def slow(_: DataFrame, number: int) -> None:
        if number == 1:  # the progress of batch 0 is there
            waiting.set()
            assert go.wait(SPARK_S)

    query = frame.writeStream.foreachBatch(slow).queryName("lags").start()
    try:
        assert waiting.wait(SPARK_S)
        size = sum(map(len, store.batches["t", "p"])) // 300
        t, u = lag(query)
        assert (t.topic, t.records, t.bytes, t.seconds) == ("t", 240, 240 * size, None)
        assert (u.topic, u.records) == ("u", 80)
        go.set()
        query.processAllAvailable()
        assert [(each.records, each.bytes, each.seconds) for each in lag(query)] == [(0, 0, 0.0)] * 2
    finally:
        go.set()
        query.stop()


def test_no_store_during_a_stream_is_said_and_the_state_is_kept(
    spark: SparkSession, store: FakeStore, tmp_path: Path
) -> None:
    fill(store, "p", 1)
    drain(spark, store, tmp_path)
    before = end_of(tmp_path)
    with FakeStore() as gone:
        pass
    with pytest.raises(PySparkException, match="no store answers at"):
        drain(spark, gone, tmp_path)
    assert end_of(tmp_path) == before


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        ({"continuous": "1 second"}, "chappe does not support continuous processing"),
        ({"realTime": "5 seconds"}, "INPUT_STREAM_NOT_SUPPORTED"),
    ],
)
def test_triggers_that_python_sources_do_not_have(
    spark: SparkSession, store: FakeStore, tmp_path: Path, trigger: dict[str, Any], text: str
) -> None:
    """Spark refuses them before it asks the source anything."""
    writer = load(spark, store).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=text):
        writer.outputMode("update").format("console").trigger(**trigger).start().awaitTermination(SPARK_S)
