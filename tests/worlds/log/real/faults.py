"""What goes wrong with members of the log, drawn from the seed; and the end of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.worlds.ground_faults import GroundFaults
from tests.worlds.log.real.residents import ConsumerLife, StoreResident

from chappe.data.topic import Filter

if TYPE_CHECKING:
    from tests.worlds.log.real.scenario import RealLog

USUAL_S = (0.001, 0.01, 0.1)  # how long disks take


class RealFaults(GroundFaults):
    """Disturbs a world."""

    def __init__(self, world: RealLog) -> None:
        super().__init__(world)
        self._left: list[tuple[ConsumerLife, Filter]] = []

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        return (
            (6, self.crash), (2, self.leave), (3, self.stall), (2, self.join), (3, self.break_link),
            (2, self.hold_link), (3, self.cut), (2, self.cut_one_way), (2, self.cut_from_tower), (1, self.tower_crash),
            (1, self.bad_queries), (1, self.lose_messages), (2, self.disk_full), (1, self.bad_disk),
            (1, self.broken_disk), (2, self.slow_disk), (1, self.lose_disk), (1, self.clock_jump),
            (1, self.change_topics), (2, self.leave_others),
        )  # fmt: skip

    def heal(self) -> None:
        """End everything that is wrong."""
        for tower in self.world.towers:
            tower.restart()
        self.world.net.query_loss = self.world.net.message_loss = 0.0
        super().heal()
        for host, wanted in self._left:
            self._come_back(host, wanted)

    def join(self) -> None:
        """Somebody new."""
        world = self.world
        if len(world.residents) < 10:
            self.rng.choice((world.add_producer, world.add_consumer, world.add_consumer, world.add_store))()

    def change_topics(self) -> None:
        """A consumer unsubscribes from what it consumes, or subscribes to what it had."""
        if self._left and self.rng.random() < 0.5:
            self._come_back(*self._left.pop(self.rng.randrange(len(self._left))))
            return
        hosts = [each for each in self.world.alive(ConsumerLife) if each.filters and not each.resident.place.paused]
        if hosts:
            host = self.rng.choice(hosts)
            wanted = self.rng.choice(host.filters)
            self.world.trace(host, "unsubscribes from %s", wanted)
            host._call(host.unsubscribe, (wanted,))
            self._left.append((host, wanted))

    def _come_back(self, host: ConsumerLife, wanted: Filter) -> None:
        self.world.trace(host, "subscribes to %s", wanted)
        host._call(host.subscribe, (wanted,))

    def cut_from_tower(self) -> None:
        """A host cannot reach a tower for a while."""
        place, tower = self._place(), self.rng.choice(self.world.towers)
        if place is not None:
            self.world.trace(None, "%s cannot reach %s", place.name, tower.name)
            self.world.stage.cut(place.name, tower.name)
            self.world.clock.after(self.rng.choice((2.0, 8.0)), self._mend)

    def tower_crash(self) -> None:
        """A tower dies and comes back."""
        tower = self.rng.choice(self.world.towers)
        tower.kill()
        self.world.clock.after(self.rng.choice((0.5, 4.0, 10.0)), tower.restart)

    def bad_queries(self) -> None:
        """Questions to stores, and their answers, get lost for a while."""
        net = self.world.net
        net.query_loss = self.rng.choice((0.1, 0.5, 1.0))
        self.world.clock.after(self.rng.uniform(0.5, 6.0), setattr, net, "query_loss", 0.0)

    def lose_messages(self) -> None:
        """Some of what is published is dropped for a while, as queues do that are full."""
        net = self.world.net
        net.message_loss = self.rng.choice((0.1, 0.5))
        self.world.clock.after(self.rng.choice((0.5, 2.0)), setattr, net, "message_loss", 0.0)

    def lose_disk(self) -> None:
        """A store is gone for good, with its disk."""
        world = self.world
        stores = [each for each in world.residents if isinstance(each, StoreResident) and not each.gone]
        if len(stores) < 2:
            return
        resident = self.rng.choice(stores)
        resident.place.kill(power_cut=False)
        resident.gone = True
        world.trace(None, "%s and its disk are gone for good", resident.name)
        others = [each for each in world.disks if each is not resident.disk]
        for key, ever in resident.disk.ever.items():
            alone = [at for at, flag in enumerate(ever) if flag and not any(each.holds(key, at) for each in others)]
            world.truth.of(key).lost.update(alone)
        resident.disk.parts.clear()
