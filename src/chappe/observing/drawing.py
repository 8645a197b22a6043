"""Where members stand on the map. Pure, and calm: a place follows from what a member is.

Up to ``SINGLE_MAX`` members are drawn one by one, beyond that members of a kind that are alike stand as one group.
Kinds have rows from top to bottom in the order in which records flow; within its row a member has the place of its
rank in a hash of its id, so one that comes or goes moves its neighbours by a place at most, and nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from chappe.observing.snapshot import Kind, Level, Link, Member

SINGLE_MAX: Final = 150  # members drawn one by one
EDGES_MAX: Final = 1_500
ROW_MAX: Final = 24  # members side by side; then a second line begins
ROWS: Final[dict[str, int]] = {
    "tower": 0, "producers": 1, "member": 1, "store": 2, "consumers": 3, "group": 3, "pipeline": 3,
    "gateway": 4, "endpoint": 4, "original": 4, "this dashboard": 5, "map server": 5,
}  # fmt: skip
GAP_X: Final = 100.0
GAP_Y: Final = 120.0
LINE_Y: Final = 60.0


class Node(NamedTuple):
    """A member, or a group of them: ``size`` is then above 1 and ``id`` begins with ``group:``."""

    id: str
    kind: Kind
    name: str
    level: Level
    size: int
    x: float
    y: float


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
    """What is drawn; ``left_out`` is how many edges are not."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    left_out: int


def draw(members: Sequence[Member], links: Sequence[Link], single_max: int = SINGLE_MAX) -> Drawing:
    """A place for everybody."""
    grouped = len(members) > single_max
    counts = Counter(_group(each) for each in members)
    # what is rare stays by itself: of a thousand members one wants to see the three stores
    merged = {key for key, count in counts.items() if grouped and count > single_max // 10}
    home: dict[str, str] = {}
    nodes: dict[str, tuple[Member, int]] = {}
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


def _group(member: Member) -> tuple[str, str]:
    """What is alike: the kind, and the host."""
    host = member.address.removeprefix("tcp://").rpartition(":")[0]
    return member.kind, host


def _places(nodes: dict[str, tuple[Member, int]]) -> list[Node]:
    rows: dict[int, list[str]] = {}
    for name, (member, _) in nodes.items():
        rows.setdefault(ROWS[member.kind], []).append(name)
    found = []
    y = 0.0
    for row in sorted(rows):
        names = sorted(rows[row], key=lambda each: (nodes[each][0].kind, _rank(each)))
        lines = [names[begin : begin + ROW_MAX] for begin in range(0, len(names), ROW_MAX)]
        for number, line in enumerate(lines):
            for place, name in enumerate(line):
                member, count = nodes[name]
                label = member.name if count == 1 else f"{count:,} {_many(member.kind)}"
                x = (place - (len(line) - 1) / 2) * GAP_X
                found.append(Node(name, member.kind, label, member.level, count, x, y + number * LINE_Y))
        y += GAP_Y + (len(lines) - 1) * LINE_Y
    return found


def _many(kind: str) -> str:
    return kind if kind.endswith("s") else f"{kind}s"


def _rank(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _edges(links: Sequence[Link], home: dict[str, str]) -> list[Edge]:
    found: dict[tuple[str, str, str], Edge] = {}
    for link in links:
        a, b = (home.get(end) for end in link.ends)
        if a is None or b is None or a == b:
            continue
        there, back = link.sent_per_s or 0.0, link.received_per_s or 0.0
        if b < a:
            a, b, there, back = b, a, back, there
        known = found.get((a, b, link.kind), Edge(a, b, link.kind, 0, 0.0, 0.0, 0))
        found[a, b, link.kind] = Edge(
            a, b, link.kind, known.links + 1, known.there + there, known.back + back, known.waiting + link.waiting
        )
    return sorted(found.values(), key=lambda each: (-(each.there + each.back), each.a, each.b))
