"""Worlds of the log as users run it: producers, consumers, stores, towers and forwarders of the API, and originals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.worlds.log.aging import Ages, WatchedAged
from tests.worlds.log.checkers import all_checkers
from tests.worlds.log.disks import StoreDisk, WatchedCatalogue, WatchedStaged, WatchedStorage
from tests.worlds.log.ends import Ends
from tests.worlds.log.exactly_once import ExactlyOnce
from tests.worlds.log.faults import USUAL_S, LogFaults
from tests.worlds.log.lasts import Lasts
from tests.worlds.log.originals import OriginalProducer, OriginalResident, OriginalStore
from tests.worlds.log.reach import Originals, Shared
from tests.worlds.log.residents import (
    KEYED,
    ConsumerLife,
    ConsumerResident,
    ForwarderLife,
    ProducerLife,
    ProducerResident,
    StoreLife,
    StoreResident,
    TowerPlace,
)
from tests.worlds.log.sinks import Query
from tests.worlds.log.trims import Trims
from tests.worlds.log.world import FILTERS, LAST_CHOICES, LASTS, STORED, TOPICS, Cores, WatchedLog, opaque, small_limits
from tests.worlds.residents import Place, Resident
from tests.worlds.stage import DisturbedWorld, Replaced, Stage, kind_made_by

from chappe.api.log import consumer as consumers
from chappe.api.log import sealed, topic_writers
from chappe.api.log import store as stores
from chappe.core import Publish
from chappe.data.topic import Filter
from chappe.defaults import SEGMENT_ENTRIES
from chappe.errors import ChappeError
from chappe.limits import LogLimits
from chappe.log.batch import Batch
from chappe.log.consuming import ConsumingMember
from chappe.log.exactly_once.staged import Finishing, recover
from chappe.log.journal import ROTATE_BYTES
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, RecordMessage, Stored, decode
from chappe.log.opened import OpenedRead
from chappe.log.producer import JournalTrim
from chappe.log.storage import AppendRecords
from chappe.runtime import log_seats, store_ports
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.store_ports import StorePorts
from chappe.security import Keys
from chappe.sim.world import Excused, Outcome, Settings, Violation
from chappe.storage import journal
from chappe.storage.segments import scrub

RETAINED = 0.2  # of the worlds have stores that forget what is old
AGES = 0.1  # have consumers that take nothing too old, and clocks that differ
ROTS = 0.25  # have disks with damage
ORIGINALS = 0.15  # have a producer as the C program is one, and so many such a store
SEALED = 0.12  # have producers that seal
ALONE = 0.05  # have a producer that is restored where it reaches nobody for long
ALONE_S = 34.0  # ... which takes so long
LIVE = 0.2  # of the producers without an identity wait for no store


class Log(DisturbedWorld, WatchedLog):
    """The log as users run it: the API's own objects, sockets' queues, disks and threads' turns."""

    ground_faults: LogFaults
    original_stores = ORIGINALS
    sinks = 0.25  # of the worlds have queries that write exactly once
    sealing = SEALED
    sharing = 0.4  # of the members live where others of their kind do
    mark = b""  # begins each value
    consumer_life: type[ConsumerLife] = ConsumerLife
    lengths_s: ClassVar[tuple[float, ...]] = (2.0, 4.0, 8.0)

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.limits = small_limits(self.rng, Random(f"sinks {seed}"), Random(f"news {seed}"), self.rng)
        self.last_rng = Random(f"newest records {seed}")
        self.lasts = self.last_rng.random() < LASTS
        self.keyed = 0.6 if self.lasts else KEYED
        if self.lasts:
            drawn = {name: self.last_rng.choice(choices) for name, choices in LAST_CHOICES.items()}
            self.limits = replace(self.limits, **drawn)
        self.stored_rng = Random(f"stored {seed}")
        self.stored = 0.5 if self.stored_rng.random() < STORED else 0.0
        self.towers: list[TowerPlace] = []
        self.segment_entries = SEGMENT_ENTRIES
        retained_rng = Random(f"retained {seed}")
        if retained_rng.random() < RETAINED:
            topics = retained_rng.sample(TOPICS, retained_rng.choice((1, 3)))
            self.retained = {topic: retained_rng.choice((10, 50)) for topic in topics}
            self.segment_entries = retained_rng.choice((1, 4))
        self._disks: dict[Path, StoreDisk] = {}
        late = self.late_rng = Random(f"late {seed}")
        self.sink_rng, self.more_rng = Random(f"sinks of {seed}"), Random(f"more {seed}")
        self.ages, self.rots = late.random() < AGES, late.random() < ROTS
        self.alone = late.random() < ALONE
        self.rotate_bytes = late.choice((1_000, ROTATE_BYTES))
        self.queries: list[Query] = []
        self.sealed = not (self.lasts or self.ages) and late.random() < self.sealing
        self.trims = Trims(self)
        self.stage = Stage(self, self._replaced(cores or Cores()))
        self.usual_disk_s = self.rng.choice(USUAL_S)
        self.watch(
            ExactlyOnce(self, self.queries), Lasts(self), Ends(self), Ages(self), *all_checkers(self),
            Originals(self), Shared(self), self.trims,
        )  # fmt: skip
        self.ground_faults = LogFaults(self)

    def _replaced(self, cores: Cores) -> list[Replaced]:
        """Limits and classes of cores that objects of the API take from their modules."""
        limits = self.limits
        return [
            (consumers, "LogConsumer", partial(_consumer, cores.consumer, limits)),
            (topic_writers, "LogProducer", partial(_sealing, cores.producer) if self.sealed else cores.producer),
            (topic_writers, "LOG_LIMITS", limits),
            (log_seats, "ConsumingMember", kind_made_by(ConsumingMember, lambda name: ConsumingMember(name, limits))),
            (store_ports, "LogStore", partial(cores.store, limits=limits)),
            (store_ports, "recover", partial(recover, limits=limits)),
            (store_ports, "Finishing", kind_made_by(Finishing, partial(Finishing, limits=limits))),
            (stores, "SegmentStorage", WatchedStorage),
            (stores, "StagedFiles", WatchedStaged),
            (stores, "CatalogueDatabase", WatchedCatalogue),
            (consumers, "Aged", WatchedAged),
            (journal, "ROTATE_BYTES", self.rotate_bytes),
            (journal.Journal, "trim", lambda owner, offset: self._trim(owner, offset)),
            (LogPorts, "publish", self._publish(LogPorts.publish)),
            (LogPorts, "hear_member", self._hear(LogPorts.hear_member)),
            *([(sealed.Reader, "open", _opened)] if self.sealed else ()),
            *([(scrub, "SCRUB_ROUND_S", 1.0), (store_ports, "SCRUB_IDLE_S", 0.5)] if self.rots else ()),
        ]

    def _publish(self, publish: Callable[..., None]) -> Callable[..., None]:
        def watched(ports: LogPorts, effect: Publish) -> None:
            message = effect.message
            if isinstance(message, BatchMessage | RecordMessage | Head) and not isinstance(ports, StorePorts):
                for each in self.alive(ProducerLife):
                    if each.journal is not None and each.key == (message.subject, message.address):
                        with self.seeing():
                            each.published(message)
            self.show("on_published", ports, message)
            publish(ports, effect)

        return watched

    def _hear(self, hear: Callable[..., Any]) -> Callable[..., Any]:
        def watched(ports: LogPorts, frames: Any, who: str) -> Any:
            kind = bytes(frames[0])[:1]
            if kind in b"FAS":
                message = decode(frames)
                if isinstance(message, Fetch):
                    self.show("on_fetched", ports, message)
                for each in self.alive(ProducerLife) if isinstance(message, Stored | Ack) else ():
                    if each.rolled_back and each.ports is ports and each.listened is None:
                        each.listened = each.listening()
            return hear(ports, frames, who)

        return watched

    def security(self, host: str) -> Keys | None:
        """Return the identity of a host, in worlds with keys."""
        return None

    # -- who lives here -----------------------------------------------------------------------------------------

    @property
    def where(self) -> dict[str, Any]:
        """How producers and consumers are told to meet others."""
        return {"tower": self.tower_address}

    @property
    def tower_address(self) -> str:
        """What members are given as their towers."""
        return ",".join(each.address for each in self.towers)

    def begin(self) -> None:
        """Make the first members."""
        rng = self.rng
        self.trace(None, "%s, queues %d", self.limits, self.net.queue_max)
        self.add_stores()
        for _ in range(self.few(rng.randint(1, 4))):
            self.add_producer()
        for _ in range(self.few(rng.randint(1, 3))):
            self.add_consumer()
        self.add_others()

    def add_stores(self) -> None:
        """Make the towers and the first stores."""
        for number in range(self.rng.choice((1, 1, 2))):
            self.towers.append(TowerPlace(self, number))
        for _ in range(self.few(self.rng.choice((1, 2, 2, 3)))):
            self.add_store()

    def add_others(self) -> None:
        """Make those that are in some worlds only: originals, queries, programs that take nothing too old."""
        late = self.late_rng
        if late.random() < ORIGINALS and not self.sealed:
            self.add_original("cproducer", partial(OriginalProducer, late.choice(TOPICS)))
        if late.random() < self.original_stores and not self.sealed:
            at = late.choice((0.0, late.uniform(0.3, 3.0)))
            self.clock.after(at, self.add_original, "cstore", OriginalStore)
        if self.sink_rng.random() < self.sinks:
            for _ in range(self.sink_rng.choice((1, 1, 2))):
                home = self.sink_rng.choice(list(self._disks.values()))
                self.queries.append(Query(self, f"query{len(self.queries)}", home, TOPICS))
        self.watch(*self.queries)
        for _ in range(self.few(late.choice((1, 2))) if self.ages else 0):
            self.clock.after(late.choice((0.0, 0.5, 3.0)), self.add_consumer, late.choice((0.3, 1.0, 5.0)))

    def add_original(self, kind: str, make: Callable[[str], OriginalProducer | OriginalStore]) -> None:
        """A member that speaks only what the C programs speak."""
        self.move_in(OriginalResident(self, self.new_name(kind), make))

    def more(self, share: float) -> bool:
        """Return whether something happens that not all worlds have."""
        return self.more_rng.random() < share

    def plan(self, until: float) -> float:
        """Plan the faults, and begin the queries."""
        until = super().plan(max(until, ALONE_S) if self.alone and self.settings.disturb else until)
        for query in self.queries:
            query.start(until if self.settings.disturb else None)
        return until

    def _place(self, name: str, kind: type[Resident]) -> Place:
        """A host of its own, or that of others of its kind, with which it shares a node then."""
        shared = [each for each in self.places if each.residents and type(each.residents[0]) is kind and each.up]
        if kind is not StoreResident and shared and self.rng.random() < self.sharing:
            return self.rng.choice(shared)
        place = Place(self, name)
        self.stage.disk(name).slow(self.usual_disk_s)
        if self.ages:
            self.ground_faults.set_clock(place)
        return place

    def add_store(self) -> None:
        """A store on a host of its own."""
        self._keep("store", StoreLife)

    def _keep(self, kind: str, life: type[StoreLife]) -> None:
        name = self.new_name(kind)
        directory = self.stage.scratch / name
        resident = StoreResident(self, name, self._place(name, StoreResident), directory, life)
        self._disks[directory] = resident.disk
        self.move_in(resident)

    def add_producer(self) -> None:
        """A producer, half of them with an identity; some of the others wait for no store."""
        rng, name = self.rng, self.new_name("producer")
        min_acks = rng.choice((1, 1, 1, min(2, max(1, len(self.disks)))))
        place = self._place(name, ProducerResident)
        topic, lasting = rng.choice(TOPICS), rng.random() < (0.2 if self.ages else 0.5)
        if not lasting and self.late_rng.random() < LIVE:
            min_acks = 0
        self.move_in(ProducerResident(self, name, place, topic, min_acks, lasting=lasting))

    def add_consumer(self, max_age_s: float | None = None) -> None:
        """A consumer, half of them with an identity; some want only what is stored, or begin with newest records."""
        rng, name = self.rng, self.new_name("consumer")
        filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
        last = max_age_s is None and self.lasts and self.last_rng.random() < 0.5
        stored = self.stored > 0.0 and self.stored_rng.random() < self.stored
        min_acks = self.stored_rng.choice((1, 2, 2)) if stored else 0
        self.move_in(
            ConsumerResident(
                self,
                name,
                self._place(name, ConsumerResident),
                filters,
                lasting=not last and max_age_s is None and rng.random() < 0.5,
                last=last,
                min_acks=min(min_acks, 1) if last else min_acks,
                max_age_s=max_age_s,
            )
        )

    def disk_at(self, directory: str | Path) -> StoreDisk:
        """The disk of a store."""
        return self._disks[Path(directory)]

    def written(self, disk: StoreDisk, appends: tuple[AppendRecords, ...]) -> None:
        """A store has written something, which is about to be seen."""
        for each in appends:
            disk._part(each)
        for life in self.alive(StoreLife):
            if life.disk is disk:
                self.show("on_written", life, appends)

    def show(self, what: str, *details: Any) -> None:
        """Show something to the checkers from within a member, which would take a violation for its own defect."""
        with self.seeing():
            self.see(what, *details)

    @contextmanager
    def counted(self, kind: type) -> Iterator[None]:
        """Count what the disk refuses."""
        try:
            yield
        except (ChappeError, OSError):
            self.failed[kind] += 1
            raise

    def _trim(self, owner: journal.Journal, offset: int) -> None:
        """See ``Journal.trim``."""
        with suppress(OSError), self.counted(JournalTrim):
            owner._files.trim(offset)

    @contextmanager
    def seeing(self) -> Iterator[None]:
        """Keep a violation for the world."""
        try:
            yield
        except (Violation, Excused) as found:
            self.broken = self.broken or found

    # -- time ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send no more, and begin no further batch."""
        self.sending = False
        for query in self.queries:
            query.finish()

    def play(self) -> Outcome:
        """As every world; storage says here what it writes."""
        WatchedStorage.world = WatchedStaged.world = WatchedCatalogue.world = self
        try:
            return super().play()
        finally:
            WatchedStorage.world = WatchedStaged.world = WatchedCatalogue.world = None


class Sink(Log):
    """The log, always with queries that write exactly once."""

    sinks = 1.0


class Forward(Log):
    """Producers, consumers and two forwarders, without towers: everybody knows both, which know each other."""

    original_stores = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.forwarders = {f"forwarder{n}": f"127.0.0.1:{7000 + 10 * n}" for n in range(2)}

    @property
    def where(self) -> dict[str, Any]:
        """How producers and consumers are told to meet others."""
        return {"forwarders": ",".join(self.forwarders.values())}

    @property
    def tower_address(self) -> str:
        """What originals are given as their towers."""
        return ",".join(filter(None, map(self.tower_of_originals, self.forwarders)))

    def tower_of_originals(self, name: str) -> str | None:
        """Where originals find a forwarder, if they may."""
        return f"127.0.0.1:{5556 + 2 * list(self.forwarders).index(name)}"

    def add_stores(self) -> None:
        """Make the forwarders."""
        for _ in self.forwarders:
            self._keep("forwarder", ForwarderLife)

    def add_store(self) -> None:
        """Nobody runs a further forwarder."""
        self.add_consumer()


def _opened(reader: sealed.Reader, topic: str, partition: str, batch: Batch) -> OpenedRead:
    """Hand on what is sealed as it is: what it is sealed with is no affair of these worlds."""
    return OpenedRead(batch)


def _sealing(kind: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, **options | {"seal": opaque})


def _consumer(kind: Callable[..., Any], limits: LogLimits, *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, limits=limits, **options)
