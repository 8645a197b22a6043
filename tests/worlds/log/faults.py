"""What goes wrong with members of the log, drawn from the seed; and the end of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.worlds.ground_faults import GroundFaults
from tests.worlds.log.residents import ConsumerLife, ProducerResident, StoreLife, StoreResident, TowerPlace
from tests.worlds.residents import Place

from chappe.data.topic import Filter

if TYPE_CHECKING:
    from tests.worlds.log.scenario import Log

RESTORED = 0.15  # of the worlds have a journal that is restored from a copy
USUAL_S = (0.001, 0.01, 0.1)  # how long disks take


class LogFaults(GroundFaults):
    """Disturbs a world."""

    def __init__(self, world: Log) -> None:
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

    def plan(self, until: float) -> None:
        """Draw what happens up to ``until``."""
        super().plan(until)
        world, rng = self.world, self.world.late_rng
        for share, kind in (
            (world.rots and 1.0, self.damage), (world.rots and 0.5, self.rot_journal),
            (max(RESTORED, world.alone), self.restore_journal),
            (world.trims.there, world.trims.trim), (world.ages, self.clock_jump),
        ):  # fmt: skip
            if rng.random() < share:
                for _ in range(rng.choice((1, 2, 4))):
                    self.at(rng.uniform(0.3, until), kind)

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
        place = self._place()
        if place is not None and self.world.towers:
            tower = self.rng.choice(self.world.towers)
            self.world.trace(None, "%s cannot reach %s", place.name, tower.name)
            self.world.stage.cut(place.name, tower.name)
            self.world.clock.after(self.rng.choice((2.0, 8.0)), self._mend)

    def tower_crash(self) -> None:
        """A tower dies and comes back."""
        if self.world.towers:
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
        for query in world.queries:
            if query.home is resident.disk:
                query.lose_home()
        resident.disk.parts.clear()

    def damage(self) -> None:
        """A block on a disk goes bad; what no other disk has is then lost."""
        world, rng = self.world, self.world.late_rng
        disk = rng.choice([life.disk for life in world.alive(StoreLife)] or [None])
        places = [(key, block) for key, part in disk.parts.items() for block in part.blocks] if disk else []
        if not places:
            return
        key, block = rng.choice(places)
        others = [each for each in world.disks if each is not disk]
        alone = [at for at in range(block.base, block.next) if not any(each.holds(key, at) for each in others)]
        if block.damaged or (alone and rng.random() < 0.8) or not disk.flip(block, rng):
            return  # damage that nobody can heal is the less interesting kind
        world.truth.of(key).lost.update(alone)
        world.trace(None, "%s: %s/%s %d..%d is damaged", disk.store_id, *key, block.base, block.next - 1)

    def _lasting(self) -> list[ProducerResident]:
        found = [each for each in self.world.residents if isinstance(each, ProducerResident) and each.lasting]
        return [each for each in found if each.now is not None and each.directory.exists()]

    def rot_journal(self) -> None:
        """A producer's journal is damaged, and the producer begins again, which detects it."""
        rng = self.world.late_rng
        for each in rng.sample(found := self._lasting(), len(found)):
            each.place.kill(power_cut=False)
            self.world.clock.after(rng.choice((0.05, 1.0, 6.0)), each.place.restart)
            if each.rot(rng):
                return

    def restore_journal(self) -> None:
        """A producer's journal is copied, and some time later its machine is restored from that."""
        world, rng = self.world, self.world.late_rng
        found = self._lasting()
        each = rng.choice(found) if found else None
        restore = None if each is None else each.copy_journal()
        if each is None or restore is None:
            return
        late = rng.choice(self._stores()) if rng.random() < 0.4 else None
        if late is not None:
            late.kill(power_cut=False)  # it has less than the others

        def lose() -> None:
            each.place.kill(power_cut=False)
            restore()
            if late is not None:
                self._part(late, self._stores(), 8.0)
                late.restart()
            if world.alone:  # and reaches nobody for longer than it waits for stores
                self._part(each.place, [*world.places, *world.towers], world.limits.resume_wait_s + 5.0)
            world.clock.after(rng.choice((0.05, 1.0, 6.0)), each.place.restart)

        world.clock.after(rng.choice((0.5, 2.0, 4.0)), lose)

    def _stores(self) -> list[Place]:
        return [each for each in self.world.places if isinstance(each.residents[0], StoreResident)]

    def _part(self, place: Place, others: Sequence[Place | TowerPlace], seconds: float) -> None:
        for other in others:
            if other is not place:
                self.world.stage.cut(place.name, other.name)
        self.world.clock.after(seconds, self._mend)

    def clock_jump(self) -> None:
        """Clocks of consumers that look how old records are drift as members expect."""
        if not self.world.ages:
            super().clock_jump()
            return
        self.set_clock(self.rng.choice(self.world.places))

    def set_clock(self, place: Place) -> None:
        """Set the time of day of a host to anything."""
        rng = self.world.late_rng
        seconds = rng.choice((0.0, 0.3, 5.0, 60.0, 600.0)) * rng.uniform(-1.0, 1.0)
        self.world.stage.set_clock(place.name, seconds, drift=rng.uniform(-2e-4, 2e-4))
        self.world.see("on_clock_set", place.name)
