"""Trees as one hop knows them: where they come from and lead to, and what is on its way along them.

``Told`` has the trees that each neighbour was told of, so that it never has more of them than it keeps.

A peer that tells us of many trees makes us tell others of them, which then had no room for other trees. So the oldest
are taken back on which nothing is on its way; if something comes along one of them, it is told again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from chappe.defaults import TREES_TOLD_BYTES_MAX
from chappe.mesh.flows import Hop, number_given
from chappe.mesh.messages import NOBODY

BRANCH_BYTES: Final = 1_024  # what a tree takes beside what the hops below take ...
CHILD_BYTES: Final = 512  # ... and what one of these takes beside the ids of the hops below it

# Shared by all children to which nothing was sent yet, as empty ones take more than all the rest of a child.
_NOTHING_KEPT: Final[deque[tuple[int, bytes]]] = deque()
_NOTHING_DETOURED: Final[deque[int]] = deque()


def size_there(hop: Hop) -> int:
    """Return how many bytes a tree takes at the hop that it is told to: see ``Branch.size``."""
    return BRANCH_BYTES + hop.below() * CHILD_BYTES + len(hop.subtree)


class Key(NamedTuple):
    """The purpose of a tree of ours, by which it is found again."""

    receivers: frozenset[bytes]  # those too to whom no way leads
    paths: int = 1
    twice: frozenset[bytes] = frozenset()  # who of them gets the same along a tree of somebody else
    carried: bytes = NOBODY  # of whom the messages are; NOBODY if they are ours
    detours: int = 0  # how often they have been sent another way, this one included
    lane: bytes = b""  # the topic that has this tree for itself; see ``holds``


class Child:
    """A hop below us on a tree, and the messages to it that are not confirmed."""

    __slots__ = ("_receivers", "_twice", "conn", "detoured", "hop", "kept")

    def __init__(self, hop: Hop) -> None:
        self.hop = hop
        self.conn: int | None = None  # the connection over which it was told of the tree
        self.kept = _NOTHING_KEPT  # numbers and frames
        self.detoured = _NOTHING_DETOURED  # numbers of what went another way and is not confirmed there
        self._receivers: frozenset[bytes] | None = None
        self._twice: frozenset[bytes] | None = None

    @property
    def receivers(self) -> frozenset[bytes]:
        if self._receivers is None:
            self._receivers = self.hop.receivers()
        return self._receivers

    @property
    def twice(self) -> frozenset[bytes]:
        """Those of the receivers to which another tree leads, too."""
        if self._twice is None:
            self._twice = self.hop.twice()
        return self._twice

    def begin(self) -> None:
        """Note that something is going to be sent there, or around it."""
        assert not _NOTHING_KEPT
        assert not _NOTHING_DETOURED
        if self.kept is _NOTHING_KEPT:
            self.kept, self.detoured = deque(), deque()


class Branch:
    """A tree, as far as it is known here."""

    __slots__ = (
        "above", "came", "checked", "children", "deliver", "key", "label", "origin", "second", "timed", "told",
        "upstream", "used", "waiting", "waits",
    )  # fmt: skip

    def __init__(
        self, origin: bytes, upstream: bytes, above: int, label: int, deliver: bool, hops: Iterable[Hop]
    ) -> None:
        self.origin = origin
        self.upstream = upstream  # who sends along it to us; NOBODY if it is ours
        self.above = above  # what upstream calls it
        self.label = label  # what we call it
        self.deliver = deliver
        self.waits = False  # whoever publishes along it does while somebody is full
        self.children = {hop.id: Child(hop) for hop in hops}
        self.came = 0  # the number of the last message
        self.told = 0  # up to this number it is confirmed
        self.checked = 0  # as of this look at the network it is right, or its origin is where it comes from
        self.used = True  # further messages may come along it
        self.key: Key | None = None  # ours: what it is for
        self.second: Branch | None = None  # ours: the tree along which the same goes too
        self.timed = False  # ours: what goes along it has a time
        self.waiting: deque[tuple[int, Branch, Child, int]] = deque()  # ours: its numbers, and what each confirms

    def hops(self) -> list[Hop]:
        return [each.hop for each in self.children.values()]

    def confirmed(self) -> int:
        """Return the number up to which everything has arrived at all receivers below."""
        least = self.came
        for child in self.children.values():
            if child.kept:
                least = min(least, child.kept[0][0] - 1)
            if child.detoured:
                least = min(least, child.detoured[0] - 1)
        return least

    def left(self, child: Child) -> frozenset[int]:
        """Return the origin's numbers of messages under way to a hop below that nobody behind it is known to have."""
        second = self.second
        done = second.confirmed() if second is not None and child.receivers == child.twice else 0
        return frozenset([number_given(frame) for number, frame in child.kept if number > done])

    def both(self) -> list[Branch]:
        return [self] if self.second is None else [self, self.second]

    def leads_by(self, hops: list[Hop]) -> bool:
        return self.hops() == hops and not any(child.detoured for child in self.children.values())

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(child.kept or child.detoured for child in self.children.values())

    @property
    def size(self) -> int:
        return BRANCH_BYTES + sum([CHILD_BYTES + len(child.hop.subtree) for child in self.children.values()])


_LOOKS_MAX: Final = 256  # for trees that can be taken back, each time


class Told:
    def __init__(self) -> None:
        self._links: dict[int, OrderedDict[int, Child]] = {}  # the oldest first
        self._bytes: dict[int, int] = {}

    def add(self, conn: int, label: int, child: Child) -> tuple[bool, list[int]]:
        """Note a tree to tell; return whether there is room for it, and the labels of those that are taken back."""
        told = self._links.setdefault(conn, OrderedDict())
        size = self._bytes.get(conn, 0) + size_there(child.hop)
        back: list[int] = []
        looks = min(len(told), _LOOKS_MAX)
        while size > TREES_TOLD_BYTES_MAX and looks:
            looks -= 1
            other, each = next(iter(told.items()))
            if each.kept or each.detoured:
                told.move_to_end(other)
                continue
            del told[other]
            each.conn = None
            back.append(other)
            size -= size_there(each.hop)
        self._bytes[conn] = size
        if size > TREES_TOLD_BYTES_MAX:
            self._bytes[conn] = size - size_there(child.hop)
            return False, back
        told[label] = child
        return True, back

    def remove(self, conn: int, label: int) -> None:
        child = self._links.get(conn, OrderedDict[int, Child]()).pop(label, None)
        if child is not None:
            self._bytes[conn] -= size_there(child.hop)

    def labels(self, conn: int) -> frozenset[int]:
        return frozenset(self._links.get(conn, ()))

    def forget(self, conn: int) -> None:
        self._links.pop(conn, None)
        self._bytes.pop(conn, None)

    def invariants(self) -> list[str]:
        sizes = {conn: sum([size_there(each.hop) for each in told.values()]) for conn, told in self._links.items()}
        right = sizes == self._bytes and max(sizes.values(), default=0) <= TREES_TOLD_BYTES_MAX
        return [] if right else [f"{self._bytes} bytes of trees are counted as told, {sizes} are"]
