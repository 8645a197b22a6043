"""What members do in the simulation: producers send, consumers take what is delivered; ``stores`` has the third."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chappe.data.topic import Filter
from chappe.log.actions import Deliver, Persist, Publish, Trim
from chappe.log.batch import Batch
from chappe.log.consumer import EARLIEST, LogConsumer
from chappe.log.messages import BatchMessage, RecordMessage
from chappe.log.producer import LogProducer
from chappe.log.sources import Key
from chappe.sim.node import Host
from chappe.sim.truth import Content

if TYPE_CHECKING:
    from chappe.sim.world import World

BUFFER_BYTES = 20_000  # a producer that is not acknowledged waits here
RECORDS_MAX = 300  # of one partition: small worlds are quick worlds


class Journal:
    """A producer's journal; it drops what is stored now or later, as the one on disk drops whole files."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.next_offset = 0

    def append(self, body: bytes) -> None:
        """Make a batch durable."""
        self.batches.append(body)
        self.next_offset = Batch.parse(body).next

    def trim(self, offset: int, keep: int) -> None:
        """Everything before ``offset`` is stored; up to ``keep`` such batches stay all the same."""
        stored = sum(Batch.parse(body, check=False).next <= offset for body in self.batches)
        del self.batches[: max(0, stored - keep)]


class ProducerHost(Host):
    """A producer that sends now and then."""

    def __init__(self, world: World, name: str, topic: str, address: str, min_acks: int, journal: Journal | None):
        self.core: LogProducer = world.cores.producer(
            topic,
            address,
            min_acks=min_acks,
            journal=None if journal is None else list(journal.batches),
            next_offset=0 if journal is None else journal.next_offset,
        )
        super().__init__(world, name, self.core)
        self.key: Key = (topic, address)
        self.min_acks = min_acks
        self.journal = journal
        self.doomed = False  # dies in the midst of its next Persist
        self.stored = self.core.stored
        self.every_s = world.rng.choice((0.02, 0.1, 0.5, 2.0))
        self._gathered: list[Content] = []
        self._perform |= {Persist: self._persist, Trim: self._trim}
        truth = world.truth.of(self.key)
        known = len(truth.records)
        if self.core.next_offset != known:
            world.fail("identity", f"{name} resumes at {self.core.next_offset}, it had published {known} records")

    def start(self) -> None:
        """Begin to send."""
        super().start()
        self.world.clock.after(self.world.rng.random(), self._work)

    def _work(self) -> None:
        world = self.world
        if not self.alive:
            return
        if self.stalled_until > world.now:
            world.clock.at(self.stalled_until, self._work)
            return
        if (
            world.sending
            and self.core.kept_bytes < BUFFER_BYTES
            and len(world.truth.of(self.key).records) < RECORDS_MAX
        ):
            self.send(world.rng.choice((1, 1, 2, 5, 30)))
        world.clock.after(world.rng.expovariate(1.0) * self.every_s, self._work)

    def send(self, count: int) -> None:
        """Publish ``count`` records, as many at once as the batch takes."""
        rng, core = self.world.rng, self.core
        if rng.random() < 0.3:
            values = [self._value() for _ in range(count)]
            at = 0
            while at < count and self.alive:
                end = core.append_many(values, at)
                self._gathered += [(value, None) for value in values[at:end]]
                at = end
                self._flush()
        else:
            for _ in range(count):
                value: bytes | None = self._value()
                key = b"k%d" % rng.randrange(5) if rng.random() < 0.1 else None
                if rng.random() < 0.02:
                    value = None
                headers = (("h", b"x"),) if rng.random() < 0.02 else ()
                stamp = self.world.clock.wall_us - rng.randrange(10**7) if rng.random() < 0.05 else None
                core.append(value, key, headers, stamp)
                self._gathered.append((value, key))
                if core.full:
                    self._flush()
        self._flush()
        if rng.random() < 0.3 and self.alive:
            core.hurry(self.world.now, rng.random() < 0.5)
            self.arm()

    def _value(self) -> bytes:
        world = self.world
        world.serial += 1
        return b"%d:" % world.serial + b"x" * world.rng.choice((0, 0, 3, 40, 400))

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered or not self.alive:
            return
        base = self.core.next_offset - len(gathered)
        actions = self.core.flush(self.world.now, self.world.clock.wall_us)
        if self.doomed:
            if self.world.rng.random() < 0.5:  # the journal has it, and nobody heard of it
                self.world.truth.sent(self.key, base, gathered)
                self.perform(actions[:1])
            self.die()
            return
        self.world.truth.sent(self.key, base, gathered)
        self.perform(actions)
        self.arm()

    def _persist(self, action: Persist) -> None:
        assert self.journal is not None
        self.journal.append(action.body)

    def _trim(self, action: Trim) -> None:
        assert self.journal is not None
        self.journal.trim(action.offset, self.world.rng.choice((0, 1, 5)))

    def _publish(self, action: Publish) -> None:
        message = action.message
        if isinstance(message, (BatchMessage, RecordMessage)) and self.journal is not None:
            end = Batch.parse(message.body).next if isinstance(message, BatchMessage) else message.sequence + 1
            if end > self.journal.next_offset:
                self.world.fail("identity", f"{self.name} publishes {end - 1} before its journal has it")
        super()._publish(action)

    def call(self, method: Any, *args: object) -> None:
        """As every host's, and note what was acknowledged by it."""
        super().call(method, *args)
        if self.core.stored > self.stored:
            before, self.stored = self.stored, self.core.stored
            for checker in self.world.checkers:
                checker.on_stored(self, before, self.stored)


class ConsumerHost(Host):
    """A consumer whose application takes what is delivered, sooner or later."""

    def __init__(self, world: World, name: str, filters: Sequence[Filter], positions: dict[Key, int]) -> None:
        self.core: LogConsumer = world.cores.consumer(world.address(), filters, EARLIEST, positions)
        super().__init__(world, name, self.core)
        self.filters = tuple(filters)
        self.met: set[str] = set()  # addresses of stores that it knew at any time
        self.positions = dict(positions)  # next offset delivered, as the checkers count it
        self.slow_s = world.rng.choice((0.0, 0.0, 0.01, 0.3))
        self._waiting: deque[int] = deque()
        self._taking = False
        self._perform[Deliver] = self._deliver

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is consumed."""
        return any(each.matches(topic) for each in self.filters)

    def call(self, method: Any, *args: object) -> None:
        """As every host's, and note which stores are known by it."""
        super().call(method, *args)
        self.met.update(self.core._sources.stores)

    def _deliver(self, action: Deliver) -> None:
        self.world.trace(
            self, "gets %s/%s %d..%d", action.topic, action.partition[:6], action.start, action.batch.next - 1
        )
        for checker in self.world.checkers:
            checker.on_deliver(self, action)
        self._waiting.append(len(action.batch.raw))
        if not self._taking:
            self._taking = True
            self.world.clock.after(self.slow_s * self.world.rng.random(), self._take)

    def _take(self) -> None:
        self._taking = False
        if not self.alive:
            return
        if self.stalled_until > self.world.now:
            self._taking = True
            self.world.clock.at(self.stalled_until, self._take)
            return
        taken = 1 if self.slow_s and self.world.sending else len(self._waiting)
        was_paused = self.core.paused
        for _ in range(taken):
            self.call(self.core.taken, self._waiting.popleft(), self.world.now)
        if was_paused and not self.core.paused:
            self.resume()
        if self._waiting and not self._taking:
            self._taking = True
            self.world.clock.after(self.slow_s * self.world.rng.random(), self._take)
