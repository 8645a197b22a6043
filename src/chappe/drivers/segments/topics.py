"""The readable side of one topic: its partitions, and where their offsets are.

Everything here belongs to the thread that reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from chappe.drivers.segments.active import ActiveIndex
from chappe.drivers.segments.blocks import HEADER_BYTES
from chappe.drivers.segments.changes import ChangeLog
from chappe.drivers.segments.handles import Handles
from chappe.drivers.segments.index import Index, Piece
from chappe.drivers.segments.pins import Pins
from chappe.drivers.segments.slots import Extent, Slot
from chappe.drivers.segments.table import Table


class TopicIndex:
    """What can be read of one topic."""

    def __init__(self, topic: str, folder: str, handles: Handles) -> None:
        self.topic = topic
        self.folder = folder
        self.slots: dict[str, Slot] = {}
        self.changes = ChangeLog()
        self.holed: dict[str, Slot] = {}  # partitions with holes
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
            self._handles.forget(self.folder, number)
        return changed

    def blocks(self, number: int) -> ActiveIndex | Index:
        """Where the blocks of a segment are; raises OSError or Damaged."""
        return self._active.get(number) or self._handles.index(self.folder, self.topic, number)

    def lose(self, slot: Slot, extent: Extent, piece: Piece | None) -> None:
        """What was believed readable is not: one block of an extent, or all of it."""
        first, next_ = (extent.first, extent.next) if piece is None else (piece.first, piece.next)
        slot.cut(max(first, extent.first), min(next_, extent.next))
        active = self._active.get(extent.segment)
        if active is not None:
            active.cut(slot.name, first, next_)
        if piece is not None:
            if active is not None:
                active.mark_damaged(piece.position)
            else:
                self.damaged.setdefault(extent.segment, set()).add(piece.position)
        self._note_holes(slot)

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
