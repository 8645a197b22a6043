"""Publishing to ordered topics: a chain of stores puts the records of many writers into one order."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from chappe.api import at_exit
from chappe.api.chain.client import WAIT_S, Chain
from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.member import ChainCall
from chappe.api.faces import Closeable, Seconds
from chappe.api.times import as_micros
from chappe.data.given import as_bytes, several
from chappe.data.topic import check_topic, encode_topic
from chappe.defaults import BATCH_BYTES, BATCH_RECORDS_MAX, EXIT_ERROR_S, MIB, PRODUCER_BUFFER_BYTES
from chappe.errors import (
    BufferFull,
    ChappeError,
    Closed,
    OffsetConflict,
    ProtocolError,
    RecordTooLarge,
    TimedOut,
    UsageError,
)
from chappe.log.batch import Batch, as_batch, as_headers, encode_batch
from chappe.log.ordered.commands import (
    ANY,
    BODY_BYTES_MAX,
    PARTITIONS_MAX,
    Answer,
    Append,
    Appended,
    Conflict,
    Create,
    Describe,
    Layout,
    Part,
    Refused,
    decode_answer,
    encode,
)
from chappe.log.ordered.gathering import Gathering, LeavingBatch
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.security import LogSecurity
from chappe.system import time
from chappe.system.forking import own

logger = logging.getLogger(__name__)

BUFFER_BYTES_MAX: Final = 48 * MIB  # a chain's client has 64 MiB under way at most
LOOK_S: Final = 0.2  # who waits looks so often whether there is still something to wait for
SEED_BYTES: Final = 16
TAKEN_AT_ONCE: Final = 1_024  # of many records, under one lock


class OrderedProducer(Closeable):
    """One of many writers of an ordered topic: its partitions are few, each one total order of all their records.

    The records are kept by a chain of ``OrderedStore``. Confirmed records are on disk at all its members, and in the
    partition once; consumers see no earlier ones. A producer's own records are in the order in which they were sent, in
    each partition. Use from several threads is safe. Close it, or use it in a ``with``.

    Args:
        topic: At most 255 bytes, no NUL.
        chain: The configuration of the stores, or its file.
        partitions: The number of partitions of a new topic, 1,024 at most. None: those that it has, or one.
        buffer_bytes: The bound of unconfirmed records, 48 MiB at most; at this bound ``send`` blocks or raises.
        on_full: The policy of ``send`` at the bound: ``block`` or ``error`` (BufferFull).
        timeout: How many seconds to wait for the chain in the beginning.
        security: As of ``Chain``; with keys, an identity that may ``write`` the chain may write all its topics.

    Raises:
        NoChain: No server of the chain answers; so do ``append`` and ``ends``.
        TimedOut: It does not answer in time; so do ``append``, ``ends`` and ``flush``.
        NotPermitted: The permissions do not let this identity write it.
        UsageError: An argument is out of its range, or the topic has another number of partitions.
    """

    def __init__(
        self,
        topic: str,
        *,
        chain: ChainConfiguration | str | Path,
        partitions: int | None = None,
        buffer_bytes: int = PRODUCER_BUFFER_BYTES,
        on_full: Literal["block", "error"] = "block",
        timeout: Seconds = WAIT_S,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        self.topic = check_topic(topic)
        if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError(f"a topic has 1 to {PARTITIONS_MAX:,} partitions, not {partitions}")
        if on_full not in ("block", "error"):
            raise UsageError(f"on_full is 'block' or 'error', not {on_full!r}")
        self._raw = encode_topic(self.topic)
        self._buffer_bytes = min(buffer_bytes, BUFFER_BYTES_MAX)
        self._block = on_full == "block"
        self._error: ChappeError | None = None
        self._stored = 0
        self._appending = 0  # bytes of ``append``
        configuration = ChainConfiguration.of(chain)
        configuration.check_agrees("ordered topics")
        self._chain = Chain(configuration, security=security)
        self.lock = self._chain.member.lock
        try:
            self._parts = self._open(partitions, timeout)
        except BaseException:
            self._chain.close()
            raise
        self._gathering = Gathering(len(self._parts), SYSTEM_CLOCK)
        at_exit.add(self)

    def _open(self, partitions: int | None, timeout: Seconds) -> tuple[Part, ...]:
        """Create the topic if it is new, and return its partitions."""
        if partitions is None:
            found = self._layout(timeout)
            if found:
                return found
        create = Create(self._raw, partitions or 1, os.urandom(SEED_BYTES))
        answer = self._decoded(self._chain.call(encode(create), timeout=timeout).result)
        if isinstance(answer, Refused) and partitions is None:
            return self._layout(timeout)  # somebody else has made it meanwhile, and with more
        if not isinstance(answer, Layout):
            raise _refusal(answer)
        return answer.parts

    # -- looking ----------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the partitions at consumers and stores, in the order of their numbers."""
        return tuple(each.name for each in self._parts)

    @property
    def sent(self) -> int:
        """The number of records that ``send``, ``send_many`` and ``send_batch`` have taken."""
        return self._gathering.taken

    @property
    def stored(self) -> int:
        """The number of these that are confirmed."""
        return self._stored

    def partition_of(self, key: bytes | str) -> int:
        """Return the number of the partition for this key: CRC-32C of the key, modulo their number."""
        raw = as_bytes(key, "the key")
        if raw is None:
            raise UsageError("without a key no partition is the one of a record: give bytes or text")
        return self._gathering.partition_of(raw, None)

    def ends(self, timeout: Seconds = WAIT_S) -> tuple[int, ...]:
        """Return the next offset of each partition: all records confirmed to any producer are before it."""
        return tuple(each.next for each in self._layout(timeout))

    # -- sending ----------------------------------------------------------------------------------------------

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a record; ``flush`` waits until it is confirmed. Only readers know its offset.

        Args:
            value: Text becomes UTF-8; None is a tombstone (the key is deleted).
            key: As ``value``; records with the same key go to the same partition.
            timestamp: Microseconds since 1970 UTC, or a datetime with a time zone; now by default.
            partition: A number from 0; None: that of the key, or one after the other.

        Raises:
            UsageError: An argument is out of its range; nothing was sent.
            RecordTooLarge: About 4 MiB or more; nothing was sent.
            BufferFull: The bound is reached and ``on_full`` is ``error``; nothing was sent.
            SessionExpired, CommandFailed, NotPermitted: An earlier record failed. Raised once; after SessionExpired it
                may be in the topic or not.
            Closed: The producer was closed.
            MemberStopped: It met a defect.
        """
        raw, raw_key, some = as_bytes(value, "the value"), as_bytes(key, "the key"), as_headers(headers)
        stamp = None if timestamp is None else as_micros(timestamp)
        with self._room():
            self._submit(self._gathering.add(raw, raw_key, some, stamp, partition))

    def send_many(
        self,
        values: Iterable[bytes | str | None],
        *,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Add many records with values only. Raises as ``send``; then those before were sent.

        They are taken some at a time: a batch of 64 KiB, or 1,024 of them. Send slow input one by one.
        """
        stamp = None if timestamp is None else as_micros(timestamp)
        some: list[bytes | None] = []
        bytes_ = 0
        try:
            for value in several(values, "values"):
                raw = as_bytes(value, "a value")
                size = 0 if raw is None else len(raw)
                if bytes_ + size > BATCH_BYTES or len(some) == TAKEN_AT_ONCE:
                    before, some, bytes_ = some, [], 0
                    self._send_values(before, stamp, partition)
                some.append(raw)
                bytes_ += size
        finally:  # whatever ended it, what came before is sent
            self._send_values(some, stamp, partition)

    def _send_values(self, values: Sequence[bytes | None], stamp: int | None, partition: int | None) -> None:
        if not values:
            return
        with self._room():
            self._submit(self._gathering.add_values(values, stamp, partition))

    def send_batch(self, batch: bytes | Batch, *, partition: int = 0) -> None:
        """Add records that are encoded as a batch already, without unpacking them; its offsets are replaced.

        Raises ProtocolError if it is not a batch, and otherwise as ``send``.
        """
        found = Batch.parse(as_batch(batch))
        if found.sealed is not None:
            raise UsageError("a batch that is sealed cannot be sent: only its own producer can seal it")
        with self._room():
            self._submit(self._gathering.add_batch(found, partition))

    def append(
        self,
        values: Sequence[bytes | str | None],
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        expected_offset: int | None = None,
        timeout: Seconds = WAIT_S,
    ) -> range:
        """Add consecutive records to one partition, all or none, and wait; return their offsets.

        Records that were sent before come before them.

        Args:
            values: At least one, of 4 MiB together.
            key: The key of all of them.
            partition: A number from 0; None: that of the key, or the only one.
            expected_offset: The offset that the first of them must get. If others were faster, nothing is added.
            timeout: How long to wait, in seconds.

        Raises:
            OffsetConflict: The partition ends elsewhere, at its ``next_offset``; nothing was added.
            NoChain: No server took it; nothing was added.
            TimedOut, SessionExpired: They may have been added or not.
            UsageError, RecordTooLarge: An argument is out of its range; nothing was added.
        """
        if partition is None and key is None and len(self._parts) > 1:
            raise UsageError(f"the topic {self.topic!r} has {len(self._parts)} partitions: name one of them, or a key")
        raws, raw_key = [as_bytes(each, "a value") for each in several(values, "values")], as_bytes(key, "the key")
        if not 0 < len(raws) <= BATCH_RECORDS_MAX:
            raise UsageError(f"one to {BATCH_RECORDS_MAX:,} values are appended at once, not {len(raws):,}")
        keys = None if raw_key is None else [raw_key] * len(raws)
        expected = ANY if expected_offset is None else expected_offset
        if not isinstance(expected, int) or not ANY <= expected < 1 << 63:
            raise UsageError(f"{expected_offset} is no offset")
        body = encode_batch(0, raws, SYSTEM_CLOCK.wall_ns() // 1000, keys=keys)
        if len(body) > BODY_BYTES_MAX:
            raise RecordTooLarge(f"the values have {len(body):,} bytes together, of {BODY_BYTES_MAX:,} at most")
        with self._room():
            index = self._gathering.partition_of(raw_key, partition)
            self._submit(self._gathering.push(index))
            call = self._chain.member.submit(encode(Append(self._raw, index, expected, body)), at_once=True)
            self._appending += len(body)
        try:
            call.wait(timeout)
            answer = self._decoded(call.take().result)
        finally:
            self._appending -= len(body)
        if isinstance(answer, Conflict):
            raise OffsetConflict(
                f"partition {index} of topic {self.topic!r} goes on at offset {answer.next}, not at {expected}: others "
                "were faster; look at what they wrote, and try again",
                answer.next,
            )
        if not isinstance(answer, Appended):
            raise _refusal(answer)
        return range(answer.first, answer.next)

    def flush(self, timeout: Seconds = None) -> None:
        """Wait until every record that was sent is confirmed.

        Args:
            timeout: Seconds; None waits for ever (Ctrl-C ends the wait).

        Raises:
            TimedOut: Not everything is confirmed yet; it still may be.
            SessionExpired, CommandFailed, NotPermitted: As of ``send``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._gathering.empty:
            self._check()
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if left <= 0:
                missing = self.sent - self._stored
                why = self._chain.member.why()
                raise TimedOut(f"{missing} records of topic {self.topic!r} are not confirmed after {timeout:g} s{why}")
            self._chain.member.turns.wait(lambda: self._gathering.empty, left)
        self._check()

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self, timeout: Seconds = 10.0) -> None:
        """Flush, then leave. Raises as ``flush``; the producer is closed all the same."""
        if self._chain.member.turns.closed:
            return
        at_exit.remove(self)
        try:
            self.flush(timeout)
        finally:
            self._chain.member.leave(0.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:  # after an error of the user's program: give what is gathered a moment, and do not hide the error
            self.close(EXIT_ERROR_S)
        except ChappeError as further:
            logger.warning("%s", further)

    def begin_leave(self) -> None:
        """Do nothing: records are submitted as they come."""

    def leave(self, timeout_s: float) -> list[str]:
        """Close at the end of the program; return sentences about the rest."""
        ended = "the program ended without closing its producer:"
        try:
            self.close(timeout_s)
        except ChappeError as error:
            return [f"{ended} {error}"]
        return []

    def __repr__(self) -> str:
        closed = "closed " if self._chain.member.turns.closed else ""
        return f"<{closed}OrderedProducer of topic {self.topic!r}: {self.sent} sent, {self._stored} stored>"

    # -- inside -----------------------------------------------------------------------------------------------

    def _decoded(self, raw: bytes) -> Answer:
        try:
            return decode_answer(raw)
        except ProtocolError:
            name = self._chain.member.configuration.name
            raise UsageError(
                f"the chain {name} does not keep ordered topics: its servers are no OrderedStore"
            ) from None

    def _layout(self, timeout: Seconds) -> tuple[Part, ...]:
        answer = self._decoded(self._chain.read(encode(Describe(self._raw)), timeout=timeout))
        if not isinstance(answer, Layout):
            raise _refusal(answer)
        return answer.parts

    def _has_room(self) -> bool:
        return self._gathering.bytes + self._appending < self._buffer_bytes

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Hold the lock, with room for one more record of any size: the chain's client always has room, too."""
        while True:
            self._wait_for_room()
            with self.lock:
                self._check()
                if self._has_room():
                    yield
                    return

    def _wait_for_room(self) -> None:
        while not self._has_room():
            self._check()
            if not self._block:
                raise BufferFull(
                    f"{self._gathering.bytes} bytes of topic {self.topic!r} are not confirmed yet, the buffer is full: "
                    f"send again later{self._chain.member.why()}"
                )
            self._chain.member.turns.wait(self._has_room, LOOK_S)

    def _submit(self, batches: Iterable[LeavingBatch]) -> None:
        """Append batches; the lock is held."""
        for each in batches:
            call = self._chain.member.submit(encode(Append(self._raw, each.partition, ANY, each.body)))
            call.then(partial(self._answered, each, call))

    def _answered(self, leaving: LeavingBatch, call: ChainCall) -> None:
        """Take the outcome of a batch; the lock is held."""
        try:
            answer = self._decoded(call.take().result)
            if isinstance(answer, Appended):
                self._stored += leaving.records
            else:
                self._error = self._error or _refusal(answer)
        except ChappeError as error:
            self._error = self._error or error
        further = self._gathering.confirmed(leaving)
        turns = self._chain.member.turns
        if not turns.closed and turns.halted is None:
            self._submit(further)

    def _check(self) -> None:
        if self._chain.member.turns.closed:
            raise Closed("the producer was closed")
        self._chain.member.check()
        error, self._error = self._error, None
        if error is not None:
            raise error


def _refusal(answer: Answer) -> ChappeError:
    return UsageError(answer.why if isinstance(answer, Refused) else f"the chain answers with {type(answer).__name__}")
