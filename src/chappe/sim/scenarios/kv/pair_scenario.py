"""Worlds of a pair of masters: kills, standing still, cuts in one direction, full disks, clocks that drift.

Promises: no two masters are followed in one term; what was confirmed is in the store in the end and what was refused
never was; each write is done once; watchers are told of each change in its order; and when all is well both masters and
all clones have the same. What a clone shows of a master is at each moment what that one had behind that event, also
where it took from it only what it lacked.

What may be lost is what the docs say, as for a pair of map servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from chappe.kv.entity import Entity
from chappe.limits import KV_LIMITS
from chappe.replication.binary_star.messages import PASSIVE
from chappe.sim.host import Member
from chappe.sim.scenarios.kv.pair_hosts import (
    MASTERS,
    CloneHost,
    MasterHost,
    PairWitness,
    PartHost,
    any_write,
)
from chappe.sim.scenarios.kv.promises import States, Survival, contents_of
from chappe.sim.scenarios.maps.hosts import WITNESS
from chappe.sim.scenarios.maps.lines import Lines
from chappe.sim.scenarios.pairs import ALL, PairedWorld
from chappe.sim.world import Checker, Settings

BACK_S: Final = 2.0  # so long a clone is parted from its master ...
LATE_S: Final = 3.5  # ... and so late comes what the other one offers it


class PairWorld(PairedWorld):
    """Everything that one seed decides."""

    names = MASTERS
    lengths_s = (5.0, 15.0, 30.0)
    settle_max_s = 40.0

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.loss = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.kv_limits = KV_LIMITS
        if not self.settings.plain:
            self.kv_limits = replace(
                KV_LIMITS, pair_part_bytes=rng.choice((200, 2_000, 262_144)), pair_window=rng.choice((2, 4)),
                pair_queue_bytes=rng.choice((0, 1_000, 1 << 24)), commit_operations=rng.choice((3, 8_192)),
                piece_bytes=rng.choice((100, 262_144)), outcomes_max=rng.choice((1, 4_096)),
                recent_keys=rng.choice((2, 20, 65_536)), recent_bytes=rng.choice((100, 1 << 23)),
            )  # fmt: skip
        self.lines = Lines(self)
        self.more_rng = Random(f"more {seed}")  # for what was added later: worlds without it are what they were

    def running(self) -> list[MasterHost]:
        """See ``PairedWorld``."""
        return self.alive(MasterHost)

    def is_active(self, host: Any) -> bool:
        """See ``PairedWorld``."""
        return host.role.active is not None

    def star_of(self, host: Any) -> Any:
        """See ``PairedWorld``."""
        return host.role.star

    def clients(self) -> list[CloneHost]:
        """See ``PairedWorld``."""
        return self.alive(CloneHost)

    def crash(self, name: str) -> None:
        """Some say goodbye."""
        self.places[name].crash(goodbye=self.rng.random() < 0.2)

    def network_changed(self) -> None:
        """Somebody is there that was not."""
        holders = frozenset(each.endpoint for each in self.running())
        for clone in self.alive(CloneHost):
            if not clone.frozen:
                clone.call(clone.role.handle_network, holders, lambda endpoint: endpoint in holders, clone.now)


class Terms(Checker[PairWorld]):
    """No two masters are followed in one term."""

    name = "one active master"

    def __init__(self, world: PairWorld) -> None:
        super().__init__(world)
        self._terms: dict[Entity, int] = {}
        self._masters: dict[int, tuple[Entity, MasterHost]] = {}
        self._hosts: dict[Entity, MasterHost] = {}

    def on_active(self, host: MasterHost, master: Entity, term: int) -> None:
        """There is a master."""
        if term:
            self._terms[master] = term
            self._hosts[master] = host

    def on_found(self, clone: CloneHost, master: Entity) -> None:
        """It is followed."""
        term, host = self._terms[master], self._hosts[master]
        known, former = self._masters.setdefault(term, (master, host))
        if known != master:
            if self.world.durable or former.alive:
                self.fail(f"{clone.name} follows {host.name} in term {term}, where {former.name} was active")
            self._masters[term] = master, host  # both have lost their memories


class Convergence(Checker[PairWorld]):
    """In the end one is active, the other has everything, and clones and watchers have what they have."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        masters = world.running()
        active = [each for each in masters if each.role.active is not None]
        if len(masters) != 2 or len(active) != 1 or active[0].role.star.confirms != "paired":
            return f"not paired: {[each.role.star.story() for each in masters]}"
        passive = next(each for each in masters if each is not active[0])
        if passive.role.star.state != PASSIVE or not passive.role.idle():
            return f"{passive.name} is not in step: {passive.role.star.story()}"
        contents = contents_of(active[0])
        for host in world.alive(PartHost):
            if isinstance(host, CloneHost) and not host.role.idle():
                return f"{host.name} is not idle"
            if contents_of(host) != contents:
                return f"{host.name} has something else"
            if host.shown != contents:
                return f"who watches {host.name} was told something else"
        for name, backend in world.backends.items():
            if backend is not None and len(backend.rows) != len(contents):
                return f"the disk of {name} has {len(backend.rows)} entries, not {len(contents)}"
        if world.durable:
            one, two = (backend for backend in world.backends.values())
            assert one is not None
            assert two is not None
            if one.rows != two.rows:
                return "the disks differ"
        return None


class KvPair(PairWorld):
    """A pair of masters, perhaps a witness, and clones; all of them write."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.states = States(self)
        self.watch(Terms(self), Survival(self), self.states, Convergence(self))
        self.parts = self.rng.random() < 0.3

    def begin(self) -> None:
        """Make everybody."""
        for name in MASTERS:
            self.places[name] = self.join("master", lambda name: MasterHost(self, name, self.backends[name]))
        if self.witnessed:
            self.places[WITNESS] = Member(self, WITNESS, lambda: PairWitness(self, WITNESS))
        for _ in range(self.few(self.rng.choice((1, 2, 4)))):
            self.join("clone", lambda name: CloneHost(self, name))
        self.clock.after(0.0, self._work)

    def plan(self, until: float) -> float:
        """What happens, and when."""
        if self.settings.disturb and self.parts and not (self.witnessed or self.settings.plain):
            for _ in range(self.more_rng.choice((0, 1, 2))):
                self.schedule.at(self.more_rng.uniform(3.0, max(3.0, until - 3.0)), self.offer_late)
        kinds = [self.kill, self.kill, self.part_and_kill, self.freeze, self.freeze, self.kill_clone]
        return self.plan_pair(until, [*kinds, self.freeze_client], [])

    def heal(self) -> None:
        """Nothing is lost any more, and all hear who is there."""
        self.loss = 0.0
        super().heal()
        self.network_changed()

    def _work(self) -> None:
        if not self.working:
            return
        rng = self.rng
        for host in self.alive(PartHost):
            if rng.random() < 0.4:
                host.write(*any_write(rng, len(self.written)))
        self.clock.after(rng.expovariate(20.0), self._work)

    def offer_late(self) -> None:
        """Both go on, as there is no witness, and what one offers to a clone comes late: when it was back at the other.

        So the offer is made for a state that the clone has no longer, and the one that it was back at is dead.
        """
        active, clones = self.active(), self.clients()
        if active is None or not clones or not self.calm():
            return
        self.excused = ALL
        left, clone = active.name, self.more_rng.choice(clones).name
        other = self.other(left)
        self.trace(active, "is parted from %s, and for a moment from %s", other, clone)
        for one, seconds in ((other, 6.0), (clone, BACK_S)):
            for source, target in ((one, left), (left, one)):
                self.lines.cut(source, target, self.now + seconds, lost=True)
        self._hold_back(other, clone, self.now + LATE_S)
        self.clock.after(LATE_S - 0.5, self.kill_one, left)
        self.restart_after(LATE_S + 3.0, left)

    def _hold_back(self, master: str, clone: str, until: float) -> None:
        """As soon as a clone is without a master, what another one sends it comes late."""
        host: Any = self.hosts[clone]
        if host.alive and not host.role.connected:
            self.lines.cut(master, clone, until, lost=False)
        elif self.now < until - 1.0:
            self.clock.after(0.001, self._hold_back, master, clone, until)

    def kill_clone(self) -> None:
        """A clone ends, and another one begins."""
        clones = [member for member in self.members if isinstance(member.host, CloneHost)]
        if clones:
            member = self.rng.choice(clones)
            member.crash(goodbye=self.rng.random() < 0.5)
            self.clock.after(0.5, member.restart)
