"""Endpoints of the API with a master, a clone or no data store, and the program that uses it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.worlds.kv.hosts import STORE, KvHost, Watched
from tests.worlds.residents import Life, Resident

from chappe import Endpoint
from chappe.api.faces import Seconds, Steps
from chappe.api.kv.data_store import DataStore
from chappe.api.mesh.waiting import Asked
from chappe.core import Effect, Persist, Resolve
from chappe.data.order import SET, STRING, VECTOR
from chappe.errors import ChappeError, StorageFull
from chappe.kv.backend import Commit
from chappe.kv.engine import index_of
from chappe.mesh.events import PeerLost
from chappe.sim.world import Violation
from chappe.storage.kv_backends import SqliteBackend

NS = 1_000_000_000


class Role(Watched):
    """The core of a store: all that it answers is seen, and it tells of changes whether anybody watches or not."""

    def __init__(self, core: Any, tell: Callable[[Sequence[Effect]], None]) -> None:
        self.__dict__["_core"] = core
        super().__init__(core, tell)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_core"])

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("_core", "notify"):
            setattr(self._core, name, value)


class MasterFile:
    """The database of the master, over all its lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.full = False


class FillableBackend(SqliteBackend):
    """A backend on a disk that is full now and then."""

    world: ClassVar[Any] = None  # that is played

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.world.attaching.backend = self

    def commit(self, operations: Any) -> None:
        """See ``Backend``."""
        if self.world.backend.full:
            self.world.failed[Commit] += 1
            raise StorageFull("the disk of this world is full")
        super().commit(operations)


class Doing:
    """A call of the program that waits, carried on by the world's clock as an event loop would."""

    def __init__(self, life: StoreLife, steps: Steps[Any], told: Callable[[object], None]) -> None:
        self._life = life
        self._steps = steps
        self._told = told
        self._until: Callable[[], bool] | None = None
        self._go_on(None)

    def _go_on(self, found: bool | None) -> None:
        try:
            step = next(self._steps) if found is None else self._steps.send(found)
            while step is None or step[0]():
                step = self._steps.send(True)
        except StopIteration as end:
            self._told(end.value)
        except ChappeError as error:
            self._told(error)
        else:
            self._until, timeout_s = step
            self._life.doing[self] = None
            if timeout_s is not None:
                self._life.soon(timeout_s, self._over, self._until)

    def _over(self, until: Callable[[], bool]) -> None:
        if self._until is until:
            self._until = None
            self._life.doing.pop(self, None)
            self._go_on(until())

    def look(self) -> None:
        """Something is new; the lock is held."""
        if self._until is not None and self._until():
            self._life.doing.pop(self, None)
            self._life.soon(0.0, self._over, self._until)


class ProgramsStore(DataStore):
    """A face of a data store for programs that the world's clock runs: what waits is a ``Doing``."""

    def __init__(self, attached: Any, life: StoreLife) -> None:
        super().__init__(attached)
        self.life = life
        self.told: Callable[[object], None] | None = None  # by the next call, once it is over

    def _run(self, steps: Steps[Any]) -> Any:
        told, self.told = self.told, None
        assert told is not None
        return Doing(self.life, steps, told)


class EndpointLife(Life):
    """An endpoint, which dials those with whom it is linked."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        rng = world.rng
        own_id, self.heartbeat_s = uuid.UUID(bytes=rng.randbytes(16)), rng.choice((0.5, 1.0))
        self.face = Endpoint(id=own_id, heartbeat_s=self.heartbeat_s)
        self.core = self.face.core
        self.own_id = self.core.own_id
        self.life = f"{self.name}#{world.next_life()}"
        self.address = self.own_id.hex()
        world.lives[self.own_id] = self.life
        self.face.listening[self] = None  # as a subscriber to statuses
        self.attach()
        self.face.listen(port=world.port_of(self.name))
        for one, two in sorted(world.wires):
            if one == self.name:
                self.face.peer_nosync("127.0.0.1", world.port_of(two), retry_s=rng.choice((0.3, 1.0)))

    def attach(self) -> None:
        """Have a data store, if this has one."""

    def report(self, event: object) -> None:
        """It is told something of the mesh."""
        if isinstance(event, PeerLost):
            self.world.show("on_lost", self, event)

    def end(self) -> None:
        """It is told nothing more."""

    def look(self) -> None:
        """Look for a defect."""
        if (halted := self.face.node.turns.halted) is not None:
            self.world.fail("crash", f"{self.name}: {halted}")

    @property
    def connections(self) -> int:
        """How many it has."""
        found: int = self.face.node.links
        return found

    def speak(self, topic: bytes, payload: bytes, kind: int, receiver: bytes) -> None:
        """Send something to one endpoint."""
        try:
            self.face.try_publish(topic, payload, receiver, kind=kind)
        except ChappeError as error:
            self.world.trace(self, "cannot speak: %s", error)


class StoreLife(EndpointLife, KvHost):
    """An endpoint with a master or a clone, and its program."""

    world: Any
    role: Any
    entity: Any
    backend: Any = None

    def attach(self) -> None:
        """Have the data store."""
        world, rng = self.world, self.world.rng
        self.kind = "clone" if self.name.startswith("clone") else "master"
        self.stale_s = rng.choice((1.0, 10.0, 60.0))
        self.doing: dict[Doing, None] = {}
        world.attaching = self
        if self.kind == "clone":
            made = self.face.attach_clone(
                STORE, rng.choice((0.2, 1.0, 5.0)), self.stale_s, rng.choice((0.0, 2.0, 30.0, 600.0)), timeout=0
            )
        else:
            made = self._attach_master()
        self.store = ProgramsStore(made.attached, self)
        self.watch = self.store.watch()
        self.shown = self.has()
        if self.kind == "master":  # what is on its way to the disk is told once it is there
            self.shown = {index_of(entry.key): entry.value for entry in self.role.frozen()}
        self.face.node.turns.listen(self._news)

    def _attach_master(self) -> DataStore:
        world, name = self.world, self.resident.place.name
        options: dict[str, Any] = {}
        if world.backend is not None and self.name == "master":
            options = {"backend": "sqlite", "path": world.backend.path}
            # The clock may have been set back before this life.
            behind = Random(f"set back {world.seed} {self.own_id!r}").choice((0, 0, 3_600, 86_400))
            world.stage.set_clock(name, -behind)
        try:
            made: DataStore = self.face.attach_master(STORE, history=world.history_size, **options)
            return made
        finally:
            world.stage.set_clock(name, 0)

    def has(self) -> dict[Any, Any]:
        """What it shows."""
        return {index: entry.value for index, entry in self.role.engine.entries.items()}

    # -- what is seen of it -----------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """What its steady clock shows."""
        now: float = self.world.now
        return now

    def look(self) -> None:
        """See what who watches the store is told."""
        super().look()
        while self.watch.available:
            for event in self.watch.poll():
                change: Any = event.typed
                index = index_of(change.key)
                if self.shown.get(index) != change.before:
                    self.world.fail("watches", f"{self.name} is told {change}, and knew {self.shown.get(index)!r}")
                if change.kind in ("insert", "update"):
                    self.shown[index] = change.value
                else:
                    del self.shown[index]

    def _answered(self, actions: Sequence[Effect]) -> None:
        try:
            super()._answered([each for each in actions if not isinstance(each, Resolve)])  # for users, who tell it
        except Violation as violation:
            self.world.broken = self.world.broken or violation
        dies = self.world.dies_after_commit
        if dies and any(isinstance(each, Persist) for each in actions) and self.world.rng.random() < dies:
            self.world.clock.after(0.0, self._die)  # its commit is under way, and may be done all the same

    def _die(self) -> None:
        if self.alive:
            self.world.killed(self)

    def _news(self) -> None:
        for each in list(self.doing):
            each.look()

    # -- its program ------------------------------------------------------------------------------------------

    def act(self) -> None:
        """See ``KvHost``."""
        self._call(super().act, ())

    def wait(self) -> None:
        """See ``KvHost``."""
        self._call(super().wait, ())

    def ask_history(self) -> None:
        """See ``KvHost``."""
        self._call(super().ask_history, ())

    def write(self, method: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> None:
        """Make a write as programs do."""
        store, serial = self.store, options["ticket"]
        expiry_ns = options.get("expiry_ns")
        expiry_s: Seconds = None if expiry_ns is None else expiry_ns / NS
        store.told = told = self._teller(serial)
        role = self.role
        key, *rest = arguments or (None,)
        if method == role.put:
            store.put(key, rest[0], expiry_s=expiry_s, timeout=None)
        elif method == role.put_unique:
            store.put_unique(key, rest[0], expiry_s=expiry_s, timeout=None)
        elif method == role.erase:
            store.erase(key, timeout=None)
        elif method == role.clear:
            store.clear(timeout=None)
        elif method == role.subtract:
            store.decrement(key, rest[0], timeout=None)
        else:
            add: Callable[..., Any] = {VECTOR: store.push, STRING: store.append, SET: store.insert_into}.get(
                rest[1], store.increment
            )
            add(key, rest[0], timeout=None)
        if store.told is not None:  # it was done at once
            told(None)

    def _teller(self, serial: int) -> Callable[[object], None]:
        unique = self.world.truth.asked[serial].what == "put_unique"

        def told(outcome: object) -> None:
            if self.alive:
                self.world.ended(self, serial, outcome if unique or isinstance(outcome, Exception) else None)

        return told

    def ask_role(self, method: Callable[..., Any], *arguments: Any) -> None:
        """Ask what is answered later."""
        attached, (serial, *rest) = self.store.attached, arguments
        if method == self.role.await_idle:
            asked = attached.begin_await_idle(*rest)
        elif method == self.role.ask_history:
            asked = attached.begin_history(*rest)
        else:
            asked = attached.begin_await_ready(*rest)
        with self.face.node.lock:
            asked.then(lambda: self._woken(serial, asked))

    def _woken(self, serial: int, asked: Asked) -> None:
        try:
            if self.alive:
                self.world.ended(self, serial, asked.outcome)
        except Violation as violation:
            self.world.broken = self.world.broken or violation

    def leave(self) -> None:
        """Close it as a program does."""
        self.look()
        super().leave()


class EndpointResident(Resident):
    """An endpoint without a data store."""

    life = EndpointLife


class StoreResident(Resident):
    """An endpoint with a data store."""

    life = StoreLife
