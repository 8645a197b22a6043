"""From a data store into a topic of the log: every change a record, and the latest record of each key the store."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chappe.api.kv.map_store import MapStore, Typed
from chappe.bridges.keeping import LOOK_S, NOWHERE, RecordPlace, Sender, StoreMirror, TopicNow, place_of
from chappe.bridges.kv_form import EXPIRES, StoreRow, fits, is_mark, pack, row_of
from chappe.errors import BufferFull, ChappeError, Closed, Sealed, StaleData, TimedOut, UsageError
from chappe.kv.engine import Change
from chappe.security import LogSecurity
from chappe.system import settings, time
from chappe.system.forking import own

if TYPE_CHECKING:
    from chappe.api.kv.data_store import DataStore
    from chappe.api.kv.shared_map import SharedMap
    from chappe.api.kv.watch import DataStoreEvent

logger = logging.getLogger(__name__)

STALE_S: Final = 1.0  # a clone without data is asked again
ROWS_MAX: Final = 4096  # of a whole store, made records at once


@dataclass(slots=True)
class Fed:
    records: int = 0  # changes that are records now, of this run
    stored: int = 0  # records that enough stores have, of this run and what an earlier one had left
    left: int = 0  # records that they do not have yet; those are in the journal
    dropped: int = 0  # changes that are larger than a record can be: their keys are missing in the topic
    ready: bool = False  # the content of the topic is known; before that nothing is written


class DataStoreToTopic(StoreMirror):
    """Writes the changes of a data store to a topic, until it is closed; a context.

    What the topic holds is read when this starts, and what differs from the store is written; from then on each change
    is. So whatever was missed in between, the topic comes to hold what the store does: of a key that changed several
    times while nobody fed the topic, the last value is a record. Records are in a journal on disk before they are sent.
    Until stores of the log are there it waits. ``kv_form.py`` says what a record looks like.

    One of them at a time feeds a topic: of two, each would write what the other has.

    Args:
        store: A master or a clone; or a shared map, or subtrees of one, see ``api.kv.map_store``.
        topic: The topic of the log; its records are to be those of this store alone.
        tower: ``HOST[:PORT]``, several separated by commas; defaults to the settings, as in ``Consumer``.
        listen: Interface of the producer.
        min_acks: Stores that must have each record, at least 1.
        compact_s: Compacted by key: of several changes of a key that wait only the last is written, and everything
            is written anew so often, in seconds. A retention of the topic by at least twice this age then bounds it
            without losing a key. None: every change is a record, once.
        identity: Under which journal and partition are kept; by default made of the names of store and topic.
        directory: Where they are kept; the user's data directory by default.
        security: Who it is in the log, as of ``Producer``.

    Raises:
        IdentityInUse: The same topic is being fed already by this user.
        UsageError: An argument is wrong.
    """

    def __init__(
        self,
        store: DataStore | SharedMap[Any],
        topic: str,
        *,
        tower: str | None = None,
        listen: str | None = None,
        min_acks: int = 1,
        compact_s: float | None = None,
        identity: str | None = None,
        directory: str | Path | None = None,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        tower = settings.tower(tower)
        if compact_s is not None and not compact_s > 0:
            raise UsageError(f"compact_s is a number of seconds above 0, or None, not {compact_s!r}")
        if topic.endswith("*"):
            raise UsageError(f"a store is written to one topic, not to all of {topic}")
        super().__init__(store, topic, tower, to_topic=True)
        key = repr((self._store.name, topic)).encode()
        name = identity or f"store-{hashlib.sha256(key).hexdigest()[:24]}"
        self._security = security
        self._compact_s = compact_s
        self._sender = Sender(topic, tower, listen, min_acks, name, directory, security)
        self._producer = self._sender.producer
        self._held: dict[bytes, bytes] = {}  # what the topic holds: keys, and digests of their values
        self._version: int | None = None  # of the store, as far as it is written; None: look at all of it
        self._stamp = 0  # no record is older: what comes later counts, whatever the clock does
        self._anew_at = 0.0
        self._dropped = 0
        self._ready = False
        self._thread.start()

    @property
    def partition(self) -> str:
        """The partition of the topic that records go to; the same from run to run."""
        return self._producer.partition

    def progress(self) -> Fed:
        """Return the counters since this bridge was started."""
        return Fed(*self._sender.account(), self._dropped, self._ready)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that the store holds now is in the topic and stored.

        Raises:
            TimedOut: Not yet; it still may be.
            Closed: This, the store or its endpoint was closed.
            ChappeError: It has failed for good; the text says why.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = self._store.version
        self._flush(lambda: self._version is not None and self._version >= wanted, timeout)
        self._producer.flush(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    def close(self, timeout: float | None = 10.0) -> Fed:
        """Write what is new, wait until it is stored, and leave; return the account. Safe to call twice.

        After ``timeout`` seconds what is not stored yet stays in the journal, and what is not a record yet is found by
        the next one that feeds this topic.
        """
        if not self._stopping:
            try:
                self.flush(timeout)
            except ChappeError as error:
                if not isinstance(error, TimedOut) and error is not self._error:
                    logger.info("%s", error)  # the store went first: what it had last cannot be asked any more
            self._stopping = True
            self._thread.join()
        found = self.progress()
        self._sender.leave()
        return found

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(10.0 if kind is None else 0.0)

    # -- inside -----------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            self._feed()
        except StaleData:
            self._wait(STALE_S)  # a clone whose master is away
        else:
            self._wait_for_changes()

    def _wait_for_changes(self) -> None:
        with self._store.watch():  # nobody reads it: a change that somebody watches ends the wait at once
            turns = self._store.turns if isinstance(self._store, MapStore) else self._store.endpoint.node.turns
            turns.wait(self._due, LOOK_S)

    def _due(self) -> bool:
        return self._stopping or self._store.version != self._version or self._is_old()

    def _is_old(self) -> bool:
        return self._compact_s is not None and time.monotonic() >= self._anew_at

    def _begin(self) -> None:
        if isinstance(self._store, MapStore):
            self._store.follow()
        self._producer.flush(LOOK_S)  # what an earlier run had left
        now = TopicNow(self.topic, self._tower, self._security)
        ours = now.known.get(self.partition)
        if (ours.next if ours else 0) < self._producer.next_offset:
            raise TimedOut("no store that has its earlier records answers")
        places: dict[bytes, RecordPlace] = {}
        self._held = {}
        for record in now.records():
            key, place = record.key, place_of(record)
            if key is not None and place > places.get(key, NOWHERE):
                places[key] = place
                self._stamp = max(self._stamp, place.timestamp + 1)
                self._hold(key, record.value, dict(record.headers).get(EXPIRES, b""))
        self._ready = True

    def _feed(self) -> None:
        anew = self._is_old()
        changes = None if self._version is None or anew else self._store.changes_since(self._version)
        if changes is None:
            self._write_all(anew)
        elif changes:
            self._write_changes(changes)
        self._tell()

    def _write_all(self, anew: bool) -> None:
        version = self._store.version
        entries = [each.typed for each in self._store.snapshot() if not is_mark(each.key)]
        rows: list[StoreRow] = []
        here = set()
        for each in entries:
            row = row_of(each.key, each.value, each.version, expires_ns=each.expires_ns)
            here.add(row.key)
            if anew or self._held.get(row.key) != _digest(row.value or b"", row.expires):
                rows.append(row)
                if len(rows) >= ROWS_MAX:
                    self._write(rows)
                    rows = []
        self._write(rows)
        self._write([StoreRow(key, None, version) for key in self._held if key not in here])
        self._version = version
        self._anew_at = time.monotonic() + (self._compact_s or 0.0)

    def _write_changes(self, changes: Sequence[DataStoreEvent | Typed]) -> None:
        rows = [_row(each) for each in changes if not is_mark(each.key)]
        self._write(rows if self._compact_s is None else {row.key: row for row in rows}.values())
        self._version = changes[-1].version

    def _write(self, rows: Iterable[StoreRow]) -> None:
        """Make records of rows; waits for room. What was not written when this is to end, the next run finds."""
        self._stamp = max(self._stamp, time.time_ns() // 1000)
        kept = [row if fits(row) else self._drop(row) for row in rows]
        at = 0
        for count, raw in pack(kept, self._stamp):
            while True:
                if self._stopping:
                    raise Closed("this is being closed")
                try:
                    self._producer.send_batch(raw)
                    break
                except (BufferFull, Sealed) as error:
                    self._sender.wait(error)
            for row in kept[at : at + count]:
                self._hold(row.key, row.value, row.expires)
            at += count

    def _hold(self, key: bytes, value: bytes | None, expires: bytes) -> None:
        if value is None:
            self._held.pop(key, None)
        else:
            self._held[key] = _digest(value, expires)

    def _drop(self, row: StoreRow) -> StoreRow:
        """Drop a row that is too large: rather no value in the topic than an old one."""
        self._dropped += 1
        logger.warning(
            "the value of a key of store %r is larger than a record can be, and is not in topic %r",
            self._store.name,
            self.topic,
        )
        return row._replace(value=None)


def _row(event: DataStoreEvent | Typed) -> StoreRow:
    change = event.typed
    assert isinstance(change, Change)
    entry = change.entry
    if entry is None:
        return row_of(change.key, None, change.version, gone=True)
    return row_of(change.key, entry.value, change.version, expires_ns=entry.expires_ns)


def _digest(value: bytes, expires: bytes) -> bytes:
    return hashlib.blake2b(value + b"/" + expires, digest_size=16).digest()
