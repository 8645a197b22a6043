"""The stores that a consumer knows, what each of them has, and what is asked of them.

Partitions are read from whichever store has the wanted offset; a store that does not answer in time is passed over
for a while. Once a second every store is asked what is new there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from chappe.data.topic import Filter, encode_topic
from chappe.defaults import POLL_HEADS_S
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action, Ask
from chappe.log.queries import HeadsRequest, ReadRequest, Request, SeekRequest

ANSWER_S: Final = 2.0  # a store that takes longer is passed over for as long again

Key = tuple[str, str]


@dataclass(slots=True)
class Source:
    """One store."""

    address: str
    endpoint: str
    since: dict[Filter, int] = field(default_factory=dict)  # version to ask from
    synced: dict[Filter, float] = field(default_factory=dict)  # whose partitions are all known, as was asked when
    heads: dict[Key, tuple[int, int]] = field(default_factory=dict)  # first, next
    overfull: bool = False  # it listed more than is taken
    poll_at: float = 0.0
    polling: int = 0
    down_until: float = -math.inf

    def has(self, key: Key, offset: int) -> bool:
        """Whether it listed the offset."""
        first, next_ = self.heads.get(key, (0, 0))
        return first <= offset < next_

    def fail(self, now: float) -> None:
        """It did not answer, or not what was asked."""
        self.down_until = now + ANSWER_S


@dataclass(frozen=True, slots=True)
class Asked:
    """A request under way: of a partition (``key``) or for news (``filter``)."""

    store: str
    at: float
    key: Key | None = None  # of READ and SEEK
    filter: Filter | None = None  # of HEADS
    names: bool = False  # of HEADS: for the names of all topics
    offset: int = 0  # of READ

    @property
    def deadline(self) -> float:
        """When the store is late."""
        return self.at + ANSWER_S


class Sources:
    """All stores, and requests under way.

    Args:
        ever: Whether any store was heard of in an earlier life.
        limits: How many stores, and how much is asked of one.
    """

    def __init__(self, *, ever: bool, limits: LogLimits = LOG_LIMITS) -> None:
        self._limits = limits
        self.stores: dict[str, Source] = {}
        self.asked: dict[int, Asked] = {}
        self.ever = ever  # whether any store was ever heard of
        self.gone_at = -math.inf  # when a store left last
        self.met_at = math.inf  # when the first of those that are known was found
        self.reads = 0  # READs and SEEKs under way, of all partitions
        self._reading: set[Key] = set()  # their partitions: never more than one for each
        self._last_id = 0

    # -- who is there -----------------------------------------------------------------------------------

    def found(self, address: str, endpoint: str, now: float) -> bool:
        """A store said where it answers; returns whether that is news."""
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
        self.stores[address] = Source(address, endpoint, poll_at=now)
        return True

    def gone(self, address: str, now: float) -> bool:
        """A member left; returns whether it was a store. What it was asked is under way no longer."""
        if self.stores.pop(address, None) is None:
            return False
        self.gone_at = now
        for request_id, asked in list(self.asked.items()):
            if asked.store == address:
                self._forget(request_id)
        return True

    def synced(self, filters: Iterable[Filter]) -> bool:
        """Whether at least one store is known and all known ones have listed their partitions."""
        return bool(self.stores) and self.listed(filters, -math.inf)

    def listed(self, filters: Iterable[Filter], since: float) -> bool:
        """Whether all known stores have listed their partitions, and were asked for that at ``since`` or later."""
        return all(
            (at := store.synced.get(each)) is not None and at >= since
            for store in self.stores.values()
            for each in filters
        )

    # -- what they have ---------------------------------------------------------------------------------

    def listed_by_any(self, wanted: Filter) -> bool:
        """Whether any store has listed what it has of a filter."""
        return any(wanted in each.synced for each in self.stores.values())

    def usable(self, key: Key, now: float) -> list[Source]:
        """Those that know a partition and answered lately."""
        return [each for each in self.stores.values() if now >= each.down_until and key in each.heads]

    def lists(self, key: Key) -> bool:
        """Whether any store knows a partition."""
        return any(key in each.heads for each in self.stores.values())

    def ranges(self, key: Key) -> list[tuple[int, int]]:
        """First and next of a partition at each store that knows it, those that are slow just now included."""
        return [each.heads[key] for each in self.stores.values() if key in each.heads]

    def anybody_has(self, key: Key, offset: int) -> bool:
        """Whether any store listed the offset."""
        return any(each.has(key, offset) for each in self.stores.values())

    # -- asking -----------------------------------------------------------------------------------------

    def reading(self, key: Key) -> bool:
        """Whether a READ or SEEK of a partition is under way."""
        return key in self._reading

    def read(self, store: Source, key: Key, offset: int, now: float) -> Action:
        """Ask for what comes from ``offset`` on."""
        request = ReadRequest(encode_topic(key[0]), encode_topic(key[1]), offset, self._limits.read_bytes)
        return self._ask(store, request, Asked(store.address, now, key, offset=offset))

    def seek(self, store: Source, key: Key, timestamp: int, now: float) -> Action:
        """Ask which offset belongs to a time."""
        request = SeekRequest(encode_topic(key[0]), encode_topic(key[1]), timestamp)
        return self._ask(store, request, Asked(store.address, now, key))

    def polls(self, filters: Iterable[Filter], now: float) -> list[Action]:
        """Ask for news whom it is time to ask."""
        actions: list[Action] = []
        for store in self.stores.values():
            if now >= store.poll_at and not store.polling:
                store.poll_at = now + POLL_HEADS_S
                actions += [self.news(store, each, now) for each in filters]
        return actions

    def news(self, store: Source, wanted: Filter, now: float) -> Action:
        """Ask which partitions changed since the last answer."""
        request = HeadsRequest(encode_topic(wanted.name), store.since.get(wanted, 0))
        return self._ask(store, request, Asked(store.address, now, filter=wanted))

    def names(self, now: float) -> list[Action]:
        """Ask one store which topics there are; the first page will do."""
        store = next((each for each in self.stores.values() if now >= each.down_until), None)
        asked = HeadsRequest(b"")
        return [] if store is None else [self._ask(store, asked, Asked(store.address, now + ANSWER_S, names=True))]

    def poll_soon(self, now: float) -> None:
        """Ask everybody for news the next time."""
        for store in self.stores.values():
            store.poll_at = min(store.poll_at, now)

    def answered(self, request_id: int) -> tuple[Asked, Source] | None:
        """What was asked, and of whom; None if nobody waits for the answer any more."""
        asked = self._forget(request_id)
        store = None if asked is None else self.stores.get(asked.store)
        return None if asked is None or store is None else (asked, store)

    def pass_over_late(self, now: float) -> None:
        """Requests nobody answered in time are under way no longer; the stores asked are passed over for a while."""
        for request_id, asked in list(self.asked.items()):
            if now >= asked.deadline:
                self._forget(request_id)
                store = self.stores.get(asked.store)
                if store is not None:
                    store.fail(now)

    def next_timeout(self) -> float:
        """When a poll or a deadline is due."""
        due = min((store.poll_at for store in self.stores.values() if not store.polling), default=math.inf)
        return min(due, min((asked.deadline for asked in self.asked.values()), default=math.inf))

    def _ask(self, store: Source, request: Request, asked: Asked) -> Action:
        self._last_id += 1
        self.asked[self._last_id] = asked
        if asked.key is None:
            store.polling += 1
        else:
            self.reads += 1
            self._reading.add(asked.key)
        return Ask(store.endpoint, self._last_id, request)

    def _forget(self, request_id: int) -> Asked | None:
        asked = self.asked.pop(request_id, None)
        if asked is None:
            return None
        if asked.key is None:
            if asked.store in self.stores:
                self.stores[asked.store].polling -= 1
            return asked
        self.reads -= 1
        self._reading.discard(asked.key)
        return asked
