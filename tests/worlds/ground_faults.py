"""Faults of hosts, connections, disks and clocks that befall any staged world, drawn from its seed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.worlds.faults import Schedule
from tests.worlds.residents import Place

POWER_CUTS: Final = 0.4  # of the deaths of a host are that of its machine


class GroundFaults(Schedule):
    """Disturbs a staged world."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.world: Any = world
        self.rng = world.rng

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        return (
            (6, self.crash), (2, self.leave), (3, self.stall), (3, self.break_link), (2, self.hold_link),
            (3, self.cut), (2, self.cut_one_way), (2, self.disk_full), (1, self.bad_disk), (1, self.broken_disk),
            (2, self.slow_disk), (1, self.clock_jump), (2, self.leave_others),
        )  # fmt: skip

    def plan(self, until: float) -> None:
        """Draw what happens up to ``until``."""
        weights, kinds = zip(*self.kinds(), strict=True)
        for _ in range(self.rng.choice((0, 2, 5, 10, 20))):
            (kind,) = self.rng.choices(kinds, weights)
            self.at(self.rng.uniform(0.0, until), kind)

    def heal(self) -> None:
        """End everything that is wrong."""
        self.on = False
        world = self.world
        world.usual_disk_s = min(world.usual_disk_s, 0.01)
        for place in world.places:
            disk = world.stage.disk(place.name)
            disk.allow()
            disk.slow(world.usual_disk_s)
            place.resume()
        self._mend()
        for place in world.places:
            place.restart()

    def _mend(self) -> None:
        self.world.stage.mend()

    def _place(self, *, up: bool = True) -> Place | None:
        places = [each for each in self.world.places if each.up or not up]
        return self.rng.choice(places) if places else None

    # -- hosts ------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Kill a host, or its machine, and start it again later."""
        place = self._place()
        if place is not None:
            place.kill(power_cut=self.rng.random() < POWER_CUTS)
            self.world.clock.after(self.rng.choice((0.05, 1.0, 3.0, 6.0, 12.0)), place.restart)

    def leave(self) -> None:
        """Members say goodbye, and come back later."""
        place = self._place()
        if place is not None:
            place.leave()
            self.world.clock.after(self.rng.choice((0.05, 1.0, 3.0, 6.0)), place.restart)

    def leave_others(self) -> None:
        """One of those that share a node leaves it, and comes back."""
        shared = [each for each in self.world.places if len(each.residents) > 1]
        if shared:
            place = self.rng.choice(shared)
            place.leave_one(self.rng.choice(place.residents))

    def stall(self) -> None:
        """A host stands still for a while."""
        place = self._place()
        if place is not None and not place.paused:
            place.pause()
            self.world.clock.after(self.rng.choice((0.2, 1.5, 5.0)), place.resume)

    # -- the network --------------------------------------------------------------------------------------------

    def break_link(self) -> None:
        """A connection breaks and is made again."""
        place = self._place()
        if place is not None and (links := self.world.stage.links(place.name)):
            self.rng.choice(links).break_(self.rng.choice((0.0, 0.0, 2.0)))

    def hold_link(self) -> None:
        """A connection delivers nothing for a while."""
        place = self._place()
        if place is not None and (links := self.world.stage.links(place.name)):
            self.rng.choice(links).hold(self.world.now + self.rng.choice((0.3, 2.0, 5.0)))

    def _two(self) -> tuple[str, str] | None:
        if len(self.world.places) < 2:
            return None
        one, other = self.rng.sample(self.world.places, 2)
        self.world.clock.after(self.rng.choice((0.5, 3.0, 8.0)), self._mend)
        return one.name, other.name

    def cut(self) -> None:
        """Two hosts cannot reach each other for a while."""
        if (two := self._two()) is not None:
            self.world.trace(None, "%s cannot reach %s", *two)
            self.world.stage.cut(*two)

    def cut_one_way(self) -> None:
        """Nothing comes from one host to another for a while."""
        if (two := self._two()) is not None:
            self.world.trace(None, "nothing comes from %s to %s", *two)
            self.world.stage.cut(*two, one_way=True)

    # -- disks and clocks -----------------------------------------------------------------------------------------

    def disk_full(self) -> None:
        """A disk is full for a while."""
        self._refuse(1.0, errno.ENOSPC)

    def bad_disk(self) -> None:
        """A disk has no room for some of what is written for a while."""
        self._refuse(0.4, errno.ENOSPC)

    def broken_disk(self) -> None:
        """Some writes, syncs and reads of a disk fail for a while."""
        self._refuse(self.rng.choice((0.05, 0.3)), errno.EIO)

    def _die(self, place: Place) -> None:
        """Die while, or soon after, the disk refuses."""
        if self.on:
            place.kill(power_cut=self.rng.random() < POWER_CUTS)
            self.world.clock.after(self.rng.choice((0.05, 1.0, 3.0)), place.restart)

    def _refuse(self, share: float, error: int) -> None:
        place = self.rng.choice(self.world.places)
        disk = self.world.stage.disk(place.name)
        self.world.trace(None, "the disk of %s refuses %d %%: %s", place.name, 100 * share, errno.errorcode[error])
        disk.refuse(share, error)
        self.world.clock.after(self.rng.choice((0.3, 2.0, 6.0)), disk.refuse, 0.0)
        if self.rng.random() < 0.5:
            self.world.clock.after(self.rng.uniform(0.1, 6.0), self._die, place)

    def slow_disk(self) -> None:
        """A disk takes long for a while."""
        disk = self.world.stage.disk(self.rng.choice(self.world.places).name)
        disk.slow(0.7)
        self.world.clock.after(self.rng.uniform(1.0, 5.0), disk.slow, self.world.usual_disk_s)

    def clock_jump(self) -> None:
        """The time of day of a host is set, and drifts from then on."""
        place = self.rng.choice(self.world.places)
        self.world.stage.set_clock(
            place.name, self.rng.choice((-3_600, -1, 5, 86_400)), drift=self.rng.uniform(-1e-3, 1e-3)
        )
