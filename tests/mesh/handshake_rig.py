"""Two endpoints whose handshakes are joined by frames in memory, delivered in any order of the connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tests.mesh.test_mesh_messages import body_of

from chappe.mesh.links.greetings import VERSIONS
from chappe.mesh.links.handshake import Established, Failed, PeerHandshake, Redundant, SendFrame, Step, Wake
from chappe.mesh.links.peers import PeerTable

SMALLER = b"\x11" * 16
GREATER = b"\xee" * 16


class Side:
    """One endpoint: its handshakes, what they sent, and how they ended."""

    def __init__(self, own: bytes, wanted: Sequence[bytes] = (b"/wanted",), version_max: int = VERSIONS[-1]) -> None:
        self.own = own
        self.version_max = version_max
        self.wanted = wanted
        self.peers = PeerTable()
        self.handshakes: dict[int, PeerHandshake] = {}
        self.sent: dict[int, deque[bytes]] = {}
        self.outcomes: dict[int, Established | Failed | Redundant] = {}

    def open(self, conn: int, dialled: bool, now: float = 0.0) -> PeerHandshake:
        handshake = PeerHandshake(conn, self.own, dialled, self.wanted, self.peers, now, self.version_max)
        self.handshakes[conn] = handshake
        self.sent[conn] = deque()
        self.do(conn, handshake.start())
        return handshake

    def receive(self, conn: int, body: bytes) -> None:
        self.do(conn, self.handshakes[conn].take(body))

    def do(self, conn: int, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case SendFrame(frame):
                    self.sent[conn].append(body_of(frame))
                case Wake(conns):
                    for woken in conns:
                        self.do(woken, self.handshakes[woken].wake())
                case _:
                    assert conn not in self.outcomes, "a handshake ends once"
                    self.outcomes[conn] = step

    def has_closed(self, conn: int) -> bool:
        return isinstance(self.outcomes.get(conn), Failed | Redundant)


class Pair:
    """Two sides and the connections between them."""

    def __init__(self, one: Side, two: Side) -> None:
        self.sides = (one, two)
        self.told: set[tuple[int, int]] = set()  # connections that a side knows to be closed by the other

    def connect(self, conn: int, dialler: int) -> None:
        self.sides[dialler].open(conn, True)
        self.sides[1 - dialler].open(conn, False)

    def run(self, choose: Callable[[int], int] = lambda count: 0) -> None:
        """Deliver frame by frame until nothing is left; ``choose`` picks one of ``count`` directions."""
        while ready := self.ready():
            self.step(*ready[choose(len(ready))])

    def ready(self) -> list[tuple[int, int]]:
        """Number of the sender, and connection, where a frame or the end is on the way."""
        return [
            (number, conn)
            for number, side in enumerate(self.sides)
            for conn in side.handshakes
            if side.sent[conn] or (side.has_closed(conn) and (number, conn) not in self.told)
        ]

    def step(self, sender: int, conn: int) -> None:
        """Deliver the next frame of one direction, or its end."""
        if self.sides[sender].sent[conn]:
            self.sides[1 - sender].receive(conn, self.sides[sender].sent[conn].popleft())
        else:
            self.told.add((sender, conn))
            self._break(1 - sender, conn)

    def lose(self, conn: int) -> None:
        """The connection breaks: both notice, and what was on the way is lost."""
        for number, side in enumerate(self.sides):
            self.told.add((number, conn))
            side.sent[conn].clear()
        for number in (0, 1):
            self._break(number, conn)

    def _break(self, number: int, conn: int) -> None:
        side = self.sides[number]
        if isinstance(side.outcomes.get(conn), Established):
            side.outcomes[conn] = Failed(0, "lost after it stood")
            assert side.peers.release(conn, self.sides[1 - number].own) == ()
        else:
            side.do(conn, side.handshakes[conn].end("the connection broke"))
