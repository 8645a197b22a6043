"""Waits for single records to be stored."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count

from chappe.defaults import DELIVERIES_MAX
from chappe.errors import BufferFull, ChappeError
from chappe.log.producer import LogProducer
from chappe.system.forking import left_behind, own


class Deliveries:
    """Futures of records that are not stored yet, by topic; all with the producer's lock held.

    ``later`` calls a function soon in the producer's thread, without the lock: callbacks of users are slow.
    """

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        own(self)
        self._later = later
        self._waiting: dict[str, list[tuple[int, int, Future[int]]]] = {}  # heaps by offset
        self._numbers = count()  # what was asked first is answered first, and futures are not compared
        self._size = 0

    def forked(self) -> None:
        """Fail all futures of a child's copy, which never learns of stored records."""
        for heap in self._waiting.values():
            for _, _, future in heap:
                # As new: a thread of the parent may have held its lock just then, and callbacks are the parent's.
                Future.__init__(future)
                future.set_exception(left_behind("producer"))

    def wait(self, core: LogProducer, offset: int) -> Future[int]:
        """Return a future of a record. Raises BufferFull: ``DELIVERIES_MAX`` wait already."""
        made: Future[int] = Future()
        if offset < core.stored:
            made.set_result(offset)
            return made
        if self._size >= DELIVERIES_MAX:
            raise BufferFull(f"{DELIVERIES_MAX} records are waited for already: wait for some of them first")
        heap = self._waiting.setdefault(core.topic, [])
        heapq.heappush(heap, (offset, next(self._numbers), made))
        self._size += 1
        core.awaited = heap[0][0]
        return made

    def progress(self, core: LogProducer) -> None:
        heap = self._waiting.get(core.topic, [])
        done: list[tuple[int, Future[int]]] = []
        while heap and heap[0][0] < core.stored:
            offset, _, future = heapq.heappop(heap)
            done.append((offset, future))
        self._size -= len(done)
        core.awaited = heap[0][0] if heap else math.inf
        if done:
            self._later(partial(_resolve, done))

    def fail(self, error: Callable[[str, int], ChappeError]) -> Callable[[], None]:
        """Give all of them up; return a function that tells so, to be called without the lock."""
        given_up = [(error(topic, offset), each) for topic, heap in self._waiting.items() for offset, _, each in heap]
        self._waiting.clear()
        self._size = 0
        return partial(_fail, given_up)


def _resolve(done: list[tuple[int, Future[int]]]) -> None:
    for offset, future in done:
        if future.set_running_or_notify_cancel():
            future.set_result(offset)


def _fail(given_up: list[tuple[ChappeError, Future[int]]]) -> None:
    for error, future in given_up:
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
