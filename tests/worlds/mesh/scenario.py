"""Worlds of the mesh as users run it: any topology, churn, slow and dead peers, originals and a rogue among them."""

from __future__ import annotations

from typing import Any

from tests.worlds.mesh.accounts import accounts
from tests.worlds.mesh.aging import Ages, stall
from tests.worlds.mesh.checkers import Completeness, all_checkers
from tests.worlds.mesh.faults import MeshFaults
from tests.worlds.mesh.filters import FILTERS
from tests.worlds.mesh.gaps import Missing
from tests.worlds.mesh.lasts import Lasts
from tests.worlds.mesh.paces import SURPLUS, Pace, SlowSubscriber
from tests.worlds.mesh.population import PopulatedMesh
from tests.worlds.mesh.shortcuts import Shortcuts
from tests.worlds.mesh.singles import Accounted, SingleFaults
from tests.worlds.mesh.subjects import MANY, SURPLUS_MAX, EndpointSubject
from tests.worlds.mesh.world import TOPICS
from tests.worlds.stage import Replaced

from chappe.api.mesh import subscriber
from chappe.defaults import LINK_STATE_KEPT_S

DRAINED_S = 60


class Mesh(PopulatedMesh):
    """The mesh as users run it: the API's own objects, sockets' buffers and threads' turns."""

    filtering = FILTERS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._completeness = Completeness(self)
        self.watch(
            *all_checkers(self),
            self._completeness,
            *accounts(self),
            Accounted(self),
            Ages(self),
            Missing(self),
            Lasts(self),
        )
        self._faults = MeshFaults(self)
        if self.single:
            self._faults = SingleFaults(self)
        elif self.shortcuts:
            self._faults = Shortcuts(self)
        elif self.paces:
            self._faults = pace = SlowSubscriber(self)
            self.watch(Pace(self, pace))

    def replaced(self) -> list[Replaced]:
        return [
            *super().replaced(),
            (subscriber, "SURPLUS_MESSAGES_MAX", SURPLUS if self.paces else SURPLUS_MAX),
        ]

    def begin(self) -> None:
        """Make the first hosts."""
        self.populate()
        if self.ages and not self.paces:  # who is slow there, and how slow, is decided
            stall(self)

    def plan(self, until: float) -> float:
        """Plan the faults, and perhaps have a rogue among them."""
        if not self.settings.disturb:
            return until
        if not self.rogue_alone or self.loops:
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
        for _ in range(DRAINED_S):  # what waits until something else has arrived fills boxes until it is sent
            routers = [host.core.router for host in self.alive(EndpointSubject)]
            if any(each.trees.order.waits or each.holds.waits for each in routers):
                self.pass_time(self.now + 1.0)
        self.quiet_since = self.now
        self.calm = True
        self.see("on_quiet")
        topics = TOPICS if self.settings.plain else (*TOPICS, MANY[7] + b"x")
        publishers = [host for host in self.hosts.values() if host.original or not self.originals_alone]
        sent = [self.publish(host, topic) for host in publishers for topic in topics]
        if self.filters:  # at once, so that some of a batch are held back
            known = set(self.record.publications)
            for host in self.alive(EndpointSubject):
                self.publish_many(host, TOPICS[0], 8)
            sent += [each for each in self.record.publications if each not in known]
        if not self.settings.plain:
            self.pass_time(self.now + 2.0)  # small memories do not take so many at once
        for host in self.alive(EndpointSubject) if not self.settings.plain else ():
            others = [each for each in self.reachable(host) if not each.original]
            sent += [self.publish(host, topic, receiver=self.more_rng.choice(others)) for topic in TOPICS if others]
        self.pass_time(self.now + 5.0)
        if not self.loops:
            self._completeness.expect([each for each in sent if each is not None])
        self.calm = False
        if self.lasts:
            for host in self.alive(EndpointSubject):
                host.want_last((b"",))
            self.pass_time(self.now + 5.0)
            self.see("on_lasts")
        if self.rests:
            self._rest()
        for host in self.alive(EndpointSubject):
            host.want(())
        self.settle()
        self.see("at_end")
        return took_s

    def _rest(self) -> None:
        """Wait until what is gone is forgotten."""
        for _ in range(2):  # an endpoint notes at the first change that one is gone, and forgets it at a later one
            for host in self.alive(EndpointSubject):
                host.want((b"/b",))
                host.want((b"/c",))
            self.pass_time(self.now + LINK_STATE_KEPT_S + 1.0)
        for host in self.alive(EndpointSubject):
            host.want((b"/b",))
        self.pass_time(self.now + 3.0)
        living = {host.own_id for host in self.hosts.values()}
        for host in self.alive(EndpointSubject):
            gone = host.core.router.topology.remembered - living
            if gone:
                self.fail("bounds", f"{host.life} still remembers {sorted(gone)[0].hex()}")
