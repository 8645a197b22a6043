"""Worlds of the log as users run it: producers, consumers, stores and towers of the API, on hosts that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

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
    Life,
    Place,
    ProducerResident,
    Resident,
    StoreLife,
    StoreResident,
    TowerPlace,
)
from tests.worlds.log.real.stage import Stage
from tests.worlds.log.world import LASTS, STORED, Cores, WatchedLog, small_limits

from chappe.data.topic import Filter
from chappe.log.storage import AppendRecords
from chappe.sim.world import Outcome, Settings, Violation


class RealLog(WatchedLog):
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
        self.broken: Violation | None = None  # seen where a member would take it for a defect of its own
        self.places: list[Place] = []
        self.residents: list[Resident] = []
        self.towers: list[TowerPlace] = []
        self._disks: dict[Path, RealDisk] = {}
        self._lives: dict[RealDisk, StoreLife] = {}
        self.stage = Stage(self, self.limits, cores or Cores(), WatchedStorage)
        self.net = self.stage.net
        self.usual_disk_s = self.rng.choice(USUAL_S)
        self.watch(Lasts(self), Ends(self), *all_checkers(self), Shared(self))
        self._faults = RealFaults(self)

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

    def _join(self, resident: Resident) -> None:
        self.residents.append(resident)
        resident.begin()

    def _new(self, kind: str) -> str:
        return f"{kind}{sum(each.name.startswith(kind) for each in self.residents)}"

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
        name = self._new("store")
        directory = self.stage.scratch / name
        resident = StoreResident(self, name, self._place(name, StoreResident), directory)
        self._disks[directory] = resident.disk
        self._join(resident)

    def add_producer(self) -> None:
        """A producer, half of them with an identity."""
        rng, name = self.rng, self._new("producer")
        min_acks = rng.choice((1, 1, 1, min(2, max(1, len(self.disks)))))
        place = self._place(name, ProducerResident)
        self._join(ProducerResident(self, name, place, rng.choice(TOPICS), min_acks, lasting=rng.random() < 0.5))

    def add_consumer(self) -> None:
        """A consumer, half of them with an identity; some want only what is stored, or begin with newest records."""
        rng, name = self.rng, self._new("consumer")
        filters = [Filter.parse(text) for text in rng.sample(FILTERS, rng.choice((1, 1, 2)))]
        last = self.lasts and self.last_rng.random() < 0.5
        stored = self.stored > 0.0 and self.stored_rng.random() < self.stored
        min_acks = self.stored_rng.choice((1, 2, 2)) if stored else 0
        self._join(
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

    def pass_time(self, until: float, tick_s: float | None = None) -> None:
        """Let time pass on the stage, and have the checkers look now and then."""
        tick_s = tick_s or self.tick_s
        while self.now < until:
            self.stage.advance(min(until, self.now + tick_s) - self.now)
            if self.broken is not None:
                raise self.broken
            for each in self.alive(Life):
                if not each.resident.place.paused:
                    each.look()
            self.see("on_tick")
            if self.clock.events > self.events_max:
                self.fail("no spinning", f"{self.clock.events} events within {self.now:.0f} virtual seconds")

    def plan(self, until: float) -> float:
        """Plan the faults."""
        if self.settings.disturb:
            self._faults.plan(until)
        return until

    def heal(self) -> None:
        """End everything that is wrong."""
        self.usual_disk_s = min(self.usual_disk_s, 0.01)
        self._faults.heal()
        for place in self.places:
            self.stage.disk(place.name).slow(self.usual_disk_s)

    def stop(self) -> None:
        """Send no more."""
        self.sending = False

    def play(self) -> Outcome:
        """As every world, on a stage of its own."""
        WatchedStorage.world = self
        self.stage.begin()
        try:
            return super().play()
        finally:
            WatchedStorage.world = None
            self.stage.end()
