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


def test_a_topic_without_json(spark: SparkSession, store: FakeStore) -> None:
    store.put("t", "p", [b"plain", b"text"])
    frame = spark.read.format("chappe").options(stores=store.endpoint, subscribe="t").load()
    with pytest.raises(UsageError, match="no JSON object among 2 records such as 'plain', 'text'"):
        decode_json(frame)
    with pytest.raises(UsageError, match="no column text"):
        decode_json(frame, column="text")
