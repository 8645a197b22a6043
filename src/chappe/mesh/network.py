"""The network as one endpoint sees it, as a value for programs and people.

``Topology.facts`` gathers references to what is known, which is cheap; ``Network.of`` makes the picture of them, which
for thousands of endpoints takes a while and needs nothing of the endpoint any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, Final
from uuid import UUID

from chappe.data.logical import NEVER, LamportTimestamp, VectorTimestamp
from chappe.data.markup import ROWS_MAX, many, table
from chappe.defaults import ENDPOINTS_MAX, NETWORK_LINKS_MAX
from chappe.mesh.filters import Filter, union
from chappe.mesh.link_states import KnownEndpoint

SHORT: Final = 8  # characters of an id that people are shown, if they tell all endpoints apart
LABEL_PREFIXES: Final = 4  # of a filter in a picture
PREFIX_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True)
class Facts:
    """The network as an endpoint knows it. ``ways``: distance in hops and first neighbour of each endpoint in reach."""

    own: bytes
    forwards: bool
    wanted: Filter
    links: Mapping[bytes, Filter]  # endpoints of chappe beside it
    originals: Mapping[bytes, Filter]  # originals beside it
    known: Mapping[bytes, KnownEndpoint]
    ways: Mapping[bytes, tuple[int, bytes]]
    version: LamportTimestamp = NEVER  # of the own link state


@dataclass(frozen=True, slots=True)
class NetworkEndpoint:
    """An endpoint in the picture. What is None is not known here.

    Args:
        original: Whether it is an original program. Of these only the ones beside an endpoint of chappe are seen.
        forwards: Whether it passes on messages; originals do not tell.
        filter: The prefixes of topics that it wants.
        distance: Hops from the endpoint that looks, which has 0; None: no way leads there.
        via: The neighbour of the one that looks over which the shortest way leads.
        version: The logical time of its link state, and so of its filter; 0 if it has told none.
    """

    id: str
    original: bool
    forwards: bool | None
    filter: tuple[str, ...] | None
    distance: int | None
    via: str | None
    version: LamportTimestamp = NEVER

    @property
    def kind(self) -> str:
        """A short description for people."""
        if self.original:
            return "original"
        if self.forwards is None:
            return "not heard of"
        return "chappe" if self.forwards else "no forwarding"

    def wants(self, prefixes_max: int = LABEL_PREFIXES) -> str:
        """Return its filter for people: so many prefixes at most, each shortened, on one line; empty for nothing."""
        if self.filter is None:
            return "?"
        shown = [_readable(each) for each in self.filter[:prefixes_max]]
        more = len(self.filter) - len(shown)
        return ", ".join([*shown, f"{more:,} more"] if more else shown)


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A link between two endpoints.

    Args:
        ends: Their ids, the smaller one first.
        own: Whether it is one of the endpoint that looks.
        confirmed: Whether both ends tell of it. Where one of them is the one that looks, or an original, which tells
            nothing, the other's word is enough.
    """

    ends: tuple[str, str]
    own: bool
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Network:
    """The network as one endpoint sees it: at most 10,000 endpoints, the nearest ones, and 250,000 links.

    Args:
        id: The endpoint that looks.
        endpoints: By distance and id, itself first. The last are those to which no way leads, though one in reach tells
            of a link to them.
        links: Of these endpoints, by their ids.
        endpoints_left_out: How many more there are.
        links_left_out: How many more of these endpoints there are.
    """

    id: str
    endpoints: tuple[NetworkEndpoint, ...]
    links: tuple[NetworkLink, ...]
    endpoints_left_out: int = 0
    links_left_out: int = 0

    @staticmethod
    def of(facts: Facts) -> Network:
        """Return the picture of an endpoint's facts."""
        named: Name = cache(_name)
        told = _told(facts)
        originals = _originals(facts)
        distances: dict[bytes, float] = {end: inf for pair in told for end in pair}
        distances |= {each: way[0] for each, way in facts.ways.items()}
        distances[facts.own] = 0
        order = sorted(distances, key=lambda each: (distances[each], each))
        kept = frozenset(order[:ENDPOINTS_MAX])
        pairs = sorted([pair for pair in told if kept.issuperset(pair)])
        endpoints = tuple([_endpoint(each, facts, originals, named) for each in order[:ENDPOINTS_MAX]])
        links = []
        for one, two in pairs[:NETWORK_LINKS_MAX]:
            own = told[one, two] >= _OWN
            confirmed = own or told[one, two] == _BOTH or one in originals or two in originals
            links.append(NetworkLink((named(one), named(two)), own, confirmed))
        left_out = len(pairs) - len(links)
        return Network(named(facts.own), endpoints, tuple(links), len(order) - len(endpoints), left_out)

    @property
    def time(self) -> VectorTimestamp:
        """The logical time of this picture: one that is later has seen all that this one has."""
        return VectorTimestamp({each.id: each.version for each in self.endpoints})

    def short(self) -> int:
        """Return how many characters of ids tell all endpoints apart: 8, or more where ids were chosen by people."""
        found = SHORT
        while len({each.id[:found] for each in self.endpoints}) < len(self.endpoints):
            found += 1
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return a value for ``json.dumps``; bytes of topics that are not UTF-8 become surrogate escapes."""
        return {
            "id": self.id,
            "endpoints": [
                {
                    "id": each.id,
                    "original": each.original,
                    "forwards": each.forwards,
                    "filter": None if each.filter is None else list(each.filter),
                    "distance": each.distance,
                    "via": each.via,
                    "version": int(each.version),
                }
                for each in self.endpoints
            ],
            "links": [{"ends": list(each.ends), "own": each.own, "confirmed": each.confirmed} for each in self.links],
            "endpoints_left_out": self.endpoints_left_out,
            "links_left_out": self.links_left_out,
        }

    def to_dot(self) -> str:
        """A graph in the language of Graphviz: ``dot -Tsvg``, or ``sfdp`` for many endpoints.

        The endpoint that looks is filled, those that pass nothing on are round, originals have six sides; what no way
        leads to is grey. Links that one end alone tells of are dashed.
        """
        return "".join(f"{line}\n" for line in self._dot())

    def _repr_html_(self) -> str:
        """The nearest endpoints as a table, in notebooks."""
        short = self.short()
        beside: dict[str, list[str]] = {each.id: [] for each in self.endpoints[:ROWS_MAX]}
        for link in self.links:
            for at, other in (link.ends, link.ends[::-1]):
                if at in beside:
                    beside[at].append(other[:short])
        rows = (
            (each.distance, each.id[:short], each.kind, ", ".join(beside[each.id]), each.wants())
            for each in self.endpoints[:ROWS_MAX]
        )
        total = len(self.endpoints) + self.endpoints_left_out
        links = len(self.links) + self.links_left_out
        title = f"{many(total, 'endpoint')} and {many(links, 'link')}, seen from {self.id[:short]}"
        return table(title, ("hops", "endpoint", "kind", "linked to", "wants"), rows, total)

    def _dot(self) -> Iterator[str]:
        short = self.short()
        yield "graph mesh {"
        yield "  node [shape=box];"
        if self.endpoints_left_out or self.links_left_out:
            text = f"{self.endpoints_left_out:,} endpoints and {self.links_left_out:,} links are left out"
            yield f"  label={_quoted(text)};"
        for each in self.endpoints:
            label = "\n".join([each.id[:short], *filter(None, [each.wants()])])
            facts = [f"label={_quoted(label)}", f"tooltip={_quoted(each.id)}"]
            if each.original:
                facts.append("shape=hexagon")
            elif each.forwards is False:
                facts.append("shape=ellipse")
            if each.distance == 0:
                facts.append("style=filled")
            elif each.distance is None:
                facts.append("color=gray fontcolor=gray")
            yield f"  {_quoted(each.id)} [{' '.join(facts)}];"
        for link in self.links:
            one, two = link.ends
            yield f"  {_quoted(one)} -- {_quoted(two)}{'' if link.confirmed else ' [style=dashed]'};"
        yield "}"


Name = Callable[[bytes], str]
_FIRST: Final = 1  # who tells of a link: its first end, ...
_SECOND: Final = 2
_BOTH: Final = 3
_OWN: Final = 4  # ... or the one that looks, besides


def _told(facts: Facts) -> dict[tuple[bytes, bytes], int]:
    """Return every link that an endpoint in reach tells of, by its ends, the smaller one first."""
    found: dict[tuple[bytes, bytes], int] = {}
    for each in (*facts.links, *facts.originals):
        found[min(facts.own, each), max(facts.own, each)] = _OWN
    for at, known in _in_reach(facts):
        for neighbour in known.state.neighbours:
            to = neighbour.id
            if at < to:
                found[at, to] = found.get((at, to), 0) | _FIRST
            elif to < at:
                found[to, at] = found.get((to, at), 0) | _SECOND
    return found


def _originals(facts: Facts) -> dict[bytes, list[Filter]]:
    """Return the originals, and their filters by the word of each endpoint beside them."""
    found = {each: [wanted] for each, wanted in facts.originals.items()}
    for _, known in _in_reach(facts):
        for each, wanted in known.originals:
            if each != facts.own and each not in facts.links and each not in facts.known:
                found.setdefault(each, []).append(wanted)
    return found


def _in_reach(facts: Facts) -> Iterator[tuple[bytes, KnownEndpoint]]:
    """Yield the link states of endpoints in reach; others may have gone since."""
    return ((at, known) for at, known in facts.known.items() if at in facts.ways)


def _endpoint(endpoint: bytes, facts: Facts, originals: Mapping[bytes, list[Filter]], named: Name) -> NetworkEndpoint:
    if endpoint == facts.own:
        return NetworkEndpoint(named(endpoint), False, facts.forwards, _texts(facts.wanted), 0, None, facts.version)
    forwards: bool | None = None
    version = NEVER
    wanted = facts.links.get(endpoint)
    known = facts.known.get(endpoint)
    if known is not None:
        forwards, wanted = known.state.forwards, known.state.filter
        version = LamportTimestamp(known.state.version)
    elif endpoint in originals:
        wanted = union(originals[endpoint])
    texts = None if wanted is None else _texts(wanted)
    original = endpoint in originals
    if endpoint not in facts.ways:
        return NetworkEndpoint(named(endpoint), original, forwards, texts, None, None, version)
    distance, via = facts.ways[endpoint]
    return NetworkEndpoint(named(endpoint), original, forwards, texts, distance, named(via), version)


def _name(endpoint: bytes) -> str:
    return str(UUID(bytes=endpoint))


def _texts(wanted: Filter) -> tuple[str, ...]:
    return tuple([each.decode("utf-8", "surrogateescape") for each in wanted])


def _readable(prefix: str) -> str:
    """Return a prefix for people, on one line; quoted where it could be taken for something else."""
    if not prefix:
        return "everything"
    text = prefix.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    shown = "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text[:PREFIX_CHARACTERS]])
    if any(each in " ,'\"?" for each in shown) or shown == "everything":
        shown = f"'{shown}'"
    return shown if len(text) <= PREFIX_CHARACTERS else f"{shown}..."


def _quoted(text: str) -> str:
    """Return a string of Graphviz, which shows ``text`` as it is: it knows escapes, and entities of HTML too."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
    return f'"{text}"'
