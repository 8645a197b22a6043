"""A store: writes every partition it hears of to disk, acknowledges, and answers who missed something.

What arrived is gathered until the disk takes it (``writing``); an acknowledgement leaves only after the write that
covers it. What was missed is fetched from its producer and from other stores (``recovery``); what was damaged is read
again from other stores (``damage``).

Source: Dafka's store, writer and reader in one node. Departures: acknowledgements mean "on disk"; a repeated
HEAD is acknowledged again; stores fetch from each other; answers are exact, bounded, and continue past 100,000.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Final

from chappe.core import Report
from chappe.data.topic import encode_topic
from chappe.defaults import RECORD_BYTES_MAX, RETRY_S
from chappe.errors import ChappeError, ProtocolError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.actions import Action, Publish, Subscribe
from chappe.log.answering import Answering
from chappe.log.batch import Batch, encode_batch
from chappe.log.damage import Damage
from chappe.log.events import DamageHealed, ScrubEnded
from chappe.log.exactly_once.staged import Intent, Kept
from chappe.log.exactly_once.transactions import Transactions
from chappe.log.healing import Healer
from chappe.log.messages import (
    Ack,
    BatchMessage,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
)
from chappe.log.queries import Answer, HeadsAnswer, HeadsRequest, ReadRequest, Request, SeekRequest
from chappe.log.recovery import Recovery
from chappe.log.serving import answer_fetch, answer_heads, answer_query
from chappe.log.storage import LogStorage
from chappe.log.streams import Key, Stream
from chappe.log.subscriptions import Subscriptions, address_in
from chappe.log.unfilled import Unfilled
from chappe.log.writing import Writer

GREET_S: Final = 0.005  # newcomers within this time share one STORE-INFO ...
INFO_S: Final = 5.0  # ... which is repeated this often: who was too slow for the first one must not miss us for ever


class LogStore:
    """The state of one store.

    Args:
        address: Our own address.
        storage: Where records are kept.
        endpoint: Our query socket, as others reach it.
        kept: The sinks and staged rows that were found on disk.
        limits: How much is kept and asked for.
    """

    def __init__(
        self,
        address: str,
        storage: LogStorage,
        endpoint: str,
        *,
        now: float,
        kept: Kept | None = None,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self._limits = limits
        self.address = address
        self.storage = storage
        self.endpoint = endpoint
        self._subscriptions = Subscriptions()
        self._healer = Healer(limits)
        self._unfilled = Unfilled(limits)
        self._writer = Writer(storage, limits, now=now)
        self._recovery = Recovery(
            address, self._writer, self._healer, self._unfilled, self._subscriptions, limits, now=now
        )
        self._damage = Damage(storage, self._healer, self._writer, limits, now=now)
        self._answering = Answering(partial(answer_fetch, storage, limits), limits)
        self.transactions = Transactions(storage.store_id, kept or Kept(), self._writer.next_offset, limits, now=now)
        self._info_at = math.inf
        self.written_records = 0
        self.written_bytes = 0
        self.duplicates = 0

    # -- the application ------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Subscribe to everything that is published and to what is meant for us."""
        raw = encode_topic(self.address)
        # S before W and D: who hears of these alone takes us for an original. M before R: this takes that back.
        prefixes = [b"M", b"R", b"H", b"F", b"G", b"I", b"S" + raw, b"W" + raw, b"D" + raw, b"E" + raw]
        holes = self.storage.holes()
        for hole in holes:
            self._unfilled.miss((hole.topic, hole.partition), hole.first, hole.last + 1)
        return [*(Subscribe(prefix) for prefix in prefixes), *self._damage.found(holes)]

    @property
    def paused(self) -> bool:
        """Whether so much waits for the disk that nothing more should be received."""
        return self._writer.paused

    @property
    def refusing(self) -> bool:
        """Whether the disk refused the last write."""
        return self._writer.refused

    # -- the world ----------------------------------------------------------------------------------------

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        """A listener came or went: consumers and stores are told that we exist."""
        self._subscriptions.change(prefix, on)
        if on and prefix[:1] == b"I":
            self._info_at = min(self._info_at, now + GREET_S)
        if on and prefix == b"G":
            return [Publish(GetHeads("", self.address))]  # only original stores answer; ours are asked by query
        consumer = address_in(prefix) if on and prefix[:1] == b"L" else None
        return [Publish(StoreHello(consumer, self.address))] if consumer else []

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        """Something a member published. Raises ProtocolError for a batch that is none."""
        match message:
            case BatchMessage(_, partition, topic, body, direct) if topic and partition:
                key, batch = (topic, partition), Batch.parse(body)
                filling = self._recovery.fill(key, batch, now) if direct else []
                return filling + self._arrived(key, batch, now, live=not direct)
            case RecordMessage(_, partition, topic, sequence, content, direct) if topic and partition:
                return self._record((topic, partition), sequence, content, now, wall_us, live=not direct)
            case Head(_, partition, topic, sequence) if topic and partition and sequence < (1 << 63) - 1:
                return self._heard_head((topic, partition), sequence + 1, now)
            case Fetch(_, requester, _, _, _) if requester != self.address:
                if not self._subscriptions.original(encode_topic(requester)):
                    return []  # a member of chappe asks us by query; this one is meant for the producer
                # As the original store, which sends one record if none is asked for.
                return self._answering.fetch(replace(message, count=max(message.count, 1)), now)
            case GetHeads(prefix, requester):
                if self._subscriptions.has(b"S" + encode_topic(requester)):
                    return []
                return answer_heads(self.storage, prefix, requester)
            case ConsumerHello(topic, requester, subjects) if topic == self.address:
                return [each for subject in subjects for each in answer_heads(self.storage, subject, requester)]
            case StoreInfo(_, store, _, endpoint) if store != self.address:
                self._healer.found(store, endpoint, now)
                return self._healer.polls(now)
        return []

    def handle_query(
        self, client: bytes, request_id: bytes, request: Request, now: float, payload: bytes = b""
    ) -> list[Action]:
        """A request on the query socket; ``payload`` is its third frame, if it has one."""
        if not isinstance(request, ReadRequest | HeadsRequest | SeekRequest):
            return self.transactions.handle_request(client, request_id, request, payload, now)
        reply, hole = answer_query(self.storage, self._limits, client, request_id, request)
        return [reply, *self._damage.found([hole] if hole else [])]

    def handle_answer(self, request_id: int, answer: Answer, batches: list[bytes], now: float) -> list[Action]:
        """Another store answered. Raises ProtocolError for a batch that is none."""
        asked = self._healer.answered(request_id)
        if asked is None:
            return []
        if isinstance(answer, HeadsAnswer):
            return self._recovery.listed(asked.store, answer, now)
        if asked.hole is not None:
            return self._damage.answered(asked.store, asked.hole, answer, batches, now)
        if asked.key is None:
            return []
        actions: list[Action] = []
        for batch in self._recovery.read(asked.store, asked.key, answer, batches, now):
            actions += self._arrived(asked.key, batch, now, live=False)
        return actions + self._recovery.catch_up(now)

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A member left."""
        self._answering.gone(address)
        self._recovery.unanswered(self._healer.gone(address))
        return self._recovery.catch_up(now)

    def handle_written(self, now: float) -> list[Action]:
        """The write that was asked for is on disk and readable: acknowledge it, and start the next."""
        actions = self._writer.resume()
        ends: dict[Key, int] = {}
        for append in self._writer.written():
            self.written_records += append.count
            self.written_bytes += len(append.body)
            key = (append.topic, append.partition)
            if append.heal:
                actions.append(Report(DamageHealed(*key, append.base, append.base + append.count - 1)))
                if self._unfilled.filled(key, append.base, append.base + append.count):
                    ends.setdefault(key, self._writer.stored(key))
            else:
                ends[key] = append.base + append.count
        for key, end in ends.items():
            actions += self._acknowledge(key, end)
            self._healer.caught_up(key, end)
            self._writer.settle(key)
        return actions + self._writer.write(now)

    def handle_write_failed(self, reason: str, now: float) -> list[Action]:
        """The disk refused the write: forget what was received and not stored; it is fetched again later."""
        for key, first, end in self._writer.forget(now):
            self._unfilled.filled(key, first, end)  # it is asked for again
        return self._writer.refuse(reason)

    def handle_transacted(self, ticket: int, outcome: Intent | ChappeError | None, now: float) -> list[Action]:
        """A job of a sink ended; the records of a commit are readable."""
        actions = self.transactions.handle_done(ticket, outcome, now)
        if not isinstance(outcome, Intent):
            return actions
        if now >= self._writer.refusing_until:
            actions += self._writer.resume()
        for topic, partition, first, end in outcome.ranges:
            key = (topic, partition)
            self.written_records += end - first
            self._healer.caught_up(key, end)
            self._writer.transacted(key, end)
        return actions

    def handle_commit_waits(self, reason: str, now: float) -> list[Action]:
        """The disk refuses what a commit has decided; it is tried again, and nothing else is written meanwhile."""
        return self._writer.refuse(reason)

    def handle_scrubbed(self, ended: ScrubEnded | None, now: float) -> list[Action]:
        """A scrub found something, or has read everything."""
        return [*self._damage.found(self.storage.holes()), *([Report(ended)] if ended else [])]

    def handle_retained(self, now: float) -> list[Action]:
        """Retention ran; it runs again later."""
        self._writer.retained(now)
        for key in self._unfilled:
            info = self.storage.partition(*key)
            self._unfilled.gone(key, 0 if info is None else info.first)
        return []

    def handle_timeout(self, now: float) -> list[Action]:
        """Do what is due: tell newcomers of us, ask again, heal, keep the retention."""
        actions: list[Action] = []
        if now >= self._info_at:
            self._info_at = now + INFO_S
            actions.append(Publish(StoreInfo("", self.address, self.storage.store_id, self.endpoint)))
        actions += self._writer.retain(now)
        self._recovery.unanswered(self._healer.overdue(now))
        actions += self._healer.polls(now)
        if now >= self._damage.due:
            actions += self._damage.look(now)
        if now >= self._answering.due:
            actions += self._answering.serve(now)
        if now >= self.transactions.next_timeout():
            actions += self.transactions.handle_timeout(now)
        return actions + self._recovery.catch_up(now) + self._writer.write(now)

    def next_timeout(self) -> float:
        """When something is due."""
        due = min(self._info_at, self._damage.due, self._healer.next_timeout(), self._answering.due)
        return min(due, self.transactions.next_timeout(), self._writer.next_timeout(), self._recovery.next_timeout())

    # -- inside: receiving ----------------------------------------------------------------------------

    def _arrived(self, key: Key, batch: Batch, now: float, *, live: bool) -> list[Action]:
        writer = self._writer
        if batch.base and writer.too_many(key):
            return []
        stream = writer.stream(key)
        if live:
            stream.active_at = now
        elif stream.next < stream.fetched:
            stream.retry_at = now + RETRY_S  # the answer is on its way
        if batch.next <= stream.next:
            self.duplicates += 1
            return self._again(key, stream)
        if now < writer.refusing_until:
            writer.lag(key, stream, batch.next)
            return []
        if batch.base > stream.next:
            return self._early(key, stream, batch, now, live=live)
        writer.stage(key, stream, batch)
        return writer.go_on(key, stream, now)

    def _record(self, key: Key, sequence: int, content: bytes, now: float, wall_us: int, *, live: bool) -> list[Action]:
        """A single record of an original producer."""
        if len(content) > RECORD_BYTES_MAX:
            raise ProtocolError(f"record of {len(content)} bytes")
        writer = self._writer
        if not live and self._unfilled.tries(key) and 0 <= sequence < writer.stored(key):
            batch = Batch.parse(encode_batch(sequence, [content], wall_us), check=False)
            return self._recovery.fill(key, batch, now)
        stream = writer.stream(key)
        if sequence != stream.next or stream.held or now < writer.refusing_until:
            if sequence >= (1 << 63) - 1:
                raise ProtocolError(f"record with the sequence {sequence}")
            return self._arrived(key, Batch.parse(encode_batch(sequence, [content], wall_us)), now, live=live)
        if live:
            stream.active_at = now
        elif stream.next < stream.fetched:
            stream.retry_at = now + RETRY_S  # the answer is on its way
        return writer.take_record(key, stream, content, now, wall_us)

    def _early(self, key: Key, stream: Stream, batch: Batch, now: float, *, live: bool) -> list[Action]:
        """A batch beyond a gap: keep it if there is room, and ask for what is missing."""
        if not live and not 0 < stream.kept_from < batch.base:
            stream.kept_from = batch.base
        self._writer.hold(stream, batch)
        self._writer.lag(key, stream, batch.next)
        return self._recovery.recover(key, stream, now)

    def _heard_head(self, key: Key, head: int, now: float) -> list[Action]:
        if self._writer.too_many(key):
            return []
        stream = self._writer.stream(key)
        stream.active_at = now
        asking = self._recovery.ask_to_fill(key, now)
        if head <= stream.next:
            return asking + self._again(key, stream)
        stream.said = max(stream.said, head)
        self._writer.lag(key, stream, head)
        return asking + self._recovery.recover(key, stream, now)

    def _again(self, key: Key, stream: Stream) -> list[Action]:
        """What we have was sent or announced again: the acknowledgement may have been lost."""
        stored = self._writer.stored(key)
        self._writer.tidy(key, stream)
        return self._acknowledge(key, stored)

    def _acknowledge(self, key: Key, end: int) -> list[Action]:
        topic, partition = key
        end = self._unfilled.limit(key, end)
        if end == 0:
            return []
        if self._subscriptions.has(b"A" + encode_topic(partition)):
            return [Publish(Stored(partition, self.storage.store_id, topic, end - 1))]
        return [Publish(Ack(partition, topic, end - 1))]
