"""Archiving in a real Spark session, and reading the archive: as anybody would, and together with the live log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.spark.archive.archives import DAY_US, NOON_US, Rows, archive, fill, held, seen
from tests.spark.fake_store import FakeStore

from chappe.errors import OffsetOutOfRange, UnknownTopic, UsageError
from chappe.log.batch import encode_batch
from chappe.spark.archive.manifest import file_schema, load

pytest.importorskip("pyspark")

from chappe.spark import read_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> Rows:
    return Counter((r.topic, r.partition, r.offset, bytes(r.value)) for r in frame.collect())


def parquet_files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.parquet"))


def test_topics_by_date_each_record_once_and_the_next_run_goes_on(
    spark: SparkSession, store: FakeStore, tmp_path: Path
) -> None:
    for partition in "pq":
        fill(store, "t", partition, 500)
    fill(store, "t", "p", 500, NOON_US + DAY_US)
    fill(store, "t", "old", 3, -5, step=1)
    done = archive(spark, store, tmp_path)
    assert (done.records, done.total, done.version) == (1503, 1503, 1)
    assert seen(tmp_path) == held(store)
    days = [f"topic=t/date={day}/00000001-000.parquet" for day in ("1969-12-31", "2024-10-04", "2024-10-05")]
    assert parquet_files(tmp_path) == days
    assert pq.read_schema(tmp_path / days[0]).equals(file_schema())
    assert pq.ParquetFile(tmp_path / days[0]).metadata.row_group(0).column(0).compression == "ZSTD"

    fill(store, "t", "p", 10, NOON_US)
    fill(store, "t", "new", 5, NOON_US)
    assert archive(spark, store, tmp_path).records == 15
    assert archive(spark, store, tmp_path).records == 0
    assert seen(tmp_path) == held(store)
    assert parquet_files(tmp_path) == days  # what is small is written together
    assert list((tmp_path / "_chappe" / "staging").iterdir()) == []


def test_keys_headers_and_tombstones_come_along(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    headers = [(("h", b"x"), ("h", b"y")), ()]
    store.put_raw("t", "p", encode_batch(0, [b"v", None], NOON_US, keys=[b"k", None], headers=headers))
    archive(spark, store, tmp_path)
    table = pq.read_table(tmp_path / parquet_files(tmp_path)[0]).to_pylist()
    assert [(r["offset"], r["key"], r["value"], r["headers"]) for r in table] == [
        (0, b"k", b"v", [{"key": "h", "value": b"x"}, {"key": "h", "value": b"y"}]),
        (1, None, None, []),
    ]


def test_a_prefix_archives_its_topics_and_no_other(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for topic in ("m.1", "m.2/3", "n"):
        fill(store, topic, "p", 5)
    archive(spark, store, tmp_path, "m.*")
    archive(spark, store, tmp_path, "n")
    assert load(tmp_path).topics == ["m.1", "m.2/3", "n"]
    assert seen(tmp_path) == held(store)
    frame = read_archive(spark, tmp_path, "m.*", live=False)
    assert rows(frame) == Counter({row: 1 for row in held(store) if row[0] != "n"})


def test_a_store_that_was_behind_doubles_nothing(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "t", "p", 100)
    fill(store, "t", "q", 100)
    archive(spark, store, tmp_path)
    with FakeStore() as behind:
        fill(behind, "t", "p", 70)
        assert archive(spark, behind, tmp_path).records == 0
        fill(behind, "t", "p", 50)
        done = archive(spark, behind, tmp_path)
        assert done.records == 20
        expected = held(behind, store)
    assert seen(tmp_path) == Counter(expected.keys())


def test_what_retention_took_before_it_was_archived(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for _ in range(3):
        fill(store, "t", "p", 10)
    store.retire("t", "p", 10)
    archive(spark, store, tmp_path)  # nobody has archived what was there before
    assert sum(seen(tmp_path).values()) == 20
    for _ in range(3):
        fill(store, "t", "p", 10)
    store.retire("t", "p", 50)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 30\.\.49 .* use --skip-lost"):
        archive(spark, store, tmp_path)
    assert archive(spark, store, tmp_path, skip_lost=True).records == 10
    span = load(tmp_path).positions["t"]["p"]
    assert (span.first, span.next, span.rows) == (10, 60, 30)


def test_a_topic_that_is_not_there(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "t", "p", 1)
    with pytest.raises(UnknownTopic, match="no store has a topic nowhere"):
        archive(spark, store, tmp_path, "nowhere")


# -- the archive and the log as one ----------------------------------------------------------------------


def test_archive_and_log_have_neither_gap_nor_overlap(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    for partition in "pqr":
        fill(store, "t", partition, 100)
        fill(store, "t", partition, 100)
    archive(spark, store, tmp_path)
    fill(store, "t", "p", 50)
    fill(store, "t", "new", 7)
    expected = held(store)
    assert rows(read_archive(spark, tmp_path, "t", stores=store.endpoint)) == expected
    store.retire("t", "p", 200)  # all that is archived
    store.retire("t", "q", 100)  # a part of it
    assert rows(read_archive(spark, tmp_path, "t", stores=store.endpoint)) == expected
    assert rows(read_archive(spark, tmp_path, stores=store.endpoint)) == expected
    assert sum(rows(read_archive(spark, tmp_path, live=False)).values()) == 600


def test_the_log_has_forgotten_the_topic(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "t", "p", 10)
    archive(spark, store, tmp_path)
    expected = held(store)
    with FakeStore() as empty:
        fill(empty, "other", "p", 3)
        assert rows(read_archive(spark, tmp_path, "t", stores=empty.endpoint)) == expected
        with pytest.raises(UnknownTopic, match="the archive has no topic x"):
            read_archive(spark, tmp_path, "x", stores=empty.endpoint)


def test_an_archive_whose_job_was_killed_before_it_renamed_the_last_files(
    spark: SparkSession, store: FakeStore, tmp_path: Path
) -> None:
    fill(store, "t", "p", 10)
    archive(spark, store, tmp_path)
    (move,) = load(tmp_path).moves
    (tmp_path / move.staged).parent.mkdir(parents=True)
    (tmp_path / move.place).rename(tmp_path / move.staged)
    assert rows(read_archive(spark, tmp_path, "t", stores=store.endpoint)) == held(store)


def test_records_between_archive_and_log_that_are_lost_are_an_error(
    spark: SparkSession, store: FakeStore, tmp_path: Path
) -> None:
    fill(store, "t", "p", 10)
    archive(spark, store, tmp_path)
    fill(store, "t", "p", 10)
    fill(store, "t", "p", 10)
    store.retire("t", "p", 20)
    with pytest.raises(Exception, match=r"data loss: no store has offsets 10\.\.19"):
        read_archive(spark, tmp_path, "t", stores=store.endpoint).collect()
    frame = read_archive(spark, tmp_path, "t", stores=store.endpoint, failOnDataLoss="false")
    assert sum(rows(frame).values()) == 20


def test_a_job_that_goes_on_meanwhile_doubles_nothing(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "t", "p", 10)
    archive(spark, store, tmp_path)
    fill(store, "t", "p", 10)
    before = load(tmp_path)
    frame = read_archive(spark, tmp_path, "t", stores=store.endpoint)
    archive(spark, store, tmp_path)
    assert before.files[0].path == load(tmp_path).files[0].path  # the small file has grown
    expected = held(store)
    try:
        assert rows(frame) == expected
    except AssertionError:
        raise
    except Exception:  # Spark had looked at the file before it grew: run again, as the docs say
        assert rows(read_archive(spark, tmp_path, "t", stores=store.endpoint)) == expected


def test_options_that_are_not_for_it(spark: SparkSession, store: FakeStore, tmp_path: Path) -> None:
    fill(store, "t", "p", 1)
    archive(spark, store, tmp_path)
    with pytest.raises(UsageError, match="`startingOffsets` is not for read_archive"):
        read_archive(spark, tmp_path, startingOffsets="latest")
    with pytest.raises(UsageError, match="`stores` is for reading the log"):
        read_archive(spark, tmp_path, live=False, stores=store.endpoint)
