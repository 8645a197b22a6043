"""Worlds of a pair of map servers as users run it: servers with disks, their witness and maps, on hosts that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.worlds.ground_faults import GroundFaults
from tests.worlds.maps.hosts import SERVERS, Written
from tests.worlds.maps.scenario import COUNTERS, Convergence, Survival, Terms
from tests.worlds.residents import Life, Place, Resident
from tests.worlds.stage import DisturbedWorld, Stage

from chappe import MapServer, SharedMap, Witness
from chappe.api.kv import map_member, map_server, witness
from chappe.core import Effect
from chappe.errors import BufferFull, ChappeError, StorageFull
from chappe.kv.backend import Operation
from chappe.kv.chp.client import KeyChanged
from chappe.kv.chp.stream import MARK, Welcome, from_server
from chappe.replication.binary_star.messages import WITNESS
from chappe.runtime.map_ports import ANSWERED, MapClientPorts
from chappe.sim.world import Settings
from chappe.storage.kv_backends import SqliteBackend
from chappe.system import machine

PORTS: Final = {SERVERS[0]: 6000, SERVERS[1]: 6010, WITNESS: 6020}
ADDRESSES: Final = {name: f"127.0.0.1:{port}" for name, port in PORTS.items()}
USUAL_S: Final = (0.001, 0.01)  # how long disks take


class HostsBackend(SqliteBackend):
    """A database that is refused when the disk of its host is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, synchronous="OFF")
        self._disk: Any = getattr(machine.current(), "disk", None)

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all, or nothing if the disk refuses."""
        if self._disk.refuses(room=True):
            raise StorageFull(f"cannot write to {self.path}: the disk of this world is full")
        super().commit(operations)


class HeardPorts(MapClientPorts):
    """The sockets of a client; the world sees who welcomes it."""

    world: ClassVar[Any] = None  # that is played

    def hear(self, link: tuple[str, int], frames: list[bytes]) -> Sequence[Effect]:
        """Tell the core, and the world."""
        if link[0] == ANSWERED and frames[0] == MARK and isinstance(found := from_server(frames), Welcome):
            self.world.welcomes.append((SERVERS[link[1]], found.epoch))
        return super().hear(link, frames)


class ServerLife(Life):
    """One of the two servers."""

    cannot = (ChappeError,)

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        place = SERVERS.index(self.name)
        self.face = MapServer(
            ADDRESSES[self.name],
            backend="sqlite",
            path=world.stage.scratch / f"{self.name}.db",
            partner=ADDRESSES[SERVERS[1 - place]],
            role=("primary", "backup")[place],
            pair="pair",
            witness=ADDRESSES[WITNESS],
        )
        self.core = self.face._ports.core

    def look(self) -> None:
        """See what it reports, and what it knows to be wrong."""
        for event in self.face.events():
            self.world.trace(self, "%s", event)
        for found in self.core.invariants():
            self.world.fail("invariants", f"{self.name}: {found}")


class WitnessLife(Life):
    """The witness."""

    cannot = (ChappeError,)

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = Witness(ADDRESSES[WITNESS], path=world.stage.scratch / "witness.db")

    def look(self) -> None:
        """See what it reports."""
        for event in self.face.events():
            self.world.trace(self, "%s", event)


class MapLife(Life):
    """A shared map, which its program writes to and watches."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = SharedMap(*(ADDRESSES[each] for each in SERVERS), timeout=0)
        self.core = self.face.member.core
        self.shown: dict[bytes, bytes] = {}  # what its program was told
        self.written: dict[int, Written] = {}
        self._asked: dict[int, Any] = {}
        self.face.member.add_watch(self)
        self.soon(world.rng.random(), self._work)

    def told(self, change: KeyChanged) -> None:
        """A key has changed."""
        if self.shown.get(change.key, b"") != change.before:
            self.world.wrong.append(f"{self.name} is told {change}, and knew {self.shown.get(change.key)!r}")
        if change.body:
            self.shown[change.key] = change.body
        else:
            self.shown.pop(change.key, None)

    def close(self) -> None:
        """The map is closed."""

    def _work(self) -> None:
        world, rng = self.world, self.world.rng
        if not world.working:
            return
        number = len(world.written)
        if rng.random() < 0.5:
            self._write(f"/set/{number}", b"%d" % number)
        else:
            key = f"/counter/{rng.randrange(COUNTERS)}"
            self._write(key, b"%d" % number, (self.face.get(key),))
        self.soon(rng.expovariate(10.0), self._work)

    def _write(self, key: str, value: bytes, expected: tuple[bytes | None, ...] = ()) -> None:
        member = self.face.member
        step = member.step({key: value}, {key: expected[0]} if expected else None)
        try:
            asked = member._try(step, True)
        except BufferFull:
            return
        number = len(self.world.written)
        written = Written(key.encode(), value, (expected[0] or b"") if expected else None)
        self.world.written.append(written)
        self.written[number], self._asked[number] = written, asked

    def look(self) -> None:
        """See what it reports, and what became of writes."""
        for event in self.face.events():
            self.world.trace(self, "%s", event)
        for number, asked in list(self._asked.items()):
            if asked.done():
                del self._asked[number]
                written = self.written.pop(number)
                try:
                    written.outcome = bool(asked.take(""))
                except ChappeError as error:
                    written.outcome = error


class ServerResident(Resident):
    """A server over all its lives."""

    life = ServerLife


class WitnessResident(Resident):
    """The witness over all its lives."""

    life = WitnessLife


class MapResident(Resident):
    """A program with a map over all its lives."""

    life = MapLife


class RealMaps(DisturbedWorld):
    """A pair of map servers with disks, their witness, and maps, as users run them."""

    lengths_s: ClassVar[tuple[float, ...]] = (5.0, 15.0)
    settle_max_s: ClassVar[float] = 60.0
    events_max: ClassVar[int] = 3_000_000
    durable = True
    excused = 0  # nothing that is confirmed may be lost

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.written: list[Written] = []
        self.welcomes: list[tuple[str, bytes]] = []
        self.wrong: list[str] = []
        self.working = True
        opened = lambda kind, options: HostsBackend(**options)  # noqa: E731
        self.stage = Stage(
            self,
            (
                (map_server, "open_backend", opened),
                (witness, "open_backend", opened),
                (map_member, "MapClientPorts", HeardPorts),
                (HeardPorts, "world", self),
            ),
        )
        self.usual_disk_s = self.rng.choice(USUAL_S)
        self.watch(Terms(self), Survival(self), Convergence(self))  # type: ignore[arg-type]
        self.ground_faults = GroundFaults(self)

    def running(self) -> list[ServerLife]:
        """The servers that run."""
        return self.alive(ServerLife)

    def clients(self) -> list[MapLife]:
        """The maps that are open."""
        return self.alive(MapLife)

    def begin(self) -> None:
        """Make everybody."""
        kinds: list[tuple[str, type[Resident]]] = [(WITNESS, WitnessResident)]
        kinds += [(name, ServerResident) for name in SERVERS]
        kinds += [(f"map{number}", MapResident) for number in range(self.few(self.rng.choice((1, 2, 3))))]
        for name, kind in kinds:
            place = Place(self, name)
            self.stage.disk(name).slow(self.usual_disk_s)
            self.move_in(kind(self, name, place))

    def pass_time(self, until: float, tick_s: float | None = None) -> None:
        """Let time pass, and show what was seen meanwhile."""
        while self.now < until:
            super().pass_time(min(until, self.now + (tick_s or self.tick_s)), tick_s)
            welcomes, self.welcomes = self.welcomes, []
            for server, epoch in welcomes:
                if server in self.hosts:
                    self.see("on_welcome", None, server, epoch)
            if self.wrong:
                self.fail("watches", self.wrong[0])

    def stop(self) -> None:
        """Write nothing more."""
        self.working = False

    def count(self) -> int:
        """Writes."""
        return len(self.written)
