"""Batch reads of topics: plans the records that exist, cuts them into tasks, and runs tasks."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DataType

from chappe.reading.bounds import bounded
from chappe.reading.fetch import ReadTask, read_task
from chappe.reading.offsets import Range, at_most, cut
from chappe.spark.options import Options
from chappe.spark.sentences import untraced
from chappe.spark.value_schemas import ValueSchema, decode_values
from chappe.system.memory import keep_freed

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    """Reads the records that exist when Spark first plans the DataFrame.

    It has no ``pushFilters``: Spark keeps one plan of a reader for all uses of a DataFrame, so filters that were pushed
    for one of them would bind the others too. ``narrowed`` gives each use a source of its own, with ``filters``.
    """

    def __init__(self, options: Options, required: frozenset[str] = frozenset(), value: DataType | None = None) -> None:
        self._options = options
        self._required = required  # the columns that Spark takes for not nullable
        self._value = value  # the type of values with a schema

    @untraced()
    def partitions(self) -> Sequence[InputPartition]:
        """Ask the stores once, and cut what they have into tasks."""
        reading, filters = self._options.reading, self._options.filters
        with closing(reading.view()) as view:
            wanted = filters.apply(bounded(reading, view, filters.fits), view)
        return tasks_of(wanted, self._options, partial(reading.task, since=filters.since, until=filters.until))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._required, self._options.value, self._value)


class TopicPartition(InputPartition):
    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


def tasks_of(
    wanted: Sequence[Range], options: Options, task: Callable[[tuple[Range, ...]], ReadTask]
) -> list[InputPartition]:
    """Distribute ranges over tasks; without ``minPartitions`` one per processor, but none that is tiny."""
    count = options.tasks
    shared = cut(wanted, _processors()) if count is None else cut(wanted, count, bytes_min=1)
    if options.task_records is not None:
        shared = at_most(shared, options.task_records)
    return [TopicPartition(replace(task(each), turn=turn)) for turn, each in enumerate(shared)]


def read_partition(
    partition: InputPartition, required: frozenset[str], schema: ValueSchema | None, value: DataType | None
) -> Iterator[pa.RecordBatch]:
    """Read in the executors. Spark wants ``required`` columns to say that they are not nullable, and only these."""
    if not isinstance(partition, TopicPartition):  # Spark's stand-in for a batch without any partition
        return iter(())
    _settle()
    batches = read_task(partition.task)
    if schema is not None and value is not None:
        batches = decode_values(batches, schema, value)
    return _while_read(_said(batches, required))


def _said(batches: Iterator[pa.RecordBatch], required: frozenset[str]) -> Iterator[pa.RecordBatch]:
    schema: pa.Schema | None = None
    for each in batches:
        if schema is None:
            schema = each.schema
            for at, name in enumerate(schema.names):
                schema = schema.set(at, schema.field(at).with_nullable(name not in required))
        yield type(each).from_arrays(each.columns, schema=schema)


def _while_read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; a worker whose task Spark has ended meanwhile, because of a LIMIT, ends without a word.

    Spark closes the worker's socket, and what is written next fails. The worker is of no use then, and without this
    its last words would be the traceback of a BrokenPipeError. Spark looks for errors of its own before it closes.
    """
    try:
        with untraced():
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
