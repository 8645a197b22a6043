"""Threads take turns at driving a member: at waiting on its sockets and handling its input.

One thread at a time drives. A user's thread that waits for something leads: input reaches it without
changing threads. Further threads follow; the leader wakes each whose wait is over, and hands the lead on when it
leaves. When no user's thread leads, the process's loop drives (``runtime/loop.py``). It leaves users' threads alone
while they come and go quickly: woken in vain, it does not look until the lead is free, and then only after the grace
time, by an alarm that wakes nobody before. So a thread that leaves with its result does not contend with the loop for
the interpreter just then. Where there are no such alarms it looks now and then while somebody leads.

An event loop can drive too: it watches the selector's own descriptor. The process's loop then does what is due, and
looks ``TICK_S`` after input came whether the event loop, busy with something else, left it undone.

To run something by it: give ``handle`` and ``due``, ``register`` descriptors, call ``start``. Make every call from
outside with ``run``, or under ``lock`` with ``tell`` and ``look_again`` at the end. Slow work goes onto a ``Lane``
(``runtime/worker.py``), whose results come back through ``run``.
"""

from __future__ import annotations

import logging
import math
import selectors
import threading
from collections.abc import Callable
from typing import Any, Final

from chappe.errors import MemberStopped, UsageError
from chappe.runtime import loop
from chappe.system import machine, time
from chappe.system.forking import own
from chappe.system.limits import descriptors_refused
from chappe.system.machine import Latch

logger = logging.getLogger(__name__)

GRACE_S: Final = 0.002  # the loop stays away this long after a user's thread drove
LONG_S: Final = 0.01  # without alarms, who leads so long will lead on: the loop stays away until the lead is free
TICK_S: Final = 0.01  # an event loop has this long to handle what came
BUSY_S: Final = 0.01  # the loop waits this long for a member's lock, and then looks after the others as long
SLEEP_S: Final = 1.0  # longest wait on the sockets: another thread may have got the signal of a Ctrl-C
_READ: Final = selectors.EVENT_READ

Ready = list[tuple[selectors.SelectorKey, int]]


class _Follower:
    """A thread that waits while another one drives."""

    __slots__ = ("_called", "called", "over", "until")

    def __init__(self, until: Callable[[], bool], latch: Latch) -> None:
        self.until = until
        self.called = False  # its wait is over, or it is to lead
        self.over = False  # its wait is over: it no longer follows
        self._called = latch

    def call(self) -> None:
        if not self.called:
            self.called = True
            self._called.release()

    def rest(self, timeout_s: float) -> None:
        self._called.acquire(timeout=min(timeout_s, SLEEP_S))


class Turns:
    """Lets threads drive one after the other.

    A member costs no descriptor until the first ``register``, then one, and one more (two where there is no eventfd)
    once a thread has led.

    Args:
        handle: Called with the lock held with what is ready: handles it and what is due. The ``data`` of each key is
            that given to ``register``, or a function of ours to be called with the mask. Returns True if more is
            there already of which no descriptor tells: then it is called again soon, and nobody sleeps before.
        due: Called with the lock held: when something is due, monotonic seconds.
        halted: Called with the lock held once ``handle`` has raised: nobody drives any more.
        what: The member in the text of the error.
        eager: ``handle`` is also called, with nothing, before a thread that begins to lead sleeps: for sockets
            whose descriptors tell only once (ZeroMQ), and may have told another thread.
    """

    def __init__(
        self,
        handle: Callable[[Ready], bool | None],
        due: Callable[[], float],
        halted: Callable[[str], None],
        *,
        what: str = "endpoint",
        eager: bool = False,
    ) -> None:
        own(self)
        self.machine = machine.current()
        self.lock = threading.RLock()
        self.closed = False
        self.news = False  # something changed for which somebody may be waiting; set with the lock held
        self.halted: str | None = None
        self.calling = 0  # the thread that calls a function of the user in the middle of ``handle``, with the lock held
        self._handle = handle
        self._due = due
        self._tell_halted = halted
        self._what = what
        self._eager = eager
        self._selector: selectors.BaseSelector | None = None  # until there is a socket
        self._wakeup: machine.Wakeup | None = None  # until a thread leads
        self._loop: loop.MemberLoop | None = None
        self._leading: Callable[[], bool] | None = None  # what the leader waits for
        self._turn = 0  # rises whenever a user's thread or an event loop begins to drive
        self._more = False  # what ``handle`` said last
        self._sleeping = False  # the leader waits on the sockets
        self._awake_at = -math.inf  # whoever sleeps looks then; -inf: somebody looks before the next sleep
        self._loop_at = -math.inf  # the loop watches, and looks then by itself; -inf: it stays away or looks soon
        self._resting = False  # the loop stays away until the lead is free
        self._left = self.machine.event()  # the leader has left since we are closed
        self._followers: list[_Follower] = []
        self._event_loops = 0  # that watch the selector
        self._seen_turn = -1  # when the loop left something to an event loop
        self._listeners: list[Callable[[], None]] = []  # of event loops
        self._drove_at = -math.inf

    def start(self) -> None:
        self._loop = loop.join(self, self.machine)

    def stop(self) -> None:
        """Stop being driven, and release all waiting threads; the lock is not held."""
        with self.lock:
            self.closed = True
            self.news = True
            self.tell()
            led = self._leading is not None
            if led:
                self.wake()
        if led:
            self._left.wait(SLEEP_S)  # a user's thread still waits on the sockets
        if self._loop is not None:
            loop.leave(self._loop, self)

    def release(self) -> None:
        """Close what ``stop`` leaves open; nobody drives any more, the lock is held."""
        if self._selector is not None:
            self._selector.close()
        if self._wakeup is not None:
            self._wakeup.close()

    def forked(self) -> None:
        self.release()

    # -- descriptors, with the lock held --------------------------------------------------------------

    def register(self, file: Any, mask: int, data: Any) -> None:
        """Call ``handle`` when a descriptor, or an object that has one, is ready. Raises TooManyOpenFiles."""
        self._open_selector().register(file, mask, data)

    def modify(self, file: Any, mask: int, data: Any) -> None:
        self._open_selector().modify(file, mask, data)

    def unregister(self, file: Any) -> None:
        self._open_selector().unregister(file)

    def fileno(self) -> int:
        return -1 if self._selector is None else self._selector.fileno()  # type: ignore[attr-defined]

    def _open_selector(self) -> selectors.BaseSelector:
        if self._selector is None:
            with descriptors_refused():
                self._selector = self.machine.selector()
            if self._loop is not None:
                self._loop.ask(self)
            self._hand_on()  # who could not lead so far
        return self._selector

    # -- users' threads -------------------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Drive, or follow the driving thread, until ``until()``; return its value at the end.

        The lock is not held by the caller, and is held when ``until`` is called. Returns early if the member is closed
        or halted. Ctrl-C ends the wait.
        """
        if self.calling:
            self.check_caller()
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                now, over = time.monotonic(), until()
                if over or now >= deadline or self.closed or self.halted is not None:
                    return over
                if self._leading is None and self._selector is not None:
                    if self._wakeup is None:
                        self._make_wakeup(self._selector)
                    self._more |= self._eager  # then not to sleep at first
                    self._turn += 1
                    self._leading = until
                    self._drove_at = now
                    wait_s = self._before_sleep(deadline)  # before the lock is free: nobody tells who does not sleep
                    follower = None
                else:
                    follower = _Follower(until, self.machine.latch())
                    self._followers.append(follower)
            if follower is None:
                try:
                    over = self._lead(until, deadline, wait_s)
                finally:
                    with self.lock:
                        self._resign()
                if over:
                    return True
            else:
                try:
                    follower.rest(deadline - now)
                finally:
                    if not follower.over:
                        with self.lock:
                            self._leave(follower)
                if follower.over and not self.closed:
                    return True  # without the lock, for which all whose waits are over would queue

    def _make_wakeup(self, selector: selectors.BaseSelector) -> None:
        with descriptors_refused():
            wakeup = self._wakeup = self.machine.wakeup()
        selector.register(wakeup, _READ, lambda mask: wakeup.clear())

    def _lead(self, until: Callable[[], bool], deadline: float, wait_s: float) -> bool:
        assert self._selector is not None
        while True:
            ready = self._selector.select(wait_s)
            with self.lock:
                self._sleeping = False
                self._awake_at = -math.inf
                if self.closed or self.halted is not None:
                    return False
                self._handle_safely(ready)
                if until():
                    return True
                if time.monotonic() >= deadline or self.closed or self.halted is not None:
                    return False
                if self.news:
                    self.tell()
                wait_s = self._before_sleep(deadline)

    def _resign(self) -> None:
        self._leading = None
        self._sleeping = False
        self._awake_at = self._loop_at
        if self.closed:
            self._left.set()
        self._drove_at = time.monotonic()
        if self.news:
            self.tell()
        if self._awake_at > -math.inf:
            self.look_again()
        if self._followers or self._resting:
            self._hand_on()

    def _leave(self, follower: _Follower) -> None:
        if not follower.over:
            self._followers.remove(follower)
            if follower.called:
                self._hand_on()  # it was to lead just when it gave up

    def _hand_on(self) -> None:
        if self._leading is None:
            if self._followers and self._selector is not None:
                self._followers[0].call()
            elif self._resting:
                self._resting = False
                if self._loop is not None:
                    self._loop.ask_soon(self)

    def serve(self) -> None:
        """Handle ready work without waiting; for an event loop. Does nothing while a thread leads."""
        with self.lock:
            if self._leading is None and not self.closed and self.halted is None:
                self._turn += 1
                self._drove_at = time.monotonic()
                self._handle_safely([] if self._selector is None else self._selector.select(0))
                self.tell()
                self.look_again()

    def watch(self, listener: Callable[[], None]) -> int:
        """Let an event loop join: ``listener`` is called, with the lock held and from any thread, when there are news.

        Returns the descriptor at whose readiness the loop is to call ``serve``.
        """
        self.machine.watched()
        with self.lock:
            self._open_selector()
            self._event_loops += 1
            self._drove_at = time.monotonic()  # it has ``TICK_S`` from now
            self._listeners.append(listener)
            return self.fileno()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, with the lock held and from any thread, when there are news, until ``unwatch``."""
        with self.lock:
            self._listeners.append(listener)

    def unserve(self) -> None:
        """Note that the event loop that was given the descriptor calls ``serve`` no more."""
        with self.lock:
            self._event_loops -= 1
            self._ask_loop()

    def unwatch(self, listener: Callable[[], None]) -> None:
        """Call a listener no more; safe to call twice."""
        with self.lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    # -- from any thread ------------------------------------------------------------------------------

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function locked, and carry out its effects, unless closed or halted; an exception is a defect."""
        with self.lock:
            if self.closed or self.halted is not None:
                return
            try:
                function(*args)
            except Exception as error:
                self.halt(error)
            self.tell()
            self.look_again()

    # -- whoever holds the lock -----------------------------------------------------------------------

    def tell(self) -> None:
        """Wake every waiter whose condition now holds; the lock is held."""
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

    @property
    def over(self) -> bool:
        """True if the wait of the leading thread is over; the lock is held."""
        return self._leading is not None and self._leading()

    def check_caller(self) -> None:
        """Raise UsageError in a callback of ``handle``: the member is busy."""
        if self.calling == threading.get_ident():
            raise UsageError(f"this function runs while its {self._what} works, and may not call it")

    def check(self) -> None:
        """Raise MemberStopped if a defect stopped the member, or UsageError as ``check_caller``."""
        if self.calling:
            self.check_caller()
        if self.halted is not None:
            with self.lock:  # whoever stops it is done then, so that its last event is there
                raise MemberStopped(self.halted)

    def halt(self, error: BaseException) -> None:
        """Stop the member after a defect, and report it to its users, rather than hang."""
        with self.lock:
            if self.halted is not None:
                return
            self.halted = f"the {self._what} stopped because of a defect: {error!r}; close it, and make another one"
            logger.error("the %s stopped", self._what, exc_info=error, extra={"defect": True})
            try:
                self._tell_halted(self.halted)
            except Exception as further:
                logger.error("the %s could not release all it had", self._what, exc_info=further)
            self.news = True
            self.tell()
            for follower in self._followers:
                follower.call()
            self.wake()

    def _handle_safely(self, ready: Ready) -> None:
        try:
            self._more = self._handle(ready) is True
        except Exception as error:
            self._more = False
            self.halt(error)

    def look_again(self) -> None:
        """Let the sleeping thread look, as something may be due earlier than it knows; the lock is held."""
        if self._awake_at > -math.inf and self._due() < self._awake_at:
            self.wake()

    def look_again_at(self, due: float) -> None:
        """Let the sleeping thread look if this is earlier than it knows; the lock is held."""
        if due < self._awake_at:
            self.wake()

    def wake(self) -> None:
        """Let the driving thread look; the lock is held."""
        self._awake_at = -math.inf  # whoever looks finds what changes until then
        if self._leading is None:
            self._ask_loop()
        elif self._wakeup is not None:
            self._wakeup.set()

    def nudge(self) -> None:
        """Let the loop look soon; from any thread, without the lock, for a member that only the loop drives."""
        self._ask_loop()

    def _ask_loop(self) -> None:
        if self._loop is not None:
            self._loop.ask(self)

    def _before_sleep(self, deadline: float) -> float:
        self._sleeping = True
        if self._more:
            self._awake_at = -math.inf
            return 0.0
        self._awake_at = until = min(self._due(), deadline)
        return max(0.0, min(SLEEP_S, until - time.monotonic()))

    # -- the loop's thread ----------------------------------------------------------------------------

    def look(self) -> tuple[bool, float]:
        """Drive if nobody else does; see ``loop.LoopMember``."""
        if not self.lock.acquire(timeout=BUSY_S):
            return False, time.monotonic() + BUSY_S  # somebody works long under it: the others do not wait for that
        try:
            if not self._sleeping:
                self._awake_at = -math.inf
            watched = self._loop_at > -math.inf
            self._loop_at = -math.inf
            self._resting = False
            if self.closed or self.halted is not None:
                return False, math.inf
            now = time.monotonic()
            if self._leading is not None:
                if now - self._drove_at > LONG_S or (self._loop is not None and self._loop.patient):
                    self._resting = True
                    return False, math.inf
                return False, now + GRACE_S
            if self._event_loops:
                at = self._leave_to_event_loop(now, watched)
            else:
                at = self._drove_at + GRACE_S
            if at > now:
                return False, at
            self._handle_safely([] if self._selector is None else self._selector.select(0))
            self.tell()
            if self.closed or self.halted is not None:
                return False, math.inf
            self._awake_at = self._loop_at = -math.inf if self._more else self._due()
            return True, self._loop_at
        finally:
            self.lock.release()

    def _leave_to_event_loop(self, now: float, watched: bool) -> float:
        """Return until when input is left to an event loop; due work is not."""
        left_undone = not watched and (self._turn == self._seen_turn or self._drove_at + TICK_S <= now)
        if left_undone or self._due() <= now:
            return now
        self._seen_turn = self._turn
        return now + TICK_S
