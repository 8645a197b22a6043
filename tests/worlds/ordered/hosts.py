"""Members of a chain that are stores, their writers, and consumers, in a world."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tests.worlds.chain.hosts import UNDER_WAY_MAX, ClientHost, ServerHost
from tests.worlds.clocked import HostClock
from tests.worlds.linearizable import Operation
from tests.worlds.ordered import model

from chappe import core
from chappe.core import Ask, Deliver, Persist, Publish, Report, Subscribe
from chappe.data.topic import Filter
from chappe.errors import StorageError
from chappe.log.batch import encode_batch
from chappe.log.consumer import EARLIEST, LogConsumer
from chappe.log.ordered.commands import ANY, Append, Create, Describe, Layout, decode_answer, encode
from chappe.log.ordered.keeping import Keeping, OrderedRole
from chappe.log.storage import RunRetention, WriteRecords
from chappe.log.store import LogStore
from chappe.sim.host import SimHost

GONE_S = 1.0  # others notice so late that a store is gone
GREET_S = 0.01  # who is new is heard of so soon
CUT_S = 0.05  # a connection that is cut is tried again so often


class Lines:
    """Connections: what is sent comes, in order, however long it takes, as long as both live."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._waiting: dict[tuple[str, str], deque[tuple[Any, Callable[[Any], None], type]]] = {}

    def send(self, source: str, target: str, deliver: Callable[[Any], None], what: type) -> None:
        """Have ``deliver`` called with the host that the target is now, unless that dies before."""
        host = self._world.hosts.get(target)
        if host is None or not host.alive:
            self._world.failed[what] += 1
            return
        waiting = self._waiting.setdefault((source, target), deque())
        waiting.append((host, deliver, what))
        if len(waiting) == 1:
            self._world.clock.after(self._world.wire.delay(), self._arrive, source, target)

    def _arrive(self, source: str, target: str) -> None:
        waiting = self._waiting[source, target]
        if not self._world.wire.reachable(source, target):
            self._world.clock.after(CUT_S, self._arrive, source, target)
            return
        host, deliver, what = waiting.popleft()
        if waiting:
            self._world.clock.after(self._world.wire.delay() / 10, self._arrive, source, target)
        if host.alive:
            deliver(host)
        else:
            self._world.failed[what] += 1


class Speaks:
    """What stores and consumers tell each other; mixed into hosts with a ``role``."""

    world: Any
    name: str
    alive: bool
    address: str
    role: Any

    def carry(self, actions: Sequence[Any]) -> None:
        """Carry out what the role wants, in order."""
        for action in actions:
            if not self.alive:
                return
            self.log_table()[type(action)](action)

    def log_table(self) -> dict[type, Callable[[Any], None]]:
        """By class of action."""
        return {
            Publish: self.publish,
            Ask: self.ask,
            Subscribe: lambda action: None,  # all of them hear all
            Report: lambda action: self.world.trace(self, "%s", action.event),
        }

    def meet(self) -> None:
        """Those stores that live say who they are, to all: somebody new listens."""
        if self.alive:
            for target in self.world.servers:
                host = self.world.hosts.get(target)
                if host is not None and host.alive:
                    host.take(lambda host=host: host.do(host.role.handle_subscription, b"I", True))

    def publish(self, action: Publish) -> None:
        """To all who hear stores."""
        message = action.message
        for target in self.world.hearers():
            if target != self.name:
                self.world.lines.send(self.name, target, lambda host: host.heard(message), Publish)

    def ask(self, action: Ask) -> None:
        """A question to a store, by the name that it has in this life."""
        asker, target = self.address, action.to.partition("/")[0]

        def deliver(host: Any) -> None:
            if host.address == action.to:
                host.queried(asker, action.ticket, action.request)

        self.world.lines.send(self.name, target, deliver, Ask)

    def answered_by_store(self, asker: str, request_id: int, answer: Any, batches: list[bytes]) -> None:
        """A store has answered."""
        if self.alive and asker == self.address:
            self.do(self.role.handle_answer, request_id, answer, batches)

    def do(self, method: Callable[..., Sequence[Any]], *args: object) -> None:
        """One call into the role."""
        raise NotImplementedError


class OrderedServer(Speaks, ServerHost):
    """One life of a member: a server of the chain, and a store."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.keeping: Keeping = world.keepings[name]
        self.keeping.live()
        self.held_first = self.keeping.held_bytes  # all that its log has: that is longer only for a large state
        self.records = world.records[name]
        self.records.restarted(False)
        self.address = f"{name}/{self.life}"
        self.store: LogStore = world.cores.store(
            self.address,
            self.records,
            self.address,
            now=self.now,
            clock=HostClock(world, self),
            limits=world.log_limits,
        )
        self.role: OrderedRole = OrderedRole(self.store, self.keeping)
        self._jobs: deque[WriteRecords] = deque()
        self._job: WriteRecords | None = None

    def start(self) -> None:
        """Begin to live."""
        super().start()
        self.do(self.role.start)
        self.world.clock.after(GREET_S, self.meet)

    def due(self) -> float:
        """When one of the cores wants to be called, on the world's clock."""
        at = max(min(self.core.next_timeout(), self.role.next_timeout()), self.now)
        return float((at - self._offset) / self.rate) if at < inf else inf

    def handle_due(self) -> None:
        """Have them do what is due."""
        super().handle_due()
        if self.alive and self.now >= self.role.next_timeout():
            self.do(self.role.handle_timeout)

    def call(self, method: Callable[..., Sequence[Any]], *args: object, **options: object) -> None:
        """As any server's; what was applied goes to the store."""
        super().call(method, *args, **options)
        if self.alive:
            self.keeping.hand_over(shown=self.core.tail)
            self.arm()

    def do(self, method: Callable[..., Sequence[Any]], *args: object) -> None:
        """One call into the store."""
        self.carry(method(*args, self.now))
        if self.alive:
            self.world.see("on_stored", self)
            self.arm()

    def heard(self, message: Any) -> None:
        """Another store has published something."""
        self.take(lambda: self.carry_on(self.role.handle_message(message, self.now)))

    def carry_on(self, actions: Sequence[Any]) -> None:
        """Carry out, and look what is due."""
        self.carry(actions)
        if self.alive:
            self.arm()

    def queried(self, asker: str, request_id: int, request: Any) -> None:
        """Somebody asks for what is stored."""
        raw = request_id.to_bytes(8, "big")
        self.take(lambda: self.do(self.role.handle_request, asker.encode(), raw, request, b""))

    def answered_by_store(self, asker: str, request_id: int, answer: Any, batches: list[bytes]) -> None:
        """Another store has answered, perhaps while it stood still."""
        self.take(lambda: super(OrderedServer, self).answered_by_store(asker, request_id, answer, batches))

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Stop at once; of the store's write under way anything may be there afterwards."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        if self._job is not None and not self.records.full:
            self.records.tear(self._job.appends, self.world.rng.randint(0, len(self._job.appends)))
        if self.world.rng.random() < 0.5:
            self.records.power_cut(self.world.rng.randint(0, 2))
        self.world.clock.after(GONE_S, self._tell_gone)

    def _tell_gone(self) -> None:
        for target in self.world.hearers():
            host = self.world.hosts[target]
            if host.alive and host is not self:
                host.take(lambda host=host: host.do(host.role.handle_gone, self.address))

    # -- the store's disk -------------------------------------------------------------------------------------

    def log_table(self) -> dict[type, Callable[[Any], None]]:
        """By class of action."""
        return super().log_table() | {
            Persist: self._queue,
            core.Reply: self._answer,
        }

    def _retained(self) -> None:
        if self.alive:
            self.take(lambda: self.do(self.role.handle_done, RunRetention(), None))

    def _answer(self, action: core.Reply) -> None:
        asker, reply = action.to.decode(), action.message
        request_id, batches = int.from_bytes(reply.request_id, "big"), list(reply.batches)
        self.world.lines.send(
            self.name, asker.partition("/")[0],
            lambda host: host.answered_by_store(asker, request_id, reply.answer, batches), core.Reply,
        )  # fmt: skip

    def _queue(self, action: Persist) -> None:
        if isinstance(action.job, RunRetention):
            self.world.clock.after(0.01, self._retained)
            return
        self._jobs.append(action.job)
        if self._job is None:
            self._next()

    def _next(self) -> None:
        self._job = self._jobs.popleft() if self._jobs else None
        if self._job is not None:
            delay = self.world.store_s.get(self.name, self.disk.write_s) * (0.5 + self.world.rng.random())
            self.world.clock.after(delay, self._stored, self._job)

    def _stored(self, job: WriteRecords) -> None:
        if not self.alive:
            return
        self.records.refusing = self.disk.refuses
        try:
            written = self.records.write(job.appends)
        except StorageError as error:
            self.world.failed[WriteRecords] += 1
            self._ended(job, error)
            return
        self._job = None  # whoever dies now has it on disk
        self.take(lambda: self._tell_stored(job, written))

    def _tell_stored(self, job: WriteRecords, written: object) -> None:
        self.records.publish(written)
        self._ended(job, None)

    def _ended(self, job: WriteRecords, outcome: StorageError | None) -> None:
        self.do(self.role.handle_done, job, outcome)
        self._next()


class Writer(ClientHost):
    """One life of a writer."""

    ready = False

    def operate(self) -> None:
        """Have the topic, and then append, with or without an expectation, or ask where a partition ends."""
        world = self.world
        rng = world.rng
        if not self.ready:
            if not self.under_way:
                command = encode(Create(model.TOPIC, model.PARTITIONS, bytes(rng.randrange(256) for _ in range(16))))
                self._go(0, Operation("topic", ("create",), world.now), command)
            return
        index = rng.randrange(model.PARTITIONS)
        if rng.random() < 0.2:
            operation = Operation(f"p{index}", ("get",), world.now)
            token, actions = self.core.read(encode(Describe(model.TOPIC)), self.now)
            self._begun(token, 0, operation, actions)
            return
        number, count = world.next_operation(), rng.choice((1, 1, 2, 5))
        expected = ANY if rng.random() < 0.6 else max(0, world.ends[index] - rng.choice((0, 0, 1)))
        body = encode_batch(0, [b"%d" % number] * count, world.clock.wall_us)
        command = encode(Append(model.TOPIC, index, expected, body))
        self._go(number, Operation(f"p{index}", ("append", expected, count), world.now), command)

    def _go(self, number: int, operation: Operation, command: bytes) -> None:
        self._begun(self.core.do(command, self.now), number, operation, ())

    def _begun(self, token: int, number: int, operation: Operation, actions: Sequence[Any]) -> None:
        if operation.key != "topic":
            self.world.history.append(operation)
        self.under_way[token] = (number, operation)
        assert len(self.under_way) <= UNDER_WAY_MAX
        self.perform(actions)

    def told(self, number: int, operation: Operation, result: bytes) -> None:
        """An operation has ended."""
        answer = decode_answer(result)
        if isinstance(answer, Layout):
            self.ready = True
            if operation.key == "topic":
                return
            found: Any = answer.parts[int(operation.key[1:])].next if answer.parts else 0
        else:
            found = model.outcome(answer)
        operation.ended, operation.outcome = self.world.now, found
        self.world.see("on_confirmed", self, number)
        self.world.see("on_appended", self, number, operation)


class Reader(Speaks, SimHost):
    """One life of a consumer."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.life = world.next_life()
        self.address = f"{name}/{self.life}"
        self.role: LogConsumer = world.cores.consumer(
            self.address, [Filter(model.TOPIC.decode())], EARLIEST, None, world.log_limits, clock=world.clock
        )
        self.positions: dict[str, int] = {}

    def start(self) -> None:
        """Begin."""
        self.do(self.role.start)
        self.world.clock.after(GREET_S, self.meet)

    def due(self) -> float:
        """When the core wants to be called."""
        return self.role.next_timeout()

    def handle_due(self) -> None:
        """Have it do what is due."""
        if self.world.now >= self.role.next_timeout():
            self.do(self.role.handle_timeout)

    def do(self, method: Callable[..., Sequence[Any]], *args: object) -> None:
        """One call into the core."""
        self.carry(method(*args, self.world.now))
        if self.alive:
            self.arm()

    def take(self, deliver: Callable[[], None]) -> None:
        """Something has come."""
        if self.alive:
            deliver()

    def heard(self, message: Any) -> None:
        """A store has published something."""
        if self.alive:
            self.carry(self.role.handle_message(message, self.world.now))
            self.arm()

    def log_table(self) -> dict[type, Callable[[Any], None]]:
        """By class of action."""
        return super().log_table() | {Deliver: self._deliver}

    def _deliver(self, action: Deliver) -> None:
        records = action.messages
        self.world.see("on_deliver", self, records)
        self.do(self.role.taken, len(records.batch.raw))
