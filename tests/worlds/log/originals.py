"""Members that speak only what the original C programs speak: single records, HEAD, FETCH, ACK and the hellos.

They are as the original without its faults, and simpler: an original store keeps everything in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from tests.worlds.residents import Life, Place, Resident

from chappe.core import Effect, Publish, Subscribe
from chappe.data.topic import encode_topic
from chappe.defaults import HEAD_INTERVAL_S
from chappe.log.messages import Ack, ConsumerHello, Fetch, GetHeads, Head, Message, RecordMessage, StoreHello
from chappe.log.sources import Key
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.log_seats import ignore
from chappe.runtime.meeting import AtTowers
from chappe.system import time
from chappe.transports.addresses import TowerAddress

FETCH_MAX = 1_000
LEAVING = 0.5  # of those that produce leave once a store has acknowledged all ...
LEAVES = 0.2  # ... at so many of the times when that is so


class _OriginalCore:
    """What neither of them has to do with."""

    paused = False

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        """A plain PUB socket tells nothing."""
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        """Nothing depends on it."""
        return []

    def handle_answer(self, *_: object) -> list[Effect]:
        """It asks nothing."""
        return []

    def flush(self, now: float) -> list[Effect]:
        """It gathers nothing."""
        return []


class OriginalProducer(_OriginalCore):
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

    def handle_timeout(self, now: float) -> list[Effect]:
        """Send HEAD."""
        if now < self._head_at:
            return []
        self._head_at = now + HEAD_INTERVAL_S
        return [Publish(Head(self.topic, self.address, self.topic, self.next_offset - 1))]

    def next_timeout(self) -> float:
        """When the next HEAD is due."""
        return self._head_at


class OriginalStore(_OriginalCore):
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

    def handle_timeout(self, now: float) -> list[Effect]:
        """An original store never asks by itself."""
        return []

    def next_timeout(self) -> float:
        """Never."""
        return math.inf


class OriginalLife(Life):
    """Runs either at its own sockets; no fault kills it."""

    def __init__(self, world: Any, resident: OriginalResident) -> None:
        super().__init__(world, resident)
        self.core = resident.make(f"{world.rng.getrandbits(128):032X}")
        self.address = self.core.address
        towers = TowerAddress.parse_many(world.tower_address)
        self.face = self.ports = LogPorts(self.core, AtTowers(towers, "127.0.0.1"), on_report=ignore)
        self._pub: Any = self.ports._pub
        self._pub.subscription = partial(_as_asked, self._pub.socket)  # type: ignore[method-assign]
        self._leaves = world.late_rng if world.late_rng.random() < LEAVING else None
        if isinstance(self.core, OriginalStore):
            world.originals[self.name] = self.core.parts
        else:
            world.truth.of((self.core.topic, self.address)).original = True
            self.soon(world.rng.random(), self._work, self.core)
        self.ports.start()

    def _work(self, core: OriginalProducer) -> None:
        world = self.world
        if self._leaves is not None and core.stored == core.next_offset > 0 and self._leaves.random() < LEAVES:
            self.leave()
            return
        if world.sending and core.next_offset - core.stored < 200:
            self.send(world.rng.choice((1, 2, 10)))
        self.soon(world.rng.expovariate(1.0), self._work, core)

    def send(self, count: int) -> None:
        """Publish so many records, one by one."""
        world, core = self.world, self.core
        assert isinstance(core, OriginalProducer)
        for _ in range(count):
            world.serial += 1
            value = b"%d" % world.serial
            world.truth.sent((core.topic, core.address), core.next_offset, [(value, None)])
            with self.ports.driver.lock:
                self.ports.driver.do(core.publish(value, time.monotonic()))

    def leave(self) -> None:
        """Go without a goodbye; the kernel still delivers."""
        for link in list(self._pub.socket.listeners):
            link.end()
        self.resident.place.kill(power_cut=False)


class OriginalResident(Resident):
    """One that speaks only what the C programs speak."""

    life = OriginalLife

    def __init__(self, world: Any, name: str, make: Callable[[str], OriginalProducer | OriginalStore]) -> None:
        place = Place(world, name)
        world.places.remove(place)
        super().__init__(world, name, place)
        self.make = make


def _as_asked(socket: Any, frames: list[zmq.Frame]) -> tuple[bytes, bool]:
    """Take a subscription: single records also for those who know batches."""
    raw = frames[0].bytes
    on, prefix = raw[:1] == b"\1", raw[1:]
    socket.setsockopt(zmq.SUBSCRIBE if on else zmq.UNSUBSCRIBE, prefix)
    return prefix, on
