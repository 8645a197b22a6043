"""A producer: the one writer of one partition.

Records get consecutive offsets at once, are gathered into batches and published; they are kept until
``min_acks`` stores said that they hold them. Whoever missed some asks with FETCH and is answered from what is
kept. HEAD tells listeners once a second how far the partition goes.

Source: Dafka's producer. Departures: records travel in batches to those who know them; acknowledgements of
several stores are counted; what is kept has a bound; HEAD is also sent when somebody starts to listen and
while somebody waits for acknowledgements.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from chappe.data.topic import encode_topic
from chappe.defaults import (
    BATCH_BYTES,
    BATCH_RECORDS_MAX,
    FETCH_RECORDS_MAX,
    HEAD_HURRY_S,
    HEAD_INTERVAL_S,
    PRODUCER_RING_BYTES,
    READ_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from chappe.errors import RecordTooLarge, UsageError
from chappe.log.actions import Action, Persist, Publish, Subscribe, Trim
from chappe.log.answering import Answering
from chappe.log.batch import Batch, Headers, encode_batch, encode_headers, rebase
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, Message, RecordMessage, Stored
from chappe.log.subscriptions import Subscriptions

ORIGINAL_STORES = ""  # all stores that acknowledge without a name count as one
GREET_S = 0.005  # a new listener hears HEAD this soon; others that come meanwhile share it


@dataclass(frozen=True, slots=True)
class _Kept:
    base: int
    next: int
    body: bytes


class LogProducer:
    """One partition.

    Args:
        topic: The topic; also the subject of every message.
        address: Name of the partition.
        min_acks: Stores that must hold a record before it is let go. 0: keep the newest
            ``PRODUCER_RING_BYTES`` and wait for nobody.
        journal: Batches of a former life that may not be stored yet, oldest first. None: no journal is kept.
        next_offset: Where to go on if the journal is empty.
    """

    def __init__(
        self,
        topic: str,
        address: str,
        *,
        min_acks: int = 1,
        journal: Sequence[bytes] | None = None,
        next_offset: int = 0,
    ) -> None:
        self.topic = topic
        self.address = address
        self._raw_topic = encode_topic(topic)
        self._min_acks = min_acks
        self._journaled = journal is not None
        self._subscriptions = Subscriptions()
        self._kept: deque[_Kept] = deque()
        self._answering = Answering(self._piece)
        self.kept_bytes = 0
        self.stored = next_offset  # everything before it is held by min_acks stores
        self._acks: dict[str, int] = {}  # store -> offset up to which (exclusive) it holds everything
        self._head_at = math.inf
        self._hurry = False
        # The batch being gathered. ``keys`` and the like stay None until the first record that has one.
        self.next_offset = next_offset
        self.values: list[bytes | None] = []
        self._positions: list[int] | None = None
        self._keys: list[bytes | None] | None = None
        self._headers: list[Headers] | None = None
        self._stamps: list[int | None] | None = None
        self.extras = False  # whether any of these three is not None
        self.room = BATCH_BYTES  # bytes that the batch still takes; each record counts four more than its value
        self._many = 512  # records that probably fill a batch
        for body in journal or ():
            batch = Batch.parse(body)
            self._keep(batch.base, batch.next, body)
            self.next_offset = batch.next
        if self._kept:
            self.stored = self._kept[0].base

    # -- the application ----------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Subscribe to what is meant for us."""
        if self.next_offset:
            self._head_at = now
        raw = encode_topic(self.address)
        return [Subscribe(b"K" + raw), Subscribe(b"F" + raw), Subscribe(b"A" + raw)]

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> int:
        """Add a record to the batch being gathered; returns its offset. ``flush`` publishes it.

        Raises:
            RecordTooLarge: Over ``RECORD_BYTES_MAX``; nothing was added.
            UsageError: Headers or a timestamp that cannot be carried; nothing was added.
        """
        size = 0 if value is None else len(value)
        if self.extras or key is not None or headers or timestamp is not None or size > BATCH_BYTES:
            size = self._append_extras(size, key, headers, timestamp)
        self.values.append(value)
        self.room -= size + 4
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def append_many(self, values: Sequence[bytes], start: int) -> int:
        """Add records with values only, from index ``start`` on; nothing may be pending.

        Takes about as many as fill a batch, at least one, and returns the index after the last one taken. Call
        ``flush`` and go on with the rest.

        Raises:
            RecordTooLarge: As ``append``.
        """
        assert not self.values
        part = values[start : start + self._many]
        positions = list(accumulate(map(len, part), initial=0))
        size = positions[-1] + 4 * len(part)
        self._many = min(max(1, len(part) * BATCH_BYTES // size), BATCH_RECORDS_MAX // 4)
        if size > 2 * BATCH_BYTES:
            self.append(values[start])
            return start + 1
        self.values = list(part)
        self._positions = positions
        self.room = BATCH_BYTES - size
        self.next_offset += len(part)
        return start + len(part)

    @property
    def full(self) -> bool:
        """Whether the batch being gathered is to be flushed before more is added."""
        return self.room <= 0

    @property
    def pending(self) -> bool:
        """Whether records wait for ``flush``."""
        return bool(self.values)

    def flush(self, now: float, wall_us: int) -> list[Action]:
        """Publish the batch being gathered; ``wall_us`` becomes the time of records that came without one."""
        values = self.values
        if not values:
            return []
        base = self.next_offset - len(values)
        stamps = None
        if self._stamps is not None:
            stamps = [wall_us if stamp is None else stamp for stamp in self._stamps]
        body = encode_batch(
            base, values, wall_us, timestamps=stamps, keys=self._keys, headers=self._headers, positions=self._positions
        )
        self.values = []
        self._positions = self._keys = self._headers = self._stamps = None
        self.extras = False
        self.room = BATCH_BYTES
        return self._publish(base, body, values, now)

    def append_batch(self, raw: bytes, now: float) -> list[Action]:
        """Publish records that are a batch already; nothing may be pending. They get the offsets that come next.

        Raises:
            ProtocolError: It is not a batch; nothing was added.
        """
        assert not self.values
        base = self.next_offset
        body = rebase(raw, base)
        batch = Batch.parse(body, check=False)
        self.next_offset = base + batch.count
        values = batch.values() if self._subscriptions.originals(self._raw_topic) else []
        return self._publish(base, body, values, now)

    def hurry(self, now: float, waiting: bool) -> None:
        """Somebody waits for acknowledgements (or no longer): HEAD goes out more often."""
        self._hurry = waiting
        if waiting:
            self._head_at = min(self._head_at, now + HEAD_HURRY_S)

    # -- the world ----------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """A listener came or went."""
        self._subscriptions.change(prefix, on)
        if on and self.next_offset and (prefix[:1] == b"R" or prefix in (b"M", b"")):
            # Not a single original consumer: its first FETCH may go nowhere so early, and it never repeats it.
            self._head_at = min(self._head_at, now + GREET_S)
        return []

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """An acknowledgement or a request for what somebody missed."""
        match message:
            case Stored(topic, store, subject, sequence) if topic == self.address and subject == self.topic:
                return self._acknowledged(store, sequence + 1)
            case Ack(topic, subject, sequence) if topic == self.address and subject == self.topic:
                return self._acknowledged(ORIGINAL_STORES, sequence + 1)
            case Fetch(topic, requester, subject, first, count) if topic == self.address and subject == self.topic:
                if self._subscriptions.has(b"S" + encode_topic(requester)):
                    return self._answer(requester, first, min(count, FETCH_RECORDS_MAX))
                if self._subscriptions.original(encode_topic(requester)):
                    return self._answering.fetch(message, now)
        return []

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A member left."""
        self._answering.gone(address)
        return []

    def handle_timeout(self, now: float) -> list[Action]:
        """Send HEAD when it is due, and the next piece of an answer."""
        actions = self._answering.serve(now) if now >= self._answering.due else []
        if now < self._head_at or not self.next_offset:
            return actions
        waiting = self._hurry and self.stored < self.next_offset
        self._head_at = now + (HEAD_HURRY_S if waiting else HEAD_INTERVAL_S)
        published = self.next_offset - len(self.values)
        if published:
            actions.append(Publish(Head(self.topic, self.address, self.topic, published - 1)))
        return actions

    def next_timeout(self) -> float:
        """When something is to be sent."""
        return min(self._head_at, self._answering.due)

    # -- inside ---------------------------------------------------------------------------------------

    def _append_extras(self, size: int, key: bytes | None, headers: Headers, timestamp: int | None) -> int:
        """Put what is not a value into its column; returns the size of the whole record."""
        size += (len(key) if key else 0) + (len(encode_headers(headers)) if headers else 0)
        if size > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"the record has {size} bytes, at most {RECORD_BYTES_MAX} are possible")
        if timestamp is not None and not -(1 << 63) <= timestamp < 1 << 63:
            raise UsageError(f"the timestamp {timestamp} is out of range: microseconds since 1970 are wanted")
        before = len(self.values)
        if key is not None and self._keys is None:
            self._keys = [None] * before
        if headers and self._headers is None:
            self._headers = [()] * before
        if timestamp is not None and self._stamps is None:
            self._stamps = [None] * before
        self.extras = not (self._keys is None and self._headers is None and self._stamps is None)
        if self._keys is not None:
            self._keys.append(key)
        if self._headers is not None:
            self._headers.append(headers)
        if self._stamps is not None:
            self._stamps.append(timestamp)
        return size

    def _publish(self, base: int, body: bytes, values: Sequence[bytes | None], now: float) -> list[Action]:
        """Keep a batch and send it; ``values`` are those in it, needed where originals listen."""
        self._keep(base, self.next_offset, body)
        self._head_at = min(self._head_at, now + HEAD_INTERVAL_S)
        actions: list[Action] = [Persist(body)] if self._journaled else []
        actions.append(Publish(BatchMessage(self.topic, self.address, self.topic, body)))
        if self._subscriptions.originals(self._raw_topic):
            actions += [
                Publish(RecordMessage(self.topic, self.address, self.topic, base + index, value or b""))
                for index, value in enumerate(values)
            ]
        return actions

    def _keep(self, base: int, next_: int, body: bytes) -> None:
        self._kept.append(_Kept(base, next_, body))
        self.kept_bytes += len(body)
        if self._min_acks == 0:
            while self.kept_bytes > PRODUCER_RING_BYTES and len(self._kept) > 1:
                self._drop_oldest()
            self.stored = next_

    def _drop_oldest(self) -> None:
        self.kept_bytes -= len(self._kept.popleft().body)

    def _acknowledged(self, store: str, next_: int) -> list[Action]:
        """``next_`` is the offset after the last one that the store holds."""
        if self._min_acks == 0 or next_ > self.next_offset or next_ <= self._acks.get(store, 0):
            return []
        self._acks[store] = next_
        held = sorted(self._acks.values(), reverse=True)
        if len(held) < self._min_acks or held[self._min_acks - 1] <= self.stored:
            return []
        self.stored = held[self._min_acks - 1]
        dropped = False
        while self._kept and self._kept[0].next <= self.stored:
            self._drop_oldest()
            dropped = True
        return [Trim(self.stored)] if self._journaled and dropped else []

    def _answer(self, requester: str, first: int, count: int) -> list[Action]:
        """What is kept of the wanted range, at most ``READ_BYTES_MAX`` and at least one batch.

        If the wanted offset is no longer kept the answer starts at the first one that is: the requester then
        knows that the rest is to be had from stores only.
        """
        actions: list[Action] = []
        size = 0
        if not self._kept:
            return []
        first = max(first, self._kept[0].base)
        last = first + count
        for kept in self._kept:
            if kept.next <= first:
                continue
            if kept.base >= last or size >= READ_BYTES_MAX:
                break
            size += len(kept.body)
            actions.append(Publish(BatchMessage(requester, self.address, self.topic, kept.body, direct=True)))
        return actions

    def _piece(self, wanted: Fetch, limit: int) -> tuple[list[Action], int]:
        """Single records for an original, and the offset to go on from.

        What is no longer kept is not answered at all: an original would take what follows for a gap and ask again.
        """
        actions: list[Action] = []
        offset = wanted.sequence
        last = offset + limit
        if not self._kept or offset < self._kept[0].base:
            return actions, offset
        for kept in self._kept:
            if kept.next <= offset:
                continue
            if kept.base >= last:
                break
            for record in Batch.parse(kept.body, check=False).records(self.topic, self.address, offset):
                if record.offset >= last:
                    break
                value = record.value or b""
                actions.append(
                    Publish(RecordMessage(wanted.address, self.address, self.topic, record.offset, value, True))
                )
                offset = record.offset + 1
        return actions, offset
