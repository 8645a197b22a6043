"""How old messages seem to those who ask when they were published: never older than they are, and not much younger.

Only the world knows when something was published. Clocks differ by up to days, and some stand still with their hosts,
which others notice with the next ping. Messages seem younger than they are by the quickest way that an answer to a ping
took on each link, and by what clocks may have drifted since; where a link is new, or a host reads slowly, by more.
"""

from __future__ import annotations

from typing import Final

from tests.worlds.mesh.base import MeshHost
from tests.worlds.mesh.checkers import BEFORE_S
from tests.worlds.mesh.population import PopulatedMesh
from tests.worlds.mesh.rogues import NAME as ROGUE
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import MeshWorld

from chappe.mesh.links.link import DRIFT
from chappe.mesh.messages import DATA, Message
from chappe.sim.world import Checker

EXACT_S: Final = 0.001
STALL_S: Final = 0.5  # a connection that has stood for a while passes on nothing for so long
STANDS_S: Final = 5.0  # by then its ends know each other's clocks
NOTICED_S: Final = 5.0  # by then everybody has read a clock that stood still
READS: Final = 4  # of a slow host until it has an answer


def stall(world: MeshWorld) -> None:
    """Have connections stall now and then, from now on."""
    stood = [
        side for side in world.streams.sides
        if isinstance(one := world.host_of(side), EndpointSubject)
        and isinstance(two := world.host_of(side.other), EndpointSubject)
        and world.record.link(one.life, two.life).covers(world.now - STANDS_S, world.now)
        and world.record.link(two.life, one.life).covers(world.now - STANDS_S, world.now)
    ]  # fmt: skip
    if stood:
        world.age_rng.choice(stood).stall(STALL_S)
    world.clock.after(world.age_rng.uniform(0.0, 2 * STALL_S), stall, world)


class Ages(Checker[PopulatedMesh]):
    """See the module."""

    name = "ages"

    def __init__(self, world: PopulatedMesh) -> None:
        super().__init__(world)
        self._resumed_at = -NOTICED_S
        self._slow_s: dict[str, float] = {}  # lives that read slowly
        self.seen = 0  # messages with a time

    def on_resumed(self, host: MeshHost) -> None:
        """A clock goes on that stood still."""
        self._resumed_at = self.world.now

    def on_tick(self) -> None:
        """Look who reads slowly."""
        for host in self.world.hosts.values() if self.world.ages else ():
            self._slow_s[host.life] = max(host.read_s, self._slow_s.get(host.life, 0.0))

    def on_delivered(self, host: EndpointSubject, message: Message) -> None:
        """Compare."""
        world = self.world
        publication = world.record.publications.get(message.payload)
        if not (world.ages and isinstance(host, EndpointSubject) and host.asks_times and message.kind == DATA):
            return
        if publication is None or publication.publisher == ROGUE or world.rogues:
            return
        age_s = world.now - publication.at
        ours = world.lives.get(message.origin) == publication.publisher
        if message.published is None:
            if ours and world.calm and host.wanted and not world.loops:
                self.fail(f"{host.life} is not told how old {message.payload!r} of {publication.publisher} is")
            return
        self.seen += 1
        if world.suspended or publication.at < self._resumed_at + NOTICED_S:
            return
        seems_s, start = host.now - message.published, publication.at - BEFORE_S
        wrong_s = EXACT_S + self._hop_s() * (len(world.hosts) - 1) + READS * sum(self._slow_s.values())
        if seems_s > age_s + EXACT_S or (
            ours and seems_s < age_s - wrong_s and world.record.is_quiet(start, world.now)
        ):
            self.fail(f"{message.payload!r} is {age_s:.3f} s old, and seems {seems_s:.3f} s old to {host.life}")

    def _hop_s(self) -> float:
        """Return what an answer takes at most where nothing waits, and how far clocks may drift until the next one."""
        unread_s = max(
            [
                host.now - link.clock._at
                for host in self.world.alive(EndpointSubject)
                for link in host.core.router.links.values()
                if link.clock._at
            ],
            default=0.0,
        )
        return DRIFT * unread_s + 2 * max([side.delay_s for side in self.world.streams.sides], default=0.0)
