"""Topics are asked only for the columns that a query needs, and the query finds the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from chappe.spark import narrowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ALL = ["topic", "partition", "offset", "timestamp", "key", "value"]


def topic(spark: SparkSession, store: FakeStore, **options: str) -> DataFrame:
    for n in range(3):
        raw = encode_batch(n * 10, [b"%d" % each for each in range(9)] + [None], n * 1_000_000, keys=[b"k"] * 10)
        store.put_raw("t", "p", raw)
    return spark.read.format("chappe").options(stores=store.endpoint, subscribe="t", **options).load()


def asked_for(frame: DataFrame) -> list[list[str]]:
    """The columns of each relation to a topic."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    found: list[list[str]] = []
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        children = node.children()
        waiting += [children.apply(at) for at in reversed(range(children.size()))]
        if "V2" in node.getClass().getSimpleName():
            found.append([node.output().apply(at).name() for at in range(node.output().size())])
    return found


QUERIES: list[tuple[Callable[[DataFrame], DataFrame], list[list[str]]]] = [
    (lambda t: t.select("value"), [["value"]]),
    (lambda t: t.select("*").withColumn("id", t["offset"] % 3).groupBy("id").count(), [["offset"]]),
    (lambda t: t.groupBy().count(), [["offset"]]),
    (lambda t: t.where("timestamp IS NOT NULL").select("offset"), [["offset"]]),
    (lambda t: t.where("offset > 3 AND topic = 't'").select("value"), [["topic", "offset", "value"]]),
    (
        lambda t: t.select("offset", "value").join(t.select("offset", "key"), "offset"),
        [["offset", "value"], ["offset", "key"]],
    ),
    (lambda t: t.select("offset").union(t.select(f.length("value"))), [["offset"], ["value"]]),
    (lambda t: t.orderBy("timestamp").limit(2).select("value"), [["timestamp", "value"]]),
]


@pytest.mark.parametrize(("query", "columns"), QUERIES)
def test_a_query_is_the_same_over_the_columns_that_it_needs(
    spark: SparkSession, store: FakeStore, query: Callable[[DataFrame], DataFrame], columns: list[list[str]]
) -> None:
    wide = query(topic(spark, store))
    narrow = narrowed(wide)
    assert asked_for(narrow) == columns
    assert narrow.schema == wide.schema
    assert sorted(map(str, narrow.collect())) == sorted(map(str, wide.collect()))


def test_what_needs_everything_or_cannot_be_told_stays_as_it_is(spark: SparkSession, store: FakeStore) -> None:
    whole = topic(spark, store)
    whole.createOrReplaceTempView("whole")
    twice = "WITH c AS (SELECT * FROM whole) SELECT a.offset FROM c a JOIN c b ON a.offset = b.offset AND b.key = 'k'"
    within = "SELECT offset FROM whole WHERE offset IN (SELECT offset FROM whole WHERE value IS NOT NULL)"
    for frame in (whole, whole.union(whole), spark.range(3).toDF("id"), spark.sql(twice), spark.sql(within)):
        assert narrowed(frame) is frame


def test_options_are_kept_and_columns_that_were_chosen_become_fewer(spark: SparkSession, store: FakeStore) -> None:
    given = {"columns": "value,headers,offset", "includeHeaders": "true", "endingOffsets": '{"t": {"p": 12}}'}
    frame = narrowed(topic(spark, store, **given).select("offset"))
    assert asked_for(frame) == [["offset"]]
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(12))
    assert {each.bare for each in store.reads} == {True}


def run(frame: DataFrame, folder: Path) -> list[int]:
    """Run a stream of numbers over what is there; return the numbers that are new."""
    found: list[int] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(row[0] for row in batch.collect()))
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).outputMode("update").start()
    query.awaitTermination(SPARK_S)
    assert not query.isActive, query.exception()
    return sorted(found)


def test_a_stream_goes_on_from_a_checkpoint_of_before_and_back(
    spark: SparkSession, store: FakeStore, tmp_path: Path
) -> None:
    topic(spark, store)
    given = {"stores": store.endpoint, "subscribe": "t", "startingOffsets": "earliest"}
    spark.readStream.format("chappe").options(**given).load().createOrReplaceTempView("live")
    frame = spark.sql("SELECT count(*) FROM live GROUP BY offset % 2")
    narrow = narrowed(frame)
    assert asked_for(narrow) == [["offset"]]
    assert run(frame, tmp_path) == [15, 15]
    store.put("t", "p", [b"more"] * 2)
    assert run(narrow, tmp_path) == [16, 16]
    store.put("t", "p", [b"more"])
    assert run(frame, tmp_path) == [17]
