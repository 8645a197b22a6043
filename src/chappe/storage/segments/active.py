"""The readable blocks of a segment that is still being written.

The columns are the writing thread's table; here is only, for each partition, which rows hold which offsets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from chappe.storage.segments.index import Piece
from chappe.storage.segments.table import Table


class _Rows:
    """The pieces of one partition, sorted, without overlap."""

    __slots__ = ("first", "next", "row")

    def __init__(self) -> None:
        self.first = array("q")
        self.next = array("q")
        self.row = array("q")


class ActiveIndex:
    """What was published of ``table``."""

    __slots__ = ("_partitions", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self._partitions: dict[str, _Rows] = {}

    def add(self, partition: str, first: int, next_: int, row: int) -> None:
        """Offsets ``first`` <= n < ``next_``, none of which is there yet, are in ``row``."""
        rows = self._partitions.get(partition)
        if rows is None:
            rows = self._partitions[partition] = _Rows()
        if not rows.first or first > rows.first[-1]:
            rows.first.append(first)
            rows.next.append(next_)
            rows.row.append(row)
            return
        at = bisect_right(rows.first, first)
        rows.first.insert(at, first)
        rows.next.insert(at, next_)
        rows.row.insert(at, row)

    def cut(self, partition: str, first: int, next_: int) -> None:
        """Take offsets out."""
        old = self._partitions.pop(partition, None)
        if old is None:
            return
        for low, high, row in zip(old.first, old.next, old.row, strict=True):
            for start, end in ((low, min(high, first)), (max(low, next_), high)):
                if start < end:
                    self.add(partition, start, end, row)

    def mark_damaged(self, position: int) -> None:
        """The block at ``position`` must not be in the segment's index."""
        row = bisect_left(self.table.position, position)
        if row < len(self.table) and self.table.position[row] == position:
            self.table.damaged.add(row)

    def pieces(self, partition: str, offset: int) -> Iterator[Piece]:
        """What follows without a gap from the piece that has ``offset`` on; nothing if it is not here."""
        rows = self._partitions.get(partition)
        if rows is None:
            return
        at = bisect_right(rows.first, offset) - 1
        end = rows.first[at] if at >= 0 and offset < rows.next[at] else -1
        while 0 <= at < len(rows.first) and rows.first[at] == end:
            row, end = rows.row[at], rows.next[at]
            yield Piece(rows.first[at], end, self.table.position[row], self.table.size[row])
            at += 1

    def within(self, first: int, end: int) -> Iterator[tuple[str, Piece]]:
        """Partition and place of every block that has a byte in ``first`` <= n < ``end``, readable or not."""
        table = self.table
        row = max(bisect_right(table.position, first) - 1, 0)
        while row < len(table) and table.position[row] < end:
            base = table.base[row]
            place = Piece(base, base + table.count[row], table.position[row], table.size[row])
            if place.position + place.size > first:
                yield table.names[table.partition[row]], place
            row += 1

    def at_time(self, partition: str, first: int, next_: int, timestamp: int) -> int | None:
        """The first offset in ``first`` <= n < ``next_`` whose block ends at or after ``timestamp``."""
        rows = self._partitions.get(partition)
        if rows is None:
            return None
        for at in range(max(bisect_right(rows.first, first) - 1, 0), len(rows.first)):
            if rows.first[at] >= next_:
                return None
            if rows.next[at] > first and self.table.timestamp_max[rows.row[at]] >= timestamp:
                return max(rows.first[at], first)
        return None
