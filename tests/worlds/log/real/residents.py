"""Who lives on the hosts of a world of the log: stores, producers, consumers. Those of one place share a node."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.worlds.log.real.disks import RealDisk
from tests.worlds.log.subjects import ConsumerSubject, ProducerSubject, StoreSubject
from tests.worlds.residents import Life, Place, Resident

from chappe import Consumer, Producer, Store
from chappe.api.log.tower import Tower
from chappe.data.topic import Filter
from chappe.errors import BufferFull, Closed, StorageError, TimedOut
from chappe.log.consumer import EARLIEST, LAST
from chappe.log.delivery import Records
from chappe.log.events import OutOfRange, RecordsLost, Stopped
from chappe.log.sources import Key
from chappe.log.storage import Retention
from chappe.sim.world import Violation
from chappe.system import time

RECORDS_MAX: Final = 150  # of one partition: small worlds are quick worlds
KEPT_MAX: Final = 20_000  # bytes that no store has yet: who sends waits
KEYED: Final = 0.1


class LogLife(Life):
    """One life of a member of the log."""

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
        except (TimedOut, StorageError, Closed) as error:  # a producer says what is left; its host may die meanwhile
            self.world.trace(self, "closes, and says: %s", error)


class StoreLife(LogLife, StoreSubject):
    """A store."""

    def __init__(self, world: Any, resident: StoreResident) -> None:
        super().__init__(world, resident)
        self.disk = resident.disk
        self.retention = [(topic, Retention(records=count)) for topic, count in world.retained.items()]
        self.face = Store(resident.disk.directory, tower=world.tower_address, retention=self.retention)
        self.core = self.face._node.store
        self.address = self.core.address
        world.disk_of[self.address] = self.disk


class ProducerLife(LogLife, ProducerSubject):
    """A producer whose program sends now and then."""

    def __init__(self, world: Any, resident: ProducerResident) -> None:
        super().__init__(world, resident)
        identity = resident.name if resident.lasting else None
        self.min_acks = resident.min_acks
        self.face = Producer(
            resident.topic,
            tower=world.tower_address,
            min_acks=resident.min_acks,
            on_full="error",
            identity=identity,
        )
        self.key: Key = (resident.topic, self.face.partition)
        self.core = self.face._writers[resident.topic].core
        self.part = self.face._core
        self.member = self.face._node._member
        self.address = self.face.partition
        self.every_s = world.rng.choice((0.02, 0.1, 0.5, 2.0))
        self._told = self.core.stored
        self._resume(resident)
        self.soon(world.rng.random(), self._work)

    def _resume(self, resident: ProducerResident) -> None:
        """Check where an identity goes on: what somebody has seen is never used again."""
        world, sent = self.world, self.world.truth.of(self.key)
        at, known = self.face.next_offset, len(sent.records)
        if at > known:
            if not resident.unsure or self.core.next_offset > known + len(resident.unsure):
                world.fail("identity", f"{self.name} goes on at {at}, it had given away {known} offsets")
            sent.records += resident.unsure[: at - known]
        elif at < known:
            if not resident.lost_power:
                world.fail("identity", f"{self.name} goes on at {at}, it had given away {known} offsets")
            held = max((end for _, end in world.holdings(self.key)), default=0)
            had = max((each.positions.get(self.key, 0) for each in world.alive(ConsumerSubject)), default=0)
            if at < max(held, had, sent.acknowledged):
                world.fail("identity", f"{self.name} goes on at {at}, others have its records before {max(held, had)}")
            del sent.records[at:]
        resident.unsure, resident.lost_power = [], False

    def look(self) -> None:
        """See what it reports; a power cut may take what its journal had not synced."""
        if (journal := self.face._writers[self.core.topic]._journal) is not None:
            sent = self.world.truth.of(self.key)
            for first, next_ in journal.lost:
                safe = self.resident.synced
                if not self.resident.power_cuts or first < safe:
                    self.world.fail(
                        "identity", f"{self.name} takes {first} to {next_ - 1} for damaged, {safe} are safe"
                    )
                sent.lost.update(range(first, next_))
        super().look()

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
        except (BufferFull, StorageError, TimedOut) as error:
            self.world.trace(self, "cannot: %s", error)
            return False
        return True

    def _took(self, first: int, records: list[tuple[bytes | None, bytes | None]], done: bool) -> bool:
        """Note what has an offset by now."""
        world, at = self.world, self.face.next_offset
        taken = at - first
        if done and taken != len(records):
            world.fail("identity", f"{self.name} gave {taken} offsets to {len(records)} records")
        world.truth.sent(self.key, first, records[:taken])
        if taken and self.min_acks:
            self._wait(at - 1)
        return done

    def _wait(self, offset: int) -> None:
        self.face.delivered(offset).add_done_callback(self._delivered)

    def _delivered(self, done: Future[int]) -> None:
        if not self.alive or done.cancelled() or done.exception() is not None:
            return
        before, self._told = self._told, max(self._told, done.result() + 1)
        if self._told > before:
            try:
                self.world.see("on_stored", self, before, self._told)
            except Violation as violation:
                self.world.broken = violation

    def _value(self) -> bytes:
        world = self.world
        world.serial += 1
        size: int = world.rng.choice((0, 0, 3, 40, 400))
        return b"%d:" % world.serial + b"x" * size


class ConsumerLife(LogLife, ConsumerSubject):
    """A consumer whose program takes what comes, sooner or later, and commits now and then if it lasts."""

    def __init__(self, world: Any, resident: ConsumerResident) -> None:
        super().__init__(world, resident)
        self.min_acks = resident.min_acks
        self.reset = LAST if resident.last else EARLIEST
        identity = resident.name if resident.lasting else None
        self.face = Consumer(
            *map(str, resident.filters),
            tower=world.tower_address,
            reset="last-value" if resident.last else "earliest",
            identity=identity,
            stored=bool(resident.min_acks),
            min_acks=max(1, resident.min_acks),
        )
        self.core = self.face._core
        self.member = self.face._node._member
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
        world = self.world
        self._due = False
        self.look()  # an event is told before the records behind it
        batch = self.face.take()
        while batch is not None:
            world.trace(self, "gets %s/%s %d..%d", batch.topic, batch.partition[:6], batch.first, batch.next - 1)
            world.see("on_deliver", self, Records(batch.topic, batch.partition, batch.batch, batch.first))
            if self.slow_s and world.sending:
                self._ready()
                break
            batch = self.face.take()
        if self.resident.lasting and world.rng.random() < 0.3:
            self._commit()

    def _commit(self) -> None:
        self.look()
        for key, at in self.face.position().items():
            if at > max(self.positions.get(key, 0), self.world.retained_from(key)):  # a topic may begin later by now
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
        """Consume further topics."""
        self.face.subscribe(str(wanted))
        self.filters = (*self.filters, wanted)


class StoreResident(Resident):
    """A store with a directory of its own."""

    life = StoreLife

    def __init__(self, world: Any, name: str, place: Place, directory: Path) -> None:
        super().__init__(world, name, place)
        self.disk = RealDisk(name, directory)
        world.disks.append(self.disk)

    def ended(self, *, power_cut: bool, killed: bool) -> None:
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
        self.unsure: list[tuple[bytes | None, bytes | None]] = []

    def ended(self, *, power_cut: bool, killed: bool) -> None:
        """A producer without an identity takes with it what was not acknowledged."""
        self.lost_power = self.lost_power or power_cut
        self.power_cuts += power_cut
        if power_cut and self.now is not None:
            self.synced = max(self.synced, self.now.core.published)
        if not self.lasting and self.now is not None:
            self.world.truth.of(self.now.key).gone = True


class ConsumerResident(Resident):
    """A consumer; one that lasts goes on from what it has committed."""

    life = ConsumerLife

    def __init__(
        self, world: Any, name: str, place: Place, filters: list[Filter], *, lasting: bool, last: bool, min_acks: int
    ) -> None:
        super().__init__(world, name, place)
        self.filters = filters
        self.lasting = lasting
        self.last = last
        self.min_acks = min_acks
        self.committed: dict[Key, int] = {}
        self.maybe: dict[Key, int] = {}
        self.met: set[str] = set()

    def ended(self, *, power_cut: bool, killed: bool) -> None:
        """Remember which stores it met, for what it passes over."""
        if self.lasting and self.now is not None:
            self.met = set(self.now.met)


class TowerPlace:
    """A tower on a host of its own."""

    def __init__(self, world: Any, number: int) -> None:
        self.world = world
        self.name = f"tower{number}"
        self.address = f"127.0.0.1:{5556 + 2 * number}:{5557 + 2 * number}"
        self.up = False
        self.restart()

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
                self.tower = Tower(self.address)
