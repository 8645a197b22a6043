"""The topics of a producer: the records gathered for each, and when they leave. All with the producer's lock held.

A topic is opened by its first record, or because an identity wrote it in a former life.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from chappe.api.log.deliveries import Deliveries
from chappe.api.log.sealed import Sealing
from chappe.core import Report
from chappe.data.given import as_bytes
from chappe.defaults import DISK_RETRY_S, IDLE_S, KEYS_COME_S, PRODUCER_TOPICS_MAX
from chappe.errors import BufferFull, Sealed, StorageError, UsageError
from chappe.limits import LOG_LIMITS
from chappe.log.batch import Batch, Headers, encode_batch, encode_record
from chappe.log.events import JournalDamaged
from chappe.log.member import LogProducers, ProducingMember
from chappe.log.pace import BatchPace
from chappe.log.producer import JournalBatch, JournalTrim, LogProducer, StoredTo
from chappe.runtime.log_seats import Seat
from chappe.storage.journal import Journal, Journals
from chappe.system import time

SERVE_S = 0.05  # how often the network is served while an iterable is sent
BUSY_RECORDS = 16  # so many gathered at once are a fast sequence: nobody looks at the clock for each further one
BUSY_S = 0.001  # the driver looks this often whether something gathered was left behind ...
HELD_S = 0.05  # ... and this often while new records are held
GATHER_S = 0.02  # with an identity, where each batch is synced, a fast sequence is gathered at least so long ...
ROUNDS = 4  # ... or as long as the disk takes for so many batches of each topic ...
GATHER_MAX_S = 1.0  # ... and at most so long
PACE = 2  # after a sealed batch, so many times what sealing took: who opens it needs longer than that
SEALED_BATCHES = 3  # a sealed batch is so many times as large: a signature each costs less so
BULKS = 4  # a buffer has room for so many batches of records that are sent together, unless it has not for a plain one
SHOWN = 3  # topics named in one sentence; of the rest it is said how many there are


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """Progress in one topic: the next record gets ``next_offset``; ``min_acks`` stores have all before ``stored``."""

    next_offset: int
    stored: int


class TopicWriters:
    """The topics of a producer, and what they share.

    Args:
        check: Raises the error that every call of the producer has to raise.
        deliveries: Hears of stored records.
        buffer_bytes: Bound of the bytes that no store has yet, of all topics.
        block: Wait at the bound instead of raising.
        sealing: Seals records for groups; None if nothing can be sealed.
        codec: Of ``chappe.log.compression``; 0: batches are not compressed.
    """

    def __init__(
        self,
        node: Seat[ProducingMember],
        check: Callable[[], None],
        cores: LogProducers,
        journals: Journals | None,
        deliveries: Deliveries,
        *,
        min_acks: int,
        buffer_bytes: int,
        block: bool,
        sealing: Sealing | None = None,
        codec: int = 0,
    ) -> None:
        self.by_topic: dict[str, TopicWriter] = {}
        self.node = node
        self.check = check
        self.sealing = sealing
        self.cores = cores
        self.buffer_bytes = buffer_bytes
        self.block = block
        self.sent_at = 0.0  # when last a record of any topic was added one by one, or a batch left
        self.silence_s = IDLE_S  # nothing sent for this long: the next record leaves at once; as long as a sync takes
        self.sync_s = 0.0  # how long the journal of a topic took last for a batch
        self.served_at = 0.0  # when last a sending thread looked after beacons and acknowledgements
        self._journals = journals
        self._deliveries = deliveries
        self._min_acks = min_acks
        self._codec = codec
        batch_bytes = LOG_LIMITS.batch_bytes
        bulk_bytes = min(LOG_LIMITS.bulk_bytes, max(batch_bytes, buffer_bytes // BULKS))
        self._plain = replace(LOG_LIMITS, bulk_bytes=bulk_bytes)
        self._sealed = replace(self._plain, batch_bytes=SEALED_BATCHES * batch_bytes)

    def begin(self, own: str | None) -> None:
        """Open the producer's own topic, and those of an identity's former lives."""
        known = [] if self._journals is None else list(self._journals.opened)
        for topic in known if own is None else dict.fromkeys((own, *known)):
            self.open(topic)

    def open(self, topic: str, begin: int = 0) -> TopicWriter:
        """Open one more topic, whose partition begins at ``begin`` without a journal.

        Raises:
            UsageError: There are ``PRODUCER_TOPICS_MAX``.
            StorageFull, StorageError: Its journal cannot be made.
        """
        if len(self.by_topic) >= PRODUCER_TOPICS_MAX:
            raise UsageError(f"a producer writes at most {PRODUCER_TOPICS_MAX} topics: make another one for {topic!r}")
        journals = self._journals
        journal = None if journals is None else journals.opened.get(topic) or journals.open(topic)
        core = LogProducer(
            topic,
            self.cores.address,
            clock=self.cores.clock,
            min_acks=self._min_acks,
            journal=journal.batches if journal else None,
            next_offset=journal.next_offset if journal else begin,
            resumed=journal.resumed if journal else False,
            subscriptions=self.cores.subscriptions,
            kept=self.cores.kept,
            seal=None if self.sealing is None else partial(self.sealing.seal, topic),
            codec=self._codec,
            limits=self._sealed if self.sealing is not None and self.sealing.seals(topic) else self._plain,
        )
        made = TopicWriter(core, journal, self)
        self.by_topic[topic] = made
        self.node.add_topic(core)
        for first, next_ in journal.lost if journal else ():
            self.node.perform((Report(JournalDamaged(topic, core.address, first, next_ - 1)),))
        return made

    # -- for the node ---------------------------------------------------------------------------------------

    def progress_of(self, stored: StoredTo) -> None:
        """Pass on that more of an awaited topic is stored."""
        self._deliveries.progress(self.by_topic[stored.topic].core)

    def carry_out(self, job: JournalBatch | JournalTrim) -> None:
        """Do a job of a topic's journal. Raises as the journal does."""
        writer = self.by_topic[job.topic]
        if isinstance(job, JournalBatch):
            writer.persist(job)
        else:
            writer.trim(job.offset)

    # -- what is done to all --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Publish gathered records. Raises the error of one topic's journal after the others were published."""
        refused: StorageError | None = None
        for each in self.by_topic.values():
            try:
                each.flush_batch()
            except StorageError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def hurry(self, waiting: bool) -> None:
        """Note that a flush waits for acknowledgements, or waits no longer."""
        now = time.monotonic()
        for each in self.by_topic.values():
            each.core.hurry(now, waiting)
        self.node.perform(())  # it may be due earlier
        self.node.tell()

    def look_again(self) -> None:
        """End the short path of records, which skips checks."""
        for each in self.by_topic.values():
            each.core.plain = False

    # -- looking, from any thread -----------------------------------------------------------------------------

    def partitions(self) -> list[LogProducer]:
        """Return the cores in the order of their topics; a list, as another thread may add one."""
        return [each.core for each in list(self.by_topic.values())]

    def progress(self) -> dict[str, TopicProgress]:
        return {each.topic: TopicProgress(each.next_offset, each.stored) for each in self.partitions()}

    def __str__(self) -> str:
        cores = self.partitions()
        shown = [f"{each.topic!r} at {each.next_offset} ({each.stored} stored)" for each in cores[:SHOWN]]
        return _and_more(", ".join(shown), len(cores), "") or "no topic yet"


class TopicWriter:
    """Gathers records for one partition, and hands on whole batches.

    With an identity batches go to ``journal`` first; pending records of a former life are gathered again.
    """

    __slots__ = (
        "_asked",
        "_common",
        "_full_at",
        "_journal",
        "_node",
        "_pace",
        "_quiet",
        "_refusal",
        "_retry_at",
        "core",
    )

    def __init__(self, core: LogProducer, journal: Journal | None, common: TopicWriters) -> None:
        self.core = core
        self._journal = journal
        self._common = common
        self._node = common.node
        self._refusal: StorageError | None = None  # of the journal, when it was asked last
        self._retry_at = 0.0  # the journal refused the batch being gathered: it is tried again then
        self._pace = BatchPace(core.published)
        self._full_at = 0.0  # when last a batch left because it was full
        for each in journal.pending if journal else ():
            core.append(each.value, each.key, each.headers, each.timestamp)
        self._asked = False  # a thread that may wait for the journal is to flush
        self._quiet = not core.pending  # nothing is being gathered
        if not self._quiet:
            self._node.gathered(self, time.monotonic())

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, value: object, key: object, headers: Headers, timestamp: int | None) -> int:
        """Add a record that needs a check: the first after a flush, the last of a batch, one with extras."""
        raw, raw_key = as_bytes(value, "the value"), as_bytes(key, "the key")
        core, common = self.core, self._common
        self._make_room()
        offset = core.append(raw, raw_key, headers, timestamp)
        full = core.full
        now = time.monotonic()
        # After silence a record leaves at once, with what was gathered before it; and one that may be refused, too.
        pace_s = 0.0 if common.sealing is None else min(PACE * common.sealing.took_s, BUSY_S)
        if full or core.refused or (now - common.sent_at > common.silence_s and self._pace.leaves(now, pace_s)):
            self._flush_or_take_back(offset)
            if full:
                self._full_at = common.sent_at
        else:
            common.sent_at = now
            if self._quiet:
                self._quiet = False
                self._node.gathered(self, now + (pace_s or BUSY_S))  # should nobody follow, who drives sends it
            self.core.plain = self._journal is None and not core.extras and len(core.values) >= BUSY_RECORDS
        if self._journal is not None and core.pending:
            self._pend(self._journal, offset, raw, raw_key, headers, timestamp)
        return offset

    def send_some(self, values: list[bytes | str | None], start: int, stamp: int | None) -> int:
        """Add about as many values as fill a batch, from index ``start`` on; return where to go on."""
        some = values[start : start + self.core.many]
        if stamp is not None or [*map(type, some)].count(bytes) != len(some):
            for value in some:
                self.send(value, None, (), stamp)
            return start + len(some)
        self._make_room(alone=True)
        first = self.core.next_offset
        taken = self.core.append_many(some, 0)  # type: ignore[arg-type]
        self._flush_or_take_back(first)
        return start + taken

    def send_batch(self, encoded: Callable[[int], bytes]) -> range:
        """Add a batch, which ``encoded`` returns for the offset of its first record."""
        self._make_room(alone=True)  # what was sent before comes first
        first = self.core.next_offset
        self._refusal = None
        self._node.perform(self.core.append_batch(encoded(first), time.monotonic()))
        if self._refusal is not None:
            raise self._refusal
        self.flush_batch()  # nothing is pending: it only looks after the network
        return range(first, self.core.next_offset)

    def _pend(
        self,
        journal: Journal,
        offset: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp: int | None,
    ) -> None:
        """Write a gathered record to the journal; if the journal refuses, the record was not taken."""
        stamp = self._common.cores.clock.wall_ns() // 1000 if timestamp is None else timestamp
        if value is None or key is not None or headers:
            keys = None if key is None else [key]
            body = encode_batch(offset, [value], stamp, keys=keys, headers=[headers] if headers else None)
        else:
            body = encode_record(offset, value, stamp)
        try:
            journal.pend(self.core.sealed(self.core.packed(body)))
        except StorageError:
            self.core.take_back(offset)
            raise

    # -- leaving ------------------------------------------------------------------------------------------

    def idle(self) -> float:
        """Return the seconds until the next look; while records come, it looks again."""
        if self._quiet:
            return math.inf
        now, common = time.monotonic(), self._common
        if self.core.held(now):
            return HELD_S
        if now - self._full_at < BUSY_S:
            return BUSY_S  # full batches leave by themselves
        gather_s = min(max(GATHER_S, ROUNDS * common.sync_s * len(common.cores)), GATHER_MAX_S)
        if self._journal and now - common.sent_at < common.silence_s and now - self._pace.left_at < gather_s:
            return BUSY_S  # whoever sends so fast does not wait for a disk each time that we look
        if now < self._retry_at:
            return self._retry_at - now
        if self._journal is None:
            self.flush_batch()
        elif not self._asked:
            self._asked = True
            self._node.on_disk(self._flush_later)
        return math.inf if self._quiet else HELD_S

    def _flush_later(self) -> None:
        self._asked = False
        try:
            if not self._quiet:
                self.flush_batch()
        except StorageError:
            pass  # whoever sends or flushes next is told, if it is still so

    def flush_batch(self) -> None:
        """Publish the gathered records. Raises StorageFull, StorageError: the journal refused them; they stay here."""
        self.core.plain = False
        began, gathered = time.monotonic(), self.core.pending
        self._refusal = None
        self._node.perform(self.core.flush(began))
        if self._refusal is not None:
            self._quiet = False
            self._retry_at = time.monotonic() + DISK_RETRY_S
            self._node.gathered(self, self._retry_at)
            raise type(self._refusal)(f"{self._refusal}: nothing is sent until it works again")
        self._quiet = not self.core.pending
        if not self._quiet:
            self._node.gathered(self, began + HELD_S)
        common = self._common
        common.sent_at = time.monotonic()  # after the work: a fast sequence of records does not count as silence
        self._pace.left(common.sent_at, self.core.published)
        if self._journal is not None and gathered and self._quiet:
            common.sync_s = common.sent_at - began
            common.silence_s = min(max(IDLE_S, common.sync_s), BUSY_S)
        if common.sent_at >= common.served_at + SERVE_S:
            # A thread that sends without a pause hardly lets another one have the lock.
            common.served_at = common.sent_at
            self._node.serve()

    def persist(self, job: JournalBatch) -> None:
        """Write a batch to the journal. Raises as the journal does."""
        assert self._journal is not None
        end = Batch.parse(job.body, check=False).next
        try:
            self._journal.append(job.body, end)
        except StorageError as error:
            self._refusal = error
            raise
        except BaseException:  # Ctrl-C, or what a handler of a signal raises
            self._quiet = False
            self._node.gathered(self, time.monotonic())
            if self._journal.next_offset == end:
                self._node.perform(self.core.handle_done(job, None, time.monotonic()))
            else:
                self.core.interrupted()
            raise

    def trim(self, offset: int) -> None:
        """Drop stored records, those before ``offset``, from the journal."""
        assert self._journal is not None
        self._journal.trim(offset)

    def _flush_or_take_back(self, offset: int) -> None:
        """Flush; if the journal refuses, the records from ``offset`` on were not taken."""
        try:
            self.flush_batch()
        except StorageError:
            self.core.take_back(offset)
            raise

    # -- room ---------------------------------------------------------------------------------------------

    def _make_room(self, *, alone: bool = False) -> None:
        """Wait for room, or raise; with ``alone`` no record is gathered, or has to be, at the end."""
        core, common = self.core, self._common
        common.check()
        if common.sealing is not None and not core.mirrors:
            self._await_keys(common.sealing)
        while True:
            if core.pending and (core.refused or core.full or alone):
                self.flush_batch()  # nothing is taken before what waits for the journal
            if self._has_room(alone):
                return
            if not common.block:
                raise BufferFull(self._no_room())
            self._node.lock.release()  # held once: others keep their time-outs meanwhile
            try:
                self._node.pump(0.1, lambda: self._has_room(alone))
            finally:
                self._node.lock.acquire()
            common.check()

    def _await_keys(self, sealing: Sealing) -> None:
        """Wait for keys that come after the permissions. Raises Sealed: none came, or this producer does not block."""
        common = self._common
        until = None
        while True:
            try:
                sealing.check(self.core.topic)
                return
            except Sealed as error:
                error.passing = sealing.may_come(self.core.topic)
                if not common.block or not error.passing:
                    raise
                until = until or time.monotonic() + KEYS_COME_S
                if time.monotonic() >= until:
                    raise
            self._node.lock.release()
            try:
                self._node.pump(0.1, lambda: False)
            finally:
                self._node.lock.acquire()
            common.check()

    def _has_room(self, alone: bool) -> bool:
        core = self.core
        if self._common.cores.kept_bytes >= self._common.buffer_bytes or self._node.choked:
            return False
        return not (core.full or alone) or not (core.pending or core.held(time.monotonic()))

    def _no_room(self) -> str:
        topic, kept_bytes = self.core.topic, self._common.cores.kept_bytes
        if self._node.choked:
            return f"a member does not take what is published to topic {topic!r}: send again later"
        if kept_bytes < self._common.buffer_bytes:
            return (
                f"the partition of topic {topic!r} goes on after a restart, and stores have not yet said how far "
                "they hold it: send again later"
            )
        own_bytes = self.core.kept_bytes
        also = f" ({own_bytes} of topic {topic!r})" if own_bytes < kept_bytes else f" of topic {topic!r}"
        return f"{kept_bytes} bytes{also} are not stored yet, the buffer is full: send again later, or start a store"


def counted(missing: Iterable[tuple[str, int]]) -> str:
    """Name counts of records by topic, for people; empty if all are 0."""
    found = [f"{count} records of topic {topic!r}" for topic, count in missing if count > 0]
    return _and_more(" and ".join(found[:SHOWN]), len(found), "of ")


def _and_more(text: str, count: int, of: str) -> str:
    return f"{text} and {of}{count - SHOWN} topics more" if count > SHOWN else text
