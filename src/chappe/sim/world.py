"""One world: members, their network, the truth about what was sent, and the checkers that watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from chappe.data.topic import Filter
from chappe.errors import StorageError
from chappe.limits import LOG_LIMITS
from chappe.log.consumer import LogConsumer
from chappe.log.exactly_once.staged import Intent
from chappe.log.producer import LogProducer
from chappe.log.sources import Key
from chappe.log.storage import Retention
from chappe.log.store import LogStore
from chappe.sim.checkers import Checker, all_checkers
from chappe.sim.clock import Clock
from chappe.sim.disk import SimDisk
from chappe.sim.ends import Ends
from chappe.sim.exactly_once import ExactlyOnce
from chappe.sim.journals import Journal
from chappe.sim.members import ConsumerHost, ProducerHost
from chappe.sim.network import Network
from chappe.sim.node import Host
from chappe.sim.originals import OriginalHost, OriginalProducer, OriginalStore
from chappe.sim.sinks import Query
from chappe.sim.stores import StoreHost
from chappe.sim.towers import Tower
from chappe.sim.truth import Truth, Violation

TOPICS = ("a", "ab", "b.x")
SINKS = 0.35  # of the worlds have some
FILTERS = ("a", "ab", "b.x", "a*", "*")


@dataclass(frozen=True)
class Cores:
    """What is under test; broken ones are put here to see that the checkers notice."""

    store: type[LogStore] = LogStore
    producer: type[LogProducer] = LogProducer
    consumer: type[LogConsumer] = LogConsumer
    disk: type[SimDisk] = SimDisk


class Member:
    """A name under which one host lives after the other."""

    def __init__(self, world: World, name: str, make: Callable[[], Host]) -> None:
        self.world = world
        self.name = name
        self.make = make
        self.host = make()
        self.gone = False  # for good
        self.host.start()

    @property
    def alive(self) -> bool:
        """Whether it runs at present."""
        return self.host.alive

    def crash(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Stop it, if it runs."""
        if self.host.alive:
            self.host.die(goodbye=goodbye, notice_s=notice_s)

    def restart(self) -> None:
        """Run it again, if it does not run and may."""
        if self.host.alive or self.gone:
            return
        try:
            self.host = self.make()
        except StorageError as error:  # a commit is decided, and its disk has no room for it
            self.world.trace(self.host, "cannot start: %s", error)
            self.world.clock.after(1.0, self.restart)
        else:
            self.host.start()


class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, *, cores: Cores | None = None, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.clock = Clock(seed)
        self.rng = self.clock.rng
        self.sink_rng = Random(f"sinks {seed}")  # of their own: a world without sinks is what it was before
        self.journal_rng = Random(f"journals {seed}")  # likewise
        self.journals: list[Journal] = []
        self.disk_rng = Random(f"disks {seed}")
        self.queries: list[Query] = []
        self.cores = cores or Cores()
        self.truth = Truth()
        self.net = Network(self.clock)
        self.checkers: list[Checker] = [ExactlyOnce(self), Ends(self), *all_checkers(self)]
        self.limits = LOG_LIMITS  # the cores' limits in this world
        self.sending = True
        self.serial = 0
        self.slow_disk_s = self.rng.choice((0.001, 0.01, 0.1))
        self.members: list[Member] = []
        self.disks: list[SimDisk] = []
        self.disk_of: dict[str, SimDisk] = {}  # by the address of a store, in whichever life
        self.retained: dict[str, int] = {}  # topic: records kept, if the world has retention
        self.told = tell is not None
        self.begun: dict[Key, int] = {}  # where stores began that knew no other which has what came before
        self._tell = tell
        self._addresses = 0
        self.towers = [Tower(self, f"tower{n}") for n in range(self.rng.choice((1, 1, 2)))]

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.clock.now

    def address(self) -> str:
        """A fresh address."""
        self._addresses += 1
        return f"{self.rng.getrandbits(24):06X}{self._addresses:026X}"

    def write_s(self) -> float:
        """How long the next write takes."""
        return self.slow_disk_s * self.rng.expovariate(1.0)

    def trace(self, who: Any, text: str, *args: object) -> None:
        """Tell what happens, if somebody listens."""
        if self._tell is not None:
            self._tell(f"{self.now:9.4f}  {'' if who is None else who.name:<10} {text % args}")

    def fail(self, checker: str, text: str) -> None:
        """A promise was broken."""
        raise Violation(checker, text)

    # -- members ------------------------------------------------------------------------------------------

    def populate(self) -> None:
        """Make the first members."""
        rng = self.rng
        if rng.random() < 0.15:
            self.retained = {topic: rng.choice((10, 50)) for topic in rng.sample(TOPICS, rng.choice((1, 3)))}
        for _ in range(rng.choice((1, 2, 2, 3))):
            self.add_store()
        for _ in range(rng.randint(1, 4)):
            self.add_producer()
        for _ in range(rng.randint(1, 3)):
            self.add_consumer()
        if rng.random() < 0.15:
            self.add_original_producer()
        if rng.random() < 0.1:
            self.add_original_store()
        if self.sink_rng.random() < SINKS:
            for _ in range(self.sink_rng.choice((1, 1, 2))):
                home = self.sink_rng.choice(self.disks)
                self.queries.append(Query(self, f"query{len(self.queries)}", home, TOPICS))

    def _name(self, kind: str) -> str:
        return f"{kind}{sum(member.name.startswith(kind) for member in self.members)}"

    def _add(self, kind: str, make: Callable[[str], Host]) -> Member:
        name = self._name(kind)
        member = Member(self, name, lambda: make(name))
        self.members.append(member)
        return member

    def add_store(self) -> Member:
        """A store with a disk of its own."""
        disk = self.cores.disk(f"store-{len(self.disks)}")
        self.disks.append(disk)
        policies: Sequence[tuple[str, Retention]] = [(t, Retention(records=n)) for t, n in self.retained.items()]

        def make(name: str) -> Host:
            if disk.parts:
                disk.restarted(scrub=self.rng.random() < 0.5)
            return StoreHost(self, name, disk, policies)

        return self._add("store", make)

    def add_producer(self) -> Member:
        """A producer; with a journal it resumes its partition, without one each life has its own."""
        rng = self.rng
        topic = rng.choice(TOPICS)
        min_acks = rng.choice((1, 1, 1, min(2, len(self.disks))))
        journal = Journal(self.journal_rng) if rng.random() < 0.5 else None
        lasting = self.address()
        identities: dict[str, Journal] = {}
        if journal is not None:
            self.journals.append(journal)
            identities[lasting] = journal

        def renew(name: str) -> None:
            """The user goes on with a new identity."""
            identities.clear()
            identities[f"{name}-{self.now:.6f}"] = Journal(self.journal_rng)

        def make(name: str) -> Host:
            for address, used in identities.items():
                renewed = partial(renew, name)
                return ProducerHost(self, name, topic, address, min_acks, used.reopened(), renewed)
            return ProducerHost(self, name, topic, self.address(), min_acks, None)

        return self._add("producer", make)

    def add_consumer(self) -> Member:
        """A consumer; in its next life it goes on from where its application had come, or begins anew."""
        rng = self.rng
        filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
        lasting = rng.random() < 0.5
        committed: dict[Key, int] = {}
        latest: list[ConsumerHost] = []

        def make(name: str) -> Host:
            if latest and lasting:
                committed.update(latest[-1].positions)
            host = ConsumerHost(self, name, filters, dict(committed))
            if latest and lasting:
                host.met |= latest[-1].met
            latest[:] = [host]
            return host

        return self._add("consumer", make)

    def add_original_producer(self) -> Member:
        """A producer as the C program is one."""
        topic = self.rng.choice(TOPICS)
        return self._add("cproducer", lambda name: OriginalHost(self, name, OriginalProducer(topic, self.address())))

    def add_original_store(self) -> Member:
        """A store as the C program is one."""
        return self._add("cstore", lambda name: OriginalHost(self, name, OriginalStore(self.address())))

    def decided(self, intent: Intent) -> None:
        """A store has decided a commit: from now on it must be there once, as the query staged it."""
        next(query for query in self.queries if query.sink == intent.sink).decided(intent)

    def stores(self) -> list[StoreHost]:
        """The stores that run."""
        return [m.host for m in self.members if m.alive and isinstance(m.host, StoreHost)]

    def producers(self) -> list[ProducerHost]:
        """The producers that run."""
        return [m.host for m in self.members if m.alive and isinstance(m.host, ProducerHost)]

    def consumers(self) -> list[ConsumerHost]:
        """The consumers that run."""
        return [m.host for m in self.members if m.alive and isinstance(m.host, ConsumerHost)]

    def original_stores(self) -> list[OriginalStore]:
        """The original stores."""
        return [m.host.role for m in self.members if isinstance(m.host.role, OriginalStore)]

    def holdings(self, key: Key, disks: Iterable[SimDisk] | None = None) -> list[tuple[int, int]]:
        """What any of the disks has of a partition, that of a store which is down included: sorted, without overlap.

        Those of original stores are always among them.
        """
        among = self.disks if disks is None else disks
        found = [span for disk in among if (part := disk.parts.get(key)) for span in part.sound()]
        found += [(0, len(kept)) for store in self.original_stores() if (kept := store.parts.get(key))]
        joined: list[tuple[int, int]] = []
        for low, high in sorted(found):
            if joined and low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        return joined

    def held_within(self, key: Key, first: int, end: int, disks: Iterable[SimDisk]) -> int | None:
        """The first of the offsets ``first`` <= n < ``end`` that any of the disks has."""
        if first >= end:
            return None
        return next((max(low, first) for low, high in self.holdings(key, disks) if low < end and high > first), None)

    def missing_within(self, key: Key, first: int, end: int) -> Iterator[int]:
        """Those of the offsets ``first`` <= n < ``end`` that no disk has."""
        at = first
        for low, high in [*self.holdings(key), (end, end)]:
            yield from range(at, min(low, end))
            at = max(at, high)

    def incomplete(self, key: Key) -> bool:
        """Whether nobody has all of a partition any more, so that those who know of it go on asking."""
        return any(True for _ in self.missing_within(key, 0, len(self.truth.of(key).records)))

    def retained_from(self, key: Key) -> int:
        """The first offset that every store must still have; later than 0 only where there is retention."""
        if key[0] not in self.retained:
            return 0
        return max((part.first for disk in self.disks if (part := disk.parts.get(key)) is not None), default=0)

    def ends(self) -> dict[Key, int]:
        """The offset after the last one on any running store's disk, by partition."""
        found: dict[Key, int] = {}
        for store in self.stores():
            for key, part in store.disk.parts.items():
                found[key] = max(found.get(key, 0), part.next)
        return found
