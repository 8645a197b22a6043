"""JSON in values as typed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.spark.fake_store import FakeStore
from tests.waiting import SPARK_S

from chappe.errors import UsageError
from chappe.spark import decode_json

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
VALUES = [b'{"host": "a", "load": 1}', b'{"host": "b", "load": 2.5, "tags": ["x"]}', b"not json", None, b"[1]"]


@pytest.fixture
def topic(spark: SparkSession, store: FakeStore) -> DataFrame:
    store.put("t", "p", VALUES)
    return spark.read.format("chappe").options(stores=store.endpoint, subscribe="t").load()


def test_a_schema_from_the_user(topic: DataFrame) -> None:
    found = decode_json(topic, "host string, load double").orderBy("offset")
    assert found.columns == ["topic", "partition", "offset", "timestamp", "key", "host", "load"]
    assert [(r.host, r.load) for r in found.collect()] == [("a", 1.0), ("b", 2.5)] + [(None, None)] * 3


def test_rows_that_do_not_decode_are_shown(topic: DataFrame) -> None:
    found = decode_json(topic, "host string, _corrupt string").orderBy("offset")
    assert [r._corrupt for r in found.collect()] == [None, None, "not json", None, "[1]"]


def test_a_schema_from_a_sample(topic: DataFrame) -> None:
    found = decode_json(topic)
    types = {name: kind for name, kind in found.dtypes if name in ("host", "load", "tags")}
    assert types == {"host": "string", "load": "double", "tags": "array<string>"}
    assert found.where("host = 'b'").first().load == 2.5  # type: ignore[union-attr]


def test_a_stream_with_a_sample_of_its_topic(spark: SparkSession, store: FakeStore, topic: DataFrame) -> None:
    options = {"stores": store.endpoint, "subscribe": "t", "startingOffsets": "earliest"}
    frame = spark.readStream.format("chappe").options(**options).load()
    with pytest.raises(UsageError, match="give decode_json a schema, or a batch DataFrame"):
        decode_json(frame)
    query = decode_json(frame, sample=topic).writeStream.format("memory").queryName("decoded")
    query.trigger(availableNow=True).start().awaitTermination(SPARK_S)
    assert spark.table("decoded").where("load > 0").count() == 2


def test_fields_named_like_columns(topic: DataFrame) -> None:
    with pytest.raises(UsageError, match="a column offset already"):
        decode_json(topic, "offset long")
    assert decode_json(topic, "offset long", into="data").schema["data"].dataType.simpleString() == (
        "struct<offset:bigint>"
    )


def of(spark: SparkSession, *values: str) -> DataFrame:
    return spark.createDataFrame([(each,) for each in values], "value string")


def test_any_name_is_a_field(spark: SparkSession) -> None:
    frame = of(spark, '{"a`b": 1, "c.d": 2, "e f": {"g`h": 3}}')
    for schema in (None, "`a``b` int, `c.d` int, `e f` struct<`g``h`: int>"):
        found = decode_json(frame.withColumnRenamed("value", "v`"), schema, column="v`")
        assert found.columns == ["a`b", "c.d", "e f"]
        assert [tuple(row) for row in found.collect()] == [(1, 2, (3,))]


def test_a_field_that_is_there_twice_counts_once(spark: SparkSession) -> None:
    found = decode_json(of(spark, '{"a": 1, "a": 2, "b": {"c": 1, "c": 2.5}}')).first()
    assert found is not None
    assert (found.a, found.b.c) == (2, 2.5)
    for schema in ("a int, a int", "b struct<c: int, c: int>"):
        with pytest.raises(UsageError, match=r"the schema names a field twice: [ac]"):
            decode_json(of(spark, "{}"), schema)


@pytest.mark.parametrize(
    "values",
    [['{"Host": 1, "host": 2}'], ['{"Host": 1}', '{"host": 2}'], ['{"a": [{"Host": 1}]}', '{"a": [{"host": 2}]}']],
)
def test_fields_that_differ_by_case_alone_are_refused(spark: SparkSession, values: list[str]) -> None:
    said = "the fields Host and host differ by upper and lower case alone"
    with pytest.raises(UsageError, match=said):
        decode_json(of(spark, *values))
    with pytest.raises(UsageError, match=said):
        decode_json(of(spark, *values), "Host int, host int")
    assert decode_json(of(spark, *values), "Host int, host int", into="data").columns == ["data"]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert set(decode_json(of(spark, '{"Host": 1}', '{"host": 2}')).columns) == {"Host", "host"}
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_topic_without_json(spark: SparkSession, store: FakeStore) -> None:
    store.put("t", "p", [b"plain", b"text"])
    frame = spark.read.format("chappe").options(stores=store.endpoint, subscribe="t").load()
    with pytest.raises(UsageError, match="no JSON object among 2 records such as 'plain', 'text'"):
        decode_json(frame)
    with pytest.raises(UsageError, match="no column text"):
        decode_json(frame, column="text")
