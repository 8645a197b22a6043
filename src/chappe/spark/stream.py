"""Following topics in a stream.

Spark's driver keeps one reader for as long as the query runs; the offsets that it hands out go into the checkpoint and
come back from there. See ``reading/offsets.py`` for what they hold.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as ds

from chappe.errors import OffsetOutOfRange, UnknownTopic, UsageError
from chappe.reading import offsets as places
from chappe.reading.bounds import Moment, check_ends, offsets_at, without_lost
from chappe.reading.offsets import LATEST, SYMBOLS, TIME, Key, KnownPartition, Offsets
from chappe.reading.view import StoresView
from chappe.spark.batch import read_partition, tasks_of
from chappe.spark.options import Options
from chappe.spark.sentences import untraced

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

logger = logging.getLogger(__name__)

REPORTED_MAX: Final = 10_000  # partitions in a progress report; with more of them, only those that lag


class TopicStreamReader(DataSourceStreamReader, ds.SupportsTriggerAvailableNow):
    """Follows topics; executors only use ``read``. ``required`` are the columns that Spark takes for not nullable."""

    def __init__(self, options: Options, required: frozenset[str] = frozenset(), value: DataType | None = None) -> None:
        self._options = options
        self._required = required
        self._value = value  # the type of values with a schema
        self._view: StoresView | None = None
        self._target: dict[Key, int] | None = None
        self._initial: Offsets | None = None  # the start of a new query, until a look from there has found nothing
        self._start: Offsets | None = None  # the start of the batch that was planned last, ...
        self._end: Offsets = {}  # ... its end, ...
        self._looked_at: set[Key] = set()  # ... and all partitions that differ between the two
        self._news: set[Key] = set()  # partitions with records that no batch has yet, or of which anything changed
        self._batch_at: float | None = None  # when the last batch was planned
        self._missed_at: float | None = None
        self._missing: str | None = None  # the last warning about missing records

    @untraced()
    def initialOffset(self) -> Offsets:
        """Return the start of a new query, with symbols unresolved (see ``offsets.py``)."""
        self._initial = self._starting()
        return self._initial

    def _starting(self) -> Offsets:
        starting = self._options.reading.starting or LATEST
        if isinstance(starting, Moment):
            return places.from_moment(starting.timestamp)
        if isinstance(starting, dict):
            given = {key: n for key, n in places.flatten(starting).items() if n >= places.AT_LATEST}
            check_ends(given, self._refreshed().known, "startingOffsets")
            return places.unflatten(given)
        return places.FROM_LATEST if starting == LATEST else {}

    def getDefaultReadLimit(self) -> ds.ReadLimit:
        """Return one of the limits, so that Spark knows of any; ``latestOffset`` keeps to both."""
        if self._options.max_records is not None:
            return ds.ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ds.ReadMaxBytes(self._options.max_bytes)
        if self._options.min_records is not None:
            return ds.ReadMinRows(self._options.min_records)
        return ds.ReadAllAvailable()

    @untraced()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {key: each.next for key, each in self._refreshed().known.items()}

    @untraced()
    def latestOffset(self, start: Offsets, limit: ds.ReadLimit) -> Offsets:
        """Return the end of the next batch.

        Raises:
            StorageFormat: The checkpoint is a newer chappe's.
            UsageError: The checkpoint is of a query over other topics.
            UnknownTopic: A topic that was read is gone.
            OffsetOutOfRange: Partitions end before what was read of them.
        """
        self._check(start)
        view = self._refreshed() if self._view is None or self._target is None else self._view
        if places.is_symbolic(start):
            known = self._bounded(view, view.known)
            moment = start.get(SYMBOLS, {}).get(TIME)
            end = places.resolve(start, known, None if moment is None else offsets_at(view, moment, known))
            return self._planned(start, end, set(view.known), view)
        # usually the start is the last end: then only what is new needs a look
        keys = self._news if self._start is not None and start == self._end else {*view.known, *places.flatten(start)}
        self._check_left(start, view, keys)
        known = self._bounded(view, keys)
        limited = not isinstance(limit, ds.ReadAllAvailable)  # Trigger.Once wants everything
        rows_max = self._options.max_records if limited else None
        bytes_max = self._options.max_bytes if limited else None
        if limited and self._waits(start, known, keys):
            self._planned(start, start, keys, view)
            self._news |= keys  # also new partitions without remaining records
            return start
        begin = places.without_retired(start, view.known, keys) if view.whole else start
        end = places.latest(begin, known, rows_max, bytes_max, keys)
        if start == self._initial == end:
            self._initial = None  # later partitions count as new
        return self._planned(start, end, keys, view)

    def _waits(self, start: Offsets, known: Mapping[Key, KnownPartition], keys: set[Key]) -> bool:
        least, last = self._options.min_records, self._batch_at
        if least is None or last is None or self._target is not None:
            return False
        if time.monotonic() - last >= self._options.delay_s:
            return False
        there = places.ranges(start, places.latest(start, known, keys=keys), known, (), keys)
        return sum(map(len, there)) < least

    def reportLatestOffset(self) -> Offsets | None:
        """Return the heads, for the lag in the query's progress, and about the bytes of each topic in no batch yet."""
        if self._view is None:
            return None
        known = self._view.known
        keys = known if len(known) <= REPORTED_MAX else self._news  # Spark keeps a hundred reports in memory
        found = places.unflatten({key: known[key].next for key in keys if key in known})
        waiting: dict[str, int] = {}
        for key in self._news & known.keys():
            have, read = known[key], self._end.get(key[0], {}).get(key[1], known[key].first)
            waiting[key[0]] = waiting.get(key[0], 0) + (have.next - max(read, have.first)) * have.record_bytes
        return {SYMBOLS: dict(sorted(waiting.items())), **found} if waiting else found

    @untraced()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Cut what lies between two offsets into tasks; on a restart these come from the checkpoint."""
        self._check(start)
        self._check(end)
        reading = self._options.reading
        planned = self._view is not None and self._start == start and self._end == end
        view = self._view if self._view is not None and planned else self._refreshed()
        keys, first = self._looked_at if planned else None, start == self._initial
        wanted = places.ranges(start, end, view.known, view.endpoints, keys, first=first)
        wanted = without_lost(wanted, view.known, reading.fail_on_data_loss)
        return tasks_of(wanted, self._options, reading.task)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._required, self._options.value, self._value)

    def commit(self, end: Offsets) -> None:
        """Do nothing: the checkpoint is the only place where the query's position is kept."""

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_options": self._options,
            "_required": self._required,
            "_value": self._value,
        }  # all that the executors need

    def _refreshed(self) -> StoresView:
        if self._view is None:
            self._view = self._options.reading.view()
        self._news |= self._view.refresh()
        self._say_what_is_missing(self._view)
        return self._view

    def _say_what_is_missing(self, view: StoresView) -> None:
        """Warn of topics that are not there: they are waited for, but may be misspelt."""
        missing = self._options.reading.selection.missing({topic for topic, _ in view.known})
        if missing is not None and missing != self._missing:
            logger.warning("no store at %s has a topic %s yet; waiting for it", ", ".join(view.endpoints), missing)
        self._missing = missing

    def _bounded(self, view: StoresView, keys: Iterable[Key]) -> Mapping[Key, KnownPartition]:
        """Limit partitions to the records that an available-now run was prepared with; otherwise change nothing."""
        if self._target is None:
            return view.known
        found = {}
        for key in keys:
            have, stop = view.known.get(key), self._target.get(key)
            if have is not None and stop is not None:
                found[key] = have if have.next <= stop else replace(have, next=stop)
        return found

    def _planned(self, start: Offsets, end: Offsets, keys: set[Key], view: StoresView) -> Offsets:
        """Keep what the calls that follow would have to find out again."""
        self._start, self._end, self._looked_at = start, end, keys
        if end != start:
            self._batch_at = time.monotonic()
        self._news = {
            key
            for key in keys
            if key in view.known and view.known[key].next > end.get(key[0], {}).get(key[1], view.known[key].first)
        }
        return end

    def _check(self, offsets: Offsets) -> None:
        places.check_offsets(offsets)
        selection = self._options.reading.selection
        others = [topic for topic in offsets if topic != SYMBOLS and not selection.has_topic(topic)]
        if others and self._options.reading.fail_on_data_loss:
            raise UsageError(
                f"the checkpoint is of a query that reads topic {', '.join(others)}, and this one reads {selection}: "
                "give it a checkpoint of its own, or set failOnDataLoss to false to go on without what was read there"
            )

    def _check_left(self, start: Offsets, view: StoresView, keys: set[Key]) -> None:
        """Check that everything that was read is still in the stores. A store may come back, so that is an error only
        when everybody answers, and in a query that goes on only when it stays so.
        """
        watched = view.whole and self._options.reading.fail_on_data_loss
        lost = None
        if watched and (self._missed_at is not None or any(_shrank(key, start, view.known) for key in keys)):
            lost = _gone(start, view.known)
        if lost is None:
            self._missed_at = None
            return
        now = time.monotonic()
        if self._missed_at is None:
            self._missed_at = now
        if self._target is not None or now - self._missed_at >= self._options.reading.patience_s:
            raise lost


def _shrank(key: Key, start: Offsets, known: Mapping[Key, KnownPartition]) -> bool:
    have = known.get(key)
    return (have.next if have else 0) < start.get(key[0], {}).get(key[1], 0)


def _gone(start: Offsets, known: Mapping[Key, KnownPartition]) -> UnknownTopic | OffsetOutOfRange | None:
    topics = {topic for topic, _ in known}
    for topic, partitions in start.items():
        if topic not in topics and any(n > 0 for n in partitions.values()):
            return UnknownTopic(
                f"no store has topic {topic} any more, which this query has read: bring its store back, or set "
                "failOnDataLoss to false to wait for new records"
            )
        for partition, n in partitions.items():
            have = known.get((topic, partition))
            if have is None and n > 0:
                return OffsetOutOfRange(
                    f"no store has partition {partition} of topic {topic} any more, of which this query has read up to "
                    f"{n - 1}: bring its store back, or set failOnDataLoss to false to go on without it"
                )
            if have is not None and have.next < n:
                return OffsetOutOfRange(
                    f"partition {partition} of topic {topic} ends before offset {have.next}, and this query has read "
                    f"up to {n - 1}: bring the store back that has the rest, or set failOnDataLoss to false to wait"
                )
    return None
