"""Masters and clones on the wire of a world, carried out as a driver does it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chappe.core import Report
from chappe.data.order import SET, STRING, VECTOR
from chappe.data.scalars import Count
from chappe.errors import BufferFull, NoMaster, StorageError, StoreError
from chappe.kv.actions import Action, Commit, Notify, Resolve, Send
from chappe.kv.entity import chappe_entity
from chappe.kv.topics import clone_topic, master_topic
from chappe.sim.replicas.truth import COUNTERS, LISTS, MIXED, TEMPORARY, UNIQUE

if TYPE_CHECKING:
    from chappe.sim.replicas.keeping import SimBackend
    from chappe.sim.replicas.world import ReplicaWorld

STORE = "s"
TICK_S = 0.001
SPINS_MAX = 400
MASTER_TOPIC = master_topic(b"s")
CLONE_TOPIC = clone_topic(b"s")


class Host:
    """One life of a member."""

    kind = ""

    def __init__(self, world: ReplicaWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.entity = chappe_entity(world.endpoint_of(name), world.rng.getrandbits(32))
        self.core: Any = None
        self._timer_at = math.inf
        self._spins = 0
        self._second = 0

    def start(self) -> None:
        """Begin."""
        self.call(self._begin())

    def _begin(self) -> list[Action]:
        raise NotImplementedError

    def die(self) -> None:
        """Stop at once."""
        self.alive = False

    def call(self, actions: Iterable[Action]) -> None:
        """Carry out what a core has answered."""
        for action in actions:
            if isinstance(action, Send):
                self.world.route(self, action)
            elif isinstance(action, Resolve):
                self.world.resolved(self, action)
            elif isinstance(action, Notify):
                self.world.notified(self, action)
            elif isinstance(action, Report):
                self.world.trace(self, "reports %s", action.event)
                for checker in self.world.checkers:
                    checker.on_report(self, action.event)
            else:
                self._commit(action)
        for checker in self.world.checkers:
            checker.on_done(self)
        self.arm()

    def _commit(self, action: Commit) -> None:
        raise NotImplementedError

    def due(self) -> float:
        """When the core wants to be called."""
        raise NotImplementedError

    def arm(self) -> None:
        """Have the core called when it wants to be."""
        at = self.due()
        if at < self._timer_at and self.alive:
            self._timer_at = max(at, self.world.now + TICK_S)
            self.world.clock.at(self._timer_at, self._ring, self._timer_at)

    def _ring(self, at: float) -> None:
        if not self.alive or at != self._timer_at:
            return
        self._timer_at = math.inf
        if self.due() > self.world.now:
            self.arm()
            return
        if int(self.world.now) != self._second:
            self._second, self._spins = int(self.world.now), 0
        self._spins += 1
        if self._spins > SPINS_MAX:
            self.world.fail("no spinning", f"{self.name} wants to be called {SPINS_MAX} times a second")
        self.call(self._timeout())

    def _timeout(self) -> list[Action]:
        raise NotImplementedError

    def hear(self, action: Send) -> None:
        """A message has come, if it still lives."""
        if self.alive:
            self.receive(action)

    def receive(self, action: Send) -> None:
        """A message has come."""
        raise NotImplementedError

    # -- what its application does ------------------------------------------------------------------------------

    def act(self) -> None:
        """One operation, drawn by chance."""
        world = self.world
        rng = world.rng
        serial = world.next_serial()
        choice = rng.random()
        what: tuple[str, Any, Any, int]
        expiry_ns: int | None = None
        if choice < 0.35:
            what = ("add", rng.choice(LISTS), serial, VECTOR)
        elif choice < 0.5:
            what = ("put_unique", rng.choice(UNIQUE), serial, 0)
        elif choice < 0.6:
            what = ("put", rng.choice(TEMPORARY), serial, 0)
            expiry_ns = int(rng.choice((0.05, 0.5, 3.0)) * 1e9)
        elif choice < 0.7:
            what = ("add", rng.choice(COUNTERS), Count(1), 2)
        elif choice < 0.85:
            what = ("put", rng.choice(MIXED), rng.choice((serial, f"text {serial}", 1.5, (1, serial))), 0)
        elif choice < 0.9:
            what = ("add", rng.choice(MIXED), f"{serial}", rng.choice((STRING, SET)))
        elif choice < 0.95:
            what = ("subtract", rng.choice(MIXED), 1, 0)
        elif choice < 0.99 or not world.clears:
            what = ("erase", rng.choice(MIXED), None, 0)
        else:
            what = ("clear", None, None, 0)
        self.operate(serial, what, expiry_ns)

    def operate(self, serial: int, what: tuple[str, Any, Any, int], expiry_ns: int | None) -> None:
        """Call the core."""
        name, key, value, init = what
        arguments = [] if name == "clear" else [key] if name == "erase" else [key, value]
        if name == "add":
            arguments.append(init)
        more = {"expiry_ns": expiry_ns} if expiry_ns is not None else {}
        world = self.world
        world.began(self, serial, what)
        try:
            actions = getattr(self.core, name)(*arguments, ticket=serial, **more, **self._times())
        except (StoreError, BufferFull) as error:
            world.ended(serial, error)
            if not isinstance(error, NoMaster | BufferFull) and self.kind == "clone":
                raise
            return
        self.call(actions)

    def _times(self) -> dict[str, Any]:
        return {"now": self.world.now}


class MasterHost(Host):
    """A master, with or without a backend."""

    kind = "master"

    def __init__(self, world: ReplicaWorld, name: str, backend: SimBackend | None) -> None:
        super().__init__(world, name)
        self.backend = backend
        loaded = None if backend is None else backend.load()
        self.core = world.cores.master(
            STORE, self.entity, durable=backend is not None, loaded=loaded, **self._times()
        )  # fmt: skip

    def _times(self) -> dict[str, Any]:
        return {"now": self.world.now, "wall_ns": self.world.clock.wall_us * 1000}

    def _begin(self) -> list[Action]:
        actions: list[Action] = self.core.start(**self._times())
        return actions

    def due(self) -> float:
        """When the core wants to be called."""
        at: float = self.core.next_timeout(**self._times())
        return at

    def _timeout(self) -> list[Action]:
        actions: list[Action] = self.core.handle_timeout(**self._times())
        return actions

    def receive(self, action: Send) -> None:
        """A message of a clone, or of another master."""
        if action.topic == MASTER_TOPIC:
            self.call(self.core.handle_messages([action.payload], **self._times()))
        else:
            self.call(self.core.handle_masters([action.payload], **self._times()))

    def _commit(self, action: Commit) -> None:
        self.world.clock.after(self.world.commit_s(), self._written, action)

    def _written(self, action: Commit) -> None:
        if not self.alive:
            return
        assert self.backend is not None
        try:
            self.backend.commit(action.operations)
        except StorageError as error:
            self.call(self.core.handle_commit_failed(action.number, error, self.world.now))
        else:
            if self.world.rng.random() < self.world.dies_after_commit:
                self.world.kill_master(self)
                return
            self.call(self.core.handle_committed(action.number, **self._times()))


class CloneHost(Host):
    """A clone."""

    kind = "clone"

    def __init__(self, world: ReplicaWorld, name: str) -> None:
        super().__init__(world, name)
        rng = world.rng
        self.stale_s = rng.choice((1.0, 10.0, 60.0))
        self.buffer_s = rng.choice((0.0, 2.0, 30.0, 600.0))
        self.core = world.cores.clone(
            STORE, self.entity, now=world.now, resync_s=rng.choice((0.2, 1.0, 5.0)), stale_s=self.stale_s,
            mutation_buffer_s=self.buffer_s,
        )  # fmt: skip

    def _begin(self) -> list[Action]:
        actions: list[Action] = self.core.start(self.world.now)
        return actions

    def due(self) -> float:
        """When the core wants to be called."""
        at: float = self.core.next_timeout()
        return at

    def _timeout(self) -> list[Action]:
        actions: list[Action] = self.core.handle_timeout(self.world.now)
        return actions

    def receive(self, action: Send) -> None:
        """A message of a master."""
        self.call(self.core.handle_messages([action.payload], self.world.now))
