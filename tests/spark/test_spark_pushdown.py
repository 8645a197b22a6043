"""Filters of a batch query find the rows that a list computed by hand has, however often a DataFrame is used."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.spark.fake_store import FakeStore

from chappe.errors import UsageError
from chappe.log.batch import encode_batch

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from chappe.spark import narrowed
from chappe.spark.filters import Filters
from chappe.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SWITCH = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[str, str, int]


def at(second: int) -> str:
    return f"timestamp'{EPOCH + timedelta(seconds=second):%Y-%m-%d %H:%M:%S} UTC'"


# what Spark is asked, and the same of a row: topic, partition, offset, seconds
FILTERS: list[tuple[str, Callable[[str, str, int, float], bool]]] = [
    ("topic = 'a'", lambda t, p, n, s: t == "a"),
    ("'a' = topic", lambda t, p, n, s: t == "a"),
    ("topic in ('a', 'c') and partition = 'p'", lambda t, p, n, s: t in "ac" and p == "p"),
    ("topic like 'b%'", lambda t, p, n, s: t == "b"),
    ("offset >= 25 and offset < 60", lambda t, p, n, s: 25 <= n < 60),
    ("25 <= offset and 60 > offset", lambda t, p, n, s: 25 <= n < 60),
    ("offset > 25 and offset <= 26", lambda t, p, n, s: n == 26),
    ("offset = 33", lambda t, p, n, s: n == 33),
    ("offset = 33 or offset = 2", lambda t, p, n, s: n in (2, 33)),
    ("not (offset = 33)", lambda t, p, n, s: n != 33),
    ("offset < 0", lambda t, p, n, s: False),
    (f"offset in ({', '.join(map(str, range(0, 100, 3)))})", lambda t, p, n, s: n % 3 == 0),
    (f"timestamp >= {at(40)}", lambda t, p, n, s: s >= 40),
    (f"timestamp < {at(20)}", lambda t, p, n, s: s < 20),
    (
        f"timestamp between {at(20)} and {at(30)} and topic = 'b'",
        lambda t, p, n, s: 20 <= s <= 30 and t == "b",
    ),
    (f"timestamp = {at(33)}", lambda t, p, n, s: s == 33),
    ("topic = 'none'", lambda t, p, n, s: False),
    ("key is null and offset < 10", lambda t, p, n, s: n < 10),
]
HELD: dict[Row, float] = {}  # seconds of each record


@pytest.fixture(scope="module")
def filled() -> Iterator[FakeStore]:
    """Clocks that go back and forth."""
    rng = random.Random(7)
    HELD.clear()
    with FakeStore() as store:
        for topic in "abc":
            for partition in "pq":
                for base in range(0, 100, 10):
                    stamps = [(base + rng.randint(-15, 15)) * 500_000 for _ in range(10)]
                    store.put_raw(topic, partition, encode_batch(base, [b"v"] * 10, 0, timestamps=stamps))
                    HELD.update({(topic, partition, base + n): each / 1e6 for n, each in enumerate(stamps)})
        yield store


@pytest.fixture(params=["false", "true"])
def switch(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Spark's own pushdown to sources in Python, which a user's session may have on."""
    spark.conf.set(SWITCH, request.param)
    yield request.param
    spark.conf.unset(SWITCH)


def load(spark: SparkSession, store: FakeStore) -> DataFrame:
    return spark.read.format("chappe").options(stores=store.endpoint, subscribePattern=".*").load()


def rows(frame: DataFrame) -> Counter[Row]:
    return Counter((row.topic, row.partition, row.offset) for row in frame.collect())


def expected(fits: Callable[[str, str, int, float], bool]) -> Counter[Row]:
    return Counter(row for row, second in HELD.items() if fits(*row, second))


def of_topic(*topics: str) -> Counter[Row]:
    return expected(lambda t, p, n, s: t in topics)


def test_a_session_leaves_it_off(spark: SparkSession) -> None:
    assert spark.conf.get(SWITCH) == "false"


@pytest.mark.parametrize(("text", "fits"), FILTERS)
def test_a_filter_finds_what_it_should_narrowed_and_not(
    spark: SparkSession, filled: FakeStore, text: str, fits: Callable[[str, str, int, float], bool]
) -> None:
    frame = load(spark, filled).where(text)
    assert rows(frame) == rows(narrowed(frame)) == expected(fits)


def test_a_frame_that_is_used_twice_has_all_rows_each_time(spark: SparkSession, filled: FakeStore, switch: str) -> None:
    frame = load(spark, filled)
    a, b = frame.where("topic = 'a'"), frame.where("topic = 'b'")
    assert rows(a.union(b)) == of_topic("a", "b")
    assert rows(narrowed(a.union(b))) == of_topic("a", "b")
    assert (rows(a), rows(b), rows(frame)) == (of_topic("a"), of_topic("b"), of_topic(*"abc"))
    assert frame.count() == len(HELD)
    assert rows(a) == of_topic("a")


def test_a_self_join_has_all_its_rows(spark: SparkSession, filled: FakeStore, switch: str) -> None:
    frame = load(spark, filled)
    left = frame.where("topic = 'a'").selectExpr("partition", "offset", "topic as one")
    right = frame.where("topic = 'b'").selectExpr("partition", "offset", "topic as two")
    joined = left.join(right, ["partition", "offset"])
    assert joined.count() == narrowed(joined).count() == 200
    assert frame.join(frame.where("offset < 10"), ["topic", "partition", "offset"]).count() == 60
    assert frame.exceptAll(frame.where("topic = 'c'")).count() == 400


def test_views_and_tables_have_all_their_rows(spark: SparkSession, filled: FakeStore, switch: str) -> None:
    options = f"(stores '{filled.endpoint}', subscribePattern '.*')"
    load(spark, filled).createOrReplaceTempView("of_frame")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_options USING chappe OPTIONS {options}")
    spark.sql(f"CREATE TABLE of_catalogue USING chappe OPTIONS {options}")
    try:
        for name in ("of_frame", "of_options", "of_catalogue"):
            both = f"SELECT * FROM {name} WHERE topic = 'a' UNION ALL SELECT * FROM {name} WHERE topic = 'b'"
            assert rows(spark.sql(both)) == of_topic("a", "b")
            assert rows(spark.sql(f"SELECT * FROM {name} WHERE offset = 33")) == expected(lambda t, p, n, s: n == 33)
            assert spark.sql(f"SELECT count(*) FROM {name}").first() == (len(HELD),)
            once = f"WITH c AS (SELECT * FROM {name}) SELECT * FROM c WHERE topic = 'a' AND offset IN "
            within = f"{once} (SELECT offset FROM c WHERE topic = 'b' AND offset < 10)"
            assert rows(spark.sql(within)) == expected(lambda t, p, n, s: t == "a" and n < 10)
    finally:
        spark.sql("DROP TABLE of_catalogue")


def test_a_cached_frame_has_all_its_rows(spark: SparkSession, filled: FakeStore, switch: str) -> None:
    frame = load(spark, filled)
    few = frame.where("offset = 33").cache()
    assert few.count() == 6
    assert rows(frame.where("topic = 'b'")) == of_topic("b")
    assert rows(few) == expected(lambda t, p, n, s: n == 33)
    assert rows(frame.where("offset = 33").union(frame.where("topic = 'c'"))) == rows(few) + of_topic("c")
    few.unpersist()
    assert rows(few) == expected(lambda t, p, n, s: n == 33)


def test_narrowed_leaves_the_rest_at_the_stores(spark: SparkSession, filled: FakeStore) -> None:
    filled.reads.clear()
    frame = load(spark, filled).where("topic = 'a' and partition = 'q' and offset >= 95")
    assert narrowed(frame).count() == 5
    assert {(read.topic, read.partition) for read in filled.reads} == {(b"a", b"q")}
    assert min(read.offset for read in filled.reads) == 95


def test_narrowed_by_a_time_leaves_out_what_is_older(spark: SparkSession, filled: FakeStore) -> None:
    filled.reads.clear()
    assert narrowed(load(spark, filled).where(f"timestamp >= {at(45)}")).count() > 0
    assert min(read.offset for read in filled.reads) >= 60


def test_a_frame_is_narrowed_by_the_filters_of_its_own_topic_only(spark: SparkSession, filled: FakeStore) -> None:
    frame = load(spark, filled)
    above = frame.orderBy("topic", "partition", "offset").limit(150).where("topic = 'a'")
    assert narrowed(above).count() == above.count() == 150
    counted = frame.groupBy("topic", "offset").count().where("offset = 33 and count = 2")
    assert narrowed(counted).count() == 3
    outer = frame.where("topic = 'a'").join(frame.withColumnRenamed("topic", "other"), ["partition", "offset"], "left")
    assert narrowed(outer).count() == outer.count() == 600


def test_twice_narrowed_is_narrowed_by_both(spark: SparkSession, filled: FakeStore) -> None:
    once = narrowed(load(spark, filled).where("topic = 'a'"))
    filled.reads.clear()
    assert sorted(row[0] for row in narrowed(once.where("offset < 3").select("offset")).collect()) == [0, 0, 1, 1, 2, 2]
    assert {read.topic for read in filled.reads} == {b"a"}


def test_filters_are_text_and_back() -> None:
    every = Filters(frozenset("ab"), frozenset({"p"}), ("x",), 3, 9, -5, 1 << 40)
    for filters in (every, Filters(), Filters(since=7)):
        assert Filters.parse(filters.as_text()) == filters
    for wrong in ("", "[]", '{"topics": "a"}', '{"first": true}', '{"other": 1}', '{"topics": null}', "{" * 9):
        with pytest.raises(UsageError, match="`filters` is what `narrowed` gives"):
            Options.parse({"subscribe": "t", "filters": wrong or "x"})


def test_a_stream_has_no_such_filters(spark: SparkSession, filled: FakeStore) -> None:
    given = {"stores": filled.endpoint, "subscribe": "a", "filters": '{"first": 5}'}
    query = spark.readStream.format("chappe").options(**given).load().writeStream.format("noop").start()
    with pytest.raises(PySparkException, match="`filters` is for batches"):
        query.processAllAvailable()
