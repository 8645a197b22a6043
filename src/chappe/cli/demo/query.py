"""The demo's Spark query: records of the topic, grouped into windows of time, handed to ``Windows``.

It runs in update mode: a batch brings the new totals of every window that got records. Spark drops a window's
state once it is older than the watermark, so its memory is bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chappe.cli.demo.feed import JSON, LINE_METRIC, METRICS
from chappe.cli.demo.windows import WINDOW_S, Row, Windows
from chappe.errors import ChappeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW: Final = f"{WINDOW_S} seconds"
WATERMARK: Final = "1 minute"
TRIGGER: Final = "1 second"
DRAIN_S: Final = 90.0  # at the end the query may take this long for what is stored but not read


class QueryFailed(ChappeError):
    """The Spark query, or Spark itself, stopped; the text has its reason."""


class Query:
    """Starts Spark and the query on a thread of its own, so that the terminal lives meanwhile."""

    def __init__(self, endpoint: str, topic: str, kind: str, checkpoint: Path, windows: Windows) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._kind = kind
        self._checkpoint = checkpoint
        self._windows = windows
        self._problem: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._spark: SparkSession | None = None
        self.batches = 0
        self.delay_s: float | None = None  # from the newest record's timestamp until it was in a window
        self._thread = threading.Thread(target=self._start, name="chappe demo spark", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the query has been started."""
        return self._query is not None

    def check(self) -> None:
        """Raise QueryFailed if Spark or the query has failed."""
        problem = self._problem
        if problem is None and self._query is not None and not self._query.isActive:
            problem = self._query.exception() or QueryFailed("it was stopped")
        if isinstance(problem, ChappeError):
            raise problem
        if problem is not None:
            first = str(problem).strip().splitlines() or [type(problem).__name__]
            raise QueryFailed(f"the Spark query failed: {first[0]}") from problem

    def drain(self) -> Iterator[bool]:
        """Let the query read everything that is stored; yields False again and again until it has.

        Ends without True if it took too long. Raises QueryFailed.
        """
        deadline = time.monotonic() + DRAIN_S
        waiting: threading.Thread | None = None
        while time.monotonic() < deadline:
            self.check()
            if waiting is None and self._query is not None:
                # Not in this thread: the call into Java does not hear Ctrl-C.
                waiting = threading.Thread(target=self._process_all, args=(self._query,), daemon=True)
                waiting.start()
            if waiting is not None and not waiting.is_alive():
                self.check()
                yield True
                return
            yield False

    def stop(self) -> None:
        """End the query and Spark; a Java that is still starting ends with this process."""
        for part in (self._query, self._spark):
            if part is not None:
                try:
                    part.stop()
                except Exception:  # Java may be gone already, and gone is what it should be
                    continue

    def _process_all(self, query: StreamingQuery) -> None:
        try:
            query.processAllAvailable()
        except Exception as error:
            self._problem = error

    def _start(self) -> None:
        try:
            from chappe.spark.session import spark_session

            self._spark = spark_session("chappe demo")
            stream = (
                self._spark.readStream.format("chappe")
                .option("stores", self._endpoint)
                .option("subscribe", self._topic)
                .option("startingOffsets", "earliest")
                .load()
            )
            self._query = (
                windowed(stream, self._kind)
                .writeStream.outputMode("update")
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(processingTime=TRIGGER)
                .queryName("chappe demo")
                .foreachBatch(self._take)
                .start()
            )
        except BaseException as error:
            self._problem = error

    def _take(self, batch: DataFrame, _batch_id: int) -> None:
        # As numbers: Spark gives moments as local times without zone, which are ambiguous once a year.
        found = batch.selectExpr(
            "unix_micros(window.start)", "unix_micros(window.end)", "metric", "records", "total", "average",
            "minimum", "maximum", "unix_micros(newest)",
        ).collect()  # fmt: skip
        self._windows.merge(Row(_moment(start), _moment(end), *rest) for start, end, *rest, _ in found)
        self.batches += 1
        if found:
            self.delay_s = time.time() - max(newest for *_, newest in found) / 1_000_000


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def windowed(stream: DataFrame, kind: str) -> DataFrame:
    """Count, sum, average, smallest, largest value and newest timestamp of each metric in each window.

    ``kind`` says what the records are: measurements; JSON objects, of which every member that is a number is a
    metric; or lines, whose length is the one metric.
    """
    from pyspark.sql import functions as f

    text: Any = f.col("value").cast("string")
    if kind == METRICS:
        parsed = f.from_json(text, "metric string, value double")
        values = stream.select("timestamp", parsed.alias("parsed")).select("timestamp", "parsed.*")
    elif kind == JSON:
        members = f.explode(f.from_json(text, "map<string,string>")).alias("metric", "text")
        number = f.expr("try_cast(text as double)").alias("value")
        values = stream.select("timestamp", members).select("timestamp", "metric", number)
    else:
        size = f.coalesce(f.length("value"), f.lit(0)).cast("double").alias("value")
        values = stream.select("timestamp", f.lit(LINE_METRIC).alias("metric"), size)
    return (
        values.where("metric is not null and value is not null")
        .withWatermark("timestamp", WATERMARK)
        .groupBy(f.window("timestamp", WINDOW).alias("window"), "metric")
        .agg(
            f.count("value").alias("records"),
            f.sum("value").alias("total"),
            f.avg("value").alias("average"),
            f.min("value").alias("minimum"),
            f.max("value").alias("maximum"),
            f.max("timestamp").alias("newest"),
        )
    )
