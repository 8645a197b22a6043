"""Which columns a write accepts, and the sentences for what it does not."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from chappe.errors import UsageError
from chappe.spark.columns import RecordColumns

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]  # Spark parses the columns' types


def columns(ddl: str, topic: str | None = "t", order: tuple[str, ...] = ()) -> RecordColumns:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return RecordColumns.find(schema, topic, order)


def test_columns_are_found_by_name() -> None:
    found = columns("Key string, value binary, topic string, timestamp timestamp, headers map<string,binary>", None)
    assert found == RecordColumns(value=1, topic=2, key=0, headers=4, timestamp=3)


def test_the_option_wins_over_the_column() -> None:
    assert columns("value string, topic int").topic is None


def test_what_was_read_can_be_written() -> None:
    read = "topic string, partition string, offset bigint, timestamp timestamp, key binary, value binary"
    assert columns(read, None) == RecordColumns(value=5, topic=0, key=4, headers=None, timestamp=3)


def test_a_column_to_sort_by_need_not_be_written() -> None:
    assert columns("value string, n int, key string", order=("N", "key")).order == (1, 2)


@pytest.mark.parametrize(
    ("ddl", "topic", "order", "text"),
    [
        ("key string", "t", (), "no column `value` to write: there are key"),
        ("value string", None, (), "give the option `topic`, or a column `topic`"),
        ("value int", "t", (), "column `value` is int, which cannot be written; make it string or binary"),
        ("value struct<a:int>", "t", (), r"column `value` is struct<a:int>.*to_json"),
        ("value string, key bigint", "t", (), "column `key` is bigint"),
        ("value string, topic binary", None, (), "column `topic` is binary"),
        ("value string, timestamp timestamp_ntz", "t", (), "column `timestamp` is timestamp_ntz"),
        ("value string, timestamp bigint", "t", (), "make it timestamp"),
        ("value string, headers array<string>", "t", (), "column `headers` is array<string>"),
        ("value string, headers array<struct<name:string,value:binary>>", "t", (), "array<struct<key:string"),
        ("value string, headers map<int,string>", "t", (), "column `headers` is map<int,string>"),
        ("value string, kye string", "t", (), "column `kye` has no place in a record: did you mean `key`?"),
        ("value string, zone int", "t", (), "column `zone` has no place in a record: drop it"),
        ("value string, Value string", "t", (), "two columns named `value`"),
        ("value string", "t", ("n",), "`orderBy` names `n`, and there are only value"),
        ("value string, n array<int>", "t", ("n",), "`orderBy` names `n`, which is array<int>"),
    ],
)
def test_wrong_columns_are_named(ddl: str, topic: str | None, order: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        columns(ddl, topic, order)
