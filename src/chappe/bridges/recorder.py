"""From the mesh into a topic of the log."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from chappe.api.mesh.endpoint import Endpoint
from chappe.api.mesh.subscriber import Subscriber
from chappe.api.pace import SHOW_S
from chappe.bridges.form import fits, pack
from chappe.bridges.keeping import LOOK_S, Sender
from chappe.defaults import SUBSCRIBER_BYTES_MAX, SUBSCRIBER_MESSAGES_MAX
from chappe.errors import BufferFull, Closed, Sealed, UsageError
from chappe.mesh.messages import Message
from chappe.security import LogSecurity
from chappe.system import settings, time
from chappe.system.forking import own

logger = logging.getLogger(__name__)

TAKEN_MAX: Final = 8192  # messages on their way from the subscriber to the producer


@dataclass(slots=True)
class Recorded:
    records: int = 0  # messages that are records now, of this run
    stored: int = 0  # records that enough stores have, of this run and what an earlier one had left
    left: int = 0  # records that they do not have yet; those are in the journal
    bytes: int = 0  # of values
    waiting: int = 0  # messages that came and are not records yet
    dropped: int = 0  # messages that were lost: more came at once than twice the bounds, or larger than a record can be
    seconds: float = 0.0  # since it began


class MeshRecording(ABC):
    """Takes the messages of one subscriber until it is stopped, and calls ``show`` now and then; a context."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._began = self._shown_at = time.monotonic()
        self._stopping = False
        self.show: Callable[[Recorded], None] = lambda recorded: None

    @abstractmethod
    def progress(self) -> Recorded: ...

    @abstractmethod
    def finish(self) -> Recorded:
        """Keep what has come until now, and leave; return the account."""

    def stop(self) -> None:
        """Let ``run`` return soon; for signal handlers and other threads."""
        self._stopping = True

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown_at >= SHOW_S:
            self._shown_at = now
            self.show(self.progress())

    def _abandon(self) -> None:
        self._subscriber.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self._abandon()


class Recorder(MeshRecording):
    """Makes a record of every message whose topic in the mesh starts with one of some prefixes; a context.

    What it has taken is in a journal on disk before it is sent to stores, and is sent again after a restart until they
    have it: at least once. While stores are slow or away nothing more is read from peers once the bounds are reached,
    so the mesh is slowed down and nothing is lost. What is published while no recorder runs, and what is on its way to
    one that is killed, nobody has: the mesh keeps nothing.

    ``form.py`` says what a record looks like. The partition stays the same from run to run.

    Args:
        endpoint: Of the mesh; peers are its user's affair.
        topics: Prefixes of topics in the mesh.
        to: The topic of the log.
        tower: ``HOST[:PORT]``, several separated by commas; defaults to the settings, as in ``Consumer``.
        listen: Interface of the producer.
        min_acks: Stores that must have each record, at least 1.
        identity: Under which journal and partition are kept; by default made of ``topics`` and ``to``.
        directory: Where they are kept; the user's data directory by default.
        security: Who it is in the log, as of ``Producer``.
        messages_max: How many messages may wait.
        bytes_max: How many bytes.

    Raises:
        IdentityInUse: The same is being recorded already by this user.
        UsageError: An argument is wrong.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *topics: str,
        to: str,
        tower: str | None = None,
        listen: str | None = None,
        min_acks: int = 1,
        identity: str | None = None,
        directory: str | Path | None = None,
        security: LogSecurity = None,
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
    ) -> None:
        own(self)
        tower = settings.tower(tower)
        if not topics:
            raise UsageError("name at least one topic of the mesh to record, or '' for all")
        name = identity or f"record-{hashlib.sha256(repr((to, sorted(topics))).encode()).hexdigest()[:24]}"
        self._sender = Sender(to, tower, listen, min_acks, name, directory, security)
        self._producer = self._sender.producer
        try:
            super().__init__(
                endpoint.subscribe(*topics, on_full="block", messages_max=messages_max, bytes_max=bytes_max)
            )
        except BaseException:
            self._producer.close(0.0)
            raise
        self._taken: list[Message] = []  # messages from the subscriber that are no records yet
        self._too_large = 0
        self._bytes = 0

    def run(self) -> None:
        """Record until ``stop`` is called, by a signal handler or another thread.

        Raises:
            ChappeError: Of the endpoint or the producer, such as a full disk.
        """
        while not self._stopping:
            self._taken += self._subscriber.take_messages(TAKEN_MAX, LOOK_S)
            while self._taken and not self._stopping:
                self._record()
            self._show()

    def finish(self, timeout: float | None = 10.0) -> Recorded:
        """Record what has come until now, wait until it is stored, and leave; return the account.

        After ``timeout`` seconds what is not stored yet stays in the journal, and what is not a record yet is lost and
        counted as dropped.
        """
        deadline = time.monotonic() + timeout if timeout is not None else None
        with suppress(Closed):  # the endpoint went first; what was taken is still to be stored
            self._taken += [each.message for each in self._subscriber.poll()]
        self._subscriber.close()
        while self._taken and (deadline is None or time.monotonic() < deadline):
            self._record()
        if not self._taken:
            self._sender.flush(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        found = self.progress()
        found.waiting, found.dropped = 0, found.dropped + found.waiting
        self._taken.clear()
        self._sender.leave()
        return found

    def progress(self) -> Recorded:
        """Return the counters since this recorder was started."""
        return Recorded(
            *self._sender.account(),
            self._bytes,
            len(self._taken) + self._subscriber.available,
            self._subscriber.dropped + self._too_large,
            time.monotonic() - self._began,
        )

    @property
    def partition(self) -> str:
        """The partition of the log's topic that records go to."""
        return self._producer.partition

    def _abandon(self) -> None:
        super()._abandon()
        self._sender.leave()

    # -- inside -----------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Make records of what was taken, as far as there is room for them. Waits for room a while."""
        try:
            self._send()
        except (BufferFull, Sealed) as error:
            self._show()
            self._sender.wait(error)

    def _send(self) -> None:
        taken = self._taken
        small = [each for each in taken if fits(each)]
        if len(small) < len(taken):
            self._too_large += len(taken) - len(small)
            logger.warning("%d messages are larger than a record can be, and are not recorded", len(taken) - len(small))
            taken[:] = small
        done = 0
        try:
            for count, raw in pack(small, self._producer.next_offset, time.time_ns() // 1000):
                self._producer.send_batch(raw)
                self._bytes += sum([len(each.payload) for each in small[done : done + count]])
                done += count
        finally:
            del taken[:done]
