"""The demo's Spark query: records of the topic, grouped into windows of time, handed to ``Windows``.

It runs in update mode: a batch brings the new totals of every window that got records. Spark drops a window's
state once it is older than the watermark, so its memory is bounded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chappe.cli.demo.feed import JSON, LINE_METRIC, METRICS
from chappe.errors import ChappeError
from chappe.system.disk import sync_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW_S: Final = 5
OPEN_WINDOWS_MAX: Final = 64  # kept in memory; an older one is read back from its file
HISTORY: Final = 24  # averages kept for each metric, for the small curve
METRICS_MAX: Final = 10_000  # rows of one window; further metrics are counted, not kept


class WindowRow(NamedTuple):
    """One metric in one window; times are UTC."""

    window_start: datetime
    window_end: datetime
    metric: str
    records: int
    total: float
    average: float
    minimum: float
    maximum: float


@dataclass(slots=True)
class Windows:
    """All windows in a directory. Used by one thread; ``newest`` and ``history`` may be read by another."""

    directory: Path
    newest: dict[str, WindowRow] = field(default_factory=dict)
    history: dict[str, deque[tuple[datetime, float]]] = field(default_factory=dict)
    records: int = 0
    updates: int = 0  # newer numbers of a metric in a window
    left_out: int = 0
    _open: OrderedDict[datetime, dict[str, WindowRow]] = field(default_factory=OrderedDict)

    def merge(self, rows: Iterable[WindowRow]) -> None:
        """Take newer numbers of some metrics in some windows, and write these windows to disk."""
        self.directory.mkdir(parents=True, exist_ok=True)
        changed: set[datetime] = set()
        for row in sorted(rows):
            window = self._window(row.window_start)
            if row.metric not in window and len(window) >= METRICS_MAX:
                self.left_out += 1
                continue
            self.records += row.records - (window[row.metric].records if row.metric in window else 0)
            self.updates += 1
            window[row.metric] = row
            changed.add(row.window_start)
            self._remember(row)
        for start in sorted(changed):
            self._write(start)
        while len(self._open) > OPEN_WINDOWS_MAX:
            self._open.popitem(last=False)

    def path(self, start: datetime) -> Path:
        return self.directory / f"{start.astimezone(UTC):%Y-%m-%dT%H-%M-%SZ}.parquet"

    def _window(self, start: datetime) -> dict[str, WindowRow]:
        if start not in self._open:
            self._open[start] = self._read(start)
        self._open.move_to_end(start)
        return self._open[start]

    def _read(self, start: datetime) -> dict[str, WindowRow]:
        import pyarrow.parquet as parquet

        path = self.path(start)
        if not path.exists():
            return {}
        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return {each["metric"]: WindowRow(**each) for each in found}

    def _write(self, start: datetime) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        moment = pyarrow.timestamp("us", "UTC")
        types = (moment, moment, pyarrow.string(), pyarrow.int64(), *[pyarrow.float64()] * 4)
        schema = pyarrow.schema(list(zip(WindowRow._fields, types, strict=True)))
        table = pyarrow.Table.from_pylist([row._asdict() for row in self._open[start].values()], schema)
        path = self.path(start)
        half = path.with_name(f".{path.name}.tmp")  # readers of a directory pass over names with a dot
        with half.open("wb") as file:
            parquet.write_table(table, file)
            file.flush()
            sync_file(file.fileno())
        half.replace(path)

    def _remember(self, row: WindowRow) -> None:
        if row.metric not in self.newest and len(self.newest) >= METRICS_MAX:
            return
        if row.metric not in self.newest or self.newest[row.metric].window_start <= row.window_start:
            self.newest[row.metric] = row
        averages = self.history.setdefault(row.metric, deque(maxlen=HISTORY))
        if averages and averages[-1][0] == row.window_start:
            averages.pop()
        if not averages or averages[-1][0] < row.window_start:
            averages.append((row.window_start, row.average))


WINDOW: Final = f"{WINDOW_S} seconds"
WATERMARK: Final = "1 minute"
TRIGGER: Final = "1 second"
DRAIN_S: Final = 90.0  # at the end the query may take this long for what is stored but not read


class QueryFailed(ChappeError):
    """The Spark query, or Spark itself, stopped; the text has its reason."""


class DemoQuery:
    """Starts Spark and the query on a thread of its own: the terminal stays alive."""

    def __init__(self, endpoint: str, topic: str, kind: str, checkpoint: Path, windows: Windows, log: Path) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._kind = kind
        self._checkpoint = checkpoint
        self._windows = windows
        self._log = log
        self._problem: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._spark: SparkSession | None = None
        self.batches = 0
        self.delay_s: float | None = None  # from the newest record's timestamp until it was in a window
        self._thread = threading.Thread(target=self._start, name="chappe demo spark", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._query is not None

    def check(self) -> None:
        problem = self._problem
        if problem is None and self._query is not None and not self._query.isActive:
            problem = self._query.exception() or QueryFailed("it was stopped")
        if isinstance(problem, ChappeError):
            raise problem
        if problem is not None:
            from chappe.spark.sentences import sentence

            raise QueryFailed(f"the Spark query failed: {sentence(problem)}; Spark's log: {self._log}") from problem

    def drain(self) -> Iterator[bool]:
        """Let the query read everything that is stored; yield False until it has, then True.

        It ends without True after ``DRAIN_S``. Raises QueryFailed.
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
                except Exception:  # Java may be gone already
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
        self._windows.merge(WindowRow(_moment(start), _moment(end), *rest) for start, end, *rest, _ in found)
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
    from pyspark.sql.functions import expr, window

    if kind == METRICS:
        parsed = stream.selectExpr("timestamp", "from_json(string(value), 'metric string, value double') AS parsed")
        values = parsed.select("timestamp", "parsed.*")
    elif kind == JSON:
        members = "explode(from_json(string(value), 'map<string,string>')) AS (metric, text)"
        number = "try_cast(text AS double) AS value"
        values = stream.selectExpr("timestamp", members).selectExpr("timestamp", "metric", number)
    else:
        size = "double(coalesce(length(value), 0)) AS value"
        values = stream.selectExpr("timestamp", f"'{LINE_METRIC}' AS metric", size)
    measures = (
        "count(value) AS records", "sum(value) AS total", "avg(value) AS average", "min(value) AS minimum",
        "max(value) AS maximum", "max(timestamp) AS newest",
    )  # fmt: skip
    kept = values.where("metric is not null and value is not null").withWatermark("timestamp", WATERMARK)
    return kept.groupBy(window("timestamp", WINDOW).alias("window"), "metric").agg(*map(expr, measures))
