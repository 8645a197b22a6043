"""Sealed topics as producers and readers have them: with the files of their identity, looked at again as they change.

Of members all with the member's lock held. Without an identity nothing is sealed, and what is sealed cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.errors import Sealed
from chappe.log.batch import Batch
from chappe.log.events import RecordsRefused
from chappe.log.opened import OpenedRead, Unread, UnreadWhy
from chappe.security import Keys, LogSecurity
from chappe.system import time
from chappe.transports.gate import keys_of

if TYPE_CHECKING:
    from chappe.storage.sealed_files import SealedGroups

__all__ = [
    "KeyWait",
    "OpenedRead",
    "Opening",
    "Reader",
    "Sealing",
    "Unread",
    "UnreadWhy",
    "reader_here",
    "sealing_here",
]

KEYS_WAIT_S: Final = 30.0  # so long records whose keys are not there yet are held back; then the reader is told
TELL_S: Final = 1.0  # between two events about what was refused
TOLD_MAX: Final = 10_000  # topics of which a reader was told that it cannot read them


class Sealing:
    """Of one producer, or of one attempt of a task that writes.

    Args:
        asks: Whether towers or forwarders will say which keys there are.
    """

    def __init__(self, keys: Keys, partition: str, *, asks: bool = False) -> None:
        from chappe.sealing.in_log import RecordSealing
        from chappe.storage.sealed_files import SealedGroups

        self._files = SealedGroups(keys, asks=asks)
        self._core = RecordSealing(self._files.held, partition, self._files.sealer)
        self.seals = self._core.seals
        self.may_come = self._core.may_come
        self.took_s = 0.0  # how long the last batch took to be sealed

    def check(self, topic: str) -> None:
        """Raise Sealed if records of a topic must be sealed, and cannot be."""
        self._files.look(time.monotonic())
        refusal = self._core.check(topic)
        if refusal:
            raise Sealed(f"topic {topic!r} is sealed for {refusal}")

    def seal(self, topic: str, body: bytes, partition: str = "", place: int | None = None) -> bytes:
        """See ``RecordSealing.seal``."""
        began = time.monotonic()
        sealed = self._core.seal(topic, body, time.time_ns() // 1000, partition, place)
        if sealed is not body:
            self.took_s = time.monotonic() - began
        return sealed


class Reader:
    """Opens the batches of one reader, those of each partition in the order of their offsets."""

    def __init__(self, keys: Keys | None) -> None:
        self._files: SealedGroups | None = None
        if keys is not None:
            from chappe.sealing.in_log import RecordOpening
            from chappe.storage.sealed_files import SealedGroups

            self._files = SealedGroups(keys)
            self._core = RecordOpening(self._files.held)

    def seals(self, topic: str) -> bool:
        """Whether a topic is sealed for a group, as far as is known here."""
        if self._files is None:
            return False
        self._files.look(time.monotonic())
        return self._files.held.group(topic) is not None

    def open(self, topic: str, partition: str, batch: Batch) -> OpenedRead | Unread:
        """What can be read of a batch."""
        if self._files is None:
            return (
                OpenedRead(batch)
                if batch.sealed is None
                else Unread(UnreadWhy.NOT_OURS, "this program has no identity")
            )
        self._files.look(time.monotonic())
        return self._core.open(topic, partition, batch)

    def pass_over(self, topic: str, partition: str, batch: Batch, start: int) -> None:
        """See ``RecordOpening.pass_over``."""
        if self._files is not None:
            self._core.pass_over(topic, partition, batch, start)

    @property
    def passed(self) -> bool:
        """See ``RecordOpening.passed``."""
        return self._files is not None and self._core.passed

    def again(self) -> list[tuple[str, str, int]]:
        """See ``RecordOpening.again``."""
        if self._files is None or not self._core.passed:
            return []
        self._files.look(time.monotonic())
        return self._core.again()


def reader_here(security: LogSecurity = None) -> Reader:
    """Of who reads in bulk, by default as the identity that the environment names, if it does."""
    return Reader(keys_of(security))


def sealing_here(security: LogSecurity = None) -> Sealing | None:
    """Of who writes partitions that he names; None for who has no identity."""
    keys = keys_of(security)
    return None if keys is None else Sealing(keys, "")


class KeyWait(Enum):
    """Its keys may come yet."""

    FOR_KEYS = 0


_Opened: TypeAlias = ConsumedBatch | Literal[KeyWait.FOR_KEYS] | None


class Opening:
    """Of one consumer.

    Args:
        report: Takes events.

    Attributes:
        refused: How many records were not delivered as they could not be opened.
    """

    def __init__(self, keys: Keys | None, report: Callable[[object], None]) -> None:
        self._reader = Reader(keys)
        self._report = report
        self._waits: dict[tuple[str, str], float] = {}  # partition: since when
        self._told: set[str] = set()
        self._tell_at = -math.inf
        self._untold: RecordsRefused | None = None
        self.refused = 0
        self.again = self._reader.again

    def open(self, found: ConsumedBatch) -> _Opened:
        """A batch that can be read; None if it is refused.

        Raises:
            Sealed: Nobody has given us keys for it. Once for each topic, whose records are refused from then on; and
                every ``KEYS_WAIT_S`` for a partition that waits for keys.
        """
        if found.sender is not None:  # it was opened before
            return found
        outcome = self._reader.open(found.topic, found.partition, found.batch)
        if isinstance(outcome, Unread):
            return self._unread(found, outcome)
        if self._waits:
            self._waits.pop((found.topic, found.partition), None)
        if outcome.sender is None:
            return found
        return ConsumedBatch(found.topic, found.partition, outcome.batch, found.first, outcome.sender, found.arrived)

    @property
    def passed(self) -> bool:
        """Whether something was passed over that may be for us after all: other files may say so."""
        return self._reader.passed

    def tell(self) -> None:
        """Report what was refused and not told yet."""
        untold, self._untold = self._untold, None
        if untold is not None:
            self._tell_at = time.monotonic() + TELL_S
            self._report(untold)

    def _unread(self, found: ConsumedBatch, outcome: Unread) -> _Opened:
        key = found.topic, found.partition
        if outcome.why is UnreadWhy.NO_KEYS_YET:
            now = time.monotonic()
            if now - self._waits.setdefault(key, now) < KEYS_WAIT_S:
                return KeyWait.FOR_KEYS
            self._waits[key] = now
            raise Sealed(f"topic {found.topic!r} is sealed, and cannot be read yet: {outcome.reason}")
        if outcome.why is UnreadWhy.NOT_OURS and found.topic not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(found.topic)
            raise Sealed(f"topic {found.topic!r} is sealed, and cannot be read: {outcome.reason}")
        self._waits.pop(key, None)
        if outcome.why is UnreadWhy.NOT_OURS:
            self._reader.pass_over(found.topic, found.partition, found.batch, found.first)
        self.refused += len(found)
        count = len(found) + (0 if self._untold is None else self._untold.count)
        self._untold = RecordsRefused(found.topic, found.partition, found.first, found.next - 1, count, outcome.reason)
        if time.monotonic() >= self._tell_at:
            self.tell()
        return None
