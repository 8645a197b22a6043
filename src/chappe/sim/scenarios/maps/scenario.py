"""Worlds of a pair of map servers: kills, standing still, cuts in one direction, full disks and queues, clocks that
drift.

Promises: no two servers are active in one term, as clients see it; what was confirmed is in the map in the end, and
what was refused never was; each write is done once; and when all is well both servers and all clients have the same.

What may be lost is what the docs say: without disks what only dead servers had, without a witness what was confirmed on
one side of a cut, or by a server that is not there while the other begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from chappe.errors import WriteUnknown
from chappe.limits import MAP_LIMITS
from chappe.replication.binary_star.messages import PASSIVE
from chappe.replication.binary_star.witness import Held
from chappe.sim.backends import SimBackend
from chappe.sim.faults import Schedule
from chappe.sim.host import Member
from chappe.sim.scenarios.maps.hosts import (
    COMMITS_S,
    SERVERS,
    WITNESS,
    ClientHost,
    GuideHost,
    MapHost,
    ServerHost,
    WitnessHost,
    Written,
)
from chappe.sim.scenarios.maps.lines import Lines
from chappe.sim.world import Checker, Settings, World

COUNTERS: Final = 2
VOID_S: Final = 3.0  # a server is cut off so long
VOID_WRITTEN_S: Final = 0.5  # and clients write so long of it
DRIFTS: Final = (0.0, 0.01, 0.1)


class MapWorld(World):
    """Everything that one seed decides."""

    lengths_s = (5.0, 15.0, 30.0)
    settle_max_s = 30.0
    events_max = 3_000_000

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.witnessed = rng.random() < 0.6
        self.durable = rng.random() < 0.6
        self.drift = rng.choice(DRIFTS)
        self.commit_s = rng.choice(COMMITS_S)
        self.limits = MAP_LIMITS
        if not self.settings.plain:
            self.limits = replace(
                MAP_LIMITS, piece_bytes=rng.choice((100, 10_000)), window=rng.choice((4, 16)),
                recent_max=rng.choice((10, 1_000)), views_max=rng.choice((1, 4)), view_shared_s=rng.choice((0.0, 1.0)),
                outcomes_max=Random(f"outcomes {seed}").choice((3, 20, MAP_LIMITS.outcomes_max)),
            )  # fmt: skip
        self.lines = Lines(self)
        self.granted: dict[bytes, Held] = {}
        self.witness_full = False  # its disk
        self.stuffed: dict[tuple[str, str], float] = {}  # server and client, and until when that takes nothing
        self.backends = {name: SimBackend() if self.durable else None for name in SERVERS}
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

    def servers(self) -> list[ServerHost]:
        """Those that run."""
        return self.alive(ServerHost)


class Terms(Checker[MapWorld]):
    """No two servers are active in one term."""

    name = "one active server"

    def __init__(self, world: MapWorld) -> None:
        super().__init__(world)
        self._epochs: dict[int, tuple[bytes, ServerHost]] = {}

    def on_welcome(self, client: ClientHost, server: str, epoch: bytes) -> None:
        """A client is served."""
        host = self.world.hosts[server]
        term = int.from_bytes(epoch[8:])
        known, former = self._epochs.setdefault(term, (epoch, host))
        if known != epoch:
            if self.world.durable or former.alive:
                self.fail(f"{server} and {former.name} are both active in term {term}")
            self._epochs[term] = epoch, host  # both have lost their memories


class Survival(Checker[MapWorld]):
    """What was confirmed is there in the end, what was refused is not."""

    name = "confirmed writes"

    def __init__(self, world: MapWorld) -> None:
        super().__init__(world)
        self.excused = 0  # so many of the writes may be lost

    def excuse(self) -> None:
        """All that is confirmed up to now may be lost."""
        self.world.trace(None, "what was written up to now may be lost")
        self.excused = len(self.world.written)

    def unsettled(self) -> str | None:
        """Whether a write is lost, or done though it was refused."""
        world = self.world
        servers = [each for each in world.servers() if each.core.active]
        if len(servers) != 1:
            return f"{len(servers)} servers are active: {[each.core.star.story() for each in world.servers()]}"
        found = {entry.key: entry.value[0] for entry in servers[0].core.engine.items()}
        if any(
            each.outcome is None and host.alive for host in world.alive(ClientHost) for each in host.written.values()
        ):
            return "writes are under way"
        counters: dict[str, dict[bytes, Written]] = {}
        for each in world.written[self.excused :]:
            key = each.key.decode()
            if each.expected is not None:
                counters.setdefault(key, {})[each.value] = each
            elif each.outcome is True and not each.plain and found.get(key) != each.value:
                self.fail(f"{key} was confirmed as {each.value!r}, and is {found.get(key)!r}")
        if not self.excused:
            for key, steps in counters.items():
                self._count(key, steps, found.get(key, b""))
        return None

    def _count(self, key: str, steps: dict[bytes, Written], value: bytes) -> None:
        """Go back from the last value: every confirmed step is on the way, and no refused one is."""
        done = set()
        last = value
        while value:
            step = steps[value]
            if step.value in done:
                self.fail(f"{key} went in a circle")
            if step.outcome is not True and step.outcome is not None and not isinstance(step.outcome, WriteUnknown):
                self.fail(f"{key} was set from {step.expected!r} to {value!r}, which was refused: {step.outcome}")
            done.add(value)
            value = step.expected or b""
        for step in steps.values():
            if step.outcome is True and step.value not in done:
                self.fail(f"{key} was confirmed to go from {step.expected!r} to {step.value!r}, and ends as {last!r}")


class Convergence(Checker[MapWorld]):
    """In the end one serves, the other has everything, and clients have what they have."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """What is not yet as it must be."""
        world = self.world
        servers = world.servers()
        active = [each for each in servers if each.core.active]
        if len(servers) != 2 or len(active) != 1 or active[0].core.star.confirms != "paired":
            return f"not paired: {[each.core.star.story() for each in servers]}"
        passive = next(each for each in servers if each is not active[0])
        if passive.core.star.state != PASSIVE:
            return f"{passive.name} is not passive: {passive.core.star.story()}"
        contents = _contents(active[0])
        if _contents(passive) != contents:
            return f"the passive server has {len(_contents(passive))} keys, the active one {len(contents)}"
        for client in world.alive(ClientHost):
            if client.core.state != "active" or client.core.pending:
                return f"{client.name} is {client.core.state}, {client.core.pending} writes are not confirmed"
            if isinstance(client, GuideHost):
                continue  # what a cut took from it does not come again
            if _contents(client) != contents or client.shown != contents:
                return f"{client.name} has something else"
        return None


def _contents(host: Any) -> dict[bytes, bytes]:
    return {entry.key.encode(): entry.value[0] for entry in host.core.engine.items()}


class Maps(MapWorld):
    """A pair of map servers, perhaps a witness, and clients that write."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._survival = Survival(self)
        self.watch(Terms(self), self._survival, Convergence(self))
        self._schedule = Schedule(self)
        self._parts = self.rng.random() < 0.3  # without a witness: whether cuts are among what happens
        self._places: dict[str, Member] = {}
        self._quiet_until = 0.0  # nobody writes until then

    def begin(self) -> None:
        """Make everybody."""
        for name in SERVERS:
            self._places[name] = self.join(
                "server", lambda name: ServerHost(self, name, self.backends[name])
            )  # fmt: skip
        if self.witnessed:
            self._places[WITNESS] = Member(self, WITNESS, lambda: WitnessHost(self, WITNESS))
        for _ in range(self.few(self.rng.choice((1, 2, 4)))):
            self.join("client", lambda name: ClientHost(self, name))
        if not self.settings.plain and self.rng.random() < 0.3:
            self.join("guide", lambda name: GuideHost(self, name))
        self.clock.after(0.0, self._work)

    def plan(self, until: float) -> float:
        """What happens, and when."""
        if not self.settings.disturb:
            return until
        kinds = [
            self.kill,
            self.kill,
            self.part_and_kill,
            self.freeze,
            self.freeze,
            self.kill_client,
            self.freeze_client,
            self.stuff,
        ]
        if self.witnessed:
            kinds += [self.kill_both, self.cut, self.cut, self.part, self.part, self.kill_witness, self.cut_witness]
            kinds += [self.fill_witness, self.void]
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
        self.stuffed.clear()
        self.witness_full = False
        for backend in self.backends.values():
            if backend is not None:
                backend.full = False
        for member in [*self._places.values(), *self.members]:
            host: Any = member.host
            if host.frozen:
                host.resume()
            member.restart()

    def _work(self) -> None:
        if not self.working:
            return
        rng = self.rng
        if self.now < self._quiet_until:
            self.clock.at(self._quiet_until, self._work)
            return
        for client in self.alive(ClientHost):
            if rng.random() < 0.5:
                continue
            number = len(self.written)
            if rng.random() < 0.5:
                client.write(b"/set/%d" % number, b"%d" % number)
            else:
                client.write(b"/counter/%d" % rng.randrange(COUNTERS), b"%d" % number, compare=True)
        self.clock.after(rng.expovariate(30.0), self._work)

    # -- faults ----------------------------------------------------------------------------------------------------

    def _calm(self) -> bool:
        """Both servers run and are paired: without a witness nothing else may begin to go wrong."""
        servers = self.servers()
        return len(servers) == 2 and not any(each.frozen for each in servers) and any(
            each.core.active and each.core.star.confirms == "paired" for each in servers
        )  # fmt: skip

    def _pick(self) -> str:
        return self.rng.choice(SERVERS)

    def _kill(self, name: str) -> None:
        host = self._places[name].host
        if not host.alive:
            return
        if not self.durable and self._is_needed(host):
            self._survival.excuse()
        self.trace(host, "is killed")
        self._places[name].crash()

    def _is_needed(self, host: Any) -> bool:
        """Whether nobody else surely has what was confirmed."""
        other = next((each for each in self.servers() if each is not host), None)
        if other is None:
            return True
        ours, theirs = host.core.star, other.core.star
        if ours.term > theirs.term:
            return bool(ours.confirms == "alone" or not theirs._in_step)
        return bool(not theirs.term or ours.record > theirs.record)

    def kill(self) -> None:
        """One server is killed, and comes back."""
        if self.witnessed or self._calm():
            name = self._pick()
            self._kill(name)
            self.clock.after(self.rng.choice((0.1, 1.0, 3.0)), self._places[name].restart)

    def kill_both(self) -> None:
        """Both are killed at once."""
        for name in SERVERS:
            self._kill(name)
            self.clock.after(self.rng.choice((0.1, 1.0, 3.0)), self._places[name].restart)

    def part_and_kill(self) -> None:
        """The active server no longer reaches the passive one, and is killed before it could go on alone."""
        active = next((each for each in self.servers() if each.core.active), None)
        if active is not None and self._calm():
            for one, two in (SERVERS, SERVERS[::-1]):
                self.lines.cut(one, two, self.now + 0.4, lost=True)
            self.clock.after(0.4, self._kill, active.name)
            self.clock.after(3.0, self._places[active.name].restart)

    def kill_in_turn(self) -> None:
        """The passive backup is killed, then the primary, which went on alone; the backup comes back first."""
        primary, backup = (self._places[name] for name in SERVERS)
        host: Any = primary.host
        if self._calm() and host.core.active:
            self._kill(SERVERS[1])
            self.clock.after(2.0, self._kill, SERVERS[0])
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
        self._cut(*SERVERS)

    def cut(self) -> None:
        """A client and a server do not reach each other, in one direction or both."""
        clients = self.alive(ClientHost)
        if clients:
            self._cut(self.rng.choice(clients).name, self._pick())

    def cut_witness(self) -> None:
        """A server and the witness do not reach each other; perhaps just when it is asked."""
        seconds = None
        if self.rng.random() < 0.5:
            seconds = 3.0
            self._cut(*SERVERS, seconds)
        self._cut(WITNESS, self._pick(), seconds)

    def _cut(self, one: str, two: str, seconds: float | None = None) -> None:
        if not self.witnessed:
            self._survival.excused = 10**9
        until = self.now + (seconds or self.rng.choice((0.3, 1.0, 3.0)))
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

    def kill_client(self) -> None:
        """A client ends, and another one begins."""
        clients = [member for member in self.members if isinstance(member.host, ClientHost)]
        if clients:
            member = self.rng.choice(clients)
            member.crash()
            self.clock.after(0.5, member.restart)

    def freeze_client(self) -> None:
        """A client stands still."""
        clients = self.alive(ClientHost)
        if clients:
            self._freeze(self.rng.choice(clients))

    def fill(self) -> None:
        """A disk is full for a while; perhaps just when its server should take over."""
        name = self._pick()
        backend = self.backends[name]
        assert backend is not None
        backend.full = True
        self.clock.after(self.rng.choice((0.1, 1.0, 3.0)), setattr, backend, "full", False)
        if self.rng.random() < 0.5 and (self.witnessed or self._calm()):
            other = SERVERS[1 - SERVERS.index(name)]
            self._kill(other)
            self.clock.after(self.rng.choice((0.1, 1.0, 3.0)), self._places[other].restart)

    def fill_witness(self) -> None:
        """The witness's disk is full for a while."""
        self.witness_full = True
        self.clock.after(self.rng.choice((0.1, 1.0)), setattr, self, "witness_full", False)

    def stuff(self) -> None:
        """What a server has for one of those who follow it finds a full queue for a while."""
        server = self._pick()
        follower = self.rng.choice([each for each in self.alive(MapHost) if server in each.servers])
        self.stuffed[server, follower.name] = self.now + self.rng.choice((0.1, 1.0, 4.0))

    def void(self) -> None:
        """The active server goes on where only clients reach it, so what it numbers is void; later it leads again.

        Meanwhile little is written, so that the numbers come again for something else.
        """
        active = next((each for each in self.servers() if each.core.active), None)
        clients = self.alive(ClientHost)
        if active is None or not self._calm() or len(clients) < 2:
            return
        self.trace(active, "goes on where only some clients reach it")
        other = SERVERS[1 - SERVERS.index(active.name)]
        until = self.now + VOID_S
        for one in (other, WITNESS, clients[0].name):
            self.lines.cut(one, active.name, until, lost=True)
            self.lines.cut(active.name, one, until, lost=True)
        self.clock.after(VOID_WRITTEN_S, self._be_quiet)
        self.clock.after(VOID_S + 4.0, self._kill, other)
        self.clock.after(VOID_S + 6.0, self._places[other].restart)

    def _be_quiet(self) -> None:
        self._quiet_until = self.now + VOID_S + 5.0
