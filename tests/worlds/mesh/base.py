"""What endpoints of chappe and originals have in common in a world."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import inf
from typing import Any

from tests.worlds.mesh.record import Publication
from tests.worlds.mesh.wires import Frames

from chappe.mesh.flows import DETOUR, KIND_AT, PUBLICATIONS, parse_detour, parse_publications
from chappe.mesh.messages import DATA, NOBODY, Message, parse_message
from chappe.sim.host import SimHost
from chappe.sim.streams import PREFIX, End, StreamSide


def messages_of(body: bytes) -> list[Message]:
    """What a body says, of either version; of a detour what is on it."""
    if len(body) > KIND_AT and body[KIND_AT] == DETOUR:
        body = parse_detour(body)[1]
    if len(body) > KIND_AT and body[KIND_AT] in PUBLICATIONS:
        return parse_publications(body, NOBODY)
    return [parse_message(body)]


class MeshHost(SimHost):
    """What endpoints of chappe and originals have in common: a name, lives, and what they want and publish."""

    original = False
    read_s = 0.0  # for each chunk that it reads

    def __init__(self, world: Any, name: str, life: str, own_id: bytes) -> None:
        super().__init__(world, name)
        self.life = life
        self.own_id = own_id
        self.port: int = world.port_of(name)
        self.born_at: float = world.now
        self.topics: set[bytes] = set()
        self._counts: Counter[bytes] = Counter()  # of what it published to everybody, by topic
        world.lives[own_id] = life

    @property
    def wanted(self) -> set[bytes]:
        """The prefixes that all its subscribers want."""
        return self.topics

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self.name, self.port

    def freeze(self, on: bool) -> None:
        """Stop it, as SIGSTOP does, or let it go on."""
        self.stalled_until = inf if on else 0.0

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        """Crash: its connections are reset."""
        self.alive = False
        self.world.record.sound[self.life].end(self.world.now)
        for (one, _), spans in self.world.record.links.items():
            if one == self.life:
                spans.end(self.world.now)

    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        """Dial."""
        raise NotImplementedError

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """Publish, to all who want it or to one of them; False if there is no room."""
        raise NotImplementedError

    def publish_many(self, topic: bytes, payloads: list[bytes]) -> bool:
        """Publish data for all who want it; False if there was no room for some."""
        return all(self.publish(topic, payload) for payload in payloads)

    def want(self, topics: Sequence[bytes]) -> None:
        """Subscribe to exactly these prefixes."""
        raise NotImplementedError

    def peer_lives(self) -> list[str]:
        """The lives that it is peered with."""
        raise NotImplementedError

    def _note_wanted(self, topics: set[bytes]) -> None:
        for topic in self.topics - topics:
            self.world.record.want(self.life, topic).end(self.world.now)
        for topic in topics - self.topics:
            self.world.record.want(self.life, topic).begin(self.world.now)
        self.topics = topics

    def _published(
        self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None,
        to: frozenset[bytes] = frozenset(),
    ) -> None:  # fmt: skip
        only = None if receiver is None else receiver.life
        nth = 0
        if only is None and kind == DATA:
            nth = self._counts[topic] = self._counts[topic] + 1
        self.world.record.publications[payload] = Publication(topic, self.life, self.world.now, only, kind, nth, to)


class WiredHost(MeshHost, End):
    """A host of the simulator's, at connections that carry bytes."""

    def __init__(self, world: Any, name: str, life: str, own_id: bytes) -> None:
        super().__init__(world, name, life, own_id)
        self.sides: dict[int, StreamSide] = {}
        self._boxes: dict[int, deque[bytes]] = {}  # frames to be written, by connection
        self._came: dict[StreamSide, Frames] = {}
        self._conns = 0
        world.streams.listeners[self.address] = self

    def _add(self, side: StreamSide) -> int:
        self._conns += 1
        side.conn = self._conns
        self.sides[self._conns] = side
        return self._conns

    def freeze(self, on: bool) -> None:
        super().freeze(on)
        if not on:
            for side in list(self.sides.values()):
                side.resume()

    def reads(self, side: StreamSide) -> bool:
        """Whether it reads from a connection now."""
        return not self.frozen

    def take(self, conn: int, bytes_max: int) -> list[bytes]:
        """What is to be written next."""
        box = self._boxes.get(conn)
        return [bytes(PREFIX) + box.popleft()] if box else []

    def moved(self, side: StreamSide) -> None:
        """There is room again in a connection that was full: that is nothing to it."""

    def read(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Bytes came."""
        self.hear(side, [each[PREFIX:] for each in self._came.setdefault(side, Frames()).cut(bodies)])

    def hear(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Frames came."""
        raise NotImplementedError

    def die(self, *, goodbye: bool = False, notice_s: float = 0.0) -> None:
        super().die(goodbye=goodbye, notice_s=notice_s)
        for side in list(self.sides.values()):
            side.open = False
            self.world.streams.forget(side)
            self.world.clock.after(0.001, side.other.reset, "connection reset by peer")
