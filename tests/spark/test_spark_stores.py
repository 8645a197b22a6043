"""Data stores of the mesh as DataFrames, their topics as tables, and rows written into them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe import DataStore, Endpoint, MapServer, SharedMap
from chappe.bridges.kv_form import POSITION, QUERY, is_mark, pack, row_of
from chappe.data.scalars import Count
from chappe.errors import UsageError
from chappe.log.batch import Batch, encode_batch

pytest.importorskip("pyspark")

from chappe.spark import read_store, read_store_topic, write_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
T = 1_700_000_000_000_000


@pytest.fixture
def master() -> Iterator[DataStore]:
    with Endpoint() as endpoint:
        yield endpoint.attach_master("users")


def rows(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*names).collect()), key=str)


def held(store: DataStore) -> dict[Any, Any]:
    return {key: value for key, value in store.items() if not is_mark(key)}


# -- reading ------------------------------------------------------------------------------------------------


def test_a_store_is_a_frame_with_types_that_fit(spark: SparkSession, master: DataStore) -> None:
    master.put_many([("ann", 1), ("bob", Count(2)), ((POSITION, "t", "p"), 5)])
    master.put("cem", 3, expiry_s=3600.0)
    frame = read_store(spark, master)
    assert frame.dtypes == [("key", "string"), ("value", "bigint"), ("expiry", "timestamp"), ("version", "bigint")]
    assert rows(frame, "key", "value", "version") == [("ann", 1, 1), ("bob", 2, 2), ("cem", 3, 4)]
    (left,) = frame.where("key = 'cem'").selectExpr("timestampdiff(SECOND, current_timestamp(), expiry)").collect()[0]
    assert 3500 < left <= 3600
    assert frame.where("expiry IS NULL").count() == 2


def test_an_empty_store_is_an_empty_frame(spark: SparkSession, master: DataStore) -> None:
    assert read_store(spark, master).count() == 0
    assert read_store(spark, master, "key bigint, value string").dtypes[0] == ("key", "bigint")


def test_tables_are_structs_by_name(spark: SparkSession, master: DataStore) -> None:
    master.put_many([(("ann", 1), {"score": 3, "tags": ["x"], "other": 1}), (("bob", 2), {"score": None})])
    schema = "key struct<name: string, id: int>, value struct<score: int, tags: array<string>>"
    frame = read_store(spark, master, schema)
    found = rows(frame, "key.name", "key.id", "value.score", "value.tags")
    assert found == [("ann", 1, 3, ["x"]), ("bob", 2, None, None)]


def test_what_does_not_fit_is_named(spark: SparkSession, master: DataStore) -> None:
    master.put("ann", "x")
    with pytest.raises(UsageError, match=r"key ann of store 'users': value: string 'x' does not fit into int"):
        read_store(spark, master, "key string, value int")
    with pytest.raises(UsageError, match="has the columns key and value"):
        read_store(spark, master, "name string, value int")


def test_a_store_of_several_batches(spark: SparkSession, master: DataStore) -> None:
    master.put_many((n, str(n)) for n in range(25_000))
    assert read_store(spark, master).where("cast(key AS string) = value").count() == 25_000


# -- topics -------------------------------------------------------------------------------------------------


def put(store: FakeStore, *entries: tuple[Any, Any, bool, int | None]) -> None:
    found = [row_of(key, value, n, gone=gone, expires_ns=end) for n, (key, value, gone, end) in enumerate(entries, 1)]
    ((_, raw),) = pack(found, T)
    batch = Batch.parse(raw)
    base = store.next.get(("t", "p"), 0)
    store.put_raw("t", "p", encode_batch(base, batch.values(), T + base, keys=batch.keys(), headers=batch.headers()))


def test_the_topic_of_a_store_is_the_store(spark: SparkSession, store: FakeStore) -> None:
    later = 4_000_000_000_000_000_000
    put(store, ("ann", 1, False, None), ("bob", 2, False, None), ("ann", 3, False, later), ("old", 4, False, 1))
    put(store, ("bob", None, True, None), ("cem", 5, False, None))
    frame = read_store_topic(spark, "t", stores=store.endpoint)
    assert frame.dtypes[:4] == [("key", "string"), ("value", "bigint"), ("expiry", "timestamp"), ("version", "bigint")]
    assert rows(frame, "key", "value", "version") == [("ann", 3, 3), ("cem", 5, 2)]
    assert frame.where("expiry IS NOT NULL").count() == 1
    assert frame.where("_corrupt IS NOT NULL").count() == 0


def test_records_from_elsewhere_are_strings_and_what_does_not_fit_says_why(
    spark: SparkSession, store: FakeStore
) -> None:
    put(store, ("ann", 1, False, None))
    base = store.next["t", "p"]
    store.put_raw("t", "p", encode_batch(base, [b"text"], T, keys=[b"bob"]))
    frame = read_store_topic(spark, "t", "key string, value bigint", stores=store.endpoint)
    assert rows(frame, "key", "value", "_corrupt") == [
        ("ann", 1, None),
        (None, None, "value: string 'text' does not fit into bigint"),
    ]


# -- writing ------------------------------------------------------------------------------------------------


def test_a_batch_upserts_and_erases(spark: SparkSession, master: DataStore) -> None:
    schema = "user string, day int, score int, gone boolean"
    first = [("ann", 1, 1, False), ("bob", 1, 2, False), ("cem", 1, 3, None)]
    assert write_store(spark.createDataFrame(first, schema), master, ["user", "day"], "gone") is None
    assert held(master) == {("ann", 1): {"score": 1}, ("bob", 1): {"score": 2}, ("cem", 1): {"score": 3}}
    second = [("ann", 1, None, True), ("bob", 1, 9, True), ("bob", 1, 7, False), ("cem", 1, None, False)]
    write_store(spark.createDataFrame(second, schema).coalesce(1), master, ["user", "day"], "gone")
    assert held(master) == {("bob", 1): {"score": 7}, ("cem", 1): {"score": None}}


def test_every_type_there_and_back(spark: SparkSession, master: DataStore) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    schema = (
        "key bigint, value struct<s: string, b: binary, t: boolean, d: double, at: timestamp, span: interval day to "
        "second, l: array<int>, m: map<string, int>, c: decimal(20, 0), n: string>"
    )
    value = ("x", b"\xff", True, 1.5, when, timedelta(seconds=2), [1, 2], {"a": 1}, Decimal(2**63), None)
    frame = spark.createDataFrame([(1, value)], schema)
    write_store(frame, master, "key", expiry_s=3600.0)
    (entry,) = master.snapshot()
    assert entry.expires_ns is not None
    assert entry.value == {
        "s": "x", "b": b"\xff", "t": True, "d": 1.5, "at": when, "span": timedelta(seconds=2), "l": (1, 2),
        "m": {"a": 1}, "c": 2**63, "n": None,
    }  # fmt: skip
    back = read_store(spark, master, schema).select("key", "value")
    assert back.first() == frame.first()


@pytest.mark.parametrize(
    ("key", "delete", "text"),
    [
        ("none", None, "there is no column `none`: there are k, x, v"),
        ([], None, "a store needs a key"),
        ("k", "v", "is not boolean"),
        ("k", "gone", "there is no column `gone`"),
        ("x", None, "no value of a store is a decimal"),
    ],
)
def test_mistakes_are_named(
    spark: SparkSession, master: DataStore, key: str | list[str], delete: str | None, text: str
) -> None:
    frame = spark.createDataFrame([], "k string, x decimal(5,2), v int")
    with pytest.raises(UsageError, match=text):
        write_store(frame, master, key, delete)


def test_a_stream_upserts_each_batch_once(spark: SparkSession, master: DataStore, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> None:
        frame = spark.readStream.schema("user string, value int, gone boolean").csv(str(folder))
        writer = write_store(frame, master, "user", "gone", checkpoint=checkpoint)
        assert writer is not None
        writer.trigger(availableNow=True).start().awaitTermination(SPARK_S)

    for n, lines in enumerate((["ann,1,false", "bob,2,false"], ["ann,,true", "cem,4,false"])):
        (folder / f"{n}.csv").write_text("\n".join(lines))
        run()
    assert held(master) == {"bob": 2, "cem": 4}
    ((mark, number),) = [item for item in master.items() if is_mark(item[0])]
    assert (mark[0], number) == (QUERY, 1)
    before = master.version
    (tmp_path / "checkpoint" / "commits" / "1").unlink()  # Spark did not get to know that the batch was written
    run()
    assert master.version == before
    with pytest.raises(UsageError, match="needs a `checkpoint`"):
        write_store(spark.readStream.schema("user string, value int").csv(str(folder)), master, "user")


def test_a_shared_map_is_a_table_and_takes_batches_and_streams(spark: SparkSession, tmp_path: Path) -> None:
    with MapServer("127.0.0.1:0") as server, SharedMap(server.address, values="json") as shared:
        shared.set_many({"/ann": {"score": 1}, "/bob": {"score": 2}})
        frame = read_store(spark, shared, "key string, value struct<score: int>")
        assert rows(frame, "key", "value.score") == [("/ann", 1), ("/bob", 2)]
        assert rows(read_store(spark, shared), "key") == [("/ann",), ("/bob",)]
        batch = spark.createDataFrame([("/ann", 3, True), ("/cem", 4, False)], "name string, score int, gone boolean")
        write_store(batch, shared, "name", "gone")
        assert dict(shared) == {"/bob": {"score": 2}, "/cem": {"score": 4}}
        source = tmp_path / "in"
        spark.createDataFrame([("/dan", 5)], "name string, score int").write.json(str(source))
        stream = spark.readStream.schema("name string, score int").json(str(source))
        writer = write_store(stream, shared, "name", checkpoint=str(tmp_path / "at"))
        assert writer is not None
        writer.trigger(availableNow=True).start().awaitTermination(SPARK_S)
        assert shared["/dan"] == {"score": 5}
        assert sorted(each.split("/")[1] for each in shared if each.startswith("chappe/")) == ["query"]
        assert rows(read_store(spark, shared, "key string, value struct<score: int>"), "key") == [
            ("/bob",), ("/cem",), ("/dan",)
        ]  # fmt: skip
