"""How users wait for a queue of an endpoint: in a thread, on a descriptor, or by being called back."""

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
    """How a publisher waits for keys of a sealed topic, which others hand on.

    Args:
        waits: Whether it does.
    """

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self._until = math.inf

    def wait_s(self, error: Sealed) -> float:
        """How long to wait until it is tried again; raises ``error`` if no keys will come, or none have in time."""
        now = time.monotonic()
        self._until = min(self._until, now + KEYS_COME_S)
        if not (self._waits and error.passing) or now >= self._until:
            raise error
        return KEYS_TRY_S


class QueueWaiting:
    """The waiting side of one queue.

    Args:
        filled: Whether something is there; called with the lock held.
        ready: Whether who waits for it is to look: also when nothing will come.
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
        """Wait until something is there, at most so long; False if nothing is. Ctrl-C ends the wait."""
        return self.turns.wait(lambda: self.closed or self._ready(), timeout_s) and not self.closed

    def changed(self) -> None:
        """The queue was filled or emptied; the lock is held."""
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
        """A descriptor that is readable while something is there: for select, poll and event loops."""
        with self.turns.lock:
            self.check()
            if self._ends is None:
                self._ends = socket.socketpair()
                self.changed()
            return self._ends[0].fileno()

    def call_back(self, get: Callable[[None], Any], function: Callable[[Any], object], name: str) -> None:
        """Have ``function`` called with each item that ``get(None)`` waits for, by a thread of its own."""
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
        """Release everybody who waits; the lock is held."""
        self.closed = True
        self.turns.news = True
        if self._ends is not None:
            for end in self._ends:
                end.close()
            self._ends = None

    def join(self, timeout_s: float) -> None:
        """After ``close``, without the lock: wait for a callback that is running, unless it is who calls this."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


_PENDING: Final = object()


class Asked:
    """A question to a core that ``Resolve`` answers later.

    Args:
        asked: All that somebody waits for, by ticket; this one is among them until it is answered or forgotten.
        owner: Who answers the question if it closes first.
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
        """Whether the answer is there."""
        return self.outcome is not _PENDING

    def answer(self, outcome: object) -> None:
        """The answer is there; the lock is held."""
        self.forget()
        self.outcome = outcome
        self._turns.news = True
        if self._then is not None:
            self._then()

    def then(self, function: Callable[[], None]) -> None:
        """Have ``function`` called, with the lock held, when the answer comes, or now; the lock is held."""
        if self.done():
            function()
        else:
            self._then = function

    def wait(self, timeout: float | None) -> None:
        """Wait for the answer at most so long; for a thread."""
        try:
            self._turns.wait(self.done, timeout)
        except BaseException:  # Ctrl-C
            self.forget()
            raise

    def forget(self) -> None:
        """Nobody will wait for the answer."""
        self._asked.pop(self.ticket, None)

    def take(self, too_late: str) -> Any:
        """The answer, after a wait.

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
    """The moment, in monotonic seconds, until which somebody waits who starts now; None: for ever."""
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def time_left(deadline: float) -> float | None:
    """The timeout that is left until then."""
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
