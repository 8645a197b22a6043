"""A store: writes every partition it hears of to disk, acknowledges, and answers who missed something.

What arrived is gathered until the disk takes it (``writing``); an acknowledgement leaves only after the write that
covers it. What was missed, or is damaged, is fetched from its producer and from other stores (``gap``, ``backfill``).

Source: Dafka's store, writer and reader in one node. Departures: acknowledgements mean "on disk"; a repeated
HEAD is acknowledged again; stores fetch from each other; answers are exact, bounded, and continue past 100,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from chappe.core import Clock, Effect, Publish, Reply, Report, Subscribe
from chappe.data.topic import encode_topic
from chappe.deadlines import Deadlines
from chappe.defaults import DELETIONS_KEPT_S, INFO_S, POLL_HEADS_S
from chappe.errors import ChappeError, StorageError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.answering import Answering, answer_fetch, answer_heads, answer_query
from chappe.log.backfill import EVERYTHING, Backfill
from chappe.log.batch import Batch, encode_batch
from chappe.log.beacon import CONSUMING, kind_of
from chappe.log.catalogue import Catalogue, CatalogueJob, KeptCatalogue, StoreOpening
from chappe.log.clocks import Clocks
from chappe.log.events import DamageHealed, ScrubEnded
from chappe.log.exactly_once.staged import Intent, KeptSinks, SinkJob
from chappe.log.exactly_once.transactions import Transactions
from chappe.log.gap import Gaps, Load, check_single
from chappe.log.groups.table import GroupJob, GroupTables, KeptGroup
from chappe.log.guard import VERSION_BITS
from chappe.log.last_values import LastValues
from chappe.log.messages import (
    Ack,
    AskClock,
    BatchMessage,
    ClockTold,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    Message,
    OnDisk,
    PeerSubscriptions,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
    address_in,
)
from chappe.log.queries import (
    UNKNOWN,
    Answer,
    CatalogueAnswer,
    CatalogueRequest,
    ErrorAnswer,
    GroupBeat,
    GroupList,
    GroupSet,
    HeadsAnswer,
    HeadsRequest,
    LastRequest,
    QueryReply,
    ReadRequest,
    Request,
    SeekRequest,
    TopicChange,
)
from chappe.log.sources import Inquiries, Key, KnownStore, Question, Sources
from chappe.log.storage import LogStorage, RunRetention, ScrubPiece, WriteRecords
from chappe.log.writing import StoreWriter

INQUIRY_PAUSE_S: Final = 10.0  # between two questions to original stores, whose answers list everything
STRANGE_S: Final = 5.0  # a store that asks and is not found by then is answered all the same
VERSION_MASK: Final = (1 << VERSION_BITS) - 1
GREET_S: Final = 0.005  # newcomers within this time share one STORE-INFO, which is repeated every ``INFO_S``


StoreJob: TypeAlias = WriteRecords | RunRetention | SinkJob | GroupJob | CatalogueJob | ScrubPiece
StoreOutcome: TypeAlias = Intent | ScrubEnded | ChappeError | None


class LogStore:
    """The state of one store.

    Args:
        endpoint: Our query socket, as others reach it.
        kept: The sinks and staged rows that were found on disk.
        groups: The consumer groups that were found there.
        catalogue: The catalogue of topics that was found there.
        deletions_s: So long deletions are remembered.
    """

    def __init__(
        self,
        address: str,
        storage: LogStorage,
        endpoint: str,
        *,
        now: float,
        clock: Clock,
        kept: KeptSinks | None = None,
        groups: Sequence[KeptGroup] = (),
        catalogue: KeptCatalogue | None = None,
        deletions_s: float = DELETIONS_KEPT_S,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.address = address
        self.storage = storage
        self.endpoint = endpoint
        self.subscriptions = PeerSubscriptions()
        self._sources = Sources(limits.asks_max, limits=limits)
        self._sources.asker = address
        self._strangers: dict[str, float] = {}  # stores that asked and that are not known yet, and when they did first
        self._gaps = Gaps(address, self._sources, limits, eager=False)
        self._timers: Deadlines[str] = Deadlines()  # what is due of ``_duties``
        self._timers.set("heal", now)
        self._timers.set("retain", now + limits.maintain_s)
        self._writer = StoreWriter(storage, self._gaps, self._timers, clock, limits)
        self._backfill = Backfill(storage, self._gaps, self._writer, self._sources, self.subscriptions, limits)
        self._unfilled = self._backfill.unfilled
        self._last = LastValues(storage, limits)
        self._clocks = Clocks(address, clock, limits.clock_pause_s)
        kept_catalogue = catalogue or KeptCatalogue()
        self._opening = StoreOpening(
            storage.store_id,
            kept_catalogue,
            clock.wall_ns() // 1000,
            now,
            holds=bool(storage.topics()),
            wait_s=limits.catalogue_wait_s,
            kept_s=deletions_s,
        )
        self.catalogue = Catalogue(
            storage, self._writer, self._sources, clock, kept_catalogue, self._opening, deletions_s, limits
        )
        self._inquiries = Inquiries(INQUIRY_PAUSE_S)
        self._answering = Answering(partial(answer_fetch, storage, limits), limits)
        self.transactions = Transactions(
            storage.store_id, kept or KeptSinks(), self._writer.next_offset, limits, now=now
        )
        self.groups = GroupTables(address, groups, now)
        self._duties: dict[str, Callable[[float], list[Effect]]] = {
            "info": self._tell_newcomers,
            "heal": self._heal,
            "retain": lambda now: self.catalogue.retain(),
            "write": self._writer.write,
        }
        self.written_records = 0
        self.written_bytes = 0
        self.duplicates = 0
        self.left = 0  # batches and single records that were not taken, or are held until what is missing comes

    def start(self, now: float) -> list[Effect]:
        """Subscribe to everything that is published and to what is meant for us."""
        raw = encode_topic(self.address)
        # S before W and D: who hears of these alone takes us for an original. M before R: this takes that back.
        own = [each + raw for each in (b"C", b"S", b"W", b"D", b"E")]
        prefixes = [b"M", b"R", b"H", b"F", b"G", b"I", b"T", *own]
        holes = self.storage.holes()
        for hole in holes:
            self._unfilled.miss((hole.topic, hole.partition), hole.first, hole.last + 1)
        return [*(Subscribe(prefix) for prefix in prefixes), *self._backfill.report_damage(holes)]

    @property
    def paused(self) -> bool:
        """True if so much waits for the disk that nothing more should be received."""
        return self._writer.paused

    @property
    def refusing(self) -> bool:
        return self._writer.refused

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Tell consumers and stores that listen now that we exist."""
        self.subscriptions.change(prefix, on)
        if on and prefix[:1] == b"I":
            self._timers.set("info", min(self._timers.at("info"), now + GREET_S))
        if on and prefix == b"G":
            return [self._inquiry()]
        consumer = address_in(prefix) if on and prefix[:1] == b"L" else None
        return [Publish(StoreHello(consumer, self.address))] if consumer else []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Take a message that a member published. Raises ProtocolError for a malformed batch."""
        if not self._opening.open and isinstance(message, Fetch | GetHeads | ConsumerHello):
            if self._opening.refused() is None:
                self._opening.held.append(message)
            return []
        match message:
            case BatchMessage(_, partition, topic, body, direct) if topic and partition:
                key, batch = (topic, partition), Batch.parse(body)
                self._clocks.published(partition, now)
                filling = self._backfill.fill(key, batch, now) if direct else []
                return filling + self._arrived(key, batch, now, live=not direct)
            case RecordMessage(_, partition, topic, sequence, content, direct) if topic and partition:
                return self._record((topic, partition), sequence, content, now, live=not direct)
            case Head(_, partition, topic, sequence, True) if topic and partition and sequence < (1 << 63) - 1:
                return self._listed_by_original((topic, partition), sequence + 1, now)
            case Head(_, partition, topic, sequence) if topic and partition and sequence < (1 << 63) - 1:
                if not self._clocks.knows(partition):
                    self._clocks.published(partition, now)
                return self._heard_head((topic, partition), sequence + 1, now)
            case Fetch(_, requester, _, _, _) if requester != self.address:
                if not self.subscriptions.original(encode_topic(requester)):
                    return []  # a member of chappe asks us by query; this one is meant for the producer
                # As the original store, which sends one record if none is asked for.
                return self._answering.fetch(replace(message, count=max(message.count, 1)), now)
            case GetHeads(prefix, requester):
                if self.subscriptions.has(b"S" + encode_topic(requester)):
                    return []
                return answer_heads(self.storage, prefix, requester)
            case ConsumerHello(topic, requester, subjects) if topic == self.address:
                return [each for subject in subjects for each in answer_heads(self.storage, subject, requester)]
            case StoreInfo(_, store, store_id, endpoint) if store != self.address:
                news = self._sources.found(store, endpoint, now, store_id)
                # A store that waits itself answers nothing else.
                first = [self._sources.catalogue(self._sources.stores[store], now)] if news and not self.serves else []
                return [*first, *self._sources.polls(EVERYTHING, now)]
            case AskClock(_, requester, _) if requester not in self._sources.stores and requester != self.address:
                return self._clocks.answer(message, now)
            case ClockTold() if message.topic == self.address:
                return self._clocks.told(message, now)
        return []

    def handle_request(
        self, client: bytes, request_id: bytes, request: Request, payload: bytes, now: float
    ) -> list[Effect]:
        """Take a request on the query socket; ``payload`` is its third frame, if it has one."""
        if isinstance(request, CatalogueRequest):
            return [Reply(client, QueryReply(request_id, self.catalogue.answer(request, serves=self.serves)))]
        if not self.serves and isinstance(
            request, ReadRequest | HeadsRequest | SeekRequest | LastRequest | TopicChange
        ):
            refusal = self._opening.refused()
            if refusal is not None:
                return [Reply(client, QueryReply(request_id, refusal))]
            self._opening.held.append((client, request_id, request, payload))
            return []
        if isinstance(request, TopicChange):
            return self.catalogue.change(client, request_id, request, now)
        if isinstance(request, LastRequest):
            return [Reply(client, QueryReply(request_id, *self._last.answer(request, now)))]
        if isinstance(request, GroupBeat | GroupSet | GroupList):
            return self.groups.handle_request(client, request_id, request, now)
        if not isinstance(request, ReadRequest | HeadsRequest | SeekRequest):
            return self.transactions.handle_request(client, request_id, request, payload, now)
        if isinstance(request, HeadsRequest) and request.catalogue > 0 and self._behind(request, now):
            answer = HeadsAnswer(
                [],
                max(0, request.since),
                False,
                store_id=self.storage.store_id,
                catalogue=self.catalogue.version,
                behind=True,
            )
            return [Reply(client, QueryReply(request_id, answer))]
        reply, hole = answer_query(self.storage, self.limits, client, request_id, request, self.catalogue.version)
        return [reply, *self._backfill.report_damage([hole] if hole else [])]

    def handle_answer(
        self, request_id: int, answer: Answer, batches: Sequence[bytes | memoryview], now: float
    ) -> list[Effect]:
        """Take another store's answer. Raises ProtocolError for a malformed batch."""
        found = self._sources.answered(request_id)
        if found is None:
            return []
        question, source = found
        if question.hole is not None:
            return self._backfill.healing(source, question.hole, answer, batches, now)
        if question.key is None:
            return self._told(source, question, answer, now)
        actions: list[Effect] = []
        for batch in self._gaps.answered(source, question, answer, batches, now):
            actions += self._arrived(question.key, batch, now, live=False)
        return actions + self._gaps.look(now)

    # -- for who writes partitions here himself ------------------------------------------------------------

    def stored(self, key: Key) -> int:
        return self._writer.stored(key)

    def next_offset(self, key: Key) -> int:
        """Return where it ends, counting records that are not on disk yet."""
        return self._writer.next_offset(*key)

    def others_begin(self, key: Key) -> int:
        """Return the first offset that any other store has; -1 if none is known to have had any."""
        return min((first for first, _ in self._sources.ranges(key)), default=-1)

    def take(self, key: Key, batch: Batch, now: float) -> list[Effect]:
        """Write a batch that begins at the next offset, or before it; while the disk refuses it is not taken."""
        return self._arrived(key, batch, now, live=False)

    def begin_at(self, key: Key, first: int, now: float) -> None:
        """Begin a partition at ``first``, as nobody has anything earlier."""
        self._writer.begin(key, first, now)
        self._writer.transacted(key, first)

    # -- what comes from others -----------------------------------------------------------------------------

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        self._answering.gone(address)
        if kind_of(address) != CONSUMING and self.subscriptions.original_stores():
            self._inquiries.want(now)
        self._gaps.unanswered(self._sources.gone(address, now) or [])
        return self._gaps.look(now)

    def handle_done(self, job: StoreJob, outcome: StoreOutcome, now: float) -> list[Effect]:
        """Note that the disk has done a job: written records are readable by now."""
        match job:
            case WriteRecords():
                assert outcome is None or isinstance(outcome, StorageError)
                return self._written(now) if outcome is None else self._write_failed(outcome, now)
            case SinkJob():
                assert not isinstance(outcome, ScrubEnded)
                return self._transacted(job, outcome, now)
            case GroupJob():
                assert not isinstance(outcome, Intent | ScrubEnded)
                return self.groups.handle_done(outcome, now)
            case CatalogueJob():
                assert not isinstance(outcome, Intent | ScrubEnded)
                return [*self.catalogue.handle_done(outcome, now), *self._open(now)]
            case RunRetention():
                return self._retained("" if outcome is None else str(outcome), now)
            case ScrubPiece():
                ended = [Report(outcome)] if isinstance(outcome, ScrubEnded) else []
                return [*self._backfill.report_damage(self.storage.holes()), *ended]

    def commit_waits(self, error: StorageError, now: float) -> list[Effect]:
        """Note that the disk refuses a decided commit; it is tried again, and nothing else is written meanwhile."""
        return self._writer.refuse(str(error))

    def _written(self, now: float) -> list[Effect]:
        """Acknowledge the write that was asked for, and start the next."""
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
            self._sources.drop_reached(key, end)
            self._writer.settle(key)
        return actions + self._writer.write(now)

    def _write_failed(self, error: StorageError, now: float) -> list[Effect]:
        """Forget received records that the disk refused; they are fetched again later."""
        for key, first, end in self._writer.forget(now):
            self._unfilled.filled(key, first, end)  # it is asked for again
        return self._writer.refuse(str(error))

    def _transacted(self, job: SinkJob, outcome: Intent | ChappeError | None, now: float) -> list[Effect]:
        actions = self.transactions.handle_done(job, outcome, now)
        if not isinstance(outcome, Intent):
            return actions
        if now >= self._writer.refusing_until:
            actions += self._writer.resume()
        for topic, partition, first, end in outcome.ranges:
            key = (topic, partition)
            self.written_records += end - first
            self._sources.drop_reached(key, end)
            self._writer.transacted(key, end)
        return actions

    def _retained(self, problem: str, now: float) -> list[Effect]:
        """Note that retention ran, or could not, and why; it runs again later."""
        self._timers.set("retain", now + self.limits.maintain_s)
        for key in self._unfilled:
            info = self.storage.partition(*key)
            self._unfilled.gone(key, 0 if info is None else info.first)
        done = [*self.catalogue.retained(problem, now), *self._open(now)]
        return [*done, *(self.catalogue.maintain(now) if self.serves else ())]

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due: tell newcomers of us, ask again, heal, keep the retention."""
        actions = [action for name in self._timers.due(now) for action in self._duties[name](now)]
        self._gaps.unanswered(self._sources.overdue(now))
        actions += self._sources.polls(EVERYTHING, now)
        actions += self._open(now)
        if now >= self._answering.due:
            actions += self._answering.serve(now)
        actions += self.transactions.handle_timeout(now) + self._clocks.handle_timeout(now)
        self._last.handle_timeout(now)
        if self._inquiries.due(now) and self.subscriptions.original_stores():
            actions.append(self._inquiry())
        return actions + self._gaps.look(now) + self._writer.write(now)

    def flush(self, now: float) -> list[Effect]:
        """Do nothing: what is gathered for the disk leaves when the disk is free."""
        return []

    def next_timeout(self) -> float:
        due = min(self._timers.next, self._answering.due, self._last.due, self.transactions.next_timeout())
        due = min(due, self._inquiries.next_timeout(), self._opening.until)
        return min(due, self._sources.next_timeout(), self._gaps.next_timeout(), self._clocks.next_timeout())

    @property
    def serves(self) -> bool:
        """False while it waits for other stores to tell what was deleted while it was away."""
        return self._opening.open

    def _open(self, now: float) -> list[Effect]:
        """Serve from now on, if it is time to; answer what was asked meanwhile."""
        opening = self._opening
        opening.open = opening.open or now >= opening.until
        if not opening.open:
            late, opening.told = not opening.told, True
            return [Report(opening.why())] if late else []
        self.catalogue.announce()
        effects: list[Effect] = []
        for each in opening.release():
            if isinstance(each, tuple):
                effects += self.handle_request(*each, now)
            else:
                effects += self.handle_message(each, now)
        return effects

    def _inquiry(self) -> Effect:
        """Ask original stores for their partitions; stores of chappe are asked by query instead."""
        return Publish(GetHeads("", self.address))

    def _tell_newcomers(self, now: float) -> list[Effect]:
        self._timers.set("info", now + INFO_S)
        return [Publish(self.info())]

    def _heal(self, now: float) -> list[Effect]:
        self._timers.set("heal", now + POLL_HEADS_S)
        return self._backfill.heal(now)

    def info(self) -> StoreInfo:
        return StoreInfo("", self.address, self.storage.store_id, self.endpoint)

    # -- for people and checkers --------------------------------------------------------------------------

    @property
    def met_stores(self) -> bool:
        return self._sources.ever

    @property
    def catching_up(self) -> int:
        """The number of partitions of which records are missing that are asked for."""
        return len(self._gaps.open)

    def load(self) -> Load:
        sources, writer = self._sources, self._writer
        return Load(self._gaps.held_bytes, writer.staged_bytes, sources.reads, len(sources.asked), list(writer.streams))

    def story(self, topic: str, partition: str, now: float) -> str:
        """Return one sentence: how far a partition came, and how its missing records are being asked for."""
        key = (topic, partition)
        stored = self._writer.stored(key)
        told = f"stored to {stored}, acknowledged to {self._unfilled.limit(key, stored)}"
        stream = self._writer.streams.get(key)
        return told if stream is None else f"{self._gaps.story(key, stream.gap, now)}; {told}"

    def invariants(self) -> list[str]:
        parts = self._writer, self.transactions, self._last, self.groups, self.catalogue
        return [each for part in parts for each in part.invariants()]

    def _arrived(self, key: Key, batch: Batch, now: float, *, live: bool) -> list[Effect]:
        writer = self._writer
        if batch.base and writer.too_many(key):
            self.left += 1
            return []
        stream = writer.stream(key)
        gap = stream.gap
        gap.heard(now, live=live)
        if batch.next <= gap.next:
            self.duplicates += 1
            return self._again(key)
        if now < writer.refusing_until:
            self.left += 1
            writer.lag(key, stream, batch.next)
            return []
        if batch.base > gap.next:
            self.left += 1
            self._gaps.hold_early(key, gap, batch, live=live)
            return self._gaps.pursue(key, gap, now)
        writer.stage(key, stream, batch)
        return writer.go_on(key, stream, now)

    def _record(self, key: Key, sequence: int, content: bytes, now: float, *, live: bool) -> list[Effect]:
        check_single(sequence, content)
        writer = self._writer
        if not live and self._unfilled.tries(key) and 0 <= sequence < writer.stored(key):
            return self._backfill.fill(key, self._stamped(sequence, content), now)
        stream = writer.stream(key)
        if sequence != stream.gap.next or stream.gap.held or now < writer.refusing_until:
            return self._arrived(key, self._stamped(sequence, content), now, live=live)
        stream.gap.heard(now, live=live)
        return writer.take_record(key, stream, content, now)

    def _stamped(self, sequence: int, content: bytes) -> Batch:
        return Batch.parse(encode_batch(sequence, [content], self.clock.wall_ns() // 1000), check=False)

    def _behind(self, request: HeadsRequest, now: float) -> bool:
        """Return True if the catalogue of a store that asks is to be taken before it takes anything from here.

        It has forgotten what is deleted, and would take from here what is not forgotten here yet.
        """
        source = self._sources.stores.get(request.store)
        if source is not None:
            self._strangers.pop(request.store, None)
            return source.catalogue < 0 or source.catalogue & VERSION_MASK < request.catalogue
        if len(self._strangers) >= self.limits.stores_max:
            self._strangers.clear()
        return now < self._strangers.setdefault(request.store, now) + STRANGE_S

    def _told(self, source: KnownStore, question: Question, answer: Answer, now: float) -> list[Effect]:
        """Take another store's catalogue, and its partitions once that is taken: nothing deleted returns from it."""
        effects: list[Effect] = []
        if isinstance(answer, CatalogueAnswer):
            effects = self.catalogue.take(source, answer, now)
        elif isinstance(answer, HeadsAnswer) and answer.catalogue not in (source.catalogue, 0, -1):
            effects = [self._sources.catalogue(source, now)]
        elif isinstance(answer, HeadsAnswer) and not answer.behind:
            if answer.catalogue == 0 and source.catalogue < 0:  # there is nothing to take
                source.catalogue = 0
                effects = self.catalogue.take(source, CatalogueAnswer(0, False, [], answer.store_id, True), now)
            if self._opening.outdated:
                effects += self.catalogue.adopt(source, answer, now)
            effects += self._listed(source, question, answer, now)
        elif isinstance(answer, ErrorAnswer) and answer.kind == UNKNOWN:  # it is too old to have a catalogue
            self._opening.met(source.store_id, serves=True, listed=False)
        return [*effects, *self._open(now)]

    def _listed(self, source: KnownStore, question: Question, answer: HeadsAnswer, now: float) -> list[Effect]:
        (everything,) = EVERYTHING
        source.since[everything] = answer.version
        if not answer.more:
            source.synced[everything] = question.at
        for info in answer.infos():
            key = (info.topic, info.partition)
            stream = self._writer.streams.get(key)
            self._gaps.listed(source, key, None if stream is None else stream.gap, info.first, info.next)
            if key in source.heads:
                self._writer.lag(key, self._writer.stream(key), info.next)
        more = [self._sources.news(source, everything, now)] if answer.more else []
        return more + self._gaps.look(now)

    def _heard_head(self, key: Key, head: int, now: float) -> list[Effect]:
        if self._writer.too_many(key):
            return []
        stream = self._writer.stream(key)
        gap = stream.gap
        gap.heard_at = now
        asking = self._backfill.ask_to_fill(key, now)
        if head <= gap.next:
            return asking + self._again(key)
        gap.said = max(gap.said, head)
        self._writer.lag(key, stream, head)
        return asking + self._gaps.pursue(key, gap, now)

    def _listed_by_original(self, key: Key, end: int, now: float) -> list[Effect]:
        """Take an original store's end of a partition, without announcing our own."""
        asking = self._backfill.ask_to_fill(key, now)
        if end <= self._writer.next_offset(*key) or self._writer.too_many(key):
            return asking
        stream = self._writer.stream(key)
        self._writer.lag(key, stream, end)
        return asking + self._gaps.pursue(key, stream.gap, now)

    def _again(self, key: Key) -> list[Effect]:
        """Acknowledge again: our records were sent or announced again, so an acknowledgement may have been lost."""
        stored = self._writer.stored(key)
        self._writer.prune(key)
        return self._acknowledge(key, stored)

    def _acknowledge(self, key: Key, end: int) -> list[Effect]:
        """Tell the producer how far it may drop records, and consumers of the topic what is on disk."""
        topic, partition = key
        if end == 0:
            return []
        actions: list[Effect] = []
        if self.subscriptions.wanted(encode_topic(topic), b"J"):
            first = max((each.last + 1 for each in self.storage.holes(topic) if each.partition == partition), default=0)
            actions.append(Publish(OnDisk(topic, self.storage.store_id, partition, first, end - 1)))
        end = self._unfilled.limit(key, end)
        if end == 0:
            return actions
        if self.subscriptions.has(b"A" + encode_topic(partition)):
            return [Publish(Stored(partition, self.storage.store_id, topic, end - 1)), *actions]
        return [Publish(Ack(partition, topic, end - 1)), *actions]
