"""How messages travel between the members of a world: late, and in bad worlds lost, repeated and out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chappe.sim.world import Clock

CALM = (0.0, 0.0, 0.0)
WEATHER = (CALM, CALM, (0.02, 0.0, 0.0), (0.1, 0.05, 0.2), (0.3, 0.1, 0.5))  # loss, repetition, disorder

LATE_S = 5.0  # what would take longer to a slow member is dropped


class Wire:
    """Carries things from name to name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loss, self.repetition, self.disorder = clock.rng.choice(WEATHER)
        self._base_s = clock.rng.choice((0.000_1, 0.001, 0.02))
        self._last_at: dict[tuple[str, str], float] = {}
        self._cuts: dict[frozenset[str], float] = {}
        self._rates: dict[str, float] = {}  # bytes per second that a member can take, if that matters
        self._busy: dict[str, float] = {}  # ... and until when it has enough to do

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.loss, self.repetition, self.disorder = CALM
        self._cuts.clear()
        self._rates.clear()

    def slow(self, name: str, bytes_per_s: float) -> None:
        """A member takes no more than so much from now on."""
        self._rates[name] = bytes_per_s

    def fast(self, name: str) -> None:
        """It takes everything at once again."""
        self._rates.pop(name, None)

    def cut(self, a: str, b: str, until: float) -> None:
        """Nothing passes between two members before ``until``."""
        self._cuts[frozenset((a, b))] = until

    def reachable(self, a: str, b: str) -> bool:
        """Whether nothing is cut between two members."""
        return self._cuts.get(frozenset((a, b)), 0.0) <= self.clock.now

    def send(self, source: str, target: str, deliver: Callable[[Any], None], thing: Any, size: int = 0) -> None:
        """Put a thing of ``size`` bytes on its way."""
        rng = self.clock.rng
        copies = 2 if rng.random() < self.repetition else 1
        for _ in range(copies):
            if rng.random() < self.loss or not self.reachable(source, target):
                continue
            at = self.clock.now + self._base_s * (0.5 + rng.random())
            if target in self._rates:
                at = max(at, self._busy.get(target, 0.0)) + size / self._rates[target]
                if at > self.clock.now + LATE_S:
                    continue  # there is no room for it on the way
                self._busy[target] = at
            if rng.random() < self.disorder:
                at += rng.random() * 0.5
            else:
                at = max(at, self._last_at.get((source, target), 0.0))
                self._last_at[source, target] = at
            self.clock.at(at, self._arrive, source, target, deliver, thing)

    def _arrive(self, source: str, target: str, deliver: Callable[[Any], None], thing: Any) -> None:
        if self.reachable(source, target):
            deliver(thing)
