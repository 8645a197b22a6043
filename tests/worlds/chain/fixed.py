"""Worlds of a fixed chain: servers die and come back, of all but one at a time too, and nothing else goes wrong.

All promises of a chain hold there, and the last server that lives goes on confirming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from tests.worlds.chain.faults import ChainFaults
from tests.worlds.chain.members import ClientLife, ServerLife
from tests.worlds.chain.scenario import Chains

from chappe.sim.world import Checker, Settings

LOSS = 0.02  # more, or messages that are late, would make servers miss four beats in a row, which counts as a death
ALONE_S = 3.0  # the last server is alone for so long: it has to confirm something within


class Survivor(Checker["FixedChains"]):
    """A member that is the only server alive confirms what clients ask."""

    name = "the last survivor"

    def __init__(self, world: FixedChains) -> None:
        super().__init__(world)
        self.confirmed = 0
        self.alone = 0  # survivors that were looked at

    def on_confirmed(self, host: ClientLife, number: int) -> None:
        """A client was told something."""
        self.confirmed += 1


class DeathsOnly(ChainFaults):
    """Deaths of servers and clients, and clocks that are set."""

    _last: ServerLife | None = None  # is left alone, and is to live on

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        return ((3, self.crash), (1, self.leave), (1, self.power_cut), (1, self.clock_jump), (3, self.leave_one))

    def crash(self) -> None:
        """Kill a host, unless all but one are dead."""
        if self._last is None:
            super().crash()

    def leave(self) -> None:
        """A member leaves, unless all but one are dead."""
        if self._last is None:
            super().leave()

    def power_cut(self) -> None:
        """Cut the power of all, unless all but one are dead."""
        if self._last is None:
            super().power_cut()

    def leave_one(self) -> None:
        """All but one member die, and stay dead until it has confirmed something."""
        world = self.world
        members = [life for life in world.running() if life.core.member and life.core.aligned]
        if not members or self._last is not None:
            return
        self._last = last = self.rng.choice(members)
        for place in world.places:
            if place in world.server_places and place is not last.resident.place:
                place.kill(power_cut=False)
                place.residents[0].gone = True
            else:
                place.restart()
        world.clock.after(ALONE_S, self._look, last, world.survivor.confirmed)

    def _look(self, last: ServerLife, before: int) -> None:
        self._last = None
        world, survivor = self.world, self.world.survivor
        if not self.on:
            return  # the others were started again
        survivor.alone += 1
        if survivor.confirmed == before:
            survivor.fail(f"{last.name} is the last one that lives, and confirms nothing: {last.core.story()}")
        if world.durable and self.rng.random() < 0.5:  # the others come back first
            last.resident.place.kill(power_cut=True)
            world.clock.after(self.rng.choice((0.5, 5.0)), last.resident.place.restart)
        for place in world.server_places:
            if place is not last.resident.place:
                place.residents[0].gone = False
                place.restart()

    def heal(self) -> None:
        """Let all live again."""
        for place in self.world.server_places:
            place.residents[0].gone = False
        super().heal()


class FixedChains(Chains):
    """A fixed chain and its clients: any number of servers die, one goes on; histories are linearizable."""

    fixed = True
    faults_of = DeathsOnly
    lengths_s: ClassVar[tuple[float, ...]] = (10.0, 20.0)

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.net.query_loss = min(self.net.query_loss, LOSS)
        self.net.spike = 0.0
        self.survivor = Survivor(self)
        self.watch(self.survivor)
