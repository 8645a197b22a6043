"""Sealed topics of the log: what a producer seals, and what a reader makes of batches, with the groups that they have.

The owner looks at files, asks for the time, and tells people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chappe.errors import ProtocolError
from chappe.log.batch import HEADER, Batch, encode_sealed, rebase
from chappe.log.opened import OpenedRead, Unread, UnreadWhy
from chappe.log.sources import Key
from chappe.permissions.rules import Group
from chappe.sealing.records import Opener, RecordSpan, Sealer, decode
from chappe.sealing.ring import EpochSecret, HeldGroups
from chappe.sealing.senders import KeysLacking, SealRefused

PASSED_MAX: Final = 10_000  # partitions of which it is known from where they would be read again ...
PASSED_EPOCHS_MAX: Final = 16  # ... in the newest of the epochs that were passed over


class RecordSealing:
    """Seals the records of one producer, or of one attempt of a task that writes.

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
        return self._held.group(topic) is not None

    def may_come(self, topic: str) -> bool:
        """True if it is keys alone that are missing, or too old: others may hand on newer ones."""
        group = self._held.group(topic)
        return group is not None and self._held.within(group)

    def check(self, topic: str) -> str:
        """The reason why records of a topic must be sealed, and cannot be; empty if they can, or need not.

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
        span = RecordSpan(base, count, low, high)
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
        self._passed: dict[Key, tuple[str, dict[int, int]]] = {}  # partition: group, and by epoch where it begins
        self._seen = held.changes  # of what is held, when it was looked at what was passed over

    def open(self, topic: str, partition: str, batch: Batch) -> OpenedRead | Unread:
        """Open a batch, as far as it can be read."""
        held, sealed = self._held, batch.sealed
        group = held.group(topic)
        if group is None:
            if sealed is None:
                return OpenedRead(batch)
            return Unread(UnreadWhy.NO_KEYS_YET, "the permissions here do not say for whom")
        if sealed is None:
            return Unread(UnreadWhy.WRONG, f"they are not sealed for {group.name}, as the topic is")
        if not held.within(group):
            return Unread(UnreadWhy.NOT_OURS, f"{held.name} is not of the group {group.name}")
        if self._passed and (topic, partition) in self._passed and self._begin((topic, partition)) is not None:
            return Unread(UnreadWhy.NO_KEYS_YET, "what comes before, and was passed over, is read again first")
        return self._open(topic, partition, batch, sealed, group)

    def pass_over(self, topic: str, partition: str, batch: Batch, start: int) -> None:
        """A reader that is not of the group goes on behind a batch, of which it was to have all from ``start`` on.

        It may be a member by newer files than its own: should these come, ``again`` tells what is to be read again.
        """
        key = topic, partition
        if batch.sealed is None or (key not in self._passed and len(self._passed) >= PASSED_MAX):
            return
        try:
            frame = decode(batch.sealed)
        except ProtocolError:
            return
        group, begins = self._passed.setdefault(key, (frame.group, {}))
        if frame.group == group:
            begins.setdefault(frame.epoch, start)
            if len(begins) > PASSED_EPOCHS_MAX:
                del begins[min(begins)]

    @property
    def passed(self) -> bool:
        """True if something was passed over that may be for this reader after all."""
        return bool(self._passed)

    def again(self) -> list[tuple[str, str, int]]:
        """Topic, partition and offset of what was passed over and can be opened by now: it is to be read again."""
        if not self._passed or self._seen == self._held.changes:
            return []
        self._seen = self._held.changes
        found = [(*key, self._begin(key)) for key in self._passed]
        for topic, partition, offset in found:
            if offset is not None:
                del self._passed[topic, partition]
        return [(topic, partition, offset) for topic, partition, offset in found if offset is not None]

    def _begin(self, key: Key) -> int | None:
        """The first record that was passed over and can be opened now; None if there is none."""
        name, begins = self._passed[key]
        group, ring = self._held.group(key[0]), self._held.ring(name)
        if group is None or group.name != name or ring is None or not self._held.within(group):
            return None
        return min((offset for epoch, offset in begins.items() if ring.secret(epoch) is not None), default=None)

    def _open(self, topic: str, partition: str, batch: Batch, sealed: memoryview, group: Group) -> OpenedRead | Unread:
        held = self._held
        ring = held.ring(group.name)
        if ring is None:
            return Unread(UnreadWhy.NO_KEYS_YET, f"{held.where(group.name)} is not there, or not usable")
        span = RecordSpan(batch.base, batch.count, batch.timestamp_min, batch.timestamp_max)
        outcome = self._opener.open(sealed, topic, partition, span, ring, held.permissions.identities)
        if isinstance(outcome, SealRefused):
            return Unread(UnreadWhy.WRONG, outcome.reason)
        if isinstance(outcome, KeysLacking):
            path = held.where(group.name)
            return Unread(
                UnreadWhy.NO_KEYS_YET, f"{outcome.reason}: no newer {path} has been handed on, or copied here"
            )
        try:
            content = rebase(outcome.content, outcome.span.base) if outcome.placed_later else outcome.content
            plain = Batch.parse(content, check=False)  # of its bytes each was authenticated
            plain.check_order()
            whole = RecordSpan(plain.base, plain.count, plain.timestamp_min, plain.timestamp_max)
            if whole != outcome.span or plain.sealed is not None:
                raise ProtocolError("it has other records than it says")
            if plain.count != batch.count:
                plain = Batch.parse(plain.slice(batch.base, batch.next), check=False)
        except ProtocolError as error:
            return Unread(UnreadWhy.WRONG, f"what {outcome.sender} sealed is malformed: {error}")
        if self._passed:
            self._passed.pop((topic, partition), None)  # what comes before is not read again, whoever gives its keys
        return OpenedRead(plain, outcome.sender)
