"""A store: writes every partition it hears of to disk, acknowledges, and answers who missed something.

Everything that arrived while one write ran goes into the next: one fsync for all of it. An acknowledgement
leaves only after the write that covers it. What was missed is fetched from its producer and from other stores;
what was damaged is read again from other stores.

Source: Dafka's store, writer and reader in one node. Departures: acknowledgements mean "on disk"; a repeated
HEAD is acknowledged again; stores fetch from each other; answers are exact, bounded, and continue past 100,000.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from chappe.core import Report
from chappe.data.topic import encode_topic
from chappe.defaults import (
    DISK_RETRY_S,
    FETCH_RECORDS_MAX,
    HELD_BYTES_MAX,
    MAINTAIN_S,
    POLL_HEADS_S,
    RECORD_BYTES_MAX,
    RETRY_S,
    STAGED_BYTES_MAX,
)
from chappe.errors import ChappeError, ProtocolError
from chappe.log.actions import Action, Publish, Retain, Subscribe, Write
from chappe.log.answering import Answering
from chappe.log.batch import Batch, encode_batch
from chappe.log.events import DamageFound, DamageHealed, RecordsLost, WritesRefused, WritesResumed
from chappe.log.healing import Asked, Healer
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
from chappe.log.queries import Answer, HeadsAnswer, HeadsRequest, ReadAnswer, ReadRequest, Request, SeekRequest
from chappe.log.serving import answer_fetch, answer_heads, answer_query
from chappe.log.staged import Intent, Kept
from chappe.log.staging import Key, Stream
from chappe.log.storage import Append, Hole, LogStorage
from chappe.log.subscriptions import Subscriptions, address_in
from chappe.log.transactions import Transactions
from chappe.log.unfilled import Unfilled

GIVE_UP_TRIES: Final = 6  # FETCHes without an answer before a gap that nobody can fill is accepted ...
GIVE_UP_S: Final = 60.0  # ... and so long, where its producer or a store that restarts may still fill it
SILENT_S: Final = 5.0  # a producer not heard for this long is gone
QUIET_S: Final = 1.0  # a partition whose producer spoke this lately is not fetched from other stores
CATCH_UP_S: Final = 0.05  # how often partitions that miss something are looked at ...
LOOK_MAX: Final = 256  # ... and how many of them at once
GREET_S: Final = 0.005  # newcomers within this time share one STORE-INFO ...
INFO_S: Final = 5.0  # ... which is repeated this often: who was too slow for the first one must not miss us for ever


class LogStore:
    """The state of one store.

    Args:
        address: Our own address.
        storage: Where records are kept.
        endpoint: Our query socket, as others reach it.
        kept: The sinks and staged rows that were found on disk.
    """

    def __init__(
        self, address: str, storage: LogStorage, endpoint: str, *, now: float, kept: Kept | None = None
    ) -> None:
        self.address = address
        self.storage = storage
        self.endpoint = endpoint
        self._subscriptions = Subscriptions()
        self._healer = Healer()
        self._unfilled = Unfilled()
        self._answering = Answering(partial(answer_fetch, storage))
        self.transactions = Transactions(storage.store_id, kept or Kept(), self._next_offset, now=now)
        self._streams: dict[Key, Stream] = {}
        self._dirty: dict[Key, None] = {}  # streams with something staged
        self._lagging: dict[Key, None] = {}  # streams that miss something
        self._heals: list[Append] = []
        self._in_flight: tuple[Append, ...] = ()
        self._staged_bytes = 0
        self._held_bytes = 0
        self._refusing_until = -math.inf
        self._refused = False
        self._info_at = math.inf
        self._maintain_at = now + MAINTAIN_S
        self._holes_at = now
        self._hole_turn = 0
        self._catch_up_at = now
        self._reported: set[tuple[str, str, int, int]] = set()
        self.written_records = 0
        self.written_bytes = 0
        self.duplicates = 0

    # -- the application ------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Subscribe to everything that is published and to what is meant for us."""
        raw = encode_topic(self.address)
        prefixes = [b"M", b"R", b"H", b"F", b"G", b"I", b"W" + raw, b"D" + raw, b"E" + raw, b"S" + raw]
        holes = self.storage.holes()
        for hole in holes:
            self._unfilled.miss((hole.topic, hole.partition), hole.first, hole.last + 1)
        return [*(Subscribe(prefix) for prefix in prefixes), *self._found_damage(holes)]

    @property
    def paused(self) -> bool:
        """Whether so much waits for the disk that nothing more should be received."""
        return self._staged_bytes >= STAGED_BYTES_MAX

    @property
    def refusing(self) -> bool:
        """Whether the disk refused the last write."""
        return self._refused

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
                filling = self._fill(key, batch, now) if direct else []
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
        reply, hole = answer_query(self.storage, client, request_id, request)
        return [reply, *self._found_damage([hole] if hole else [])]

    def handle_answer(self, request_id: int, answer: Answer, batches: list[bytes], now: float) -> list[Action]:
        """Another store answered. Raises ProtocolError for a batch that is none."""
        asked = self._healer.answered(request_id)
        if asked is None:
            return []
        if isinstance(answer, HeadsAnswer):
            for info in self._healer.news(asked.store, answer, now):
                key = (info.topic, info.partition)
                if self._healer.note(asked.store, key, info.first, info.next, self._stored(key)):
                    self._lag(key, self._stream(key), info.next)
            return self._catch_up(now)
        if asked.hole is not None:
            hole = asked.hole
            healing = self._healed(hole, [Batch.parse(raw) for raw in batches], now)
            if isinstance(answer, ReadAnswer) and not batches and hole.first <= answer.hole_last < hole.last:
                rest = replace(hole, first=answer.hole_last + 1)  # damaged there too, but not all of it
                healing += self._healer.heal(rest, now, asked.store)
            return healing
        if asked.key is None:
            return []
        stream = self._stream(asked.key)
        stream.reading = False
        try:
            parsed = [Batch.parse(raw) for raw in batches]
        except ProtocolError:
            stream.tries += 1
            stream.retry_at = now + RETRY_S
            raise
        if not isinstance(answer, ReadAnswer) or not batches:
            stream.tries += 1
            stream.retry_at = now + RETRY_S
            if isinstance(answer, ReadAnswer):
                stream.damaged = stream.damaged or answer.hole_last >= 0
                first = max(answer.first, answer.hole_last + 1)  # what is damaged there must come from elsewhere
                self._healer.note(asked.store, asked.key, first, answer.next, self._stored(asked.key))
            return self._catch_up(now)
        actions: list[Action] = []
        for batch in parsed:
            actions += self._arrived(asked.key, batch, now, live=False)
        return actions + self._catch_up(now)

    def handle_gone(self, address: str, now: float) -> list[Action]:
        """A member left."""
        self._answering.gone(address)
        self._unanswered(self._healer.gone(address))
        return self._catch_up(now)

    def handle_written(self, now: float) -> list[Action]:
        """The write that was asked for is on disk and readable: acknowledge it, and start the next."""
        done, self._in_flight = self._in_flight, ()
        actions: list[Action] = []
        if self._refused:
            self._refused = False
            actions.append(Report(WritesResumed()))
        ends: dict[Key, int] = {}
        for append in done:
            self._staged_bytes -= len(append.body)
            self.written_records += append.count
            self.written_bytes += len(append.body)
            key = (append.topic, append.partition)
            if append.heal:
                actions.append(Report(DamageHealed(*key, append.base, append.base + append.count - 1)))
                if self._unfilled.filled(key, append.base, append.base + append.count):
                    ends.setdefault(key, self._stored(key))
            else:
                ends[key] = append.base + append.count
        for key, end in ends.items():
            actions += self._acknowledge(key, end)
            self._healer.caught_up(key, end)
            stream = self._streams.get(key)
            if stream is not None:
                stream.writing = False
                self._tidy(key, stream)
        return actions + self._write(now)

    def handle_write_failed(self, reason: str, now: float) -> list[Action]:
        """The disk refused the write: forget what was received and not stored; it is fetched again later."""
        failed, self._in_flight = self._in_flight, ()
        for append in failed:
            key = (append.topic, append.partition)
            stream = self._streams.get(key)
            if stream is not None and not append.heal:
                stream.writing = False
        for key, stream in list(self._streams.items()):
            head = stream.next
            self._drop_held(stream)
            stream.staged.clear()
            stream.records.clear()
            stream.next = self._stored(key)
            self._unfilled.filled(key, stream.next, max(head, stream.next))  # it is asked for again
            self._lag(key, stream, head)
            stream.retry_at = now + DISK_RETRY_S
        self._dirty.clear()
        self._heals.clear()
        self._staged_bytes = 0
        self._refusing_until = now + DISK_RETRY_S
        if self._refused:
            return []
        self._refused = True
        return [Report(WritesRefused(reason))]

    def handle_transacted(self, ticket: int, outcome: Intent | ChappeError | None, now: float) -> list[Action]:
        """A job of a sink ended; the records of a commit are readable."""
        actions = self.transactions.handle_done(ticket, outcome, now)
        if not isinstance(outcome, Intent):
            return actions
        if self._refused and now >= self._refusing_until:
            self._refused = False
            actions.append(Report(WritesResumed()))
        for topic, partition, first, end in outcome.ranges:
            key = (topic, partition)
            self.written_records += end - first
            self._healer.caught_up(key, end)
            stream = self._streams.get(key)
            if stream is not None:
                stream.next = max(stream.next, end)
                self._tidy(key, stream)
        return actions

    def handle_commit_waits(self, reason: str, now: float) -> list[Action]:
        """The disk refuses what a commit has decided; it is tried again, and nothing else is written meanwhile."""
        if self._refused:
            return []
        self._refused = True
        return [Report(WritesRefused(reason))]

    def handle_retained(self, now: float) -> list[Action]:
        """Retention ran; it runs again later."""
        self._maintain_at = now + MAINTAIN_S
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
        if now >= self._maintain_at:
            self._maintain_at = math.inf
            actions.append(Retain())
        self._unanswered(self._healer.overdue(now))
        actions += self._healer.polls(now)
        if now >= self._holes_at:
            self._holes_at = now + POLL_HEADS_S
            holes = self.storage.holes()
            actions += self._found_damage(holes)
            turn, self._hole_turn = self._hole_turn % max(1, len(holes)), self._hole_turn + 4
            for hole in (holes[turn:] + holes[:turn])[:4]:
                actions += self._healer.heal(hole, now)
        if now >= self._answering.due:
            actions += self._answering.serve(now)
        if now >= self.transactions.next_timeout():
            actions += self.transactions.handle_timeout(now)
        return actions + self._catch_up(now) + self._write(now)

    def next_timeout(self) -> float:
        """When something is due."""
        due = min(self._info_at, self._maintain_at, self._holes_at, self._healer.next_timeout(), self._answering.due)
        due = min(due, self.transactions.next_timeout())
        if self._lagging:
            due = min(due, self._catch_up_at)
        if self._dirty and not self._in_flight:
            due = min(due, self._refusing_until)
        return due

    # -- inside: receiving ----------------------------------------------------------------------------

    def _stored(self, key: Key) -> int:
        info = self.storage.partition(*key)
        return 0 if info is None else info.next

    def _next_offset(self, topic: str, partition: str) -> int:
        """The next offset of a partition, counting what was received and is not stored yet."""
        stream = self._streams.get((topic, partition))
        return max(self._stored((topic, partition)), 0 if stream is None else stream.next)

    def _stream(self, key: Key) -> Stream:
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(self._stored(key))
        return stream

    def _tidy(self, key: Key, stream: Stream) -> None:
        """Forget a stream of which the storage knows everything."""
        if not stream.behind:
            self._lagging.pop(key, None)
        if stream.idle:
            del self._streams[key]

    def _arrived(self, key: Key, batch: Batch, now: float, *, live: bool) -> list[Action]:
        stream = self._stream(key)
        if live:
            stream.active_at = now
        elif stream.next < stream.fetched:
            stream.retry_at = now + RETRY_S  # the answer is on its way
        if batch.next <= stream.next:
            self.duplicates += 1
            return self._again(key, stream)
        if now < self._refusing_until:
            self._lag(key, stream, batch.next)
            return []
        if batch.base > stream.next:
            return self._early(key, stream, batch, now, live=live)
        self._stage(key, stream, batch)
        return self._filled(key, stream, now)

    def _record(self, key: Key, sequence: int, content: bytes, now: float, wall_us: int, *, live: bool) -> list[Action]:
        """A single record of an original producer."""
        if len(content) > RECORD_BYTES_MAX:
            raise ProtocolError(f"record of {len(content)} bytes")
        if not live and self._unfilled.tries(key) and 0 <= sequence < self._stored(key):
            batch = Batch.parse(encode_batch(sequence, [content], wall_us), check=False)
            return self._fill(key, batch, now)
        stream = self._stream(key)
        if sequence != stream.next or stream.held or now < self._refusing_until:
            if sequence >= (1 << 63) - 1:
                raise ProtocolError(f"record with the sequence {sequence}")
            return self._arrived(key, Batch.parse(encode_batch(sequence, [content], wall_us)), now, live=live)
        if live:
            stream.active_at = now
        elif stream.next < stream.fetched:
            stream.retry_at = now + RETRY_S  # the answer is on its way
        stream.stage_record(content, wall_us)
        stream.head = max(stream.head, stream.next)
        stream.tries = 0
        if stream.next >= stream.fetched:
            stream.retry_at = 0.0
        self._staged_bytes += len(content)
        self._dirty[key] = None
        return self._filled(key, stream, now)

    def _stage(self, key: Key, stream: Stream, batch: Batch) -> None:
        stream.stage(batch)
        stream.head = max(stream.head, stream.next)
        stream.tries = 0
        if stream.next >= stream.fetched:
            stream.retry_at = 0.0
        self._staged_bytes += len(batch.raw)
        self._dirty[key] = None

    def _filled(self, key: Key, stream: Stream, now: float) -> list[Action]:
        """Something was staged: take what was held behind it, and write."""
        while stream.held and stream.held[0].base <= stream.next:
            held = stream.held.popleft()
            self._held_bytes -= len(held.raw)
            if held.next > stream.next:
                self._stage(key, stream, held)
        if not stream.behind:
            self._lagging.pop(key, None)
        return self._write(now)

    def _early(self, key: Key, stream: Stream, batch: Batch, now: float, *, live: bool) -> list[Action]:
        """A batch beyond a gap: keep it if there is room, and ask for what is missing."""
        size = len(batch.raw)
        if not live and not 0 < stream.kept_from < batch.base:
            stream.kept_from = batch.base
        if self._held_bytes + size <= HELD_BYTES_MAX and not (stream.held and batch.base < stream.held[-1].next):
            stream.held.append(batch)
            self._held_bytes += size
        self._lag(key, stream, batch.next)
        return self._recover(key, stream, now)

    def _drop_held(self, stream: Stream) -> None:
        self._held_bytes -= sum(len(batch.raw) for batch in stream.held)
        stream.held.clear()

    def _heard_head(self, key: Key, head: int, now: float) -> list[Action]:
        stream = self._stream(key)
        stream.active_at = now
        asking = self._ask_to_fill(key, now)
        if head <= stream.next:
            return asking + self._again(key, stream)
        stream.said = max(stream.said, head)
        self._lag(key, stream, head)
        return asking + self._recover(key, stream, now)

    def _again(self, key: Key, stream: Stream) -> list[Action]:
        """What we have was sent or announced again: the acknowledgement may have been lost."""
        stored = self._stored(key)
        self._tidy(key, stream)
        return self._acknowledge(key, stored)

    def _acknowledge(self, key: Key, end: int) -> list[Action]:
        topic, partition = key
        end = self._unfilled.limit(key, end)
        if end == 0:
            return []
        if self._subscriptions.has(b"A" + encode_topic(partition)):
            return [Publish(Stored(partition, self.storage.store_id, topic, end - 1))]
        return [Publish(Ack(partition, topic, end - 1))]

    # -- inside: catching up ----------------------------------------------------------------------------

    def _lag(self, key: Key, stream: Stream, head: int) -> None:
        stream.head = max(stream.head, head)
        if stream.behind:
            self._lagging[key] = None

    def _catch_up(self, now: float) -> list[Action]:
        """Ask for what is missing, wherever it is time to."""
        actions: list[Action] = []
        self._catch_up_at = max(now + CATCH_UP_S, self._refusing_until)
        if now < self._refusing_until or self.paused:
            return actions
        for key in list(islice(self._lagging, LOOK_MAX)):
            del self._lagging[key]
            stream = self._streams.get(key)
            if stream is None or not stream.behind:
                continue
            self._lagging[key] = None  # behind the others, so that everybody's turn comes
            if stream.held or stream.next < stream.said or now - stream.active_at > QUIET_S:
                actions += self._recover(key, stream, now)
        return actions

    def _recover(self, key: Key, stream: Stream, now: float) -> list[Action]:
        """Ask another store, or else the producer, for the next record of one partition."""
        if stream.reading or now < max(stream.retry_at, self._refusing_until) or self.paused or self._healer.busy:
            return []
        if not stream.tries:
            stream.missing_at = now
        earliest = self._healer.first(key)
        if earliest is not None and earliest > stream.next and not stream.damaged and self._unknown(key, stream):
            stream.next = earliest  # others removed what came before: begin where they begin
            if stream.held and stream.held[0].base <= stream.next:
                return self._filled(key, stream, now)
        actions = self._healer.read(key, stream.next, now, stream.tries)
        if actions:
            stream.reading = True
            stream.fetched = 0
            return actions
        answered = stream.kept_from > stream.next
        # A producer that speaks and does not answer does not hear us: what we lack it may still have.
        deaf = not answered and now - stream.active_at < SILENT_S
        gap = stream.held or earliest is not None or answered
        patient = gap and (deaf or self._healer.ever or not self._unknown(key, stream))
        if stream.tries >= GIVE_UP_TRIES and not (patient and now - stream.missing_at < GIVE_UP_S):
            return self._give_up(key, stream, earliest, now)
        # Who has just met us may not hear us yet: ask again soon.
        stream.retry_at = now + (RETRY_S if stream.tries else RETRY_S / 10)
        stream.tries += 1
        limit = stream.held[0].base if stream.held else stream.head
        count = min(limit - stream.next, FETCH_RECORDS_MAX)
        stream.fetched = stream.next + count
        stream.kept_from = 0
        self._unfilled.wait(key, now + SILENT_S)
        return [Publish(Fetch(key[1], self.address, key[0], stream.next, count))]

    def _unknown(self, key: Key, stream: Stream) -> bool:
        return not (stream.staged or stream.records or stream.writing) and self.storage.partition(*key) is None

    def _give_up(self, key: Key, stream: Stream, earliest: int | None, now: float) -> list[Action]:
        """Nobody has the next record any more: go on with what there is, or wait until somebody speaks."""
        stream.tries = 0
        stream.retry_at = 0.0
        known = (earliest, stream.kept_from, stream.held[0].base if stream.held else None)
        later = [each for each in known if each is not None]
        goal = min((each for each in later if each > stream.next), default=None)
        if goal is None and earliest is not None:
            stream.retry_at = now + RETRY_S  # a store has it that does not answer just now
            return []
        if goal is None:
            stream.head = stream.next
            self._tidy(key, stream)
            return []
        actions: list[Action] = []
        unknown = self._unknown(key, stream)
        told = goal <= max(stream.kept_from, 0 if earliest is None or stream.damaged else earliest)
        gone = told or self._original(key)
        if not unknown:
            reason = "no store or producer has them any more" if gone else "no store or producer answered for them"
            actions.append(Report(RecordsLost(key[0], key[1], stream.next, goal - 1, reason)))
        if not gone:
            self._unfilled.miss(key, stream.next, goal, now + SILENT_S)
            if unknown:
                self.storage.reset(*key, stream.next)  # so that what is missing is a hole, which can be filled
                if self._maintain_at < math.inf:
                    self._maintain_at = now  # that makes it last
        stream.next = goal
        if stream.held and stream.held[0].base == goal:
            held = stream.held.popleft()
            self._held_bytes -= len(held.raw)
            self._stage(key, stream, held)
            return actions + self._filled(key, stream, now)
        return actions + self._recover(key, stream, now)

    def _original(self, key: Key) -> bool:
        """Whether its producer hears us and is an original: it says nothing of what it has no longer."""
        raw = encode_topic(key[1])
        return self._subscriptions.has(b"F" + raw) and not self._subscriptions.has(b"A" + raw)

    def _ask_to_fill(self, key: Key, now: float) -> list[Action]:
        """A producer speaks: ask it for what nobody had when we went past it."""
        if self._unfilled.tries(key) >= GIVE_UP_TRIES and self._original(key):
            self._unfilled.gone(key, self._stored(key))
        wanted = None if now < self._refusing_until else self._unfilled.ask(key, now)
        return [] if wanted is None else [Publish(Fetch(key[1], self.address, key[0], *wanted))]

    def _fill(self, key: Key, batch: Batch, now: float) -> list[Action]:
        """Write what a producer sent of a range that was missing."""
        wanted = self._unfilled.answer(key, batch.base)
        if wanted is None:
            return []
        return self._healed(Hole(*key, wanted[0], wanted[1] - 1), [batch], now)

    def _unanswered(self, asked: list[Asked]) -> None:
        for each in asked:
            if each.key is not None and each.hole is None and each.key in self._streams:
                self._streams[each.key].reading = False

    # -- inside: damage -----------------------------------------------------------------------------------

    def _found_damage(self, holes: list[Hole]) -> list[Action]:
        actions: list[Action] = []
        for hole in holes:
            known = (hole.topic, hole.partition, hole.first, hole.last)
            if known not in self._reported:
                self._reported.add(known)
                actions.append(Report(DamageFound(*known, hole.reason)))
        return actions

    def _healed(self, hole: Hole, batches: list[Batch], now: float) -> list[Action]:
        """Another store answered for a damaged range: write what of it lies within."""
        if now < self._refusing_until:
            return []
        for batch in batches:
            first, end = max(batch.base, hole.first), min(batch.next, hole.last + 1)
            if first >= end or any(a.base <= first < a.base + a.count for a in self._pending_heals(hole)):
                continue
            body = batch.slice(first, end)
            self._heals.append(
                Append(
                    hole.topic,
                    hole.partition,
                    first,
                    end - first,
                    batch.timestamp_min,
                    batch.timestamp_max,
                    body,
                    heal=True,
                )
            )
            self._staged_bytes += len(body)
        return self._write(now)

    def _pending_heals(self, hole: Hole) -> list[Append]:
        return [
            a
            for a in (*self._heals, *self._in_flight)
            if a.heal and (a.topic, a.partition) == (hole.topic, hole.partition)
        ]

    # -- inside: writing ------------------------------------------------------------------------------------

    def _write(self, now: float) -> list[Action]:
        """Begin a write of everything staged, unless one is under way."""
        if self._in_flight or now < self._refusing_until or not (self._dirty or self._heals):
            return []
        appends: list[Append] = []
        for key in self._dirty:
            stream = self._streams[key]
            stream.writing = True
            appends += stream.take(key)
        appends += self._heals
        self._heals = []
        self._dirty = {}
        self._in_flight = tuple(appends)
        self._staged_bytes = sum(len(append.body) for append in appends)
        return [Write(self._in_flight)]
