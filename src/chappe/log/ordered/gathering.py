"""Records of one writer of an ordered topic on their way to its chain, gathered in batches.

A record leaves at once if nothing of its partition is under way. What comes meanwhile is gathered, and leaves when that
is confirmed, or in full batches before. So nobody has to wait for others, and who sends fast sends large batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from chappe.core import Clock
from chappe.defaults import BATCH_BYTES, BATCH_RECORDS_MAX
from chappe.errors import RecordTooLarge, UsageError
from chappe.log.batch import Batch, Headers, encode_batch, encode_headers
from chappe.log.ordered.commands import BODY_BYTES_MAX

UNDER_WAY_MAX: Final = 8  # batches of one partition
_RECORD_BYTES: Final = 64  # what a record takes beside its bytes, at most, with what a batch of it alone has
_I64: Final = range(-(2**63), 2**63)


class LeavingBatch(NamedTuple):
    """A batch that is to be appended; ``size`` counts until ``confirmed``."""

    partition: int
    body: bytes
    records: int
    size: int


@dataclass(slots=True)
class _GatheredPart:
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    stamps: list[int | None] = field(default_factory=list)
    size: int = 0
    ready: deque[LeavingBatch] = field(default_factory=deque)  # full batches
    under_way: int = 0


class Gathering:
    """Records on their way into batches. ``partitions``: of the topic, ``batch_bytes``: a batch of so many is full."""

    def __init__(self, partitions: int, clock: Clock, *, batch_bytes: int = BATCH_BYTES) -> None:
        self._parts = [_GatheredPart() for _ in range(partitions)]
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._turn = 0  # where records without a key go until a batch leaves
        self.bytes = 0  # gathered or under way
        self.taken = 0  # records

    @property
    def empty(self) -> bool:
        return not self.bytes

    def partition_of(self, key: bytes | None, partition: int | None) -> int:
        """Return the partition that a record names, or where its key belongs. Raises UsageError."""
        count = len(self._parts)
        if partition is not None:
            if not isinstance(partition, int) or not 0 <= partition < count:
                raise UsageError(f"there is no partition {partition}: the topic has {count}, from 0")
            return partition
        return self._turn if key is None else crc32c(key) % count

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp: int | None,
        partition: int | None,
    ) -> list[LeavingBatch]:
        """Add a record; returns what is to leave now.

        Raises:
            RecordTooLarge: It is larger than a chain takes at once; nothing was added.
            UsageError: Its headers, its timestamp or its partition are none; nothing was added.
        """
        index = self.partition_of(key, partition)
        raw_headers = encode_headers(headers)
        size = len(value or b"") + len(key or b"") + len(raw_headers) + _RECORD_BYTES
        self._refuse(size, timestamp)
        part = self._parts[index]
        if part.values and part.size + size > self._batch_bytes:
            self._seal(index)
        part.values.append(value)
        part.keys.append(key)
        part.headers.append(raw_headers)
        part.stamps.append(timestamp)
        part.size += size
        self.bytes += size
        self.taken += 1
        if part.size >= self._batch_bytes or len(part.values) == BATCH_RECORDS_MAX:
            self._seal(index)
        return self._leave(index)

    def add_values(
        self, values: Sequence[bytes | None], timestamp: int | None, partition: int | None
    ) -> list[LeavingBatch]:
        """Add records of values alone; return what leaves now. Raises as ``add``; then nothing was added."""
        self.partition_of(None, partition)
        sizes = [_RECORD_BYTES + len(value or b"") for value in values]
        self._refuse(max(sizes, default=0), timestamp)
        found: list[LeavingBatch] = []
        first = 0
        while first < len(values):
            index = self.partition_of(None, partition)
            part = self._parts[index]
            room, size, end = BATCH_RECORDS_MAX - len(part.values), part.size, first
            while end < len(values) and end - first < room and (not size or size + sizes[end] <= self._batch_bytes):
                size += sizes[end]
                end += 1
            part.values += values[first:end]
            part.keys += [None] * (end - first)
            part.headers += [b""] * (end - first)
            part.stamps += [timestamp] * (end - first)
            self.bytes += size - part.size
            self.taken += end - first
            part.size = size
            if end < len(values) or size >= self._batch_bytes or end - first == room:
                self._seal(index)
            found += self._leave(index)
            first = end
        return found

    def add_batch(self, batch: Batch, partition: int) -> list[LeavingBatch]:
        """Add records that are a batch already; returns what is to leave now. Raises RecordTooLarge, UsageError."""
        index = self.partition_of(None, partition)
        if len(batch.raw) > BODY_BYTES_MAX:
            raise RecordTooLarge(f"a batch for a chain has at most {BODY_BYTES_MAX:,} bytes, not {len(batch.raw):,}")
        self._seal(index)
        size = len(batch.raw)
        self._parts[index].ready.append(LeavingBatch(index, bytes(batch.raw), batch.count, size))
        self.bytes += size
        self.taken += batch.count
        return self._leave(index)

    def push(self, partition: int) -> list[LeavingBatch]:
        """Return all that is gathered for a partition: it is to leave now, as something follows it."""
        self._seal(partition)
        return self._leave(partition, most=len(self._parts[partition].ready))

    def confirmed(self, leaving: LeavingBatch) -> list[LeavingBatch]:
        """Note that a batch is no longer under way, with any outcome; returns what is to leave now."""
        self.bytes -= leaving.size
        self._parts[leaving.partition].under_way -= 1
        return self._leave(leaving.partition)

    # -- parts ------------------------------------------------------------------------------------------------

    def _refuse(self, size: int, timestamp: int | None) -> None:
        """Raise for a size or a timestamp that no record may have."""
        if size > BODY_BYTES_MAX:
            raise RecordTooLarge(
                f"the record has {size:,} bytes, with key and headers, of {BODY_BYTES_MAX:,} that one of an ordered "
                "topic may have"
            )
        if timestamp is not None and timestamp not in _I64:
            raise UsageError(f"the timestamp {timestamp} has more than 64 bits: it is in microseconds since 1970")

    def _leave(self, index: int, most: int = 0) -> list[LeavingBatch]:
        part = self._parts[index]
        found: list[LeavingBatch] = []
        while part.ready and (part.under_way < UNDER_WAY_MAX or len(found) < most):
            found.append(part.ready.popleft())
            part.under_way += 1
        if part.values and not part.under_way:
            self._seal(index)
            found.append(part.ready.popleft())
            part.under_way += 1
        return found

    def _seal(self, index: int) -> None:
        part = self._parts[index]
        values, keys, headers, stamps = part.values, part.keys, part.headers, part.stamps
        if not values:
            return
        now_us = self._clock.wall_ns() // 1000
        body = encode_batch(
            0,
            values,
            now_us,
            timestamps=None
            if stamps.count(None) == len(stamps)
            else [now_us if each is None else each for each in stamps],
            keys=None if keys.count(None) == len(keys) else keys,
            headers=headers if any(headers) else None,
        )
        part.ready.append(LeavingBatch(index, body, len(values), part.size))
        part.values, part.keys, part.headers, part.stamps, part.size = [], [], [], [], 0
        if index == self._turn:
            self._turn = (index + 1) % len(self._parts)
