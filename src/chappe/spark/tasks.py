"""Ranges on their way into Spark's tasks."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from chappe.reading.fetch import Task, read_task
from chappe.reading.offsets import Range, cut
from chappe.system.memory import keep_freed

if TYPE_CHECKING:
    import pyarrow as pa


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


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Called in the executors."""
    if not isinstance(partition, TopicPartition):  # Spark's stand-in for a batch without any partition
        return iter(())
    _settle()
    return _while_read(read_task(partition.task))


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
