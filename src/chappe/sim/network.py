"""Cuts and delays: the base of all transports of a world."""

from __future__ import annotations

from math import inf

from chappe.sim.world import SimWorld


class SimNetwork:
    """Cuts and delays.

    Args:
        base_s: A usual delay.
        spike: The share of delays that are much longer.
    """

    def __init__(self, world: SimWorld, base_s: float = 0.001, spike: float = 0.0) -> None:
        self.clock = world.clock
        self.failed = world.failed
        self._base_s = base_s
        self.spike = spike
        self._cuts: dict[frozenset[str], float] = {}

    def delay(self) -> float:
        rng = self.clock.rng
        delay = self._base_s * (0.5 + rng.random())
        if self.spike and rng.random() < self.spike:
            delay += rng.random() * 0.5
        return delay

    def reachable(self, a: str, b: str) -> bool:
        return not self._cuts or self._cuts.get(frozenset((a, b)), 0.0) <= self.clock.now

    def cut(self, a: str, b: str, until: float = inf) -> None:
        """Let nothing pass between ``a`` and ``b``, in either direction, before ``until``."""
        self._cuts[frozenset((a, b))] = until

    def mend(self) -> None:
        self._cuts.clear()
