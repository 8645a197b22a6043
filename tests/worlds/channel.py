"""Worlds of one channel: a producer, some consumers, a bad transport between them, death, and a stranger.

Promises: a consumer gets the events behind its handshake in order, each once; it misses one only where it was dropped,
or asked anew, and nothing follows a lost event until its owner has decided; one that is closed says nothing. The owner
of a producer is told of each handshake's first acknowledgement, once. What is kept is what somebody has not
acknowledged, and it has a bound; silence is noticed in time at both ends; and when all is quiet everybody has
everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from tests.worlds.faults import Schedule
from tests.worlds.wire import Wire

from chappe.channel import (
    Ack,
    ChannelConsumer,
    ChannelProducer,
    Consume,
    ConsumerClosed,
    Dropped,
    Event,
    Handshake,
    HandshakeCompleted,
    Heartbeat,
    Lost,
    Nack,
    ProducerSilent,
    RetransmitFailed,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.defaults import CHANNEL_ACK_EVENTS, CHANNEL_HEARTBEAT_S, CHANNEL_HURRY_S, CHANNEL_NACK_S
from chappe.errors import BrokenClone, BufferFull
from chappe.sim.host import TICK_S, SimHost
from chappe.sim.world import Checker, Settings, SimWorld

SILENT_S: Final = 15.0  # a producer drops who is silent for this long
TOLD_S: Final = 4.0  # a consumer says so when it hears nothing for this long
LATE_S: Final = 0.3  # what is due is done by then
STARTS: Final = (0, 0, 2**32 - 20, 2**53 - 3, 2**62)  # numbers that events begin behind
NUMBERS: Final = (0, 1, 2, 40, 2**32, 2**53 + 1, 2**63 - 1, 2**64 - 1)
SIZE_MAX: Final = 5
Payload = tuple[int, int]  # the producer's life, the number of the event in it


def size_of(payload: Payload) -> int:
    """What an event counts for."""
    return 1 + payload[1] % SIZE_MAX


@dataclass(frozen=True)
class ChannelCores:
    """What is under test."""

    producer: type[ChannelProducer[str, Payload]] = ChannelProducer
    consumer: type[ChannelConsumer[Payload]] = ChannelConsumer


class ChannelWorld(SimWorld):
    """Everything that one seed decides."""

    lengths_s = (5.0, 30.0)
    settle_max_s = 120.0
    events_max = 2_000_000

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        tell: Callable[[str], None] | None = None,
        cores: ChannelCores | None = None,
    ) -> None:
        super().__init__(seed, settings, tell)
        self.wire = Wire(self)
        self.cores = cores or ChannelCores()
        self.lasting = self.rng.random() < 0.3
        self.window = self.rng.choice((10, 100, 1_000))
        self.kept_max = self.rng.choice((10, 1_000, 100_000))
        self.kept_bytes_max = self.kept_max * self.rng.choice((2, SIZE_MAX))  # either bound may be met first
        self.held_max = self.rng.choice((3, 1_000))
        self.consumed = 0
        self.working = True

    def progress(self) -> int:
        """Events that consumers were given: a small window moves on with heartbeats only."""
        return self.consumed

    def count(self) -> int:
        """Events that consumers were given."""
        return self.consumed


class ProducerEnd(SimHost):
    """A producer."""

    world: ChannelWorld

    def __init__(self, world: ChannelWorld, life: int) -> None:
        super().__init__(world, "producer")
        self.life = life
        options: dict[str, Any] = {"lasting": True, "window": world.window} if world.lasting else {}
        self.core = world.cores.producer(
            size_of, now=world.now, silent_s=SILENT_S, events_max=world.kept_max, bytes_max=world.kept_bytes_max,
            **options,
        )  # fmt: skip
        self.core.seq += world.rng.choice(STARTS)
        self.acks: dict[str, int] = {}  # what each consumer has acknowledged, and when it was heard of last
        self.heard: dict[str, float] = {}
        self.completed: set[str] = set()  # those whose handshake was told to be acknowledged
        self.handshakes: dict[str, int] = {}  # how many each consumer was sent since it was new or dropped
        self.told_at = world.now  # when something was last said to all, and when an event
        self.evented_at = -inf
        self.table = {
            ToAll: self._to_all,
            ToConsumer: self._to_one,
            HandshakeCompleted: self._completed,
            Dropped: self._dropped,
        }

    def due(self) -> float:
        """When the core wants to be called."""
        return self.core.next_timeout()

    def handle_due(self) -> None:
        """Have it do what is due."""
        self.call(self.core.tick, self.world.now)

    def produce(self) -> None:
        """One event, if there is room."""
        world, payload = self.world, (self.life, self.core.seq + 1)
        try:
            self.call(self.core.produce, payload, world.now)
        except BufferFull:
            events, size = self.core.kept
            if events < world.kept_max and size + size_of(payload) <= world.kept_bytes_max:
                world.fail("room", f"an event is refused, {events} of {world.kept_max} are kept")
        if self.core.kept[0] > world.kept_max or self.core.kept[1] > world.kept_bytes_max:
            world.fail("bounds", f"the producer keeps {self.core.kept} events and bytes, {world.kept_max} may be")

    def hear(self, message: tuple[str, int, Ack | Nack]) -> None:
        """A consumer, or a stranger, has sent something; who follows a former life is a stranger to this one."""
        source, life, what = message
        if not self.alive:
            return
        if life not in (0, self.life):
            source = f"{source}@{life}"
        if isinstance(what, Ack):
            taken = self._note(source, what.seq)
            self.call(self.core.take_ack, source, what.seq, self.world.now)
        else:
            taken = bool(what.seqs) and what.seqs[0] > 0 and self._note(source, what.seqs[0] - 1)
            self.call(self.core.take_nack, source, what.seqs, self.world.now)
        self.world.see("on_heard", self, source, taken)

    def _note(self, source: str, seq: int) -> bool:
        """A consumer has everything up to there; whether that counts."""
        if source not in self.acks:
            return False
        self.heard[source] = self.world.now
        taken = self.acks[source] <= seq <= self.core.seq
        if taken:
            self.acks[source] = seq
        return taken

    def _to_all(self, action: ToAll) -> None:
        world = self.world
        self.told_at = world.now
        if isinstance(action.message, Event):
            self.evented_at = world.now
        for end in world.alive(ConsumerEnd):
            world.wire.send(self.name, end.name, end.hear, (self.life, action.message), ToAll, 1)

    def _to_one(self, action: ToConsumer[str]) -> None:
        world, what, name = self.world, action.message, action.consumer
        if isinstance(what, Handshake):
            if not self.acks:
                self.told_at = world.now  # there was nobody to be told
            self.acks[name] = what.offset
            self.completed.discard(name)
            self.heard[name] = world.now
            self.handshakes[name] = self.handshakes.get(name, 0) + 1
        elif isinstance(what, Event):
            self.told_at = world.now
        world.see("on_sent", self, action)
        end = world.hosts.get(name.partition("@")[0])
        if isinstance(end, ConsumerEnd) and end.alive:
            world.wire.send(self.name, end.name, end.hear, (self.life, what), ToConsumer, 1)

    def _completed(self, action: HandshakeCompleted[str]) -> None:
        self.world.see("on_completed", self, action.consumer)
        self.completed.add(action.consumer)

    def _dropped(self, action: Dropped[str]) -> None:
        self.world.trace(self, "drops %s: %s", action.consumer, action.reason)
        self.world.see("on_dropped", self, action)
        del self.acks[action.consumer]
        self.completed.discard(action.consumer)


class ConsumerEnd(SimHost):
    """A consumer, and what its owner does: it begins anew when it has lost something, or its producer is another.

    Every other one does without the first event that it loses, and goes on.
    """

    world: ChannelWorld

    def __init__(self, world: ChannelWorld, name: str) -> None:
        super().__init__(world, name)
        self.table = {
            Consume: self._consume,
            Lost: self._lost,
            ConsumerClosed: self._closed,
            ToProducer: self._say,
            ProducerSilent: self._silent,
        }
        self._forgives = len(world.hosts) % 2 == 0
        self._begin()

    def _begin(self) -> None:
        world = self.world
        self.core = world.cores.consumer(now=world.now, held_max=world.held_max, search_max_s=2.0, silent_s=TOLD_S)
        self.life = 0  # of the producer that it follows
        self.last = 0
        self.asked = 0  # the lost event of which the core has asked, until it is answered
        self.skips = self._forgives
        self.early = 0  # the last event that it held since one before was missing
        self.silent = False
        self.heard_at = self.moved_at = self.acked_at = world.now
        self.acked = 0

    def start(self) -> None:
        """Look for a producer."""
        self.arm()

    def due(self) -> float:
        """When the core wants to be called."""
        return self.core.next_timeout()

    def handle_due(self) -> None:
        """Have it do what is due."""
        self.call(self.core.tick, self.world.now)

    def hear(self, message: tuple[int, Any]) -> None:
        """A producer has sent something; only the one whose handshake was taken is listened to."""
        life, what = message
        now = self.world.now
        if not self.alive:
            return
        if isinstance(what, Handshake) and self.life == 0:
            self.life, self.last = life, what.offset
        if life != self.life:
            if life > self.life > 0:
                self._begin()  # the old one is dead
                self.arm()
            return
        self.heard_at, self.silent = now, False
        if isinstance(what, Handshake):
            self.call(self.core.take_handshake, what.offset, what.heartbeat_s, now)
        elif isinstance(what, Event):
            held = self.core.held
            self.call(self.core.take_event, what.seq, what.payload, now)
            if self.core.held > held:
                self.early = what.seq
        elif isinstance(what, Heartbeat):
            self.call(self.core.take_heartbeat, what.seq, now)
        elif isinstance(what, RetransmitFailed):
            self.call(self.core.take_retransmit_failed, what.seq, now)
        self.world.see("on_took", self)

    def _consume(self, action: Consume[Payload]) -> None:
        if self.asked:
            self.world.fail("order", f"{self.name} gets {action.seq}, and was not asked about {self.asked}")
        if action.payload != (self.life, action.seq) or action.seq != self.last + 1:
            self.world.fail("order", f"{self.name} gets {action.payload} as {action.seq} behind {self.last}")
        self.last = action.seq
        self.moved_at = self.world.now
        self.world.consumed += 1

    def _lost(self, action: Lost) -> None:
        self.world.see("on_loss", self, action.seq)
        self.asked = action.seq

    def _decide(self) -> None:
        """Answer the core's question: do without the event, or give up what is here."""
        seq, self.asked = self.asked, 0
        if self.skips:
            self.skips = False
            self.last = seq
            self.call(self.core.skip_lost, self.world.now)
        else:
            self.call(self.core.close, BrokenClone(f"event {seq} is lost"))

    def _closed(self, action: ConsumerClosed) -> None:
        self.world.see("on_closed", self)
        self._begin()

    def _say(self, action: ToProducer) -> None:
        world = self.world
        world.see("on_said", self, action.message)
        producer = world.hosts["producer"]
        world.wire.send(self.name, "producer", producer.hear, (self.name, self.life, action.message), ToProducer, 1)

    def _silent(self, action: ProducerSilent) -> None:
        self.silent = True

    def perform(self, actions: Any) -> None:
        """Carry out actions in order; what follows a loss belongs to a core that is gone."""
        core = self.core
        for action in actions:
            if core is not self.core:
                return
            self.table[type(action)](action)
        if core is self.core and self.asked:
            self._decide()


class Channels(Checker[ChannelWorld]):
    """All promises of a channel; ``name`` is told with each."""

    def on_sent(self, producer: ProducerEnd, action: ToConsumer[str]) -> None:
        """A lasting producer keeps to its window."""
        world, what = self.world, action.message
        if world.lasting and isinstance(what, Event):
            ahead = what.seq - producer.acks.get(action.consumer, 0)
            if ahead > world.window:
                world.fail("window", f"event {what.seq} is sent {ahead} ahead, the window is {world.window}")

    def on_dropped(self, producer: ProducerEnd, action: Dropped[str]) -> None:
        """Nobody is dropped by a lasting producer, and by another one only for a reason."""
        world = self.world
        if world.lasting:
            world.fail("reliability", f"a lasting producer drops {action.consumer}: {action.reason}")
        silent_s = world.now - producer.heard.get(action.consumer, 0.0)
        waiting = producer.core.seq - producer.acks[action.consumer]
        slowest = producer.acks[action.consumer] == min(producer.acks.values())
        full = waiting >= min(world.kept_max, world.kept_bytes_max // SIZE_MAX)
        if silent_s < SILENT_S - TICK_S and "nack" not in action.reason and not (full and slowest):
            world.fail("reliability", f"{action.consumer} is dropped after {silent_s:.1f} s: {action.reason}")

    def on_completed(self, producer: ProducerEnd, name: str) -> None:
        """A handshake is acknowledged once, by somebody who has one."""
        if name not in producer.acks or name in producer.completed:
            self.world.fail("handshakes", f"the handshake of {name} is told to be acknowledged, once too often")

    def on_closed(self, end: ConsumerEnd) -> None:
        """Who is closed takes nothing and says nothing, whatever comes."""
        core, now = end.core, self.world.now
        said: list[Any] = [
            *core.take_event(core.next, (end.life, core.next), now),
            *core.take_heartbeat(2**62, now),
        ]
        said += [
            *core.take_retransmit_failed(core.next, now),
            *core.skip_lost(now),
            *core.take_handshake(1, 1.0, now),
        ]
        said += core.tick(now + 2 * SILENT_S)
        if said or core.next_timeout() < inf:
            self.world.fail("closed", f"{end.name} was closed, and says {said[:1]}")

    def on_heard(self, producer: ProducerEnd, source: str, taken: bool) -> None:
        """What is kept is what the slowest has not acknowledged, and who acknowledges has its handshake."""
        world, core = self.world, producer.core
        self._sound(producer.name, core.invariants())
        if taken and source in producer.acks and source not in producer.completed:
            world.fail("handshakes", f"{source} has acknowledged its handshake, and nobody was told")
        if core.consumers and set(core.consumers) == set(producer.acks):
            slowest = min(producer.acks.values())
            if core.floor > slowest:
                world.fail("reliability", f"events up to {core.floor} are let go, {slowest} is acknowledged")
            if taken and core.floor < slowest:
                world.fail("bounds", f"events behind {core.floor} are kept, {slowest} is acknowledged by all")

    def on_took(self, end: ConsumerEnd) -> None:
        """What is held has a bound, and every so many events are acknowledged."""
        self._sound(end.name, end.core.invariants())
        if end.core.held > self.world.held_max:
            self.world.fail("bounds", f"{end.name} holds {end.core.held} events, the bound is {self.world.held_max}")
        if end.acked and end.last - end.acked > CHANNEL_ACK_EVENTS + self.world.held_max:
            self.world.fail("acknowledgements", f"{end.name} has {end.last}, and acknowledged {end.acked}")

    def _sound(self, name: str, found: list[str]) -> None:
        if found:
            self.world.fail("bounds", f"{name}: {found[0]}")

    def on_said(self, end: ConsumerEnd, what: Ack | Nack) -> None:
        """Acknowledged is what was handed on; asked for is what was not."""
        if isinstance(what, Ack):
            if what.seq != end.last:
                self.world.fail("acknowledgements", f"{end.name} acknowledges {what.seq}, it has {end.last}")
            end.acked, end.acked_at = what.seq, self.world.now
        elif what.seqs[0] and (what.seqs[0] != end.last + 1 or list(what.seqs) != sorted(set(what.seqs))):
            self.world.fail("acknowledgements", f"{end.name} asks for {what.seqs}, it has {end.last}")
        elif what.seqs[0]:
            end.moved_at = self.world.now

    def on_loss(self, end: ConsumerEnd, seq: int) -> None:
        """Nobody loses an event who was not dropped, and did not ask for a second handshake."""
        world = self.world
        if world.lasting:
            world.fail("reliability", f"{end.name} lost event {seq} of a lasting producer")
        producer = world.hosts["producer"]
        kept = end.life == producer.life and end.name in producer.acks
        if kept and producer.handshakes.get(end.name, 0) < 2:
            world.fail("reliability", f"{end.name} lost event {seq}, and was never dropped")

    def on_tick(self) -> None:
        """What is due is done in time."""
        world, now = self.world, self.world.now
        for producer in world.alive(ProducerEnd):
            if producer.core.consumers:
                since = now - producer.told_at
                hurried = producer.evented_at == producer.told_at and not world.lasting
                if since > (CHANNEL_HURRY_S if hurried else CHANNEL_HEARTBEAT_S) + LATE_S:
                    world.fail("heartbeats", f"the producer has said nothing for {since:.1f} s")
            for name, heard_at in producer.heard.items():
                if name in producer.core.consumers and now - heard_at > SILENT_S + LATE_S and not world.lasting:
                    world.fail("heartbeats", f"{name} is not dropped, nothing was heard of it since {heard_at:.1f}")
        for end in world.alive(ConsumerEnd):
            if end.life and now - end.acked_at > CHANNEL_HEARTBEAT_S + LATE_S:
                world.fail("heartbeats", f"{end.name} has acknowledged nothing since {end.acked_at:.1f}")
            if end.life and not end.silent and now - end.heard_at > TOLD_S + LATE_S:
                world.fail("heartbeats", f"{end.name} does not say that it hears nothing since {end.heard_at:.1f}")
            if end.life and end.core.behind and now - max(end.moved_at, end.heard_at) > CHANNEL_NACK_S + LATE_S:
                world.fail("acknowledgements", f"{end.name} asks for nothing since {end.moved_at:.1f}")

    def unsettled(self) -> str | None:
        """Who has not everything."""
        (producer,) = self.world.alive(ProducerEnd)
        for end in self.world.alive(ConsumerEnd):
            if end.life != producer.life or end.last != producer.core.seq:
                return f"{end.name} is at {end.last} of {end.life}, the producer at {producer.core.seq}"
        if not producer.core.idle() or producer.core.kept[0]:
            return f"the producer keeps {producer.core.kept[0]} events that everybody has"
        return None

    name = "convergence"


class Channel(ChannelWorld):
    """One channel: a producer, some consumers, a transport that loses, repeats and reorders."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watch(Channels(self))
        self._schedule = Schedule(self)
        self._lives = 0

    def begin(self) -> None:
        """Make both ends."""
        self._make_producer()
        for _ in range(1 if self.lasting else self.few(self.rng.choice((1, 2, 5)))):
            self._join()
        self.clock.after(0.0, self._work)

    def _join(self) -> None:
        ConsumerEnd(self, f"consumer{len(self.hosts)}").start()

    def _make_producer(self) -> None:
        self._lives += 1
        ProducerEnd(self, self._lives)

    def plan(self, until: float) -> float:
        """Death, cuts and a stranger."""
        if not self.settings.disturb:
            self.wire.calm()
            return until
        at = 0.0
        kinds = [self.cut, self.say_anything, self.stall]
        if not self.lasting:
            kinds += [self.restart_consumer, self.restart_producer]
        while (at := at + self.rng.expovariate(0.3)) < until:
            self._schedule.at(at, self.rng.choice(kinds))
        return until

    def heal(self) -> None:
        """Nothing is lost any more."""
        self._schedule.on = False
        self.wire.calm()
        self.working = False

    def _work(self) -> None:
        if self.working:
            for _ in range(self.rng.choice((1, 1, 5, 50))):
                self.hosts["producer"].produce()
            self.clock.after(self.rng.expovariate(20.0), self._work)

    # -- faults -----------------------------------------------------------------------------------------------

    def _some(self) -> ConsumerEnd:
        return self.rng.choice(self.alive(ConsumerEnd))

    def restart_producer(self) -> None:
        """The producer dies; its successor knows nothing."""
        self.hosts["producer"].die()
        self._make_producer()

    def restart_consumer(self) -> None:
        """A consumer dies; its successor, which knows nothing, is another one to the producer."""
        self._some().die()
        self._join()

    def cut(self) -> None:
        """A consumer is out of reach for a while."""
        self.wire.cut("producer", self._some().name, self.now + self.rng.choice((1.0, 20.0)))

    def stall(self) -> None:
        """A consumer is slow: what is sent to it waits, and some of it finds no room."""
        name = self._some().name
        self.wire.slow(name, self.rng.choice((20.0, 200.0)))
        self.clock.after(self.rng.choice((1.0, 5.0)), self.wire.fast, name)

    def say_anything(self) -> None:
        """A stranger sends the producer any numbers, and in others' names what they cannot know."""
        rng, producer, end = self.rng, self.hosts["producer"], self._some()
        producer.hear((end.name, producer.life, Ack(producer.core.seq + 1)))  # it was not sent yet
        if end.early > end.last:
            end.hear((end.life, RetransmitFailed(end.early)))  # it has come meanwhile
        seqs = tuple(rng.choice(NUMBERS) for _ in range(rng.randrange(4)))
        for what in (Ack(rng.choice(NUMBERS)), Nack(seqs if not seqs or seqs[0] else seqs[1:])):
            if not isinstance(what, Nack) or not what.seqs or what.seqs[0]:
                producer.hear(("a stranger", 0, what))
