"""Records of ordered topics on their way from a member of a chain into its store, and to who listens.

A chain's member is a store like any other: what it has is read, healed and caught up as everywhere. ``Keeping`` lies
between its two halves, which may run on threads of their own. The machine of the chain puts in what is committed
(``machine.Keeper``); the chain looks how far that is on disk (``replication.chain.replica``). The store, in
``OrderedRole``, takes it: the tail publishes it, and every member writes it.

A batch is held here until it is on disk, as a disk may refuse it, and until what comes before it is there: a member
that joins has the machine's state first, and reads the records from the stores of the others, as any store does. If
too much is held, a member confirms nothing more, and one that joins takes nothing more from the chain; while that one
reads the rest from others it lets go of what is held, and reads that from them as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from chappe.core import Effect
from chappe.data.topic import encode_topic
from chappe.log.batch import Batch
from chappe.log.forwarder import published
from chappe.log.messages import BatchMessage, Head, Message, RecordMessage
from chappe.log.ordered.machine import PartitionEnd, Placed, is_ordered
from chappe.log.queries import Answer, HeadsRequest, Request
from chappe.log.sources import Key
from chappe.log.storage import WriteRecords
from chappe.log.store import LogStore, StoreJob, StoreOutcome

LOOK_S: Final = 0.02  # so often it is seen whether what was handed to the store is on disk
OTHERS_S: Final = 10.0  # who joins hears by then of all stores that are there, and what each has
PATIENCE_S: Final = 0.5  # who asks where partitions end waits so long at most for what is confirmed and not on disk
BATCH_BYTES: Final = 500  # a batch takes about so much memory beside its bytes
ASKING_MAX: Final = 1_000  # who waits for that; a further one is told what is on disk


@dataclass(frozen=True, slots=True)
class _Begin:
    ends: tuple[PartitionEnd, ...]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A batch; ``shown``: it is published."""

    placed: Placed
    shown: bool


_Item: TypeAlias = _Begin | _Shown


@dataclass(frozen=True, slots=True)
class _HeadsQuestion:
    """A question where partitions end: answered once everything up to a mark is on disk, or at ``until``."""

    mark: int
    until: float
    client: bytes
    request_id: bytes
    request: HeadsRequest


@dataclass(slots=True)
class _Way:
    waiting: deque[Batch] = field(default_factory=deque)  # the store has not been given it
    given: deque[Batch] = field(default_factory=deque)  # it has, and has not written it yet


class Keeping:
    """Batches on their way to the store; beyond ``bytes_max`` the member confirms nothing more for now."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # -- of the machine's half
        self._begins_to_live = True  # what is applied now was committed by a former life
        self._fresh: list[Placed] = []  # applied, and not handed over yet
        self._number = 0  # of the batch that was applied last
        self._came = 0  # bytes of all batches that were ever applied ...
        # -- in between: one half puts in, the other takes out
        self._queue: deque[_Item] = deque()
        # -- of the store's half
        self._went = 0  # ... and of those that are not held any more
        self._order: deque[tuple[int, Key | None, int]] = deque()  # numbers, partitions and ends; None: of all goals
        self._given = 0  # the number of the last of these
        self._ways: dict[Key, _Way] = {}
        self._goals: dict[Key, int] = {}  # where partitions have to end, of the state that this life began with
        self._goals_at = -math.inf  # since then
        self._begun = self._begins = 0  # states that were put in, and that were taken out
        self.settled = 0

    # -- as the machine's keeper, and for the chain -------------------------------------------------------------

    def place(self, placed: Placed) -> None:
        self._number += 1
        self._came += _size(placed.batch)
        if self._begins_to_live:
            self._queue.append(_Shown(placed, False))
        else:
            self._fresh.append(placed)

    def begin(self, ends: Sequence[PartitionEnd]) -> None:
        self.hand_over(shown=False)
        self._begun += 1  # first: the other half may take it at once
        self._queue.append(_Begin(tuple(ends)))

    def live(self) -> None:
        """From now on ``hand_over`` follows what is applied."""
        self._begins_to_live = False

    def hand_over(self, *, shown: bool) -> bool:
        """Give the applied batches to the store; ``shown``: it publishes them. Returns whether there were any."""
        fresh, self._fresh = self._fresh, []
        self._queue.extend(_Shown(each, shown) for each in fresh)
        return bool(self._queue)

    def mark(self) -> int:
        return self._number

    @property
    def held_bytes(self) -> int:
        """The bytes of batches that are not on disk yet, and their overhead."""
        return self._came - self._went

    @property
    def full(self) -> bool:
        return self.held_bytes > self._bytes_max

    @property
    def complete(self) -> bool:
        return self._begun == self._begins and not self._goals

    # -- for the store ------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._order or self._goals)

    @property
    def news(self) -> bool:
        return bool(self._queue)

    def go_on(self, store: LogStore, now: float) -> list[Effect]:
        """Take batches that were handed over, and give the store what it can take."""
        actions: list[Effect] = []
        fresh: dict[Key, None] = {}
        while self._queue:
            match self._queue.popleft():
                case _Begin(ends):
                    self._set_goals(store, ends, now)
                case _Shown(placed, shown):
                    if shown:
                        actions += _shown(store, placed)
                    self._take(placed)
                    fresh[placed.topic, placed.partition] = None
        for key in fresh:
            actions += self._give(store, key, now)
        return actions

    def look(self, store: LogStore, now: float) -> list[Effect]:
        """Note what is on disk by now, and give the store what it can take."""
        actions = self.go_on(store, now)
        for key in list(self._ways):
            actions += self._give(store, key, now)
        for key, end in list(self._goals.items()):
            if now - self._goals_at >= OTHERS_S and store.others_begin(key) >= end:  # nobody keeps anything of it
                store.begin_at(key, end, now)
            if store.stored(key) >= end:
                del self._goals[key]
        while self._order:
            number, place, end = self._order[0]
            if self._goals if place is None else store.stored(place) < end:
                break
            self._order.popleft()
            self.settled = number
        return actions

    def _set_goals(self, store: LogStore, ends: Sequence[PartitionEnd], now: float) -> None:
        self._goals_at = now
        goals = {(topic, partition): end for topic, partition, end in ends}
        self._goals = {key: end for key, end in goals.items() if store.stored(key) < end}
        self._begins += 1

    def _take(self, placed: Placed) -> None:
        key, batch = (placed.topic, placed.partition), placed.batch
        self._given += 1
        self._order.append((self._given, key, batch.next))
        self._ways.setdefault(key, _Way()).waiting.append(batch)
        if self._goals and self.full:
            self._let_go()

    def _let_go(self) -> None:
        """Drop batches that come while a joiner reads the rest: they are read from the others, which have them."""
        for _, key, end in self._order:
            if key is not None:
                self._goals[key] = max(self._goals.get(key, 0), end)
        self._order = deque([(self._given, None, 0)])
        for way in self._ways.values():
            self._went += sum(map(_size, way.waiting))
            way.waiting.clear()

    def _give(self, store: LogStore, key: Key, now: float) -> list[Effect]:
        """Give the store the batches that follow its end, to write."""
        way, stored, next_ = self._ways[key], store.stored(key), store.next_offset(key)
        while way.given and way.given[0].next <= stored:
            self._went += _size(way.given.popleft())
        if way.given and way.given[-1].next > next_:  # the disk has refused it
            way.waiting.extendleft(reversed(way.given))
            way.given.clear()
        actions: list[Effect] = []
        while way.waiting and way.waiting[0].base <= next_:
            batch = way.waiting.popleft()
            if batch.next > next_:
                actions += store.take(key, batch, now)
                next_ = store.next_offset(key)
                if batch.next > next_:
                    way.waiting.appendleft(batch)  # the disk refuses just now
                    break
            way.given.append(batch)
        if not way.waiting and not way.given:
            del self._ways[key]
        return actions


def _size(batch: Batch) -> int:
    return len(batch.raw) + BATCH_BYTES


def _shown(store: LogStore, placed: Placed) -> list[Effect]:
    topic, partition, batch = placed
    message = BatchMessage(topic, partition, topic, bytes(batch.raw))
    return published(message, originals=store.subscriptions.originals(encode_topic(topic)))


class OrderedRole:
    """The role of a node with the store of a chain's member. Only its chain writes ordered partitions there."""

    def __init__(self, store: LogStore, keeping: Keeping) -> None:
        self.address = store.address
        self._store = store
        self._keeping = keeping
        self._look_at = -math.inf
        self._asking: deque[_HeadsQuestion] = deque()

    def start(self, now: float) -> list[Effect]:
        return self._store.start(now)

    @property
    def paused(self) -> bool:
        return self._store.paused

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        return self._store.handle_subscription(prefix, on, now)

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take a message, but ignore what others say of ordered partitions: the chain says it."""
        if isinstance(message, BatchMessage | RecordMessage | Head) and is_ordered(message.address):
            return []
        return self._store.handle_message(message, now)

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        return self._store.handle_answer(request_id, answer, batches, now)

    def handle_request(
        self, client: bytes, request_id: bytes, request: Request, payload: bytes, now: float
    ) -> list[Effect]:
        """Take a request; a question where partitions end is answered with all that is confirmed here by now."""
        mark = self._keeping.mark()
        if not isinstance(request, HeadsRequest) or self._keeping.settled >= mark or len(self._asking) >= ASKING_MAX:
            return self._store.handle_request(client, request_id, request, payload, now)
        self._asking.append(_HeadsQuestion(mark, now + PATIENCE_S, client, request_id, request))
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        return self._store.handle_gone(address, now)

    def handle_done(self, job: StoreJob, outcome: StoreOutcome, now: float) -> list[Effect]:
        """Take the outcome of a job; batches that are on disk now may have been waited for."""
        effects = self._store.handle_done(job, outcome, now)
        return [*effects, *self._look(now)] if isinstance(job, WriteRecords) and outcome is None else effects

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due; take batches that the chain has committed."""
        due = now >= self._look_at
        actions = self._look(now) if due else self._keeping.go_on(self._store, now)
        return actions + self._store.handle_timeout(now)

    def _look(self, now: float) -> list[Effect]:
        self._look_at = now + LOOK_S
        actions = self._keeping.look(self._store, now)
        while self._asking and (self._asking[0].mark <= self._keeping.settled or self._asking[0].until <= now):
            each = self._asking.popleft()
            actions += self._store.handle_request(each.client, each.request_id, each.request, b"", now)
        return actions

    def flush(self, now: float) -> list[Effect]:
        """Do nothing: what is gathered for the disk leaves when the disk is free."""
        return []

    def next_timeout(self) -> float:
        if self._keeping.news:
            return -math.inf
        due = self._look_at if self._keeping.busy or self._asking else math.inf
        return min(due, self._store.next_timeout())
