"""Where members stand on the map. Pure, and calm: a place follows from what a member is.

Up to ``SINGLE_MAX`` members are drawn one by one, beyond that members of a kind that are alike stand as one group. On
the left is the log: each kind has a row, from top to bottom in the order in which records flow. On the left of it,
servers of pairs and chains stand in a column, one below the other, so that there is room for the label of each. On the
right is the mesh: its endpoints stand on a grid that has more places than members, each where a hash of its id says, or
at the next free place. So one that comes or goes moves nobody, or few, until the grid is too small and gets more
places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from chappe.observing.snapshot import Kind, Level, ObservedLink, ObservedMember

SINGLE_MAX: Final = 150  # members drawn one by one
EDGES_MAX: Final = 1_500
ROW_MAX: Final = 12  # members side by side; then a second line begins
ROWS: Final[dict[str, int]] = {
    "tower": 0, "producers": 1, "member": 1, "store": 2, "consumers": 3, "group": 3, "pipeline": 3,
}  # fmt: skip
COLUMN: Final = ("map server", "witness", "chain server")  # from top to bottom; each kind as it is told
GRIDS: Final = (3, 4, 5, 7, 10, 14, 20, 40, 100)  # places side by side in the mesh
FREE: Final = 1.5  # places for each member, at least
GAP_X: Final = 110.0
GAP_Y: Final = 110.0
LINE_Y: Final = 60.0
SERVERS_Y: Final = 90.0  # between servers of a column
APART: Final = 140.0  # between log and mesh
JITTER: Final = 40.0  # so that links of three in a row do not lie upon each other


class MapNode(NamedTuple):
    """A member, or a group of them: ``size`` is then above 1 and ``id`` begins with ``group:``.

    The label of a ``server``, one of a pair or chain or a witness, is always shown.
    """

    id: str
    kind: Kind
    name: str
    level: Level
    size: int
    x: float
    y: float
    server: bool = False


class Edge(NamedTuple):
    """Links between two nodes, all together. Rates are frames a second from ``a`` to ``b``, and back."""

    a: str
    b: str
    kind: str
    links: int
    there: float
    back: float
    waiting: int


class Drawing(NamedTuple):
    """A drawing of the map; ``left_out`` edges are not in it."""

    nodes: tuple[MapNode, ...]
    edges: tuple[Edge, ...]
    left_out: int


def draw(members: Sequence[ObservedMember], links: Sequence[ObservedLink], single_max: int = SINGLE_MAX) -> Drawing:
    """Give every member a place."""
    grouped = len(members) > single_max
    counts = Counter(_group(each) for each in members)
    # what is rare stays by itself: of a thousand members one wants to see the three stores
    merged = {key for key, count in counts.items() if grouped and count > single_max // 10}
    home: dict[str, str] = {}
    nodes: dict[str, tuple[ObservedMember, int]] = {}
    for each in members:
        key = _group(each)
        if key not in merged:
            home[each.id] = each.id
            nodes[each.id] = (each, 1)
            continue
        name = f"group:{key[0]}:{key[1]}"
        home[each.id] = name
        first, count = nodes.get(name, (each, 0))
        nodes[name] = (each if each.level != "good" else first, count + 1)
    edges = _edges(links, home)
    return Drawing(tuple(_places(nodes)), tuple(edges[:EDGES_MAX]), max(0, len(edges) - EDGES_MAX))


def _group(member: ObservedMember) -> tuple[str, str]:
    """Return the key by which members are alike: the kind, and the host."""
    host = member.address.removeprefix("tcp://").rpartition(":")[0]
    return member.kind, host


def _places(nodes: dict[str, tuple[ObservedMember, int]]) -> list[MapNode]:
    log = [each for each in nodes if nodes[each][0].kind in ROWS]
    servers = [each for each in nodes if nodes[each][0].kind in COLUMN]
    mesh = [each for each in nodes if nodes[each][0].kind not in (*ROWS, *COLUMN)]
    at = _rows(log, nodes)
    if servers:
        at = _column(servers, nodes) | {name: (x + APART, y) for name, (x, y) in at.items()}
    width = max((x for x, _ in at.values()), default=-APART) + APART
    at |= {name: (x + width, y) for name, (x, y) in _grid(mesh, nodes).items()}
    return [_node(name, *nodes[name], *at[name]) for name in nodes]


def _node(name: str, member: ObservedMember, size: int, x: float, y: float) -> MapNode:
    label = member.name if size == 1 else f"{size:,} {_many(member.kind)}"
    if size == 1 and member.kind in ("chain server", "map server"):
        label += f", {member.status}"  # its place in the chain, or which of two it is
    return MapNode(name, member.kind, label, member.level, size, x, y, size == 1 and member.kind in COLUMN)


def _column(names: Sequence[str], nodes: dict[str, tuple[ObservedMember, int]]) -> dict[str, tuple[float, float]]:
    ranked = sorted(names, key=lambda each: COLUMN.index(nodes[each][0].kind))
    return {name: (0.0, place * SERVERS_Y) for place, name in enumerate(ranked)}


def _rows(names: Sequence[str], nodes: dict[str, tuple[ObservedMember, int]]) -> dict[str, tuple[float, float]]:
    rows: dict[int, list[str]] = {}
    for name in names:
        rows.setdefault(ROWS[nodes[name][0].kind], []).append(name)
    found = {}
    y = 0.0
    for row in sorted(rows):
        ranked = sorted(rows[row], key=lambda each: (nodes[each][0].kind, _hash(each)))
        lines = [ranked[begin : begin + ROW_MAX] for begin in range(0, len(ranked), ROW_MAX)]
        for number, line in enumerate(lines):
            for place, name in enumerate(line):
                found[name] = ((place - (len(line) - 1) / 2) * GAP_X, y + number * LINE_Y)
        y += GAP_Y + (len(lines) - 1) * LINE_Y
    left = min((x for x, _ in found.values()), default=0.0)
    return {name: (x - left, at) for name, (x, at) in found.items()}


def _grid(names: Sequence[str], nodes: dict[str, tuple[ObservedMember, int]]) -> dict[str, tuple[float, float]]:
    side = next((each for each in GRIDS if each * each >= FREE * len(names)), GRIDS[-1])
    taken: dict[int, str] = {}
    for name in sorted(names, key=lambda each: (nodes[each][0].kind != "this dashboard", _hash(each))):
        place = side // 2 if nodes[name][0].kind == "this dashboard" else _hash(name) % (side * side)
        tries = 0
        while place in taken:  # elsewhere each time, for neighbours that gather would push each other on
            tries += 1
            place = _hash(f"{name} {tries}") % (side * side)
        taken[place] = name
    found = {}
    for place, name in taken.items():
        jitter = (_hash(name) >> 32) / 2**32 - 0.5
        row, column = divmod(place, side)
        found[name] = (column * GAP_X + (row % 2) * GAP_X / 2 + jitter * JITTER, row * GAP_Y + jitter * JITTER)
    return found


def _many(kind: str) -> str:
    return kind if kind.endswith("s") else f"{kind}s"


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _edges(links: Sequence[ObservedLink], home: dict[str, str]) -> list[Edge]:
    found: dict[tuple[str, str, str], Edge] = {}
    for link in links:
        a, b = (home.get(end) for end in link.ends)
        if a is None or b is None or a == b:
            continue
        there, back = link.sent_per_s or 0.0, link.received_per_s or 0.0
        if b < a:
            a, b, there, back = b, a, back, there
        known = found.get((a, b, link.kind), Edge(a, b, link.kind, 0, 0.0, 0.0, 0))
        waiting = known.waiting + link.waiting + link.waiting_back
        found[a, b, link.kind] = Edge(
            a, b, link.kind, known.links + 1, known.there + there, known.back + back, waiting
        )  # fmt: skip
    return sorted(found.values(), key=lambda each: (-(each.there + each.back), each.a, each.b))
