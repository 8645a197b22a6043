"""Archived records in the order of their times, while each partition keeps its own order.

A record counts as sent when it was, or when any record before it in its partition was, whichever is later: so times
never go back within a partition, and sorting by (that time, partition, offset) is an order for all records that keeps
the order of each partition. It depends on nothing but the records, so a replay that was interrupted can go on in it.

The order is found without sorting everything. Parquet's statistics tell of most row groups that they hold neighbours of
one partition, and between which times; only of the others are the three small columns read. From that follows the
earliest time of each row group. Row groups are then read in the order of these times, and what lies before the
earliest time of all that were not read yet is complete, and can be sorted and passed on. So about one row group of
each partition is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chappe.defaults import MIB
from chappe.errors import StorageError
from chappe.reading.kept import Unsealing
from chappe.spark.archive.manifest import ArchivedFile
from chappe.spark.archive.unsealed import unsealed

HELD_BYTES: Final = 64 * MIB  # read before anything is passed on; more where more partitions overlap in time
EARLIEST_US: Final = -(1 << 63)
LATEST_US: Final = (1 << 63) - 1
RECORD_COLUMNS: Final = ["offset", "timestamp", "key", "value", "headers"]
_SORTED_BY: Final = ["partition", "offset", "timestamp"]

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class WantedRecords:
    """Selects records with ``since`` <= timestamp < ``until``, and of each partition those before an offset."""

    bounds: Mapping[str, Mapping[str, int]]  # by topic and partition; partitions that are missing are left out
    since: int = EARLIEST_US  # microseconds since 1970
    until: int = LATEST_US  # the same
    passed: int = EARLIEST_US  # records whose time in the order is before this one were passed on already


@dataclass(slots=True)
class GroupPiece:
    """Neighbours of one partition in one row group. ``floor``: the latest time of what comes before in it."""

    partition: tuple[str, str]
    first: int
    start: int
    rows: int
    timestamp_min: int
    timestamp_max: int
    floor: int = EARLIEST_US


@dataclass(slots=True)
class RowGroup:
    """A row group; its records have times in the order from ``low`` to ``high``."""

    path: Path
    index: int
    topic: str
    pieces: list[GroupPiece] = field(default_factory=list)
    low: int = LATEST_US
    high: int = EARLIEST_US

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.pieces)


@dataclass(frozen=True, slots=True)
class TopicRun:
    """Records of one topic in the order; ``times`` are theirs in it, rising."""

    topic: str
    records: pa.Table
    times: Numbers


@dataclass(frozen=True, slots=True)
class Window:
    """All records of all topics with times before ``end`` that did not come before; of each topic at most one run."""

    runs: tuple[TopicRun, ...]
    end: int


def plan(files: Iterable[tuple[Path, ArchivedFile]], wanted: WantedRecords) -> list[RowGroup]:
    """Return the row groups with wanted records, by their earliest times. Raises StorageError: a file is unreadable."""
    groups: list[RowGroup] = []
    for path, each in files:
        if each.topic in wanted.bounds and _overlaps(each.timestamp_min, each.timestamp_max, wanted):
            groups += _groups_of(path, each.topic, wanted)
    _set_times(groups, wanted)
    found = [each for each in groups if each.high >= wanted.passed]
    return sorted(found, key=attrgetter("low", "topic", "path", "index"))


def sweep(
    groups: list[RowGroup], wanted: WantedRecords, held_bytes: int = HELD_BYTES, unsealing: Unsealing | None = None
) -> Iterator[Window]:
    """Yield all wanted records, in the order; ``groups`` is what ``plan`` found. What was archived sealed is opened by
    ``unsealing``; its times in the order are those of the archive. Raises StorageError: a file cannot be read; Sealed:
    something cannot be opened.
    """
    ranks = {each: n for n, each in enumerate(sorted({p.partition for group in groups for p in group.pieces}))}
    held: list[_Held] = []
    for n, group in enumerate(groups):
        end = group.low
        if sum(each.size for each in held) >= held_bytes and any(each.times[0] < end for each in held):
            runs, held = _take_before(held, end)
            yield Window(runs, end)
        loaded = _load(group, wanted, ranks, unsealing)
        if len(loaded.times):
            held.append(loaded)
        groups[n] = RowGroup(group.path, group.index, group.topic)  # its pieces are not needed any more
    runs, _ = _take_before(held, None)
    if runs:
        yield Window(runs, LATEST_US)


def _overlaps(low: int, high: int, wanted: WantedRecords) -> bool:
    return high >= wanted.since and low < wanted.until


def _groups_of(path: Path, topic: str, wanted: WantedRecords) -> Iterator[RowGroup]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = [names.index(name) for name in _SORTED_BY]
            for index in range(file.num_row_groups):
                group = RowGroup(path, index, topic)
                pieces = _known_piece(file.metadata.row_group(index), topic, columns) or _scan(file, index, topic)
                for each in pieces:
                    bound = wanted.bounds[topic].get(each.partition[1], 0)
                    if each.first < bound and _overlaps(each.timestamp_min, each.timestamp_max, wanted):
                        group.pieces.append(each)
                if group.pieces:
                    yield group
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def _known_piece(meta: pq.RowGroupMetaData, topic: str, columns: list[int]) -> list[GroupPiece]:
    partition, offset, stamp = (meta.column(each).statistics for each in columns)
    if not all(each is not None and each.has_min_max for each in (partition, offset, stamp)):
        return []
    if partition.min != partition.max or offset.max - offset.min + 1 != meta.num_rows:
        return []
    return [GroupPiece((topic, partition.min), offset.min, 0, meta.num_rows, stamp.min_raw, stamp.max_raw)]


def _scan(file: pq.ParquetFile, index: int, topic: str) -> Iterator[GroupPiece]:
    table = file.read_row_group(index, columns=_SORTED_BY)
    coded = table.column("partition").combine_chunks().dictionary_encode()
    names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    offsets = table.column("offset").to_numpy()
    stamps = table.column("timestamp").cast(pa.int64()).to_numpy()
    breaks = (np.diff(codes) != 0) | (np.diff(offsets) != 1)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
    lows, highs = np.minimum.reduceat(stamps, starts).tolist(), np.maximum.reduceat(stamps, starts).tolist()
    for start, end, low, high in zip(starts, [*starts[1:], len(offsets)], lows, highs, strict=True):
        yield GroupPiece((topic, names[codes[start]]), int(offsets[start]), start, end - start, low, high)


def _set_times(groups: list[RowGroup], wanted: WantedRecords) -> None:
    parts = [(piece, group) for group in groups for piece in group.pieces]
    parts.sort(key=lambda part: (part[0].partition, part[0].first))
    partition: tuple[str, str] | None = None
    latest = EARLIEST_US
    for piece, group in parts:
        if piece.partition != partition:
            partition, latest = piece.partition, EARLIEST_US
        piece.floor = latest
        group.low = min(group.low, max(latest, piece.timestamp_min, wanted.since))
        latest = max(latest, min(piece.timestamp_max, wanted.until - 1))
        group.high = max(group.high, latest)


@dataclass(frozen=True, slots=True)
class _Held:
    """Records that were read, sorted; about their bytes; of each its offset, the rank of its partition, its time."""

    topic: str
    size: int
    records: pa.Table
    places: Numbers  # three rows, of which the last counts first

    @property
    def times(self) -> Numbers:
        found: Numbers = self.places[2]
        return found

    def part(self, start: int, end: int) -> _Held:
        size = self.size * (end - start) // len(self.times)
        return _Held(self.topic, size, self.records.slice(start, end - start), self.places[:, start:end])

    def sorted(self) -> _Held:
        order = np.lexsort(self.places)
        if (np.diff(order) == 1).all():
            return self
        return replace(self, records=self.records.take(pa.array(order)), places=self.places[:, order])


def _load(
    group: RowGroup, wanted: WantedRecords, ranks: Mapping[tuple[str, str], int], unsealing: Unsealing | None
) -> _Held:
    try:
        with pq.ParquetFile(group.path) as file:
            table = file.read_row_group(group.index, columns=RECORD_COLUMNS)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{group.path} cannot be read: {error}") from error
    offsets = table.column("offset").to_numpy()
    stamps = table.column("timestamp").cast(pa.int64()).to_numpy()
    times = np.full(len(offsets), EARLIEST_US)
    partitions = np.zeros(len(offsets), np.int64)
    keep = np.zeros(len(offsets), np.bool_)
    if unsealing is not None:
        table = unsealed(table, [(each.start, each.rows, each.partition) for each in group.pieces], unsealing)
    for each in group.pieces:
        rows = slice(each.start, each.start + each.rows)
        capped = np.minimum(stamps[rows], wanted.until - 1)
        times[rows] = np.maximum(np.maximum.accumulate(capped), each.floor)
        partitions[rows] = ranks[each.partition]
        keep[rows] = offsets[rows] < wanted.bounds[group.topic][each.partition[1]]
    keep &= (stamps >= wanted.since) & (stamps < wanted.until) & (times >= wanted.passed)
    records, places = table.drop_columns(["offset"]), np.stack((offsets, partitions, times))
    if not keep.all():
        records, places = records.filter(pa.array(keep)), places[:, keep]
    return _Held(group.topic, records.nbytes, records, places).sorted()


def _take_before(held: list[_Held], end: int | None) -> tuple[tuple[TopicRun, ...], list[_Held]]:
    found: dict[str, list[_Held]] = {}
    rest = []
    for each in held:
        cut = len(each.times) if end is None else int(np.searchsorted(each.times, end))
        if cut:
            found.setdefault(each.topic, []).append(each.part(0, cut))
        if cut < len(each.times):
            rest.append(each.part(cut, len(each.times)))
    runs = []
    for topic, parts in sorted(found.items()):
        whole = parts[0]
        if len(parts) > 1:
            records = pa.concat_tables(each.records for each in parts)
            whole = _Held(topic, 0, records, np.concatenate([each.places for each in parts], axis=1)).sorted()
        runs.append(TopicRun(topic, whole.records, whole.times))
    return tuple(runs), rest
