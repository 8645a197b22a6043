"""Whatever is done to it, restarts and kills included, the segment storage answers as the one in memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.log.memory_storage import MemoryLogStorage

from chappe.log.batch import Batch, encode_batch
from chappe.log.storage import AppendRecords, LogStorage, PartitionInfo, Retention
from chappe.storage.segments import SegmentStorage

TOPICS = st.sampled_from(["a", "a/b"])
PARTITIONS = st.sampled_from(["p", "q"])
TIMES = st.integers(0, 50)


def batch(topic: str, partition: str, base: int, count: int, at: int, *, heal: bool = False) -> AppendRecords:
    return AppendRecords(
        topic,
        partition,
        base,
        count,
        at,
        at,
        encode_batch(base, [b"%d" % n for n in range(base, base + count)], at),
        heal,
    )


def shown(info: PartitionInfo) -> tuple[object, ...]:
    return info.topic, info.partition, info.first, info.next


def records(storage: LogStorage, info: PartitionInfo) -> tuple[list[int], list[tuple[int, int]]]:
    """The offsets that can be read, and the holes that reading meets."""
    seen: list[int] = []
    holes = []
    at = info.first
    while at < info.next:
        read = storage.read(info.topic, info.partition, at, 200)
        if read.hole is not None:
            holes.append((read.hole.first, read.hole.last))
            at = read.hole.last + 1
            continue
        for raw in read.batches:
            parsed = Batch.parse(raw)
            assert parsed.base <= at < parsed.next
            assert parsed.values() == [b"%d" % n for n in range(parsed.base, parsed.next)]
            seen += range(at, parsed.next)
            at = parsed.next
    return seen, holes


class SameAsMemory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="chappe-"))
        self.path = self.root / "0"
        self.kills = 0

    @initialize(entries=st.sampled_from([1, 2, 5, 1000]))
    def start(self, entries: int) -> None:
        self.entries = entries
        self.disk = self.opened()
        self.memory = MemoryLogStorage()
        self.resets = False  # since the last time they became durable

    def opened(self) -> SegmentStorage:
        return SegmentStorage(self.path, segment_entries=self.entries)

    def next(self, topic: str, partition: str) -> int:
        found = self.memory.partition(topic, partition)
        return found.next if found else 0

    def keep(self, *appends: AppendRecords) -> None:
        self.disk.publish(self.disk.write(appends))
        self.memory.publish(self.memory.write(appends))

    @rule(
        topic=TOPICS,
        partition=PARTITIONS,
        gap=st.sampled_from([0, 0, 0, 3]),
        counts=st.lists(st.integers(1, 4)),
        at=TIMES,
    )
    def append(self, topic: str, partition: str, gap: int, counts: list[int], at: int) -> None:
        base = self.next(topic, partition) + gap
        appends = []
        for count in counts:
            appends.append(batch(topic, partition, base, count, at))
            base += count
        self.keep(*appends)

    @rule(at=TIMES, counts=st.lists(st.integers(1, 3), min_size=2, max_size=2))
    def append_to_all(self, at: int, counts: list[int]) -> None:
        self.keep(
            *(
                batch(topic, partition, self.next(topic, partition), count, at)
                for topic in ("a", "a/b")
                for partition, count in zip("pq", counts, strict=True)
            )
        )

    @rule(data=st.data(), at=TIMES)
    def heal(self, data: st.DataObject, at: int) -> None:
        holes = self.memory.holes()
        if holes:
            hole = data.draw(st.sampled_from(holes))
            base = data.draw(st.integers(hole.first, hole.last))
            count = data.draw(st.integers(1, hole.last - base + 1))
            self.keep(batch(hole.topic, hole.partition, base, count, at, heal=True))

    @rule(topic=TOPICS, partition=PARTITIONS, above=st.integers(-3, 3))
    def reset(self, topic: str, partition: str, above: int) -> None:
        first = max(self.next(topic, partition) + above, 0)
        if self.memory.partition(topic, partition) is not None:
            self.disk.reset(topic, partition, first)
            self.memory.reset(topic, partition, first)
            self.resets = True

    @rule()
    def restart(self) -> None:
        version = self.disk.version
        self.disk.close()
        self.disk = self.opened()
        self.resets = False
        changed = any(self.memory.partition(topic, partition) for topic in ("a", "a/b") for partition in "pq")
        assert self.disk.version > version if changed else self.disk.version >= version

    @precondition(lambda self: not self.resets)
    @rule()
    def kill(self) -> None:
        self.kills += 1
        copy = self.root / str(self.kills)
        shutil.copytree(self.path, copy)
        self.disk._directory.close()
        self.disk._reader.handles.close()
        self.path = copy
        self.disk = self.opened()

    @rule()
    def remove_everything(self) -> None:
        """By age; what goes when only a part is old depends on what shares a segment."""
        policies = [("*", Retention(age_s=7.0))]
        for storage in (self.disk, self.memory):
            storage.forget(storage.retain(policies, 51 + 7_000_000))
        self.resets = False

    @invariant()
    def same_answers(self) -> None:
        if not hasattr(self, "disk"):
            return
        disk = self.disk.changed("", 0, 100)
        memory = self.memory.changed("", 0, 100)
        assert sorted(map(shown, disk)) == sorted(map(shown, memory))
        assert sorted((h.topic, h.partition, h.first, h.last) for h in self.disk.holes()) == sorted(
            (h.topic, h.partition, h.first, h.last) for h in self.memory.holes()
        )
        for info in memory:
            assert records(self.disk, info) == records(self.memory, info)
            for at in (0, 20, 40, 51):
                found = self.disk.offset_at(info.topic, info.partition, at)
                assert found == self.memory.offset_at(info.topic, info.partition, at)

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
        shutil.rmtree(self.root)


TestSameAsMemory = SameAsMemory.TestCase
TestSameAsMemory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, print_blob=True)
