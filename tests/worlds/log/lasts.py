"""The promise of the newest records: who begins with them has of each key the newest one, and then misses nothing.

Where a partition begins, after its newest records, only its core knows; from what it says first on there are no gaps.
What is passed over before has no key, or a newer record of its key. Between partitions the truth knows no times: so
keys that one partition alone has are looked for in the end.
"""

from __future__ import annotations

from tests.worlds.log.subjects import ConsumerSubject, StoreSubject
from tests.worlds.log.world import WatchedLog, contents

from chappe.log.consumer import LAST
from chappe.log.delivery import Records
from chappe.log.events import LastValuesRefused, OutOfRange, RecordsLost
from chappe.log.sources import Key
from chappe.sim.host import SimHost
from chappe.sim.world import Checker


class _Had:
    """What one consumer got of one partition."""

    def __init__(self) -> None:
        self.got: set[int] = set()
        self.next = 0
        self.begun: int | None = None  # an offset from which on there are no gaps


class Lasts(Checker[WatchedLog]):
    """Consumers that begin with the newest record of each key miss none of them, get none twice, and go on in order."""

    name = "last"

    def __init__(self, world: WatchedLog) -> None:
        super().__init__(world)
        self._had: dict[ConsumerSubject, dict[Key, _Had]] = {}

    def on_deliver(self, host: ConsumerSubject, action: Records) -> None:
        """In order, as it was sent, and without gaps once the partition has begun."""
        if host.reset is not LAST:
            return
        key, batch, start = (action.topic, action.partition), action.batch, action.start
        had = self._of(host, key)
        if not host.wants_topic(action.topic):
            self.fail(f"{host.name} was given {action.topic!r}, which it does not want")
        if start < had.next:
            self.fail(f"{host.name} got {key} offset {start} again, {had.next} was next")
        if had.begun is not None and start > max(had.next, had.begun):
            self._gap(host, key, max(had.next, had.begun), start)
        if self.world.truth.of(key).records[start : batch.next] != contents(batch, start) and not self.world.originals:
            self.fail(f"{host.name} got {key} offset {start} otherwise than it was sent")
        had.got.update(range(start, batch.next))
        had.next = batch.next
        self._look(host)

    def on_report(self, host: SimHost, event: object) -> None:
        """A consumer gives something up: only what nobody has."""
        if not isinstance(host, ConsumerSubject) or host.reset is not LAST:
            return
        if isinstance(event, RecordsLost):
            had = self._of(host, (event.topic, event.partition))
            self._gap(host, (event.topic, event.partition), event.first, event.last + 1)
            had.next = max(had.next, event.last + 1)
        elif isinstance(event, OutOfRange):
            had = self._of(host, (event.topic, event.partition))
            self._gap(host, (event.topic, event.partition), event.offset, event.first)
            had.next = max(had.next, event.first)
        elif isinstance(event, LastValuesRefused):
            self.world.trace(host, "%s", event)

    def on_tick(self) -> None:
        """See where partitions have begun."""
        for host in self.world.alive(ConsumerSubject):
            if host.reset is LAST:
                self._look(host)
        for gone in [host for host in self._had if not host.alive]:
            del self._had[gone]

    def unsettled(self) -> str | None:
        """Of each key of one partition alone its newest record came, if a store has it."""
        if self.world.originals:
            return None  # what stores get from an original has lost its keys
        for host in self.world.alive(ConsumerSubject):
            if host.reset is LAST:
                self._look(host)
                for key in self.world.truth.parts:
                    if host.wants_topic(key[0]) and (missed := self._missed(host, key)) is not None:
                        return missed
        return None

    def _missed(self, host: ConsumerSubject, key: Key) -> str | None:
        newest = {of: offset for offset, (_, of) in enumerate(self.world.truth.of(key).records) if of is not None}
        had = self._of(host, key)
        kept = max(self.world.retained_from(key), self.world.begun.get(key, 0))
        for of, offset in newest.items():
            value = self.world.truth.of(key).records[offset][0]
            if not of.endswith(key[1].encode()) or value is None or offset in had.got or offset < kept:
                continue
            stores = self.world.alive(StoreSubject)
            parts = [part for store in stores if (part := store.disk.parts.get(key)) is not None]
            if parts and all(any(low <= offset < high for low, high in part.sound()) for part in parts):
                return f"{host.name} has not got {key} offset {offset}, the newest of {of!r}; {host.core.positions()}"
        return None

    def _of(self, host: ConsumerSubject, key: Key) -> _Had:
        return self._had.setdefault(host, {}).setdefault(key, _Had())

    def _look(self, host: ConsumerSubject) -> None:
        for key, at in host.core.positions().items():
            had = self._of(host, key)
            had.begun = at if had.begun is None else had.begun
            host.positions[key] = max(host.positions.get(key, 0), at)  # for those who ask how far it is

    def _gap(self, host: ConsumerSubject, key: Key, first: int, end: int) -> None:
        kept = self.world.retained_from(key)
        if self.world.limits.give_up_s < 2.0:
            began = (part.first for store in self.world.alive(StoreSubject) if (part := store.disk.parts.get(key)))
            kept = max([kept, *began])
        if not host.core.met_stores:
            return
        known = host.met | host.core.store_addresses
        disks = [disk for address, disk in self.world.disk_of.items() if address in known]
        offset = self.world.held_within(key, max(first, kept), end, disks)
        if offset is not None:
            self.fail(f"{host.name} passes over {key} offsets {first}..{end - 1}; a disk holds {offset}")
