"""What goes wrong, drawn from the seed; and the end of all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from tests.worlds.disk import SimDisk
from tests.worlds.faults import Schedule
from tests.worlds.journals import Journal
from tests.worlds.log.standin.members import ConsumerHost, ProducerHost
from tests.worlds.log.standin.node import NodeHost
from tests.worlds.log.standin.population import PopulatedLog
from tests.worlds.log.standin.stores import StoreHost

from chappe.data.topic import Filter
from chappe.sim.host import SimMember

SLOW_DISK_S = 0.7  # how long a write takes while disks are slow
BAD_JOURNALS = 0.3  # of the worlds have journals that refuse
ROLLED_BACK = 0.2  # of the worlds have an identity that is restored from a backup
CHANGED_TOPICS = 0.3  # of the worlds have consumers that unsubscribe from topics and subscribe to them again
MORE_OF_EACH = 0.3  # of the worlds have each of the faults that were added last
HEALED_DISK_S = 0.01  # and at most when all faults are over


def node(member: SimMember) -> NodeHost:
    """The host of a member of the log."""
    assert isinstance(member.host, NodeHost)
    return member.host


class StandInFaults(Schedule):
    """Disturbs a world."""

    def __init__(self, world: PopulatedLog) -> None:
        super().__init__(world)
        self.world = world
        self.rng = world.rng
        self._usual_disk_s = world.slow_disk_s
        self._slow_until = -math.inf
        self._left: list[tuple[ConsumerHost, Filter]] = []  # who unsubscribed from what

    def plan(self, until: float) -> None:
        """Draw what happens up to ``until``."""
        weights, kinds = zip(*self.kinds(), strict=True)
        for _ in range(self.rng.choice((0, 2, 5, 10, 20))):
            (kind,) = self.rng.choices(kinds, weights)
            self.at(self.rng.uniform(0.0, until), kind)
        rng = self.world.journal_rng
        if rng.random() < BAD_JOURNALS:
            for _ in range(rng.choice((1, 3))):
                self.at(rng.uniform(0.0, until), self.journal_full)
        if self.world.deaf:
            self.at(1.0, self.deafen)
        if rng.random() < ROLLED_BACK or self.world.more(ROLLED_BACK):
            self.at(rng.uniform(0.0, until), self.back_up)
        rng = self.world.topic_rng
        if not self.world.settings.plain and rng.random() < CHANGED_TOPICS:
            for _ in range(rng.choice((1, 3, 10))):
                self.at(rng.uniform(0.0, until), self.change_topics)
        for kind in (self.bad_disk, self.lose_messages, self.leave_when_asked):
            if self.world.more(MORE_OF_EACH):
                for _ in range(self.world.more_rng.choice((1, 3))):
                    self.at(self.world.more_rng.uniform(0.0, until), kind)

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What happens, and how often beside the others."""
        return (
            (8, self.crash), (3, self.leave), (4, self.stall), (6, self.break_link), (5, self.hold_link),
            (5, self.cut), (2, self.cut_from_tower), (2, self.tower_crash), (3, self.disk_full), (3, self.slow_disk),
            (3, self.damage), (1, self.lose_disk), (2, self.clock_jump), (2, self.bad_queries), (3, self.join),
        )  # fmt: skip

    def heal(self) -> None:
        """End everything that is wrong."""
        world = self.world
        self.on = False
        world.net.mend()
        world.net.query_loss = world.net.message_loss = 0.0
        for tower in world.towers:
            if not tower.alive:
                tower.restart()
        for disk in world.disks:
            disk.refusing = 0.0
        for journal in world.journals:
            journal.refusing = 0.0
        for host, wanted in self._left:
            self._come_back(host, wanted)
        self._left.clear()
        world.slow_disk_s = self._usual_disk_s = min(self._usual_disk_s, HEALED_DISK_S)
        for member in world.members:
            member.host.stalled_until = min(member.host.stalled_until, world.now)
            for link in node(member).links.values():
                for pipe in (link.up, link.down):
                    if pipe is not None:
                        pipe.held_until = 0.0
            node(member).doomed = False
            member.restart()

    # -- members --------------------------------------------------------------------------------------

    def _member(self) -> SimMember | None:
        alive = [m for m in self.world.members if m.alive]
        return self.rng.choice(alive) if alive else None

    def _host(self) -> NodeHost | None:
        member = self._member()
        return node(member) if member is not None else None

    def _down(self, member: SimMember, *, goodbye: bool = False) -> None:
        host = member.host
        member.crash(goodbye=goodbye, notice_s=self.rng.choice((0.0, 0.0, 6.0)))
        self._mourn(host)
        self.world.clock.after(self.rng.choice((0.05, 1.0, 3.0, 6.0, 12.0)), member.restart)

    def _mourn(self, host: object) -> None:
        """A producer without a journal takes with it what was not acknowledged."""
        if isinstance(host, ProducerHost) and host.journal is None:
            self.world.truth.of(host.key).gone = True

    def crash(self) -> None:
        """Kill a member and start it again later; a journal may be torn by it."""
        member = self._member()
        if member is None:
            return
        host = member.host
        if isinstance(host, ProducerHost) and host.journal is not None and self.rng.random() < 0.5:
            host.doomed = True
            self.world.clock.after(self.rng.uniform(1.0, 4.0), member.restart)
            return
        self._down(member)

    def leave(self) -> None:
        """A member says goodbye, and comes back later."""
        member = self._member()
        if member is not None:
            self._down(member, goodbye=True)

    def leave_when_asked(self) -> None:
        """A store leaves when another one asks it for records, and comes back."""
        members = [m for m in self.world.members if isinstance(m.host, StoreHost) and not m.gone]
        member = self.world.more_rng.choice(members)
        node(member).doomed = True
        self.world.clock.after(self.world.more_rng.uniform(2.0, 6.0), member.restart)

    def change_topics(self) -> None:
        """A consumer unsubscribes from what it consumes, or subscribes to what it had."""
        rng = self.world.topic_rng
        if self._left and rng.random() < 0.5:
            self._come_back(*self._left.pop(rng.randrange(len(self._left))))
            return
        hosts = [host for host in self.world.alive(ConsumerHost) if host.filters]
        if hosts:
            host = rng.choice(hosts)
            wanted = rng.choice(host.filters)
            host.unsubscribe(wanted)
            self.world.trace(host, "unsubscribes from %s", wanted)
            self._left.append((host, wanted))

    def _come_back(self, host: ConsumerHost, wanted: Filter) -> None:
        if host.alive:
            host.subscribe(wanted)
            self.world.trace(host, "subscribes to %s", wanted)

    def stall(self) -> None:
        """A member stands still for a while."""
        host = self._host()
        if host is not None:
            duration = self.rng.choice((0.2, 1.5, 5.0))
            self.world.trace(host, "stands still for %.1f s", duration)
            host.stalled_until = self.world.now + duration
            self.world.clock.after(duration, host.resume)

    def join(self) -> None:
        """Somebody new."""
        world = self.world
        if len(world.members) < 10:
            kind = self.rng.choice((world.add_producer, world.add_consumer, world.add_consumer, world.add_store))
            kind()

    # -- the network --------------------------------------------------------------------------------------

    def break_link(self) -> None:
        """A connection breaks and is made again."""
        host = self._host()
        if host is not None and host.links:
            link = self.rng.choice(list(host.links.values()))
            self.world.trace(host, "loses its connection to %s", link.endpoint)
            link.break_(self.rng.choice((0.0, 0.0, 2.0)))

    def hold_link(self) -> None:
        """A connection delivers nothing for a while."""
        host = self._host()
        if host is not None and host.links:
            link = self.rng.choice(list(host.links.values()))
            duration = self.rng.choice((0.3, 2.0, 5.0))
            self.world.trace(host, "hears nothing of %s for %.1f s", link.endpoint, duration)
            link.hold(self.world.now + duration)

    def cut(self) -> None:
        """Two members cannot reach each other for a while."""
        if len(self.world.members) < 2:
            return
        a, b = self.rng.sample(self.world.members, 2)
        duration = self.rng.choice((0.5, 3.0, 8.0))
        self.world.trace(a.host, "cannot reach %s for %.1f s", b.name, duration)
        self.world.net.cut(a.name, b.name, self.world.now + duration)
        for one, other in ((node(a), node(b)), (node(b), node(a))):
            link = one.links.get(other.endpoint)
            if link is not None:
                link.break_(self.rng.choice((0.0, 6.0)))

    def cut_from_tower(self) -> None:
        """A member cannot reach a tower for a while."""
        member, tower = self._member(), self.rng.choice(self.world.towers)
        if member is not None:
            self.world.trace(member.host, "cannot reach %s", tower.name)
            self.world.net.cut(member.name, tower.name, self.world.now + self.rng.choice((2.0, 8.0)))

    def tower_crash(self) -> None:
        """A tower dies and comes back."""
        tower = self.rng.choice(self.world.towers)
        if tower.alive:
            tower.crash()
            self.world.clock.after(self.rng.choice((0.5, 4.0, 10.0)), self._tower_restart)

    def _tower_restart(self) -> None:
        for tower in self.world.towers:
            if not tower.alive:
                tower.restart()

    def bad_queries(self) -> None:
        """Requests to stores, and their answers, get lost for a while."""
        net = self.world.net
        net.query_loss = self.rng.choice((0.1, 0.5, 1.0))
        self.world.clock.after(self.rng.uniform(0.5, 6.0), setattr, net, "query_loss", 0.0)

    def lose_messages(self) -> None:
        """Some of what is published is dropped for a while, as queues do that are full."""
        net, rng = self.world.net, self.world.more_rng
        net.message_loss = rng.choice((0.1, 0.5))
        self.world.clock.after(rng.choice((0.5, 2.0)), setattr, net, "message_loss", 0.0)

    def deafen(self) -> None:
        """Producers hear nothing for some seconds, and some of what is published is dropped; a store may start anew."""
        world, rng = self.world, self.world.more_rng
        for host in world.alive(ProducerHost):
            for link in host.links.values():
                link.hold(world.now + 7.0)
        world.net.message_loss = rng.choice((0.1, 0.3))
        world.clock.after(5.0, setattr, world.net, "message_loss", 0.0)
        stores = [m for m in world.members if isinstance(m.host, StoreHost)]
        for at in (4.0, 6.0):
            world.clock.after(at, self._down, rng.choice(stores))

    # -- disks and clocks ---------------------------------------------------------------------------------

    def disk_full(self) -> None:
        """A disk refuses writes for a while."""
        self._refuse(self.rng, 1.0)

    def bad_disk(self) -> None:
        """A disk refuses some of the writes for a while."""
        self._refuse(self.world.more_rng, 0.4)

    def _refuse(self, rng: Random, share: float) -> None:
        disk = rng.choice(self.world.disks)
        disk.refusing = share
        self.world.trace(None, "%s refuses %d %% of what is written", disk.store_id, 100 * share)
        self.world.clock.after(rng.choice((0.3, 2.0, 6.0)), setattr, disk, "refusing", 0.0)

    def journal_full(self) -> None:
        """A producer's journal refuses writes for a while, all or some of them."""
        rng = self.world.journal_rng
        if not self.world.journals:
            return
        journal = rng.choice(self.world.journals)
        journal.refusing = rng.choice((0.3, 1.0))
        until = rng.choice((0.3, 2.0, 6.0))
        self.world.clock.after(until, setattr, journal, "refusing", 0.0)
        if self.world.rot_rng.random() < 0.5:
            self.world.clock.after(until + 0.5, self._restart_of, journal)

    def _restart_of(self, journal: Journal) -> None:
        """Restart a producer whose disk was full; it continues with its journal."""
        for member in self.world.members:
            if member.alive and isinstance(member.host, ProducerHost) and member.host.journal is journal:
                member.crash()
                self.world.clock.after(1.0, member.restart)

    def back_up(self) -> None:
        """The journal of a producer is copied, and some time later its machine is restored from that."""
        world, rng = self.world, self.world.journal_rng
        copied = self._copy_journal(rng)
        if copied is None:
            return
        member, put_back = copied
        stores = [m for m in world.members if isinstance(m.host, StoreHost)]
        late = world.more_rng.choice(stores)
        if len(stores) > 1 and world.more(0.5):
            late.crash()  # it has less than the others

        def restore() -> None:
            member.crash()
            late.restart()
            put_back()
            world.clock.after(rng.choice((0.05, 1.0, 6.0)), member.restart)

        world.clock.after(rng.choice((0.5, 2.0, 4.0)), restore)

    def _copy_journal(self, rng: Random) -> tuple[SimMember, Callable[[], None]] | None:
        """Copy some producer's journal; returns whose, and what puts the copy back."""
        world = self.world
        members = [m for m in world.members if isinstance(m.host, ProducerHost) and m.host.journal is not None]
        if not members:
            return None
        member = rng.choice(members)
        assert isinstance(member.host, ProducerHost)
        journal, key = member.host.journal, member.host.key
        assert journal is not None
        backup = journal.copy()

        def put_back() -> None:
            journal.restore(backup)
            world.truth.of(key).gone = True  # what was not acknowledged went with the newer journal
            world.trace(None, "the journal of %s is restored from a copy that ends at %d", member.name, backup[1])

        return member, put_back

    def slow_disk(self) -> None:
        """Writes take long for a while."""
        until = self.world.now + self.rng.uniform(1.0, 5.0)
        self._slow_until = max(self._slow_until, until)
        self.world.slow_disk_s = SLOW_DISK_S
        self.world.clock.at(until, self._fast_again)

    def _fast_again(self) -> None:
        if self.world.now >= self._slow_until:  # another slow time may have begun within this one
            self.world.slow_disk_s = self._usual_disk_s

    def _others_hold(self, disk: SimDisk, key: tuple[str, str], offset: int) -> bool:
        others = [each for each in self.world.disks if each is not disk]
        return any(each.holds(key, offset) for each in others)

    def damage(self) -> None:
        """A block on a disk goes bad; what no other disk has is then lost."""
        disk = self.rng.choice(self.world.disks)
        places = [(key, block) for key, part in disk.parts.items() for block in part.blocks if not block.damaged]
        if not places:
            return
        key, block = self.rng.choice(places)
        alone = [o for o in range(block.base, block.next) if not self._others_hold(disk, key, o)]
        if alone and self.rng.random() < 0.8:
            return  # unrecoverable damage is the less interesting kind
        block.damaged = True
        self.world.truth.of(key).lost.update(alone)
        self.world.trace(None, "%s: %s/%s %d..%d is damaged", disk.store_id, *key, block.base, block.next - 1)

    def lose_disk(self) -> None:
        """A store is gone for good, with its disk."""
        stores = [m for m in self.world.members if isinstance(m.host, StoreHost) and not m.gone]
        if len(stores) < 2:
            return
        member = self.rng.choice(stores)
        assert isinstance(member.host, StoreHost)
        disk = member.host.disk
        member.crash()
        member.gone = True
        self.world.trace(None, "%s and its disk are gone for good", member.name)
        for key, ever_safe in disk.ever.items():
            flags = enumerate(ever_safe)
            alone = [o for o, ever in flags if ever and not self._others_hold(disk, key, o)]
            self.world.truth.of(key).lost.update(alone)
        disk.parts.clear()

    def clock_jump(self) -> None:
        """The time of day is set; the monotonic clock goes on."""
        self.world.clock.wall_jump_us += self.rng.choice((-3_600, -1, 5, 86_400)) * 1_000_000
