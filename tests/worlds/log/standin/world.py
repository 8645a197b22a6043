"""A world of the log whose hosts drive cores: what they share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.worlds.journals import Journal
from tests.worlds.log.standin.towers import Tower
from tests.worlds.log.world import STORED, Cores, WatchedLog

from chappe.log.beacon import Discovery
from chappe.log.sources import Key
from chappe.sim.pubsub import PubSub
from chappe.sim.world import Settings

HOST: Final = "127.0.0.1"


class LogWorld(WatchedLog):
    """Everything that one seed decides."""

    towers_max = 2

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
        self.rot_rng = Random(f"rot {seed}")  # likewise, of journals with damage
        self.disk_rng = Random(f"disks {seed}")
        self.more_rng = Random(f"more {seed}")
        self.deaf = self.more(0.15)  # a producer does not hear who asks it for what it sent
        self.answer_rng = Random(f"answers {seed}")
        self.beginnings: set[tuple[str, Key]] = set()  # whose answer, of which partition, has lost its beginning
        self.topic_rng = Random(f"topics {seed}")  # of consumers that change them
        self.stored_rng = Random(f"stored {seed}")
        self.stored = 0.0 if self.settings.plain or self.stored_rng.random() > STORED else 0.5  # of the consumers
        self.journals: list[Journal] = []
        self.cores = cores or Cores()
        self.net = PubSub(self)
        self.slow_disk_s = self.rng.choice((0.001, 0.01, 0.1))
        self._addresses = 0
        towers = min(self.towers_max, self.rng.choice((1, 1, 2)))
        self.towers = [Tower(self, self.net, f"tower{n}") for n in range(towers)]

    # -- how hosts meet ---------------------------------------------------------------------------------------

    def discovery(self, host: Any) -> Any:
        """The core with which a new host meets others."""
        return Discovery(host.role, host.role.address, HOST, str(host.port), now=self.now)

    def meet(self, host: Any) -> None:
        """A host begins."""
        for tower in self.towers:
            host.lines.append(tower.line_to(host))

    def part(self, host: Any) -> None:
        """A host is dead."""

    def more(self, share: float) -> bool:
        """Whether something happens that plain worlds do not have."""
        return not self.settings.plain and self.more_rng.random() < share

    def address(self) -> str:
        """A fresh address."""
        self._addresses += 1
        return f"{self.rng.getrandbits(24):06X}{self._addresses:026X}"

    def wall_us(self, name: str) -> int:
        """The time of day of a host."""
        return self.clock.wall_us

    def write_s(self) -> float:
        """How long the next write takes."""
        return self.slow_disk_s * self.rng.expovariate(1.0)
