"""Whoever has a part in a store whose master is replaced: servers of a chain, and clones that write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.worlds.clocked import ClockedHost

from chappe.core import Deliver, Report, Resolve, Send
from chappe.data.order import VECTOR
from chappe.data.scalars import Count
from chappe.errors import BufferFull, StoreError
from chappe.kv.clone import KvClone
from chappe.kv.commands import ChangesOffer, decode_message
from chappe.kv.engine import index_of
from chappe.kv.entity import chappe_entity
from chappe.kv.events import MasterFound
from chappe.sim.host import SimHost

STORE: Final = "s"
NOTICES_S: Final = (0.0, 0.0, 0.3, 20.0)  # how long until others hear that an endpoint is gone
COUNTERS: Final = ("counter a", "counter b")
LISTS: Final = ("list a", "list b")
KEYS_A_CALL: Final = 16  # looked through after each call at least, whatever the store has
LOOK_S: Final = 0.25  # where there are calls, all of them at least so often
_ERRORS: Final = (StoreError, BufferFull)


@dataclass
class Written:
    """One write, and what became of it."""

    what: str
    key: str
    value: Any
    host: str
    life: int
    outcome: Any = None
    told: bool = False


class Part(SimHost):
    """What a master and a clone have in common, whatever else the host is."""

    role: Any
    life: int

    def takes_part(self) -> None:
        """Have an endpoint, users who write, and one who watches."""
        self.endpoint: bytes = self.world.random(16)
        self.shown: dict[Any, Any] = {}  # what who watches has been told
        self.written: dict[int, Written] = {}
        self._calls = 0  # since its state was looked through
        self._look_at = 0.0

    @property
    def own_time(self) -> float:
        """The time on its own clock."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin; others hear that it is there."""
        self.call_role(self.role.start, self.own_time)
        self.world.lines.begun(self.name)
        self.world.clock.after(0.01, self.world.network_changed)

    def call_role(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the master or the clone."""
        raise NotImplementedError

    def check_role(self) -> None:
        """Look at what it is like after a call; with many keys after some calls, or worlds with them last for ever."""
        self._calls += 1
        enough = self._calls * KEYS_A_CALL >= len(self.role.engine) or self.world.now >= self._look_at
        if self.alive and enough:
            self._calls, self._look_at = 0, self.world.now + LOOK_S
            for found in self.role.invariants():
                self.world.fail("invariants", f"{self.name}: {found}")

    def role_table(self) -> dict[type, Callable[[Any], None]]:
        """What it does with each class of actions."""
        return {Send: self._publish, Resolve: self._resolve, Deliver: self._deliver, Report: self._reported}

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Stop; others hear of it, or do not for long."""
        if goodbye:
            self.perform(self.role.leave())
        super().die()
        endpoint = self.endpoint
        for other in self.world.alive(Part):
            self.world.clock.after(self.world.rng.choice(NOTICES_S), _notice, other, endpoint)

    # -- the application

    def write(self, what: str, key: str, value: Any) -> None:
        """Make one write, if there is room."""
        if self.frozen or not self.role.room:
            return
        world = self.world
        ticket = len(world.written) + 1
        written = world.noted(Written(what, key, value, self.name, self.life))
        self.written[ticket] = written
        arguments = (key, value, VECTOR if key in LISTS else 2) if what == "add" else (key, value)
        world.trace(self, "writes %d: %s %r %r", ticket, what, key, value)
        try:
            self.call_role(
                getattr(self.role, what), *arguments, now=self.own_time, ticket=ticket,
                expiry_ns=int(world.rng.choice((0.3, 3.0)) * 1e9) if key == "living" else None,
            )  # fmt: skip
        except _ERRORS as error:
            self._resolve(Resolve(ticket, error))

    def _resolve(self, action: Resolve) -> None:
        written = self.written.pop(action.ticket)
        written.outcome, written.told = action.outcome, True
        self.world.trace(self, "is told of %d: %r", action.ticket, action.outcome)

    def _deliver(self, action: Deliver) -> None:
        for change in action.messages:
            index = index_of(change.key)
            if self.shown.get(index) != change.before:
                self.world.fail("watches", f"{self.name} is told {change}, and knew {self.shown.get(index)!r}")
            if change.kind in ("insert", "update"):
                self.shown[index] = change.value
            else:
                del self.shown[index]

    def _reported(self, action: Report) -> None:
        self.world.trace(self, "%s", action.event)
        if isinstance(action.event, MasterFound):
            self.world.see("on_found", self, action.event.master)

    # -- the world

    def _publish(self, action: Send) -> None:
        world = self.world
        for other in world.alive(Part):
            if other is self or action.topic not in other.role.topics:
                continue
            if action.to is not None and action.to != other.endpoint:
                continue
            if world.rng.random() < world.loss:
                world.failed[Send] += 1
                continue
            topic, payload, endpoint = action.topic, action.message, other.endpoint
            if other.role.kind == "clone" and self.role.kind == "master" and action.to is not None:
                message = decode_message(payload)
                if isinstance(message.command, ChangesOffer):
                    world.see("on_changes", other, message.sender)

            def deliver(host: Any, topic: bytes = topic, payload: bytes = payload, endpoint: bytes = endpoint) -> None:
                if host.endpoint == endpoint:
                    host.call_role(host.role.handle_message, topic, [payload], host.own_time)

            world.lines.send(self.name, other.name, "mesh", deliver)


class CloneHost(Part, ClockedHost):
    """A clone that writes."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.life = world.next_life()
        self.takes_part()
        self.ahead_s = world.rng.random() * 1_000
        self.table = self.role_table()
        self.role = KvClone(
            STORE, chappe_entity(self.endpoint, self.life), now=self.now, clock=world.clock,
            resync_s=world.rng.choice((0.2, 1.0, 10.0)),
            limits=world.kv_limits,
        )  # fmt: skip

    @property
    def own_time(self) -> float:
        """See ``Part``."""
        return self.now

    def start(self) -> None:
        """Begin to live."""
        self.begin()

    def due(self) -> float:
        """When the core wants to be called, on the world's clock."""
        return self.in_world(self.role.next_timeout())

    def handle_due(self) -> None:
        """Have it do what is due."""
        if self.now >= self.role.next_timeout():
            self.call(self.role.handle_timeout, self.now)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the core, and look at what it is like then, and shows."""
        before = self.role.master
        super().call(method, *args, **options)
        self.check_role()
        if not self.alive:
            return
        if self.role.master not in (None, before):
            self.world.see("on_moved", self, self.role.master)
        if self.role.position is not None:
            self.world.see("on_shows", self, self.role.master, self.role.position)

    def call_role(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """See ``Part``."""
        self.call(method, *args, **options)


def _notice(host: Part, endpoint: bytes) -> None:
    if host.alive and not host.frozen:
        host.call_role(host.role.handle_gone, endpoint, host.own_time)


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
