"""Who takes part in the log, as somebody sees it who joins only to look: for dashboards.

It carries no records, keeps nothing and writes nothing. What it costs others: a beacon a second at the tower, and one
connection for each node that consumes or stores, over which nothing passes but what they are subscribed to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from chappe.api.identity import new_address
from chappe.api.log.discovery import StoreAddress
from chappe.data.topic import decode_topic, encode_topic
from chappe.log.actions import Action, Subscribe
from chappe.log.beacon import CONSUMING, PRODUCING, kind_of
from chappe.log.events import ForwarderLost, TowerLost
from chappe.log.messages import Message, StoreInfo
from chappe.log.producing import ProducingMember
from chappe.runtime.log_node import Node
from chappe.runtime.log_seats import Where
from chappe.security import LogSecurity

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


class _Watch(ProducingMember):
    """Produces nothing: so nodes that consume and stores connect to it, and say what they listen to."""

    def __init__(self) -> None:
        super().__init__(new_address())
        self.stores: dict[str, StoreAddress] = {}
        self.listeners: dict[bytes, int] = {}

    def start(self, now: float) -> list[Action]:
        return [Subscribe(b"I"), Subscribe(b"L" + encode_topic(self.address))]

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        if isinstance(message, StoreInfo):
            self.stores[message.address] = StoreAddress(message.store_id, message.endpoint)
        return []

    def handle_gone(self, address: str, now: float) -> list[Action]:
        self.stores.pop(address, None)
        return []

    def handle_subscription(self, prefix: bytes, on: bool, now: float) -> list[Action]:
        if prefix[:1] != b"R" or len(prefix) == 1:  # all topics: stores
            return []
        count = self.listeners.get(prefix[1:], 0) + (1 if on else -1)
        if count <= 0:
            self.listeners.pop(prefix[1:], None)
        elif prefix[1:] in self.listeners or len(self.listeners) < LISTENERS_MAX:
            self.listeners[prefix[1:]] = count
        return []


class LogWatch:
    """Looks at who is there, through a tower or at forwarders, until it is closed.

    Args are those of ``discover``. Use from several threads is safe. Raises UsageError.
    """

    def __init__(self, tower: str, *, listen: str, forwarders: str | None = None, security: LogSecurity = None) -> None:
        self._watch = _Watch()
        where = Where.parse(tower, listen, forwarders, security)
        self._node = Node(self._watch, where.meeting(), on_report=self._hear)
        self._node.start()

    @property
    def introduced(self) -> bool:
        """Whether whoever makes others known, a tower or a forwarder, is there."""
        with self._node.lock:
            return self._node.discovery.tower

    @property
    def lost(self) -> bool:
        """Whether nobody answers who would make others known, and that is sure by now."""
        with self._node.lock:
            told = self._node.discovery.told
        return isinstance(told, TowerLost | ForwarderLost)

    def members(self) -> list[LogMember]:
        """Everybody who was heard in the last seconds, by address. Raises MemberStopped if this watch met a defect."""
        self._node.turns.check()
        with self._node.lock:
            met = self._node.discovery.met
            stores = dict(self._watch.stores)
        found = []
        for address, endpoint in sorted(met):
            store = stores.get(address)
            role = "store" if store is not None else _ROLES[kind_of(address)]
            found.append(LogMember(address, endpoint, role, store))
        return found

    def listened_to(self) -> list[str]:
        """How the topics begin that somebody listens to live just now; at most ``LISTENERS_MAX``."""
        with self._node.lock:
            return [decode_topic(each) for each in self._watch.listeners]

    def close(self) -> None:
        """Leave."""
        self._node.close()

    def _hear(self, event: object) -> None:
        """What a node reports is asked for, not heard."""
