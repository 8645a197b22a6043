"""``df.write.format("chappe")`` and ``df.writeStream.format("chappe")``: rows become records, exactly once.

Tasks stage their rows at the sink's home (``home.py``) under batch, task and attempt. When Spark has decided which
attempts count, the driver has exactly these made visible in one step. A batch that was committed before is not
written again, however often and in whatever order Spark runs its tasks.

Spark makes these objects in one process and pickles them into others: they hold no connection.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chappe.errors import ChappeError, UsageError
from chappe.spark.columns import Columns
from chappe.spark.encode import Encoder, sort_rows
from chappe.spark.home import Home, Sink, Stores, settle
from chappe.spark.origins import Origin, begin
from chappe.spark.sink_options import SinkOptions
from chappe.spark.sink_rows import Staged, Staging, abort, commit

if TYPE_CHECKING:
    import pyarrow as pa

HOMES_MAX: Final = 16  # that a worker remembers

_homes: OrderedDict[Sink, Home] = OrderedDict()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the driver tells every task."""

    columns: Columns
    topic: str | None
    stores: Stores
    min_acks: int

    @classmethod
    def make(cls, options: SinkOptions, schema: StructType) -> _Plan:
        columns = Columns.find(schema, options.topic, options.order)
        stores = Stores(options.stores, options.towers, options.patience_s).known()
        return cls(columns, options.topic, stores, options.min_acks)


class _Ending:
    """How a write ends, in the driver."""

    _plan: _Plan

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Called once all tasks have ended well."""
        commit(self._plan.stores, [each for each in messages if isinstance(each, Staged)], self._plan.min_acks)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Called if a task or the commit failed."""
        abort([each for each in messages if isinstance(each, Staged)])


class TopicWriter(_Ending, DataSourceArrowWriter):
    """Writes one DataFrame. Spark makes it once, in the driver."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if options.write_again is not None:
            raise UsageError("`writeAgain` is for streams; a batch write without `writeId` is written again anyway")
        if overwrite:
            raise UsageError('records cannot be overwritten, only appended: use mode("append"), or INSERT INTO')
        self._plan = _Plan.make(options, schema)
        name = f"write {options.write_id}" if options.write_id else str(uuid.uuid4())
        self._sink = Sink(name, str(uuid.uuid4()), lasting=options.write_id is not None)
        self._batch = options.write_batch
        self._home = settle(self._plan.stores, self._sink, self._batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Called in the executors."""
        return _write(iterator, self._plan, self._sink, _homes.get(self._sink, self._home), self._batch)


class TopicStreamWriter(_Ending, DataSourceStreamArrowWriter):
    """Writes one micro-batch. Spark makes it twice for each: for the tasks, and for the commit."""

    def __init__(self, options: SinkOptions, schema: StructType, origins: Sequence[Origin] = ()) -> None:
        if options.write_id is not None:
            raise UsageError("`writeId` is for batch writes; a stream is known by its checkpoint")
        self._plan = _Plan.make(options, schema)
        self._origins = origins
        self._again = options.write_again

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Called in the executors."""
        sink = Sink(_property("sql.streaming.queryId"), _property("spark.jobGroup.id"), lasting=True)
        batch = int(_property("streaming.sql.batchId"))
        home = _homes.get(sink) or begin(self._plan.stores, sink, batch, self._origins, self._again)
        return _write(iterator, self._plan, sink, home, batch)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() was called outside of a task"
    return context


def _property(name: str) -> str:
    found = _context().getLocalProperty(name)
    if not found:
        raise ChappeError(f"Spark does not tell its tasks {name}, so exactly-once cannot be kept; report this")
    return found


def _write(batches: Iterator[pa.RecordBatch], plan: _Plan, sink: Sink, home: Home, batch: int) -> Staged:
    """Stage one task's rows."""
    context = _context()
    task, attempt = context.partitionId(), context.taskAttemptId()
    staging = Staging(plan.stores, home, sink, batch, task, attempt)
    if batch <= home.committed:
        for _ in batches:  # committed before; but what is upstream, state above all, is only complete when it was read
            pass
    else:
        try:
            encoder = Encoder(plan.columns, plan.topic)
            for each in sort_rows(batches, plan.columns.order) if plan.columns.order else batches:
                for piece in encoder.add(each):
                    staging.put(piece)
            for piece in encoder.finish():
                staging.put(piece)
            staging.finish()
        except BaseException:
            staging.give_up()
            raise
    _homes[sink] = staging.home
    while len(_homes) > HOMES_MAX:
        _homes.popitem(last=False)
    return Staged(sink, staging.home, batch, task, attempt, staging.pieces, staging.rows, tuple(staging.topics))
