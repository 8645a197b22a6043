"""Worlds of what users run together: a log, a mesh with a data store, and bridges between them, in shared processes.

    events of the mesh  -> recorder (an endpoint and a producer with a journal) -> a topic of the log
    that topic          -> table (a consumer and the master of a data store)    -> all clones

A *process* has one member of the mesh and one of the log: they live and die together. All faults of both worlds happen.
Promises: what a recorder has taken is in the topic once; what is acknowledged in the topic is in the store of every
member at the end; and what is in front of the position that a table has written down is in its store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.worlds.backends import SimBackend
from tests.worlds.journals import Journal
from tests.worlds.kv.hosts import KvHost
from tests.worlds.kv.scenario import RELAYS, KvMeshed
from tests.worlds.kv.world import Operation
from tests.worlds.log.standin.members import BUFFER_BYTES, ConsumerHost, ProducerHost
from tests.worlds.log.standin.node import NodeHost
from tests.worlds.log.standin.scenario import StandInLog
from tests.worlds.log.world import contents
from tests.worlds.mesh.base import PORT
from tests.worlds.mesh.checkers import Bounds, Patience, Storms
from tests.worlds.mesh.hosts import EndpointHost
from tests.worlds.mesh.world import MeshWorld

from chappe.core import Deliver, Persist, Report, Resolve
from chappe.data.topic import Filter
from chappe.errors import BufferFull, StorageError, StoreError
from chappe.kv import events
from chappe.kv.entity import Entity
from chappe.kv.role import KeyChange
from chappe.log.delivery import Records
from chappe.log.events import RecordsLost
from chappe.member import KvPart
from chappe.mesh.endpoint import EndpointOptions
from chappe.mesh.messages import COMMAND, Message
from chappe.sim.host import SimHost, SimMember
from chappe.sim.world import Checker, SimWorld

TOPIC: Final = "table"
EVENTS_PREFIX: Final = b"/event/"
EVENTS: Final = (b"/event/a", b"/event/b")
RETRY_S: Final = 1.0  # what the store has refused is written again after this long
POSITION: Final = "position "  # begins the keys under which it is kept how far a partition was taken
MASTER: Final = "master"
PART: Final = 7  # the number of a data store at its member


def row_of(partition: str, key: bytes) -> str:
    """Under which key of the store the latest record of a key of a partition is."""
    return f"row {partition} {key.decode()}"


def row_value(offset: int, value: bytes | None) -> tuple[int, str | None]:
    """What is there."""
    return offset, None if value is None else value.decode()


def loaded(master: KvHost) -> dict[str, Any]:
    """What a master begins with, under keys that are strings."""
    entries = () if master.backend is None else master.backend.load().entries
    return {key: value for key, value, _ in entries if isinstance(key, str)}


class MixedLog(StandInLog):
    """The log of a mix."""

    def __init__(self, whole: Mix) -> None:
        self.whole: Mix = whole
        super().__init__(whole.seed, whole.settings, whole.tell)


class MixedKv(KvMeshed, MeshWorld):
    """The mesh and the data store of a mix."""

    def __init__(self, whole: Mix) -> None:
        self.whole: Mix = whole
        super().__init__(whole.seed, whole.settings, whole.tell)
        self.clears = False
        self.watch(Storms(self), Bounds(self), Patience(self))
        self._lives_made = 0

    def make(self, name: str) -> None:
        """Begin the next life of a member."""
        rng = self.rng
        self._lives_made += 1
        life = f"{name}#{self._lives_made}"
        self.born(life, forwards=True)
        options = EndpointOptions(heartbeat_s=rng.choice((0.5, 1.0)), first_number=1 + int(self.now * 1_000_000))
        host: EndpointHost
        if name.startswith(RELAYS):
            host = EndpointHost(self, name, life, rng.randbytes(16), options, self.core)
        else:
            host = InProcess(self, name, life, options, self.backend if name == "master" else None)
            host.start()
        for one, two in sorted(self.wires):
            if one == name:
                host.peer((two, PORT), rng.choice((0.3, 1.0)))
        if name == MASTER or name.startswith("clone"):
            self.whole.begin_process(name)

    def heal(self) -> None:
        """Everybody in reach."""
        self.net.mend()
        super().heal()

    def slow(self, host: Any, on: bool) -> None:
        """A member reads slowly."""
        host.read_s = self.rng.choice((0.02, 0.2)) if on else 0.0

    def endpoints(self) -> list[Any]:
        """All that run, with a data store or without one."""
        return self.alive(EndpointHost)

    def speak(self, endpoint: Any, topic: bytes, payload: bytes, receiver: Any) -> None:
        """Have an endpoint send a command to another one alone."""
        endpoint.ask(endpoint.core.publish, topic, payload, COMMAND, receiver.own_id)

    def ended(self, host: Any, serial: int, outcome: object) -> None:
        """Its outcome, which a table may wait for."""
        super().ended(host, serial, outcome)
        table = self.whole.beside(MASTER)
        if isinstance(table, Table) and serial in table.writing:
            table.done(serial, outcome)


class InProcess(EndpointHost, KvHost):
    """An endpoint with a master or a clone, in a process with a member of the log."""

    world: MixedKv

    def __init__(
        self, world: MixedKv, name: str, life: str, options: EndpointOptions, backend: SimBackend | None = None
    ) -> None:
        super().__init__(world, name, life, world.rng.randbytes(16), options, world.core)
        self.table[Persist] = self._persist
        self.take_part(self.own_id, backend)
        self.part: KvPart = self.member.attach(self.role, PART)

    def start(self) -> None:
        """Begin; a clone's process records events."""
        self.call(self.part.start, self.now)
        if self.kind == "clone":
            self.want([EVENTS_PREFIX])

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """The whole process dies."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        self.world.whole.end_process(self.name)

    def write(self, method: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> None:
        """Make one call that writes."""
        effects = method(*arguments, now=self.part.check(self.now), **options)
        self.call(partial(self.part.wrote, effects, self.now, expires="expiry_ns" in options))

    def ask_role(self, method: Callable[..., Any], *arguments: object) -> None:
        """Make one call that a ``Resolve`` answers."""
        effects = method(*arguments, now=self.part.time(self.now))
        self.call(self.part.answered, effects, self.now)

    def leave(self) -> None:
        """Say goodbye."""
        self.call(self.part.close, self.now)

    def committed(self, job: Any, error: StorageError | None) -> None:
        """A job is done, or was refused."""
        self.call(self.member.handle_done, job, error, self.now)

    def _persist(self, action: Persist) -> None:
        KvHost._persist(self, action)

    def _deliver(self, action: Deliver) -> None:
        if action.to == PART:  # of those who watch the store the world hears when the core answers
            return
        super()._deliver(action)
        recorder = self.world.whole.beside(self.name)
        if isinstance(recorder, Recorder):
            recorder.events += action.messages
            recorder.record()

    def _next_ticket(self) -> int:
        return -super()._next_ticket()  # those of the store are above 0

    def _resolve(self, action: Resolve) -> None:
        if action.ticket < 0:
            super()._resolve(action)

    def _report(self, action: Report) -> None:
        if type(action.event).__module__ != events.__name__:
            super()._report(action)


class Recorder(ProducerHost):
    """Makes a record of every event that its endpoint gets."""

    world: MixedLog

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.events: deque[Message] = deque()

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """The whole process dies."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        self.world.whole.end_process(self.name)

    def record(self) -> None:
        """Take events into the journal, as far as there is room."""
        core = self.core
        while self.events and self.alive and not self.frozen:
            if core.held(self.world.now) or core.pending or core.kept_bytes >= BUFFER_BYTES:
                return
            event = self.events[0]
            if not self._flush(core.append(event.payload, event.topic)):
                return
            self.events.popleft()
            self.world.see("on_recorded", self, event)

    def _work(self) -> None:
        super()._work()
        self.record()


class Table(ConsumerHost):
    """Keeps the topic as a table in the store of its process: batch after batch, and behind each its position."""

    world: MixedLog
    counts = False  # what one store has acknowledged is to be in the table

    def __init__(self, world: MixedLog, name: str) -> None:
        self.kv = world.whole.kv
        master: Any = self.kv.hosts[MASTER]
        self.master: KvHost = master
        shown = loaded(self.master).items()
        positions = {(TOPIC, key.removeprefix(POSITION)): at for key, at in shown if key.startswith(POSITION)}
        super().__init__(world, name, [Filter.parse(TOPIC)], positions)
        self.writing: dict[int, tuple[str, Any]] = {}  # by serial number, without an outcome yet
        self._left: set[str] = set()  # keys that are to be written before anything else is
        self._batches: deque[Records] = deque()

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """The whole process dies."""
        super().die(goodbye=goodbye, notice_s=notice_s)
        self.world.whole.end_process(self.name)

    def deliver(self, action: Records) -> None:
        """See ``ConsumerHost.deliver``."""
        self.world.see("on_deliver", self, action)
        self._batches.append(action)
        if len(self._batches) == 1:
            self._write_rows()

    def _write_rows(self) -> None:
        batch = self._batches[0]
        rows: dict[str, Any] = {}
        for offset, (value, key) in enumerate(contents(batch.batch, batch.start), batch.start):
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
        if not self.alive:
            return
        kv, serial = self.kv, self.kv.next_serial()
        self.writing[serial] = (key, value)
        kv.began(self.master, Operation(str(self.master.entity), "put", key, value), serial)
        try:
            self.master.write(self.master.role.put, [key, value], {"ticket": serial})
        except (StoreError, BufferFull) as error:
            kv.ended(self.master, serial, error)

    def done(self, serial: int, outcome: object) -> None:
        """What became of a write; what the store has refused is written again a little later."""
        key, value = self.writing.pop(serial)
        if outcome is not None:
            self.world.clock.after(RETRY_S, self._put, key, value)
            return
        self._left.discard(key)
        if not self._left:
            self._go_on(key)

    def _go_on(self, key: str | None) -> None:
        """All is done that was to be written, the last of it ``key``."""
        batch = self._batches[0]
        if key is None or not key.startswith(POSITION):
            self._write({POSITION + batch.partition: batch.batch.next})
            return
        self._batches.popleft()
        if self.alive:
            self.carry_taken(len(batch.batch.raw))
        if self._batches:
            self._write_rows()


class Bridges(Checker["Mix"]):
    """What is promised from one end of a mix to the other."""

    name = "bridges"

    def __init__(self, world: Mix) -> None:
        super().__init__(world)
        self._recorded: dict[Recorder, set[bytes]] = {}
        self._passed: dict[str, set[int]] = {}  # by partition: offsets given up by a table that had met no store
        self._shown: dict[Entity, dict[str, Any]] = {}  # by each life of the master

    def on_recorded(self, host: Recorder, event: Message) -> None:
        """One life of a recorder takes every event once."""
        recorded = self._recorded.setdefault(host, set())
        if event.payload in recorded:
            self.fail(f"{host.name} records {event.payload!r} twice")
        recorded.add(event.payload)

    def on_report(self, host: SimHost, event: object) -> None:
        """Who has met no store takes what a producer still has."""
        if isinstance(event, RecordsLost) and isinstance(host, Table) and not host.core.met_stores:
            self._passed.setdefault(event.partition, set()).update(range(event.first, event.last + 1))

    def on_notify(self, host: KvHost, action: KeyChange) -> None:
        """What is in front of a position that is shown is in the store, too."""
        key, value = action.key, action.value
        if host.name != MASTER or not isinstance(key, str):
            return
        shown = self._shown.get(host.entity)
        if shown is None:
            shown = self._shown[host.entity] = loaded(host)
        shown[key] = value
        if key.startswith(POSITION) and isinstance(value, int):
            missing = self._missing(key.removeprefix(POSITION), value, shown.get)
            if missing is not None:
                self.fail(f"{host.name} shows {key!r} at {value}, and lacks {missing}")

    def _missing(self, partition: str, end: int, find: Callable[[str], Any]) -> str | None:
        """The first key whose latest record before ``end`` is not what a store has, or is later there."""
        log = self.world.log
        sent = log.truth.of((TOPIC, partition))
        latest = {}
        first, end = log.begun.get((TOPIC, partition), 0), min(end, len(sent.records))
        # Its producer will not come back: what no disk has is passed over.
        nowhere = set(log.missing_within((TOPIC, partition), first, end)) if sent.gone else set()
        nowhere |= self._passed.get(partition, set())
        for offset in range(first, end):
            key = sent.records[offset][1]
            if key is not None and offset not in sent.lost and offset not in nowhere:
                latest[row_of(partition, key)] = offset
        for row, offset in latest.items():
            found = find(row)
            if found is None or found[0] < offset:
                return f"{row!r} of offset {offset}, there is {found}"
            if found != row_value(found[0], sent.records[found[0]][0]):
                self.fail(f"under {row!r} there is {found}, sent was {sent.records[found[0]]}")
        return None

    def unsettled(self) -> str | None:
        """What is recorded is in the topic, and what is acknowledged there is in every copy of the store."""
        truth = self.world.log.truth
        for host, recorded in self._recorded.items():
            values = {value for value, _ in truth.of(host.key).records}
            if not recorded <= values and not truth.of(host.key).gone:
                self.fail(f"{host.name} has recorded {recorded - values}, which are not in the topic")
        for (topic, partition), sent in truth.parts.items():
            for member in self.world.kv.alive(KvHost) if topic == TOPIC else ():
                entries = member.role.engine.entries
                shown = {key: each.value for key, each in entries.items() if isinstance(key, str)}
                missing = self._missing(partition, sent.acknowledged, shown.get)
                if missing is not None:
                    return f"{member.name} lacks {missing}"
        return None


class Mix(SimWorld):
    """A log, a mesh with a data store, and bridges between them, in shared processes."""

    tick_s = 0.5
    settle_max_s = 200.0
    events_max = 2_000_000

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.log = MixedLog(self)
        self.kv = MixedKv(self)
        self.parts = (self.log, self.kv)
        self._beside: dict[str, SimMember] = {}  # members of the log, by the name of the other one in their process
        bridges = Bridges(self)
        for part in self.parts:
            part.watch(bridges)

    def begin(self) -> None:
        """Make the first members."""
        for part in self.parts:
            part.begin()
        self.watch(*dict.fromkeys([*self.log.checkers, *self.kv.checkers]))
        self._publish()

    def _publish(self) -> None:
        hosts = self.kv.alive(EndpointHost)
        if hosts and self.kv.working:
            for _ in range(self.rng.choice((1, 1, 5))):
                self.kv.publish(self.rng.choice(hosts), self.rng.choice(EVENTS))
        self.clock.after(self.rng.expovariate(5.0), self._publish)

    def plan(self, until: float) -> float:
        """Plan the faults of both."""
        return max([part.plan(until) for part in self.parts])

    def heal(self) -> None:
        """End everything that is wrong."""
        for part in self.parts:
            part.heal()

    def stop(self) -> None:
        """Ask for nothing more."""
        for part in self.parts:
            part.stop()

    def progress(self) -> int:
        """Rises while something that many wait for goes on."""
        return sum(part.progress() for part in self.parts)

    def count(self) -> int:
        """Records and operations."""
        return sum(part.count() for part in self.parts)

    # -- processes ------------------------------------------------------------------------------------------

    def begin_process(self, name: str) -> None:
        """A member of the mesh begins a life, and with it the one of the log that is in its process."""
        log = self.log
        if name in self._beside:
            self._beside[name].restart()
            return
        make: Callable[[str], SimHost] = partial(Table, log)
        if name != MASTER:
            journal = Journal(log.journal_rng)
            log.journals.append(journal)
            make = log.producer_of(TOPIC, self.rng.choice((1, 1, min(2, len(log.disks)))), journal, Recorder)

        def begin() -> SimHost:
            if not self.kv.hosts[name].alive:
                raise StorageError("its process does not run")  # and is tried again later
            return make(name)

        member = self._beside[name] = SimMember(log, name, begin)
        log.members.append(member)

    def end_process(self, name: str) -> None:
        """One member has died, and the other one of its process dies with it."""
        host = self.kv.hosts[name]
        if isinstance(host, InProcess) and host.alive:
            self.kv.killed(host)
        if name in self._beside:
            self._beside[name].crash()

    def beside(self, name: str) -> NodeHost | None:
        """The member of the log in a process, if it lives."""
        member = self._beside.get(name)
        host = None if member is None else member.host
        return host if isinstance(host, NodeHost) and host.alive else None
