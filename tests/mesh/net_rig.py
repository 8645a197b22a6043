"""Endpoints' cores joined in memory: every frame that crosses a link is the test's to see, to hold back or to lose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Any

from tests.mesh.rogue_rig import PREFIX, SUBSCRIBER, Rig

from chappe.core import Dial
from chappe.mesh.events import LostElsewhere, MessagesDropped
from chappe.mesh.flows import FLOWS, KIND_AT
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.links.dialling import ONCE
from chappe.mesh.links.link import Link
from chappe.mesh.messages import DATA, NOBODY

TOPIC = b"/t"


class Node(Rig):
    """One endpoint, by its number in the net."""

    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(bytes([number + 1]) * 16, first_number=1_000 * (number + 1), **options)
        self.number = number
        self.conns: dict[int, int] = {}  # node: connection

    @property
    def id(self) -> bytes:
        """Its id."""
        return self.core.own_id

    @property
    def trees(self) -> Trees:
        """What the tests are about."""
        return self.core.router.trees

    @property
    def payloads(self) -> list[bytes]:
        """What its subscriber got."""
        return [each.payload for each in self.delivered]

    def link(self, other: Node) -> Link:
        """The link to another node."""
        return self.core.router.links[other.id]

    def publish(self, payload: bytes, topic: bytes = TOPIC, to: Node | None = None) -> None:
        """Publish, to one alone or to all who want the topic."""
        self.do(self.core.publish(topic, payload, DATA, NOBODY if to is None else to.id, self.now))

    def told(self) -> list[LostElsewhere]:
        """What it was told of losses elsewhere."""
        return [each for each in self.events if isinstance(each, LostElsewhere)]

    def dropped(self) -> list[MessagesDropped]:
        """What it says that it dropped."""
        return [each for each in self.events if isinstance(each, MessagesDropped)]


class Net:
    """Nodes by number. Frames cross links only in ``pump``; ``held`` has directions in which none do."""

    def __init__(
        self, count: int, links: Iterable[tuple[int, int]] = (), leaves: Collection[int] = (), **options: Any
    ) -> None:
        """Leaves pass nothing on."""
        self.nodes = [Node(number, forwarding=number not in leaves, **options) for number in range(count)]
        self.crossed: list[tuple[int, int, bytes]] = []  # from, to, body: of all that came after the handshakes
        self.held: set[tuple[int, int]] = set()
        self.names: Sequence[str] = ()  # of the nodes' identities, by number, if they have any
        self._dialled = 0
        for one, two in links:
            self.link(one, two)
        self.settle()

    @classmethod
    def full(cls, count: int, **options: Any) -> Net:
        """Everybody linked to everybody."""
        return cls(count, combinations(range(count), 2), **options)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def link(self, one: int, two: int) -> None:
        """One dials the other; the handshake needs a ``pump``."""
        dialler, other = self.nodes[one], self.nodes[two]
        self._dialled += 1
        actions = dialler.core.peer("node", self._dialled, ONCE, self._dialled, dialler.now)
        [dial] = [each for each in actions if isinstance(each, Dial)]
        other.conns[one], dialler.conns[two] = other.open(), dial.link
        dialler.do(dialler.core.handle_link(dial.link, ("node", self._dialled), dialler.now))
        if self.names:
            for node, peer in ((dialler, other), (other, dialler)):
                key, name = peer.id, self.names[peer.number]
                node.core.secured(node.conns[peer.number], key, (peer.id,), name)

    def cut(self, one: int, two: int) -> None:
        """A link breaks: what was on its way is lost, and both notice."""
        for here, there in ((one, two), (two, one)):
            node = self.nodes[here]
            node.do(node.core.handle_gone(node.conns.pop(there), "it broke", node.now))

    def believe_cut(self, at: int, one: int, two: int) -> None:
        """One node has heard that another one has no link to a third."""
        topology = self.nodes[at].core.router.topology
        topology._known[self.nodes[one].id].chappe -= {self.nodes[two].id}
        topology.changed = True
        self.nodes[at].pass_time(0.0)

    def kill(self, number: int) -> None:
        """A node dies with all that it has."""
        for other in list(self.nodes[number].conns):
            node = self.nodes[other]
            del self.nodes[number].conns[other]
            node.do(node.core.handle_gone(node.conns.pop(number), "it died", node.now))

    def want(self, *numbers: int, topic: bytes = TOPIC) -> None:
        """Have nodes subscribe, and all know it."""
        for number in numbers:
            node = self.nodes[number]
            node.do(node.core.subscribe(SUBSCRIBER, [topic], now=node.now))
        self.settle()

    def pump(self) -> None:
        """Bring everything where it goes, frame by frame, until nothing moves."""
        for _ in range(100_000):
            moved = False
            for node in self.nodes:
                for other in list(node.conns):
                    moved = self._move(node.number, other) or moved
            if not moved:
                return
        raise AssertionError("they never come to an end")

    def _move(self, one: int, two: int) -> bool:
        node, other = self.nodes[one], self.nodes[two]
        if (one, two) in self.held or two not in node.conns:
            return False
        bodies = [frame[PREFIX:] for frame in node.core.take(node.conns[two], 1 << 20)]
        for body in bodies:
            self.crossed.append((one, two, body))
            if one in other.conns:
                other.do(other.core.handle_frames(other.conns[one], [body], other.now))
        return bool(bodies)

    def pass_time(self, seconds: float) -> None:
        """Let time pass for all, and everything happen that follows."""
        for node in self.nodes:
            node.pass_time(seconds)
        self.pump()

    def settle(self) -> None:
        """Until everybody knows everybody, and everything is confirmed."""
        self.pump()
        for _ in range(4):
            self.pass_time(0.2)
        self.check()
        self.crossed.clear()

    def check(self) -> None:
        """No core finds anything wrong with itself, and no frame was refused."""
        for node in self.nodes:
            assert node.core.invariants() == []
            assert [each.where for each in node.dropped() if "from" in each.where] == []

    def of(self, *kinds: int) -> list[tuple[int, int, bytes]]:
        """What crossed links of some types: from, to, body."""
        return [each for each in self.crossed if len(each[2]) > KIND_AT and each[2][KIND_AT] in kinds]

    def flows(self) -> list[tuple[int, int, bytes]]:
        """What crossed links that carries a publication."""
        return self.of(*FLOWS)

    def count(self, *kinds: int) -> int:
        """How many frames of some types crossed links."""
        return len(self.of(*kinds))

    def ways(self, kinds: Sequence[int] = tuple(FLOWS)) -> list[tuple[int, int]]:
        """Which links frames of some types crossed, in order."""
        return [(one, two) for one, two, _ in self.of(*kinds)]

    def is_idle(self) -> bool:
        """Whether nothing is kept for anybody, or on its way."""
        return not any(
            branch.busy or any(child.kept for child in branch.children.values())
            for node in self.nodes
            for branch in node.trees._labels.values()
        )
