"""What members do in the simulation: producers send, consumers take what is delivered; ``stores`` has the third."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tests.worlds.clocked import HostClock
from tests.worlds.journals import Gathered, Journal
from tests.worlds.log.standin.node import NodeHost
from tests.worlds.log.standin.stores import StoreHost
from tests.worlds.log.standin.world import LogWorld
from tests.worlds.log.subjects import ConsumerSubject, ProducerSubject
from tests.worlds.log.world import KEYED

from chappe.core import Deliver, Effect, Persist, Publish
from chappe.data.topic import Filter
from chappe.errors import StorageError
from chappe.log.batch import Batch
from chappe.log.consumer import EARLIEST, LogConsumer
from chappe.log.consuming import ConsumingMember
from chappe.log.delivery import Records
from chappe.log.events import IdentityBehind
from chappe.log.member import LogProducers, ProducingMember
from chappe.log.messages import Ack, BatchMessage, Fetch, Head, Message, RecordMessage, Stored
from chappe.log.producer import JournalBatch, JournalTrim, LogProducer
from chappe.log.sources import Key
from chappe.sim.host import SimHost
from chappe.sim.pubsub import SimLink
from chappe.sim.world import Excused, Violation

BUFFER_BYTES = 20_000  # a producer that is not acknowledged waits here
RECORDS_MAX = 300  # of one partition: small worlds are quick worlds


class ProducerHost(NodeHost, ProducerSubject):
    """A producer that sends now and then."""

    mark = b""  # before keys and values

    def __init__(
        self,
        world: LogWorld,
        name: str,
        topic: str,
        address: str,
        min_acks: int,
        journal: Journal | None,
        renew: Callable[[], None] | None = None,
    ) -> None:
        self.member = ProducingMember(name)
        self.part = LogProducers(address, self.member.subscriptions, clock=HostClock(world, name))
        self.core: LogProducer = world.cores.producer(
            topic,
            address,
            clock=self.part.clock,
            min_acks=min_acks,
            journal=None if journal is None else list(journal.batches),
            next_offset=0 if journal is None else journal.next_offset,
            resumed=journal is not None and journal.lives > 1,
            limits=world.limits,
            subscriptions=self.member.subscriptions,
            kept=self.part.kept,
        )
        super().__init__(world, name, self.member)
        self.key: Key = (topic, address)
        self.min_acks = min_acks
        self.journal = journal
        self._renew = renew
        self._resumed_at = self.core.next_offset
        self._sent_to = self._resumed_at  # the offset behind all that it has published, now or in an earlier life
        self._unheard_from = math.inf  # the first offset that was published where nobody listened
        self.stored = self.core.stored
        self.every_s = world.rng.choice((0.02, 0.1, 0.5, 2.0))
        self._records_max = world.more_rng.choice((1, 10)) if world.more(0.3) else RECORDS_MAX
        self._hurries = 0.0 if world.more(0.3) else 0.3  # of what it sends somebody waits for
        self._began = world.now
        self._listen: set[str] = (
            set()
        )  # stores, by name, that listened before one had said how far it holds the partition
        self._begins: frozenset[str] = frozenset()  # who asked, and was not answered yet
        self._answered = False  # one of them, or another one while they listened, has said so
        self.table |= {Persist: self._persist}
        known = len(world.truth.of(self.key).records)
        if self.core.next_offset < known and not (journal is not None and journal.rolled_back):
            world.fail("identity", f"{name} resumes at {self.core.next_offset}, it had published {known} records")
        if journal is not None and journal.lost:
            world.fail("identity", f"{name} takes {journal.lost} for damaged, which is sound")
        for body in [] if journal is None else journal.batches:
            batch = Batch.parse(body, check=False)  # from now on it is told to whoever asks
            try:
                world.truth.sent(self.key, batch.base, world.contents(batch, batch.base))
            except Violation:
                if journal is None or not journal.rolled_back:
                    raise
                raise Excused(f"{name} takes for published what its last life wrote and nobody heard of") from None

        for offset, record in [] if journal is None else journal.pending.items():
            if self.core.append(*record) != offset:
                world.fail("identity", f"{name} resumes with another record at {offset}, which was given away")

    def start(self) -> None:
        """Begin to send."""
        super().start()
        now = self.world.now
        self.call(self.member.add, self.part, now, self.journal is not None)
        self.call(self.member.add_topic, self.part, self.core, now)
        self.world.clock.after(self.world.rng.random(), self._work)

    def _work(self) -> None:
        world = self.world
        if not self.alive:
            return
        if self.stalled_until > world.now:
            world.clock.at(self.stalled_until, self._work)
            return
        if self.core.pending:
            self._flush(self.core.next_offset)
        room = self.core.kept_bytes < BUFFER_BYTES and self.core.next_offset < self._records_max
        if room and world.sending:
            self.send(world.rng.choice((1, 1, 2, 5, 30)))
        world.clock.after(world.rng.expovariate(1.0) * self.every_s, self._work)

    def send(self, count: int) -> None:
        """Publish ``count`` records, as many at once as the batch takes; what the journal refuses is not sent."""
        rng, core = self.world.rng, self.core
        if core.held(self.world.now) or core.pending:
            if not core.full:
                late = self._value()
                self._pend(core.append(late), (late, None, (), self.wall_us))
            return
        if rng.random() < 0.3:
            values = [self._value() for _ in range(count)]
            at = 0
            while at < count and self.alive:
                first = core.next_offset
                at = core.append_many(values, at)
                if not self._flush(first):
                    return
        else:
            for _ in range(count):
                value: bytes | None = self._value()
                key = self.mark + b"k%d" % rng.randrange(5) if rng.random() < KEYED else None
                if rng.random() < 0.02:
                    value = None
                headers = (("h", self.mark + b"x"),) if rng.random() < 0.02 else ()
                stamp = self.wall_us - rng.randrange(10**7) if rng.random() < 0.05 else None
                offset = core.append(value, key, headers, stamp)
                if core.full and not self._flush(offset):
                    return
                self._pend(offset, (value, key, headers, self.wall_us if stamp is None else stamp))
        self._flush(core.next_offset)
        if rng.random() < self._hurries and self.alive:
            core.hurry(self.world.now, rng.random() < 0.5)
            self.carry(())

    def carry(self, actions: Sequence[Effect]) -> None:
        """Carry out what a call of the core returned."""
        self.perform(self.member.carry(self.part, actions))
        self.arm()

    def _pend(self, offset: int, record: Gathered) -> None:
        if self.journal is not None and self.core.pending:
            try:
                self.journal.pend(offset, record)
            except StorageError:
                self.core.take_back(offset)

    def _value(self) -> bytes:
        world = self.world
        world.serial += 1
        return self.mark + b"%d:" % world.serial + b"x" * world.rng.choice((0, 0, 3, 40, 400))

    def _flush(self, offset: int) -> bool:
        """Publish what is gathered; returns whether it is. If not, what comes from ``offset`` on is taken back."""
        if not self.alive:
            return False
        actions = self.core.flush(self.world.now)
        if actions and self.doomed:
            if self.journal is not None and self.world.rng.random() < 0.5:
                with suppress(StorageError):
                    self.journal.append(self.core.persisting)  # the journal has it, and nobody heard of it
            self.die()
            return False
        self.carry(actions)
        if not actions or not self.core.refused:
            return True
        self.core.take_back(max(offset, self.core.published))
        return False

    def _persist(self, action: Persist) -> None:
        job = action.job
        assert self.journal is not None
        if isinstance(job, JournalTrim):
            self.world.failed[JournalTrim] += self.journal.trim(job.offset, self.world.rng.choice((0, 1, 5))) > 0
            return
        refusal: StorageError | None = None
        try:
            self.journal.append(job.body)
        except StorageError as error:
            self.world.trace(self, "journal: %s", error)
            self.world.failed[JournalBatch] += 1
            refusal = error
        self.carry(self.core.handle_done(job, refusal, self.world.now))

    def _publish(self, action: Publish) -> None:
        message = action.message
        end = 0
        if isinstance(message, BatchMessage) and message.direct and self._loses(message.topic):
            self.world.trace(self, "sends %s the beginning of an answer, which is lost", message.topic[:6])
            self.world.failed[Publish] += 1
            return
        if isinstance(message, BatchMessage):
            batch = Batch.parse(message.body, check=False)
            end = batch.next
            if self.journal is not None and self.journal.rolled_back and not self.listeners:
                self._unheard_from = min(self._unheard_from, batch.base)
                return  # nobody hears of it
            self._see_rolled_back(batch)
            self._see_given(batch)
            self._sent_to = max(self._sent_to, batch.next)
            self.world.truth.sent(self.key, batch.base, self.world.contents(batch, batch.base))
        elif isinstance(message, (RecordMessage, Head)):
            end = message.sequence + 1
        asks = end == 1 and not self._resumed_at  # what stores hold of a partition that has no record yet
        if self.journal is not None and end > self.journal.next_offset and not asks:
            self.world.fail("identity", f"{self.name} tells of {end - 1} before its journal has it: {message}")
        super()._publish(action)

    def _loses(self, requester: str) -> bool:
        """Whether the first message of an answer is lost: once for each who asks, where producers had not heard it."""
        begins, self._begins = requester in self._begins, self._begins - {requester}
        world, asked = self.world, (requester, self.key)
        if not begins or asked in world.beginnings or world.answer_rng.random() > 0.5:
            return False
        world.beginnings.add(asked)
        return True

    def _see_rolled_back(self, batch: Batch) -> None:
        """An identity that was rolled back publishes nothing new while a store could tell it.

        Except for one that comes when another one has answered already, with less.
        """
        known = len(self.world.truth.of(self.key).records)
        base = min(batch.base, self._unheard_from)
        if self.journal is None or not self.journal.rolled_back or batch.next <= self._sent_to or base >= known:
            return
        if not self._answered and self.world.now < self._began + self.world.limits.resume_wait_s:
            self.world.fail("identity", f"{self.name} publishes {batch.base} again before any store has answered")
        for store in self.world.alive(StoreHost):
            part = store.disk.parts.get(self.key)
            link = store.links.get(self.endpoint)
            listens = link is not None and link.publisher is self and store.name in self._listen
            told = 0 if part is None else min([part.next, *(low for low, _ in part.gaps())])  # not beyond a hole
            if told > self._resumed_at and listens:
                self.world.fail("identity", f"{self.name} publishes {batch.base} again, {store.name} could tell it")
        raise Excused(f"{self.name} was rolled back, and no store was there that knew")

    def _see_given(self, batch: Batch) -> None:
        """An offset that a sender got is never used for another record."""
        if self.journal is None or self.journal.rolled_back:
            return
        for offset, value in enumerate(self.world.opened(batch).values(), batch.base):
            if self.journal.given.get(offset, value) != value:
                self.world.fail("identity", f"{self.name} publishes another record at {offset}, which was given away")

    def on_subscription(self, link: SimLink, prefix: bytes, on: bool) -> None:
        """As every host's; a store may stand still just when it is asked how far it holds what was rolled back."""
        super().on_subscription(link, prefix, on)
        store = link.subscriber
        if isinstance(store, StoreHost) and prefix == b"F":
            if on and not self._answered:
                self._listen.add(store.name)
            elif not on:
                self._listen.discard(store.name)
        rolled_back = self.journal is not None and self.journal.rolled_back
        if not rolled_back or not on or prefix != b"F" or not isinstance(store, StoreHost):
            return
        if self.world.more(0.5):
            store.stalled_until = max(store.stalled_until, self.world.now + 2.0)
            self.world.clock.after(2.0, store.resume)

    def on_listener_gone(self, link: SimLink, asked: list[bytes]) -> None:
        """As every host's; a store that died before it answered does not listen until it comes again."""
        super().on_listener_gone(link, asked)
        if b"F" in asked and isinstance(link.subscriber, StoreHost):
            self._listen.discard(link.subscriber.name)

    def on_message(self, message: Message) -> None:
        """As every host's, and note whether a store has answered."""
        self._answered = self._answered or (bool(self._listen) and isinstance(message, Stored | Ack))
        if self.world.deaf and isinstance(message, Fetch):
            self._begins = self._begins | {message.address}
        super().on_message(message)

    def told(self, event: object) -> None:
        """As every host's; an identity that stores know better begins anew."""
        super().told(event)
        if isinstance(event, IdentityBehind):
            if self.journal is None or not self.journal.rolled_back:
                self.world.fail("identity", f"{self.name} gives up its identity, which is as it was left: {event}")
            assert self._renew is not None
            self._renew()
            self.world.truth.of(self.key).gone = True
            self.die()

    def call(self, method: Any, *args: object, **options: object) -> None:
        """As every host's, and note what was acknowledged by it."""
        super().call(method, *args, **options)
        if self.core.stored > self.stored:
            before, self.stored = self.stored, self.core.stored
            self.world.see("on_stored", self, before, self.stored)


class ConsumerHost(NodeHost, ConsumerSubject):
    """A consumer whose application takes what is delivered, sooner or later.

    Args:
        home: In whose node it lodges; it comes to it later, and ``die`` leaves it. None: it has a node of its own.
    """

    counts = True  # some wait for several stores; what these have to show depends on how many are there

    def __init__(
        self, world: LogWorld, name: str, filters: Sequence[Filter], positions: dict[Key, int],
        home: ConsumerHost | None = None,
    ) -> None:  # fmt: skip
        stored = world.stored > 0.0 and world.stored_rng.random() < world.stored
        self.min_acks = world.stored_rng.choice((1, 2, 2)) if stored else 0
        if not self.counts:
            self.min_acks = min(self.min_acks, 1)
        self.core: LogConsumer = world.cores.consumer(
            world.address(), filters, EARLIEST, positions, world.limits, clock=HostClock(world, name),
            min_acks=self.min_acks,
        )  # fmt: skip
        self.reset = EARLIEST
        self.home = home or self
        self.lodgers = {self.core.address: self}  # consumers in its node
        self.member: ConsumingMember = ConsumingMember(name, world.limits) if home is None else home.member
        if home is None:
            super().__init__(world, name, self.member)
        else:
            SimHost.__init__(self, world, name)
        self.filters = tuple(filters)
        self.met: set[str] = set()  # addresses of stores that it knew at any time
        self.positions = dict(positions)  # next offset delivered, as the checkers count it
        self.slow_s = world.rng.choice((0.0, 0.0, 0.01, 0.3))
        self._waiting: deque[int] = deque()
        self._taking = False
        self.table |= {Deliver: self._hand}

    def start(self) -> None:
        """Begin."""
        if self.home is self:
            super().start()
        self.home.lodgers[self.core.address] = self
        self.home.call(self.member.add, self.core, self.world.now)

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """As every host's, with those that lodge here; a lodger only leaves."""
        if self.home is self:
            super().die(goodbye=goodbye, notice_s=notice_s)
            for each in self.lodgers.values():
                each.alive = False
        elif self.alive:
            self.alive = False
            self.home.call(self.member.remove, self.core.address, self.world.now)
            del self.home.lodgers[self.core.address]

    def taken(self) -> dict[Key, int]:
        """From where its next life goes on."""
        return self.positions

    def neglects(self) -> bool:
        """Return whether messages are left in the queue, though it has room."""
        return any(link.left for link in self.links.values()) and not self.paused()

    def subscribe(self, wanted: Filter) -> None:
        """Consume further topics."""
        self.filters = (*self.filters, wanted)
        self.home.call(self.member.subscribe, self.core, wanted, self.world.now)

    def unsubscribe(self, wanted: Filter) -> None:
        """Consume topics no longer."""
        self.home.call(self.member.unsubscribe, self.core, wanted, self.world.now)
        self.filters = tuple(each for each in self.filters if each != wanted)

    def call(self, method: Any, *args: object, **options: object) -> None:
        """As every host's, and note which stores are known by it."""
        super().call(method, *args, **options)
        for each in self.lodgers.values():
            each.met.update(each.core.store_addresses)

    def host_of(self, address: str) -> NodeHost:
        """The one who lodges here with this consumer."""
        return self.lodgers[address]

    def _hand(self, action: Deliver) -> None:
        host = self.lodgers[action.to]
        if not host.alive:
            return
        host.deliver(action.messages)

    def deliver(self, action: Records) -> None:
        """The core hands on records."""
        self.world.trace(
            self, "gets %s/%s %d..%d", action.topic, action.partition[:6], action.start, action.batch.next - 1
        )
        self.world.see("on_deliver", self, action)
        self._waiting.append(len(action.batch.raw))
        if not self._taking:
            self._taking = True
            self.world.clock.after(self.slow_s * self.world.rng.random(), self._take)

    def _take(self) -> None:
        self._taking = False
        if not self.alive:
            return
        if self.home.stalled_until > self.world.now:
            self._taking = True
            self.world.clock.at(self.home.stalled_until, self._take)
            return
        taken = 1 if self.slow_s and self.world.sending else len(self._waiting)
        for _ in range(taken):
            self.carry_taken(self._waiting.popleft())
        if self._waiting and not self._taking:
            self._taking = True
            self.world.clock.after(self.slow_s * self.world.rng.random(), self._take)

    def seek_end(self) -> None:
        """The application asks what there is."""
        self._carry(self.core.seek_end(self.world.now))

    def carry_taken(self, size: int) -> None:
        """The application has taken a batch of this size."""
        self._carry(self.core.taken(size, self.world.now))

    def _carry(self, actions: Sequence[Effect]) -> None:
        self.home.perform(self.member.carry(self.core, actions))
        self.home.arm()
