"""Single messages from member to member: late, and in bad worlds lost, repeated and out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chappe.sim.network import SimNetwork
from chappe.sim.world import SimWorld

CALM = (0.0, 0.0, 0.0)
WEATHER = (CALM, CALM, (0.02, 0.0, 0.0), (0.1, 0.05, 0.2), (0.3, 0.1, 0.5))  # loss, repetition, disorder
LATE_S = 5.0  # what would take longer to a slow member is dropped


class Wire(SimNetwork):
    """Carries single messages from name to name: late, and in bad worlds lost, repeated and out of order."""

    def __init__(self, world: SimWorld) -> None:
        rng = world.rng
        self.loss, self.repetition, self.disorder = rng.choice(WEATHER)
        super().__init__(world, rng.choice((0.000_1, 0.001, 0.02)))
        self._last_at: dict[tuple[str, str], float] = {}
        self._rates: dict[str, float] = {}  # bytes per second that a member can take, if that matters
        self._busy: dict[str, float] = {}  # ... and until when it has enough to do

    def calm(self) -> None:
        """Stop losing, repeating and delaying messages."""
        self.loss, self.repetition, self.disorder = CALM
        self.mend()
        self._rates.clear()

    def slow(self, name: str, bytes_per_s: float) -> None:
        """Let a member take no more than so much from now on."""
        self._rates[name] = bytes_per_s

    def fast(self, name: str) -> None:
        self._rates.pop(name, None)

    def send(
        self, source: str, target: str, deliver: Callable[[Any], None], thing: Any, what: type, size: int = 0
    ) -> None:
        """Put a thing of ``size`` bytes on its way, for an action of the class ``what``."""
        rng = self.clock.rng
        copies = 2 if rng.random() < self.repetition else 1
        for _ in range(copies):
            if rng.random() < self.loss or not self.reachable(source, target):
                self.failed[what] += 1
                continue
            at = self.clock.now + self.delay()
            if target in self._rates:
                at = max(at, self._busy.get(target, 0.0)) + size / self._rates[target]
                if at > self.clock.now + LATE_S:
                    self.failed[what] += 1
                    continue  # there is no room for it on the way
                self._busy[target] = at
            if rng.random() < self.disorder:
                at += rng.random() * 0.5
            else:
                at = max(at, self._last_at.get((source, target), 0.0))
                self._last_at[source, target] = at
            self.clock.at(at, self._arrive, source, target, deliver, thing, what)

    def _arrive(self, source: str, target: str, deliver: Callable[[Any], None], thing: Any, what: type) -> None:
        if self.reachable(source, target):
            deliver(thing)
        else:
            self.failed[what] += 1
