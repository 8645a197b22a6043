"""Which trees each neighbour was told of, so that it has never more of them than it keeps.

Whoever tells us of many trees has us tell others of them, who then had no room for the trees of anybody else. So the
oldest are taken back on which nothing is on its way; if something comes along one of them, it is told again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from chappe.defaults import TREES_TOLD_BYTES_MAX
from chappe.mesh.forwarding.branches import Child, size_there

_LOOKS_MAX: Final = 256  # for trees that can be taken back, each time


class Told:
    """By connection and label."""

    def __init__(self) -> None:
        self._links: dict[int, OrderedDict[int, Child]] = {}  # the oldest first
        self._bytes: dict[int, int] = {}

    def add(self, conn: int, label: int, child: Child) -> tuple[bool, list[int]]:
        """A tree is to be told. Returns whether there is room for it, and the labels of those that are taken back."""
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
        """A tree is not used any more."""
        child = self._links.get(conn, OrderedDict[int, Child]()).pop(label, None)
        if child is not None:
            self._bytes[conn] -= size_there(child.hop)

    def labels(self, conn: int) -> frozenset[int]:
        """Of the trees that a neighbour knows of us."""
        return frozenset(self._links.get(conn, ()))

    def forget(self, conn: int) -> None:
        """A link ended."""
        self._links.pop(conn, None)
        self._bytes.pop(conn, None)

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        sizes = {conn: sum([size_there(each.hop) for each in told.values()]) for conn, told in self._links.items()}
        right = sizes == self._bytes and max(sizes.values(), default=0) <= TREES_TOLD_BYTES_MAX
        return [] if right else [f"{self._bytes} bytes of trees are counted as told, {sizes} are"]
