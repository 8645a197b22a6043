"""A rogue: it greets as an endpoint of chappe does, and then speaks for others, itself and nobody."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.worlds.mesh.base import MeshHost, WiredHost, messages_of
from tests.worlds.mesh.subjects import EndpointSubject
from tests.worlds.mesh.world import MeshWorld

from chappe.defaults import TTL
from chappe.mesh.flows import (
    FLOWS,
    KIND_AT,
    pack_confirm,
    pack_detour,
    pack_forget,
    pack_hops,
    pack_publication,
    pack_tree,
)
from chappe.mesh.forwarding.losses import Loss, LossReason
from chappe.mesh.links.handshake import Established, Failed, PeerHandshake, Redundant, SendFrame
from chappe.mesh.links.peers import PeerTable
from chappe.mesh.messages import (
    DATA,
    LOSS,
    NOBODY,
    PING,
    PONG,
    ROUTING_UPDATE,
    LinkState,
    Neighbour,
    pack_link_state,
    pack_message,
    pack_pong,
)
from chappe.sim.streams import StreamSide

NAME: Final = "rogue"
PAUSES_S: Final = (0.01, 0.1, 0.5)
HIGH: Final = 2**51  # numbers that no endpoint comes to by itself
NUMBERS: Final = (0, 1, 2**51, 2**52, 2**52 + 5_000_000, HIGH, 2**63 - 1, 2**64 - 1)
TOPICS: Final = (b"/a", b"/b", b"/c/long/topic", b"<$>")


class RogueHost(WiredHost):
    """One rogue. It is not a host of its world: nobody is meant to reach it, and nothing it sends has to arrive."""

    world: MeshWorld

    def __init__(self, world: MeshWorld, rng: Random) -> None:
        super().__init__(world, NAME, NAME, rng.randbytes(16))
        del world.hosts[NAME]
        world.born(self.life, False)
        self._rng = rng
        self._shaking: dict[int, PeerHandshake] = {}
        self._peers: dict[int, bytes] = {}
        self._serial = 0
        self._borrowing = Random(f"borrowing {world.seed}")  # of its own: other worlds of rogues are what they were
        self._invented = [rng.randbytes(16) for _ in range(3)]

    # -- the network ------------------------------------------------------------------------------

    def accept(self, side: StreamSide) -> None:
        """Nobody dials it."""
        side.close()

    def connected(self, dial: int, side: StreamSide) -> None:
        """A dial succeeded."""
        conn = self._add(side)
        self._boxes[conn] = deque()
        self._shaking[conn] = PeerHandshake(conn, self.own_id, True, (b"",), PeerTable(), self.world.now)
        self._put(conn, *[step.frame for step in self._shaking[conn].start() if isinstance(step, SendFrame)])

    def dial_failed(self, dial: int, reason: str) -> None:
        """A dial failed: try another one."""
        self.world.clock.after(0.5, self.dial)

    def hear(self, side: StreamSide, bodies: list[bytes]) -> None:
        """Frames came; only pings are answered, so that it stays."""
        for body in bodies:
            if side.conn in self._shaking:
                self._greet(side, body)
            elif body[KIND_AT] in (PING, PONG) and (message := messages_of(body)[0]).kind == PING:
                self._put(side.conn, pack_pong(self.own_id, message.sender, message.payload))

    def _greet(self, side: StreamSide, body: bytes) -> None:
        for step in self._shaking[side.conn].take(body):
            match step:
                case SendFrame(frame):
                    self._put(side.conn, frame)
                case Established(peer_id):
                    self._peers[side.conn] = peer_id
                    self.world.record.link(self.life, self.world.lives[peer_id])
                    self.world.clock.after(0.01, self._attack, side.conn)
                case Failed() | Redundant():
                    side.close()
        if side.conn in self._peers:
            del self._shaking[side.conn]

    def broken(self, side: StreamSide, reason: str) -> None:
        """A connection is gone: it comes again."""
        if self.sides.pop(side.conn, None) is not None:
            self._peers.pop(side.conn, None)
            self._shaking.pop(side.conn, None)
            self.world.clock.after(0.2, self.dial)

    # -- what a host can be asked -----------------------------------------------------------------

    def dial(self) -> None:
        """Connect to anybody."""
        if self.alive and len(self.sides) < (1 if self.world.rogue_alone else 2):
            victim = self._rng.choice(self.world.alive(EndpointSubject) or [self])
            for _ in range(1 if self.world.settings.plain or self.world.rogue_alone else self._rng.choice((1, 2))):
                self.world.streams.dial(self, 0, victim.address)

    def peer(self, address: tuple[str, int], retry_s: float) -> None:
        """It chooses itself whom it dials."""

    def publish(self, topic: bytes, payload: bytes, kind: int = DATA, receiver: MeshHost | None = None) -> bool:
        """It publishes nothing that anybody is to get."""
        return False

    def want(self, topics: Sequence[bytes]) -> None:
        """It wants everything."""

    def peer_lives(self) -> list[str]:
        """It is nobody's host."""
        return []

    # -- attacks ----------------------------------------------------------------------------------

    def _attack(self, conn: int) -> None:
        if not self.alive or conn not in self._peers:
            return
        attacks: tuple[Callable[[bytes], list[bytes]], ...] = (
            self._state, self._state, self._publication, self._loss, self._odd, self._tree,
        )  # fmt: skip
        for _ in range(self._rng.choice((1, 3, 20))):
            self._put(conn, *self._rng.choice(attacks)(self._peers[conn]))
        if self._borrowing.random() < 0.2:
            self._put(conn, *self._borrow(self._peers[conn]))
        self.world.clock.after(self._rng.choice(PAUSES_S), self._attack, conn)

    def _somebody(self) -> bytes:
        ids = [each.own_id for each in self.world.alive(EndpointSubject)]
        return self._rng.choice([*ids, *self._invented, self.own_id])

    def _state(self, victim: bytes) -> list[bytes]:
        """A link state, of anybody."""
        rng = self._rng
        ids = sorted({self._somebody() for _ in range(rng.randrange(4))} | {self.own_id})
        neighbours = tuple([Neighbour(each, rng.random() < 0.1) for each in ids])
        wanted = rng.choice(((), (b"",), (b"/a", b"/b")))
        number = rng.choice((*NUMBERS, int(self.world.now * 1e6), int(self.world.now * 1e6) + 5))
        frame = pack_link_state(
            self.own_id, LinkState(self._somebody(), number, rng.random() < 0.7, wanted, neighbours)
        )
        receiver = self._somebody() if rng.random() < 0.2 else NOBODY
        return [frame[:20] + receiver + frame[36:]]

    def _publication(self, victim: bytes) -> list[bytes]:
        """A message in anybody's name; its number is one that nobody uses, for whoever is on a way could use any."""
        payload, topic, origin = self._payload(), self._rng.choice(TOPICS), self._somebody()
        self._published(topic, payload)
        frame = pack_publication(origin, HIGH + self._serial, HIGH + self._serial, DATA, NOBODY, topic, payload)
        return self._along_tree(victim, origin, frame)

    def _loss(self, victim: bytes) -> list[bytes]:
        self._payload()
        loss = Loss(self._somebody(), self._somebody(), self._rng.choice(NUMBERS), self._rng.choice(list(LossReason)))
        origin, number = self._somebody(), HIGH + self._serial
        frame = pack_publication(origin, number, number, LOSS, self._somebody(), b"<$>", loss.pack())
        return self._along_tree(victim, origin, frame)

    def _payload(self) -> bytes:
        self._serial += 1
        return b"rogue %d" % self._serial

    def _along_tree(self, victim: bytes, origin: bytes, frame: bytes) -> list[bytes]:
        """A frame on a tree that begins at the victim and goes on to anybody, and sometimes on a detour."""
        rng, tree = self._rng, HIGH + self._serial
        if origin == victim:
            return [frame]
        below = sorted({self._somebody() for _ in range(rng.randrange(3))} - {victim, origin})
        children = {origin: [victim], victim: below}
        [hop] = pack_hops(origin, frozenset([victim, *below[:1]]), children)
        told = pack_tree(self.own_id, origin, tree, hop.subtree)
        if rng.random() < 0.3:
            self._serial += 1
            frame = pack_detour(origin, HIGH + self._serial, tree, rng.randrange(40), frame[4:])
        return [told, frame] if rng.random() < 0.8 else [frame]

    def _borrow(self, victim: bytes) -> list[bytes]:
        """A message in somebody's name on a tree of his, along which a message of its own came before."""
        origin = self._borrowing.choice([each.own_id for each in self.world.alive(EndpointSubject)])
        if origin == victim:
            return []
        self._payload()
        tree = HIGH + self._serial
        [hop] = pack_hops(origin, frozenset([victim]), {origin: [victim]})
        frames = [pack_tree(self.own_id, origin, tree, hop.subtree)]
        for each in (self.own_id, origin):
            payload, topic = self._payload(), self._borrowing.choice(TOPICS)
            self._published(topic, payload)
            frames.append(pack_publication(each, HIGH + self._serial, tree, DATA, NOBODY, topic, payload))
        return frames

    def _tree(self, victim: bytes) -> list[bytes]:
        """A tree that runs in circles or is cut off, or a confirmation of what was never sent."""
        rng, somebody = self._rng, self._somebody()
        hops = b"".join([
            rng.choice((victim, somebody, self._somebody())) + bytes((rng.randrange(3), 0, rng.choice((0, 1, 1, 2))))
            for _ in range(rng.choice((1, 2, 3, 1_000)))
        ])  # fmt: skip
        hops = hops[: rng.choice((len(hops), rng.randrange(len(hops))))]
        return [
            pack_tree(self.own_id, somebody, rng.choice(NUMBERS), hops),
            pack_confirm(self.own_id, [(rng.choice(NUMBERS), rng.choice(NUMBERS))]),
            pack_forget(self.own_id, [rng.choice(NUMBERS)]),
        ]

    def _odd(self, victim: bytes) -> list[bytes]:
        kind = self._rng.choice((ROUTING_UPDATE, 99, DATA, LOSS, *sorted(FLOWS)))
        return [pack_message(self.own_id, NOBODY, kind, TTL, b"<$>", self._rng.randbytes(self._rng.randrange(40)))]

    def _put(self, conn: int, *frames: bytes) -> None:
        if conn in self.sides:
            self._boxes[conn].extend(frames)
            self.sides[conn].write()
