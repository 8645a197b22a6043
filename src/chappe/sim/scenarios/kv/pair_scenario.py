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
from typing import Any, Final

from chappe.data.scalars import Count
from chappe.kv.entity import Entity
from chappe.limits import KV_LIMITS
from chappe.replication.binary_star.messages import PASSIVE
from chappe.replication.binary_star.witness import Held
from chappe.sim.backends import SimBackend
from chappe.sim.faults import Schedule
from chappe.sim.host import Member
from chappe.sim.scenarios.kv.pair_hosts import (
    COUNTERS,
    LISTS,
    MASTERS,
    CloneHost,
    MasterHost,
    PairWitness,
    PartHost,
    Written,
    any_write,
)
from chappe.sim.scenarios.maps.hosts import COMMITS_S, WITNESS
from chappe.sim.scenarios.maps.lines import Lines
from chappe.sim.world import Checker, Settings, World

DRIFTS: Final = (0.0, 0.01, 0.1)


class PairWorld(World):
    """Everything that one seed decides."""

    lengths_s = (5.0, 15.0, 30.0)
    settle_max_s = 40.0
    events_max = 3_000_000

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.witnessed = rng.random() < 0.6
        self.durable = rng.random() < 0.6
        self.drift = rng.choice(DRIFTS)
        self.commit_s = rng.choice(COMMITS_S)
        self.loss = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.limits = KV_LIMITS
        if not self.settings.plain:
            self.limits = replace(
                KV_LIMITS, pair_part_bytes=rng.choice((200, 2_000, 262_144)), pair_window=rng.choice((2, 4)),
                pair_queue_bytes=rng.choice((0, 1_000, 1 << 24)), commit_operations=rng.choice((3, 8_192)),
                piece_bytes=rng.choice((100, 262_144)), outcomes_max=rng.choice((1, 4_096)),
                recent_keys=rng.choice((2, 20, 65_536)), recent_bytes=rng.choice((100, 1 << 23)),
            )  # fmt: skip
        self.lines = Lines(self)
        self.granted: dict[bytes, Held] = {}
        self.witness_full = False
        self.backends = {name: SimBackend() if self.durable else None for name in MASTERS}
        self.written: list[Written] = []
        self.working = True
        self._lives = 0

    def next_life(self) -> int:
        """A number that no other life has."""
        self._lives += 1
        return self._lives

    def random(self, size: int) -> bytes:
        """Random bytes."""
        return self.rng.randbytes(size)

    def noted(self, written: Written) -> Written:
        """Remember what is written."""
        self.written.append(written)
        return written

    def count(self) -> int:
        """Writes."""
        return len(self.written)

    def masters(self) -> list[MasterHost]:
        """Those that run."""
        return self.alive(MasterHost)

    def network_changed(self) -> None:
        """Somebody is there that was not."""
        holders = frozenset(each.endpoint for each in self.masters())
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


class States(Checker[PairWorld]):
    """A clone has what its master had behind the same event: no change is missed, and none is done twice."""

    name = "states of masters"

    def __init__(self, world: PairWorld) -> None:
        super().__init__(world)
        self.resumed = 0  # times that a clone took from another master what it lacked
        self._offered: set[tuple[str, Entity]] = set()
        self._states: dict[tuple[Entity, int], dict[Any, Any]] = {}

    def on_state(self, master: Entity, event: int, entries: dict[Any, Any]) -> None:
        """A master has told all of its events up to this one."""
        self._states.setdefault((master, event), entries)

    def on_shows(self, clone: CloneHost, master: Entity, event: int) -> None:
        """A clone is in step."""
        entries = self._states.get((master, event))
        shown = _contents(clone)
        if entries is not None and shown != entries:
            wrong = [key for key in {**entries, **shown} if key not in shown or shown[key] != entries.get(key)]
            self.fail(f"{clone.name} at event {event} of {master} has something else under {wrong}")

    def on_changes(self, clone: CloneHost, master: Entity) -> None:
        """A clone is offered what it lacks, and no more."""
        self._offered.add((clone.name, master))

    def on_moved(self, clone: CloneHost, master: Entity) -> None:
        """A clone follows another master."""
        self.resumed += (clone.name, master) in self._offered


class Survival(Checker[PairWorld]):
    """What was confirmed is there in the end, once; what was refused is not."""

    name = "confirmed writes"

    def __init__(self, world: PairWorld) -> None:
        super().__init__(world)
        self.excused = 0  # so many of the writes may be lost

    def excuse(self) -> None:
        """All that is confirmed up to now may be lost."""
        self.world.trace(None, "what was written up to now may be lost")
        self.excused = len(self.world.written)

    def unsettled(self) -> str | None:
        """Whether a write is lost, done twice, or done though it was refused."""
        world = self.world
        masters = [each for each in world.masters() if each.role.active is not None]
        if len(masters) != 1:
            return f"{len(masters)} masters are active: {[each.role.star.story() for each in world.masters()]}"
        waiting = [each for host in world.alive(PartHost) for each in host.written.values()]
        if waiting:
            return f"{len(waiting)} writes are under way: {waiting[0]}"
        found = {entry.key: entry.value for entry in masters[0].role.engine.items()}
        for key in LISTS:
            values = found.get(key, ())
            if len(set(values)) != len(values):
                self.fail(f"{key} has a write twice: {values}")
        for each in world.written[self.excused :]:
            self._check(each, found)
        if not self.excused:
            for key in COUNTERS:
                self._count(key, found.get(key, Count(0)))
        return None

    def _check(self, each: Written, found: dict[Any, Any]) -> None:
        refused = each.told and isinstance(each.outcome, Exception) and getattr(each.outcome, "definite", True)
        done = each.told and not isinstance(each.outcome, Exception)
        if each.key in LISTS:
            there = each.value in found.get(each.key, ())
        elif each.key.startswith("set "):
            there = found.get(each.key) == each.value
        elif each.what == "put_unique" and each.told and each.outcome is True:
            if found.get(each.key) != each.value:
                self.fail(f"{each} was told that it inserted, and {found.get(each.key)!r} is there")
            return
        else:
            return
        if (done and not there) or (refused and there):
            self.fail(f"{each} is {'there' if there else 'not there'}")

    def _count(self, key: str, value: int) -> None:
        told = [each for each in self.world.written if each.key == key]
        done = sum([each.told and not isinstance(each.outcome, Exception) for each in told])
        perhaps = sum([not each.told or not getattr(each.outcome, "definite", True) for each in told])
        if not done <= value <= done + perhaps:
            self.fail(f"{key} is {value}; {done} increments were confirmed, {perhaps} may be done")


class Convergence(Checker[PairWorld]):
    """In the end one is active, the other has everything, and clones and watchers have what they have."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        masters = world.masters()
        active = [each for each in masters if each.role.active is not None]
        if len(masters) != 2 or len(active) != 1 or active[0].role.star.confirms != "paired":
            return f"not paired: {[each.role.star.story() for each in masters]}"
        passive = next(each for each in masters if each is not active[0])
        if passive.role.star.state != PASSIVE or not passive.role.idle():
            return f"{passive.name} is not in step: {passive.role.star.story()}"
        contents = _contents(active[0])
        for host in world.alive(PartHost):
            if isinstance(host, CloneHost) and not host.role.idle():
                return f"{host.name} is not idle"
            if _contents(host) != contents:
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


def _contents(host: Any) -> dict[Any, Any]:
    return {index: entry.value for index, entry in host.role.engine.entries.items()}


class KvPair(PairWorld):
    """A pair of masters, perhaps a witness, and clones; all of them write."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._survival = Survival(self)
        self.states = States(self)
        self.watch(Terms(self), self._survival, self.states, Convergence(self))
        self._schedule = Schedule(self)
        self._parts = self.rng.random() < 0.3  # without a witness: whether cuts are among what happens
        self._places: dict[str, Member] = {}

    def begin(self) -> None:
        """Make everybody."""
        for name in MASTERS:
            self._places[name] = self.join("master", lambda name: MasterHost(self, name, self.backends[name]))
        if self.witnessed:
            self._places[WITNESS] = Member(self, WITNESS, lambda: PairWitness(self, WITNESS))
        for _ in range(self.few(self.rng.choice((1, 2, 4)))):
            self.join("clone", lambda name: CloneHost(self, name))
        self.clock.after(0.0, self._work)

    def plan(self, until: float) -> float:
        """What happens, and when."""
        if not self.settings.disturb:
            return until
        kinds = [self.kill, self.kill, self.part_and_kill, self.freeze, self.freeze, self.kill_clone, self.freeze_clone]
        if self.witnessed:
            kinds += [self.kill_both, self.cut, self.cut, self.part, self.part, self.kill_witness, self.cut_witness]
            kinds.append(self.fill_witness)
        elif self._parts:
            kinds += [self.part, self.cut]
        else:
            kinds += [self.kill_in_turn]
        if self.durable:
            kinds.append(self.fill)
        at = 3.0
        while (at := at + self.rng.expovariate(0.7)) < until:
            self._schedule.at(at, self.rng.choice(kinds))
        return until

    def heal(self) -> None:
        """Everybody lives, reaches everybody and has room."""
        self._schedule.on = False
        self.working = False
        self.lines.mend()
        self.loss = 0.0
        self.witness_full = False
        for backend in self.backends.values():
            if backend is not None:
                backend.full = False
        for member in [*self._places.values(), *self.members]:
            host: Any = member.host
            if host.frozen:
                host.resume()
            member.restart()
        self.network_changed()

    def _work(self) -> None:
        if not self.working:
            return
        rng = self.rng
        for host in self.alive(PartHost):
            if rng.random() < 0.4:
                host.write(*any_write(rng, len(self.written)))
        self.clock.after(rng.expovariate(20.0), self._work)

    # -- faults ----------------------------------------------------------------------------------------------------

    def _calm(self) -> bool:
        """Both run and are paired: without a witness nothing else may begin to go wrong."""
        masters = self.masters()
        return len(masters) == 2 and not any(each.frozen for each in masters) and any(
            each.role.active is not None and each.role.star.confirms == "paired" for each in masters
        )  # fmt: skip

    def _pick(self) -> str:
        return self.rng.choice(MASTERS)

    def _kill(self, name: str) -> None:
        host = self._places[name].host
        if not host.alive:
            return
        if not self.durable and self._is_needed(host):
            self._survival.excuse()
        self.trace(host, "is killed")
        self._places[name].crash(goodbye=self.rng.random() < 0.2)

    def _is_needed(self, host: Any) -> bool:
        """Whether nobody else surely has what was confirmed."""
        other = next((each for each in self.masters() if each is not host), None)
        if other is None:
            return True
        ours, theirs = host.role.star, other.role.star
        if ours.term > theirs.term:
            return bool(ours.confirms == "alone" or not theirs._in_step)
        return bool(not theirs.term or ours.record > theirs.record)

    def kill(self) -> None:
        """One is killed, and comes back."""
        if self.witnessed or self._calm():
            name = self._pick()
            self._kill(name)
            self.clock.after(self.rng.choice((0.1, 1.0, 3.0)), self._places[name].restart)

    def kill_both(self) -> None:
        """Both are killed at once."""
        for name in MASTERS:
            self._kill(name)
            self.clock.after(self.rng.choice((0.1, 1.0, 3.0)), self._places[name].restart)

    def part_and_kill(self) -> None:
        """The active one no longer reaches the passive one, and is killed before it could go on alone."""
        active = next((each for each in self.masters() if each.role.active is not None), None)
        if active is not None and self._calm():
            for one, two in (MASTERS, MASTERS[::-1]):
                self.lines.cut(one, two, self.now + 0.4, lost=True)
            self.clock.after(0.4, self._kill, active.name)
            self.clock.after(3.0, self._places[active.name].restart)

    def kill_in_turn(self) -> None:
        """The passive backup is killed, then the primary, which went on alone; the backup comes back first."""
        primary, backup = (self._places[name] for name in MASTERS)
        host: Any = primary.host
        if self._calm() and host.role.active is not None:
            self._kill(MASTERS[1])
            self.clock.after(2.0, self._kill, MASTERS[0])
            self.clock.after(2.1, backup.restart)
            self.clock.after(5.0, primary.restart)

    def freeze(self) -> None:
        """One stands still."""
        if self.witnessed or self._calm():
            self._freeze(self._places[self._pick()].host)

    def _freeze(self, host: Any) -> None:
        if host.alive and not host.frozen:
            self.trace(host, "stands still")
            seconds = self.rng.choice((0.3, 0.6, 1.5, 4.0))
            host.stalled_until = self.now + seconds
            self.clock.after(seconds, host.resume)

    def part(self) -> None:
        """The two do not reach each other, in one direction or both."""
        self._cut(*MASTERS)

    def cut(self) -> None:
        """A clone and a master do not reach each other, in one direction or both."""
        clones = self.alive(CloneHost)
        if clones:
            self._cut(self.rng.choice(clones).name, self._pick())

    def cut_witness(self) -> None:
        """A master and the witness do not reach each other."""
        self._cut(WITNESS, self._pick())

    def _cut(self, one: str, two: str) -> None:
        if not self.witnessed:
            self._survival.excused = 10**9
        until = self.now + self.rng.choice((0.3, 1.0, 3.0))
        lost = self.rng.random() < 0.5
        way = self.rng.choice((1, 2, 3))
        self.trace(None, "%s and %s are parted %s", one, two, ("", "one way", "the other way", "wholly")[way])
        if way & 1:
            self.lines.cut(one, two, until, lost=lost)
        if way & 2:
            self.lines.cut(two, one, until, lost=lost)

    def kill_witness(self) -> None:
        """The witness is killed, and comes back."""
        self._places[WITNESS].crash()
        self.clock.after(self.rng.choice((0.1, 2.0)), self._places[WITNESS].restart)

    def fill_witness(self) -> None:
        """The witness's disk is full for a while."""
        self.witness_full = True
        self.clock.after(self.rng.choice((0.1, 1.0)), setattr, self, "witness_full", False)

    def kill_clone(self) -> None:
        """A clone ends, and another one begins."""
        clones = [member for member in self.members if isinstance(member.host, CloneHost)]
        if clones:
            member = self.rng.choice(clones)
            member.crash(goodbye=self.rng.random() < 0.5)
            self.clock.after(0.5, member.restart)

    def freeze_clone(self) -> None:
        """A clone stands still."""
        clones = self.alive(CloneHost)
        if clones:
            self._freeze(self.rng.choice(clones))

    def fill(self) -> None:
        """A disk is full for a while."""
        backend = self.backends[self._pick()]
        assert backend is not None
        backend.full = True
        self.clock.after(self.rng.choice((0.1, 1.0)), setattr, backend, "full", False)
