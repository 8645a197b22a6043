"""Masters and clones in a world, and the programs that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from tests.worlds.backends import SimBackend
from tests.worlds.kv.world import COUNTERS, LISTS, LIVING, MIXED, TEMPORARY, UNIQUE, KvWorld, Operation

from chappe.core import Clock, Deliver, Effect, Persist, Report, Resolve, Send
from chappe.data.order import SET, STRING, VECTOR
from chappe.data.scalars import Count
from chappe.errors import BufferFull, NoMaster, StorageError, StoreError
from chappe.kv.backend import Commit
from chappe.kv.commands import decode_message
from chappe.kv.entity import chappe_entity, clone_topic, master_topic
from chappe.kv.history import KeyHistory
from chappe.member import StoreCommit
from chappe.sim.host import SimHost

STORE: Final = "s"

MASTER_TOPIC: Final = master_topic(b"s")
CLONE_TOPIC: Final = clone_topic(b"s")
# How often, what, on which keys, with which value, and what it is added to where there is nothing.
OPERATIONS: Final[tuple[tuple[int, str, tuple[str | None, ...], Callable[[int, Random], Any], int | None], ...]] = (
    (35, "add", LISTS, lambda serial, rng: serial, VECTOR),
    (15, "put_unique", UNIQUE, lambda serial, rng: serial, None),
    (10, "put", TEMPORARY, lambda serial, rng: serial, None),
    (5, "put", LIVING, lambda serial, rng: serial, None),
    (10, "add", COUNTERS, lambda serial, rng: Count(1), 2),
    (15, "put", MIXED, lambda serial, rng: rng.choice((serial, f"text {serial}", 1.5, (1, serial))), None),
    (3, "add", MIXED, lambda serial, rng: f"{serial}", STRING),
    (2, "add", MIXED, lambda serial, rng: f"{serial}", SET),
    (5, "subtract", MIXED, lambda serial, rng: 1, None),
    (4, "erase", MIXED, lambda serial, rng: None, None),
    (1, "clear", (None,), lambda serial, rng: None, None),
)
ANSWERING: Final = (
    "start", "leave", "handle_message", "handle_gone", "handle_subscription", "handle_timeout", "handle_done",
    "await_ready", "await_idle", "ask_history",
    "put", "put_unique", "erase", "add", "subtract", "clear", "let_go",
)  # fmt: skip


class Wrapped:
    """A core that somebody stands before: all but what a kind of this does is the core's own.

    No class inherits from the core, which cannot be where that is compiled.
    """

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


class Watched(Wrapped):
    """The core, such that whatever it answers to whomever is told first."""

    def __init__(self, core: Any, tell: Callable[[Sequence[Effect]], None]) -> None:
        super().__init__(core)

        def telling(method: Callable[..., Sequence[Effect]]) -> Callable[..., Sequence[Effect]]:
            def call(*arguments: Any, **options: Any) -> Sequence[Effect]:
                actions = method(*arguments, **options)
                tell(actions)
                return actions

            return call

        self.__dict__.update({name: telling(getattr(core, name)) for name in ANSWERING if hasattr(core, name)})


class SetBack:
    """A time of day that was set back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.behind_ns = 0

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC."""
        return self._clock.wall_ns() - self.behind_ns


class KvHost(SimHost):
    """One life of a member: a master or a clone, and its application."""

    world: KvWorld
    role: Any  # the master or the clone
    heard: Send | None = None  # what came last, on a wire

    def take_part(self, endpoint: bytes, backend: SimBackend | None) -> None:
        """Have a master with this backend, or a clone if the host's name says so."""
        world, rng = self.world, self.world.rng
        self.kind = "clone" if self.name.startswith("clone") else "master"
        self.backend = backend
        self.entity = chappe_entity(endpoint, rng.getrandbits(32))
        self.stale_s = rng.choice((1.0, 10.0, 60.0))
        now = self.now
        if self.kind == "master":
            loaded = None if backend is None else backend.load()
            clock = SetBack(world.clock)
            history = KeyHistory(world.history_size, world.limits, kept=backend is not None)
            if backend is not None:  # the clock may have been set back before this life
                choice = Random(f"set back {world.seed} {self.entity}").choice((0, 0, 3_600, 86_400))
                clock.behind_ns = choice * 1_000_000_000
            core: Any = world.cores.master(
                STORE, self.entity, now=now, clock=clock, durable=backend is not None,
                loaded=loaded, limits=world.limits, history=history,
            )  # fmt: skip
            clock.behind_ns = 0
            world.see("on_loaded", self, () if loaded is None else loaded.history)
            if backend is not None:
                backend.take(core.reserve())
        else:
            core = world.cores.clone(
                STORE, self.entity, now=now, clock=world.clock, resync_s=rng.choice((0.2, 1.0, 5.0)),
                stale_s=self.stale_s,
                mutation_buffer_s=rng.choice((0.0, 2.0, 30.0, 600.0)), limits=world.limits,
            )  # fmt: skip
        self.role = Watched(core, self._answered)

    @property
    def now(self) -> float:
        """What its steady clock shows."""
        return self.world.now

    def _answered(self, actions: Sequence[Effect]) -> None:
        """The core has answered this, to whomever."""
        world = self.world
        for action in actions:
            if isinstance(action, Send):
                if world.telling:
                    message = decode_message(action.message)
                    to = "" if action.to else " to all"
                    world.trace(self, "sends %d %s%s", message.seq, message.command, to)
                world.see("on_send", self, action)
            elif isinstance(action, Deliver):
                for change in action.messages:
                    world.trace(self, "shows %s %r: %r", change.kind, change.key, change.value)
                    world.see("on_notify", self, change)
            elif isinstance(action, Resolve):
                world.ended(self, action.ticket, action.outcome)
            elif isinstance(action, Report):
                world.trace(self, "reports %s", action.event)
                world.see("on_kv_report", self, action.event)
        if actions:
            world.see("on_done", self)

    def act(self) -> None:
        """One operation of the application, drawn by chance."""
        world = self.world
        if self.kind == "master" and not self.role.room:
            return  # as drivers have it
        rng, serial = world.rng, world.next_serial()
        name, keys, make, init = rng.choices([each[1:] for each in OPERATIONS], [each[0] for each in OPERATIONS])[0]
        if name == "clear" and not world.clears:
            name, keys = "erase", MIXED
        key = rng.choice(keys)
        value = make(serial, rng)
        expiry_ns = None
        if keys is TEMPORARY or (keys is LIVING and rng.random() < 0.5):
            expiry_ns = int(rng.choice((0.05, 0.5, 3.0)) * 1e9)
        world.began(self, Operation(str(self.entity), name, key, value, world.clock.wall_us * 1000, expiry_ns), serial)
        arguments = [each for each in (key, value, init) if each is not None]
        options = {"ticket": serial} | ({} if expiry_ns is None else {"expiry_ns": expiry_ns})
        try:
            self.write(getattr(self.role, name), arguments, options)
        except (StoreError, BufferFull) as error:
            world.ended(self, serial, error)
            if not isinstance(error, NoMaster | BufferFull) and self.kind == "clone":
                raise

    def wait(self) -> None:
        """Wait until it may be read, or is idle."""
        world = self.world
        serial, timeout_s = world.next_serial(), world.rng.choice((0.0, 0.5, 20.0))
        name = "await_ready" if self.kind == "clone" and world.rng.random() < 0.5 else "await_idle"
        world.began(self, Operation(str(self.entity), name, until=world.now + timeout_s), serial)
        self.ask_role(getattr(self.role, name), serial, timeout_s)

    def ask_history(self) -> None:
        """Ask for the history of a key."""
        world, rng = self.world, self.world.history_rng
        serial, timeout_s, key = world.next_serial(), rng.choice((0.5, 20.0)), rng.choice((*LISTS, *MIXED, *COUNTERS))
        world.began(self, Operation(str(self.entity), "history", key, until=world.now + timeout_s), serial)
        self.ask_role(self.role.ask_history, serial, key, timeout_s)

    def ask_role(self, method: Callable[..., Any], *arguments: object) -> None:
        """Make one call that a ``Resolve`` answers."""
        raise NotImplementedError

    def write(self, method: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> None:
        """Make one call that writes."""
        raise NotImplementedError

    def hear(self, action: Send) -> None:
        """A stranger says something."""
        raise NotImplementedError

    def leave(self) -> None:
        """Say goodbye, whatever is under way."""
        raise NotImplementedError

    def committed(self, job: Any, error: StorageError | None) -> None:
        """A job is done, or was refused."""
        raise NotImplementedError

    def _persist(self, action: Persist) -> None:
        """Have the backend do it, in a while."""
        self.world.clock.after(self.world.commit_s(), self._written, action.job)

    def _written(self, job: Any) -> None:
        world = self.world
        if not self.alive:
            return
        assert self.backend is not None
        try:
            self.backend.commit((job.commit if isinstance(job, StoreCommit) else job).operations)
        except StorageError as error:
            world.failed[Commit] += 1
            self.committed(job, error)
        else:
            if world.rng.random() < world.dies_after_commit:
                world.killed(self)
            else:
                self.committed(job, None)
