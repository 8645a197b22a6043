"""``Store`` of the original bindings, on a data store of chappe.

Departures, each where the original gives up: a clone looks for a master for as long as it lives, comes back to one that
was restarted, and repeats what it wrote meanwhile; ``exists`` that cannot be answered is None. What cannot be done is
logged, as there: writes have no result. Waiting lets other threads run.

"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Self

from chappe.api.kv.data_store import DataStore
from chappe.compat.broker.data import Data, to_py
from chappe.compat.broker.messaging import Reset
from chappe.data.scalars import Count, Timespan
from chappe.data.values import Value
from chappe.errors import BufferFull, Closed, StoreError, TimedOut
from chappe.kv.engine import Engine

logger = logging.getLogger(__name__)

GET_S: Final = 5.0  # a clone that has nothing yet makes its readers wait this long, as the original
UNIQUE_S: Final = 10.0  # put_unique waits this long for its answer, as the original
IDLE_S: Final = 15.0  # as the original
TICK_S: Final = 0.1  # as the original's stores, which look so often whether they are idle, and what has expired
MOMENT_S: Final = 1e-9
_NUMBERS: Final = (Count, int, float, Timespan)  # what a missing value may begin with
_NONE: Final = 0  # the tag of no type: nothing begins with that


class Store:
    """A master or clone. Ends with its context or ``reset``; what it stands for lives as long as its endpoint."""

    def __init__(self, store: DataStore) -> None:
        self._store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def reset(self) -> None:
        """Let go of it. Attaching it again finds it as it is then."""
        self._store = Reset("attach the store again")  # type: ignore[assignment]

    def name(self) -> str:
        return self._store.name

    # -- queries: None for what is not there or cannot be answered -------------------------------------

    def exists(self, key: object) -> bool | None:
        """Whether there is a value under the key."""
        value = Data.from_py(key)._value
        found: bool | None = self._read(lambda engine: engine.exists(value))
        return found

    def get(self, key: object) -> Any:
        value = Data.from_py(key)._value
        return to_py(self._read(lambda engine: engine.get(value)))

    def get_index_from_value(self, key: object, index: object) -> Any:
        """What lies at ``index`` of a vector or table, whether a set has it, and any other value itself."""
        value, at = Data.from_py(key)._value, Data.from_py(index)._value
        return to_py(self._read(lambda engine: engine.get_index(value, at)))

    def keys(self) -> set[Any] | None:
        """All keys; raises TypeError if one is unhashable in Python."""
        found: list[Value] | None = self._read(lambda engine: engine.keys())
        return None if found is None else {to_py(each) for each in found}

    def _read(self, ask: Callable[[Engine], Any]) -> Any:
        """What is found, None if there is nothing or it cannot be read; a clone gets time to find its master first."""
        store = self._store
        if not store.ready and not self.await_idle(GET_S):
            logger.info("store %r cannot be read: it has no master, or is closed", store.name)
            return None
        with store.endpoint.node.lock:
            try:
                return ask(store.attached.engine())
            except (StoreError, Closed):  # no such key, or an index that does not fit
                return None

    # -- writes: on their way when these return, and without a result -----------------------------------

    def put(self, key: object, value: object, expiry: float | None = None) -> None:
        """Set a value, for ``expiry`` seconds if that is given."""
        self._write(self._store.put, (key, value), expiry)

    def put_unique(self, key: object, value: object, expiry: float | None = None) -> bool | None:
        """Set a value if there is none: whether it was set; None if that is not known after 10 s."""
        wanted, new = Data.from_py(key)._value, Data.from_py(value)._value
        try:
            return self._store.put_unique(wanted, new, expiry_s=_seconds(expiry), timeout=UNIQUE_S)
        except (StoreError, Closed, TimedOut, BufferFull) as error:
            logger.warning("put_unique in store %r: %s", self._store.name, error)
            return None

    def erase(self, data: object) -> None:
        self._write(self._store.erase, (data,))

    def clear(self) -> None:
        """Remove all keys."""
        self._write(self._store.clear, ())

    def increment(self, key: object, amount: object, expiry: float | None = None) -> None:
        """Add to a number, timespan or timestamp; anything else only to a value that is there."""
        store = self._store
        if type(Data.from_py(amount)._value) in _NUMBERS:
            self._write(store.increment, (key, amount), expiry)
            return

        def add(found: Value, value: Value, *, expiry_s: float | None = None, **_: object) -> None:
            store.attached.try_write(store.core.add, (found, value, _NONE), expiry_s, False)

        self._write(add, (key, amount), expiry)

    def decrement(self, key: object, amount: object, expiry: float | None = None) -> None:
        """Take away from a number, timespan or timestamp."""
        self._write(self._store.decrement, (key, amount), expiry)

    def append(self, key: object, s: object, expiry: float | None = None) -> None:
        """Add to the end of a string."""
        self._write(self._store.append, (key, s), expiry)

    def insert_into(self, key: object, index: object, value: object = None, expiry: float | None = None) -> None:
        """Add a member to a set or, with a value that Python takes for true, an entry to a table."""
        self._write(self._store.insert_into, (key, index, value) if value else (key, index), expiry)

    def remove_from(self, key: object, index: object, expiry: float | None = None) -> None:
        """Remove a member of a set or an entry of a table."""
        self._write(self._store.remove_from, (key, index), expiry)

    def push(self, key: object, value: object, expiry: float | None = None) -> None:
        """Add to the end of a vector."""
        self._write(self._store.push, (key, value), expiry)

    def pop(self, key: object, expiry: float | None = None) -> None:
        """Remove the end of a vector."""
        self._write(self._store.pop, (key,), expiry)

    def _write(self, do: Callable[..., object], things: tuple[object, ...], expiry: float | None = None) -> None:
        values = [Data.from_py(each)._value for each in things]
        options = {} if expiry is None else {"expiry_s": _seconds(expiry)}
        try:
            do(*values, wait=False, timeout=None, **options)
        except (StoreError, Closed) as error:
            logger.warning("a write to store %r was not done: %s", self._store.name, error)

    # -- waiting --------------------------------------------------------------------------------------

    def await_idle(self, timeout: float | None = None) -> bool:
        """Wait, 15 s by default, until a clone is attached and its writes are done, or all clones have a master's.

        As the original's, which looks once in ``TICK_S``, it takes at least that long if there is anything to wait for:
        programs count on it that what was to expire meanwhile is gone.
        """
        store = self._store
        deadline = time.monotonic() + (float(timeout) if timeout else IDLE_S)
        try:
            with store.endpoint.node.lock:
                idle = store.core.idle()
            looked_at = time.monotonic() + TICK_S
            done = store.await_idle(deadline - time.monotonic())
            if idle or not done:
                return done
            time.sleep(max(0.0, looked_at - time.monotonic()))
            return store.await_idle(max(TICK_S, deadline - time.monotonic()))
        except Closed:
            return False


def _seconds(expiry: float | None) -> float | None:
    """As chappe takes it: what is over already is over in a moment."""
    return None if expiry is None else max(float(expiry), MOMENT_S)
