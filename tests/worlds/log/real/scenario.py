"""Worlds of the log as users run it: producers, consumers, stores and towers of the API, on hosts that fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.worlds.log.checkers import all_checkers
from tests.worlds.log.ends import Ends
from tests.worlds.log.lasts import Lasts
from tests.worlds.log.population import FILTERS, TOPICS
from tests.worlds.log.reach import Shared
from tests.worlds.log.real.disks import RealDisk, WatchedStorage
from tests.worlds.log.real.faults import USUAL_S, RealFaults
from tests.worlds.log.real.residents import (
    KEYED,
    ConsumerResident,
    ProducerResident,
    StoreLife,
    StoreResident,
    TowerPlace,
)
from tests.worlds.log.world import LASTS, STORED, Cores, WatchedLog, small_limits
from tests.worlds.residents import Place, Resident
from tests.worlds.stage import DisturbedWorld, Replaced, Stage, kind_made_by

from chappe.api.log import consumer as consumers
from chappe.api.log import store as stores
from chappe.api.log import topic_writers
from chappe.data.topic import Filter
from chappe.defaults import SEGMENT_ENTRIES
from chappe.limits import LogLimits
from chappe.log.consuming import ConsumingMember
from chappe.log.exactly_once.staged import recover
from chappe.log.storage import AppendRecords
from chappe.runtime import log_seats, store_ports
from chappe.sim.world import Outcome, Settings, Violation

RETAINED = 0.2  # of the worlds have stores that forget what is old


class RealLog(DisturbedWorld, WatchedLog):
    """The log as users run it: the API's own objects, sockets' queues, disks and threads' turns."""

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
        self.stored_rng = Random(f"stored {seed}")
        self.stored = 0.5 if self.stored_rng.random() < STORED else 0.0
        self.towers: list[TowerPlace] = []
        self.segment_entries = SEGMENT_ENTRIES
        retained_rng = Random(f"retained {seed}")
        if retained_rng.random() < RETAINED:
            topics = retained_rng.sample(TOPICS, retained_rng.choice((1, 3)))
            self.retained = {topic: retained_rng.choice((10, 50)) for topic in topics}
            self.segment_entries = retained_rng.choice((1, 4))
        self._disks: dict[Path, RealDisk] = {}
        self._lives: dict[RealDisk, StoreLife] = {}
        self.stage = Stage(self, self._replaced(cores or Cores()))
        self.usual_disk_s = self.rng.choice(USUAL_S)
        self.watch(Lasts(self), Ends(self), *all_checkers(self), Shared(self))
        self.ground_faults = RealFaults(self)

    def _replaced(self, cores: Cores) -> list[Replaced]:
        """Limits and classes of cores that objects of the API take from their modules."""
        limits = self.limits
        return [
            (consumers, "LogConsumer", partial(_consumer, cores.consumer, limits)),
            (topic_writers, "LogProducer", cores.producer),
            (topic_writers, "LOG_LIMITS", limits),
            (log_seats, "ConsumingMember", kind_made_by(ConsumingMember, lambda name: ConsumingMember(name, limits))),
            (store_ports, "LogStore", partial(cores.store, limits=limits)),
            (store_ports, "recover", partial(recover, limits=limits)),
            (stores, "SegmentStorage", WatchedStorage),
        ]

    # -- who lives here -----------------------------------------------------------------------------------------

    @property
    def tower_address(self) -> str:
        """What members are given as their towers."""
        return ",".join(each.address for each in self.towers)

    def begin(self) -> None:
        """Make the first members."""
        rng = self.rng
        self.trace(None, "%s, queues %d", self.limits, self.net.queue_max)
        for number in range(rng.choice((1, 1, 2))):
            self.towers.append(TowerPlace(self, number))
        for _ in range(self.few(rng.choice((1, 2, 2, 3)))):
            self.add_store()
        for _ in range(self.few(rng.randint(1, 4))):
            self.add_producer()
        for _ in range(self.few(rng.randint(1, 3))):
            self.add_consumer()

    def _place(self, name: str, kind: type[Resident]) -> Place:
        """A host of its own, or that of others of its kind, with which it shares a node then."""
        shared = [each for each in self.places if each.residents and isinstance(each.residents[0], kind) and each.up]
        if kind is not StoreResident and shared and self.rng.random() < 0.4:
            return self.rng.choice(shared)
        place = Place(self, name)
        self.stage.disk(name).slow(self.usual_disk_s)
        return place

    def add_store(self) -> None:
        """A store on a host of its own."""
        name = self.new_name("store")
        directory = self.stage.scratch / name
        resident = StoreResident(self, name, self._place(name, StoreResident), directory)
        self._disks[directory] = resident.disk
        self.move_in(resident)

    def add_producer(self) -> None:
        """A producer, half of them with an identity."""
        rng, name = self.rng, self.new_name("producer")
        min_acks = rng.choice((1, 1, 1, min(2, max(1, len(self.disks)))))
        place = self._place(name, ProducerResident)
        self.move_in(ProducerResident(self, name, place, rng.choice(TOPICS), min_acks, lasting=rng.random() < 0.5))

    def add_consumer(self) -> None:
        """A consumer, half of them with an identity; some want only what is stored, or begin with newest records."""
        rng, name = self.rng, self.new_name("consumer")
        filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
        last = self.lasts and self.last_rng.random() < 0.5
        stored = self.stored > 0.0 and self.stored_rng.random() < self.stored
        min_acks = self.stored_rng.choice((1, 2, 2)) if stored else 0
        self.move_in(
            ConsumerResident(
                self,
                name,
                self._place(name, ConsumerResident),
                filters,
                lasting=not last and rng.random() < 0.5,
                last=last,
                min_acks=min(min_acks, 1) if last else min_acks,
            )
        )

    def disk_at(self, directory: str | Path) -> RealDisk:
        """The disk of a store."""
        return self._disks[Path(directory)]

    def written(self, disk: RealDisk, appends: tuple[AppendRecords, ...]) -> None:
        """A store has written something, which is about to be seen."""
        for each in appends:
            disk._part(each)
        life = next((each for each in self.alive(StoreLife) if each.disk is disk), None)
        if life is not None:
            try:
                self.see("on_written", life, appends)
            except Violation as violation:
                self.broken = violation

    # -- time ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send no more."""
        self.sending = False

    def play(self) -> Outcome:
        """As every world; storage says here what it writes."""
        WatchedStorage.world = self
        try:
            return super().play()
        finally:
            WatchedStorage.world = None


def _consumer(kind: Callable[..., Any], limits: LogLimits, *arguments: Any, **options: Any) -> Any:
    return kind(*arguments, limits=limits, **options)
