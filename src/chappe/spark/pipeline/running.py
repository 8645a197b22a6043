"""The queries of a pipeline, from session to end, on a thread of their own: calls into Java do not hear Ctrl-C."""

from __future__ import annotations

import json
import queue
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from chappe.errors import ChappeError, UsageError
from chappe.observing.snapshot import ObservedQuery
from chappe.spark.narrow import narrowed
from chappe.spark.pipeline.frames import Prepared, folders, prepare, sink_options
from chappe.spark.pipeline.model import Output, Pipeline, Trigger
from chappe.spark.pipeline.progress import Tracker
from chappe.spark.sentences import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOOK_S: Final = 0.1
IDLE_S: Final = 3.0  # without a batch: the rates of the last one hold no longer
GRACE_S: Final = 120.0  # at the end a batch gets this long to be finished
START_S: Final = 60.0  # between the starts of the first and the last query
LAST_WORDS_S: Final = 5.0  # Spark tells of the last batches a moment after a query has ended
ROWS_MAX: Final = 1000  # of one batch that the console prints
# Settings of Spark that a pipeline has unless its file says otherwise.
SETTINGS: Final[Mapping[str, str]] = {"spark.sql.session.timeZone": "UTC"}

Stage: TypeAlias = Literal["starting", "running", "ending", "ended"]


class PipelineFailed(ChappeError):
    """A query of a pipeline ended unexpectedly; the text has Spark's reason."""


@dataclass(frozen=True, slots=True)
class ConsoleRows:
    """A batch of rows for the console, one JSON object each; ``more`` were left out."""

    query: str
    rows: list[str]
    more: int


Event: TypeAlias = ObservedQuery | ConsoleRows  # a query has done a batch, or nothing for a while; rows to print


class RunningPipeline:
    """A pipeline that runs. ``events`` are for one reader; the other members may be read at any time.

    Args:
        pipeline: What to run.
        towers: Asked for stores where the file names none.
        master: Where Spark runs, instead of what the file says.
        trigger: When batches run, instead of what the file says.
    """

    def __init__(
        self, pipeline: Pipeline, towers: str, *, master: str | None = None, trigger: Trigger | None = None
    ) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.stage: Stage = "starting"
        self.error: BaseException | None = None
        self.unfinished = False  # True if it ended in the middle of a batch
        self.page = ""  # Spark's own, where it is enabled and this process has a Spark
        self.master = master or pipeline.settings.get("spark.master") or pipeline.master
        self._pipeline = pipeline
        self._towers = towers
        self._trigger = trigger
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._trackers = {each.name: Tracker(each.name) for each in pipeline.queries}
        self._progress_at: dict[str, float] = {}
        self._started = threading.Event()  # set once all queries have started, whose ids are known then
        self._ids: dict[str, str] = {}  # by the name of a query; an id outlives restarts
        self._ended: set[str] = set()  # run ids whose end Spark has told
        self._done = threading.Event()
        threading.Thread(target=self._run, name="chappe pipeline", daemon=True).start()

    @property
    def numbers(self) -> list[ObservedQuery]:
        return [each.numbers for each in self._trackers.values()]

    @property
    def alive(self) -> bool:
        return not self._done.is_set()

    def join(self, timeout_s: float) -> None:
        self._done.wait(timeout_s)  # not the thread: a join that Ctrl-C interrupts takes it for ended

    def stop(self, *, hurry: bool = False) -> None:
        """Ask it to end: after the batches under way, or, in a hurry, at once."""
        if hurry:
            self._hurry.set()
        self._stop.set()

    def _run(self) -> None:
        try:
            self._session_and_queries()
        except BaseException as error:
            self.error = error
        self.stage = "ended"
        self._done.set()

    def _session_and_queries(self) -> None:
        from chappe.spark.session import session_runs, spark_session

        ours = not session_runs()
        conf = {**SETTINGS, **self._pipeline.settings}
        spark = spark_session(f"chappe pipeline {self._pipeline.name}", conf=conf, master=self.master, apart=True)
        if not self.master.startswith("sc://"):
            self.master = spark.conf.get("spark.master") or self.master  # under spark-submit it is not ours to say
            self.page = spark.sparkContext.uiWebUrl or ""
        try:
            if not self._stop.is_set():
                prepared = prepare(spark, self._pipeline, self._towers)
                self._queries(spark, prepared)
        finally:
            if ours:
                with suppress(Exception):  # Java may be gone already, and gone is what it should be
                    spark.stop()

    def _queries(self, spark: SparkSession, prepared: list[Prepared]) -> None:
        listener = _listener(self)
        spark.streams.addListener(listener)
        started: dict[str, tuple[Prepared, StreamingQuery]] = {}
        try:
            for each in prepared:
                if self._stop.is_set():
                    return
                started[each.query.name] = (each, self._start(each))
                self._ids[each.query.name] = str(started[each.query.name][1].id)
            self._started.set()
            self.stage = "running"
            self._watch(started)
        finally:
            for _, running in started.values():
                with suppress(Exception):
                    running.stop()
            deadline = time.monotonic() + LAST_WORDS_S
            wanted = {str(running.runId) for _, running in started.values()}
            while not wanted <= self._ended and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            with suppress(Exception):
                spark.streams.removeListener(listener)

    def _start(self, prepared: Prepared) -> StreamingQuery:
        query = prepared.query
        trigger = self._trigger or query.trigger
        try:
            writer = narrowed(prepared.records).writeStream.queryName(query.name).outputMode(query.output.mode)
            writer = writer.option("checkpointLocation", query.checkpoint)
            if trigger.available_now:
                writer = writer.trigger(availableNow=True)
            elif trigger.interval_ms:
                writer = writer.trigger(processingTime=f"{trigger.interval_ms} milliseconds")
            return self._into(writer, query.name, query.output).start()
        except ChappeError:
            raise
        except Exception as error:
            raise PipelineFailed(failure(error, query.name, query.checkpoint)) from error

    def _into(self, writer: DataStreamWriter, query: str, output: Output) -> DataStreamWriter:
        match output.kind:
            case "topic" | "table" if output.mode == "update":
                self._need_here("an output to a topic or table in mode update")
                return writer.foreachBatch(lambda batch, number: self._write(query, output, batch, number))
            case "topic" | "table":
                return writer.format("chappe").options(**sink_options(output, self._towers))
            case "parquet":
                assert output.path is not None
                given = {name: value for name, value in output.options.items() if name.lower() != "partitionby"}
                return writer.format("parquet").options(**given, path=output.path).partitionBy(*folders(output))
            case "console":
                self._need_here("an output of kind console")
                return writer.foreachBatch(lambda batch, _: self._show(query, batch))

    def _need_here(self, what: str) -> None:
        if self.master.startswith("sc://"):
            raise UsageError(f"{what} needs Spark in this process, not Spark Connect: give another --master")

    def _write(self, query: str, output: Output, batch: DataFrame, number: int) -> None:
        """Write a batch of rows that replace older ones: Spark gives such only away batch by batch.

        The query's id and the batch's number make its repetition known, as in a sink of its own.
        """
        if not self._started.wait(START_S):
            raise PipelineFailed(f"query {query} did not start within {START_S:g} s")
        options = sink_options(output, self._towers) | {"writeId": self._ids[query], "writeBatch": str(number)}
        batch.write.format("chappe").mode("append").options(**options).save()

    def _show(self, query: str, batch: DataFrame) -> None:
        from pyspark.sql import functions as f

        rows = [row[0] for row in batch.select(f.to_json(f.struct("*"))).take(ROWS_MAX + 1)]
        more = batch.count() - ROWS_MAX if len(rows) > ROWS_MAX else 0
        if rows:
            self.events.put(ConsoleRows(query, rows[:ROWS_MAX], more))

    def _watch(self, started: Mapping[str, tuple[Prepared, StreamingQuery]]) -> None:
        while not self._stop.wait(LOOK_S):
            if not self._look(started):
                return
        self.stage = "ending"
        batches = {name: self._trackers[name].numbers.batches for name in started}
        deadline = time.monotonic() + GRACE_S
        while any(self._in_batch(name, running, batches[name]) for name, (_, running) in started.items()):
            self._look(started)
            if time.monotonic() >= deadline or self._hurry.wait(LOOK_S):
                self.unfinished = True
                return
        self._look(started)  # a batch may have failed meanwhile

    def _in_batch(self, name: str, running: StreamingQuery, batches: int) -> bool:
        """True if a query still does the batch that it did when ``batches`` were done."""
        if self._trackers[name].numbers.batches > batches or not running.isActive:
            return False
        return bool(running.status["isTriggerActive"])

    def _look(self, started: Mapping[str, tuple[Prepared, StreamingQuery]]) -> bool:
        """True if any query runs; raises PipelineFailed if one has failed."""
        active = False
        for name, (prepared, running) in started.items():
            if running.isActive:
                active = True
                self._settle(name, running, prepared.query.trigger.interval_ms)
                continue
            error = running.exception()
            if error is not None:
                raise PipelineFailed(failure(error, name, prepared.query.checkpoint)) from error
        return active

    def _settle(self, name: str, running: StreamingQuery, interval_ms: int) -> None:
        """Let the rates go to 0 if nothing has come for a while."""
        tracker = self._trackers[name]
        quiet = time.monotonic() - self._progress_at.get(name, time.monotonic())
        moving = tracker.numbers.rows_in_s or tracker.numbers.rows_processed_s
        if moving and quiet > IDLE_S + interval_ms / 1000 and not running.status["isTriggerActive"]:
            self.events.put(tracker.idle())

    def heard(self, name: str, progress: Mapping[str, Any]) -> None:
        """Take over Spark's progress of a query; called by the listener."""
        tracker = self._trackers.get(name)
        if tracker is not None:
            self._progress_at[name] = time.monotonic()
            self.events.put(tracker.take(progress, time.monotonic()))

    def heard_end(self, run_id: str) -> None:
        self._ended.add(run_id)


def _listener(running: RunningPipeline) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    # what Spark Connect says when a process ends that had a listener
    warnings.filterwarnings("ignore", "StreamingQueryListenerBus Handler thread")

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            running.heard(event.progress.name or "", json.loads(event.progress.json))

        def onQueryTerminated(self, event: Any) -> None:
            running.heard_end(str(event.runId))

    return Listener()
