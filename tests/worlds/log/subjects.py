"""The members of a world as checkers see them, whether hosts of the simulator run their cores or users' objects do."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from tests.worlds.disk import SimDisk

from chappe.data.topic import Filter
from chappe.log.consumer import LogConsumer, Reset
from chappe.log.producer import LogProducer
from chappe.log.sources import Key
from chappe.log.storage import Retention
from chappe.log.store import LogStore
from chappe.sim.host import SimHost


class StoreSubject(SimHost):
    """One life of a store, with its disk."""

    core: LogStore
    address: str
    disk: SimDisk
    retention: Sequence[tuple[str, Retention]]


class ProducerSubject(SimHost):
    """One life of a producer of one partition; ``part`` and ``member`` are what its node has of it."""

    resident: Any
    core: LogProducer
    key: Key
    min_acks: int
    part: Any
    member: Any


class ConsumerSubject(SimHost):
    """One life of a consumer.

    ``positions`` are the offsets delivered next, as checkers count them, ``met`` the stores that it knew at any time,
    ``home`` the consumer that came first to its node, ``left_out`` what is too old for it.
    """

    core: LogConsumer
    reset: Reset
    min_acks: int
    filters: tuple[Filter, ...]
    positions: dict[Key, int]
    met: set[str]
    home: Any
    member: Any
    max_age_s: float | None
    left_out: AbstractSet[tuple[Key, int]] = frozenset()

    def wants_topic(self, topic: str) -> bool:
        """Return whether it consumes a topic."""
        return any(each.matches(topic) for each in self.filters)

    def neglects(self) -> bool:
        """Return whether messages wait for it though it has room."""
        return False

    def lacking(self, end: dict[Key, int]) -> dict[Key, int]:
        """Return what its program has not got of what is in front of an end."""
        return self.core.lacking(end)

    def seek_end(self) -> None:
        """Ask what there is."""
        raise NotImplementedError
