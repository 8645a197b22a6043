"""The readable side of one topic: its partitions, and where their offsets are.

Everything here belongs to the thread that reads. Of a segment that is still being written the columns are the writing
thread's table; here is only, for each partition, which rows hold which offsets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from chappe.log.storage import Hole
from chappe.storage.segments.appender import Pins
from chappe.storage.segments.blocks import HEADER_BYTES
from chappe.storage.segments.directory import TopicFolder
from chappe.storage.segments.index import BlockPiece, Index
from chappe.storage.segments.index_files import Handles
from chappe.storage.segments.slots import LOST, UNREADABLE, ChangeLog, Extent, Slot
from chappe.storage.segments.table import BlockTable


@dataclass(frozen=True, slots=True)
class UnreadBlock:
    """Offsets that could not be read; on disk they stay what they were, and are tried again.

    ``position`` and ``size`` say where in the segment they are; 0 and 0 if all of it could not be read.
    """

    topic: str
    slot: Slot
    extent: Extent
    position: int
    size: int


class _RowPieces(NamedTuple):
    """The pieces of one partition in a segment that is being written, sorted, without overlap."""

    first: array[int]
    next: array[int]
    row: array[int]


class ActiveIndex:
    """The published rows of a segment that is being written."""

    __slots__ = ("_partitions", "table")

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self._partitions: dict[str, _RowPieces] = {}

    def add(self, partition: str, first: int, next_: int, row: int) -> None:
        """Note that ``row`` has the offsets ``first`` <= n < ``next_``, none of which is there yet."""
        rows = self._partitions.get(partition)
        if rows is None:
            rows = self._partitions[partition] = _RowPieces(array("q"), array("q"), array("q"))
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
        old = self._partitions.pop(partition, None)
        if old is None:
            return
        for low, high, row in zip(old.first, old.next, old.row, strict=True):
            for start, end in ((low, min(high, first)), (max(low, next_), high)):
                if start < end:
                    self.add(partition, start, end, row)

    def mark_damaged(self, position: int) -> None:
        """Leave the block at ``position`` out of the segment's index."""
        row = bisect_left(self.table.position, position)
        if row < len(self.table) and self.table.position[row] == position:
            self.table.damaged.add(row)

    def pieces(self, partition: str, offset: int) -> Iterator[BlockPiece]:
        rows = self._partitions.get(partition)
        if rows is None:
            return
        at = bisect_right(rows.first, offset) - 1
        end = rows.first[at] if at >= 0 and offset < rows.next[at] else -1
        while 0 <= at < len(rows.first) and rows.first[at] == end:
            row, end = rows.row[at], rows.next[at]
            yield BlockPiece(rows.first[at], end, self.table.position[row], self.table.size[row])
            at += 1

    def within(self, first: int, end: int) -> Iterator[tuple[str, BlockPiece]]:
        table = self.table
        row = max(bisect_right(table.position, first) - 1, 0)
        while row < len(table) and table.position[row] < end:
            base = table.base[row]
            place = BlockPiece(base, base + table.count[row], table.position[row], table.size[row])
            if place.position + place.size > first:
                yield table.names[table.partition[row]], place
            row += 1

    def at_time(self, partition: str, first: int, next_: int, timestamp: int) -> int | None:
        rows = self._partitions.get(partition)
        if rows is None:
            return None
        for at in range(max(bisect_right(rows.first, first) - 1, 0), len(rows.first)):
            if rows.first[at] >= next_:
                return None
            if rows.next[at] > first and self.table.timestamp_max[rows.row[at]] >= timestamp:
                return max(rows.first[at], first)
        return None

    def time_of(self, partition: str, offset: int) -> int | None:
        """The largest timestamp of the block that has ``offset``; None if it is not here."""
        rows = self._partitions.get(partition)
        at = -1 if rows is None else bisect_right(rows.first, offset) - 1
        if rows is None or at < 0 or offset >= rows.next[at]:
            return None
        return self.table.timestamp_max[rows.row[at]]


class TopicIndex:
    def __init__(self, folder: TopicFolder, handles: Handles) -> None:
        self.topic = folder.topic
        self.folder = folder
        self.slots: dict[str, Slot] = {}
        self.changes = ChangeLog()
        self.holed: dict[str, Slot] = {}  # partitions with holes
        self.unread: dict[str, list[UnreadBlock]] = {}  # by partition, what the disk refuses to give at present
        self.damaged: dict[int, set[int]] = {}  # sealed segment -> positions of bad blocks its index still lists
        self._handles = handles
        self._active: dict[int, ActiveIndex] = {}
        self._sealed_before = 0  # segments up to this number are never active again

    def load_index(self, index: Index, *, missing: bool) -> None:
        """Take over a sealed segment; of a ``missing`` one only the index is left."""
        number = index.summary.number
        for name, first, next_, size, low, high, heal in index.extents():
            slot = self._slot(name, first)
            if missing:
                slot.widen(first, next_)
            elif first == slot.next:
                slot.append(first, next_, number, size, low, high)
            else:
                self._insert(slot, first, next_, number, size, low, high, heal=bool(heal))
        self._load_lost(index.lost())

    def load_table(self, table: BlockTable) -> None:
        """Take over the segment that is to be written to."""
        self.publish(table, 0, len(table), loading=True)
        self._load_lost(table.lost)

    def finish_loading(self, pins: Pins) -> None:
        for name, first in pins.items():
            slot = self._slot(name, first)
            slot.start_at(first)
            slot.widen(first, first)  # what is missing between there and the first block is a hole
        for slot in self.slots.values():
            self._note_holes(slot)

    def _load_lost(self, lost: Iterable[tuple[str, int, int]]) -> None:
        for name, first, next_ in lost:
            self._slot(name, first).widen(first, next_)

    def _slot(self, name: str, first: int) -> Slot:
        slot = self.slots.get(name)
        if slot is None:
            slot = self.slots[name] = Slot(self.topic, name, first)
        return slot

    def _insert(
        self, slot: Slot, first: int, next_: int, number: int, size: int, low: int, high: int, *, heal: bool
    ) -> list[tuple[int, int]]:
        """Load an extent that does not follow the one before; return what was missing of it."""
        slot.widen(first, first)
        if heal:  # it was written because what was there before had turned out to be damaged
            slot.cut(first, next_)
            for each in self._active.values():
                each.cut(slot.name, first, next_)
        return slot.fill(first, next_, number, size, low, high)

    def seal(self, number: int) -> None:
        """Segment ``number`` has an index on disk; from now on that is used."""
        self._active.pop(number, None)
        self._sealed_before = max(self._sealed_before, number)

    def publish(self, table: BlockTable, start: int, end: int, *, loading: bool = False) -> list[Slot]:
        """Make rows ``start`` <= n < ``end`` readable; return the partitions that changed."""
        active = None
        if table.number > self._sealed_before:
            active = self._active.get(table.number)
            if active is None:
                active = self._active[table.number] = ActiveIndex(table)
        changed: dict[str, Slot] = {}
        names, partitions, bases, counts = table.names, table.partition, table.base, table.count
        for row in range(start, end):
            name = names[partitions[row]]
            first = bases[row]
            next_ = first + counts[row]
            slot = changed[name] = self._slot(name, first)
            size, low, high = table.body_bytes(row, HEADER_BYTES), table.timestamp_min[row], table.timestamp_max[row]
            if first == slot.next:
                slot.append(first, next_, table.number, size, low, high)
                if active is not None:
                    active.add(name, first, next_, row)
                continue
            extent = first, next_, table.number, size, low, high
            heal = bool(table.heal[row])
            for piece in self._insert(slot, *extent, heal=heal) if loading else slot.fill(*extent):
                if self.unread:  # this takes the place of what could not be read
                    for each in self._active.values():
                        each.cut(name, *piece)
                if active is not None:
                    active.add(name, *piece, row)
            self._note_holes(slot)
        return list(changed.values())

    def reset(self, partition: str, first: int) -> Slot:
        slot = self._slot(partition, first)
        slot.start_at(first)
        self._note_holes(slot)
        return slot

    def remove(self, numbers: set[int], firsts: Pins) -> list[Slot]:
        """Forget segments; ``firsts`` has where the partitions that were in them start now."""
        changed = []
        for name, first in firsts.items():
            slot = self._slot(name, first)
            slot.start_at(first)
            slot.forget(numbers)
            self._note_holes(slot)
            changed.append(slot)
        for number in numbers:
            self.seal(number)
            self.damaged.pop(number, None)
            for each in [each for some in self.unread.values() for each in some if each.extent.segment == number]:
                self._forget_unread(each)
            self._handles.forget(self.folder.path, number)
        return changed

    def blocks(self, number: int) -> ActiveIndex | Index:
        """The positions of a segment's blocks; raises OSError or Damaged."""
        return self._active.get(number) or self._handles.index(self.folder, number)

    def lose(self, slot: Slot, extent: Extent, piece: BlockPiece) -> None:
        """Note that a block of an extent, believed readable, is damaged."""
        slot.cut(max(piece.first, extent.first), min(piece.next, extent.next))
        active = self._active.get(extent.segment)
        if active is not None:
            active.cut(slot.name, piece.first, piece.next)
            active.mark_damaged(piece.position)
        else:
            self.damaged.setdefault(extent.segment, set()).add(piece.position)
        self._note_holes(slot)

    def set_aside(self, slot: Slot, extent: Extent, piece: BlockPiece | None) -> None:
        """Make a hole of an extent's block, or all of it, that cannot be read now, until it is healed or can be."""
        position, size = 0, 0
        if piece is not None:
            position, size = piece.position, piece.size
            first, next_ = max(extent.first, piece.first), min(extent.next, piece.next)
            extent = extent._replace(first=first, next=next_, bytes=size)
        slot.cut(extent.first, extent.next)
        self.unread.setdefault(slot.name, []).append(UnreadBlock(self.topic, slot, extent, position, size))
        self._note_holes(slot)

    def take_back(self, unread: UnreadBlock) -> None:
        """Count on offsets again: reading them finds out what is wrong."""
        if unread not in self.unread.get(unread.slot.name, ()):
            return
        self._forget_unread(unread)
        extent, slot = unread.extent, unread.slot
        if extent.next > slot.first:
            slot.fill(max(extent.first, slot.first), *extent[1:])
        self._note_holes(slot)

    def _forget_unread(self, unread: UnreadBlock) -> None:
        left = [each for each in self.unread[unread.slot.name] if each is not unread]
        if left:
            self.unread[unread.slot.name] = left
        else:
            del self.unread[unread.slot.name]

    def parts_within(self, number: int, first: int, end: int) -> Iterator[tuple[Slot, Extent, BlockPiece]]:
        """Yield what is read from blocks that have a byte in ``first`` <= n < ``end`` of a segment.

        Raises:
            OSError: There is no index of it ...
            Damaged: ... or none that is sound.
        """
        blocks = self.blocks(number)
        for name, piece in blocks.within(first, end):
            slot = self.slots.get(name)
            if slot is None:
                continue
            for extent in slot.all():
                if extent.segment == number and extent.first < piece.next and extent.next > piece.first:
                    read = next(blocks.pieces(name, max(extent.first, piece.first)), None)
                    if read is not None and read.position == piece.position:  # else it is healed
                        yield slot, extent, piece

    def holes(self, slot: Slot) -> list[Hole]:
        """Return the missing offsets of a partition, and why they are missing."""
        unread = [each.extent for each in self.unread.get(slot.name, ())]
        cuts = sorted(set(chain.from_iterable((each.first, each.next) for each in unread)))
        found: list[Hole] = []
        for low, high in slot.gaps(slot.first, slot.next):
            edges = [low, *(at for at in cuts if low < at < high), high]
            for first, next_ in pairwise(edges):
                refused = any(each.first <= first < each.next for each in unread)
                found.append(Hole(self.topic, slot.name, first, next_ - 1, UNREADABLE if refused else LOST))
        return found

    def _note_holes(self, slot: Slot) -> None:
        if slot.is_whole():
            self.holed.pop(slot.name, None)
        else:
            self.holed[slot.name] = slot
