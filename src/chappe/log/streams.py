"""What a store received and has not written yet: one stream for each partition with something on its way.

A stream knows the next offset that it accepts, counting what is staged or being written; pieces are gathered
here and turned into few, large batches when the next write begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chappe.defaults import BATCH_RECORDS_MAX
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch, merge
from chappe.log.gap import Gap, GapState
from chappe.log.sources import Key
from chappe.log.storage import Append


@dataclass(slots=True)
class Stream:
    """One partition with something staged, being written, or missing; what comes next is its gap's ``next``."""

    gap: Gap
    limits: LogLimits = LOG_LIMITS
    staged: list[Batch] | None = None
    records: list[bytes] | None = None  # single records of originals, behind ``staged``
    records_us: int = 0  # when the first of them came
    writing: bool = False

    @property
    def idle(self) -> bool:
        """Whether the storage knows everything that this stream knows."""
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

    def stage_record(self, content: bytes, wall_us: int) -> None:
        """Take the record at ``next``."""
        gap = self.gap
        if self.records is not None and len(self.records) >= BATCH_RECORDS_MAX:
            self._seal_records()
        if self.records is None:
            self.records, self.records_us = [], wall_us
        self.records.append(content)
        gap.next += 1
        gap.head = max(gap.head, gap.next)

    def drop_staged(self) -> None:
        """Forget what was not written."""
        self.staged = self.records = None

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

    def take(self, key: Key) -> Iterator[Append]:
        """Everything staged, small neighbours merged, as the next write's part of this partition."""
        self._seal_records()
        staged, self.staged = self.staged, None
        for run in _runs(staged or (), self.limits):
            body = merge(run)
            low, high = min(b.timestamp_min for b in run), max(b.timestamp_max for b in run)
            yield Append(key[0], key[1], run[0].base, run[-1].next - run[0].base, low, high, body)


def _groups(records: Sequence[bytes], bytes_max: int) -> Iterator[range]:
    """Index ranges of records that fit one batch each."""
    start = size = 0
    for index, record in enumerate(records):
        if index > start and size + len(record) > bytes_max:
            yield range(start, index)
            start, size = index, 0
        size += len(record)
    yield range(start, len(records))


def _runs(staged: Sequence[Batch], limits: LogLimits) -> Iterator[list[Batch]]:
    """Neighbours that are worth merging: small ones, until they are no longer small."""
    run: list[Batch] = []
    size = count = 0
    for batch in staged:
        small = len(batch.raw) < limits.small_batch_bytes
        fits = size + len(batch.raw) <= limits.batch_bytes and count + batch.count <= BATCH_RECORDS_MAX
        if run and not (small and fits and run[-1].next == batch.base):
            yield run
            run, size, count = [], 0, 0
        run.append(batch)
        size = size + len(batch.raw) if small else limits.batch_bytes
        count += batch.count
    if run:
        yield run
