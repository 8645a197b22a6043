"""How a store gets what it lacks: what it missed, what it gave up, and what of its own disk is damaged.

What was missed is read from other stores that have it, or else asked of its producer. What nobody answers for is given
up after a while: the store goes on behind it, and remembers what may yet come. An acknowledgement covers everything
before it, and a producer lets go of what is acknowledged. So nothing behind such a range is acknowledged until it is
filled, by its producer or by another store, or until the producer says that it has nothing earlier. On disk such a
range is a hole like any other: after a restart every hole counts as one. Damage is reported once, and read again from
other stores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chappe.core import Effect, Publish, Report
from chappe.data.topic import Filter, encode_topic
from chappe.defaults import RETRY_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import Batch
from chappe.log.events import DamageFound, RecordsLost
from chappe.log.gap import GIVE_UP_TRIES, Gaps, PartitionGap
from chappe.log.messages import Fetch, PeerSubscriptions
from chappe.log.queries import Answer, ReadAnswer
from chappe.log.sources import Key, KnownStore, RangeSet, Sources
from chappe.log.storage import Hole, LogStorage
from chappe.log.writing import StoreWriter

SILENT_S: Final = 5.0  # a producer not heard for this long is gone
FOUND_S: Final = 2.0  # stores that are there are found so soon after the first one
ASKED_MAX: Final = 4  # holes asked for at once
EVERYTHING: Final = (Filter("", prefix=True),)  # what other stores are asked for news of


@dataclass(slots=True)
class _UnfilledPart:
    ranges: RangeSet = field(default_factory=RangeSet)
    ask_at: float = -math.inf
    tries: int = 0  # questions without an answer
    asked: bool = False
    begun: bool = False  # the answer to this question has begun
    said: int = 0  # the answer before began here


class Unfilled:
    """Ranges that a store passed without having them or knowing them gone; bounded by the storage's holes."""

    def __init__(self, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self._parts: dict[Key, _UnfilledPart] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._parts))

    def miss(self, key: Key, first: int, end: int, ask_at: float = -math.inf) -> None:
        """Note that the store goes on at ``end`` without ``first`` <= n < ``end``."""
        part = self._parts.setdefault(key, _UnfilledPart())
        part.ranges.add(first, end)
        part.ask_at = max(part.ask_at, ask_at)

    def filled(self, key: Key, first: int, end: int) -> bool:
        """Note that these were written, or are wanted no longer; return whether more can be acknowledged now."""
        part = self._parts.get(key)
        if part is None:
            return False
        before = part.ranges.lowest
        part.ranges.remove(first, end)
        if not part.ranges:
            del self._parts[key]
            return True
        if part.ranges.lowest != before:
            part.tries, part.said = 0, 0
        return part.ranges.lowest[0] > before[0]

    def gone(self, key: Key, before: int) -> None:
        self.filled(key, 0, before)

    def limit(self, key: Key, end: int) -> int:
        """Return the end of the offsets that may be acknowledged, where ``end`` comes after the last one stored."""
        part = self._parts.get(key)
        return end if part is None else min(end, part.ranges.lowest[0])

    def wait(self, key: Key, until: float) -> None:
        """Note that until then the producer answers another question, so its answers say nothing of these ranges."""
        part = self._parts.get(key)
        if part is not None:
            part.ask_at, part.asked = until, False

    def ask(self, key: Key, now: float) -> tuple[int, int] | None:
        """Return first and count to ask the producer for now, if it is time to."""
        part = self._parts.get(key)
        if part is None or now < part.ask_at:
            return None
        part.ask_at = now + RETRY_S
        part.asked, part.begun = True, False
        part.tries += 1
        first, end = part.ranges.lowest
        return first, min(end - first, self._limits.fetch_records_max)

    def tries(self, key: Key) -> int:
        part = self._parts.get(key)
        return 0 if part is None else part.tries

    def answer(self, key: Key, base: int) -> tuple[int, int] | None:
        """The producer sends a batch that begins at ``base``; return the range that was asked for. Records before the
        beginning of an answer are gone. It must begin there twice: the first message of one may be lost on its way.
        """
        part = self._parts.get(key)
        if part is None or not part.asked:
            return None
        if not part.begun:
            part.begun = True
            part.tries = 0
            said, part.said = min(part.said, base), base
            if said > part.ranges.lowest[0]:
                self.gone(key, said)
        return part.ranges.lowest if part.ranges else None


class Backfill:
    """The owner of the gaps in a store's streams; it fills ranges given up there, and the holes of its storage."""

    def __init__(
        self,
        storage: LogStorage,
        gaps: Gaps,
        writer: StoreWriter,
        sources: Sources,
        subscriptions: PeerSubscriptions,
        limits: LogLimits,
    ) -> None:
        self._storage = storage
        self._gaps = gaps
        self._writer = writer
        self._sources = sources
        self._subscriptions = subscriptions
        self._limits = limits
        self.unfilled = Unfilled(limits)
        self.reported: set[tuple[str, str, int, int]] = set()  # damage
        self._turn = 0  # of the holes
        self._store_turn = 0
        gaps.owner = self

    # -- as the owner of gaps ---------------------------------------------------------------------------

    def asks_from(self) -> float:
        """Return when the disk takes writes again; infinity while too much waits for it."""
        return math.inf if self._writer.paused else self._writer.refusing_until

    def known_to(self, key: Key) -> int:
        return self._writer.stored(key)

    def readable_to(self, key: Key, gap: PartitionGap) -> float:
        """Every record that another store has is wanted."""
        return math.inf

    def place(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Begin a new partition where other stores begin, if they removed its earlier records.

        Each removes by its own retention, and a partition cannot begin earlier afterwards: so all stores that were
        found with the first one are heard before.
        """
        first = min((first for first, _ in self._sources.ranges(key)), default=0)
        if first <= gap.next or gap.damaged_to > gap.next or not self._writer.unknown(key):
            return []
        said = all(each.since for each in self._sources.usable(now))
        if now - self._sources.met_at < FOUND_S or not said:
            gap.retry_at = now + RETRY_S / 10
            return []
        gap.next = first
        if first >= gap.head and not gap.held:
            self._writer.begin(key, first, now)  # it is empty, as everything was trimmed: no record will make it begin
        self._gaps.progress(key, gap)
        return self.take_held(key, gap, now)

    def fetching(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        """Until the producer has answered, its messages say nothing of ranges that were given up."""
        self.unfilled.wait(key, now + SILENT_S)
        return []

    def patience_s(self, key: Key, gap: PartitionGap, now: float) -> float:
        """Return 0 for records before a new partition, and for those that every store and the producer lack."""
        if self._writer.unknown(key):
            # A producer that speaks and does not answer does not hear us: what we lack it may still have.
            deaf = gap.gone_to <= gap.next and now - gap.heard_at < SILENT_S
            patient = deaf or self._sources.ever
        else:
            patient = not (gap.disclaimed and self._others_lack_it(gap.missing_at, now))
        return self._limits.give_up_s if patient else 0.0

    def _others_lack_it(self, since: float, now: float) -> bool:
        """Return True if every known store has listed its partitions since then, and none is away that may come back.

        A store that listed the wanted offset would be read instead. A store that is met later heals the hole.
        """
        away = now - self._sources.gone_at < self._limits.give_up_s
        return not away and not self._subscriptions.original_stores() and self._sources.listed(EVERYTHING, since)

    def pass_over(self, key: Key, gap: PartitionGap, goal: int, now: float) -> list[Effect]:
        """Report lost records; remember those that may yet come, and acknowledge nothing behind them."""
        first = min((first for first, _ in self._sources.ranges(key)), default=0)
        damaged = gap.damaged_to > gap.next
        gone = goal <= max(gap.gone_to, 0 if damaged else first) or self._original(key)
        unknown = self._writer.unknown(key)
        if not gone:
            self.unfilled.miss(key, gap.next, goal, now + SILENT_S)
        if unknown:
            if not gone:
                self._writer.begin(key, gap.next, now)
            return []
        reason = "no store or producer has them any more" if gone else "no store or producer answered for them"
        return [Report(RecordsLost(key[0], key[1], gap.next, goal - 1, reason))]

    def take_held(self, key: Key, gap: PartitionGap, now: float) -> list[Effect]:
        actions = self._writer.go_on(key, self._writer.streams[key], now)
        self._writer.prune(key)
        return actions

    def ask_to_fill(self, key: Key, now: float) -> list[Effect]:
        """A producer speaks: ask it for records that nobody had when we went past them."""
        if self.unfilled.tries(key) >= GIVE_UP_TRIES and self._original(key):
            self.unfilled.gone(key, self._writer.stored(key))
        wanted = None if now < self._writer.refusing_until else self.unfilled.ask(key, now)
        return [] if wanted is None else [Publish(Fetch(key[1], self._gaps.address, key[0], *wanted))]

    def fill(self, key: Key, batch: Batch, now: float) -> list[Effect]:
        wanted = self.unfilled.answer(key, batch.base)
        if wanted is None:
            return []
        return self._writer.heal(Hole(*key, wanted[0], wanted[1] - 1), [batch], now)

    def report_damage(self, holes: list[Hole]) -> list[Effect]:
        actions: list[Effect] = []
        for hole in holes:
            if len(actions) >= self._limits.damage_reports_max:
                break  # the next look goes on
            known = (hole.topic, hole.partition, hole.first, hole.last)
            if known not in self.reported:
                self.reported.add(known)
                actions.append(Report(DamageFound(*known, hole.reason)))
        return actions

    def heal(self, now: float) -> list[Effect]:
        """Ask for some of all holes, others each time."""
        holes = self._storage.holes()
        self.reported &= {(hole.topic, hole.partition, hole.first, hole.last) for hole in holes}
        actions = self.report_damage(holes)
        turn, self._turn = self._turn % max(1, len(holes)), self._turn + ASKED_MAX
        for hole in (holes[turn:] + holes[:turn])[:ASKED_MAX]:
            actions += self._ask(hole, now)
        return actions

    def healing(
        self, store: KnownStore, hole: Hole, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        """A store answered for a hole: write its batches. Raises ProtocolError for a malformed batch."""
        actions = self._writer.heal(hole, [Batch.parse(raw) for raw in batches], now)
        if isinstance(answer, ReadAnswer) and not batches:
            first = max(answer.first, answer.hole_last + 1)  # it begins later, or is damaged there too
            if hole.first < first <= hole.last:
                actions += self._ask(replace(hole, first=first), now, store)
        return actions

    def _ask(self, hole: Hole, now: float, store: KnownStore | None = None) -> list[Effect]:
        """Ask a store, or else the next one in turn, for a damaged range; nothing if there is none."""
        usable = self._sources.usable(now)
        if not usable:
            return []
        if store not in usable:
            self._store_turn += 1
            store = usable[self._store_turn % len(usable)]
        return [self._sources.read(store, (hole.topic, hole.partition), hole.first, now, hole)]

    def _original(self, key: Key) -> bool:
        """Return True if its producer hears us and is an original, which never says that it lacks a record."""
        raw = encode_topic(key[1])
        return self._subscriptions.has(b"F" + raw) and not self._subscriptions.has(b"A" + raw)
