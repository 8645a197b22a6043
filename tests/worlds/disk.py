"""What the disk of a store holds, which outlives the stores on it.

As on the real one, what is missing between a partition's first and next offset is a hole, whether damage took it
or nobody ever had it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from chappe.log.storage import AppendRecords, Retention

Key = tuple[str, str]


@dataclass(slots=True)
class Block:
    """Offsets ``base`` <= n < ``next`` in one batch; ``damaged`` as long as nobody has read it since."""

    base: int
    next: int
    body: bytes
    timestamp_min: int
    timestamp_max: int
    damaged: bool = False


@dataclass(slots=True)
class Part:
    """One partition on one disk."""

    first: int
    next: int
    version: int = 0
    bytes: int = 0
    timestamp_min: int = 0
    timestamp_max: int = 0
    blocks: list[Block] = field(default_factory=list)

    def at(self, offset: int) -> int:
        """The index of the last block that begins at or before ``offset``; -1 if there is none."""
        return bisect_right(self.blocks, offset, key=lambda block: block.base) - 1

    def gaps(self) -> list[tuple[int, int]]:
        """What is missing, as first and next."""
        found, at = [], self.first
        for block in self.blocks:
            if block.base > at:
                found.append((at, block.base))
            at = block.next
        if at < self.next:
            found.append((at, self.next))
        return found

    def sound(self) -> list[tuple[int, int]]:
        """What is there and not damaged, as first and next."""
        found: list[tuple[int, int]] = []
        for block in self.blocks:
            if block.damaged or block.next <= self.first:
                continue
            low = max(block.base, self.first)
            if found and found[-1][1] == low:
                found[-1] = (found[-1][0], block.next)
            else:
                found.append((low, block.next))
        return found


class SimDisk:
    """What is on the disk of a store: ``ever`` has a byte for every offset, 1 if it once was safe here."""

    def __init__(self, store_id: str) -> None:
        self.store_id = store_id
        self.parts: dict[Key, Part] = {}
        self.ever: dict[Key, bytearray] = {}

    def _part(self, each: AppendRecords) -> Part:
        part = self.parts.get((each.topic, each.partition))
        if part is None:
            part = self.parts[each.topic, each.partition] = Part(each.base, each.base)
        return part

    def _safe(self, appends: Sequence[AppendRecords]) -> None:
        for each in appends:
            self._part(each)
            ever = self.ever.setdefault((each.topic, each.partition), bytearray())
            end = each.base + each.count
            ever.extend(bytes(max(0, end - len(ever))))
            ever[each.base : end] = b"\1" * each.count

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        """Return the topics that keep more than they should; empty if there are none."""
        raise NotImplementedError

    def holds(self, key: Key, offset: int) -> bool:
        """Whether an offset is here and not damaged."""
        part = self.parts.get(key)
        if part is None or offset < part.first:
            return False
        index = part.at(offset)
        return index >= 0 and offset < part.blocks[index].next and not part.blocks[index].damaged
