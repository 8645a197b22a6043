"""What happened to the peerings of an endpoint, in the order in which it happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from chappe.api.faces import Closeable
from chappe.api.mesh.hosting import Host
from chappe.api.mesh.subscriber import JOIN_S
from chappe.api.mesh.waiting import Waiting
from chappe.system.forking import own

EVENTS_MAX: Final = 1_000  # that wait for one subscriber; then the oldest are dropped and counted


class StatusSubscriber(Closeable):
    """Statuses and errors of an endpoint: the classes of ``chappe.mesh.events``, whose text is a sentence for people.

    Made by ``Endpoint.statuses``. Use from several threads is safe; each event goes to one of them.
    """

    def __init__(self, endpoint: Host) -> None:
        own(self)
        self.dropped = 0
        self._endpoint = endpoint
        self._lock = endpoint.node.lock
        self._queue: deque[Any] = deque()
        self._waiting = Waiting(endpoint.node.turns, lambda: bool(self._queue))

    def get(self, timeout: float | None = None) -> Any | None:
        """The next event, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            Closed: This or the endpoint was closed, and everything before that was handed out.
        """
        return self._waiting.take(self._queue, timeout)

    def poll(self) -> list[Any]:
        """All events that are there; never waits."""
        with self._lock:
            found = list(self._queue)
            self._queue.clear()
            if not found:
                self._waiting.check()
            self._waiting.changed()
            return found

    @property
    def available(self) -> int:
        """How many events are there."""
        return len(self._queue)

    def ready(self) -> bool:
        """Whether ``get`` would not wait."""
        return bool(self._queue) or self._waiting.closed

    def fd(self) -> int:
        """A descriptor that is readable while events are there: for select, poll and event loops, not to be read."""
        return self._waiting.fileno()

    def __iter__(self) -> Iterator[Any]:
        """Events one after the other, for ever."""
        while True:
            yield self.get(None)

    def end(self) -> None:
        """The endpoint is closed: who waits is released, what is there can still be taken."""
        with self._lock:
            self._waiting.close()
        self._waiting.join(JOIN_S)

    def close(self) -> None:
        """Hear no more. Safe to call twice."""
        with self._lock:
            self._endpoint.forget_statuses(self)
            self._waiting.close()
            self._endpoint.node.turns.tell()
        self._waiting.join(JOIN_S)

    def call_back(self, function: Callable[[Any], object]) -> None:
        """For ``Endpoint.statuses``: a thread calls ``function`` with each event."""
        self._waiting.call_back(self.get, function, "chappe-statuses")

    def report(self, event: object) -> None:
        """Something happened; the lock is held."""
        if len(self._queue) >= EVENTS_MAX:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._waiting.changed()
