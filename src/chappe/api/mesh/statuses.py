"""What happened to the peerings of an endpoint, in the order in which it happened."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from chappe.api.mesh.hosting import Host
from chappe.api.mesh.source import JOIN_S, Source

EVENTS_MAX: Final = 1_000  # that wait for one subscriber; then the oldest are dropped and counted


class StatusSubscriber(Source[Any]):
    """Statuses and errors of an endpoint: the classes of ``chappe.mesh.events``, whose text is a sentence for people.

    Made by ``Endpoint.statuses``. Use from several threads is safe; each event goes to one of them. When the endpoint
    is closed, what is there can still be taken.
    """

    called_by = "chappe-statuses"

    def __init__(self, endpoint: Host) -> None:
        self.dropped = 0
        self._queue: deque[Any] = deque()
        super().__init__(endpoint)

    @property
    def available(self) -> int:
        """How many events are there."""
        return len(self._queue)

    def end(self) -> None:
        """The endpoint is closed: who waits is released."""
        with self._lock:
            self._waiting.close()
        self._waiting.join(JOIN_S)

    def report(self, event: object) -> None:
        """Something happened; the lock is held."""
        if len(self._queue) >= EVENTS_MAX:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self._waiting.changed()

    def _take(self, n: int) -> list[Any]:
        return [self._queue.popleft() for _ in range(min(n, len(self._queue)))]

    def _leave(self) -> None:
        self._endpoint.forget_statuses(self)
