"""A pair of map servers, their witness and maps, as users run them, and the programs that write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.worlds.residents import Life, Place, Resident

from chappe import MapServer, SharedMap, Witness
from chappe.core import Effect, Publish
from chappe.errors import BufferFull, ChappeError, StorageFull
from chappe.kv.backend import Commit, Operation
from chappe.kv.chp.client import KeyChanged
from chappe.kv.chp.messages import HUGZ
from chappe.kv.chp.stream import MARK, Step, Welcome, from_server
from chappe.replication.binary_star.messages import WITNESS, PairMemory
from chappe.replication.binary_star.witness import PairRecord
from chappe.runtime.map_ports import ANSWERED, PUBLISHED, REQUESTS, MapClientPorts, MapServerPorts
from chappe.storage.kv_backends import SqliteBackend
from chappe.system import machine

SERVERS: Final = ("server0", "server1")
PORTS: Final = {SERVERS[0]: 6000, SERVERS[1]: 6010, WITNESS: 6020}
ADDRESSES: Final = {name: f"127.0.0.1:{port}" for name, port in PORTS.items()}
COUNTERS: Final = 2


class HostsBackend(SqliteBackend):
    """A database that is refused when the disk of its host is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, synchronous="OFF")
        self._disk: Any = getattr(machine.current(), "disk", None)

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all, or nothing if the disk refuses."""
        if self._disk.refuses(room=True):
            raise StorageFull("the disk of this world is full")
        super().commit(operations)


class WitnessBackend(HostsBackend):
    """That of the witness; the world counts what is refused."""

    world: ClassVar[Any] = None  # that is played

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all, or nothing if the disk refuses."""
        try:
            super().commit(operations)
        except StorageFull:
            self.world.failed[PairRecord] += 1
            raise


class WatchedServerPorts(MapServerPorts):
    """The sockets of a server; the world sees when it hears of whom."""

    world: ClassVar[Any] = None  # that is played

    def hear(self, link: Any, frames: list[Any]) -> Sequence[Effect]:
        """Tell the core, and the world."""
        router: Any = self._sockets.router
        if link == REQUESTS and self.core.active and (client := router.clients.get(frames[0])) is not None:
            self.world.heard[client.asker.name] = self.world.now
        return super().hear(link, frames)

    def carry_out(self, job: Commit) -> Any:
        """Write a commit; the world counts those that are refused."""
        error = super().carry_out(job)
        self.world.failed[Commit if job.number > 0 else PairMemory] += error is not None
        return error


class WatchedMapPorts(MapClientPorts):
    """The sockets of a client; the world sees who welcomes it, and what it writes as the Guide's clients do."""

    world: ClassVar[Any] = None  # that is played

    def hear(self, link: tuple[str, int], frames: list[bytes]) -> Sequence[Effect]:
        """Tell the core, and the world."""
        if link[0] == ANSWERED and frames[0] == MARK and isinstance(found := from_server(frames), Welcome):
            self.world.show("on_welcome", SERVERS[link[1]], found.epoch)
        return super().hear(link, frames)

    def publish(self, effect: Publish) -> None:
        """Write to servers that it takes for others; nobody promises anything then."""
        self.world.plain.add((effect.message.frames[0], effect.message.frames[4]))
        super().publish(effect)


class GuidePorts(WatchedMapPorts):
    """Those of a client that does not hear that its servers are more than the Guide's."""

    def hear(self, link: tuple[str, int], frames: list[bytes]) -> Sequence[Effect]:
        """Take away what the Guide's servers do not say."""
        if link[0] == PUBLISHED and frames[0] == HUGZ:
            frames = [HUGZ, frames[1], b"", b"", b""]
        return super().hear(link, frames)


class DriftingLife(Life):
    """One life on a host whose steady clock drifts."""

    def __init__(self, world: Any, resident: Resident) -> None:
        world.stage.host(resident.place.name).rate = 1.0 + world.drift * (world.drift_rng.random() - 0.5)
        super().__init__(world, resident)

    def look(self) -> None:
        """See what it reports."""
        for event in self.face.events():
            self.world.trace(self, "%s", event)


class ServerLife(DriftingLife):
    """One of the two servers."""

    cannot = (ChappeError,)

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        place = SERVERS.index(self.name)
        disk: dict[str, Any] = {"backend": "sqlite", "path": world.stage.scratch / f"{self.name}.db"}
        self.face = MapServer(
            ADDRESSES[self.name],
            partner=ADDRESSES[SERVERS[1 - place]],
            role=("primary", "backup")[place],
            pair="pair",
            witness=ADDRESSES[WITNESS] if world.witnessed else None,
            **disk if world.durable else {},
        )
        self.core: Any = self.face._ports.core
        self._sessions: set[MapLife] = set()  # that live and have session values here

    def look(self) -> None:
        """See what it reports, what it knows to be wrong, and whose session values it has ended."""
        super().look()
        for found in self.core.invariants():
            self.world.fail("invariants", f"{self.name}: {found}")
        if self.world.sessions:
            clients = set(self.world.clients()) if self.core.active else set()
            now = {each for each in clients if self.core.ledger.session_values.has(each.core.session)}
            for client in self._sessions & clients - now:
                self.world.see("on_session_ended", self, client)
            self._sessions = now


class WitnessLife(DriftingLife):
    """The witness."""

    cannot = (ChappeError,)

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = Witness(ADDRESSES[WITNESS], path=world.stage.scratch / "witness.db")


@dataclass
class Written:
    """One step of a client, and what became of it."""

    key: bytes
    value: bytes
    expected: bytes | None
    outcome: bool | ChappeError | None = None


class MapLife(DriftingLife):
    """A shared map, which its program writes to and watches."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = SharedMap(*(ADDRESSES[each] for each in SERVERS), timeout=0)
        self.core = self.face.member.core
        self.shown: dict[bytes, bytes] = {}  # what its program was told
        self.written: dict[int, Written] = {}
        self.session_keys: set[bytes] = set()  # that were confirmed
        # It writes one value that ends with it, so that its heartbeats alone keep that.
        self.only_lives = world.sessions and not isinstance(self, GuideLife) and world.session_rng.random() < 0.3
        self._asked: dict[Any, Written | bytes] = {}  # what is to be answered: a step, or the key of a session value
        self.face.member.add_watch(self)
        self.soon(world.rng.random(), self._work)

    def told(self, change: KeyChanged) -> None:
        """A key has changed."""
        if self.shown.get(change.key, b"") != change.before:
            self.world.show("on_wrong", f"{self.name} is told {change}, and knew {self.shown.get(change.key)!r}")
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
        if self.only_lives:
            if self.core.state == "active":
                self._write_session(f"/session/{self.name}")
                return
        elif world.now >= world.quiet_until:
            number = len(world.written)
            if rng.random() < 0.5:
                self._write(f"/set/{number}", b"%d" % number)
            else:
                key = f"/counter/{rng.randrange(COUNTERS)}"
                self._write(key, b"%d" % number, (self.face.get(key),))
            if world.sessions and not isinstance(self, GuideLife) and world.session_rng.random() < 0.1:
                self._write_session(f"/session/{self.name}/{world.session_rng.randrange(3)}")
        self.soon(rng.expovariate(10.0), self._work)

    def _write(self, key: str, value: bytes, expected: tuple[bytes | None, ...] = ()) -> None:
        member = self.face.member
        written = Written(key.encode(), value, (expected[0] or b"") if expected else None)
        if self._ask(member.step({key: value}, {key: expected[0]} if expected else None), written):
            self.written[len(self.world.written)] = written
            self.world.written.append(written)

    def _write_session(self, key: str) -> None:
        self._ask(self.face.member.step({key: b"here"}, session=True), key.encode())

    def _ask(self, step: Step, what: Written | bytes) -> bool:
        try:
            self._asked[self.face.member._try(step, True)] = what
        except BufferFull:
            return False
        return True

    def look(self) -> None:
        """See what it reports, and what became of writes."""
        super().look()
        for asked, what in list(self._asked.items()):
            if not asked.done():
                continue
            del self._asked[asked]
            outcome: bool | ChappeError
            try:
                outcome = bool(asked.take(""))
            except ChappeError as error:
                outcome = error
            if isinstance(what, Written):
                what.outcome = outcome
                self.written = {number: each for number, each in self.written.items() if each is not what}
            elif outcome is True:
                self.session_keys.add(what)


class GuideLife(MapLife):
    """A map that takes the servers for those of the Guide's model 6."""


class ServerPlace(Place):
    """The host of a server, whose end may lose what is nowhere else."""

    def kill(self, *, power_cut: bool) -> None:
        """End everything there."""
        self.world.excuse_end_of(self)
        super().kill(power_cut=power_cut)

    def leave(self) -> None:
        """Close everything there."""
        self.world.excuse_end_of(self)
        super().leave()


class ServerResident(Resident):
    """A server over all its lives."""

    life = ServerLife


class WitnessResident(Resident):
    """The witness over all its lives."""

    life = WitnessLife


class MapResident(Resident):
    """A program with a map over all its lives."""

    life = MapLife


class GuideResident(Resident):
    """A program with a map of the Guide's kind over all its lives."""

    life = GuideLife
