"""A consumer: every record of the wanted topics, each partition in order, without gaps or repeats.

Live batches come from producers. What was missed is read from a store that has it, request by request; where no
store of ours has it, FETCH asks the producer and original stores. While a gap is filled, live batches are held
back up to a bound; beyond it they are dropped and read later like everything else.

Source: Dafka's consumer. Departures (numbers of its known faults in docs/reference/protocol.md): requests are
repeated until answered, also past the first 100,000; batches that came early are kept; ``latest`` starts after
the head, not at it; original producers are never asked for more than they have.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from chappe.core import Report
from chappe.data.topic import Filter, encode_topic
from chappe.defaults import (
    CONSUMER_QUEUE_BYTES,
    FETCH_RECORDS_MAX,
    HELD_BYTES_MAX,
    RETRY_S,
)
from chappe.errors import ProtocolError
from chappe.log.actions import Action, Deliver, Publish, Subscribe, Unsubscribe
from chappe.log.batch import Batch, encode_batch
from chappe.log.events import OutOfRange, RecordsLost
from chappe.log.messages import (
    BatchMessage,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    RecordMessage,
    StoreHello,
    StoreInfo,
)
from chappe.log.queries import (
    Answer,
    HeadsAnswer,
    ReadAnswer,
    SeekAnswer,
)
from chappe.log.sources import READS_MAX, Asked, Key, Source, Sources
from chappe.log.subscriptions import address_in

LOOK_S: Final = 0.05  # how often partitions that miss something are looked at ...
LOOK_MAX: Final = 256  # ... and how many of them at once
UNDECIDED_TRIES: Final = 4  # RETRY_S each, for a store to be found that knows where a time begins
GIVE_UP_TRIES: Final = 6  # FETCHes without an answer before a gap that no store can fill is skipped ...
PASS_OVER_S: Final = 90.0  # ... and where there are or were stores, so long: longer than they wait for one another
MATCHING_MAX: Final = 10_000  # topics remembered
QUIET_S: Final = 1.0  # a partition that nothing came live for this long may be behind without a gap to show it


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to start in a partition without a position: ``earliest``, ``latest``, ``offset`` or ``time``.

    ``value`` is the offset, or the time in microseconds.
    """

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


EARLIEST: Final = Reset("earliest")
LATEST: Final = Reset("latest")


@dataclass(slots=True)
class _Partition:
    next: int | None = None  # next offset to deliver; None until decided
    head: int = 0  # offset after the last one known to exist
    held: deque[Batch] = field(default_factory=deque)  # live batches beyond a gap, in order
    live_at: float = -math.inf
    retry_at: float = 0.0
    tries: int = 0
    missing_at: float = 0.0  # when the first of these tries was made
    passed_at: float = -math.inf  # when a gap was passed over last
    fetched: int = 0  # the last FETCH asked for what comes before this; not asked again while that arrives
    kept_from: int = 0  # the last FETCH was answered from here on: the producer has nothing earlier
    strict: bool = False  # an offset the user named: out of range is an error, not a reset
    hole: tuple[int, int] | None = None  # first, last of damage met; it counts while ``next`` is within


class LogConsumer:
    """The state of one consumer.

    Args:
        address: Our own address.
        filters: Topics wanted.
        reset: Where to start in partitions without a position.
        positions: Next offsets from an earlier life, by (topic, partition).
    """

    def __init__(
        self,
        address: str,
        filters: Iterable[Filter],
        reset: Reset,
        positions: dict[Key, int] | None = None,
    ) -> None:
        self.address = address
        self._raw = encode_topic(address)
        self._filters = list(filters)
        self._matching: dict[str, bool] = {}  # what ``_wanted`` found: it is asked for every batch
        self._reset = reset
        self._partitions: dict[Key, _Partition] = {}
        self._sources = Sources(ever=bool(positions))
        self._behind: OrderedDict[Key, None] = OrderedDict()  # partitions with something to get
        self._unsure: dict[Key, None] = {}  # stores have more of them, but it may come live just now
        self._held_bytes = 0
        self._queued_bytes = 0
        self._look_at = -math.inf
        self._looking = False  # delivering what one partition waited for must not begin to look again at all others
        self.duplicates = 0
        for key, position in (positions or {}).items():
            self._partitions[key] = _Partition(next=position, head=position)
            self._behind[key] = None

    # -- the application ------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Subscribe to what is wanted and to what is meant for us."""
        actions: list[Action] = [Subscribe(id_ + self._raw) for id_ in (b"D", b"E", b"L", b"S")]
        actions.append(Subscribe(b"I"))
        for each in self._filters:
            actions += self._subscribe(each)
        return actions

    def subscribe(self, wanted: Filter, now: float) -> list[Action]:
        """Want further topics."""
        if wanted in self._filters:
            return []
        self._filters.append(wanted)
        self._matching.clear()
        self._sources.poll_soon(now)
        return [*self._subscribe(wanted), *self.handle_timeout(now)]

    def unsubscribe(self, wanted: Filter) -> list[Action]:
        """Want these topics no longer; positions are kept."""
        if wanted not in self._filters:
            return []
        self._filters.remove(wanted)
        self._matching.clear()
        raw = encode_topic(wanted.name)
        return [Unsubscribe(id_ + raw) for id_ in (b"M", b"R", b"H")]

    def seek(self, topic: str, partition: str, offset: int, now: float) -> list[Action]:
        """Go on at ``offset``; if it is out of range an ``OutOfRange`` event follows."""
        state = self._partitions.setdefault((topic, partition), _Partition())
        self._drop_held(state)
        state.next = offset
        state.strict = True
        state.tries = 0
        state.fetched = 0
        self._want((topic, partition))
        return self._read_more(now)

    def taken(self, size: int, now: float) -> list[Action]:
        """The application took ``size`` bytes of what was delivered."""
        self._queued_bytes -= size
        return self._read_more(now) if self._behind else []

    @property
    def paused(self) -> bool:
        """Whether the application is so far behind that nothing more should be received."""
        return self._queued_bytes >= CONSUMER_QUEUE_BYTES

    def positions(self) -> dict[Key, int]:
        """The next offset to be delivered, of every partition that has one."""
        return {key: state.next for key, state in self._partitions.items() if state.next is not None}

    def heads(self) -> dict[Key, int]:
        """The offset after the last one known to exist, of every partition."""
        return {key: max(state.head, state.next or 0) for key, state in self._partitions.items()}

    @property
    def synced(self) -> bool:
        """Whether at least one store is known and all known stores have listed their partitions."""
        return self._sources.synced(self._filters)

    @property
    def caught_up(self) -> bool:
        """Whether everything known to exist was delivered."""
        return all(state.next is not None and state.next >= state.head for state in self._partitions.values())

    # -- the world --------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """A peer listens to us: a store is told what we want, as the original does it."""
        if not on:
            return []
        if prefix[:1] == b"W":
            store = address_in(prefix)
            return [] if store is None or store in self._sources.stores else [self._hello(store)]
        if prefix == b"G" and self._reset is not LATEST:
            return [Publish(GetHeads(each.name, self.address)) for each in self._filters]
        return []

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """Something a peer published. Raises ProtocolError for a batch that is none."""
        match message:
            case BatchMessage(_, partition, topic, body, direct):
                return self._arrived(topic, partition, Batch.parse(body), now, live=not direct)
            case RecordMessage(_, partition, topic, sequence, content, direct):
                batch = Batch.parse(encode_batch(sequence, [content], wall_us), check=False)
                return self._arrived(topic, partition, batch, now, live=not direct)
            case Head(_, partition, topic, sequence, direct):
                return self._heard_head(topic, partition, sequence, now, live=not direct)
            case StoreHello(topic, store) if topic == self.address and store not in self._sources.stores:
                self._sources.ever = True
                return [self._hello(store)]
            case StoreInfo(_, store, _, endpoint):
                return self._found_store(store, endpoint, now)
        return []

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A member left."""
        return self._read_more(now) if self._sources.gone(address, now) else []

    def handle_answer(self, request_id: int, answer: Answer, batches: list[bytes], now: float) -> list[Action]:
        """A store answered. Raises ProtocolError for a batch that is none."""
        found = self._sources.answered(request_id)
        if found is None:
            return []
        asked, store = found
        match answer:
            case HeadsAnswer() if asked.filter is not None:
                return self._heard_heads(store, asked.filter, answer, now)
            case ReadAnswer() if asked.key is not None:
                return self._read(store, asked.key, asked, answer, batches, now)
            case SeekAnswer() if asked.key is not None:
                self._sought(asked.key, answer.offset)
                return self._read_more(now)
        store.fail(now)
        return self._read_more(now)

    def handle_timeout(self, now: float) -> list[Action]:
        """Repeat what was not answered, ask stores for news."""
        self._sources.pass_over_late(now)
        return self._sources.polls(self._filters, now) + self._read_more(now)

    def next_timeout(self) -> float:
        """When something is to be repeated or asked."""
        due = self._sources.next_timeout()
        if self._behind and not self.paused and self._sources.reads < READS_MAX:
            due = min(due, self._look_at)
        return due

    # -- inside: live ---------------------------------------------------------------------------------

    def _subscribe(self, wanted: Filter) -> list[Action]:
        raw = encode_topic(wanted.name)
        actions: list[Action] = [Subscribe(id_ + raw) for id_ in (b"M", b"R", b"H")]
        if self._reset is not LATEST:
            actions.append(Publish(GetHeads(wanted.name, self.address)))
        return actions

    def _hello(self, store: str) -> Action:
        subjects = () if self._reset is LATEST else tuple(each.name for each in self._filters)
        return Publish(ConsumerHello(store, self.address, subjects))

    def _wanted(self, topic: str) -> bool:
        found = self._matching.get(topic)
        if found is None:
            if len(self._matching) >= MATCHING_MAX:
                self._matching.clear()
            found = self._matching[topic] = any(each.matches(topic) for each in self._filters)
        return found

    def _partition(self, topic: str, partition: str, first_seen: int) -> _Partition:
        """The state of a partition; a new one starts where ``reset`` says, seeing ``first_seen`` now."""
        state = self._partitions.get((topic, partition))
        if state is None:
            state = self._partitions[topic, partition] = _Partition()
            if self._reset.kind == "earliest":
                state.next = 0
            elif self._reset.kind == "offset":
                state.next = self._reset.value
                state.strict = True
            elif self._reset.kind == "latest":
                # All stores listed what they had and this was not in it: it is new, so nothing of it is old.
                state.next = 0 if self.synced else first_seen
        return state

    def _arrived(self, topic: str, partition: str, batch: Batch, now: float, *, live: bool) -> list[Action]:
        if not self._wanted(topic):
            return []
        key = (topic, partition)
        state = self._partition(topic, partition, batch.base)
        state.head = max(state.head, batch.next)
        if live:
            state.live_at = now
        elif state.next is not None and state.next < state.fetched:
            state.retry_at = now + RETRY_S  # the answer is on its way
        if state.next is not None and batch.base <= state.next:
            return self._advance(key, state, batch, now)
        if not live and not 0 < state.kept_from < batch.base:
            state.kept_from = batch.base
        if not live and state.next is not None and not state.held and state.tries and not self._sources.ever:
            # The producer answered from the first record that it still keeps: what came before is not there.
            state.tries = max(state.tries, GIVE_UP_TRIES - 1)
        self._hold(state, batch)
        self._want(key)
        return self._read_more(now)

    def _advance(self, key: Key, state: _Partition, batch: Batch, now: float) -> list[Action]:
        """Deliver a batch that begins at or before the next offset, and what was held behind it."""
        assert state.next is not None
        if batch.next <= state.next:
            self.duplicates += 1
            return []
        actions = [self._deliver(key, state, batch)]
        while state.held and state.held[0].base <= state.next:
            held = state.held.popleft()
            self._held_bytes -= len(held.raw)
            if held.next > state.next:
                actions.append(self._deliver(key, state, held))
        if state.next >= state.fetched:
            state.retry_at = 0.0
        if key in self._behind:
            if state.next >= state.head and not state.held:
                del self._behind[key]
            elif not self._sources.reading(key):
                actions += self._read_more(now)
        return actions

    def _deliver(self, key: Key, state: _Partition, batch: Batch) -> Action:
        assert state.next is not None
        start, state.next = state.next, batch.next
        state.tries = 0
        state.strict = False
        self._queued_bytes += len(batch.raw)
        return Deliver(key[0], key[1], batch, start)

    def _hold(self, state: _Partition, batch: Batch) -> None:
        """Keep a batch that came early; in order, without overlap, up to the bound."""
        size = len(batch.raw)
        if self._held_bytes + size > HELD_BYTES_MAX or (state.held and batch.base < state.held[-1].next):
            return
        state.held.append(batch)
        self._held_bytes += size

    def _drop_held(self, state: _Partition) -> None:
        self._held_bytes -= sum(len(batch.raw) for batch in state.held)
        state.held.clear()

    def _heard_head(self, topic: str, partition: str, sequence: int, now: float, *, live: bool) -> list[Action]:
        if not self._wanted(topic) or sequence >= (1 << 63) - 1:
            return []
        state = self._partition(topic, partition, sequence + 1)
        if live:
            state.live_at = now
        state.head = max(state.head, sequence + 1)
        if state.next is None or state.next >= state.head:
            return []
        self._want((topic, partition))
        return self._read_more(now)

    # -- inside: stores -------------------------------------------------------------------------------

    def _found_store(self, address: str, endpoint: str, now: float) -> list[Action]:
        return self.handle_timeout(now) if self._sources.found(address, endpoint, now) else []

    def _heard_heads(self, store: Source, wanted: Filter, answer: HeadsAnswer, now: float) -> list[Action]:
        store.since[wanted] = answer.version
        for info in answer.infos():
            if not wanted.matches(info.topic):
                continue
            key = (info.topic, info.partition)
            store.heads[key] = (info.first, info.next)
            state = self._partitions.get(key)
            if state is None:
                state = self._partitions[key] = _Partition()
            if state.next is None:
                self._decide(state, wanted, store, info.first, info.next, info.timestamp_min, info.timestamp_max)
            state.head = max(state.head, info.next)
            if state.next is not None and state.tries and info.first <= state.next < info.next:
                state.retry_at = 0.0  # what nobody answered for is here
            if state.next is None or state.strict:
                self._want(key)
            elif state.next < state.head:
                self._unsure[key] = None
        for key in list(self._unsure):
            state = self._partitions[key]
            if state.next is None or state.next >= state.head:
                del self._unsure[key]
            elif now - state.live_at > QUIET_S:
                del self._unsure[key]
                self._want(key)
        actions: list[Action] = []
        if answer.more:
            actions = [self._sources.news(store, wanted, now)]
        else:
            store.synced.add(wanted)
        return actions + self._read_more(now)

    def _decide(
        self, state: _Partition, wanted: Filter, store: Source, first: int, next_: int, oldest: int, newest: int
    ) -> None:
        """Where to start in a partition that a store lists; stays None if the store must be asked for a time."""
        match self._reset.kind:
            case "earliest":
                state.next = first
            case "latest":
                state.next = first if wanted in store.synced else next_
            case "offset":
                state.next, state.strict = self._reset.value, True
            case "time":
                if self._reset.value <= oldest:
                    state.next = first
                elif self._reset.value > newest:
                    state.next = next_

    def _sought(self, key: Key, offset: int) -> None:
        state = self._partitions[key]
        if state.next is None and offset >= 0:
            state.next = offset
            while state.held and state.held[0].next <= offset:
                self._held_bytes -= len(state.held.popleft().raw)

    def _want(self, key: Key) -> None:
        if key not in self._behind:
            self._behind[key] = None

    def _read_more(self, now: float) -> list[Action]:
        """Ask for what is missing, as far as the bounds allow."""
        if not self._behind or self.paused or self._looking:
            return []
        self._looking = True
        try:
            return self._look(now)
        finally:
            self._looking = False

    def _look(self, now: float) -> list[Action]:
        actions: list[Action] = []
        self._look_at = now + LOOK_S
        for key in list(islice(self._behind, LOOK_MAX)):
            if self._sources.reads >= READS_MAX:
                break
            self._behind.move_to_end(key)  # so that everybody's turn comes
            state = self._partitions[key]
            if state.held and state.next is not None and state.held[0].base <= state.next:
                batch = state.held.popleft()
                self._held_bytes -= len(batch.raw)
                actions += self._advance(key, state, batch, now)
            if self._sources.reading(key) or now < state.retry_at or key not in self._behind:
                continue
            if state.next is not None and state.next >= state.head and not state.held and not state.strict:
                del self._behind[key]
                continue
            actions += self._get(key, state, now)
        return actions

    def _get(self, key: Key, state: _Partition, now: float) -> list[Action]:
        """Ask whoever may have the next offset of one partition."""
        if not state.tries:
            # Who passed over a gap just now need not wait for the same stores again.
            spent = self._sources.gone_at < state.passed_at and now - state.passed_at < PASS_OVER_S
            state.missing_at = now - PASS_OVER_S if spent else now
        usable = self._sources.usable(key, now)
        if state.next is None:
            if not usable or self._reset.kind != "time":
                return self._undecided(key, state, now)
            return [self._sources.seek(usable[0], key, self._reset.value, now)]
        having = [each for each in usable if each.has(key, state.next)]
        if having:
            state.fetched = 0
            return [self._sources.read(having[state.tries % len(having)], key, state.next, now)]
        ranges = self._sources.ranges(key)
        first = min((first for first, _ in ranges), default=None)
        last = max((next_ for _, next_ in ranges), default=0)
        damaged = state.hole is not None and state.hole[0] <= state.next <= state.hole[1]
        if first is not None and state.next < first and not damaged:
            return self._out_of_range(key, state, first, last, now)
        if state.strict and first is not None and state.next > max(last, state.head):
            return self._out_of_range(key, state, first, max(last, state.head), now)
        if state.strict and first is not None and state.next == last and state.next >= state.head:
            state.strict = False
            return []
        # What we know of the stores is up to a second old: one of them may have it by now.
        perhaps = [each for each in usable if each.heads[key][0] <= state.next]
        if perhaps and state.tries % 2 == 0 and state.next < max(state.head, state.held[0].base if state.held else 0):
            state.tries += 1
            return [self._sources.read(perhaps[state.tries // 2 % len(perhaps)], key, state.next, now)]
        return self._fetch(key, state, now)

    def _undecided(self, key: Key, state: _Partition, now: float) -> list[Action]:
        """No store can say where to start: start with what came live."""
        if state.tries < UNDECIDED_TRIES:
            state.tries += 1
            state.retry_at = now + RETRY_S
            return []
        state.next = state.held[0].base if state.held else state.head
        return self._skip(key, state, now, state.next)

    def _fetch(self, key: Key, state: _Partition, now: float) -> list[Action]:
        """No store of ours has it: ask the producer and original stores, and skip what nobody has."""
        assert state.next is not None
        limit = state.held[0].base if state.held else state.head
        if limit <= state.next:
            state.retry_at = now + RETRY_S
            return []
        damaged = state.hole is not None and state.hole[0] <= state.next <= state.hole[1]
        if state.hole is not None and damaged and self._hopeless(state, now):
            return self._skip_hole(key, state, state.hole[1], now)
        if state.held and self._hopeless(state, now):
            firsts = [first for first, _ in self._sources.ranges(key)]
            goal = min(each for each in (limit, state.kept_from, *firsts) if each > state.next)
            lost = RecordsLost(key[0], key[1], state.next, goal - 1, "no store or producer has them any more")
            state.passed_at = now
            if goal < limit:
                state.next, state.tries = goal, 0
                return [Report(lost), *self._get(key, state, now)]
            return [Report(lost), *self._skip(key, state, now, limit)]
        listed = damaged or any(next_ > state.next for _, next_ in self._sources.ranges(key))
        if state.tries >= GIVE_UP_TRIES and not state.held and not listed:
            # Announced, but nobody has it: wait until somebody speaks of it again.
            state.tries = 0
            state.head = state.next
            return []
        if state.tries == 1:  # its producer may have it no longer since a store has it: hear of that at once
            self._sources.poll_soon(now)
        # The first time the store may merely not have written it yet: ask again soon.
        state.retry_at = now + (RETRY_S if state.tries else RETRY_S / 10)
        state.tries += 1
        count = min(limit - state.next, FETCH_RECORDS_MAX)
        state.fetched = state.next + count
        state.kept_from = 0
        return [Publish(Fetch(key[1], self.address, key[0], state.next, count))]

    def _hopeless(self, state: _Partition, now: float) -> bool:
        """Whether everybody was asked for long enough."""
        waited = not self._sources.ever or now - state.missing_at >= PASS_OVER_S
        return waited and state.tries >= GIVE_UP_TRIES

    def _skip(self, key: Key, state: _Partition, now: float, offset: int) -> list[Action]:
        """Go on at ``offset``, where the first held batch begins."""
        state.next = offset
        state.tries = 0
        state.retry_at = 0.0
        if not state.held:
            self._behind.pop(key, None)
            return []
        batch = state.held.popleft()
        self._held_bytes -= len(batch.raw)
        return self._advance(key, state, batch, now)

    def _out_of_range(self, key: Key, state: _Partition, first: int, next_: int, now: float) -> list[Action]:
        """The position is not, or no longer, there: report it, and go on where the policy says."""
        assert state.next is not None
        event = OutOfRange(key[0], key[1], state.next, first, next_, state.strict)
        quiet = not state.strict and state.next == 0 and self._reset.kind == "earliest"
        state.next = next_ if self._reset.kind == "latest" or state.next > next_ else first
        state.strict = False
        state.head = max(state.head, next_)
        self._drop_held(state)
        actions: list[Action] = [] if quiet else [Report(event)]
        return actions + (self._get(key, state, now) if state.next < state.head else [])

    def _read(
        self, store: Source, key: Key, asked: Asked, answer: ReadAnswer, batches: list[bytes], now: float
    ) -> list[Action]:
        """What a store read for us: deliver it and ask for more."""
        state = self._partitions[key]
        store.heads[key] = (answer.first, answer.next)
        if not answer.known:
            del store.heads[key]
        state.head = max(state.head, answer.next)
        try:
            parsed = [Batch.parse(raw) for raw in batches]
        except ProtocolError:
            store.fail(now)
            raise
        if not parsed and asked.offset != state.next:
            return self._read_more(now)  # it says nothing of where we are by now
        if not parsed:
            if answer.hole_last >= 0:
                # Damaged here, another store may have it; when it is healed the store lists the partition again.
                store.heads[key] = (max(answer.first, answer.hole_last + 1), answer.next)
                state.tries += 1
                return self._hole(key, state, answer.hole_last, now)
            if answer.known and state.next is not None and state.next >= answer.next:
                state.retry_at = now + RETRY_S / 10
            return self._read_more(now)
        actions: list[Action] = []
        self._looking = True  # all of the answer first: what else is in it must not be asked for again
        try:
            for batch in parsed:
                if state.next is not None and batch.base <= state.next:
                    actions += self._advance(key, state, batch, now)
                else:
                    self._hold(state, batch)
        finally:
            self._looking = False
        return actions + self._read_more(now)

    def _hole(self, key: Key, state: _Partition, last: int, now: float) -> list[Action]:
        """One store has damage at our position: others are asked; if none has it, it is skipped."""
        assert state.next is not None
        state.hole = (state.next, last)
        others = self._sources.anybody_has(key, state.next)
        if others or not self._hopeless(state, now):
            state.retry_at = 0.0 if others else now + RETRY_S
            return self._read_more(now)
        return [*self._skip_hole(key, state, last, now), *self._read_more(now)]

    def _skip_hole(self, key: Key, state: _Partition, last: int, now: float) -> list[Action]:
        assert state.next is not None
        lost = RecordsLost(key[0], key[1], state.next, last, "they are damaged on disk and no other store has them")
        state.next = last + 1
        state.tries = 0
        state.retry_at = 0.0
        state.hole = None
        state.passed_at = now
        return [Report(lost)]
