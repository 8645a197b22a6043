"""From a topic of the log into a data store: the latest record of each key is what the store has under it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from chappe.api.kv.map_store import MapStore
from chappe.api.kv.shared_map import SharedMap
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.consumer import Consumer
from chappe.bridges.keeping import LOOK_S, NOWHERE, RecordPlace, StoreMirror, TopicNow, place_of
from chappe.bridges.kv_form import POSITION, StoreEntry, entry_of, is_mark
from chappe.data.topic import Filter
from chappe.errors import BackendFailure, InvalidData, OffsetOutOfRange, UsageError
from chappe.security import LogSecurity
from chappe.system import settings, time
from chappe.system.forking import own

if TYPE_CHECKING:
    from chappe.api.kv.data_store import DataStore

logger = logging.getLogger(__name__)

RECORDS_MAX: Final = 16_384  # taken into the store at once
RETRY_S: Final = 1.0  # what a store's disk has refused is tried again after this long
POSITION_S: Final = 1.0  # how often the position is written down while records come; and when they pause


@dataclass(slots=True)
class TakenRecords:
    records: int = 0  # taken from the topic, of this run
    changes: int = 0  # keys that were set or erased, of this run
    skipped: int = 0  # records without a key, and damaged ones
    ready: bool = False  # it has begun; before that nothing is taken


class TopicToDataStore(StoreMirror):
    """Keeps a topic as a table in a data store, until it is closed; a context.

    A record sets its key, one without a value erases it. The latest counts, as in ``chappe.spark.read_table``: by
    timestamp, then partition, then offset, in whatever order records come. What retention removes from the topic stays
    in the store.

    The place up to which the topic was taken is kept in the store itself, under keys that are vectors beginning with
    ``chappe/from-topic``, and is written after the records before it are done. So a store that lasts goes on where it
    was, one in memory begins anew with the topic, and neither misses a record. Where it goes on, the keys of older
    records are read once more to know which are the latest; what is in the store is not written again.

    Nobody else should write the same keys.

    Args:
        store: The master; or a shared map, see ``api.kv.map_store``: what cannot be in it is left out and counted.
        tower: ``HOST[:PORT]``, several separated by commas; defaults to the settings, as in ``Consumer``.
        listen: Interface of the consumer.
        security: Who it is in the log, as of ``Consumer``.

    Raises:
        UsageError: The store is a clone, a map does not hold the keys of places, or an argument is wrong.
    """

    def __init__(
        self,
        store: DataStore | SharedMap[Any],
        topic: str,
        *,
        tower: str | None = None,
        listen: str | None = None,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        tower = settings.tower(tower)
        if not isinstance(store, SharedMap) and store.role != "master":
            raise UsageError(f"a topic is kept in the master of a store; here {store.name!r} is a clone")
        if Filter.parse(topic).prefix:
            raise UsageError(f"a store is kept from one topic, not from all of {topic}")
        super().__init__(store, topic, tower, to_topic=False)
        if isinstance(self._store, MapStore):
            self._store.keep_marks()
        self._security = security
        self._positions = self._kept()
        self._saved: dict[str, int] = dict(self._positions)
        self._saved_at = time.monotonic()
        self._places: dict[bytes, RecordPlace] = {}
        self._done = TakenRecords()
        self._consumer = Consumer(topic, tower=tower, listen=listen, reset="earliest", security=security)
        for partition, offset in self._positions.items():
            self._consumer.seek(topic, partition, offset)
        self._thread.start()

    def progress(self) -> TakenRecords:
        """Return counters since this bridge was started."""
        return replace(self._done)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that is known to be in the topic is in the store.

        Raises:
            TimedOut: Not yet; or no store of the log is there to tell what the topic has.
            Closed: This, the store or its endpoint was closed.
            ChappeError: It has failed for good; the text says why.
        """
        self._flush(self._is_at_end, timeout)

    def close(self) -> TakenRecords:
        """Leave, after what was taken is done and its place written down; return the account. Safe to call twice.

        While a map has no server that confirms what is written this is not waited for: it is taken again next time.
        """
        self._stopping = True
        self._thread.join()
        self._consumer.close()
        return self.progress()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._positions:
            self._places = TopicNow(self.topic, self._tower, self._security).places(self._positions)
        self._done.ready = True

    def _turn(self) -> None:
        try:
            batch = self._consumer.poll(LOOK_S)
        except OffsetOutOfRange as error:  # retention was faster; the consumer goes on with the earliest there is
            logger.warning("%s", error)
            return
        found: dict[bytes, StoreEntry] = {}
        reached: dict[str, int] = {}
        count = 0
        while batch is not None:
            self._take(batch, found)
            reached[batch.partition] = batch.next
            count += len(batch)
            batch = self._consumer.take() if count < RECORDS_MAX else None
        self._apply(found)
        self._positions.update(reached)
        self._done.records += count
        self._done.changes += len(found)
        if not count or time.monotonic() >= self._saved_at + POSITION_S:
            self._save()
        self._tell()

    def _end(self) -> None:
        self._save()

    def _take(self, batch: ConsumedBatch, found: dict[bytes, StoreEntry]) -> None:
        for record in batch:
            key, place = record.key, place_of(record)
            if key is None:
                self._done.skipped += 1
                continue
            if place <= self._places.get(key, NOWHERE):
                continue
            self._places[key] = place
            try:
                entry = entry_of(key, record.value, record.headers)
                if isinstance(self._store, MapStore):
                    self._store.fits(entry.key, entry.value, gone=entry.gone)
            except InvalidData as problem:
                self._done.skipped += 1
                logger.warning("a record of topic %r is left out: %s (%s)", self.topic, problem, place)
                continue
            if not is_mark(entry.key):
                found[key] = entry

    def _apply(self, found: Mapping[bytes, StoreEntry]) -> None:
        """Set and erase, and wait until that is done: durably, on a master that lasts, and whose disk may be full."""
        told = False
        while True:
            try:
                self._change(found)
                return
            except BackendFailure as error:
                if self._stopping:
                    raise
                if not told:
                    told = True
                    logger.warning("%s; still trying", error)
                self._wait(RETRY_S)

    def _change(self, found: Mapping[bytes, StoreEntry]) -> None:
        now_ns = time.time_ns()
        lasting: list[tuple[Any, Any]] = []
        for each in found.values():
            if each.gone or (each.expires_ns is not None and each.expires_ns <= now_ns):
                self._store.erase(each.key, timeout=None)
            elif each.expires_ns is None:
                lasting.append((each.key, each.value))
            else:
                self._store.put(each.key, each.value, expiry_s=(each.expires_ns - now_ns) / 1e9, timeout=None)
        if lasting:
            self._store.put_many(lasting)

    def _save(self) -> None:
        new = {name: offset for name, offset in self._positions.items() if self._saved.get(name) != offset}
        if new:
            self._store.put_many([((POSITION, self.topic, name), offset) for name, offset in new.items()])
            self._saved.update(new)
        self._saved_at = time.monotonic()

    def _kept(self) -> dict[str, int]:
        """Return the place that an earlier run has written down."""
        found: dict[str, int] = {}
        for key, offset in self._store.items():
            if is_mark(key) and key[:2] == (POSITION, self.topic) and len(key) == 3 and isinstance(offset, int):
                found[str(key[2])] = int(offset)
        return found

    def _is_at_end(self) -> bool:
        if not self._done.ready or not self._consumer.at_end():
            return False
        taken = self._positions
        return all(taken.get(partition, 0) >= head for (_, partition), head in self._consumer.heads().items())
