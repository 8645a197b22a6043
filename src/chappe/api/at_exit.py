"""Members that a program never closed: what they still hold leaves when the interpreter ends, within a bound.

Nobody is collected before that: the process's loop refers to all members, so that a producer which a function made and
forgot still delivers its records. A member lives until it is closed.

Only an end that Python sees counts: ``os._exit``, a signal that nobody handles and a power cut run nothing of this. A
member that was made before a fork is left to the process that made it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from chappe.defaults import EXIT_ERROR_S, EXIT_S

logger = logging.getLogger("chappe")


class Unclosed(Protocol):
    """A member, as the end of the program sees it."""

    def begin_leave(self) -> None:
        """Send what is gathered, without waiting for anybody."""

    def leave(self, timeout_s: float) -> list[str]:
        """Close; give what still waits this long. Returns sentences on what is left."""


_members: Final[weakref.WeakKeyDictionary[Unclosed, int]] = weakref.WeakKeyDictionary()  # with the process of each
_others: Final[weakref.WeakKeyDictionary[object, int]] = weakref.WeakKeyDictionary()  # the same for members without one
_workers: Final[set[int]] = set()  # processes of ``multiprocessing`` whose end we hear of


def add(member: Unclosed) -> None:
    """It was opened."""
    _members[member] = os.getpid()
    _watch_worker()


def remove(member: Unclosed) -> None:
    """It was closed."""
    _members.pop(member, None)


def opened(member: object) -> None:
    """Register a member that loses nothing if it is never closed."""
    _others[member] = os.getpid()


def closed(member: object) -> None:
    """Remove such a member."""
    _others.pop(member, None)


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
    """Whether the program ends because of an exception that it did not handle, Ctrl-C among them."""
    if sys.exc_info()[0] not in (None, SystemExit):  # in a process of ``multiprocessing``
        return True
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")  # at a prompt it is of any line


def _leave_all() -> None:
    """Close all that are left, the newest first, within one bound together."""
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
