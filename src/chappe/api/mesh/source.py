"""Queues from which users take messages, statuses and changes of a data store."""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from chappe.api.faces import Closeable, Seconds
from chappe.api.mesh.hosting import EndpointHost
from chappe.api.mesh.waiting import QueueWaiting, deadline_after, time_left
from chappe.defaults import DROPS_REPORT_S
from chappe.mesh.events import MessagesDropped
from chappe.runtime.mesh_ports import MeshPorts
from chappe.runtime.turns import Turns
from chappe.system import time
from chappe.system.forking import own

JOIN_S: Final = 1.0  # closing waits this long for a callback that is running
Item = TypeVar("Item")


class Driven(Protocol):
    lock: threading.RLock
    turns: Turns


class Queued(Closeable, Generic[Item]):
    """A queue from which users take items in order. Use from several threads is safe."""

    def __init__(self, node: Driven) -> None:
        own(self)
        self._node = node
        self._lock = node.lock
        self._queue: deque[Any] = deque()  # of sources without an inbox
        self._waiting = QueueWaiting(node.turns, self._filled, self.ready)

    def get_many(self, n: int, timeout: Seconds = None) -> list[Item]:
        """Return up to ``n`` items that are there; wait for the first one, at most ``timeout`` s (None: for ever)."""
        found = self._taken(n, timeout)
        return self._shown(found) if found else []

    def _taken(self, n: int, timeout: Seconds) -> list[Any]:
        """Take items as ``get_many`` does, before they are converted for users."""
        deadline = deadline_after(timeout)
        while True:
            with self._lock:
                found = self._take(n)
                if found:
                    self._waiting.changed()
                    self._node.turns.tell()
                else:
                    self._check()
            if found:
                return found
            if not self._waiting.wait(time_left(deadline)):
                with self._lock:
                    if not self._filled():
                        self._check()
                        return []

    @property
    def available(self) -> int:
        """The number of items that are there."""
        return len(self._queue)

    def ready(self) -> bool:
        """True if taking an item would not wait."""
        return self._filled() or self._waiting.closed

    def fd(self) -> int:
        """Return a descriptor for select, poll and event loops, readable while items are there; do not read it."""
        return self._waiting.fileno()

    def close(self) -> None:
        """Stop receiving items. Safe to call twice."""
        with self._lock:
            if self._waiting.closed:
                return
            self._leave()
            self._waiting.close()
            self._node.turns.tell()
        self._waiting.join(JOIN_S)

    # -- of each kind, with the lock held ---------------------------------------------------------------

    def _filled(self) -> bool:
        return self.available > 0

    def _take(self, n: int) -> list[Any]:
        return [self._queue.popleft() for _ in range(min(n, len(self._queue)))]

    def _shown(self, found: list[Any]) -> list[Item]:
        """Convert items for users, without the lock."""
        return found

    def _check(self) -> None:
        """Raise if the queue is empty and no item will come."""
        self._waiting.check()

    @abstractmethod
    def _leave(self) -> None: ...


class Source(Queued[Item]):
    """A queue that is filled until it is closed; items left then are dropped."""

    called_by = "chappe-callback"  # the thread that calls back
    dropped: int

    def get(self, timeout: Seconds = None) -> Item | None:
        """Return the next item, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            BufferFull: The policy is ``disconnect``, and this was too slow: it has ended.
            TooSlow: The message was older than ``max_age_s``, and this has ended.
            InvalidData: A program set a value of another type in the map; the next call goes on with what comes after.
            Closed: This, or its endpoint, store or map, was closed.
        """
        found = self.get_many(1, timeout)
        return found[0] if found else None

    def poll(self) -> list[Item]:
        """Return all items that are there; never waits. Raises as ``get``."""
        return self.get_many(self.available or 1, 0.0)

    def __iter__(self) -> Iterator[Item]:
        """Iterate over items for ever; items that a loop did not get to come with the next call."""
        while True:
            found = self.get(None)
            assert found is not None
            yield found

    def call_back(self, function: Callable[[Item], object]) -> None:
        """Call ``function`` with each item in a thread; for the maker of this."""
        self._waiting.call_back(self.get, function, self.called_by)


class EndpointSource(Source[Item]):
    """A source that an endpoint, or a store of it, fills."""

    _node: MeshPorts

    def __init__(self, endpoint: EndpointHost) -> None:
        super().__init__(endpoint.node)
        self._endpoint = endpoint
        self._reported = 0  # of what was dropped ...
        self._reported_at = -math.inf  # ... at most once in a while, with what comes next

    def _report_dropped(self, dropped: int, whose: str) -> None:
        """Report the total of dropped items, at most once in a while."""
        now = time.monotonic()
        if now - self._reported_at >= DROPS_REPORT_S:
            self._reported_at = now
            news, self._reported = dropped - self._reported, dropped
            self._endpoint.report(MessagesDropped(f"for {whose}: it was too slow", news))
