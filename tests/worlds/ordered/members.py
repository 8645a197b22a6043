"""Stores that are a chain, their writers, and consumers: objects of the API, on hosts that fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.worlds.chain.members import UNDER_WAY_MAX, ChainLife, ClientLife, ServerLife
from tests.worlds.linearizable import Operation
from tests.worlds.ordered import model
from tests.worlds.residents import Resident

from chappe.api.log.consumer import Consumer
from chappe.api.log.ordered_store import OrderedStore
from chappe.errors import StorageFull
from chappe.log.batch import Batch, encode_batch
from chappe.log.delivery import Records
from chappe.log.ordered.commands import ANY, Append, Create, Describe, Layout, decode_answer, encode
from chappe.log.storage import AppendRecords
from chappe.storage.segments import SegmentStorage
from chappe.system import time

TOWER: Final = "127.0.0.1:5556:5557"
READ_BYTES: Final = 1_000_000
CHANGES_MAX: Final = 100_000
SEED_BYTES: Final = 16
OPERATION_BYTES: Final = 700  # that an append takes in memory, with what it takes beside its records


class StallingStorage(SegmentStorage):
    """The files of a store, which take nothing while the world says so."""

    world: Any = None  # that is played

    def write(self, appends: Sequence[AppendRecords]) -> Any:
        """Put records on disk."""
        if self.world.stalled == Path(self._directory.path).parent.name:
            raise StorageFull("the disk of this store stands still")
        return super().write(appends)


class OrderedLife(ServerLife):
    """One life of a member: a server of the chain, and a store."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = OrderedStore(world.directory(self.name), chain=world.configuration, name=self.name, tower=TOWER)
        self.storage = self.face._storage
        self.keeping = self.face._keeping
        server = self.face._server
        log, committed = server._ports.core.log, server._ports.core.committed
        begun = [log.entry(index) for index in range(committed + 1, log.end + 1)]
        # All that its log has: that is longer only for a large state. What is not committed there may be yet.
        self.held_first = self.keeping.held_bytes + sum([(1 + len(each.also)) * OPERATION_BYTES for each in begun])
        self.machine = server._ports.core.replica.machine
        self._seen = 0  # the version of the storage that was looked at
        self.ends: dict[str, int] = {}  # what the store has of each partition
        self.look_at_files()
        self.serve(server)

    def look_at_files(self) -> None:
        """See how far partitions go in the store."""
        for info in self.storage.changed("", self._seen, CHANGES_MAX):
            self.ends[info.partition] = info.next
        self._seen = self.storage.version

    def step(self) -> None:
        """Show it to the checkers."""
        if self.storage.version != self._seen:
            self.look_at_files()
            self.see("on_stored")
        super().step()

    def look(self) -> None:
        """See what it reports."""
        super().look()
        for event in self.face.chain_events():
            self.world.trace(self, "%s", event)
        self.step()

    def contents(self, name: str) -> list[int]:
        """What the store has of a partition from its beginning up to the first hole."""
        found: list[int] = []
        while True:
            read = self.storage.read(model.TOPIC.decode(), name, len(found), READ_BYTES)
            if read.hole is not None or not read.batches:
                return found
            for raw in read.batches:
                batch = Batch.parse(bytes(raw))
                found += model.numbers(batch)[len(found) - batch.base :]


class WriterLife(ClientLife):
    """One life of a writer."""

    gives_up = 0.0  # what is given up is under way all the same, and counts for what a store may hold
    ready = False

    def operate(self) -> None:
        """Have the topic, and then append, with or without an expectation, or ask where a partition ends."""
        world = self.world
        rng = world.rng
        if not self.ready:
            if not self.under_way:
                command = encode(Create(model.TOPIC, model.PARTITIONS, rng.randbytes(SEED_BYTES)))
                self.do(0, Operation("topic", ("create",), world.now), command)
            return
        index = rng.randrange(model.PARTITIONS)
        if rng.random() < 0.2:
            self.ask(Operation(f"p{index}", ("get",), world.now), encode(Describe(model.TOPIC)))
            return
        number, count = world.next_operation(), rng.choice((1, 1, 2, 5))
        expected = ANY if rng.random() < 0.6 else max(0, world.ends[index] - rng.choice((0, 0, 1)))
        body = encode_batch(0, [b"%d" % number] * count, time.time_ns() // 1000)
        command = encode(Append(model.TOPIC, index, expected, body))
        self.do(number, Operation(f"p{index}", ("append", expected, count), world.now), command)

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


class ReaderLife(ChainLife):
    """One life of a consumer."""

    def __init__(self, world: Any, resident: Resident) -> None:
        super().__init__(world, resident)
        self.face = Consumer(model.TOPIC.decode(), tower=TOWER, reset="earliest")
        self.positions: dict[str, int] = {}
        self._due = False
        self.face.on_ready = self._ready
        self._ready()

    def _ready(self) -> None:
        if not self._due:
            self._due = True
            self.soon(0.0, self._take)

    def _take(self) -> None:
        self._due = False
        while (batch := self.face.take()) is not None:
            self.world.see("on_deliver", self, Records(batch.topic, batch.partition, batch.batch, batch.first))


class OrderedResident(Resident):
    """A member over all its lives."""

    life = OrderedLife


class WriterResident(Resident):
    """A writer over all its lives; what one has under way at its end is done all the same, beside that of the next."""

    life = WriterLife
    under_way_bytes = UNDER_WAY_MAX * OPERATION_BYTES

    def ended(self, life: Any, *, power_cut: bool, killed: bool) -> None:
        """Members may hold more from now on."""
        self.world.held_most += self.under_way_bytes


class ReaderResident(Resident):
    """A consumer over all its lives."""

    life = ReaderLife
