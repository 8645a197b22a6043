"""A producer: the one writer of one partition.

Records get consecutive offsets at once, are gathered into batches and published; they are kept until ``min_acks``
stores said that they hold them. A member that missed some asks with FETCH, and kept records answer it. HEAD tells
listeners once a second how far the partition goes, and less often while all stores have everything.

With a journal a batch is made durable first, and is told to nobody until ``handle_done``. If the journal refuses
it, it stays the batch being gathered, with the offsets it has; its sender may take records back out of it. What goes on
after a restart first hears what stores hold of it (``pace``).

Source: Dafka's producer. Departures: records travel in batches to those who know them; acknowledgements of
several stores are counted; what is kept has a bound; HEAD is also sent when somebody starts to listen and
while somebody waits for acknowledgements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

from chappe.compiled import Frozen
from chappe.core import Clock, Deliver, Effect, Persist, Publish, Report, Subscribe
from chappe.data.topic import encode_topic
from chappe.defaults import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEAD_HURRY_S,
    HEAD_IDLE_S,
    HEAD_INTERVAL_S,
    RECORD_BYTES_MAX,
)
from chappe.errors import RecordTooLarge, StorageError, UsageError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.answering import Answering, KeptBatches, KeptBytes
from chappe.log.batch import Batch, Headers, compress, encode_batch, encode_headers, rebase
from chappe.log.events import IdentityBehind, WritesRefused, WritesResumed
from chappe.log.messages import (
    Ack,
    BatchMessage,
    Fetch,
    GetHeads,
    Head,
    Message,
    PeerSubscriptions,
    RecordMessage,
    Stored,
)
from chappe.log.pace import Resuming

_Extras: TypeAlias = tuple[bytes | None, Headers, int | None]  # key, headers and timestamp of a record
Seal: TypeAlias = Callable[[bytes], bytes]
ORIGINAL_STORES = ""  # all stores that acknowledge without a name count as one
STORES = b"F"  # who subscribes to everybody's FETCHes is a store, or the reader of an original one
RECORDS = b"M"  # who subscribes to everybody's records may be the writer of an original one
GREET_S = 0.005  # a new listener hears HEAD this soon; others that come meanwhile share it


class JournalBatch(Frozen, frozen=True):
    address: str
    topic: str
    body: bytes


class JournalTrim(Frozen, frozen=True):
    """Everything before ``offset`` is stored elsewhere: the journal of the topic may drop it."""

    address: str
    topic: str
    offset: int


class StoredTo(Frozen, frozen=True):
    """Enough stores hold everything before ``stored``, and with it a record that somebody waits for."""

    topic: str
    stored: int


@dataclass(frozen=True, slots=True)
class _Persisting:
    base: int
    next: int
    body: bytes
    values: Sequence[bytes | None]
    gathered: bool  # or else it came as a batch


def subscriptions_of(address: str) -> list[Effect]:
    """Return the subscriptions of a producer with this address, beside questions for its topics."""
    raw = encode_topic(address)
    # A first: a store that knows of K only takes us for an original, and does not say who acknowledges.
    return [Subscribe(id_ + raw) for id_ in (b"A", b"T", b"F", b"K")]


def questions_for(topic: str) -> Effect:
    """Return the subscription to questions for the ends of a topic's partitions.

    It follows the one to FETCH: a member that is heard to ask for the end is also heard when it fetches what comes
    before.
    """
    return Subscribe(b"G" + encode_topic(topic))


class LogProducer:
    """The state of one partition's producer.

    Args:
        address: Name of the partition.
        min_acks: Stores that must hold a record before it is dropped here. 0: keep the newest
            ``producer_ring_bytes`` and wait for nobody.
        journal: Batches of a former life that may not be stored yet, oldest first. None: no journal is kept.
        next_offset: Where to go on, if that is behind the journal's batches.
        resumed: Whether the partition had a life before this one.
        subscriptions: Of its member, where that writes several topics and counts them itself.
        kept: The bytes that its member keeps, likewise.
        clock: Gives the time to records that come without one.
        seal: Returns the batch to publish and keep instead, with the same records: a sealed one if the topic is sealed
            for a group.
        codec: Of ``chappe.log.compression``; 0: batches are not compressed.
    """

    def __init__(
        self,
        topic: str,
        address: str,
        *,
        clock: Clock,
        min_acks: int = 1,
        journal: Sequence[bytes] | None = None,
        next_offset: int = 0,
        resumed: bool = False,
        subscriptions: PeerSubscriptions | None = None,
        kept: KeptBytes | None = None,
        seal: Seal | None = None,
        codec: int = 0,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self._clock = clock
        self._seal = seal
        self._codec = codec
        self._limits = limits
        self._batch_bytes = limits.batch_bytes
        self.topic = topic
        self.address = address
        self._raw_topic = encode_topic(topic)
        self._min_acks = min_acks
        self._journaled = journal is not None
        self._subscriptions = PeerSubscriptions() if subscriptions is None else subscriptions
        self._kept = KeptBatches(topic, address, kept, limits)
        self._answering = Answering(self._piece, limits)
        self._asking: dict[str, None] = {}  # who asked for the end, and does not listen to the answer yet
        self._persisting: _Persisting | None = None
        self.refused = False  # the journal refused the last batch
        self.stored = next_offset  # everything before it is held by min_acks stores
        self.awaited = math.inf  # the first offset that somebody waits for: ``Progress`` tells once that it is stored
        self._acks: dict[str, int] = {}  # store -> offset up to which (exclusive) it holds everything
        self._head_at = math.inf
        self._pause_s = HEAD_INTERVAL_S  # until the HEAD after the next
        self._hurry = False
        # The batch being gathered.
        self.next_offset = next_offset
        self.values: list[bytes | None] = []
        self._positions: list[int] | None = None
        self._extras: list[_Extras] = []  # of each record, or empty until the first one that has any
        self.extras = False  # whether there are any
        self.plain = False  # True if ``take`` may add records; the owner decides
        self.mirrors = False  # its batches have their offsets and seals elsewhere; others may publish the same ones
        self.room = self._batch_bytes  # bytes that the batch still takes; each record counts four more than its value
        self.many = 512  # records that ``append_many`` takes: as many as probably fill a batch
        for body in journal or ():
            batch = Batch.parse(body)
            self._kept.add(batch.base, batch.next, body)
            self.next_offset = max(next_offset, batch.next)
        self.stored = self._kept_from()
        self._resuming = Resuming(self.next_offset, resumed=resumed, limits=limits)
        self._rolled_back = False

    @property
    def persisting(self) -> bytes:
        assert self._persisting is not None
        return self._persisting.body

    @property
    def kept_bytes(self) -> int:
        return self._kept.bytes

    @property
    def wanted(self) -> bool:
        return self._subscriptions.wanted(self._raw_topic)

    def start(self, now: float) -> list[Effect]:
        self.begin(now)
        return [*subscriptions_of(self.address), questions_for(self.topic)]

    def begin(self, now: float) -> None:
        self._resuming.start(now)
        if self.next_offset or self._resuming.holds(now):
            self._head_at = now

    def append(
        self, value: bytes | None, key: bytes | None = None, headers: Headers = (), timestamp: int | None = None
    ) -> int:
        """Add a record to the batch being gathered; returns its offset. ``flush`` publishes it.

        Raises:
            RecordTooLarge: Over ``RECORD_BYTES_MAX``; nothing was added.
            UsageError: Headers or a timestamp that cannot be carried; nothing was added.
        """
        size = 0 if value is None else len(value)
        if self.extras or key is not None or headers or timestamp is not None or size > self._batch_bytes:
            size = self._append_extras(size, key, headers, timestamp)
        self.values.append(value)
        self.room -= size + 4
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def take(self, value: bytes) -> int:
        """Add a record of a value; return its offset, or -1 if the batch is full or ``append`` is needed instead."""
        room = self.room - len(value) - 4
        if not self.plain or room <= 0:
            return -1
        self.room = room
        self.values.append(value)
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def append_many(self, values: Sequence[bytes], start: int) -> int:
        """Add records with values only, from index ``start`` on; nothing may be pending.

        Takes ``many`` of them, or the first one if they are large, and returns the index after the last one taken. Call
        ``flush`` and go on with the rest.

        Raises RecordTooLarge: as ``append``.
        """
        assert not self.values
        part = values[start : start + self.many]
        positions = list(accumulate(map(len, part), initial=0))
        size = positions[-1] + 4 * len(part)
        bulk_bytes = self._limits.bulk_bytes
        self.many = min(max(1, len(part) * bulk_bytes // size), BATCH_RECORDS_MAX // 4)
        if size > 2 * bulk_bytes:
            self.append(values[start])
            return start + 1
        self.values = list(part)
        self._positions = positions
        self.room = self._batch_bytes - size
        self.next_offset += len(part)
        return start + len(part)

    @property
    def published(self) -> int:
        return self.next_offset - len(self.values)

    def held(self, now: float) -> bool:
        """Return True if new records are held, neither published nor journaled, until stores say what they hold."""
        return self._rolled_back or self._resuming.holds(now)

    @property
    def full(self) -> bool:
        """True if the batch being gathered is to be flushed before more is added."""
        return self.room <= 0

    @property
    def pending(self) -> bool:
        return bool(self.values)

    def flush(self, now: float) -> list[Effect]:
        """Publish the batch being gathered; records that came without a time get that of now.

        With a journal ``Persist`` comes first and alone: nothing may be added before ``handle_done``, which
        publishes it unless the journal refused it. While ``held`` nothing is done.
        """
        values = self.values
        if not values or self.held(now):
            return []
        now_us = self._clock.wall_ns() // 1000
        base = self.next_offset - len(values)
        keys: Sequence[bytes | None] | None = None
        headers: Sequence[Headers] | None = None
        stamps: Sequence[int] | None = None
        if self.extras:
            keys, headers, some = zip(*self._extras, strict=True)
            keys = None if keys.count(None) == len(values) else keys
            headers = headers if any(headers) else None
            if some.count(None) < len(values):
                stamps = [now_us if each is None else each for each in some]
        body = encode_batch(
            base, values, now_us, timestamps=stamps, keys=keys, headers=headers, positions=self._positions
        )
        packed = self.packed(body)
        sealed = self.sealed(packed)
        shown: Sequence[bytes | None] = values if sealed is packed else ()
        return self._durable(_Persisting(base, self.next_offset, sealed, shown, gathered=True), now)

    def append_batch(self, raw: bytes, now: float) -> list[Effect]:
        """Publish records that are a batch already; nothing may be pending or ``held``.

        They get the offsets that come next, with a journal once it has them; if it refuses, nothing was added.

        Raises:
            ProtocolError: It is not a batch; nothing was added.
            UsageError: It is sealed already, or too large once it is; the same holds.
        """
        assert not self.values
        assert not self.held(now)
        base = self.next_offset
        body = rebase(raw, base)
        batch = Batch.parse(body, check=False)
        if batch.sealed is not None and not self.mirrors:
            raise UsageError("a batch that is sealed already cannot be sent again: only its producer can seal it")
        packed = self.packed(body)
        sealed = packed if batch.sealed is not None else self.sealed(packed)
        if len(sealed) > BATCH_BYTES_MAX:
            raise RecordTooLarge(f"the sealed batch has {len(sealed)} bytes, at most {BATCH_BYTES_MAX} are possible")
        plain = sealed is packed and batch.sealed is None
        values = batch.values() if plain and self._subscriptions.originals(self._raw_topic) else []
        return self._durable(_Persisting(base, batch.next, sealed, values, gathered=False), now)

    def packed(self, body: bytes) -> bytes:
        """Return a batch as it is sealed and published: itself, or compressed."""
        return compress(body, self._codec) if self._codec else body

    def sealed(self, body: bytes) -> bytes:
        """Return a batch as it is published: itself, or sealed."""
        return body if self._seal is None else self._seal(body)

    def take_back(self, offset: int) -> None:
        """Drop records gathered from ``offset`` on: the journal refuses them, and their sender is told so."""
        values = self.values
        keep = len(values) - (self.next_offset - offset)
        assert 0 <= keep <= len(values)
        if not keep:
            self._clear()
            self.next_offset = offset
            return
        self.room += sum(4 + len(each or b"") for each in values[keep:])
        for key, headers, _ in self._extras[keep:]:
            self.room += len(key or b"") + len(encode_headers(headers))
        del values[keep:], self._extras[keep:]
        self.next_offset = offset

    def hurry(self, now: float, waiting: bool) -> None:
        """Send HEAD more often while somebody waits for acknowledgements."""
        self._hurry = waiting
        if waiting:
            self._head_at = min(self._head_at, now + HEAD_HURRY_S)

    def handle_done(self, job: JournalBatch | JournalTrim, outcome: StorageError | None, now: float) -> list[Effect]:
        """Publish what the journal has; if it refused, keep the gathered records, and ``flush`` may be called again."""
        if isinstance(job, JournalTrim):
            return []
        done, self._persisting = self._persisting, None
        assert done is not None
        refused, self.refused = self.refused, outcome is not None
        if outcome is not None:
            return [] if refused else [Report(WritesRefused(str(outcome)))]
        return [*([Report(WritesResumed())] if refused else []), *self._publish(done, now)]

    def interrupted(self) -> None:
        """Assume that the journal lacks the batch, though the journal did not refuse it: tell nobody."""
        self._persisting = None

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        self._subscriptions.change(prefix, on)
        return self.listened(prefix, on, now)

    def listened(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Note a listener that the member has counted."""
        if prefix == STORES:
            self._pause_s = HEAD_INTERVAL_S
        if prefix == STORES and on and self._resuming.store_came(now):
            self._head_at = min(self._head_at, now)
        elif prefix == STORES and not on:
            self._resuming.store_left()
        elif on and prefix[:1] == b"W" and ORIGINAL_STORES in self._acks:
            return self._count()
        elif prefix[:1] == b"E":
            return self._tell_end(now) if on and self._asking else []
        ours = prefix in (b"M", b"") or (prefix[:1] == b"R" and self._raw_topic.startswith(prefix[1:]))
        if on and ours and self.next_offset:
            # Not a single original consumer: its first FETCH may go nowhere so early, and it never repeats it.
            self._head_at = min(self._head_at, now + GREET_S)
        return []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take an acknowledgement, or a request for records that a member missed."""
        match message:
            case Stored(topic, store, subject, sequence) if topic == self.address and subject == self.topic:
                return self._acknowledged(store, sequence + 1)
            case Ack(topic, subject, sequence) if topic == self.address and subject == self.topic:
                return self._acknowledged(ORIGINAL_STORES, sequence + 1)
            case Fetch(topic, _, subject, _, _) if topic == self.address and subject == self.topic:
                return self._fetched(message, now)
            case GetHeads(prefix, requester) if self.topic.startswith(prefix):
                if len(self._asking) >= self._limits.answers_max:
                    del self._asking[next(iter(self._asking))]
                self._asking[requester] = None
                return self._tell_end(now)
        return []

    def _tell_end(self, now: float) -> list[Effect]:
        """Tell where the partition ends, to those who asked and listen by now."""
        told = self._told(now)
        listening = [each for each in self._asking if self._subscriptions.has(b"E" + encode_topic(each))]
        for each in listening:
            del self._asking[each]
        return [Publish(Head(each, self.address, self.topic, told - 1, direct=True)) for each in listening if told]

    def handle_timeout(self, now: float) -> list[Effect]:
        """Send HEAD when it is due, and the next piece of an answer."""
        actions = self._answering.serve(now) if now >= self._answering.due else []
        if now < self._head_at:
            return actions
        waiting = (self._hurry and self.stored < self.next_offset) or self._resuming.holds(now)
        self._head_at = now + (HEAD_HURRY_S if waiting else self._pause_s)
        self._pause_s = min(2 * self._pause_s, HEAD_IDLE_S) if self._all_have_it() else HEAD_INTERVAL_S
        told = self._told(now)
        if not told and self._resuming.holds(now):
            told = 1  # it is not there, but a store that has more of them says so
        if told:
            actions.append(Publish(Head(self.topic, self.address, self.topic, told - 1)))
        return actions

    def next_timeout(self) -> float:
        return min(self._head_at, self._answering.due)

    def invariants(self) -> list[str]:
        if self._min_acks and self._kept_from() > self.stored:
            return [f"{self.topic} is stored before {self.stored}, and kept from {self._kept_from()} on"]
        return []

    def _kept_from(self) -> int:
        return self.published if self._kept.first is None else self._kept.first

    def _append_extras(self, size: int, key: bytes | None, headers: Headers, timestamp: int | None) -> int:
        """Keep the parts of a record beside its value; return the size of the whole record."""
        size += (len(key) if key else 0) + (len(encode_headers(headers)) if headers else 0)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"the record has {size} bytes, at most {RECORD_BYTES_MAX} are possible")
        if timestamp is not None and not -(1 << 63) <= timestamp < 1 << 63:
            raise UsageError(f"the timestamp {timestamp} is out of range: microseconds since 1970 are wanted")
        if not self.extras and (key is not None or headers or timestamp is not None):
            self._extras = [(None, (), None)] * len(self.values)
            self.extras = True
        if self.extras:
            self._extras.append((key, headers, timestamp))
        return size

    def _durable(self, batch: _Persisting, now: float) -> list[Effect]:
        """Write a batch to the journal before anybody hears of it; without one it is published at once."""
        assert self._persisting is None
        if not self._journaled:
            return self._publish(batch, now)
        self._persisting = batch
        return [Persist(JournalBatch(self.address, self.topic, batch.body))]

    def _publish(self, batch: _Persisting, now: float) -> list[Effect]:
        """Keep a batch and send it; its values are needed where originals listen."""
        if batch.gathered:
            self._clear()
        self.next_offset = batch.next
        self._kept.add(batch.base, batch.next, batch.body)
        if self._min_acks == 0:
            self._kept.shrink(self._limits.producer_ring_bytes)
            self.stored = batch.next
        self._pause_s = HEAD_INTERVAL_S
        self._head_at = min(self._head_at, now + HEAD_INTERVAL_S)
        if self._subscriptions.count(STORES) or self._subscriptions.count(RECORDS):
            self._resuming.told = batch.next
        actions: list[Effect] = [Publish(BatchMessage(self.topic, self.address, self.topic, batch.body))]
        actions += self._progress()
        if self._subscriptions.originals(self._raw_topic):
            actions += [
                Publish(RecordMessage(self.topic, self.address, self.topic, batch.base + index, value or b""))
                for index, value in enumerate(batch.values)
            ]
        return actions

    def _all_have_it(self) -> bool:
        """Return True if every store that listens has everything: a consumer that missed it hears of it from them.

        Originals are no such consumers, and their stores cannot be told apart.
        """
        stores, everything = self._subscriptions.count(STORES), self.published
        if not 0 < stores <= sum(next_ >= everything for next_ in self._acks.values()):
            return False
        return not self._subscriptions.originals(self._raw_topic) and not self._subscriptions.original_stores()

    def _told(self, now: float) -> int:
        """Return the offset after the last one that anybody may hear of."""
        if self._rolled_back:
            return 0
        return self._resuming.told if self._resuming.holds(now) else self.published

    def _is_rolled_back(self, held: int) -> list[Effect]:
        """Say nothing more: somebody knows more than it can have from us."""
        self._rolled_back = True
        sent = self.published - self._resuming.first
        return [Report(IdentityBehind(self.topic, self.address, self._resuming.first, held, sent))]

    def _fetched(self, wanted: Fetch, now: float) -> list[Effect]:
        """Answer a request for missed records, up to the last one that was announced."""
        requester = encode_topic(wanted.address)
        ours = self._subscriptions.has(b"S" + requester)
        known = wanted.sequence + (wanted.count if ours else 1)  # an original asks for more than it knows of
        if self._journaled and not self._rolled_back and known > max(self.published, 1):
            return self._is_rolled_back(known)  # nobody asks for what nobody spoke of
        end = self._told(now)
        count = min(wanted.count, self._limits.fetch_records_max, end - wanted.sequence)
        if count <= 0:
            return []
        if ours:
            actions, reached = self._kept.answer(wanted.address, wanted.sequence, count, end)
            self._resuming.told = max(self._resuming.told, reached)
            return actions
        self._resuming.told = max(self._resuming.told, wanted.sequence + count)
        if self._subscriptions.original(requester):
            return self._answering.fetch(replace(wanted, count=count), now)
        return []

    def _piece(self, wanted: Fetch, limit: int) -> tuple[list[Effect], int]:
        """Return some records of an answer; none for a requester that is gone, as its subscription tells."""
        if not self._subscriptions.has(b"D" + encode_topic(wanted.address)):
            return [], wanted.sequence
        return self._kept.piece(wanted, limit)

    def _clear(self) -> None:
        self.values = []
        self._positions = None
        self._extras = []
        self.extras = False
        self.room = self._batch_bytes

    def _progress(self) -> list[Effect]:
        """Report a record that somebody waits for, once it is stored."""
        if self.stored <= self.awaited:
            return []
        self.awaited = math.inf
        return [Deliver(self.address, StoredTo(self.topic, self.stored))]

    def _acknowledged(self, store: str, next_: int) -> list[Effect]:
        """Note an acknowledgement; ``next_`` is the offset after the last one that the store holds."""
        if self._min_acks == 0 or self._rolled_back:
            return []
        if self.mirrors:
            next_ = min(next_, self.published)  # it may have more of the partition from others
        if self._resuming.beyond(next_, self.published):
            return self._is_rolled_back(next_) if self._journaled else []
        if store != ORIGINAL_STORES and not self._subscriptions.original_stores():  # of those that listen all answer
            self._resuming.answered(store, self._subscriptions.count(STORES))
        if next_ <= self._acks.get(store, 0):
            return []
        if store not in self._acks and len(self._acks) >= self._limits.stores_max:
            del self._acks[min(self._acks, key=lambda each: self._acks[each])]
        self._acks[store] = next_
        return self._count()

    def _count(self) -> list[Effect]:
        acks = self._acks
        if self._min_acks > 1 and ORIGINAL_STORES in acks and not self._subscriptions.original_stores():
            # One of ours that had not heard our subscription when it acknowledged, and does so again by name.
            acks = {store: next_ for store, next_ in acks.items() if store != ORIGINAL_STORES}
        held = sorted(acks.values(), reverse=True)
        if len(held) < self._min_acks or held[self._min_acks - 1] <= self.stored:
            return []
        self.stored = held[self._min_acks - 1]
        dropped = self._kept.drop_before(self.stored)
        self.stored = max(self.stored, self._kept_from())  # does not wait for records that the journal has lost
        actions: list[Effect] = (
            [Persist(JournalTrim(self.address, self.topic, self.stored))] if self._journaled and dropped else []
        )
        return [*actions, *self._progress()]
