"""Which gateways pass, so that domains and gateways make a tree: no message goes in a circle, and none comes twice.

It is the spanning tree of bridges between networks (IEEE 802.1D), found from what gateways announce. The oldest
gateway is the root. Each of the others has its way to the root on one side, *up*, and offers the domain on its other
side a way. Of those that offer a domain a way only the best *feeds* it, all others wait. So of several gateways between
the same two domains one passes, and in a circle of domains one gateway waits, wherever that is.

A name begins with the moment since when a gateway takes part. So one that comes back takes nothing from one that passes
already, as long as its way is no shorter.

Departures: what is announced stands in link states and needs no timers; an announcement has the whole path, as in BGP,
so that nobody believes what he said himself, and no distance is counted to infinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chappe.gateway.announcement import Announcement


@dataclass(frozen=True, slots=True)
class TreePlace:
    """The place of a gateway in the tree. ``up`` is the side of its way to the root; None if it is the root."""

    up: int | None
    path: tuple[bytes, ...]
    rival: bytes | None  # the endpoint that feeds a domain rather than this gateway: then this one waits

    @property
    def feeds(self) -> frozenset[int]:
        """The sides that it feeds if it passes."""
        return frozenset({0, 1} - {self.up})


def elect(name: bytes, others: Sequence[Mapping[bytes, Announcement]], first: int, depth_max: int) -> TreePlace:
    """The place of the gateway ``name``.

    Args:
        first: The side to prefer where both offer as good a way: the same domain for all who join the same two.
        others: By side, what others announce, by endpoint; all have a path. Only those who are settled offer a way.
        depth_max: Gateways on a way; nobody takes a place further down.
    """
    up: int | None = None
    best: Announcement | None = None
    for side, announced in enumerate(others):
        for each in announced.values():
            if each.up or not each.settled or name in each.path or len(each.path) >= depth_max or each.path[0] >= name:
                continue
            if best is None or each.rank < best.rank or (each.rank == best.rank and side == first):
                up, best = side, each
    path = (name,) if best is None else (*best.path, name)
    rank = (path[0], len(path), name)
    rival = None
    for side, announced in enumerate(others):
        if side != up:
            better = [(each.rank, endpoint) for endpoint, each in announced.items() if not each.up and each.rank < rank]
            rival = min(better)[1] if better else rival
    return TreePlace(up, path, rival)
