"""What befalls a chain beside what befalls every staged world: lost disks, lone hosts, servers that are to stay out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

from tests.worlds.ground_faults import GroundFaults

from chappe.errors import UsageError


class ChainFaults(GroundFaults):
    """Disturbs servers and clients of a chain."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._lost_disk = False

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        return (
            (4, self.crash), (1, self.leave), (2, self.power_cut), (4, self.stall), (1, self.break_link),
            (1, self.hold_link), (1, self.cut), (2, self.cut_one_way), (2, self.isolate), (1, self.disk_full),
            (1, self.bad_disk), (1, self.broken_disk), (2, self.slow_disk), (2, self.clock_jump),
            (2, self.lose_disk), (2, self.ask_out),
        )  # fmt: skip

    def plan(self, until: float) -> None:
        """Draw what happens up to ``until``."""
        weights, kinds = zip(*self.kinds(), strict=True)
        gap = self.rng.choice((0.3, 1.0, 3.0))
        at = 1.0
        while (at := at + self.rng.random() * 2 * gap) < until:
            (kind,) = self.rng.choices(kinds, weights)
            self.at(at, kind)

    def heal(self) -> None:
        """End everything that is wrong, and let all servers come back."""
        super().heal()
        self.world.net.query_loss = 0.0
        for life in self.world.running():
            for name in self.world.servers:
                self.world.trace(life, "adds %s", name)
                with self.world.stage.on(life.name):
                    life.server.add(name)

    def _links(self) -> list[Any]:
        place = self._place()
        if place is None:
            return []
        return [each for each in self.world.net.connections if place.name in (each.asker.name, each.router.name)]

    def break_link(self) -> None:
        """A connection breaks and is made again."""
        if links := self._links():
            self.rng.choice(links).break_()

    def hold_link(self) -> None:
        """A connection delivers nothing for a while."""
        if links := self._links():
            link = self.rng.choice(links)
            link.up.held_until = link.down.held_until = self.world.now + self.rng.choice((0.3, 2.0, 5.0))

    def power_cut(self) -> None:
        """The machines of all servers of a durable chain lose power, of others some."""
        for place in self.world.server_places:
            if self.world.durable or self.rng.random() < 0.3:
                place.kill(power_cut=True)
                self.world.clock.after(0.1 + self.rng.random() * 3, place.restart)

    def isolate(self) -> None:
        """A server is cut off from all others, and perhaps from clients."""
        world = self.world
        name = self.rng.choice(world.servers)
        clients = world.places[len(world.servers) : len(world.servers) + 2] if self.rng.random() < 0.5 else ()
        world.trace(None, "%s is cut off", name)
        for place in (*world.server_places, *clients):
            if place.name != name:
                world.stage.cut(name, place.name)
        world.clock.after(self.rng.choice((0.3, 1.0, 4.0)), self._mend)

    def lose_disk(self) -> None:
        """A server loses its disk while all others are well."""
        world = self.world
        cores = [life.core for life in world.running()]
        same = len({core.number for core in cores}) == 1 and cores[0].number
        whole = len(cores) == len(world.servers) and all(core.member and core.aligned for core in cores)
        decided = all(core.agreement.untouched and not core.agreement.proposing for core in cores)
        if len(cores) < 3 or not same or not whole or not decided or self._lost_disk or not world.durable:
            return
        self._lost_disk = True
        place = self.rng.choice(world.server_places)
        place.kill(power_cut=True)
        world.trace(None, "%s has lost its disk", place.name)
        shutil.rmtree(world.directory(place.name), ignore_errors=True)
        place.restart()

    def ask_out(self) -> None:
        """A server is asked to have one stay out, or come back."""
        world = self.world
        lives = [life for life in world.running() if not life.resident.place.paused]
        if not lives:
            return
        life, name = self.rng.choice(lives), self.rng.choice(world.servers)
        out = self.rng.random() < 0.6
        world.trace(life, "is asked to have %s %s", name, "stay out" if out else "come back")
        with world.stage.on(life.name):
            try:
                life.server.remove(name) if out else life.server.add(name)
            except UsageError as error:
                world.trace(life, "cannot: %s", error)
