"""A disk that outlives the stores on it: the storage port with full disks, torn writes and damage.

As on the real one, what is missing between a partition's first and next offset is a hole, whether damage took it
or nobody ever had it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.worlds.staged import MemoryStaged

from chappe.errors import StorageFull
from chappe.log.batch import Batch
from chappe.log.events import ScrubEnded
from chappe.log.storage import AppendRecords, Hole, PartitionInfo, Retention, Scrubbed, StorageRead

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
    """What is on one disk, durable and readable; writing takes time, which the store's host plays."""

    def __init__(self, store_id: str) -> None:
        self.store_id = store_id
        self.parts: dict[Key, Part] = {}
        self.ever: dict[Key, bytearray] = {}  # a byte for every offset, 1 if it once was safe here
        self.refusing = 0.0  # how many of the writes fail
        self.rng = Random(store_id)  # says which
        self.staged = MemoryStaged()
        self.scrubbed_us = 0
        self.suspicious = False
        # What a killed process wrote, and where its partition ended before; not safe until it is synced.
        self._cached: list[tuple[AppendRecords, int | None]] = []
        self._version = 0
        self._scrub_at = 0  # the partition that is read next

    @property
    def full(self) -> bool:
        """Whether what is to be written now is refused; the next may be taken."""
        return self.refusing > 0 and self.rng.random() < self.refusing

    # -- the storage port ---------------------------------------------------------------------------

    def write(self, appends: Sequence[AppendRecords]) -> tuple[AppendRecords, ...]:
        """See ``LogStorage``; here what is written counts as durable from now on."""
        if self.full:
            raise StorageFull("the disk of the simulation is full")
        self._safe(appends)
        return tuple(appends)

    def publish(self, written: object) -> None:
        """Make a finished write readable."""
        assert isinstance(written, tuple)
        for each in written:
            self._insert(each)

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

    def _insert(self, each: AppendRecords) -> None:
        part = self._part(each)
        if each.heal:
            for low, high in part.gaps():
                first, end = max(low, each.base), min(high, each.base + each.count)
                if first < end:
                    self._add(part, Batch.parse(each.body).slice(first, end))
        else:
            assert each.base >= part.next, f"{each.base} is written behind {part.next}"
            self._add(part, each.body)
        self._touch(part)

    def _add(self, part: Part, body: bytes) -> None:
        batch = Batch.parse(body)
        block = Block(batch.base, batch.next, body, batch.timestamp_min, batch.timestamp_max)
        part.blocks.insert(part.at(block.base) + 1, block)
        part.next = max(part.next, block.next)
        part.timestamp_min = min(part.timestamp_min or block.timestamp_min, block.timestamp_min)
        part.timestamp_max = max(part.timestamp_max, block.timestamp_max)
        part.bytes += len(body)

    def _touch(self, part: Part) -> None:
        self._version += 1
        part.version = self._version

    def _info(self, key: Key, part: Part) -> PartitionInfo:
        return PartitionInfo(
            *key,
            part.first,
            part.next,
            part.bytes,
            part.timestamp_min,
            part.timestamp_max,
            part.version,
        )

    def topics(self) -> list[str]:
        """All topics, sorted."""
        return sorted({topic for topic, _ in self.parts})

    def partition(self, topic: str, partition: str) -> PartitionInfo | None:
        """One partition, or None."""
        part = self.parts.get((topic, partition))
        return None if part is None or not part.version else self._info((topic, partition), part)

    def changed(self, topic_prefix: str, since: int, limit: int) -> list[PartitionInfo]:
        """Partitions of matching topics changed after version ``since``, oldest change first."""
        found = [
            (part.version, key, part)
            for key, part in self.parts.items()
            if part.version > since and key[0].startswith(topic_prefix)
        ]
        found.sort(key=lambda each: each[0])
        return [self._info(key, part) for _, key, part in found[:limit]]

    @property
    def version(self) -> int:
        """The version of the newest change."""
        return self._version

    def read(self, topic: str, partition: str, offset: int, bytes_max: int) -> StorageRead:
        """See ``LogStorage``; damaged blocks that are met turn into holes."""
        part = self.parts.get((topic, partition))
        if part is None or not part.first <= offset < part.next:
            return StorageRead(())
        batches: list[bytes] = []
        size, at = 0, offset
        while at < part.next:
            index = part.at(at)
            block = part.blocks[index] if index >= 0 else None
            if block is not None and block.damaged and at < block.next:
                del part.blocks[index]
                self._touch(part)
                block = None
            if block is None or at >= block.next or (batches and size + len(block.body) > bytes_max):
                break
            batches.append(block.body)
            size += len(block.body)
            at = block.next
        if batches:
            return StorageRead(tuple(batches), ahead=_end_of(part, at, bytes_max))
        low, high = next(gap for gap in part.gaps() if gap[0] <= offset < gap[1])
        return StorageRead((), Hole(topic, partition, low, high - 1, "damaged by the simulation"))

    def offset_at(self, topic: str, partition: str, timestamp: int) -> int:
        """The first offset whose batch ends at or after ``timestamp``; ``next`` if all are older."""
        part = self.parts[topic, partition]
        return next((block.base for block in part.blocks if block.timestamp_max >= timestamp), part.next)

    def holes(self, topic: str | None = None) -> list[Hole]:
        """See ``LogStorage``."""
        return [
            Hole(*key, low, high - 1, "missing on the disk of the simulation")
            for key, part in self.parts.items()
            if topic is None or key[0] == topic
            for low, high in part.gaps()
        ]

    def reset(self, topic: str, partition: str, first: int) -> None:
        """Start a partition at ``first``; never lowers it."""
        part = self.parts.get((topic, partition))
        if part is None:
            part = self.parts[topic, partition] = Part(first, first)
        self._start_at(part, first)

    def _start_at(self, part: Part, first: int) -> None:
        if first >= part.first:
            part.first = first
            part.next = max(part.next, first)
            part.blocks = [block for block in part.blocks if block.next > first]
            self._touch(part)

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        """Keep the newest blocks as far as a limit on the number of records asks for it."""
        found: list[tuple[Key, int]] = []
        for key, part in self.parts.items():
            limit = next((policy.records for topic, policy in policies if topic in ("*", key[0])), None)
            if limit is not None and part.next - part.first > limit:
                index = part.at(part.next - limit)
                if index > 0:
                    found.append((key, part.blocks[index].base))
        return found

    def forget(self, retained: object) -> None:
        """Carry out what ``retain`` decided."""
        assert isinstance(retained, list)
        for key, first in retained:
            self._start_at(self.parts[key], first)

    def scrub(self) -> Scrubbed:
        """Read the next partition; what is damaged in it is told to ``scrubbed``."""
        keys = list(self.parts)
        if self._scrub_at >= len(keys):
            self._scrub_at = 0
            return Scrubbed(idle=True)
        key = keys[self._scrub_at]
        self._scrub_at += 1
        return Scrubbed(1, news=any(block.damaged for block in self.parts[key].blocks), detail=key)

    def scrubbed(self, found: Scrubbed) -> ScrubEnded | None:
        """The damaged blocks of a partition become holes."""
        for key, part in self.parts.items():
            if key == found.detail:
                self._find(part)
        return None

    def _find(self, part: Part) -> None:
        sound = [block for block in part.blocks if not block.damaged]
        if len(sound) < len(part.blocks):
            part.blocks = sound
            self._touch(part)

    def close(self) -> None:
        """Nothing is held open."""

    # -- what happens to it ---------------------------------------------------------------------------

    def tear(self, appends: Sequence[AppendRecords], survivors: int) -> None:
        """A kill during a write: its first ``survivors`` blocks are there afterwards, in memory at least."""
        for each in appends[:survivors]:
            part = self.parts.get((each.topic, each.partition))
            self._cached.append((each, None if part is None or not part.version else part.next))
            self.publish((each,))

    def power_cut(self, survivors: int) -> None:
        """The machine dies as well: of what is in memory only, the first ``survivors`` blocks are there afterwards."""
        gone, self._cached = self._cached[survivors:], self._cached[:survivors]
        for each, before in reversed(gone):
            part = self._part(each)
            part.blocks = [block for block in part.blocks if not each.base <= block.base < each.base + each.count]
            if before is None:
                del self.parts[each.topic, each.partition]
            elif not each.heal:
                part.next = before

    def sync(self) -> None:
        """What is in memory only gets safe; a store does this before it believes what it finds."""
        self._safe([each for each, _ in self._cached])
        self._cached = []

    def restarted(self, scrub: bool) -> None:
        """A store opens the disk again, and reads all of it if ``scrub``; versions only grow."""
        self.sync()
        self._version += 1_000_000
        for part in self.parts.values():
            if part.version:
                self._touch(part)
        if scrub:
            for part in self.parts.values():
                self._find(part)

    def holds(self, key: Key, offset: int) -> bool:
        """Whether an offset is here and not damaged."""
        part = self.parts.get(key)
        if part is None or offset < part.first:
            return False
        index = part.at(offset)
        return index >= 0 and offset < part.blocks[index].next and not part.blocks[index].damaged


def _end_of(part: Part, offset: int, bytes_max: int) -> int:
    """Where a read from ``offset`` on will end, if nothing is damaged; 0 if nothing is there."""
    size, at = 0, offset
    while at < part.next and (index := part.at(at)) >= 0 and at < (block := part.blocks[index]).next:
        if size and size + len(block.body) > bytes_max:
            break
        size += len(block.body)
        at = block.next
    return at if size else 0
