"""A world of the log: what hosts share, what was truly sent, and what disks hold of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from chappe.limits import LOG_LIMITS
from chappe.log.consumer import LogConsumer
from chappe.log.producer import LogProducer
from chappe.log.sources import Key
from chappe.log.store import LogStore
from chappe.sim.disk import SimDisk
from chappe.sim.journals import Journal
from chappe.sim.pubsub import PubSub
from chappe.sim.scenarios.log.towers import Tower
from chappe.sim.scenarios.log.truth import Truth
from chappe.sim.world import Settings, World


@dataclass(frozen=True)
class Cores:
    """What is under test; broken ones are put here to see that the checkers notice."""

    store: type[LogStore] = LogStore
    producer: type[LogProducer] = LogProducer
    consumer: type[LogConsumer] = LogConsumer
    disk: type[SimDisk] = SimDisk


class LogWorld(World):
    """Everything that one seed decides."""

    tick_s = 0.5
    settle_max_s = 200.0  # a few times the longest wait of a core

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.sink_rng = Random(f"sinks {seed}")  # of their own: a world without sinks is what it was before
        self.journal_rng = Random(f"journals {seed}")  # likewise
        self.disk_rng = Random(f"disks {seed}")
        self.journals: list[Journal] = []
        self.cores = cores or Cores()
        self.truth = Truth()
        self.net = PubSub(self)
        self.limits = LOG_LIMITS  # the cores' limits in this world
        self.sending = True
        self.serial = 0
        self.slow_disk_s = self.rng.choice((0.001, 0.01, 0.1))
        self.disks: list[SimDisk] = []
        self.disk_of: dict[str, SimDisk] = {}  # by the address of a store, in whichever life
        self.retained: dict[str, int] = {}  # topic: records kept, if the world has retention
        self.begun: dict[Key, int] = {}  # where stores began that knew no other which has what came before
        self.originals: dict[str, dict[Key, list[bytes]]] = {}  # what original stores have, by name
        self._addresses = 0
        self.towers = [Tower(self, self.net, f"tower{n}") for n in range(self.rng.choice((1, 1, 2)))]

    def address(self) -> str:
        """A fresh address."""
        self._addresses += 1
        return f"{self.rng.getrandbits(24):06X}{self._addresses:026X}"

    def write_s(self) -> float:
        """How long the next write takes."""
        return self.slow_disk_s * self.rng.expovariate(1.0)

    def count(self) -> int:
        """Records that were sent."""
        return sum(len(sent.records) for sent in self.truth.parts.values())

    # -- what disks hold --------------------------------------------------------------------------------------

    def holdings(self, key: Key, disks: Iterable[SimDisk] | None = None) -> list[tuple[int, int]]:
        """What any of the disks has of a partition, that of a store which is down included: sorted, without overlap.

        Those of original stores are always among them.
        """
        among = self.disks if disks is None else disks
        found = [span for disk in among if (part := disk.parts.get(key)) for span in part.sound()]
        found += [(0, len(kept)) for parts in self.originals.values() if (kept := parts.get(key))]
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
