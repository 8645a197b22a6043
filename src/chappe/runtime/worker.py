"""Slow things: commits, writes and syncs, name look-ups, users' callbacks. They run in threads of the process's.

A ``Lane`` does its jobs one after the other, in order. Lanes do not wait for each other, so a stalled disk stalls what
is on its own lane. Each kind of slow thing has a ``Pool`` of its own with a bound on its threads: hanging look-ups
cannot hold up disks. Threads are made when they are needed and end when nothing came for a while; one stays as long as
a lane is open, since no thread can be made any more when the program ends.

The result of a job comes back in one way: as a call with the member's lock held, through its ``Turns.run``.

After a fork the child has no threads and no jobs; lanes that it makes get new threads.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from chappe.system import machine

logger = logging.getLogger(__name__)

IDLE_S: Final = 5.0  # a thread ends when there was nothing to do for this long
Result = TypeVar("Result")
Post = Callable[..., None]  # calls a function with arguments, with a lock held: ``Turns.run``


class Pool:
    """Threads for one kind of slow work. ``threads_max``: lanes beyond so many wait for each other."""

    def __init__(self, name: str, threads_max: int) -> None:
        self.name = name
        self._threads_max = threads_max
        self._lanes: weakref.WeakSet[Lane] = weakref.WeakSet()  # that are open
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._change = threading.Condition(threading.Lock())
        self._ready: deque[Lane] = deque()  # lanes that have a job and no thread
        self._threads = 0
        self._busy = 0  # of them: with a lane
        self._lanes.clear()

    def open(self, lane: Lane) -> None:
        with self._change:
            self._lanes.add(lane)
            if (
                not self._threads
            ):  # not only when there is a job: that may come from a thread that must not wait for a start
                self._start()

    def close(self, lane: Lane) -> None:
        with self._change:
            self._lanes.discard(lane)
            if not self._lanes:
                self._change.notify_all()  # idle threads end

    def submit(self, lane: Lane) -> None:
        with self._change:
            self._ready.append(lane)
            if self._threads - self._busy < len(self._ready) and self._threads < self._threads_max:
                self._start()
            self._change.notify()

    def help(self) -> None:
        """Run waiting jobs in this thread, if no further thread can be made."""
        while not self._threads and self._ready:
            lane = self._ready.popleft()
            while lane.step():
                pass

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=self.name, daemon=True).start()
        except RuntimeError:  # the program ends: what threads there are go on
            return
        self._threads += 1

    def _work(self) -> None:
        while (lane := self._next()) is not None:
            while lane.step():
                if self._ready:  # others wait for a thread: behind them
                    self.submit(lane)
                    break
            with self._change:
                self._busy -= 1

    def _next(self) -> Lane | None:
        with self._change:
            while not self._ready:
                told = bool(self._lanes) and self._change.wait(IDLE_S)
                if not self._ready and not (self._lanes and (told or self._threads == 1)):
                    self._threads -= 1
                    return None
            self._busy += 1
            return self._ready.popleft()


class Lane:
    """Jobs that run one after the other, in the order in which they came; any thread may add some.

    It has no bound of its own: callers keep to one.

    Args:
        pool: Whose threads run them.
        post: Calls a function with a job's result: ``Turns.run``.
    """

    def __init__(self, pool: Pool, post: Post) -> None:
        self._machine = machine.current()
        self._pool: Pool = self._machine.pool(pool)
        self._post = post
        self._guard = threading.Lock()
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        self._scheduled = False  # a thread does its jobs, or will
        self._runs_in: int | None = None  # the thread that runs a job of it just now
        self._closed = False
        self._pool.open(self)

    def do(self, work: Callable[[], Result], done: Callable[[Result], None] | None = None) -> None:
        """Run ``work`` without any lock; then call ``done`` with its result. Never waits.

        An exception of ``work`` is a defect: it is raised again where ``done`` would be called. Without ``done`` it is
        logged. Once the lane is closed nothing is run, and ``done`` is not called: the files that the work would
        need are closed, too, and that must not be reported to others as a refusal of the disk.
        """
        if not self._closed:
            self._add(work, done)

    def _add(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        with self._guard:
            self._jobs.append((work, done))
            if self._scheduled:
                return
            self._scheduled = True
        self._pool.submit(self)

    def close(self, timeout_s: float | None, last: Callable[[], object] | None = None) -> bool:
        """Take no more jobs, run ``last`` behind them, wait at most this long for it, and return whether it is done.

        Called by one of its own jobs it does not wait.
        """
        over = self._machine.event()
        if not self._closed:
            self._closed = True
            if last is not None:
                self._add(last)
        self._add(over.set)
        self._pool.close(self)
        if self._runs_in == threading.get_ident():
            return False
        self._pool.help()
        return over.wait(timeout_s)

    def leave(self) -> None:
        """Take no more jobs, and wait for none."""
        self._pool.close(self)

    def step(self) -> bool:
        """Run one job; for the pool's threads. Return whether there is another one."""
        work, done = self._jobs.popleft()
        self._runs_in = threading.get_ident()
        self._run(work, done)
        self._runs_in = None
        with self._guard:
            self._scheduled = bool(self._jobs)
            return self._scheduled

    @property
    def pending(self) -> bool:
        return bool(self._jobs)

    def try_next(self) -> None:
        """Do the work of the next job, and report its outcome to nobody: its process is being killed."""
        self._jobs.popleft()[0]()

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        try:
            found = work()
        except BaseException as error:  # SystemExit too: other lanes need this thread
            if done is None:
                logger.exception("a callback or a last act of a member failed")
            else:
                self._post(_raise, error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            if done is not None:
                self._post(done, found)


def run_once(pool: Pool, post: Post, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
    """Run ``work`` on a lane of its own that nobody waits for."""
    lane = Lane(pool, post)
    lane.do(work, done)
    lane.leave()


def _raise(error: Exception) -> None:
    raise error


DISKS: Final = Pool("chappe-disk", 64)  # a lane for each disk or database
LOOK_UPS: Final = Pool("chappe-look-up", 8)  # a lane for each name
CALLBACKS: Final = Pool("chappe-callback", 64)  # a lane for each member
