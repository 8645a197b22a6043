"""Whose turn it is to drive a node: to wait on its sockets and to handle what comes.

One thread at a time does. A user's thread that waits for something leads: what it waits for reaches it without
changing threads. Further threads follow; the leader wakes each whose wait is over, and hands the lead on when it
leaves. A thread of the node's own drives when no user's does; it lets users' threads be while they come and go quickly.

An event loop can drive too: it watches the selector's own descriptor. The thread then only looks every ``TICK_S``
whether the loop, busy with something else, left work undone.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from chappe.errors import MemberStopped
from chappe.system.forking import own

logger = logging.getLogger(__name__)

GRACE_S: Final = 0.002  # the node's own thread stays away this long after a user's thread drove
LONG_S: Final = 0.01  # who leads so long will lead on: our thread sleeps until the lead is free
TICK_S: Final = 0.01  # beside an event loop our thread looks this often
IDLE_S: Final = 60.0  # longest rest of our thread
SLEEP_S: Final = 1.0  # longest wait on the sockets: another thread may have got the signal of a Ctrl-C
_READ: Final = selectors.EVENT_READ

Ready = list[tuple[selectors.SelectorKey, int]]


class _Follower:
    """A thread that waits while another one drives."""

    __slots__ = ("_called", "called", "over", "until")

    def __init__(self, until: Callable[[], bool]) -> None:
        self.until = until
        self.called = False  # its wait is over, or it is to lead
        self.over = False  # its wait is over: it is no follower any more
        self._called = threading.Lock()  # cheaper than an Event, of which every wait would need one
        self._called.acquire()

    def call(self) -> None:
        """Wake it; the lock is held."""
        if not self.called:
            self.called = True
            self._called.release()

    def rest(self, timeout_s: float) -> None:
        """Wait to be called, at most so long."""
        self._called.acquire(timeout=min(timeout_s, SLEEP_S))


class Turns:
    """Lets threads drive one after the other.

    Args:
        handle: Called with the lock held with what is ready: handles it and what is due.
        due: Called with the lock held: when something is due, monotonic seconds.
        halted: Called with the lock held once ``handle`` has raised: nobody drives any more.
        name: Of the thread.
    """

    def __init__(
        self, handle: Callable[[Ready], None], due: Callable[[], float], halted: Callable[[str], None], name: str
    ) -> None:
        own(self)
        self.lock = threading.RLock()
        self.closed = False
        self.news = False  # something changed for which somebody may be waiting; set with the lock held
        self.halted: str | None = None
        self.selector = selectors.DefaultSelector()
        self._handle = handle
        self._due = due
        self._tell_halted = halted
        self._leading: Callable[[], bool] | None = None  # what the leader waits for
        self._turn = 0  # rises whenever a user's thread or a loop begins to drive
        self._sleeping = False  # the leader, or our thread, waits on the sockets ...
        self._sleep_until = math.inf  # ... until then
        self._ours_until: float | None = None  # our thread waits on the sockets until then, whoever leads meanwhile
        self._left = threading.Event()  # the leader has left since we are closed
        self._followers: list[_Follower] = []
        self._loops = 0  # event loops that watch the selector
        self._listeners: list[Callable[[], None]] = []  # of event loops
        self._drove_at = -math.inf
        self._resting = False  # our thread sleeps until the lead is free
        self._rested = threading.Event()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self.selector.register(self._wake_read, _READ, self._drain_wake)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to drive."""
        self._thread.start()

    def stop(self) -> None:
        """End our thread and release everybody who waits; the lock is not held."""
        with self.lock:
            self.closed = True
            self.news = True
            self._rest_is_over()
            self.tell()
            led = self._leading is not None
        self.wake()
        if led:
            self._left.wait(SLEEP_S)  # a user's thread still waits on the sockets
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def release(self) -> None:
        """Close what ``stop`` leaves open; nobody drives any more, the lock is held."""
        self.selector.close()
        self._wake_read.close()
        self._wake_write.close()

    # -- users' threads -------------------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Drive, or follow who drives, until ``until()``; returns what it says at the end.

        The lock is not held by the caller, and is held when ``until`` is called. Returns early if the node is closed or
        halted. Ctrl-C ends the wait.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                now = time.monotonic()
                if until() or now >= deadline or self.closed or self.halted is not None:
                    return until()
                if self._leading is None:
                    self._turn += 1
                    self._leading = until
                    self._drove_at = now
                    wait_s = self._before_sleep(deadline)  # before the lock is free: nobody tells who does not sleep
                    follower = None
                else:
                    follower = _Follower(until)
                    self._followers.append(follower)
            if follower is None:
                try:
                    self._lead(until, deadline, wait_s)
                finally:
                    with self.lock:
                        self._resign()
            else:
                try:
                    follower.rest(deadline - now)
                finally:
                    if not follower.over:
                        with self.lock:
                            self._leave(follower)
                if follower.over and not self.closed:
                    return True  # without the lock, for which all whose waits are over would queue

    def _lead(self, until: Callable[[], bool], deadline: float, wait_s: float) -> None:
        while True:
            ready = self.selector.select(wait_s)
            with self.lock:
                self._sleeping = False
                if self.closed or self.halted is not None:
                    return
                self._handle_safely(ready)
                if until() or time.monotonic() >= deadline or self.closed or self.halted is not None:
                    return
                self.tell()
                wait_s = self._before_sleep(deadline)

    def _resign(self) -> None:
        self._leading = None
        self._sleeping = self._ours_until is not None  # since before we led, and for a time of then
        self._sleep_until = self._ours_until or math.inf
        if self.closed:
            self._left.set()
        self._drove_at = time.monotonic()
        self.tell()
        self.look_again()
        self._hand_on()

    def _leave(self, follower: _Follower) -> None:
        if not follower.over:
            self._followers.remove(follower)
            if follower.called:
                self._hand_on()  # it was to lead just when it gave up

    def _hand_on(self) -> None:
        """Have the next follower drive, or our thread, if nobody leads."""
        if self._leading is None:
            if self._followers:
                self._followers[0].call()
            elif self._resting:
                self._rest_is_over()

    def serve(self) -> None:
        """Handle what is ready without waiting; for an event loop. Does nothing while a thread leads."""
        with self.lock:
            if self._leading is None and not self.closed and self.halted is None:
                self._turn += 1
                self._drove_at = time.monotonic()
                self._handle_safely(self.selector.select(0))
                self.tell()

    def watch(self, listener: Callable[[], None]) -> int | None:
        """An event loop joins: ``listener`` is called, with the lock held and from any thread, when there are news.

        Returns the descriptor at whose readiness the loop is to call ``serve``; None where the system has none.
        """
        with self.lock:
            self._loops += 1
            self._listeners.append(listener)
            self._drove_at = time.monotonic()
            self.wake()  # our thread need not wait on the sockets any more
            try:
                return self.selector.fileno()
            except AttributeError:
                self._loops -= 1
                return None

    def unserve(self) -> None:
        """The loop that was given the descriptor calls ``serve`` no more."""
        with self.lock:
            self._loops -= 1
            self._rest_is_over()

    def unwatch(self, listener: Callable[[], None]) -> None:
        """The loop leaves; safe to call twice."""
        with self.lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    # -- whoever holds the lock -----------------------------------------------------------------------

    def tell(self) -> None:
        """If there are news, wake everybody whose wait they end; the lock is held."""
        if not self.news:
            return
        self.news = False
        for listener in self._listeners:
            listener()
        if self._followers:
            self._tell_followers()
        if self._sleeping and self._leading is not None and (self.closed or self._leading()):
            self.wake()

    def _tell_followers(self) -> None:
        over: list[_Follower] = []
        waiting: list[_Follower] = []
        for each in self._followers:
            (over if self.closed or each.until() else waiting).append(each)
        self._followers = waiting
        was_to_lead = False
        for each in over:
            was_to_lead |= each.called
            each.over = True
            each.call()
        if was_to_lead:
            self._hand_on()

    def check(self) -> None:
        """Raise MemberStopped if a defect stopped the endpoint."""
        if self.halted is not None:
            raise MemberStopped(self.halted)

    def halt(self, error: Exception) -> None:
        """A defect of ours: say so to whoever uses the node, rather than hang; the lock is held."""
        if self.halted is not None:
            return
        self.halted = f"the endpoint stopped because of a defect: {error!r}; close it, and make another one"
        logger.error("the endpoint stopped", exc_info=error, extra={"defect": True})
        try:
            self._tell_halted(self.halted)
        except Exception as further:
            logger.error("the endpoint could not release all it had", exc_info=further)
        self.news = True
        self.tell()
        for follower in self._followers:
            follower.call()
        self.wake()

    def _handle_safely(self, ready: Ready) -> None:
        try:
            self._handle(ready)
        except Exception as error:
            self.halt(error)

    def look_again(self) -> None:
        """Something may be due earlier than whoever sleeps knows; the lock is held."""
        if self._sleeping and self._due() < self._sleep_until:
            self.wake()

    def look_again_at(self, due: float) -> None:
        """As ``look_again``, of one who knows when; the lock is held."""
        if self._sleeping and due < self._sleep_until:
            self.wake()

    def wake(self) -> None:
        """Wake whoever waits on the sockets."""
        try:
            self._wake_write.send(b"\0")
        except OSError:
            pass  # full: it will look; or closed: nobody is there

    def _drain_wake(self, mask: int) -> None:
        try:
            while len(self._wake_read.recv(4096)) == 4096:
                pass
        except OSError:
            pass

    def _before_sleep(self, deadline: float) -> float:
        until = min(self._due(), deadline)
        self._sleep_until = until
        self._sleeping = True
        return max(0.0, min(SLEEP_S, until - time.monotonic()))

    def _rest_is_over(self) -> None:
        self._resting = False
        self._rested.set()

    # -- our thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.closed and self.halted is None:
                away = self._away()
                if away > 0:
                    self._rested.wait(away)
                    self._rested.clear()
                else:
                    self._drive()
        except Exception as error:
            with self.lock:
                self.halt(error)

    def _away(self) -> float:
        """How long our thread is to leave the sockets to others."""
        if self._leading is not None:
            with self.lock:
                if self._leading is not None and time.monotonic() - self._drove_at > LONG_S:
                    self._resting = True
                    return IDLE_S
            return GRACE_S
        return (TICK_S if self._loops else GRACE_S) - (time.monotonic() - self._drove_at)

    def _drive(self) -> None:
        with self.lock:
            if self.closed or self._leading is not None:
                return
            if self._loops:
                self._drove_at = time.monotonic()
                self._handle_safely(self.selector.select(0))
                self.tell()
                return
            wait_s = self._before_sleep(math.inf)
            self._ours_until = self._sleep_until
            turn = self._turn
        ready = self.selector.select(wait_s)
        with self.lock:
            self._ours_until = None
            if self._leading is not None or turn != self._turn:
                self._sleeping = self._sleeping and self._leading is not None
                if ready:
                    self.wake()  # not every system wakes all that wait for the same
                return
            self._sleeping = False
            if not self.closed and self.halted is None:
                self._handle_safely(ready)
                self.tell()
