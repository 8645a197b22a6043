"""The deliveries of a consumer: partitions in order, their beginnings, and the records that are passed over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from chappe.compiled import Frozen
from chappe.core import Clock, Deliver, Effect, Report
from chappe.defaults import BATCH_RECORDS_MAX, RETRY_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch, StampedHere, encode_batch
from chappe.log.events import OutOfRange, RecordsLost, RecordsMissing, RecordsUnconfirmed
from chappe.log.gap import GIVE_UP_TRIES, UNDECIDED, Gaps, GapState, PartitionGap
from chappe.log.sources import Key, Sources
from chappe.log.storage import PartitionInfo

COUNTED: Final = 2  # so many stores are counted; a single one has what is read from it
UNDECIDED_TRIES: Final = 4  # RETRY_S each, for a store to be found that knows where a time begins


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to start in a partition without a position: ``earliest``, ``latest``, ``offset``, ``time`` or ``last``.

    ``value`` is the offset, or the time in microseconds. ``last`` begins with the newest record of each key.
    """

    kind: Literal["earliest", "latest", "offset", "time", "last"]
    value: int = 0

    @property
    def strict(self) -> bool:
        """True if the user named the offset: out of range is an error then, not a reset."""
        return self.kind == "offset"

    def when_heard(self, offset: int, *, new: bool) -> int:
        """Return where to start in a partition that comes live at ``offset``; UNDECIDED if only a store can say.

        ``new``: all stores listed their partitions without this one, so nothing of it is old.
        """
        match self.kind:
            case "earliest":
                return 0
            case "latest":
                return 0 if new else offset
            case "offset":
                return self.value
            case "time" | "last":
                return UNDECIDED

    def when_listed(self, info: PartitionInfo, *, new: bool) -> int:
        """Return where to start in a partition that a store lists; UNDECIDED if the store must be asked for a time.

        Not for ``earliest``: there other stores count too. ``new``: the store listed all it had before, and this was
        not in it.
        """
        match self.kind:
            case "latest":
                return info.first if new else info.next
            case "offset":
                return self.value
            case "time" if self.value <= info.timestamp_min:
                return info.first
            case "time" if self.value > info.timestamp_max:
                return info.next
        return UNDECIDED


EARLIEST: Final = Reset("earliest")
LATEST: Final = Reset("latest")
LAST: Final = Reset("last")


@dataclass(slots=True)
class Partition:
    gap: PartitionGap
    delivered: bool = False  # a record of it came, or a store told its newest: its position outlives the store
    strict: bool = False  # an offset the user named: out of range is an error, not a reset
    since: int | None = None  # begin with the first record that has this time or a later one; it has not come yet
    told: int = UNDECIDED  # the offset that was reported as missing, or as unconfirmed
    waits_from: float = math.inf  # since when too few stores have the next record
    passed_at: float = -math.inf  # when a gap was passed over last


class Records(Frozen, frozen=True):
    """The records of ``batch`` from offset ``start`` on; of a sealed one only those from time ``since`` on."""

    topic: str
    partition: str
    batch: Batch
    start: int
    since: int | None = None


@dataclass(slots=True)
class _GatheredSingles:
    base: int
    arrived_us: int  # when the first one came
    contents: list[bytes]
    size: int = 0


class Delivery:
    """All partitions of a consumer, with its positions from an earlier life; the ``GapOwner`` of their gaps."""

    def __init__(
        self,
        address: str,
        reset: Reset,
        sources: Sources,
        positions: Mapping[Key, int],
        limits: LogLimits = LOG_LIMITS,
        *,
        clock: Clock,
        min_acks: int = 0,
    ) -> None:
        self._address = address
        self._clock = clock
        self._reset = reset
        self._sources = sources
        self._limits = limits
        self._min_acks = min_acks
        self.gaps = Gaps(address, sources, limits, eager=True, fetches=not min_acks)
        self.gaps.owner = self
        self.partitions = {
            key: Partition(PartitionGap(position, position), delivered=True) for key, position in positions.items()
        }
        self.settled: dict[Key, int] = {}  # next offsets of those that nothing was heard of for long
        self.singles: dict[Key, _GatheredSingles] = {}  # gathered; ``hand_on`` delivers them
        self.queued_bytes = 0  # delivered or about to be, and not taken by the application
        self.duplicates = 0

    @property
    def paused(self) -> bool:
        return self.queued_bytes >= self._limits.consumer_queue_bytes

    def heads(self) -> dict[Key, int]:
        return {**self.settled, **{key: max(part.gap.head, part.gap.next) for key, part in self.partitions.items()}}

    def lacks(self, key: Key, end: int) -> bool:
        """Return True if anything of a partition before offset ``end`` is still to be delivered, and may be."""
        part = self.partitions.get(key)
        # Not what nobody has of what was told of it, either.
        return part is not None and not part.gap.complete and part.gap.next < end

    def find(self, key: Key) -> Partition | None:
        part = self.partitions.get(key)
        if part is None and key in self.settled:
            position = self.settled.pop(key)
            part = self.partitions[key] = Partition(PartitionGap(position, position), delivered=True)
        return part

    def add(self, key: Key, next_: int) -> Partition:
        part = self.partitions[key] = Partition(PartitionGap(next_), strict=self._reset.strict)
        return part

    def settle(self, now: float) -> None:
        """Keep only the positions of partitions without news; forget those that were only spoken of."""
        listed = self._sources.lists
        for key, part in list(self.partitions.items()):
            gap = part.gap
            if gap.state is not GapState.CLOSED or part.strict or now - gap.heard_at < self._limits.settled_s:
                continue
            del self.partitions[key]
            if gap.next and (part.delivered or listed(key)):
                self.settled[key] = gap.next
        if len(self.settled) > self._limits.settled_max:
            unlisted = [key for key in self.settled if not listed(key)]
            for key in unlisted[: len(self.settled) - self._limits.settled_max]:
                del self.settled[key]

    def leave(self, wanted: Callable[[str], bool]) -> None:
        """Keep only the positions of partitions whose topics are no longer wanted."""
        for key, part in list(self.partitions.items()):
            if wanted(key[0]):
                continue
            position = part.gap.next
            # A partition whose beginning was not confirmed decides again where to begin, with the same result.
            named = part.strict and self._reset == Reset("offset", position)
            decided = position != UNDECIDED and part.since is None and not named
            self._drop(key, part)
            if decided:
                self.settled[key] = position

    def drop(self, key: Key) -> None:
        self.settled.pop(key, None)
        part = self.partitions.get(key)
        if part is not None:
            self._drop(key, part)

    def keep_position(self, key: Key, offset: int) -> None:
        """Note where a partition of a topic that is not wanted goes on once it is."""
        part = self.partitions.get(key)
        if part is not None:
            self._drop(key, part)
        self.settled[key] = offset

    def _drop(self, key: Key, part: Partition) -> None:
        self.gaps.drop_held(part.gap)
        self.gaps.close(key, part.gap)
        del self.partitions[key]

    def begin(self, key: Key, offset: int, now: float, since: int | None = None) -> list[Effect]:
        """Start an undecided partition at ``offset``, records from time ``since`` on; drop held batches before it."""
        part = self.find(key)
        if part is None or part.gap.next != UNDECIDED:
            return []
        part.since = since
        part.gap.next = offset
        self.gaps.progress(key, part.gap)
        return self.take_held(key, part.gap, now)

    def go_to(self, key: Key, offset: int, *, strict: bool = True) -> None:
        """Go on at an offset that the user named; if not ``strict``, behind records that nobody has any more."""
        part = self.find(key) or self.partitions.setdefault(key, Partition(PartitionGap(offset)))
        gap = part.gap
        self.gaps.drop_held(gap)
        gap.next, gap.heard_at, gap.retry_at, gap.tries = offset, -math.inf, 0.0, 0
        if gap.state is GapState.FETCHING:
            gap.state = GapState.OPEN
        part.strict, part.since = strict, None
        self.gaps.want(key, gap)

    def ahead(self, key: Key, batch: Batch) -> Effect:
        self.queued_bytes += len(batch.raw)
        return Deliver(self._address, Records(key[0], key[1], batch, batch.base))

    def advance(self, key: Key, part: Partition, batch: Batch) -> list[Effect]:
        """Deliver a batch that begins at or before the next offset, and what was held behind it."""
        gap = part.gap
        if batch.next <= gap.next:
            self.duplicates += 1
            return []
        actions = self._deliver(key, part, batch)
        if gap.state is not GapState.CLOSED:
            self._deliver_held(key, part, actions, moved=True)
        return actions

    def take_single(self, key: Key, part: Partition, content: bytes) -> list[Effect]:
        """Gather the single record at the next offset; it is delivered together with those that follow."""
        gap = part.gap
        singles = self.singles.get(key)
        if singles is None:
            singles = self.singles[key] = _GatheredSingles(gap.next, self._clock.wall_ns() // 1000, [])
        singles.contents.append(content)
        singles.size += len(content)
        self.queued_bytes += len(content)
        gap.next += 1
        part.delivered = True
        part.strict = False
        full = singles.size >= self._limits.batch_bytes or len(singles.contents) >= BATCH_RECORDS_MAX
        if gap.state is GapState.CLOSED:
            return self.hand_on(key) if full else []
        actions = self.hand_on(key) if full or gap.held else []
        if gap.held:
            self._deliver_held(key, part, actions, moved=True)
        else:
            self.gaps.progress(key, gap)
        return actions

    def hand_on(self, key: Key) -> list[Effect]:
        """Deliver a partition's gathered single records; call it before any other step on the partition."""
        singles = self.singles.pop(key, None)
        if singles is None:
            return []
        part = self.partitions.get(key)
        if part is not None and part.since is not None:
            if singles.arrived_us < part.since:  # their time is the arrival time
                self.queued_bytes -= singles.size
                return []
            part.since = None
        batch = StampedHere.parse(encode_batch(singles.base, singles.contents, singles.arrived_us), check=False)
        self.queued_bytes += len(batch.raw) - singles.size
        return [Deliver(self._address, Records(key[0], key[1], batch, singles.base))]

    def hand_on_all(self) -> list[Effect]:
        return [action for key in list(self.singles) for action in self.hand_on(key)] if self.singles else []

    def advance_all(self, key: Key, batches: list[Batch]) -> list[Effect]:
        """Deliver a store's batches, all before anything is asked for again; keep those that came early."""
        part = self.find(key)
        if part is None:
            return []  # nobody wants it any more
        gap = part.gap
        next_ = gap.next
        actions: list[Effect] = []
        for batch in batches:
            if batch.base > gap.next:
                self.gaps.hold_early(key, gap, batch, live=True)
            elif batch.next > gap.next:
                actions += self._deliver(key, part, batch)
            else:
                self.duplicates += 1
        if gap.state is not GapState.CLOSED:
            self._deliver_held(key, part, actions, moved=gap.next > next_)
        return actions

    def take_held(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Deliver what is held and begins at or before the next offset."""
        actions: list[Effect] = []
        if gap.state is not GapState.CLOSED:
            self._deliver_held(key, self.partitions[key], actions, moved=False)
        return actions

    def _deliver_held(self, key: Key, part: Partition, actions: list[Effect], *, moved: bool) -> None:
        """Deliver the held batches of an open gap that begin at its next offset, which may have moved."""
        gap = part.gap
        while gap.held and (held := self.gaps.pop_held(gap)) is not None:
            actions += self._deliver(key, part, held)
            moved = True
        if moved or gap.complete:
            self.gaps.progress(key, gap)

    def _deliver(self, key: Key, part: Partition, batch: Batch) -> list[Effect]:
        """Advance behind a batch, and deliver its records from the first wanted one on."""
        gap = part.gap
        start, gap.next = gap.next, batch.next
        part.delivered = True
        part.strict = False
        since = part.since
        if since is not None:
            start = _first_since(batch, start, since)
            if start == batch.next:
                return []
            part.since = None
        self.queued_bytes += len(batch.raw)
        return [Deliver(self._address, Records(key[0], key[1], batch, start, None if batch.sealed is None else since))]

    # -- as the owner of gaps ---------------------------------------------------------------------------

    def asks_from(self) -> float:
        """Return minus infinity (at once), or infinity while the application is behind."""
        return math.inf if self.paused else -math.inf

    def known_to(self, key: Key) -> int:
        """Note everything that a store lists."""
        return -1

    def readable_to(self, key: Key, gap: PartitionGap) -> float:
        """Return the offset before which enough stores have everything on disk, if stores are counted."""
        if self._min_acks < COUNTED or gap.next == UNDECIDED:
            return math.inf
        return self._sources.confirmed(key, gap.next, self._min_acks)

    def confirmed(self, key: Key, batches: list[Batch], now: float) -> list[Batch]:
        """Return those of the batches read from a store that enough stores have; the others are read again."""
        part = self.find(key)
        if self._min_acks < COUNTED or part is None or not batches:
            return batches
        gap = part.gap
        end = self.readable_to(key, gap)
        kept = [each for each in batches if each.next <= (end if end < math.inf else gap.next)]
        if gap.state is not GapState.CLOSED and not any(each.next > gap.next for each in kept):
            gap.tries += 1  # another store's batches may end where enough have it
            gap.retry_at = now + RETRY_S / 10
        return kept

    def place(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Find out where to begin; report a position that is out of range, and go on elsewhere."""
        part = self.partitions[key]
        if gap.next == UNDECIDED:
            return self._decide(key, gap, now)
        if gap.complete and not gap.held and not part.strict:
            self.gaps.close(key, gap)
            return []
        ranges = self._sources.ranges(key)
        if not ranges:
            return []
        first = min(first for first, _ in ranges)
        last = max(next_ for _, next_ in ranges)
        if gap.next < first and gap.damaged_to == gap.next:
            return self._out_of_range(key, part, first, last, now)
        if part.strict and gap.next > max(last, gap.head):
            return self._out_of_range(key, part, first, max(last, gap.head), now)
        if part.strict and gap.next == last and gap.next >= gap.head:
            part.strict = False
            self.gaps.close(key, gap)
            return []
        return self._unconfirmed(key, part, now)

    def _unconfirmed(self, key: Key, part: Partition, now: float) -> list[Effect]:
        """Report once for each gap that too few stores have the next records."""
        gap = part.gap
        if self.readable_to(key, gap) > gap.next:
            part.waits_from = math.inf
            return []
        part.waits_from = min(part.waits_from, now)
        if part.told == gap.next or now - part.waits_from < self._limits.missing_told_s:
            return []
        part.told = gap.next
        return [Report(RecordsUnconfirmed(key[0], key[1], gap.next, gap.head - 1, self._min_acks))]

    def _decide(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Ask a store where a time begins; if none can say, start with what came live."""
        if self._reset.kind == "earliest":  # stores may begin at different offsets
            ranges = self._sources.ranges(key)
            if ranges and (self._sources.all_listed(now) or gap.tries >= UNDECIDED_TRIES):
                return self.begin(key, min([first for first, _ in ranges]), now)
        if self._reset is LAST:
            gap.retry_at = math.inf  # ``last_values`` says where
            return []
        knowing = [each for each in self._sources.usable(now) if key in each.heads]
        if knowing and self._reset.kind == "time" and (self._sources.all_listed(now) or gap.tries >= UNDECIDED_TRIES):
            oldest = min(knowing, key=lambda each: each.heads[key])
            return [self.gaps.seek(oldest, key, gap, self._reset.value, now)]
        if gap.tries < UNDECIDED_TRIES:
            gap.tries += 1
            gap.retry_at = now + RETRY_S
            return []
        return self.begin(key, gap.end, now)

    def _out_of_range(self, key: Key, part: Partition, first: int, next_: int, now: float) -> list[Effect]:
        """Report a position that is out of range, and go on where the policy says."""
        gap = part.gap
        event = OutOfRange(key[0], key[1], gap.next, first, next_, part.strict)
        quiet = not part.strict and gap.next == 0 and self._reset.kind in ("earliest", "last")
        gap.next = next_ if self._reset.kind == "latest" or gap.next > next_ else first
        gap.head = max(gap.head, next_)
        part.strict = False
        self.gaps.drop_held(gap)
        self.gaps.progress(key, gap)
        return [] if quiet else [Report(event)]

    def beyond(self, key: Key, part: Partition, at: int, end: int, now: float) -> list[Effect]:
        """Move a position of an earlier life that is beyond ``end`` to ``at``, an offset before it."""
        part.strict = self._reset.strict
        part.gap.head = max(end, at)
        self.gaps.want(key, part.gap)
        first = min((first for first, _ in self._sources.ranges(key)), default=at)
        return self._out_of_range(key, part, first, at, now)

    def fetching(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Report once for each gap that it is waited for."""
        part = self.partitions[key]
        waited = now - gap.missing_at
        if part.told == gap.next or waited < self._limits.missing_told_s or not self.patience_s(key, gap, now) > waited:
            return []
        part.told = gap.next
        end = gap.damaged_to if gap.damaged_to > gap.next else gap.end
        return [Report(RecordsMissing(key[0], key[1], gap.next, end - 1))]

    def patience_s(self, key: Key, gap: PartitionGap, now: float) -> float:
        """Wait longer than stores wait for one another, if there are or were any; for the same stores only once."""
        if not self._sources.ever:
            return 0.0
        passed_at = self.partitions[key].passed_at
        patience_s = self._limits.pass_over_s
        spent = self._sources.gone_at < passed_at and gap.missing_at - passed_at < patience_s
        return 0.0 if spent else patience_s

    def pass_over(self, key: Key, gap: PartitionGap, goal: int, now: float) -> list[Effect]:
        damaged = gap.damaged_to > gap.next
        why = "they are damaged on disk and no other store has them"
        reason = why if damaged else "no store or producer has them any more"
        self.partitions[key].passed_at = now
        return [Report(RecordsLost(key[0], key[1], gap.next, goal - 1, reason))]

    def answer_begins(self, gap: PartitionGap, base: int) -> None:
        """Note that the answer to a FETCH begins at ``base``, behind the next offset."""
        if gap.next != UNDECIDED and not gap.held and gap.tries and not self._sources.ever:
            # The producer answered from the first record that it still keeps: what came before is not there.
            gap.tries = max(gap.tries, GIVE_UP_TRIES - 1)

    # -- for people and checkers --------------------------------------------------------------------------

    def invariants(self) -> Iterator[str]:
        for key, part in self.partitions.items():
            yield from self.gaps.invariants(key, part.gap)
            if part.gap.state is not GapState.CLOSED and part.gap.complete and not part.gap.held and not part.strict:
                yield f"{key} is open, and nothing is missing"
        held = sum(len(each.raw) for part in self.partitions.values() for each in part.gap.held or ())
        if held != self.gaps.held_bytes:
            yield f"{self.gaps.held_bytes} held bytes are counted, and {held} are held"
        if self.queued_bytes < 0:
            yield f"{self.queued_bytes} bytes are queued"
        yield from (f"single records of {key} are not handed on" for key in self.singles)
        yield from (f"{key} is open, and is not a partition" for key in self.gaps.open if key not in self.partitions)
        yield from (f"{key} is settled, and not" for key in self.settled if key in self.partitions)


def _first_since(batch: Batch, start: int, since: int) -> int:
    """Return the offset of the first record, from ``start`` on, of that time or later; else the batch's end.

    Times of a sealed batch cannot be read here, so it returns ``start`` unless the whole batch is earlier.
    """
    if batch.timestamp_max < since:
        return batch.next
    if batch.timestamp_min >= since or batch.sealed is not None:
        return start
    stamps = batch.timestamps()
    for offset in range(start, batch.next):
        if stamps[offset - batch.base] >= since:
            return offset
    return batch.next
