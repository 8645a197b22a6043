"""The producer of ``chappe produce``, which is made for the first record."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chappe.cli import options
from chappe.cli.console import say
from chappe.cli.topics import new_beside
from chappe.data.markup import many
from chappe.log.compression import Compression

if TYPE_CHECKING:
    from chappe import OrderedProducer, Producer


class CountedWriter:
    """A writer of an ordered topic. It counts its records: offsets are shared with other writers."""

    def __init__(self, producer: OrderedProducer) -> None:
        self.topic = producer.topic
        self.partition = ", ".join(producer.partitions)
        self.send = producer.send
        self.send_many = producer.send_many
        self.flush = producer.flush
        self.close = producer.close
        self._producer = producer

    @property
    def next_offset(self) -> int:
        return self._producer.sent

    @property
    def stored(self) -> int:
        return self._producer.stored


class LazyProducer:
    """Context manager that creates the producer on the first record: failing input creates no topic."""

    def __init__(
        self,
        topic: str,
        reach: options.Reach,
        identity: str | None,
        min_acks: int,
        chain: Path | None,
        partitions: int | None,
        compression: Compression | None,
    ) -> None:
        from chappe.api.log.kept_partition import KeptPartitions

        self.topic = topic
        self.producer: Producer | CountedWriter | None = None
        self.began_at = 0  # the offset of the first record of this run
        self._reach = reach
        self._identity = identity
        self._min_acks = min_acks
        self._chain, self._partitions = chain, partitions
        self._compression: Compression | None = compression
        if chain is None:
            self._kept = KeptPartitions(topic, **reach.arguments)
        self._ending = ExitStack()

    def __enter__(self) -> LazyProducer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._ending.__exit__(*error)

    def open(self) -> Producer | CountedWriter:
        """Return the producer, and create it on the first call."""
        if self.producer is None:
            self.producer = made = self._made()
            self.began_at = made.next_offset
        return self.producer

    def _made(self) -> Producer | CountedWriter:
        from chappe import OrderedProducer, Producer

        enter = self._ending.enter_context
        if self._chain is not None:
            security = self._reach.arguments["security"]
            return CountedWriter(
                enter(OrderedProducer(self.topic, chain=self._chain, partitions=self._partitions, security=security))
            )
        if self._identity is None:
            producer = enter(self._kept.producer(self._min_acks, self._compression))
        else:
            arguments = {**self._reach.arguments, "min_acks": self._min_acks, "compression": self._compression}
            producer = enter(Producer(self.topic, **arguments, identity=self._identity))
            if producer.stored < producer.next_offset:
                left = producer.next_offset - producer.stored
                say(f"going on after {many(producer.next_offset, 'record')}; the last {left:,} of them are sent again")
        enter(_newness(self.topic, producer.partition, self._reach))
        return producer

    @property
    def partition(self) -> str | None:
        return None if self.producer is None else self.producer.partition

    @property
    def next_offset(self) -> int:
        return 0 if self.producer is None else self.producer.next_offset

    @property
    def stored(self) -> int:
        return 0 if self.producer is None else self.producer.stored

    def flush(self, timeout: float) -> None:
        """Wait until all records are stored. Raises TimedOut."""
        if self.producer is not None:
            self.producer.flush(timeout=timeout)

    def close(self) -> None:
        """Close without waiting for unstored records."""
        if self.producer is not None:
            self.producer.close(timeout=0)


@contextmanager
def _newness(topic: str, partition: str, reach: options.Reach) -> Iterator[None]:
    """Find out meanwhile whether the topic is new beside others of nearly its name; say so in the end."""
    with ThreadPoolExecutor(1, "produce-newness") as looking:
        found = looking.submit(new_beside, topic, partition, reach)
        try:
            yield
        finally:
            others = found.result()
            if others:
                names = " and ".join(map(repr, others))
                say(f"the topic {topic!r} is new; {names} {'is' if len(others) == 1 else 'are'} there already")
