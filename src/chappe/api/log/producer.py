"""Publishing records to topics, in a partition of its own."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from chappe import errors
from chappe.api import at_exit
from chappe.api.faces import Closeable, happened
from chappe.api.identity import log_event, new_address, state_directory
from chappe.api.log.deliveries import Deliveries
from chappe.api.log.sealed import Sealing
from chappe.api.log.topic_writers import TopicProgress, TopicWriter, TopicWriters, counted
from chappe.api.times import as_micros
from chappe.arrow import from_arrow
from chappe.data.given import several
from chappe.data.topic import check_topic
from chappe.defaults import BATCH_BYTES, EXIT_ERROR_S, PRODUCER_BUFFER_BYTES
from chappe.errors import ChappeError, Closed, IdentityInUse, MemberStopped, StorageError, TimedOut, UsageError
from chappe.log.batch import Batch, as_batch, as_headers
from chappe.log.compression import Compression, check_compression
from chappe.log.events import ConnectionRefused, IdentityBehind, IdentityClash, PermissionsChanged, Stopped
from chappe.log.member import LogProducers
from chappe.log.producer import JournalBatch, JournalTrim, LogProducer, StoredTo
from chappe.permissions.rules import PRODUCE
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.log_seats import Where, producing
from chappe.schemas.codec import as_codec, encoded
from chappe.security import LogSecurity
from chappe.storage.journal import Journals
from chappe.system import program, time
from chappe.system.forking import own

logger = logging.getLogger(__name__)

_NO_TOPIC = LogProducer(
    "", "", clock=SYSTEM_CLOCK
)  # never ``plain``: who names no topic takes the long way, and is told so
CHUNK = 4096  # records of an iterable taken at once


class Producer(Closeable):
    """The one writer of one partition of a topic, or of several topics.

    Offsets are assigned at once; records are published when the sender pauses or a batch is full, and kept
    until ``min_acks`` stores hold them. Use from several threads is safe. Close it, or use it in a ``with``; a program
    that ends without that flushes for at most five seconds, one after an error, and reports the rest.

    Args:
        topic: The default topic; at most 255 bytes, no NUL. None: each ``send`` names one.
        tower: ``HOST[:PORT]``, several separated by commas. Defaults to the settings, as for every command:
            ``CHAPPE_TOWER``, ``tower`` in ``chappe.toml``, or a tower on this machine.
        listen: Host to listen on; ``*`` for all interfaces. Defaults to the settings.
        forwarders: ``HOST[:PORT]`` of each, in a list or separated by commas. They replace the tower, and no member has
            to reach this program. Defaults to the settings, if ``tower`` is not given.
        min_acks: Stores that must hold a record before it is let go; 0 keeps the newest 16 MiB of a topic for members
            that missed them and does not wait.
        buffer_bytes: The bound of unacknowledged records, of all topics; at this bound ``send`` blocks or raises.
        on_full: The policy of ``send`` at the bound: ``block`` or ``error`` (BufferFull).
        identity: A name under which the partitions go on after a restart, without repeating or skipping an
            offset: every batch is written to a journal on disk before it is published. While the journal refuses,
            nothing is published and ``send`` raises; records taken before are sent once it works again, with their
            offsets. After a restart new records are first published when the stores have reported their ends of the
            partition, after 3 s at the latest. None: new partitions.
        directory: Where identities are kept; the user's data directory by default.
        compression: The codec of batches, ``"zstd"`` or ``"lz4"``; None: they are not compressed. They stay so on wires
            and disks, and whoever reads them opens them. A batch that would not get a tenth smaller, such as a single
            short record, stays as it is; originals of Dafka get plain records.
        name: Its name for people, in lists and pictures: a label, 1 to 64 printable characters, which proves nothing.
            The program and its host by default, such as ``sensor.py@web1``.
        security: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for the identity that ``CHAPPE_IDENTITY``
            or ``chappe.toml`` names, if any.
        tracing: ``context`` puts OpenTelemetry's trace context into the headers of what ``send`` and ``send_many``
            take, ``spans`` also makes a span of each record (``chappe.api.tracing``).
        codec: Encodes values, which may be what it takes then: ``"json"``; a type that msgspec knows, such as a Struct
            or a dataclass, for JSON of that; ``Avro(schema)``; a message class of Protobuf; ``"arrow"`` for tables;
            ``Schemas(...).codec(subject)``; or any ``Codec``. None: values are bytes or text.

    Raises:
        IdentityInUse: Another producer uses the identity.
        StorageFull: No room for the journal.
        NotPermitted: The permissions do not let this identity produce the topic.
        UsageError: An argument is out of its range.
    """

    def __init__(
        self,
        topic: str | None = None,
        *,
        tower: str | None = None,
        listen: str | None = None,
        forwarders: str | Sequence[str] | None = None,
        min_acks: int = 1,
        buffer_bytes: int = PRODUCER_BUFFER_BYTES,
        on_full: Literal["block", "error"] = "block",
        identity: str | None = None,
        directory: str | Path | None = None,
        compression: Compression | None = None,
        name: str | None = None,
        security: LogSecurity = None,
        tracing: Literal["context", "spans"] | None = None,
        codec: object = None,
    ) -> None:
        own(self)
        compressing = check_compression(compression)
        self._codec = None if codec is None else as_codec(codec)
        self._traced = tracing is not None
        if tracing is not None:
            if tracing not in ("context", "spans"):
                raise UsageError(f"tracing is 'context' or 'spans', not {tracing!r}")
            from chappe.api.tracing import traced

            # A call of its own, so that every other producer's pays nothing for it.
            self.send = traced(self.send, topic, tracing == "spans")  # type: ignore[method-assign]
        self._name = program.label(name)
        where = Where.parse(tower, listen, forwarders, security)
        self._where = where
        if topic is not None:
            topic = check_topic(topic)
            where.require(PRODUCE, topic)
        if min_acks < 0 or (identity is not None and not min_acks):
            raise UsageError("min_acks is at least 0, and at least 1 for a producer with an identity")
        if on_full not in ("block", "error"):
            raise UsageError(f"on_full is 'block' or 'error', not {on_full!r}")
        self._journals: Journals | None = None
        self._identity = identity or ""
        if identity is not None:
            self._journals = Journals(state_directory("producers", identity, directory), topic, new_address())
        self.topic = topic
        self._min_acks = min_acks
        self._error: ChappeError | None = None
        self._error_said = False
        self._refused: ConnectionRefused | None = None
        self._events: deque[object] = deque(maxlen=1000)
        try:
            address = self._new_partition() if self._journals is None else self._journals.address
            sealing = None if where.keys is None else Sealing(where.keys, address, asks=True)
            self._node = producing(address, new_address(), where, live=not min_acks, identity=identity is not None)
        except BaseException:
            if self._journals:
                self._journals.close()
            raise
        self._deliveries = Deliveries(self._node.later)
        self._core = LogProducers(address, self._node.subscriptions, clock=SYSTEM_CLOCK)
        self._topics = TopicWriters(
            self._node,
            self._check,
            self._core,
            self._journals,
            self._deliveries,
            min_acks=min_acks,
            buffer_bytes=max(buffer_bytes, BATCH_BYTES),
            block=on_full == "block",
            sealing=sealing,
            codec=compressing,
        )
        self._writers = self._topics.by_topic
        self.lock = self._lock = self._node.lock
        self._acquire, self._unlock = self._lock.acquire, self._lock.release
        try:
            with self._lock:
                self._node.start(self._core, _ProducerSeat(self, self._topics), name=self._name)
                self._topics.begin(topic)
        except BaseException:
            self._node.close()
            if self._journals:
                self._journals.close()
            raise
        self._main = _NO_TOPIC if topic is None else self._writers[topic].core
        at_exit.add(self)

    # -- sending ------------------------------------------------------------------------------------------

    def send(
        self,
        value: Any,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None = None,
        timestamp: int | datetime | None = None,
        topic: str | None = None,
    ) -> int:
        """Add a record; return its offset at once.

        Args:
            value: Bytes, or text, which becomes UTF-8; with a codec what that encodes. None is a tombstone (the key is
                deleted).
            key: Bytes or text.
            timestamp: Microseconds since 1970 UTC, or a datetime with a time zone; now by default.
            topic: Its topic; the producer's own topic by default.

        Raises:
            UsageError: An argument is out of its range, or no topic is named; nothing was sent.
            BadValue: The value does not fit the codec; nothing was sent.
            SchemasUnavailable, UnknownSchema: The codec does not get its schema; nothing was sent.
            NotPermitted: The permissions do not let this identity produce one of its topics any more.
            RecordTooLarge: Over 8 MiB; nothing was sent.
            BufferFull: The bound is reached and ``on_full`` is ``error``; nothing was sent.
            StorageFull, StorageError: The journal of the identity refuses; this record was not taken.
            IdentityInUse, IdentityRolledBack: Another copy of the identity is in use, or it is older than the stores'
                records; nothing is sent any more. So says every further call.
            Sealed: The topic is sealed for a group, and we have no key to seal with, or an old one; nothing was sent.
                Where keys may come yet (``passing``), as after a revocation, it first waits for them, for 10 s; with
                ``on_full`` ``error`` it does not.
            Closed: The producer was closed.
            MemberStopped: It met a defect.
        """
        if self._codec is not None:
            value = encoded(self._codec, value, topic or self.topic or "")
        core = self._main if topic is None else self._writer(topic).core
        # The one path that runs once for each record. The lock is taken by hand (``with`` costs twice as much) and
        # within the ``try``, so that a Ctrl-C at any moment leaves it released.
        try:
            self._acquire()
            if type(value) is bytes and key is None and headers is None and timestamp is None:
                offset = core.take(value)
                if offset >= 0:
                    return offset
            stamp = None if timestamp is None else as_micros(timestamp)
            return self._writer(topic).send(value, key, as_headers(headers), stamp)
        finally:
            try:
                self._unlock()
            except RuntimeError:  # the wait for the lock was interrupted: it is not ours
                pass

    def send_many(
        self, values: Iterable[Any], *, timestamp: int | datetime | None = None, topic: str | None = None
    ) -> range:
        """Add many records with values only, all to one topic; return their offsets.

        If another thread sends meanwhile, its records are among them.

        Raises:
            BadValue: A value does not fit the codec: none of a list was sent; of others, and with ``tracing``,
                some before it may have been.
            BufferFull, StorageFull, StorageError: The bound was reached, or the journal refuses; those before it were
                sent, up to ``next_offset``.
        """
        stamp = None if timestamp is None else as_micros(timestamp)
        self._check()
        writer = self._writer(topic)
        first = writer.core.next_offset
        if self._traced:
            for value in several(values, "values"):
                self.send(value, timestamp=stamp, topic=topic)
            return range(first, writer.core.next_offset)
        for some in (values,) if isinstance(values, list) else _chunks(several(values, "values")):
            if (codec := self._codec) is not None:
                some = [encoded(codec, each, writer.core.topic) for each in some]
            done = 0
            while done < len(some):
                with self._lock:
                    done = writer.send_some(some, done, stamp)
        return range(first, writer.core.next_offset)

    def send_batch(self, batch: bytes | Batch, *, topic: str | None = None) -> range:
        """Publish records that are encoded as a batch already, without unpacking them; return their offsets.

        Keys, headers and timestamps stay as they are, and values, whatever the codec; the offsets in the batch are
        replaced.

        Args:
            batch: In the format of ``chappe.log.batch``; with an identity it is best larger than 100 KiB, since each is
                synced to disk.
            topic: Its topic; the producer's own topic by default.

        Raises:
            ProtocolError: It is not a batch; nothing was sent.
            BufferFull: The bound is reached and ``on_full`` is ``error``; nothing was sent.
            StorageFull, StorageError: The journal of the identity refuses; nothing of it was taken.
            Closed: The producer was closed.
        """
        raw = as_batch(batch)
        with self._lock:
            return self._writer(topic).send_batch(lambda _: raw)

    def send_arrow(self, data: object, *, topic: str | None = None) -> range:
        """Publish rows of Arrow without making objects of them, all to one topic; return their offsets.

        Column ``value`` is binary or text (null is a tombstone), and so is ``key``, if there is one; ``headers`` and
        ``timestamp``, with a time zone, are as ``read_topic`` returns them. Columns ``topic``, ``partition`` and
        ``offset`` are ignored, so that the result of a read can be sent again. A column without values may be of the
        type null, as packages make it; where there are no rows, a frame's columns may have any type.

        If another thread sends meanwhile, its records are among them.

        Args:
            data: A table, record batch or reader of pyarrow, or an object that offers Arrow's C stream: a DataFrame of
                Polars or pandas, a result of DuckDB. A table's small batches are put together; batches of a reader are
                sent as they come.
            topic: Its topic; the producer's own topic by default.

        Raises:
            UsageError: It is no such data, a column is missing, of no use or of another type, or pyarrow or numpy is
                not installed: ``pip install 'chappe[arrow]'``. Nothing was sent, unless it is a single row that is
                wrong: then those in the batches before it were, up to ``next_offset``.
            RecordTooLarge: A row is over 8 MiB; those in the batches before it were sent.
            BufferFull, StorageFull, StorageError: As ``send_many``.
        """
        self._check()
        writer = self._writer(topic)
        first = writer.core.next_offset
        for part in from_arrow(data, _now_us):  # made without the lock: it may take its time
            for moment in (part.first_us, part.last_us):
                as_micros(moment)
            with self._lock:
                writer.send_batch(part.encode)
        return range(first, writer.core.next_offset)

    def flush(self, timeout: float | None = None) -> None:
        """Publish everything, of all topics, and wait until ``min_acks`` stores hold it.

        Args:
            timeout: Seconds; None waits for ever (Ctrl-C ends the wait).

        Raises:
            TimedOut: Not everything is stored yet; it still may be.
            StorageFull, StorageError: The journal of the identity refuses: taken records are sent once it works again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._check()
            self._topics.flush()
            goals = [(core, core.next_offset) for core in self._topics.partitions()]
            # Where no store is waited for, those who listen are to have it, or to have lost it.
            out = self._node.published()
            self._topics.hurry(True)

        def done() -> bool:
            return all(core.stored >= goal for core, goal in goals) and (self._min_acks > 0 or out())

        try:
            while not done():
                self._check()
                left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
                if left <= 0:
                    missing = counted((core.topic, goal - core.stored) for core, goal in goals)
                    if not missing:
                        raise TimedOut(f"a member has not taken all records after {timeout:g} s")
                    doubt = self._where.doubt(core.topic for core, goal in goals if core.stored < goal)
                    raise TimedOut(f"{missing} are not stored after {timeout:g} s: {doubt}")
                self._node.pump(left, done)
        finally:
            with self._lock:
                self._topics.hurry(False)

    def delivered(self, offset: int, topic: str | None = None) -> Future[int]:
        """Return a future of the offset that is done as soon as ``min_acks`` stores hold the record.

        Its callbacks run in the producer's thread, which does nothing else meanwhile: they must be quick. With
        ``min_acks=0`` no store is asked, and done only means that the record was handed to the listeners of that
        moment.

        Args:
            offset: The result of ``send``.
            topic: The record's topic; the producer's own by default.

        Returns:
            It fails with TimedOut if the producer is closed before, and with the error that stops the producer, such as
            IdentityInUse, IdentityRolledBack or MemberStopped. Cancelling it does not take the record back.

        Raises:
            UsageError: There is no record with this offset.
            BufferFull: A million records are waited for.
            Closed: The producer was closed.
        """
        with self._lock:
            core = self._writer(topic).core
            if not isinstance(offset, int) or not 0 <= offset < core.next_offset:
                raise UsageError(f"topic {core.topic!r} has no record at offset {offset}: wait for what send returned")
            if offset >= core.stored:
                self._check()
            return self._deliveries.wait(core, offset)

    def wait_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until a tower or forwarder hears us and ``min_acks`` stores listen; with ``min_acks=0``, any member.

        Records that are sent before are not lost: they are kept for these, within the bounds.

        Raises:
            TimedOut: The text says what is missing.
        """

        def ready() -> bool:
            wanted = self._core.stores >= self._min_acks if self._min_acks else self._core.wanted
            return self.tower and wanted

        def missing(when: str) -> str:
            if not self.tower:
                return self._where.nobody(when, self._refused)
            if not self._min_acks:
                topics = " or ".join([f"topic {each!r}" for each in self._writers]) or "any topic"
                return f"nobody listened to {topics} {when}: is a consumer connected to the same tower?"
            return (
                f"{self._core.stores} of the {self._min_acks} stores that min_acks asks for were heard {when} through "
                f"{self._where.named}; start one with: {self._where.command}"
            )

        self._node.wait_until(self._check, ready, missing, timeout)

    # -- looking --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name for people, in lists and pictures."""
        return self._name

    @property
    def partition(self) -> str:
        """The name of its partition, the same in each topic."""
        return self._core.address

    @property
    def topics(self) -> dict[str, TopicProgress]:
        """The progress of each topic, in the order of their first records; with an identity also of former lives."""
        return self._topics.progress()

    @property
    def next_offset(self) -> int:
        """The offset of the next record of the producer's own topic; ``topics`` has those of others."""
        return self._writer(None).core.next_offset

    @property
    def stored(self) -> int:
        """Every offset before this one, of the producer's own topic, is held by ``min_acks`` stores."""
        return self._writer(None).core.stored

    @property
    def connected(self) -> int:
        """The number of other nodes that it knows: stores, and shared ones of a process's producers or consumers."""
        return self._node.discovery.peers

    @property
    def tower(self) -> bool:
        """True while a tower or a forwarder hears us."""
        return self._node.discovery.tower

    def events(self) -> list[object]:
        """Return the events since the last call (``chappe.log.events``)."""
        return happened(self._events, self._node.check)

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = 10.0) -> None:
        """Flush, then leave.

        Raises:
            TimedOut: Not everything was stored within ``timeout`` seconds. The producer is closed all the same;
                with an identity the rest is published again after a restart, without one it is lost.
            StorageFull, StorageError: The journal refuses. Records taken before are not synced; the next producer with
                the identity sends them, as the text says.
        """
        if self._node.closed:
            return
        at_exit.remove(self)
        try:
            if self._error is None or not self._error_said:
                self.flush(timeout)  # which says what no call has said yet
        except StorageError as error:
            left = counted((core.topic, core.next_offset - core.published) for core in self._topics.partitions())
            kept = f"; {left} are not synced to disk, the next producer with this identity sends them" if left else ""
            raise type(error)(f"{error}{kept}") from None
        finally:
            self._node.close()
            self._deliveries.fail(_unknown)()
            if self._journals:
                self._journals.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Leave after an error of the user's program: flush for a moment, and do not hide the error."""
        try:
            self.close(EXIT_ERROR_S)
        except ChappeError as error:
            logger.warning("%s", error)

    def begin_leave(self) -> None:
        """Publish gathered records at the end of the program."""
        with self._lock:
            if not self._node.closed and self._node.halted is None:
                with suppress(ChappeError):  # ``leave`` tells
                    self._topics.flush()

    def leave(self, timeout_s: float) -> list[str]:
        """Close at the end of the program; return sentences about the rest."""
        ended = "the program ended without closing its producer:"
        try:
            self.close(timeout_s)
        except (TimedOut, MemberStopped):
            pass  # what is left says it
        except ChappeError as error:
            return [f"{ended} {error}"]
        left = counted((core.topic, core.next_offset - core.stored) for core in self._topics.partitions())
        if not left:
            return []
        if self._journals:
            fate = (
                "not stored yet; they are in the journal of its identity, and sent again by the next producer with it"
            )
        else:
            doubt = self._where.doubt(
                core.topic for core in self._topics.partitions() if core.stored < core.next_offset
            )
            fate = f"lost: no store had them in time; {doubt}"
        return [f"{ended} {left} are {fate}"]

    def __repr__(self) -> str:
        closed = "closed " if self._node.closed else ""
        return f"<{closed}Producer of partition {self.partition[:8]}, {self._topics}>"

    # -- inside -----------------------------------------------------------------------------------------------

    def _new_partition(self) -> str:
        return new_address()

    def _writer(self, topic: str | None) -> TopicWriter:
        try:
            found = self._writers.get(self.topic if topic is None else topic)  # type: ignore[arg-type]
        except TypeError:  # it has no hash
            found = None
        return self._new(topic) if found is None else found

    def _new(self, topic: str | None) -> TopicWriter:
        if topic is None:
            raise UsageError("this producer has no topic of its own: name one, as in send(value, topic='metrics')")
        name = check_topic(topic)
        self._where.require(PRODUCE, name)
        with self._lock:
            self._check()
            return self._writers.get(name) or self._topics.open(name)  # or another thread did, just now

    def _check(self) -> None:
        if self._node.closed:
            raise Closed("the producer was closed")
        self._node.check()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            self._error_said = True
            raise self._error

    def _report(self, event: object) -> None:
        if isinstance(event, IdentityClash):
            event = replace(event, identity=self._identity)
        log_event(event)
        self._events.append(event)
        if isinstance(event, ConnectionRefused):
            self._refused = event
        if isinstance(event, Stopped):
            self._topics.look_again()
            self._node.later(self._deliveries.fail(lambda topic, offset: MemberStopped(event.reason)))
        if isinstance(event, IdentityClash) and self._node.discovery.newcomer(self.partition, time.monotonic()):
            self._fail(IdentityInUse(f"{event}; this one gives way"))
        elif isinstance(event, IdentityBehind):
            self._fail(errors.IdentityRolledBack(str(event)))
        elif isinstance(event, PermissionsChanged):
            self._look_at_permissions()

    def _look_at_permissions(self) -> None:
        """Make every call raise NotPermitted while we may not write one of our topics."""
        try:
            for topic in self._writers:
                self._where.require(PRODUCE, topic)
        except UsageError as error:  # or we are nobody any more
            self._fail(error)
        else:
            if isinstance(self._error, UsageError):
                self._error = None

    def _fail(self, error: ChappeError) -> None:
        """Raise an error in every call from now on."""
        self._error, self._error_said = error, False
        self._topics.look_again()
        self._node.later(self._deliveries.fail(lambda topic, offset: error))


class _ProducerSeat:
    def __init__(self, producer: Producer, topics: TopicWriters) -> None:
        self._producer = producer
        self._topics = topics

    def report(self, event: object) -> None:
        self._producer._report(event)

    def deliver(self, messages: StoredTo) -> None:
        self._topics.progress_of(messages)

    def carry_out(self, job: JournalBatch | JournalTrim) -> None:
        self._topics.carry_out(job)


def _now_us() -> int:
    return SYSTEM_CLOCK.wall_ns() // 1000


def _chunks(source: Iterator[bytes | str | None]) -> Iterator[list[bytes | str | None]]:
    while chunk := list(islice(source, CHUNK)):
        yield chunk


def _unknown(topic: str, offset: int) -> TimedOut:
    return TimedOut(
        f"the producer was closed before stores said that they hold the record at offset {offset} of topic {topic!r}"
    )
