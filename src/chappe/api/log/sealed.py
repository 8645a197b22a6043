"""Sealed topics as producers and readers have them: with the files of their identity, looked at again as they change.

Of members all with the member's lock held. Without an identity nothing is sealed, and what is sealed cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from chappe.api.log.consumed_batch import ConsumedBatch
from chappe.errors import ProtocolError, Sealed
from chappe.log.batch import HEADER, Batch, encode_sealed, rebase
from chappe.log.events import RecordsRefused
from chappe.runtime.log_node import wall_us
from chappe.security import Keys, LogSecurity, sealed_file
from chappe.system import time
from chappe.transports.gate import keys_of

if TYPE_CHECKING:
    from chappe.permissions.rules import Group
    from chappe.sealing.records import Sealer
    from chappe.sealing.ring import EpochSecret
    from chappe.storage.sealed_files import SealedGroups

KEYS_WAIT_S: Final = 30.0  # so long records whose keys are not there yet are held back; then the reader is told
TELL_S: Final = 1.0  # between two events about what was refused
TOLD_MAX: Final = 10_000  # topics of which a reader was told that it cannot read them


class Sealing:
    """Of one producer, or of one attempt of a task that writes."""

    def __init__(self, keys: Keys, partition: str) -> None:
        from chappe.storage.sealed_files import SealedGroups

        self._groups = SealedGroups(keys)
        self._sealer: Sealer | None = None
        self._partition = partition
        self._checked: dict[str, tuple[int, str]] = {}  # group: what was known then, and why nothing can be sealed
        self._secrets: dict[str, EpochSecret] = {}  # by group, of the epoch to seal in
        self.took_s = 0.0  # how long the last batch took to be sealed

    def seals(self, topic: str) -> bool:
        """Whether a topic is sealed, as far as is known now."""
        return self._groups.group(topic) is not None

    def check(self, topic: str) -> None:
        """Raise Sealed if records of a topic must be sealed, and cannot be."""
        self._groups.look(time.monotonic())
        group = self._groups.group(topic)
        if group is None:
            return
        known = self._checked.get(group.name)
        if known is None or known[0] != self._groups.changes:
            known = self._checked[group.name] = self._groups.changes, self._look(group)
        if known[1]:
            raise Sealed(f"topic {topic!r} is sealed for {group.name}, and nothing was sent: {known[1]}")

    def may_come(self, topic: str) -> bool:
        """Whether it is the file of keys alone that is missing, or too old: others may hand on a newer one."""
        group = self._groups.group(topic)
        return group is not None and self._groups.belongs(group)

    def seal(self, topic: str, body: bytes, partition: str = "", place: int | None = None) -> bytes:
        """A batch as it is to be published: in the epoch of the last ``check``, as its records were taken then.

        Args:
            partition: If it is not that of the producer.
            place: In the partition, if a store gives offsets later; greater than all before it there.
        """
        group = self._groups.group(topic)
        secret = None if group is None else self._secrets.get(group.name)
        if secret is None or self._sealer is None:
            return body
        from chappe.sealing.frames import Span

        _, _, _, base, count, _, low, high = HEADER.unpack_from(body)
        span = Span(base, count, low, high)
        began = time.monotonic()
        sealed = self._sealer.seal(secret, topic, partition or self._partition, span, body, wall_us(), place)
        self.took_s = time.monotonic() - began
        return encode_sealed(base, count, low, high, *sealed)

    def _look(self, group: Group) -> str:
        refusal = self._groups.refusal(group)
        ring = self._groups.ring(group.name)
        secret = None if ring is None or refusal else ring.newest
        if secret is not None:
            self._sealer = self._sealer or self._groups.sealer()
            self._secrets[group.name] = secret
        return refusal


class Why(Enum):
    """Why records cannot be read."""

    WRONG = 0  # they are not what they say to be, or not for us: they never can be
    NOT_OURS = 1  # nobody of the group is here
    NO_KEYS_YET = 2  # other files may have their keys


@dataclass(frozen=True, slots=True)
class Unread:
    """Records that cannot be read."""

    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class Read:
    """Records that can be; ``sender`` is None where the topic is plain."""

    batch: Batch
    sender: str | None = None


class Reader:
    """Opens the batches of one reader, those of each partition in the order of their offsets."""

    def __init__(self, keys: Keys | None) -> None:
        self._groups: SealedGroups | None = None
        if keys is not None:
            from chappe.sealing.records import Opener
            from chappe.storage.sealed_files import SealedGroups

            self._groups = SealedGroups(keys)
            self._opener = Opener()

    def seals(self, topic: str) -> bool:
        """Whether a topic is sealed for a group, as far as is known here."""
        if self._groups is None:
            return False
        self._groups.look(time.monotonic())
        return self._groups.group(topic) is not None

    def open(self, topic: str, partition: str, batch: Batch) -> Read | Unread:
        """What can be read of a batch."""
        groups, sealed = self._groups, batch.sealed
        if groups is None:
            return Read(batch) if sealed is None else Unread(Why.NOT_OURS, "this program has no identity")
        groups.look(time.monotonic())
        group = groups.group(topic)
        if group is None:
            if sealed is None:
                return Read(batch)
            return Unread(Why.NO_KEYS_YET, "the permissions here do not say for whom")
        if sealed is None:
            return Unread(Why.WRONG, f"they are not sealed for {group.name}, as the topic is")
        who = groups.permissions.identities.get(groups.name)
        if who is None or not group.has(who):
            return Unread(Why.NOT_OURS, f"{groups.name} is not of the group {group.name}")
        return self._open(topic, partition, batch, sealed, groups, group)

    def _open(
        self, topic: str, partition: str, batch: Batch, sealed: memoryview, groups: SealedGroups, group: Group
    ) -> Read | Unread:
        from chappe.sealing.frames import Span
        from chappe.sealing.records import Lacking, Refused

        ring = groups.ring(group.name)
        if ring is None:
            path = sealed_file(groups.keys.directory, group.name)
            return Unread(Why.NO_KEYS_YET, f"{path} is not there, or not usable")
        span = Span(batch.base, batch.count, batch.timestamp_min, batch.timestamp_max)
        outcome = self._opener.open(sealed, topic, partition, span, ring, groups.permissions.identities)
        if isinstance(outcome, Refused):
            return Unread(Why.WRONG, outcome.reason)
        if isinstance(outcome, Lacking):
            path = sealed_file(groups.keys.directory, group.name)
            return Unread(Why.NO_KEYS_YET, f"{outcome.reason}: no newer {path} has been handed on, or copied here")
        try:
            content = rebase(outcome.content, outcome.span.base) if outcome.placed_later else outcome.content
            plain = Batch.parse(content, check=False)  # of its bytes each was authenticated
            plain.check_order()
            whole = Span(plain.base, plain.count, plain.timestamp_min, plain.timestamp_max)
            if whole != outcome.span or plain.sealed is not None:
                raise ProtocolError("it has other records than it says")
            if plain.count != batch.count:
                plain = Batch.parse(plain.slice(batch.base, batch.next), check=False)
        except ProtocolError as error:
            return Unread(Why.WRONG, f"what {outcome.sender} sealed is malformed: {error}")
        return Read(plain, outcome.sender)


def reader_here(security: LogSecurity = None) -> Reader:
    """Of who reads in bulk, by default as the identity that the environment names, if it does."""
    return Reader(keys_of(security))


def sealing_here(security: LogSecurity = None) -> Sealing | None:
    """Of who writes partitions that he names; None for who has no identity."""
    keys = keys_of(security)
    return None if keys is None else Sealing(keys, "")


class Waiting(Enum):
    """Its keys may come yet."""

    FOR_KEYS = 0


_Opened: TypeAlias = ConsumedBatch | Literal[Waiting.FOR_KEYS] | None


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

    def tell(self) -> None:
        """Report what was refused and not told yet."""
        untold, self._untold = self._untold, None
        if untold is not None:
            self._tell_at = time.monotonic() + TELL_S
            self._report(untold)

    def _unread(self, found: ConsumedBatch, outcome: Unread) -> _Opened:
        key = found.topic, found.partition
        if outcome.why is Why.NO_KEYS_YET:
            now = time.monotonic()
            if now - self._waits.setdefault(key, now) < KEYS_WAIT_S:
                return Waiting.FOR_KEYS
            self._waits[key] = now
            raise Sealed(f"topic {found.topic!r} is sealed, and cannot be read yet: {outcome.reason}")
        if outcome.why is Why.NOT_OURS and found.topic not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(found.topic)
            raise Sealed(f"topic {found.topic!r} is sealed, and cannot be read: {outcome.reason}")
        self._waits.pop(key, None)
        self.refused += len(found)
        count = len(found) + (0 if self._untold is None else self._untold.count)
        self._untold = RecordsRefused(found.topic, found.partition, found.first, found.next - 1, count, outcome.reason)
        if time.monotonic() >= self._tell_at:
            self.tell()
        return None
