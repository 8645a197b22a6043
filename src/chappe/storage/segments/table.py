"""The blocks of one segment as columns, in the order they were written.

A table belongs to the thread that writes; it only ever grows, by blocks that are durable. The thread that
reads may look at rows it was told of, never at the number of rows.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from chappe.storage.segments.files import encode_name

Spans = dict[str, tuple[int, int]]  # partition -> its first offset, and the one after its last


def widen(spans: Spans, name: str, first: int, next_: int) -> None:
    """Widen the span of a partition to contain these offsets, too."""
    low, high = spans.get(name, (first, next_))
    spans[name] = min(low, first), max(high, next_)


class BlockRow(NamedTuple):
    partition: str
    base: int
    records: int
    position: int
    size: int
    timestamp_min: int
    timestamp_max: int
    heal: bool


class LostOffsets(NamedTuple):
    """Offsets ``first`` <= n < ``next`` that this segment once had and damage took."""

    partition: str
    first: int
    next: int


class BlockTable:
    """All blocks of segment ``number``; ``length`` is the size of the file's good part in bytes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.length = self.records = 0
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self.starts = array("q")
        self.partition, self.base, self.count = array("q"), array("q"), array("q")
        self.position, self.size = array("q"), array("q")
        self.timestamp_min, self.timestamp_max = array("q"), array("q")
        self.heal = bytearray()
        self.damaged: set[int] = set()  # rows whose bytes turned out bad; added to by the reading thread
        self.lost: list[LostOffsets] = []

    @property
    def times(self) -> tuple[int, int]:
        """The smallest and the largest timestamp; 0 and 0 without blocks."""
        return min(self.timestamp_min, default=0), max(self.timestamp_max, default=0)

    def __len__(self) -> int:
        return len(self.heal)

    def start(self, partition: str) -> int | None:
        """The base offset of the first block of a partition in this segment."""
        known = self.ids.get(partition)
        return None if known is None else self.starts[known]

    def spans(self) -> Spans:
        """Return the offsets that this segment has, or had, of each partition."""
        spans: Spans = {}
        for known, base, count in zip(self.partition, self.base, self.count, strict=True):
            widen(spans, self.names[known], base, base + count)
        for lost in self.lost:
            widen(spans, *lost)
        return spans

    def append(self, row: BlockRow) -> None:
        known = self.ids.get(row.partition)
        if known is None:
            known = self.ids[row.partition] = len(self.names)
            self.names.append(row.partition)
            self.starts.append(row.base)
        self.partition.append(known)
        self.base.append(row.base)
        self.count.append(row.records)
        self.position.append(row.position)
        self.size.append(row.size)
        self.timestamp_min.append(row.timestamp_min)
        self.timestamp_max.append(row.timestamp_max)
        self.heal.append(row.heal)
        self.records += row.records

    def body_bytes(self, row: int, header_bytes: int) -> int:
        name = self.names[self.partition[row]]
        address = len(name) if name.isascii() else len(encode_name(name))
        return self.size[row] - header_bytes - address
