"""One schedule of faults: what a scenario lets go wrong, when, and until when."""

from __future__ import annotations

from collections.abc import Callable

from chappe.sim.world import SimWorld


class Schedule:
    """Has faults happen at their times, each of which a shrunk world may leave out."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.on = True  # ends with ``heal``

    def at(self, when: float, fault: Callable[[], None]) -> None:
        """Have a fault happen at ``when``, if none has been healed until then."""
        whole = self._world.whole or self._world
        number = whole.faults
        whole.faults += 1
        if number not in self._world.settings.without:
            self._world.clock.at(when, self._play, fault)

    def _play(self, fault: Callable[[], None]) -> None:
        if self.on:
            self._world.played[fault.__name__.strip("_")] += 1
            fault()
