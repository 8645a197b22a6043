"""Reading topics in a batch: what is there when the query starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from chappe.reading.bounds import bounded
from chappe.spark.options import Options
from chappe.spark.pushdown import Narrowing
from chappe.spark.tasks import read_partition, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa


class TopicReader(DataSourceReader):
    """Reads what is there when the query starts.

    Spark refuses a reader that overrides ``pushFilters`` unless filter pushdown is switched on for the session, and
    does not say whether it is. So it is not overridden: see ``_PushFilters``.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._narrowing = Narrowing()
        self.pushFilters = _PushFilters(self._push)  # type: ignore[method-assign]

    def _push(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Take from Spark's filters what narrows the read; Spark applies all of them again."""
        self._narrowing = Narrowing.of(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the stores once, and cut what they have into tasks."""
        reading = self._options.reading
        view = reading.view()
        try:
            wanted = self._narrowing.apply(bounded(reading, view, self._narrowing.fits), view)
        finally:
            view.close()
        task = partial(reading.task, since=self._narrowing.since, until=self._narrowing.until)
        return tasks_of(wanted, self._options.tasks, task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in the executors."""
        return read_partition(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_narrowing": self._narrowing}


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
