"""A host with a clock of its own, which drifts, and that takes what came when it stands still no more."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from chappe.sim.host import SimHost

Deliver = Callable[[Any], None]  # is given the host that takes it


class ClockedHost(SimHost):
    """Its world has ``drift``: by which part of it clocks may differ in speed."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.rate = 1.0 + world.drift * (world.rng.random() - 0.5)
        self.ahead_s = 0.0  # what its clock shows when the world begins
        self._inbox: list[Deliver] = []

    @property
    def now(self) -> float:
        """The time on its own clock."""
        return float(self.ahead_s + self.world.now * self.rate)

    def in_world(self, at: float) -> float:
        """When its own clock shows a time, on the world's clock."""
        return float((at - self.ahead_s) / self.rate) if at < inf else inf

    def take(self, deliver: Deliver) -> None:
        """A message has come."""
        if self.frozen:
            self._inbox.append(deliver)
        else:
            deliver(self)

    def resume(self) -> None:
        """It goes on; what came meanwhile may be looked at first, or the time."""
        if not self.alive:
            return
        self.stalled_until = 0.0
        if self.world.rng.random() < 0.5:
            self.wake()
        inbox, self._inbox = self._inbox, []
        for deliver in inbox:
            if self.alive:
                deliver(self)
        self.wake()


class HostClock:
    """The time of day of one host, as its world has it."""

    def __init__(self, world: Any, host: Any) -> None:
        self._world = world
        self._host = host

    def wall_ns(self) -> int:
        """See ``core.Clock``."""
        return int(self._world.wall_us(self._host) * 1000)
