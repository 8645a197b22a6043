"""Watches of a data store: changes of its keys, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from chappe.api.mesh.arguments import MISSING
from chappe.api.mesh.source import EndpointSource
from chappe.data.convert import to_python, to_value
from chappe.data.given import as_text
from chappe.data.values import Value
from chappe.errors import BufferFull, UsageError
from chappe.kv.engine import Change, Entry, index_of
from chappe.kv.entity import Entity
from chappe.kv.operations import size_of
from chappe.kv.role import KeyChange
from chappe.mesh.forwarding.boxes import Policy

if TYPE_CHECKING:
    from chappe.api.kv.attached import AttachedStore

NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DataStoreEvent:
    """A change of one key.

    ``value`` is its value now and ``before`` the one before, None where there is none. ``expiry_s`` is the writer's
    argument, ``publisher`` the writer; None if unknown. ``version`` is the store's own number of the change; every
    master and clone counts for itself.

    ``typed`` has key and values with all their types, and nanoseconds.
    """

    kind: Literal["insert", "update", "erase", "expire"]
    key: Any
    value: Any
    before: Any
    expiry_s: float | None
    publisher: Entity | None
    version: int
    typed: KeyChange | Change = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class DataStoreEntry:
    """One key and its value. ``expires_ns`` is nanoseconds since 1970; None if it never expires.

    A clone knows it if its master is one of chappe. ``revision`` is the master's number of the write, the same at all
    clones and above those of all writes before; None if it was not asked for. ``version`` and ``typed`` are as those of
    ``DataStoreEvent``.
    """

    key: Any
    value: Any
    expires_ns: int | None
    version: int
    typed: Entry = field(repr=False, compare=False)
    revision: int | None = None


def event_of(notify: KeyChange) -> DataStoreEvent:
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
    value = None if change.entry is None else to_python(change.entry.value)
    before = None if change.before is None else to_python(change.before.value)
    return DataStoreEvent(change.kind, to_python(change.key), value, before, None, None, change.version, change)


def wanted_keys(key: object, prefix: str | None) -> Callable[[Value], bool]:
    """Return a predicate for the keys of a watch: a ``key``, those that are strings with a ``prefix``, or all."""
    if key is not MISSING:
        if prefix is not None:
            raise UsageError("watch a key or a prefix, not both")
        index = index_of(to_value(key))
        return lambda found: index_of(found) == index
    if prefix is not None:
        as_text(prefix, "a prefix of keys")
        return lambda found: isinstance(found, str) and type(found) is str and found.startswith(prefix)
    return lambda found: True


class DataStoreWatch(EndpointSource[DataStoreEvent]):
    """Changes of the watched keys, in the order in which this master or clone made them.

    Made by ``DataStore.watch``. Use from several threads is safe; each event goes to one of them.
    """

    called_by = "chappe-watch"

    def __init__(
        self, store: AttachedStore, wanted: Callable[[Value], bool], policy: Policy, messages_max: int, bytes_max: int
    ) -> None:
        self.dropped = 0  # by the policy, because whoever watches was too slow
        self._store = store
        self._wanted = wanted
        self._policy = policy
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._overflowed = False
        self._stopping = False
        super().__init__(store.endpoint)

    def ready(self) -> bool:
        """True if ``get`` would not wait."""
        return bool(self._queue) or self._overflowed or self._waiting.closed

    # -- for the store, with the lock held --------------------------------------------------------------

    def notify(self, change: KeyChange) -> None:
        """Take a change; the lock is held."""
        if self._overflowed or not self._wanted(change.key):
            return
        size = size_of(change.key) + size_of(change.value)
        if self._full() and self._policy is not Policy.BLOCK:
            whose = f"a watch of store {self._store.name!r}"
            if self._policy is Policy.DROP_OLDEST:
                while self._full():
                    self._bytes -= self._queue.popleft()[1]
                    self.dropped += 1
            else:
                self.dropped += 1
                self._overflowed = self._policy is Policy.DISCONNECT
                self._report_dropped(self.dropped, whose)
                self._node.turns.news = self._node.turns.news or self._overflowed
                return
            self._report_dropped(self.dropped, whose)
        self._queue.append((change, size))
        self._bytes += size
        if self._policy is Policy.BLOCK and not self._stopping and self._full():
            self._stopping = True
            self._store.stop(self, True)
        self._waiting.changed()

    def _full(self) -> bool:
        return len(self._queue) >= self._messages_max or self._bytes >= self._bytes_max

    def _take(self, n: int) -> list[KeyChange]:
        found: list[KeyChange] = []
        while self._queue and len(found) < n:
            change, size = self._queue.popleft()
            self._bytes -= size
            found.append(change)
        if self._stopping and 2 * len(self._queue) <= self._messages_max and 2 * self._bytes <= self._bytes_max:
            self._go_on()
        return found

    def _shown(self, found: list[KeyChange]) -> list[DataStoreEvent]:
        return [event_of(each) for each in found]

    def _check(self) -> None:
        self._waiting.check()
        if self._overflowed:
            raise BufferFull(
                f"this watch was too slow and {self.dropped} events were lost: watch again, with a larger queue or "
                "another policy"
            )

    def _leave(self) -> None:
        self._store.forget_watch(self)
        self._go_on()
        self._queue.clear()

    def _go_on(self) -> None:
        if self._stopping:
            self._stopping = False
            self._store.stop(self, False)
