"""Publishing to a topic."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from chappe import errors
from chappe.api import at_exit
from chappe.api.identity import log_event, new_address, state_directory
from chappe.api.readiness import no_tower, wait_until
from chappe.api.times import as_micros
from chappe.data.topic import check_topic
from chappe.defaults import (
    BATCH_BYTES,
    DISK_RETRY_S,
    EXIT_ERROR_S,
    FULL_PEER_WAIT_LIVE_S,
    FULL_PEER_WAIT_S,
    IDLE_S,
    PRODUCER_BUFFER_BYTES,
    TOWER_HOST,
    TOWER_SUB_PORT,
)
from chappe.drivers.addresses import TowerAddress
from chappe.drivers.forking import own
from chappe.drivers.journal import Journal
from chappe.drivers.node import Node, wall_us
from chappe.errors import (
    BufferFull,
    ChappeError,
    Closed,
    IdentityInUse,
    MemberStopped,
    StorageError,
    TimedOut,
    UsageError,
)
from chappe.log.actions import Persist, Trim
from chappe.log.batch import Batch, Headers, as_headers, encode_batch, encode_record
from chappe.log.events import IdentityClash, IdentityRolledBack, Stopped
from chappe.log.producer import LogProducer

logger = logging.getLogger(__name__)

CHUNK = 4096  # records of an iterable taken at once
SERVE_S = 0.05  # so often the network is looked after while an iterable is sent
BUSY_RECORDS = 16  # so many gathered at once are a fast sequence: nobody looks at the clock for each further one
BUSY_S = 0.001  # our thread looks this often whether something gathered was left behind ...
GATHER_S = 0.02  # with an identity, where each batch is synced, a fast sequence is gathered at least so long
HELD_S = 0.05  # and this often while new records are held
ACTIVE_S = 0.05  # ... until no record came for this long; so none has to wake it


class Producer:
    """The one writer of one partition of a topic.

    Offsets are given at once; records are published as soon as the sender pauses or a batch is full, and kept
    until ``min_acks`` stores hold them. Use from several threads is safe.

    Args:
        topic: At most 255 bytes, no NUL.
        tower: ``HOST[:PORT]``, several separated by commas.
        listen: Host to listen on; ``*`` for all interfaces.
        min_acks: Stores that must hold a record before it is let go; 0 keeps the newest 16 MiB for those who
            missed them and waits for nobody.
        buffer_bytes: Records not yet acknowledged; at this bound ``send`` blocks or raises.
        on_full: What ``send`` does at the bound: ``block`` or ``error`` (BufferFull).
        identity: A name under which the partition goes on after a restart, without repeating or skipping an
            offset: every batch is written to a journal on disk before it is published. While the journal refuses,
            nothing is published and ``send`` raises; what was taken before is sent once it works again, with the
            offsets that it has. After a restart new records are first published when the stores have said how far
            they hold the partition, at the latest after 3 s. None: a new partition.
        directory: Where identities are kept; the user's data directory by default.

    Raises:
        IdentityInUse: Another producer uses the identity.
        StorageFull: No room for the journal.
        UsageError: An argument is out of its range.
    """

    def __init__(
        self,
        topic: str,
        *,
        tower: str = f"{TOWER_HOST}:{TOWER_SUB_PORT}",
        listen: str = TOWER_HOST,
        min_acks: int = 1,
        buffer_bytes: int = PRODUCER_BUFFER_BYTES,
        on_full: Literal["block", "error"] = "block",
        identity: str | None = None,
        directory: str | Path | None = None,
    ) -> None:
        own(self)
        towers = TowerAddress.parse_many(tower)
        self._at_tower = tower
        check_topic(topic)
        if min_acks < 0 or (identity is not None and not min_acks):
            raise UsageError("min_acks is at least 0, and at least 1 for a producer with an identity")
        if on_full not in ("block", "error"):
            raise UsageError(f"on_full is 'block' or 'error', not {on_full!r}")
        self._journal: Journal | None = None
        if identity is not None:
            self._journal = Journal(state_directory("producers", identity, directory), topic, new_address())
        journal = self._journal
        self.topic = topic
        self._core = LogProducer(
            topic,
            journal.address if journal else new_address(),
            min_acks=min_acks,
            journal=journal.batches if journal else None,
            next_offset=journal.next_offset if journal else 0,
            resumed=journal.resumed if journal else False,
        )
        self._buffer_bytes = max(buffer_bytes, BATCH_BYTES)
        self._block = on_full == "block"
        self._live = min_acks == 0
        self._min_acks = min_acks
        self._error: ChappeError | None = None
        self._error_said = False
        self._retry_at = 0.0  # the journal refused the batch being gathered: our thread tries again then
        self._events: deque[object] = deque(maxlen=1000)
        self._sent_at = 0.0  # when last a record was added one by one, or a batch left
        self._silence_s = IDLE_S  # nothing sent for this long: the next record leaves at once; as long as a sync takes
        self._left_at = 0.0  # when last a batch left
        self._served_at = 0.0  # when last a sending thread looked after beacons and acknowledgements
        self._full_at = 0.0  # when last a batch left because it was full
        for each in journal.pending if journal else ():
            self._core.append(each.value, each.key, each.headers, each.timestamp)
        self._quiet = not self._core.pending  # nothing is being gathered
        self._plain = False  # something is, and a further record needs nothing but its place in the batch
        try:
            self._node = Node(
                self._core,
                towers,
                listen,
                on_report=self._report,
                perform={Persist: self._persist, Trim: self._trim},
                idle=self._idle,
                full_peer_wait_s=FULL_PEER_WAIT_S if min_acks else FULL_PEER_WAIT_LIVE_S,
            )
        except BaseException:
            if journal:
                journal.close()
            raise
        self._lock = self._node.lock
        self._acquire, self._unlock = self._lock.acquire, self._lock.release
        self._node.start()
        at_exit.add(self)

    # -- sending ------------------------------------------------------------------------------------------

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None = None,
        timestamp: int | datetime | None = None,
    ) -> int:
        """Add a record; returns its offset at once.

        Args:
            value: Text becomes UTF-8; None is a tombstone (the key is deleted).
            key: As ``value``.
            headers: Names and values.
            timestamp: Microseconds since 1970 UTC, or a datetime with a time zone; now by default.

        Raises:
            RecordTooLarge: Over 8 MiB; nothing was sent.
            BufferFull: The bound is reached and ``on_full`` is ``error``; nothing was sent.
            StorageFull, StorageError: The journal of the identity refuses; this record was not taken.
            IdentityInUse, IdentityRolledBack: Another copy of the identity is in use, or it is older than what stores
                hold; nothing is sent any more. So says every further call.
            Closed: The producer was closed.
            MemberStopped: It met a defect.
        """
        core = self._core
        # The one path that runs once for each record. The lock is taken by hand (``with`` costs twice as much) and
        # within the ``try``, so that a Ctrl-C at any moment leaves it released.
        try:
            self._acquire()
            if self._plain and type(value) is bytes and key is None and headers is None and timestamp is None:
                room = core.room - len(value) - 4
                if room > 0:  # what ``core.append`` does, written out
                    core.room = room
                    core.values.append(value)
                    offset = core.next_offset
                    core.next_offset = offset + 1
                    return offset
            stamp = None if timestamp is None else as_micros(timestamp)
            return self._send(_as_bytes(value), _as_bytes(key), as_headers(headers), stamp)
        finally:
            try:
                self._unlock()
            except RuntimeError:  # the wait for the lock was interrupted: it is not ours
                pass

    def send_many(self, values: Iterable[bytes | str | None], *, timestamp: int | datetime | None = None) -> range:
        """Add many records with values only; returns their offsets.

        If another thread sends meanwhile, its records are among them.

        Raises:
            BufferFull, StorageFull, StorageError: The bound was reached, or the journal refuses; those before it were
                sent, as ``next_offset`` tells.
        """
        stamp = None if timestamp is None else as_micros(timestamp)
        source = iter(values)
        self._check()
        first = self._core.next_offset
        while chunk := list(islice(source, CHUNK)):  # without the lock: it may take its time
            with self._lock:
                self._send_chunk(chunk, stamp)
        return range(first, self._core.next_offset)

    def send_batch(self, batch: bytes | Batch) -> range:
        """Publish records that are encoded as a batch already, without unpacking them; returns their offsets.

        Keys, headers and timestamps stay as they are; the offsets in the batch are replaced.

        Args:
            batch: As ``chappe.log.batch`` describes it; with an identity it is best larger than 100 KiB, since each is
                synced to disk.

        Raises:
            ProtocolError: It is not a batch; nothing was sent.
            BufferFull: The bound is reached and ``on_full`` is ``error``; nothing was sent.
            StorageFull, StorageError: The journal of the identity refuses; nothing of it was taken.
            Closed: The producer was closed.
        """
        raw = bytes(batch.raw if isinstance(batch, Batch) else batch)
        with self._lock:
            self._make_room(alone=True)  # what was sent before comes first
            first = self._core.next_offset
            self._node.perform(self._core.append_batch(raw, time.monotonic()))
            self._flush_batch()  # nothing is pending: it only looks after the network
            return range(first, self._core.next_offset)

    def _send_chunk(self, chunk: list[bytes | str | None], stamp: int | None) -> None:
        if set(map(type, chunk)) != {bytes} or stamp is not None:
            for value in chunk:
                self._send(_as_bytes(value), None, (), stamp)
            return
        done = 0
        while done < len(chunk):
            self._make_room(alone=True)
            first = self._core.next_offset
            done = self._core.append_many(chunk, done)  # type: ignore[arg-type]
            self._flush_or_take_back(first)

    def flush(self, timeout: float | None = None) -> None:
        """Publish everything and wait until ``min_acks`` stores hold it.

        Args:
            timeout: Seconds; None waits for ever (Ctrl-C ends the wait).

        Raises:
            TimedOut: Not everything is stored yet; it still may be.
            StorageFull, StorageError: The journal of the identity refuses: what was taken is sent once it works again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._check()
            self._flush_batch()
            goal = self._core.next_offset
            # Where no store is waited for, those who listen are to have it, or to have lost it.
            out = self._node.published()
            self._core.hurry(time.monotonic(), True)

        def done() -> bool:
            return self._core.stored >= goal and (not self._live or out())

        try:
            while not done():
                self._check()
                left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
                if left <= 0 and self._core.stored >= goal:
                    raise TimedOut(f"a member has not taken all records of topic {self.topic!r} after {timeout:g} s")
                if left <= 0:
                    missing = goal - self._core.stored
                    raise TimedOut(
                        f"{missing} records of topic {self.topic!r} are not stored after {timeout:g} s: "
                        "is a store running and connected to the same tower?"
                    )
                self._node.pump(left, done)
        finally:
            self._core.hurry(time.monotonic(), False)

    def wait_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until a tower hears us and ``min_acks`` stores listen; with ``min_acks=0``, anybody to the topic.

        Nothing is lost by who sends before: it is kept for them, within the bounds.

        Raises:
            TimedOut: With what is missing.
        """

        def ready() -> bool:
            core = self._core
            return self.tower and (core.wanted if self._live else core.stores >= self._min_acks)

        def missing(when: str) -> str:
            if not self.tower:
                return no_tower(self._at_tower, when)
            if self._live:
                return f"nobody listened to topic {self.topic!r} {when}: is a consumer connected to the same tower?"
            return (
                f"{self._core.stores} of the {self._min_acks} stores that min_acks asks for were heard {when} through "
                f"the tower at {self._at_tower}; start one with: chappe store DIRECTORY"
            )

        wait_until(self._node, self._check, ready, missing, timeout)

    # -- looking --------------------------------------------------------------------------------------------

    @property
    def partition(self) -> str:
        """The name of our partition."""
        return self._core.address

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._core.next_offset

    @property
    def stored(self) -> int:
        """Every offset before this one is held by ``min_acks`` stores."""
        return self._core.stored

    @property
    def connected(self) -> int:
        """Members that we know of."""
        return self._node.discovery.peers

    @property
    def tower(self) -> bool:
        """Whether a tower hears us."""
        return self._node.discovery.tower

    def events(self) -> list[object]:
        """What happened since the last call (``chappe.log.events``)."""
        with self._lock:
            found = list(self._events)
            self._events.clear()
        if not found:
            self._node.check()
        return found

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = 10.0) -> None:
        """Flush, then leave.

        Raises:
            TimedOut: Not everything was stored within ``timeout`` seconds. The producer is closed all the same;
                with an identity the rest is published again after a restart, without one it is lost.
            StorageFull, StorageError: The journal refuses; what it did not take is lost, as the text says.
        """
        if self._node.closed:
            return
        at_exit.remove(self)
        try:
            if self._error is None or not self._error_said:
                self.flush(timeout)  # which says what no call has said yet
        except StorageError as error:
            lost = self._core.next_offset - self._core.published
            raise type(error)(f"{error}; {lost} records of topic {self.topic!r} are lost") from None
        finally:
            self._node.close()
            if self._journal:
                self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Leave after an error of the user's program: give what is gathered a moment, and do not hide the error."""
        try:
            self.close(EXIT_ERROR_S)
        except ChappeError as error:
            logger.warning("%s", error)

    def begin_leave(self) -> None:
        """The program ends, see ``at_exit``: publish what is gathered."""
        with self._lock:
            if not self._node.closed and self._node.halted is None:
                with suppress(ChappeError):  # ``leave`` tells
                    self._flush_batch()

    def leave(self, timeout_s: float) -> list[str]:
        """The program ends, see ``at_exit``: flush as far as that goes, and tell what is left."""
        try:
            self.close(timeout_s)
        except (TimedOut, MemberStopped):
            pass  # what is left says it
        except ChappeError as error:
            return [f"the program ended without closing its producer: {error}"]
        left = self._core.next_offset - self._core.stored
        if not left:
            return []
        if self._journal:
            fate = (
                "not stored yet; they are in the journal of its identity, and sent again by the next producer with it"
            )
        else:
            fate = "lost: no store had them in time; is a store running and connected to the same tower?"
        return [f"the program ended without closing its producer: {left} records of topic {self.topic!r} are {fate}"]

    # -- inside -----------------------------------------------------------------------------------------------

    def _send(self, value: bytes | None, key: bytes | None, headers: Headers, timestamp: int | None) -> int:
        """A record that needs a look: the first one after a flush, the last one of a batch, one with extras."""
        core = self._core
        self._make_room()
        offset = core.append(value, key, headers, timestamp)
        full = core.full
        now = time.monotonic()
        # After silence a record leaves at once, with what was gathered before it; and one that may be refused, too.
        if full or now - self._sent_at > self._silence_s or core.refused:
            self._flush_or_take_back(offset)
            if full:
                self._full_at = self._sent_at
        else:
            self._sent_at = now
            if self._quiet:
                self._quiet = False
                self._node.wake_before(now + BUSY_S)  # should nobody follow, our thread sends it
            self._plain = self._journal is None and not core.extras and len(core.values) >= BUSY_RECORDS
        if self._journal is not None and core.pending:
            self._pend(offset, value, key, headers, timestamp)
        return offset

    def _pend(
        self, offset: int, value: bytes | None, key: bytes | None, headers: Headers, timestamp: int | None
    ) -> None:
        """Have the journal remember a record that is gathered still; if it refuses, the record was not taken."""
        assert self._journal is not None
        stamp = wall_us() if timestamp is None else timestamp
        if value is None or key is not None or headers:
            keys = None if key is None else [key]
            body = encode_batch(offset, [value], stamp, keys=keys, headers=[headers] if headers else None)
        else:
            body = encode_record(offset, value, stamp)
        try:
            self._journal.pend(body)
        except StorageError:
            self._core.take_back(offset)
            raise

    def _idle(self) -> float:
        """Our thread is about to wait: whatever is gathered leaves now. While records come, it looks again soon."""
        now = time.monotonic()
        if not self._quiet:
            if self._core.held(now):
                return HELD_S
            if now - self._full_at < BUSY_S:
                return BUSY_S  # full batches leave by themselves
            if self._journal and now - self._sent_at < self._silence_s and now - self._left_at < GATHER_S:
                return BUSY_S  # whoever sends so fast does not wait for a disk each time that we look
            if now < self._retry_at:
                return self._retry_at - now
            try:
                self._flush_batch()
            except StorageError:
                return DISK_RETRY_S  # whoever sends or flushes next is told, if it is still so
        return BUSY_S if now - self._sent_at < ACTIVE_S else math.inf

    def _flush_batch(self) -> None:
        """Publish what is gathered.

        Raises:
            StorageFull, StorageError: The journal refuses it; it is gathered still.
        """
        self._plain = False
        began = time.monotonic()
        try:
            self._node.perform(self._core.flush(began, wall_us()))
        except StorageError as error:
            self._quiet = False
            self._retry_at = time.monotonic() + DISK_RETRY_S
            raise type(error)(f"{error}: nothing is sent until it works again") from None
        self._quiet = not self._core.pending  # else it is held, and our thread looks again
        self._left_at = self._sent_at = time.monotonic()  # after the work: a fast sequence of records is no silence
        if self._journal is not None:
            self._silence_s = min(max(IDLE_S, self._sent_at - began), BUSY_S)
        if self._sent_at >= self._served_at + SERVE_S:
            # A thread that sends without a pause hardly lets another one have the lock.
            self._served_at = self._sent_at
            self._node.serve()

    def _flush_or_take_back(self, offset: int) -> None:
        """As ``_flush_batch``; if the journal refuses, the records from ``offset`` on were not taken."""
        try:
            self._flush_batch()
        except StorageError:
            self._core.take_back(offset)
            raise

    def _make_room(self, *, alone: bool = False) -> None:
        """Wait for room, or raise; ``alone``: nothing may be gathered, or have to be, when this returns."""
        core = self._core
        self._check()
        while True:
            if core.pending and (core.refused or core.full or alone):
                self._flush_batch()  # nothing is taken before what waits for the journal
            if self._has_room(alone):
                return
            if not self._block:
                raise BufferFull(self._no_room())
            self._unlock()  # held once: others keep their time-outs meanwhile
            try:
                self._node.pump(0.1, lambda: self._has_room(alone))
            finally:
                self._acquire()
            self._check()

    def _has_room(self, alone: bool) -> bool:
        core = self._core
        if core.kept_bytes >= self._buffer_bytes or self._node.choked:
            return False
        return not (core.full or alone) or not (core.pending or core.held(time.monotonic()))

    def _no_room(self) -> str:
        if self._core.kept_bytes < self._buffer_bytes and not self._node.choked:
            return (
                f"the partition of topic {self.topic!r} goes on after a restart, and stores have not yet said how far "
                "they hold it: send again later"
            )
        if self._node.choked:
            return f"a member does not take what is published to topic {self.topic!r}: send again later"
        return (
            f"{self._core.kept_bytes} bytes of topic {self.topic!r} are not stored yet, the buffer is full: "
            "send again later, or start a store"
        )

    def _check(self) -> None:
        if self._node.closed:
            raise Closed("the producer was closed")
        self._node.check()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            self._error_said = True
            raise self._error

    def _persist(self, action: Persist) -> None:
        assert self._journal is not None
        try:
            self._journal.append(action.body, Batch.parse(action.body, check=False).next)
        except StorageError as error:
            self._node.perform(self._core.handle_persist_failed(str(error)))
            raise
        self._node.perform(self._core.handle_persisted(time.monotonic()))

    def _trim(self, action: Trim) -> None:
        assert self._journal is not None
        self._journal.trim(action.offset)

    def _report(self, event: object) -> None:
        log_event(event)
        self._events.append(event)
        if isinstance(event, Stopped):
            self._plain = False  # the next ``send`` looks
        if isinstance(event, IdentityClash) and self._node.discovery.newcomer(time.monotonic()):
            self._fail(IdentityInUse(f"{event}; this one gives way"))
        elif isinstance(event, IdentityRolledBack):
            self._fail(errors.IdentityRolledBack(str(event)))

    def _fail(self, error: ChappeError) -> None:
        """Every call raises it from now on."""
        self._error, self._error_said, self._plain = error, False, False


def _as_bytes(value: object) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise UsageError(f"a record is bytes or text, not {type(value).__name__}: encode it first, for example as JSON")
