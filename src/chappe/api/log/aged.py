"""How old records are when they are taken from a consumer, by the clocks of their producers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chappe.api.ages import OnStale, Stale
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.data.topic import shown
from chappe.errors import TooSlow
from chappe.log.batch import Batch, Record
from chappe.log.events import RecordsTooOld
from chappe.runtime.log_node import wall_us


class Aged:
    """What a consumer with ``max_age_s`` does with what is too old.

    Args:
        report: Gets an event for records that were dropped, at most once a second.
    """

    def __init__(self, max_age_s: float, on_stale: OnStale, report: Callable[[object], object]) -> None:
        self.stale = Stale(max_age_s, on_stale, lambda count, age_s: report(RecordsTooOld(count, age_s, max_age_s)))
        self._max_us = int(max_age_s * 1e6)

    def is_old(self, batch: ConsumedBatch) -> bool:
        """Whether records of a batch are too old; it is looked into only if some may be."""
        before = self._before()
        return batch.batch.timestamp_min < before and _count(batch, before) > 0

    def drop(self, batch: ConsumedBatch) -> tuple[ConsumedBatch | None, ConsumedBatch | None]:
        """The first young neighbours in a batch, and the batch from the next young record on, for later.

        What is too old in front of either is counted. The time that it takes is that of what it goes past: young and
        old may take turns all through a batch.
        """
        before, base, end = self._before(), batch.batch.base, batch.next
        raw = batch.batch.timestamp_bytes()
        if batch.batch.timestamp_min >= before:
            return batch, None
        if raw is None:
            self.stale.drop(len(batch), _age_s(batch.batch.timestamp_min))
            return None, None
        stamps = raw.cast("q")

        def run(start: int, young: bool) -> int:
            return next((at for at in range(start, end) if (stamps[at - base] >= before) is not young), end)

        def skip(start: int) -> int:
            after = run(start, young=False)
            if after > start:
                oldest = min(stamps[start - base : after - base])
                self.stale.drop(after - start, _age_s(oldest))
            return after

        first = skip(batch.first)
        if first == end:
            return None, None
        last = run(first, young=True)
        rest = skip(last)
        left = None if rest == end else ConsumedBatch(batch.topic, batch.partition, batch.batch, rest, batch.sender)
        return _cut(batch, first, last), left

    def drop_old(self, record: Record) -> bool:
        """Whether a record is too old now; if what is too old is dropped, it is counted."""
        if record.timestamp >= self._before():
            return False
        if not self.stale.ends:
            self.stale.drop(1, _age_s(record.timestamp))
        return True

    def error(self, waiting: Iterable[ConsumedBatch]) -> TooSlow:
        """The first of what waits is too old: what ends the consumer."""
        batches = list(waiting)
        first = batches[0]
        oldest = min(first.batch.timestamps()[first.first - first.batch.base :])
        what = f"a record of topic {first.topic!r}, partition {shown(first.partition)},"
        count = sum(_count(each, self._before()) for each in batches)
        return self.stale.error(what, _age_s(oldest), count)

    def _before(self) -> int:
        """Records with an earlier time are too old."""
        return wall_us() - self._max_us


def _age_s(timestamp: int) -> float:
    return (wall_us() - timestamp) / 1e6


def _count(batch: ConsumedBatch, before: int) -> int:
    if batch.batch.timestamp_min >= before:
        return 0
    if batch.batch.timestamp_max < before:
        return len(batch)
    return sum(each < before for each in batch.batch.timestamps()[batch.first - batch.batch.base :])


def _cut(batch: ConsumedBatch, first: int, end: int) -> ConsumedBatch:
    kept = batch.batch if end == batch.next else Batch.parse(batch.batch.slice(first, end), check=False)
    return ConsumedBatch(batch.topic, batch.partition, kept, first, batch.sender)
