"""Topics are written to from any thread."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import SPARK_S

from chappe.api.log.store import Store
from chappe.api.log.tower import Tower

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Store]:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address) as made:
        yield made


def test_batches_and_streams_are_written_from_other_threads(spark: SparkSession, real: Store, tmp_path: Path) -> None:
    given: dict[str, Any] = {"stores": real.endpoint, "topic": "t"}
    source = tmp_path / "source"
    spark.range(5).selectExpr("cast(id AS string) AS value").write.parquet(str(source))

    def batch(first: int) -> None:
        rows = spark.range(first, first + 10).selectExpr("cast(id AS string) AS value")
        rows.write.format("chappe").mode("append").options(**given).save()

    def stream() -> None:
        rows = spark.readStream.schema("value string").parquet(str(source))
        writer = rows.writeStream.format("chappe").options(**given, checkpointLocation=str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(SPARK_S)
        assert not query.isActive, query.exception()

    connections = spark._sc._gateway._gateway_client.deque  # type: ignore[union-attr]
    before = len(connections)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(batch, first) for first in (0, 10)] + [threads.submit(stream)]
        for each in waiting:
            each.result()
    found = spark.read.format("chappe").options(stores=real.endpoint, subscribe="t").load()
    assert sorted(int(row.value) for row in found.collect()) == sorted([*range(20), *range(5)])
    assert len(connections) <= before + 1  # those of threads that have ended are closed
