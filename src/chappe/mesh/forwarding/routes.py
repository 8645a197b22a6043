"""Routes of topics, cached until the network or a filter changes.

The subscriptions of this endpoint determine the filter that it announces.
"""

from __future__ import annotations

from collections.abc import Iterable

from chappe.core import Flush
from chappe.defaults import FILTER_BYTES_MAX, FILTER_TOPICS_MAX, MESH_TOPIC_BYTES_MAX, ROUTES_BYTES_MAX
from chappe.errors import UsageError
from chappe.mesh.filters import LOCAL_PREFIX, NOTHING, Filter, announced, is_local
from chappe.mesh.forwarding.branches import Branch
from chappe.mesh.forwarding.judging import MessageJudge
from chappe.mesh.forwarding.last_values import TOPICS
from chappe.mesh.forwarding.version1 import Originals
from chappe.mesh.forwarding.version2 import Trees
from chappe.mesh.links.link import Link
from chappe.mesh.messages import COMMAND, DATA, NOBODY, RESERVED_TOPIC, pack_filter
from chappe.mesh.topology import Topology

_FILTER_BYTES_MAX = FILTER_BYTES_MAX // 2  # a link state holds it, and what originals beside us want
_FILTER_TOPICS_MAX = FILTER_TOPICS_MAX // 2


class TopicSubscriptions:
    """The prefixes of every subscriber. ``filter`` is what all of them together want of others."""

    def __init__(self) -> None:
        self.filter: Filter = NOTHING
        self.asks_times = False  # somebody wants to know when what comes was published
        self._wanted: dict[int, tuple[int, set[bytes]]] = {}  # subscriber: kind and prefixes
        self._forwarded: set[bytes] = set()  # that only others want
        self._asking: set[int] = set()  # subscribers

    def add(self, subscriber: int, topics: Iterable[bytes], kind: int, times: bool = False) -> bool:
        """Add prefixes; return whether the filter, or ``asks_times``, changed. Raises UsageError: a topic is too long,
        or the filter would be too large to be announced; nothing is added.
        """
        new = set(topics)
        kept = self._checked(new)
        self._wanted.setdefault(subscriber, (kind, set()))[1].update(new)
        if times:
            self._asking.add(subscriber)
        return self._set(kept)

    def replace(self, subscriber: int, topics: Iterable[bytes], kind: int) -> bool:
        """Have a subscriber want exactly these prefixes. Returns and raises as ``add``."""
        before = self._wanted.pop(subscriber, None)
        try:
            return self.add(subscriber, topics, kind)
        except UsageError:
            if before is not None:
                self._wanted[subscriber] = before
            raise

    def remove(self, subscriber: int, topics: Iterable[bytes] | None) -> bool:
        """Remove some prefixes of a subscriber, or the subscriber; returns as ``add``."""
        if topics is None:
            self._wanted.pop(subscriber, None)
            self._asking.discard(subscriber)
        elif subscriber in self._wanted:
            self._wanted[subscriber][1].difference_update(topics)
        return self._set(announced(self._all()))

    def prefixes(self, subscriber: int) -> frozenset[bytes]:
        found = self._wanted.get(subscriber)
        return frozenset() if found is None else frozenset(found[1])

    def forward(self, topics: Iterable[bytes]) -> bool:
        """Want prefixes that nobody here wants, to pass them on. Returns and raises as ``add``."""
        new = set(topics)
        kept = self._checked(new)
        self._forwarded |= new
        return self._set(kept)

    def matching(self, topic: bytes, kind: int) -> tuple[int, ...]:
        """Return the subscribers of a message of ``kind``; one of the endpoint itself has to be named."""
        own = is_local(topic)
        return tuple(
            [
                subscriber
                for subscriber, (wanted, prefixes) in self._wanted.items()
                if wanted == kind
                and topic.startswith(tuple([each for each in prefixes if is_local(each)] if own else prefixes))
            ]
        )

    def _all(self) -> set[bytes]:
        return self._forwarded.union(*(prefixes for _, prefixes in self._wanted.values()))

    def _checked(self, new: set[bytes]) -> Filter:
        if any(len(topic) > MESH_TOPIC_BYTES_MAX for topic in new):
            raise UsageError(f"a topic to subscribe to has at most {MESH_TOPIC_BYTES_MAX} bytes")
        found = announced(self._all() | new)
        if len(found) > _FILTER_TOPICS_MAX or len(pack_filter(found)) > _FILTER_BYTES_MAX:
            raise UsageError(
                f"subscriptions to {len(found)} topics are too many to be announced: at most {_FILTER_TOPICS_MAX} of"
                f" {_FILTER_BYTES_MAX} bytes together; subscribe to common prefixes instead"
            )
        return found

    def _set(self, wanted: Filter) -> bool:
        before = self.filter, self.asks_times
        self.filter, self.asks_times = wanted, bool(self._asking)
        return before != (self.filter, self.asks_times)


class Route:
    """The receivers of one topic: subscribers here and, once it is published to here, endpoints elsewhere."""

    __slots__ = ("commands", "count", "data", "flushes", "originals", "ready", "refused", "tree")

    def __init__(self, data: tuple[int, ...], commands: tuple[int, ...], originals: tuple[Link, ...]) -> None:
        self.data = data  # subscribers
        self.commands = commands
        self.originals = originals
        self.refused = False  # a topic that nobody may send to another endpoint
        self.ready = False  # what follows is known
        self.tree: Branch | None = None
        self.flushes: list[Flush] = []
        self.count = 0  # receivers elsewhere

    def leads_where(self, other: Route) -> bool:
        mine = self.data, self.commands, self.tree, self.originals, self.flushes, self.count, self.refused
        their = other.data, other.commands, other.tree, other.originals, other.flushes, other.count, other.refused
        return mine == their


class Routes:
    """The routes of one endpoint, each over ``paths`` ways; beyond ``routes_max`` topics all are found out anew."""

    def __init__(
        self,
        own: bytes,
        topology: Topology,
        subscriptions: TopicSubscriptions,
        trees: Trees,
        originals: Originals,
        judge: MessageJudge,
        paths: int,
        routes_max: int,
    ) -> None:
        self.known: dict[bytes, Route] = {}  # by topic
        self._own = own
        self._topology = topology
        self._subscriptions = subscriptions
        self._trees = trees
        self._originals = originals
        self._judge = judge
        self._paths = paths
        self._max = routes_max
        self._bytes = 0  # of topics
        # Of messages for one alone, by kind, and by topic if each has a way for itself.
        self._receivers: dict[tuple[bytes, int, bytes], Route] = {}

    def of(self, topic: bytes) -> Route:
        return self.known.get(topic) or self.find(topic)

    def forget(self) -> None:
        self.known.clear()
        self._receivers.clear()
        self._bytes = 0

    def open(self, topic: bytes, receiver: bytes = NOBODY) -> Route:
        """Return the way of a publication; of its own if another topic has filled a receiver on that of several."""
        while True:
            if receiver != NOBODY:
                route = self.towards(receiver, DATA, topic)
            else:
                route = self.of(topic)
                if not route.ready:
                    self.make_ready(route, topic)
            tree = route.tree
            if tree is None or not self._trees.is_held(tree) or not self._trees.part(tree):
                return route
            self.forget()

    def find(self, topic: bytes) -> Route:
        """Find the route of a topic that is not known; callers that need it very often look into ``known`` first."""
        route = self._route_of(topic)  # this may make others wrong
        if len(self.known) >= self._max or self._bytes + len(topic) > ROUTES_BYTES_MAX:
            self.forget()
        self._bytes += len(topic)
        self.known[topic] = route
        return route

    def _route_of(self, topic: bytes) -> Route:
        matching, topology = self._subscriptions.matching, self._topology
        originals = [link for link in self._originals.links.values() if not link.blocked]
        may_get = self._judge.may_get
        wanting = tuple([link for link in originals if topology.wants(link.peer_id, topic) and may_get(link, topic)])
        route = Route(matching(topic, DATA), matching(topic, COMMAND), wanting)
        route.refused = (
            topic == RESERVED_TOPIC
            or topic in TOPICS
            or topic.startswith(LOCAL_PREFIX)
            or len(topic) > MESH_TOPIC_BYTES_MAX
        )
        return route

    def make_ready(self, route: Route, topic: bytes) -> None:
        self._lead(route, self._topology.receivers(topic), topic)

    def _lead(self, route: Route, receivers: frozenset[bytes], topic: bytes) -> None:
        tree = route.tree = self._trees.to(receivers, self._paths, topic) if receivers else None
        links = () if tree is None else self._trees.peers(tree)
        route.flushes = [link.flush for link in (*links, *route.originals)]
        route.count = len(route.originals) + (len(receivers) if tree is not None else 0)
        route.ready = True

    def towards(self, receiver: bytes, kind: int, topic: bytes) -> Route:
        """Return the way of a message for ``receiver`` alone: to it, to who speaks with it, or to who may.

        An original does not say who is beside it; it passes on messages for those, and drops the rest. Stores
        know that an endpoint is behind an original, from its messages; publishers of data to nobody are told so.
        """
        lane = topic if frozenset((receiver,)) in self._trees.lanes else b""
        found = self._receivers.get((receiver, kind, lane))
        if found is None:
            topology = self._topology
            originals: tuple[Link, ...] = ()
            to: frozenset[bytes] = frozenset()
            if receiver in self._originals.links:
                originals = (self._originals.links[receiver],)
            elif topology.has_way(receiver):
                to = frozenset((receiver,))
            elif (speaker := topology.speaker(receiver)) is not None:
                to = frozenset((speaker,))
            elif kind == COMMAND and not topology.reaches(receiver):
                to, originals = topology.speakers(), self._originals.to_all()
            found = Route((), (), originals)
            self._lead(found, to, lane)
            if len(self._receivers) >= self._max:
                self._receivers.clear()
            self._receivers[receiver, kind, lane] = found
        return found

    def invariants(self) -> list[str]:
        found = []
        if sum(map(len, self.known)) != self._bytes or len(self.known) > self._max:
            found.append(f"{len(self.known)} routes are counted as {self._bytes} bytes")
        for topic, route in list(self.known.items()):
            other = self._route_of(topic)
            if route.ready:
                self.make_ready(other, topic)
            if not route.leads_where(other):
                found.append(f"the route of {topic!r} is not what filters and links lead to")
        return found
