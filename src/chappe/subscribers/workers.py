"""The processes of workers: each on its two pipes, none of which anybody waits for."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from chappe.errors import WorkerFailed
from chappe.log.batch import Record
from chappe.security import SECRETS
from chappe.subscribers.shares import Shares
from chappe.subscribers.work import Ear, Misbehaved, Work
from chappe.system.cpus import bind

logger = logging.getLogger("chappe.subscribers")

READ_BYTES: Final = 1 << 16
PAUSE_S: Final = 0.05  # before a worker that got nowhere is replaced; twice as long each time, up to ...
PAUSE_MAX_S: Final = 5.0
LOOK_S: Final = 0.1  # how often it is looked whether a process has ended and left its output open to others
STUCK_S: Final = 30.0  # a worker that gets nothing done for so long is told of
START_S: Final = 60.0  # one that has not imported its function yet has so much patience at least
LAST_S: Final = 1.0  # from the end of its output to its own
FAREWELL_S: Final = 10.0  # workers get so long to end when nothing is left to do


def _environment(work: Work) -> dict[str, str]:
    """Return a worker's environment, without chappe's secrets if it runs a user's program."""
    return {key: text for key, text in os.environ.items() if work.own_pipe or key not in SECRETS}


class _Worker:
    """One process; ``ended`` is how, once it is over."""

    def __init__(self, work: Work, number: int, cpu: int | None) -> None:
        self.number = number
        self.ended: str | None = None
        self.since = time.monotonic()  # the time at which it last got something done, or was given something
        self.told = False  # True once a warning says that it gets nothing done
        self._ear: Ear = work.ear()
        self._left = bytearray(work.hello())  # bytes that are still to be written to it
        theirs = -1
        if work.own_pipe:
            self.out, theirs = os.pipe()
        try:
            self.process = subprocess.Popen(
                work.command(theirs),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=None if work.own_pipe else subprocess.PIPE,
                pass_fds=(theirs,) if work.own_pipe else (),
                env=_environment(work) | {"CHAPPE_WORKER": str(number)},
                process_group=0,  # Ctrl-C is the reader's: what a worker has begun is finished
            )
        except BaseException:
            if work.own_pipe:
                os.close(self.out)
            raise
        finally:
            if work.own_pipe:
                os.close(theirs)
        if not work.own_pipe:
            assert self.process.stdout is not None
            self.out = os.dup(self.process.stdout.fileno())
            self.process.stdout.close()
        if cpu is not None:
            bind(self.process.pid, cpu)  # it began where the thread is bound that started it
        assert self.process.stdin is not None
        self.into = self.process.stdin.fileno()
        for each in (self.into, self.out):
            os.set_blocking(each, False)

    @property
    def ready(self) -> bool:
        """True if it has started, as far as anybody can tell."""
        return self._ear.ready

    @property
    def to_write(self) -> bool:
        return bool(self._left)

    def send(self, data: bytes) -> None:
        self._left += data
        self.write()

    def write(self) -> None:
        try:
            while self._left:
                del self._left[: os.write(self.into, memoryview(self._left)[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it has ended, or reads no more: what it says tells
            self._left.clear()

    def hear(self) -> int:
        """Return the number of further records that are done; sets ``ended`` at the end. Raises Misbehaved."""
        try:
            data = os.read(self.out, READ_BYTES)
        except BlockingIOError:
            if self.process.poll() is None:
                return 0
            data = b""  # it has ended, and a process that it has left behind keeps its output open
        if data:
            return self._ear.hear(data)
        try:
            self.ended = how_ended(self.process.wait(LAST_S))
        except subprocess.TimeoutExpired:
            self.ended = "closed its output, and was killed"  # one that says nothing more is of no use
        self._kill()
        return 0

    def _kill(self) -> None:
        """End it, and what it has started: nobody else may take what its input still holds."""
        with suppress(ProcessLookupError, PermissionError):  # all of them have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close_input(self) -> None:
        """Tell it that nothing more comes: it is to end."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        self.close_input()
        if self.process.returncode is None:
            self._kill()
        os.close(self.out)


class Workers:
    """The workers of one reader: has them do what there is in ``shares``, and replaces those that end.

    Args:
        tries: How many may end in a row with the same record.
        patience_s: How long one may get nothing done of what it has to do, once it has started.
        wakeup: A descriptor; ``step`` returns also when it is readable.
        cpus: Processors, one for each worker in turn; empty: the system places them.
    """

    def __init__(
        self,
        work: Work,
        shares: Shares,
        count: int,
        tries: int,
        patience_s: float,
        wakeup: int,
        cpus: Sequence[int] = (),
    ) -> None:
        self._work = work
        self._shares = shares
        self._tries = tries
        self._patience_s = patience_s
        self._cpus = cpus
        self._workers: list[_Worker | None] = [None] * count
        self._start_at = [0.0] * count
        self._look_at = 0.0
        self.replaced = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ)

    @property
    def ids(self) -> list[int | None]:
        """The processes; None: not started, as it had nothing to do so far."""
        return [None if each is None else each.process.pid for each in self._workers]

    def let_go(self) -> None:
        """Let go of the pipes after a fork; see ``ShardedConsumer.forked``."""
        for each in self._workers:
            if each is not None:
                each.close_input()
                os.close(each.out)

    def feed(self) -> None:
        """Send what may be sent. Raises WorkerFailed if a worker cannot be started."""
        now = time.monotonic()
        for number in range(len(self._workers)):
            while self._shares.waits(number) and now >= self._start_at[number]:
                worker = self._workers[number] or self._start(number)
                if not self._shares.sent_to(number):
                    worker.since = now
                elif worker.to_write:
                    break
                portion = self._shares.take(number)
                assert portion is not None
                worker.send(self._work.pack(portion))
                self._watch(worker)

    def _start(self, number: int) -> _Worker:
        try:
            cpu = self._cpus[number % len(self._cpus)] if self._cpus else None
            made = self._workers[number] = _Worker(self._work, number, cpu)
        except OSError as error:
            what = self._work.command(-1)[0]
            raise WorkerFailed(f"{what} cannot be started: {error.strerror or error}") from None
        self._selector.register(made.out, selectors.EVENT_READ, made)
        made.write()
        self._watch(made)
        return made

    def _watch(self, worker: _Worker) -> None:
        if worker.to_write and worker.into not in self._selector.get_map():
            self._selector.register(worker.into, selectors.EVENT_WRITE, worker)
        elif not worker.to_write and worker.into in self._selector.get_map():
            self._selector.unregister(worker.into)

    def step(self, timeout_s: float, *, feeding: bool = True) -> None:
        """Hear workers, and write to those that have room; waits at most ``timeout_s``. ``feeding``: ``feed`` comes
        next, so it waits no longer than until a worker may be started. Raises WorkerFailed: So many workers as may have
        ended with one record; or no worker can do it.
        """
        now = time.monotonic()
        for number, at in enumerate(self._start_at):
            if feeding and self._workers[number] is None and self._shares.waits(number):
                timeout_s = min(timeout_s, max(at - now, 0.0))
        for key, mask in self._selector.select(timeout_s):
            worker: _Worker | None = key.data
            if worker is None or self._workers[worker.number] is not worker:
                continue
            if mask & selectors.EVENT_WRITE:
                worker.write()
                self._watch(worker)
            else:
                self._hear(worker)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            for each in self._workers:
                if each is not None:
                    self._look(each)

    def _look(self, worker: _Worker) -> None:
        """Find out what no event tells."""
        idle_s = time.monotonic() - worker.since if self._shares.sent_to(worker.number) else 0.0
        if worker.process.poll() is not None:
            self._hear(worker)
        elif idle_s >= (patience_s := self._patience_s if worker.ready else max(START_S, self._patience_s)):
            self._over(worker, f"got nothing done for {patience_s:g} s, and was killed")
        elif idle_s >= STUCK_S and not worker.told:
            worker.told = True
            why = "" if self._work.own_pipe else "; does it flush what it writes, after each 'ok'?"
            logger.warning(
                "worker %d, process %d, has got nothing done for %g s%s",
                worker.number, worker.process.pid, STUCK_S, why,
            )  # fmt: skip

    def _hear(self, worker: _Worker) -> None:
        wrong: Misbehaved | None = None
        was_ready = worker.ready
        try:
            count = worker.hear()
        except Misbehaved as error:
            wrong, count = error, error.done
        now = time.monotonic()
        if count or worker.ready is not was_ready:
            worker.since, worker.told = now, False
        if not self._shares.done(worker.number, count, now):
            wrong = Misbehaved("it said of more records that they are done than it was sent", hopeless=True)
        if wrong is not None:
            self._over(worker, str(wrong), hopeless=wrong.hopeless)
        elif worker.ended is not None:
            self._over(worker, worker.ended)

    def _over(self, worker: _Worker, why: str, *, hopeless: bool = False) -> None:
        number = worker.number
        self._workers[number] = None
        for each in (worker.out, worker.into):
            with suppress(KeyError, ValueError):
                self._selector.unregister(each)
        worker.close()
        left = self._shares.sent_to(number)
        ends = self._shares.lost(number)
        record = self._shares.next_of(number)
        if hopeless:
            raise WorkerFailed(f"worker {number} cannot go on: {why}")
        if not ends:
            return  # it had nothing to do; the next record has another one started
        assert record is not None
        if ends >= self._tries:
            raise WorkerFailed(f"{ends} workers in a row did not get done with {_named(record)}; the last one: {why}")
        logger.warning("worker %d is replaced, which had %d records that are not done: %s", number, left, why)
        self.replaced += 1
        self._start_at[number] = time.monotonic() + (0.0 if ends == 1 else pause_s(PAUSE_S, ends - 2))

    def finish(self, hurried: Callable[[], bool]) -> None:
        """End workers that have nothing left to do, and wait a while. Those that do not end well are told of."""
        alive = [each for each in self._workers if each is not None and not self._shares.sent_to(each.number)]
        for each in alive:
            each.close_input()
        until = time.monotonic() + FAREWELL_S
        for each in alive:
            while (code := each.process.poll()) is None and time.monotonic() < until and not hurried():
                with suppress(subprocess.TimeoutExpired):
                    each.process.wait(LOOK_S)
            if code is None:
                logger.warning("worker %d had nothing more to do, did not end, and is killed", each.number)
            elif code:
                logger.warning("worker %d ended with exit code %d after all of its records", each.number, code)

    def close(self) -> None:
        """End those that are left; what they were sent waits again."""
        for number, each in enumerate(self._workers):
            if each is not None:
                each.close()
                self._shares.lost(number)
        self._workers = [None] * len(self._workers)
        self._selector.close()


def pause_s(first_s: float, before: int) -> float:
    return min(PAUSE_MAX_S, first_s * 2.0 ** min(before, 20))


def how_ended(code: int) -> str:
    """Explain an exit code, as the end of a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _named(record: Record) -> str:
    return f"the record at offset {record.offset} of topic {record.topic!r}, partition {record.partition}"
