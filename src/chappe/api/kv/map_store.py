"""A shared map with the face of a data store that bridges and Spark use: keys and values are values of the mesh.

============================ ==========================================================================================
a map's                      as a value
============================ ==========================================================================================
key                          string
value, of bytes and str      string
value, of anything else      what the JSON is: string, integer, real, boolean, none, vector, table
============================ ==========================================================================================

On the way back a string is its bytes where the map has bytes or str, and anything else is JSON, typed as Broker's
where JSON has no such type. A key that is not a string is JSON too.

Marks, which say how far something was written into a store, are keys of their own that begin with ``chappe/``: a map
that is to have them must hold these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from chappe.api.faces import Seconds, run
from chappe.api.kv.attached import Items
from chappe.api.kv.map_values import MapCodec, decode_key, encode_key, encode_ttl
from chappe.api.kv.shared_map import WAIT_S, SharedMap
from chappe.api.mesh.waiting import deadline_after, time_left
from chappe.data.convert import to_value
from chappe.data.json import dumps_plain, loads_plain
from chappe.data.values import Value
from chappe.defaults import STORE_CHANGES_BYTES_MAX, STORE_CHANGES_MAX
from chappe.errors import Closed, InvalidData, RecordTooLarge, StaleData, UnsupportedValue, UsageError
from chappe.kv.chp.client import KeyChanged
from chappe.kv.chp.stream import Step
from chappe.kv.engine import Change, Entry
from chappe.system import time

if TYPE_CHECKING:
    from chappe.api.kv.data_store import DataStore

MARKS: Final = "chappe/"  # begins the keys of marks
LOOK_S: Final = 0.25  # how often it is checked whether to wait no longer
GIVE_UP_S: Final = 2.0  # a server that has confirmed nothing for so long is waited for no longer then
_BYTES: Final = MapCodec[bytes](bytes)


class Typed(NamedTuple):
    """An entry or a change, in the form of data stores' that bridges use."""

    key: Value
    version: int
    typed: Any  # Entry or Change


class MapStore:
    """A view of a shared map; closing the map remains the caller's task."""

    role: Literal["master"] = "master"  # what it has written is done

    def __init__(self, shared: SharedMap[Any]) -> None:
        self._shared = shared
        self._member = shared.member
        if self._member.sealing is not None and self._member.sealing.active:
            raise UsageError("a sealed map cannot be bridged: read and write it as a SharedMap")
        self._codec: MapCodec[Any] = shared.member.codec
        self.turns = shared.member.driver.turns
        core = shared.member.core
        self.name = ", ".join([*core.servers, *(each.decode("utf-8", "replace") for each in core.subtrees if each)])
        self._feed: _Feed | None = None
        self.given_up: Callable[[], bool] = lambda: False  # whether who writes wants to wait for a server no longer

    def follow(self) -> None:
        with self._member.driver.lock:
            if self._feed is None:
                made = _Feed(self._member.core.engine.version)
                self._member.add_watch(made)
                self._feed = made

    def leave(self) -> None:
        if self._feed is not None:
            with self._member.driver.lock:
                self._member.forget_watch(self._feed)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._member.core.engine.version if self._feed is None else self._feed.version

    def snapshot(self) -> list[Typed]:
        """Return all entries of one moment. Raises StaleData before the first snapshot of a server."""
        self._member.check()
        if not self._shared.ready:
            raise StaleData(f"the map of {self.name} has had no server yet")
        found = []
        for each in self._member.entries():
            key, body, _ = self._member.raw(each)
            entry = self._entry(key, body, each.version)
            found.append(Typed(entry.key, each.version, entry))
        return found

    def items(self) -> list[tuple[Any, Any]]:
        return [(each.key, each.typed.value) for each in self.snapshot()]

    def get(self, key: object, default: Any = None) -> Any:
        entry = self._member.find(_text(to_value(key)))
        if entry is None:
            return default
        raw, body, _ = self._member.raw(entry)
        return self._entry(raw, body, entry.version).value

    def changes_since(self, version: int) -> list[Typed] | None:
        """Return all changes after ``version``; None if some are forgotten: take a ``snapshot`` then."""
        self._member.check()
        assert self._feed is not None
        with self._member.driver.lock:
            told = self._feed.since(version)
        if told is None:
            return None
        found = []
        for number, each in told:
            after = self._entry(each.key, each.body, number) if each.body else None
            entry = after or self._entry(each.key, each.before, number)
            found.append(Typed(entry.key, number, Change("erase" if after is None else "update", number, after, entry)))
        return found

    def watch(self) -> AbstractContextManager[None]:
        """Return an empty context: changes end waits without a watch."""
        return nullcontext()

    # -- writing -----------------------------------------------------------------------------------------------------

    def fits(self, key: Value, value: Value, *, gone: bool) -> None:
        """Raise InvalidData for a key or value that this map cannot hold."""
        try:
            encode_key(_text(key))
            if not gone:
                self._step(key, value, None)
        except (RecordTooLarge, UnsupportedValue, UsageError) as problem:
            raise InvalidData(str(problem)) from None

    def put(self, key: object, value: object, *, expiry_s: Seconds = None, timeout: Seconds = WAIT_S) -> None:
        self.put_many([(key, value)], expiry_s=expiry_s, timeout=timeout)

    def put_many(self, items: Items, *, expiry_s: Seconds = None, timeout: Seconds = None) -> None:
        """Set many values; return when all are done, or raise the first error then.

        Raises Closed if ``given_up`` while no server confirms writes: they may still be done.
        """
        pairs = items.items() if isinstance(items, Mapping) else items
        steps = (self._step(key, value, expiry_s) for key, value in pairs)
        run(self._member.writing_many(steps, timeout), self._wait)

    def erase(self, key: object, *, timeout: Seconds = WAIT_S) -> None:
        """Remove a key, if it is there. Raises as ``put_many``."""
        run(self._member.writing(self._member.step({_text(to_value(key)): None}), True, timeout), self._wait)

    def keep_marks(self) -> None:
        """Raise UsageError if this map does not hold marks."""
        if not MARKS.encode().startswith(self._member.core.subtrees):
            raise UsageError(
                f"how far it is is written down in the map under {MARKS!r}: open it with that subtree besides its own"
            )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool], timeout: Seconds) -> bool:
        core, turns = self._member.core, self.turns
        deadline = deadline_after(timeout)
        done, done_at = core.done, time.monotonic()
        while True:
            left = time_left(deadline)
            if turns.wait(until, LOOK_S if left is None else min(LOOK_S, left)):
                return True
            now = time.monotonic()
            if turns.closed or turns.halted is not None or now >= deadline:
                return False
            if core.done != done:
                done, done_at = core.done, now
            if self.given_up() and (core.state != "active" or now >= done_at + GIVE_UP_S):
                raise Closed("the map has no server that confirms what is written")

    def _step(self, key: object, value: object, expiry_s: Seconds) -> Step:
        name = to_value(key)
        body = self._body(to_value(value), is_mark=_is_mark(name))
        return Step((self._member.entry_set(_text(name), body, encode_ttl(expiry_s), b""),))

    def _body(self, value: Value, *, is_mark: bool) -> bytes:
        if self._codec.is_text and not is_mark and isinstance(value, str | bytes):
            raw = _raw(value)
        else:
            raw = dumps_plain(value).encode("utf-8", "surrogateescape")
        if not is_mark:
            self._codec.decode(raw)
        return _BYTES.encode(raw)

    def _entry(self, raw_key: bytes, body: bytes, version: int) -> Entry:
        key: Value = decode_key(raw_key)
        marked = _mark_of(decode_key(raw_key))
        if marked is not None:
            with suppress(InvalidData):  # others have written it: then it is a key like any other
                return Entry(marked, loads_plain(body), None, version)
        if not self._codec.is_text:
            with suppress(InvalidData):  # others may have written what is no JSON: then it is a string
                return Entry(key, loads_plain(body), None, version)
        return Entry(_string(raw_key), _string(body), None, version)


def as_store(store: DataStore | SharedMap[Any]) -> DataStore | MapStore:
    """Return a data store as it is, a shared map with the face of one."""
    return MapStore(store) if isinstance(store, SharedMap) else store


class _Feed:
    """Changes of a map from a version on, as many as an engine would remember."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._told: deque[tuple[int, KeyChanged]] = deque(maxlen=STORE_CHANGES_MAX)
        self._bytes = 0

    def told(self, change: KeyChanged) -> None:
        self.version += 1
        if len(self._told) == STORE_CHANGES_MAX:
            self._forget()
        self._told.append((self.version, change))
        self._bytes += _size(change)
        while self._bytes > STORE_CHANGES_BYTES_MAX:
            self._forget()

    def since(self, version: int) -> list[tuple[int, KeyChanged]] | None:
        """Return changes after ``version``, and forget older ones; None if some are gone. The lock is held."""
        while self._told and self._told[0][0] <= version:
            self._forget()
        return list(self._told) if len(self._told) == self.version - version else None

    def close(self) -> None:
        self._told.clear()

    def _forget(self) -> None:
        self._bytes -= _size(self._told.popleft()[1])


def _size(change: KeyChanged) -> int:
    return len(change.key) + len(change.body) + len(change.before)


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _string(raw: bytes) -> Value:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _is_mark(key: Value) -> bool:
    return type(key) is tuple and len(key) > 1 and type(key[0]) is str and key[0].startswith(MARKS)


def _text(key: Value) -> str:
    if isinstance(key, str | bytes):
        return decode_key(key)
    if type(key) is tuple and _is_mark(key):
        return f"{key[0]!s}/{dumps_plain(key[1:])}"
    return dumps_plain(key)


def _mark_of(key: str) -> Value | None:
    name, bracket, rest = key.partition("/[")
    if not key.startswith(MARKS) or not bracket:
        return None
    try:
        found: Any = loads_plain(f"[{rest}")
    except InvalidData:
        return None
    return (name, *found) if type(found) is tuple else None
