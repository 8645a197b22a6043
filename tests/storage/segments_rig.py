"""What tests of the segment storage write, and how they look at what it has."""

from __future__ import annotations

from chappe.log.batch import Batch, encode_batch
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage


def batch(base: int, count: int, *, topic: str = "t", partition: str = "p", heal: bool = False) -> AppendRecords:
    body = encode_batch(base, [b"record %d of %s" % (n, partition.encode()) for n in range(base, base + count)], 100)
    return AppendRecords(topic, partition, base, count, 100, 100, body, heal)


def keep(storage: SegmentStorage, *batches: AppendRecords) -> None:
    storage.publish(storage.write(batches))


def everything(storage: SegmentStorage, topic: str = "t", partition: str = "p") -> list[int]:
    """The offsets of all that can be read; every record is what was written."""
    found = storage.partition(topic, partition)
    at, seen = (found.first, list[int]()) if found else (0, [])
    while found and at < found.next:
        read = storage.read(topic, partition, at, 1 << 20)
        for raw in read.batches:
            for record in Batch.parse(raw).records(topic, partition):
                assert record.value == b"record %d of %s" % (record.offset, partition.encode())
                seen.append(record.offset)
        at = read.hole.last + 1 if read.hole else seen[-1] + 1
    return seen


def holes(storage: SegmentStorage) -> list[int]:
    return [n for hole in storage.holes() for n in range(hole.first, hole.last + 1)]
