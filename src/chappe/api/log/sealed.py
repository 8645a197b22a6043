"""Sealed topics at producers and readers: with the files of their identity, read again as they change.

Objects of members are used with the member's lock held. Without an identity nothing is sealed, and sealed records
cannot be read.
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
    """Seals records of one producer, or of one attempt of a task that writes.

    ``asks`` says that towers or forwarders will name the keys that exist.
    """

    def __init__(self, keys: Keys, partition: str, *, asks: bool = False) -> None:
        from chappe.sealing.in_log import RecordSealing
        from chappe.storage.sealed_files import SealedGroups

        self._files = SealedGroups(keys, asks=asks)
        self._core = RecordSealing(self._files.held, partition, self._files.sealer)
        self.seals = self._core.seals
        self.may_come = self._core.may_come
        self.took_s = 0.0  # the sealing of the last batch took this long

    def check(self, topic: str) -> None:
        """Raise Sealed if records of a topic must be sealed, and cannot be."""
        self._files.look(time.monotonic())
        refusal = self._core.check(topic)
        if refusal:
            raise Sealed(f"topic {topic!r} is sealed for {refusal}")

    def seal(self, topic: str, body: bytes, partition: str = "", place: int | None = None) -> bytes:
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
        """True if a topic is sealed for a group, as far as is known here."""
        if self._files is None:
            return False
        self._files.look(time.monotonic())
        return self._files.held.group(topic) is not None

    def open(self, topic: str, partition: str, batch: Batch) -> OpenedRead | Unread:
        if self._files is None:
            return (
                OpenedRead(batch)
                if batch.sealed is None
                else Unread(UnreadWhy.NOT_OURS, "this program has no identity")
            )
        self._files.look(time.monotonic())
        return self._core.open(topic, partition, batch)

    def pass_over(self, topic: str, partition: str, batch: Batch, start: int) -> None:
        if self._files is not None:
            self._core.pass_over(topic, partition, batch, start)

    @property
    def passed(self) -> bool:
        return self._files is not None and self._core.passed

    def again(self) -> list[tuple[str, str, int]]:
        if self._files is None or not self._core.passed:
            return []
        self._files.look(time.monotonic())
        return self._core.again()


def reader_here(security: LogSecurity = None) -> Reader:
    """Return a reader in bulk, by default with the identity of the environment, if any."""
    return Reader(keys_of(security))


def sealing_here(security: LogSecurity = None) -> Sealing | None:
    """Return the sealing of a writer that names its partitions; None without an identity."""
    keys = keys_of(security)
    return None if keys is None else Sealing(keys, "")


class KeyWait(Enum):
    """The answer for a batch whose keys may still come."""

    FOR_KEYS = 0


_Opened: TypeAlias = ConsumedBatch | Literal[KeyWait.FOR_KEYS] | None


class Opening:
    """Opens the batches of one consumer; ``refused`` counts records that could not be opened."""

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
        """Open a batch; None if it is refused.

        Raises:
            Sealed: We have no keys for it. Raised once for each topic, whose records are refused from then on; and
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
        """True if records were left out that may be for us after all, once our files say so."""
        return self._reader.passed

    def tell(self) -> None:
        """Report refused records that were not reported yet."""
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
