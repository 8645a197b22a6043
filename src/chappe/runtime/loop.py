"""The one background thread of a process: it looks after all members that no thread of a user drives just now.

A member is not asked what it is. It has one descriptor that tells of all its sockets (or none, as long as it has no
socket), and ``look``, which does what is to be done and says when to look again. The thread starts with the first
member and ends with the last one.

A slow member delays the others: ``look`` must not wait, and what takes long is the worker's (``runtime/worker.py``).
An exception that a ``look`` raises stops that member alone.

After a fork the child has no loop, and the first member that it makes gets a new one; the parent's loop goes on.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import selectors
import threading
from collections import deque
from itertools import count
from typing import Final, Protocol

from chappe.system import machine, time
from chappe.system.alarm import Alarm
from chappe.system.forking import own
from chappe.system.limits import descriptors_refused

logger = logging.getLogger(__name__)

SLEEP_S: Final = 1.0  # longest sleep: a clock that was put forward is noticed so soon
SOON_S: Final = 0.002  # who is to be looked at soon is so much later
_STALE_MAX: Final = 64  # timers that nobody needs any more are thrown away when there are so many


class LoopMember(Protocol):
    """A member that the loop looks after. Its methods are called without any lock."""

    def look(self) -> tuple[bool, float]:
        """Drive, unless another thread does; never wait.

        Returns whether the descriptor is to be watched, and when to look again at the latest, monotonic seconds.
        """

    def fileno(self) -> int:
        """The descriptor that tells of all its sockets; -1 while it has none."""

    def halt(self, error: BaseException) -> None: ...


class _LoopPlace:
    __slots__ = ("at", "left", "member", "queued", "watched")

    def __init__(self, member: LoopMember) -> None:
        self.member = member
        self.at = -math.inf  # when to look at it
        self.queued = math.inf  # of its timer in the heap, which may be earlier than ``at``
        self.watched = False  # its descriptor is
        self.left = False


class MemberLoop(Protocol):
    """The loop that looks after members, or a test's replacement."""

    @property
    def patient(self) -> bool:
        """True if ``ask_soon`` wakes nobody at once, so that it may be called again and again."""

    def ask(self, member: LoopMember) -> None:
        """Look at it at once."""

    def ask_soon(self, member: LoopMember) -> None:
        """Look at it ``SOON_S`` later at the latest, rather not earlier; a member may ask more than once."""

    def add(self, member: LoopMember) -> None: ...

    def remove(self, member: LoopMember) -> bool:
        """Stop looking after it and watching its descriptor; return whether it was the last member."""

    def end(self) -> None: ...


class Loop:
    """The thread and the descriptors that it waits for. Made by ``join``."""

    def __init__(self) -> None:
        own(self)
        self._guard = threading.Lock()  # what is watched, and who has left
        self._places: dict[LoopMember, _LoopPlace] = {}
        self._timers: list[tuple[float, int, _LoopPlace]] = []  # touched by our thread alone
        self._number = count()
        self._asked: deque[LoopMember] = deque()
        self._later: deque[LoopMember] = deque()  # those that the alarm is set for
        self._alarmed = False  # it is set
        self._asleep = False
        self._ended = False
        with descriptors_refused():
            self._selector = selectors.DefaultSelector()
            self._wakeup = machine.Wakeup()
        self._alarm = _alarm()
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._wakeup.clear)
        if self._alarm is not None:
            self._selector.register(self._alarm, selectors.EVENT_READ, self._ring)
        self._thread = threading.Thread(target=self._run, name="chappe-loop", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """Forget the thread, which a child's copy lacks."""
        self._close()

    def _close(self) -> None:
        self._selector.close()
        self._wakeup.close()
        if self._alarm is not None:
            self._alarm.close()

    # -- from any thread ------------------------------------------------------------------------------

    @property
    def patient(self) -> bool:
        return self._alarm is not None

    def ask(self, member: LoopMember) -> None:
        self._asked.append(member)
        if self._asleep:
            self._wake()

    def ask_soon(self, member: LoopMember) -> None:
        """Look soon; without an alarm it is looked at at once."""
        if self._alarm is None:
            self.ask(member)
            return
        self._later.append(member)
        if not self._alarmed:
            with self._guard:
                self._alarmed = True
                if self._alarm.fileno() >= 0:
                    self._alarm.set(SOON_S)

    def add(self, member: LoopMember) -> None:
        with self._guard:
            self._places[member] = _LoopPlace(member)
        self.ask(member)

    def remove(self, member: LoopMember) -> bool:
        with self._guard:
            place = self._places.pop(member, None)
            if place is not None:
                place.left = True
                if place.watched:
                    self._selector.unregister(member)
            return not self._places

    def end(self) -> None:
        """End the thread, for ``leave``: no member is left."""
        self._ended = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        self._asleep = False  # one wake-up is enough
        with self._guard:
            if self._wakeup.fileno() >= 0:
                self._wakeup.set()

    # -- our thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                self._round()
        except BaseException as error:  # nobody would drive any more
            for member in list(self._places):
                member.halt(error)
            raise
        finally:
            with self._guard:
                self._close()

    def _ring(self) -> None:
        assert self._alarm is not None
        self._alarm.clear()
        self._alarmed = False  # before we look: who asks after that sets it again
        while self._later:
            self._asked.append(self._later.popleft())

    def _round(self) -> None:
        self._asleep = True  # before we look: who asks after that wakes us
        wait_s = 0.0 if self._asked or self._ended else self._until_timer()
        ready = self._selector.select(wait_s)
        self._asleep = False
        places: dict[_LoopPlace, None] = {}  # each once a round, so that all get their turns
        for key, _ in ready:
            if isinstance(key.data, _LoopPlace):
                places[key.data] = None
            else:
                key.data()
        for _ in range(len(self._asked)):
            place = self._places.get(self._asked.popleft())
            if place is not None:
                places[place] = None
        self._take_due(places)
        for place in places:
            if not place.left:
                self._look(place)

    def _look(self, place: _LoopPlace) -> None:
        try:
            watch, at = place.member.look()
        except BaseException as error:  # SystemExit too: the others need this thread
            place.member.halt(error)
            watch, at = False, math.inf
        if watch is not place.watched:
            self._watch(place, watch)
        place.at = at
        if at < place.queued:
            self._plan(place)

    def _watch(self, place: _LoopPlace, watch: bool) -> None:
        with self._guard:
            if place.left:
                return
            if not watch:
                self._selector.unregister(place.member)
            elif place.member.fileno() < 0:
                return
            else:
                self._selector.register(place.member, selectors.EVENT_READ, place)
            place.watched = watch

    def _plan(self, place: _LoopPlace) -> None:
        place.queued = place.at
        heapq.heappush(self._timers, (place.at, next(self._number), place))
        if len(self._timers) > _STALE_MAX + 4 * len(self._places):
            kept = [each for each in self._places.copy().values() if each.queued < math.inf]
            self._timers = [(each.queued, next(self._number), each) for each in kept]
            heapq.heapify(self._timers)

    def _take_due(self, places: dict[_LoopPlace, None]) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            queued, _, place = heapq.heappop(self._timers)
            if queued != place.queued or place.left:
                continue  # another timer is earlier
            place.queued = math.inf
            if place.at <= now:
                places[place] = None
            elif place.at < math.inf:
                self._plan(place)

    def _until_timer(self) -> float:
        if not self._timers:
            return SLEEP_S
        return max(0.0, min(SLEEP_S, self._timers[0][0] - time.monotonic()))


def _alarm() -> Alarm | None:
    try:
        return Alarm()
    except (OSError, AttributeError):
        return None  # another system or C library, or no descriptor is left: there is a way without


_joining = threading.Lock()
_current: Loop | None = None


def join(member: LoopMember, on: machine.Machine = machine.SYSTEM) -> MemberLoop:
    """Let the process's loop, or that of the machine, look after ``member``, at once and until it leaves."""
    global _current
    if on.driver is not None:
        driver: MemberLoop = on.driver
        driver.add(member)
        return driver
    with _joining:
        if _current is None:
            _current = Loop()
        _current.add(member)
        return _current


def leave(loop: MemberLoop, member: LoopMember) -> None:
    """Stop looking at ``member``. Its descriptor may be closed from now on; a ``look`` may be under way.

    After the last member this waits for the thread to end, so the caller holds no lock of a member.
    """
    global _current
    with _joining:
        last = loop.remove(member)
        if last and _current is loop:
            _current = None
    if last:
        loop.end()


def _forked() -> None:
    global _joining, _current
    _joining = threading.Lock()  # another thread of the parent may have held it
    _current = None


os.register_at_fork(after_in_child=_forked)
