"""Which partitions of a topic changed after a given version, without looking at the others."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from chappe.storage.segments.slots import Slot


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
        """The version of the newest change; 0 if there was none."""
        return self._versions[-1] if self._versions else 0

    def touch(self, slot: Slot, version: int) -> None:
        """``slot`` changed now; ``version`` is larger than all before."""
        if not slot.version:
            self._live += 1
        slot.version = version
        self._versions.append(version)
        self._slots.append(slot)
        if len(self._slots) > 2 * self._live + 64:
            self._sweep()

    def after(self, version: int) -> Iterator[tuple[int, Slot]]:
        """Version and partition of everything changed after ``version``, oldest change first."""
        for index in range(bisect_right(self._versions, version), len(self._slots)):
            slot = self._slots[index]
            if slot.version == self._versions[index]:
                yield slot.version, slot

    def _sweep(self) -> None:
        self._slots = [slot for _, slot in self.after(0)]
        self._versions = array("q", [slot.version for slot in self._slots])
