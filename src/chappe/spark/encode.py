"""Rows of a task, as Spark hands them over in Arrow, become batches as stores keep them (``log/batch.py``).

A column of a batch has Arrow's own layout, so its bytes are cut out of Spark's as they are: no value becomes an object
of Python. Headers are the exception; few topics have any.

Rows of several topics, and of several partitions of an ordered one, are told apart by sorting, in which they keep their
order. What is too little for a good batch waits for more of its kind, within a bound.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from chappe.data.topic import check_topic
from chappe.defaults import KIB, MIB, RECORD_BYTES_MAX
from chappe.errors import RecordTooLarge, UsageError
from chappe.log import batch as form
from chappe.log.batch import encode_headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chappe.spark.columns import Columns

PIECE_BYTES: Final = 768 * KIB  # a batch is cut here; with one record of the largest size it is still within bounds
PIECE_BYTES_MIN: Final = 384 * KIB  # fewer wait for more rows of their topic ...
WAITING_BYTES_MAX: Final = 32 * MIB  # ... until so many wait, of all topics
ROW_BYTES: Final = 24  # counted for each row beside its bytes, so that a batch has at most 32,768 of them
SORTED_ROWS: Final = 32_768  # handed on at once by ``sort_rows``


class Piece(NamedTuple):
    """A batch on its way to a store, its base offset 0."""

    topic: str
    raw: bytes
    rows: int
    partition: int = 0  # of an ordered topic


class Encoder:
    """Turns one task's rows into pieces. Rows of one partition keep their order.

    Every method raises UsageError or RecordTooLarge for rows that cannot be written; the text names the column. Without
    a ``topic`` it is taken from the column. ``partitions`` says how many a topic has: rows with a key go to the one
    that it belongs to, those without all to one, which ``turn`` chooses.
    """

    def __init__(
        self,
        columns: Columns,
        topic: str | None,
        partitions: Callable[[str], int] = lambda topic: 1,
        turn: int = 0,
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._partitions = partitions
        self._turn = turn
        # Rows that are too few for a batch of their partition.
        self._waiting: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._sizes: Counter[tuple[str, int]] = Counter()  # of them
        self._size = 0  # of all

    def add(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Take rows, and yield what became full."""
        for topic, all_rows in self._by_topic(batch):
            for partition, rows in _by_partition(all_rows, self._partitions(topic), self._turn):
                size, key = rows.nbytes, (topic, partition)
                self._waiting.setdefault(key, []).append(rows)
                self._sizes[key] += size
                self._size += size
                if self._sizes[key] >= PIECE_BYTES_MIN:
                    yield from self._encode(key)
        while self._size > WAITING_BYTES_MAX:
            yield from self._encode(max(self._sizes, key=self._sizes.__getitem__))

    def finish(self) -> Iterator[Piece]:
        """What still waits, at the end of the task."""
        for key in list(self._waiting):
            yield from self._encode(key)

    def _encode(self, key: tuple[str, int]) -> Iterator[Piece]:
        parts = self._waiting.pop(key)
        self._size -= self._sizes.pop(key)
        topic, partition = key
        for piece in encode_rows(parts[0] if len(parts) == 1 else pa.concat_batches(parts), topic):
            yield piece._replace(partition=partition)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        rows = _plain(batch, self._columns)
        if self._topic is not None:
            yield self._topic, rows
            return
        assert self._columns.topic is not None
        names = batch.column(self._columns.topic)
        if names.null_count:
            raise UsageError("column `topic` is null in a row: fill it, or give the option `topic`")
        coded = names.dictionary_encode()
        topics = [_checked(name) for name in coded.dictionary.to_pylist()]
        if len(topics) == 1:
            yield topics[0], rows
            return
        for number, some in _apart(rows, coded.indices.to_numpy()):
            yield topics[number], some


def _apart(rows: pa.RecordBatch, codes: NDArray[Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each code that is there, in their order. Copies: the few that wait must not keep all the others."""
    ends = np.cumsum(np.bincount(codes))[:-1]
    for number, chosen in enumerate(np.split(np.argsort(codes, kind="stable"), ends)):
        if len(chosen):
            yield number, rows.take(pa.array(chosen))


def _by_partition(rows: pa.RecordBatch, partitions: int, turn: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """As ``Gathering.partition_of`` has it for rows with a key: by its checksum."""
    if partitions == 1 or "key" not in rows.schema.names:
        yield turn % partitions, rows
        return
    coded = rows.column("key").dictionary_encode()
    places = [crc32c(key) % partitions for key in coded.dictionary.to_pylist()]
    codes = np.array([*places, turn % partitions], np.int64)[coded.indices.fill_null(len(places)).to_numpy()]
    yield from _apart(rows, codes)


def sort_rows(batches: Iterable[pa.RecordBatch], order: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """All rows, sorted by some columns, nulls first; equal ones keep their order. Holds them in memory."""
    held = list(batches)
    if not held:
        return
    table = pa.Table.from_batches(held)
    names = [str(place) for place in range(len(order))]
    by = pa.table([table.column(index) for index in order], names=names)
    indices = pc.sort_indices(by, sort_keys=[(name, "ascending", "at_start") for name in names])
    for start in range(0, len(indices), SORTED_ROWS):
        yield from table.take(indices.slice(start, SORTED_ROWS)).combine_chunks().to_batches()


def encode_rows(rows: pa.RecordBatch, topic: str) -> Iterator[Piece]:
    """The pieces of one topic's rows, of about the same size.

    These have binary columns ``value``, and perhaps ``key`` and ``headers``; perhaps ``timestamp``, in microseconds.
    """
    columns = {name: _Column.of(rows.column(name)) for name in rows.schema.names if name != "timestamp"}
    stamps = rows.column("timestamp").to_numpy() if "timestamp" in rows.schema.names else None
    for low, high in _cuts(columns, rows.num_rows):
        yield Piece(topic, _encode(columns, stamps, low, high), high - low)


def _plain(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    found = {"value": batch.column(columns.value).cast(pa.binary())}
    if columns.key is not None:
        found["key"] = batch.column(columns.key).cast(pa.binary())
    if columns.headers is not None:
        found["headers"] = encoded_headers(batch.column(columns.headers))
    if columns.timestamp is not None:
        stamps = batch.column(columns.timestamp)
        numbers = stamps.cast(pa.timestamp("us", stamps.type.tz)).cast(pa.int64())
        found["timestamp"] = pc.fill_null(numbers, _now_us()) if numbers.null_count else numbers
    return pa.RecordBatch.from_pydict(found)


def _now_us() -> int:
    return time.time_ns() // 1000


def _checked(topic: str) -> str:
    try:
        return check_topic(topic)
    except UsageError as error:
        raise UsageError(f"column `topic`: {error}") from None


def encoded_headers(column: pa.Array) -> pa.Array:
    """Each row's headers in the bytes that batches carry, none for no headers."""
    ends = column.offsets.to_pylist()
    if ends[0] == ends[-1]:
        return pa.repeat(pa.scalar(b"", pa.binary()), len(column))
    is_map = isinstance(column.type, pa.MapType)
    names, values = (column.keys, column.items) if is_map else (column.values.field(0), column.values.field(1))
    if names.null_count or values.null_count or (not is_map and column.values.null_count):
        raise UsageError("column `headers` has a header whose name or value is null; leave such headers out")
    pairs = list(zip(names.to_pylist(), values.cast(pa.binary()).to_pylist(), strict=True))
    try:
        return pa.array([encode_headers(tuple(pairs[low:high])) for low, high in pairwise(ends)], pa.binary())
    except UsageError as error:
        raise UsageError(f"column `headers`: {error}") from None


class _Column(NamedTuple):
    """A binary column as its buffers; ``positions`` has one more than there are rows."""

    array: Any  # pa.Array
    positions: NDArray[np.int32]
    data: memoryview

    @classmethod
    def of(cls, array: pa.Array) -> _Column:
        _, positions, data = array.buffers()
        found = np.frombuffer(positions, np.int32, len(array) + 1, array.offset * 4)
        return cls(array, found, memoryview(b"") if data is None else memoryview(data))

    def cut(self, low: int, high: int) -> tuple[list[Any], bool]:
        """The buffers of some rows, each padded, and whether they begin with a bitmap."""
        rows = self.array.slice(low, high - low)
        parts: list[Any] = []
        nulls = rows.null_count > 0
        if nulls:
            _add(parts, np.packbits(rows.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
        positions = self.positions[low : high + 1]
        _add(parts, positions - positions[0])
        _add(parts, self.data[int(positions[0]) : int(positions[-1])])
        return parts, nulls


def _add(parts: list[Any], buffer: NDArray[Any] | memoryview) -> None:
    parts += (buffer, bytes(-buffer.nbytes % 8))


def _cuts(columns: Mapping[str, _Column], rows: int) -> Iterator[tuple[int, int]]:
    """Where each piece begins and ends. Raises RecordTooLarge."""
    sizes = np.zeros(rows + 1, np.int64)
    for column in columns.values():
        sizes += column.positions - column.positions[0]
    if sizes[-1] > RECORD_BYTES_MAX:
        _refuse_too_large(columns, int(np.diff(sizes).argmax()))
    sizes += np.arange(0, (rows + 1) * ROW_BYTES, ROW_BYTES)
    total = int(sizes[-1])
    pieces = -(-total // PIECE_BYTES)
    inner = np.searchsorted(sizes, [total * n // pieces for n in range(1, pieces)]).tolist()
    return pairwise(sorted({0, *inner, rows}))


def _refuse_too_large(columns: Mapping[str, _Column], row: int) -> None:
    """Raise RecordTooLarge if the largest row is over the bound."""
    sizes = {name: int(column.positions[row + 1] - column.positions[row]) for name, column in columns.items()}
    total = sum(sizes.values())
    if total > RECORD_BYTES_MAX:
        largest = max(sizes, key=lambda name: sizes[name])
        raise RecordTooLarge(
            f"a row has {total} bytes, {sizes[largest]} of them in column `{largest}`; {RECORD_BYTES_MAX} are possible"
        )


def _encode(columns: Mapping[str, _Column], stamps: NDArray[np.int64] | None, low: int, high: int) -> bytes:
    flags = 0
    parts: list[Any] = []
    if stamps is None:
        first = last = _now_us()
    else:
        first, last = int(stamps[low:high].min()), int(stamps[low:high].max())
        if first != last:
            flags |= form.TIMESTAMPS
            parts.append(stamps[low:high])
    for name, present, with_nulls in (
        ("key", form.KEYS, form.KEY_NULLS),
        ("headers", form.HEADERS, 0),
        ("value", 0, form.VALUE_NULLS),
    ):
        if name not in columns:
            continue
        if name == "key" and columns[name].array.slice(low, high - low).null_count == high - low:
            continue  # no record has one
        found, nulls = columns[name].cut(low, high)
        if name == "headers" and not found[-2].nbytes:
            continue
        flags |= present | (with_nulls if nulls else 0)
        parts += found
    size = form.HEADER.size + sum(len(memoryview(part).cast("B")) for part in parts)
    tail = struct.pack("<QIIqq", 0, high - low, size, first, last)
    checksum = crc32c(tail)
    for part in parts:
        checksum = crc32c(part, checksum)
    return b"".join((form.MAGIC, bytes((flags,)), struct.pack("<I", checksum), tail, *parts))
