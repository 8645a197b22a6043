"""What is in data stores and maps, for whoever looks inside: opened for the first viewer, closed after the last.

A data store is followed as one of its clones, so all of it is then in this process's memory. Nobody has one open who
does not look.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from chappe import DataStore, SharedMap
from chappe.api.mesh.endpoint import Endpoint
from chappe.dashboard.leases import Leases
from chappe.dashboard.showing import brief
from chappe.data.text import to_text
from chappe.errors import ChappeError, UsageError
from chappe.observing.snapshot import readable

ATTACH_S: Final = 5.0
ROWS_MAX: Final = 200  # entries on a page
CHANGES_MAX: Final = 100  # newest changes that are kept
WATCH_MAX: Final = 1_000  # changes that may wait; then the oldest are left out
OPEN_MAX: Final = 20  # stores and maps that are open at once
FRESH_S: Final = 1.0
SHARE: Final = 4  # listing takes a fifth of the time at most


@dataclass(frozen=True, slots=True)
class Row:
    """An entry: ``expires`` says when the master removes it, where it tells."""

    key: str
    value: str
    expires: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """Something that happened to a key; ``at`` is seconds since 1970."""

    at: float
    kind: str
    key: str
    value: str


class Inside(Protocol):
    """A store or map that is open."""

    def rows(self) -> Iterator[Row]:
        """All entries of this moment."""

    def changes(self) -> Iterator[tuple[str, str, str]]:
        """What has changed since the last call: kind, key and value."""

    @property
    def dropped(self) -> int:
        """Changes that were left out, as more came than were taken."""

    def close(self) -> None:
        """Leave."""


class _Clone:
    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._store: DataStore = endpoint.attach_clone(name, timeout=ATTACH_S)
        self._watch = self._store.watch(on_full="drop_oldest", messages_max=WATCH_MAX)

    def rows(self) -> Iterator[Row]:
        for each in self._store.snapshot():
            expires = "" if each.expires_ns is None else f"{max(0.0, each.expires_ns / 1e9 - time.time()):.0f} s"
            yield Row(_text(each.typed.key), _text(each.typed.value), expires)

    def changes(self) -> Iterator[tuple[str, str, str]]:
        for each in self._watch.get_many(WATCH_MAX, 0):
            yield each.kind, _text(each.key), "" if each.value is None else _text(each.value)

    @property
    def dropped(self) -> int:
        return self._watch.dropped

    def close(self) -> None:
        self._watch.close()
        self._store.close()


class _Map:
    """A map that its source follows anyway; only the watch is ours."""

    def __init__(self, shared: SharedMap[bytes]) -> None:
        self._map = shared
        self._watch = shared.watch(on_full="drop_oldest", messages_max=WATCH_MAX)

    def rows(self) -> Iterator[Row]:
        for entry in self._map.member.entries():
            key, value, properties = self._map.member.raw(entry)
            yield Row(brief(key, "text"), brief(value), properties.get("ttl", ""))

    def changes(self) -> Iterator[tuple[str, str, str]]:
        for each in self._watch.get_many(WATCH_MAX, 0):
            yield str(each.kind), readable(each.key), "" if each.value is None else brief(each.value)

    @property
    def dropped(self) -> int:
        return self._watch.dropped

    def close(self) -> None:
        self._watch.close()


class Opened:
    """One store or map, for all who look at it."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._lock = threading.Lock()
        self._changes: deque[Changed] = deque(maxlen=CHANGES_MAX)
        self._rows: list[Row] = []
        self._fresh_until = 0.0

    def find(self, text: str) -> tuple[list[Row], int, int]:
        """Entries whose key or value contains a text, ``ROWS_MAX`` at most; how many do, and how many there are."""
        with self._lock:
            now = time.monotonic()
            if now >= self._fresh_until:
                self._rows = sorted(self._inside.rows(), key=lambda each: each.key)
                took = time.monotonic() - now
                self._fresh_until = now + max(FRESH_S, SHARE * took)
            rows = self._rows
        wanted = text.casefold()
        fitting = [each for each in rows if wanted in each.key.casefold() or wanted in each.value.casefold()]
        return fitting[:ROWS_MAX], len(fitting), len(rows)

    def changes(self) -> tuple[list[Changed], int]:
        """The newest changes since it was opened, newest first; and how many were left out as they came too fast."""
        with self._lock:
            for kind, key, value in self._inside.changes():
                self._changes.append(Changed(time.time(), kind, key, value))
            return list(reversed(self._changes)), self._inside.dropped

    def close(self) -> None:
        """Leave."""
        with self._lock, suppress(ChappeError, OSError):
            self._inside.close()


class Entries:
    """All that is open. Use from several threads is safe."""

    def __init__(self, endpoint: Endpoint | None, maps: dict[str, SharedMap[bytes]], leases: Leases) -> None:
        self._endpoint = endpoint
        self._maps = maps
        self._leases = leases
        self._open: dict[tuple[str, str], Opened] = {}
        self._lock = threading.Lock()

    def open(self, kind: str, name: str) -> Opened:
        """Look inside, now and again: it stays open for some seconds after the last time.

        Raises:
            UsageError: Too many are open, or this is none.
            NoMaster, NotPermitted, MasterExists: As ``Endpoint.attach_clone``.
        """
        with self._lock:
            found = self._open.get((kind, name))
            if found is None:
                if len(self._open) >= OPEN_MAX:
                    raise UsageError(f"{OPEN_MAX} stores and maps are open already: close the page of another one")
                found = self._open[kind, name] = Opened(self._inside(kind, name))
            self._leases.touch(("inside", kind, name), partial(self._close, kind, name))
            return found

    def _close(self, kind: str, name: str) -> None:
        with self._lock:
            found = self._open.pop((kind, name), None)
        if found is not None:
            found.close()

    def _inside(self, kind: str, name: str) -> Inside:
        if kind == "map" and name in self._maps:
            return _Map(self._maps[name])
        if kind == "data store" and self._endpoint is not None:
            return _Clone(self._endpoint, name)
        raise UsageError(f"into {kind} {name} nobody can look from here")


def _text(value: Any) -> str:
    return brief(to_text(value).encode("utf-8", "surrogateescape"), "text")
