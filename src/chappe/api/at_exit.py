"""Members that a program never closed: they leave when they are collected, or when the interpreter ends.

A member that nothing refers to any more closes, with a ResourceWarning, as files and sockets of Python do; what drives
it refers to it weakly (``faces.weakly``). Producers, ordered producers and clients of chains are the exception: the
process's loop refers to them, so that one which a function made and forgot still delivers what it was given. At the
end of the interpreter all that are left have a bounded time for that.

The collector runs in any thread at any moment, also one that holds locks. So it only hands a member over, to a thread
that closes one after the other.

Only an end that Python sees counts: ``os._exit``, a signal that nobody handles and a power cut run nothing of this. A
member that was made before a fork is left to the process that made it.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from chappe.defaults import EXIT_ERROR_S, EXIT_S
from chappe.system import machine

logger = logging.getLogger("chappe")


class Unclosed(Protocol):
    def begin_leave(self) -> None:
        """Send what is gathered, without waiting."""

    def leave(self, timeout_s: float) -> list[str]:
        """Close; wait this long for unconfirmed data. Return sentences about the rest."""


_members: Final[weakref.WeakKeyDictionary[Unclosed, int]] = weakref.WeakKeyDictionary()  # with the process of each
_others: Final[weakref.WeakKeyDictionary[object, int]] = weakref.WeakKeyDictionary()  # the same for members without one
_workers: Final[set[int]] = set()  # processes of ``multiprocessing`` whose end we hear of


class Collectable:
    """A face that closes when it is collected; its node must call its bound methods ``weakly``."""

    _unclosed = False

    def __del__(self) -> None:
        if self._unclosed and not sys.is_finalizing():
            _dropped(self)


_queue: SimpleQueue[Any] = SimpleQueue()  # dropped members, which are to be closed
_closer = threading.Lock()  # held by the thread that closes them


def _dropped(member: Collectable) -> None:
    """Hand over a member that is being collected, without a lock that another thread may hold."""
    _warn([member])
    _queue.put(member)
    _begin_closing()


def _begin_closing() -> None:
    if _closer.acquire(blocking=False):
        try:
            # ``Thread.start`` takes locks that the thread may hold in which the collector runs.
            _thread.start_new_thread(_close_dropped, ())
        except RuntimeError:  # no more threads: the next one that is dropped tries again
            _closer.release()


def _close_dropped() -> None:
    while True:
        with suppress(Empty):
            while True:
                _close(_queue.get_nowait())
        _closer.release()
        if _queue.empty() or not _closer.acquire(blocking=False):
            return


def _close(member: Any) -> None:
    try:
        leave = getattr(member, "leave", None)
        if leave is None:
            member.close()
            return
        member.begin_leave()
        for each in leave(EXIT_S):
            logger.warning("%s", each)
    except Exception as error:
        logger.warning("%r was never closed, and does not close: %r", member, error)


def _forked() -> None:
    global _queue, _closer
    _queue, _closer = SimpleQueue(), threading.Lock()  # what was dropped is the parent's


os.register_at_fork(after_in_child=_forked)


def add(member: Unclosed) -> None:
    _members[member] = os.getpid()
    _note(member, True)
    _watch_worker()


def remove(member: Unclosed) -> None:
    _members.pop(member, None)
    _note(member, False)


def opened(member: object) -> None:
    """Register a member that loses nothing if it is never closed."""
    _others[member] = os.getpid()
    _note(member, True)


def closed(member: object) -> None:
    _others.pop(member, None)
    _note(member, False)


def _note(member: object, unclosed: bool) -> None:
    if isinstance(member, Collectable):
        member._unclosed = unclosed and machine.current() is machine.SYSTEM  # no thread of ours enters a test's world


def _warn(members: Iterable[object]) -> None:
    """Warn of members that were never closed, as Python does of files (``-X dev``)."""
    for member in members:
        with suppress(Exception):  # a filter may turn the warning into an error
            warnings.warn(f"unclosed {member!r}: close it, or use it in a `with` statement", ResourceWarning, 2, member)


def _watch_worker() -> None:
    """A process of ``multiprocessing`` ends without ``atexit``, but calls its own finalizers."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or os.getpid() in _workers:
        return
    from multiprocessing.util import Finalize

    _workers.add(os.getpid())
    Finalize(None, _leave_all, exitpriority=100)


def _failed() -> bool:
    """True if the program ends because of an unhandled exception, Ctrl-C among them."""
    if sys.exc_info()[0] not in (None, SystemExit):  # in a process of ``multiprocessing``
        return True
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")  # at a prompt it is of any line


def _leave_all() -> None:
    """Close all open members, the newest first, within one bound together."""
    pid = os.getpid()
    members = [member for member, made_in in _members.items() if made_in == pid]
    _members.clear()
    _warn([*members, *(member for member, made_in in _others.items() if made_in == pid)])
    _others.clear()
    deadline = time.monotonic() + (EXIT_ERROR_S if _failed() else EXIT_S)
    try:
        for member in members:
            with suppress(Exception):  # ``leave`` meets it again
                member.begin_leave()
    except KeyboardInterrupt:
        deadline = 0.0
    for member in reversed(members):
        try:
            left = member.leave(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            deadline = 0.0  # whoever waits has had enough
            left = member.leave(0.0)
        except Exception as error:
            left = [f"what {member!r} still held may be lost: {error!r}"]
        for each in left:
            logger.warning("%s", each)


atexit.register(_leave_all)
