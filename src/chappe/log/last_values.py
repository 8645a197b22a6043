"""The newest record of each key of a topic, for whoever asks: a table beside the storage, made at the first question.

A table is made by reading the topic once, and kept up by reading what is new when it is asked for again; nothing is
done for records that come. An asker gets it in pages, and with the first one how far the table had come in each
partition (the cuts): what comes from there on is read as ever. A record that a page has from behind its cut is left out
by the asker, as it comes again; so a table may go on while it is read.

Within a partition the higher offset is the newer record; among partitions the later timestamp is, as all stores see it.
Records without a key are not in a table, and a key whose newest record is a tombstone has none.

Tables are bounded together, in bytes; the one not asked for longest goes first, and one that alone has more is refused.
One that somebody waits for, or is reading, goes last, the newest of those first: else two that have no room beside each
other would take it from each other for ever. A topic of which something is damaged here is refused: others may have it.

Source: the ZeroMQ Guide's last value cache.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from chappe.core import Effect, Report
from chappe.data.topic import decode_topic, encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import RETRY_S
from chappe.errors import ChappeError
from chappe.limits import LogLimits
from chappe.log.batch import Batch, encode_batch
from chappe.log.events import LastValuesRefused, NoLastValues
from chappe.log.queries import Answer, ErrorAnswer, LastAnswer, LastRequest
from chappe.log.sources import ANSWER_S, Key, KnownStore, Sources
from chappe.log.storage import LogStorage

PAUSE_S: Final = 0.005  # between two pieces that are read, so that everything else gets its turn
FRESH_S: Final = 1.0  # a table that was complete so lately is not brought up to date before it is told
FORGET_S: Final = 600.0  # a table that nobody has asked for so long goes
ASKED_S: Final = 5.0  # it is read on for so long after somebody has asked
ENTRY_BYTES: Final = 400  # that a key takes beside its record, about
PARTITIONS_MAX: Final = 100_000  # of one topic: their cuts are one message

_Last: TypeAlias = tuple[bytes, int, bytes | None, bytes]  # key, time, value and headers of a record


@dataclass(slots=True)
class _ValuesPart:
    name: str
    next: int  # everything before it was looked at
    records: dict[int, _Last] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)  # in order; some of them are gone

    def add(self, offset: int, record: _Last) -> None:
        self.records[offset] = record
        self.offsets.append(offset)
        if len(self.offsets) > 2 * len(self.records) + 64:
            self.offsets = list(self.records)  # they were added in order


@dataclass(slots=True)
class _Table:
    topic: str
    number: int
    version: int = 0  # of the storage, up to which partitions are known
    parts: dict[str, _ValuesPart] = field(default_factory=dict)
    newest: dict[bytes, tuple[_ValuesPart, int, int]] = field(default_factory=dict)  # by key: where, offset, time
    goals: dict[str, int] = field(default_factory=dict)  # up to where partitions are still to be read
    bytes: int = 0
    asked_at: float = -math.inf
    fresh_at: float = -math.inf
    told: bool = False  # to its end, to the last that asked
    refused: str = ""

    def wanted(self, now: float) -> bool:
        return not self.told and now - self.asked_at < ASKED_S


class LastValues:
    def __init__(self, storage: LogStorage, limits: LogLimits) -> None:
        self._storage = storage
        self._limits = limits
        self._tables: dict[str, _Table] = {}  # the one asked for last comes last
        self._number = 0
        self.due = math.inf
        self.held_bytes = 0  # what all tables take, about

    def answer(self, request: LastRequest, now: float) -> tuple[Answer, tuple[bytes, ...]]:
        """Return the answer and its batches of one record each."""
        topic = decode_topic(request.topic)
        table = self._tables.pop(topic, None)
        if request.table and (table is None or table.number != request.table):
            if table is not None:
                self._tables[topic] = table
            return LastAnswer(request.topic, 0), ()  # it is gone: to be asked for from the beginning
        if table is None:
            self._number += 1
            table = _Table(topic, self._number)
        self._tables[topic] = table
        table.asked_at, table.told = now, False
        if not request.table and not table.goals and now - table.fresh_at > FRESH_S:
            self._look_for_news(table)
            self._read(table, now)
        if table.refused:
            self._drop(topic)
            return ErrorAnswer(table.refused), ()
        if table.goals or topic not in self._tables:
            self.due = min(self.due, now + PAUSE_S)
            return LastAnswer(request.topic, 0, busy=True), ()
        self.due = min(self.due, now + FORGET_S)
        return self._page(table, request)

    def handle_timeout(self, now: float) -> None:
        """Read on for those who wait, and forget tables that nobody asks for."""
        if now < self.due:
            return
        wanted = [each for each in self._tables.values() if each.goals and now - each.asked_at < ASKED_S]
        for table in wanted[:1]:
            self._read(table, now)
        for topic in [topic for topic, each in self._tables.items() if now - each.asked_at >= FORGET_S]:
            self._drop(topic)
        waits = any(each.goals for each in wanted)
        forgets = min((each.asked_at + FORGET_S for each in self._tables.values()), default=math.inf)
        self.due = now + PAUSE_S if waits else forgets

    def invariants(self) -> list[str]:
        found = []
        if self.held_bytes != sum(table.bytes for table in self._tables.values()):
            found.append(f"tables of newest records take other than {self.held_bytes} bytes")
        for table in self._tables.values():
            there = {(key, name) for name, part in table.parts.items() for key, *_ in part.records.values()}
            if there != {(key, part.name) for key, (part, _, _) in table.newest.items()}:
                found.append(f"the table of {table.topic} names other records than it has")
        return found

    # -- reading --------------------------------------------------------------------------------------

    def _look_for_news(self, table: _Table) -> None:
        limit = PARTITIONS_MAX + 1
        changed = self._storage.changed(table.topic, table.version, limit)
        infos = [each for each in changed if each.topic == table.topic]
        if len(changed) == limit or len(infos) + len(table.parts) > PARTITIONS_MAX:
            table.refused = f"topic {table.topic!r} has more than {PARTITIONS_MAX} partitions"
            return
        table.version = self._storage.version
        for info in infos:
            part = table.parts.setdefault(info.partition, _ValuesPart(info.partition, info.first))
            if part.next < info.next:
                table.goals[info.partition] = info.next

    def _read(self, table: _Table, now: float) -> None:
        left = self._limits.last_piece_bytes
        while left > 0 and table.goals and not table.refused:
            name, goal = next(iter(table.goals.items()))
            part = table.parts[name]
            info = self._storage.partition(table.topic, name)
            part.next = max(part.next, goal if info is None else info.first)
            if part.next >= goal:
                del table.goals[name]
                continue
            try:
                read = self._storage.read(table.topic, name, part.next, left)
                for raw in read.batches:
                    left -= len(raw)
                    batch = Batch.parse(raw, check=False)
                    if batch.sealed is not None:
                        self._refuse(table, f"topic {table.topic!r} is sealed: what its keys are is not known here")
                        return
                    self._take(table, part, batch)
            except ChappeError as error:
                self._refuse(table, str(error))
                return
            if not read.batches:
                self._refuse(table, f"records of topic {table.topic!r} are damaged at this store")
                return
        if not table.goals:
            table.fresh_at = now
        self._shrink(table, now)

    def _take(self, table: _Table, part: _ValuesPart, batch: Batch) -> None:
        start, part.next = max(part.next - batch.base, 0), max(part.next, batch.next)
        keys = batch.keys()
        if keys is None:
            return
        last = dict(zip(keys[start:], range(start, batch.count), strict=True))
        last.pop(None, None)
        stamps, values, headers = batch.timestamps(), batch.values(), batch.raw_headers()
        for index in sorted(last.values()):
            key, stamp, value = keys[index], stamps[index], values[index]
            assert key is not None
            before = table.newest.get(key)
            if before is not None:
                there, offset, then = before
                if there is not part and (then, there.name) > (stamp, part.name):
                    continue
                old = there.records.pop(offset)
                self._grow(table, -(ENTRY_BYTES + len(key) + len(old[2] or b"") + len(old[3])))
            offset = batch.base + index
            header = headers[index] if headers else b""
            table.newest[key] = (part, offset, stamp)
            self._grow(table, ENTRY_BYTES + len(key) + len(value or b"") + len(header))
            part.add(offset, (key, stamp, value, header))

    def _shrink(self, read: _Table, now: float) -> None:
        """Drop tables beyond the bound, after one was read."""
        if read.bytes > self._limits.last_bytes_max:
            mib = self._limits.last_bytes_max >> 20
            self._refuse(read, f"the newest records of topic {read.topic!r} have more than {mib} MiB")
            return
        while self.held_bytes > self._limits.last_bytes_max:
            wanted = {each.topic: each.number for each in self._tables.values() if each.wanted(now)}
            idle = next((topic for topic in self._tables if topic not in wanted and topic != read.topic), None)
            self._drop(idle or max(wanted, key=lambda topic: wanted[topic]))

    def _refuse(self, table: _Table, reason: str) -> None:
        """Refuse a table; it takes no room until somebody who waits for it has heard that."""
        table.refused = reason
        self._grow(table, -table.bytes)
        table.parts, table.newest, table.goals = {}, {}, {}

    def _grow(self, table: _Table, size: int) -> None:
        table.bytes += size
        self.held_bytes += size

    def _drop(self, topic: str) -> None:
        self.held_bytes -= self._tables.pop(topic).bytes

    # -- telling --------------------------------------------------------------------------------------

    def _page(self, table: _Table, request: LastRequest) -> tuple[Answer, tuple[bytes, ...]]:
        parts = list(table.parts.values())
        cuts = () if request.table else tuple((encode_topic(each.name), each.next) for each in parts)
        names: list[bytes] = []
        bodies: list[bytes] = []
        size, index, after = 0, request.part, request.offset
        while index < len(parts):
            part = parts[index]
            info = self._storage.partition(table.topic, part.name)
            after = max(after, -1 if info is None else info.first - 1)
            for place in range(bisect_right(part.offsets, after), len(part.offsets)):
                if size >= self._limits.read_bytes:
                    return LastAnswer(request.topic, table.number, list(cuts), names, index, after, more=True), (
                        *bodies,
                    )
                after = part.offsets[place]
                record = part.records.get(after)
                if record is None or record[2] is None:
                    continue
                key, stamp, value, header = record
                body = encode_batch(after, [value], stamp, keys=[key], headers=[header] if header else None)
                names.append(encode_topic(part.name))
                bodies.append(body)
                size += len(body)
            index, after = index + 1, -1
        table.told = True
        return LastAnswer(request.topic, table.number, list(cuts), names, index, after), (*bodies,)


LOOK_S: Final = 0.05  # how often it is looked whether stores have listed what they have
BUSY_S: Final = 0.1  # a store that makes its table is asked again
REFUSED_MAX: Final = 3  # refusals, questions without an answer, or waits for one, until everything is read instead
SILENT: Final = "no store answers for them"
ALONE_S: Final = 1.3  # stores are found by then


@dataclass(slots=True)
class _LastTopic:
    name: str
    number: int  # what was wanted first is asked for first: no store is to make a table for all at once
    since: float
    partitions: dict[Key, None] = field(default_factory=dict)  # those met meanwhile, which wait for it
    store: str = ""  # the one that is asked
    table: int = 0
    part: int = 0
    offset: int = -1
    asked: bool = False
    refused: int = 0
    wait_until: float = math.inf  # for a store that may have it and does not answer just now
    cuts: dict[str, int] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)  # the last offset of each partition
    some: bool = False  # any record came, of whichever store

    def again(self) -> None:
        """Begin anew, at any store."""
        self.store, self.table, self.part, self.offset, self.asked = "", 0, 0, -1, False
        self.wait_until = math.inf
        self.cuts, self.came = {}, {}


class LastTopics:
    """The topics of a consumer that begins with the newest record of each key.

    A topic is asked of one store, page by page, and delivered as it comes; nothing is gathered here. After the last
    page each partition is read on from its cut, so no record is missed between, and none comes twice.

    Pages are in the order of partitions and offsets. So if the store is lost midway, a partition of which something
    came is read on behind that, and the others are asked of another store. A silent store is waited for a while. Where
    no store can tell, everything is read from the beginning, and that is reported unless the topic is new.

    Attributes:
        begins: Partitions to read from an offset on; the caller takes them out.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._open: dict[str, _LastTopic] = {}  # each is asked for, or in one of these two:
        self._ready: list[tuple[int, str]] = []  # a heap
        self._later: Deadlines[str] = Deadlines()
        self._number = 0
        self._done: set[str] = set()
        self.begins: list[tuple[Key, int]] = []
        self.reports: list[Report] = []  # likewise
        self.over: list[Key] = []  # likewise partitions that are to be read from their beginning, unless they go on

    def begun(self, topic: str) -> bool:
        return topic in self._done

    def want(self, key: Key, now: float) -> None:
        """Note a partition of a topic whose newest records have not come yet."""
        found = self._open.get(key[0])
        if found is None:
            self._number += 1
            found = self._open[key[0]] = _LastTopic(key[0], self._number, now)
            self._later.set(found.name, now)
        found.partitions[key] = None

    def leave(self, wanted: Callable[[str], bool]) -> None:
        """Stop asking for topics that are no longer wanted; partitions of which a record came go on behind that."""
        for name in [each for each in self._open if not wanted(each)]:
            found = self._open.pop(name)
            self._later.clear(name)
            self.begins += [((name, partition), offset + 1) for partition, offset in found.came.items()]
        self._ready = [each for each in self._ready if each[1] in self._open]
        heapify(self._ready)

    def next_timeout(self) -> float:
        """Return when to look; infinity while nothing more may be asked."""
        if self._sources.busy:
            return math.inf
        return 0.0 if self._ready else self._later.next

    def look(self, now: float) -> list[Effect]:
        actions: list[Effect] = []
        for name in self._later.due(now):
            heappush(self._ready, (self._open[name].number, name))
        while self._ready and not self._sources.busy:
            topic = self._open[heappop(self._ready)[1]]
            store = self._store(topic, now)
            if store is not None:
                topic.store, topic.asked, topic.wait_until = store.address, True, math.inf
                request = LastRequest(encode_topic(topic.name), topic.table, topic.part, topic.offset)
                actions.append(self._sources.last(store, request, now))
                continue
            self._later.set(topic.name, now + LOOK_S)
            if topic.table:
                self._again(topic, now)
            elif now >= topic.since + ALONE_S and self._sources.all_listed(now):
                actions += self._nobody(topic, now)
        return actions

    def unanswered(self, topic: str, now: float) -> list[Effect]:
        """Ask another store: one did not answer, or is gone."""
        found = self._open.get(topic)
        return [] if found is None or not found.asked else self._refused(found, SILENT, now)

    def answered(
        self, store: KnownStore, topic: str, answer: Answer, now: float
    ) -> tuple[list[Effect], LastAnswer | None]:
        """Take a store's answer; return what to report, and the page if there is one, of which ``records`` follow."""
        found = self._open.get(topic)
        if found is None or found.store != store.address:
            return [], None
        found.asked = False
        if isinstance(answer, ErrorAnswer):
            return self._refused(found, answer.text, now), None
        if not isinstance(answer, LastAnswer) or decode_topic(answer.topic) != topic:
            store.fail(now)
            return self._refused(found, "a store answered another question", now), None
        if not answer.table:
            self._again(found, now)
            self._later.set(topic, now + (BUSY_S if answer.busy else 0.0))
            return [], None
        if not found.table:
            found.table = answer.table
            found.cuts = {decode_topic(name): cut for name, cut in answer.cuts}
        return [], answer

    def records(
        self, topic: str, answer: LastAnswer, raws: Sequence[bytes | memoryview], now: float
    ) -> Iterator[tuple[Key, Batch]]:
        """Iterate over the records of a page, without those that come again behind its cut. Raises ProtocolError."""
        found = self._open[topic]
        for name, batch in zip(answer.partitions, [Batch.parse(raw) for raw in raws], strict=False):
            partition = decode_topic(name)
            if batch.count == 1 and found.came.get(partition, -1) < batch.base < found.cuts.get(partition, 0):
                found.came[partition] = batch.base
                found.some = True
                yield (topic, partition), batch
        found.part, found.offset, found.refused = answer.part, answer.offset, 0
        self._later.set(topic, now)
        if not answer.more:
            if not found.some and any(found.cuts.values()):
                self.reports.append(Report(NoLastValues(topic)))
            self._finish(found)

    def malformed(self, topic: str, now: float) -> None:
        """A page is malformed: its store is not asked again for a while."""
        self._again(self._open[topic], now)

    def _store(self, topic: _LastTopic, now: float) -> KnownStore | None:
        """Return the store that was asked before, or else the one that has most of the topic."""
        usable = self._sources.usable(now)
        if topic.table:
            return next((each for each in usable if each.address == topic.store), None)
        if not self._sources.all_listed(now) and now < topic.since + ALONE_S:
            return None
        having = []
        for each in usable:
            if size := each.sizes.get(topic.name):
                having.append((-size, each.address, each))
        having.sort(key=lambda found: found[:2])
        return having[topic.refused % len(having)][2] if having else None

    def _nobody(self, topic: _LastTopic, now: float) -> list[Effect]:
        """Give up: no store that answers has it. So it is new, unless a store has it that is silent or left midway."""
        stores = self._sources.stores.values()
        missed = topic.refused > 0 or topic.wait_until < math.inf
        if all(_lists(each, topic) and not each.sizes.get(topic.name) for each in stores) and (stores or not missed):
            self._finish(topic)
        elif topic.wait_until == math.inf:
            topic.wait_until = now + ANSWER_S
        elif now >= topic.wait_until:
            return self._refused(topic, SILENT, now)
        return []

    def _again(self, found: _LastTopic, now: float) -> None:
        """Ask another store, or this one anew, for partitions of which no record came."""
        self.begins += [((found.name, partition), offset + 1) for partition, offset in found.came.items()]
        found.again()
        self._later.set(found.name, now + RETRY_S)

    def _refused(self, found: _LastTopic, reason: str, now: float) -> list[Effect]:
        found.refused += 1
        self._again(found, now)
        if found.refused < REFUSED_MAX:
            return []
        self._finish(found)
        return [Report(LastValuesRefused(found.name, reason))]

    def _finish(self, found: _LastTopic) -> None:
        """Note that every record that can be had has come."""
        del self._open[found.name]
        self._later.clear(found.name)
        self._done.add(found.name)
        self.begins += [((found.name, partition), cut) for partition, cut in found.cuts.items()]
        self.over += found.partitions


def _lists(store: KnownStore, topic: _LastTopic) -> bool:
    """Return True if a store has listed its partitions of a topic: it may be wanted since a moment ago."""
    return any(each.matches(topic.name) for each in store.synced)
