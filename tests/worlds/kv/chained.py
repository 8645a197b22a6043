"""Endpoints of the API with a master on a chain, or a clone of it; programs write there and watch."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.worlds.chain.members import ChainLife, ServerLife
from tests.worlds.kv.hosts import STORE
from tests.worlds.kv.members import Role
from tests.worlds.residents import Resident

from chappe import Endpoint
from chappe.api.mesh.waiting import Asked
from chappe.core import Effect, Send
from chappe.data.order import VECTOR
from chappe.data.scalars import Count
from chappe.errors import ChappeError
from chappe.kv.chained.fed import Did, Fed, WholeState
from chappe.kv.chained.machine import StoreMachine
from chappe.kv.commands import ChangesOffer, decode_message
from chappe.kv.engine import index_of
from chappe.sim.world import Violation

COUNTERS: Final = ("counter a", "counter b")
LISTS: Final = ("list a", "list b")
KEYS_A_CALL: Final = 16  # stores with more keys are looked through now and then alone


@dataclass
class Written:
    """One write, and what became of it."""

    what: str
    key: str
    value: Any
    host: str
    outcome: Any = None
    told: bool = False


class RememberingStore(StoreMachine):
    """Remembers which commits it has done, for the checkers."""

    def __init__(self) -> None:
        self.did: list[tuple[object, int]] = []
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self.did = []

    def _tell(self, fed: Fed | WholeState) -> None:
        if isinstance(fed, Did):
            self.did.append((fed.master, fed.number))
        super()._tell(fed)


class Part(ChainLife):
    """An endpoint with a server or a clone of the store, whose program writes and watches."""

    role: Any

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        rng = world.rng
        self.own_id = rng.randbytes(16)
        self.face = Endpoint(id=uuid.UUID(bytes=self.own_id), heartbeat_s=rng.choice((0.5, 1.0)))
        world.attaching = self
        self.store = self.make()
        self.watch = self.store.watch()
        self.shown: dict[Any, Any] = {}  # what who watches has been told
        self.written: dict[int, Written] = {}  # those that are under way
        ports = world.mesh_ports
        self.face.listen(port=ports[self.name])
        for name in list(ports)[: list(ports).index(self.name)]:
            self.face.peer_nosync("127.0.0.1", ports[name], retry_s=rng.choice((0.3, 1.0)))

    def make(self) -> Any:
        """Attach it."""
        raise NotImplementedError

    def answered(self, actions: Sequence[Effect]) -> None:
        """The core has answered somebody: show it to the checkers."""
        try:
            if len(self.role.engine) <= KEYS_A_CALL:
                self._check()
            self.show(actions)
        except Violation as violation:
            self.world.broken = self.world.broken or violation

    def show(self, actions: Sequence[Effect]) -> None:
        """Show it to the checkers."""
        raise NotImplementedError

    def _check(self) -> None:
        for found in self.role.invariants():
            self.world.fail("invariants", f"{self.name}: {found}")

    def look(self) -> None:
        """See what is wrong, and what who watches is told."""
        if (halted := self.face.node.turns.halted) is not None:
            self.world.fail("crash", f"{self.name}: {halted}")
        self._check()
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

    def write(self, what: str, key: str, value: Any) -> None:
        """Make one write."""
        world = self.world
        written = world.noted(Written(what, key, value, self.name))
        number = len(world.written)
        self.written[number] = written
        world.trace(self, "writes %d: %s %r %r", number, what, key, value)
        arguments = (key, value, VECTOR if key in LISTS else 2) if what == "add" else (key, value)
        expiry_s = world.rng.choice((0.3, 3.0)) if key == "living" else None
        attached = self.store.attached
        try:
            asked = attached.try_write(getattr(self.role, what), arguments, expiry_s, True)
        except ChappeError as error:
            self._told(number, error)
            return
        with self.face.node.lock:
            asked.then(partial(self._answer, number, asked))

    def _answer(self, number: int, asked: Asked) -> None:
        self._told(number, asked.outcome)

    def _told(self, number: int, outcome: object) -> None:
        written = self.written.pop(number)
        written.outcome, written.told = outcome, True
        self.world.trace(self, "is told of %d: %r", number, outcome)


class StoreServerLife(Part, ServerLife):
    """One life of a server: of the chain, and of the mesh."""

    def make(self) -> Any:
        """Attach a master on the chain."""
        world = self.world
        self._told_of = 0  # the last event that clones were told
        made = self.face.attach_master(
            STORE, chain=world.configuration, server=self.name, directory=world.directory(self.name),
            history=world.history_size,
        )  # fmt: skip
        server = made.attached.chain
        self.machine = server._ports.core.replica.machine
        self.serve(server)
        return made

    def show(self, actions: Sequence[Effect]) -> None:
        """A master may have told further events."""
        world = self.world
        for each in actions:
            if isinstance(each, Send) and isinstance(each.to, bytes) and each.topic:
                message = decode_message(each.message)
                if isinstance(message.command, ChangesOffer):
                    world.see("on_changes", each.to, message.sender)
        active = self.role.active
        if active is not None and active.position != self._told_of:
            self._told_of = active.position
            entries = {index_of(entry.key): entry.value for entry in active.frozen()}
            world.see("on_state", active.entity, self._told_of, entries)

    def look(self) -> None:
        """See what the server of the chain reports, too."""
        super().look()
        for event in self.server.events():
            self.world.trace(self, "%s", event)


class CloneLife(Part):
    """One life of a clone that writes."""

    def make(self) -> Any:
        """Attach a clone."""
        self._follows: object = None
        return self.face.attach_clone(STORE, self.world.rng.choice((0.2, 1.0, 10.0)), timeout=0)

    def show(self, actions: Sequence[Effect]) -> None:
        """It may follow another master, or show something else."""
        world, role = self.world, self.role
        if role.master not in (None, self._follows):
            world.see("on_moved", self, role.master)
        self._follows = role.master
        if role.position is not None:
            world.see("on_shows", self, role.master, role.position)


class StoreServerResident(Resident):
    """A server over all its lives."""

    life = StoreServerLife


class CloneResident(Resident):
    """A clone over all its lives."""

    life = CloneLife


def role_of(life: Part, core: Any) -> Role:
    """The core of a store that is attached just now; the checkers see what it answers."""
    life.role = Role(core, life.answered)
    role: Role = life.role
    return role


def any_write(rng: Any, serial: int) -> tuple[str, str, Any]:
    """What to write: mostly what tells whether it was done twice."""
    return rng.choice(  # type: ignore[no-any-return]
        (
            ("add", rng.choice(COUNTERS), Count(1)),
            ("add", rng.choice(LISTS), serial),
            ("put", f"set {serial}", serial),
            ("put", f"set {serial}", serial),
            ("put", "living", serial),
            ("put_unique", f"unique {serial // 20}", serial),
        )
    )
