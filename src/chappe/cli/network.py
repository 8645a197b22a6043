"""``chappe node --map``: the mesh, seen by an endpoint that joins to look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from typer import Option

from chappe.cli import mesh
from chappe.cli.console import show_json, warn
from chappe.cli.watching import Watch, repeat
from chappe.data import terminal
from chappe.data.markup import many
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.mesh.network import Network, NetworkEndpoint
    from chappe.security import Keys, Security

ANSWER_S: Final = 5.0  # a peer that stands gets this long to say what it knows
SETTLE_S: Final = 5.0  # then a network that still changes is shown as it is
LOOK_S: Final = 0.1
ID_CHARACTERS: Final = 36
ROWS_MAX: Final = 100  # endpoints in a tree that is not whole, the nearest ones
INDENT_MAX: Final = 45  # characters; of trees that go deeper the beginnings of lines are cut
PIPE_WIDTH: Final = 240  # where no terminal says how wide it is
WANTS_MIN: Final = 16
WANTS_MAX: Final = 4  # prefixes
COLUMNS: Final = ("hops", "endpoint", "kind", "also linked to", "wants")
WANTS: Final = 4
# The number of further links of an endpoint, and the columns beside the last; the first layout that fits is used.
LAYOUTS: Final = ((3, (0, 1, 2, 3)), (1, (0, 1, 2, 3)), (1, (0, 1, 3)), (0, (0, 1)))
GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Map:
    """The options that ask for a picture of the network."""

    PANEL: ClassVar = "Map"

    wanted: Annotated[
        bool, Option("--map", help=f"Join at --peer ({mesh.HERE} by default) only to look: print the network, and end.")
    ] = False
    dot: Annotated[
        bool, Option("--dot", help="With --map: a graph for Graphviz, such as `chappe node --map --dot | dot -Tsvg`.")
    ] = False
    whole: Annotated[
        bool, Option("--whole", help="With --map: all endpoints, however many, with whole ids and filters.")
    ] = False

    watch: Watch = False

    def check(self, as_json: bool, others: dict[str, Any]) -> None:
        """Raise UsageError for options that contradict each other; ``others`` are options of a node that stays."""
        if not self.wanted:
            for name, given in (("--dot", self.dot), ("--whole", self.whole), ("--watch", self.watch)):
                if given:
                    raise UsageError(f"{name} is for --map")
            return
        if self.dot + self.whole + as_json > 1:
            raise UsageError("give only one of --json, --dot and --whole: the first two are whole")
        for name, given in others.items():
            if given not in (None, []):
                raise UsageError(f"--map only looks, and ends: leave out {name}")


def show(
    how: Map,
    life: mesh.Life,
    security: Security | Keys,
    endpoint_id: str | None,
    peers: list[str],
    as_json: bool,
) -> None:
    """Join, look, and print. Raises PeeringError if a peer does not answer."""
    where = mesh.addresses(security, peers or [mesh.HERE])
    print_map = partial(_print, how, life, security, endpoint_id, where, as_json)
    if how.watch:
        repeat(print_map, as_json=as_json or how.dot)
    else:
        print_map()


def _print(
    how: Map,
    life: mesh.Life,
    security: Security | Keys,
    endpoint_id: str | None,
    where: list[tuple[str, int]],
    as_json: bool,
) -> None:
    with life.endpoint(security, id=endpoint_id, forwarding=False) as endpoint:
        dialled = mesh.dial(endpoint, where)
        found = look(endpoint, dialled)
    if not is_settled(found):
        warn(f"the network has not settled within {SETTLE_S:g} s: this is what is known now")
    if as_json:
        show_json(found.to_dict())
    elif how.dot:
        print(found.to_dot(), end="")
    else:
        over = [f"{mesh.shown(at)} ({each[: found.short()]})" for each, at in dialled.items()]
        for line in lines(found, ", ".join(over), None if how.whole else _width()):
            print(terminal.line(line))


def look(endpoint: Endpoint, peers: Iterable[str]) -> Network:
    """Return the network once it has settled and stays the same, or after ``SETTLE_S``."""
    for each in peers:
        endpoint.ping(each, ANSWER_S)  # what it knew when we came is on its way before its answer
    end = time.monotonic() + SETTLE_S
    before = None
    while True:
        found = endpoint.topology()
        if (found == before and is_settled(found)) or time.monotonic() >= end:
            return found
        before = found
        time.sleep(LOOK_S)


def is_settled(network: Network) -> bool:
    """True if nothing is on its way: all reachable endpoints have reported, and both ends of links agree.

    Reports do not come from beyond an endpoint that forwards nothing.
    """
    near = {each.id: each for each in network.endpoints if each.distance is not None}
    for link in network.links:
        tellers = [near[each] for each in link.ends if each in near]
        if not link.confirmed and (len(tellers) == 2 or tellers[0].forwards):
            return False
    return all(each.original or each.forwards is not None for each in near.values())


def lines(network: Network, where: str, width: int | None) -> Iterator[str]:
    """Yield the picture for people, in a terminal of the given width; None shows everything."""
    from rich.cells import cell_len, set_cell_size

    cut = width is not None and len(network.endpoints) > ROWS_MAX
    yield _summary(network, where) + (f"; the nearest {ROWS_MAX} are shown, all with --whole" if cut else "")
    tree = _Tree(network, len(network.endpoints) if width is None else ROWS_MAX)
    for links_max, columns in LAYOUTS:
        cells = [COLUMNS, *_rows(network, tree, links_max, whole=width is None)]
        shown = [each for each in columns if any(row[each] for row in cells[1:])]
        widths = {each: max(cell_len(row[each]) for row in cells) for each in shown}
        last = min(WANTS_MIN, max(cell_len(row[WANTS]) for row in cells))
        if width is None or sum(widths.values()) + len(GAP) * len(shown) + last <= width:
            break
    for row in cells:
        padded = [row[each] + " " * (widths[each] - cell_len(row[each])) for each in shown]
        line = GAP.join([*padded, row[WANTS]]).rstrip()
        yield line if width is None or cell_len(line) <= width else f"{set_cell_size(line, width - 1)}…"


def _summary(network: Network, where: str) -> str:
    others = [each for each in network.endpoints if each.distance != 0]
    links = sum(not each.own for each in network.links) + network.links_left_out
    originals = sum(each.original for each in others)
    away = sum(each.distance is None for each in others)
    far = max([each.distance or 0 for each in others], default=0)
    return (
        many(len(others) + network.endpoints_left_out, "endpoint")
        + (f" ({many(originals, 'original')})" if originals else "")
        + f" and {many(links, 'link')}, up to {many(far, 'hop')} away"
        + (f", and no way to {away:,} of them" if away else "")
        + f"; seen over {where}"
    )


def _rows(network: Network, tree: _Tree, links_max: int, *, whole: bool) -> Iterator[tuple[str, ...]]:
    short = ID_CHARACTERS if whole else network.short()
    for before, each in tree.rows:
        indented = before if whole or len(before) <= INDENT_MAX else f"…{before[1 - INDENT_MAX :]}"
        if isinstance(each, int):
            yield "", f"{indented}... {each:,} more", "", "", ""
            continue
        also = [f"{other[:short]}{'' if confirmed else '?'}" for other, confirmed in tree.loops(each.id)]
        if not whole and len(also) > links_max:
            also[links_max:] = [f"{len(also) - links_max:,} more"]
        behind = tree.behind.get(each.id)
        yield (
            f"{'-' if each.distance is None else each.distance:>4}",
            indented + each.id[:short] + (f" (+{behind:,})" if behind else ""),
            "this command" if each.distance == 0 else each.kind,
            ", ".join(also),
            each.wants(len(each.filter or ()) if whole else WANTS_MAX),
        )


class _Tree:
    """The shortest paths from the endpoint that looks to ``rows_max`` endpoints; unreachable ones are below the tree.

    ``rows``: an indent, and an endpoint or the number of hidden ones there. ``behind``: the number of endpoints hidden
    right behind an endpoint.
    """

    def __init__(self, network: Network, rows_max: int) -> None:
        self._shown = {each.id: each for each in network.endpoints[:rows_max]}
        self._beside: dict[str, dict[str, bool]] = {each.id: {} for each in network.endpoints}  # is it confirmed?
        for link in network.links:
            one, two = link.ends
            self._beside[one][two] = self._beside[two][one] = link.confirmed
        known = {each.id: each for each in network.endpoints}
        self._parents = {each.id: self._parent(each, known) for each in network.endpoints}
        self._below: dict[str | None, list[NetworkEndpoint | int]] = {}
        hidden: dict[str | None, int] = {}
        over: dict[str | None, str | None] = {None: None}  # the nearest endpoint on the way that is shown
        for each in network.endpoints:
            parent = self._parents[each.id]
            over[each.id] = each.id if each.id in self._shown else over[parent]
            if each.id in self._shown:
                self._below.setdefault(parent, []).append(each)
            else:
                hidden[over[parent]] = hidden.get(over[parent], 0) + 1
        self.behind = {each: count for each, count in hidden.items() if each not in self._below}
        for above, count in hidden.items():
            if above in self._below:
                self._below[above].append(count)
        self.rows = list(self._walk())
        self._at = {each.id: number for number, (_, each) in enumerate(self.rows) if not isinstance(each, int)}

    def loops(self, endpoint: str) -> list[tuple[str, bool]]:
        """Return the links of an endpoint outside the tree: to endpoints above it, and to hidden ones."""
        return [
            (other, confirmed)
            for other, confirmed in sorted(self._beside[endpoint].items())
            if self._parents[endpoint] != other
            and self._parents[other] != endpoint
            and self._at.get(other, -1) < self._at[endpoint]
        ]

    def _walk(self) -> Iterator[tuple[str, NetworkEndpoint | int]]:
        """Yield the rows. An only child stands right below its parent: long paths do not grow to the right."""
        waiting = [("", "", each) for each in reversed(self._below[None])]
        while waiting:
            before, inner, each = waiting.pop()
            yield before, each
            below = self._below.get(each.id, []) if not isinstance(each, int) else []
            if len(below) == 1:
                waiting.append((inner, inner, below[0]))
            elif below:
                waiting.append((f"{inner}└─ ", f"{inner}   ", below[-1]))
                waiting += [(f"{inner}├─ ", f"{inner}│  ", child) for child in reversed(below[:-1])]

    def _parent(self, endpoint: NetworkEndpoint, known: Mapping[str, NetworkEndpoint]) -> str | None:
        if not endpoint.distance:
            return None
        for each in sorted(other for other, confirmed in self._beside[endpoint.id].items() if confirmed):
            near = known[each]
            if near.distance == endpoint.distance - 1 and (
                near.distance == 0 or (near.forwards and near.via == endpoint.via)
            ):
                return each
        return None


def _width() -> int:
    from chappe.cli.screen import wide_console

    return wide_console(PIPE_WIDTH).width
