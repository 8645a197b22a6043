"""The queue between a consumer's core and its user: records in order, opened, and young enough."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterator
from itertools import islice
from operator import length_hint
from typing import Final, Literal

from chappe.api.log.aged import Aged
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.sealed import KeyWait, Opening
from chappe.data.topic import Filter
from chappe.errors import Sealed, TooSlow
from chappe.log.batch import Record
from chappe.log.clocks import ClockEstimate
from chappe.log.consumer import LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.delivery import Records
from chappe.log.sources import Key
from chappe.runtime.log_seats import Seat
from chappe.system import time

LOOK_S: Final = 0.05  # how often those who wait look for what no record tells
RECHECK_KEYS_S: Final = 0.2  # how often it is looked whether keys have come for what waits for them
CLOCKS_AT_ONCE: Final = 256  # batches whose producers are asked for the time at once


class ConsumerInbox:
    """The queue of one consumer, and its user's position; all with the member's lock held, except ``iterate``.

    At most one batch is open for loops over records. Taking a batch, or opening another one, ends these loops and takes
    their remaining records, so each record goes to one receiver.

    Args:
        node: The seat of the consumer's core; it hears of taken bytes and asks for clocks.
        aged: The policy for records that are too old; None: there is no limit.

    Attributes:
        queue: Batches that have come, in order.
        taken: The offset after the last record handed to the user, by (topic, partition).
        ended: The error of a record that was too old, and the positions then.
    """

    def __init__(self, core: LogConsumer, node: Seat[ConsumingMember], opening: Opening, aged: Aged | None) -> None:
        self._core, self._node, self._opening, self._aged = core, node, opening, aged
        self.queue: deque[ConsumedBatch] = deque()
        self.taken: dict[Key, int] = {}
        self.ended: tuple[TooSlow, dict[Key, int]] | None = None
        self._open: ConsumedBatch | None = None  # the batch of the one loop over records, ...
        self._ahead: Iterator[int] = iter(())  # ... its offsets that are still ahead ...
        self._records: Iterator[Record] | None = None  # ... and its records, if no clock is needed to make them
        self._since: dict[Key, int] = {}  # sealed partitions begin at the first record of this time, or a later one
        self._undecided = False  # the first in the queue has no known age yet: the clock of its producer is asked for
        self._stalled = 0  # batches in the queue that wait for keys ...
        self._recheck_at = math.inf  # ... and the time at which they are tried again

    # -- what comes -------------------------------------------------------------------------------------------

    def deliver(self, records: Records) -> None:
        arrived = -math.inf if self._aged is None else time.monotonic()
        if records.since is not None:
            self._since[records.topic, records.partition] = records.since
        self.queue.append(
            ConsumedBatch(records.topic, records.partition, records.batch, records.start, arrived=arrived)
        )

    def judged(self) -> None:
        """Note that a requested clock has come."""
        self._undecided = False

    @property
    def ready(self) -> bool:
        """True if ``take`` may have something to return; read without the lock, too."""
        waits = len(self.queue) == self._stalled and time.monotonic() < self._recheck_at
        return bool(self.queue) and not waits and not self._undecided

    @property
    def waits_for_keys(self) -> bool:
        """True if records cannot be opened yet, or were left out and may be for us after all."""
        return 0 < self._stalled <= len(self.queue) or self._opening.passed

    # -- what is taken ----------------------------------------------------------------------------------------

    def take(self) -> ConsumedBatch | None:
        """Return the next batch, or the rest that a loop left of one; None if there is none. Raises TooSlow, Sealed."""
        rest = self._end_loop()
        if self._aged is not None:
            return self._take_young(self._aged, rest)
        if rest is not None:
            return rest
        come = self._next()
        if come is None:
            return None
        found, size = come
        self.taken[found.topic, found.partition] = found.next
        self._release(size)
        return found

    def take_records(self) -> Iterator[Record] | None:
        """Return the iterator that a loop continues with, or None if there are no records. Raises as ``take``.

        All threads share an open loop; the interpreter makes each record in one atomic step.
        """
        if self._records is not None and length_hint(self._ahead):
            return self._records
        batch = self.take()
        return None if batch is None else self.iterate(batch)

    def _next(self) -> tuple[ConsumedBatch, int] | None:
        """Take the next readable batch out of the queue; return it with its size there."""
        for each in self._opening.again():
            self._go_back(*each)
        waits: set[Key] = set()  # partitions of which something comes before, and waits for its keys
        at = 0
        while at < len(self.queue):
            found = self.queue[at]
            key = found.topic, found.partition
            opened = KeyWait.FOR_KEYS if key in waits else self._open_next(found)
            if opened is KeyWait.FOR_KEYS:
                waits.add(key)
                at += 1
                continue
            size = len(found.batch.raw)
            del self.queue[at]
            if opened is not None and self._since:
                opened = self._from_time(key, opened)
            if opened is not None:
                return opened, size
            self.taken[key] = found.next
            self._release(size)
        self._stalled = len(self.queue)
        self._recheck_at = time.monotonic() + RECHECK_KEYS_S if self.queue else math.inf
        return None

    def _from_time(self, key: Key, opened: ConsumedBatch) -> ConsumedBatch | None:
        """Cut off the records before the start time of a sealed partition."""
        since = self._since.get(key)
        if since is None:
            return opened
        stamps = opened.batch.timestamps()
        for offset in range(opened.first, opened.next):
            if stamps[offset - opened.batch.base] >= since:
                del self._since[key]
                return opened.cut(offset)
        return None

    def _open_next(self, found: ConsumedBatch) -> ConsumedBatch | Literal[KeyWait.FOR_KEYS] | None:
        try:
            return self._opening.open(found)
        except Sealed:
            self._recheck_at = -math.inf  # the next call looks at the rest
            raise

    def _take_young(self, aged: Aged, rest: ConsumedBatch | None) -> ConsumedBatch | None:
        """Return the next batch that is not too old, ``rest`` first."""
        if rest is not None:
            self._take_again(rest)
        while (come := self._next()) is not None:
            found, size = come
            clock = self._clock(aged, found)
            if clock is None:
                self._put_back(found)
                self._release(size)
                self._wait_for_clocks(aged)
                return None
            young: ConsumedBatch | None = found
            left: ConsumedBatch | None = None
            if not aged.stale.ends:
                young, left = aged.drop(found, clock)
            self._release(size - (0 if left is None else len(left.batch.raw)))
            if aged.stale.ends and aged.is_old(found, clock):
                raise self._end(aged, found)
            self.taken[found.topic, found.partition] = found.next
            if young is not None and left is not None:
                self.queue.appendleft(left)
                self.taken[found.topic, found.partition] = young.next
            if young is not None:
                return young
        return None

    def iterate(self, batch: ConsumedBatch) -> Iterator[Record]:
        """Yield the records of a batch that was taken; if the loop ends early, the rest is taken once more."""
        # One offset is taken for each record made, so what is left of them tells where the loop is: the loop itself
        # need not.
        ahead = iter(range(batch.batch.base, batch.next))
        with self._node.lock:
            again = self._open is batch
            rest = self._end_loop()
            if rest is not None and not again:
                self._take_again(rest)
            self._open, self._ahead = batch, iter(range(batch.first, batch.next))  # should headers not decode
            records = batch.batch.records(batch.topic, batch.partition, batch.first, ahead)
            self._ahead = ahead
            if self._aged is not None:
                return self._young(self._aged, batch, records)
            self._records = records
            return records

    def _young(self, aged: Aged, batch: ConsumedBatch, records: Iterator[Record]) -> Iterator[Record]:
        clock: ClockEstimate | None = None
        young_until, monotonic = -math.inf, time.monotonic
        for record in records:
            if monotonic() < young_until or (clock is not None and not aged.olds(batch, clock)(record.timestamp)):
                yield record
                continue
            # It was young when it was taken: now it may be old, or else its producer's clock was set.
            while (clock := self._clock_in_loop(aged, batch)) is None:
                self._node.pump(LOOK_S, lambda: self.ready)
            young_until = aged.young_until(batch, clock)
            if not aged.olds(batch, clock)(record.timestamp):
                yield record
            elif aged.stale.ends:
                with self._node.lock:
                    raise self._end(aged, batch.cut(record.offset))
            else:
                aged.drop_one(batch, record.timestamp, clock)

    def _clock_in_loop(self, aged: Aged, batch: ConsumedBatch) -> ClockEstimate | None:
        with self._node.lock:
            clock = self._clock(aged, batch)
            self._undecided = clock is None
            return clock

    def _rest(self) -> ConsumedBatch | None:
        """Return the records that a loop did not get to when it was left early."""
        batch, left = self._open, length_hint(self._ahead)
        return None if batch is None or not left else batch.cut(batch.next - left)

    def _end_loop(self) -> ConsumedBatch | None:
        """Return the rest of the batch that a loop is in; a running loop continues with the next batch.

        All offsets are taken in one atomic step of the interpreter, so each record goes either to that loop or to the
        caller, even if another thread runs the loop.
        """
        batch, left = self._open, list(self._ahead)
        self._open = self._records = None
        return None if batch is None or not left else batch.cut(left[0])

    # -- where we are -----------------------------------------------------------------------------------------

    def position(self, ahead_of_all: bool) -> dict[Key, int]:
        """Return the offset of the next record for the user, by (topic, partition).

        Args:
            ahead_of_all: The newest record of each key comes first, and may be behind the point where a partition goes
                on.
        """
        if self.ended is not None:
            return dict(self.ended[1])
        waiting = {(each.topic, each.partition): each.first for each in reversed(self.queue)}
        rest, known = self._rest(), self._core.positions()
        open_ = {} if rest is None else {(rest.topic, rest.partition): rest.first}
        found = {**known, **waiting, **self.taken, **open_}
        if ahead_of_all:
            found |= {key: max(known[key], found[key]) for key in known.keys() - waiting.keys() - open_.keys()}
        return found

    def seek(self, topic: str, partition: str, offset: int) -> None:
        """Continue at ``offset`` in a partition, and drop its batches in the queue."""
        gone = self._forget(topic, partition)
        self._since.pop((topic, partition), None)
        rest = self._end_loop()
        if rest is not None and (rest.topic, rest.partition) != (topic, partition):
            self._take_again(rest)
        self.taken[topic, partition] = offset
        self._release(gone)
        self._node.do(self._core.seek(topic, partition, offset, time.monotonic()))

    def unsubscribe(self, wanted: Filter) -> None:
        """Drop the batches of topics that are not selected any more; they come again after a subscription."""
        self._node.unsubscribe(wanted)
        rest = self._end_loop()
        if rest is not None:
            self._take_again(rest)
        kept, gone, positions = deque[ConsumedBatch](), 0, dict[Key, int]()
        for each in self.queue:
            if self._core.wants(each.topic):
                kept.append(each)
            else:
                positions.setdefault((each.topic, each.partition), each.first)
                gone += len(each.batch.raw)
        self.queue = kept
        self._undecided, self._recheck_at = False, -math.inf
        for (topic, partition), offset in positions.items():
            self.taken[topic, partition] = offset
            self._node.do(self._core.seek(topic, partition, offset, time.monotonic()))
        self._release(gone)

    def leave(self, keys: Container[Key]) -> None:
        """Forget all that waits of partitions, and where the user is in them."""
        rest = self._end_loop()
        if rest is not None and (rest.topic, rest.partition) not in keys:
            self._take_again(rest)
        gone = 0
        for topic, partition in {(each.topic, each.partition) for each in self.queue}:
            if (topic, partition) in keys:
                gone += self._forget(topic, partition)
        for place in (self.taken, self._since):
            for key in [key for key in place if key in keys]:
                del place[key]
        self._recheck_at = -math.inf
        self._release(gone)

    def gone_on(self, topic: str, partition: str) -> None:
        """Forget a position that the core could not read from."""
        self.taken.pop((topic, partition), None)

    def _go_back(self, topic: str, partition: str, offset: int) -> None:
        """Read records again that were left out, as our own files did not name us as a member of the group."""
        gone = self._forget(topic, partition, offset)
        if not any((each.topic, each.partition) == (topic, partition) for each in self.queue):
            self.taken[topic, partition] = offset
        self._release(gone)
        self._node.do(self._core.seek(topic, partition, offset, time.monotonic(), strict=False))

    def _forget(self, topic: str, partition: str, offset: int = 0) -> int:
        """Drop the batches of a partition that end after ``offset``; return their bytes."""
        kept, gone = deque[ConsumedBatch](), 0
        for each in self.queue:
            if (each.topic, each.partition) == (topic, partition) and each.next > offset:
                gone += len(each.batch.raw)
            else:
                kept.append(each)
        self.queue = kept
        self._undecided = False
        return gone

    # -- how old it is ----------------------------------------------------------------------------------------

    def _clock(self, aged: Aged, batch: ConsumedBatch) -> ClockEstimate | None:
        """Return the clock that tells the age of a batch; None while it is asked for."""
        key, now = (batch.topic, batch.partition), time.monotonic()
        clock, actions = self._core.judge(key, batch.batch, batch.arrived, aged.max_age_s, now)
        self._node.perform(actions)
        return clock

    def _wait_for_clocks(self, aged: Aged) -> None:
        """Ask for the clocks of further batches while the first of the queue cannot be judged."""
        if not self._undecided:
            self._undecided = True
            asked = {self.queue[0].partition}  # one that is judged ends the wait of those before it in its partition
            for each in list(islice(self.queue, 1, CLOCKS_AT_ONCE)):
                if each.partition not in asked and self._clock(aged, each) is None:
                    asked.add(each.partition)

    def _end(self, aged: Aged, stale: ConsumedBatch) -> TooSlow:
        """End the consumer: the first record of ``stale`` is too old."""
        waiting = [stale, *self.queue]
        for each in reversed(waiting):
            self.taken[each.topic, each.partition] = each.first
        self._open = None
        size = sum([len(each.batch.raw) for each in self.queue])
        self.queue.clear()
        now = time.monotonic()
        clocks = [self._core.clock(each.partition, each.batch, now) for each in waiting]
        self.ended = aged.error(list(zip(waiting, clocks, strict=True))), {**self._core.positions(), **self.taken}
        for wanted in self._core.filters:
            self._node.unsubscribe(wanted)
        self._release(size)  # or else its node would take it for one that is behind
        return self.ended[0]

    # -- what the queue takes ---------------------------------------------------------------------------------

    def _take_again(self, rest: ConsumedBatch) -> None:
        """Put a batch that was taken before in front of the queue again."""
        self._put_back(rest)
        self.taken[rest.topic, rest.partition] = rest.first

    def _put_back(self, batch: ConsumedBatch) -> None:
        self.queue.appendleft(batch)
        self._release(-len(batch.batch.raw))

    def _release(self, size: int) -> None:
        """Count bytes as taken out of the queue: more may be read."""
        paused = self._core.paused
        actions = self._core.taken(size, time.monotonic())
        if actions or paused or self._core.paused:  # else its node has nothing to look at
            self._node.do(actions)
