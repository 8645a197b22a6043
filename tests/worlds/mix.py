"""Worlds of what users run together: a log, a mesh with a data store, and bridges between them, in shared processes.

    events of the mesh  -> recorder (an endpoint and a producer with a journal) -> a topic of the log
    that topic          -> table (a consumer and the master of a data store)    -> all clones

A *process* is a host with one endpoint and one member of the log: they live and die together. All faults of the log
happen, to all hosts and connections; and the master's disk is full now and then. All that is promised of the log holds.
Promises beside: what a recorder has taken is in the topic once; what is acknowledged in the topic is in the store of
every member at the end; and what is in front of the position that a table has written down is in its store.
"""

from __future__ import annotations

import secrets
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from tests.worlds.kv.members import Doing, FillableBackend, MasterFile, ProgramsStore
from tests.worlds.log.faults import LogFaults
from tests.worlds.log.residents import KEPT_MAX, ConsumerLife, ConsumerResident, ProducerLife, ProducerResident
from tests.worlds.log.scenario import Log
from tests.worlds.log.world import Cores, contents
from tests.worlds.mesh.checkers import Bounds, Storms
from tests.worlds.mesh.wires import Frames
from tests.worlds.residents import RETRY_S, Life, Place, Resident
from tests.worlds.stage import Replaced

from chappe import Endpoint
from chappe.api.kv import attaching
from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.data.topic import Filter
from chappe.errors import ChappeError, StorageError
from chappe.kv.engine import index_of
from chappe.log.events import RecordsLost
from chappe.sim.host import SimHost
from chappe.sim.streams import PREFIX, StreamSide
from chappe.sim.world import Checker, Settings

TOPIC: Final = "table"
EVENTS: Final = ("/event/a", "/event/b")
STORE: Final = "s"
POSITION: Final = "position "  # begins the keys under which it is kept how far a partition was taken
MASTER, RELAY, CLONE = "master", "relay", "clone"
HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 9_000


def row_of(partition: str, key: bytes) -> str:
    """Under which key of the store the latest record of a key of a partition is."""
    return f"row {partition} {key.decode()}"


def row_value(offset: int, value: bytes | None) -> tuple[int, str | None]:
    """What is there."""
    return offset, None if value is None else value.decode()


class MemberLife(Life):
    """An endpoint, with the master or a clone of the data store unless it is a relay."""

    def __init__(self, world: Mix, resident: Resident) -> None:
        super().__init__(world, resident)
        rng = world.mesh_rng
        self.life = self.name
        self.face = Endpoint(id=uuid.UUID(bytes=rng.randbytes(16)), heartbeat_s=rng.choice((0.5, 1.0)))
        self.core = self.face.core
        self.address = self.core.own_id.hex()
        self.doing: dict[Doing, None] = {}
        self.shown: dict[Any, Any] = {}
        if not self.name.startswith(RELAY):
            self._attach(world)
        self.events = self.face.subscribe("/event/", on_full="block") if self.name.startswith(CLONE) else None
        self.face.listen(port=world.port_of(self.name))
        for other in world.wires[self.name]:
            self.face.peer_nosync(HOST, world.port_of(other), retry_s=rng.choice((0.3, 1.0)))

    def _attach(self, world: Mix) -> None:
        world.attaching = self
        try:
            if self.name == MASTER:
                made = self.face.attach_master(STORE, backend="sqlite", path=world.backend.path)
            else:
                made = self.face.attach_clone(STORE, world.mesh_rng.choice((0.2, 1.0)), 10.0, 30.0, timeout=0)
        except StorageError:
            self.face.close()
            raise
        self.store = ProgramsStore(made.attached, self)  # type: ignore[arg-type]
        self.watch = self.store.watch()
        self.shown = self.has()
        self.face.node.turns.listen(self._news)
        world.see("on_shown", self, list(self.shown))

    @property
    def connections(self) -> int:
        """How many it has."""
        found: int = self.face.node.links
        return found

    def has(self) -> dict[Any, Any]:
        """What it shows."""
        return {index: entry.value for index, entry in self.store.attached.core.engine.entries.items()}

    def _news(self) -> None:
        for each in list(self.doing):
            each.look()

    def look(self) -> None:
        """See what who watches the store is told."""
        if (halted := self.face.node.turns.halted) is not None:
            self.world.fail("crash", f"{self.name}: {halted}")
        for event in self.watch.poll() if self.shown is not None and self.name == MASTER else ():
            change: Any = event.typed
            self.shown[index_of(change.key)] = change.value
            self.world.trace(self, "shows %s: %r", change.key, change.value)
            self.world.see("on_shown", self, [index_of(change.key)])

    def put(self, key: str, value: Any, told: Callable[[object], None]) -> None:
        """Write to the store, as programs do; ``told`` gets the error, or None."""
        self.store.told = told
        try:
            self.store.put(key, value, timeout=None)
        except ChappeError as error:
            self.store.told = None
            told(error)
        if self.store.told is not None:  # it was done at once
            self.store.told = None
            told(None)


class MemberResident(Resident):
    """An endpoint over all its lives."""

    life = MemberLife


class Process(Place):
    """A host whose residents are one program."""

    def leave_one(self, resident: Resident) -> None:
        if self.up and not self.paused:
            self.leave()
            self.world.clock.after(RETRY_S, self.restart)

    def member(self) -> MemberLife:
        """Its endpoint; raises StorageError where that could not begin yet."""
        found = self.residents[0].now
        if found is None or not found.alive:
            raise StorageError("the store of its process is not there")
        assert isinstance(found, MemberLife)
        return found


class Recorder(ProducerLife):
    """Makes a record of every event that its endpoint gets."""

    def __init__(self, world: Mix, resident: ProducerResident) -> None:
        self.mesh = resident.place.member()  # type: ignore[attr-defined]
        super().__init__(world, resident)
        self.events: deque[Any] = deque()

    def _work(self) -> None:
        self.events += self.mesh.events.take_messages(self.mesh.events.available, 0.0)
        self.record()
        self.soon(self.world.rng.expovariate(1.0) * self.every_s, self._work)

    def record(self) -> None:
        """Take events into the journal, as far as there is room."""
        while self.events and self.core.kept_bytes < KEPT_MAX:
            event, first = self.events[0], self.face.next_offset
            done = self._try(partial(self.face.send, event.payload, event.topic))
            self._took(first, [(event.payload, event.topic)], done)
            if self.face.next_offset == first:
                return
            self.events.popleft()
            self.world.trace(self, "records %s", event.payload.decode())
            self.world.see("on_recorded", self, event)


class RecorderResident(ProducerResident):
    """A recorder over all its lives."""

    def __init__(self, world: Mix, name: str, place: Process, min_acks: int) -> None:
        super().__init__(world, name, place, TOPIC, min_acks, lasting=True)
        self.life = Recorder


class Table(ConsumerLife):
    """Keeps the topic as a table in the store of its process: batch after batch, and behind each its position."""

    def __init__(self, world: Mix, resident: ConsumerResident) -> None:
        self.mesh = resident.place.member()  # type: ignore[attr-defined]
        self._left: set[str] = set()  # keys that are to be written before anything else is
        self._batches: deque[ConsumedBatch] = deque()
        super().__init__(world, resident)
        for key, at in self.mesh.shown.items():
            if str(key).startswith(POSITION):
                partition = key.removeprefix(POSITION)
                self.face.seek(TOPIC, partition, at)
                self.positions[TOPIC, partition] = at

    def got(self, batch: ConsumedBatch) -> None:
        super().got(batch)
        self._batches.append(batch)
        if len(self._batches) == 1:
            self._write_rows()

    def _write_rows(self) -> None:
        batch = self._batches[0]
        rows: dict[str, Any] = {}
        for offset, (value, key) in enumerate(contents(batch.batch, batch.first), batch.first):
            if key is not None:
                rows[row_of(batch.partition, key)] = row_value(offset, value)
        self._write(rows)

    def _write(self, rows: dict[str, Any]) -> None:
        self._left = set(rows)
        for key, value in rows.items():
            self._put(key, value)
        if not rows:
            self._go_on(None)

    def _put(self, key: str, value: Any) -> None:
        self.mesh.put(key, value, partial(self.done, key, value))

    def done(self, key: str, value: Any, error: object) -> None:
        """What became of a write; what the store has refused is written again a little later."""
        if not self.alive:
            return
        if isinstance(error, Exception):
            self.soon(RETRY_S, self._put, key, value)
            return
        self._left.discard(key)
        if not self._left:
            self._go_on(key)

    def _go_on(self, key: str | None) -> None:
        """All is done that was to be written, the last of it ``key``."""
        batch = self._batches[0]
        if key is None or not key.startswith(POSITION):
            self._write({POSITION + batch.partition: batch.next})
            return
        self._batches.popleft()
        if self._batches:
            self._write_rows()


class TableResident(ConsumerResident):
    """A table over all its lives."""

    def __init__(self, world: Mix, place: Process) -> None:
        super().__init__(world, "table", place, [Filter.parse(TOPIC)], lasting=False, last=False, min_acks=0)
        self.life = Table


class MixFaults(LogFaults):
    """The faults of the log, and a master's disk that is full; journals are neither damaged nor restored."""

    def plan(self, until: float) -> None:
        super().plan(until)
        for _ in range(self.world.mesh_rng.choice((0, 1, 3))):
            self.at(self.world.mesh_rng.uniform(0.5, until), self.fill_backend)

    def fill_backend(self) -> None:
        """The master's disk is full for a while."""
        self.world.backend.full = True
        self.world.clock.after(self.rng.choice((0.3, 2.0)), self._empty)

    def _empty(self) -> None:
        self.world.backend.full = False

    def heal(self) -> None:
        self._empty()
        super().heal()

    def restore_journal(self) -> None:
        """Worlds of the log have that."""

    rot_journal = restore_journal


class Bridges(Checker["Mix"]):
    """What is promised from one end of a mix to the other."""

    name = "bridges"

    def __init__(self, world: Mix) -> None:
        super().__init__(world)
        self._recorded: dict[Recorder, set[bytes]] = {}
        self._passed: dict[str, set[int]] = {}  # by partition: offsets given up by a table

    def on_recorded(self, host: Recorder, event: Any) -> None:
        """One life of a recorder takes every event once."""
        recorded = self._recorded.setdefault(host, set())
        if event.payload in recorded:
            self.fail(f"{host.name} records {event.payload!r} twice")
        recorded.add(event.payload)

    def on_report(self, host: SimHost, event: object) -> None:
        """A table gives something up, which checkers of the log judge."""
        if isinstance(event, RecordsLost) and isinstance(host, Table):
            self._passed.setdefault(event.partition, set()).update(range(event.first, event.last + 1))

    def on_shown(self, host: MemberLife, keys: list[Any]) -> None:
        """What is in front of a position that the master shows is in the store, too."""
        for key in keys:
            if host.name == MASTER and str(key).startswith(POSITION):
                missing = self._missing(key.removeprefix(POSITION), host.shown[key], host.shown)
                if missing is not None:
                    self.fail(f"{host.name} shows {key!r} at {host.shown[key]}, and lacks {missing}")

    def _missing(self, partition: str, end: int, shown: dict[Any, Any]) -> str | None:
        """The first key whose latest record before ``end`` is not what a store has, or is later there."""
        world, key_of = self.world, (TOPIC, partition)
        sent = world.truth.of(key_of)
        first, end = max(world.begun.get(key_of, 0), world.retained_from(key_of)), min(end, len(sent.records))
        # Its producer will not come back: what no disk has is passed over.
        nowhere = set(world.missing_within(key_of, first, end)) if sent.gone else set()
        nowhere |= self._passed.get(partition, set())
        latest = {}
        for offset in range(first, end):
            key = sent.records[offset][1]
            if key is not None and offset not in sent.lost and offset not in nowhere:
                latest[row_of(partition, key)] = offset
        for row, offset in latest.items():
            found = shown.get(row)
            if found is None or found[0] < offset:
                return f"{row!r} of offset {offset}, there is {found}"
            if found != row_value(found[0], sent.records[found[0]][0]):
                self.fail(f"under {row!r} there is {found}, sent was {sent.records[found[0]]}")
        return None

    def unsettled(self) -> str | None:
        """What is recorded is in the topic, and what is acknowledged there is in every copy of the store."""
        truth = self.world.truth
        for host, recorded in self._recorded.items():
            values = {value for value, _ in truth.of(host.key).records}
            if not recorded <= values and not truth.of(host.key).gone:
                self.fail(f"{host.name} has recorded {recorded - values}, which are not in the topic")
        for (topic, partition), sent in list(truth.parts.items()):
            for member in self.world.alive(MemberLife) if topic == TOPIC else ():
                if not member.name.startswith(RELAY):
                    missing = self._missing(partition, sent.acknowledged, member.has())
                    if missing is not None:
                        return f"{member.name} lacks {missing}"
        return None


class Mix(Log):
    """A log, a mesh with a data store, and bridges between them, in shared processes."""

    sinks = 0.0
    original_stores = 0.0
    events_max = 2_000_000
    attaching: MemberLife  # who attaches a store just now

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: Cores | None = None,
    ) -> None:
        self.mesh_rng = Random(f"mesh {seed}")
        super().__init__(seed, settings, tell, cores)
        self.rots = self.ages = self.alone = self.trims.there = self.sealed = False
        self.backend = MasterFile(self.stage.scratch / "master.db")
        self.wires: dict[str, list[str]] = {}  # who dials whom
        self._frames: defaultdict[StreamSide, Frames] = defaultdict(Frames)
        self._storms = Storms(self)
        self.stage.streams.look = self._look
        self.watch(Bridges(self), Bounds(self))
        self.ground_faults = MixFaults(self)

    def _replaced(self, cores: Cores) -> list[Replaced]:
        return [
            *super()._replaced(cores),
            (secrets, "randbits", self.mesh_rng.getrandbits),
            (attaching, "_BACKENDS", {"sqlite": FillableBackend}),
            (FillableBackend, "world", self),
        ]

    def _look(self, side: StreamSide, pieces: list[bytes]) -> None:
        with self.seeing():
            self._storms.on_written(side, self._frames[side].cut([each[PREFIX:] for each in pieces]))

    def endpoints(self) -> list[MemberLife]:
        """All that run."""
        return self.alive(MemberLife)

    def port_of(self, name: str) -> int:
        """Where an endpoint listens."""
        return FIRST_PORT + list(self.wires).index(name)

    def begin(self) -> None:
        super().begin()
        rng = self.mesh_rng
        names = [*(f"{RELAY}{number}" for number in range(rng.choice((0, 1)))), MASTER]
        names += [f"{CLONE}{number}" for number in range(self.few(rng.choice((1, 2, 3))))]
        for number, name in enumerate(names):
            others = names[:number]
            self.wires[name] = rng.sample(others, min(len(others), rng.choice((1, 1, 2))))
        for name in names:
            place = Process(self, name)
            self.stage.disk(name).slow(self.usual_disk_s)
            self.move_in(MemberResident(self, name, place))
            if name == MASTER:
                self.move_in(TableResident(self, place))
            elif name.startswith(CLONE):
                acks = rng.choice((1, 1, min(2, len(self.disks))))
                self.move_in(RecorderResident(self, f"recorder-{name}", place, acks))
        self._publish_events()

    def _publish_events(self) -> None:
        members = [each for each in self.alive(MemberLife) if not each.resident.place.paused]
        if members and self.sending:
            member = self.rng.choice(members)
            for _ in range(self.rng.choice((1, 1, 5))):
                self.serial += 1
                payload = b"event %d" % self.serial
                member._call(member.face.try_publish, (self.rng.choice(EVENTS).encode(), payload))
        self.clock.after(self.rng.expovariate(5.0), self._publish_events)
