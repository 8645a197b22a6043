"""Worlds of the mesh with identities, and permissions that change: nobody gets what it may not, and all else arrives.

Stand-ins for drivers play them: connections of users' endpoints would need keys, and random numbers of TLS.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.worlds.mesh.charters import Charter
from tests.worlds.mesh.faults import MeshFaults
from tests.worlds.mesh.hosts import EndpointHost
from tests.worlds.mesh.population import PopulatedMesh
from tests.worlds.mesh.scenario import MeshScenario


class RuledFaults(MeshFaults):
    """As in the mesh, and permissions change."""

    def __init__(self, world: PopulatedMesh) -> None:
        super().__init__(world)
        self._signing = Random(f"signing {world.seed}")

    def plan(self, until: float) -> float:
        for _ in range(self._signing.choice((1, 2, 4))):
            self.at(self._signing.uniform(1.0, until), self._sign)
        return super().plan(until)

    def heal(self) -> None:
        """See ``MeshFaults.heal``; everybody learns of the last version."""
        super().heal()
        self._charter.draw(all_forward=True)
        self.world.clock.after(0.5, self._give_last)

    @property
    def _charter(self) -> Charter:
        assert self.world.charter is not None
        return self.world.charter

    def _sign(self) -> None:
        """One host learns of another version."""
        running = [each for each in self.world.alive(EndpointHost) if not each.frozen]
        if running:
            self._signing.choice(running).go_by(self._charter.draw().number)

    def _give_last(self) -> None:
        self._signing.choice(self.world.alive(EndpointHost)).go_by(len(self._charter.versions))


class RuledMesh(MeshScenario):
    """The mesh with permissions."""

    ordinary = True

    def __init__(self, seed: int, *arguments: Any, **options: Any) -> None:
        self.charter = Charter(seed)
        super().__init__(seed, *arguments, **options)
        self._faults = RuledFaults(self)
