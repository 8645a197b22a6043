"""Finding stores through a tower, for readers that are not members themselves: Spark, the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from chappe.api.identity import new_address
from chappe.data.topic import encode_topic
from chappe.defaults import TOWER_HOST
from chappe.log.actions import Action, Subscribe
from chappe.log.consuming import ConsumingMember
from chappe.log.messages import Message, StoreInfo
from chappe.runtime.log_node import Node
from chappe.runtime.log_seats import Where
from chappe.security import LogSecurity
from chappe.system import time

SETTLE_S = 0.3  # after the first store answered, others get this long


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store: the lasting id of its directory and its query socket."""

    store_id: str
    endpoint: str


class _Scout(ConsumingMember):
    """Consumes nothing, and only listens for stores."""

    def __init__(self) -> None:
        super().__init__(new_address())
        self.stores: dict[str, StoreAddress] = {}

    def more_than(self, count: int) -> bool:
        return len(self.stores) > count

    def start(self, now: float) -> list[Action]:
        return [Subscribe(b"I"), Subscribe(b"L" + encode_topic(self.address))]

    def handle_message(self, message: Message, now: float, wall_us: int) -> list[Action]:
        if isinstance(message, StoreInfo):
            self.stores[message.address] = StoreAddress(message.store_id, message.endpoint)
        return []

    def handle_gone(self, address: str, now: float) -> list[Action]:
        self.stores.pop(address, None)
        return []


def discover(
    tower: str,
    timeout: float = 2.0,
    *,
    listen: str = TOWER_HOST,
    forwarders: str | Sequence[str] | None = None,
    settle_s: float = SETTLE_S,
    security: LogSecurity = None,
) -> list[StoreAddress]:
    """The stores that answer within ``timeout`` seconds, sorted by id; empty if there is no tower or no store.

    After one answered, it waits for others ``settle_s`` at most.
    """
    scout = _Scout()
    where = Where.parse(tower, listen, forwarders, security)
    node = Node(scout, where.meeting(), on_report=lambda event: None)
    node.start()
    deadline = time.monotonic() + timeout
    try:
        while (left := deadline - time.monotonic()) > 0:
            known = len(scout.stores)
            node.turns.wait(partial(scout.more_than, known), left)
            if scout.more_than(known):
                deadline = min(deadline, time.monotonic() + settle_s)
        with node.lock:
            return sorted(scout.stores.values(), key=lambda store: (store.store_id, store.endpoint))
    finally:
        node.close()
