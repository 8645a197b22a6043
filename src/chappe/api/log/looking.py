"""The members of the log, seen by a member that joins only to look: for dashboards.

It carries no records, keeps nothing and writes nothing. It costs a beacon a second at the tower, one connection each
way for each node, for messages to it alone, and the answers to its questions about traffic, ``ASKED_MAX`` of them at
a look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from chappe.api.identity import new_address
from chappe.api.log.discovery import StoreAddress
from chappe.core import Effect, Publish, Subscribe
from chappe.data.topic import decode_topic, encode_topic
from chappe.log.beacon import CONSUMING, PRODUCING, Discovery, kind_of
from chappe.log.consuming import TOLD_S
from chappe.log.events import ForwarderLost, TowerLost
from chappe.log.member import ProducingMember
from chappe.log.messages import AskTraffic, Message, StoreInfo, TrafficTold
from chappe.log.traffic import TrafficReport, parse_report
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.log_seats import Where
from chappe.security import LogSecurity
from chappe.system import program, time

ASK_AGAIN_S: Final = 0.1  # until nodes that have not told are asked again
ASKED_MAX: Final = 20  # nodes that are asked at once
NODES_MAX: Final = 5_000  # whose answers are kept
LISTENERS_MAX: Final = 10_000  # prefixes of topics that somebody listens to; further ones are not remembered

Role = Literal["producers", "consumers", "store", "member"]
_ROLES: Final[dict[str, Role]] = {PRODUCING: "producers", CONSUMING: "consumers", "": "member"}


@dataclass(frozen=True, slots=True)
class LogMember:
    """A node of the log: the producers of a process, its consumers, or a store; others, originals too: ``member``."""

    address: str
    endpoint: str
    role: Role
    store: StoreAddress | None = None


@dataclass(frozen=True, slots=True)
class Beacons:
    """Counts of beacons that a tower has passed on: to each node, and from each, by address.

    ``tower`` is its name for people, empty if it has none.
    """

    to_each: int
    of: dict[str, int]
    tower: str = ""


class _Watch(ProducingMember):
    """Produces nothing, and has the address of a plain member: all nodes connect to it, and it to them.

    Stores, and nodes that consume, announce their subscriptions to it.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.address = new_address()
        self.stores: dict[str, StoreAddress] = {}
        self.listeners: dict[bytes, int] = {}
        self.reports: dict[str, tuple[float, TrafficReport]] = {}  # of nodes that were asked, and when they told
        self._questions = 0
        self._turn = 0

    def start(self, now: float) -> list[Effect]:
        own = encode_topic(self.address)
        return [Subscribe(b"I"), Subscribe(b"L" + own), Subscribe(b"U" + own)]

    def handle_message(self, message: Message, now: float) -> list[Effect]:
        if isinstance(message, StoreInfo):
            self.stores[message.address] = StoreAddress(message.store_id, message.endpoint)
        elif isinstance(message, TrafficTold) and message.topic == self.address:
            report = parse_report(message.address, message.body)
            if message.address in self.reports or len(self.reports) < NODES_MAX:
                self.reports[message.address] = now, report
        return []

    def handle_gone(self, address: str, now: float) -> list[Effect]:
        self.stores.pop(address, None)
        self.reports.pop(address, None)
        return []

    def ask(self, nodes: list[str], first: list[str], now: float) -> list[Effect]:
        """Ask some of the nodes, in turn, and in any case those in ``first``."""
        asked = first[:ASKED_MAX] + [
            nodes[(self._turn + step) % len(nodes)] for step in range(min(ASKED_MAX, len(nodes)))
        ]
        self._turn = (self._turn + ASKED_MAX) % max(1, len(nodes))
        self._questions += 1
        return [Publish(AskTraffic(each, self.address, self._questions)) for each in dict.fromkeys(asked)]

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Effect]:
        if prefix[:1] != b"R" or len(prefix) == 1:  # all topics: stores
            return []
        count = self.listeners.get(prefix[1:], 0) + (1 if on else -1)
        if count <= 0:
            self.listeners.pop(prefix[1:], None)
        elif prefix[1:] in self.listeners or len(self.listeners) < LISTENERS_MAX:
            self.listeners[prefix[1:]] = count
        return []


class LogWatch:
    """Observes the members, through a tower or at forwarders, until it is closed.

    Arguments are those of ``discover``. Use from several threads is safe. Raises UsageError.
    """

    def __init__(self, tower: str, *, listen: str, forwarders: str | None = None, security: LogSecurity = None) -> None:
        self._watch = _Watch()
        where = Where.parse(tower, listen, forwarders, security)
        self._node = LogPorts(self._watch, where.meeting(), on_report=self._hear)
        self._node.core.traffic.names[self._watch.address] = program.label()
        self._node.start()

    @property
    def introduced(self) -> bool:
        """True while a tower or a forwarder is there."""
        with self._node.driver.lock:
            return self._node.discovery.tower

    @property
    def lost(self) -> bool:
        """True once it is certain that no tower or forwarder answers."""
        with self._node.driver.lock:
            told = self._node.discovery.told
        return isinstance(told, TowerLost | ForwarderLost)

    @property
    def encrypted(self) -> bool:
        """True if we have keys: then all members have keys."""
        return self._node.guard is not None

    def members(self) -> list[LogMember]:
        """Return the members heard in the last seconds, by address. Raises MemberStopped after a defect."""
        self._node.driver.turns.check()
        with self._node.driver.lock:
            met = self._node.discovery.met
            stores = dict(self._watch.stores)
        found = []
        for address, endpoint in sorted(met):
            store = stores.get(address)
            role = "store" if store is not None else _ROLES[kind_of(address)]
            found.append(LogMember(address, endpoint, role, store))
        return found

    def listened_to(self) -> list[str]:
        """Return the prefixes of topics that members listen to live; at most ``LISTENERS_MAX``."""
        with self._node.driver.lock:
            return [decode_topic(each) for each in self._watch.listeners]

    def ask(self, nodes: list[str], first: list[str] | None = None) -> float:
        """Ask nodes for their traffic, at most ``ASKED_MAX`` in a call; return how many calls go around all.

        As many of those in ``first`` are asked in any case.
        """
        with self._node.driver.lock:
            effects = self._watch.ask(nodes, first or [], time.monotonic())
            self._node.driver.run(self._node.driver.do, effects)
        return max(1.0, len(nodes) / ASKED_MAX)

    def reports(self, last_s: float) -> dict[str, TrafficReport]:
        """Return the reports of the last ``last_s`` seconds, by address."""
        since = time.monotonic() - last_s
        with self._node.driver.lock:
            return {address: report for address, (at, report) in self._watch.reports.items() if at >= since}

    def names(self, within_s: float) -> dict[str, str]:
        """Return names of members by address, as far as they answer within ``within_s`` seconds.

        It ends early once all known members have answered. Programs of the original never do, and with keys no member
        does that we may not ``administer``.
        """
        began = time.monotonic()
        introduced_at = math.inf
        asked: set[str] = set()
        while True:
            now = time.monotonic()
            nodes = [each.address for each in self.members()]
            reports = self.reports(within_s)
            if self.introduced:
                introduced_at = min(introduced_at, now)
            all_told = bool(nodes) and reports.keys() >= set(nodes) and now >= introduced_at + TOLD_S
            if all_told or now >= began + within_s:
                return {address: label for report in reports.values() for address, label in report.names}
            self.ask(nodes, [each for each in nodes if each not in asked])
            asked.update(nodes)
            heard = len(reports)
            self._node.driver.turns.wait(lambda heard=heard: len(self._watch.reports) > heard, ASK_AGAIN_S)  # type: ignore[misc]

    def beacons(self) -> Beacons:
        """Return the tower's counts; empty ones without a tower."""
        with self._node.driver.lock:
            discovery = self._node.discovery
            if not isinstance(discovery, Discovery):
                return Beacons(0, {})
            addresses = {endpoint: address for address, endpoint in discovery.met}
            return Beacons(
                discovery.heard,
                {addresses[at]: n for at, n in discovery.beacons.items() if at in addresses},
                discovery.tower_name,
            )

    def close(self) -> None:
        self._node.driver.close()

    def _hear(self, event: object) -> None:
        """Drop the node's events: ``LogWatch`` is polled."""
