"""A gateway: stands between two endpoints, each in a domain of its own, and passes chosen topics both ways.

The driver tells it what each domain wants (``handle_subscription``) and what came (``handle_message``). It sends
``SubscribeAtSide`` and ``PublishToSide`` to the endpoint of a side, 0 or 1.

    waiting      a domain has nobody else yet, or somebody came just now: it is seen first who is there
    listening    it has a name and says so, for those who begin at the same time; see ``GatewayLimits.listen_s``
    standing by  others pass; it wants nothing, and takes over as soon as link states say that they are gone
    passing      it asks each domain for what the other wants, and passes that on
    misjoined    both sides are one mesh

**Break before make.** The next feeder of a domain begins when no other says that it feeds it. So while places in the
tree change something may be lost, and nothing comes twice as long as link states are faster than ``listen_s``.

**What is wanted** in a domain is what its endpoints want, gateways that pass to further domains among them. Those that
stand by want nothing. So what is wanted spreads along the tree, and shrinks along it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from chappe.core import Clock, Effect, Report, Send
from chappe.defaults import DROPS_REPORT_S
from chappe.errors import ProtocolError, UsageError
from chappe.gateway.announcement import (
    MARKED,
    NAME_BYTES,
    RESERVED,
    Announcement,
    TreePlace,
    check_domain,
    elect,
    find,
    summary,
)
from chappe.gateway.events import GatewayPasses, GatewayWaits, NotPassed, OtherName, SameMesh
from chappe.gateway.marks import Marked, SeenMarks, parse
from chappe.limits import GATEWAY_LIMITS, GatewayLimits
from chappe.mesh.filters import NOTHING, Filter, matches, minimal
from chappe.mesh.messages import NOBODY, Message

NO_GATEWAY: Final = "marked by somebody who is not a gateway, or in an unknown form"
CIRCLE: Final = "which had come before, or had passed too many gateways"
NOT_PASSING: Final = "as another gateway passes by now"


@dataclass(frozen=True, slots=True)
class SideOptions:
    """One side.

    Args:
        domain: Its name, the same at all gateways of the domain.
        own: The id of the gateway's endpoint there.
        chosen: What may pass from here to the other side, as ``summary.as_chosen`` makes it.
        gateways: The endpoints of this domain that are believed to be gateways; None for whoever says that it is one.
    """

    domain: str
    own: bytes
    chosen: Filter
    gateways: frozenset[bytes] | None = None


@dataclass(frozen=True, slots=True)
class SubscribeAtSide:
    """The endpoint of a side is to want exactly these prefixes."""

    topics: Filter


@dataclass(frozen=True, slots=True)
class PublishToSide:
    """The endpoint of a side is to publish topics and payloads to all, in order, and payloads on ``MARKED`` to one."""

    messages: list[tuple[bytes, bytes]]
    marked: list[tuple[bytes, bytes]]  # receiver, payload


@dataclass(frozen=True, slots=True)
class SideStatus:
    """How a side is: ``wanted`` is asked of it for the other one, ``passed`` came from it."""

    domain: str
    endpoints: int
    gateways: int  # others, that are seen here
    wanted: Filter
    passed: int
    refused: int


class _Side:
    def __init__(self, options: SideOptions) -> None:
        self.options = options
        self.endpoints = 0
        self.sees_other = False  # the gateway's other endpoint
        self.wanted: Filter = NOTHING  # by its endpoints, but for reserved topics
        self._filters: dict[bytes, Filter] = {}
        self._topics: Counter[bytes] = Counter()  # how many endpoints want each
        self.gateways: dict[bytes, tuple[Announcement, Filter]] = {}
        self.former: OrderedDict[bytes, None] = OrderedDict()  # gateways that are gone: what they sent may still come
        self.told: Filter | None = None  # what our endpoint wants
        self.told_at = -inf
        self.tell_at = inf  # what it is to want by now
        self.misnamed: frozenset[bytes] = frozenset()
        self.passed = 0
        self.refused: Counter[str] = Counter()
        self.reported: Counter[str] = Counter()

    def look(self, filters: Mapping[bytes, Filter], but: bytes, gateways_max: int) -> None:
        """Update the endpoints and their filters; of thousands few have changed."""
        before, self._filters = self._filters, dict(filters)
        self._filters.pop(but, None)
        self.endpoints = len(self._filters)
        known = len(self._topics)
        added = False
        for endpoint in before.keys() - self._filters.keys():
            self._want_less(before[endpoint])
            if self.gateways.pop(endpoint, None) is not None:
                self.former[endpoint] = None
        while len(self.former) > gateways_max:
            self.former.popitem(last=False)
        for endpoint, wanted in self._filters.items():
            former = before.get(endpoint)
            if former == wanted:
                continue
            for topic in wanted:
                added = added or topic not in self._topics
                self._topics[topic] += 1
            if former is not None:
                self._want_less(former)
            self.gateways.pop(endpoint, None)
            self.former.pop(endpoint, None)
            believed = self.options.gateways
            announced = find(wanted) if believed is None or endpoint in believed else None
            if announced is not None and len(self.gateways) < gateways_max:
                self.gateways[endpoint] = (announced, wanted)
        if added or len(self._topics) != known:
            self.wanted = minimal([topic for topic in self._topics if not topic.startswith(RESERVED)])

    def _want_less(self, wanted: Filter) -> None:
        for topic in wanted:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]

    def is_gateway(self, endpoint: bytes) -> bool:
        return endpoint in self.gateways or endpoint in self.former


class GatewayCore:
    """Joins two domains. ``now`` is monotonic seconds. ``clock``: the time of day: a gateway's name begins with it.
    Raises UsageError: Domains have no proper names, or the same one, or the sides have the same endpoint.
    """

    def __init__(
        self, sides: tuple[SideOptions, SideOptions], clock: Clock, limits: GatewayLimits = GATEWAY_LIMITS
    ) -> None:
        for each in sides:
            check_domain(each.domain)
        if sides[0].domain == sides[1].domain:
            raise UsageError(f"a gateway joins two domains, and both sides are called {sides[0].domain}")
        if sides[0].own == sides[1].own:
            raise UsageError("the two sides of a gateway have the same endpoint id: give each one of its own")
        self.domains = (sides[0].domain, sides[1].domain)
        self.state = "waiting"
        self.place: TreePlace | None = None
        self._sides = (_Side(sides[0]), _Side(sides[1]))
        self._first = 0 if self.domains[0] < self.domains[1] else 1
        self._clock = clock
        self._limits = limits
        self._id = min(sides[0].own, sides[1].own)[: NAME_BYTES // 2]
        self._ready_at = inf
        self._settled_at = inf
        self._name = b""
        self._look_at = inf  # it may pass from then on, if nothing changes
        self._patient_until = inf  # so long it waits for those who still feed what it is to feed
        self._up: int | None = None  # the side of the way to the root, once it has been that for a while
        self._turned_until = inf
        self._number = 0
        self._seen = SeenMarks(limits.seen_max)
        self._report_at = inf

    @property
    def passing(self) -> bool:
        return self.state == "passing"

    # -- the driver -------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Say in both domains that there is a gateway; before the endpoints peer, so that nobody meets it unnamed."""
        return self._tell(now)

    def handle_subscription(self, side: int, filters: Mapping[bytes, Filter], now: float) -> list[Effect]:
        seen, other = self._sides[side], self._sides[1 - side]
        seen.sees_other = other.options.own in filters
        seen.look(filters, other.options.own, self._limits.gateways_max)
        return [*self._check_names(seen), *self._update(now)]

    def handle_message(self, side: int, messages: Sequence[Message], now: float) -> list[Effect]:
        """Messages came on a side; the driver has told before what changed in the networks."""
        source, target = self._sides[side], self._sides[1 - side]
        if not self.passing:
            self._refuse(source, NOT_PASSING, sum([not source.is_gateway(each.origin) for each in messages]), now)
            return []
        plain: list[tuple[bytes, bytes]] = []
        marked: list[tuple[bytes, bytes]] = []
        further = [(endpoint, wanted) for endpoint, (_, wanted) in target.gateways.items()]
        chosen = source.options.chosen
        for message in messages:
            topic, payload, first, passed = message.topic, message.payload, self._name, 0
            if topic == MARKED:
                found = self._take_marked(source, message, now)
                if found is None:
                    continue
                topic, payload, first, number, passed = (
                    found.topic,
                    found.payload,
                    found.first,
                    found.number,
                    found.passed,
                )
            elif message.receiver != NOBODY or source.is_gateway(message.origin):
                continue  # for us alone; or it comes with a mark too
            else:
                self._number = number = self._number + 1
            if not matches(chosen, topic):
                continue
            source.passed += 1
            plain.append((topic, payload))
            onward: bytes | None = None
            for endpoint, wanted in further:
                if matches(wanted, topic):
                    onward = onward or Marked(first, number, passed + 1, topic, payload).pack()
                    marked.append((endpoint, onward))
        return [Send(1 - side, PublishToSide(plain, marked))] if plain else []

    def handle_timeout(self, now: float) -> list[Effect]:
        """Do what is due; called too early it does nothing."""
        actions: list[Effect] = []
        if now >= self._report_at:
            self._report_at = inf
            actions += self._report_refused()
        return actions + self._update(now)

    def next_timeout(self) -> float:
        due = min(self._report_at, self._look_at)
        if not self._name:
            due = min(due, self._ready_at)
        elif self.state == "listening":
            due = min(due, self._settled_at)
        return min(due, self._sides[0].tell_at, self._sides[1].tell_at)

    def flush(self, now: float) -> list[Effect]:
        """Do nothing: messages are passed on at once."""
        return []

    # -- looks ------------------------------------------------------------------------------------------------

    def sides(self) -> tuple[SideStatus, SideStatus]:
        one, two = [
            SideStatus(
                each.options.domain, each.endpoints, len(each.gateways), self._wanted(number), each.passed,
                each.refused.total(),
            )
            for number, each in enumerate(self._sides)
        ]  # fmt: skip
        return one, two

    def invariants(self) -> list[str]:
        found = []
        if self.passing and (self.place is None or self.place.rival is not None or not self._name):
            found.append("it passes without a place in the tree")
        if len(self._seen) > self._limits.seen_max:
            found.append(f"marks of {len(self._seen)} gateways are remembered")
        for each in self._sides:
            if max(len(each.former), len(each.gateways)) > self._limits.gateways_max:
                found.append(f"{len(each.gateways)} and {len(each.former)} gateways of {each.options.domain} are known")
        return found

    # -- places -----------------------------------------------------------------------------------------------

    def _update(self, now: float) -> list[Effect]:
        self._look_at = inf
        misjoined = self._sides[0].sees_other or self._sides[1].sees_other
        if misjoined or not (self._sides[0].endpoints and self._sides[1].endpoints):
            self._ready_at = self._settled_at = inf
            self._name = b""
            self.place = None
            return self._change("misjoined" if misjoined else "waiting", now)
        if self._ready_at == inf:
            self._ready_at = now + self._limits.hold_s
        if now < self._ready_at:
            return self._change("waiting", now)
        if not self._name:
            self._name = (self._clock.wall_ns() // 1000).to_bytes(NAME_BYTES // 2) + self._id
            self._settled_at = now + self._limits.listen_s
        before, fed = self.place, frozenset[int]()
        if self.passing and before is not None:
            fed = before.feeds
        takers = [self._takers(side) for side in (0, 1)]
        self.place = elect(self._name, takers, self._first, self._limits.depth_max)
        self._note_way(self.place.up, now)
        if now < self._settled_at:
            return self._change("listening", now)
        passes_from = self._may_pass_from(fed, now)
        if now >= passes_from:
            return self._change("passing", now)
        self._look_at = passes_from
        return self._change("standing by", now)

    def _note_way(self, up: int | None, now: float) -> None:
        if self.passing or up in (None, self._up) or now >= self._turned_until:
            self._up = up
            self._turned_until = inf
        else:
            self._turned_until = min(self._turned_until, now + self._limits.listen_s)

    def _may_pass_from(self, fed: frozenset[int], now: float) -> float:
        """When messages may pass, as far as it is known; infinity if others do. ``fed``: the sides that it feeds at
        present.
        """
        assert self.place is not None
        rival = self.place.rival is not None
        if not rival and any(self._is_fed(side) for side in self.place.feeds - fed):
            self._patient_until = min(self._patient_until, now + self._limits.feeder_wait_s)
            return self._patient_until
        self._patient_until = inf
        if rival:
            return inf
        # One that stood by and finds its way to the root on the other side may believe somebody who does not know yet
        # what has happened. A gateway that keeps its way, or is the root now, takes over at once.
        return now if fed or self.place.up == self._up else self._turned_until

    def _takers(self, side: int) -> dict[bytes, Announcement]:
        """The others who take part in the election; who passes gives way only to those who could do so at once."""
        gateways, passing = self._sides[side].gateways, self.passing
        return {key: each for key, (each, _) in gateways.items() if each.path and (each.settled or not passing)}

    def _is_fed(self, side: int) -> bool:
        return any(each.settled and each.feeds for each, _ in self._sides[side].gateways.values())

    def _change(self, state: str, now: float) -> list[Effect]:
        before, self.state = self.state, state
        actions = self._tell(now)
        if state == before:
            return actions
        if state == "passing":
            actions.append(Report(GatewayPasses(self.domains)))
        elif state == "misjoined":
            actions.append(Report(SameMesh(self.domains)))
        elif before == "passing" or state == "standing by":
            actions.append(Report(GatewayWaits(self.domains, self.reason())))
        return actions

    def reason(self) -> str:
        """Why nothing passes, as a part of a sentence; empty while it passes."""
        if self.passing:
            return ""
        if self.state == "misjoined":
            return "both are one mesh"
        if self.state == "standing by":
            return "another gateway passes" if self.place and self.place.rival else "another gateway still passes"
        empty = [each.options.domain for each in self._sides if not each.endpoints]
        return f"nobody else is in {' and '.join(empty)}" if empty else "it is seen first who else is there"

    def _check_names(self, seen: _Side) -> list[Effect]:
        ours = seen.options.domain
        misnamed = {endpoint: each.here for endpoint, (each, _) in seen.gateways.items() if each.here != ours}
        news = sorted(misnamed.keys() - seen.misnamed)
        seen.misnamed = frozenset(misnamed)
        return [Report(OtherName(each, ours, misnamed[each])) for each in news]

    # -- what is wanted ---------------------------------------------------------------------------------------

    def _wanted(self, side: int) -> Filter:
        if not self.passing:
            return NOTHING
        limits = self._limits
        chosen = self._sides[side].options.chosen
        return summary(self._sides[1 - side].wanted, chosen, limits.wanted_max, limits.wanted_bytes_max)

    def _topics(self, side: int) -> Filter:
        here, there = self.domains[side], self.domains[1 - side]
        announced = Announcement(here, there)
        if self.place is not None:
            settled = self.state in ("passing", "standing by")
            announced = Announcement(here, there, self.place.path, settled, self.place.up == side, self.passing)
        return minimal([announced.pack(), MARKED, *self._wanted(side)])

    def _tell(self, now: float) -> list[Effect]:
        actions: list[Effect] = []
        for side in (0, 1):
            seen = self._sides[side]
            topics = self._topics(side)
            seen.tell_at = inf
            if topics == seen.told:
                continue
            reserved = [each for each in topics if each.startswith(RESERVED)]
            urgent = seen.told is None or any(each not in seen.told for each in reserved)
            if urgent or now >= seen.told_at + self._limits.tell_pause_s:
                seen.told, seen.told_at = topics, now
                actions.append(Send(side, SubscribeAtSide(topics)))
            else:
                seen.tell_at = seen.told_at + self._limits.tell_pause_s
        return actions

    # -- messages ---------------------------------------------------------------------------------------------

    def _take_marked(self, source: _Side, message: Message, now: float) -> Marked | None:
        found: Marked | None = None
        if message.origin in source.gateways and message.receiver == source.options.own:
            try:
                found = parse(message.payload)
            except ProtocolError:
                pass
        if found is None or found.topic.startswith(RESERVED):
            self._refuse(source, NO_GATEWAY, 1, now)
            return None
        circles = found.first == self._name or found.passed >= 2 * self._limits.depth_max
        if circles or not self._seen.is_new(found.first, found.number):
            self._refuse(source, CIRCLE, 1, now)
            return None
        return found

    def _refuse(self, source: _Side, reason: str, count: int, now: float) -> None:
        if count:
            source.refused[reason] += count
            self._report_at = min(self._report_at, now + DROPS_REPORT_S)

    def _report_refused(self) -> list[Effect]:
        actions: list[Effect] = []
        for each in self._sides:
            for reason, count in each.refused.items():
                news = count - each.reported[reason]
                if news:
                    each.reported[reason] = count
                    actions.append(Report(NotPassed(each.options.domain, news, reason)))
        return actions
