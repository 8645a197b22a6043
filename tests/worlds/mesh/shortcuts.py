"""Worlds whose shortest ways change all the time while much is on them: everything arrives, once and in order."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from tests.worlds.mesh.faults import MeshFaults
from tests.worlds.mesh.population import PopulatedMesh
from tests.worlds.mesh.world import TOPICS

PAUSES_S: Final = (0.2, 0.5, 1.5)  # between two changes
LASTS_S: Final = 6.0
MESSAGES: Final = (1, 5, 20)  # at once, if there is room ...
BYTES: Final = (0, 0, 100, 400)  # ... and what all do is less than the lines take
DELAYS_S: Final = (0.005, 0.05, 0.05)  # of lines: much is on its way


class Shortcuts(MeshFaults):
    """A line of endpoints, of which no link ends, and shortcuts that come and go."""

    last_messages = 16  # at once: more than a small box is for, and no more than it and a line take together

    def __init__(self, world: PopulatedMesh) -> None:
        super().__init__(world)
        world.streams.delays = DELAYS_S

    def plan(self, until: float) -> float:
        """Plan the changes, and who publishes meanwhile; returns when all is to be healed."""
        rng, names = self.world.shortcut_rng, sorted(self.world.hosts)
        at, until = 2.0, 2.0 + LASTS_S
        for name in rng.sample(names, min(len(names), rng.choice((1, 2, 3)))):
            self.world.clock.at(
                1.0, self._publish_until, name, rng.choice(TOPICS), rng.choice(MESSAGES), rng.choice(BYTES), until
            )
        pause_s = rng.choice(PAUSES_S)
        while at < until:
            self.at(at, rng.choice((self._reset, self._reset, self._partition, self._cut, self._unpeer)))
            at += pause_s * (0.5 + rng.random())
        return until

    def _wire(self) -> tuple[str, str]:
        lasting = set(pairwise(self.world.hosts))
        return self.world.shortcut_rng.choice(sorted(self.world.wires - lasting))
