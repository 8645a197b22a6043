"""The stores that a member knows: what each of them has, and what is asked of them.

Partitions are read from whichever store has the wanted offset; a store that does not answer in time, or not what it was
asked, is passed over for a while. Once a second every store is asked what is new there, unless somebody else does that
for many and tells us.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from chappe.core import Ask, Effect
from chappe.data.topic import Filter, decode_topic, encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import POLL_HEADS_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.queries import CatalogueRequest, HeadsRequest, LastRequest, ReadRequest, Request, SeekRequest
from chappe.log.storage import Hole

ANSWER_S: Final = 2.0  # a store that takes longer is passed over for as long again

Key = tuple[str, str]


def _first(each: tuple[int, int]) -> int:
    return each[0]


def _end(each: tuple[int, int]) -> int:
    return each[1]


class RangeSet:
    """Ranges ``first`` <= n < ``end``: in order, never empty, and apart from each other."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def lowest(self) -> tuple[int, int]:
        """The first of the ranges; there is one."""
        return self._ranges[0]

    @property
    def end(self) -> int:
        """The offset after the last one; 0 if there is none."""
        return self._ranges[-1][1] if self._ranges else 0

    def add(self, first: int, end: int) -> None:
        if first >= end:
            return
        at = bisect_left(self._ranges, first, key=_end)
        stop = bisect_right(self._ranges, end, lo=at, key=_first)
        if at < stop:
            first, end = min(first, self._ranges[at][0]), max(end, self._ranges[stop - 1][1])
        self._ranges[at:stop] = [(first, end)]

    def remove(self, first: int, end: int) -> None:
        at = bisect_right(self._ranges, first, key=_end)
        stop = bisect_left(self._ranges, end, lo=at, key=_first)
        if first < end and at < stop:
            rest = ((self._ranges[at][0], first), (end, self._ranges[stop - 1][1]))
            self._ranges[at:stop] = [(low, high) for low, high in rest if low < high]

    def end_of(self, offset: int) -> int:
        """The end of the range that an offset lies in; the offset itself if it lies in none."""
        at = bisect_right(self._ranges, offset, key=_end)
        return self._ranges[at][1] if at < len(self._ranges) and self._ranges[at][0] <= offset else offset


@dataclass(slots=True)
class KnownStore:
    address: str
    endpoint: str
    store_id: str = ""  # which acknowledgements carry
    since: dict[Filter, int] = field(default_factory=dict)  # version to ask from
    synced: dict[Filter, float] = field(default_factory=dict)  # whose partitions are all known, as was asked when
    heads: dict[Key, tuple[int, int]] = field(default_factory=dict)  # first, next; ``note`` and ``forget`` change it
    on_disk: dict[Key, RangeSet] = field(default_factory=dict)  # without holes, where stores are counted
    sizes: dict[str, int] = field(default_factory=dict)  # how many records of each topic these are
    overfull: bool = False  # it listed more than is taken
    polling: int = 0  # questions for news under way
    polled_at: float = -math.inf  # when it was asked last
    again: bool = False  # somebody wanted to know what is new after it was asked
    poll_at: float = 0.0  # when it is to be asked again, once these are answered
    down_until: float = -math.inf
    catalogue: int = -1  # the version of its catalogue up to which we have it
    ahead: bool = False  # some of that is from the future, and asked for again

    def has(self, key: Key, offset: int) -> bool:
        first, next_ = self.heads.get(key, (0, 0))
        return first <= offset < next_

    def note(self, key: Key, first: int, next_: int) -> None:
        on_disk = self.on_disk.get(key)
        self.forget(key)
        self.heads[key] = (first, next_)
        if on_disk is not None:
            self.on_disk[key] = on_disk
        self.sizes[key[0]] = self.sizes.get(key[0], 0) + next_ - first

    def forget(self, key: Key) -> None:
        known = self.heads.pop(key, None)
        self.on_disk.pop(key, None)
        if known is None:
            return
        left = self.sizes.pop(key[0], 0) - (known[1] - known[0])
        if left:
            self.sizes[key[0]] = left

    def fail(self, now: float) -> None:
        """Note that it did not answer, or not as asked."""
        self.down_until = now + ANSWER_S


@dataclass(frozen=True, slots=True)
class Question:
    """A request under way: of a partition (``key``), for news (``filter``), for names of topics, or the catalogue."""

    store: str
    at: float
    key: Key | None = None  # of READ and SEEK
    offset: int = -1  # of READ
    hole: Hole | None = None  # of READ: damage on our own disk
    last: bool = False  # of the newest records of a topic; ``key`` names no partition
    filter: Filter | None = None  # of HEADS


class Sources:
    """All stores, and at most ``reads_max`` READs and SEEKs. ``ever``: a store was heard of in an earlier life."""

    def __init__(self, reads_max: int, *, ever: bool = False, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self._reads_max = reads_max
        self.stores: dict[str, KnownStore] = {}
        self.asked: dict[int, Question] = {}
        self.ever = ever  # whether any store was ever heard of
        self.gone_at = -math.inf  # when a store left last
        self.met_at = math.inf  # when the first of those that are known was found
        self.reads = 0  # READs and SEEKs under way, of all partitions
        self.told = False  # somebody else finds out whether there is news, and has ``poll_soon`` called
        self.rested: dict[str, int] = {}  # stores that are not asked until then, and the version that we know
        self._polls: Deadlines[str] = Deadlines()  # by address: who is to be asked for news
        self._late: Deadlines[int] = Deadlines()  # by request: who has not answered by then
        self._last_id = 0
        self.asker = ""  # of a store that asks: its address, and the version of its catalogue
        self.asker_catalogue = -1

    def found(self, address: str, endpoint: str, now: float, store_id: str = "") -> bool:
        """Note where a store answers; return whether that is news."""
        store = self.stores.get(address)
        if store is not None and store.endpoint == endpoint:
            return False
        self.ever = True
        if store is None and len(self.stores) >= self._limits.stores_max:
            silent = next((each for each, known in self.stores.items() if not known.since), None)
            if silent is None:
                return False
            self.gone(silent, now)
        self.met_at = now if not self.stores else min(self.met_at, now)
        asked = 0 if store is None else store.polling  # at its endpoint before this one
        self.stores[address] = KnownStore(address, endpoint, store_id, polling=asked, poll_at=now)
        self._polls.set(address, now)
        return True

    def gone(self, address: str, now: float) -> list[Question] | None:
        """Forget a member that left; return None if it was no store, or else the questions it will not answer."""
        if self.stores.pop(address, None) is None:
            return None
        self.gone_at = now
        self._polls.clear(address)
        return [self._end(i) for i, question in list(self.asked.items()) if question.store == address]

    def synced(self, filters: Iterable[Filter]) -> bool:
        """Return True if at least one store is known and all known ones have listed their partitions."""
        return bool(self.stores) and self.listed(filters, -math.inf)

    def listed(self, filters: Iterable[Filter], since: float) -> bool:
        """Return True if all known stores have listed their partitions, asked at ``since`` or later."""
        return all(
            (at := store.synced.get(each)) is not None and at >= since
            for store in self.stores.values()
            for each in filters
        )

    def all_listed(self, now: float, but: KnownStore | None = None) -> bool:
        """Return True if all that answered lately have listed their partitions; ``but`` is just doing so."""
        return all(each.synced for each in self.usable(now) if each is not but)

    def listed_by_any(self, wanted: Filter) -> bool:
        """Return True if any store has listed its partitions of a filter."""
        return any(wanted in each.synced for each in self.stores.values())

    def usable(self, now: float) -> list[KnownStore]:
        return [each for each in self.stores.values() if now >= each.down_until]

    def having(self, key: Key, offset: int, now: float) -> list[KnownStore]:
        """Return the stores that listed the offset and answered lately."""
        return [each for each in self.stores.values() if now >= each.down_until and each.has(key, offset)]

    def confirmed(self, key: Key, offset: int, count: int) -> float:
        """Return where a partition ends on ``count`` stores' disks, from ``offset`` on; ``offset`` if fewer have it.

        It is infinity if no store has the offset. A store counts once, under however many addresses it is known. It
        counts for what lies before its first offset, too: it has let go of that, or will never have it. Where all that
        are counted have let go of it or damaged it, nobody has it.
        """
        ends: dict[str, int] = {}
        damaged: set[str] = set()
        held = unsure = False
        for each in self.stores.values():
            on_disk = each.on_disk.get(key)
            end = offset if on_disk is None else on_disk.end_of(offset)
            if end > offset:
                ends[each.store_id] = max(end, ends.get(each.store_id, 0))
                held = held or each.has(key, offset)
            elif on_disk is not None and offset < on_disk.end:
                damaged.add(each.store_id)
            elif each.has(key, offset):
                unsure = True  # it has answered with more than it has said to be whole
        if len(ends) >= count:
            return sorted(ends.values(), reverse=True)[count - 1]
        too_few = bool(ends) and len(ends.keys() | damaged) < count
        return offset if held or unsure or too_few else math.inf

    def lists(self, key: Key) -> bool:
        return any(key in each.heads for each in self.stores.values())

    def ranges(self, key: Key) -> list[tuple[int, int]]:
        """Return first and next of a partition at each store that knows it, including those that are slow just now."""
        return [each.heads[key] for each in self.stores.values() if key in each.heads]

    def drop_reached(self, key: Key, next_: int) -> None:
        """Forget a partition at stores that have nothing behind ``next_``."""
        for each in self.stores.values():
            if key in each.heads and each.heads[key][1] <= next_:
                each.forget(key)

    @property
    def busy(self) -> bool:
        """True if so many READs are under way that no further one should be made."""
        return self.reads >= self._reads_max

    def read(self, store: KnownStore, key: Key, offset: int, now: float, hole: Hole | None = None) -> Effect:
        """Ask for records from ``offset`` on; ``hole``: to mend that damage."""
        request = ReadRequest(encode_topic(key[0]), encode_topic(key[1]), offset, self._limits.read_bytes)
        return self._ask(store, request, Question(store.address, now, key, offset, hole))

    def seek(self, store: KnownStore, key: Key, timestamp: int, now: float) -> Effect:
        """Ask which offset belongs to a time."""
        request = SeekRequest(encode_topic(key[0]), encode_topic(key[1]), timestamp)
        return self._ask(store, request, Question(store.address, now, key))

    def last(self, store: KnownStore, request: LastRequest, now: float) -> Effect:
        key = (decode_topic(request.topic), "")
        return self._ask(store, request, Question(store.address, now, key, last=True))

    def polls(self, filters: Iterable[Filter], now: float) -> list[Effect]:
        actions: list[Effect] = []
        for address in self._polls.due(now):
            store = self.stores[address]
            store.polled_at, store.poll_at, store.again = now, now + POLL_HEADS_S, False
            asked = [self.news(store, each, now) for each in filters]
            if not asked:
                self._polls.set(address, store.poll_at)
            actions += asked
        return actions

    def news(self, store: KnownStore, wanted: Filter, now: float) -> Effect:
        """Ask which partitions changed since the last answer."""
        since = store.since.get(wanted, 0)
        name = encode_topic(wanted.name)
        request = HeadsRequest(name, since, store=self.asker, catalogue=self.asker_catalogue)
        return self._ask(store, request, Question(store.address, now, filter=wanted))

    def catalogue(self, store: KnownStore, now: float) -> Effect:
        """Ask which topics changed in its catalogue since the last answer; it is asked for news after that."""
        return self._ask(store, CatalogueRequest(max(0, store.catalogue)), Question(store.address, now))

    def names(self, now: float) -> list[Effect]:
        """Ask one store which topics there are; the first page will do."""
        return [self._ask(each, HeadsRequest(b""), Question(each.address, now)) for each in self.usable(now)[:1]]

    def poll_soon(self, now: float, address: str | None = None) -> None:
        """Ask one store, or all, for news the next time."""
        for store in self.stores.values() if address is None else (self.stores[address],):
            store.poll_at, store.again = min(store.poll_at, now), True
            if not store.polling:
                self._polls.set(store.address, store.poll_at)

    def rest(self, store: KnownStore, filters: Iterable[Filter]) -> None:
        """Leave a store that has listed all partitions of the filters to the node that reports its news."""
        wanted = list(filters)
        if not self.told or store.polling or store.again:
            return
        if all(store.synced.get(each, -math.inf) >= store.polled_at for each in wanted):
            self._polls.clear(store.address)
            if wanted:
                self.rested[store.address] = min(store.since[each] for each in wanted)

    def answered(self, request_id: int) -> tuple[Question, KnownStore] | None:
        """Return a question and the store that was asked; None if nobody waits for the answer any more."""
        if request_id not in self.asked:
            return None
        question = self._end(request_id)
        return question, self.stores[question.store]

    def leave(self, wanted: Filter, wants: Callable[[str], bool]) -> None:
        """Forget the listed partitions of a filter, and ignore answers to questions for it.

        A later subscription lists everything again: only what changes is listed otherwise.
        """
        for store in self.stores.values():
            store.since.pop(wanted, None)
            store.synced.pop(wanted, None)
            for key in [each for each in store.heads if not wants(each[0])]:
                store.forget(key)
        for request_id, question in list(self.asked.items()):
            if question.filter == wanted or (question.key is not None and not wants(question.key[0])):
                self._end(request_id)

    def leave_partitions(self, keys: Container[Key]) -> None:
        """Forget what was listed of partitions, and ignore answers to what was asked for them."""
        for store in self.stores.values():
            for key in [each for each in store.heads if each in keys]:
                store.forget(key)
        for request_id, question in list(self.asked.items()):
            if question.key in keys and not question.last:
                self._end(request_id)

    def list_again(self, now: float) -> None:
        """Have every store list all that it has once more."""
        for request_id, question in list(self.asked.items()):
            if question.filter is not None:
                self._end(request_id)
        for store in self.stores.values():
            store.since.clear()
            store.synced.clear()
        self.poll_soon(now)

    def overdue(self, now: float) -> list[Question]:
        """End and return questions that nobody answered in time; the stores asked are passed over for a while."""
        late = [self._end(request_id) for request_id in self._late.due(now)]
        for question in late:
            self.stores[question.store].fail(now)
        return late

    def next_timeout(self) -> float:
        return min(self._polls.next, self._late.next)

    def _ask(self, store: KnownStore, request: Request, question: Question) -> Effect:
        self._last_id += 1
        self.asked[self._last_id] = question
        self._late.set(self._last_id, question.at + ANSWER_S)
        if question.key is None:
            store.polling += 1
            self._polls.clear(store.address)
        else:
            self.reads += 1
        return Ask(store.endpoint, self._last_id, request)

    def _end(self, request_id: int) -> Question:
        question = self.asked.pop(request_id)
        self._late.clear(request_id)
        if question.key is not None:
            self.reads -= 1
            return question
        store = self.stores.get(question.store)
        if store is not None:
            store.polling -= 1
            if not store.polling:
                self._polls.set(store.address, store.poll_at)
        return question


FIRST_S: Final = 0.5  # after the member has gone: pending input is read first
TIMES: Final = 3  # that a question is asked


class Inquiries:
    """Schedules repeated questions to original stores for the ends of partitions, after a member has gone.

    A store of chappe is asked for news once a second. An original store lists all that it has and remembers no
    question, so it is asked only for a reason, at most once in ``pause_s``. The member that has gone may be a producer
    that left once a store had acknowledged its last records; if some of them were lost on the way here, nothing
    announces them any more. Answers get lost too, so the question is repeated.

    Source: chappe's own; a consumer of the original asks when it subscribes, and never again.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._left = 0
        self._asked_at = -math.inf
        self._ask_at = math.inf

    def want(self, now: float) -> None:
        self._left = TIMES
        self._ask_at = min(self._ask_at, max(now + FIRST_S, self._asked_at + self._pause_s))

    def due(self, now: float) -> bool:
        """True if the question is due; it then counts as asked."""
        if now < self._ask_at:
            return False
        self._left -= 1
        self._asked_at = now
        self._ask_at = now + self._pause_s if self._left else math.inf
        return True

    def next_timeout(self) -> float:
        return self._ask_at
