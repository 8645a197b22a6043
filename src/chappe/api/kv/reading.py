"""The reading half of a data store, which never waits: the same for its blocking and asyncio faces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final, Literal

from chappe.api.chain.status import ChainServerStatus
from chappe.api.faces import Seconds, Steps
from chappe.api.kv.attached import Args, AttachedStore, Method
from chappe.api.kv.watch import DataStoreEntry, DataStoreEvent, event_of_change
from chappe.api.log.lines import iso_time
from chappe.api.mesh.arguments import MISSING
from chappe.data.convert import to_python, to_value
from chappe.data.given import as_text
from chappe.data.markup import ROWS_MAX, many, table
from chappe.data.scalars import Count, EnumValue, Port
from chappe.data.text import to_text
from chappe.errors import NoSuchKey
from chappe.kv.engine import Entry, index_of
from chappe.kv.entity import Entity
from chappe.system import time
from chappe.system.forking import own

ENTRY_COLUMNS: Final = ("key", "value", "expires")
_PLAIN: Final = frozenset({str, int, float, bool, type(None), Count, EnumValue, Port})  # values as they are in Python


class ReadableStore(ABC):
    """The reading half of ``DataStore`` and ``AsyncDataStore``."""

    def __init__(self, attached: AttachedStore) -> None:
        own(self)
        self.attached = attached
        self.core = attached.core
        self.part = attached.part
        self.name = attached.name
        self.role: Literal["master", "clone"] = self.core.kind
        self._lock = attached.endpoint.node.lock

    @abstractmethod
    def _run(self, steps: Steps[Any]) -> Any:
        """Wait for each step in the way of the face."""

    def _write(
        self, method: Method, args: Args, expiry_s: Seconds, wait: bool, timeout: Seconds, look: bool = False
    ) -> Any:
        return self._run(self.attached.writing(method, args, expiry_s, wait, timeout, look))

    def _do(self, method: Method, args: Args, expiry_s: Seconds, wait: bool, timeout: Seconds) -> None:
        return self._write(method, args, expiry_s, wait, timeout)  # type: ignore[no-any-return]

    # -- what it is -----------------------------------------------------------------------------------

    @property
    def entity(self) -> Entity:
        """The entity that is the publisher of its writes."""
        return self.core.entity

    @property
    def ready(self) -> bool:
        """True while it may be read: a master always, a clone once it has all data, until it is stale."""
        return self.part.entries is not None

    def chain(self) -> ChainServerStatus | None:
        """Return the status of the chain server below a master on a chain, else None. Raises MemberStopped."""
        server = self.attached.chain
        return None if server is None else server.status()

    # -- reading --------------------------------------------------------------------------------------

    def get(self, key: object, default: Any = None) -> Any:
        """Return the value under a key, or ``default``.

        Raises StaleData, as all reading does: a clone was without its master for too long, or has never had one.
        """
        if self.attached.looked_for:
            self.attached.catch_up()
        entries = self.part.entries
        if entries is None:
            raise self.attached.unreadable()
        entry = entries.get(key if type(key) is str else index_of(to_value(key)))
        if entry is None or (entry.expires_ns is not None and self._is_over(entry.expires_ns)):
            return default
        value = entry.value
        return value if type(value) in _PLAIN else to_python(value)

    def get_index_from_value(self, key: object, index: object, default: Any = None) -> Any:
        """Return the value at an index of the value under a key; ``default`` if there is none.

        That is an element of a vector, the value under a key of a table, or True for a member of a set; of
        anything else the value itself.

        Raises:
            TypeClash: A vector is indexed by something else than a number from 0 on.
        """
        try:
            return to_python(self.attached.engine().get_index(to_value(key), to_value(index)))
        except NoSuchKey:
            return default

    def exists(self, key: object) -> bool:
        """Return True if there is a value under a key."""
        return self.attached.engine().exists(to_value(key))

    def entry(self, key: object) -> DataStoreEntry | None:
        """Return value, revision and expiry of a key, of one moment; None if there is no value.

        A durable master shows the entry on its disk: ``get`` shows a write a moment earlier.

        Raises:
            InvalidOperation: This is a clone whose master is not one of chappe: that tells neither.
        """
        index = to_value(key)
        with self._lock:
            self.attached.engine()  # removes expired entries, and says if it cannot be read
            found = self.core.durable(index)
            return None if found is None else self._told(found, self.core.revision_of(found))

    def expires_ns(self, key: object) -> int | None:
        """Return the expiry of a key, in nanoseconds since 1970; None if it never expires.

        Raises:
            NoSuchKey: Nothing is stored under the key.
            InvalidOperation: As ``entry``.
        """
        found = self.entry(key)
        if found is None:
            raise NoSuchKey(f"nothing is stored under {key!r}")
        return found.expires_ns

    def keys(self, prefix: str | None = None) -> list[Any]:
        """Return all keys, the oldest first; with ``prefix`` those that are strings and begin so."""
        return [to_python(each.key) for each in self._entries(prefix)]

    def items(self, prefix: str | None = None) -> list[tuple[Any, Any]]:
        """Return all keys and values, the oldest first; with ``prefix`` as ``keys``."""
        return [(to_python(each.key), to_python(each.value)) for each in self._entries(prefix)]

    def snapshot(self, prefix: str | None = None) -> list[DataStoreEntry]:
        """Return all entries, of one moment; with ``prefix`` as ``keys``. Their ``revision`` is None."""
        return [self._told(each, None) for each in self._entries(prefix)]

    @property
    def version(self) -> int:
        """The number of the last change here."""
        return self.core.engine.version

    def changes_since(self, version: int) -> list[DataStoreEvent] | None:
        """Return the changes after ``version``; None if some are forgotten: take a ``snapshot`` then.

        A durable master shows changes a moment before they are durable; None if one of them was taken back.
        """
        with self._lock:
            found = self.attached.engine().changes_since(version)
        return None if found is None else [event_of_change(each) for each in found]

    def __getitem__(self, key: object) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self.exists(key)

    def __len__(self) -> int:
        return len(self.attached.engine())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __bool__(self) -> bool:
        """Return True, also for an empty store."""
        return True

    def _repr_html_(self) -> str:
        """Show the oldest entries as a table, in notebooks."""
        if not self.ready:
            return table(f"data store {self.name}, {self.role}: it has no data yet", ENTRY_COLUMNS, (), 0)
        found = self._entries()
        rows = ((to_text(each.key), to_text(each.value), _until(each.expires_ns)) for each in found[:ROWS_MAX])
        title = f"data store {self.name}, {self.role}: {many(len(found), 'entry', 'entries')}"
        return table(title, ENTRY_COLUMNS, rows, len(found))

    def _entries(self, prefix: str | None = None) -> list[Entry]:
        if prefix is not None:
            prefix = as_text(prefix, "a prefix of keys")
        with self._lock:
            engine = self.attached.engine()
            return list(engine.items()) if prefix is None else engine.beginning(prefix)

    def _told(self, entry: Entry, revision: int | None) -> DataStoreEntry:
        return DataStoreEntry(
            to_python(entry.key), to_python(entry.value), entry.expires_ns, entry.version, entry, revision
        )

    def _is_over(self, expires_ns: int) -> bool:
        """True if an entry has expired: a master knows by its clock, a clone is told."""
        return self.role == "master" and expires_ns <= time.time_ns()


def _until(expires_ns: int | None) -> str | None:
    return None if expires_ns is None else iso_time(expires_ns // 1000)
