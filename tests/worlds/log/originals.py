"""Members that speak only what the original C programs speak: single records, HEAD, FETCH, ACK and the hellos.

They are as the original without its faults, and simpler: an original store keeps everything in memory.
"""

from __future__ import annotations

import math
from random import Random

from tests.worlds.log.node import NodeHost
from tests.worlds.log.world import LogWorld

from chappe.core import Effect, Publish, Subscribe
from chappe.data.topic import encode_topic
from chappe.defaults import HEAD_INTERVAL_S
from chappe.log.messages import Ack, ConsumerHello, Fetch, GetHeads, Head, Message, RecordMessage, StoreHello
from chappe.log.sources import Key
from chappe.sim.pubsub import SimLink

FETCH_MAX = 1_000
LEAVES = 0.2  # of the times when all is acknowledged


class OriginalProducer:
    """One partition, kept in memory until any store acknowledges."""

    def __init__(self, topic: str, address: str) -> None:
        self.topic = topic
        self.address = address
        self.next_offset = 0
        self.stored = 0
        self._kept: dict[int, bytes] = {}
        self._head_at = math.inf

    def start(self, now: float) -> list[Effect]:
        """Subscribe to what is meant for us."""
        raw = encode_topic(self.address)
        return [Subscribe(b"K" + raw), Subscribe(b"F" + raw)]

    def publish(self, content: bytes, now: float) -> list[Effect]:
        """Send one record."""
        sequence, self.next_offset = self.next_offset, self.next_offset + 1
        self._kept[sequence] = content
        self._head_at = min(self._head_at, now + HEAD_INTERVAL_S)
        return [Publish(RecordMessage(self.topic, self.address, self.topic, sequence, content))]

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """A plain PUB socket tells nothing."""
        return []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """An acknowledgement, or a request for what was missed."""
        match message:
            case Ack(_, _, sequence):
                for each in [offset for offset in self._kept if offset <= sequence]:
                    del self._kept[each]
                self.stored = max(self.stored, min(sequence + 1, self.next_offset))
            case Fetch(_, requester, _, first, count) if first in self._kept:
                return [
                    Publish(RecordMessage(requester, self.address, self.topic, each, self._kept[each], direct=True))
                    for each in range(first, min(first + min(count, FETCH_MAX), self.next_offset))
                ]
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        """Nothing depends on it."""
        return []

    def handle_timeout(self, now: float) -> list[Effect]:
        """Send HEAD."""
        if now < self._head_at:
            return []
        self._head_at = now + HEAD_INTERVAL_S
        return [Publish(Head(self.topic, self.address, self.topic, self.next_offset - 1))]

    def next_timeout(self) -> float:
        """When the next HEAD is due."""
        return self._head_at


class OriginalStore:
    """All partitions from their beginning, without gaps."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.parts: dict[Key, list[bytes]] = {}
        self._asked: dict[Key, int] = {}  # the second of the last FETCH; one a second is enough

    def start(self, now: float) -> list[Effect]:
        """Subscribe to everything that an original store wants."""
        raw = encode_topic(self.address)
        return [Subscribe(each) for each in (b"M", b"H", b"F", b"G", b"D" + raw, b"W" + raw)]

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """Greet consumers."""
        if on and prefix[:1] == b"L":
            return [Publish(StoreHello(prefix[1:].decode(), self.address))]
        return []

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        """Keep records, ask for what is missing, answer who missed some."""
        match message:
            case RecordMessage(_, partition, topic, sequence, content):
                kept = self.parts.setdefault((topic, partition), [])
                if sequence == len(kept):
                    kept.append(content)
                    return [Publish(Ack(partition, topic, sequence))]
                return self._fetch(topic, partition, len(kept), now) if sequence > len(kept) else []
            case Head(_, partition, topic, sequence):
                kept = self.parts.get((topic, partition), [])
                if sequence >= len(kept):
                    return self._fetch(topic, partition, len(kept), now)
                return [Publish(Ack(partition, topic, len(kept) - 1))]
            case Fetch(partition, requester, topic, first, count) if requester != self.address:
                kept = self.parts.get((topic, partition), [])
                return [
                    Publish(RecordMessage(requester, partition, topic, each, kept[each], direct=True))
                    for each in range(first, min(first + min(count, FETCH_MAX), len(kept)))
                ]
            case GetHeads(prefix, requester):
                return self._heads(prefix, requester)
            case ConsumerHello(topic, requester, subjects) if topic == self.address:
                return [each for subject in subjects for each in self._heads(subject, requester)]
        return []

    def _fetch(self, topic: str, partition: str, first: int, now: float) -> list[Effect]:
        if self._asked.get((topic, partition)) == int(now):
            return []
        self._asked[topic, partition] = int(now)
        return [Publish(Fetch(partition, self.address, topic, first, FETCH_MAX))]

    def _heads(self, prefix: str, requester: str) -> list[Effect]:
        return [
            Publish(Head(requester, partition, topic, len(kept) - 1, direct=True))
            for (topic, partition), kept in self.parts.items()
            if topic.startswith(prefix) and kept
        ]

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        """Nothing depends on it."""
        return []

    def handle_timeout(self, now: float) -> list[Effect]:
        """An original store never asks by itself."""
        return []

    def next_timeout(self) -> float:
        """Never."""
        return math.inf


class OriginalHost(NodeHost):
    """Runs either; its publishing socket sends exactly what was asked for."""

    def __init__(self, world: LogWorld, name: str, role: OriginalProducer | OriginalStore) -> None:
        super().__init__(world, name, role)
        self.leaves: Random | None = None  # decides when a fully acknowledged producer leaves
        self.original = role
        if isinstance(role, OriginalStore):
            world.originals[name] = role.parts

    def start(self) -> None:
        """Begin, and send now and then if it is a producer."""
        super().start()
        if isinstance(self.original, OriginalProducer):
            self.world.truth.of((self.original.topic, self.original.address)).original = True
            self.world.clock.after(self.world.rng.random(), self._work, self.original)

    def _hang_up(self, link: SimLink) -> None:
        """End a listener's connection in order, without a goodbye."""
        link.end()

    def _work(self, core: OriginalProducer) -> None:
        world = self.world
        if not self.alive:
            return
        acknowledged = core.stored == core.next_offset > 0
        if self.leaves is not None and acknowledged and self.leaves.random() < LEAVES:
            self.die()
            return
        if world.sending and self.stalled_until <= world.now and core.next_offset - core.stored < 200:
            for _ in range(world.rng.choice((1, 2, 10))):
                self.send()
        world.clock.after(world.rng.expovariate(1.0), self._work, core)

    def send(self) -> None:
        """Send one record, as a producer."""
        world, core = self.world, self.original
        assert isinstance(core, OriginalProducer)
        world.serial += 1
        value = b"%d" % world.serial
        world.truth.sent((core.topic, core.address), core.next_offset, [(value, None)])
        self.call(core.publish, value, world.now)

    def on_subscription(self, link: SimLink, prefix: bytes, on: bool) -> None:
        """What is asked for is sent: single records also to those who know batches."""
        if on:
            link.wanted[prefix] = None
        else:
            link.wanted.pop(prefix, None)
        self.call(self.role.handle_subscription, prefix, on, self.world.now)
