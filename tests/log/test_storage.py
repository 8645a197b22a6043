"""What every log storage does, run over the one in memory and the one on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.log.memory_storage import MemoryLogStorage

from chappe.errors import StorageFull
from chappe.log.batch import Batch, encode_batch
from chappe.log.storage import AppendRecords, Hole, LogStorage, PartitionInfo, Retention, StorageRead
from chappe.storage.segments import SegmentStorage


def batch(
    base: int, count: int, *, topic: str = "t", partition: str = "p", at: int = 100, heal: bool = False
) -> AppendRecords:
    body = encode_batch(base, [b"record %d of %s" % (n, partition.encode()) for n in range(base, base + count)], at)
    return AppendRecords(topic, partition, base, count, at, at, body, heal)


def keep(storage: LogStorage, *batches: AppendRecords) -> None:
    storage.publish(storage.write(batches))


def offsets(read: StorageRead) -> list[int]:
    return [n for raw in read.batches for n in range(Batch.parse(raw).base, Batch.parse(raw).next)]


@pytest.fixture(params=["memory", "segments"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStorage]:
    made: LogStorage = MemoryLogStorage() if request.param == "memory" else SegmentStorage(tmp_path / "store")
    yield made
    made.close()


def info(storage: LogStorage, topic: str = "t", partition: str = "p") -> PartitionInfo:
    found = storage.partition(topic, partition)
    assert found is not None
    return found


def test_nothing_is_known_of_an_unknown_partition(storage: LogStorage) -> None:
    assert storage.topics() == []
    assert storage.partition("t", "p") is None
    assert storage.read("t", "p", 0, 100) == StorageRead(())
    assert storage.changed("", 0, 10) == []


@pytest.mark.parametrize("bytes_max", [1, 300, 1000, 100_000])
def test_it_is_told_where_the_next_read_will_end(tmp_path: Path, bytes_max: int) -> None:
    storage = SegmentStorage(tmp_path / "store")
    for base in range(0, 60, 3):
        keep(storage, batch(base, 3), batch(base, 3, partition="other"))
    ends, told, at = [], [], 0
    while at < 60:
        read = storage.read("t", "p", at, bytes_max)
        at = offsets(read)[-1] + 1
        ends.append(at)
        told.append(read.ahead)
    storage.close()
    assert told == [*ends[1:], 0]


def test_what_is_written_becomes_readable_when_it_is_published(storage: LogStorage) -> None:
    written = storage.write([batch(0, 3)])
    assert storage.partition("t", "p") is None

    storage.publish(written)
    assert storage.read("t", "p", 0, 1) == StorageRead((batch(0, 3).body,))
    assert (info(storage).first, info(storage).next) == (0, 3)


def test_a_read_starts_with_the_batch_that_contains_the_offset(storage: LogStorage) -> None:
    keep(storage, batch(0, 3), batch(3, 4), batch(7, 2))
    assert offsets(storage.read("t", "p", 4, 10_000)) == [3, 4, 5, 6, 7, 8]


def test_a_read_ends_before_it_gets_too_large_but_has_one_batch_at_least(storage: LogStorage) -> None:
    keep(storage, batch(0, 3), batch(3, 3), batch(6, 3))
    size = len(batch(0, 3).body)
    assert offsets(storage.read("t", "p", 0, 2 * size)) == [0, 1, 2, 3, 4, 5]
    assert offsets(storage.read("t", "p", 0, 2 * size - 1)) == [0, 1, 2]
    assert offsets(storage.read("t", "p", 0, 1)) == [0, 1, 2]


@pytest.mark.parametrize("offset", [0, 4, 10, 11, 1 << 62])
def test_outside_of_what_is_there_a_read_is_empty(storage: LogStorage, offset: int) -> None:
    keep(storage, batch(5, 5))
    assert storage.read("t", "p", offset, 1000) == StorageRead(())


def test_partitions_and_topics_are_kept_apart(storage: LogStorage) -> None:
    keep(storage, batch(0, 2), batch(0, 3, partition="q"), batch(4, 1, topic="u"))
    assert storage.topics() == ["t", "u"]
    assert storage.read("t", "q", 0, 1).batches == (batch(0, 3, partition="q").body,)
    assert (info(storage, "u").first, info(storage, "u").next) == (4, 5)


@pytest.mark.parametrize(
    "topic", ["", "a/b", "..", ".", ".hidden", "%41", "Ä" * 127, "x" * 255, "\udcff\udc80", "CON", "a b\n", "%%"]
)
def test_any_topic_can_be_kept(storage: LogStorage, topic: str) -> None:
    keep(storage, batch(0, 2, topic=topic))
    assert storage.topics() == [topic]
    assert offsets(storage.read(topic, "p", 0, 1)) == [0, 1]


@pytest.mark.parametrize("partition", ["", "ü", "\udcff", "x" * 255])
def test_any_partition_can_be_kept(storage: LogStorage, partition: str) -> None:
    made = AppendRecords("t", partition, 0, 2, 1, 1, encode_batch(0, [b"a", b"b"], 1))
    keep(storage, made)
    assert storage.read("t", partition, 0, 1) == StorageRead((made.body,))


def test_an_info_tells_size_and_times(storage: LogStorage) -> None:
    keep(storage, batch(0, 2, at=500), batch(2, 2, at=300))
    found = info(storage)
    assert found.bytes == len(batch(0, 2).body) + len(batch(2, 2).body)
    assert (found.timestamp_min, found.timestamp_max) == (300, 500)


def test_changes_are_told_oldest_first_and_in_pages(storage: LogStorage) -> None:
    for partition in "abcab":
        found = storage.partition("t", partition)
        keep(storage, batch(found.next if found else 0, 1, partition=partition))
    first, second = storage.changed("", 0, 2)
    assert [first.partition, second.partition] == ["c", "a"]
    (third,) = storage.changed("", second.version, 2)
    assert third.partition == "b"
    assert third.version == storage.version
    assert storage.changed("", storage.version, 2) == []


def test_changes_of_matching_topics_only(storage: LogStorage) -> None:
    keep(storage, batch(0, 1, topic="cpu.a"), batch(0, 1, topic="mem"), batch(0, 1, topic="cpu.b"))
    assert [each.topic for each in storage.changed("cpu.", 0, 10)] == ["cpu.a", "cpu.b"]
    assert [each.topic for each in storage.changed("", 0, 10)] == ["cpu.a", "mem", "cpu.b"]
    assert storage.changed("cpu.c", 0, 10) == []


def test_changes_stay_complete_after_very_many(storage: LogStorage) -> None:
    for base in range(300):
        keep(storage, batch(base, 1, partition="busy"), *([batch(0, 1, partition="quiet")] if base == 7 else []))
    assert [each.partition for each in storage.changed("", 0, 10)] == ["quiet", "busy"]


def test_what_is_left_out_is_a_hole(storage: LogStorage) -> None:
    keep(storage, batch(0, 3), batch(5, 2))
    assert [(each.first, each.last) for each in storage.holes()] == [(3, 4)]
    assert offsets(storage.read("t", "p", 0, 10_000)) == [0, 1, 2]
    read = storage.read("t", "p", 4, 10_000)
    assert read.batches == ()
    assert read.hole is not None
    assert (read.hole.topic, read.hole.partition, read.hole.first, read.hole.last) == ("t", "p", 3, 4)


def test_a_hole_can_be_healed_in_parts(storage: LogStorage) -> None:
    keep(storage, batch(0, 3), batch(9, 1))
    keep(storage, batch(5, 2, heal=True))
    assert [(each.first, each.last) for each in storage.holes()] == [(3, 4), (7, 8)]

    keep(storage, batch(3, 2, heal=True), batch(7, 2, heal=True))
    assert storage.holes() == []
    assert offsets(storage.read("t", "p", 0, 10_000)) == list(range(10))
    assert info(storage).next == 10


def test_a_heal_replaces_nothing_that_is_there(storage: LogStorage) -> None:
    keep(storage, batch(2, 2), batch(6, 2))
    keep(storage, batch(0, 10, at=900, heal=True))
    assert offsets(storage.read("t", "p", 2, 10_000)) == list(range(2, 10))
    assert storage.read("t", "p", 2, 1) == StorageRead((batch(2, 2).body,))
    assert storage.holes() == []
    assert (info(storage).first, info(storage).next) == (2, 10)


def test_writing_the_same_again_changes_nothing(storage: LogStorage) -> None:
    keep(storage, batch(0, 3), batch(3, 3))
    keep(storage, batch(0, 3), batch(3, 3))
    assert offsets(storage.read("t", "p", 0, 10_000)) == list(range(6))
    assert info(storage).bytes == len(batch(0, 3).body) + len(batch(3, 3).body)


def test_a_time_leads_to_the_first_batch_that_ends_then_or_later(storage: LogStorage) -> None:
    keep(storage, batch(0, 2, at=100), batch(2, 2, at=300), batch(4, 2, at=200), batch(6, 2, at=400))
    assert [storage.offset_at("t", "p", at) for at in (0, 100, 101, 300, 301, 400, 401)] == [0, 0, 2, 2, 6, 6, 8]


def test_a_time_before_a_raised_first_leads_to_the_first(storage: LogStorage) -> None:
    keep(storage, batch(0, 2, at=900), batch(2, 2, at=100), batch(4, 2, at=300))
    storage.reset("t", "p", 2)
    assert storage.offset_at("t", "p", 50) == 2
    assert storage.offset_at("t", "p", 200) == 4


def test_a_reset_starts_an_unknown_partition(storage: LogStorage) -> None:
    storage.reset("t", "p", 70)
    assert (info(storage).first, info(storage).next) == (70, 70)
    keep(storage, batch(70, 2))
    assert storage.holes() == []
    assert offsets(storage.read("t", "p", 70, 1)) == [70, 71]


def test_a_reset_drops_what_is_below_and_is_a_change(storage: LogStorage) -> None:
    keep(storage, batch(0, 3), batch(3, 3), batch(9, 1))
    before = storage.version
    storage.reset("t", "p", 9)
    assert [each.first for each in storage.changed("", before, 10)] == [9]
    assert storage.holes() == []
    assert storage.read("t", "p", 5, 1) == StorageRead(())
    storage.reset("t", "p", 2)
    assert info(storage).first == 9

    storage.reset("t", "p", 50)
    assert (info(storage).first, info(storage).next, info(storage).bytes) == (50, 50, 0)


def test_without_a_policy_nothing_is_removed(storage: LogStorage) -> None:
    keep(storage, batch(0, 3))
    storage.forget(storage.retain([("other", Retention(age_s=0)), ("t", Retention())], now_us=10**15))
    assert offsets(storage.read("t", "p", 0, 1)) == [0, 1, 2]


def test_age_removes_everything_old_and_keeps_the_head(storage: LogStorage) -> None:
    keep(storage, batch(0, 3, at=1_000_000), batch(0, 1, topic="other", at=1_000_000))
    retained = storage.retain([("t*", Retention(age_s=5))], now_us=7_000_000)
    assert offsets(storage.read("t", "p", 0, 1)) == [0, 1, 2]

    before = storage.version
    storage.forget(retained)
    assert storage.read("t", "p", 0, 1) == StorageRead(())
    assert (info(storage).first, info(storage).next, info(storage).bytes) == (3, 3, 0)
    assert [each.topic for each in storage.changed("", before, 10)] == ["t"]
    assert info(storage, "other").bytes > 0

    keep(storage, batch(3, 2, at=7_000_000))
    assert offsets(storage.read("t", "p", 3, 1)) == [3, 4]


def test_age_keeps_what_is_young(storage: LogStorage) -> None:
    keep(storage, batch(0, 3, at=6_000_000))
    storage.forget(storage.retain([("t", Retention(age_s=5))], now_us=7_000_000))
    assert offsets(storage.read("t", "p", 0, 1)) == [0, 1, 2]


def test_a_write_of_nothing_is_nothing(storage: LogStorage) -> None:
    keep(storage)
    assert storage.topics() == []


def test_memory_refuses_what_is_over_its_capacity() -> None:
    storage = MemoryLogStorage(capacity_bytes=len(batch(0, 3).body))
    keep(storage, batch(0, 3))
    with pytest.raises(StorageFull):
        storage.write([batch(3, 3)])
    assert info(storage).next == 3


def test_a_crash_keeps_a_prefix_of_what_memory_was_writing() -> None:
    storage = MemoryLogStorage()
    storage.write([batch(0, 3), batch(3, 3)])
    storage.crash(survivors=1)
    assert info(storage).next == 3


def test_damage_in_memory_is_a_hole() -> None:
    storage = MemoryLogStorage()
    keep(storage, batch(0, 3), batch(3, 3))
    storage.damage("t", "p", 4)
    assert storage.holes() == [Hole("t", "p", 3, 5, "damaged")]
    assert info(storage).next == 6


def test_retention_by_bytes_and_records_in_memory() -> None:
    policies: list[Callable[[int], Retention]] = [
        lambda n: Retention(bytes=n * len(batch(0, 1).body)),
        lambda n: Retention(records=n),
    ]
    for policy in policies:
        storage = MemoryLogStorage()
        keep(storage, *(batch(n, 1) for n in range(9)))
        storage.forget(storage.retain([("t", policy(4))], now_us=0))
        assert info(storage).first == 5
        storage.forget(storage.retain([("t", policy(0))], now_us=0))
        assert info(storage).first == 8
