"""A gateway announces itself to the others of a domain by one prefix in the filter of its endpoint there.

Link states carry filters to everybody in a domain, tell in what order they changed, and end with their endpoint. So
gateways need no messages to know each other, and no timers to notice that one is gone::

    <$>/gateway/1/HERE/THERE/STATE/PATH

``HERE`` and ``THERE`` are the names of the domain and of the one behind the gateway. ``STATE`` is three letters: ``l``
it listens, ``s`` it is settled; ``u`` its way to the root of the tree begins in this domain, ``d`` it does not; ``p``
it passes, ``w`` it waits. ``PATH`` has the names of the gateways from the root to this one, in hexadecimal digits, with
dots between them; it is empty for a gateway that takes no part yet.

A shorter prefix in the same filter would cover it: so gateways want neither everything nor anything that begins with
``<`` (``summary``).

The election decides which gateways pass, so that domains and gateways make a tree: no message goes in a circle or
comes twice.

It is the spanning tree of bridges between networks (IEEE 802.1D), found from what gateways announce. The oldest
gateway is the root. Each of the others has its way to the root on one side, *up*, and offers the domain on its other
side a way. Of those that offer a domain a way only the best *feeds* it, all others wait. So of several gateways between
the same two domains one passes, and in a circle of domains one gateway waits, wherever that is.

A name begins with the moment since when a gateway takes part. So one that comes back takes nothing from one that passes
already, as long as its way is no shorter.

Departures: what is announced stands in link states and needs no timers; an announcement has the whole path, as in BGP,
so that nobody believes what he said himself, and no distance is counted to infinity.

``summary`` computes the prefixes that a gateway asks of one domain for the other.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chappe.defaults import GATEWAY_CHOSEN_BYTES_MAX, GATEWAY_CHOSEN_MAX
from chappe.errors import UsageError
from chappe.mesh.filters import NOTHING, Filter, matches, minimal

RESERVED: Final = b"<"  # topics of the mesh itself begin with it, those of data stores too: they never pass
# All topics but these. The empty prefix itself would cover what gateways announce: see ``announcement``.
_ALL: Final[Filter] = tuple([bytes((first,)) for first in range(256) if first != RESERVED[0]])


def as_chosen(prefixes: Iterable[bytes], domain: str) -> Filter:
    """The prefixes that a user chose to pass from a domain, as a filter; the empty one is all but reserved topics.
    Raises UsageError: one is reserved, or there are too many.
    """
    found: set[bytes] = set()
    for each in prefixes:
        if each.startswith(RESERVED):
            raise UsageError(f"topics that begin with '<' are the mesh's own: {each.decode(errors='replace')!r} from"
                             f" domain {domain} cannot pass a gateway")  # fmt: skip
        found.update(_ALL if not each else (each,))
    chosen = minimal(found)
    if len(chosen) > GATEWAY_CHOSEN_MAX or sum(map(len, chosen)) > GATEWAY_CHOSEN_BYTES_MAX:
        raise UsageError(
            f"{len(chosen)} prefixes of domain {domain} are too many for a gateway: at most {GATEWAY_CHOSEN_MAX} of"
            f" {GATEWAY_CHOSEN_BYTES_MAX} bytes together; choose common prefixes instead"
        )
    return chosen


def summary(wanted: Filter, chosen: Filter, topics_max: int, bytes_max: int) -> Filter:
    """Return the part of ``wanted`` that may pass; beyond the bounds, those of ``chosen`` under which anything is
    wanted.
    """
    if not wanted or not chosen:
        return NOTHING
    inside = [each for each in wanted if matches(chosen, each)]
    covered = [each for each in chosen if matches(wanted, each)]
    found = minimal([*inside, *covered])
    if len(found) <= topics_max and sum(map(len, found)) <= bytes_max:
        return found
    return tuple([each for each in chosen if each in covered or any(topic.startswith(each) for topic in inside)])


NAME_BYTES: Final = 16  # of a gateway's name
PREFIX: Final = b"<$>/gateway/1/"
MARKED: Final = b"<$>/gateway/marked"  # the topic of messages from gateway to gateway
_BYTES_MAX: Final = 16_384  # of an announcement; what is longer is none
_DOMAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORM: Final = re.compile(
    rb"([A-Za-z0-9._-]{1,64})/([A-Za-z0-9._-]{1,64})/([ls])([ud])([pw])/((?:[0-9a-f]{32}(?:\.(?!$)|$))*)"
)


@dataclass(frozen=True, slots=True)
class Announcement:
    here: str
    there: str
    path: tuple[bytes, ...] = ()
    settled: bool = False
    up: bool = False
    passes: bool = False

    @property
    def rank(self) -> tuple[bytes, int, bytes]:
        """A sort key, smallest best, for ways to the root: older root, shorter way, older gateway."""
        return self.path[0], len(self.path), self.path[-1]

    @property
    def feeds(self) -> bool:
        return self.passes and not self.up

    def pack(self) -> bytes:
        state = ("s" if self.settled else "l") + ("u" if self.up else "d") + ("p" if self.passes else "w")
        path = ".".join([each.hex() for each in self.path])
        return PREFIX + f"{self.here}/{self.there}/{state}/{path}".encode()


def find(wanted: Filter) -> Announcement | None:
    """Return the announcement in a filter, if it is a gateway's. Of several only the first counts."""
    at = bisect_left(wanted, PREFIX)
    if at == len(wanted) or not wanted[at].startswith(PREFIX):
        return None
    found = None if len(wanted[at]) > _BYTES_MAX else _FORM.fullmatch(wanted[at], len(PREFIX))
    if found is None:
        return None
    here, there, listens, way, passes, path = found.groups()
    names = tuple([bytes.fromhex(each.decode()) for each in path.split(b".")]) if path else ()
    return Announcement(here.decode(), there.decode(), names, listens == b"s", way == b"u", passes == b"p")


def check_domain(name: str) -> str:
    """The name of a domain; raises UsageError."""
    if not _DOMAIN.fullmatch(name):
        raise UsageError(
            f"{name[:100]!r} is not a name of a domain: 1 to 64 letters, digits, '.', '_' and '-', the first of them a"
            " letter or digit"
        )
    return name


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
