"""A master or clone of a data store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chappe.api.faces import Closeable, Seconds, Steps, T, run
from chappe.api.kv.attached import WAIT_S, AttachedStore, Items
from chappe.api.kv.past import DataStoreRevision
from chappe.api.kv.proxy import DataStoreProxy
from chappe.api.kv.reading import ReadableStore
from chappe.api.kv.watch import DataStoreEvent, DataStoreWatch, wanted_keys
from chappe.api.mesh.arguments import MISSING, OnFull, as_policy, check_bounds
from chappe.data.convert import to_value
from chappe.data.order import COUNT, INTEGER, NONE, REAL, SET, STRING, TABLE, TIMESPAN, TIMESTAMP, VECTOR, sort_key
from chappe.defaults import SUBSCRIBER_BYTES_MAX, SUBSCRIBER_MESSAGES_MAX
from chappe.errors import BufferFull, UsageError
from chappe.system import time

_NUMBERS: Final = frozenset({COUNT, INTEGER, REAL})


class DataStore(Closeable, ReadableStore):
    """Keys and values that several endpoints share: one has the master, any number have clones with all data.

    Made by ``Endpoint.attach_master`` and ``attach_clone``. Reading never waits and shows the data in memory here.
    Writing goes through the master, in one order that every clone sees. Use from several threads is safe. Close it, or
    use it in a ``with``; closing the endpoint closes it too.

    ``chappe.data.convert`` lists the types of keys and values, and the types in which they come back. Keys are told
    apart by type: ``1``, ``Count(1)``, ``1.0`` and ``True`` are four keys.

    All writes take ``wait`` and ``timeout``. With ``wait`` they return when the write is done: durable, if the master
    is, and shown by this clone. Without, they return at once, and ``Endpoint.statuses`` reports a failure as
    ``WriteFailed``; an immediate refusal of the master is raised. Both wait, at most ``timeout`` seconds, while there
    is no room for another write.

    With ``expiry_s`` the key is removed after this many seconds; a later write without it makes it stay.

    Raises (every write):
        NotPermitted: The permissions do not let this identity write to the store.
        NoMaster: No master was found in time; the write is not done.
        WriteUnknown: The master was lost before it confirmed the write, and cannot be asked any more.
        BackendFailure: The master's disk refused it; the write is not done.
        RecordTooLarge: Key and value have more than 16 MiB.
        UnsupportedValue: A key or value cannot be converted.
        BufferFull: There was no room for it in time; the write is not done.
        TimedOut: It is not confirmed yet; it may still be done.
        Closed: The store was closed.
    """

    def __init__(self, attached: AttachedStore) -> None:
        super().__init__(attached)
        self.endpoint = attached.endpoint
        self._node = attached.endpoint.node
        self._turns = attached.endpoint.node.turns
        self._immediate = attached.immediate

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self.attached.closed

    # -- writing --------------------------------------------------------------------------------------

    def put(
        self, key: object, value: object, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> None:
        """Set a value. The class has the other arguments, and the errors of all writes."""
        if expiry_s is None and (self._immediate or not wait):
            try:
                with self._lock:
                    now = time.monotonic()
                    effects = self.core.put(key, value, now=self.attached.begin_write(now))
                    self.attached.end_write(effects, now)
                    self._turns.tell()
                self._node.keep_up()
                return
            except BufferFull:
                pass  # wait for room as every other write does
        self._write(self.core.put, (key, value), expiry_s, wait, timeout)

    def put_unique(self, key: object, value: object, *, expiry_s: Seconds = None, timeout: Seconds = WAIT_S) -> bool:
        """Set a value if there is none; return True if it did. Of concurrent attempts one succeeds."""
        return self._write(self.core.put_unique, (key, value), expiry_s, True, timeout)  # type: ignore[no-any-return]

    def put_if(
        self,
        key: object,
        value: object,
        revision: int | None,
        *,
        expiry_s: Seconds = None,
        timeout: Seconds = WAIT_S,
    ) -> None:
        """Set a value if the key has not changed since ``revision``, as ``entry`` reports it.

        None: if there is no value. Of concurrent attempts one succeeds. After a refusal read the entry again.

        Raises:
            WrongRevision: It was changed or removed, or is there; nothing is done. Its ``revision`` is the present one.
            InvalidOperation: The master is not one of chappe, and knows no revisions.
        """
        args = (key, value, _checked(revision) if revision is not None else None)
        return self._write(self.core.put_if, args, expiry_s, True, timeout)  # type: ignore[no-any-return]

    def erase_if(self, key: object, revision: int, *, timeout: Seconds = WAIT_S) -> None:
        """Remove a key if it has not changed since a revision. Raises as ``put_if``."""
        args = (key, _checked(revision))
        return self._write(self.core.erase_if, args, None, True, timeout)  # type: ignore[no-any-return]

    def put_many(self, items: Items, *, expiry_s: Seconds = None, timeout: Seconds = None) -> None:
        """Set many values, much faster than one by one; return when all are done, or raise the first error then."""
        return self._run(self.attached.putting(items, expiry_s, timeout))

    def increment(
        self, key: object, by: object = 1, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> Any:
        """Add to a number, timespan or timestamp of the same type; a missing one starts at zero (1970).

        Returns the result, if this is the master: concurrent increments each return another number. On
        a clone None, as its master alone knows; and with ``wait=False`` where a write waits for the disk.

        Raises:
            TypeClash: The value under the key is of another type.
            InvalidOperation: The result is out of the bounds of its type.
        """
        return self._write(self.core.add, (key, by, _number_tag(by)), expiry_s, wait, timeout, look=True)

    def decrement(
        self, key: object, by: object = 1, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> Any:
        """Subtract from a number, timespan or timestamp. Returns and raises as ``increment``; raises NoSuchKey too."""
        return self._write(self.core.subtract, (key, by), expiry_s, wait, timeout, look=True)

    def append(
        self, key: object, text: str | bytes, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> None:
        """Append to a string; a missing one is empty. Raises TypeClash."""
        return self._do(self.core.add, (key, text, STRING), expiry_s, wait, timeout)

    def insert_into(
        self,
        key: object,
        index: object,
        value: object = MISSING,
        *,
        expiry_s: Seconds = None,
        wait: bool = True,
        timeout: Seconds = WAIT_S,
    ) -> None:
        """Put a member into a set, or with a ``value`` a key into a table; a missing one is empty. Raises TypeClash."""
        args = (key, index, SET) if value is MISSING else (key, (index, value), TABLE)
        return self._do(self.core.add, args, expiry_s, wait, timeout)

    def remove_from(
        self, key: object, index: object, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> None:
        """Remove a member from a set, or a key from a table, if it is there. Raises TypeClash and NoSuchKey."""
        return self._do(self.core.subtract, (key, index), expiry_s, wait, timeout)

    def push(
        self, key: object, value: object, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S
    ) -> None:
        """Append an element to a vector; a missing one is empty. Raises TypeClash."""
        return self._do(self.core.add, (key, value, VECTOR), expiry_s, wait, timeout)

    def pop(self, key: object, *, expiry_s: Seconds = None, wait: bool = True, timeout: Seconds = WAIT_S) -> None:
        """Remove the last element of a vector, if it has one. Raises TypeClash and NoSuchKey."""
        # Of a vector the last goes, whatever is named.
        return self._do(self.core.subtract, (key, key), expiry_s, wait, timeout)

    def erase(self, key: object, *, wait: bool = True, timeout: Seconds = WAIT_S) -> None:
        """Remove a key, if it is there."""
        return self._do(self.core.erase, (key,), None, wait, timeout)

    def clear(self, *, wait: bool = True, timeout: Seconds = WAIT_S) -> None:
        """Remove all keys and values."""
        return self._do(self.core.clear, (), None, wait, timeout)

    def __setitem__(self, key: object, value: object) -> None:
        self.put(key, value)

    def __delitem__(self, key: object) -> None:
        if not self.exists(key):
            raise KeyError(key)
        self.erase(key)

    # -- waiting and watching -------------------------------------------------------------------------

    def history(self, key: object, *, timeout: Seconds = WAIT_S) -> list[DataStoreRevision]:
        """Return the latest changes of a key, the oldest first: as many as ``attach_master`` was told to keep.

        A clone asks its master. Only durable changes are listed. A key that was erased or has expired has a history,
        too, whose last entry says so; of a key without one the list is empty.

        Raises:
            InvalidOperation: The master keeps no history, or is not one of chappe.
            TimedOut: A clone has no master, or had no answer from it in time.
        """
        return self._run(self.attached.asking_history(key, timeout))

    def await_idle(self, timeout: Seconds = WAIT_S, *, callback: Callable[[bool], object] | None = None) -> bool:
        """Wait until everything is everywhere; return False if it is not after ``timeout`` seconds.

        On a master: every clone in reach has all changes, and all is durable. On a clone: it has a master and
        everything that the master had at the call, and its own writes are confirmed and visible. With ``callback`` it
        returns True at once, and the callback gets the answer, in a thread of its own.
        """
        asked = self.attached.begin_await_idle(timeout)
        if callback is None:
            asked.wait(timeout)
            return self.attached.idle_outcome(asked)
        self.endpoint.call_when_done(asked, lambda outcome: callback(outcome is None), "chappe-await-idle")
        return True

    def watch(
        self,
        *,
        key: object = MISSING,
        prefix: str | None = None,
        callback: Callable[[DataStoreEvent], object] | None = None,
        on_full: OnFull = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
        bytes_max: int = SUBSCRIBER_BYTES_MAX,
    ) -> DataStoreWatch:
        """Watch changes of a key, of all keys that are strings with a ``prefix``, or of all; from now on.

        A clone that finds its master again reports every difference, without the writers.

        Args:
            key: The only key; or
            prefix: how the keys begin.
            callback: Called with each event, by a thread of this watch.
            on_full: The policy when more waits than the bounds: ``drop_oldest``, ``drop_newest``, ``block`` (this
                store takes no more writes, and its endpoint reads nothing from its peers, until there is room), or
                ``disconnect`` (the watch ends). Dropped events are counted and reported.
            messages_max: How many events may wait.
            bytes_max: How many bytes, of keys and new values.
        """
        check_bounds(messages_max, bytes_max)
        made = DataStoreWatch(self.attached, wanted_keys(key, prefix), as_policy(on_full), messages_max, bytes_max)
        self.attached.add_watch(made)
        if callback is not None:
            made.call_back(callback)
        return made

    def proxy(self) -> DataStoreProxy:
        """Return a proxy: ask now, take the answers later."""
        made = DataStoreProxy(self)
        self.attached.add_proxy(made)
        return made

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Detach from the endpoint. Safe to call twice.

        It waits for commits under way, and for writes of a clone with a master, at most about four seconds. Waits for
        other writes end with WriteUnknown, watches with Closed.
        """
        self.attached.close()

    def __repr__(self) -> str:
        return f"<DataStore {self.name!r}, {self.role}>"

    # -- inside ---------------------------------------------------------------------------------------

    def _run(self, steps: Steps[T]) -> T:
        return run(steps, self._turns.wait)


def _checked(revision: int) -> int:
    if type(revision) is not int or not 1 <= revision < 2**64:
        raise UsageError(f"a revision is a number from 1 on, as an entry has it, not {revision!r}")
    return revision


def _number_tag(by: object) -> int:
    tag: int = sort_key(to_value(by))[0]
    if tag == TIMESPAN:
        return TIMESTAMP
    return tag if tag in _NUMBERS else NONE  # of that nothing can start
