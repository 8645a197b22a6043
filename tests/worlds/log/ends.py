"""The promise of the end: what stores had when it was sought is in front of it, and is delivered before it is reached.

It is only listened to what consumers hear anyhow: a world with this checker is the same as one without. Those that
leave it to their node to ask for news have to ask what there is, as programs do; they do it now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.worlds.log.subjects import ConsumerSubject, StoreSubject
from tests.worlds.log.world import WatchedLog

from chappe.data.topic import Filter
from chappe.log.sources import Key
from chappe.sim.world import Checker

PAUSE_S = 3.0  # those that have to ask seek the end this long after they have reached it


@dataclass(slots=True)
class Sought:
    """One consumer seeks the end."""

    since: float
    filters: tuple[Filter, ...]
    stores: list[StoreSubject]  # those that it knew
    had: dict[Key, int]  # what they had of what was acknowledged
    end: dict[Key, int] | None = None


class Ends(Checker[WatchedLog]):
    """The end that a consumer is told has everything in front of it that its stores had acknowledged before."""

    name = "end"

    def __init__(self, world: WatchedLog) -> None:
        super().__init__(world)
        self._sought: dict[ConsumerSubject, Sought] = {}

    def on_tick(self) -> None:
        """See who knows the end, who has reached it, and who may seek it anew."""
        consumers = self.world.alive(ConsumerSubject)
        for gone in self._sought.keys() - set(consumers):
            del self._sought[gone]
        for host in consumers:
            sought = self._sought.get(host)
            if sought is None or self._over(host, sought):
                if self.world.limits.apart_max:
                    self._sought[host] = self._seek(host)
                elif sought is None or self.world.now > sought.since + PAUSE_S:
                    self._sought[host] = self._seek(host)
                    host.seek_end()

    def _seek(self, host: ConsumerSubject) -> Sought:
        known = host.core.store_addresses
        stores = [store for store in self.world.alive(StoreSubject) if store.address in known]
        had: dict[Key, int] = {}
        for key, sent in self.world.truth.parts.items():
            if host.wants_topic(key[0]) and not sent.lost:
                parts = [part for store in stores if (part := store.disk.parts.get(key)) is not None]
                had[key] = min(sent.acknowledged, max((part.next for part in parts), default=0))
        return Sought(self.world.now, host.filters, stores, had)

    def _over(self, host: ConsumerSubject, sought: Sought) -> bool:
        """Whether the end was reached, the consumer changed its topics, or those who told of the end are gone."""
        core = host.core
        if host.filters != sought.filters:
            return True
        if not all(store.alive and store.address in core.store_addresses for store in sought.stores):
            return True
        if sought.end is None:
            sought.end = core.end(sought.since, self.world.now)
            for key, had in sought.had.items():
                if sought.end is not None and sought.end.get(key, 0) < had and not self.world.truth.of(key).lost:
                    self.fail(f"{host.name} is told that {key} ends at {sought.end.get(key, 0)}, its stores had {had}")
        if sought.end is None or host.lacking(sought.end):
            return False
        for key, had in sought.had.items():
            waited = host.min_acks > 1  # for so long that a store may have removed it meanwhile
            kept = self.world.retained_from(key)  # at ``had`` or behind it nothing of that is left anywhere
            gone = kept if waited or kept >= had else self.world.trimmed.get(key, 0)
            reached = max(host.positions.get(key, 0), gone)
            if reached < had and not self.world.truth.of(key).lost:
                self.fail(f"{host.name} has reached the end, but of {key} only {host.positions.get(key, 0)} of {had}")
        return True

    def unsettled(self) -> str | None:
        """Whoever knows a store knows the end, soon."""
        for host, sought in self._sought.items():
            if host.alive and sought.stores and sought.end is None and self.world.now - sought.since > 5.0:
                return f"{host.name} seeks the end since {sought.since:.1f}"
        return None
