"""A driver in a process of its own that writes the lines of text files to topics, and fails as it is told.

Its one argument is a folder for Spark. Each line of standard input is JSON, one streaming query: towers, topic, folder
(files are in ``in``), checkpoint, and fault. It is answered with a line, the error that it ended with or an empty one.
The faults are put into the writer here, between chappe and Spark; each leaves a file in ``marks`` when its moment has
come.
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
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chappe.reading import fetch
from chappe.spark import encode, home
from chappe.spark.options import SinkOptions
from chappe.spark.session import spark_session
from chappe.spark.sink import TopicStreamWriter
from chappe.spark.source import ChappeDataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def hurry() -> None:
    """Miss a killed store sooner, and find it sooner again. What comes too late is asked for once more."""
    fetch.TIMEOUT_S = 0.5  # type: ignore[misc]
    home.FIND_S = 0.2  # type: ignore[misc]
    home.DISCOVER_S = 0.5  # type: ignore[misc]


class FaultyWriter(TopicStreamWriter):
    """Fails where ``fault`` says."""

    def __init__(self, options: SinkOptions, schema: StructType, given: dict[str, Any]) -> None:
        super().__init__(options, schema)
        self.fault = given["fault"]
        self.marks = Path(given["folder"]) / "marks"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        encode.PIECE_BYTES_MIN = 1  # type: ignore[misc]  # every Arrow batch is staged at once
        hurry()
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
            self._mark(f"failed-{batch}")
            raise RuntimeError("everything is staged, and the attempt fails")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        hurry()
        if self.fault == "stores":
            self._mark(f"committing-{batchId}")
        super().commit(messages, batchId)
        if self.fault == "hang" and batchId == 1:
            self._mark("committed-1")
            while not (self.marks / "go").exists():
                time.sleep(0.01)

    def _ended_by_a_kill(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from iterator
        context = TaskContext.get()
        assert context is not None
        self._mark(f"killed-{context.getLocalProperty('streaming.sql.batchId')}")
        os.kill(os.getpid(), signal.SIGKILL)

    def _marked(self, iterator: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
        for number, each in enumerate(iterator):
            yield each
            if number == 1:
                self._mark(name)

    def _mark(self, name: str) -> None:
        (self.marks / name).touch()


class FaultySource(ChappeDataSource):
    """``format("faulty")``; its option ``given`` is a line of standard input."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = {name: value for name, value in self.options.items() if name != "given"}
        return FaultyWriter(SinkOptions.parse(options), schema, json.loads(self.options["given"]))


def write(spark: SparkSession, line: str) -> None:
    """Run one query to its end."""
    given = json.loads(line)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(Path(given["folder"]) / "in"))
    rows = lines.repartition(3)  # in another order at every replay
    writer = rows.writeStream.format("faulty").options(towers=given["towers"], topic=given["topic"], fetchTimeout=60)
    writer = writer.option("checkpointLocation", given["checkpoint"]).option("given", line)
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    folder = Path(sys.argv[1])
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
    }
    spark = spark_session("sink", conf=conf, master="local[2,4]")
    spark.dataSource.register(FaultySource)
    for line in sys.stdin:
        error = ""
        try:
            write(spark, line)
        except PySparkException as problem:
            error = str(problem)
        print(json.dumps(error), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
