"""The driver: runs one core on its ports.

A core says what is to be done (``chappe.core``); the ports of its kind have the sockets, the disk and the users that it
is done with. What all kinds share is here: whose turn it is to drive (``runtime/turns.py``), reading sockets in turn,
what was malformed, what the machine refuses, writes to disk and what waits for them, tasks that are due from time to
time.

    sockets of ZeroMQ    ``watch`` has each read; what it has comes to ``Ports.hear``
    TCP                  ports ``register`` connections with ``turns`` themselves
    the disk             ``Persist`` comes to ``Ports.carry_out``, on a thread that may wait
    the application      holds ``lock``, calls the core, and gives its effects to ``do``
"""

from __future__ import annotations

import errno
import logging
import math
import selectors
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import zmq

from chappe.core import (
    Ask,
    Close,
    Core,
    Deliver,
    Dial,
    Effect,
    Flush,
    Halt,
    Persist,
    Publish,
    Reply,
    Report,
    Resolve,
    Send,
    Subscribe,
)
from chappe.deadlines import Deadlines
from chappe.defaults import MIB
from chappe.errors import ProtocolError, StorageError
from chappe.log.events import MachineRefused
from chappe.runtime.turns import Ready, Turns
from chappe.runtime.worker import DISKS, Lane
from chappe.system import time
from chappe.system.forking import own
from chappe.system.limits import need_descriptors

logger = logging.getLogger(__name__)

DRAIN_MAX: Final = 64  # messages taken from one socket before the others get their turn ...
DRAIN_BYTES: Final = MIB  # ... or so many bytes: what a user takes next is still in the processor's cache
COMPLAIN_S: Final = 10.0  # malformed messages are logged at most this often, and so is what the machine refuses
YIELD_S: Final = 0.000_1  # enough for a thread that waits for the lock to get it
TICK_S: Final = 0.001  # while users send, it is looked this often whether something gathered was left behind ...
ACTIVE_S: Final = 0.05  # ... until nobody began to gather for this long; so nobody who sends has to wake the driver
REFUSED_S: Final = 1.0  # what is due waits this long after the machine refused it
CLOSE_S: Final = 2.0  # closing waits this long for what the disk has under way
# What a machine refuses today and may grant tomorrow. Everything else that is raised is a defect of ours.
REFUSALS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.ENOSPC,
                             errno.EDQUOT, errno.ESTALE})  # fmt: skip
_NOBLOCK: Final = int(zmq.NOBLOCK)

Frames = list[Any]  # of bytes; views of them, where ``Inlet.take`` says so


class SystemClock:
    def wall_ns(self) -> int:
        return time.time_ns()


SYSTEM_CLOCK: Final = SystemClock()


class Task(Hashable, Protocol):
    """Something that is due from time to time, such as sending gathered records."""

    def idle(self) -> float:
        """Run it under the lock. Return the seconds until the next call; infinity for none."""


class Inlet:
    """A socket of ZeroMQ that is read.

    Args:
        sock: Closed with the driver, unless ``unwatch`` comes first.
        link: The name by which ``Ports.hear`` knows it.
        take: Returns the frames of the next message, or raises ``zmq.Again``; by default the socket's.
        copied: Frames are bytes; otherwise they are ZeroMQ's, which know who was let in (``gate.sender_of``).
        gathers: The core gathers input from it until the input ends; a thread that waits for that is served first.
    """

    __slots__ = ("descriptor", "gathers", "link", "sock", "take")

    def __init__(
        self,
        sock: zmq.Socket[bytes],
        link: Any,
        take: Callable[[], Frames] | None = None,
        *,
        copied: bool = True,
        gathers: bool = False,
    ) -> None:
        self.sock = sock
        self.link = link
        self.take = take or partial(sock.recv_multipart, _NOBLOCK, copied)
        self.gathers = gathers
        self.descriptor = int(sock.getsockopt(zmq.FD))


class Ports:
    """The destinations of the effects of one kind of core, and the sources of its input.

    A kind overrides the methods that its core needs. All are called with the driver's lock held, except ``carry_out``,
    ``ending``, ``close_files`` and ``closed``.

    ``eager`` says that waits may end without a notification, and that descriptors tell only once, as those
    of ZeroMQ do; other ports set ``turns.news`` themselves.

    Attributes:
        close_s: Closing waits this long for running jobs of a disk.
    """

    driver: Driver
    eager: ClassVar[bool] = True
    close_s: ClassVar[float] = CLOSE_S

    # -- effects ---------------------------------------------------------------------------------------

    def send(self, effect: Send) -> None:
        raise NotImplementedError(effect)

    def publish(self, effect: Publish) -> None:
        raise NotImplementedError(effect)

    def subscribe(self, effect: Subscribe) -> None:
        raise NotImplementedError(effect)

    def dial(self, effect: Dial) -> None:
        raise NotImplementedError(effect)

    def flush(self, effect: Flush) -> None:
        raise NotImplementedError(effect)

    def close_link(self, effect: Close) -> None:
        raise NotImplementedError(effect)

    def ask(self, effect: Ask) -> None:
        raise NotImplementedError(effect)

    def reply(self, effect: Reply) -> None:
        raise NotImplementedError(effect)

    def deliver(self, effect: Deliver) -> None:
        raise NotImplementedError(effect)

    def resolve(self, effect: Resolve) -> None:
        raise NotImplementedError(effect)

    def report(self, event: object) -> None:
        """Carry out a ``Report``; it must be quick and not call back."""
        raise NotImplementedError(event)

    def carry_out(self, job: Any) -> Any:
        """Do the job of a ``Persist``, without the lock, on a thread that may wait; return its outcome.

        An iterator of parts: other jobs come between two of them, and at its end the job is done. A StorageError is
        an outcome. Any other exception is a defect.
        """
        raise NotImplementedError(job)

    def disk(self, job: Any) -> Hashable:
        """Name the disk of a job: jobs of one disk are done in order, and disks do not wait for each other."""
        return None

    def at_once(self, job: Any) -> bool:
        """Return True if a job is carried out right here, with the lock held: its caller waits for it in any case."""
        return False

    def done(self, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        raise NotImplementedError(job)

    # -- input -----------------------------------------------------------------------------------------

    def hear(self, link: Any, frames: Frames) -> Sequence[Effect]:
        """Take a message of a socket that is watched as ``link``. Raises ProtocolError for a malformed one."""
        raise NotImplementedError(link)

    def ready(self, what: Any, mask: int) -> None:
        """Read from or write to a file registered with ``turns`` that is neither an inlet nor a function."""
        raise NotImplementedError(what)

    def holds(self, link: Any) -> bool:
        """Return True if this link is not to be read now. Call ``Driver.suspect`` when that has changed."""
        return False

    # -- time and end ----------------------------------------------------------------------------------

    def next_timeout(self) -> float:
        return math.inf

    def handle_timeout(self, now: float) -> None: ...

    def flushed(self) -> None:
        """Send what was gathered, as all input that came together is handled."""

    def halted(self, reason: str) -> None:
        """A defect has stopped the driver."""

    def forked(self) -> None:
        """Release, in a child's copy, what the parent shares with others."""

    def ending(self) -> None:
        """Begin no further jobs, as the member is about to be closed."""

    def leave(self) -> None:
        """Say goodbye; the outcomes of all jobs have been told."""

    def release(self) -> None:
        """Close everything except watched sockets; nobody drives any more."""

    def close_files(self) -> None:
        """Close the files of jobs; comes behind the last job, on its thread."""

    def closed(self) -> None:
        """Close files that are also read while it is driven; last of all, when the member is closed."""


class Driver:
    """Runs one core.

    Args:
        core: See ``chappe.core``.
        what: The member in texts of errors.

    An exception that is neither of the protocol nor of the machine is a defect: ``turns.halted`` says so from then on,
    and every thread that waits is woken.
    """

    def __init__(self, core: Core, ports: Ports, what: str) -> None:
        own(self)
        need_descriptors()
        self.core = core
        self.ports = ports
        ports.driver = self
        self.turns = Turns(self._handle, self._due, self._stopped, what=what, eager=ports.eager)
        self.lock = self.turns.lock
        self.halt_event = self.turns.machine.event()
        self.malformed = 0
        self.still = False  # what has to be on disk first is written: no other input is handled meanwhile
        self._inbox: deque[tuple[Any, Any, bool]] = deque()  # that came meanwhile: as ``_take`` has it
        self._disks: dict[Hashable, Lane] = {}  # by the name that ports give them
        self._files_closed = False
        self._inlets: dict[zmq.Socket[bytes], Inlet] = {}
        self._suspects: dict[Inlet, None] = {}  # used since their descriptor was last looked at
        self._tasks: Deadlines[Task] = Deadlines()
        self._lone = False  # messages came one by one last
        self._hurried = False  # what somebody waits for has just come
        self._active_until = -math.inf
        self._look_at = math.inf
        self._callers: deque[None] = deque()  # threads that wait for the lock in ``run``
        self._complain_at = -math.inf
        self._refused_at = -math.inf  # when the machine refused something last, and it was reported
        self._due_from = -math.inf  # what is due is not done before

    # -- life ------------------------------------------------------------------------------------------

    def start(self, effects: Sequence[Effect] = ()) -> None:
        with self.lock:
            self.do(effects)
        self.turns.start()

    def close(self) -> None:
        """Finish running jobs of the disk, and release everything; safe to call twice."""
        if not self.turns.closed:
            self.ports.ending()
        self._close_files()
        with self.lock:
            if self.turns.closed:
                return
            self.ports.leave()
            self.turns.closed = True
        self.turns.stop()
        with self.lock:
            self.release()
        self.ports.closed()

    def release(self) -> None:
        """Close all sockets; for a member whose making failed, and at the end."""
        self._close_files()
        self.ports.release()
        for sock in list(self._inlets):
            sock.close()
        self._inlets.clear()
        self.turns.release()

    def _close_files(self) -> None:
        if self._files_closed:
            return
        self._files_closed = True
        for disk in [each for each in self._disks if each is not None]:
            self.end_disk(disk, self.ports.close_s)
            self.forget_disk(disk)
        self.end_disk(None, self.ports.close_s, self.ports.close_files)

    def end_disk(self, disk: Hashable, timeout_s: float, last: Callable[[], object] | None = None) -> None:
        """Take no more jobs of a disk, and do ``last`` behind them, on their thread; wait at most this long."""
        lane = self._disks.get(disk)
        if lane is not None:
            lane.close(timeout_s, last)
        elif last is not None:
            last()

    def forget_disk(self, disk: Hashable) -> None:
        """Forget a disk for which the core has no further jobs."""
        self._disks.pop(disk, None)

    def forked(self) -> None:
        self.ports.forked()

    def _stopped(self, reason: str) -> None:
        self.ports.halted(reason)
        self.halt_event.set()

    # -- from outside ----------------------------------------------------------------------------------

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call ``Turns.run``; the function gets its turn also while much is to be driven."""
        self._callers.append(None)
        with self.lock:
            self._callers.pop()
            self.turns.news = True
            self.turns.run(function, *args)

    def do(self, effects: Sequence[Effect]) -> None:
        """Carry out effects of a call into the core, and those that follow; the lock is held."""
        self.perform(effects)
        self.flush()
        self.turns.look_again_at(self._due())

    # -- effects ---------------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        """Carry out effects in order; the lock is held."""
        ports = self.ports
        for number, effect in enumerate(effects):
            kind = type(effect)
            if kind is Publish:
                ports.publish(effect)  # type: ignore[arg-type]
            elif kind is Send:
                ports.send(effect)  # type: ignore[arg-type]
            elif kind is Flush:
                ports.flush(effect)  # type: ignore[arg-type]
            elif isinstance(effect, Deliver):
                ports.deliver(effect)
            elif isinstance(effect, Reply):
                ports.reply(effect)
            elif isinstance(effect, Resolve):
                ports.resolve(effect)
            elif isinstance(effect, Report):
                ports.report(effect.event)
            elif isinstance(effect, Persist):
                self._persist(effect.job, effects[number + 1 :] if effect.first else None)
                if effect.first:
                    return
            elif isinstance(effect, Ask):
                ports.ask(effect)
            elif isinstance(effect, Subscribe):
                ports.subscribe(effect)
            elif isinstance(effect, Dial):
                ports.dial(effect)
            elif isinstance(effect, Close):
                ports.close_link(effect)
            elif isinstance(effect, Halt):
                raise RuntimeError(effect.reason)
            else:
                raise NotImplementedError(effect)

    def flush(self) -> None:
        """Let the core pass on what it gathered, and send it; the lock is held."""
        if not self.still:
            effects = self.core.flush(time.monotonic())
            if effects:
                self.perform(effects)
        self.ports.flushed()

    # -- the disk --------------------------------------------------------------------------------------

    def _persist(self, job: Any, rest: Sequence[Effect] | None) -> None:
        if self._files_closed:
            return
        if self.ports.at_once(job):
            self.perform(self.ports.done(job, self._carry_out(job), time.monotonic()))
            return
        disk = self.ports.disk(job)
        lane = self._disks.get(disk)
        if lane is None:
            lane = self._disks[disk] = Lane(DISKS, self.run)
        if rest is not None:
            assert not self.still
            self.still = True
        lane.do(partial(self._carry_out, job), partial(self._carried_out, lane, job, rest))

    def _carry_out(self, job: Any) -> Any:
        try:
            return self.ports.carry_out(job)
        except StorageError as error:
            return error

    def _carried_out(self, lane: Lane, job: Any, rest: Sequence[Effect] | None, outcome: Any) -> None:
        if isinstance(outcome, Iterator):
            lane.do(partial(_do_part, outcome), partial(self._carried_out, lane, job, rest))
            return
        if rest is None:
            self._take(job, outcome, True)
        else:
            self.still = False
            self.perform(self.ports.done(job, outcome, time.monotonic()))
            if not isinstance(outcome, StorageError):
                self.perform(rest)
            while self._inbox and not self.still:
                self._take(*self._inbox.popleft())
            if not self.still:
                self.suspect_all()
        if not self.still:
            self.do(())

    # -- driving ---------------------------------------------------------------------------------------

    def gathered(self, task: Task, at: float) -> None:
        """Look at gathered records at ``at``, since perhaps nobody comes to send them; the lock is held."""
        self._active_until = at + ACTIVE_S
        self.call_idle(task, at)

    def call_idle(self, task: Task, at: float) -> None:
        """Call its ``idle`` at ``at``; the lock is held."""
        self._tasks.set(task, at)
        self.look_at(at)

    def look_at(self, at: float) -> None:
        if at < self._look_at:
            self._look_at = at
            self.turns.look_again_at(at)

    def _handle(self, ready: Ready) -> bool:
        for key, mask in ready:
            what = key.data
            if type(what) is Inlet:
                self._suspects[what] = None
            elif callable(what):
                what(mask)
            else:
                self.ports.ready(what, mask)
        suspects, self._suspects = self._suspects, {}
        for inlet in suspects:
            if self.drain(inlet):
                self._suspects[inlet] = None
        if self._hurried:  # nothing is missed: whoever drives next, at once or when the alarm rings, does the rest
            self._hurried = False
            self._look_at = -math.inf
            self.turns.news = True
            return True
        now = time.monotonic()
        if now >= self.ports.next_timeout():
            self.ports.handle_timeout(now)
        if not self.still and now >= max(self.core.next_timeout(), self._due_from):
            try:
                self.perform(self.core.handle_timeout(now))
            except Exception as error:
                self.refused(error)
                self._due_from = now + REFUSED_S
        if now >= self._look_at:
            for task in self._tasks.due(now):
                self._tasks.set(task, now + task.idle())
            self._look_at = self._tasks.next
        if not self.still:  # as ``flush``
            effects = self.core.flush(now)
            if effects:
                self.perform(effects)
        self.ports.flushed()
        if now < self._active_until:
            self._look_at = min(self._look_at, now + TICK_S)
        if self._suspects:
            self._look_at = min(self._look_at, now + YIELD_S)  # the lock is not fair: let others have it for once
        if self.ports.eager:
            self.turns.news = True
        return bool(self._suspects) and not self._callers

    def _due(self) -> float:
        due = min(self.ports.next_timeout(), self._look_at)
        return due if self.still else min(due, max(self.core.next_timeout(), self._due_from))

    # -- sockets of ZeroMQ -----------------------------------------------------------------------------

    def watch(self, inlet: Inlet) -> Inlet:
        self._inlets[inlet.sock] = inlet
        self.turns.register(inlet.descriptor, selectors.EVENT_READ, inlet)
        self.suspect(inlet)
        return inlet

    def unwatch(self, inlet: Inlet) -> None:
        self.turns.unregister(inlet.descriptor)
        self._inlets.pop(inlet.sock, None)
        self._suspects.pop(inlet, None)
        inlet.sock.close()

    def suspect(self, inlet: Inlet) -> None:
        """Look at a socket that was read otherwise, or is read again: its descriptor may not tell of input."""
        self._suspects[inlet] = None

    def suspect_all(self) -> None:
        """Look at all sockets, as none was read for a while."""
        for inlet in self._inlets.values():
            self._suspects[inlet] = None
        self.look_at(-math.inf)

    def drain(self, inlet: Inlet) -> bool:
        """Handle a socket's input; return whether there may be more. ``hear`` may read another socket first."""
        ports, sock, link = self.ports, inlet.sock, inlet.link
        take = inlet.take
        size = 0
        try:
            for number in range(DRAIN_MAX):
                if size >= DRAIN_BYTES:
                    return True
                if self.still or ports.holds(link):
                    if not sock.closed:
                        sock.getsockopt(zmq.EVENTS)  # its descriptor says no more that something is there
                    return False
                try:
                    frames = take()
                except zmq.Again:
                    if inlet.gathers:
                        self._lone = number <= 1
                    return False
                except zmq.ZMQError:
                    if sock.closed:  # by what was just handled
                        return False
                    raise
                size += len(frames[-1])
                self._take(link, frames, False)
                if inlet.gathers and self._lone:
                    if not number:
                        self.flush()
                    if self.turns.over:
                        self._lone = False  # unless nothing was behind it
                        self._hurried = True
                        return True  # whoever waited for it gets it first
            return True
        finally:
            if inlet.gathers:
                self.flush()

    def _take(self, source: Any, what: Any, disk: bool) -> None:
        if self.still:
            self._inbox.append((source, what, disk))
            return
        try:
            if disk:
                self.perform(self.ports.done(source, what, time.monotonic()))
            else:
                self.perform(self.ports.hear(source, what))
        except ProtocolError as error:
            self.complain(error)
        except Exception as error:  # this input alone is lost, and whoever sent it asks again
            self.refused(error)

    def take_each(self, link: Any, messages: Sequence[Any]) -> None:
        """Take messages that came as one, for ``hear``; those behind one that must first be on disk wait for it."""
        for each in messages:
            self._take(link, each, False)

    def complain(self, error: ProtocolError) -> None:
        """Count a malformed message, and log it now and then."""
        self.malformed += 1
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            logger.warning("dropped a malformed message (%s); %d so far", error, self.malformed)

    def refused(self, error: Exception) -> None:
        """Report a refusal of the machine; raises the error again if it is a defect of ours."""
        if not is_refusal(error):
            raise error
        now = time.monotonic()
        if now >= self._refused_at + COMPLAIN_S:
            self._refused_at = now
            self.ports.report(MachineRefused(str(error)))


def _do_part(parts: Iterator[None]) -> Iterator[None] | StorageError | None:
    """Do the next part of a job; return the rest, or the outcome."""
    try:
        next(parts)
    except StopIteration:
        return None
    except StorageError as error:
        return error
    return parts


def is_refusal(error: Exception) -> bool:
    """Return True if it is the machine that refuses, and not a defect of ours."""
    if isinstance(error, (OSError, zmq.ZMQError)):
        return error.errno in REFUSALS
    return isinstance(error, StorageError)
