"""The data stores of an endpoint, as the original bindings attach them, and the topics that tell their changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self
from uuid import UUID

from chappe.api.kv.data_store import DataStore
from chappe.api.kv.watch import DataStoreEvent
from chappe.api.mesh.endpoint import Endpoint as MeshEndpoint
from chappe.compat.broker.data import Data
from chappe.compat.broker.peering import Backend
from chappe.data.binary import encode
from chappe.data.scalars import Count, EnumValue, Timespan
from chappe.data.values import Value
from chappe.errors import ChappeError, UsageError
from chappe.kv.actions import Notify
from chappe.kv.topics import EVENTS_PREFIX
from chappe.system.forking import own


def encode_event(store: str, change: Notify) -> bytes:
    """The bytes of the message for a change."""
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


logger = logging.getLogger(__name__)

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
        """The master of that name; None if there cannot be one."""
        if backend is Backend.Memory:
            return self._attach(name, "master", lambda: self._endpoint.attach_master(name))

        def attach() -> DataStore:
            return self._endpoint.attach_master(name, "sqlite", **_sqlite_options(options))

        return self._attach(name, "master", attach)

    def attach_clone(self, name: str) -> DataStore | None:
        """A clone, which may still be without data; None beside a master."""
        return self._attach(name, "clone", lambda: self._endpoint.attach_clone(name, timeout=0))

    def want(self, topics: Iterable[str]) -> None:
        """Somebody subscribes to these: if they match events of stores, these are told from now on."""
        wanted = [each.encode("utf-8", "surrogateescape") for each in topics]
        matching = [each for each in wanted if each.startswith(EVENTS_PREFIX) or EVENTS_PREFIX.startswith(each)]
        if matching:
            with self._lock:
                self._wanted.update(matching)
                self._tell()

    def close(self) -> None:
        """End all of them."""
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
        assert isinstance(event.typed, Notify)
        payload = encode_event(name, event.typed)
        node = self._endpoint.node
        with node.lock:
            if not node.turns.closed:
                node.perform(self._endpoint.core.deliver_here(topic, payload, 0))
                node.turns.tell()
                node.turns.look_again()


def _sqlite_options(options: Mapping[str, Value]) -> dict[str, Any]:
    """In the terms of ``attach_master``; raises UsageError for those that the original refuses. It ignores others."""
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
    """Options as values; raises TypeError for anything that is not a value, or a name that is not a string."""
    for name in opts:
        if not isinstance(name, str):
            raise TypeError(f"the name of an option is a str, not a {type(name).__name__}")
    return {name: Data.from_py(each)._value for name, each in opts.items()}
