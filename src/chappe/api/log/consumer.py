"""Reading topics, live and from the beginning."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import Final, Literal

from chappe.api.ages import OnStale, check_age
from chappe.api.faces import Closeable, Seconds, happened
from chappe.api.identity import log_event, new_address, state_directory
from chappe.api.log.aged import Aged
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.sealed import Opening, Waiting
from chappe.api.times import as_micros
from chappe.data.topic import Filter
from chappe.defaults import TOWER_HOST, TOWER_SUB_PORT
from chappe.errors import Closed, OffsetOutOfRange, Sealed, TimedOut, TooSlow, UsageError
from chappe.log.actions import ClockRead, Deliver
from chappe.log.batch import Record
from chappe.log.clock import Clock
from chappe.log.consumer import EARLIEST, LAST, LATEST, LogConsumer, Reset
from chappe.log.events import ForwarderFound, OutOfRange, PermissionsChanged, Stopped, TowerFound
from chappe.log.sources import Key
from chappe.permissions.rules import CONSUME
from chappe.runtime.log_node import wall_us
from chappe.runtime.log_seats import Where, consuming
from chappe.security import LogSecurity
from chappe.storage.positions import Positions
from chappe.system import time
from chappe.system.forking import own

LOOK_S: Final = 0.05  # how often those who wait for the end look for what no record tells
RECHECK_KEYS_S: Final = 0.2  # how often it is looked whether keys have come for what waits for them
RECHECK_S: Final = 0.25  # how often, while records come, it is looked whether something will never come
CLOCKS_AT_ONCE: Final = 256  # batches whose producers are asked for the time at once
ResetLike = Literal["earliest", "latest", "last-value"] | int | datetime


class Consumer(Closeable):
    """Every record of the wanted topics; of each partition in order, without gaps or repeats.

    Args:
        topics: ``name``, or ``prefix*`` for all topics that start so.
        tower: ``HOST[:PORT]``, several separated by commas.
        listen: Host to listen on; ``*`` for all interfaces.
        forwarders: ``HOST[:PORT]`` of each, in a list or separated by commas. With these there is no tower, and nobody
            has to reach this program.
        reset: Where to start in partitions without a position: ``earliest``, so that nothing is missed; ``latest``,
            which begins once stores were found, see ``wait_ready``; ``last-value``, the newest record of each key that
            is there, and then what comes; an offset, or a datetime with a time zone.
            Positions that retention removed restart there too, with an event.
        identity: A name whose committed positions survive restarts; see ``commit``.
        directory: Where identities are kept; the user's data directory by default.
        max_age_s: How old a record may be when you get it, by its timestamp and its producer's clock, which is asked
            for; None: as old as it likes. The loop over a batch looks at each record when its turn comes.
        on_stale: What happens when one is older: the consumer stops with TooSlow (``end``), at the position of that
            record; or such records are left out, counted in ``too_old``, with an event (``drop``).
        security: Who this program is: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for what ``CHAPPE_IDENTITY``
            names, if it is set.

    Raises:
        IdentityInUse: Another consumer uses the identity.
        StorageFull, StorageError: Its directory cannot be used.
        NotPermitted: The permissions do not let this identity consume all of these topics.
        UsageError: An argument is out of its range.
    """

    def __init__(
        self,
        *topics: str,
        tower: str = f"{TOWER_HOST}:{TOWER_SUB_PORT}",
        listen: str = TOWER_HOST,
        forwarders: str | Sequence[str] | None = None,
        reset: ResetLike = "earliest",
        identity: str | None = None,
        directory: str | Path | None = None,
        max_age_s: float | None = None,
        on_stale: OnStale = "end",
        security: LogSecurity = None,
    ) -> None:
        own(self)
        check_age(max_age_s, on_stale)
        if not topics:
            raise UsageError("a consumer needs at least one topic: Consumer('metrics') or Consumer('metrics.*')")
        where = Where.parse(tower, listen, forwarders, security)
        self._where, self._tower_at = where, math.inf
        self._topics = topics
        for each in topics:
            if not isinstance(each, str):
                raise UsageError(f"topics are given one by one: Consumer('a', 'b'), or Consumer(*names); not {each!r}")
        filters = [Filter.parse(each) for each in topics]
        for wanted in filters:
            where.require(CONSUME, wanted.name, prefix=wanted.prefix)
        beginning = _reset(reset)
        self._positions: Positions | None = None
        if identity is not None:
            self._positions = Positions(state_directory("consumers", identity, directory))
        self._core = LogConsumer(
            new_address(), filters, beginning, {} if self._positions is None else dict(self._positions.committed),
            ages=max_age_s is not None,
        )  # fmt: skip
        self._ahead_of_all = beginning is LAST
        self._queue: deque[ConsumedBatch] = deque()
        self._taken: dict[Key, int] = {}  # offset after the last record handed to the user
        self._open: ConsumedBatch | None = None  # what a loop over records is in, and ...
        self._ahead: Iterator[int] = iter(())  # ... the offsets of it that the loop did not get to
        self._events: deque[object] = deque(maxlen=1000)
        self._error: OffsetOutOfRange | None = None
        self._forbidden: UsageError | None = None
        self._aged = None if max_age_s is None else Aged(max_age_s, on_stale, self._report)
        self._undecided = False  # it is asked how old the first of the queue is
        self._ended: tuple[TooSlow, dict[Key, int]] | None = None  # and where we were
        self._opening = Opening(where.keys, self._report)
        self._stalled, self._recheck_at = 0, math.inf  # how many batches in the queue wait for keys; when to look again
        self.on_ready: Callable[[], None] | None = None  # called from the node's thread when records came
        try:
            self._node = consuming(self._core.address, new_address(), where)
        except BaseException:
            self._release_identity()
            raise
        self.lock = self._lock = self._node.lock
        with self._lock:
            self._node.start(self._core, self._report, {Deliver: self._deliver, ClockRead: self._judged})

    # -- reading --------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 0.0) -> ConsumedBatch | None:
        """The next batch, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            OffsetOutOfRange: An offset given to ``seek`` or ``reset`` is not there.
            NotPermitted: The permissions do not let this identity consume its topics, by now.
            TooSlow: A record was older than ``max_age_s``; so says every further call.
            Sealed: A topic is sealed for a group, and we have no key of it: said once, its records are left out from
                then on; should we become a member, those that were sealed for us meanwhile are read again. Or the key
                has not come for 30 s: said again as long as it is so, nothing is left out.
            Closed: The consumer was closed.
            MemberStopped: It met a defect; so says every further call.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := self.take()) is None:
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            self._node.pump(max(left, 0.0), self._has_come)
            if left <= 0:
                return self.take()
        return found

    def take(self) -> ConsumedBatch | None:
        """A batch that came already, or None; never waits. Raises as ``poll`` does."""
        with self._lock:
            self._check()
            rest = self._rest()
            self._open = None
            if self._aged is not None:
                return self._take_young(self._aged, rest)
            if rest is not None:
                return rest
            come = self._next()
            if come is None:
                return None
            found, size = come
            self._taken[found.topic, found.partition] = found.next
            self._release(size)
            return found

    def _next(self) -> tuple[ConsumedBatch, int] | None:
        """The next batch that can be read, taken out of the queue, and its size there; the lock is held."""
        for each in self._opening.again():
            self._go_back(*each)
        waits: set[Key] = set()  # partitions of which something comes before, and waits for its keys
        at = 0
        while at < len(self._queue):
            found = self._queue[at]
            key = found.topic, found.partition
            opened = Waiting.FOR_KEYS if key in waits else self._open_next(found)
            if opened is Waiting.FOR_KEYS:
                waits.add(key)
                at += 1
                continue
            size = len(found.batch.raw)
            del self._queue[at]
            if opened is not None:
                return opened, size
            self._taken[key] = found.next
            self._release(size)
        self._stalled = len(self._queue)
        self._recheck_at = time.monotonic() + RECHECK_KEYS_S if self._queue else math.inf
        return None

    def _open_next(self, found: ConsumedBatch) -> ConsumedBatch | Literal[Waiting.FOR_KEYS] | None:
        try:
            return self._opening.open(found)
        except Sealed:
            self._recheck_at = -math.inf  # the next call looks at the rest
            raise

    def _go_back(self, topic: str, partition: str, offset: int) -> None:
        """Have again what was left out, as we were not of the group by our own files; the lock is held."""
        kept = [
            each for each in self._queue if (each.topic, each.partition) != (topic, partition) or each.next <= offset
        ]
        gone = sum(len(each.batch.raw) for each in self._queue) - sum(len(each.batch.raw) for each in kept)
        self._queue.clear()
        self._queue.extend(kept)
        self._undecided = False
        if not any((each.topic, each.partition) == (topic, partition) for each in kept):
            self._taken[topic, partition] = offset
        self._release(gone)
        self._node.call(self._core.go_back, topic, partition, offset)

    @property
    def waits_for_keys(self) -> bool:
        """Whether something came that cannot be opened yet, or was left out and may be for us after all."""
        return 0 < self._stalled <= len(self._queue) or self._opening.passed

    def _take_young(self, aged: Aged, rest: ConsumedBatch | None) -> ConsumedBatch | None:
        """The next batch that is not too old, ``rest`` first; the lock is held."""
        if rest is not None:  # was taken once already, and is taken once more
            self._put_back(rest)
            self._taken[rest.topic, rest.partition] = rest.first
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
            self._taken[found.topic, found.partition] = found.next
            if young is not None and left is not None:
                self._queue.appendleft(left)
                self._taken[found.topic, found.partition] = young.next
            if young is not None:
                return young
        return None

    def _put_back(self, batch: ConsumedBatch) -> None:
        """A batch is the first of the queue again."""
        self._queue.appendleft(batch)
        self._release(-len(batch.batch.raw))

    def _clock(self, aged: Aged, batch: ConsumedBatch) -> Clock | None:
        """The clock that tells how old a batch is; None while it is asked for; the lock is held."""
        key, now = (batch.topic, batch.partition), time.monotonic()
        clock, actions = self._core.judge(key, batch.batch, batch.arrived, aged.max_age_s, now, wall_us())
        self._node.perform(actions)
        return clock

    def _wait_for_clocks(self, aged: Aged) -> None:
        """The first of the queue cannot be judged yet: ask about what waits behind it, too; the lock is held."""
        if not self._undecided:
            self._undecided = True
            for each in list(islice(self._queue, 1, CLOCKS_AT_ONCE)):
                self._clock(aged, each)

    def _end(self, aged: Aged, stale: ConsumedBatch) -> TooSlow:
        """Hear no more: the first record of ``stale`` is too old; the lock is held."""
        waiting = [stale, *self._queue]
        for each in reversed(waiting):
            self._taken[each.topic, each.partition] = each.first
        self._open = None
        size = sum([len(each.batch.raw) for each in self._queue])
        self._queue.clear()
        now = time.monotonic()
        clocks = [self._core.clock(each.partition, each.batch, now, wall_us()) for each in waiting]
        self._ended = aged.error(list(zip(waiting, clocks, strict=True))), {**self._core.positions(), **self._taken}
        for wanted in self._core.filters:
            self._node.perform(self._core.unsubscribe(wanted))
        self._release(size)  # or else its node would take it for one that is behind
        return self._ended[0]

    def _rest(self) -> ConsumedBatch | None:
        """What a loop over records that was left early did not get to."""
        batch, left = self._open, length_hint(self._ahead)
        return None if batch is None or not left else batch.cut(batch.next - left)

    def _release(self, size: int) -> None:
        """So many bytes of the queue were taken out: more may be read."""
        paused = self._core.paused
        actions = self._core.taken(size, time.monotonic())
        if actions or paused or self._core.paused:  # else its node has nothing to look at
            self._node.perform(actions)

    def batches(self, timeout: float | None = None) -> Iterator[ConsumedBatch]:
        """Batches one after the other; ends when none came for ``timeout`` seconds (None: never).

        That none came does not mean that there is none: for all that there is take ``batches_to_end``.
        """
        while (found := self.poll(timeout)) is not None:
            yield found

    def to_end(self, timeout: float | None = 10.0) -> Iterator[Record]:
        """Every record up to the end, as it is when the loop begins; then the loop ends, also on a live topic.

        The end is asked of the stores: whatever one that is found had acknowledged before is in front of it, and
        what producers have told of. Where there is no store, what producers keep is. Records that come while the
        loop runs may be among those you get. A topic that nobody has has an end at once. The next loop goes on from
        there.

        Args:
            timeout: Seconds until the end is known, and for each batch after that; None waits for ever. A consumer
                that was just made needs about 0.3 s to meet all stores, or 1.3 s to know that there is none.

        Raises:
            TimedOut: No tower answers, or no store and no producer was heard; or something before the end did not come.
            OffsetOutOfRange: As ``poll``.
        """
        for batch in self.batches_to_end(timeout):
            yield from self.iterate(batch)

    def batches_to_end(self, timeout: float | None = 10.0) -> Iterator[ConsumedBatch]:
        """As ``to_end``, in batches; the last one of a partition may go beyond the end."""
        for step in self.steps_to_end(timeout):
            if isinstance(step, ConsumedBatch):
                yield step
            else:
                self._node.pump(LOOK_S, step)

    def steps_to_end(self, timeout: Seconds) -> Iterator[ConsumedBatch | Callable[[], bool]]:
        """As ``batches_to_end``, without a wait: a batch, or what to wait for, but for no longer than ``LOOK_S``."""
        patience_s = math.inf if timeout is None else timeout
        since = time.monotonic()
        with self._lock:
            self._check()
            self._node.call(self._core.seek_end)
        while (left := self._unread(since)) is None:
            if time.monotonic() >= since + patience_s:
                raise TimedOut(self._missing(f"within {timeout:g} s"))
            yield lambda: self._core.end_known(since, time.monotonic())
        deadline = math.inf  # begins with a wait: the time that a program takes for a batch does not count
        recheck_at = since + RECHECK_S
        while left:
            now = time.monotonic()
            batch = self.take()
            if batch is not None:
                deadline = math.inf
                if left.get((batch.topic, batch.partition), math.inf) <= batch.next:
                    del left[batch.topic, batch.partition]
            if batch is None or now >= recheck_at:
                recheck_at = now + RECHECK_S
                left = self._still_unread(left)
            if batch is not None:
                yield batch
            elif left:
                deadline = min(deadline, now + patience_s)
                if now >= deadline:
                    raise TimedOut(_not_come(left, patience_s))
                yield self._has_come

    def __iter__(self) -> Iterator[Record]:
        """Records one after the other, for ever. A loop that was left goes on with the next record."""
        while True:
            batch = self.poll(None)
            assert batch is not None
            yield from self.iterate(batch)

    def iterate(self, batch: ConsumedBatch) -> Iterator[Record]:
        """The records of a batch; meanwhile ``position`` and ``commit`` count one record after the other.

        What is left of it when the loop ends early is what the next ``poll`` returns.
        """
        # One offset is taken for each record made, so what is left of them tells where the loop is: the loop itself
        # need not.
        self._open, self._ahead = batch, iter(range(batch.batch.base, batch.next))
        records = batch.batch.records(batch.topic, batch.partition, batch.first, self._ahead)
        return records if self._aged is None else self._young(self._aged, batch, records)

    def _young(self, aged: Aged, batch: ConsumedBatch, records: Iterator[Record]) -> Iterator[Record]:
        clock: Clock | None = None
        young_until, monotonic = -math.inf, time.monotonic
        for record in records:
            if monotonic() < young_until or (clock is not None and not aged.olds(batch, clock)(record.timestamp)):
                yield record
                continue
            # It was young when it was taken: now it may be old, or else its producer's clock was set.
            while (clock := self._clock_in_loop(aged, batch)) is None:
                self._node.pump(LOOK_S, self._has_come)
            young_until = aged.young_until(batch, clock)
            if not aged.olds(batch, clock)(record.timestamp):
                yield record
            elif aged.stale.ends:
                with self._lock:
                    raise self._end(aged, batch.cut(record.offset))
            else:
                aged.drop_one(batch, record.timestamp, clock)

    def _clock_in_loop(self, aged: Aged, batch: ConsumedBatch) -> Clock | None:
        with self._lock:
            clock = self._clock(aged, batch)
            self._undecided = clock is None
            return clock

    # -- positions --------------------------------------------------------------------------------------------

    def position(self) -> dict[Key, int]:
        """The offset of the next record you get, by (topic, partition)."""
        self._node.check()
        with self._lock:
            if self._ended is not None:
                return dict(self._ended[1])
            waiting = {(each.topic, each.partition): each.first for each in reversed(self._queue)}
            known = self._core.positions()
            found = {**known, **waiting, **self._taken_now()}
            if self._ahead_of_all:
                # Where a partition goes on is behind the newest records that were taken of it.
                open_ = (
                    () if self._rest() is None or self._open is None else ((self._open.topic, self._open.partition),)
                )
                found |= {key: max(known[key], found[key]) for key in known.keys() - waiting.keys() - set(open_)}
            return found

    def heads(self) -> dict[Key, int]:
        """The offset after the last record known to exist, by (topic, partition)."""
        self._node.check()
        with self._lock:
            return self._core.heads()

    def lag(self) -> dict[Key, int]:
        """How many records you have not got yet, by (topic, partition)."""
        positions = self.position()
        return {key: max(0, head - positions.get(key, 0)) for key, head in self.heads().items()}

    def seek(self, topic: str, partition: str, offset: int) -> None:
        """Go on at ``offset`` in one partition. If it is not there the next ``poll`` raises OffsetOutOfRange."""
        if offset < 0:
            raise UsageError(f"an offset is at least 0, not {offset}")
        with self._lock:
            self._check()
            kept = [each for each in self._queue if (each.topic, each.partition) != (topic, partition)]
            gone = sum(len(each.batch.raw) for each in self._queue) - sum(len(each.batch.raw) for each in kept)
            self._queue.clear()
            self._queue.extend(kept)
            self._undecided = False
            rest = self._rest()
            self._open = None
            if rest is not None and (rest.topic, rest.partition) != (topic, partition):
                self._queue.appendleft(rest)
                self._taken[rest.topic, rest.partition] = rest.first
                gone -= len(rest.batch.raw)  # taken once already, and once more when it is polled
            self._taken[topic, partition] = offset
            self._release(gone)
            self._node.call(self._core.seek, topic, partition, offset)

    def at_end(self) -> bool:
        """Whether every record known to exist was handed to you; False until a store has listed what it has."""
        self._node.check()
        with self._lock:
            return not self._queue and self._core.synced and self._core.caught_up

    def wait_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until whatever is sent from now on will be delivered, also with ``reset="latest"``.

        That is so when a tower or forwarder hears us and the stores have said what they hold: what is not in it is
        new. Where no store is found, it takes 1.3 s to meet every producer, and only what a producer still keeps can be
        delivered; one that is met later is read from the first record that it keeps.

        Raises:
            TimedOut: No tower answers, or a store does not say what it holds.
        """

        def ready() -> bool:
            return self.tower and self._core.ready(self._tower_at, time.monotonic())

        self._node.wait_until(self._check, ready, self._missing, timeout)

    @property
    def synced(self) -> bool:
        """Whether a store was found and has listed its partitions."""
        with self._lock:
            return self._core.synced

    @property
    def tower(self) -> bool:
        """Whether a tower hears us, or a forwarder."""
        return self._node.discovery.tower

    @property
    def connected(self) -> int:
        """See ``Producer.connected``."""
        return self._node.discovery.peers

    def commit(self, positions: Mapping[Key, int] | None = None) -> None:
        """Keep the present positions on disk: a consumer of the same identity goes on from them.

        Args:
            positions: Others, by (topic, partition): up to where what you got is done. Those of further partitions
                stay as they were committed.

        Raises:
            UsageError: The consumer has no identity.
            StorageFull, StorageError: The disk; what was committed before still is.
        """
        if self._positions is None:
            raise UsageError("only a consumer with an identity can commit: Consumer(..., identity='name')")
        if self._node.closed:
            raise Closed("the consumer was closed: commit before that")
        self._positions.commit(self.position() if positions is None else dict(positions))

    @property
    def too_old(self) -> int:
        """How many records were left out because they were older than ``max_age_s``."""
        return 0 if self._aged is None else self._aged.stale.dropped

    @property
    def refused(self) -> int:
        """How many records of sealed topics were not delivered, as they could not be opened; events say why."""
        return self._opening.refused

    def events(self) -> list[object]:
        """What happened since the last call: lost records, lost towers and the like (``chappe.log.events``)."""
        with self._lock:
            self._opening.tell()
            if self._aged is not None:
                self._aged.stale.tell()
        return happened(self._events, self._node.check)

    def close(self) -> None:
        """Leave. Positions are not committed by this."""
        self._node.close()
        self._release_identity()

    def __repr__(self) -> str:
        topics = ", ".join(map(repr, self._topics))
        state = (
            "closed"
            if self._node.closed
            else f"{self.connected} members known"
            if self.tower
            else f"no {self._where.kind}"
        )
        return f"<Consumer of {topics} at {self._where}, {state}>"

    # -- of the end -------------------------------------------------------------------------------------------

    def _has_come(self) -> bool:
        """Whether ``take`` has something to return, or to raise."""
        waits = len(self._queue) == self._stalled and time.monotonic() < self._recheck_at
        return (bool(self._queue) and not waits and not self._undecided) or self._error is not None

    def _unread(self, since: float) -> dict[Key, int] | None:
        """Where partitions end that were not read so far; None until it is known where they ended at ``since``."""
        with self._lock:
            self._check()
            end = self._core.end(since, time.monotonic())
            position = {} if end is None else self.position()
            return None if end is None else {key: each for key, each in end.items() if position.get(key, 0) < each}

    def _still_unread(self, left: dict[Key, int]) -> dict[Key, int]:
        with self._lock:
            queued = {(each.topic, each.partition) for each in self._queue}
            lacking = self._core.lacking(left)
            return {key: end for key, end in left.items() if key in lacking or key in queued}

    def _missing(self, when: str) -> str:
        """Why it is not known what there is, in a sentence."""
        if not self.tower:
            return self._where.nobody(when)
        if self._core.stores:
            return f"not all of the {self._core.stores} stores that were found have said {when} what they hold"
        topics = " and ".join(map(repr, self._topics))
        return (
            f"{self._where.named} knows no store, and no producer of {topics} was heard {when}; "
            f"start one with: {self._where.command}"
        )

    # -- inside -------------------------------------------------------------------------------------------------

    def _release_identity(self) -> None:
        if self._positions is not None:
            self._positions.close()

    def _deliver(self, action: Deliver) -> None:
        if self._ended is not None:
            return
        arrived = -math.inf if self._aged is None else time.monotonic()
        self._queue.append(ConsumedBatch(action.topic, action.partition, action.batch, action.start, arrived=arrived))
        if self.on_ready is not None:
            self.on_ready()

    def _judged(self, action: ClockRead) -> None:
        self._undecided = False
        if self.on_ready is not None:
            self.on_ready()

    def _taken_now(self) -> dict[Key, int]:
        rest = self._rest()
        return dict(self._taken) if rest is None else {**self._taken, (rest.topic, rest.partition): rest.first}

    def _check(self) -> None:
        if self._node.closed:
            raise Closed("the consumer was closed")
        self._node.check()
        if self._ended is not None:
            raise self._ended[0].with_traceback(None)
        if self._forbidden is not None:
            raise self._forbidden.with_traceback(None)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _look_at_permissions(self) -> None:
        """Every call raises NotPermitted as long as we may not read what we want."""
        self._forbidden = None
        try:
            for wanted in self._core.filters:
                self._where.require(CONSUME, wanted.name, prefix=wanted.prefix)
        except UsageError as error:  # or we are nobody any more
            self._forbidden = error
            if self.on_ready is not None:
                self.on_ready()

    def _report(self, event: object) -> None:
        log_event(event)
        self._events.append(event)
        if isinstance(event, TowerFound | ForwarderFound):
            self._tower_at = time.monotonic()
        if isinstance(event, PermissionsChanged):
            self._look_at_permissions()
        if isinstance(event, Stopped) and self.on_ready is not None:
            self.on_ready()  # whoever waits is told by the next call
        if isinstance(event, OutOfRange) and event.strict:
            self._error = OffsetOutOfRange(str(event))
            self._taken.pop((event.topic, event.partition), None)  # the core has gone on elsewhere
            if self.on_ready is not None:
                self.on_ready()


def _not_come(left: dict[Key, int], patience_s: float) -> str:
    (topic, partition), end = next(iter(left.items()))
    what = "a partition" if len(left) == 1 else f"{len(left)} partitions"
    return (
        f"{what} did not come to the end: for {patience_s:g} s nothing came of partition {partition} of topic "
        f"{topic!r}, which ends at offset {end - 1}; who may wait longer gives a timeout, or None"
    )


def _reset(reset: ResetLike) -> Reset:
    if reset == "earliest":
        return EARLIEST
    if reset == "latest":
        return LATEST
    if reset == "last-value":
        return LAST
    if isinstance(reset, datetime):
        return Reset("time", as_micros(reset))
    if isinstance(reset, int) and not isinstance(reset, bool) and reset >= 0:
        return Reset("offset", reset)
    raise UsageError(f"reset is 'earliest', 'latest', 'last-value', an offset or a datetime, not {reset!r}")
