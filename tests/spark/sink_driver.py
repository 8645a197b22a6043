"""A streaming program that writes the lines of text files to topic ``out``, and fails as its arguments say.

Its one argument is JSON: towers, folder (files are in ``in``), checkpoint, and fault. The faults are put into the
writer here, between chappe and Spark; each leaves a file in ``marks`` when its moment has come.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chappe.spark import encode, home
from chappe.spark.session import spark_session
from chappe.spark.sink import TopicStreamWriter
from chappe.spark.sink_options import SinkOptions
from chappe.spark.source import ChappeDataSource

if TYPE_CHECKING:
    import pyarrow as pa

GIVEN: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


class FaultyWriter(TopicStreamWriter):
    """Fails where ``fault`` says."""

    def __init__(self, options: SinkOptions, schema: StructType, given: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.fault = given["fault"]
        self.marks = Path(given["folder"]) / "marks"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        encode.PIECE_BYTES_MIN = 1  # type: ignore[misc]  # every Arrow batch is staged at once
        home.ANSWER_S = 0.5  # type: ignore[misc]  # a killed store is missed sooner
        context = TaskContext.get()
        assert context is not None
        batch, task = context.getLocalProperty("streaming.sql.batchId"), context.partitionId()
        first = context.attemptNumber() == 0
        if self.fault == "attempts" and first and task == 0:
            return super().write(self._ended_by_a_kill(iterator))
        if self.fault == "stores":
            return super().write(self._marked(iterator, f"staging-{batch}-{task}"))
        message = super().write(iterator)
        if self.fault == "attempts" and first and task == 1:
            raise RuntimeError("everything is staged, and the attempt fails")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        home.ANSWER_S = 0.5  # type: ignore[misc]
        if self.fault == "stores":
            self._mark(f"committing-{batchId}")
        super().commit(messages, batchId)
        if self.fault == "hang" and batchId == 1:
            self._mark("committed-1")
            while not (self.marks / "go").exists():
                time.sleep(0.05)

    def _ended_by_a_kill(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from iterator
        os.kill(os.getpid(), signal.SIGKILL)

    def _marked(self, iterator: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
        for number, each in enumerate(iterator):
            yield each
            if number == 1:
                self._mark(name)

    def _mark(self, name: str) -> None:
        (self.marks / name).touch()


class FaultySource(ChappeDataSource):
    """``format("faulty")``."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FaultyWriter(SinkOptions.parse(self.options), schema, GIVEN)


def main() -> None:
    folder = Path(GIVEN["folder"])
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    }
    spark = spark_session("sink", conf=conf, master="local[2,4]")
    spark.dataSource.register(FaultySource)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder / "in"))
    rows = lines.repartition(3)  # in another order at every replay
    writer = rows.writeStream.format("faulty").options(towers=GIVEN["towers"], topic="out", fetchTimeout=60)
    writer = writer.option("checkpointLocation", GIVEN["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
