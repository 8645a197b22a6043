"""The age of records when a consumer hands them out, by the clocks of their producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from chappe.api.ages import OnStale, Stale
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.data.topic import shown
from chappe.errors import TooSlow
from chappe.log.clocks import ClockEstimate
from chappe.log.events import RecordsTooOld
from chappe.system import time

Olds: TypeAlias = Callable[[int], bool]  # whether a timestamp is too old


class Aged:
    """Applies ``max_age_s`` of a consumer. ``report`` gets an event for dropped records, at most once a second."""

    def __init__(self, max_age_s: float, on_stale: OnStale, report: Callable[[object], object]) -> None:
        self.max_age_s = max_age_s
        self.stale = Stale(max_age_s, on_stale, lambda count, age_s: report(RecordsTooOld(count, age_s, max_age_s)))

    def is_old(self, batch: ConsumedBatch, clock: ClockEstimate) -> bool:
        """True if records of a batch are too old."""
        return _count(batch, self.olds(batch, clock)) > 0

    def olds(self, batch: ConsumedBatch, clock: ClockEstimate) -> Olds:
        """Return a predicate for timestamps of the batch that are too old, by the clock or since they came here."""
        now = time.monotonic()
        if now - batch.arrived > self.max_age_s:
            return lambda timestamp: True
        return clock.olds(self.max_age_s, now)

    def young_until(self, batch: ConsumedBatch, clock: ClockEstimate) -> float:
        """Return the time until which no record of a batch can be too old."""
        known = clock.young_until(batch.batch.timestamp_min, self.max_age_s)
        return min(known, batch.arrived + self.max_age_s)

    def drop(self, batch: ConsumedBatch, clock: ClockEstimate) -> tuple[ConsumedBatch | None, ConsumedBatch | None]:
        """Return the first run of young records in a batch, and the batch from the next young record on, for later.

        Old records in front of either are counted as dropped. It costs time for the records that it passes: young and
        old may take turns all through a batch.
        """
        old, base, end = self.olds(batch, clock), batch.batch.base, batch.next
        raw = batch.batch.timestamp_bytes()
        if raw is None:
            if not old(batch.batch.timestamp_min):
                return batch, None
            self.stale.drop(len(batch), _age_s(batch, batch.batch.timestamp_min, clock))
            return None, None
        stamps = raw.cast("q")

        def run(start: int, young: bool) -> int:
            return next((at for at in range(start, end) if old(stamps[at - base]) is young), end)

        def skip(start: int) -> int:
            after = run(start, young=False)
            if after > start:
                oldest = min(stamps[start - base : after - base])
                self.stale.drop(after - start, _age_s(batch, oldest, clock))
            return after

        first = skip(batch.first)
        if first == end:
            return None, None
        last = run(first, young=True)
        rest = skip(last)
        return batch.cut(first, last), None if rest == end else batch.cut(rest)

    def drop_one(self, batch: ConsumedBatch, timestamp: int, clock: ClockEstimate) -> None:
        self.stale.drop(1, _age_s(batch, timestamp, clock))

    def error(self, batches: Sequence[tuple[ConsumedBatch, ClockEstimate]]) -> TooSlow:
        """Return the error that ends the consumer: the first of the batches is too old by its producer's clock."""
        first, clock = batches[0]
        oldest = min(first.batch.timestamps()[first.first - first.batch.base :])
        what = f"a record of topic {first.topic!r}, partition {shown(first.partition)},"
        count = sum(_count(each, self.olds(each, of)) for each, of in batches)
        return self.stale.error(what, _age_s(first, oldest, clock), count)


def _age_s(batch: ConsumedBatch, timestamp: int, clock: ClockEstimate) -> float:
    now = time.monotonic()
    return max(clock.age_s(timestamp, now), now - batch.arrived)


def _count(batch: ConsumedBatch, old: Olds) -> int:
    if batch.batch.timestamp_bytes() is None:
        return len(batch) if old(batch.batch.timestamp_min) else 0
    return sum(map(old, batch.batch.timestamps()[batch.first - batch.batch.base :]))
