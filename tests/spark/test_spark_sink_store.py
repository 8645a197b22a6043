"""What Spark writes to real stores, read back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chappe.api.log.store import Store

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture
def store(tower: str, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", tower=tower) as made:
        yield made


def write(frame: DataFrame, **options: Any) -> None:
    frame.write.format("chappe").mode("append").options(**options).save()


def read(spark: SparkSession, store: Store, topic: str) -> DataFrame:
    options = {"stores": store.endpoint, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("chappe").options(**options).load()


def test_records_come_back_as_they_were_written(spark: SparkSession, store: Store) -> None:
    frame = spark.sql(
        "SELECT 'k' AS key, 'v' AS value, timestamp'2025-01-31 12:00:00.123456Z' AS timestamp, map('h', 'x') AS headers"
        " UNION ALL SELECT null, null, timestamp'2025-01-31 12:00:01Z', map()"
    ).coalesce(1)
    write(frame, stores=store.endpoint, topic="t")
    first, second = read(spark, store, "t").orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), second.key, second.value) == (b"k", b"v", None, None)
    assert first.timestamp.astimezone(UTC) == datetime(2025, 1, 31, 12, 0, 0, 123456, UTC)
    assert [[(h.key, bytes(h.value)) for h in row.headers] for row in (first, second)] == [[("h", b"x")], []]
    assert (first.offset, second.offset) == (0, 1)
    assert first.partition == second.partition


def test_a_topic_is_copied_with_its_columns(spark: SparkSession, store: Store) -> None:
    write(spark.range(1000).selectExpr("cast(id as string) as value"), stores=store.endpoint, topic="t")
    write(read(spark, store, "t"), stores=store.endpoint, topic="copy")
    values = "cast(value as string) as value", "timestamp"
    copied = read(spark, store, "copy").selectExpr(*values)
    assert copied.exceptAll(read(spark, store, "t").selectExpr(*values)).count() == 0
    assert copied.count() == 1000


def test_an_empty_write_and_a_repeated_one(spark: SparkSession, store: Store) -> None:
    for count in (0, 5, 9):
        frame = spark.range(count).selectExpr("cast(id as string) as value")
        write(frame, stores=store.endpoint, topic="t", writeId=f"at most {max(count, 5)}")
    assert read(spark, store, "t").count() == 9  # the one with 5 rows was the repetition of the empty one


def test_a_write_waits_until_two_stores_have_it(spark: SparkSession, store: Store, tower: str, tmp_path: Path) -> None:
    with Store(tmp_path / "other", tower=tower) as other:
        frame = spark.range(5000).selectExpr("cast(id as string) as value")
        write(frame, towers=tower, topic="t", minAcks=2)
        assert [read(spark, each, "t").count() for each in (store, other)] == [5000, 5000]


def test_a_failed_write_leaves_nothing_behind(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    frame = spark.range(100_000).selectExpr("cast(id as string) as value", "if(id = 99999, null, 't') as topic")
    with pytest.raises(Exception, match="column `topic` is null in a row"):
        write(frame.coalesce(1), stores=store.endpoint)
    staged = tmp_path / "store" / "staged"
    assert list(staged.glob("*.rows")) == []
    write(frame.where("topic is not null"), stores=store.endpoint)
    assert read(spark, store, "t").count() == 99_999
