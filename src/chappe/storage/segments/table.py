"""The blocks of one segment as columns, in the order they were written.

A table belongs to the thread that writes; it only ever grows, by blocks that are durable. The thread that
reads may look at rows it was told of, never at the number of rows.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple


class Row(NamedTuple):
    """A block on its way into a table."""

    partition: str
    base: int
    records: int
    position: int
    size: int
    timestamp_min: int
    timestamp_max: int
    heal: bool


class Lost(NamedTuple):
    """Offsets ``first`` <= n < ``next`` that this segment once had and damage took."""

    partition: str
    first: int
    next: int


class Table:
    """All blocks of segment ``number``; ``length`` is the size of the file's good part in bytes."""

    __slots__ = (
        "base",
        "count",
        "damaged",
        "heal",
        "ids",
        "length",
        "lost",
        "names",
        "number",
        "partition",
        "position",
        "records",
        "size",
        "starts",
        "timestamp_max",
        "timestamp_min",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.length = 0
        self.records = 0
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self.starts = array("q")
        self.partition = array("q")
        self.base = array("q")
        self.count = array("q")
        self.position = array("q")
        self.size = array("q")
        self.timestamp_min = array("q")
        self.timestamp_max = array("q")
        self.heal = bytearray()
        self.damaged: set[int] = set()  # rows whose bytes turned out bad; added to by the reading thread
        self.lost: list[Lost] = []

    def __len__(self) -> int:
        return len(self.heal)

    def start(self, partition: str) -> int | None:
        """The base offset of the first block of a partition in this segment."""
        known = self.ids.get(partition)
        return None if known is None else self.starts[known]

    def spans(self) -> dict[str, tuple[int, int]]:
        """For each partition its first offset in this segment, and the one after its last; what was lost included."""
        firsts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for known, base, count in zip(self.partition, self.base, self.count, strict=True):
            firsts[known] = min(firsts.get(known, base), base)
            ends[known] = max(ends.get(known, 0), base + count)
        spans = {self.names[known]: (first, ends[known]) for known, first in firsts.items()}
        for name, first, next_ in self.lost:
            low, high = spans.get(name, (first, next_))
            spans[name] = min(low, first), max(high, next_)
        return spans

    def append(self, row: Row) -> None:
        """Add a block that is on disk."""
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
        """The size of a row's batch."""
        name = self.names[self.partition[row]]
        address = len(name) if name.isascii() else len(name.encode("utf-8", "surrogateescape"))
        return self.size[row] - header_bytes - address
