"""Worlds of a fixed chain: servers die and come back, of all but one at a time too, and nothing else goes wrong.

All promises of a chain hold there, and the last server that lives goes on confirming.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tests.worlds.chain.hosts import ClientHost, ServerHost
from tests.worlds.chain.scenario import ChainCores, ChainFaults, Chains

from chappe.sim.host import SimMember
from chappe.sim.world import Checker, Settings

LOSS = 0.02  # more would make servers miss four beats in a row, which counts as a death
ALONE_S = 3.0  # the last server is alone for so long: it has to confirm something within


class Survivor(Checker["FixedChains"]):
    """A member that is the only server alive confirms what clients ask."""

    name = "the last survivor"

    def __init__(self, world: FixedChains) -> None:
        super().__init__(world)
        self.confirmed = 0
        self.alone = 0  # survivors that were looked at

    def on_confirmed(self, host: ClientHost, number: int) -> None:
        """A client was told something."""
        self.confirmed += 1


class DeathsOnly(ChainFaults):
    """Deaths of servers and clients, and clocks that are set."""

    def __init__(self, world: FixedChains, survivor: Survivor) -> None:
        super().__init__(world)
        self._survivor = survivor
        self._alone_until = 0.0  # one server is left until then

    def kinds(self) -> tuple[Callable[[], None], ...]:
        """What may happen."""
        return (
            self._crash, self._crash, self._crash, self._power_cut, self._client_dies, self._set_clock,
            self._leave_one, self._leave_one, self._leave_one,
        )  # fmt: skip

    @property
    def _alone(self) -> bool:
        """Whether one server is left, which is to live on."""
        return self.schedule.on and self.world.now < self._alone_until

    def _kill(self, member: SimMember) -> None:
        if not self._alone:
            super()._kill(member)

    def _restart(self, member: SimMember) -> None:
        if self._alone and member in self.world.server_members:
            self.world.clock.at(self._alone_until, self._restart, member)
        else:
            super()._restart(member)

    def _leave_one(self) -> None:
        """All but one member die, and stay dead until it has confirmed something."""
        world = self.world
        members = [host for host in world.cores_alive() if host.core.member and host.core.aligned]
        if not members or self._alone:
            return
        last = world.rng.choice(members)
        dying = [member for member in world.server_members if member.host is not last]
        for member in dying:
            self._kill(member)
        self._alone_until = world.now + ALONE_S
        for member in dying:
            self._restart(member)
        for member in world.client_members:
            member.restart()
        world.clock.at(self._alone_until, self._look, last, self._survivor.confirmed)

    def _look(self, last: ServerHost, before: int) -> None:
        survivor = self._survivor
        if not self.schedule.on:
            return  # the others were started again
        survivor.alone += 1
        if survivor.confirmed == before:
            survivor.fail(f"{last.name} is the last one that lives, and confirms nothing: {last.core.story()}")
        world = self.world
        if world.durable and world.rng.random() < 0.5:  # the others come back first
            member = world.server_members[last.place]
            self._kill(member)
            world.clock.after(world.rng.choice((0.5, 5.0)), self._restart, member)


class FixedChains(Chains):
    """A fixed chain and its clients: any number of servers die, one goes on; histories are linearizable."""

    fixed = True
    lengths_s: ClassVar[tuple[float, ...]] = (10.0, 20.0)

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: ChainCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell, cores)
        self.wire.loss, self.wire.disorder = min(self.wire.loss, LOSS), 0.0

    def begin(self) -> None:
        """Servers and clients."""
        super().begin()
        survivor = Survivor(self)
        self.watch(survivor)
        self._faults = DeathsOnly(self, survivor)
