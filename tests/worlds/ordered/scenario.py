"""Worlds of ordered topics: all that goes wrong in worlds of chains, with members that are stores, and consumers.

Promises beside those of chains: what was confirmed to a writer is at the offsets that it was told, once; a partition is
the same at every member's store and at every consumer; consumers see nothing that is not committed; what a member's log
of the chain does not have any more, its store has on disk; in the end all have everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar

from tests.worlds.chain.checkers import Same
from tests.worlds.chain.faults import ChainFaults
from tests.worlds.chain.members import UNDER_WAY_MAX
from tests.worlds.chain.scenario import Chains
from tests.worlds.linearizable import Operation
from tests.worlds.ordered import model
from tests.worlds.ordered.members import (
    OPERATION_BYTES,
    TOWER,
    OrderedLife,
    OrderedResident,
    ReaderLife,
    ReaderResident,
    StallingStorage,
    WriterLife,
    WriterResident,
)
from tests.worlds.stage import kind_made_by

from chappe import Tower
from chappe.api.log import consumer, ordered_store, store
from chappe.limits import LOG_LIMITS, ChainLimits
from chappe.log.consumer import LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.delivery import Records
from chappe.log.ordered.commands import Describe, Layout, decode_answer, encode
from chappe.log.ordered.keeping import Keeping
from chappe.log.ordered.machine import OrderedLog, PartitionEnd, Placed
from chappe.log.store import LogStore
from chappe.replication.chain.messages import Entry
from chappe.replication.chain.replica import ChainReplica
from chappe.runtime import log_seats, store_ports
from chappe.sim.world import Checker, Settings

READERS = 2
STALLS = 0.5  # in so many worlds the disk of a store stalls, and not that of its chain ...
STALL_S = 8.0  # ... for so long: its member is taken out, and joins meanwhile


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

    def on_step(self, host: OrderedLife) -> None:
        """A member has done something: what its log has no more is on its store's disk."""
        self.follow(self.world.same)
        core = host.core
        if core.member and core.aligned:
            for name, end in self.truth.ends[min(core.log.base, len(self.truth.ends) - 1)].items():
                if host.ends.get(name, 0) < end:
                    self.fail(f"{host.name} has forgotten {core.log.base} entries, and its store ends before {end}")

        most = self.world.held_most + host.held_first
        if host.keeping.held_bytes > most:
            self.fail(f"{host.name} holds {host.keeping.held_bytes} bytes that are not on disk, of {most}")

    def on_stored(self, host: OrderedLife) -> None:
        """A store has done something: it has nothing that is not committed."""
        self.follow(self.world.same)
        for name, end in host.ends.items():
            if end > len(self.truth.parts.get(name, ())):
                self.fail(f"the store of {host.name} has {end} records of {name}, more than are committed")

    def on_deliver(self, reader: ReaderLife, action: Records) -> None:
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

    def on_appended(self, writer: WriterLife, number: int, operation: Operation) -> None:
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
        for host in self.world.alive(OrderedLife):
            for name, values in self.truth.parts.items():
                found = host.contents(name)
                if found != values[: len(found)]:
                    self.fail(f"the store of {host.name} has {found} in {name}, which is {values}")
                if len(found) < len(values):
                    return f"the store of {host.name} has {len(found)} of {len(values)} in {name}"
            if host.keeping.settled < host.keeping.mark():
                return f"{host.name} does not know that its records are on disk"
        for reader in self.world.alive(ReaderLife):
            for name, values in self.truth.parts.items():
                if reader.positions.get(name, 0) < len(values):
                    return f"{reader.name} has {reader.positions.get(name, 0)} of {len(values)} of {name}"
        return None


class OrderedFaults(ChainFaults):
    """Disturbs stores that are a chain, and stalls the files of one while those of its chain go on."""

    def plan(self, until: float) -> None:
        """Draw what happens up to ``until``."""
        super().plan(until)
        if self.rng.random() < STALLS:
            self.at(self.rng.random() * until / 2, self.stall_store)

    def stall_store(self) -> None:
        """Its member is taken out, and joins meanwhile."""
        self.world.stalled = self.rng.choice(self.world.servers)
        self.world.clock.after(STALL_S, self._go_on)

    def _go_on(self) -> None:
        self.world.stalled = ""

    def heal(self) -> None:
        """End everything that is wrong."""
        self._go_on()
        super().heal()


class Ordered(Chains):
    """A chain of stores with ordered topics, its writers, and consumers: one order at all of them, whatever dies."""

    server = OrderedResident
    client = WriterResident
    faults_of = OrderedFaults
    one_order: ClassVar[type[OneOrder]] = OneOrder
    step = staticmethod(model.step)
    begins = staticmethod(model.begin)
    settle_max_s = 200.0
    always_durable = True
    uncommitted_bytes: ClassVar[int] = 10_000  # more than all writers have under way at once

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        self.ordered_rng = rng = Random(f"ordered {seed}")
        self.waiting_bytes: int = rng.choice((100, 5_000, 1 << 26))
        self.log_limits = replace(
            LOG_LIMITS, batch_bytes=rng.choice((300, 64 * 1024)), read_bytes_max=rng.choice((200, 1 << 20)),
            heads_page=rng.choice((1, 10_000)), small_batch_bytes=rng.choice((0, 8 * 1024)),
        )  # fmt: skip
        super().__init__(seed, settings, tell)
        # Who is full may have one message more, in which is a step of a writer, and what was not committed then.
        message_bytes = max(self.limits.append_bytes, UNDER_WAY_MAX * OPERATION_BYTES)
        self.held_most = self.waiting_bytes + message_bytes + self.uncommitted_bytes
        self.stalled = ""  # the member whose store takes nothing
        self.ends = [0] * model.PARTITIONS  # of the partitions, as far as anything is committed

    def replaced(self) -> list[tuple[Any, str, Any]]:
        """What means something else while this world is played."""
        limits = self.log_limits
        return [
            *super().replaced(),
            (ordered_store, "WAITING_BYTES_MAX", self.waiting_bytes),
            (ordered_store, "OrderedLog", self.log_of),
            (store, "SegmentStorage", StallingStorage),
            (StallingStorage, "world", self),
            (store_ports, "LogStore", partial(LogStore, limits=limits)),
            (consumer, "LogConsumer", partial(LogConsumer, limits=limits)),
            (log_seats, "ConsumingMember", kind_made_by(ConsumingMember, lambda name: ConsumingMember(name, limits))),
        ]

    def log_of(self, keeping: Keeping) -> OrderedLog:
        """What a new life of a member replicates."""
        made = model.Remembering(keeping)
        made.did = []
        return made

    def begin(self) -> None:
        """Members, writers and consumers."""
        with self.stage.on("tower"):
            self.tower = Tower(TOWER)
        super().begin()
        for _ in range(self.few(READERS)):
            self.settle_in(ReaderResident, self.new_name("reader"))
        self.watch(self.one_order(self))


def _ends(machine: OrderedLog) -> list[int]:
    found = decode_answer(machine.read(encode(Describe(model.TOPIC))))
    assert isinstance(found, Layout)
    return [each.next for each in found.parts] or [0] * model.PARTITIONS
