"""The catalogue of topics: settings, deletions and trims, on which all stores agree.

A store that takes a change of an administrator stamps it, forgets the records that it is about, and keeps the entry
of the topic; it answers once both are on disk. Other stores ask for what changed when they meet, and whenever a store
has a newer version of its catalogue. Entries merge: of two settings the later one counts, of two trims the later one,
and the larger floor of each partition. So all stores have the same entries once each has heard all, in any order.

A deletion that is passed on concerns records that are stamped before it, and those below the floors. Floors are
offsets, which are never used twice, so nothing written later goes. A store applies a trim once: first it forgets
records, then it keeps the entry. Deletions are remembered for a while; a store that was away for longer begins
partitions where another store begins them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, Protocol

import msgspec

from chappe.core import Clock, Effect, Persist, Reply, Report
from chappe.data.topic import decode_topic, encode_topic, shown
from chappe.defaults import (
    CATALOGUE_FLOORS_MAX,
    CATALOGUE_HELD_MAX,
    CATALOGUE_PAGE,
    CATALOGUE_SETTINGS_MAX,
    CATALOGUE_WAITING_MAX,
    CLOCK_AHEAD_S,
    DELETIONS_KEPT_S,
)
from chappe.errors import ChappeError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.events import ClockAhead, StoreAway
from chappe.log.messages import Message
from chappe.log.queries import (
    EARLY,
    Answer,
    CatalogueAnswer,
    CatalogueRequest,
    ErrorAnswer,
    HeadsAnswer,
    QueryReply,
    Request,
    Setting,
    TopicAnswer,
    TopicChange,
    TopicEntry,
)
from chappe.log.sources import KnownStore, Sources
from chappe.log.storage import LogStorage, PartitionInfo, Retention, RunRetention
from chappe.log.writing import StoreWriter

EVER: Final = 2**63 - 1
PARTITIONS_ALL: Final = 1_000_000
SEEN_S: Final = 3600.0  # a store notes so often that it runs, and which others do
RETENTION: Final = ("retention_s", "retention_bytes", "retention_records")  # the settings that stores know


@dataclass(frozen=True, slots=True)
class KeptCatalogue:
    """The catalogue as it was found on disk; ``seen``: stores by id, and when they were last met, µs since 1970."""

    entries: tuple[TopicEntry, ...] = ()
    seen: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatalogueJob:
    """A job of a store's disk: keep entries and sightings in place of those of the same topics and stores.

    An entry that says nothing, and a store that was seen at 0, are removed. It comes to None or an error.
    """

    entries: tuple[TopicEntry, ...]
    seen: tuple[tuple[str, int], ...] = ()


class CatalogueStorage(Protocol):
    """The port for the catalogue. Every method raises StorageError, StorageFull where there is no room."""

    def kept(self) -> KeptCatalogue: ...

    def keep(self, job: CatalogueJob) -> None:
        """Do the job in one step, which is durable when this returns."""

    def close(self) -> None: ...


def says_nothing(entry: TopicEntry) -> bool:
    return not (entry.stamp or entry.trimmed)


def retention_of(settings: Mapping[str, Setting]) -> Retention | None:
    """Return the retention that settings of a topic say; None if they say none, so that each store's own counts."""
    age_s, size, records = (settings.get(name) for name in RETENTION)
    found = Retention(
        float(age_s) if isinstance(age_s, int | float) and 0 < age_s < EVER else None,
        int(size) if isinstance(size, int | float) and 1 <= size < EVER else None,
        int(records) if isinstance(records, int | float) and 1 <= records < EVER else None,
    )
    return None if found == Retention() else found


def merged(ours: TopicEntry | None, theirs: TopicEntry) -> TopicEntry:
    """Return the entry that says what both say; the order of merging does not matter."""
    if ours is None:
        ours = TopicEntry(theirs.topic)
    settings = max(ours, theirs, key=_rank)
    floors = dict(ours.floors)
    for partition, first in theirs.floors:
        floors[partition] = max(first, floors.get(partition, 0))
    return msgspec.structs.replace(
        settings,
        before=max(ours.before, theirs.before),
        trimmed=max(ours.trimmed, theirs.trimmed),
        floors=sorted(floors.items())[:CATALOGUE_FLOORS_MAX],
    )


def _rank(entry: TopicEntry) -> tuple[int, str, bool, bytes]:
    """Order entries; of two changes that a store stamped alike, which no store does, all take the same one."""
    return entry.stamp, entry.origin, entry.deleted, msgspec.msgpack.encode(entry.settings, order="deterministic")


def forgetting(entry: TopicEntry, since_us: int) -> TopicEntry:
    """Return an entry without deletions and trims from before a moment."""
    if entry.deleted and entry.stamp < since_us:
        entry = msgspec.structs.replace(entry, stamp=0, origin="", deleted=False)
    if entry.trimmed and entry.trimmed < since_us:
        entry = msgspec.structs.replace(entry, before=0, trimmed=0, floors=[])
    return entry


@dataclass(slots=True)
class _CatalogueChange:
    """A change on its way to the disk: of an administrator, of another store, or of our own accord."""

    request: TopicChange | None = None
    client: bytes = b""
    request_id: bytes = b""
    source: KnownStore | None = None
    answer: CatalogueAnswer | None = None
    listing: HeadsAnswer | None = None
    entries: list[TopicEntry] = field(default_factory=list)  # to be kept
    seen: dict[str, int] = field(default_factory=dict)
    forgets: bool = False  # partitions begin later, which a run of retention has to make durable ...
    run: int = 0  # ... which is this one
    records: int = 0  # that were forgotten
    problem: str = ""


class StoreOpening:
    """Holds back what a store serves after its start, until it knows what was deleted while it was away.

    It serves once a store that serves has told it, or all stores have that it ever met; if none is there, after a wait.
    A store that was away for longer than deletions are remembered does not serve after the wait: it takes over where
    partitions begin at a store that serves.
    """

    def __init__(
        self, store_id: str, kept: KeptCatalogue, now_us: int, now: float, *, holds: bool, wait_s: float, kept_s: float
    ) -> None:
        self._awaited = {each for each in kept.seen if each != store_id}
        self._others_serve = False
        self._kept_s = kept_s
        self.away_s = (now_us - kept.seen.get(store_id, now_us)) / 1e6
        self.open = not (holds and self._awaited)
        self.late = not self.open and self.away_s > kept_s
        self.until = math.inf if self.late or self.open else now + wait_s
        self.told = not self.late  # or else that it has to wait is still to be reported
        self.held: list[Message | tuple[bytes, bytes, Request, bytes]] = []

    @property
    def outdated(self) -> bool:
        """True while what this store knows may have been deleted elsewhere, so long ago that nobody remembers."""
        return self.late and not self.open

    def met(self, store_id: str, *, serves: bool, listed: bool) -> None:
        """Note that a store has told what it knows; ``listed``: and where all its partitions begin."""
        self._awaited.discard(store_id)
        self._others_serve = self._others_serve or serves
        if (serves and (listed or not self.late)) or not (self._awaited or self._others_serve):
            self.open = True

    def refused(self) -> ErrorAnswer | None:
        """Return the answer to a question while this store does not serve; None if it may be held until then."""
        if self.late:
            return ErrorAnswer(str(self.why()), EARLY)
        if len(self.held) >= CATALOGUE_HELD_MAX:
            return ErrorAnswer("this store has just started and learns what was deleted: ask again", EARLY)
        return None

    def why(self) -> StoreAway:
        return StoreAway(self.away_s, self._kept_s)

    def release(self) -> Sequence[Message | tuple[bytes, bytes, Request, bytes]]:
        held, self.held = self.held, []
        self.until = math.inf
        return held


class _ChangeRefusal(ChappeError):
    """A change that is not taken."""


class Catalogue:
    """The catalogue of one store. One change after the other is carried out; a store changes little else meanwhile.

    Every run of retention begins here, since a change is answered after the next one.

    Args:
        kept: What was found on disk.
        opening: Told of stores that have told what they know.
        kept_s: So long deletions are remembered.
    """

    def __init__(
        self,
        storage: LogStorage,
        writer: StoreWriter,
        sources: Sources,
        clock: Clock,
        kept: KeptCatalogue,
        opening: StoreOpening,
        kept_s: float = DELETIONS_KEPT_S,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self._storage = storage
        self._writer = writer
        self._sources = sources
        self._clock = clock
        self._opening = opening
        self._kept_us = int(kept_s * 1e6)
        self._limits = limits
        self.entries: dict[str, TopicEntry] = {}
        self.version = 0  # grows with every change
        self.policies: tuple[tuple[str, Retention], ...] = ()  # the retention of topics that have a setting
        self._changed: dict[str, int] = {}  # topic to version, the last change at the end
        self._seen = dict(kept.seen)
        self._begun = self._ended = 0  # runs of retention
        self._waiting: deque[_CatalogueChange] = deque()
        self._current: _CatalogueChange | None = None
        self._heard: set[str] = set()  # topics of which others told while this store did not serve
        self._put(kept.entries)
        for entry in kept.entries:  # partitions that never had a record here: the disk knows nothing of them
            topic = decode_topic(entry.topic)
            for name, first in entry.floors:
                if storage.partition(topic, decode_topic(name)) is None:
                    storage.reset(topic, decode_topic(name), first)

    # -- questions ----------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Let other stores know that there is something to take, unless it may be outdated."""
        self._sources.asker_catalogue = 0 if self._opening.outdated else self.version

    def answer(self, request: CatalogueRequest, *, serves: bool) -> CatalogueAnswer:
        if self._opening.outdated:
            return CatalogueAnswer(0, False, [], self._storage.store_id, False)
        newer = [topic for topic, _ in takewhile(lambda each: each[1] > request.since, reversed(self._changed.items()))]
        newer.reverse()
        page: list[TopicEntry] = []
        floors = 0
        for topic in newer[:CATALOGUE_PAGE]:
            entry = self.entries[topic]
            floors += len(entry.floors)
            if page and floors > CATALOGUE_FLOORS_MAX:
                break
            page.append(entry)
        more = len(page) < len(newer)
        reached = self._changed[newer[len(page) - 1]] if more else self.version
        return CatalogueAnswer(reached, more, page, self._storage.store_id, serves)

    # -- changes ------------------------------------------------------------------------------------------

    def change(self, client: bytes, request_id: bytes, request: TopicChange, now: float) -> list[Effect]:
        """Take a change of an administrator."""
        if len(self._waiting) >= CATALOGUE_WAITING_MAX:
            refusal = ErrorAnswer(f"{CATALOGUE_WAITING_MAX} others change topics just now: ask again")
            return [Reply(client, QueryReply(request_id, refusal))]
        self._waiting.append(_CatalogueChange(request, client, request_id))
        return self._next(now)

    def take(self, source: KnownStore, answer: CatalogueAnswer, now: float) -> list[Effect]:
        """Take the changes that another store has, unless some of it are on their way."""
        if any(each.source is source for each in (self._current, *self._waiting) if each is not None):
            return []
        self._waiting.append(_CatalogueChange(source=source, answer=answer))
        return self._next(now)

    def adopt(self, source: KnownStore, listing: HeadsAnswer, now: float) -> list[Effect]:
        """Begin partitions where another store begins: this one was away for longer than it knows of deletions."""
        self._waiting.append(_CatalogueChange(source=source, listing=listing))
        return self._next(now)

    def retain(self) -> list[Effect]:
        self._begun += 1
        return [Persist(RunRetention(self.policies))]

    def retained(self, problem: str, now: float) -> list[Effect]:
        """Go on with the change that waits for the oldest run, which has ended, or could not do its work."""
        self._ended += 1
        change = self._current
        if change is None or not 0 < change.run <= self._ended:
            return []
        change.run = 0
        if problem:
            change.problem = f"its disk refuses, so that what is forgotten may come back when it starts anew: {problem}"
            return [*self._end(change, now), *self._next(now)]
        return [_job(change)]

    def handle_done(self, outcome: ChappeError | None, now: float) -> list[Effect]:
        """The entries of the change are on disk, or the disk refused them."""
        change = self._current
        assert change is not None
        if outcome is None:
            self._put(change.entries)
            for store_id, at_us in change.seen.items():
                if at_us:
                    self._seen[store_id] = at_us
                else:
                    self._seen.pop(store_id, None)
        else:
            change.problem = f"its disk refuses: {outcome}"
        return [*self._end(change, now), *self._next(now)]

    def maintain(self, now: float) -> list[Effect]:
        """Forget deletions that are old enough, note which stores are there, mend stamps of a clock that was wrong."""
        for each in self._sources.stores.values():
            if each.ahead:
                each.catalogue = -1
        now_us = self._now_us()
        change = _CatalogueChange(seen=self._sightings(now_us))
        for entry in self.entries.values():
            left = forgetting(self._restamped(entry, now_us), now_us - self._kept_us)
            if left is not entry:
                change.entries.append(left)
        if not change.entries and not change.seen:
            return []
        self._waiting.append(change)
        return self._next(now)

    def _restamped(self, entry: TopicEntry, now_us: int) -> TopicEntry:
        """Return an entry with the time of now, if it was stamped here while this clock was far ahead."""
        latest = now_us + int(CLOCK_AHEAD_S * 1e6)
        if entry.stamp > latest and entry.origin == self._storage.store_id:
            entry = msgspec.structs.replace(entry, stamp=now_us)
        if max(entry.trimmed, entry.before) > latest:
            entry = msgspec.structs.replace(entry, trimmed=now_us, before=min(entry.before, now_us))
        return entry

    def _sightings(self, now_us: int) -> dict[str, int]:
        """Return stores whose sighting has to be noted: of a store that never met another one, none."""
        own = self._storage.store_id
        if not self._seen or abs(now_us - self._seen.get(own, 0)) < SEEN_S * 1e6:
            return {}
        there = {each.store_id: now_us for each in self._sources.stores.values() if each.catalogue >= 0}
        old = {each: 0 for each, at in self._seen.items() if each not in there and at < now_us - self._kept_us}
        return old | there | {own: now_us}

    # -- inside -------------------------------------------------------------------------------------------

    def _now_us(self) -> int:
        return self._clock.wall_ns() // 1000

    def _put(self, entries: Iterable[TopicEntry]) -> None:
        for entry in entries:
            topic = decode_topic(entry.topic)
            self._changed.pop(topic, None)
            if says_nothing(entry):
                self.entries.pop(topic, None)
                continue
            self.version += 1
            self.entries[topic] = entry
            self._changed[topic] = self.version
        self.announce()
        found = ((topic, retention_of(each.settings)) for topic, each in self.entries.items())
        # A policy whose name ends with * is that of a prefix: topics of that name have none of their own.
        self.policies = tuple((topic, each) for topic, each in found if each is not None and topic[-1] != "*")

    def _next(self, now: float) -> list[Effect]:
        """Begin the next change, if none is under way."""
        effects: list[Effect] = []
        while self._current is None and self._waiting:
            change = self._current = self._waiting.popleft()
            try:
                effects += self._begin(change, now)
            except _ChangeRefusal as error:
                change.problem = str(error)
                effects += self._end(change, now)
        return effects

    def _begin(self, change: _CatalogueChange, now: float) -> list[Effect]:
        """Forget what a change is about, and have the disk do it."""
        effects: list[Effect] = []
        if change.request is not None:
            entry = change.request.entry
            if entry is None:
                effects += self._changed_here(change, change.request, now)
            else:
                self._check_clock(entry)
                effects += self._passed_on(change, entry, now)
        elif change.answer is not None and change.source is not None:
            effects += self._answered(change, change.source, change.answer, now)
        elif change.listing is not None:
            for info in change.listing.infos():
                own = self._storage.partition(info.topic, info.partition)
                if own is not None and own.first < info.first:
                    change.forgets = True
                    effects += self._writer.begin_later((info.topic, info.partition), info.first, now)
            if not change.listing.more:  # entries that the other store does not have were deleted there
                unheard = [each for topic, each in self.entries.items() if topic not in self._heard]
                change.entries += [TopicEntry(each.topic) for each in unheard]
        if change.forgets:
            effects += self.retain()
            change.run = self._begun
        elif change.entries or change.seen:
            effects.append(_job(change))
        else:
            effects += self._end(change, now)
        return effects

    def _answered(
        self, change: _CatalogueChange, source: KnownStore, answer: CatalogueAnswer, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        source.store_id, source.ahead = answer.store_id, False
        for entry in answer.entries:
            if not self._opening.open:
                self._heard.add(decode_topic(entry.topic))
            try:
                self._check_clock(entry)
            except _ChangeRefusal:
                source.ahead = True
                continue
            effects += self._passed_on(change, entry, now)
        now_us = self._now_us()
        if abs(now_us - self._seen.get(answer.store_id, 0)) >= SEEN_S * 1e6:
            change.seen = {answer.store_id: now_us}
            if self._opening.open:
                change.seen[self._storage.store_id] = now_us
        return effects

    def _check_clock(self, entry: TopicEntry) -> None:
        """Raise _ChangeRefusal for an entry from the future: it would count more than all changes until then."""
        ahead_s = max(entry.stamp, entry.trimmed, entry.before) / 1e6 - self._now_us() / 1e6
        if ahead_s > CLOCK_AHEAD_S:
            raise _ChangeRefusal(
                f"the change of topic {shown(decode_topic(entry.topic))!r} is stamped {ahead_s:,.0f} s ahead of this "
                f"store's clock: correct the clock here or at store {entry.origin}"
            )

    def _passed_on(self, change: _CatalogueChange, theirs: TopicEntry, now: float) -> list[Effect]:
        """Merge an entry that another store has."""
        topic = decode_topic(theirs.topic)
        if not _is_name(topic):
            return []
        theirs = forgetting(theirs, self._now_us() - self._kept_us)
        ours = self.entries.get(topic) or TopicEntry(theirs.topic)
        both = merged(ours, theirs)
        if both == ours:
            return []
        if says_nothing(ours) and len(self.entries) + len(change.entries) >= self._limits.catalogue_topics_max:
            if change.request is not None:
                raise self._full()
        else:
            change.entries.append(both)
        before = theirs.before if theirs.before > ours.before else 0
        known = dict(ours.floors)
        floors = {decode_topic(name): first for name, first in theirs.floors if first > known.get(name, 0)}
        return self._forget(change, topic, before, floors, now) if before or floors else []

    def _changed_here(self, change: _CatalogueChange, request: TopicChange, now: float) -> list[Effect]:
        """Stamp what an administrator wants. Raises _ChangeRefusal."""
        topic = decode_topic(request.topic)
        if not _is_name(topic):
            raise _ChangeRefusal("a topic has a name, without NUL in it")
        ours = self.entries.get(topic) or TopicEntry(encode_topic(topic))
        if says_nothing(ours) and len(self.entries) >= self._limits.catalogue_topics_max:
            raise self._full()
        now_us = self._now_us()
        ours = self._restamped(ours, now_us)
        stamp = max(now_us, ours.stamp + 1, ours.trimmed + 1)
        entry = ours
        if request.delete:
            entry = TopicEntry(
                ours.topic, stamp, self._storage.store_id, True, {}, ours.before, ours.trimmed, ours.floors
            )
        elif request.settings or request.create:
            entry = msgspec.structs.replace(
                ours, stamp=stamp, origin=self._storage.store_id, deleted=False, settings=_set(ours, request)
            )
        before = EVER if request.delete else request.before
        effects: list[Effect] = []
        if before:
            floors = self._floors(topic, stamp) if before > stamp else []
            entry = merged(entry, TopicEntry(ours.topic, before=min(before, stamp), trimmed=stamp, floors=floors))
            effects = self._forget(change, topic, before, {}, now)
        if entry is not ours:
            change.entries.append(entry)
        return effects

    def _full(self) -> _ChangeRefusal:
        return _ChangeRefusal(
            f"this store's catalogue has {self._limits.catalogue_topics_max:,} topics, which is the most"
        )

    def _of(self, topic: str) -> list[PartitionInfo]:
        return [each for each in self._storage.changed(topic, 0, PARTITIONS_ALL) if each.topic == topic]

    def _floors(self, topic: str, stamp: int) -> list[tuple[bytes, int]]:
        """Name where partitions go on of which everything is forgotten: all of them, or those that need it.

        Other stores cannot tell by stamps that records from the future were there before. Raises _ChangeRefusal if
        there are too many of these.
        """
        found = [each for each in self._of(topic) if each.next]
        if len(found) > self._limits.catalogue_floors_max:
            found = [each for each in found if each.timestamp_max >= stamp]
        if len(found) > self._limits.catalogue_floors_max:
            raise _ChangeRefusal(
                f"more than {self._limits.catalogue_floors_max:,} partitions have records that are stamped later than "
                "this store's clock: correct the clocks and ask again"
            )
        return sorted((encode_topic(each.partition), each.next) for each in found)

    def _forget(
        self, change: _CatalogueChange, topic: str, before: int, floors: Mapping[str, int], now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        change.forgets = True  # also if nothing is left to forget: a run before may have failed to make that durable
        known = {info.partition: info for info in self._of(topic)}
        for info in known.values():
            first = max(self._first(info, before), floors.get(info.partition, 0))
            if first > info.first:
                change.records += min(first, info.next) - info.first
                effects += self._writer.begin_later((topic, info.partition), first, now)
        for partition in floors.keys() - known.keys():
            effects += self._writer.begin_later((topic, partition), floors[partition], now)
        return effects

    def _first(self, info: PartitionInfo, before: int) -> int:
        if info.next == info.first or before <= info.timestamp_min:
            return info.first
        if before > info.timestamp_max:
            return info.next
        return self._storage.offset_at(info.topic, info.partition, before)

    def _end(self, change: _CatalogueChange, now: float) -> list[Effect]:
        """Answer whoever asked; of another store ask for what follows."""
        self._current = None
        if change.request is not None:
            return [Reply(change.client, QueryReply(change.request_id, self._told(change, change.request)))]
        source, answer = change.source, change.answer
        if source is None or change.problem:
            return []
        if change.listing is not None and not change.listing.more:
            self._opening.met(source.store_id, serves=True, listed=True)
        if answer is None:
            return []
        source.catalogue = answer.version
        if not answer.more:
            self._opening.met(answer.store_id, serves=answer.serves, listed=False)
        there = self._sources.stores.get(source.address) is source
        told: list[Effect] = [Report(ClockAhead(answer.store_id))] if source.ahead and not answer.more else []
        return [*told, *([self._sources.catalogue(source, now)] if answer.more and there else ())]

    def _told(self, change: _CatalogueChange, request: TopicChange) -> Answer:
        if change.problem:
            return ErrorAnswer(change.problem)
        entry = self.entries.get(decode_topic(request.topic)) or TopicEntry(request.topic)
        return TopicAnswer(entry, self._storage.store_id, change.records)

    # -- for checkers -------------------------------------------------------------------------------------

    def invariants(self) -> list[str]:
        found: list[str] = []
        if self._changed.keys() != self.entries.keys():
            found.append(f"the catalogue lists {len(self._changed)} topics, and has {len(self.entries)}")
        if self._waiting and self._current is None:
            found.append(f"{len(self._waiting)} changes of topics wait, and none is under way")
        return found


def _is_name(topic: str) -> bool:
    return bool(topic) and "\0" not in topic


def _job(change: _CatalogueChange) -> Effect:
    return Persist(CatalogueJob(tuple(change.entries), tuple(change.seen.items())))


def _set(ours: TopicEntry, request: TopicChange) -> dict[str, Setting]:
    """Return the settings of a topic as they are to be. Raises _ChangeRefusal for too many."""
    settings = {} if ours.deleted else dict(ours.settings)
    for name, value in request.settings.items():
        settings.pop(name, None)
        if value is not None:
            settings[name] = value
    if len(settings) > CATALOGUE_SETTINGS_MAX:
        raise _ChangeRefusal(f"a topic has at most {CATALOGUE_SETTINGS_MAX} settings")
    return settings
