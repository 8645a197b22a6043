"""Sealed topics of the log: what a producer seals, and what a reader makes of batches, with the groups that they have.

Whoever composes this looks at files, asks for the time, and tells people.
"""

from __future__ import annotations

from collections.abc import Callable

from chappe.errors import ProtocolError
from chappe.log.batch import HEADER, Batch, encode_sealed, rebase
from chappe.log.opened import Read, Unread, Why
from chappe.permissions.rules import Group
from chappe.sealing.frames import Span
from chappe.sealing.held import HeldGroups
from chappe.sealing.records import Lacking, Opener, Refused, Sealer
from chappe.sealing.ring import EpochSecret


class RecordSealing:
    """Of one producer, or of one attempt of a task that writes.

    Args:
        partition: What it writes to, where nothing else is said.
        live: Begins a life of the sender, when something is sealed for the first time.
    """

    def __init__(self, held: HeldGroups, partition: str, live: Callable[[], Sealer]) -> None:
        self._held = held
        self._partition = partition
        self._live = live
        self._sealer: Sealer | None = None
        self._checked: dict[str, tuple[int, str]] = {}  # group: what was known then, and why nothing can be sealed
        self._secrets: dict[str, EpochSecret] = {}  # by group, of the epoch to seal in

    def seals(self, topic: str) -> bool:
        """Whether a topic is sealed, as far as is known now."""
        return self._held.group(topic) is not None

    def may_come(self, topic: str) -> bool:
        """Whether it is keys alone that are missing, or too old: others may hand on newer ones."""
        group = self._held.group(topic)
        return group is not None and self._held.belongs(group)

    def check(self, topic: str) -> str:
        """Why records of a topic must be sealed, and cannot be; empty if they can, or need not.

        Those that are taken after this are sealed in the epoch that is the newest now.
        """
        group = self._held.group(topic)
        if group is None:
            return ""
        known = self._checked.get(group.name)
        if known is None or known[0] != self._held.changes:
            known = self._checked[group.name] = self._held.changes, self._look(group)
        return f"{group.name}, and nothing was sent: {known[1]}" if known[1] else ""

    def seal(self, topic: str, body: bytes, now_us: int, partition: str = "", place: int | None = None) -> bytes:
        """A batch as it is to be published: in the epoch of the last ``check``.

        Args:
            now_us: The time in microseconds since 1970 UTC.
            partition: If it is not that of the producer.
            place: In the partition, if a store gives offsets later; greater than all before it there.
        """
        group = self._held.group(topic)
        secret = None if group is None else self._secrets.get(group.name)
        if secret is None or self._sealer is None:
            return body
        _, _, _, base, count, _, low, high = HEADER.unpack_from(body)
        span = Span(base, count, low, high)
        sealed = self._sealer.seal(secret, topic, partition or self._partition, span, body, now_us, place)
        return encode_sealed(base, count, low, high, *sealed)

    def _look(self, group: Group) -> str:
        refusal = self._held.refusal(group)
        ring = self._held.ring(group.name)
        secret = None if ring is None or refusal else ring.newest
        if secret is not None:
            self._sealer = self._sealer or self._live()
            self._secrets[group.name] = secret
        return refusal


class RecordOpening:
    """Opens the batches of one reader, those of each partition in the order of their offsets."""

    def __init__(self, held: HeldGroups) -> None:
        self._held = held
        self._opener = Opener()

    def open(self, topic: str, partition: str, batch: Batch) -> Read | Unread:
        """What can be read of a batch."""
        held, sealed = self._held, batch.sealed
        group = held.group(topic)
        if group is None:
            if sealed is None:
                return Read(batch)
            return Unread(Why.NO_KEYS_YET, "the permissions here do not say for whom")
        if sealed is None:
            return Unread(Why.WRONG, f"they are not sealed for {group.name}, as the topic is")
        if not held.within(group):
            return Unread(Why.NOT_OURS, f"{held.name} is not of the group {group.name}")
        return self._open(topic, partition, batch, sealed, group)

    def _open(self, topic: str, partition: str, batch: Batch, sealed: memoryview, group: Group) -> Read | Unread:
        held = self._held
        ring = held.ring(group.name)
        if ring is None:
            return Unread(Why.NO_KEYS_YET, f"{held.where(group.name)} is not there, or not usable")
        span = Span(batch.base, batch.count, batch.timestamp_min, batch.timestamp_max)
        outcome = self._opener.open(sealed, topic, partition, span, ring, held.permissions.identities)
        if isinstance(outcome, Refused):
            return Unread(Why.WRONG, outcome.reason)
        if isinstance(outcome, Lacking):
            path = held.where(group.name)
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
