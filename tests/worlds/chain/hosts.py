"""Servers of a chain and their clients, in a world: with clocks that drift, disks that tear, and pauses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

from msgspec.msgpack import Decoder
from tests.worlds.chain import machine
from tests.worlds.clocked import HostClock
from tests.worlds.linearizable import Operation

from chappe.core import Persist, Reply, Report, Send
from chappe.errors import StorageError
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain.client import Finished
from chappe.replication.chain.log import Job, LoadedChain, LogChange, SaveState
from chappe.replication.chain.messages import (
    EXPIRED,
    Answer,
    Between,
    Request,
    encode,
)
from chappe.sim.host import SimHost

BETWEEN: Final[Decoder[Between]] = Decoder(Between)
REQUEST: Final[Decoder[Request]] = Decoder(Request)
ANSWER: Final[Decoder[Answer]] = Decoder(Answer)

KEYS = ("r0", "r1", "c0", "l0")
UNDER_WAY_MAX = 4  # operations of one client
REFUSED = "the disk refuses"
NUMBERS_MAX = 4  # different values, so that a compare-and-set sometimes hits


class Disk:
    """What one server has on disk; it survives its lives."""

    def __init__(self, disk: int) -> None:
        self.memory = VoteRecord(disk)
        self.loaded = LoadedChain()
        self.refuses = 0.0  # how many of the writes it refuses
        self.write_s = 0.001
        self._saves: tuple[LogChange, ...] | None = None  # the change being saved, and changes written since

    def save(self, change: LogChange) -> None:
        """Begin to save a change with a state beside later changes."""
        self._saves = (change,)

    @property
    def saving(self) -> bool:
        """True while a change is being saved."""
        return self._saves is not None

    def saved(self, done: bool) -> None:
        """End a save: if ``done``, the change replaces everything before it."""
        saves, self._saves = self._saves, None
        if done:
            for each in saves or ():
                self._do(each)

    def write(self, change: LogChange, survives: int | None = None) -> None:
        """Do a change, or of its entries the first few; a state is there with all that belongs to it, or not."""
        if change.state is not None:
            if survives is None or survives >= len(change.entries):
                self._saves = None
                self._do(change)
            return
        if survives is not None:
            change = replace(change, entries=change.entries[:survives], committed=0)
        if self._saves is not None:
            self._saves = (*self._saves, change)
        self._do(change)

    def _do(self, change: LogChange) -> None:
        if change.state is not None:
            self.loaded = LoadedChain(change.state, change.entries, change.committed)
            return
        loaded, entries = self.loaded, change.entries
        base = 0 if loaded.state is None else loaded.state.index
        kept = loaded.entries[: change.keep - base]
        assert base + len(kept) == change.keep, f"entries behind {change.keep}, the disk has {base + len(kept)}"
        committed = max(loaded.committed, change.committed)
        self.loaded = replace(loaded, entries=(*kept, *entries), committed=min(committed, change.keep + len(entries)))


class ChainHost(SimHost):
    """A host with a clock of its own, that takes what came when it stands still no more."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.rate = 1.0 + world.drift * (world.rng.random() - 0.5)
        self._offset = world.rng.random() * 1_000
        self._inbox: list[Callable[[], None]] = []
        self.core: Any = None

    @property
    def now(self) -> float:
        """The time on its own clock."""
        return float(self._offset + self.world.now * self.rate)

    def due(self) -> float:
        """When the core wants to be called, on the world's clock."""
        at = self.core.next_timeout()
        return float((at - self._offset) / self.rate) if at < inf else inf

    def handle_due(self) -> None:
        """Have it do what is due."""
        if self.now >= self.core.next_timeout():
            self.call(self.core.handle_timeout, self.now)

    def take(self, deliver: Callable[[], None]) -> None:
        """Something has come."""
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(deliver)
        else:
            deliver()

    def resume(self) -> None:
        """It goes on; what came meanwhile may be looked at first, or the time."""
        if not self.alive:
            return
        self.stalled_until = 0.0
        if self.world.rng.random() < 0.5:
            self.wake()
        inbox, self._inbox = self._inbox, []
        for deliver in inbox:
            if self.alive:
                deliver()
        self.wake()


class ServerHost(ChainHost):
    """One life of a server."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.place = world.servers.index(name)
        self.life = world.next_life()
        self.disk: Disk = world.disks[name]
        self.machine: Any = world.machine(self)
        self.checked = 0  # committed entries that were compared
        self._writes = 0
        self._under_way: LogChange | None = None
        self._saves = 0
        self.core = world.cores.server(
            self.place, world.servers, self.life, self.disk.memory, self.machine, now=self.now,
            clock=HostClock(world, self), loaded=self.disk.loaded, durable=world.durable, fixed=world.fixed,
            limits=world.limits,
        )  # fmt: skip
        self.table = {Persist: self._persist, Send: self._tell, Reply: self._reply, Report: self._report}

    def start(self) -> None:
        """Begin to live."""
        self.call(self.core.start, self.now)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the core, carry out its answer, and what follows from it."""
        super().call(method, *args, **options)
        if self.alive:
            self.world.see("on_step", self)
            super().call(self.core.flush, self.now)
            self.world.see("on_step", self)

    def perform(self, actions: Sequence[Any]) -> None:
        """Carry out effects in order; a vote that the disk refuses drops those behind it."""
        for action in actions:
            if not self.alive:
                return
            if isinstance(action, Persist) and action.first:
                outcome = self._keep(action.job)
                self.perform(self.core.handle_done(action.job, outcome, self.now))
                if outcome is not None:
                    return
            else:
                self.table[type(action)](action)

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Stop at once; of a write under way anything may be there afterwards."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        change = self._under_way
        if self.disk.saving:
            saved = self.world.rng.random() < 0.1
            self.world.failed[SaveState] += not saved
            self.disk.saved(saved)
        if change is not None:
            self.world.failed[LogChange] += 1
            survives = self.world.rng.randrange(-1, len(change.entries) + 1)
            if survives >= 0:
                self.disk.write(change, survives)

    def hear(self, sender: int, frame: bytes) -> None:
        """Another server has sent something."""
        self.take(lambda: self.call(self.core.handle_message, sender, BETWEEN.decode(frame), self.now))

    def asked(self, client: str, frame: bytes) -> None:
        """A client has sent something."""

        def deliver() -> None:
            origin = client.partition("/")[0].encode()
            self.call(self.core.handle_request, client, REQUEST.decode(frame), origin, self.now)

        self.take(deliver)

    def _keep(self, vote: VoteRecord) -> StorageError | None:
        if self.world.rng.random() < self.disk.refuses:
            self.world.failed[VoteRecord] += 1
            return StorageError(REFUSED)
        self.disk.memory = vote
        return None

    def _persist(self, effect: Persist) -> None:
        job: Job = effect.job
        if isinstance(job, SaveState):
            self._saves += 1
            self.disk.save(job.change)
            self.world.clock.after(20 * self.disk.write_s * self.world.rng.random(), self._saved, self._saves, job)
            return
        assert isinstance(job, LogChange)
        assert self._under_way is None
        self._under_way = job
        self._writes += 1
        delay = self.disk.write_s * (0.5 + self.world.rng.random())
        self.world.clock.after(delay, self._written, self._writes)

    def _written(self, number: int) -> None:
        if not self.alive or number != self._writes or self._under_way is None:
            return
        if self.frozen:
            self._inbox.append(lambda: self._written(number))
            return
        change, self._under_way = self._under_way, None
        if self.world.rng.random() < self.disk.refuses:
            self.world.failed[LogChange] += 1
            if self.world.rng.random() < 0.5:
                self.disk.write(change, self.world.rng.randrange(len(change.entries) + 1))
            self.call(self.core.handle_done, change, StorageError(REFUSED), self.now)
            return
        self.disk.write(change)
        self.call(self.core.handle_done, change, None, self.now)

    def _saved(self, number: int, job: SaveState) -> None:
        if not self.alive or number != self._saves:
            return
        if self.frozen:
            self._inbox.append(lambda: self._saved(number, job))
            return
        refused = self.world.rng.random() < self.disk.refuses
        self.world.failed[SaveState] += refused
        self.disk.saved(not refused)
        self.call(self.core.handle_done, job, StorageError(REFUSED) if refused else None, self.now)

    def _tell(self, effect: Send) -> None:
        self._send(self.world.servers[effect.to], effect.message)

    def _send(self, target: str, message: Between) -> None:
        world, place, frame = self.world, self.place, encode(message)

        def deliver(_: object) -> None:
            world.hosts[target].hear(place, frame)

        world.wire.send(self.name, target, deliver, None, Send, len(frame))

    def _reply(self, action: Reply) -> None:
        world, place, client, frame = self.world, self.place, str(action.to), encode(action.message)

        def deliver(_: object) -> None:
            host = world.hosts.get(client.partition("/")[0])
            if host is not None and host.alive and host.address == client:
                host.answered(place, frame)

        world.wire.send(self.name, client.partition("/")[0], deliver, None, Reply, len(frame))

    def _report(self, action: Report) -> None:
        self.world.trace(self, "%s", action.event)


class ClientHost(ChainHost):
    """One life of a client, which does this and that and remembers what it was told."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.life = world.next_life()
        self.address = f"{name}/{self.life}"
        self.table = {Send: self._send, Report: self._report}
        self.core = world.cores.client(len(world.servers), b"%d-" % self.life, now=self.now, limits=world.limits)
        self.under_way: dict[int, tuple[int, Operation]] = {}  # by token: number and operation

    def start(self) -> None:
        """Begin to live."""
        self.arm()
        self.world.clock.after(self.world.pause(), self._go_on, self.life)

    @property
    def works(self) -> bool:
        """Whether it asks for more."""
        return bool(self.world.working)

    def _go_on(self, life: int) -> None:
        world = self.world
        if not self.alive or not self.works:
            return
        while not self.frozen and len(self.under_way) < UNDER_WAY_MAX:
            self.operate()
            if world.rng.random() < 0.7:
                break  # else the next one leaves together with this one
        self.call(self.core.flush, self.now)
        world.clock.after(world.pause(), self._go_on, life)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """Make one call into the core, carry out its answer, and what follows from it."""
        super().call(method, *args, **options)
        if self.alive:
            super().call(self.core.flush, self.now)

    def operate(self) -> None:
        """One operation, drawn by chance."""
        world = self.world
        rng, key = world.rng, world.rng.choice(KEYS)
        value = rng.randrange(NUMBERS_MAX)
        number = world.next_operation()
        what: tuple[Any, ...]
        if key[0] == "l":
            what = ("append", number)
        elif key[0] == "c":
            what = ("add", 1 + value)
        else:
            what = rng.choice((("put", value), ("cas", value, rng.randrange(NUMBERS_MAX)), ("get",)))
        reads = rng.random() < 0.3
        operation = Operation(key, ("get",) if reads else what, world.now)
        world.history.append(operation)
        if reads:
            server = rng.choice((None, rng.randrange(len(world.servers))))
            token, actions = self.core.read(machine.encode(0, key, "get"), self.now, server=server)
        else:
            token, actions = self.core.do(machine.encode(number, key, *what), self.now), []
        self.under_way[token] = (0 if reads else number, operation)
        self.perform(actions)

    def answered(self, server: int, frame: bytes) -> None:
        """A server has answered."""
        answer = ANSWER.decode(frame)
        self.take(lambda: self.call(self.core.handle_message, server, answer, self.now))

    def _send(self, action: Send) -> None:
        world, address = self.world, self.address
        target, message = world.servers[action.to], action.message
        frame = encode(message)

        def deliver(_: object) -> None:
            world.hosts[target].asked(address, frame)

        world.wire.send(self.name, target, deliver, None, Send, len(frame))

    def _report(self, action: Report) -> None:
        event = action.event
        assert isinstance(event, Finished)
        for token, (outcome, result) in zip(event.tokens, event.outcomes, strict=True):
            number, operation = self.under_way.pop(token)
            if outcome == EXPIRED:
                self.world.expired += 1
                self.world.see("on_expired", self)  # whether it was done, nobody knows
            else:
                self.told(number, operation, result)

    def told(self, number: int, operation: Operation, result: bytes) -> None:
        """An operation has ended."""
        operation.ended = self.world.now
        operation.outcome = machine.result(result)
        self.world.see("on_confirmed", self, number)
