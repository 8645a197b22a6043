"""The storage port in memory: what ``SegmentStorage`` is compared with, and what a store's core is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chappe.data.topic import Filter
from chappe.errors import StorageFull
from chappe.log.batch import Batch
from chappe.log.events import ScrubEnded
from chappe.log.storage import AppendRecords, Hole, PartitionInfo, Retention, Scrubbed, StorageRead


@dataclass(slots=True)
class _Kept:
    """Offsets ``first`` <= n < ``next`` of a batch, the ``order``-th that was published."""

    first: int
    next: int
    order: int
    batch: AppendRecords

    def body(self) -> bytes:
        if (self.first, self.next) == (self.batch.base, self.batch.base + self.batch.count):
            return self.batch.body
        return Batch.parse(self.batch.body).slice(self.first, self.next)

    def size(self) -> int:
        return len(self.batch.body) * (self.next - self.first) // self.batch.count


@dataclass(slots=True)
class _Partition:
    """What is kept of a partition, sorted and without overlap; what lies between is a hole."""

    topic: str
    name: str
    first: int
    next: int
    version: int = 0
    kept: list[_Kept] = field(default_factory=list)

    def info(self) -> PartitionInfo:
        return PartitionInfo(
            self.topic,
            self.name,
            self.first,
            self.next,
            sum(each.size() for each in self.kept),
            min((each.batch.timestamp_min for each in self.kept), default=0),
            max((each.batch.timestamp_max for each in self.kept), default=0),
            self.version,
        )

    def gaps(self) -> list[tuple[int, int]]:
        found = []
        at = self.first
        for low, high in [*((each.first, each.next) for each in self.kept), (self.next, self.next)]:
            if at < low:
                found.append((at, low))
            at = max(at, high)
        return found

    def add(self, order: int, batch: AppendRecords) -> None:
        low, high = batch.base, batch.base + batch.count
        self.next = max(self.next, high)
        for first, next_ in self.gaps():
            if max(first, low) < min(next_, high):
                self.kept.append(_Kept(max(first, low), min(next_, high), order, batch))
        self.kept.sort(key=lambda each: each.first)

    def start_at(self, first: int) -> None:
        if first > self.first:
            self.first = first
            self.next = max(self.next, first)
            self.kept = [each for each in self.kept if each.next > first]

    def holes(self) -> list[Hole]:
        return [Hole(self.topic, self.name, low, high - 1, "damaged") for low, high in self.gaps()]


class MemoryLogStorage:
    """The object is the disk and outlives a crash.

    Args:
        store_id: The store's lasting id.
        capacity_bytes: Writes that would keep more than this are refused with StorageFull; may be changed.
    """

    def __init__(self, store_id: str = "memory", capacity_bytes: int | None = None) -> None:
        self.store_id = store_id
        self.capacity_bytes = capacity_bytes
        self._partitions: dict[str, dict[str, _Partition]] = {}
        self._written: list[tuple[AppendRecords, ...]] = []  # durable, not yet published
        self._order = 0
        self._version = 0

    def write(self, appends: Sequence[AppendRecords]) -> object:
        """Keep the batches; see ``LogStorage``."""
        wanted = sum(len(each.body) for each in appends) + self.kept_bytes
        if self.capacity_bytes is not None and wanted > self.capacity_bytes:
            raise StorageFull("the memory given to this storage is full; nothing of the write is kept")
        written = tuple(appends)
        self._written.append(written)
        return written

    @property
    def kept_bytes(self) -> int:
        """Bytes of all batches kept, published or not."""
        waiting = sum(len(each.body) for written in self._written for each in written)
        return waiting + sum(each.size() for partition in self._all() for each in partition.kept)

    def publish(self, written: object) -> None:
        """Make the oldest write that is not yet published readable."""
        assert written is self._written[0], "writes are published in their order"
        for batch in self._written.pop(0):
            partition = self._partition(batch.topic, batch.partition, batch.base)
            self._order += 1
            partition.add(self._order, batch)
            self._touch(partition)

    def crash(self, survivors: int) -> None:
        """As after a kill: of the batches written and not yet published, the first ``survivors`` are there."""
        waiting = [batch for written in self._written for batch in written]
        self._written = [tuple(waiting[:survivors])]
        self.publish(self._written[0])

    def damage(self, topic: str, partition: str, offset: int) -> None:
        """Lose the batch that contains ``offset``, if there is one."""
        found = self._partitions[topic][partition]
        found.kept = [each for each in found.kept if not each.first <= offset < each.next]
        self._touch(found)

    def topics(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._partitions)

    def partition(self, topic: str, partition: str) -> PartitionInfo | None:
        """One partition, or None."""
        found = self._partitions.get(topic, {}).get(partition)
        return None if found is None else found.info()

    def changed(self, topic_prefix: str, since: int, limit: int) -> list[PartitionInfo]:
        """Partitions of matching topics changed after version ``since``, oldest change first."""
        found = [each for each in self._all() if each.version > since and each.topic.startswith(topic_prefix)]
        return [each.info() for each in sorted(found, key=lambda each: each.version)[:limit]]

    @property
    def version(self) -> int:
        """The version of the newest change."""
        return self._version

    def read(self, topic: str, partition: str, offset: int, bytes_max: int) -> StorageRead:
        """Batches from the one containing ``offset`` on; see ``LogStorage``."""
        found = self._partitions.get(topic, {}).get(partition)
        if found is None or not found.first <= offset < found.next:
            return StorageRead(())
        for low, high in found.gaps():
            if low <= offset < high:
                return StorageRead((), Hole(topic, partition, low, high - 1, "damaged"))
        batches: list[bytes] = []
        size, at = 0, offset
        for each in found.kept:
            if each.first <= at < each.next:
                body = each.body()
                if batches and size + len(body) > bytes_max:
                    break
                batches.append(body)
                size += len(body)
                at = each.next
        return StorageRead(tuple(batches))

    def offset_at(self, topic: str, partition: str, timestamp: int) -> int:
        """The first offset whose batch ends at or after ``timestamp``; ``next`` if all are older."""
        found = self._partitions.get(topic, {}).get(partition)
        if found is None:
            return 0
        late = (max(each.first, found.first) for each in found.kept if each.batch.timestamp_max >= timestamp)
        return next(late, found.next)

    def holes(self, topic: str | None = None) -> list[Hole]:
        """See ``LogStorage``."""
        return [hole for each in self._all() if topic is None or each.topic == topic for hole in each.holes()]

    def reset(self, topic: str, partition: str, first: int) -> None:
        """Start a partition at ``first``; never lowers it."""
        found = self._partition(topic, partition, first)
        found.start_at(first)
        self._touch(found)

    def retain(self, policies: Sequence[tuple[str, Retention]], now_us: int) -> object:
        """Decide what to remove: whole batches, the topic's oldest first; age alone removes the newest too."""
        removed: set[int] = set()
        for topic in self.topics():
            policy = next((each for name, each in policies if Filter.parse(name).matches(topic)), Retention())
            kept = sorted(
                (each for partition in self._partitions[topic].values() for each in partition.kept),
                key=lambda each: each.order,
            )
            size = sum(each.size() for each in kept)
            records = sum(each.next - each.first for each in kept)
            for each in kept:
                size -= each.size()
                records -= each.next - each.first
                newest = each is kept[-1]
                if not (
                    (policy.bytes is not None and size >= policy.bytes and not newest)
                    or (policy.records is not None and records >= policy.records and not newest)
                    or (policy.age_s is not None and each.batch.timestamp_max < now_us - policy.age_s * 1_000_000)
                ):
                    break
                removed.add(each.order)
        return removed

    def forget(self, retained: object) -> None:
        """Carry out what ``retain`` decided."""
        assert isinstance(retained, set)
        for partition in self._all():
            gone = [each.next for each in partition.kept if each.order in retained]
            if gone:
                partition.kept = [each for each in partition.kept if each.order not in retained]
                partition.start_at(max(gone))
                self._touch(partition)

    def scrub(self) -> Scrubbed:
        """Nothing: memory does not rot."""
        return Scrubbed(idle=True)

    def scrubbed(self, found: Scrubbed) -> ScrubEnded | None:
        """Nothing is ever found."""
        return None

    suspicious = False
    scrubbed_us = 0

    def close(self) -> None:
        """Nothing: the object is the disk."""

    def _all(self) -> list[_Partition]:
        return [found for topic in self.topics() for found in self._partitions[topic].values()]

    def _partition(self, topic: str, partition: str, first: int) -> _Partition:
        partitions = self._partitions.setdefault(topic, {})
        return partitions.setdefault(partition, _Partition(topic, partition, first, first))

    def _touch(self, partition: _Partition) -> None:
        self._version += 1
        partition.version = self._version
