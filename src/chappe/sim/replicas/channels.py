"""Worlds of one channel: a producer, some consumers, a bad transport between them, and death.

Promises: a consumer gets the events behind its handshake in order, each once; it misses one only where it is told so;
a lasting producer never lets go of an event that its consumer has not; what is kept has a bound; and when all is quiet
everybody has everything.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chappe.channel import (
    Ack,
    ChannelConsumer,
    ChannelProducer,
    Consume,
    Dropped,
    Event,
    Handshake,
    Heartbeat,
    Lost,
    Nack,
    RetransmitFailed,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.errors import BufferFull
from chappe.sim.replicas.wire import Wire
from chappe.sim.world import Clock, Outcome, Violation

SETTLE_S: Final = 120.0
TICK_S: Final = 0.001
Payload = tuple[int, int]  # the producer's life, the number of the event in it


@dataclass(frozen=True)
class ChannelCores:
    """What is under test."""

    producer: type[ChannelProducer[str, Payload]] = ChannelProducer
    consumer: type[ChannelConsumer[Payload]] = ChannelConsumer


class _End:
    """A core with its timer."""

    def __init__(self, world: ChannelWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.core: Any = None
        self._timer_at = math.inf

    def arm(self) -> None:
        at = max(self.core.next_timeout(), self.world.clock.now + TICK_S)
        if self.alive and at < self._timer_at:
            self._timer_at = at
            self.world.clock.at(at, self._ring, at)

    def _ring(self, at: float) -> None:
        if self.alive and at == self._timer_at:
            self._timer_at = math.inf
            self.perform(self.core.handle_timeout(self.world.clock.now))

    def perform(self, actions: list[Any]) -> None:
        raise NotImplementedError


class _ProducerEnd(_End):
    def __init__(self, world: ChannelWorld, life: int) -> None:
        super().__init__(world, "producer")
        self.life = life
        options: dict[str, Any] = {"lasting": True, "window": world.window} if world.lasting else {}
        self.core = world.cores.producer(
            lambda payload: 1, now=world.clock.now, silent_s=15.0, events_max=world.events_max, **options
        )

    def produce(self) -> None:
        """One event, if there is room."""
        seq = self.core.seq
        try:
            actions = self.core.produce((self.life, seq + 1), self.world.clock.now)
        except BufferFull:
            return
        self.perform(actions)

    def hear(self, message: tuple[str, Ack | Nack]) -> None:
        """A consumer has sent something."""
        source, what = message
        now = self.world.clock.now
        if not self.alive:
            return
        if isinstance(what, Ack):
            self.perform(self.core.handle_ack(source, what.seq, now))
        else:
            self.perform(self.core.handle_nack(source, what.seqs, now))

    def perform(self, actions: list[Any]) -> None:
        """Send."""
        world = self.world
        for each in actions:
            if isinstance(each, ToAll):
                for end in world.consumers.values():
                    world.wire.send("producer", end.name, end.hear, (self.life, each.message))
            elif isinstance(each, ToConsumer) and each.consumer in world.consumers:
                end = world.consumers[each.consumer]
                world.wire.send("producer", end.name, end.hear, (self.life, each.message))
            elif isinstance(each, Dropped) and world.lasting:
                world.fail("reliability", f"a lasting producer drops {each.consumer}: {each.reason}")
        if self.core.kept[0] > world.events_max:
            world.fail("bounds", f"the producer keeps {self.core.kept[0]} events, the bound is {world.events_max}")
        self.arm()


class _ConsumerEnd(_End):
    def __init__(self, world: ChannelWorld, name: str) -> None:
        super().__init__(world, name)
        self.life = 0  # of the producer that it follows
        self.last = 0
        self._begin()

    def _begin(self) -> None:
        world = self.world
        self.core = world.cores.consumer(now=world.clock.now, held_max=world.held_max, search_max_s=2.0)
        self.life = 0
        self.last = 0

    def hear(self, message: tuple[int, Any]) -> None:
        """A producer has sent something; only the one whose handshake was taken is listened to."""
        life, what = message
        now = self.world.clock.now
        if not self.alive:
            return
        if isinstance(what, Handshake):
            if self.life == 0:
                self.life, self.last = life, what.offset
            if life == self.life:
                self.perform(self.core.handle_handshake(what.offset, what.heartbeat_s, now))
        elif life != self.life:
            if life > self.life > 0:
                self._begin()  # the old one is dead
                self.arm()
        elif isinstance(what, Event):
            self.perform(self.core.handle_event(what.seq, what.payload, now))
        elif isinstance(what, Heartbeat):
            self.perform(self.core.handle_heartbeat(what.seq, now))
        elif isinstance(what, RetransmitFailed):
            self.perform(self.core.handle_retransmit_failed(what.seq, now))

    def perform(self, actions: list[Any]) -> None:
        """Check what comes out, and answer."""
        world = self.world
        for each in actions:
            if isinstance(each, Consume):
                if each.payload != (self.life, each.seq) or each.seq != self.last + 1:
                    world.fail("order", f"{self.name} gets {each.payload} as {each.seq} behind {self.last}")
                self.last = each.seq
                world.consumed += 1
            elif isinstance(each, Lost):
                if world.lasting:
                    world.fail("reliability", f"{self.name} lost event {each.seq} of a lasting producer")
                self._begin()
                break
            elif isinstance(each, ToProducer):
                world.wire.send(self.name, "producer", world.to_producer, (self.name, each.message))
        if self.core.held > world.held_max:
            world.fail("bounds", f"{self.name} holds {self.core.held} events, the bound is {world.held_max}")
        self.arm()


class ChannelWorld:
    """One producer at a time, some consumers."""

    def __init__(self, seed: int, cores: ChannelCores | None = None) -> None:
        self.clock = Clock(seed)
        self.rng = self.clock.rng
        self.wire = Wire(self.clock)
        self.cores = cores or ChannelCores()
        self.lasting = self.rng.random() < 0.3
        self.window = self.rng.choice((100, 1_000))
        self.events_max = self.rng.choice((10, 1_000, 100_000))
        self.held_max = self.rng.choice((3, 1_000))
        self.consumed = 0
        self.working = True
        self.consumers: dict[str, _ConsumerEnd] = {}
        self.producer = _ProducerEnd(self, 1)
        for number in range(1 if self.lasting else self.rng.choice((1, 2, 5))):
            self.add(f"consumer{number}")
        self.clock.after(0.0, self._work)

    def fail(self, checker: str, text: str) -> None:
        """A promise was broken."""
        raise Violation(checker, text)

    def add(self, name: str) -> None:
        """A consumer, or its next life."""
        self.consumers[name] = _ConsumerEnd(self, name)
        self.consumers[name].arm()

    def to_producer(self, message: tuple[str, Ack | Nack]) -> None:
        """A message for the producer that lives now."""
        self.producer.hear(message)

    def restart_producer(self) -> None:
        """The producer dies; its successor knows nothing."""
        self.producer.alive = False
        self.producer = _ProducerEnd(self, self.producer.life + 1)

    def restart_consumer(self) -> None:
        """A consumer dies; its successor of the same name knows nothing."""
        name = self.rng.choice(list(self.consumers))
        self.consumers[name].alive = False
        self.add(name)

    def cut(self) -> None:
        """A consumer is out of reach for a while."""
        self.wire.cut("producer", self.rng.choice(list(self.consumers)), self.clock.now + self.rng.choice((1.0, 20.0)))

    def _work(self) -> None:
        if self.working:
            for _ in range(self.rng.choice((1, 1, 5, 50))):
                self.producer.produce()
            self.clock.after(self.rng.expovariate(20.0), self._work)

    def unsettled(self) -> str | None:
        """Who has not everything."""
        for end in self.consumers.values():
            if end.life != self.producer.life or end.last != self.producer.core.seq:
                return f"{end.name} is at {end.last} of {end.life}, the producer at {self.producer.core.seq}"
        if not self.producer.core.idle() or self.producer.core.kept[0]:
            return f"the producer keeps {self.producer.core.kept[0]} events that everybody has"
        return None


def play_channel(
    seed: int,
    *,
    minutes: float | None = None,
    cores: ChannelCores | None = None,
    tell: Callable[[str], None] | None = None,
    disturb: bool = True,
) -> Outcome:
    """Play one world; the arguments are those of ``chappe.sim.run.play``, but there is little to tell."""
    world = ChannelWorld(seed, cores)
    failure: str | None = None
    detail = ""
    settle_s = 0.0
    try:
        until = world.rng.choice((5.0, 30.0)) if minutes is None else minutes * 60
        if not disturb:
            world.wire.calm()
        at = 0.0
        while disturb and (at := at + world.rng.expovariate(0.3)) < until:
            choices = [world.cut] if world.lasting else [world.cut, world.restart_consumer, world.restart_producer]
            world.clock.at(at, world.rng.choice(choices))
        world.clock.run(until)
        world.wire.calm()
        world.working = False
        began = world.clock.now
        while (text := world.unsettled()) is not None:
            if world.clock.now - began > SETTLE_S:
                raise Violation("convergence", f"not settled {SETTLE_S:.0f} s after the last fault: {text}")
            world.clock.run(world.clock.now + 0.25)
        settle_s = world.clock.now - began
    except Violation as violation:
        failure = str(violation)
    except Exception as error:  # a core that raises is a failure of its seed, not of the simulator
        failure = f"crash: {type(error).__name__}: {error}"
        detail = traceback.format_exc()
    if tell is not None:
        tell(f"{world.clock.now:9.4f}  {world.consumed} events consumed by {len(world.consumers)} consumers")
    return Outcome(seed, failure, world.clock.now, settle_s, world.clock.events, world.consumed, detail)
