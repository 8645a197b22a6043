"""Reading topics in a batch: what is there when the query starts, narrowed by what filters leave to be read.

A filter on topic, partition, offset or timestamp only ever narrows: Spark applies all of them again. Times of records
need not rise within a partition, so a lower bound drops what comes before the first batch that reaches it, and an upper
bound drops single batches behind it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from chappe.api.times import as_micros
from chappe.arrow import shown
from chappe.reading.bounds import bounded, offsets_at
from chappe.reading.fetch import Task, read_task
from chappe.reading.offsets import OFFSET_MAX, TIME_MAX, TIME_MIN, Range, cut
from chappe.reading.view import StoresView
from chappe.spark.options import Options
from chappe.system.memory import keep_freed

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    """Reads what is there when the query starts.

    Spark refuses a reader that overrides ``pushFilters`` unless filter pushdown is switched on for the session, and
    does not say whether it is. So it is not overridden: see ``_PushFilters``.
    """

    def __init__(self, options: Options, required: frozenset[str] = frozenset()) -> None:
        self._options = options
        self._required = required  # the columns that Spark takes for not nullable
        self._narrowing = Narrowing()
        self.pushFilters = _PushFilters(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Take from Spark's filters what narrows the read; Spark applies all of them again."""
        self._narrowing = Narrowing.of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the stores once, and cut what they have into tasks."""
        reading = self._options.reading
        with closing(reading.view()) as view:
            wanted = self._narrowing.apply(bounded(reading, view, self._narrowing.fits), view)
        task = partial(reading.task, since=self._narrowing.since, until=self._narrowing.until)
        return tasks_of(wanted, self._options.tasks, task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in the executors."""
        return read_partition(partition, self._required)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_required": self._required, "_narrowing": self._narrowing}


class _PushFilters:
    """Stands in a reader for its method ``pushFilters``.

    When pushdown is on, Spark calls it. When it is off, Spark looks whether the method's function is still that of
    the base class, and fails the query otherwise; so this one says that it is.
    """

    def __init__(self, push: Callable[[Sequence[Filter]], Iterable[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class TopicPartition(InputPartition):
    """One task's ranges, on their way to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


def tasks_of(
    wanted: Sequence[Range], count: int | None, task: Callable[[tuple[Range, ...]], Task]
) -> list[InputPartition]:
    """Share ranges out among ``count`` tasks; None: as many as there are processors, and none that is tiny."""
    shared = cut(wanted, _processors()) if count is None else cut(wanted, count, bytes_min=1)
    return [TopicPartition(replace(task(each), turn=turn)) for turn, each in enumerate(shared)]


def read_partition(partition: InputPartition, required: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Called in the executors. Spark wants ``required`` columns to say that they are not nullable, and only these."""
    if not isinstance(partition, TopicPartition):  # Spark's stand-in for a batch without any partition
        return iter(())
    _settle()
    return _while_read(_said(read_task(partition.task), required))


def _said(batches: Iterator[pa.RecordBatch], required: frozenset[str]) -> Iterator[pa.RecordBatch]:
    schema: pa.Schema | None = None
    for each in batches:
        if schema is None:
            schema = each.schema
            for at, name in enumerate(schema.names):
                schema = schema.set(at, schema.field(at).with_nullable(name not in required))
        yield type(each).from_arrays(each.columns, schema=schema)


def _while_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; a worker whose task Spark has ended meanwhile, because of a LIMIT, ends without a word.

    Spark closes the worker's socket, and what is written next fails. The worker is of no use then, and without this
    its last words would be the traceback of a BrokenPipeError. Spark looks for errors of its own before it closes.
    """
    try:
        yield from batches
    except GeneratorExit as end:
        if isinstance(end.__context__, (BrokenPipeError, ConnectionResetError)):
            os._exit(0)
        raise


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _settle() -> None:
    """Take what a worker has loaded out of the garbage collector's rounds, which cost it a fifth of its time."""
    gc.freeze()
    keep_freed()


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What may be left of the records."""

    topics: frozenset[str] | None = None  # names, as they are shown; None: any
    partitions: frozenset[str] | None = None  # the same
    prefixes: tuple[str, ...] = ()  # what a topic's name starts with
    first: int = 0  # the smallest offset
    end: int = OFFSET_MAX  # the offset behind the largest
    since: int = TIME_MIN  # the earliest timestamp in microseconds since 1970
    until: int = TIME_MAX  # the latest

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """All filters together; those that say nothing of use here are passed over."""
        found = cls()
        for each in filters:
            found = found._with(each)
        return found

    def fits(self, topic: str, partition: str) -> bool:
        """Whether anything of a partition may be left."""
        topic, partition = shown(topic), shown(partition)
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and all(topic.startswith(each) for each in self.prefixes)
        )

    def apply(self, wanted: Sequence[Range], view: StoresView) -> list[Range]:
        """What is left of the ranges."""
        found = [each for each in map(self._offsets, wanted) if len(each) > 0]
        found = [each for each in found if self._may_be_in_time(each, view)]
        if self.since == TIME_MIN:
            return found
        keys = [(each.topic, each.partition) for each in found if (each.topic, each.partition) in view.known]
        reached = offsets_at(view, self.since, keys, exact=False)
        found = [each.part(max(each.start, reached.get((each.topic, each.partition), 0)), each.end) for each in found]
        return [each for each in found if each.start < each.end]

    def _with(self, given: Filter) -> Narrowing:
        names: Iterable[object] | None = None
        low, high = TIME_MIN, TIME_MAX
        match given:
            case ds.EqualTo((column,), value) | ds.EqualNullSafe((column,), value):
                names = [value] if isinstance(value, str) else None
                low, high = _number(value, low), _number(value, high)
            case ds.In((column,), values):
                names = values
            case ds.GreaterThan((column,), value) | ds.GreaterThanOrEqual((column,), value):
                low = _number(value, low)
            case ds.LessThan((column,), value) | ds.LessThanOrEqual((column,), value):
                high = _number(value, high)
            case ds.StringStartsWith(("topic",), prefix):
                return replace(self, prefixes=(*self.prefixes, prefix))
            case _:
                return self
        if column == "topic" and names is not None:
            return replace(self, topics=_both(self.topics, names))
        if column == "partition" and names is not None:
            return replace(self, partitions=_both(self.partitions, names))
        if column == "offset":
            low += isinstance(given, ds.GreaterThan)
            high += not isinstance(given, ds.LessThan)
            return replace(self, first=max(self.first, low), end=min(self.end, high))
        if column == "timestamp":
            return replace(self, since=max(self.since, low), until=min(self.until, high))
        return self

    def _offsets(self, each: Range) -> Range:
        start, end = max(each.start, self.first), min(each.end, self.end)
        return each.part(min(start, each.end), max(end, min(start, each.end)))

    def _may_be_in_time(self, each: Range, view: StoresView) -> bool:
        have = view.known.get((each.topic, each.partition))
        return have is None or (have.timestamp_max >= self.since and have.timestamp_min <= self.until)


def _both(one: frozenset[str] | None, names: Iterable[object]) -> frozenset[str]:
    found = frozenset(each for each in names if isinstance(each, str))
    return found if one is None else one & found


def _number(value: object, otherwise: int) -> int:
    if isinstance(value, datetime):
        return as_micros(value) if value.tzinfo is not None else otherwise
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
