"""Worlds of a chain: deaths, power cuts, torn writes, pauses, cuts in one direction, lost disks, clocks that drift.

Promises: what is committed is the same everywhere and stays; it is in the logs of all members; a member's log is a part
of its predecessor's; states at the same entry are equal byte for byte; a command is done once; what clients saw is what
one copy could have shown; and when all is well all servers are members, and all have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from tests.worlds.chain import machine
from tests.worlds.chain.hosts import ChainHost, ClientHost, Disk, ServerHost
from tests.worlds.faults import Schedule
from tests.worlds.linearizable import UNKNOWN, Operation, not_linearizable
from tests.worlds.wire import Wire

from chappe.errors import UsageError
from chappe.limits import CHAIN_LIMITS
from chappe.replication.chain.client import ChainClient
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.messages import Entry
from chappe.sim.host import SimMember
from chappe.sim.world import Checker, Excused, Settings, SimWorld

DRIFTS: Final = (0.0, 0.01, 0.1)


@dataclass(frozen=True)
class ChainCores:
    """What is under test."""

    server: type[ChainServerCore] = ChainServerCore
    client: type[ChainClient] = ChainClient


class Ways(Wire):
    """A wire that may be cut in one direction."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self.gone: dict[tuple[str, str], float] = {}

    def reachable(self, a: str, b: str) -> bool:
        """Whether what ``a`` sends comes to ``b``."""
        return not self.gone or self.gone.get((a, b), 0.0) <= self.clock.now

    def mend(self) -> None:
        """Everybody reaches everybody again."""
        self.gone.clear()


class ChainWorld(SimWorld):
    """Everything that one seed decides."""

    lengths_s: ClassVar[tuple[float, ...]] = (5.0, 10.0, 20.0)
    settle_max_s = 60.0
    events_max = 3_000_000
    fixed: ClassVar[bool] = False  # whether servers decide alone

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: ChainCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell)
        rng = self.rng
        self.cores = cores or ChainCores()
        self.wire = Ways(self)
        self.servers = tuple("abcde"[: self.few(rng.choice((1, 2, 3, 3, 3, 3, 4, 5)))])
        self.durable = rng.random() < 0.7
        self.drift = rng.choice(DRIFTS)
        self.limits = CHAIN_LIMITS
        if not self.settings.plain:
            self.limits = replace(
                CHAIN_LIMITS, append_bytes=rng.choice((100, 1 << 20)), log_bytes=rng.choice((500, 5_000, 1 << 26)),
                window=rng.choice((2, 10, 65_536)), piece_bytes=rng.choice((50, 1 << 18)),
                pieces_ahead=rng.choice((1, 3)), sessions_max=rng.choice((3, 10_000, 10_000)),
                session_s=rng.choice((3.0, 3_600.0)), session_window=rng.choice((1, 3, 1_024)),
                slow_s=rng.choice((1.0, 5.0)), made_bytes=rng.choice((1, 1 << 20)),
            )  # fmt: skip
            if self.limits.session_s < CHAIN_LIMITS.session_s:
                self.limits = replace(self.limits, results_bytes=400)
        self.pieced = rng.random() < 0.8
        self.busy_s = rng.choice((0.02, 0.1, 0.5))
        self.history: list[Operation] = []
        self.expired = 0
        self.working = True
        self.states_lost = False
        self.disks = {name: Disk(1_000 + place) for place, name in enumerate(self.servers)}
        self._lives = 0
        self._operations = 0
        self._disks = 2_000

    def machine(self, host: ServerHost) -> Any:
        """What a new life of a server replicates."""
        return machine.Keys() if self.pieced else machine.WholeKeys()

    def lose_disk(self, name: str) -> None:
        """What a server had on disk is gone."""
        self.disks[name] = Disk(self.next_disk())

    def next_life(self) -> int:
        """A number that no other life has."""
        self._lives += 1
        return self._lives

    def next_operation(self) -> int:
        """A number that no other operation has."""
        self._operations += 1
        return self._operations

    def next_disk(self) -> int:
        """A number that no other disk has."""
        self._disks += 1
        return self._disks

    def pause(self) -> float:
        """Until a client does something again."""
        return self.busy_s * (0.5 + self.rng.random())

    def wall_us(self, host: ServerHost) -> int:
        """The time of day at a server: all have another one."""
        return self.clock.wall_us + 50_000 * int(host.place)

    def count(self) -> int:
        """Operations."""
        return len(self.history)

    def cores_alive(self) -> list[ServerHost]:
        """Servers that run."""
        return self.alive(ServerHost)

    def newest(self) -> ServerHost | None:
        """One of the servers that know the newest configuration."""
        return max(self.cores_alive(), key=lambda host: int(host.core.number), default=None)


class Same(Checker[ChainWorld]):
    """What is committed is the same everywhere, at all members, and each command is in it once."""

    name = "one history"

    def __init__(self, world: ChainWorld) -> None:
        super().__init__(world)
        self.committed: list[Entry] = []
        self._states: dict[int, bytes] = {}
        self.seen: set[int] = set()

    def on_step(self, host: ServerHost) -> None:
        """A server has done something."""
        core = host.core
        for found in core.invariants():
            self.fail(f"{host.name}: {found}")
        before = host.checked
        for index in range(max(before, core.log.base) + 1, core.committed + 1):
            self._same(host, index, core.log.entry(index))
        if core.committed > before:
            host.checked = core.committed
            if core.tail and core.aligned:
                self._everywhere(host)
            state = core.replica.snapshot()
            if self._states.setdefault(core.committed, state) != state:
                self.fail(f"{host.name} has another state behind {core.committed}")
            if len(host.machine.did) > len(set(host.machine.did)):
                self.fail(f"{host.name} has done a command twice: {host.machine.did}")
        if core.member and core.aligned:
            self._part(host)

    def _same(self, host: ServerHost, index: int, entry: Entry) -> None:
        if index <= len(self.committed):
            if self.committed[index - 1] != entry:
                self.fail(f"{host.name} commits {entry} as {index}, which is {self.committed[index - 1]}")
        elif index == len(self.committed) + 1:
            self.committed.append(entry)
        else:
            self.fail(f"{host.name} commits {index}, before was {len(self.committed)}")

    def _everywhere(self, host: ServerHost) -> None:
        """What the tail commits is at all members of its configuration that live, as safe as promised."""
        upto = host.core.committed
        for place, life in host.core.configuration.chain:
            other = self.world.hosts.get(self.world.servers[place])
            if isinstance(other, ServerHost) and other.alive and other.life == life:
                held = other.core.synced if self.world.durable else other.core.log.end
                if held < upto:
                    self.fail(f"{host.name} commits {upto}, {other.name} has {held}")

    def _part(self, host: ServerHost) -> None:
        """The log of a member is a part of that of its predecessor."""
        core = host.core
        if core.head:
            return
        before = self.world.hosts.get(self.world.servers[core._before()])
        if not isinstance(before, ServerHost) or before.core.number != core.number or not before.alive:
            return
        other = before.core
        if not other.member or not other.aligned:
            return
        end = core.log.end
        if end > other.log.end:
            self.fail(f"{host.name} has {end} entries, {before.name} before it {other.log.end}")
        low = max(core.log.base, other.log.base)
        for index in range(max(low, end - 3) + 1, end + 1):
            if core.log.entry(index) != other.log.entry(index):
                self.fail(f"{host.name} and {before.name} differ at {index}")

    def unsettled(self) -> str | None:
        """All servers are members and have the same, and nobody waits."""
        world = self.world
        hosts = world.cores_alive()
        newest = world.newest()
        if newest is not None and not world.durable and newest.core.number:
            members = dict(newest.core.configuration.chain)
            if not any(members.get(host.place) == host.life for host in hosts):
                raise Excused("the state was in memory only, and no member is left")
        if newest is not None and newest.core.number:
            configuration = newest.core.configuration
            disks = {place: world.disks[world.servers[place]].memory.disk for place in configuration.places}
            if all(configuration.disks[place] != disk for place, disk in disks.items()):
                raise Excused("the disk is lost of the last member, which it became at that moment")
        for host in hosts:
            core = host.core
            if not core.member or not core.aligned:
                return f"{host.name} is not a member: {core.story()}; {core.why}"
            if core.number != hosts[0].core.number or core.committed != core.log.end:
                return f"{host.name}: {core.story()}"
            if core.committed != hosts[0].core.committed:
                return f"{host.name} has {core.committed}, {hosts[0].name} has {hosts[0].core.committed}"
        waiting = [host.name for host in world.alive(ClientHost) if host.under_way]
        return f"{', '.join(waiting)} wait" if waiting else None


class Once(Checker[ChainWorld]):
    """A command that was confirmed is done."""

    name = "confirmed commands"

    def on_confirmed(self, host: ClientHost, number: int) -> None:
        """A client was told so."""
        if number:
            same = next(each for each in self.world.checkers if isinstance(each, Same))
            same.seen.add(number)

    def on_expired(self, host: ClientHost) -> None:
        """A client was told that its session is over: that must have a reason, and a wrong clock is none."""
        limits = self.world.limits
        most = (limits.sessions_max, limits.session_s, limits.results_bytes)
        if most == (CHAIN_LIMITS.sessions_max, CHAIN_LIMITS.session_s, CHAIN_LIMITS.results_bytes):
            self.fail(f"{host.name} has lost its session, which nobody else was in the way of")

    def unsettled(self) -> str | None:
        """Look whether all are there."""
        same = next(each for each in self.world.checkers if isinstance(each, Same))
        for host in self.world.cores_alive():
            if host.core.member and host.core.aligned and host.core.committed == len(same.committed):
                lost = same.seen - set(host.machine.did)
                if lost:
                    self.fail(f"{host.name} lacks the confirmed commands {sorted(lost)}")
        return None


class ChainFaults:
    """What goes wrong, and when."""

    def __init__(self, world: Chains) -> None:
        self.world = world
        self.schedule = Schedule(world)

    def kinds(self) -> tuple[Callable[[], None], ...]:
        """What may happen."""
        return (
            self._crash, self._crash, self._power_cut, self._stall, self._stall, self._cut_one_way, self._isolate,
            self._disk_refuses, self._disk_is_slow, self._client_dies, self._set_clock, self._lose_disk, self._ask_out,
        )  # fmt: skip

    def plan(self, until: float) -> None:
        """Plan some."""
        world = self.world
        rng = world.rng
        kinds = self.kinds()
        at = 1.0
        gap = rng.choice((0.3, 1.0, 3.0))
        while (at := at + rng.random() * 2 * gap) < until:
            self.schedule.at(at, rng.choice(kinds))

    def heal(self) -> None:
        """All is well again."""
        self.schedule.on = False
        world = self.world
        world.wire.calm()
        for disk in world.disks.values():
            disk.refuses, disk.write_s = 0.0, 0.001
        for member in world.members:
            member.restart()
        for host in list(world.hosts.values()):
            if isinstance(host, ChainHost):
                host.resume()
        for host in world.cores_alive():
            for place in range(len(world.servers)):
                host.core.ask_out(place, False, host.now)

    def _server(self) -> SimMember:
        world = self.world
        return world.server_members[world.rng.randrange(len(world.servers))]

    def _crash(self) -> None:
        member = self._server()
        self._kill(member)
        self.world.clock.after(self.world.rng.choice((0.05, 0.5, 3.0)), self._restart, member)

    def _kill(self, member: SimMember) -> None:
        if member.alive:
            self.world.trace(member.host, "dies")
            member.crash()

    def _restart(self, member: SimMember) -> None:
        if not member.alive:
            member.restart()

    def _power_cut(self) -> None:
        for member in self.world.server_members:
            if self.world.durable or self.world.rng.random() < 0.3:
                self._kill(member)
                self.world.clock.after(0.1 + self.world.rng.random() * 3, self._restart, member)

    def _stall(self) -> None:
        host = self._server().host
        if host.alive and not host.frozen:
            self.world.trace(host, "stands still")
            host.stalled_until = float("inf")
            assert isinstance(host, ServerHost)
            self.world.clock.after(self.world.rng.choice((0.05, 0.6, 2.0, 6.0)), host.resume)

    def _cut_one_way(self) -> None:
        world = self.world
        names = [*world.servers, *(each.name for each in world.client_members[:1])]
        one, other = world.rng.choice(names), world.rng.choice(names)
        world.trace(None, "cut from %s to %s", one, other)
        world.wire.gone[one, other] = world.now + world.rng.choice((0.2, 1.0, 4.0))

    def _isolate(self) -> None:
        world = self.world
        name = world.rng.choice(world.servers)
        until = world.now + world.rng.choice((0.3, 1.0, 4.0))
        clients = world.rng.random() < 0.5
        world.trace(None, "%s is cut off", name)
        for other in [*world.servers, *(each.name for each in world.client_members[:2] if clients)]:
            if other != name:
                world.wire.gone[name, other] = world.wire.gone[other, name] = until

    def _disk_refuses(self) -> None:
        world = self.world
        disk = world.disks[world.rng.choice(world.servers)]
        disk.refuses = world.rng.choice((0.3, 1.0))
        world.clock.after(world.rng.choice((0.5, 3.0)), setattr, disk, "refuses", 0.0)

    def _disk_is_slow(self) -> None:
        world = self.world
        disk = world.disks[world.rng.choice(world.servers)]
        disk.write_s = world.rng.choice((0.1, 2.0))
        world.clock.after(world.rng.choice((1.0, 8.0)), setattr, disk, "write_s", 0.001)

    def _client_dies(self) -> None:
        member = self.world.rng.choice(self.world.client_members)
        member.crash()
        self.world.clock.after(0.2, self._restart, member)

    def _set_clock(self) -> None:
        long = self.world.limits.session_s >= CHAIN_LIMITS.session_s
        self.world.clock.wall_jump_us += self.world.rng.choice((-10_000_000, 7_200_000_000 if long else 1_000_000))

    def _lose_disk(self) -> None:
        """A server loses its disk while all others are well."""
        world = self.world
        cores = [host.core for host in world.cores_alive()]
        same = len({core.number for core in cores}) == 1 and cores[0].number
        whole = len(cores) == len(world.servers) and all(core.member and core.aligned for core in cores)
        decided = all(core.agreement.untouched and not core.agreement.proposing for core in cores)
        if len(cores) < 3 or not same or not whole or not decided or world.lost_disk or not world.durable:
            return
        world.lost_disk = True
        member = self._server()
        self._kill(member)
        world.lose_disk(member.host.name)
        self._restart(member)

    def _ask_out(self) -> None:
        world = self.world
        hosts = world.cores_alive()
        if hosts:
            host, place = world.rng.choice(hosts), world.rng.randrange(len(world.servers))
            out = world.rng.random() < 0.6
            others = [each for each in host.core.configuration.places if each != place]
            if others or not out:
                try:
                    host.core.ask_out(place, out, host.now)
                except UsageError:
                    return
                host.arm()


class Chains(ChainWorld):
    """A chain of servers and its clients: deaths, pauses, cuts, torn and lost disks; histories are linearizable."""

    server_host: type[ServerHost] = ServerHost
    client_host: type[ClientHost] = ClientHost
    step = staticmethod(machine.step)  # the model of one copy
    begins = staticmethod(machine.begin)

    def begin(self) -> None:
        """Servers and clients."""
        self.lost_disk = False
        self.watch(Same(self), Once(self))
        self.server_members = []
        for name in self.servers:
            member = SimMember(self, name, lambda name=name: self.server_host(self, name))  # type: ignore[misc]
            self.members.append(member)
            self.server_members.append(member)
        self.client_members = [
            self.join("client", lambda name: self.client_host(self, name)) for _ in range(self.few(3))
        ]
        self._faults = ChainFaults(self)

    def plan(self, until: float) -> float:
        """Plan the faults."""
        if self.settings.disturb:
            self._faults.plan(until)
        return until

    def heal(self) -> None:
        """End everything that is wrong."""
        self._faults.heal()

    def stop(self) -> None:
        """Ask for nothing more."""
        self.working = False

    def finish(self) -> float:
        """All ends, and then what clients saw is explained."""
        took = super().finish()
        known = [each for each in self.history if each.outcome is not UNKNOWN or each.what[0] != "get"]
        wrong = not_linearizable(known, self.step, self.begins)
        if wrong is not None:
            self.fail("linearizable", f"no single copy could have answered so: the operations on {wrong}")
        return took
