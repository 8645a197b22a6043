"""Who lives on the hosts of a world of the log: stores, producers, consumers. Those of one place share a node."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.worlds.log.disks import StoreDisk
from tests.worlds.log.subjects import ConsumerSubject, ProducerSubject, StoreSubject
from tests.worlds.residents import RETRY_S, Life, Place, Resident

from chappe import Consumer, Forwarder, Producer, Store
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.api.log.tower import Tower
from chappe.data.topic import Filter
from chappe.errors import BufferFull, Closed, IdentityRolledBack, StorageError, TimedOut
from chappe.log.batch import Batch
from chappe.log.consumer import EARLIEST, LAST
from chappe.log.delivery import Records
from chappe.log.events import IdentityBehind, OutOfRange, RecordsLost, Stopped
from chappe.log.journal import FRAME, batches_in, seed_of
from chappe.log.messages import BatchMessage, Head, RecordMessage
from chappe.log.producer import JournalBatch
from chappe.log.sources import Key
from chappe.log.storage import Retention
from chappe.sim.world import Excused, Violation
from chappe.storage.journal import ENDING
from chappe.system import time

RECORDS_MAX: Final = 150  # of one partition: small worlds are quick worlds
KEPT_MAX: Final = 20_000  # bytes that no store has yet: who sends waits
KEYED: Final = 0.1


class LogLife(Life):
    """One life of a member of the log; ``ports`` are its node's."""

    ports: Any

    def look(self) -> None:
        """See what it reports."""
        for event in self._reports():
            self.world.trace(self, "reports: %s", event)
            if isinstance(event, Stopped):
                self.world.fail("crash", f"{self.name}: {event}")
            self.world.see("on_report", self, event)

    def _reports(self) -> list[object]:
        """Return what it has to say."""
        found: list[object] = self.face.events()
        return found

    def leave(self) -> None:
        """Close it as a user does."""
        try:
            super().leave()
        except (
            TimedOut,
            StorageError,
            Closed,
            IdentityRolledBack,
            *self.world.cannot,
        ) as error:  # a producer says what is left; its host may die meanwhile
            self.world.trace(self, "closes, and says: %s", error)


class StoreLife(LogLife, StoreSubject):
    """A store."""

    def __init__(self, world: Any, resident: StoreResident) -> None:
        super().__init__(world, resident)
        self.disk: StoreDisk = resident.disk
        self.retention = [(topic, Retention(records=count)) for topic, count in world.retained.items()]
        self.face = self._open(world)
        self.core = self.face._node.store
        self.ports = self.face._node
        self.disk.store_id = self.face.store_id
        self.address = self.core.address
        world.disk_of[self.address] = self.disk

    def _open(self, world: Any) -> Store:
        return Store(
            self.disk.directory, tower=world.tower_address, retention=self.retention, security=world.security(self.name)
        )


class ForwarderLife(StoreLife):
    """A forwarder, which knows the others."""

    def _open(self, world: Any) -> Store:
        mine = world.forwarders[self.name]
        others = [each for each in world.forwarders.values() if each != mine]
        return Forwarder(self.disk.directory, listen=mine, peers=others, retention=self.retention,
                         originals=world.tower_of_originals(self.name), security=world.security(self.name))  # fmt: skip


class ProducerLife(LogLife, ProducerSubject):
    """A producer whose program sends now and then."""

    def __init__(self, world: Any, resident: ProducerResident) -> None:
        super().__init__(world, resident)
        self.min_acks = resident.min_acks
        self.rolled_back = resident.rolled_back
        self.listened: list[StoreSubject] | None = None  # who had, when the first store said how far it is
        self.face = Producer(
            resident.topic,
            **world.where,
            security=world.security(resident.place.name),
            min_acks=resident.min_acks,
            on_full="error",
            identity=resident.identity,
        )
        self.key: Key = (resident.topic, self.face.partition)
        self.core = self.face._writers[resident.topic].core
        self.journal = self.face._writers[resident.topic]._journal
        self.part = self.face._core
        self.member = self.face._node._member
        self.ports = self.face._node.node
        self.address = self.face.partition
        self.every_s = world.rng.choice((0.02, 0.1, 0.5, 2.0))
        self._told = self.core.stored
        self._resume(resident)
        self.soon(world.rng.random(), self._work)

    def _resume(self, resident: ProducerResident) -> None:
        """Check where an identity goes on: what somebody has seen is never used again."""
        world, sent = self.world, self.world.truth.of(self.key)
        at, known = self.face.next_offset, len(sent.records)
        self.resumed_at, self.began = self.core.published, world.now
        resident.rolled_back = resident.rolled_back or (resident.restored and at < known)
        resident.restored = False
        self.rolled_back = resident.rolled_back
        if self.rolled_back:  # stores know better, or nobody does
            self._take_over()
        elif at > known:
            world.fail("identity", f"{self.name} goes on at {at}, it had given away {known} offsets")
        elif at < known:
            if not resident.lost_power:
                world.fail("identity", f"{self.name} goes on at {at}, it had given away {known} offsets")
            held = max((end for _, end in world.holdings(self.key)), default=0)
            had = max((each.positions.get(self.key, 0) for each in world.alive(ConsumerSubject)), default=0)
            if at < max(held, had, sent.acknowledged):
                world.fail("identity", f"{self.name} goes on at {at}, others have its records before {max(held, had)}")
            del sent.records[at:]
        resident.lost_power = False

    def _take_over(self) -> None:
        """Note what its journal has: from now on it is told to whoever asks, though nobody may have heard of it."""
        with self.world.seeing():
            for raw in self.journal.batches:
                batch = Batch.parse(raw, check=False)
                again, sent = self.world.contents(batch, batch.base), self.world.truth.of(self.key).records
                if batch.base > len(sent) or sent[batch.base : batch.next] != again[: len(sent) - batch.base]:
                    raise Excused(f"{self.name} takes for published what its last life wrote, and nobody heard of")
                self.world.truth.sent(self.key, batch.base, again)

    def look(self) -> None:
        """See what it reports; a power cut may take what its journal had not synced."""
        if self.journal is not None:
            sent = self.world.truth.of(self.key)
            for first, next_ in self.journal.lost:
                safe = self.resident.synced
                rotten = self.resident.rotten.issuperset(range(first, next_))
                if not rotten and (not self.resident.power_cuts or first < safe):
                    self.world.fail(
                        "identity", f"{self.name} takes {first} to {next_ - 1} for damaged, {safe} are safe"
                    )
                sent.lost.update(range(first, next_))
        super().look()

    def _reports(self) -> list[object]:
        found = super()._reports()
        if any(isinstance(each, IdentityBehind) for each in found):
            if not self.rolled_back:
                self.world.fail("identity", f"{self.name} gives up its identity, which is as it was left: {found}")
            self.resident.renew()
        return found

    def published(self, message: BatchMessage | RecordMessage | Head) -> None:
        """See that its journal has what it publishes, or tells of."""
        batch = Batch.parse(message.body, check=False) if isinstance(message, BatchMessage) else None
        end = batch.next if batch is not None else message.sequence + 1  # type: ignore[union-attr]
        asks = end == 1 and not self.resumed_at  # what stores hold of a partition that has no record yet
        if self.journal is not None and end > self.journal.next_offset and not asks and not self._stored(message, end):
            raise Violation("identity", f"{self.name} tells of {end - 1} before its journal has it: {message}")
        if self.rolled_back and batch is not None and isinstance(message, BatchMessage) and not message.direct:
            self._published_again(batch)

    def _stored(self, message: BatchMessage | RecordMessage | Head, end: int) -> bool:
        """True if it repeats what a store has told of a partition whose journal is an older copy."""
        stored = max((end for _, end in self.world.holdings(self.key)), default=0)
        return isinstance(message, Head) and self.rolled_back and end <= stored

    def _published_again(self, batch: Batch) -> None:
        """An identity that was restored publishes nothing again that a store could tell it of."""
        sent, base = self.world.truth.of(self.key), batch.base
        again = self.world.contents(batch, base)
        if sent.records[base : batch.next] == again:
            return
        if base < len(sent.records):
            if self.listened is None and self.world.now < self.began + self.world.limits.resume_wait_s:
                raise Violation("identity", f"{self.name} publishes {base} again before any store has answered")
            for store in self.listening() if self.listened is None else self.listened:
                part = store.disk.parts.get(self.key)
                told = 0 if part is None else min([part.next, *(low for low, _ in part.gaps())])
                if store.alive and told > self.resumed_at:
                    raise Violation("identity", f"{self.name} publishes {base} again, {store.name} could tell it")
            raise Excused(f"{self.name} was rolled back, and no store was there that knew")
        self.world.truth.sent(self.key, base, again)

    def listening(self) -> list[StoreSubject]:
        """Return the stores that would hear a question."""
        names = {link.subscriber.name for link in self.ports._pub.socket.listeners if b"F" in link.asked}
        return [each for each in self.world.alive(StoreLife) if each.resident.place.name in names]

    def _work(self) -> None:
        world = self.world
        may = world.sending and self.core.kept_bytes < KEPT_MAX and self.face.next_offset < RECORDS_MAX
        if may:
            self._send(world.rng.choice((1, 1, 2, 5, 30)))
        self.soon(world.rng.expovariate(1.0) * self.every_s, self._work)

    def _send(self, count: int) -> None:
        world, rng = self.world, self.world.rng
        sent = world.truth.of(self.key)
        if rng.random() < 0.3:
            values: list[bytes | None] = [self._value() for _ in range(count)]
            first = self.face.next_offset
            self._took(first, [(value, None) for value in values], self._try(lambda: self.face.send_many(values)))
            return
        for _ in range(count):
            value: bytes | None = self._value()
            key = b"k%d" % rng.randrange(5) if rng.random() < world.keyed else None
            if key is not None and world.keyed > KEYED and world.serial % 3:
                key += self.key[1].encode()  # no other partition has it
            if rng.random() < 0.02:
                value = None
            headers = (("h", b"x"),) if rng.random() < 0.02 else None
            first = len(sent.records)
            if not self._took(first, [(value, key)], self._try(partial(self.face.send, value, key, headers))):
                return
        if rng.random() < 0.2:
            self._try(lambda: self.face.flush(0))

    def _try(self, call: Callable[[], Any]) -> bool:
        try:
            call()
        except (BufferFull, StorageError, TimedOut, IdentityRolledBack, *self.world.cannot) as error:
            self.world.trace(self, "cannot: %s", error)
            self.world.failed[JournalBatch] += isinstance(error, StorageError)
            return False
        return True

    def _took(self, first: int, records: list[tuple[bytes | None, bytes | None]], done: bool) -> bool:
        """Note what has an offset by now."""
        if self.rolled_back:
            return done
        world, at = self.world, self.face.next_offset
        taken = at - first
        if done and taken != len(records):
            world.fail("identity", f"{self.name} gave {taken} offsets to {len(records)} records")
        world.truth.sent(self.key, first, records[:taken])
        if not self.resident.lasting:
            world.see("on_made", self, first, taken, time.time_ns() // 1000)
        if taken and self.min_acks:
            self._wait(at - 1)
        return done

    def _wait(self, offset: int) -> None:
        try:
            self.face.delivered(offset).add_done_callback(self._delivered)
        except self.world.cannot:
            self.soon(RETRY_S, self._wait, offset)

    def _delivered(self, done: Future[int]) -> None:
        if not self.alive or done.cancelled() or done.exception() is not None:
            return
        before, self._told = self._told, max(self._told, done.result() + 1)
        if self._told > before:
            try:
                self.world.see("on_stored", self, before, self._told)
            except Violation as violation:
                self.world.broken = self.world.broken or violation

    def _value(self) -> bytes:
        world = self.world
        world.serial += 1
        size: int = world.rng.choice((0, 0, 3, 40, 400))
        return world.mark + b"%d:" % world.serial + b"x" * size  # type: ignore[no-any-return]


class ConsumerLife(LogLife, ConsumerSubject):
    """A consumer whose program takes what comes, sooner or later, and commits now and then if it lasts."""

    def __init__(self, world: Any, resident: ConsumerResident) -> None:
        super().__init__(world, resident)
        self.min_acks = resident.min_acks
        self.reset = LAST if resident.last else EARLIEST
        self.max_age_s = resident.max_age_s
        self.left_out: set[tuple[Key, int]] = set()
        identity = resident.name if resident.lasting else None
        self.face = Consumer(
            *map(str, resident.filters),
            **world.where,
            security=world.security(resident.place.name),
            reset="last-value" if resident.last else "earliest",
            identity=identity,
            stored=bool(resident.min_acks),
            min_acks=max(1, resident.min_acks),
            max_age_s=resident.max_age_s,
            on_stale="drop",
        )
        self.core = self.face._core
        if self.face._aged is not None:
            self.face._aged.life = self
        self.member = self.face._node._member
        self.ports = self.face._node.node
        self.address = self.core.address
        self.filters = tuple(resident.filters)
        self.met = set(resident.met)
        self.positions = dict(self.face._positions.committed) if identity else {}
        if self.positions != resident.committed:
            world.fail("position", f"{self.name} goes on at {self.positions}, it had committed {resident.committed}")
        self.slow_s = world.rng.choice((0.0, 0.0, 0.01, 0.3))
        self._due = False
        self._behind: list[object] = []
        self.face.on_ready = self._ready
        self._ready()

    @property
    def home(self) -> ConsumerLife:
        """Who came first to its node."""
        found = [each for each in self.world.alive(ConsumerLife) if each.member is self.member]
        return found[0] if found else self

    def _ready(self) -> None:
        if not self._due:
            self._due = True
            self.soon(self.slow_s * self.world.rng.random(), self._take)

    def _take(self) -> None:
        self._due = False
        self.look()  # an event is told before the records behind it
        try:
            self._take_all()
        except self.world.cannot as error:
            self.world.trace(self, "cannot: %s", error)
            self.soon(RETRY_S, self._ready)

    def _take_all(self) -> None:
        world = self.world
        batch = self.face.take()
        while batch is not None:
            world.trace(self, "gets %s/%s %d..%d", batch.topic, batch.partition[:6], batch.first, batch.next - 1)
            self.got(batch)
            if self.slow_s and world.sending:
                self._ready()
                break
            batch = self.face.take()
        if self.resident.lasting and world.rng.random() < 0.3:
            self._commit()

    def got(self, batch: ConsumedBatch) -> None:
        """Show what it was given."""
        self.world.see("on_deliver", self, Records(batch.topic, batch.partition, batch.batch, batch.first))

    def _commit(self) -> None:
        self.look()
        for key, at in self.face.position().items():
            first = max(self.positions.get(key, 0), self.world.retained_from(key))  # a topic may begin later by now
            if self.world.held_within(key, first, at, self.world.disks) is not None:
                self.world.fail("position", f"{self.name} is at {key} {at}, it has got {self.positions.get(key, 0)}")
        try:
            self.face.commit()
        except StorageError as error:
            self.world.trace(self, "cannot commit: %s", error)
            self.resident.maybe = self.face.position()  # a disk may have it all the same
        else:
            self.resident.committed = dict(self.face._positions.committed)

    def look(self) -> None:
        """See what it reports, and which stores it knows."""
        self.met.update(self.core.store_addresses)
        super().look()

    def _reports(self) -> list[object]:
        """Leave out what is given up behind records that the program has yet to take."""
        found: list[object] = []
        behind: list[object] = []
        for event in [*self._behind, *super()._reports()]:
            at = event.first if isinstance(event, RecordsLost) else event.offset if isinstance(event, OutOfRange) else 0
            ahead = at and at > self.positions.get((event.topic, event.partition), 0)  # type: ignore[attr-defined]
            (behind if ahead and self.face._inbox.queue else found).append(event)
        self._behind = behind
        return found

    def lacking(self, end: dict[Key, int]) -> dict[Key, int]:
        """Return what its program has not got of what is in front of an end."""
        found: dict[Key, int] = self.face._still_unread(end)
        return found

    def seek_end(self) -> None:
        """Ask what there is."""
        with self.world.stage.on(self.resident.place.name), self.face.lock:
            self.face._node.do(self.core.seek_end(time.monotonic()))

    def unsubscribe(self, wanted: Filter) -> None:
        """Consume topics no longer."""
        self.face.unsubscribe(str(wanted))
        self.filters = tuple(each for each in self.filters if each != wanted)

    def subscribe(self, wanted: Filter) -> None:
        """Consume further topics, once that is allowed."""
        try:
            self.face.subscribe(str(wanted))
        except self.world.cannot:
            self.soon(RETRY_S, self.subscribe, wanted)
        else:
            self.filters = (*self.filters, wanted)


class StoreResident(Resident):
    """A store with a directory of its own."""

    def __init__(self, world: Any, name: str, place: Place, directory: Path, life: type[StoreLife]) -> None:
        self.life = life
        super().__init__(world, name, place)
        self.disk = StoreDisk(name, directory)
        world.disks.append(self.disk)

    def ended(self, life: Any, *, power_cut: bool, killed: bool) -> None:
        """See what is left on its disk."""
        world = self.world
        if self.disk.directory.exists():
            self.disk.look_at_files(world.stage.scratch)
            if (missing := self.disk.missing_of_safe()) is not None and not self.disk.damaged:
                world.broken = Violation("disk", missing)


class ProducerResident(Resident):
    """A producer; with an identity it goes on with its partition, without one each life has its own."""

    life = ProducerLife

    def __init__(self, world: Any, name: str, place: Place, topic: str, min_acks: int, *, lasting: bool) -> None:
        super().__init__(world, name, place)
        self.topic = topic
        self.min_acks = min_acks
        self.lasting = lasting
        self.lost_power = False
        self.power_cuts = 0
        self.synced = 0  # what was published before its machine lost power, and so was in its journal
        self.rotten: set[int] = set()  # offsets that were damaged in its journal
        self.restored = False  # its journal was, since its last life ...
        self.rolled_back = False  # ... from a copy that is older than what it has sent
        self._identities = 0

    @property
    def identity(self) -> str | None:
        """Its name for the journal."""
        return f"{self.name}-{self._identities}" if self.lasting else None

    @property
    def directory(self) -> Path:
        """Return where its journal is."""
        found: Path = self.world.stage.directory / self.place.name / "producers" / str(self.identity)
        return found

    def renew(self) -> None:
        """Go on with another identity: stores know more of this one."""
        self.world.trace(self.now, "begins anew")
        self.world.truth.of(self.now.key).gone = True
        self._identities += 1
        self.restored = self.rolled_back = False
        self.rotten.clear()
        self.world.clock.after(0.0, self._begin_anew, self.now)

    def _begin_anew(self, life: Life) -> None:
        if life.alive and self.place.paused:
            self.world.clock.after(RETRY_S, self._begin_anew, life)
        elif life.alive:
            self.place.leave_one(self)

    def copy_journal(self) -> Callable[[], None] | None:
        """Make a backup; returns what restores it while nobody uses the journal."""
        if not self.directory.exists():
            return None
        identity, directory, backup = self.identity, self.directory, self.world.stage.scratch / f"{self.name} backup"
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(directory, backup)

        def restore() -> None:
            if identity == self.identity and directory.exists():
                shutil.rmtree(directory)
                shutil.copytree(backup, directory)
                self.restored = True
                self.world.trace(None, "the journal of %s is restored", self.name)
                self.world.truth.of(self.now.key).gone = True  # what was not acknowledged went with the newer journal

        return restore

    def rot(self, rng: Random) -> bool:
        """Flip a bit of a durable batch with something behind it; return False if there is none."""
        topic, partition = self.now.key
        files = {int(path.stem): path for path in self.directory.glob("*" + ENDING)}
        places: list[tuple[Path, int, Batch]] = []
        for first, path in files.items():
            found = list(batches_in(path.read_bytes(), seed_of(topic, partition, str(first))))
            following = min((each for each in files if each > first), default=self.now.core.published)
            sound = [(path, end, batch) for end, batch in found if batch.next <= following]
            places += sound[:-1] if first == max(files) else sound
        if not places:
            return False
        path, end, batch = rng.choice(places)
        raw = bytearray(path.read_bytes())
        raw[end - 1 - rng.randrange(FRAME.size + len(batch.raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        self.rotten.update(range(batch.base, batch.next))
        self.world.trace(None, "the journal of %s rots, at %d", self.name, batch.base)
        return True

    def ended(self, life: Any, *, power_cut: bool, killed: bool) -> None:
        """A producer without an identity takes with it what was not acknowledged."""
        self.lost_power = self.lost_power or power_cut
        self.power_cuts += power_cut
        if power_cut and life is not None:
            self.synced = max(self.synced, life.core.published)
        if not self.lasting and life is not None:
            self.world.truth.of(life.key).gone = True


class ConsumerResident(Resident):
    """A consumer; one that lasts goes on from what it has committed."""

    def __init__(
        self, world: Any, name: str, place: Place, filters: list[Filter], *, lasting: bool, last: bool, min_acks: int,
        max_age_s: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(world, name, place)
        self.life = world.consumer_life
        self.max_age_s = max_age_s
        self.filters = filters
        self.lasting = lasting
        self.last = last
        self.min_acks = min_acks
        self.committed: dict[Key, int] = {}
        self.maybe: dict[Key, int] = {}
        self.met: set[str] = set()

    def ended(self, life: Any, *, power_cut: bool, killed: bool) -> None:
        """Remember which stores it met, for what it passes over."""
        if self.lasting and life is not None:
            self.met = set(life.met)


class TowerPlace:
    """A tower on a host of its own."""

    def __init__(self, world: Any, number: int) -> None:
        self.world = world
        self.name = f"tower{number}"
        self.address = f"127.0.0.1:{5556 + 2 * number}:{5557 + 2 * number}"
        self.up = False
        self.restart()

    @property
    def gate(self) -> Any:
        """That of its sockets, where there are keys."""
        return self.tower._node.gate

    def kill(self) -> None:
        """End it."""
        if self.up:
            self.up = False
            self.world.trace(None, "%s is killed", self.name)
            self.world.stage.kill(self.name)

    def restart(self) -> None:
        """Run it again."""
        if not self.up:
            self.up = True
            with self.world.stage.on(self.name):
                self.tower = Tower(self.address, security=self.world.security(self.name))
