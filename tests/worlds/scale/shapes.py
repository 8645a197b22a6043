"""The shapes of networks, as links between endpoints 0, 1, 2, ..., and the shortest ways in them.

Everything here is worked out from the links alone, so that it can be the measure of what cores do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from math import isqrt
from random import Random
from typing import Final

MEAN_DEGREE: Final = 4  # of a random network

Edge = tuple[int, int]  # the smaller number first


def _random(count: int, rng: Random) -> list[Edge]:
    """A random tree, so that everybody is connected, and further random links up to the mean degree."""
    found: set[Edge] = {(rng.randrange(each), each) for each in range(1, count)}
    most = min(count * MEAN_DEGREE // 2, count * (count - 1) // 2)
    while len(found) < most:
        one, two = sorted(rng.sample(range(count), 2))
        found.add((one, two))
    return sorted(found)


def _ring(count: int, _: Random) -> list[Edge]:
    return sorted({(min(each, (each + 1) % count), max(each, (each + 1) % count)) for each in range(count)} - {(0, 0)})


def _grid(count: int, _: Random) -> list[Edge]:
    """Rows of as many as there are rows; the last one may be shorter."""
    width = isqrt(count - 1) + 1
    right = [(each, each + 1) for each in range(count - 1) if (each + 1) % width]
    return sorted([*right, *((each, each + width) for each in range(count - width))])


def _tree(count: int, _: Random) -> list[Edge]:
    """Each has two below it."""
    return [((each - 1) // 2, each) for each in range(1, count)]


def _star_of_stars(count: int, _: Random) -> list[Edge]:
    """One in the middle; around it as many stars as each of them has members."""
    hubs = min(isqrt(count), count - 1)
    return [(0 if each <= hubs else 1 + each % hubs, each) for each in range(1, count)]


def _full(count: int, _: Random) -> list[Edge]:
    return list(combinations(range(count), 2))


SHAPES: Final = {
    "random": _random,
    "ring": _ring,
    "grid": _grid,
    "tree": _tree,
    "star-of-stars": _star_of_stars,
    "full": _full,
}


def make(shape: str, count: int, seed: int = 1) -> list[Edge]:
    """Return the links of a network of ``count`` endpoints; only ``random`` depends on the seed."""
    return SHAPES[shape](count, Random(seed))


def neighbours(edges: Iterable[Edge], count: int) -> list[list[int]]:
    """Return who is beside each endpoint, the smallest number first."""
    found: list[list[int]] = [[] for _ in range(count)]
    for one, two in edges:
        found[one].append(two)
        found[two].append(one)
    return [sorted(each) for each in found]


def parents(beside: Sequence[Sequence[int]], root: int) -> dict[int, int]:
    """Return for everybody in reach who comes before it on a shortest way from ``root``, nearest first.

    Of several ways of the same length it is the one whose members were found first.
    """
    found = {root: root}
    for at in (queue := [root]):
        for each in beside[at]:
            if each not in found:
                found[each] = at
                queue.append(each)
    return found


def tree_links(beside: Sequence[Sequence[int]], root: int, receivers: Collection[int]) -> int:
    """Return how many links the shortest-path tree from ``root`` to ``receivers`` has: the frames that must be sent."""
    before = parents(beside, root)
    used: set[int] = {root}
    for each in receivers:
        at = each
        while at not in used:
            used.add(at)
            at = before[at]
    return len(used) - 1


def eccentricity(beside: Sequence[Sequence[int]], root: int) -> int:
    """Return how many links the farthest endpoint is away from ``root``."""
    hops = {root: 0}
    for each, before in parents(beside, root).items():
        hops.setdefault(each, hops[before] + 1)
    return max(hops.values())
