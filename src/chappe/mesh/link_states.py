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
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from enum import Enum
from math import inf

from chappe.defaults import (
    DOUBT_S,
    DOUBTS_BYTES_MAX,
    ENDPOINTS_MAX,
    LINK_STATE_KEPT_S,
    LINK_STATE_OFFERED_S,
    LINK_STATE_STEP_MAX,
    LINK_STATES_BYTES_MAX,
)
from chappe.limits import MeshLimits
from chappe.mesh.messages import ENVELOPE_BYTES, RESERVED_TOPIC, LinkState
from chappe.mesh.rules import MeshRules

_HEAD_BYTES = 4 + ENVELOPE_BYTES + len(RESERVED_TOPIC)  # of a frame, in front of the payload


class Verdict(Enum):
    """What became of a link state: taken, and to be passed on; set aside; or beyond the bounds."""

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
        """What of the frame is the same at all endpoints."""
        return self.frame[_HEAD_BYTES:]

    def is_offered(self, now: float) -> bool:
        """Whether it is told to those that may not have it: not if its endpoint has been gone for so long."""
        return self.gone_since is None or now - self.gone_since <= LINK_STATE_OFFERED_S

    def wants_as(self, other: KnownEndpoint) -> bool:
        """Whether it wants the same, itself and for originals."""
        one, two = self.state, other.state
        return (one.forwards, one.filter, one.asks_times, self.originals) == (
            two.forwards, two.filter, two.asks_times, other.originals,
        )  # fmt: skip

    def outdoes(self, version: int, payload: bytes) -> bool:
        """Whether another one is no newer. Of two that say different things in one version all take the same."""
        return self.state.version > version or (self.state.version == version and self.payload >= payload)


def may_follow(version: int, former: int | None, limit: int) -> bool:
    """Whether ``version`` can be outdone after ``former``, None if nothing is known."""
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
        """The version that is believed."""
        known = self.known.get(origin)
        return None if known is None else known.state.version

    def believed(self, origin: bytes, version: int, payload: bytes) -> KnownEndpoint | None:
        """What is believed of an endpoint, if that is so new."""
        known = self.known.get(origin)
        return known if known is not None and known.outdoes(version, payload) else None

    def is_old(self, peer: bytes, origin: bytes, version: int, payload: bytes) -> bool:
        """Whether what ``peer`` brings is known already, so that it need not be looked into."""
        if self.believed(origin, version, payload) is not None:
            return True
        doubts = self._doubts.get(peer)
        doubted = None if doubts is None else doubts.get(origin)
        return doubted is not None and doubted.outdoes(version, payload)

    def learn(self, made: KnownEndpoint, peer: bytes, believed: bool, limit: int) -> Verdict:
        """One came that is not old.

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
        """Take what ``believes(peer, origin)`` by now; returns it, each with the neighbour that brought it."""
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
        """The doubts that were not sent to their endpoints lately, each with the neighbour that brought it."""
        found: list[tuple[KnownEndpoint, bytes]] = []
        for peer, doubts in self._doubts.items():
            for made in doubts.values():
                if now >= made.brought_at + DOUBT_S:
                    made.brought_at = now
                    found.append((made, peer))
        return found

    def is_here(self, endpoint: bytes, now: float) -> None:
        """There is a path to it."""
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
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        most = max(map(len, self._doubts.values()), default=0)
        size = sum([len(each.frame) for each in self.known.values()])
        found = [f"{most} link states of one neighbour are in doubt"] if most > self._doubts_max else []
        return found if size == self._size else [*found, f"{self._size} bytes of link states are counted, {size} known"]

    def set_rules(self, rules: MeshRules | None) -> None:
        """Others are in force: what counts of each may be something else."""
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
