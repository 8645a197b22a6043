"""Entries of data stores and maps, for viewers that look inside: opened for the first viewer, closed after the last.

A data store is followed as one of its clones, so all of it is then in this process's memory. Nobody has one open who
does not look.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from chappe import DataStoreWatch, MapWatch, SharedMap
from chappe.api.mesh.endpoint import Endpoint
from chappe.dashboard.leases import Leases
from chappe.dashboard.pages.words import duration
from chappe.dashboard.showing import brief
from chappe.data.json import loads_plain
from chappe.data.order import SortKey, sort_key
from chappe.data.text import to_text
from chappe.errors import ChappeError, InvalidData, UsageError
from chappe.observing.snapshot import readable

ATTACH_S: Final = 5.0
ROWS_MAX: Final = 200  # entries on a page
CHANGES_MAX: Final = 100  # newest changes that are kept
WATCH_MAX: Final = 1_000  # changes that may wait; then the oldest are left out
OPEN_MAX: Final = 20  # stores and maps that are open at once
FRESH_S: Final = 1.0
SHARE: Final = 4  # listing takes a fifth of the time at most
SECONDS_MAX: Final = 120.0  # of a time to live that is shown in seconds
_ABSENT: Final = object()

Lives: TypeAlias = Callable[[str], dict[SortKey, float]]  # monotonic seconds by what keys are found by


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry: ``expires`` says in how long it is removed, empty for never; ``own`` is the key as the store has it."""

    key: str
    value: str
    expires: str = ""
    own: Any = None


@dataclass(frozen=True, slots=True)
class EntryChange:
    """Something that happened to a key; ``at`` is seconds since 1970."""

    at: float
    kind: str
    key: str
    value: str


class OpenEntries(ABC):
    def __init__(self, watch: DataStoreWatch | MapWatch[bytes]) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._changes: deque[EntryChange] = deque(maxlen=CHANGES_MAX)
        self._rows: list[EntryRow] = []
        self._fresh_until = 0.0

    def find(self, text: str) -> tuple[list[EntryRow], int, int]:
        """Return at most ``ROWS_MAX`` entries whose key or value contains a text, the number of these, and of all."""
        with self._lock:
            now = time.monotonic()
            if now >= self._fresh_until:
                self._rows = sorted(self._read(), key=lambda each: each.key)
                took = time.monotonic() - now
                self._fresh_until = now + max(FRESH_S, SHARE * took)
            rows = self._rows
        wanted = text.casefold()
        fitting = [each for each in rows if wanted in each.key.casefold() or wanted in each.value.casefold()]
        return fitting[:ROWS_MAX], len(fitting), len(rows)

    def changes(self) -> tuple[list[EntryChange], int]:
        """Return the newest changes since it was opened, newest first; and the number that came too fast to be kept."""
        with self._lock:
            for each in self._watch.get_many(WATCH_MAX, 0):
                value = "" if each.value is None else self._text(each.value)
                self._changes.append(EntryChange(time.time(), str(each.kind), self._name(each.key), value))
            return list(reversed(self._changes)), self._watch.dropped

    def set(self, key: Any, value: str) -> None:
        """Set an entry to what a person typed, by its key as the store has it. Raises UsageError, and as the store."""
        self._change(partial(self._put, key, value))

    def erase(self, key: Any) -> None:
        self._change(partial(self._remove, key))

    def clear(self) -> None:
        self._change(self._remove_all)

    def close(self) -> None:
        with self._lock, suppress(ChappeError, OSError):
            self._watch.close()

    @abstractmethod
    def own(self, text: str) -> Any:
        """Convert what a person typed to a key of the store: of data stores JSON, or else text. Raises UsageError."""

    @abstractmethod
    def value_of(self, key: Any) -> str | None:
        """Return the value of a key as the store has it, for people; None without an entry."""

    def _change(self, change: Callable[[], None]) -> None:
        change()
        with self._lock:
            self._fresh_until = 0.0

    @abstractmethod
    def _read(self) -> Iterator[EntryRow]: ...

    @abstractmethod
    def _name(self, key: Any) -> str: ...

    @abstractmethod
    def _text(self, value: Any) -> str: ...

    @abstractmethod
    def _put(self, key: Any, value: str) -> None: ...

    @abstractmethod
    def _remove(self, key: Any) -> None: ...

    @abstractmethod
    def _remove_all(self) -> None: ...


class _StoreEntries(OpenEntries):
    """A clone does not know what expires: ``lives`` says what the master told of that."""

    def __init__(self, endpoint: Endpoint, name: str, lives: Lives) -> None:
        self._store = endpoint.attach_clone(name, timeout=ATTACH_S)
        self._store_lives = partial(lives, name)
        super().__init__(self._store.watch(on_full="drop_oldest", messages_max=WATCH_MAX))

    def own(self, text: str) -> Any:
        return typed(text)

    def value_of(self, key: Any) -> str | None:
        found = self._store.get(key, _ABSENT)
        return None if found is _ABSENT else self._text(found)

    def _read(self) -> Iterator[EntryRow]:
        lives, now = self._store_lives(), time.monotonic()
        for each in self._store.snapshot():
            at = lives.get(sort_key(each.typed.key)) if lives else None
            left = _left(None if at is None else max(0.0, at - now))
            yield EntryRow(self._name(each.typed.key), self._text(each.typed.value), left, each.typed.key)

    def _name(self, key: Any) -> str:
        return self._text(key)

    def _text(self, value: Any) -> str:
        return brief(to_text(value).encode("utf-8", "surrogateescape"), "text")

    def _put(self, key: Any, value: str) -> None:
        self._store.put(key, typed(value))

    def _remove(self, key: Any) -> None:
        self._store.erase(key)

    def _remove_all(self) -> None:
        self._store.clear()

    def close(self) -> None:
        super().close()
        with suppress(ChappeError, OSError):
            self._store.close()


class _MapEntries(OpenEntries):
    """A map that its source follows anyway; only the watch is ours."""

    def __init__(self, shared: SharedMap[bytes]) -> None:
        self._map = shared
        super().__init__(shared.watch(on_full="drop_oldest", messages_max=WATCH_MAX))

    def own(self, text: str) -> Any:
        return text

    def value_of(self, key: Any) -> str | None:
        found = self._map.get(key)
        return None if found is None else self._text(found)

    def _read(self) -> Iterator[EntryRow]:
        for entry in self._map.member.entries():
            key, value, _ = self._map.member.raw(entry)
            own = key.decode("utf-8", "surrogateescape")
            yield EntryRow(brief(key, "text"), self._text(value), _left(self._map.member.left_s(entry)), own)

    def _name(self, key: Any) -> str:
        return readable(key)

    def _text(self, value: Any) -> str:
        return brief(value)

    def _put(self, key: Any, value: str) -> None:
        self._map.set(key, value.encode())

    def _remove(self, key: Any) -> None:
        self._map.delete(key)

    def _remove_all(self) -> None:
        self._map.clear()


class Entries:
    """All that is open. Use from several threads is safe.

    Args:
        endpoint: Takes part in data stores; None where there is no mesh.
        maps: By name.
        leases: Close what nobody looks into.
        lives: Of a data store when its entries expire, as far as its master told.
    """

    def __init__(
        self,
        endpoint: Endpoint | None,
        maps: dict[str, SharedMap[bytes]],
        leases: Leases,
        lives: Lives = lambda store: {},
    ) -> None:
        self._endpoint = endpoint
        self._lives = lives
        self._maps = maps
        self._leases = leases
        self._open: dict[tuple[str, str], OpenEntries] = {}
        self._begun: dict[tuple[str, str], tuple[threading.Lock, int]] = {}  # being opened, and by how many threads
        self._lock = threading.Lock()

    def open(self, kind: str, name: str) -> OpenEntries:
        """Look inside, now and again: it stays open for some seconds after the last time. Raises UsageError: too many
        are open, or it does not exist; NoMaster, NotPermitted, MasterExists: as ``Endpoint.attach_clone``.
        """
        key = (kind, name)
        with self._opening(key):  # others are not held up by one whose master does not answer
            with self._lock:
                found = self._open.get(key)
                if found is None and len(self._open.keys() | self._begun.keys()) > OPEN_MAX:
                    raise UsageError(f"{OPEN_MAX} stores and maps are open already: close the page of another one")
            if found is None:
                found = self._inside(kind, name)
                with self._lock:
                    self._open[key] = found
            self._leases.touch(("inside", kind, name), partial(self._close, kind, name))
            return found

    @contextmanager
    def _opening(self, key: tuple[str, str]) -> Iterator[None]:
        with self._lock:
            lock, count = self._begun.get(key, (threading.Lock(), 0))
            self._begun[key] = lock, count + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                count = self._begun[key][1] - 1
                if count:
                    self._begun[key] = lock, count
                else:
                    del self._begun[key]

    def _close(self, kind: str, name: str) -> None:
        with self._lock:
            found = self._open.pop((kind, name), None)
        if found is not None:
            found.close()

    def _inside(self, kind: str, name: str) -> OpenEntries:
        if kind == "map" and name in self._maps:
            return _MapEntries(self._maps[name])
        if kind == "data store" and self._endpoint is not None:
            return _StoreEntries(self._endpoint, name, self._lives)
        raise UsageError(f"into {kind} {name} nobody can look from here")


def _left(seconds: float | None) -> str:
    """Return a time to live; below two minutes each second is seen to go."""
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < SECONDS_MAX else duration(seconds)


def typed(text: str) -> Any:
    """Read what a person typed: JSON, or else a text. Raises UsageError for text that begins like JSON."""
    try:
        return loads_plain(text)
    except InvalidData as error:
        if text[:1] in ("{", "[", '"'):
            raise UsageError(f"This begins like JSON, and is none: {error}") from None
        return text
