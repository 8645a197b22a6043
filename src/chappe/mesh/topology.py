"""The network as one endpoint knows it: who is linked to whom, who wants what, and what is to go to which neighbour.

Every endpoint of chappe floods its *link state*: its neighbours and its own filter, with a rising version. A link
between others counts if both tell of it; a link of one's own counts. What goes to a neighbour is what somebody wants
who can be reached through it, over endpoints that forward and without coming back here. Where there are several ways a
message takes all of them, and whoever gets it twice drops it: nothing is lost while one of the ways lasts.

Originals take no part in this. All endpoints that are linked to the same original and reach each other would bring it
everything several times, and take everything from it several times. So only the one with the smallest id of those that
forward speaks with it: it is *designated*. Where none forwards, each speaks for itself.

Link states of endpoints that cannot be reached are kept for a while. They do not arrive in the order of what happened:
an endpoint may seem to be gone only until a third one's is here, and its own would not be sent again.

Source: link-state routing as OSPF has it (RFC 2328). Departure: no shortest paths, since a copy on each way costs
less than a message that is lost with the shortest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chappe.defaults import ENDPOINTS_MAX, FILTER_BYTES_MAX, LINK_STATE_KEPT_S, LINK_STATES_BYTES_MAX
from chappe.mesh.filters import EVERYTHING, NOTHING, Filter, matches, union
from chappe.mesh.messages import LinkState, Neighbour, pack_filter

_ORIGINALS_BYTES_MAX = FILTER_BYTES_MAX // 4  # of filters of originals in one link state; beyond it: everything


class _Known:
    """A link state, and the ids of the neighbours that can confirm a link."""

    __slots__ = ("chappe", "gone_since", "size", "state")

    def __init__(self, state: LinkState, size: int) -> None:
        self.state = state
        self.size = size
        self.chappe = frozenset([each.id for each in state.neighbours if not each.original])
        self.gone_since: float | None = None  # there is no path


class _Side:
    """What can be reached through one neighbour, and through others that it reaches."""

    __slots__ = ("endpoints", "filter", "forwarding", "originals")

    def __init__(self) -> None:
        self.forwarding: set[bytes] = set()
        self.endpoints: set[bytes] = set()  # those too that do not forward
        self.originals: dict[bytes, dict[bytes, Filter]] = {}  # original: who is linked to it, and what it wants
        self.filter: Filter = NOTHING


@dataclass(frozen=True, slots=True)
class Changes:
    """Endpoints that have a path now, and those that have none any more.

    ``linked``: whether there are others now, or no longer, who are linked to an original beside us.
    """

    discovered: tuple[bytes, ...]
    unreachable: tuple[bytes, ...]
    linked: bool


class Topology:
    """What an endpoint knows of the network; ``settle`` brings the answers up to date after changes.

    Args:
        own: This endpoint's id.
        forwards: Whether messages pass through it.
        version: Of its first link state; higher than any that an earlier life of this id told.
    """

    def __init__(self, own: bytes, forwards: bool, version: int) -> None:
        self.own = own
        self.changed = False  # since the last ``settle``
        self.refused = 0  # link states beyond the bounds
        self._forwards = forwards
        self._version = version
        self._untold = False  # our link state changed since ``tell``
        self._told: LinkState | None = None  # what ``tell`` returned last
        self._filter: Filter = NOTHING
        self._links: dict[bytes, Filter] = {}  # endpoints of chappe beside us; the filter of the handshake
        self._originals: dict[bytes, Filter] = {}  # originals beside us, and what they want
        self._known: dict[bytes, _Known] = {}
        self._size = 0  # bytes of all link states
        self._sides: dict[bytes, _Side] = {}  # by neighbour; those that reach each other have the same
        self._designated: dict[bytes, bytes] = {}  # original: who speaks with it for all of us
        self._linked: dict[bytes, frozenset[bytes]] = {}  # original beside us: who else is linked to it
        self._reachable: frozenset[bytes] = frozenset()

    # -- what happens -----------------------------------------------------------------------------

    def link_up(self, peer: bytes, original: bool, wanted: Filter) -> None:
        """A link stands; ``wanted`` is what the peer said in the handshake."""
        (self._originals if original else self._links)[peer] = wanted
        self._touch()

    def link_down(self, peer: bytes) -> None:
        """A link ended."""
        self._links.pop(peer, None)
        self._originals.pop(peer, None)
        self._touch()

    def set_filter(self, wanted: Filter) -> None:
        """What this endpoint wants."""
        self._filter = wanted
        self._touch()

    def set_original_filter(self, peer: bytes, wanted: Filter) -> None:
        """What an original beside us wants; nothing if it is blocked."""
        if self._originals[peer] != wanted:
            self._originals[peer] = wanted
            self._touch()

    def learn(self, state: LinkState, size: int) -> bool:
        """A link state of ``size`` bytes came; returns whether it is news, to be passed on."""
        if state.origin == self.own:
            self._hear_own(state)
            return False
        former = self._known.get(state.origin)
        if former is not None and former.state.version >= state.version:
            return False
        if former is None and len(self._known) >= ENDPOINTS_MAX and not self._forget_one():
            self.refused += 1
            return False
        grown = self._size + size - (former.size if former is not None else 0)
        if grown > LINK_STATES_BYTES_MAX:
            self.refused += 1
            return False
        self._size = grown
        self._known[state.origin] = _Known(state, size)
        self.changed = True
        return True

    def is_old(self, origin: bytes, version: int) -> bool:
        """Whether a link state is no news, so that it need not be looked into."""
        known = self._known.get(origin)
        return known is not None and known.state.version >= version

    def tell(self) -> LinkState | None:
        """Our link state if it changed since the last time, with a new version."""
        if not self._untold:
            return None
        self._untold = False
        self._version += 1
        self._told = self.state()
        return self._told

    def state(self) -> LinkState:
        """Our link state."""
        chappe = [Neighbour(each) for each in sorted(self._links)]
        wanted = self._originals
        if sum(len(pack_filter(each)) for each in wanted.values()) > _ORIGINALS_BYTES_MAX:
            wanted = dict.fromkeys(wanted, EVERYTHING)  # we look again before anything goes to them
        originals = [Neighbour(each, True, wanted[each]) for each in sorted(wanted)]
        return LinkState(self.own, self._version, self._forwards, self._filter, (*chappe, *originals))

    def others(self) -> list[LinkState]:
        """What a new neighbour is to be told besides: the link states of all others, if we forward at all."""
        return [self._known[each].state for each in sorted(self._known)] if self._forwards else []

    # -- answers, as of the last settle -----------------------------------------------------------

    def settle(self, now: float) -> tuple[Changes, list[bytes]]:
        """Bring the answers up to date; returns what changed, and who was forgotten for good."""
        self.changed = False
        self._find_sides()
        before = self._linked
        self._linked = {
            original: frozenset[bytes]().union(*(side.originals.get(original, ()) for side in self._sides.values()))
            for original in self._originals
        }
        self._designated = self._find_designated(self._sides.values(), with_us=self._forwards)
        for side in {id(each): each for each in self._sides.values()}.values():
            side.filter = self._wanted_beyond(side)
        forgotten = self._expire(now)
        reachable = frozenset(self._links).union(
            self._originals, *(side.endpoints for side in self._sides.values()), self._designated
        )
        changes = Changes(
            tuple(sorted(reachable - self._reachable)),
            tuple(sorted(self._reachable - reachable)),
            before != self._linked,
        )
        self._reachable = reachable
        return changes, forgotten

    def wants(self, peer: bytes, topic: bytes) -> bool:
        """Whether messages with ``topic`` are to go to the neighbour ``peer``."""
        if peer in self._originals:
            return self.speaks_with(peer) and matches(self._originals[peer], topic)
        return matches(self._sides[peer].filter, topic)

    def leads_to(self, peer: bytes, receiver: bytes) -> bool:
        """Whether a message for ``receiver`` alone, who is no neighbour, is to go to ``peer``."""
        side = self._sides.get(peer)
        if side is None:
            return False
        return receiver in side.endpoints or self._speaker(side, receiver) in side.forwarding

    def speaks_with(self, original: bytes) -> bool:
        """Whether we are the one who exchanges messages with an original beside us."""
        if self._forwards:
            return self._designated.get(original) == self.own
        return not any(original in side.originals for side in self._sides.values())

    def announcement(self, original: bytes) -> Filter:
        """What to ask of an original beside us: what is wanted here and, if we speak for others, by them."""
        if not self.speaks_with(original):
            return NOTHING
        if not self._forwards:
            return self._filter
        wanted = [side.filter for side in {id(each): each for each in self._sides.values()}.values()]
        if any(original in side.originals for side in self._sides.values()):
            wanted = [self._wanted_beyond(side, without=original) for side in self._sides.values()]
        wanted += [each for peer, each in self._originals.items() if peer != original and self.speaks_with(peer)]
        return union([self._filter, *wanted])

    def reaches(self, endpoint: bytes) -> bool:
        """Whether there is a path to an endpoint."""
        return endpoint in self._reachable

    def peer_filter(self) -> Filter:
        """What is wanted by others, as far as it would be sent to them from here."""
        wanted = [side.filter for side in self._sides.values()]
        wanted += [each for peer, each in self._originals.items() if self.speaks_with(peer)]
        return union(wanted)

    def filters(self) -> dict[bytes, Filter]:
        """What each endpoint in reach wants, as far as it has said."""
        found = dict(self._originals)
        for side in self._sides.values():
            for linked in side.originals.items():
                found.setdefault(linked[0], union(linked[1].values()))
            for endpoint in side.endpoints:
                known = self._known.get(endpoint)
                found[endpoint] = self._links[endpoint] if known is None else known.state.filter
        return found

    # -- inside -----------------------------------------------------------------------------------

    def _hear_own(self, state: LinkState) -> None:
        """Outdo what an earlier life of this id told, which others would believe rather than us.

        In a ring what we told last comes back whenever the way around is faster than a link. It is no news: to answer
        it with a new version would be answered by another round, for ever.
        """
        if state.version < self._version or state == self._told:
            return
        self._version = state.version
        self._touch()

    def _touch(self) -> None:
        self.changed = True
        self._untold = True

    def _find_sides(self) -> None:
        self._sides = {}
        for peer in sorted(self._links):
            if peer in self._sides:
                continue
            side = self._explore(peer)
            self._sides[peer] = side
            for other in side.forwarding.intersection(self._links):
                self._sides[other] = side

    def _explore(self, peer: bytes) -> _Side:
        side = _Side()
        side.endpoints.add(peer)
        known = self._known.get(peer)
        if known is None or not known.state.forwards:
            return side
        side.forwarding.add(peer)
        edge = [(peer, known)]
        while edge:
            at, known = edge.pop()
            for each in known.state.neighbours:
                if each.original:
                    side.originals.setdefault(each.id, {})[at] = each.filter
                    continue
                if each.id == self.own or each.id in side.endpoints:
                    continue
                beyond = self._known.get(each.id)
                if beyond is None or at not in beyond.chappe:
                    continue
                side.endpoints.add(each.id)
                if beyond.state.forwards:
                    side.forwarding.add(each.id)
                    edge.append((each.id, beyond))
        return side

    def _find_designated(self, sides: Iterable[_Side], with_us: bool) -> dict[bytes, bytes]:
        found = dict.fromkeys(self._originals, self.own) if with_us else {}
        for side in sides:
            for original, linked in side.originals.items():
                first = min(linked)
                found[original] = min(first, found.get(original, first))
        return found

    def _speaker(self, side: _Side, original: bytes) -> bytes | None:
        """Who speaks with an original that somebody on a side is linked to."""
        linked = side.originals.get(original)
        if linked is None:
            return None
        # If nothing passes through us, every side has one of its own.
        return self._designated[original] if self._forwards else min(linked)

    def _wanted_beyond(self, side: _Side, without: bytes | None = None) -> Filter:
        wanted: list[Filter] = []
        for endpoint in side.endpoints:
            known = self._known.get(endpoint)
            wanted.append(self._links[endpoint] if known is None else known.state.filter)
        for original, linked in side.originals.items():
            speaker = self._speaker(side, original)
            if speaker in linked and original != without:
                wanted.append(linked[speaker])
        return union(wanted)

    def _expire(self, now: float) -> list[bytes]:
        present: set[bytes] = set().union(*(side.endpoints for side in self._sides.values()))
        forgotten = []
        for endpoint, known in self._known.items():
            if endpoint in present:
                known.gone_since = None
            elif known.gone_since is None:
                known.gone_since = now
            elif now - known.gone_since > LINK_STATE_KEPT_S:
                forgotten.append(endpoint)
        for endpoint in forgotten:
            self._size -= self._known.pop(endpoint).size
        return forgotten

    def _forget_one(self) -> bool:
        """Make room by forgetting the endpoint that has been gone for longest."""
        gone = [(each.gone_since, endpoint) for endpoint, each in self._known.items() if each.gone_since is not None]
        if not gone:
            return False
        self._size -= self._known.pop(min(gone)[1]).size
        return True
