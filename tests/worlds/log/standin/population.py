"""Who lives in a world of the log, and how each of them is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from tests.worlds.journals import Journal
from tests.worlds.log.standin.members import ConsumerHost, ProducerHost
from tests.worlds.log.standin.stores import StoreHost
from tests.worlds.log.standin.world import LogWorld
from tests.worlds.log.world import FILTERS, TOPICS

from chappe.data.topic import Filter
from chappe.log.sources import Key
from chappe.log.storage import Retention
from chappe.sim.host import SimHost, SimMember

LODGERS = 0.2  # of the worlds have consumers that share a node


class PopulatedLog(LogWorld):
    """A world of the log with members."""

    producer: type[ProducerHost] = ProducerHost
    consumer: type[ConsumerHost] = ConsumerHost
    journal: type[Journal] = Journal

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
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
        if rng.random() < 0.15:
            self.add_producer()
        if rng.random() < 0.02:
            self.add_store()
        self._begin_lodgers()

    def _begin_lodgers(self) -> None:
        if not self.settings.plain and self.lodger_rng.random() < LODGERS:
            for number in range(self.few(self.lodger_rng.choice((1, 1, 2)))):
                self.clock.after(self.lodger_rng.choice((0.0, 0.5, 2.0)), self._lodge, f"lodger{number}", None)

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
