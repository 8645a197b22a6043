"""A consumer that begins with the newest record of each key: which topics it asked stores for, and how far that came.

A topic is asked of one store, page by page, and delivered as it comes; nothing is gathered here. With the first page
the store says how far it had read each partition (the cuts), and there the partition goes on as ever once all pages
came: so nothing is missed between, and nothing comes twice.

Pages are in the order of partitions and offsets. So if the store is lost in the midst, a partition of which something
came goes on as ever behind that, and the others are asked of another store. One that is silent is waited for a while.
Where no store can tell, everything is read from the beginning, which is reported; so it is, without a word, where a
topic is new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from chappe.core import Effect, Report
from chappe.data.topic import decode_topic, encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import RETRY_S
from chappe.log.batch import Batch
from chappe.log.events import LastValuesRefused, NoLastValues
from chappe.log.queries import Answer, ErrorAnswer, LastAnswer, LastRequest
from chappe.log.sources import ANSWER_S, Key, KnownStore, Sources

LOOK_S: Final = 0.05  # how often it is looked whether stores have listed what they have
BUSY_S: Final = 0.1  # a store that makes its table is asked again
REFUSED_MAX: Final = 3  # refusals, questions without an answer, or waits for one, until everything is read instead
SILENT: Final = "no store answers for them"
ALONE_S: Final = 1.3  # stores are found by then


@dataclass(slots=True)
class _LastTopic:
    """One topic whose newest records are still to come."""

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
        """Begin anew, at whichever store."""
        self.store, self.table, self.part, self.offset, self.asked = "", 0, 0, -1, False
        self.wait_until = math.inf
        self.cuts, self.came = {}, {}


class LastTopics:
    """All topics of one consumer. ``begins`` has partitions that go on as ever from some offset on; who calls takes
    them out."""

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
        """Whether the newest records of a topic came: what is new there from now on is read from its beginning."""
        return topic in self._done

    def want(self, key: Key, now: float) -> None:
        """A partition was heard of, of a topic whose newest records have not come yet."""
        found = self._open.get(key[0])
        if found is None:
            self._number += 1
            found = self._open[key[0]] = _LastTopic(key[0], self._number, now)
            self._later.set(found.name, now)
        found.partitions[key] = None

    def leave(self, wanted: Callable[[str], bool]) -> None:
        """Stop asking for topics that are no longer wanted; partitions of which something came go on behind that."""
        for name in [each for each in self._open if not wanted(each)]:
            found = self._open.pop(name)
            self._later.clear(name)
            self.begins += [((name, partition), offset + 1) for partition, offset in found.came.items()]
        self._ready = [each for each in self._ready if each[1] in self._open]
        heapify(self._ready)

    def next_timeout(self) -> float:
        """When to look; not while nothing more may be asked."""
        if self._sources.busy:
            return math.inf
        return 0.0 if self._ready else self._later.next

    def look(self, now: float) -> list[Effect]:
        """Ask for what is not under way."""
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
        """A store did not answer, or is gone."""
        found = self._open.get(topic)
        return [] if found is None or not found.asked else self._refused(found, SILENT, now)

    def answered(
        self, store: KnownStore, topic: str, answer: Answer, now: float
    ) -> tuple[list[Effect], LastAnswer | None]:
        """A store answered; returns what to report, and the page if there is one, of which ``records`` follow."""
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
        """What a page has, but for what comes again from its cut on. Raises ProtocolError; else goes on behind it."""
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
        """The one that was asked before, or else the one that has most of the topic."""
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
        """No store that answers has it. So it is new, unless one has it that is silent or has left in the midst."""
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
        """Ask another store, or this one anew, for partitions of which nothing came."""
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
        """All came that is to be had."""
        del self._open[found.name]
        self._later.clear(found.name)
        self._done.add(found.name)
        self.begins += [((found.name, partition), cut) for partition, cut in found.cuts.items()]
        self.over += found.partitions


def _lists(store: KnownStore, topic: _LastTopic) -> bool:
    """Whether a store has listed what it has of a topic: it may be wanted since a moment ago."""
    return any(each.matches(topic.name) for each in store.synced)
