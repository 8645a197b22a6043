"""Worlds of the mesh: any topology, churn, slow and dead peers, originals and a rogue among them."""

from __future__ import annotations

from typing import Any

from chappe.sim.scenarios.mesh.accounts import accounts
from chappe.sim.scenarios.mesh.checkers import Completeness, all_checkers
from chappe.sim.scenarios.mesh.faults import MeshFaults
from chappe.sim.scenarios.mesh.hosts import MANY, EndpointHost
from chappe.sim.scenarios.mesh.population import PopulatedMesh
from chappe.sim.scenarios.mesh.world import TOPICS


class Mesh(PopulatedMesh):
    """The mesh."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._completeness = Completeness(self)
        self.watch(*all_checkers(self), self._completeness, *accounts(self))
        self._faults = MeshFaults(self)

    def begin(self) -> None:
        """Make the first hosts."""
        self.populate()

    def plan(self, until: float) -> float:
        """Plan the faults, and perhaps have a rogue among them."""
        if not self.settings.disturb:
            return until
        until = self._faults.plan(until)
        self.invite()
        return until

    def heal(self) -> None:
        """End everything that is wrong."""
        self._faults.heal()

    def finish(self) -> float:
        """Settle, deliver everything exactly once, and let the filters shrink to nothing."""
        self.publishing = False
        took_s = self.settle()
        self.pass_time(self.now + 6.0)
        self.quiet_since = self.now
        self.calm = True
        topics = TOPICS if self.settings.plain else (*TOPICS, MANY[7] + b"x")
        sent = [self.publish(host, topic) for host in self.hosts.values() for topic in topics]
        self.pass_time(self.now + 5.0)
        if not self.loops:
            self._completeness.expect([each for each in sent if each is not None])
        self.calm = False
        for host in self.alive(EndpointHost):
            host.want(())
        self.settle()
        self.see("at_end")
        return took_s
