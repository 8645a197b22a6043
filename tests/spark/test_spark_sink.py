"""df.write and df.writeStream with format("chappe"), in a real Spark session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.fake_sink import FakeSink
from tests.waiting import SPARK_S

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def sink() -> Iterator[FakeSink]:
    with FakeSink() as made:
        yield made


def write(frame: DataFrame, *stores: FakeSink, mode: str = "append", **options: Any) -> None:
    endpoints = ",".join(store.endpoint for store in stores)
    frame.write.format("chappe").mode(mode).options(**{"stores": endpoints, "topic": "t"} | options).save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count, numPartitions=2).selectExpr("cast(id as string) as value")


def expected(count: int) -> list[bytes]:
    return sorted(str(n).encode() for n in range(count))


def stream(frame: DataFrame, store: FakeSink, folder: Path, mode: str = "append", **options: Any) -> None:
    given = {"stores": store.endpoint, "topic": "t", "checkpointLocation": str(folder / "checkpoint")} | options
    writer = frame.writeStream.format("chappe").outputMode(mode).options(**given)
    writer.trigger(availableNow=True).start().awaitTermination(SPARK_S)


def texts(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder / "in"))


def put(folder: Path, name: str, *lines: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(line + "\n" for line in lines))


def test_a_batch_write_commits_once(spark: SparkSession, sink: FakeSink) -> None:
    write(numbers(spark, 50_000), sink)
    assert sorted(filter(None, sink.records("t"))) == expected(50_000)
    assert len(sink.commits) == 1
    assert len(sink.commits[0].attempts) == 2


def test_two_batch_writes_are_two(spark: SparkSession, sink: FakeSink) -> None:
    write(numbers(spark, 3), sink)
    write(numbers(spark, 3), sink)
    assert sorted(filter(None, sink.records("t"))) == sorted(expected(3) * 2)


def test_a_write_with_an_id_is_written_once_however_often_it_runs(spark: SparkSession, sink: FakeSink) -> None:
    for _ in range(2):
        write(numbers(spark, 3), sink, writeId="today")
    write(numbers(spark, 2), sink, writeId="tomorrow")
    assert sorted(filter(None, sink.records("t"))) == sorted([*expected(3), *expected(2)])


def test_an_empty_frame_is_written(spark: SparkSession, sink: FakeSink) -> None:
    write(numbers(spark, 0), sink)
    write(spark.createDataFrame([], "value string"), sink)
    assert len(sink.commits) == 2
    assert sink.values == {}


def test_topics_from_a_column(spark: SparkSession, sink: FakeSink) -> None:
    frame = spark.range(1000).selectExpr("concat('t', id % 7) as topic", "cast(id as string) as value")
    frame.write.format("chappe").mode("append").option("stores", sink.endpoint).save()
    for n in range(7):
        assert sink.records(f"t{n}") == [str(i).encode() for i in range(1000) if i % 7 == n]


def test_rows_are_sorted_within_a_task(spark: SparkSession, sink: FakeSink) -> None:
    frame = spark.range(1000).selectExpr("cast(id as string) as value", "-id as n").coalesce(1)
    write(frame, sink, orderBy="n")
    assert sink.records("t") == [str(n).encode() for n in reversed(range(1000))]


def test_a_stream_is_written_once_through_restarts(spark: SparkSession, sink: FakeSink, tmp_path: Path) -> None:
    put(tmp_path, "1", "a", "b")
    put(tmp_path, "2", "c")
    stream(texts(spark, tmp_path), sink, tmp_path)
    put(tmp_path, "3", "d")
    stream(texts(spark, tmp_path), sink, tmp_path)
    assert sorted(filter(None, sink.records("t"))) == [b"a", b"b", b"c", b"d"]
    assert [each.batch for each in sink.commits] == [0, 1, 2]
    assert len({each.sink for each in sink.commits}) == 1
    assert len({each.run for each in sink.commits}) == 2


def test_a_batch_that_was_committed_is_read_but_not_staged_again(
    spark: SparkSession, sink: FakeSink, tmp_path: Path
) -> None:
    put(tmp_path, "1", "a", "a", "b")
    counted = texts(spark, tmp_path).groupBy("value").count().selectExpr("concat(value, count) as value")
    stream(counted, sink, tmp_path, "complete")
    (tmp_path / "checkpoint" / "commits" / "0").unlink()  # as if the driver had died before it wrote that
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    staged = sink.asked["Stage"]
    put(tmp_path, "2", "b")
    stream(counted, sink, tmp_path, "complete")
    assert sorted(filter(None, sink.records("t"))) == [b"a2", b"a2", b"b1", b"b2"]  # the state is complete
    assert sink.asked["Stage"] == staged + 1
    assert [each.batch for each in sink.commits] == [0, 0, 1]


def test_a_deleted_checkpoint_doubles_nothing_without_a_word(
    spark: SparkSession, sink: FakeSink, tmp_path: Path
) -> None:
    put(tmp_path, "1", "a", "b")
    stream(texts(spark, tmp_path), sink, tmp_path)
    (first,) = {each.sink for each in sink.commits}
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match=f"has written a batch here.*set `writeAgain` to {first}"):
        stream(texts(spark, tmp_path), sink, tmp_path)
    assert len(sink.commits) == 1

    shutil.rmtree(tmp_path / "checkpoint")
    stream(texts(spark, tmp_path), sink, tmp_path, writeAgain=first)
    put(tmp_path, "2", "c")
    stream(texts(spark, tmp_path), sink, tmp_path)

    assert sorted(filter(None, sink.records("t"))) == [b"a", b"a", b"b", b"b", b"c"]


def test_a_query_whose_store_is_gone_does_not_go_on_elsewhere(
    spark: SparkSession, sink: FakeSink, tmp_path: Path
) -> None:
    put(tmp_path, "1", "a")
    stream(texts(spark, tmp_path), sink, tmp_path)
    put(tmp_path, "2", "b")
    with FakeSink("B") as other, pytest.raises(PySparkException, match=r"no store at .* keeps commits of this query"):
        stream(texts(spark, tmp_path), other, tmp_path)
    stream(texts(spark, tmp_path), sink, tmp_path)
    assert sink.records("t") == [b"a", b"b"]


def test_a_batch_whose_rows_the_store_lost_runs_again(spark: SparkSession, sink: FakeSink, tmp_path: Path) -> None:
    put(tmp_path, "1", "a")
    sink.refuse = "missing"
    with pytest.raises(PySparkException, match="StagedRowsMissing"):
        stream(texts(spark, tmp_path), sink, tmp_path)
    assert sink.asked["Drop"] == 1
    sink.refuse = None
    stream(texts(spark, tmp_path), sink, tmp_path)
    assert sink.records("t") == [b"a"]


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (["id as value"], {}, "column `value` is bigint, which cannot be written"),
        (["'v' as value", "id as zone"], {}, "column `zone` has no place in a record"),
        (["'v' as value"], {"topics": "x"}, "did you mean `topic`?"),
        (["'v' as value"], {"mode": "overwrite"}, "records cannot be overwritten, only appended"),
        (["repeat('v', 9000000) as value"], {}, "a row has 9000000 bytes"),
        (["'v' as value"], {"minAcks": "2"}, "`minAcks` is 2, and `stores` names only 1"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    spark: SparkSession, sink: FakeSink, columns: list[str], options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.range(2).selectExpr(*columns), sink, **options)
    assert text in str(caught.value)
    assert sink.values == {}
    assert not any(kept.staged for kept in sink.kept.values())


def test_a_topic_that_is_null_in_one_row_fails_the_write(spark: SparkSession, sink: FakeSink) -> None:
    frame = spark.range(10).selectExpr("'v' as value", "if(id = 7, null, 't') as topic")
    with pytest.raises(PySparkException) as caught:
        frame.write.format("chappe").mode("append").option("stores", sink.endpoint).save()
    assert "column `topic` is null in a row" in str(caught.value)
    assert sink.values == {}
