"""Watching a data store: what became of its keys, in the order in which it happened."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from chappe.api.faces import Closeable
from chappe.api.mesh.arguments import MISSING
from chappe.api.mesh.waiting import Waiting, deadline_after, time_left
from chappe.data.convert import to_python, to_value
from chappe.data.values import Value
from chappe.defaults import DROPS_REPORT_S
from chappe.errors import BufferFull, UsageError
from chappe.kv.actions import Notify
from chappe.kv.engine import Change, Entry, index_of
from chappe.kv.entity import Entity
from chappe.kv.sizes import size_of
from chappe.mesh.events import MessagesDropped
from chappe.mesh.policy import Policy
from chappe.system import time
from chappe.system.forking import own

if TYPE_CHECKING:
    from chappe.api.kv.attached import AttachedStore

JOIN_S: Final = 1.0  # closing waits this long for a callback that is running
NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DataStoreEvent:
    """What became of one key.

    ``value`` is what it has now and ``before`` what it had, None where there is nothing. ``expiry_s`` is what was asked
    for with the write, ``publisher`` who wrote; None if unknown. ``version`` is the store's own number of the change;
    every master and clone counts for itself.

    ``typed`` has key and values with all their types, and nanoseconds.
    """

    kind: Literal["insert", "update", "erase", "expire"]
    key: Any
    value: Any
    before: Any
    expiry_s: float | None
    publisher: Entity | None
    version: int
    typed: Notify | Change = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class DataStoreEntry:
    """One key and its value. ``expires_ns`` is nanoseconds since 1970, known at the master only; see
    ``DataStoreEvent``.
    """

    key: Any
    value: Any
    expires_ns: int | None
    version: int
    typed: Entry = field(repr=False, compare=False)


def event_of(notify: Notify) -> DataStoreEvent:
    """What a core told, for users."""
    return DataStoreEvent(
        notify.kind,
        to_python(notify.key),
        to_python(notify.value),
        to_python(notify.before),
        None if notify.expiry_ns is None else notify.expiry_ns / NS,
        notify.publisher,
        notify.version,
        notify,
    )


def event_of_change(change: Change) -> DataStoreEvent:
    """A change that an engine remembers, for users: it does not say who wrote."""
    value = None if change.entry is None else to_python(change.entry.value)
    before = None if change.before is None else to_python(change.before.value)
    return DataStoreEvent(change.kind, to_python(change.key), value, before, None, None, change.version, change)


def wanted_keys(key: object, prefix: str | None) -> Callable[[Value], bool]:
    """Tells which keys a watch is of: a ``key``, those that are strings with a ``prefix``, or all."""
    if key is not MISSING:
        if prefix is not None:
            raise UsageError("watch a key or a prefix, not both")
        index = index_of(to_value(key))
        return lambda found: index_of(found) == index
    if prefix is not None:
        return lambda found: isinstance(found, str) and type(found) is str and found.startswith(prefix)
    return lambda found: True


class DataStoreWatch(Closeable):
    """Changes of the keys that are watched, in the order in which this master or clone made them.

    Made by ``DataStore.watch``. Use from several threads is safe; each event goes to one of them.
    """

    def __init__(
        self, store: AttachedStore, wanted: Callable[[Value], bool], policy: Policy, messages_max: int, bytes_max: int
    ) -> None:
        own(self)
        self.dropped = 0  # by the policy, because whoever watches was too slow
        self._store = store
        self._node = store.endpoint.node
        self._lock = self._node.lock
        self._wanted = wanted
        self._policy = policy
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._queue: deque[tuple[Notify, int]] = deque()
        self._bytes = 0
        self._overflowed = False
        self._stopping = False
        self._reported = 0
        self._reported_at = -math.inf
        self._waiting = Waiting(self._node.turns, lambda: bool(self._queue), self.ready)

    # -- reading --------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> DataStoreEvent | None:
        """The next event, or None after ``timeout`` seconds (None: wait for ever; Ctrl-C ends the wait).

        Raises:
            BufferFull: The policy is ``disconnect``, and this watch was too slow: it has ended.
            Closed: The watch, its store or its endpoint was closed.
        """
        found = self.get_many(1, timeout)
        return found[0] if found else None

    def get_many(self, n: int, timeout: float | None = None) -> list[DataStoreEvent]:
        """Up to ``n`` events, as many as are there; waits for the first one as ``get`` does. Raises as ``get``."""
        deadline = deadline_after(timeout)
        while True:
            with self._lock:
                found = self._take(n)
                if not found:
                    self._waiting.check()
                    if self._overflowed:
                        raise BufferFull(
                            f"this watch was too slow and {self.dropped} events were lost: watch again, with a larger "
                            "queue or another policy"
                        )
            if found:
                return [event_of(each) for each in found]
            if not self._waiting.wait(time_left(deadline)):
                with self._lock:
                    if not self._queue:
                        self._waiting.check()
                        return []

    def poll(self) -> list[DataStoreEvent]:
        """All events that are there; never waits. Raises as ``get``."""
        return self.get_many(self.available or 1, 0.0)

    @property
    def available(self) -> int:
        """How many events are there."""
        return len(self._queue)

    def fd(self) -> int:
        """A descriptor that is readable while events are there: for select, poll and event loops, not to be read."""
        return self._waiting.fileno()

    def ready(self) -> bool:
        """Whether ``get`` would not wait."""
        return bool(self._queue) or self._overflowed or self._waiting.closed

    def __iter__(self) -> Iterator[DataStoreEvent]:
        """Events one after the other, for ever."""
        while True:
            found = self.get(None)
            assert found is not None
            yield found

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Watch no more; what is still there is dropped. Safe to call twice."""
        with self._lock:
            if self._waiting.closed:
                return
            self._store.forget_watch(self)
            self._go_on()
            self._queue.clear()
            self._waiting.close()
            self._node.turns.tell()
        self._waiting.join(JOIN_S)

    # -- for the store, with the lock held --------------------------------------------------------------

    def call_back(self, function: Callable[[DataStoreEvent], object]) -> None:
        """For ``DataStore.watch``: a thread calls ``function`` with each event."""
        self._waiting.call_back(self.get, function, "chappe-watch")

    def notify(self, action: Notify) -> None:
        """A key has changed."""
        if self._overflowed or not self._wanted(action.key):
            return
        size = size_of(action.key) + size_of(action.value)
        if self._full() and self._policy is not Policy.BLOCK:
            if self._policy is Policy.DROP_OLDEST:
                while self._full():
                    self._bytes -= self._queue.popleft()[1]
                    self.dropped += 1
            else:
                self.dropped += 1
                self._overflowed = self._policy is Policy.DISCONNECT
                self._report_dropped()
                self._node.turns.news = self._node.turns.news or self._overflowed
                return
            self._report_dropped()
        self._queue.append((action, size))
        self._bytes += size
        if self._policy is Policy.BLOCK and not self._stopping and self._full():
            self._stopping = True
            self._store.stop(self, True)
        self._waiting.changed()

    def _full(self) -> bool:
        return len(self._queue) >= self._messages_max or self._bytes >= self._bytes_max

    def _take(self, n: int) -> list[Notify]:
        found: list[Notify] = []
        while self._queue and len(found) < n:
            action, size = self._queue.popleft()
            self._bytes -= size
            found.append(action)
        if self._stopping and 2 * len(self._queue) <= self._messages_max and 2 * self._bytes <= self._bytes_max:
            self._go_on()
        if found:
            self._waiting.changed()
            self._node.turns.tell()
        return found

    def _go_on(self) -> None:
        if self._stopping:
            self._stopping = False
            self._store.stop(self, False)

    def _report_dropped(self) -> None:
        now = time.monotonic()
        if now - self._reported_at >= DROPS_REPORT_S:
            self._reported_at = now
            dropped, self._reported = self.dropped - self._reported, self.dropped
            where = f"for a watch of store {self._store.name!r}: it was too slow"
            self._store.endpoint.report(MessagesDropped(where, dropped))
