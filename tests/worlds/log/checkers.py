"""The promises, one small class each; a broken one raises ``Violation`` at the moment it is seen.

Legitimate loss: a consumer may pass over offsets that no disk holds of a store that it ever met, one which is down
included. That is the case for what a producer had not been acknowledged when it died, for what the faults themselves
took (``Sent.lost``), and where a store began late because the only one that had what came before stood still: who
knows the late one alone cannot know that there is more. In worlds where stores wait for less than others are away, all
begin late; who reads from such a store goes on where that begins. That everybody meets everybody in the end is a
promise too.
"""

from __future__ import annotations

from typing import Any

from tests.worlds.disk import SimDisk
from tests.worlds.log.subjects import ConsumerSubject, ProducerSubject, StoreSubject
from tests.worlds.log.world import Content, WatchedLog

from chappe.log.batch import Batch
from chappe.log.consumer import LAST, LogConsumer
from chappe.log.delivery import Records
from chappe.log.events import OutOfRange, RecordsLost
from chappe.log.sources import Key
from chappe.log.storage import AppendRecords
from chappe.log.store import LogStore
from chappe.sim.host import SimHost
from chappe.sim.world import Checker

ALONE_S = 2.0  # what a store writes may have been decided so long ago
ONE_MORE_BYTES = 20_000  # a bound may be passed by the one batch that meets it, and by one answer


def same(found: Content, sent: Content, originals: bool) -> bool:
    """Whether a record is what was sent; originals carry no keys and no tombstones."""
    return found == sent or (originals and found[1] is None and (found[0] or b"") == (sent[0] or b""))


class Order(Checker[WatchedLog]):
    """Every consumer gets each partition in order, without gaps or repeats, as it was sent."""

    name = "order"

    def on_deliver(self, host: ConsumerSubject, action: Records) -> None:
        """Compare with what is expected next."""
        if host.reset is LAST:
            return  # ``lasts`` looks at these
        key = (action.topic, action.partition)
        if not host.wants_topic(action.topic):
            self.fail(f"{host.name} was given {action.topic!r}, which it does not want")
        batch, start = action.batch, action.start
        if not batch.base <= start < batch.next:
            self.fail(f"{host.name} was given a batch of {batch.base}..{batch.next - 1} from {start} on")
        expected = host.positions.get(key, 0)
        if start < expected:
            self.fail(f"{host.name} got {key} offset {start} again, {expected} was next")
        self.on_left_out(host, key, start)
        host.positions[key] = batch.next
        sent = self.world.truth.of(key).records
        found = self.world.contents(batch, start)
        if sent[start : batch.next] != found:
            originals = bool(self.world.originals)
            for offset, each in enumerate(found, start):
                if offset >= len(sent):
                    self.fail(f"{host.name} got {key} offset {offset}, which was never sent")
                if not same(each, sent[offset], originals):
                    self.fail(f"{host.name} got {key} offset {offset} as {each}, sent was {sent[offset]}")

    def on_left_out(self, host: ConsumerSubject, key: Key, start: int) -> None:
        """A consumer comes to an offset: what it has not got before was too old for it, or nobody has it."""
        while (expected := host.positions.get(key, 0)) < start or (key, expected) in host.left_out:
            if (key, expected) not in host.left_out:
                self._gap(host, key, expected, start)
            host.positions[key] = expected + 1

    def on_report(self, host: SimHost, event: object) -> None:
        """A consumer gives something up: only what nobody has."""
        if isinstance(host, ConsumerSubject) and host.reset is LAST:
            return
        if isinstance(event, RecordsLost) and isinstance(host, ConsumerSubject):
            key = (event.topic, event.partition)
            self._gap(host, key, event.first, event.last + 1)
            host.positions[key] = max(host.positions.get(key, 0), event.last + 1)
        elif isinstance(event, OutOfRange) and isinstance(host, ConsumerSubject):
            key = (event.topic, event.partition)
            self._gap(host, key, event.offset, event.first)
            host.positions[key] = max(host.positions.get(key, 0), event.first)

    def _gap(self, host: ConsumerSubject, key: Key, first: int, end: int) -> None:
        kept = self.world.retained_from(key)
        if self.world.limits.give_up_s < ALONE_S:
            began = (part.first for store in self.world.alive(StoreSubject) if (part := store.disk.parts.get(key)))
            kept = max([kept, *began])
        if not host.core.met_stores:
            return  # no store was ever heard of: it takes what its producer still has
        known = host.met | host.core.store_addresses
        met = [disk for address, disk in self.world.disk_of.items() if address in known]
        offset = self.world.held_within(key, max(first, kept), end, met)
        if offset is not None:
            self.fail(f"{host.name} passes over {key} offsets {first}..{end - 1}; a disk holds {offset}")


class StoredOnly(Checker[WatchedLog]):
    """A consumer that wants only what is stored gets what ``min_acks`` disks had safe, and none of it is lost after."""

    name = "stored"

    def __init__(self, world: WatchedLog) -> None:
        super().__init__(world)
        self._given: dict[Key, set[int]] = {}

    def on_deliver(self, host: ConsumerSubject, action: Records) -> None:
        """Look at the disks themselves, once at each: of the stores that it knows, if it is to count them."""
        if not host.min_acks:
            return
        key = (action.topic, action.partition)
        disks = self.world.disks
        if host.min_acks > 1:
            known = {self.world.disk_of[address].store_id for address in host.core.store_addresses}
            disks = [disk for disk in disks if disk.store_id in known]
        for offset in range(action.start, action.batch.next):
            count = sum(_had(disk, key, offset) for disk in disks)
            if count < host.min_acks:
                self.fail(f"{host.name} was given {key} offset {offset}, which {count} disks had safe")
        self._given.setdefault(key, set()).update(range(action.start, action.batch.next))

    def unsettled(self) -> str | None:
        """Every record that was given is on a disk, but for what the faults took from the disks themselves."""
        for key, given in self._given.items():
            lost = self.world.truth.of(key).lost
            for offset in self.world.missing_within(key, self.world.retained_from(key), max(given) + 1):
                if offset in given and offset not in lost:
                    self.fail(f"{key} offset {offset} was given as stored, and is on no disk")
        return None


def _had(disk: SimDisk, key: Key, offset: int) -> bool:
    """Whether a disk had a record safe, or begins behind it: who waited for such a disk would wait for ever."""
    ever, part = disk.ever.get(key, b""), disk.parts.get(key)
    return bool(offset < len(ever) and ever[offset]) or (part is not None and offset < part.first)


class Acknowledged(Checker[WatchedLog]):
    """No acknowledged record is lost while one store that acknowledged it survives."""

    name = "durability"

    def on_stored(self, host: ProducerSubject, before: int, after: int) -> None:
        """Look at the disks themselves."""
        world, key = self.world, host.key
        sent = world.truth.of(key)
        if host.min_acks == 0:
            return
        sent.acknowledged = max(sent.acknowledged, after)
        originals = [parts.get(key, ()) for parts in world.originals.values()]
        flags = [disk.ever[key] for disk in world.disks if key in disk.ever]
        for offset in range(max(before, world.retained_from(key)), after):
            count = sum(offset < len(ever) and ever[offset] for ever in flags)
            count += any(offset < len(kept) for kept in originals)
            if count < host.min_acks and offset not in sent.lost:
                self.fail(f"{host.name} counts {key} offset {offset} as stored; {count} disks had it safe")

    def unsettled(self) -> str | None:
        """Every acknowledged record is on a disk."""
        world = self.world
        for key, sent in world.truth.parts.items():
            for offset in world.missing_within(key, world.retained_from(key), sent.acknowledged):
                if offset not in sent.lost:
                    self.fail(f"{key} offset {offset} was acknowledged and is on no disk")
        return None


class Contents(Checker[WatchedLog]):
    """Stores invent nothing and change nothing."""

    name = "contents"

    def __init__(self, world: WatchedLog) -> None:
        super().__init__(world)
        self._company: dict[str, float] = {}  # when a store was first seen to know another

    def on_tick(self) -> None:
        """See which stores know others."""
        for store in self.world.alive(StoreSubject):
            if store.core.met_stores:
                self._company.setdefault(store.address, self.world.now)

    def on_written(self, host: StoreSubject, appends: tuple[AppendRecords, ...]) -> None:
        """Compare every block; and note a store that begins late because it knew no other."""
        originals = bool(self.world.originals)
        for each in appends:
            key = (each.topic, each.partition)
            sent = self.world.truth.of(key).records[each.base : each.base + each.count]
            found = self.world.contents(Batch.parse(each.body), each.base)
            if len(sent) < len(found) or not all(same(a, b, originals) for a, b in zip(found, sent, strict=True)):
                self.fail(f"{host.name} writes {key} {each.base}..{each.base + each.count - 1} otherwise than sent")
            part = host.disk.parts[key]
            alone = self.world.now - self._company.get(host.address, self.world.now) < ALONE_S
            if not part.version and part.first and alone:
                self.world.begun[key] = max(self.world.begun.get(key, 0), part.first)


class Convergence(Checker[WatchedLog]):
    """After all faults everybody has everything that can be had."""

    name = "convergence"

    def unsettled(self) -> str | None:
        """The first thing that is missing."""
        return self._stores() or self._producers() or self._consumers()

    def _stores(self) -> str | None:
        stores = self.world.alive(StoreSubject)
        for store in stores:
            if store.disk.retain(store.retention, self.world.clock.wall_us):
                return f"{store.name} keeps more than its retention"
        for key, end in self._original_ends().items():
            for store in stores:
                if (0 if (part := store.disk.parts.get(key)) is None else part.next) < end:
                    return f"{store.name} has not got {key} up to {end}, as an original store has it"
        for key, sent in self.world.truth.parts.items():
            kept = max(self.world.retained_from(key), self.world.begun.get(key, 0))
            if self.world.limits.give_up_s < ALONE_S:  # who does not wait begins later than others could tell
                kept = max([kept, *(store.disk.parts[key].first for store in stores if key in store.disk.parts)])
            union: list[tuple[int, int]] = []
            for store in stores:
                part = store.disk.parts.get(key)
                found = [] if part is None else [(max(a, kept), b) for a, b in part.sound() if b > kept]
                if store is stores[0]:
                    union = found
                elif found != union:
                    return f"of {key} {stores[0].name} has {union}, {store.name} has {found}, from {kept} on"
            if not sent.gone and stores and not sent.original and sent.records:
                missing = self.world.missing_within(key, kept, len(sent.records))
                if any(offset not in sent.lost for offset in missing):
                    return f"of {key} the stores have {union}, sent were {len(sent.records)}"
        return None

    def _producers(self) -> str | None:
        for host in self.world.alive(ProducerSubject):
            enough = len(self.world.alive(StoreSubject)) + self._an_original_goes_on(host) >= host.min_acks
            if enough and host.core.stored < host.core.next_offset:
                return f"{host.name} is at {host.core.next_offset}, stored are {host.core.stored}"
            if enough and host.core.kept_bytes and host.min_acks:
                return f"{host.name} keeps {host.core.kept_bytes} bytes of stored records"
        return None

    def _an_original_goes_on(self, host: ProducerSubject) -> bool:
        """Whether an original store has what is stored, or can get it: it does not pass over what nobody has."""
        ends = [len(parts.get(host.key, ())) for parts in self.world.originals.values()]
        return any(not any(True for _ in self.world.missing_within(host.key, end, host.core.stored)) for end in ends)

    def _ends(self, host: ConsumerSubject) -> dict[Key, int]:
        """The offset after the last one that enough running stores have which a consumer reads from, by partition."""
        found = {} if host.min_acks else self._original_ends()
        ends: dict[Key, list[int]] = {}
        for store in self.world.alive(StoreSubject):
            for key, part in store.disk.parts.items():
                ends.setdefault(key, []).append(part.next)
        for key, reached in ends.items():
            enough = sorted(reached, reverse=True)[max(host.min_acks, 1) - 1 :]
            if enough:
                found[key] = max(found.get(key, 0), enough[0])
        return found

    def _original_ends(self) -> dict[Key, int]:
        """The end of each partition at original stores."""
        found: dict[Key, int] = {}
        for parts in self.world.originals.values():
            for key, kept in parts.items():
                found[key] = max(found.get(key, 0), len(kept))
        return found

    def _consumers(self) -> str | None:
        for host in self.world.alive(ConsumerSubject):
            known = host.core.store_addresses
            unmet = [store.name for store in self.world.alive(StoreSubject) if store.address not in known]
            if unmet:
                return f"{host.name} does not know {unmet}"
            for key, end in self._ends(host).items():
                reached = max(host.positions.get(key, 0), self.world.trimmed.get(key, 0))
                left = self.world.retained_from(key) < end
                if host.wants_topic(key[0]) and reached < end and left:
                    return f"{host.name} has {key} up to {host.positions.get(key, 0)}, the stores up to {end}"
            if len(self.world.alive(StoreSubject)) >= max(host.min_acks, 1) and not host.core.caught_up:
                at = host.core.positions()
                behind = {key: head for key, head in host.core.heads().items() if at.get(key, -1) < head}
                if not any(self.world.incomplete(key) for key in behind):
                    return f"{host.name} believes that it is not at the end of {behind}, but at {at}"
        return None


class Bounds(Checker[WatchedLog]):
    """What members keep in memory has a bound, and goes when it is no longer needed."""

    name = "bounds"

    def on_tick(self) -> None:
        """Look into the cores."""
        limits = self.world.limits
        for store in self.world.alive(StoreSubject):
            self._sound(store, store.core.invariants())
            load = store.core.load()
            self._at_most(store, "held", load.held_bytes, limits.held_bytes_max, 0)
            answers = self.world.large_answers * limits.read_bytes
            staged = limits.staged_bytes_max + limits.held_bytes_max + answers
            self._at_most(store, "staged", load.waiting_bytes, staged, max(ONE_MORE_BYTES, limits.batch_bytes))
            self._at_most(store, "asked", load.questions, 2 * len(load.partitions) + 50, 0)
        for host in self.world.alive(ConsumerSubject):
            self._sound(host, host.core.invariants())
            load = host.core.load()
            self._at_most(host, "held", load.held_bytes, limits.held_bytes_max, 0)
            self._at_most(host, "READs", load.reads, limits.reads_max, 1)
            pages = 2 * len(host.core.store_addresses) * len(host.filters)
            names = 1  # asked for a topic that may have been unsubscribed since
            self._at_most(host, "asked", load.questions - load.reads, pages, names)
            queue = limits.consumer_queue_bytes + limits.held_bytes_max
            reads = limits.reads_max * (limits.read_bytes + ONE_MORE_BYTES)
            self._at_most(host, "queued", load.waiting_bytes, queue, reads)
            if host.home is host:
                self._sound(host, host.member.invariants())
                if host.neglects():
                    self.fail(f"{host.name} leaves messages in the queue, though it has room")
        for producer in self.world.alive(ProducerSubject):
            self._sound(producer, [*producer.part.invariants(), *producer.member.invariants()])

    def _sound(self, host: SimHost, wrong: list[str]) -> None:
        if wrong:
            self.fail(f"{host.name}: {'; '.join(wrong)}")

    def _at_most(self, host: SimHost, what: str, found: int, bound: int, more: int) -> None:
        if found < 0 or found > bound + more:
            self.fail(f"{host.name}: {what} is {found}, the bound is {bound}")

    def unsettled(self) -> str | None:
        """Nothing is left over."""
        stores, consumers = self.world.alive(StoreSubject), self.world.alive(ConsumerSubject)
        cores: list[tuple[str, LogStore | LogConsumer, bool]] = [
            *((host.name, host.core, False) for host in stores),
            *((host.name, host.core, 1 < host.min_acks > len(stores)) for host in consumers),
        ]
        for name, core, waits in cores:
            load = core.load()
            missing = [] if waits else [key for key in load.partitions if not self.world.incomplete(key)]
            wanted = [core.story(*key, self.world.now) for key in missing]
            if wanted or load.held_bytes or load.waiting_bytes:
                return f"{name} holds {load.held_bytes} bytes, {load.waiting_bytes} wait, and it wants {wanted}"
        return None


def all_checkers(world: WatchedLog) -> list[Checker[Any]]:
    """Every checker; identity is checked where offsets are given (``Truth.sent``), spinning where timers run."""
    kinds = (Order, Contents, Convergence, Bounds, Acknowledged, StoredOnly)
    return [kind(world) for kind in kinds]
