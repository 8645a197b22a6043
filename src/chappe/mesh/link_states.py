"""The link states that an endpoint has, its own left out: which it believes, how long it keeps them, and how many.

A link state is passed on by endpoints that did not make it, and nobody signs it. So one that concerns an endpoint in
reach is believed only if it comes from where that endpoint is: from itself, if it is a neighbour, else over a neighbour
behind which it is. Any other is a *doubt*: it is set aside, for each neighbour so many, and believed as soon as its
endpoint is found there or nowhere. So nobody can speak for an endpoint from elsewhere in the network, while one that
moves is believed where it went once it has gone from where it was.

Versions rise by one. A larger step is a new life of the endpoint, which begins at the microseconds of its clock, or an
attempt to outdo it for ever. So nothing is taken that is more than ``LINK_STATE_AHEAD`` ahead of our own clock, but for
small steps. That limit rises with time, faster than versions do: whatever was told in an endpoint's name, the endpoint
can outdo it and be believed by all.

One of an endpoint without a path is kept for a while, and told to others for a shorter while. Else those who have
forgotten it would be taught it by those who have not yet, and teach them in turn, for ever. If the endpoint comes back
later than that, its link state is passed on anew.

The key of an endpoint is that which those that admitted it report.

Where peers have certificates, every endpoint tells in its link state with which key each of its neighbours came. So
whoever admits somebody knows how others know that id, and refuses it with another key: what claims to come from an
endpoint is checked where it enters the mesh. Nobody signs a link state, so this is as true as those who tell it:

- A word counts only on a link that both ends tell of. One that claims to be beside another has to be named by it.
- Neighbours of an endpoint may differ. Each *key* of theirs has one vote, as the endpoint itself tells those keys:
  however many ids somebody takes with one certificate, it has one. A key is refused if another one has more votes. So
  one liar among the neighbours can neither lock the endpoint out nor let somebody else in, as long as two others, with
  keys of their own, say what they saw; with one other it stands one to one, and both are admitted. A liar that is the
  only neighbour is believed: nothing tells it from one that is honest.
- What we saw ourselves is not voted on: beside us an endpoint has the key that it has shown.
- A certificate that names the id is proof, which no word outweighs: its owner is admitted everywhere. This is what
  protects an id while nobody uses it; else whoever is first has it.
- What is linked stays linked. Where two with one id and two keys were admitted before anybody could know, as in the two
  halves of a network that was split, each stays where it is and is believed there, as of two places that tell of one
  endpoint the one that was known first is (``link_states``); further links each finds in its own half alone.

Endpoints that share a certificate are not told apart, and without certificates nothing is.

When an endpoint tells its own link state, and as which version.

What is told in an endpoint's name by an earlier life of it, or by somebody else, travels to the endpoint itself, which
outdoes it with the next version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from math import inf

from chappe.data.logical import LamportTimestamp
from chappe.defaults import (
    DOUBT_S,
    DOUBTS_BYTES_MAX,
    ENDPOINTS_MAX,
    LIFE_NUMBERS,
    LINK_STATE_AHEAD,
    LINK_STATE_KEPT_S,
    LINK_STATE_OFFERED_S,
    LINK_STATE_STEP_MAX,
    LINK_STATES_BYTES_MAX,
    NUMBER_MAX,
    TELL_FEW,
    TELL_PAUSE_MAX_S,
    TELL_PAUSE_S,
)
from chappe.limits import MeshLimits
from chappe.mesh.messages import ENVELOPE_BYTES, RESERVED_TOPIC, LinkState
from chappe.mesh.rules import MeshRules

_HEAD_BYTES = 4 + ENVELOPE_BYTES + len(RESERVED_TOPIC)  # of a frame, in front of the payload


class Verdict(Enum):
    """The result for a link state: taken and to be passed on, set aside, or beyond the bounds."""

    NEWS = "news"
    DOUBTED = "doubted"
    REFUSED = "refused"


class KnownEndpoint:
    """A link state, the frame that passes it on, the neighbours that can confirm a link, and the originals."""

    __slots__ = ("brought_at", "chappe", "filter", "forwards", "frame", "gone_since", "originals", "state")

    def __init__(self, state: LinkState, frame: bytes) -> None:
        self.state = state
        self.frame = frame
        self.chappe = frozenset([each.id for each in state.neighbours if not each.original])
        self.originals = [(each.id, each.filter) for each in state.neighbours if each.original]
        self.forwards = state.forwards  # ... as far as the permissions let it
        self.filter = state.filter  # ... likewise
        self.gone_since: float | None = None  # there is no path
        self.brought_at = -inf  # if it is a doubt: when it was sent to its endpoint

    @property
    def payload(self) -> bytes:
        """The part of the frame that is the same at all endpoints."""
        return self.frame[_HEAD_BYTES:]

    def is_offered(self, now: float) -> bool:
        """Return whether to send it to peers that may lack it; not if its endpoint has been gone too long."""
        return self.gone_since is None or now - self.gone_since <= LINK_STATE_OFFERED_S

    def wants_as(self, other: KnownEndpoint) -> bool:
        """Return whether it wants the same, itself and for originals."""
        one, two = self.state, other.state
        return (one.forwards, one.filter, one.asks_times, self.originals) == (
            two.forwards, two.filter, two.asks_times, other.originals,
        )  # fmt: skip

    def outdoes(self, version: int, payload: bytes) -> bool:
        """Return whether another state is no newer; of two with one version all endpoints take the same."""
        return self.state.version > version or (self.state.version == version and self.payload >= payload)


def may_follow(version: int, former: int | None, limit: int) -> bool:
    """Return whether ``version`` can be outdone after ``former``, None if nothing is known."""
    return version < limit or (former is not None and version <= former + LINK_STATE_STEP_MAX)


class LinkStates:
    """The table. ``refused`` counts link states beyond the bounds."""

    def __init__(self, limits: MeshLimits) -> None:
        self._doubts_max = limits.doubts_max
        self.rules: MeshRules | None = None
        self.known: dict[bytes, KnownEndpoint] = {}
        self.refused = 0
        self.returned: list[bytes] = []  # endpoints that have a path again, and whose link states were not offered
        self._size = 0  # bytes of all frames
        self.asked: set[bytes] = set()  # those who were gone when somebody doubted what is said of them
        self._doubts: dict[bytes, OrderedDict[bytes, KnownEndpoint]] = {}  # neighbour: by endpoint, the oldest first

    def version(self, origin: bytes) -> int | None:
        known = self.known.get(origin)
        return None if known is None else known.state.version

    def believed(self, origin: bytes, version: int, payload: bytes) -> KnownEndpoint | None:
        """Return the believed state of an endpoint if one of this version and payload is no newer."""
        known = self.known.get(origin)
        return known if known is not None and known.outdoes(version, payload) else None

    def is_old(self, peer: bytes, origin: bytes, version: int, payload: bytes) -> bool:
        """Return whether a link state from ``peer`` is known already and need not be parsed."""
        if self.believed(origin, version, payload) is not None:
            return True
        doubts = self._doubts.get(peer)
        doubted = None if doubts is None else doubts.get(origin)
        return doubted is not None and doubted.outdoes(version, payload)

    def learn(self, made: KnownEndpoint, peer: bytes, believed: bool, limit: int) -> Verdict:
        """Take a link state that is not old.

        Args:
            believed: It came from where its endpoint is, or that is nowhere.
            limit: Of its version, if that is not a small step.
        """
        sound = may_follow(made.state.version, self.version(made.state.origin), limit)
        if sound and not believed:
            self._doubt(made, peer)
            return Verdict.DOUBTED
        if sound and self._put(made):
            return Verdict.NEWS
        self.refused += 1
        return Verdict.REFUSED

    def reconsider(
        self, peers: Collection[bytes], believes: Callable[[bytes, bytes], bool]
    ) -> list[tuple[KnownEndpoint, bytes]]:
        """Take states that ``believes(peer, origin)`` by now; return them, each with the neighbour that brought it."""
        found: list[tuple[KnownEndpoint, bytes]] = []
        for peer in [peer for peer in self._doubts if peer not in peers]:
            del self._doubts[peer]
        for peer, doubts in self._doubts.items():
            for origin, made in list(doubts.items()):
                former = self.known.get(origin)
                if former is not None and former.outdoes(made.state.version, made.payload):
                    del doubts[origin]
                elif believes(peer, origin):
                    del doubts[origin]
                    if self._put(made):
                        found.append((made, peer))
        return found

    def to_bring(self, now: float) -> list[tuple[KnownEndpoint, bytes]]:
        """Return the doubts that were not sent to their endpoints lately, each with the neighbour that brought it."""
        found: list[tuple[KnownEndpoint, bytes]] = []
        for peer, doubts in self._doubts.items():
            for made in doubts.values():
                if now >= made.brought_at + DOUBT_S:
                    made.brought_at = now
                    found.append((made, peer))
        return found

    def is_here(self, endpoint: bytes, now: float) -> None:
        known = self.known[endpoint]
        if not known.is_offered(now) or endpoint in self.asked:
            self.returned.append(endpoint)
            self.asked.discard(endpoint)
        known.gone_since = None

    def expire(self, present: Collection[bytes], now: float) -> list[bytes]:
        """Forget those that have had no path for too long; returns their ids."""
        forgotten = []
        for endpoint, known in self.known.items():
            if endpoint in present:
                if known.gone_since is not None:
                    self.is_here(endpoint, now)
            elif known.gone_since is None:
                known.gone_since = now
            elif now - known.gone_since > LINK_STATE_KEPT_S:
                forgotten.append(endpoint)
        for endpoint in forgotten:
            self._forget(endpoint)
        return forgotten

    def invariants(self) -> list[str]:
        most = max(map(len, self._doubts.values()), default=0)
        size = sum([len(each.frame) for each in self.known.values()])
        found = [f"{most} link states of one neighbour are in doubt"] if most > self._doubts_max else []
        return found if size == self._size else [*found, f"{self._size} bytes of link states are counted, {size} known"]

    def set_rules(self, rules: MeshRules | None) -> None:
        """Take other permissions, by which something else may count of each state."""
        self.rules = rules
        for made in self.known.values():
            self._judge(made)

    # -- inside -----------------------------------------------------------------------------------

    def _judge(self, made: KnownEndpoint) -> None:
        state, rules = made.state, self.rules
        made.forwards = state.forwards and (rules is None or rules.forwards_as(state.origin))
        made.filter = state.filter if rules is None else rules.wanted_as(state.origin, state.filter)

    def _put(self, made: KnownEndpoint) -> bool:
        origin = made.state.origin
        former = self.known.get(origin)
        if former is None and len(self.known) >= ENDPOINTS_MAX and not self._forget_one():
            return False
        grown = self._size + len(made.frame) - (len(former.frame) if former is not None else 0)
        if grown > LINK_STATES_BYTES_MAX:
            return False
        if former is not None and former.state.version == made.state.version:
            made.gone_since = former.gone_since
        self._size = grown
        if self.rules is not None:
            self._judge(made)
        self.known[origin] = made
        return True

    def _doubt(self, made: KnownEndpoint, peer: bytes) -> None:
        doubts = self._doubts.setdefault(peer, OrderedDict())
        doubts.pop(made.state.origin, None)
        doubts[made.state.origin] = made
        while len(doubts) > self._doubts_max or (len(doubts) > 1 and _size(doubts) > DOUBTS_BYTES_MAX):
            doubts.popitem(last=False)

    def _forget(self, origin: bytes) -> None:
        self._size -= len(self.known.pop(origin).frame)
        self.asked.discard(origin)

    def _forget_one(self) -> bool:
        """Make room by forgetting the endpoint that has been gone for longest."""
        gone = [(each.gone_since, endpoint) for endpoint, each in self.known.items() if each.gone_since is not None]
        if not gone:
            return False
        self._forget(min(gone)[1])
        return True


def _size(doubts: OrderedDict[bytes, KnownEndpoint]) -> int:
    return sum([len(each.frame) for each in doubts.values()])


def attested(endpoint: bytes, known: Mapping[bytes, KnownEndpoint], present: Collection[bytes]) -> dict[bytes, int]:
    """Return the keys of an endpoint by the word of its neighbours in reach, and how many votes each has."""
    state = known.get(endpoint)
    votes: dict[bytes, set[bytes]] = {}
    for neighbour in () if state is None else state.state.neighbours:
        other = known.get(neighbour.id)
        if neighbour.original or other is None or neighbour.id not in present or endpoint not in other.chappe:
            continue
        told = next(each.key for each in other.state.neighbours if each.id == endpoint)
        if told:
            votes.setdefault(told, set()).add(neighbour.key)
    return {key: len(voters) for key, voters in votes.items()}


def is_foreign(key: bytes, votes: Mapping[bytes, int]) -> bool:
    return max(votes.values(), default=0) > votes.get(key, 0)


class Telling:
    """Decides when an endpoint announces its link state. ``version``: its first one's, higher than in earlier lives."""

    def __init__(self, version: int, now: float) -> None:
        self.version = LamportTimestamp(version)  # of our link state, and so of our filter
        self.tell_at = inf  # when our link state, which changed since ``tell``, is to be told
        self.outdo_at = inf  # when what somebody else told in our name is to be outdone
        self.numbers_from = 0  # publications of an earlier life may have numbers up to this
        self._first_version = version
        self._born = now
        self._outdo = 0  # the version of what is to be outdone
        self._outdone_at = -inf
        self._told: LinkState | None = None  # what ``tell`` returned last
        self._told_at = -inf
        self._recent = 0  # links that came or went shortly after another

    def change(self, urgent: bool, links: int = 0) -> None:
        """Note a change of our link state; it waits a little while several links, ``links``, come and go."""
        if urgent:
            self.tell_at = -inf
        elif self.tell_at > -inf:
            self._recent += 1
            many = max(self._recent, links if links > TELL_FEW else 0)
            self.tell_at = self._told_at + min(TELL_PAUSE_MAX_S, TELL_PAUSE_S * many)

    def tell(self, now: float, made: Callable[[], LinkState]) -> LinkState | None:
        """Return our link state, ``made`` with the next version, if it changed, or others told one, and it is time."""
        if now >= self.outdo_at:
            self._outdone_at, self.outdo_at = now, inf
            self.numbers_from = self._outdo + LIFE_NUMBERS
            self.version = self.version.merged(self._outdo)
        elif now < self.tell_at:
            return None
        self.tell_at = inf
        if now > self._told_at + TELL_PAUSE_MAX_S:
            self._recent = 0
        self._told_at = now
        self.version = self.version.incremented()
        self._told = made()
        return self._told

    def hurry(self) -> None:
        """Announce pending changes without delay."""
        if self.tell_at < inf:
            self.tell_at = -inf

    def holds_until(self, now: float) -> float:
        """Return until when others' link states wait, as several of our links come or go; ``now`` if they do not."""
        pause = min(TELL_PAUSE_MAX_S, TELL_PAUSE_S * self._recent)
        told_at = self._told_at if self.tell_at == inf else self.tell_at
        return max(now, told_at + pause) if pause else now

    def hear(self, state: LinkState, now: float) -> bool:
        """Note a link state of ours that came from elsewhere; return whether it is to be outdone at once.

        In a ring our last one comes back whenever the way around is faster than a link. It is not news: to answer
        it with a new version would be answered by another round, for ever. Two endpoints with one id do answer each
        other for ever, so this is done now and then only.
        """
        if state.version < self.version or state == self._told:
            return False
        if not may_follow(state.version, self.version, self.limit(now)):
            return False
        self._outdo = max(self._outdo, state.version)
        self.outdo_at = max(now, self._outdone_at + DOUBT_S)
        return self.outdo_at <= now

    def limit(self, now: float) -> int:
        """Return the bound of versions by our own clock, which gave us our first one."""
        return self._first_version + int((now - self._born) * 1e6) + LINK_STATE_AHEAD

    def number_limit(self, now: float) -> int:
        """Return the exclusive upper bound of numbers of publications, by the same clock."""
        return min(NUMBER_MAX, self.limit(now) + LIFE_NUMBERS)
