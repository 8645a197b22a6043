"""The readable side of one topic: its partitions, and where their offsets are.

Everything here belongs to the thread that reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from chappe.log.storage import Hole
from chappe.storage.segments.active import ActiveIndex
from chappe.storage.segments.blocks import HEADER_BYTES
from chappe.storage.segments.changes import ChangeLog
from chappe.storage.segments.handles import Handles
from chappe.storage.segments.index import Index, Piece
from chappe.storage.segments.pins import Pins
from chappe.storage.segments.slots import LOST, UNREADABLE, Extent, Slot
from chappe.storage.segments.table import Table


@dataclass(frozen=True, slots=True)
class Unread:
    """Offsets that could not be read; on disk they stay what they were, and are tried again.

    ``position`` and ``size`` say where in the segment they are; 0 and 0 if all of it could not be read.
    """

    topic: str
    slot: Slot
    extent: Extent
    position: int
    size: int


class TopicIndex:
    """What can be read of one topic."""

    def __init__(self, topic: str, folder: str, handles: Handles) -> None:
        self.topic = topic
        self.folder = folder
        self.slots: dict[str, Slot] = {}
        self.changes = ChangeLog()
        self.holed: dict[str, Slot] = {}  # partitions with holes
        self.unread: dict[str, list[Unread]] = {}  # by partition, what the disk refuses to give at present
        self.damaged: dict[int, set[int]] = {}  # sealed segment -> positions of bad blocks its index still lists
        self._handles = handles
        self._active: dict[int, ActiveIndex] = {}
        self._sealed_before = 0  # segments up to this number are never active again

    def load_index(self, index: Index, *, missing: bool) -> None:
        """Take over a sealed segment; of a ``missing`` one only the index is left."""
        number = index.summary.number
        for name, first, next_, size, low, high, heal in index.extents():
            slot = self.slots.get(name)
            if slot is None:
                slot = self.slots[name] = Slot(self.topic, name, first)
            if missing:
                slot.widen(first, next_)
            elif first == slot.next:
                slot.append(first, next_, number, size, low, high)
            else:
                self._insert(slot, first, next_, number, size, low, high, heal=bool(heal))
        self._load_lost(index.lost())

    def load_table(self, table: Table) -> None:
        """Take over the segment that is to be written to."""
        active = self._activate(table)
        number = table.number
        for row in range(len(table)):
            name = table.names[table.partition[row]]
            first = table.base[row]
            next_ = first + table.count[row]
            slot = self.slots.get(name)
            if slot is None:
                slot = self.slots[name] = Slot(self.topic, name, first)
            size, low, high = table.body_bytes(row, HEADER_BYTES), table.timestamp_min[row], table.timestamp_max[row]
            if first == slot.next:
                slot.append(first, next_, number, size, low, high)
                active.add(name, first, next_, row)
                continue
            for piece in self._insert(slot, first, next_, number, size, low, high, heal=bool(table.heal[row])):
                active.add(name, *piece, row)
        self._load_lost(table.lost)

    def finish_loading(self, pins: Pins) -> None:
        """Apply what is known of removed segments."""
        self._apply_pins(pins)
        for slot in self.slots.values():
            self._note_holes(slot)

    def _load_lost(self, lost: Iterable[tuple[str, int, int]]) -> None:
        for name, first, next_ in lost:
            slot = self.slots.get(name)
            if slot is None:
                slot = self.slots[name] = Slot(self.topic, name, first)
            slot.widen(first, next_)

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

    def _apply_pins(self, pins: Pins) -> None:
        for name, first in pins.items():
            slot = self.slots.get(name)
            if slot is None:
                self.slots[name] = Slot(self.topic, name, first)
            else:
                slot.start_at(first)
                slot.widen(first, first)  # what is missing between there and the first block is a hole

    def seal(self, number: int) -> None:
        """Segment ``number`` has an index on disk; from now on that is used."""
        self._active.pop(number, None)
        self._sealed_before = max(self._sealed_before, number)

    def publish(self, table: Table, start: int, end: int) -> list[Slot]:
        """Make rows ``start`` <= n < ``end`` readable; return the partitions that changed."""
        active = self._activate(table) if table.number > self._sealed_before else None
        changed: dict[str, Slot] = {}
        names, partitions, bases, counts = table.names, table.partition, table.base, table.count
        for row in range(start, end):
            name = names[partitions[row]]
            first = bases[row]
            next_ = first + counts[row]
            slot = self.slots.get(name)
            if slot is None:
                slot = self.slots[name] = Slot(self.topic, name, first)
            changed[name] = slot
            size, low, high = table.body_bytes(row, HEADER_BYTES), table.timestamp_min[row], table.timestamp_max[row]
            if first == slot.next:
                slot.append(first, next_, table.number, size, low, high)
                if active is not None:
                    active.add(name, first, next_, row)
                continue
            for piece in slot.fill(first, next_, table.number, size, low, high):
                if self.unread:  # this takes the place of what could not be read
                    for each in self._active.values():
                        each.cut(name, *piece)
                if active is not None:
                    active.add(name, *piece, row)
            self._note_holes(slot)
        return list(changed.values())

    def reset(self, partition: str, first: int) -> Slot:
        """Start a partition at ``first``."""
        slot = self.slots.get(partition)
        if slot is None:
            slot = self.slots[partition] = Slot(self.topic, partition, first)
        else:
            slot.start_at(first)
            self._note_holes(slot)
        return slot

    def remove(self, numbers: set[int], firsts: Pins) -> list[Slot]:
        """Forget segments; ``firsts`` has where the partitions that were in them start now."""
        changed = []
        for name, first in firsts.items():
            slot = self.slots.get(name)
            if slot is None:
                slot = self.slots[name] = Slot(self.topic, name, first)
            slot.start_at(first)
            slot.forget(numbers)
            self._note_holes(slot)
            changed.append(slot)
        for number in numbers:
            self.seal(number)
            self.damaged.pop(number, None)
            for each in [each for some in self.unread.values() for each in some if each.extent.segment == number]:
                self._forget_unread(each)
            self._handles.forget(self.folder, number)
        return changed

    def blocks(self, number: int) -> ActiveIndex | Index:
        """Where the blocks of a segment are; raises OSError or Damaged."""
        return self._active.get(number) or self._handles.index(self.folder, self.topic, number)

    def lose(self, slot: Slot, extent: Extent, piece: Piece) -> None:
        """A block of an extent, believed readable, is damaged."""
        slot.cut(max(piece.first, extent.first), min(piece.next, extent.next))
        active = self._active.get(extent.segment)
        if active is not None:
            active.cut(slot.name, piece.first, piece.next)
            active.mark_damaged(piece.position)
        else:
            self.damaged.setdefault(extent.segment, set()).add(piece.position)
        self._note_holes(slot)

    def set_aside(self, slot: Slot, extent: Extent, piece: Piece | None) -> None:
        """A block of an extent, or all of it, cannot be read at present: a hole until it is healed, or can be read."""
        position, size = 0, 0
        if piece is not None:
            position, size = piece.position, piece.size
            first, next_ = max(extent.first, piece.first), min(extent.next, piece.next)
            extent = extent._replace(first=first, next=next_, bytes=size)
        slot.cut(extent.first, extent.next)
        self.unread.setdefault(slot.name, []).append(Unread(self.topic, slot, extent, position, size))
        self._note_holes(slot)

    def take_back(self, unread: Unread) -> None:
        """Count on offsets again: reading them says what is the matter."""
        if unread not in self.unread.get(unread.slot.name, ()):
            return
        self._forget_unread(unread)
        extent, slot = unread.extent, unread.slot
        if extent.next > slot.first:
            slot.fill(max(extent.first, slot.first), *extent[1:])
        self._note_holes(slot)

    def _forget_unread(self, unread: Unread) -> None:
        left = [each for each in self.unread[unread.slot.name] if each is not unread]
        if left:
            self.unread[unread.slot.name] = left
        else:
            del self.unread[unread.slot.name]

    def parts_within(self, number: int, first: int, end: int) -> Iterator[tuple[Slot, Extent, Piece]]:
        """What is read from blocks that have a byte in ``first`` <= n < ``end`` of a segment.

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
        """What is missing of a partition, and why."""
        unread = [each.extent for each in self.unread.get(slot.name, ())]
        cuts = sorted(set(chain.from_iterable((each.first, each.next) for each in unread)))
        found: list[Hole] = []
        for low, high in slot.gaps(slot.first, slot.next):
            edges = [low, *(at for at in cuts if low < at < high), high]
            for first, next_ in pairwise(edges):
                refused = any(each.first <= first < each.next for each in unread)
                found.append(Hole(self.topic, slot.name, first, next_ - 1, UNREADABLE if refused else LOST))
        return found

    def _activate(self, table: Table) -> ActiveIndex:
        active = self._active.get(table.number)
        if active is None:
            active = self._active[table.number] = ActiveIndex(table)
        return active

    def _note_holes(self, slot: Slot) -> None:
        if slot.is_whole():
            self.holed.pop(slot.name, None)
        else:
            self.holed[slot.name] = slot
