"""Topics as tables of Spark SQL: what Spark tells of them, and a real session over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.errors import UsageError

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType, VarcharType

from chappe.spark.source import created, is_creation, reading_options, streamed_options, writing_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def creation(**options: str) -> dict[str, str]:
    """What Spark says when a table is created."""
    return {
        "provider": "chappe",
        "owner": "me",
        **options,
        **{f"option.{name}": each for name, each in options.items()},
    }


def inserted(table: StructType) -> StructType:
    """The columns of what is inserted into a table, as Spark converts them."""
    fields = [StructField(each.name, StringType(), True, each.metadata) for each in table.fields]
    return StructType(fields)


def test_a_table_is_read_from_stores_and_written_at_their_chain(tmp_path: Path) -> None:
    (tmp_path / "chain.toml").write_text('[servers]\na = "127.0.0.1:7801"\n')
    table = created(creation(stores="tcp://a:1", topic="t", chain=str(tmp_path / "chain.toml")))

    assert reading_options({}, table) == {"stores": "tcp://a:1", "subscribe": "t"}
    assert writing_options({}, inserted(table)) == {"topic": "t", "chain": str(tmp_path / "chain.toml")}


def test_what_a_table_was_created_with_reaches_reads_and_writes() -> None:
    given = creation(stores="tcp://a:1", subscribe="t", minAcks="1", startingOffsets="latest")
    assert is_creation(given)
    assert not is_creation({"stores": "tcp://a:1", "subscribe": "t"})

    table = created(given)

    assert reading_options({}, table) == {"stores": "tcp://a:1", "subscribe": "t", "startingoffsets": "latest"}
    assert writing_options({}, inserted(table)) == {"stores": "tcp://a:1", "topic": "t", "minacks": "1"}


def test_a_table_of_a_topic_reads_and_writes_it() -> None:
    table = created(creation(topic="t"))
    assert reading_options({}, table) == {"subscribe": "t"}
    assert writing_options({}, inserted(table)) == {"topic": "t"}


def test_what_a_query_says_goes_before_what_the_table_says() -> None:
    table = created(creation(stores="tcp://a:1", subscribe="t"))
    given = {"towers": "b", "subscribePattern": "u.*"}
    assert reading_options(given, table) == {"towers": "b", "subscribepattern": "u.*"}
    assert writing_options({"topic": "w", "writeId": "x"}, inserted(table)) == {
        "stores": "tcp://a:1", "topic": "w", "writeid": "x"
    }  # fmt: skip


def test_tables_with_other_options_have_columns_of_other_types() -> None:
    types = {created(creation(topic=topic)).fields[0].dataType for topic in ("a", "b", "c")}
    assert len(types) == 3
    assert all(isinstance(each, VarcharType) for each in types)


def test_options_that_came_through_a_query_are_not_taken_for_those_of_the_table() -> None:
    read = inserted(created(creation(topic="read")))
    read.fields[0].metadata = {**read.fields[0].metadata, "__CHAR_VARCHAR_TYPE_STRING": "varchar(300)"}
    with pytest.raises(UsageError, match="did not hand over the options"):
        writing_options({}, read)
    assert writing_options({"topic": "other"}, read) == {"topic": "other"}
    with pytest.raises(UsageError, match="to a stream that is written to it"):
        streamed_options({"checkpointLocation": "x"}, read)
    assert streamed_options({"topic": "other"}, read) == {"topic": "other"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topc": "t"}, "did you mean `topic`"),
        ({}, "say what to read"),
        ({"topic": "t", "writeId": "w"}, "`writeId` is of one write"),
        ({"topic": "t", "columns": "key,value"}, "needs the column `topic`"),
        ({"subscribePattern": "a("}, "not a regular expression"),
        ({"topic": "t", "minAcks": "x"}, "`minAcks` is a whole number"),
    ],
)
def test_mistakes_are_told_when_a_table_is_created(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        created(creation(**options))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address) as made:
        yield made


@pytest.mark.spark
@pytest.mark.process
def test_tables_are_created_read_and_inserted_into(spark: SparkSession, store: Store) -> None:
    try:
        spark.sql(f"CREATE TABLE one USING chappe OPTIONS (stores '{store.endpoint}', topic 'a')")
        spark.sql(f"CREATE TABLE two USING chappe OPTIONS (stores '{store.endpoint}', subscribe 'b')")
        spark.sql("INSERT INTO one (key, value) SELECT encode('k', 'utf-8'), encode(string(id), 'utf-8') FROM range(5)")
        assert spark.sql("SELECT count(*), max(string(value)) FROM one WHERE topic = 'a'").first() == (5, "4")

        spark.sql("INSERT INTO two SELECT * FROM one WHERE string(value) < '3'")
        spark.table("one").write.insertInto("two")

        assert spark.table("two").count() == 8
        assert spark.table("one").count() == 5  # what was read is not what is written to
        with pytest.raises(PySparkException, match="did not hand over the options"):
            spark.sql("INSERT INTO one SELECT * FROM one")
        with pytest.raises(PySparkException, match="records cannot be overwritten"):
            spark.sql("INSERT OVERWRITE two SELECT * FROM one")
        assert spark.sql("SELECT count(*) FROM one WITH ('startingOffsets' = 'latest')").first() == (0,)
    finally:
        for table in ("one", "two"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
