"""What the trees of the mesh cost: ``python -m benchmarks.trees`` prints microseconds for each.

The network is that of the original's benchmark of its routing tables: a binary tree in which siblings are linked too,
1,022 endpoints below the one that is measured.
"""

from __future__ import annotations

from random import Random

from rich.console import Console
from rich.table import Table as Grid

from benchmarks.values import nanoseconds
from chappe.mesh.flows import pack_hops, pack_tree, parse_tree
from chappe.mesh.messages import LinkState, Neighbour, pack_link_state
from chappe.mesh.topology import Topology

DEPTH = 9
RUN_S = 1.0
WANTED = (b"/topic",)


def endpoint(number: int) -> bytes:
    """Its id: 1 is the root, and below each ``n`` are ``2 n`` and ``2 n + 1``."""
    return number.to_bytes(16, "big")


def network(depth: int = DEPTH) -> tuple[Topology, list[bytes]]:
    """What the root knows when it has heard of everybody, and all others."""
    last = 2 ** (depth + 1)
    topology = Topology(endpoint(1), True, 1)
    for number in (2, 3):
        topology.link_up(endpoint(number), False, WANTED)
    topology.settle(0.0)
    for number in range(2, last):
        beside = [each for each in (number // 2, number ^ 1, 2 * number, 2 * number + 1) if each < last]
        neighbours = tuple([Neighbour(endpoint(each)) for each in sorted(beside)])
        state = LinkState(endpoint(number), 1, True, WANTED, neighbours)
        below = number
        while below > 3:
            below //= 2
        topology.learn(state, pack_link_state(endpoint(number), state), endpoint(below), 0.0)
        topology.settle(0.0)
    return topology, [endpoint(number) for number in range(2, last)]


def main() -> None:
    """Measure and print."""
    topology, others = network()
    root = endpoint(1)
    some = frozenset(Random(1).sample(others, len(others) // 10))
    everybody = frozenset(others)

    def anew() -> None:
        topology.changed = True
        topology.settle(0.0)
        topology.has_way(others[-1])

    def tree(receivers: frozenset[bytes]) -> bytes:
        [hop, _] = pack_hops(root, receivers, topology.ways().tree(receivers)[1])
        return hop.subtree

    whole = pack_tree(root, root, 1, tree(everybody))[4 + 37 + 3 :]
    cases = {
        "shortest ways to everybody, after a change": lambda: anew(),
        "who wants a topic that everybody wants": lambda: topology.receivers(b"/topic/x"),
        f"the tree to all {len(others):,}, ready to be told": lambda: tree(everybody),
        f"the tree to {len(some)} of them": lambda: tree(some),
        f"a hop takes its part of it, {len(whole):,} bytes": lambda: parse_tree(whole, endpoint(2)),
    }
    grid = Grid("what", "microseconds")
    grid.columns[1].justify = "right"
    for name, do in cases.items():
        grid.add_row(name, f"{nanoseconds(do, RUN_S) / 1000:,.0f}")
    Console().print(grid)


if __name__ == "__main__":
    main()
