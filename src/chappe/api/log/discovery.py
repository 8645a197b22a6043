"""Finding stores through a tower, for readers that are not members, such as Spark and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chappe.api.identity import new_address
from chappe.defaults import TOWER_HOST
from chappe.errors import TimedOut
from chappe.log.consuming import Scout
from chappe.log.events import ConnectionRefused
from chappe.runtime.log_ports import LogPorts
from chappe.runtime.log_seats import Where
from chappe.security import LogSecurity
from chappe.system import time

SETTLE_S = 0.3  # after the first store answered, others get this long, at most


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store: the lasting id of its directory and its query socket."""

    store_id: str
    endpoint: str


def discover(
    tower: str | None,
    timeout: float = 2.0,
    *,
    listen: str = TOWER_HOST,
    forwarders: str | Sequence[str] | None = None,
    settle_s: float = SETTLE_S,
    security: LogSecurity = None,
) -> list[StoreAddress]:
    """Return the stores that answer within ``timeout`` seconds, sorted by id; empty without a tower or stores.

    Raises TimedOut if there are none because the tower or forwarder asks for keys that we lack.

    After one answered, it waits for others ``settle_s`` at most: no longer than until all that a tower knows have, some
    0.15 s, or all forwarders. Several towers, and programs of the original, are waited for as long as that.
    """
    where = Where.parse(tower, listen, forwarders, security)
    scout = Scout(new_address(), settle_s, towers=len(where.towers), forwarders=len(where.forwarders))
    refusals: list[ConnectionRefused] = []

    def hear(event: object) -> None:
        if isinstance(event, ConnectionRefused):
            refusals.append(event)

    node = LogPorts(scout, where.meeting(), on_report=hear)

    def seen() -> tuple[int, bool, int, int]:
        return len(scout.stores), node.discovery.tower, node.discovery.peers, len(refusals)

    node.start()
    deadline = time.monotonic() + timeout
    try:
        while True:
            with node.driver.lock:
                now, known = time.monotonic(), seen()
                met = [address for address, _ in node.discovery.met]
                until = min(deadline, scout.until(node.discovery.tower, met, now))
            nobody = not scout.stores and len(refusals) >= len(where.towers or where.forwarders)
            if until <= now or nobody:
                break
            node.driver.turns.wait(lambda known=known: seen() != known, until - now)  # type: ignore[misc]
        with node.driver.lock:
            found = [StoreAddress(each.store_id, each.endpoint) for each in scout.stores.values()]
        if refusals and not found:
            raise TimedOut(str(refusals[0]))
        return sorted(found, key=lambda store: (store.store_id, store.endpoint))
    finally:
        node.driver.close()


def need_stores(**where: Any) -> list[StoreAddress]:
    """Return the stores at a place, given as to ``discover``. Raises TimedOut if there are none."""
    found = discover(**{"tower": None, **where})
    if not found:
        place = Where.parse(**where)
        raise TimedOut(f"no store answers at {place.named}; start one with: {place.command}")
    return found
