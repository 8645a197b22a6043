"""format("chappe") in a real Spark session, against stores that the test fills."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from chappe.spark import narrowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Rows = Counter[tuple[str, str, int, bytes]]


def fill(store: FakeStore, partition: str = "p", batches: int = 10, rows: int = 100, topic: str = "t") -> None:
    for _ in range(batches):
        base = store.next.get((topic, partition), 0)
        store.put(topic, partition, [f"{partition}{base + n}".encode() for n in range(rows)])


def held(*stores: FakeStore) -> Rows:
    found: Rows = Counter()
    for store in stores:
        for (topic, partition), batches in store.batches.items():
            for raw in batches:
                base = int.from_bytes(raw[8:16], "little")
                count = int.from_bytes(raw[16:20], "little")
                found.update((topic, partition, n, f"{partition}{n}".encode()) for n in range(base, base + count))
    return found


def read(spark: SparkSession, *stores: FakeStore, subscribe: str = "t", **options: object) -> DataFrame:
    endpoints = ",".join(store.endpoint for store in stores)
    return spark.read.format("chappe").options(stores=endpoints, subscribe=subscribe, **options).load()  # type: ignore[arg-type]


def rows(frame: DataFrame) -> Rows:
    return Counter((r.topic, r.partition, r.offset, bytes(r.value)) for r in frame.collect())


def stream(spark: SparkSession, store: FakeStore, folder: Path, **options: object) -> dict[str, Any]:
    """Run a stream into Parquet until it has read what is there; return its last progress."""
    given: dict[str, Any] = {"stores": store.endpoint, "subscribe": "t", "startingOffsets": "earliest"} | options
    frame = spark.readStream.format("chappe").options(**given).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination(SPARK_S)
    assert not query.isActive
    return {"batches": sum(p["numInputRows"] > 0 for p in query.recentProgress), "last": query.lastProgress}


def test_the_columns(spark: SparkSession, store: FakeStore) -> None:
    stamp = 1_700_000_000_000_000
    raw = encode_batch(0, [b"v", None], stamp, keys=[b"k", None], headers=[(("h", b"x"),), ()])
    store.put_raw("t", "p", raw)
    assert "headers" not in read(spark, store).columns
    frame = read(spark, store, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<topic:string,partition:string,offset:bigint,timestamp:timestamp,key:binary,value:binary,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    first, second = frame.orderBy("offset").collect()
    assert (first.topic, first.partition, first.offset, bytes(first.key), bytes(first.value)) == (
        "t",
        "p",
        0,
        b"k",
        b"v",
    )
    assert first.timestamp.astimezone(UTC) == datetime.fromtimestamp(stamp / 1e6, UTC)
    assert [(h.key, bytes(h.value)) for h in first.headers] == [("h", b"x")]
    assert (second.key, second.value, second.headers) == (None, None, [])


@pytest.mark.parametrize("nullable", [True, False])
def test_what_every_record_has_is_not_nullable_unless_a_schema_says_so(
    spark: SparkSession, store: FakeStore, nullable: bool
) -> None:
    store.put("t", "p", [b"v", None])
    frame = read(spark, store)
    assert [each.name for each in frame.schema if each.nullable] == ["key", "value"]
    given = StructType([StructField(each.name, each.dataType, nullable or each.nullable) for each in frame.schema])
    options = {"stores": store.endpoint, "subscribe": "t"}
    found = spark.read.format("chappe").schema(given).options(**options).load()
    assert [(row.offset, row.value) for row in found.orderBy("offset").collect()] == [(0, b"v"), (1, None)]


def test_a_batch_reads_everything_once(spark: SparkSession, store: FakeStore) -> None:
    for name in ("p", "q", "r"):
        fill(store, name)
    fill(store, "x", topic="other")
    fill(store, "y", topic="tt")
    found = rows(read(spark, store, subscribe="t,other", minPartitions=4))
    expected = held(store)
    assert found == Counter({row: n for row, n in expected.items() if row[0] != "tt"})


def test_many_tasks_share_one_partition(spark: SparkSession, store: FakeStore) -> None:
    fill(store)
    frame = read(spark, store, minPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    assert rows(frame) == held(store)


def test_a_pattern_reads_all_topics_that_match(spark: SparkSession, store: FakeStore) -> None:
    for topic in ("metrics.cpu", "metrics.disk", "other"):
        fill(store, "p", 1, 5, topic)
    frame = spark.read.format("chappe").options(stores=store.endpoint, subscribePattern="met.*[ck]").load()
    assert {row.topic for row in frame.collect()} == {"metrics.disk"}
    nothing = spark.read.format("chappe").options(stores=store.endpoint, subscribePattern="metrics*").load()
    with pytest.raises(PySparkException, match=r"has a topic that matches metrics\* \(a regular expression: all that "):
        nothing.count()


def test_a_batch_between_two_offsets(spark: SparkSession, store: FakeStore) -> None:
    fill(store, "p")
    fill(store, "q")
    frame = read(spark, store, startingOffsets='{"t": {"p": 950, "q": -1}}', endingOffsets='{"t": {"p": 990}}')
    assert sorted((r.partition, r.offset) for r in frame.collect()) == [("p", n) for n in range(950, 990)]


def test_a_table_in_sql(spark: SparkSession, store: FakeStore) -> None:
    fill(store)
    spark.sql(f"CREATE TEMPORARY VIEW v USING chappe OPTIONS (stores '{store.endpoint}', subscribe 't')")
    assert spark.sql("SELECT count(*), max(offset) FROM v").first() == (1000, 999)
    spark.sql("DROP VIEW v")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "nowhere"}, "has a topic named nowhere"),
        ({"startingOffset": "earliest"}, "did you mean `startingOffsets`?"),
        ({"endingOffsets": '{"t": {"p": 5000}}'}, "5000 in `endingOffsets` is not there yet"),
        ({"maxRecordsPerTrigger": "5"}, "is for streams"),
    ],
)
def test_mistakes_are_named(spark: SparkSession, store: FakeStore, options: dict[str, str], text: str) -> None:
    fill(store, batches=1)
    with pytest.raises(PySparkException) as caught:
        read(spark, store, **options).collect()
    assert text in str(caught.value)


def test_a_store_that_does_not_answer_is_named(spark: SparkSession, store: FakeStore) -> None:
    fill(store)
    with FakeStore() as gone:
        pass
    with pytest.raises(PySparkException) as caught:
        read(spark, store, gone).collect()
    assert f"the store at {gone.endpoint} does not answer" in str(caught.value)
    assert rows(read(spark, store, gone, failOnDataLoss="false")) == held(store)


def test_an_error_is_told_first_and_without_a_traceback(spark: SparkSession, store: FakeStore) -> None:
    fill(store)
    rows = spark.range(1).selectExpr("cast(id AS string) AS value")
    to = {"stores": store.endpoint, "topic": "t", "minAcks": "9"}
    mute = FakeStore(reads_max=0)
    fill(mute)
    for made in (
        lambda: read(spark, store, subscribe="none").collect(),
        lambda: read(spark, store, sbscribe="t").collect(),
        lambda: read(spark, mute, fetchTimeout="1").collect(),  # the driver is answered, tasks are not
        lambda: rows.write.format("chappe").mode("append").options(**to).save(),
    ):
        with pytest.raises(PySparkException) as caught:
            made()
        assert "Traceback" not in str(caught.value)
        assert "chappe.errors." in "".join(str(caught.value).splitlines()[:2])
    mute.close()


def test_lost_records_are_an_error_or_skipped(spark: SparkSession, store: FakeStore) -> None:
    fill(store)
    store.retire("t", "p", 300)
    start = {"startingOffsets": '{"t": {"p": 100}}'}
    with pytest.raises(PySparkException) as caught:
        read(spark, store, **start).collect()
    assert "data loss: no store has offsets 100..299 of partition p of topic t any more" in str(caught.value)
    assert read(spark, store, failOnDataLoss="false", **start).count() == 700


def test_a_frame_ends_where_the_topic_did_when_it_was_first_used(spark: SparkSession, store: FakeStore) -> None:
    """Spark keeps the partitions of a source in Python with the DataFrame; those of a table it asks for again."""
    fill(store, "p", 1)
    frame = read(spark, store)
    frame.createOrReplaceTempView("bound")
    spark.sql(f"CREATE TABLE unbound USING chappe OPTIONS (stores '{store.endpoint}', subscribe 't')")
    try:
        assert frame.count() == spark.table("unbound").count() == 100
        fill(store, "p", 1)
        assert frame.count() == frame.where("offset >= 0").count() == spark.table("bound").count() == 100
        assert spark.table("unbound").count() == read(spark, store).count() == 200
        assert narrowed(frame.select("offset")).count() == 200
    finally:
        spark.sql("DROP TABLE unbound")


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p")
    stream(spark, store, tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == held(store)
    fill(store, "p", 3)
    fill(store, "new", 2)
    stream(spark, store, tmp_path)
    stream(spark, store, tmp_path)  # nothing new
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == held(store)


def test_a_stream_reads_no_more_than_it_may(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 5)
    fill(store, "q", 5)
    progress = stream(spark, store, tmp_path, maxRecordsPerTrigger=250)
    assert progress["batches"] == 4
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == held(store)


def test_a_stream_from_the_latest_reads_only_what_comes(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p")
    stream(spark, store, tmp_path, startingOffsets="latest")
    fill(store, "p", 1, 10)
    fill(store, "q", 1, 10)
    stream(spark, store, tmp_path, startingOffsets="latest")
    found = rows(spark.read.parquet(str(tmp_path / "out")))
    assert sorted((p, n) for _, p, n, _ in found) == [
        *(("p", n) for n in range(1000, 1010)),
        *(("q", n) for n in range(10)),
    ]


def test_retention_that_overtakes_a_stopped_stream(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "p", 1)
    stream(spark, store, tmp_path)
    fill(store, "p", 5)
    store.retire("t", "p", 300)
    with pytest.raises(PySparkException, match=r"no store has offsets 100\.\.299 of partition p of topic t"):
        stream(spark, store, tmp_path)
    stream(spark, store, tmp_path, failOnDataLoss="false")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(r.offset for r in found.collect()) == [*range(100), *range(300, 600)]


def test_a_running_stream_follows_and_says_how_far_it_is(spark: SparkSession, store: FakeStore) -> None:
    fill(store, "p", 1)
    frame = spark.readStream.format("chappe").options(stores=store.endpoint, subscribe="t", startingOffsets="earliest")
    query = frame.load().writeStream.format("memory").queryName("followed").start()
    try:
        query.processAllAvailable()
        fill(store, "p", 1)
        fill(store, "q", 1)
        query.processAllAvailable()
        assert rows(spark.table("followed")) == held(store)
        assert query.lastProgress is not None
        assert json.loads(query.lastProgress["sources"][0]["endOffset"]) == {"t": {"p": 200, "q": 100}}
    finally:
        query.stop()
