"""The readable offsets of one partition, as extents, each with the segment that holds it.

An extent is a stretch of offsets without a gap that lies in one segment, in one or more blocks. Extents of a
partition are sorted and do not overlap, so a gap between two of them, above the partition's first offset, is a
hole: nothing about damage has to be stored to know of it.

Extents are kept flat in one array, since a store may have hundreds of thousands of partitions. ``ChangeLog`` tells
which of a topic's changed after a given version, without looking at the others.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from chappe.log.storage import PartitionInfo

_WIDTH: Final = 6
LOST: Final = "damaged or missing on disk"
UNREADABLE: Final = "the disk cannot read them at present; it is tried again"


class Extent(NamedTuple):
    """Offsets ``first`` <= n < ``next`` in segment ``segment``; ``bytes`` of their batches."""

    first: int
    next: int
    segment: int
    bytes: int
    timestamp_min: int
    timestamp_max: int


class Slot:
    """One partition. ``first`` <= offsets < ``next``, some of which may be missing."""

    __slots__ = ("extents", "first", "name", "next", "topic", "version")

    def __init__(self, topic: str, name: str, first: int) -> None:
        self.topic = topic
        self.name = name
        self.first = first
        self.next = first
        self.version = 0
        self.extents = array("q")

    def __len__(self) -> int:
        return len(self.extents) // _WIDTH

    def extent(self, index: int) -> Extent:
        return Extent(*self.extents[index * _WIDTH : index * _WIDTH + _WIDTH])

    def all(self) -> list[Extent]:
        return [self.extent(index) for index in range(len(self))]

    def at(self, offset: int) -> int:
        """The index of the last extent that starts at or before ``offset``; -1 if there is none."""
        extents = self.extents
        return bisect_right(range(len(self)), offset, key=lambda index: extents[index * _WIDTH]) - 1

    def find(self, offset: int) -> Extent | None:
        index = self.at(offset)
        if index < 0:
            return None
        found = self.extent(index)
        return found if offset < found.next else None

    def gaps(self, first: int, next_: int) -> list[tuple[int, int]]:
        """The stretches of ``first`` <= n < ``next_`` that are missing; none below ``self.first``."""
        at = max(first, self.first)
        found: list[tuple[int, int]] = []
        for index in range(max(self.at(at), 0), len(self)):
            low, high = self.extents[index * _WIDTH], self.extents[index * _WIDTH + 1]
            if low >= next_:
                break
            if low > at:
                found.append((at, low))
            at = max(at, high)
        if at < next_:
            found.append((at, next_))
        return found

    def append(self, first: int, next_: int, segment: int, size: int, low: int, high: int) -> None:
        """Add offsets behind the end, where ``first`` is ``self.next`` or above; see ``Extent``."""
        extents = self.extents
        if extents and extents[-5] == first and extents[-4] == segment:
            extents[-5] = next_
            extents[-3] += size
            if low < extents[-2]:
                extents[-2] = low
            if high > extents[-1]:
                extents[-1] = high
        else:
            extents.extend((first, next_, segment, size, low, high))
        self.next = next_

    def fill(self, first: int, next_: int, segment: int, size: int, low: int, high: int) -> list[tuple[int, int]]:
        """Add those of the offsets that are missing; return them. ``size`` is that of all."""
        pieces = self.gaps(first, next_)
        for start, end in pieces:
            share = size if end - start == next_ - first else size * (end - start) // (next_ - first)
            index = self.at(start) + 1
            at = (index - 1) * _WIDTH
            if index > 0 and self.extents[at + 1] == start and self.extents[at + 2] == segment:
                self.extents[at + 1] = end
                self.extents[at + 3] += share
                self.extents[at + 4] = min(self.extents[at + 4], low)
                self.extents[at + 5] = max(self.extents[at + 5], high)
            else:
                piece = array("q", (start, end, segment, share, low, high))
                self.extents[index * _WIDTH : index * _WIDTH] = piece
        self.next = max(self.next, next_)
        return pieces

    def cut(self, first: int, next_: int) -> None:
        """Remove offsets; the bytes of a divided extent are divided in proportion."""
        kept = array("q")
        for each in self.all():
            for low, high in ((each.first, min(each.next, first)), (max(each.first, next_), each.next)):
                if low < high:
                    share = each.bytes * (high - low) // (each.next - each.first)
                    kept.extend(each._replace(first=low, next=high, bytes=share))
        self.extents = kept

    def forget(self, segments: set[int]) -> None:
        """Remove extents in ``segments``, and those that end below ``first``."""
        kept = array("q")
        for each in self.all():
            if each.segment not in segments and each.next > self.first:
                kept.extend(each)
        self.extents = kept

    def widen(self, first: int, next_: int) -> None:
        """Note that ``first`` <= n < ``next_`` once were there: those that are not there now are a hole."""
        self.first = min(self.first, first)
        self.next = max(self.next, next_)

    def start_at(self, first: int) -> None:
        if first > self.first:
            self.first = first
            self.next = max(self.next, first)
            self.forget(set())

    def is_whole(self) -> bool:
        extents = self.extents
        there = sum(extents[1::_WIDTH]) - sum(extents[0::_WIDTH])
        if extents and extents[0] < self.first:  # only the first extent may begin below what is readable
            there -= self.first - extents[0]
        return there == self.next - self.first

    def info(self) -> PartitionInfo:
        extents = self.extents
        if len(extents) == _WIDTH:
            _, _, _, size, low, high = extents
        else:
            size = sum(extents[3::_WIDTH])
            low = min(extents[4::_WIDTH], default=0)
            high = max(extents[5::_WIDTH], default=0)
        return PartitionInfo(self.topic, self.name, self.first, self.next, size, low, high, self.version)


class ChangeLog:
    """The partitions of one topic in the order of their newest change.

    A change appends; the older entry of the same partition is skipped from then on and swept out when half of
    the entries are such. So a change costs O(1) and an answer O(its length), both on average.
    """

    __slots__ = ("_live", "_slots", "_versions")

    def __init__(self) -> None:
        self._versions = array("q")
        self._slots: list[Slot] = []
        self._live = 0

    @property
    def newest(self) -> int:
        return self._versions[-1] if self._versions else 0

    def touch(self, slot: Slot, version: int) -> None:
        """Note that ``slot`` changed now; ``version`` is larger than all before."""
        if not slot.version:
            self._live += 1
        slot.version = version
        self._versions.append(version)
        self._slots.append(slot)
        if len(self._slots) > 2 * self._live + 64:
            self._slots = [slot for _, slot in self.after(0)]
            self._versions = array("q", [slot.version for slot in self._slots])

    def after(self, version: int) -> Iterator[tuple[int, Slot]]:
        """Version and partition of everything changed after ``version``, oldest change first."""
        for index in range(bisect_right(self._versions, version), len(self._slots)):
            slot = self._slots[index]
            if slot.version == self._versions[index]:
                yield slot.version, slot
