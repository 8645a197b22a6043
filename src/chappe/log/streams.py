"""What a store received and has not written yet: one stream for each partition with something on its way.

A stream knows the next offset that it accepts, counting what is staged or being written; pieces are gathered
here and turned into few, large batches when the next write begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chappe.defaults import BATCH_RECORDS_MAX
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, encode_batch, merge
from chappe.log.storage import Append

Key = tuple[str, str]


@dataclass(slots=True)
class Stream:
    """One partition with something staged, being written, or missing."""

    next: int  # offset after the last one staged or stored
    staged: list[Batch] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)  # single records of originals, behind ``staged``
    records_us: int = 0  # when the first of them came
    writing: bool = False
    held: deque[Batch] = field(default_factory=deque)  # beyond a gap
    head: int = 0  # offset after the last one known to exist
    damaged: bool = False  # a store that has more of it answered with a hole
    kept_from: int = 0  # the last FETCH was answered from here on: its producer has nothing earlier
    said: int = 0  # offset after the last one that its producer announced
    active_at: float = 0.0  # when its producer was last heard
    retry_at: float = 0.0
    tries: int = 0
    missing_at: float = 0.0  # when the first of these tries was made
    fetched: int = 0  # the last FETCH asked for what comes before this; not asked again while that arrives
    reading: bool = False
    limits: LogLimits = LOG_LIMITS

    @property
    def idle(self) -> bool:
        """Whether the storage knows everything that this stream knows."""
        return not (self.staged or self.records or self.writing or self.held or self.reading or self.behind)

    @property
    def behind(self) -> bool:
        """Whether something is known to exist that was not received."""
        return self.next < self.head

    def stage(self, batch: Batch) -> None:
        """Take a batch that begins at or before ``next`` and ends after it."""
        if batch.base < self.next:
            batch = Batch.parse(batch.slice(self.next), check=False)
        self._seal_records()
        self.staged.append(batch)
        self.next = batch.next
        self.head = max(self.head, self.next)
        self.tries = 0
        if self.next >= self.fetched:
            self.retry_at = 0.0

    def stage_record(self, content: bytes, wall_us: int) -> None:
        """Take the record at ``next``."""
        if len(self.records) >= BATCH_RECORDS_MAX:
            self._seal_records()
        if not self.records:
            self.records_us = wall_us
        self.records.append(content)
        self.next += 1
        self.head = max(self.head, self.next)
        self.tries = 0
        if self.next >= self.fetched:
            self.retry_at = 0.0

    def _seal_records(self) -> None:
        if self.records:
            for group in _groups(self.records, self.limits.batch_bytes):
                base = self.next - len(self.records) + group.start
                batch = encode_batch(base, self.records[group.start : group.stop], self.records_us)
                self.staged.append(Batch.parse(batch, check=False))
            self.records = []

    def take(self, key: Key) -> Iterator[Append]:
        """Everything staged, small neighbours merged, as the next write's part of this partition."""
        self._seal_records()
        staged, self.staged = self.staged, []
        for run in _runs(staged, self.limits):
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
