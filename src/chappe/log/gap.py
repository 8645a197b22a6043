"""Gaps of partitions, and how they are filled: one machine for consumers and stores.

Every partition has a ``PartitionGap``: the next offset that its member can use, the end that is known behind that, and
batches that came early and are held. While nothing is missing it is closed. An open one is looked at again and again:

    closed ──► open ──► reading ──► (records) ──► open or closed
                │  ▲       │
                │  └───────┤ refused, late, damaged, not there: another store, or
                ▼          ▼
            fetching ──► (records) ──► open or closed
                │
                └──► nobody has it: passed over, or given up until somebody speaks of it again

It is read from a store that has it; where no store of ours has it, FETCH asks its producer and original stores, again
and again. Records that nobody has are passed over once everybody was asked for long enough. Members differ, as their
``GapOwner`` says: where a partition begins, how patient they are, and what passing over means.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, Protocol

from chappe.core import Effect, Publish
from chappe.defaults import RECORD_BYTES_MAX, RETRY_S
from chappe.errors import ProtocolError
from chappe.limits import LogLimits
from chappe.log.batch import Batch
from chappe.log.messages import Fetch
from chappe.log.queries import Answer, ReadAnswer
from chappe.log.sources import Key, KnownStore, Question, RangeSet, Sources

UNDECIDED: Final = -1  # an offset: it is not known yet where to begin
LOOK_S: Final = 0.05  # how often open gaps are looked at
QUIET_S: Final = 1.0  # what a store has and a partition's producer, heard this lately, did not speak of, may come live
GIVE_UP_TRIES: Final = 6  # FETCHes without an answer before a gap that no store can fill is passed over or given up


def check_single(sequence: int, content: bytes) -> None:
    """Raise ProtocolError if this cannot be a single record of Dafka's C programs."""
    if len(content) > RECORD_BYTES_MAX:
        raise ProtocolError(f"record of {len(content)} bytes")
    if sequence >= (1 << 63) - 1:
        raise ProtocolError(f"record with the sequence {sequence}")


class GapState(Enum):
    """The step by which the missing records of a partition are being fetched."""

    CLOSED = "closed"  # nothing is known to be missing
    OPEN = "open"  # its turn comes, not before ``retry_at``
    READING = "reading"  # a store was asked
    FETCHING = "fetching"  # its producer was asked; asked again after ``retry_at``, unless the answer has begun


@dataclass(slots=True)
class PartitionGap:
    """One partition: how far it came, the end that is known behind that, and the attempts to fill the gap."""

    next: int  # the offset that is wanted next, or UNDECIDED
    head: int = 0  # the offset after the last one known to exist
    said: int = 0  # the offset after the last one that its producer announced, or that came early
    heard_at: float = -math.inf  # when its producer was heard last
    state: GapState = GapState.CLOSED
    held: deque[Batch] | None = None  # batches behind what is missing, in order; never empty
    retry_at: float = 0.0
    tries: int = 0
    missing_at: float = 0.0  # when the first of these tries was made
    fetched: int = 0  # the last FETCH asked for what comes before this
    kept_from: int = 0  # the last FETCH was answered from here on
    kept_before: int = 0  # the same of the one before
    ahead: int = UNDECIDED  # a second READ is under way, from here on
    follows: tuple[int, int] = (UNDECIDED, 0)  # what a READ of the first offset brings ends at the second
    damaged: RangeSet | None = None  # what a store answered with damage for; nothing of it lies before ``next``

    def heard(self, now: float, *, live: bool) -> None:
        """Note that records came: live from the producer, or in answer to a FETCH."""
        if live:
            self.heard_at = now
        elif self.state is GapState.FETCHING:
            self.retry_at = now + RETRY_S  # the answer is on its way

    @property
    def complete(self) -> bool:
        return self.next >= self.head

    @property
    def end(self) -> int:
        return self.held[0].base if self.held else self.head

    @property
    def gone_to(self) -> int:
        """Where its producer's records begin, said twice, as the head of an answer may be lost; 0: nobody knows."""
        return min(self.kept_before, self.kept_from)

    @property
    def disclaimed(self) -> bool:
        """True if its producer lacks all that it was asked for: twice its answer began behind that.

        An answer whose head was lost on its way begins within it: a producer sends nothing behind the records asked
        for, unless it has none of them.
        """
        return self.gone_to >= self.fetched > self.next

    @property
    def damaged_to(self) -> int:
        """The offset after the damage that a store has at ``next``; ``next`` if none has."""
        return self.next if self.damaged is None else self.damaged.end_of(self.next)


@dataclass(frozen=True, slots=True)
class Load:
    """The memory that a member uses, and the answers it waits for, for people and checkers."""

    held_bytes: int  # of batches behind what is missing
    waiting_bytes: int  # at a store for the disk, at a consumer for the application
    reads: int  # READs and SEEKs under way
    questions: int  # requests under way, these included
    partitions: list[Key]  # those with anything missing, or on its way to the disk


class GapOwner(Protocol):
    """A member that fills gaps, where it differs from others."""

    def asks_from(self) -> float:
        """Return when it may ask again for missing records; infinity while it takes nothing more in."""

    def place(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Move the next offset to where it is to be, or find out where that is."""

    def fetching(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Note that a producer is asked for missing records."""

    def patience_s(self, key: Key, gap: PartitionGap, now: float) -> float:
        """Return how long everybody is asked for missing records before they are passed over."""

    def pass_over(self, key: Key, gap: PartitionGap, goal: int, now: float) -> list[Effect]:
        """Nobody has what comes before ``goal``: the gap goes on there."""

    def take_held(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Use held batches that begin at or before the next offset."""

    def known_to(self, key: Key) -> int:
        """Return the offset up to which all is known here: a store's records beyond it are noted."""

    def readable_to(self, key: Key, gap: PartitionGap) -> float:
        """Return the offset from which on a store's records are not to be read yet; infinity: all may be read."""


class Gaps:
    """All open gaps of the member with this address.

    ``eager``: whether stores are asked again what they have before everybody is asked for long. A store has time, and a
    partition that was only spoken of is no reason to ask all others. ``fetches``: whether producers and original stores
    are asked, too.
    """

    def __init__(self, address: str, sources: Sources, limits: LogLimits, *, eager: bool, fetches: bool = True) -> None:
        self._fetches = fetches
        self.address = address
        self._sources = sources
        self.owner: GapOwner  # who made it says so
        self._limits = limits
        self._eager = eager
        self._look_at = -math.inf
        self.open: dict[Key, PartitionGap] = {}  # in the order in which they are looked at
        self.held_bytes = 0

    def want(self, key: Key, gap: PartitionGap) -> None:
        """Open a gap: some records of a partition are missing."""
        if gap.state is GapState.CLOSED:
            gap.state = GapState.OPEN
            self.open[key] = gap

    def close(self, key: Key, gap: PartitionGap) -> None:
        """Close a gap: nothing is missing, or nobody has it, and what was tried for it is over."""
        self.open.pop(key, None)
        gap.state = GapState.CLOSED
        gap.tries, gap.retry_at, gap.damaged = 0, 0.0, None
        gap.kept_from = gap.kept_before = 0
        gap.ahead = UNDECIDED

    def progress(self, key: Key, gap: PartitionGap) -> None:
        if gap.next >= gap.head and not gap.held:
            self.close(key, gap)
            return
        gap.tries = 0  # what was tried was tried for others
        if gap.state is not GapState.FETCHING:
            gap.retry_at = 0.0
        elif gap.next >= gap.fetched:
            gap.state, gap.retry_at = GapState.OPEN, 0.0
        if gap.damaged is not None:
            gap.damaged.remove(0, gap.next)

    def hold_early(self, key: Key, gap: PartitionGap, batch: Batch, *, live: bool) -> None:
        """Hold a batch that lies behind the missing records; in order, without overlap, up to the bound."""
        if not live and not 0 < gap.kept_from < batch.base:
            gap.kept_from = batch.base
        gap.head = max(gap.head, batch.next)
        gap.said = max(gap.said, batch.next)
        self.hold(gap, batch)
        self.want(key, gap)

    def hold(self, gap: PartitionGap, batch: Batch) -> None:
        """Hold a batch, if there is room; a batch that is dropped is asked for like other missing records."""
        size = len(batch.raw)
        if self.held_bytes + size > self._limits.held_bytes_max or (gap.held and batch.base < gap.held[-1].next):
            return
        if gap.held is None:
            gap.held = deque()
        gap.held.append(batch)
        self.held_bytes += size

    def pop_held(self, gap: PartitionGap) -> Batch | None:
        """The first batch that is held, if it begins at or before the next offset and does not end there."""
        while gap.held and gap.held[0].base <= gap.next:
            batch = gap.held.popleft()
            self.held_bytes -= len(batch.raw)
            if not gap.held:
                gap.held = None
            if batch.next > gap.next:
                return batch
        return None

    def drop_held(self, gap: PartitionGap) -> None:
        self.held_bytes -= sum(len(batch.raw) for batch in gap.held or ())
        gap.held = None

    def next_timeout(self) -> float:
        if not self.open or self._sources.busy:
            return math.inf
        return max(self._look_at, self.owner.asks_from())

    def look(self, now: float) -> list[Effect]:
        """Ask for missing records of some partitions, others each time."""
        actions: list[Effect] = []
        if not self.open or now < self.owner.asks_from():
            return actions
        self._look_at = now + LOOK_S
        for key in list(islice(self.open, self._limits.look_max)):
            if self._sources.busy:
                break
            gap = self.open.pop(key, None)
            if gap is None:
                continue
            self.open[key] = gap  # behind the others, so that everybody's turn comes
            actions += self.pursue(key, gap, now)
        return actions

    def pursue(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Ask somebody who may have the next offset of an open gap, if it is time to."""
        if gap.state is GapState.READING or now < max(gap.retry_at, self.owner.asks_from()) or self._sources.busy:
            return []
        if now - gap.heard_at <= QUIET_S and not gap.held and gap.next >= gap.said:
            return []  # it may come live just now
        if not gap.tries:
            gap.missing_at = now
        actions = self.owner.place(key, gap, now)
        if gap.state in (GapState.CLOSED, GapState.READING) or now < gap.retry_at:
            return actions
        readable_to = self.owner.readable_to(key, gap)
        if readable_to <= gap.next:
            gap.tries, gap.retry_at = 0, now + RETRY_S  # nothing is tried while too few have it
            return actions
        having = self._sources.having(key, gap.next, now)
        if having:
            if readable_to < math.inf:  # first those with nothing behind it: their batches end there, or before
                having.sort(key=lambda each: each.heads[key][1] > readable_to)
            return actions + self._read(having[gap.tries % len(having)], key, gap, now)
        if self._eager and gap.tries % 2 == 0:
            # What we know of the stores is up to a second old: one of them may have it by now.
            perhaps = [
                s for s in self._sources.usable(now) if key in s.heads and s.heads[key][0] <= gap.next < gap.head
            ]
            if perhaps:
                return actions + self._read(perhaps[gap.tries // 2 % len(perhaps)], key, gap, now)
        return actions + self._fetch(key, gap, now)

    def _read(self, store: KnownStore, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Ask for the next records, and for those behind them: one is read while the other is on its way."""
        gap.state = GapState.READING
        actions: list[Effect] = []
        if gap.ahead == gap.next:
            gap.ahead = UNDECIDED  # it is under way already
        else:
            actions.append(self._sources.read(store, key, gap.next, now))
        begins, ends = gap.follows
        if begins == gap.next and gap.ahead == UNDECIDED and store.has(key, ends) and not self._sources.busy:
            gap.ahead = ends
            actions.append(self._sources.read(store, key, ends, now))
        return actions

    def seek(self, store: KnownStore, key: Key, gap: PartitionGap, timestamp: int, now: float) -> Effect:
        gap.state = GapState.READING
        return self._sources.seek(store, key, timestamp, now)

    def _fetch(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Ask the producer and original stores, as no store of ours has it; go on without records that nobody has."""
        if gap.tries >= GIVE_UP_TRIES:
            ranges = self._sources.ranges(key)
            known = [gap.end if gap.held else 0, gap.gone_to, gap.damaged_to, *(first for first, _ in ranges)]
            goal = min((each for each in known if each > gap.next), default=None)
            if goal is not None and now - gap.missing_at >= self.owner.patience_s(key, gap, now):
                return self._pass_over(key, gap, goal, now)
            if goal is None and not any(next_ > gap.next for _, next_ in ranges):
                gap.head = gap.next  # announced, and nobody has it: wait until somebody speaks of it again
                self.close(key, gap)
                return self.owner.take_held(key, gap, now)
        if self._eager and gap.tries == 1:
            self._sources.poll_soon(now)  # its producer may have it no longer since a store has it
        # The first time they may merely not have it yet, or not hear us: ask again soon.
        gap.retry_at = now + (RETRY_S if gap.tries else RETRY_S / 10)
        gap.tries += 1
        count = min(gap.end - gap.next, self._limits.fetch_records_max)
        if count <= 0 or not self._fetches:
            return []
        gap.state = GapState.FETCHING
        gap.fetched = gap.next + count
        gap.kept_before, gap.kept_from = gap.kept_from, 0
        fetch = Publish(Fetch(key[1], self.address, key[0], gap.next, count))
        return [*self.owner.fetching(key, gap, now), fetch]

    def _pass_over(self, key: Key, gap: PartitionGap, goal: int, now: float) -> list[Effect]:
        actions = self.owner.pass_over(key, gap, goal, now)
        gap.next = goal
        gap.state = GapState.OPEN
        self.progress(key, gap)
        actions += self.owner.take_held(key, gap, now)
        return actions if gap.state is GapState.CLOSED else actions + self.pursue(key, gap, now)

    def unanswered(self, questions: list[Question]) -> None:
        """Nobody will answer these: others are asked."""
        for each in questions:
            gap = None if each.key is None or each.hole is not None else self.open.get(each.key)
            if gap is not None and each.offset == gap.ahead != UNDECIDED:
                gap.ahead = UNDECIDED
            elif gap is not None and gap.state is GapState.READING:
                gap.state = GapState.OPEN

    def listed(self, store: KnownStore, key: Key, gap: PartitionGap | None, first: int, next_: int) -> None:
        if next_ <= self.owner.known_to(key):
            store.forget(key)
            return
        store.note(key, first, next_)
        if gap is not None and gap.tries and first <= gap.next < next_:
            gap.retry_at = 0.0  # what nobody answered for is here

    def answered(
        self, store: KnownStore, question: Question, answer: Answer, raws: Sequence[bytes | memoryview], now: float
    ) -> list[Batch]:
        """A store answered a READ or SEEK; returns the records in it.

        Raises ProtocolError: one of the batches is malformed; the store is passed over for a while.
        """
        key = question.key
        assert key is not None
        self.unanswered([question])
        gap = self.open.get(key)
        try:
            batches = [Batch.parse(raw) for raw in raws]
        except ProtocolError:
            self._refused(store, key, gap, now)
            raise
        if not isinstance(answer, ReadAnswer):
            self._refused(store, key, gap, now)
            return []
        if answer.known:
            # What is damaged there must come from elsewhere; when it is mended the store lists the partition again.
            stale = gap is None or question.offset != gap.next  # it says nothing of where we are by now
            first = answer.first if stale else max(answer.first, answer.hole_last + 1)
            self.listed(store, key, gap, first, answer.next)
            if gap is not None:
                gap.head = max(gap.head, answer.next)
        else:
            store.forget(key)
        if gap is not None and batches and answer.ahead > batches[-1].next:
            gap.follows = (batches[-1].next, answer.ahead)
        if gap is None or batches or question.offset != gap.next:
            return batches
        gap.tries += 1
        elsewhere = bool(self._sources.having(key, gap.next, now))
        gap.retry_at = now + (RETRY_S / 10 if elsewhere or gap.next >= answer.next else RETRY_S)
        if answer.hole_last >= gap.next:
            gap.damaged = gap.damaged or RangeSet()
            gap.damaged.add(gap.next, answer.hole_last + 1)
            gap.retry_at = 0.0 if elsewhere else now + RETRY_S
        return batches

    def _refused(self, store: KnownStore, key: Key, gap: PartitionGap | None, now: float) -> None:
        """A store did not answer what it was asked: it is passed over for a while."""
        store.fail(now)
        if gap is not None:
            gap.tries += 1
            gap.retry_at = 0.0 if self._sources.having(key, gap.next, now) else now + RETRY_S

    # -- for people and checkers --------------------------------------------------------------------------

    def story(self, key: Key, gap: PartitionGap, now: float) -> str:
        """Return one sentence: how a partition's gap is being filled."""
        at = "undecided where to begin" if gap.next == UNDECIDED else f"next is {gap.next}, known to exist {gap.head}"
        told = f"{key[0]}/{key[1]}: {gap.state.value}, {at}"
        if gap.held:
            told += f", held {gap.held[0].base}..{gap.held[-1].next - 1} in {len(gap.held)} batches"
        if gap.state is not GapState.CLOSED:
            has = [each.address for each in self._sources.stores.values() if each.has(key, gap.next)]
            told += f", {gap.tries} tries since {now - gap.missing_at:.1f} s, " if gap.tries else ", not tried, "
            told += f"at {', '.join(has)}" if has else "at no store"
            told += f", again in {gap.retry_at - now:.2f} s" if gap.retry_at > now else ""
        return told

    def invariants(self, key: Key, gap: PartitionGap) -> list[str]:
        found = []
        if (gap.state is GapState.CLOSED) != (key not in self.open) or self.open.get(key, gap) is not gap:
            found.append(f"{key} is {gap.state.value}, and {'' if key in self.open else 'not '}among the open gaps")
        if gap.state is GapState.CLOSED and (gap.held or not (gap.complete or gap.next == UNDECIDED)):
            found.append(f"{key} is closed at {gap.next}, and {gap.head} exist")
        if gap.damaged and gap.damaged.lowest[0] < gap.next:
            found.append(f"{key} notes damage at {gap.damaged.lowest[0]}, and {gap.next} is wanted next")
        if gap.held is not None:
            ends = [gap.next, *(each.next for each in gap.held)]
            if any(each.base <= end for each, end in zip(islice(gap.held, 1), ends, strict=False)):
                found.append(f"{key} holds what begins at {gap.held[0].base}, and {gap.next} is wanted next")
            if any(each.base < end for each, end in zip(gap.held, ends, strict=False)):
                found.append(f"{key} holds batches that overlap")
        return found
