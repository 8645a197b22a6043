"""Who lives in a world of the log, and how each of them is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from tests.worlds.journals import Journal
from tests.worlds.log.members import ConsumerHost, ProducerHost
from tests.worlds.log.originals import OriginalHost, OriginalProducer, OriginalStore
from tests.worlds.log.sinks import Query
from tests.worlds.log.stores import StoreHost
from tests.worlds.log.world import SEALED, LogWorld

from chappe.data.topic import Filter
from chappe.log.consumer import LAST
from chappe.log.sources import Key
from chappe.log.storage import Retention
from chappe.sim.host import SimHost, SimMember

TOPICS = ("a", "ab", "b.x")
SINKS = 0.35  # of the worlds have some
FILTERS = ("a", "ab", "b.x", "a*", "*")
LEAVING = 0.5  # of the worlds with original producers have some that leave once a store has acknowledged all
LODGERS = 0.2  # of the worlds have consumers that share a node


class PopulatedLog(LogWorld):
    """A world of the log with members."""

    sinks = SINKS
    original_stores = 0.1  # of the worlds have one
    producer: type[ProducerHost] = ProducerHost
    consumer: type[ConsumerHost] = ConsumerHost
    journal: type[Journal] = Journal

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.queries: list[Query] = []
        self.lodger_rng = Random(f"lodgers {self.seed}")  # of its own: a world without them is what it was before

    def populate(self) -> None:
        """Make the first members."""
        rng = self.rng
        if rng.random() < 0.15:
            self.retained = {topic: rng.choice((10, 50)) for topic in rng.sample(TOPICS, rng.choice((1, 3)))}
        elif self.more(0.15):
            self.retained = dict.fromkeys(TOPICS, self.more_rng.choice((10, 50)))
        for _ in range(self.few(rng.choice((1, 2, 2, 3)))):
            self.add_store()
        for _ in range(self.few(rng.randint(1, 4))):
            self.add_producer()
        for _ in range(self.few(rng.randint(1, 3))):
            self.add_consumer()
        originals = rng.random() < 0.15
        if originals:
            self.add_original_producer()
        if rng.random() < self.original_stores:
            self.add_original_store()
            originals = True
        late = Random(f"originals {self.seed}")
        if not self.settings.plain and late.random() < self.original_stores:
            self.clock.after(late.uniform(0.3, 3.0), self._add_late_original)
            originals = True
        alone = not (originals or self.lasts or self.settings.plain)
        self.sealed = alone and Random(f"sealed {self.seed}").random() < SEALED
        if self.sink_rng.random() < self.sinks:
            for _ in range(self.sink_rng.choice((1, 1, 2))):
                home = self.sink_rng.choice(self.disks)
                self.queries.append(Query(self, f"query{len(self.queries)}", home, TOPICS))
        self.watch(*self.queries)
        if self.alone:
            journal = self.journal(self.restore_rng)
            self.join("producer", self.producer_of(self.restore_rng.choice(TOPICS), 1, journal))
        self._begin_lodgers()

    def _begin_lodgers(self) -> None:
        if not self.settings.plain and self.lodger_rng.random() < LODGERS:
            for number in range(self.few(self.lodger_rng.choice((1, 1, 2)))):
                self.clock.after(self.lodger_rng.choice((0.0, 0.5, 2.0)), self._lodge, f"lodger{number}", None)
        if self.lasts:
            for number in range(self.few(self.last_rng.choice((1, 1, 2)))):
                self.clock.after(self.last_rng.choice((0.0, 0.5, 2.0, 6.0)), self._lodge_last, f"last{number}", None)

    def add_store(self) -> SimMember:
        """A store with a disk of its own."""
        return self.keeper("store", StoreHost)

    def keeper(self, kind: str, host: type[StoreHost]) -> SimMember:
        """One that keeps records on a disk of its own."""
        disk = self.cores.disk(f"{kind}-{len(self.disks)}")
        disk.rng = self.more_rng
        self.disks.append(disk)
        policies: Sequence[tuple[str, Retention]] = [(t, Retention(records=n)) for t, n in self.retained.items()]

        def make(name: str) -> SimHost:
            if disk.parts:
                disk.restarted(scrub=self.rng.random() < 0.5)
            return host(self, name, disk, policies)

        return self.join(kind, make)

    def add_producer(self) -> SimMember:
        """A producer; with a journal it resumes its partition, without one each life has its own."""
        rng = self.rng
        topic = rng.choice(TOPICS)
        min_acks = rng.choice((1, 1, 1, min(2, len(self.disks))))
        journal = self.journal(self.journal_rng) if rng.random() < 0.5 else None
        return self.join("producer", self.producer_of(topic, min_acks, journal))

    def producer_of(
        self, topic: str, min_acks: int, journal: Journal | None, kind: type[ProducerHost] | None = None
    ) -> Callable[[str], ProducerHost]:
        """What makes each life of a producer."""
        host = kind or self.producer
        lasting = self.address()
        identities: dict[str, Journal] = {}
        if journal is not None:
            self.journals.append(journal)
            identities[lasting] = journal

        def renew(name: str) -> None:
            """The user goes on with a new identity."""
            identities.clear()
            identities[f"{name}-{self.now:.6f}"] = self.journal(self.journal_rng)

        def make(name: str) -> ProducerHost:
            for address, used in identities.items():
                renewed = partial(renew, name)
                return host(self, name, topic, address, min_acks, used.reopened(), renewed)
            return host(self, name, topic, self.address(), min_acks, None)

        return make

    def add_consumer(self) -> SimMember:
        """A consumer; in its next life it goes on from where its application had come, or begins anew."""
        rng = self.rng
        filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
        lasting = rng.random() < 0.5
        committed: dict[Key, int] = {}
        latest: list[ConsumerHost] = []

        def make(name: str) -> SimHost:
            if latest and lasting:
                committed.update(latest[-1].taken())
            host = self.consumer(self, name, filters, dict(committed))
            if latest and lasting:
                host.met |= latest[-1].met
            latest[:] = [host]
            return host

        return self.join("consumer", make)

    def homes(self) -> list[ConsumerHost]:
        """Consumers to whose node others may come."""
        return [each for each in self.alive(ConsumerHost) if each.home is each]

    def _lodge(self, name: str, host: ConsumerHost | None) -> None:
        """A consumer comes to the node of another one, or leaves it; the last time it stays."""
        rng = self.lodger_rng
        homes = self.homes()
        if host is not None and host.alive:
            host.die()
        elif homes:
            filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
            host = ConsumerHost(self, name, filters, {}, rng.choice(homes))
            host.start()
        if self.sending:
            self.clock.after(rng.choice((0.1, 1.0, 4.0)), self._lodge, name, host)

    def _lodge_last(self, name: str, host: ConsumerHost | None) -> None:
        """The same with one that begins with the newest record of each key, and stays longer."""
        rng = self.last_rng
        homes = self.homes()
        if homes and (host is None or not host.alive or rng.random() < 0.2):
            if host is not None and host.alive:
                host.die()
            filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
            host = ConsumerHost(self, name, filters, {}, rng.choice(homes), LAST)
            host.start()
        if self.sending:
            self.clock.after(rng.choice((0.5, 2.0, 4.0)), self._lodge_last, name, host)

    def add_original_producer(self) -> SimMember:
        """A producer as the C program is one."""
        topic = self.rng.choice(TOPICS)
        leaves = None if self.settings.plain else Random(f"originals leave {self.seed}")
        if leaves is not None and leaves.random() > LEAVING:
            leaves = None

        def make(name: str) -> SimHost:
            host = OriginalHost(self, name, OriginalProducer(topic, self.address()))
            host.leaves = leaves
            return host

        return self.join("cproducer", make)

    def _add_late_original(self) -> None:
        """An original store comes when much has been sent already."""
        self.add_original_store()

    def add_original_store(self) -> SimMember:
        """A store as the C program is one."""
        return self.join("cstore", lambda name: OriginalHost(self, name, OriginalStore(self.address())))
