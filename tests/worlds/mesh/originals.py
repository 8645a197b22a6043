"""A model of the original: version 1 only, no ids of publications, no limit of hops, filters that only grow.

It sends a message on to every peer whose filter matches, but the one that it came from; nothing else holds a loop up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tests.worlds.mesh.base import MeshHost, WiredHost
from tests.worlds.mesh.world import MeshWorld

from chappe.defaults import TTL
from chappe.mesh.filters import Filter, matches, minimal
from chappe.mesh.links.handshake import Established, Failed, PeerHandshake, Redundant, SendFrame, Step, Wake
from chappe.mesh.links.peers import PeerTable
from chappe.mesh.messages import (
    DATA,
    NOBODY,
    PING,
    ROUTING_UPDATE,
    Message,
    pack_message,
    pack_pong,
    pack_routing_update,
    parse_filter,
    parse_message,
)
from chappe.sim.streams import StreamSide

RETRY_S = 1.0
BUFFER_FRAMES = 2_048  # for one peer; beyond it the original disconnects


class OriginalHost(WiredHost):
    """An original."""

    world: MeshWorld
    original = True

    def __init__(self, world: MeshWorld, name: str, life: str, own_id: bytes) -> None:
        super().__init__(world, name, life, own_id)
        self.peers: dict[int, bytes] = {}  # connection: peer
        self.filters: dict[int, Filter] = {}
        self.filter: Filter = ()
        self._table = PeerTable()
        self._handshakes: dict[int, PeerHandshake] = {}
        self._dialled: dict[int, tuple[str, int]] = {}  # connection
        self._dials: dict[int, tuple[str, int]] = {}
        self._next_dial = 0

    # -- the network ------------------------------------------------------------------------------

    def accept(self, side: StreamSide) -> None:
        """A connection came in."""
        self._begin(side, False)

    def connected(self, dial: int, side: StreamSide) -> None:
        """A dial succeeded."""
        address = self._dials.pop(dial)
        self._begin(side, True)
        self._dialled[side.conn] = address

    def dial_failed(self, dial: int, reason: str) -> None:
        """A dial failed."""
        self.world.clock.after(RETRY_S, self.peer, self._dials.pop(dial), RETRY_S)

    def _begin(self, side: StreamSide, dialled: bool) -> None:
        conn = self._add(side)
        handshake = PeerHandshake(conn, self.own_id, dialled, self.filter, self._table, self.world.now, 1)
        self._handshakes[conn] = handshake
        self._boxes[conn] = deque()
        self._do(conn, handshake.start())

    def hear(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Frames came."""
        conn = side.conn
        for body in bodies:
            if conn in self.peers:
                self._take(conn, parse_message(body))
            elif conn in self._handshakes:
                self._do(conn, self._handshakes[conn].take(body))

    def broken(self, side: StreamSide, reason: str) -> None:
        """A connection is gone."""
        conn = side.conn
        if self.sides.pop(conn, None) is None:
            return
        if conn in self.peers:
            self._lose(conn)
        elif conn in self._handshakes:
            self._do(conn, self._handshakes[conn].end(reason))

    # -- the application --------------------------------------------------------------------------

    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        """Dial, for ever."""
        if self.alive:
            self._next_dial += 1
            self._dials[self._next_dial] = address
            self.world.streams.dial(self, self._next_dial, address)

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """Publish data for all; it publishes nothing else."""
        self._published(topic, payload)
        self._send_on(Message(topic, payload, DATA, self.own_id), None)
        return True

    def want(self, topics: Sequence[bytes]) -> None:
        """Subscribe to exactly these prefixes; what was announced stays announced."""
        self._note_wanted(set(topics))
        self.filter = minimal([*self.filter, *topics])
        for conn, peer in self.peers.items():
            self._put(conn, pack_routing_update(self.own_id, peer, self.filter))

    def peer_lives(self) -> list[str]:
        """The lives that it is peered with."""
        return [self.world.lives[peer] for peer in self.peers.values()]

    # -- inside -----------------------------------------------------------------------------------

    def _do(self, conn: int, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case SendFrame(frame):
                    self._put(conn, frame)
                case Established(peer_id, peer_filter):
                    del self._handshakes[conn]
                    self._table.peered(peer_id)
                    self.peers[conn] = peer_id
                    self.filters[conn] = peer_filter
                    self.world.record.link(self.life, self.world.lives[peer_id]).begin(self.world.now)
                    self._put(conn, pack_routing_update(self.own_id, peer_id, self.filter))
                case Failed() | Redundant():
                    self._handshakes.pop(conn, None)
                    self._close(conn)
                    if conn in self._dialled and isinstance(step, Failed):
                        self.world.clock.after(RETRY_S, self.peer, self._dialled[conn], RETRY_S)
                case Wake(conns):
                    for each in conns:
                        self._do(each, self._handshakes[each].wake())

    def _close(self, conn: int) -> None:
        side = self.sides.pop(conn, None)
        if side is not None:
            side.close()

    def _lose(self, conn: int) -> None:
        peer = self.peers.pop(conn)
        del self.filters[conn]
        woken = self._table.release(conn, peer)
        self.world.record.link(self.life, self.world.lives[peer]).end(self.world.now)
        if conn in self._dialled:
            self.peer(self._dialled[conn], RETRY_S)
        for each in woken:
            self._do(each, self._handshakes[each].wake())

    def _take(self, conn: int, message: Message) -> None:
        if message.kind == PING:
            self._put(conn, pack_pong(self.own_id, message.sender, message.payload))
        elif message.kind == ROUTING_UPDATE:
            self.filters[conn] = minimal(parse_filter(message.payload))
        elif message.kind == DATA:
            if message.receiver in (NOBODY, self.own_id) and any(map(message.topic.startswith, self.topics)):
                self.world.see("on_delivered", self, message)
            self._send_on(message, message.sender)

    def _send_on(self, message: Message, but: bytes | None) -> None:
        for conn, peer in list(self.peers.items()):
            if peer != but and matches(self.filters[conn], message.topic):
                frame = pack_message(self.own_id, NOBODY, DATA, TTL, message.topic, message.payload)
                if len(self._boxes[conn]) < BUFFER_FRAMES:
                    self._put(conn, frame)

    def _put(self, conn: int, frame: bytes) -> None:
        self._boxes[conn].append(frame)
        if conn in self.sides:
            self.sides[conn].write()
