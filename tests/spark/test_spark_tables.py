"""Topics as tables: what is the latest value of a key, upserts and deletes from batches and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.errors import UsageError
from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from chappe.spark import read_table, table_rows, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
T = 1_700_000_000_000_000


def put(store: FakeStore, partition: str, *rows: tuple[bytes | None, bytes | None, int], topic: str = "t") -> None:
    keys, values, stamps = zip(*rows, strict=True)
    base = store.next.get((topic, partition), 0)
    store.put_raw(topic, partition, encode_batch(base, values, T, keys=keys, timestamps=[T + each for each in stamps]))


def as_dict(frame: DataFrame) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in frame.collect()}


def records(frame: DataFrame) -> list[tuple[str, Any]]:
    """Keys as text and values as what their JSON says."""
    found = [(bytes(row.key).decode(), row.value and json.loads(bytes(row.value))) for row in frame.collect()]
    return sorted(found, key=str)


# -- reading ----------------------------------------------------------------------------------------------


def test_the_latest_record_of_a_key_counts(spark: SparkSession, store: FakeStore) -> None:
    put(store, "p", (b"a", b"1", 0), (b"b", b"1", 0), (None, b"no key", 9), (b"a", b"2", 1), (b"c", b"", 0))
    put(store, "p", (b"b", None, 2), (b"d", None, 0), (b"d", b"back", 1))
    assert as_dict(read_table(spark, "t", stores=store.endpoint)) == {b"a": b"2", b"c": b"", b"d": b"back"}


def test_among_writers_time_decides_then_partition_then_offset(spark: SparkSession, store: FakeStore) -> None:
    put(store, "p", (b"time", b"late", 5), (b"partition", b"p", 1), (b"offset", b"0", 1), (b"offset", b"1", 1))
    put(store, "q", (b"time", b"early", 4), (b"partition", b"q", 1))
    put(store, "p", (b"time", b"old, and behind", 3))
    found = as_dict(read_table(spark, "t", stores=store.endpoint))
    assert found == {b"time": b"late", b"partition": b"q", b"offset": b"1"}


def test_typed_columns(spark: SparkSession, store: FakeStore) -> None:
    put(store, "p", (b"ann", b'{"score": 3, "tags": ["x"]}', 0), (b"bob", b"oops", 0))
    schema = "user string, score int, tags array<string>"
    frame = read_table(spark, "t", schema, key="user", stores=store.endpoint)
    assert frame.columns == ["user", "score", "tags"]
    assert sorted(map(tuple, frame.collect())) == [("ann", 3, ["x"]), ("bob", None, None)]
    bare = read_table(spark, "t", "score int", stores=store.endpoint).orderBy("key")
    assert [(bytes(row.key), row.score) for row in bare.collect()] == [(b"ann", 3), (b"bob", None)]


def test_mistakes_in_reading_are_named(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="there is no `schema`"):
        read_table(spark, "t", key="a")


# -- rows -------------------------------------------------------------------------------------------------


def test_one_text_column_is_the_key_itself(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("ann", 3, None), ("bob", None, "x")], "user string, score int, note string")
    assert records(table_rows(frame, "user")) == [("ann", {"score": 3}), ("bob", {"note": "x"})]


def test_other_keys_are_json_in_the_order_that_was_asked_for(spark: SparkSession) -> None:
    rows = [(1, None, date(2026, 1, 2), Decimal("1.50"), "v")]
    frame = spark.createDataFrame(rows, "id long, part string, day date, price decimal(5,2), v string")
    ((key, value),) = records(table_rows(frame, ["part", "id", "day", "price"]))
    assert key == '{"part":null,"id":1,"day":"2026-01-02","price":1.50}'
    assert value == {"v": "v"}
    assert records(table_rows(frame.select("id"), ["id"])) == [('{"id":1}', {})]


def test_deletes_are_records_without_a_value(spark: SparkSession) -> None:
    rows = [("a", 1, True), ("b", 2, False), ("c", 3, None)]
    frame = spark.createDataFrame(rows, "k string, v int, gone boolean")
    kept = [("b", {"v": 2}), ("c", {"v": 3})]
    assert records(table_rows(frame, "k", delete="gone")) == [("a", None), *kept]
    found = records(table_rows(frame.drop("gone"), "k", delete=f.col("v") == 1))
    assert found == [("a", None), *kept]


def test_names_with_dots_and_backticks(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("k", 1)], "`a.b` string, `c``d` int")
    assert records(table_rows(frame, "a.b")) == [("k", {"c`d": 1})]


@pytest.mark.parametrize(
    ("key", "delete", "text"),
    [
        ("none", None, "there is no column `none` to be the key: there are k, at, x"),
        ("at", None, "column `at` is timestamp, which cannot be a key"),
        (["k", "x"], None, "column `x` is double, which cannot be a key"),
        ([], None, "a table needs a key"),
        ("k", "gone", "there is no column `gone` that says which rows to delete"),
    ],
)
def test_mistakes_in_rows_are_named(spark: SparkSession, key: str | list[str], delete: str | None, text: str) -> None:
    frame = spark.createDataFrame([], "k string, at timestamp, x double")
    with pytest.raises(UsageError, match=text):
        table_rows(frame, key, delete)


def test_a_row_without_its_key_fails(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None, 1)], "k string, v int")
    with pytest.raises(Exception, match="column `k` is null in a row"):
        table_rows(frame, "k").collect()


# -- there and back ---------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Store]:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address) as store:
        yield store


SCHEMA = "user string, day date, score int, gone boolean"
TABLE = "user string, day date, score int"
DAY = date(2026, 1, 2)


def test_batches_upsert_and_delete(spark: SparkSession, real: Store) -> None:
    def write(*rows: tuple[str, int | None, bool]) -> None:
        frame = spark.createDataFrame([(user, DAY, score, gone) for user, score, gone in rows], SCHEMA)
        assert write_table(frame, "t", ["user", "day"], "gone", stores=real.endpoint) is None

    def table() -> dict[str, int]:
        frame = read_table(spark, "t", TABLE, key=["user", "day"], stores=real.endpoint)
        assert {row.day for row in frame.collect()} <= {DAY}
        return {row.user: row.score for row in frame.collect()}

    write(("ann", 1, False), ("bob", 2, False), ("cem", 3, False))
    assert table() == {"ann": 1, "bob": 2, "cem": 3}
    write(("ann", 10, False), ("bob", None, True))
    assert table() == {"ann": 10, "cem": 3}
    write(("bob", 5, False))
    assert table() == {"ann": 10, "bob": 5, "cem": 3}


def test_a_stream_upserts_and_deletes(spark: SparkSession, real: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for n, rows in enumerate((["ann,1,false", "bob,2,false"], ["ann,,true"], ["bob,3,false", "cem,4,false"])):
        folder.mkdir(exist_ok=True)
        (folder / f"{n}.csv").write_text("\n".join(rows))
        frame = spark.readStream.schema("user string, score int, gone boolean").csv(str(folder))
        writer = write_table(
            frame, "t", "user", "gone", stores=real.endpoint, checkpointLocation=tmp_path / "checkpoint"
        )
        assert writer is not None
        writer.trigger(availableNow=True).start().awaitTermination(SPARK_S)
    frame = read_table(spark, "t", "user string, score int", key="user", stores=real.endpoint)
    assert {row.user: row.score for row in frame.collect()} == {"bob": 3, "cem": 4}


def test_an_unknown_option_is_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("k", 1)], "k string, v int")
    with pytest.raises(UsageError, match="did you mean `minAcks`"):
        write_table(frame, "t", "k", minAck=1)
