"""Worlds of ordered topics: all that goes wrong in worlds of chains, with members that are stores, and consumers.

Promises beside those of chains: what was confirmed to a writer is at the offsets that it was told, once; a partition is
the same at every member's store and at every consumer; consumers see nothing that is not committed; what a member's log
of the chain does not have any more, its store has on disk; in the end all have everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.worlds.chain.hosts import ServerHost
from tests.worlds.chain.scenario import ChainCores, Chains, Same
from tests.worlds.disk import SimDisk
from tests.worlds.linearizable import Operation
from tests.worlds.ordered import model
from tests.worlds.ordered.hosts import Lines, OrderedServer, Reader, Writer

from chappe.limits import LOG_LIMITS, ChainLimits
from chappe.log.batch import Batch
from chappe.log.consumer import LogConsumer
from chappe.log.delivery import Records
from chappe.log.ordered.commands import Describe, Layout, decode_answer, encode
from chappe.log.ordered.keeping import Keeping
from chappe.log.ordered.machine import OrderedLog, PartitionEnd, Placed
from chappe.log.store import LogStore
from chappe.replication.chain.messages import Entry
from chappe.replication.chain.replica import ChainReplica
from chappe.sim.world import Checker, Settings

READERS = 2
STALLS = 0.5  # in so many worlds the disk of a store stalls, and not that of its chain ...
STALL_S = 8.0  # ... for so long: its member is taken out, and joins meanwhile
UNCOMMITTED_BYTES = 10_000  # more than all writers have under way at once


@dataclass(frozen=True)
class OrderedCores(ChainCores):
    """What is under test."""

    machine: type[model.Remembering] = model.Remembering
    keeping: type[Keeping] = Keeping
    store: type[LogStore] = LogStore
    consumer: type[LogConsumer] = LogConsumer


class Truth:
    """What the committed commands make: a keeper with everything, and where partitions ended behind each entry."""

    settled = 0
    full = False
    complete = True

    def __init__(self, limits: ChainLimits) -> None:
        self.machine = self.made()
        self._replica = ChainReplica(self.machine, limits)
        self.parts: dict[str, list[int]] = {}
        self.ends: list[dict[str, int]] = [{}]  # by entry

    def made(self) -> OrderedLog:
        """The machine."""
        return OrderedLog(self)

    def mark(self) -> int:
        """See ``Keeper``."""
        return 0

    def begin(self, ends: Sequence[PartitionEnd]) -> None:
        """See ``Keeper``."""

    def place(self, placed: Placed) -> None:
        """One more batch."""
        self.parts.setdefault(placed.partition, []).extend(model.numbers(placed.batch))

    def commit(self, entry: Entry) -> None:
        """One more entry."""
        self._replica.apply(len(self.ends), entry)
        self.ends.append({name: len(values) for name, values in self.parts.items()})


class OneOrder(Checker["Ordered"]):
    """See the module."""

    name = "one order"

    def __init__(self, world: Ordered) -> None:
        super().__init__(world)
        self.truth = self.begun()

    def begun(self) -> Truth:
        """What there is in the beginning."""
        return Truth(self.world.limits)

    def follow(self, same: Same) -> None:
        """Take in what was committed since."""
        for entry in same.committed[len(self.truth.ends) - 1 :]:
            self.truth.commit(entry)
        self.world.ends = _ends(self.truth.machine)

    def on_step(self, host: OrderedServer) -> None:
        """A member has done something: what its log has no more is on its store's disk."""
        self.follow(self.world.same)
        core = host.core
        if core.member and core.aligned:
            for name, end in self.truth.ends[min(core.log.base, len(self.truth.ends) - 1)].items():
                stored = host.records.partition(model.TOPIC.decode(), name)
                if stored is None or stored.next < end:
                    self.fail(f"{host.name} has forgotten {core.log.base} entries, and its store ends before {end}")

        most = self.world.held_most + host.held_first
        if host.keeping.held_bytes > most:
            self.fail(f"{host.name} holds {host.keeping.held_bytes} bytes that are not on disk, of {most}")

    def on_stored(self, host: OrderedServer) -> None:
        """A store has done something: it has nothing that is not committed."""
        self.follow(self.world.same)
        for (_, name), part in host.records.parts.items():
            if part.next > len(self.truth.parts.get(name, ())):
                self.fail(f"the store of {host.name} has {part.next} records of {name}, more than are committed")

    def on_deliver(self, reader: Reader, action: Records) -> None:
        """A consumer gets records: the next ones of a partition, and those that are committed."""
        self.follow(self.world.same)
        name, start = action.partition, action.start
        before = reader.positions.get(name, 0)
        if start != before:
            self.fail(f"{reader.name} gets {name} from {start} on, it was at {before}")
        found = model.numbers(action.batch)[start - action.batch.base :]
        if found != self.truth.parts.get(name, [])[start : start + len(found)]:
            self.fail(f"{reader.name} gets {found} at {start} of {name}, which has {self.truth.parts.get(name)}")
        reader.positions[name] = start + len(found)

    def on_appended(self, writer: Writer, number: int, operation: Operation) -> None:
        """A writer was told where its records are."""
        self.follow(self.world.same)
        match operation.outcome:
            case ("appended", first, end):
                parts = list(self.truth.parts.values())
                if not any(part[first:end] == [number] * (end - first) for part in parts):
                    self.fail(f"{writer.name} was told that {number} is at {first} to {end - 1}, and it is not")
                if sum(part.count(number) for part in parts) != end - first:
                    self.fail(f"{number} is there more than once")

    def unsettled(self) -> str | None:
        """All stores and consumers have everything."""
        self.follow(self.world.same)
        for host in self.world.alive(OrderedServer):
            for name, values in self.truth.parts.items():
                found = _contents(host.records, name)
                if found != values[: len(found)]:
                    self.fail(f"the store of {host.name} has {found} in {name}, which is {values}")
                if len(found) < len(values):
                    return f"the store of {host.name} has {len(found)} of {len(values)} in {name}"
            if host.keeping.settled < host.keeping.mark():
                return f"{host.name} does not know that its records are on disk"
        for reader in self.world.alive(Reader):
            for name, values in self.truth.parts.items():
                if reader.positions.get(name, 0) < len(values):
                    return f"{reader.name} has {reader.positions.get(name, 0)} of {len(values)} of {name}"
        return None


class Ordered(Chains):
    """A chain of stores with ordered topics, its writers, and consumers: one order at all of them, whatever dies."""

    server_host = OrderedServer
    client_host = Writer
    one_order: type[OneOrder] = OneOrder
    step = staticmethod(model.step)
    begins = staticmethod(model.begin)
    settle_max_s = 200.0
    cores: OrderedCores

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: OrderedCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell, cores or OrderedCores())
        self.durable = True
        rng = self.rng
        self.waiting_bytes = rng.choice((100, 5_000, 1 << 26))
        self.log_limits = replace(
            LOG_LIMITS, batch_bytes=rng.choice((300, 64 * 1024)), read_bytes_max=rng.choice((200, 1 << 20)),
            heads_page=rng.choice((1, 10_000)), small_batch_bytes=rng.choice((0, 8 * 1024)),
        )  # fmt: skip
        # Who is full may have one message more, and what was not committed then.
        self.held_most = self.waiting_bytes + self.limits.append_bytes + UNCOMMITTED_BYTES
        self.records = {name: SimDisk(f"{seed}-{name}") for name in self.servers}
        self.lines = Lines(self)
        self.store_s: dict[str, float] = {}  # how long a write takes at a store that stalls
        self.keepings: dict[str, Keeping] = {}
        self.ends = [0] * model.PARTITIONS  # of the partitions, as far as anything is committed

    def machine(self, host: ServerHost) -> Any:
        """What a new life of a server replicates."""
        keeping = self.keepings[host.name] = self.cores.keeping(self.waiting_bytes)
        made = self.cores.machine(keeping)
        made.did = []
        return made

    def lose_disk(self, name: str) -> None:
        """What a server had on disk is gone, also what its store had."""
        super().lose_disk(name)
        self.records[name] = SimDisk(f"{self.seed}-{name}-{self.next_disk()}")

    def hearers(self) -> list[str]:
        """Who hears what stores publish."""
        return [*self.servers, *(each.name for each in self.readers)]

    def begin(self) -> None:
        """Servers, writers and consumers."""
        self.readers = []
        self.readers = [self.join("reader", lambda name: Reader(self, name)) for _ in range(self.few(READERS))]
        super().begin()
        self.same = next(each for each in self.checkers if isinstance(each, Same))
        self.watch(self.one_order(self))

    def plan(self, until: float) -> float:
        """Plan the faults; consumers die, too."""
        if self.settings.disturb:
            for reader in self.readers:
                at = self.rng.random() * until
                self.clock.at(at, reader.crash)
                self.clock.at(at + 0.3, reader.restart)
        planned = super().plan(until)
        if self.settings.disturb and self.rng.random() < STALLS:
            name = self.rng.choice(self.servers)
            at = self.rng.random() * until / 2
            self.clock.at(at, self._stall, name, STALL_S)
            self.clock.at(at + STALL_S, self._stall, name, 0.0)
        return planned

    def _stall(self, name: str, write_s: float) -> None:
        self.store_s = {name: write_s} if write_s else {}

    def heal(self) -> None:
        """End everything that is wrong."""
        super().heal()
        self.store_s.clear()


def _ends(machine: OrderedLog) -> list[int]:
    found = decode_answer(machine.read(encode(Describe(model.TOPIC))))
    assert isinstance(found, Layout)
    return [each.next for each in found.parts] or [0] * model.PARTITIONS


def _contents(records: SimDisk, name: str) -> list[int]:
    """What a store has of a partition from its beginning up to the first hole."""
    found: list[int] = []
    part = records.parts.get((model.TOPIC.decode(), name))
    for block in [] if part is None else part.blocks:
        if block.base > len(found):
            break
        found += model.numbers(Batch.parse(block.body))[len(found) - block.base :]
    return found
