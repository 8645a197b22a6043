"""Reading to the end: the steps of it, for those who wait in a thread and for those who wait in an event loop."""

from __future__ import annotations

import math
from typing import Final, Protocol

from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.errors import TimedOut
from chappe.log.sources import Key
from chappe.system import time

LOOK_S: Final = 0.05  # how often those who wait look for what no record tells
RECHECK_S: Final = 0.25  # how often, while records come, it is looked whether something will never come


class Reader(Protocol):
    """The part of ``Consumer`` that knows of the end."""

    def take(self) -> ConsumedBatch | None:
        """See ``Consumer.take``."""

    def ask_for_end(self) -> None:
        """See ``Consumer.ask_for_end``."""

    def end_known(self, since: float) -> bool:
        """See ``Consumer.end_known``."""

    def has_come(self) -> bool:
        """See ``Consumer.has_come``."""

    def unread(self, since: float, now: float) -> dict[Key, int] | None:
        """See ``Consumer.unread``."""

    def still_unread(self, left: dict[Key, int]) -> dict[Key, int]:
        """See ``Consumer.still_unread``."""

    def missing(self, when: str) -> str:
        """See ``Consumer.missing``."""


class ToEnd:
    """One reading to the end, as it is when this is made. Nothing here waits.

    Args:
        consumer: Who reads.
        timeout: Seconds that the end may take to be known, and each batch after that to come; None: for ever.
    """

    def __init__(self, consumer: Reader, timeout: float | None) -> None:
        self._consumer = consumer
        self._timeout = math.inf if timeout is None else timeout
        self._since = time.monotonic()
        self._deadline: float | None = self._since + self._timeout  # None: nobody has waited since the last batch
        self._recheck_at = self._since + RECHECK_S
        self._left: dict[Key, int] | None = None  # where partitions end that were not read so far
        consumer.ask_for_end()

    @property
    def done(self) -> bool:
        """Whether everything up to the end was taken."""
        return self._left is not None and not self._left

    def may_go_on(self) -> bool:
        """Whether ``take`` may have something to tell by now."""
        if self._left is None:
            return self._consumer.end_known(self._since)
        return self._consumer.has_come()

    def take(self) -> ConsumedBatch | None:
        """The next batch, or None: look whether it is ``done``, or wait a little.

        Raises:
            TimedOut: Nothing happened for ``timeout`` seconds.
            OffsetOutOfRange, Closed, MemberStopped: As ``Consumer.poll``.
        """
        now = time.monotonic()
        consumer = self._consumer
        if self._left is None:
            self._left = consumer.unread(self._since, now)
            if self._left is None:
                if self._waited(now):
                    raise TimedOut(consumer.missing(f"within {self._timeout:g} s"))
                return None
            self._deadline = None
        if not self._left:
            return None
        batch = consumer.take()
        if batch is not None:
            self._deadline = None
            if self._left.get((batch.topic, batch.partition), math.inf) <= batch.next:
                del self._left[batch.topic, batch.partition]
        if batch is None or now >= self._recheck_at:
            self._recheck_at = now + RECHECK_S
            self._left = consumer.still_unread(self._left)
            if batch is None and self._left and self._waited(now):
                count = len(self._left)
                topic, partition = next(iter(self._left))
                raise TimedOut(
                    f"{'a partition' if count == 1 else f'{count} partitions'} did not come to the end: for "
                    f"{self._timeout:g} s nothing came of partition {partition} of topic {topic!r}, which ends at "
                    f"offset {self._left[topic, partition] - 1}; who may wait longer gives a timeout, or None"
                )
        return batch

    def _waited(self, now: float) -> bool:
        """Whether somebody waited for the whole timeout; the time that a program takes for a batch does not count."""
        if self._deadline is None:
            self._deadline = now + self._timeout
        return now >= self._deadline
