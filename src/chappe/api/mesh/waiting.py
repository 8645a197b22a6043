"""Waits for a queue of an endpoint: in a thread, on a descriptor, or by callbacks."""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from chappe.defaults import KEYS_COME_S
from chappe.errors import ChappeError, Closed, InvalidData, Sealed, TimedOut
from chappe.runtime.turns import Turns
from chappe.system import machine, time

logger = logging.getLogger(__name__)

KEYS_TRY_S: Final = 0.1  # until a publisher that waits for keys tries again


class KeysWait:
    """A publisher's wait for keys of a sealed topic, which others hand on; ``waits`` is False for none."""

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self._until = math.inf

    def wait_s(self, error: Sealed) -> float:
        """Return the seconds until the next attempt. Raises ``error`` if no keys will come, or none came in time."""
        now = time.monotonic()
        self._until = min(self._until, now + KEYS_COME_S)
        if not (self._waits and error.passing) or now >= self._until:
            raise error
        return KEYS_TRY_S


class QueueWaiting:
    """The waiting side of one queue.

    ``filled`` tells with the lock held if items are there; ``ready`` if waiters should look, also when none will come.
    """

    def __init__(self, turns: Turns, filled: Callable[[], bool], ready: Callable[[], bool] | None = None) -> None:
        self.turns = turns
        self.closed = False
        self._filled = filled
        self._ready = filled if ready is None else ready
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._raised = False  # the descriptor is readable
        self._thread: threading.Thread | None = None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until an item is there; return False if none is after ``timeout_s``. Ctrl-C ends the wait."""
        return self.turns.wait(lambda: self.closed or self._ready(), timeout_s) and not self.closed

    def changed(self) -> None:
        """Note that the queue was filled or emptied; the lock is held."""
        filled = self._filled()
        if filled:
            self.turns.news = True
        if self._ends is not None and filled is not self._raised:
            self._raised = filled
            if filled:
                self._ends[1].send(b"\0")
            else:
                self._ends[0].recv(1)

    def fileno(self) -> int:
        """Return a descriptor that is readable while items are there: for select, poll and event loops."""
        with self.turns.lock:
            self.check()
            if self._ends is None:
                self._ends = socket.socketpair()
                self.changed()
            return self._ends[0].fileno()

    def call_back(self, get: Callable[[None], Any], function: Callable[[Any], object], name: str) -> None:
        """Call ``function`` with each item that ``get(None)`` waits for, in a thread of its own."""
        self._thread = machine.current().thread(lambda: self._call(get, function), name)
        self._thread.start()

    def _call(self, get: Callable[[None], Any], function: Callable[[Any], object]) -> None:
        while True:
            try:
                item = get(None)
            except InvalidData as error:
                logger.warning("%s", error)
                continue
            except ChappeError as error:
                if not isinstance(error, Closed):
                    logger.warning("%s", error)
                return
            if item is None:
                continue
            try:
                function(item)
            except Exception:
                logger.exception("a callback failed; it is called again with what comes next")

    def check(self) -> None:
        """Raise Closed, or MemberStopped if a defect has stopped the endpoint."""
        if self.closed or self.turns.closed:
            raise Closed("it was closed")
        self.turns.check()

    def close(self) -> None:
        """Release all waiting threads; the lock is held."""
        self.closed = True
        self.turns.news = True
        if self._ends is not None:
            for end in self._ends:
                end.close()
            self._ends = None

    def join(self, timeout_s: float) -> None:
        """Wait for a running callback, unless it is the caller; after ``close``, without the lock."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


_PENDING: Final = object()


class Asked:
    """A question to a core that ``Resolve`` answers later.

    Args:
        asked: The open questions by ticket; this one is among them until it is answered or forgotten.
        owner: The object that answers the question if it closes first.
    """

    def __init__(self, turns: Turns, asked: dict[int, Asked], ticket: int, owner: object = None) -> None:
        self.outcome: Any = _PENDING
        self._turns = turns
        self._asked = asked
        self.ticket = ticket
        self.owner = owner
        self._then: Callable[[], None] | None = None
        asked[ticket] = self

    def done(self) -> bool:
        return self.outcome is not _PENDING

    def answer(self, outcome: object) -> None:
        """Store the answer; the lock is held."""
        self.forget()
        self.outcome = outcome
        self._turns.news = True
        if self._then is not None:
            self._then()

    def then(self, function: Callable[[], None]) -> None:
        """Call ``function`` when the answer comes, or now; the lock is held, there and here."""
        if self.done():
            function()
        else:
            self._then = function

    def wait(self, timeout: float | None) -> None:
        """Wait in a thread for the answer; Ctrl-C drops the question."""
        try:
            self._turns.wait(self.done, timeout)
        except BaseException:  # Ctrl-C
            self.forget()
            raise

    def forget(self) -> None:
        self._asked.pop(self.ticket, None)

    def take(self, too_late: str) -> Any:
        """Return the answer, after a wait.

        Raises:
            ChappeError: The answer is an error.
            MemberStopped: A defect has stopped the endpoint.
            Closed: The endpoint was closed before there was an answer.
            TimedOut: There is none yet; ``too_late`` is the text.
        """
        self.forget()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        if self.outcome is not _PENDING:
            return self.outcome
        if self._turns.closed:
            raise Closed("the endpoint was closed")
        self._turns.check()
        raise TimedOut(too_late)


def deadline_after(timeout_s: float | None) -> float:
    """Return the end of a wait that begins now, in monotonic seconds; infinite for None."""
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def time_left(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
