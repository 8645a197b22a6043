"""``Store`` of the original bindings, on a data store of chappe; all those of an endpoint; the topics of their changes.

Departures, each where the original gives up: a clone looks for a master for as long as it lives, comes back to one that
was restarted, and repeats what it wrote meanwhile; ``exists`` that cannot be answered is None. What cannot be done is
logged, as there: writes have no result. Waiting lets other threads run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self
from uuid import UUID

from chappe.api.kv.data_store import DataStore
from chappe.api.kv.watch import DataStoreEvent
from chappe.api.mesh.endpoint import Endpoint as MeshEndpoint
from chappe.compat.broker.data import Data, to_py
from chappe.compat.broker.messaging import ResetHandle
from chappe.compat.broker.peering import Backend
from chappe.data.binary import encode
from chappe.data.scalars import Count, EnumValue, Timespan
from chappe.data.values import Value
from chappe.errors import BufferFull, ChappeError, Closed, StoreError, TimedOut, UsageError
from chappe.kv.engine import DurableContents, Engine
from chappe.kv.entity import EVENTS_PREFIX
from chappe.kv.master import KvMaster
from chappe.kv.role import KeyChange
from chappe.system.forking import own

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
        self._store = ResetHandle("attach the store again")  # type: ignore[assignment]

    def name(self) -> str:
        return self._store.name

    # -- queries: None for what is not there or cannot be answered -------------------------------------

    def exists(self, key: object) -> bool | None:
        value = Data.from_py(key)._value
        found: bool | None = self._read(lambda engine: engine.exists(value))
        return found

    def get(self, key: object) -> Any:
        value = Data.from_py(key)._value
        return to_py(self._read(lambda engine: engine.get(value)))

    def get_index_from_value(self, key: object, index: object) -> Any:
        """Look up ``index`` in a vector or table, test a set for it, and return any other value itself."""
        value, at = Data.from_py(key)._value, Data.from_py(index)._value
        return to_py(self._read(lambda engine: engine.get_index(value, at)))

    def keys(self) -> set[Any] | None:
        """Return all keys; raises TypeError if one is unhashable in Python."""
        found: list[Value] | None = self._read(lambda engine: engine.keys())
        return None if found is None else {to_py(each) for each in found}

    def _read(self, ask: Callable[[Engine | DurableContents], Any]) -> Any:
        """Return the result of ``ask``, or None without one; a clone first gets time to find its master.

        Programs poll until a change shows, so each read of a clone takes in pending messages. A master with SQLite
        waits for earlier writes and shows only what is on disk, as the original's does.
        """
        store = self._store
        if store.role == "clone":
            store.endpoint.node.turns.serve()
        if not store.ready and not self._becomes_ready(store):
            logger.info("store %r cannot be read: it has no master, or is closed", store.name)
            return None
        core = store.core
        try:
            if isinstance(core, KvMaster) and not core.immediate:
                store.attached.await_kept()
                with store.endpoint.node.lock:
                    store.attached.engine()
                    return ask(core.kept())
            with store.endpoint.node.lock:
                return ask(store.attached.engine())
        except (StoreError, Closed):  # no such key, or an index that does not fit
            return None

    def _becomes_ready(self, store: DataStore) -> bool:
        if store.role == "master":
            return False
        try:
            asked = store.attached.begin_await_ready(GET_S)
            asked.wait(GET_S)  # of real time, where that of the store stands still
            return asked.take("") is None
        except (StoreError, Closed, TimedOut):
            return False

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
        self._write(self._store.decrement, (key, amount), expiry)

    def append(self, key: object, s: object, expiry: float | None = None) -> None:
        self._write(self._store.append, (key, s), expiry)

    def insert_into(self, key: object, index: object, value: object = None, expiry: float | None = None) -> None:
        """Add a member to a set or, with a value that Python takes for true, an entry to a table."""
        self._write(self._store.insert_into, (key, index, value) if value else (key, index), expiry)

    def remove_from(self, key: object, index: object, expiry: float | None = None) -> None:
        self._write(self._store.remove_from, (key, index), expiry)

    def push(self, key: object, value: object, expiry: float | None = None) -> None:
        self._write(self._store.push, (key, value), expiry)

    def pop(self, key: object, expiry: float | None = None) -> None:
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
    """Convert an expiry to chappe's: one that is over already is over in a moment."""
    return None if expiry is None else max(float(expiry), MOMENT_S)


def encode_event(store: str, change: KeyChange) -> bytes:
    publisher = change.publisher
    who: tuple[Value, ...] = (None, None)
    if publisher is not None:
        who = (str(UUID(bytes=publisher.endpoint)), Count(publisher.number))
    expiry = None if change.expiry_ns is None else Timespan(change.expiry_ns)
    if change.kind == "insert":
        return encode(("insert", store, change.key, change.value, expiry, *who))
    if change.kind == "update":
        return encode(("update", store, change.key, change.before, change.value, expiry, *who))
    return encode((change.kind, store, change.key, *who))


_FIELDS: Final = {
    "insert": ("key", "value", "expiry"),
    "update": ("key", "before", "value", "expiry"),
    "erase": ("key",),
    "expire": ("key",),
}


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A change of a store. ``value`` is the new one and ``before`` the old one, where there are such.

    ``publisher`` is the id of the endpoint that made the change, and the number of its store there.
    """

    kind: str
    store_id: str
    key: Any
    value: Any = None
    before: Any = None
    expiry: timedelta | None = None
    publisher: tuple[str, int] | None = None

    @classmethod
    def make(cls, received: Any) -> Self | None:
        """Read what a subscriber got; None if it is not an event of a store."""
        if not isinstance(received, tuple) or len(received) < 3 or not isinstance(received[0], str):
            return None
        names = _FIELDS.get(received[0])
        if names is None or len(received) != len(names) + 4 or not isinstance(received[1], str):
            return None
        fields = dict(zip(names, received[2:], strict=False))
        endpoint, number = received[-2:]
        publisher = None if endpoint is None else (endpoint, number.value)
        return cls(received[0], received[1], publisher=publisher, **fields)


_NAMES: Final = {
    "synchronous": "Broker::SQLITE_SYNCHRONOUS_",
    "journal_mode": "Broker::SQLITE_JOURNAL_MODE_",
    "failure_mode": "Broker::SQLITE_FAILURE_MODE_",
}
# The original leaves SQLite's own default, which makes one single file.
_DEFAULTS: Final[dict[str, object]] = {"journal_mode": "DELETE"}


class Stores:
    """The masters and clones of one endpoint: each name is there once, however often it is attached."""

    def __init__(self, endpoint: MeshEndpoint) -> None:
        own(self)
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._attached: dict[str, DataStore] = {}
        self._wanted: set[bytes] = set()  # topics of events, or prefixes of such
        self._told: set[str] = set()  # the stores whose changes go to their topic

    def attach_master(self, name: str, backend: Backend, options: Mapping[str, Value]) -> DataStore | None:
        """Return the master of that name; None if there cannot be one."""
        if backend is Backend.Memory:
            return self._attach(name, "master", lambda: self._endpoint.attach_master(name))

        def attach() -> DataStore:
            return self._endpoint.attach_master(name, "sqlite", **_sqlite_options(options))

        return self._attach(name, "master", attach)

    def attach_clone(self, name: str) -> DataStore | None:
        """Return a clone, which may still be without data; None beside a master."""
        return self._attach(name, "clone", lambda: self._endpoint.attach_clone(name, timeout=0))

    def want(self, topics: Iterable[str]) -> None:
        """Note that somebody subscribes to these: if they match events of stores, these are told from now on."""
        wanted = [each.encode("utf-8", "surrogateescape") for each in topics]
        matching = [each for each in wanted if each.startswith(EVENTS_PREFIX) or EVENTS_PREFIX.startswith(each)]
        if matching:
            with self._lock:
                self._wanted.update(matching)
                self._tell()

    def await_kept(self) -> None:
        """Wait until masters with a file have everything in it that was done so far."""
        with self._lock:
            attached = list(self._attached.values())
        for each in attached:
            if isinstance(each.core, KvMaster) and not each.core.settled:
                with suppress(Closed):  # the store was closed meanwhile
                    each.attached.await_kept()

    def close(self) -> None:
        with self._lock:
            attached = list(self._attached.values())
            self._attached.clear()
        for each in attached:
            each.close()

    def _attach(self, name: str, role: str, attach: Callable[[], DataStore]) -> DataStore | None:
        with self._lock:
            try:
                found = self._attached.get(name)
                if found is None:
                    found = self._attached[name] = attach()
                elif found.role != role:
                    raise UsageError(f"there is a {found.role} of it at this endpoint")
            except ChappeError as error:
                logger.warning("cannot attach a %s of store %r: %s", role, name, error)
                return None
            self._tell()
            return found

    def _tell(self) -> None:
        for name, store in self._attached.items():
            topic = EVENTS_PREFIX + name.encode()
            if name not in self._told and topic.startswith(tuple(self._wanted)):
                self._told.add(name)
                store.watch(callback=partial(self._deliver, topic, name), on_full="block")

    def _deliver(self, topic: bytes, name: str, event: DataStoreEvent) -> None:
        assert isinstance(event.typed, KeyChange)
        payload = encode_event(name, event.typed)
        node = self._endpoint.node
        with node.lock:
            if not node.turns.closed:
                node.do(self._endpoint.core.deliver_here(topic, payload, 0))


def _sqlite_options(options: Mapping[str, Value]) -> dict[str, Any]:
    """Convert to the terms of ``attach_master``; raises UsageError where the original refuses. It ignores others."""
    path = options.get("path")
    if type(path) is not str:
        raise UsageError(f"a master with SQLite needs a string in its option path, not {path!r}")
    found: dict[str, Any] = {**_DEFAULTS, "path": path}
    for name, prefix in _NAMES.items():
        if name in options:
            value = options[name]
            if not isinstance(value, EnumValue) or not value.startswith(prefix):
                raise UsageError(f"the option {name} is an Enum {prefix}..., not {value!r}")
            found[name] = value.removeprefix(prefix)
    if "integrity_check" in options:
        if not isinstance(options["integrity_check"], bool):
            raise UsageError(f"the option integrity_check is a bool, not {options['integrity_check']!r}")
        found["integrity_check"] = options["integrity_check"]
    return found


def options_of(opts: Mapping[str, object]) -> dict[str, Value]:
    """Return options as values; raises TypeError for anything that is not a value, or a name that is not a string."""
    for name in opts:
        if not isinstance(name, str):
            raise TypeError(f"the name of an option is a str, not a {type(name).__name__}")
    return {name: Data.from_py(each)._value for name, each in opts.items()}
