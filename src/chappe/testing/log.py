"""A tower and a store for one test, where programs look for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chappe.api.log.consumer import Consumer
from chappe.api.log.producer import Producer
from chappe.api.log.store import Store
from chappe.api.log.tower import Tower
from chappe.log.batch import Record
from chappe.testing.world import World


class Log:
    """The fixture ``chappe_log``: a tower on the host ``tower``, at the usual address, and a store on ``store``.

    Args:
        world: Where they are.
        directory: Of the store.
    """

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.directory = directory
        self.tower = self.start_tower()
        self.store = self.start_store()

    def start_tower(self) -> Tower:
        """Start it again, after it was closed or its host was killed."""
        with self.world.on("tower"):
            self.tower = Tower()
        return self.tower

    def start_store(self, **options: Any) -> Store:
        """Start it again on the same files, after it was closed or its host was killed."""
        with self.world.on("store"):
            self.store = Store(self.directory, **options)
        return self.store

    def write(self, topic: str, *values: bytes | str | None, timeout: float = 10.0) -> None:
        """Make records, and wait until they are stored. Raises TimedOut."""
        with Producer(topic) as producer:
            producer.send_many(values)
            producer.flush(timeout)

    def read(self, topic: str, timeout: float = 10.0) -> list[Record]:
        """All that is stored. Raises TimedOut."""
        with Consumer(topic) as consumer:
            return list(consumer.to_end(timeout))

    def wait_for(self, topic: str, count: int, timeout: float = 10.0) -> list[Record]:
        """The first ``count`` records of a topic, as soon as they are there.

        Raises:
            AssertionError: There are fewer within ``timeout`` seconds.
        """
        found: list[Record] = []
        end = self.world.now + timeout
        with Consumer(topic) as consumer:
            while len(found) < count and (batch := consumer.poll(max(0.0, end - self.world.now))) is not None:
                found += consumer.iterate(batch)
        assert len(found) >= count, (
            f"there are {len(found)} records of topic {topic!r} after {timeout:g} s, not {count}"
        )
        return found[:count]
