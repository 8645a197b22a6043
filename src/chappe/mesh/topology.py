"""The network as one endpoint knows it: who is linked to whom, who wants what, and what is to go to which neighbour.

Every endpoint of chappe floods its *link state*: its neighbours and its own filter, with a rising version. A link
between others counts if both tell of it; a link of one's own counts. What is published here goes along the tree of
shortest ways to all who want it, over endpoints that forward. Of ways of one length all take the same.

Originals take no part in this. All endpoints that are linked to the same original and reach each other would bring it
everything several times, and take everything from it several times. So only the one with the smallest id of those that
forward speaks with it: it is *designated*. Where none forwards, each speaks for itself.

Link states of endpoints that cannot be reached are kept for a while. They do not arrive in the order of what happened:
an endpoint may seem to be gone only until a third one's is here, and its own would not be sent again. Which of them are
believed is said in ``link_states``; what another endpoint publishes is likewise taken only from where that endpoint is.

Source: link-state routing as OSPF has it (RFC 2328). Departures: every way begins at who publishes, not at each hop;
link states are believed by where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from chappe.defaults import (
    ENDPOINTS_MAX,
    EXPIRE_S,
    FILTER_BYTES_MAX,
    FILTERS_TOPICS_MAX,
    LINK_STATE_KEPT_S,
)
from chappe.limits import MESH_LIMITS, MeshLimits
from chappe.mesh.filters import EVERYTHING, NOTHING, Filter, matches, union
from chappe.mesh.flows import Hop
from chappe.mesh.link_states import KnownEndpoint, LinkStates, Telling, Verdict, attested, is_foreign
from chappe.mesh.messages import NOBODY, LinkState, Neighbour, pack_filter
from chappe.mesh.network import Facts
from chappe.mesh.rules import MeshRules
from chappe.mesh.ways import Side, Ways

_NO_PEERS: frozenset[bytes] = frozenset()
_ORIGINALS_BYTES_MAX = FILTER_BYTES_MAX // 4  # of filters of originals in one link state; beyond it: everything


class Topology:
    """The network as an endpoint knows it; ``settle`` brings the answers up to date after changes.

    Args:
        forwards: Whether messages pass through it, if the permissions let them.
        version: Of its first link state; higher than any that an earlier life of this id told.
    """

    def __init__(
        self, own: bytes, forwards: bool, version: int, now: float = 0.0, limits: MeshLimits = MESH_LIMITS
    ) -> None:
        self.own = own
        self.changed = False  # since the last ``settle``
        self.telling = Telling(version, now)
        self.forwards = self._would_forward = forwards
        self._filter: Filter = NOTHING
        self._asks_times = False
        self._links: dict[bytes, Filter] = {}  # endpoints of chappe beside us; the filter of the handshake
        self._keys: dict[bytes, bytes] = {}  # of these, as far as they have certificates
        self._originals: dict[bytes, Filter] = {}  # originals beside us, and what they want
        self.states = LinkStates(limits)
        self._known = self.states.known
        self._sides: dict[bytes, Side] = {}  # by neighbour; those that reach each other have the same
        self._ways: Ways | None = None  # once somebody asks
        self._wishes: list[tuple[bytes, Filter]] | None = None  # see ``receivers``, once somebody asks
        self._designated: dict[bytes, bytes] = {}  # original: who speaks with it for all of us
        self._linked: dict[bytes, frozenset[bytes]] = {}  # original beside us: who else is linked to it
        self._reachable: set[bytes] = set()
        self._present: set[bytes] = set()  # the endpoints of chappe among them
        self._listed: set[bytes] = set()  # whom they name as neighbours
        self._anew = True  # since the last ``settle`` more happened than that link states came
        self._news: dict[
            bytes, KnownEndpoint | None
        ] = {}  # whose link states came since then, and what was known before
        self._expired_at = -inf
        # Endpoints that were elsewhere until lately: until when that counts, and the neighbours behind which they were.
        self._moved: dict[bytes, tuple[float, frozenset[bytes]]] = {}

    # -- what happens -----------------------------------------------------------------------------

    def link_up(self, peer: bytes, original: bool, wanted: Filter, key: bytes = b"") -> None:
        """A link stands; ``wanted`` is what the peer said in the handshake, ``key`` what it has shown of itself."""
        (self._originals if original else self._links)[peer] = wanted
        if key and not original:
            self._keys[peer] = key
        self._touch(urgent=original)

    def link_down(self, peer: bytes) -> None:
        original = self._originals.pop(peer, None) is not None
        self._links.pop(peer, None)
        self._keys.pop(peer, None)
        self._touch(urgent=original)

    def set_filter(self, wanted: Filter, asks_times: bool = False) -> None:
        """Set the filter of this endpoint, and whether it asks for times of publication."""
        self._filter, self._asks_times = wanted, asks_times
        self.changed = True
        self.telling.change(urgent=True)

    def set_rules(self, rules: MeshRules | None) -> None:
        """Other permissions are in force: who forwards, and what each may want, may be something else."""
        self.states.set_rules(rules)
        former = self.forwards
        self.forwards = self._would_forward and (rules is None or rules.lets_forward(self.own))
        self.changed = self._anew = True
        if self.forwards is not former:
            self.telling.change(urgent=True)

    def set_original_filter(self, peer: bytes, wanted: Filter) -> None:
        """Set the filter of an original beside us; it is empty while the original is blocked."""
        if self._originals[peer] != wanted:
            self._originals[peer] = wanted
            self._touch()

    def learn(self, state: LinkState, frame: bytes, peer: bytes, now: float) -> Verdict | None:
        """A link state came from the neighbour ``peer``; ``frame`` is what passes it on. None if it is our own."""
        if state.origin == self.own:
            self.changed = self.telling.hear(state, now) or self.changed
            return None
        former = self._known.get(state.origin)
        made = KnownEndpoint(state, frame)
        verdict = self.states.learn(made, peer, self._believes(peer, state.origin), self.telling.limit(now))
        if verdict is Verdict.NEWS:
            self._note(made, former, now)
        return verdict

    @property
    def neighbours(self) -> dict[bytes, bool]:
        """Return our neighbours, and for each whether it is an endpoint of chappe."""
        return dict.fromkeys(self._links, True) | dict.fromkeys(self._originals, False)

    def towards(self, origin: bytes) -> bytes | None:
        """The neighbour that a doubted link state goes to, so that its endpoint hears of it and can outdo it.

        It is on a shortest way: what it passes on in turn comes nearer still, and does not come back.
        """
        way = self.ways().distances.get(origin)
        return None if way is None else way[1]

    def tell(self, now: float) -> LinkState | None:
        """Our link state if it changed since the last time, or others told one, and it is time for it."""
        return self.telling.tell(now, self.state)

    def state(self) -> LinkState:
        chappe = [Neighbour(each, key=self._keys.get(each, b"")) for each in sorted(self._links)]
        wanted = self._originals
        if sum(len(pack_filter(each)) for each in wanted.values()) > _ORIGINALS_BYTES_MAX:
            wanted = dict.fromkeys(wanted, EVERYTHING)  # we look again before anything goes to them
        originals = [Neighbour(each, True, wanted[each]) for each in sorted(wanted)]
        version, neighbours = self.telling.version, (*chappe, *originals)
        return LinkState(self.own, version, self.forwards, self._filter, neighbours, True, self._asks_times)

    def others(self, peer: bytes, now: float) -> list[bytes]:
        """The frames that a new neighbour is to be told besides: what we have of itself, which an earlier life of it
        may have told; then the link states of all others, if we forward at all, but of who has been gone for long."""
        known = self._known
        found = [known[peer].frame] if peer in known else []
        if self.forwards:
            found += [known[each].frame for each in sorted(known) if each != peer and known[each].is_offered(now)]
        return found

    # -- answers, as of the last settle -----------------------------------------------------------

    def settle(self, now: float) -> tuple[list[bytes], list[bytes], bool, list[bytes]]:
        """Bring the answers up to date.

        Returns the endpoints that have a path now, those that have none any more, whether others are linked to
        originals beside us than before, and who was forgotten for good.
        """
        self.changed = False
        self._ways = self._wishes = None
        added = self._extend(now)
        if added is None:
            return self._settle_anew(now)
        forgotten = []
        if now >= self._expired_at + EXPIRE_S:
            self._expired_at = now
            forgotten = self.states.expire(self._present, now)
        return sorted(added), [], False, forgotten

    def _settle_anew(self, now: float) -> tuple[list[bytes], list[bytes], bool, list[bytes]]:
        self._anew = False
        self._news.clear()
        former = self._sides
        self._find_sides()
        self._note_moved(former, now)
        sides = {id(each): each for each in self._sides.values()}.values()
        self._present = set[bytes]().union(*(side.endpoints for side in sides))
        self._listed = set[bytes]().union(*(side.listed for side in sides))
        before = self._linked
        self._linked = {
            original: frozenset[bytes]().union(*(side.originals.get(original, ()) for side in self._sides.values()))
            for original in self._originals
        }
        self._designated = self._find_designated(self._sides.values(), with_us=self.forwards)
        for side in sides:
            side.filter = self._wanted_beyond(side)
        self._expired_at = now
        forgotten = self.states.expire(self._present, now)
        reachable = set(self._links).union(self._originals, self._present, self._designated)
        discovered, unreachable = sorted(reachable - self._reachable), sorted(self._reachable - reachable)
        self._reachable = reachable
        return discovered, unreachable, before != self._linked, forgotten

    def reconsider(self, now: float) -> list[tuple[bytes, bytes]]:
        """After ``settle``: believe what is in doubt no longer; returns whose link states, and who brought each.

        What follows from that is found by the next ``settle``.
        """
        found = []
        for made, peer in self.states.reconsider(self._links, self._believes):
            self._note(made, None, now)
            found.append((made.state.origin, peer))
        return found

    def may_bring(self, peer: bytes, origin: bytes, now: float) -> bool:
        """Return whether something that ``origin`` has published can come from the neighbour ``peer``."""
        side = self._sides.get(peer)
        if side is not None and origin in side.endpoints:
            return True
        # The news that it is elsewhere may have come on a shorter way than what it published before.
        until, peers = self._moved.get(origin, (-inf, _NO_PEERS))
        return until > now and peer in peers

    def receivers(self, topic: bytes) -> frozenset[bytes]:
        """The endpoints of chappe that a message with ``topic`` is to go to: who wants it, or speaks with who does."""
        if self._wishes is None:
            self._wishes = self._find_wishes()
        found = [each for each, wanted in self._wishes if matches(wanted, topic)]
        rules = self.states.rules
        return frozenset(found if rules is None else [each for each in found if rules.gets_as(each, topic)])

    def has_way(self, endpoint: bytes) -> bool:
        """Return whether a way leads to an endpoint of chappe."""
        return self.ways().lead_to(endpoint)

    def are_timed(self, receivers: Iterable[bytes], hops: Iterable[Hop]) -> bool:
        """Return whether messages to these carry a time: a receiver asks for it, and all hops understand it."""
        known = self._known
        if not any(known[each].state.asks_times for each in receivers if each in known):
            return False
        return all(each in known and known[each].state.knows_times for hop in hops for each in hop.nodes())

    def wants(self, original: bytes, topic: bytes) -> bool:
        """Return whether messages with ``topic`` are to go to an original beside us."""
        return self.speaks_with(original) and matches(self._originals[original], topic)

    def speaker(self, original: bytes) -> bytes | None:
        """The endpoint of chappe that a message for an original elsewhere is to go to."""
        for side in self._sides.values():
            found = self._speaker(side, original)
            if found is not None and self.has_way(found):
                return found
        return None

    def speakers(self) -> frozenset[bytes]:
        """All endpoints of chappe elsewhere that speak with originals."""
        sides = {id(each): each for each in self._sides.values()}.values()
        found = {self._speaker(side, original) for side in sides for original in side.originals}
        return frozenset([each for each in found if each is not None and self.has_way(each)])

    def speaks_with(self, original: bytes) -> bool:
        """Return whether this endpoint is the one that exchanges messages with an original beside us."""
        if self.forwards:
            return self._designated.get(original) == self.own
        return not any(original in side.originals for side in self._sides.values())

    def announcement(self, original: bytes) -> Filter:
        """Return the filter to send to an original beside us: ours and, if we speak for others, theirs."""
        if not self.speaks_with(original):
            return NOTHING
        if not self.forwards:
            return self._filter
        wanted = [side.filter for side in {id(each): each for each in self._sides.values()}.values()]
        if any(original in side.originals for side in self._sides.values()):
            wanted = [self._wanted_beyond(side, without=original) for side in self._sides.values()]
        wanted += [each for peer, each in self._originals.items() if peer != original and self.speaks_with(peer)]
        return union([self._filter, *wanted])

    @property
    def remembered(self) -> frozenset[bytes]:
        """The endpoints whose link states are kept, those out of reach included."""
        return frozenset(self._known)

    def reaches(self, endpoint: bytes) -> bool:
        return endpoint in self._reachable

    def has_other_key(self, endpoint: bytes, key: bytes) -> bool:
        """Return whether an endpoint is in the mesh with another key."""
        if endpoint in self._keys:
            return self._keys[endpoint] != key
        return endpoint in self._present and is_foreign(key, attested(endpoint, self._known, self._present))

    @property
    def has_originals(self) -> bool:
        """True if messages may go over an original: everybody in reach over endpoints of chappe sees the same."""
        return bool(self.forwards and self._originals) or any(side.originals for side in self._sides.values())

    def vouches(self, origin: bytes, speaker: bytes) -> bool:
        """Return whether a message from ``origin``, or from an original that named none, can come from ``speaker``.

        Endpoints of chappe speak for themselves. Originals pass on without saying for whom: over them, and over an
        endpoint of chappe that has some beside it, anybody may speak who cannot be reached without them.
        """
        if speaker == self.own:
            return False
        if origin == speaker:
            return True
        if any(speaker in side.endpoints for side in self._sides.values()):
            return False
        return origin == NOBODY or any(
            origin in linked for side in self._sides.values() for linked in side.originals.values()
        )

    def peer_filter(self) -> Filter:
        """Return the union of others' filters, as far as this endpoint would send to them."""
        wanted = [side.filter for side in self._sides.values()]
        wanted += [each for peer, each in self._originals.items() if self.speaks_with(peer)]
        return union(wanted)

    def filters(self) -> dict[bytes, Filter]:
        found = dict(self._originals)
        for side in self._sides.values():
            for linked in side.originals.items():
                found.setdefault(linked[0], union(linked[1].values()))
            for endpoint in side.endpoints:
                found[endpoint] = self._wish(endpoint)
        return found

    # -- inside -----------------------------------------------------------------------------------

    def _touch(self, urgent: bool = True) -> None:
        self.changed = self._anew = True
        self.telling.change(urgent, len(self._links))

    def _believes(self, peer: bytes, origin: bytes) -> bool:
        """Return whether ``origin`` is where ``peer`` is, or nowhere, as of the last ``settle``."""
        if origin in self._links:
            return origin == peer
        if origin not in self._present:
            return True
        side = self._sides.get(peer)
        return side is not None and origin in side.endpoints

    def _note(self, made: KnownEndpoint, former: KnownEndpoint | None, now: float) -> None:
        """A link state was taken. Nothing follows from one of an endpoint that nobody in reach names as neighbour."""
        origin = made.state.origin
        self._news.setdefault(origin, former)
        if origin in self._present or origin in self._listed or origin in self._links:
            self.changed = self.changed or former is None or _differ(former.state, made.state)
        elif made.gone_since is None:
            made.gone_since = now

    def _note_moved(self, former: dict[bytes, Side], now: float) -> None:
        pairs = {(id(side), id(self._sides[peer])): peer for peer, side in former.items() if peer in self._sides}
        until = now + LINK_STATE_KEPT_S
        for peer in pairs.values():
            gone = former[peer].endpoints - self._sides[peer].endpoints
            peers = frozenset([each for each, side in former.items() if side is former[peer]]) if gone else _NO_PEERS
            for endpoint in gone:
                earlier = self._moved.pop(endpoint, (0.0, _NO_PEERS))[1]
                self._moved[endpoint] = (until, earlier | peers if earlier - peers else peers)
        while self._moved and (len(self._moved) > ENDPOINTS_MAX or next(iter(self._moved.values()))[0] <= now):
            del self._moved[next(iter(self._moved))]

    def _extend(self, now: float) -> set[bytes] | None:
        """Bring the answers up to date if link states only add links or change filters, as most do while many join.

        Returns the endpoints that have a path now, and had none. None if all has to be found anew.
        """
        if self._anew or any(former is None and origin in self._links for origin, former in self._news.items()):
            return None
        known = self._known
        news = [(origin, former, known[origin]) for origin, former in self._news.items() if origin in known]
        if not all(_only_adds(former, made) for _, former, made in news):
            return None
        added: set[bytes] = set()
        for side in {id(each): each for each in self._sides.values()}.values():
            for origin, former, made in news:
                found = side.add(origin, made)
                if any(each in self._links or known[each].originals for each in found):
                    return None  # two sides become one, or there are originals
                for each in (origin, *found):
                    if each in side.forwarding:
                        self._listed |= known[each].chappe
                wanted = [known[each].filter for each in found if known[each].filter]
                less = False
                if former is not None and former.filter != made.filter and origin in side.endpoints:
                    wanted.append(made.filter)
                    less = not all(matches(made.filter, topic) for topic in former.filter)
                if less or sum(map(len, wanted)) + len(side.filter) > FILTERS_TOPICS_MAX:
                    side.filter = self._wanted_beyond(side)
                elif wanted:
                    side.filter = union([side.filter, *wanted])
                added |= found
        self._news.clear()
        self._present |= added
        for each in added:
            self.states.is_here(each, now)
        for origin, _, made in news:
            if origin not in self._present and made.gone_since is None:
                made.gone_since = now
        added -= self._reachable
        self._reachable |= added
        return added

    def _find_sides(self) -> None:
        self._sides = {}
        for peer in sorted(self._links):
            if peer in self._sides:
                continue
            side = Side(peer, self.own, self._known)
            self._sides[peer] = side
            for other in side.forwarding.intersection(self._links):
                self._sides[other] = side

    def ways(self) -> Ways:
        """The ways from here to all others, as of the last settle."""
        if self._ways is None:
            self._ways = Ways(self.own, self._links, self._known, self._designated)
        return self._ways

    def _find_wishes(self) -> list[tuple[bytes, Filter]]:
        """Return endpoints with filters that are not empty; an endpoint that speaks with originals has theirs too."""
        found: list[tuple[bytes, Filter]] = []
        for side in {id(each): each for each in self._sides.values()}.values():
            for endpoint in side.endpoints:
                found.append((endpoint, self._wish(endpoint)))
            for original, linked in side.originals.items():
                speaker = self._speaker(side, original)
                if speaker is not None and speaker in linked:
                    found.append((speaker, linked[speaker]))
        return [(each, wanted) for each, wanted in found if wanted and each != self.own and self.has_way(each)]

    def _find_designated(self, sides: Iterable[Side], with_us: bool) -> dict[bytes, bytes]:
        found = dict.fromkeys(self._originals, self.own) if with_us else {}
        for side in sides:
            for original, linked in side.originals.items():
                first = min(linked)
                found[original] = min(first, found.get(original, first))
        return found

    def _speaker(self, side: Side, original: bytes) -> bytes | None:
        """Return the endpoint that speaks with an original linked to a side."""
        linked = side.originals.get(original)
        if linked is None:
            return None
        # If nothing passes through us, every side has one of its own.
        return self._designated[original] if self.forwards else min(linked)

    def _wish(self, endpoint: bytes) -> Filter:
        """Return the filter of an endpoint of chappe, as far as the permissions allow."""
        known, rules = self._known.get(endpoint), self.states.rules
        if known is not None:
            return known.filter
        return self._links[endpoint] if rules is None else rules.wanted_as(endpoint, self._links[endpoint])

    def _wanted_beyond(self, side: Side, without: bytes | None = None) -> Filter:
        wanted: list[Filter] = []
        for endpoint in side.endpoints:
            wanted.append(self._wish(endpoint))
        for original, linked in side.originals.items():
            speaker = self._speaker(side, original)
            if speaker in linked and original != without:
                wanted.append(linked[speaker])
        if sum(map(len, wanted)) > FILTERS_TOPICS_MAX:
            return EVERYTHING  # whoever is there looks again
        return union(wanted)

    # -- for pictures -----------------------------------------------------------------------------

    def facts(self) -> Facts:
        """Return the network as of the last settle (``mesh.network``)."""
        links, originals, known = dict(self._links), dict(self._originals), dict(self._known)
        ways = self.ways().distances | {each: (1, each) for each in originals}
        return Facts(
            self.own, self.forwards, self._filter, links, originals, known, ways, self.telling.version
        )  # fmt: skip


def _only_adds(former: KnownEndpoint | None, made: KnownEndpoint) -> bool:
    """Return whether nothing ends with a link state, and no original is concerned."""
    if former is None:
        return not made.originals
    same = former.forwards == made.forwards and not former.originals and not made.originals
    return same and former.chappe <= made.chappe


def _differ(one: LinkState, two: LinkState) -> bool:
    return replace(one, version=0) != replace(two, version=0)
