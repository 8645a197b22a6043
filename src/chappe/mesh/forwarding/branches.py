"""Trees as one hop knows them: where they come from and lead to, and what is on its way along them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from chappe.mesh.flows import Hop

BRANCH_BYTES: Final = 256  # what a tree takes beside the ids of the hops below


class Child:
    """A hop below us on a tree, and what was sent there and is not confirmed."""

    __slots__ = ("conn", "detoured", "hop", "kept", "receivers", "twice")

    def __init__(self, hop: Hop) -> None:
        self.hop = hop
        self.receivers = hop.receivers()
        self.twice = hop.twice()  # of these: another tree leads to them, too
        self.conn: int | None = None  # the connection over which it was told of the tree
        self.kept: deque[tuple[int, bytes]] = deque()  # numbers and frames
        self.detoured: deque[int] = deque()  # numbers of what went another way and is not confirmed there


class Branch:
    """A tree, as far as it is known here."""

    __slots__ = (
        "above", "came", "checked", "children", "deliver", "label", "origin", "second", "told", "upstream", "used",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, origin: bytes, upstream: bytes, above: int, label: int, deliver: bool, hops: Iterable[Hop]
    ) -> None:
        self.origin = origin
        self.upstream = upstream  # who sends along it to us; NOBODY if it is ours
        self.above = above  # what upstream calls it
        self.label = label  # what we call it
        self.deliver = deliver
        self.children = {hop.id: Child(hop) for hop in hops}
        self.came = 0  # the number of the last message
        self.told = 0  # up to this number it is confirmed
        self.checked = 0  # as of this look at the network it is right, or its origin is where it comes from
        self.used = True  # further messages may come along it
        self.second: Branch | None = None  # ours: the tree along which the same goes too
        self.waiting: deque[tuple[int, Branch, Child, int]] = deque()  # ours: its numbers, and what each confirms

    def hops(self) -> list[Hop]:
        """The hops below us."""
        return [each.hop for each in self.children.values()]

    def confirmed(self) -> int:
        """Up to which number everything has arrived at all receivers below."""
        least = self.came
        for child in self.children.values():
            if child.kept:
                least = min(least, child.kept[0][0] - 1)
            if child.detoured:
                least = min(least, child.detoured[0] - 1)
        return least

    def both(self) -> list[Branch]:
        """It, and the second one."""
        return [self] if self.second is None else [self, self.second]

    def leads_by(self, hops: list[Hop]) -> bool:
        """Whether it leads over these hops, and nothing of it goes another way."""
        return self.hops() == hops and not any(child.detoured for child in self.children.values())

    @property
    def busy(self) -> bool:
        """Whether something is on its way."""
        return bool(self.waiting) or any(child.kept or child.detoured for child in self.children.values())

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return BRANCH_BYTES + sum([len(child.hop.subtree) for child in self.children.values()])
