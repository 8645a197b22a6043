"""Servers of a chain with their files, and clients that do this and that: objects of the API, on hosts that fail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

from tests.worlds.chain import machine
from tests.worlds.linearizable import Operation
from tests.worlds.residents import Life, Resident

from chappe.api.chain.client import Chain
from chappe.api.chain.member import ChainAnswer, ChainCall
from chappe.api.chain.server import ChainServer
from chappe.core import Effect
from chappe.errors import ChappeError, Closed, CommandFailed, NoChain, SessionExpired, TimedOut
from chappe.runtime.chain_ports import ChainServerPorts
from chappe.sim.world import Violation

KEYS: Final = ("r0", "r1", "c0", "l0")
UNDER_WAY_MAX: Final = 4  # operations of one client
NUMBERS_MAX: Final = 4  # different values, so that a compare-and-set sometimes hits
NOT_COMPARED: Final = "topic"  # the key of operations that are not compared with one copy
GIVES_UP_S: Final = (0.0, 0.3, 3.0)  # how long a client waits for an answer that it wants no more then


class WatchedPorts(ChainServerPorts):
    """The world looks at a server after each input, and before it sends anything."""

    life: ServerLife | None = None

    def hear(self, link: Any, frames: Any) -> Sequence[Effect]:
        found = super().hear(link, frames)
        if link is not None:
            self._look()
        return found

    def done(self, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        found = super().done(job, outcome, now)
        if self.life is not None:
            self.life.world.failed[type(job)] += outcome is not None
        self._look()
        return found

    def flushed(self) -> None:
        self._look()
        super().flushed()

    def _look(self) -> None:
        if self.life is not None:
            self.life.step()


class ChainLife(Life):
    """One life on a host whose steady clock drifts."""

    def __init__(self, world: Any, resident: Resident) -> None:
        world.stage.host(resident.place.name).rate = 1.0 + world.drift * (world.rng.random() - 0.5)
        super().__init__(world, resident)

    def look(self) -> None:
        """See what it reports."""
        for event in self.face.events():
            self.world.trace(self, "%s", event)
            self.world.see("on_report", self, event)


class ServerLife(ChainLife):
    """One life of a server, whatever it is a server for."""

    cannot = (ChappeError,)
    machine: Any

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.place: int = world.servers.index(self.name)
        self.checked = 0  # committed entries that were compared

    def serve(self, server: ChainServer) -> None:
        """Be this server from now on."""
        ports: Any = server._ports
        self.server = server
        self.core = ports.core
        ports.life = self

    def step(self) -> None:
        """Show it to the checkers."""
        self.see("on_step")

    def see(self, what: str) -> None:
        """Show it to the checkers that look for this; its driver is not to take what they say for a defect."""
        try:
            self.world.see(what, self)
        except Violation as violation:
            self.world.broken = self.world.broken or violation


class PlainServer(ServerLife):
    """One life of a server with a machine of the world."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.machine = world.machine(self)
        self.face = ChainServer(self.machine, world.configuration, self.name, directory=world.directory(self.name))
        self.serve(self.face)


class ClientLife(ChainLife):
    """One life of a client, which remembers what it was told."""

    gives_up: ClassVar[float] = 0.1  # of its operations it waits for so many not to their end

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = Chain(world.configuration)
        self.under_way: dict[ChainCall, tuple[int, Operation]] = {}  # number and operation
        self.soon(world.pause(), self._go_on)

    @property
    def works(self) -> bool:
        """Whether it asks for more."""
        return bool(self.world.working)

    def _go_on(self) -> None:
        world = self.world
        if not self.works:
            return
        while len(self.under_way) < UNDER_WAY_MAX:
            self.operate()
            if world.rng.random() < 0.7:
                break  # else the next one leaves together with this one
        self.soon(world.pause(), self._go_on)

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
        if rng.random() < 0.3:
            server = rng.choice((None, rng.choice(world.servers)))
            self.ask(Operation(key, ("get",), world.now), machine.encode(0, key, "get"), server)
        else:
            self.do(number, Operation(key, what, world.now), machine.encode(number, key, *what))

    def ask(self, operation: Operation, query: bytes, server: str | None = None) -> None:
        """Ask the machine."""
        self._begun(self.face.member.ask(query, server), 0, operation)

    def do(self, number: int, operation: Operation, command: bytes) -> None:
        """Have a command done."""
        self._begun(self.face.submit(command), number, operation)

    def _begun(self, call: ChainCall, number: int, operation: Operation) -> None:
        if operation.key != NOT_COMPARED:
            self.world.history.append(operation)
        self.under_way[call] = number, operation
        if self.world.rng.random() < self.gives_up:
            self.soon(self.world.rng.choice(GIVES_UP_S), self._end, call)
        call.then(partial(self._answered, call))

    def _answered(self, call: ChainCall) -> None:
        try:
            self._end(call)
        except Violation as violation:
            self.world.broken = self.world.broken or violation

    def _end(self, call: ChainCall) -> None:
        """It is answered, or the client wants no answer any more."""
        if call not in self.under_way:
            return
        world = self.world
        number, operation = self.under_way.pop(call)
        try:
            answer = call.take()
        except SessionExpired:  # whether it was done, nobody knows
            world.expired += 1
            world.see("on_expired", self)
            self.lost(operation)
        except NoChain:
            if operation.key != NOT_COMPARED:
                world.history.remove(operation)
            world.see("on_refused", self, number)
            self.lost(operation)
        except TimedOut:
            self.lost(operation)
        except CommandFailed as error:
            self.failed(operation, error)
        else:
            self.told(number, operation, answer.result if isinstance(answer, ChainAnswer) else answer)

    def told(self, number: int, operation: Operation, result: bytes) -> None:
        """An operation has ended."""
        operation.ended = self.world.now
        operation.outcome = machine.result(result)
        self.world.see("on_confirmed", self, number)

    def failed(self, operation: Operation, error: CommandFailed) -> None:
        """The machine has raised something."""
        raise error

    def lost(self, operation: Operation) -> None:
        """Nobody knows what became of an operation, or nothing did."""

    def leave(self) -> None:
        """Close it as a program does; its host may die meanwhile."""
        try:
            super().leave()
        except Closed as error:
            self.world.trace(self, "closes, and says: %s", error)


class ServerResident(Resident):
    """A server over all its lives."""

    life = PlainServer


class ClientResident(Resident):
    """A client over all its lives."""

    life = ClientLife
