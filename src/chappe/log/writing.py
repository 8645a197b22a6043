"""Received records that are not on disk: a stream for each partition with something on its way, and the write
under way.

A stream knows the next offset that it accepts, counting what is staged or being written; pieces are gathered there and
turned into few, large batches when the next write begins. Everything that arrived while one write ran goes into the
next: one fsync for all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chappe.core import Clock, Effect, Persist, Report
from chappe.deadlines import Deadlines
from chappe.defaults import BATCH_RECORDS_MAX, DISK_RETRY_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch, merge
from chappe.log.events import WritesRefused, WritesResumed
from chappe.log.gap import Gaps, GapState, PartitionGap
from chappe.log.sources import Key
from chappe.log.storage import AppendRecords, Hole, LogStorage, WriteRecords


@dataclass(slots=True)
class Stream:
    """One partition with something staged, being written, or missing; what comes next is its gap's ``next``."""

    gap: PartitionGap
    limits: LogLimits = LOG_LIMITS
    staged: list[Batch] | None = None
    records: list[bytes] | None = None  # single records of originals, behind ``staged``
    records_us: int = 0  # when the first of them came
    writing: bool = False

    @property
    def idle(self) -> bool:
        """True if the storage knows everything that this stream knows."""
        closed = self.gap.state is GapState.CLOSED
        return closed and not (self.staged or self.records or self.writing)

    def stage(self, batch: Batch) -> None:
        """Take a batch that begins at or before ``next`` and ends after it."""
        gap = self.gap
        if batch.base < gap.next:
            batch = Batch.parse(batch.slice(gap.next), check=False)
        self._seal_records()
        if self.staged is None:
            self.staged = []
        self.staged.append(batch)
        gap.next = batch.next
        gap.head = max(gap.head, gap.next)

    def stage_record(self, content: bytes, clock: Clock) -> None:
        gap = self.gap
        if self.records is not None and len(self.records) >= BATCH_RECORDS_MAX:
            self._seal_records()
        if self.records is None:
            self.records, self.records_us = [], clock.wall_ns() // 1000
        self.records.append(content)
        gap.next += 1
        gap.head = max(gap.head, gap.next)

    def _seal_records(self) -> None:
        records, self.records = self.records, None
        if not records:
            return
        if self.staged is None:
            self.staged = []
        for group in _groups(records, self.limits.batch_bytes):
            base = self.gap.next - len(records) + group.start
            batch = encode_batch(base, records[group.start : group.stop], self.records_us)
            self.staged.append(Batch.parse(batch, check=False))

    def take(self, key: Key) -> Iterator[AppendRecords]:
        """Return everything staged as the next write's part of this partition; small neighbours are merged."""
        self._seal_records()
        staged, self.staged = self.staged, None
        for run in _runs(staged or (), self.limits):
            body = merge(run)
            low, high = min(b.timestamp_min for b in run), max(b.timestamp_max for b in run)
            yield AppendRecords(key[0], key[1], run[0].base, run[-1].next - run[0].base, low, high, body)


def _groups(records: Sequence[bytes], bytes_max: int) -> Iterator[range]:
    """Iterate over index ranges of records that fit one batch each."""
    start = size = 0
    for index, record in enumerate(records):
        if index > start and size + len(record) > bytes_max:
            yield range(start, index)
            start, size = index, 0
        size += len(record)
    yield range(start, len(records))


def _runs(staged: Sequence[Batch], limits: LogLimits) -> Iterator[list[Batch]]:
    """Iterate over neighbours that are worth merging: small ones, until they are no longer small."""
    run: list[Batch] = []
    size = count = 0
    for batch in staged:
        # Sealed records cannot be read here, and compressed ones would be opened, and lie there without compression.
        small = batch.sealed is None and not batch.compressed and len(batch.raw) < limits.small_batch_bytes
        fits = size + len(batch.raw) <= limits.batch_bytes and count + batch.count <= BATCH_RECORDS_MAX
        if run and not (small and fits and run[-1].next == batch.base):
            yield run
            run, size, count = [], 0, 0
        run.append(batch)
        size = size + len(batch.raw) if small else limits.batch_bytes
        count += batch.count
    if run:
        yield run


class StoreWriter:
    """Streams, which begin at what the storage has, and what the disk is asked to do for them.

    Of ``timers``, ``retain`` is when retention runs, unless it does so; ``write`` when the disk may be asked again.
    """

    def __init__(
        self, storage: LogStorage, gaps: Gaps, timers: Deadlines[str], clock: Clock, limits: LogLimits = LOG_LIMITS
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._gaps = gaps
        self._limits = limits
        self._storage = storage
        self.streams: dict[Key, Stream] = {}
        self.staged_bytes = 0
        self.refused = False  # the disk refused the last write ...
        self.refusing_until = -math.inf  # ... and is asked for none until then
        self._dirty: dict[Key, None] = {}  # streams with something staged
        self._heals: list[AppendRecords] = []
        self._in_flight: tuple[AppendRecords, ...] = ()

    @property
    def paused(self) -> bool:
        """True if so much waits for the disk that nothing more should be received."""
        return self.staged_bytes >= self._limits.staged_bytes_max

    def stored(self, key: Key) -> int:
        info = self._storage.partition(*key)
        return 0 if info is None else info.next

    def next_offset(self, topic: str, partition: str) -> int:
        """Return the next offset of a partition, counting received records that are not stored yet."""
        stream = self.streams.get((topic, partition))
        return max(self.stored((topic, partition)), 0 if stream is None else stream.gap.next)

    def too_many(self, key: Key) -> bool:
        """Return True if a partition is new, and too many are known already of which no record came."""
        full = len(self._gaps.open) >= self._limits.unknown_partitions_max
        return full and key not in self.streams and self._storage.partition(*key) is None

    def stream(self, key: Key) -> Stream:
        """Return the stream of a partition; a new one begins at what is stored."""
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = Stream(PartitionGap(self.stored(key)), self._limits)
        return stream

    def prune(self, key: Key) -> None:
        """Forget a stream of which the storage knows everything."""
        stream = self.streams.get(key)
        if stream is not None and stream.idle:
            del self.streams[key]

    def lag(self, key: Key, stream: Stream, head: int) -> None:
        gap = stream.gap
        gap.head = max(gap.head, head)
        if not gap.complete:
            self._gaps.want(key, gap)

    def unknown(self, key: Key) -> bool:
        """Return True if nothing of a partition was ever received except what is held."""
        stream = self.streams.get(key)
        received = stream is not None and (stream.staged or stream.records or stream.writing)
        return not received and self._storage.partition(*key) is None

    def begin(self, key: Key, offset: int, now: float) -> None:
        """Begin an unknown partition here, so that records missing behind it are a hole, which can be filled."""
        self._storage.reset(*key, offset)
        if "retain" in self._timers:
            self._timers.set("retain", now)  # that makes it last

    def stage(self, key: Key, stream: Stream, batch: Batch) -> None:
        """Take a batch that begins at or before the next offset and ends after it; ``go_on`` follows."""
        stream.stage(batch)
        self.staged_bytes += len(batch.raw)
        self._dirty[key] = None

    def go_on(self, key: Key, stream: Stream, now: float) -> list[Effect]:
        """Take what was held behind the next offset, which moved on, and write."""
        gap = stream.gap
        if gap.state is not GapState.CLOSED:
            while (held := self._gaps.pop_held(gap)) is not None:
                self.stage(key, stream, held)
            self._gaps.progress(key, gap)
        return self.write(now)

    def take_record(self, key: Key, stream: Stream, content: bytes, now: float) -> list[Effect]:
        """Take the record at the next offset of a stream that holds nothing back, and write."""
        stream.stage_record(content, self._clock)
        self.staged_bytes += len(content)
        self._dirty[key] = None
        if stream.gap.state is not GapState.CLOSED:
            self._gaps.progress(key, stream.gap)
        return self.write(now)

    def heal(self, hole: Hole, batches: list[Batch], now: float) -> list[Effect]:
        """Write the part of the batches that lies within a hole, and is not being written already."""
        if now < self.refusing_until:
            return []
        for batch in batches:
            first, end = max(batch.base, hole.first), min(batch.next, hole.last + 1)
            if first >= end or any(a.base <= first < a.base + a.count for a in self._healing(hole)):
                continue
            body = batch.slice(first, end)
            low, high = batch.timestamp_min, batch.timestamp_max
            self._heals.append(
                AppendRecords(hole.topic, hole.partition, first, end - first, low, high, body, heal=True)
            )
            self.staged_bytes += len(body)
        return self.write(now)

    def _healing(self, hole: Hole) -> list[AppendRecords]:
        return [
            a
            for a in (*self._heals, *self._in_flight)
            if a.heal and (a.topic, a.partition) == (hole.topic, hole.partition)
        ]

    def write(self, now: float) -> list[Effect]:
        """Begin a write of everything staged, unless one is under way."""
        if self._in_flight or now < self.refusing_until or not (self._dirty or self._heals):
            return []
        appends: list[AppendRecords] = []
        for key in self._dirty:
            stream = self.streams[key]
            stream.writing = True
            appends += stream.take(key)
        appends += self._heals
        self._heals = []
        self._dirty = {}
        self._in_flight = tuple(appends)
        self.staged_bytes = sum(len(append.body) for append in appends)
        return [Persist(WriteRecords(self._in_flight))]

    def written(self) -> tuple[AppendRecords, ...]:
        """End the write under way, which is on disk and readable; return what was in it, for ``settle``."""
        done, self._in_flight = self._in_flight, ()
        self.staged_bytes -= sum(len(append.body) for append in done)
        return done

    def settle(self, key: Key) -> None:
        """Note that the written records of a partition are acknowledged."""
        stream = self.streams.get(key)
        if stream is not None:
            stream.writing = False
            self.prune(key)

    def transacted(self, key: Key, end: int) -> None:
        """Note that a sink's commit put everything before ``end`` on disk."""
        stream = self.streams.get(key)
        if stream is not None:
            gap = stream.gap
            gap.next = max(gap.next, end)
            if gap.state is not GapState.CLOSED:
                self._gaps.progress(key, gap)
            self.prune(key)

    def begin_later(self, key: Key, first: int, now: float) -> list[Effect]:
        """Forget what a partition has before ``first``; it goes on there at the earliest."""
        self._storage.reset(*key, first)
        stream = self.streams.get(key)
        if stream is None or stream.gap.next >= first:
            return []
        stream.gap.next = first
        effects = self.go_on(key, stream, now)
        self.prune(key)
        return effects

    def forget(self, now: float) -> list[tuple[Key, int, int]]:
        """Forget what is not stored after a failed write, to ask again after a pause; return partition, first, end."""
        for append in self._in_flight:
            stream = self.streams.get((append.topic, append.partition))
            if stream is not None and not append.heal:
                stream.writing = False
        self._in_flight = ()
        forgotten: list[tuple[Key, int, int]] = []
        for key, stream in list(self.streams.items()):
            gap = stream.gap
            head = gap.next
            self._gaps.drop_held(gap)
            stream.staged = stream.records = None
            gap.next = self.stored(key)
            forgotten.append((key, gap.next, max(head, gap.next)))
            self.lag(key, stream, head)
            gap.retry_at = now + DISK_RETRY_S
            self.prune(key)
        self._dirty.clear()
        self._heals.clear()
        self.staged_bytes = 0
        self.refusing_until = now + DISK_RETRY_S
        self._timers.set("write", self.refusing_until)
        return forgotten

    def refuse(self, reason: str) -> list[Effect]:
        """Note that the disk refuses writes; that is reported once."""
        if self.refused:
            return []
        self.refused = True
        return [Report(WritesRefused(reason))]

    def resume(self) -> list[Effect]:
        if not self.refused:
            return []
        self.refused = False
        return [Report(WritesResumed())]

    # -- for checkers ---------------------------------------------------------------------------------------

    def invariants(self) -> list[str]:
        found = [each for key, stream in self.streams.items() for each in self._gaps.invariants(key, stream.gap)]
        found += [f"{key} is open, and has no stream" for key in self._gaps.open if key not in self.streams]
        found += [f"{key} has a stream with nothing in it" for key, stream in self.streams.items() if stream.idle]
        found += [f"{key} is open, and nothing is missing" for key, gap in self._gaps.open.items() if gap.complete]
        held = sum(len(each.raw) for stream in self.streams.values() for each in stream.gap.held or ())
        if held != self._gaps.held_bytes:
            found.append(f"{self._gaps.held_bytes} held bytes are counted, and {held} are held")
        if self.staged_bytes < 0 or (self.staged_bytes and not (self._dirty or self._heals or self._in_flight)):
            found.append(f"{self.staged_bytes} bytes are counted as staged, and nothing is")
        return found
