"""Rows of a task, as Spark hands them over in Arrow, become batches as stores keep them (``log/batch.py``).

No value becomes an object of Python on the way (``chappe.arrow_rows``).

Rows of several topics, and of several partitions of an ordered one, are told apart by sorting, in which they keep their
order. What is too little for a good batch waits for more of its kind, within a bound.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from chappe.arrow_rows import parts, plain
from chappe.data.topic import check_topic
from chappe.defaults import KIB, MIB
from chappe.errors import UsageError
from chappe.log.batch import compress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chappe.spark.columns import RecordColumns

PIECE_BYTES_MIN: Final = 384 * KIB  # fewer wait for more rows of their topic ...
WAITING_BYTES_MAX: Final = 32 * MIB  # ... until so many wait, of all topics
SORTED_ROWS: Final = 32_768  # handed on at once by ``sort_rows``


class EncodedPiece(NamedTuple):
    """A batch on its way to a store, its base offset 0."""

    topic: str
    raw: bytes
    rows: int
    partition: int = 0  # of an ordered topic


class RowEncoder:
    """Turns one task's rows into pieces. Rows of one partition keep their order.

    Every method raises UsageError or RecordTooLarge for rows that cannot be written; the text names the column. Without
    a ``topic`` it is taken from the column. ``partitions`` says how many a topic has: rows with a key go to the one
    that it belongs to, those without all to one, which ``turn`` chooses. ``codec``, of ``chappe.log.compression``,
    compresses the pieces; 0 does not.
    """

    def __init__(
        self,
        columns: RecordColumns,
        topic: str | None,
        partitions: Callable[[str], int] = lambda topic: 1,
        turn: int = 0,
        codec: int = 0,
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._partitions = partitions
        self._turn = turn
        self._codec = codec
        # Rows that are too few for a batch of their partition.
        self._waiting: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._sizes: Counter[tuple[str, int]] = Counter()  # the bytes of each ...
        self._size = 0  # ... and of all together

    def add(self, batch: pa.RecordBatch) -> Iterator[EncodedPiece]:
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

    def finish(self) -> Iterator[EncodedPiece]:
        """Encode the rows that still wait, at the end of the task."""
        for key in list(self._waiting):
            yield from self._encode(key)

    def _encode(self, key: tuple[str, int]) -> Iterator[EncodedPiece]:
        held = self._waiting.pop(key)
        self._size -= self._sizes.pop(key)
        topic, partition = key
        for part in parts(held[0] if len(held) == 1 else pa.concat_batches(held), now_us):
            raw = part.encode()
            yield EncodedPiece(topic, compress(raw, self._codec) if self._codec else raw, part.rows, partition)

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
    """Yield copies of the rows of each code, in order: the few that wait must not keep all the others."""
    ends = np.cumsum(np.bincount(codes))[:-1]
    for number, chosen in enumerate(np.split(np.argsort(codes, kind="stable"), ends)):
        if len(chosen):
            yield number, rows.take(pa.array(chosen))


def _by_partition(rows: pa.RecordBatch, partitions: int, turn: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide rows like ``Gathering.partition_of``: those with a key by its checksum."""
    if partitions == 1 or "key" not in rows.schema.names:
        yield turn % partitions, rows
        return
    coded = rows.column("key").dictionary_encode()
    places = [crc32c(key) % partitions for key in coded.dictionary.to_pylist()]
    codes = np.array([*places, turn % partitions], np.int64)[coded.indices.fill_null(len(places)).to_numpy()]
    yield from _apart(rows, codes)


def sort_rows(batches: Iterable[pa.RecordBatch], order: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield all rows, sorted by some columns, nulls first; equal ones keep their order. Holds them in memory."""
    held = list(batches)
    if not held:
        return
    table = pa.Table.from_batches(held)
    names = [str(place) for place in range(len(order))]
    by = pa.table([table.column(index) for index in order], names=names)
    indices = pc.sort_indices(by, sort_keys=[(name, "ascending", "at_start") for name in names])
    for start in range(0, len(indices), SORTED_ROWS):
        yield from table.take(indices.slice(start, SORTED_ROWS)).combine_chunks().to_batches()


def _plain(batch: pa.RecordBatch, columns: RecordColumns) -> pa.RecordBatch:
    places = (
        ("value", columns.value),
        ("key", columns.key),
        ("headers", columns.headers),
        ("timestamp", columns.timestamp),
    )
    return plain({name: batch.column(place) for name, place in places if place is not None}, now_us)


def now_us() -> int:
    return time.time_ns() // 1000


def _checked(topic: str) -> str:
    try:
        return check_topic(topic)
    except UsageError as error:
        raise UsageError(f"column `topic`: {error}") from None
