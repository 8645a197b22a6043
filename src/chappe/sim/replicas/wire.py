"""How messages travel between the members of a world: late, and in bad worlds lost, repeated and out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chappe.sim.clock import Clock

CALM = (0.0, 0.0, 0.0)
WEATHER = (CALM, CALM, (0.02, 0.0, 0.0), (0.1, 0.05, 0.2), (0.3, 0.1, 0.5))  # loss, repetition, disorder


class Wire:
    """Carries things from name to name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loss, self.repetition, self.disorder = clock.rng.choice(WEATHER)
        self._base_s = clock.rng.choice((0.000_1, 0.001, 0.02))
        self._last_at: dict[tuple[str, str], float] = {}
        self._cuts: dict[frozenset[str], float] = {}

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.loss, self.repetition, self.disorder = CALM
        self._cuts.clear()

    def cut(self, a: str, b: str, until: float) -> None:
        """Nothing passes between two members before ``until``."""
        self._cuts[frozenset((a, b))] = until

    def reachable(self, a: str, b: str) -> bool:
        """Whether nothing is cut between two members."""
        return self._cuts.get(frozenset((a, b)), 0.0) <= self.clock.now

    def send(self, source: str, target: str, deliver: Callable[[Any], None], thing: Any) -> None:
        """Put a thing on its way."""
        rng = self.clock.rng
        copies = 2 if rng.random() < self.repetition else 1
        for _ in range(copies):
            if rng.random() < self.loss or not self.reachable(source, target):
                continue
            at = self.clock.now + self._base_s * (0.5 + rng.random())
            if rng.random() < self.disorder:
                at += rng.random() * 0.5
            else:
                at = max(at, self._last_at.get((source, target), 0.0))
                self._last_at[source, target] = at
            self.clock.at(at, self._arrive, source, target, deliver, thing)

    def _arrive(self, source: str, target: str, deliver: Callable[[Any], None], thing: Any) -> None:
        if self.reachable(source, target):
            deliver(thing)
