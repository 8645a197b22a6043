"""The stores as the driver of a query or a reader sees them: one picture, kept up to date by asking each for changes.

A store that does not answer is left out of the picture and asked again later; with a tower, that is also when the
stores are looked up anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from chappe.errors import ProtocolError, TimedOut
from chappe.log.storage import PartitionInfo
from chappe.reading.offsets import Key, KnownPartition
from chappe.reading.selection import Selection
from chappe.security import LogSecurity
from chappe.system import time
from chappe.transports.queries import StoreClient

logger = logging.getLogger(__name__)

HEADS_TIMEOUT_S: Final = 3.0  # a store that has not answered by then is left out
AWAY_S: Final = 5.0  # ... for this long
FULL_S: Final = 30.0  # everything is asked anew, in case a store was replaced behind our back ...
FULL_SHARE: Final = 50  # ... but at most this part of the time goes into that: it takes long where partitions are many
DISCOVER_S: Final = 2.0  # how long a tower is listened to


def discover(tower: str, security: LogSecurity = None) -> list[str]:
    from chappe.api.log.discovery import discover as ask_tower

    return [each.endpoint for each in ask_tower(tower, timeout=DISCOVER_S, security=security)]


@dataclass(slots=True)
class _Store:
    client: StoreClient | None = None
    since: list[int] = field(default_factory=list)  # for each filter
    infos: dict[Key, PartitionInfo] = field(default_factory=dict)
    away_until: float = 0.0
    full_at: float = 0.0


class StoresView:
    """All selected partitions, over all stores.

    Not for use by two threads at once. Args:
        stores: Query endpoints; empty to ask ``tower`` for them.
        tower: Address of a tower, asked when a store is missing.
        find: Looks stores up at a tower.
        security: Who we are, if stores have keys.
    """

    def __init__(
        self,
        selection: Selection,
        stores: Sequence[str] = (),
        tower: str | None = None,
        *,
        find: Callable[[str], list[str]] | None = None,
        security: LogSecurity = None,
    ) -> None:
        self.known: dict[Key, KnownPartition] = {}
        """Of every partition, what all stores together have."""
        self._selection = selection
        self._tower = tower
        self._security = security
        self._find = find or partial(discover, security=security)
        self._find_at = 0.0
        self._stores = {endpoint: _Store() for endpoint in stores}
        self._answered = False
        self._most = len(self._stores)  # that were there at once

    @property
    def endpoints(self) -> list[str]:
        return list(self._stores)

    @property
    def away(self) -> list[str]:
        return [endpoint for endpoint, store in self._stores.items() if store.client is None]

    @property
    def whole(self) -> bool:
        """True if everybody answers, and no fewer stores than there once were: nobody else has what these lack."""
        return not self.away and len(self._stores) >= self._most

    def meet(self, endpoints: Iterable[str]) -> None:
        """Ask these stores too, from the next refresh on."""
        for each in endpoints:
            self._stores.setdefault(each, _Store())
        self._most = max(self._most, len(self._stores))

    def client(self, endpoint: str) -> StoreClient | None:
        store = self._stores.get(endpoint)
        return None if store is None else store.client

    def refresh(self) -> set[Key]:
        """Ask every store what changed; return the partitions for which anything did. Raises TimedOut: no store has
        ever answered: most likely the addresses are wrong. Later, a picture of no stores is an empty one, and no error.
        """
        self._look_up()
        changed: set[Key] = set()
        for endpoint, store in self._stores.items():
            if store.client is None and time.monotonic() < store.away_until:
                continue
            try:
                changed |= self._ask(endpoint, store)
                self._answered = True
            except (TimedOut, ProtocolError) as error:
                logger.warning("%s; going on without it", error)
                changed |= self._leave(store)
        for key in changed:
            self._merge(key)
        if not self._answered:
            raise TimedOut(self._nobody())
        return changed

    def close(self) -> None:
        for store in self._stores.values():
            self._leave(store)

    def _nobody(self) -> str:
        if self._stores:
            return f"no store answers at {', '.join(self._stores)}; start one or correct the addresses"
        return f"the tower at {self._tower} knows no store; start one or correct the address"

    def _look_up(self) -> None:
        if self._tower is None or not (self.away or not self._stores) or time.monotonic() < self._find_at:
            return
        found = self._find(self._tower)
        self._find_at = time.monotonic() + AWAY_S
        for endpoint in found:
            self._stores.setdefault(endpoint, _Store())
        for endpoint in self.away:
            if endpoint not in found:
                del self._stores[endpoint]
        self._most = max(self._most, len(self._stores))

    def _ask(self, endpoint: str, store: _Store) -> set[Key]:
        now = time.monotonic()
        if store.client is None:
            store.client = StoreClient(endpoint, HEADS_TIMEOUT_S, self._security)
            store.full_at = now
        fresh = now >= store.full_at
        filters = self._selection.filters
        since = [0] * len(filters) if fresh else store.since
        infos: dict[Key, PartitionInfo] = {}
        versions = []
        for each, version in zip(filters, since, strict=True):
            found, newest = store.client.heads(each.name, version)
            versions.append(newest)
            topics = self._selection.topics_of({info.topic for info in found})
            only = self._selection.partitions
            for info in found:
                key = (info.topic, info.partition)
                if info.topic in topics and (only is None or key in only):
                    infos[key] = info
        changed = set(infos)
        if fresh:
            changed |= set(store.infos)
            store.infos = infos
            took = time.monotonic() - now
            store.full_at = now + max(FULL_S, FULL_SHARE * took)
        else:
            store.infos |= infos
        store.since = versions
        return changed

    def _leave(self, store: _Store) -> set[Key]:
        if store.client is not None:
            store.client.close()
        store.client = None
        store.away_until = time.monotonic() + AWAY_S
        changed, store.infos = set(store.infos), {}
        return changed

    def let_go(self) -> dict[Key, dict[str, int]]:
        """Count, per partition and store endpoint, the records that another holder has deleted."""
        found: dict[Key, dict[str, int]] = {}
        for key in self.known:
            begins = {
                e: s.infos[key].first for e, s in self._stores.items() if key in s.infos and s.infos[key].next > 0
            }
            last = max(begins.values(), default=0)
            more = {endpoint: last - first for endpoint, first in begins.items() if first < last}
            if more:
                found[key] = more
        return found

    def _merge(self, key: Key) -> None:
        have = {e: s.infos[key] for e, s in self._stores.items() if key in s.infos and s.infos[key].next > 0}
        if not have:
            self.known.pop(key, None)
            return
        # an empty copy (all retired) says how far the partition went, but where it begins only others can tell
        kept = [info for info in have.values() if info.first < info.next] or list(have.values())
        self.known[key] = KnownPartition(
            min(info.first for info in kept),
            max(info.next for info in have.values()),
            max(info.bytes for info in have.values()),
            tuple(have),
            min((info.timestamp_min for info in kept if info.first < info.next), default=0),
            max((info.timestamp_max for info in kept if info.first < info.next), default=0),
        )
