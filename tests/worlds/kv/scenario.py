"""Worlds of a data store: a master, now and then a second one, and clones that come and go.

``Kv`` plays them as users run them: endpoints of the API, with all that is below them, on hosts that fail.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final

from tests.worlds.faults import Schedule
from tests.worlds.kv.checkers import all_checkers
from tests.worlds.kv.hosts import CLONE_TOPIC, MASTER_TOPIC, KvHost
from tests.worlds.kv.members import (
    EndpointLife,
    EndpointResident,
    FillableBackend,
    MasterFile,
    Role,
    StoreLife,
    StoreResident,
)
from tests.worlds.kv.rogues import any_command, any_message, forged_event, forged_write
from tests.worlds.kv.world import KvCores, KvWorld, small_limits
from tests.worlds.mesh.checkers import Bounds, Patience, Storms
from tests.worlds.mesh.wires import Frames
from tests.worlds.residents import Place
from tests.worlds.stage import Stage, StagedWorld, kind_made_by

from chappe.api.kv import attaching
from chappe.core import Send
from chappe.kv.clone import KvClone
from chappe.kv.commands import AckClone, Clear, SnapshotOffer
from chappe.kv.entity import Entity, chappe_entity
from chappe.kv.history import KeyHistory
from chappe.kv.master import KvMaster
from chappe.mesh.messages import COMMAND
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import Checker, Settings

RELAYS: Final = "relay"
WAITS: Final = 0.1  # of what applications do
ROGUES: Final = 0.3  # of the worlds have an endpoint that speaks in the names of others
FIRST_PORT: Final = 9_000


class KvBase(KvWorld):
    """What is the same wherever members are."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watch(*all_checkers(self))
        self._schedule = Schedule(self)
        self._rate = 0.0  # how often applications do something, in a second

    # -- members ------------------------------------------------------------------------------------------------

    def make(self, name: str) -> None:
        """Begin the next life of a member."""
        raise NotImplementedError

    def add(self, name: str) -> None:
        """A member, or its next life, unless it lives; a second master only while there are faults."""
        host = self.hosts.get(name)
        if (host is None or not host.alive) and (self._schedule.on or name != "second"):
            self.master_lives += name == "master"
            self.second |= name == "second"
            self.make(name)

    def begin(self) -> None:
        """Make the first members; now and then the clones are there before their master."""
        more = Random(f"limits {self.seed}")
        self.limits = small_limits(self.rng, more, Random(f"together {self.seed}"))
        self._rate = more.choice((2.0, 20.0, 20.0, 20.0))
        clones = self.few(self.rng.choice((1, 2, 3, 5)))
        late_s = 0.0 if self.rng.random() < 0.7 else self.rng.choice((0.5, 15.0))
        self.connect(["master", *(f"clone{number}" for number in range(clones))])
        self.clock.after(late_s, self.add, "master")
        for number in range(clones):
            self.add(f"clone{number}")
        self.clock.after(0.0, self._work)

    def connect(self, names: list[str]) -> None:
        """Decide who is to be linked with whom."""

    def _work(self) -> None:
        """Applications do something now and then, sometimes much at once."""
        if not self.working:
            return
        living = self.alive(KvHost)
        if living:
            host = self.rng.choice(living)
            for _ in range(self.rng.choice((1, 1, 1, 3, 20))):
                if host.alive:
                    host.act()
            if host.alive and self.rng.random() < WAITS:
                host.wait()
            if host.alive and self.history_size and self.history_rng.random() < WAITS:
                host.ask_history()
        self.clock.after(self.rng.expovariate(self._rate), self._work)

    # -- faults -------------------------------------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """Spread faults over the time until then."""
        rng = self.rng
        kinds = (
            (25, self._kill_master), (15, self._kill_clone), (20, self._cut), (6, self._end_link), (6, self._slow),
            (8, self._fill_backend), (10, self._die_after_commit), (5, self._add_second), (5, self._say_anything),
        )  # fmt: skip
        at = 0.0
        while self.settings.disturb and (at := at + rng.expovariate(0.5)) < until:
            (kind,) = rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
            self._schedule.at(at, kind)
        return until

    def heal(self) -> None:
        """One master, everybody in reach."""
        self._schedule.on = False
        self.dies_after_commit = 0.0
        if self.backend is not None:
            self.backend.full = False
        for host in self.masters():
            if host.name == "second":
                self.kill(host)
        for name in ("master", *self.hosts):
            if name != "second":
                self.add(name)

    def stop(self) -> None:
        """Ask for nothing more."""
        self.working = False

    def kill(self, host: Any) -> None:
        """Crash a member."""
        self.trace(host, "dies")
        host.die()

    def killed(self, host: KvHost) -> None:
        """It dies between a commit and hearing of it."""
        self.kill(host)
        self.clock.after(self.rng.choice((0.1, 1.0, 15.0)), self.add, host.name)

    def _kill_master(self) -> None:
        masters = self.masters()
        if masters:
            self.killed(self.rng.choice(masters))

    def _kill_clone(self) -> None:
        clones = self.clones()
        if clones:
            host = self.rng.choice(clones)
            if self.rng.random() < 0.5:
                self.trace(host, "is closed")
                host.leave()
            self.kill(host)
            self.clock.after(self.rng.choice((0.1, 2.0)), self.add, host.name)

    def pair(self) -> tuple[Any, Any] | None:
        """Two members between which something can be cut."""
        masters, clones = self.masters(), self.clones()
        return (self.rng.choice(masters), self.rng.choice(clones)) if masters and clones else None

    def separate(self, one: Any, two: Any, seconds: float, noticed: bool) -> None:
        """Nothing passes between two members for some time; both hear of it at once if it is ``noticed``."""
        raise NotImplementedError

    def _cut(self) -> None:
        pair = self.pair()
        if pair is not None:
            self.trace(pair[0], "is cut off from %s", pair[1].name)
            self.separate(*pair, self.rng.choice((0.3, 3.0, 12.0, 60.0)), self.rng.random() < 0.5)

    def _end_link(self) -> None:
        pair = self.pair()
        if pair is not None:
            self.trace(pair[0], "has no link to %s for about a second", pair[1].name)
            self.separate(*pair, self.rng.choice((0.3, 1.0, 1.5)), True)

    def slow(self, host: Any, on: bool) -> None:
        """A member takes little of what is sent to it."""
        raise NotImplementedError

    def _slow(self) -> None:
        clones = self.clones()
        if clones:
            host = self.rng.choice(clones)
            self.trace(host, "is slow")
            self.slow(host, True)
            self.clock.after(self.rng.choice((2.0, 12.0)), self.slow, host, False)

    def _fill_backend(self) -> None:
        if self.backend is not None:
            self.backend.full = True
            self.clock.after(self.rng.choice((0.1, 1.0)), setattr, self.backend, "full", False)

    def _die_after_commit(self) -> None:
        self.dies_after_commit = self.rng.choice((0.0, 0.02))

    def _add_second(self) -> None:
        masters = self.masters()
        if masters:
            self.add("second")
            for clone in self.clones():
                if self.rng.random() < 0.5:
                    self.separate(masters[0], clone, self.rng.choice((2.0, 10.0)), False)

    def say(self, host: KvHost, action: Send) -> None:
        """A stranger says something to a member."""
        raise NotImplementedError

    def _say_anything(self) -> None:
        """A stranger says something, in its own name, or in one that it has made up."""
        rng, hosts = self.rng, self.alive(KvHost)
        if not hosts:
            return
        host = rng.choice(hosts)
        stranger = chappe_entity(b"rogue" + rng.getrandbits(88).to_bytes(11, "big"), rng.getrandbits(32))
        if rng.random() < 0.5:
            stranger = Entity(b"a rogue original", rng.choice((6, 7)))
        for _ in range(rng.choice((1, 5, 50))):
            command = any_command(rng, (stranger, host.entity), ("rogue",), (1, "a", ("b", 2)))
            if isinstance(command, AckClone | SnapshotOffer | Clear):
                continue  # a second master, or one who may write: what they do counts
            payload = any_message(rng, host.entity, stranger, command)
            self.trace(host, "is told %r by a stranger", command)
            self.say(host, Send(MASTER_TOPIC if host.kind == "master" else CLONE_TOPIC, stranger.endpoint, payload))


class KvMeshed(KvBase):
    """A data store attached to endpoints of the mesh."""

    net: Any
    streams: Any
    wires: set[tuple[str, str]]  # who dials whom
    cuts: set[frozenset[str]]  # pairs of lives between which a connection was cut

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._names_rng = Random(f"names {self.seed}")

    def connect(self, names: list[str]) -> None:
        """Links of any topology, over endpoints without a data store, too."""
        rng = self.rng
        relays = [f"{RELAYS}{number}" for number in range(rng.choice((0, 1, 1, 2)))]
        names = [*relays, *names, "second"]
        for number, name in enumerate(names[1:], 1):
            other = rng.choice(names[:number])
            self.wires.add((name, other) if rng.random() < 0.7 else (other, name))
        for _ in range(rng.choice((0, 1, 2))):
            one, two = rng.sample(names, 2)
            if (two, one) not in self.wires:
                self.wires.add((one, two))
        for name in relays:
            self.add(name)

    def plan(self, until: float) -> float:
        """Spread faults, and now and then an endpoint that speaks in the names of others."""
        until = super().plan(until)
        rng = self._names_rng
        if self.settings.disturb and not self.settings.plain and rng.random() < ROGUES:
            for _ in range(rng.choice((1, 3, 10))):
                self._schedule.at(rng.uniform(0.0, until), self._speak_for_another)
        return until

    def _speak_for_another(self) -> None:
        """An endpoint writes in the name of a clone, or says something to a clone in the name of the master."""
        rng = self._names_rng
        masters, clones = self.masters(), self.clones()
        if not masters or not clones:
            return
        master, clone = rng.choice(masters), rng.choice(clones)
        rogues = [each for each in self.endpoints() if each not in (master, clone)]
        if not rogues:
            return
        rogue = rng.choice(rogues)
        if rng.random() < 0.7:
            topic, receiver, said = MASTER_TOPIC, master, forged_write(clone.entity, master.entity)
        else:
            position = clone.role.position
            topic, receiver, said = CLONE_TOPIC, clone, forged_event(master.entity, 0 if position is None else position)
        self.trace(rogue, "speaks to %s in another's name", receiver.name)
        for payload in said:
            self.speak(rogue, topic, payload, receiver)

    def pair(self) -> tuple[Any, Any] | None:
        """Two members that are linked."""
        found = [(self.hosts.get(one), self.hosts.get(two)) for one, two in sorted(self.wires)]
        linked = [(one, two) for one, two in found if one is not None and two is not None and one.alive and two.alive]
        return self.rng.choice(linked) if linked else None

    def separate(self, one: Any, two: Any, seconds: float, noticed: bool) -> None:
        """Cut all connections between two members, and have them redial in vain for some time."""
        self.net.cut(one.name, two.name, self.now + seconds)
        self.cuts.add(frozenset((one.life, two.life)))
        for side in self.streams.between(one.name, two.name):
            if noticed:
                side.reset("no route to host")
            else:
                side.cut = True

    def in_reach(self, one: Any, two: Any) -> bool:
        """Whether two members reach each other, and no connection is cut without being noticed."""
        cut = any(side.cut for side in self.streams.sides)
        return not cut and one.core.reaches(two.own_id) and two.core.reaches(one.own_id)

    def say(self, host: KvHost, action: Send) -> None:
        """A stranger says something to a member: an endpoint without a data store, if there is one."""
        relays = [each for each in self.endpoints() if each.name.startswith(RELAYS)]
        if relays:
            self.speak(self.rng.choice(relays), action.topic, action.message, host)

    def endpoints(self) -> list[Any]:
        """All that run, with a data store or without one."""
        raise NotImplementedError

    def speak(self, endpoint: Any, topic: bytes, payload: bytes, receiver: Any) -> None:
        """Have an endpoint send a command to another one alone."""
        raise NotImplementedError


class Watches(Checker["Kv"]):
    """In the end who watches a store was told what it has."""

    name = "watches"

    def unsettled(self) -> str | None:
        """The first difference."""
        for host in self.world.alive(StoreLife):
            if host.shown != host.has():
                return f"who watches {host.name} was told {host.shown}, it has {host.has()}"
        return None


class Kv(StagedWorld, KvMeshed):
    """A data store as users run it: the API's own objects, sockets' buffers, commits' lanes, a database."""

    net: Any = None

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: KvCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.cores = cores or KvCores()
        self.attaching: StoreLife  # who attaches a store just now
        self._lives = count(1)
        self._ports: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        bits = Random(f"entities {seed}")
        self.stage = Stage(
            self,
            (
                (secrets, "randbits", bits.getrandbits),
                (attaching, "KvMaster", kind_made_by(KvMaster, self._master)),
                (attaching, "KvClone", kind_made_by(KvClone, self._clone)),
                (attaching, "KeyHistory", lambda size, _, *, kept: KeyHistory(size, self.limits, kept=kept)),
                (attaching, "_BACKENDS", {"sqlite": FillableBackend}),
                (FillableBackend, "world", self),
            ),
        )
        self.net, self.streams = self.stage.net, self.stage.streams
        self.streams.look = self._written
        self._frames: defaultdict[StreamSide, Frames] = defaultdict(Frames)
        self.wires, self.cuts = set(), set()
        self.lives: dict[bytes, str] = {}  # of endpoints, by id
        self.watch(Watches(self), Storms(self), Patience(self), Bounds(self))
        if self.backend is not None:
            self.backend = MasterFile(self.stage.scratch / "master" / "store.db")

    def _written(self, side: StreamSide, pieces: list[bytes]) -> None:
        self.show("on_written", side, self._frames[side].cut([each[PREFIX:] for each in pieces]))

    def ran(self, life: str, since: float) -> bool:
        """Nobody stands still here."""
        return True

    def _master(self, *arguments: Any, loaded: Any, **options: Any) -> Any:
        core = self.cores.master(*arguments, loaded=loaded, limits=self.limits, **options | {"notify": True})
        role = self._attached(core)
        self.see("on_loaded", self.attaching, () if loaded is None else loaded.history)
        return role

    def _clone(self, *arguments: Any, **options: Any) -> Any:
        return self._attached(self.cores.clone(*arguments, limits=self.limits, **options | {"notify": True}))

    def _attached(self, core: Any) -> Role:
        host = self.attaching
        role = Role(core, host._answered)
        host.entity, host.role = core.entity, role
        return role

    # -- members ----------------------------------------------------------------------------------------------

    def next_life(self) -> int:
        """The number of one more life."""
        return next(self._lives)

    def port_of(self, name: str) -> int:
        """Where an endpoint listens."""
        return self._ports.setdefault(name, FIRST_PORT + len(self._ports))

    def make(self, name: str) -> None:
        """Begin the next life of a member."""
        if name not in self._places:
            self._places[name] = place = Place(self, name)
            (EndpointResident if name.startswith(RELAYS) else StoreResident)(self, name, place)
            self.stage.disk(name).slow(self._commit_s)
        self._places[name].restart()

    def kill(self, host: Any) -> None:
        """Kill its host, unless it has left."""
        host.resident.place.kill(power_cut=False)

    def _kill_clone(self) -> None:
        clones = self.clones()
        if clones:
            host = self.rng.choice(clones)
            if self.rng.random() < 0.5:
                host.resident.place.leave()
            else:
                self.kill(host)
            self.clock.after(self.rng.choice((0.1, 2.0)), self.add, host.name)

    def heal(self) -> None:
        """End everything that is wrong."""
        self.stage.mend()
        super().heal()

    def slow(self, host: Any, on: bool) -> None:
        """A member reads slowly."""
        self.stage.host(host.name).read_s = self.rng.choice((0.02, 0.2)) if on else 0.0

    def endpoints(self) -> list[Any]:
        """See ``KvMeshed``."""
        return self.alive(EndpointLife)

    def speak(self, endpoint: Any, topic: bytes, payload: bytes, receiver: Any) -> None:
        """See ``KvMeshed``."""
        endpoint._call(endpoint.speak, (topic, payload, COMMAND, receiver.own_id))
