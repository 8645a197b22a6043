"""Real stores, one of which is killed with -9 while a query reads: the other has everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.waiting import PATIENCE_S, SPARK_S

from chappe import Producer, Tower

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.process]
RECORDS = 60_000
PROGRAM = """
import sys, chappe
with chappe.Store(sys.argv[1], tower=sys.argv[2]) as store:
    print(store.endpoint, flush=True)
    sys.stdin.read()
"""


def start(folder: Path, tower: str) -> tuple[subprocess.Popen[str], str]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), tower], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    return program, program.stdout.readline().strip()


@pytest.fixture
def two_stores(tmp_path: Path) -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """Both have the same records."""
    stores: list[tuple[subprocess.Popen[str], str]] = []
    with Tower("127.0.0.1:0") as tower:
        try:
            stores += [start(tmp_path / "a", tower.address), start(tmp_path / "b", tower.address)]
            with Producer("t", tower=tower.address, min_acks=2) as producer:
                for n in range(RECORDS):
                    producer.send(b"%0*d" % (1000, n))
                producer.flush(PATIENCE_S)
            yield stores
        finally:
            for program, _ in stores:
                program.kill()
                program.communicate()


def test_a_store_killed_during_a_batch(
    spark: SparkSession, two_stores: list[tuple[subprocess.Popen[str], str]], tmp_path: Path
) -> None:
    (first, endpoint), (_, other) = two_stores
    options = {"stores": f"{endpoint},{other}", "subscribe": "t", "startingOffsets": "earliest", "fetchTimeout": "20"}
    frame = spark.readStream.format("chappe").options(**options, columns="offset,value", minPartitions="2").load()
    killed = tmp_path / "killed"

    def slowly(rows: Iterator[object]) -> Iterator[object]:
        """The first task to get rows kills the store that it reads from, and goes on reading."""
        for batch in rows:
            try:
                os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
                os.kill(pid, signal.SIGKILL)
            except FileExistsError:
                pass
            yield batch

    pid = first.pid
    query: StreamingQuery = (
        frame.mapInArrow(slowly, frame.schema)
        .selectExpr("offset", "cast(cast(value as string) as long) as n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination(SPARK_S)
    assert not query.isActive
    assert first.wait(PATIENCE_S) == -signal.SIGKILL
    found = Counter((row.offset, row.n) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == Counter((n, n) for n in range(RECORDS))
    assert sum(each["numInputRows"] for each in query.recentProgress) == RECORDS
