"""What tests of archives share: filling a store, archiving from it, and looking as any reader would."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
from tests.spark.fake_store import FakeStore

from chappe.data.topic import Filter
from chappe.log.batch import encode_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chappe.spark.archive.job import ArchiveProgress

DAY_US = 86_400_000_000
NOON_US = 20_000 * DAY_US + DAY_US // 2  # 2024-10-04

Rows = Counter[tuple[str, str, int, bytes | None]]


def fill(store: FakeStore, topic: str, partition: str, rows: int, timestamp: int = NOON_US, step: int = 1000) -> None:
    """Append one batch; each value says where it belongs."""
    base = store.next.get((topic, partition), 0)
    values = [f"{topic}/{partition}/{n}".encode() for n in range(base, base + rows)]
    stamps = [timestamp + n * step for n in range(rows)]
    store.put_raw(topic, partition, encode_batch(base, values, stamps[0], timestamps=stamps))


def archive(spark: SparkSession, store: FakeStore, directory: Path, topic: str = "t", **more: Any) -> ArchiveProgress:
    """Archive what the store has."""
    from chappe.spark.archive.job import ArchiveJob
    from chappe.spark.archive.manifest import ArchiveWriter

    with ArchiveWriter(directory) as opened:
        return ArchiveJob(spark, opened, Filter.parse(topic), stores=(store.endpoint,), **more).run()


def held(*stores: FakeStore) -> Rows:
    """Every record that was ever put into the stores with ``fill``."""
    return Counter(
        (topic, partition, n, f"{topic}/{partition}/{n}".encode())
        for store in stores
        for (topic, partition), stop in store.next.items()
        for n in range(stop)
    )


def seen(directory: Path) -> Rows:
    """What a reader that knows nothing of chappe finds."""
    table = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive").to_table()
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
    return Counter(zip(*columns, strict=True))
