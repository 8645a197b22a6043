"""Writing partitions of another site as they are there."""

from __future__ import annotations

import hashlib
from typing import Any

from chappe.api.log.producer import Producer
from chappe.log.batch import Batch
from chappe.log.ordered.machine import is_ordered
from chappe.log.sources import Key
from chappe.permissions.rules import PRODUCE


def place_of(key: Key, to: str | None) -> Key:
    """Return the topic and partition that a partition has at the other site.

    They are the same, unless the topic gets another name or a chain writes the partition: then another partition has
    always the same name.
    """
    topic, partition = key
    if to is None and not is_ordered(partition):
        return key
    name = to or topic
    digest = hashlib.sha256("\0".join((topic, partition, name)).encode("utf-8", "surrogateescape")).hexdigest()
    return name, f"{digest[:12]}4{digest[13:32]}".upper()  # as producers' partitions are called, not those of chains


class MirrorProducer(Producer):
    """Writes a partition of another place, under its name and at its offsets; others may write the same meanwhile."""

    def __init__(self, partition: str, **arguments: Any) -> None:
        self._given = partition
        self._begins: dict[str, int] = {}
        super().__init__(None, **arguments)

    def _new_partition(self) -> str:
        return self._given

    def next_in(self, topic: str) -> int | None:
        """Return the offset of the next record in a topic; None before the first one."""
        writer = self._writers.get(topic)
        return None if writer is None else writer.core.next_offset

    def put(self, topic: str, batch: Batch) -> None:
        """Send a batch, which begins at the offset of the next record; wait for room. Raises as ``send_batch``."""
        if topic not in self._writers:
            self._where.require(PRODUCE, topic)
        with self._lock:
            self._check()
            writer = self._writers.get(topic)
            if writer is None:
                writer = self._topics.open(topic, batch.base)
                writer.core.mirrors = True
                self._begins[topic] = batch.base
            writer.send_batch(lambda _: bytes(batch.raw))

    @property
    def put_and_stored(self) -> int:
        """The number of records that were put here, and that enough stores have."""
        return sum(each.core.stored - self._begins[topic] for topic, each in list(self._writers.items()))
