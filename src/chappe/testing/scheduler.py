"""Turns of threads: threads, members and the network of a test share one clock, which jumps when nobody can go on.

One at a time goes on. A thread of the test or of the program does until it waits for something of chappe's. Then comes
a thread whose wait is over, else due work of the network and the members, and where there is none,
the clock jumps to when there is. A waiting thread does this work itself, so most tests need no other one.

A thread that waits for something else (a queue, a foreign socket) is waited for in real time for a little,
then the others go on without it. While no thread waits for chappe, the clock goes as the real one does.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep, time_ns  # the system's, also while a test has its own
from typing import Any, Final, Protocol

from chappe.runtime.loop import LoopMember
from chappe.sim.world import WALL_START_US, SimClock
from chappe.system import machine

STEP_S: Final = 1e-6  # what each step takes, so that nothing happens for ever in one moment
LOOK_S: Final = 0.001  # how often it is looked whether a thread that goes on has come to wait; real seconds
STUCK_S: Final = 0.2  # one that stands at the same instruction for so long waits for something else; real seconds
TICK_S: Final = 0.01  # how long no thread waits for chappe until the clock goes as the real one
PATIENCE_S: Final = 600.0  # a test that waits so long, on its clock, waits for what never comes


class NothingHappens(AssertionError):
    """A test or its program waits for something that does not come."""


class Killed(BaseException):
    """Ends the threads of a host that is killed."""


class _Waiter:
    def __init__(self, until: Callable[[], bool], deadline: float) -> None:
        self.until = until
        self.deadline = deadline
        self.goes = False  # its wait is over
        self.thread = threading.current_thread()

    def is_over(self, now: float) -> bool:
        if getattr(self.thread, "paused", False):
            return False
        return now >= self.deadline or self.until() or getattr(self.thread, "killed", False)


class _Place:
    def __init__(self, member: LoopMember) -> None:
        self.asked = True
        self.at = math.inf  # when to look at it, by the steady clock of its host
        self.watched = False  # its descriptor is
        self.idle_at = -1  # so many files had become ready when its own was not
        self._host: Any = getattr(member, "machine", None)

    @property
    def paused(self) -> bool:
        return getattr(self._host, "paused", False)

    def due(self, began: float) -> float:
        """Return when to look at it by the clock of the world, which its host's own differs from."""
        rate: float = getattr(self._host, "rate", 1.0)
        steady_s: float = getattr(self._host, "steady_s", 0.0)
        return began + (self.at - steady_s - began) / rate


class Files(Protocol):
    """The descriptors of a world; ``changes`` rises whenever one becomes ready."""

    changes: int

    def is_ready(self, number: int) -> bool: ...


class Scheduler:
    """The turns of one world.

    Args:
        files: Whose descriptors members wait for.
        alone: Whether one thread does everything; then time passes only while it waits, from fixed beginnings: the
            steady clock from 0.
    """

    def __init__(self, clock: SimClock, files: Files, *, alone: bool = False) -> None:
        self.clock = clock
        self.outside = frozenset(each.ident for each in threading.enumerate() if each.ident) - {threading.get_ident()}
        self._files = files
        self._alone = alone
        self._began = 0.0 if alone else monotonic() - clock.now
        self._began_ns = WALL_START_US * 1000 if alone else time_ns() - int(clock.now * 1e9)
        self.patience_s = PATIENCE_S
        self.since = 0.0  # since then the test waits, or something that it has waited for has come
        self._change = threading.Condition()
        self._waiters: list[_Waiter] = []
        self._places: dict[LoopMember, _Place] = {}
        self.steps = 0
        self._driving = False
        self._driver = 0  # the thread that drives, while one does
        self.calls: set[Thread] = set()  # slow calls under way
        self._stands: dict[threading.Thread, tuple[object, float]] = {}  # where each stands that goes on; since when
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="chappe-testing", daemon=True)
        if not alone:
            self._ticker.start()

    def close(self) -> None:
        """Let no more time pass."""
        self._ended.set()
        if not self._alone:
            self._ticker.join()

    # -- time -----------------------------------------------------------------------------------------

    def is_outside(self) -> bool:
        """Return True if this thread was there before the world."""
        return threading.get_ident() in self.outside

    def monotonic(self) -> float:
        if self.is_outside():
            return monotonic()
        host = machine.current()
        rate: float = getattr(host, "rate", 1.0)
        steady_s: float = getattr(host, "steady_s", 0.0)
        return self._began + self.clock.now * rate + steady_s

    def time_ns(self) -> int:
        """Return ``time.time_ns`` on the host of this thread."""
        if self.is_outside():
            return time_ns()
        ahead_ns: Callable[[float], int] = getattr(machine.current(), "ahead_ns", _not_ahead)
        return self._began_ns + int(self.clock.now * 1e9) + ahead_ns(self.clock.now)

    def sleep(self, seconds: float) -> None:
        """Sleep on the world's clock, in no real time."""
        if self.is_outside():
            sleep(seconds)
        else:
            seconds += STEP_S  # never less, however numbers are rounded
            # One long sleep is meant; many short ones may wait for what never comes.
            self.since = max(self.since, self.clock.now + seconds - self.patience_s)
            self.wait(lambda: False, seconds)

    # -- members: ``runtime.loop.Driver`` -------------------------------------------------------------

    def add(self, member: LoopMember) -> None:
        self._places[member] = _Place(member)

    def remove(self, member: LoopMember) -> bool:
        self._places.pop(member, None)
        return False

    patient = False

    def ask(self, member: LoopMember) -> None:
        place = self._places.get(member)
        if place is not None:
            place.asked = True

    ask_soon = ask

    def end(self) -> None:
        """Do nothing: no member is left, but the world goes on."""

    # -- waiting --------------------------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let this thread wait, and all others go on meanwhile; return the value of ``until()`` at the end. Raises
        NothingHappens: too long has passed in vain.
        """
        check_alive()
        if until():
            return True
        waiter = _Waiter(until, math.inf if timeout_s is None else self.clock.now + timeout_s)
        with self._change:
            self._waiters.append(waiter)
            self._change.notify_all()
        try:
            while not waiter.goes:
                self._drive_or_rest(waiter)
        finally:
            with self._change:
                self._waiters.remove(waiter)
        check_alive()
        return until()

    @contextmanager
    def alone(self, host: Any) -> Iterator[None]:
        """Run the ``with`` while nobody drives, and no slow call of ``host`` is under way."""
        while True:
            self.wait(lambda: not self._calls_of(host))
            with self._change:
                if not self._driving and not self._calls_of(host):
                    self._driving = True
                    break
                self._change.wait(LOOK_S)
        try:
            yield
        finally:
            with self._change:
                self._driving = False
                self._change.notify_all()

    def _calls_of(self, host: Any) -> bool:
        return any(each.host is host for each in list(self.calls))

    def run_now(self) -> None:
        """Do all that can be done without time passing; for an event loop that does not wait."""
        self._drive(lambda: not self._do_now())

    def _drive_or_rest(self, waiter: _Waiter) -> None:
        with self._change:
            if waiter.goes:
                return
            nested = self._driving and self._driver == threading.get_ident()
            if not nested and (self._driving or self._others_go_on()):
                self._change.wait(LOOK_S)
                return
        if nested:  # something that it does for others waits
            self._step()
        else:
            self._drive(lambda: waiter.goes or not self._step())

    def _drive(self, over: Callable[[], bool]) -> None:
        with self._change:
            if self._driving:
                return
            self._driving = True
            self._driver = threading.get_ident()
        try:
            while not over():
                pass
        finally:
            with self._change:
                self._driving = False
                self._driver = 0
                self._change.notify_all()

    def _others_go_on(self) -> bool:
        """Return True if a thread is busy that is not known to wait for something else."""
        waiting = [each.thread for each in self._waiters if not each.goes] + [self._ticker]
        frames, now = sys._current_frames(), monotonic()
        stands: dict[threading.Thread, tuple[object, float]] = {}
        for thread in threading.enumerate():
            if thread.ident not in self.outside and thread not in waiting:
                frame = frames.get(thread.ident or 0)
                at = frame and (id(frame), frame.f_lasti)
                before, since = self._stands.get(thread, (None, now))
                stands[thread] = at, since if at == before and not getattr(thread, "ends", False) else now
        self._stands = stands
        return any(now - since <= STUCK_S for _, since in stands.values())

    def ended(self, thread: Thread) -> None:
        """A thread has ended."""
        with self._change:
            self.calls.discard(thread)
            self._change.notify_all()

    # -- what the one who drives does -----------------------------------------------------------------

    def _step(self) -> bool:
        """Do one thing; return False if it was to let a thread go on."""
        if self._let_go_on():
            return False
        if not self._do_now() and not self._await_calls():
            self._jump()
        return True

    def _await_calls(self) -> bool:
        """Let slow calls go on, which take real time and none of the world's; whether there are some."""
        if not self.calls:
            return False
        with self._change:
            waiting = {each.thread for each in self._waiters if not each.goes}
            if self.calls <= waiting:
                return False
            self._change.wait(LOOK_S)
        return True

    def _let_go_on(self) -> bool:
        now = self.clock.now
        for waiter in list(self._waiters):
            if not waiter.goes and waiter.is_over(now):
                waiter.goes = True
                return True
        return False

    def _do_now(self) -> bool:
        self.steps += 1
        events = self.clock.events
        self.clock.run(self.clock.now + STEP_S)
        looked = False
        now = self._began + self.clock.now
        files = self._files
        for member, place in list(self._places.items()):
            if not (place.asked or place.due(self._began) <= now):
                if not place.watched or place.idle_at == files.changes:
                    continue
                if not place.paused and not files.is_ready(member.fileno()):
                    place.idle_at = files.changes
                    continue
            if not place.paused:
                looked = True
                self._look(member, place)
        return looked or self.clock.events != events

    def _look(self, member: LoopMember, place: _Place) -> None:
        place.asked, place.idle_at = False, -1
        before = machine.drive(getattr(member, "machine", None))
        try:
            place.watched, place.at = member.look()
        except Exception as error:  # not a Ctrl-C: it is for whoever waits here
            member.halt(error)
            place.watched, place.at = False, math.inf
        finally:
            machine.drive(before)

    def _next(self, until: float = math.inf) -> float:
        dues = [each.due(self._began) - self._began for each in list(self._places.values()) if not each.paused]
        ends = [each.deadline for each in self._waiters if not (each.goes or getattr(each.thread, "paused", False))]
        return min([until, self.clock.next, *ends, *dues])

    def _jump(self) -> None:
        to = self._next()
        if to > self.since + self.patience_s:
            self.since = to  # who cleans up may wait again
            raise NothingHappens(
                f"{self.patience_s:g} s have passed on the test's clock, and what is waited for has not come; "
                "if it may take longer, call World.be_patient"
            )
        self.clock.run(to)

    def _tick(self) -> None:
        """Let time pass as it really does, where no thread waits for chappe."""
        seen = -1
        while not self._ended.wait(TICK_S):
            if self.steps == seen and not self._driving:
                self._drive(partial(self._pass, self.clock.now + TICK_S))
            seen = self.steps

    def _pass(self, end: float) -> bool:
        if not self._let_go_on() and not self._do_now():
            self.clock.run(self._next(end))
        return self.clock.now >= end


class Thread(threading.Thread):
    """A thread of the program: it belongs to a host, and is waited for by the world's clock. ``ends``: it waits for
    nothing that others have to do, however long a disk takes.
    """

    def __init__(
        self, scheduler: Scheduler, host: Any, target: Callable[[], object], name: str, *, ends: bool = False
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.ends = ends
        self.host = host
        self._scheduler = scheduler
        self._work = target

    @property
    def killed(self) -> bool:
        return bool(self.host.killed)

    @property
    def paused(self) -> bool:
        """True if its host is, and it waits for more than the system."""
        return bool(self.host.paused) and not self.ends

    def start(self) -> None:
        if self.ends:
            self._scheduler.calls.add(self)
        super().start()

    def run(self) -> None:
        machine.drive(self.host)
        try:
            if not self.killed:
                self._work()
        except (Killed, Exception):
            if not self.killed:
                raise
        finally:
            machine.drive(None)
            self._scheduler.ended(self)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, on the world's clock."""
        if threading.current_thread() is not self:
            self._scheduler.wait(lambda: not self.is_alive(), timeout)


def _not_ahead(now: float) -> int:
    return 0


def check_alive() -> None:
    """End this thread if its host was killed."""
    thread = threading.current_thread()
    if isinstance(thread, Thread) and thread.killed:
        raise Killed
