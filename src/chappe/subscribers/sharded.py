"""A consumer whose records are worked on by several processes: the Black Box, and with several readers the Mad one."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from chappe.api.ages import OnStale
from chappe.api.faces import Closeable
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.consumer import Consumer, ResetLike
from chappe.errors import Closed, MemberStopped, ProtocolError, UsageError, WorkerFailed
from chappe.log.batch import Record
from chappe.security import LogSecurity
from chappe.subscribers import work as working
from chappe.subscribers.readers import Readers
from chappe.subscribers.shares import By, Key, Shares, split
from chappe.subscribers.work import Form, Function, work_of
from chappe.subscribers.workers import Workers
from chappe.system import program
from chappe.system.cpus import bind
from chappe.system.cpus import check as check_cpus
from chappe.system.forking import own
from chappe.system.machine import Wakeup

logger = logging.getLogger("chappe.subscribers")

COMMIT_S: Final = 1.0  # between two times that it commits what is done
LOOK_S: Final = 0.25  # how long it waits at most for news
END_LOOK_S: Final = 0.05  # ... for the end
LAST_S: Final = 10.0  # at the end: for what workers were sent
WORKERS_MAX: Final = 1024
TRIES: Final = 3
TRIES_MAX: Final = 1000
WAYS: Final = ("key", "topic")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress: records read, done, and sent once more as a worker ended; workers replaced."""

    read: int = 0
    done: int = 0
    again: int = 0
    replaced: int = 0


class ShardedConsumer(Closeable):
    """Reads topics, and has several processes call a function with the records: each key's in order, by one process.

    One thread of this process does nothing but read and hand out. A worker that ends is replaced, and what it had not
    done is done again: so each record is worked on at least once. ``identity`` keeps on disk up to where everything is
    done, so that this holds over restarts and kills of this process too. Slow workers hold back the reader.

    Args:
        function: Called with each ``Record``. Workers import it by its name, so it stands in a module, or in the file
            that is run; or its name as ``module:name``; or a program with its arguments, as a list of texts.
        topics: As of ``Consumer``.
        workers: How many processes.
        by: What of a record says which worker has it: its ``key`` (without one, its topic and partition), or its
            ``topic``.
        reader_per_topic: Each of ``topics`` is read by a process of its own, with its part of the workers. It takes an
            identity.
        identity: A name whose positions survive restarts; None: they last as long as this.
        until_end: ``run`` ends when everything is done that was there when it began.
        timeout: With ``until_end``: seconds until the end is known, and for each batch after that.
        tries: How many workers in a row may end, or raise, before the same record is done; then ``run`` raises.
        patience_s: A worker that gets nothing done for so long of what it has to do is killed and replaced; None: it is
            waited for, and told of after 30 s. To import the function, it has a minute at least; of a program, what it
            takes to start counts.
        cpus: Processors (Linux): the first is for the reading thread, the others are for workers in turn; with
            ``reader_per_topic`` as many of the first as there are topics are for readers. None: the system places all.
        form: What a program gets for each record: ``json``, a line as ``chappe consume --json`` prints it; ``raw``, the
            value and a newline; ``length``, the value after its length in four bytes.
        tower: As of ``Consumer``, like ``listen``, ``forwarders``, ``reset``, ``directory``, ``max_age_s``,
            ``on_stale``, ``name``, ``stored``, ``min_acks`` and ``security``. Workers read nothing; readers find the
            key where it is, and are told its passphrase by their environment.

    Raises:
        UsageError: An argument is out of its range, or no worker could import the function or start the program.
        IdentityInUse, StorageError: As ``Consumer``.
    """

    def __init__(
        self,
        function: Function,
        *topics: str,
        workers: int = 2,
        by: By = "key",
        reader_per_topic: bool = False,
        identity: str | None = None,
        until_end: bool = False,
        timeout: float | None = 10.0,
        tries: int = TRIES,
        patience_s: float | None = None,
        cpus: Sequence[int] | None = None,
        form: Form = "json",
        tower: str | None = None,
        listen: str | None = None,
        forwarders: str | Sequence[str] | None = None,
        reset: ResetLike = "earliest",
        directory: str | Path | None = None,
        max_age_s: float | None = None,
        on_stale: OnStale = "end",
        name: str | None = None,
        stored: bool = False,
        min_acks: int = 1,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        if working.inside:
            raise UsageError("this process is a worker: what the program does stands behind: if __name__ == '__main__'")
        for option, value, most in (("workers", workers, WORKERS_MAX), ("tries", tries, TRIES_MAX)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise UsageError(f"{option} is a number from 1 to {most}, not {value!r}")
        if by not in WAYS:
            raise UsageError(f"by is 'key' or 'topic', not {by!r}")
        if patience_s is not None and not 0 < patience_s < math.inf:
            raise UsageError(f"patience_s is a number of seconds above 0, not {patience_s!r}")
        self._work = work_of(function, form)
        self._by = by
        self._until_end = until_end
        self._timeout = timeout
        self._tries = tries
        self._patience_s = patience_s
        self._cpus = () if cpus is None else check_cpus(cpus)
        self._identity = identity
        self._shares = Shares(workers)
        self._workers_count = workers
        self._wakeup = Wakeup()
        self._stopped = False
        self._hurried = False
        self._running = threading.Lock()
        self._workers: Workers | None = None
        self._replaced = 0  # workers that were replaced in former runs
        self._in_hand: ConsumedBatch | None = None  # the batch that was taken and not handed out yet
        self._committed: dict[Key, int] = {}
        self._readers: Readers | None = None
        self._consumer: Consumer | None = None
        self.closed = False
        shared: dict[str, Any] = {"tower": tower, "listen": listen, "forwarders": forwarders}
        shared |= {"max_age_s": max_age_s, "on_stale": on_stale, "name": program.label(name), "stored": stored}
        shared |= {"min_acks": min_acks}
        try:
            if reader_per_topic:
                options = {"by": by, "until_end": until_end, "timeout": timeout, "tries": tries, **shared}
                options |= {"patience_s": patience_s, "directory": None if directory is None else str(directory)}
                self._readers = Readers(
                    self._work, topics, workers, identity, options, reset, tries, self._wakeup, security, self._cpus
                )
            else:
                shared |= {"reset": reset, "identity": identity, "directory": directory, "security": security}
                self._consumer = Consumer(*topics, **shared)
                self._consumer.on_ready = self._wakeup.set
        except BaseException:
            self._wakeup.close()
            raise

    def run(self) -> Progress:
        """Read, and have workers work, until ``stop``, ``close`` or Ctrl-C; or, with ``until_end``, until all is done.

        However it ends, it waits up to 10 s for the records that workers were sent, and commits what is done. A second
        Ctrl-C ends that wait. It can be called again, and goes on where it was.

        Raises:
            WorkerFailed: ``tries`` workers did not get done with a record, which the text names; or none can work.
            OffsetOutOfRange, TooSlow, TimedOut, MemberStopped: As ``Consumer``.
            StorageFull, StorageError: Nothing can be committed.
            Closed: It was closed before.
        """
        if self.closed:
            raise Closed("the consumer was closed")
        if not self._running.acquire(blocking=False):
            raise UsageError("it runs already")
        try:
            ended: Future[Progress] = Future()
            thread = threading.Thread(target=self._run, args=(ended,), name="chappe-reader", daemon=True)
            try:
                thread.start()  # signals are the main thread's: none of them interrupts a step of this one
                _wait_for(ended)
                return ended.result()
            except BaseException:
                if not ended.cancel():  # a thread that only starts finds out, and does nothing
                    self._leave(ended)
                raise
            finally:
                if not ended.done():  # Ctrl-C again, wherever that was
                    self._hurried = True
                    self.stop()
                if thread.ident is not None:
                    thread.join()
        finally:
            self._running.release()

    def _leave(self, ended: Future[Progress]) -> None:
        """End the thread, if it has not ended; an error that it meets on the way is logged."""
        if ended.done():
            return
        self.stop()
        _wait_for(ended)
        error = ended.exception()
        if error is not None:
            logger.warning("%s", error)

    def progress(self) -> Progress:
        """Return the progress; of several readers, the sum of their reports."""
        if self._readers is not None:
            return Progress(**self._readers.progress())
        shares, workers = self._shares, self._workers
        replaced = self._replaced + (0 if workers is None else workers.replaced)
        return Progress(shares.read, shares.done_, shares.again, replaced)

    def workers(self) -> list[int | None]:
        """Return the ids of the workers' processes, or of the readers', if several; None for one not needed yet."""
        if self._readers is not None:
            return self._readers.ids
        workers = self._workers
        return [None] * self._workers_count if workers is None else workers.ids

    def events(self) -> list[object]:
        """Return the events of the consumer, as ``Consumer.events`` does; several readers log theirs."""
        return [] if self._consumer is None else self._consumer.events()

    def stop(self) -> None:
        """Let ``run`` end; from any thread, and from handlers of signals. It does not begin again."""
        self._stopped = True
        if self._readers is not None:
            self._readers.stopped = True
        if not self.closed:
            self._wakeup.set()

    def close(self) -> None:
        """Let ``run`` end, wait for that, and leave. Safe to call twice."""
        self.stop()
        with self._running:
            if self.closed:
                return
            self.closed = True
            if self._consumer is not None:
                self._consumer.on_ready = None
                self._consumer.close()
            self._wakeup.close()

    def forked(self) -> None:
        """Let go of the pipes in a child: their other ends tell processes that this one has ended."""
        for each in (self._workers, self._readers):
            if each is not None:
                each.let_go()

    # -- the reading thread -----------------------------------------------------------------------------

    def _run(self, ended: Future[Progress]) -> None:
        if not ended.set_running_or_notify_cancel():
            return
        try:
            if self._readers is None:
                assert self._consumer is not None
                self._read_and_hand_out(self._consumer)
            else:
                self._readers.run(lambda: self._hurried)
            ended.set_result(self.progress())
        except BaseException as error:
            ended.set_exception(error)

    def _read_and_hand_out(self, consumer: Consumer) -> None:
        patience_s = math.inf if self._patience_s is None else self._patience_s
        reading, *rest = self._cpus or (None,)
        if reading is not None:
            bind(0, reading)
        workers = self._workers = Workers(
            self._work,
            self._shares,
            self._workers_count,
            self._tries,
            patience_s,
            self._wakeup.fileno(),
            rest or self._cpus,
        )
        try:
            failed = True
            try:
                self._loop(consumer, workers)
                failed = False
            finally:
                self._end(consumer, workers, failed)
        finally:
            workers.close()
            self._replaced += workers.replaced
            self._workers = None

    def _loop(self, consumer: Consumer, workers: Workers) -> None:
        source = self._batches(consumer)
        commit_at = time.monotonic() + COMMIT_S
        at_end = False
        while not self._stopped and not (at_end and not self._shares.records):
            batch = None
            if not at_end and not self._shares.full:
                try:
                    batch = next(source)
                except StopIteration:
                    at_end = True
                else:
                    if batch is not None:
                        self._hand_out(batch)
            workers.feed()
            workers.step(0.0 if batch is not None else END_LOOK_S if self._until_end else LOOK_S)
            self._wakeup.clear()
            if time.monotonic() >= commit_at:
                self._commit(consumer)
                commit_at = time.monotonic() + COMMIT_S

    def _hand_out(self, batch: ConsumedBatch) -> None:
        self._in_hand = batch
        self._shares.add(split(_records(batch), self._workers_count, self._by), len(batch.batch.raw))
        self._in_hand = None

    def _batches(self, consumer: Consumer) -> Iterator[ConsumedBatch | None]:
        """Yield batches as they come; None: nothing for now."""
        if not self._until_end:
            while True:
                yield consumer.take()
        for step in consumer.steps_to_end(self._timeout):
            yield step if isinstance(step, ConsumedBatch) else None

    def _end(self, consumer: Consumer, workers: Workers, failed: bool) -> None:
        """Send nothing more; wait for what was sent, and commit what is done."""
        until = time.monotonic() + LAST_S
        try:
            while self._shares.sent and time.monotonic() < until and not self._hurried:
                try:
                    workers.step(min(LOOK_S, max(until - time.monotonic(), 0.0)), feeding=False)
                except WorkerFailed as error:
                    if not failed:  # one error is told, which the others often have too
                        logger.warning("%s", error)
                self._wakeup.clear()
        finally:
            self._commit(consumer)
        workers.finish(lambda: self._hurried)

    def _commit(self, consumer: Consumer) -> None:
        if self._identity is None:
            return
        try:
            positions = self._shares.positions(consumer.position())
        except MemberStopped:
            return  # nobody can tell; what was committed before holds
        if (batch := self._in_hand) is not None:  # a defect kept it from being handed out
            key = batch.topic, batch.partition
            positions[key] = min(positions[key], batch.first)
        if positions != self._committed:
            consumer.commit(positions)
            self._committed = positions


def _wait_for(ended: Future[Progress]) -> None:
    """Wait, a little at a time: where polars was used, which handles Ctrl-C itself, no wait is interrupted by it."""
    while not wait([ended], LOOK_S).done:
        pass


def _records(batch: ConsumedBatch) -> Iterator[Record]:
    """Return the records of a batch; of one whose headers cannot be read, they are left out."""
    try:
        return iter(batch)
    except ProtocolError as error:
        logger.warning("%s; it is handed out without them", error)
    records = batch.batch.records(batch.topic, batch.partition, batch.first, with_headers=False)
    return (_with_headers(record, batch) for record in records)


def _with_headers(record: Record, batch: ConsumedBatch) -> Record:
    try:
        return msgspec.structs.replace(record, headers=batch.batch.headers_at(record.offset))
    except ProtocolError:
        return record
