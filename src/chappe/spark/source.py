"""``format("chappe")``: topics as DataFrames, in batches and in streams.

The driver asks the stores how far each partition goes and cuts what is new into tasks; the executors read their
ranges straight from the stores and hand Arrow batches to Spark. Offsets live in Spark's checkpoint alone, so a
restarted query reads exactly the offsets that it had planned.

Spark makes these objects in one process and pickles them into others: they hold no connection until they need it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chappe.errors import OffsetOutOfRange, TimedOut, UnknownTopic, UsageError
from chappe.spark.fetch import Task, read_task
from chappe.spark.offsets import (
    AT_LATEST,
    EARLIEST,
    FROM_LATEST,
    LATEST,
    Key,
    Known,
    Offsets,
    Range,
    cut,
    flatten,
    is_symbolic,
    latest,
    ranges,
    resolve,
    unflatten,
)
from chappe.spark.options import Options
from chappe.spark.view import StoresView

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)


class ChappeDataSource(DataSource):
    """What Spark makes for ``format("chappe")``; the options are in ``options.py``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = Options.parse(options)

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "chappe"

    def schema(self) -> StructType:
        """The columns, always the same."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        _check(schema)
        if self._options.max_records is not None:
            raise UsageError("`maxRecordsPerTrigger` is for streams; a batch is bounded by `endingOffsets`")
        return TopicReader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        _check(schema)
        if self._options.ending is not None:
            raise UsageError("`endingOffsets` is for batches; a stream ends with trigger(availableNow=True)")
        return TopicStreamReader(self._options)


class TopicPartition(InputPartition):
    """One task's ranges, on their way to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class TopicReader(DataSourceReader):
    """Reads what is there when the query starts."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the stores once, and cut what they have into tasks."""
        view = StoresView(self._options.filters, self._options.stores, self._options.tower)
        try:
            view.refresh()
            if view.away and self._options.fail_on_data_loss:
                raise TimedOut(
                    f"the store at {', '.join(view.away)} does not answer and may have records that others lack; "
                    "start it, leave it out of `stores`, or set failOnDataLoss to false"
                )
            self._check_topics(view)
            wanted = self._ranges(view)
        finally:
            view.close()
        return _tasks(self._options, wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in the executors."""
        return _read(partition)

    def _check_topics(self, view: StoresView) -> None:
        found = {topic for topic, _ in view.known}
        missing = [each.name for each in self._options.filters if not each.prefix and each.name not in found]
        if missing:
            raise UnknownTopic(f"no store at {', '.join(view.endpoints)} has a topic named {', '.join(missing)}")

    def _ranges(self, view: StoresView) -> list[Range]:
        known = view.known
        start = _bounds(self._options.starting or EARLIEST, known, EARLIEST)
        end = _bounds(self._options.ending or LATEST, known, LATEST)
        for key, stop in end.items():
            have = known.get(key)
            if stop > (have.next if have else 0):
                raise OffsetOutOfRange(
                    f"partition {key[1]} of topic {key[0]} ends before offset {have.next if have else 0}: "
                    f"{stop} in `endingOffsets` is not there yet"
                )
        wanted = ranges(unflatten(start), unflatten(end), known, view.endpoints)
        return _without_lost(wanted, known, self._options.fail_on_data_loss)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics. The driver keeps one for as long as the query runs; executors only use ``read``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._view: StoresView | None = None
        self._target: dict[Key, int] | None = None

    def initialOffset(self) -> Offsets:
        """Where a new query starts; symbols stay symbols, see ``offsets.py``."""
        starting = self._options.starting or LATEST
        if isinstance(starting, dict):
            return unflatten({key: n for key, n in flatten(starting).items() if n >= AT_LATEST})
        return FROM_LATEST if starting == LATEST else {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most ``maxRecordsPerTrigger``, if that is set."""
        limit = self._options.max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is where the query ends."""
        self._target = {key: each.next for key, each in self._refreshed().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """How far the next batch reads."""
        known = self._known() if self._target is None else self._bounded(self._target)
        if is_symbolic(start):
            return resolve(start, known)
        return latest(start, known, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offsets | None:
        """The heads, for the lag in the query's progress."""
        if self._view is None:
            return None
        return unflatten({key: each.next for key, each in self._view.known.items()})

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Cut what lies between two offsets into tasks; on a restart these come from the checkpoint."""
        known = self._known()
        everyone = self._view.endpoints if self._view else self._options.stores
        wanted = ranges(start, end, known, everyone)
        return _tasks(self._options, _without_lost(wanted, known, self._options.fail_on_data_loss))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in the executors."""
        return _read(partition)

    def commit(self, end: Offsets) -> None:
        """Nothing to do: the checkpoint is the only place where the query's position is kept."""

    def stop(self) -> None:
        """Close the connections."""
        if self._view is not None:
            self._view.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_view": None, "_target": None}

    def _known(self) -> dict[Key, Known]:
        return self._refreshed() if self._view is None or self._target is None else self._view.known

    def _refreshed(self) -> dict[Key, Known]:
        if self._view is None:
            self._view = StoresView(self._options.filters, self._options.stores, self._options.tower)
        self._view.refresh()
        return self._view.known

    def _bounded(self, target: Mapping[Key, int]) -> dict[Key, Known]:
        """What was there when the run was prepared."""
        known = self._known()
        return {
            key: Known(each.first, min(each.next, target[key]), each.bytes, each.holders)
            for key, each in known.items()
            if key in target
        }


def _check(schema: StructType) -> None:
    if schema.simpleString() != SCHEMA.simpleString():
        raise UsageError(f"the columns of format chappe are {SCHEMA.simpleString()}; leave out .schema(...)")


def _bounds(wanted: str | Offsets, known: Mapping[Key, Known], default: str) -> dict[Key, int]:
    """The offsets of a batch's start or end as numbers; partitions that it does not name get ``default``."""
    given = flatten(wanted) if isinstance(wanted, dict) else {}
    otherwise = default if isinstance(wanted, dict) else wanted
    found = {key: n for key, n in given.items() if n >= 0}
    for key, each in known.items():
        n = given.get(key, AT_LATEST if otherwise == LATEST else None)
        if key not in found:
            found[key] = each.next if n == AT_LATEST else each.first
    return found


def _without_lost(wanted: Sequence[Range], known: Mapping[Key, Known], fail: bool) -> list[Range]:
    """Find records that retention took before they were read.

    The tasks check again, since retention goes on; found here, one error names all that is lost.
    """
    kept, lost = [], []
    for each in wanted:
        have = known.get((each.topic, each.partition))
        start = max(each.start, min(have.first, each.end)) if have else each.start
        if start > each.start:
            lost.append(Range(each.topic, each.partition, each.start, start))
        if start < each.end:
            kept.append(Range(each.topic, each.partition, start, each.end, each.holders, each.record_bytes))
    if lost:
        named = "; ".join(map(str, lost[:10])) + (f"; and {len(lost) - 10} more" if len(lost) > 10 else "")
        if fail:
            raise OffsetOutOfRange(
                f"data loss: no store has {named} any more; set failOnDataLoss to false to go on without them"
            )
        logger.warning("data loss: no store has %s any more; going on without them", named)
    return kept


def _tasks(options: Options, wanted: Sequence[Range]) -> list[InputPartition]:
    if options.tasks is None:
        shared = cut(wanted, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    else:
        shared = cut(wanted, options.tasks, bytes_min=1)
    return [TopicPartition(Task(each, options.fail_on_data_loss, options.tower)) for each in shared]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TopicPartition):  # Spark's stand-in for a batch without any partition
        return iter(())
    return read_task(partition.task)
