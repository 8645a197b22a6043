"""Filters of a batch query that leave less to be read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.spark.fake_store import FakeStore

from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SWITCH = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FILTERS = [
    "topic = 'a'",
    "topic in ('a', 'c') and partition = 'p'",
    "topic like 'b%'",
    "offset >= 25 and offset < 60",
    "offset > 25 and offset <= 26",
    "offset = 33",
    "offset = 33 or offset = 2",
    "not (offset = 33)",
    "timestamp >= timestamp'1970-01-01 00:00:40 UTC'",
    "timestamp < timestamp'1970-01-01 00:00:20 UTC'",
    "timestamp between timestamp'1970-01-01 00:00:20 UTC' and timestamp'1970-01-01 00:00:30 UTC' and topic = 'b'",
    "timestamp = timestamp'1970-01-01 00:00:33 UTC'",
    "topic = 'none'",
    "key is null and offset < 10",
]


@pytest.fixture(scope="module")
def filled() -> Iterator[FakeStore]:
    """Clocks that go back and forth."""
    rng = random.Random(7)
    with FakeStore() as store:
        for topic in "abc":
            for partition in "pq":
                for base in range(0, 100, 10):
                    stamps = [(base + rng.randint(-15, 15)) * 500_000 for _ in range(10)]
                    store.put_raw(topic, partition, encode_batch(base, [b"v"] * 10, 0, timestamps=stamps))
        yield store


def load(spark: SparkSession, store: FakeStore) -> DataFrame:
    return spark.read.format("chappe").options(stores=store.endpoint, subscribePattern=".*").load()


def rows(frame: DataFrame) -> Counter[tuple[str, str, int]]:
    return Counter((row.topic, row.partition, row.offset) for row in frame.collect())


@pytest.mark.parametrize("text", FILTERS)
def test_a_filter_changes_nothing_but_the_work(spark: SparkSession, filled: FakeStore, text: str) -> None:
    assert spark.conf.get(SWITCH) == "true"
    whole = load(spark, filled).localCheckpoint()
    assert rows(load(spark, filled).where(text)) == rows(whole.where(text))


def test_a_filter_leaves_out_what_is_not_wanted(spark: SparkSession, filled: FakeStore) -> None:
    filled.reads.clear()
    assert load(spark, filled).where("topic = 'a' and partition = 'q' and offset >= 95").count() == 5
    assert {(read.topic, read.partition) for read in filled.reads} == {(b"a", b"q")}
    assert min(read.offset for read in filled.reads) == 95


def test_a_time_leaves_out_what_is_older(spark: SparkSession, filled: FakeStore) -> None:
    filled.reads.clear()
    late = EPOCH + timedelta(seconds=45)
    found = load(spark, filled).where(f"timestamp >= timestamp'{late:%Y-%m-%d %H:%M:%S} UTC'")
    assert found.count() > 0
    assert min(read.offset for read in filled.reads) >= 60


def test_without_the_switch_queries_work_too(spark: SparkSession, filled: FakeStore) -> None:
    spark.conf.set(SWITCH, "false")
    try:
        assert load(spark, filled).where("offset = 33").count() == 6
    finally:
        spark.conf.set(SWITCH, "true")
