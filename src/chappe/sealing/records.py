"""Sealing and opening batches of records.

What is opened is what was sealed, by who is named, for this topic, partition and offsets, in this epoch. In a partition
offsets come in order, and with them epochs and, within a life, numbers; a partition has one sender. So replay, another
order, and what was cut out and put elsewhere are noticed. What is withheld is noticed as missing offsets are.

Who does not know offsets yet seals for a *place* instead, which grows within a partition. Several lives may write one
such partition, and some of them have the next epoch before others have it; so there places alone are to come in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from chappe.data.topic import encode_topic
from chappe.errors import ProtocolError
from chappe.permissions.rules import Identity
from chappe.sealing.frames import RecordFrame, RecordSpan, decode, encode, encode_head
from chappe.sealing.primitives import TAG_BYTES
from chappe.sealing.ring import EpochSecret, Ring
from chappe.sealing.senders import KeysLacking, Purpose, SealChecks, SealRefused, SenderLife, bound_to, keep_newest

RECORDS: Final = Purpose(b"chappe sealed sender 1", b"chappe sealed records 1\n", "this topic and these offsets")


@dataclass(frozen=True, slots=True)
class OpenedRecords:
    """The content of a sealed batch, and its sender."""

    content: bytes
    sender: str
    span: RecordSpan
    placed_later: bool = False  # then the offsets in it are none yet


Outcome: TypeAlias = OpenedRecords | SealRefused | KeysLacking


class Sealer(SenderLife):
    """Seals batches of records."""

    purpose = RECORDS

    def seal(
        self,
        secret: EpochSecret,
        topic: str,
        partition: str,
        span: RecordSpan,
        text: bytes,
        sealed_at: int,
        place: int | None = None,
    ) -> tuple[bytes, ...]:
        """A batch of records, sealed, in parts.

        Args:
            sealed_at: The time in microseconds since 1970 UTC.
            place: In the partition, if offsets are given later.
        """
        number, cipher = self._next(secret)
        size = len(text) + TAG_BYTES
        head = encode_head(secret.group, self.sender, secret.number, number, sealed_at, span, self.salt, size, place)
        bound = bound_to(_place(topic, partition), head)
        content = cipher.seal(number, text, bound)
        return encode(head, self._signature(bound, content), content)


@dataclass(slots=True)
class _PartitionEnd:
    """The end of the opened part of a partition."""

    sender: str
    span: RecordSpan
    epoch: int
    place: int | None
    salt: bytes
    number: int


class Opener:
    """Opens what comes of all partitions, each in the order of its offsets."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _PartitionEnd] = {}
        self._checks = SealChecks(RECORDS)

    def open(
        self,
        raw: bytes | memoryview,
        topic: str,
        partition: str,
        span: RecordSpan,
        ring: Ring,
        identities: Mapping[str, Identity],
    ) -> Outcome:
        """Open a batch.

        Args:
            raw: As ``frames`` describes it.
            span: Which records it is said to be; all that were sealed together, or some of them.
            ring: Of the group that may write the topic.
            identities: Those in the permissions.
        """
        try:
            frame = decode(raw)
        except ProtocolError as error:
            return SealRefused(str(error))
        refusal = _misplaced(frame, span, ring)
        if refusal:
            return SealRefused(refusal)
        text = self._checks.open(frame, _place(topic, partition), ring, identities)
        if not isinstance(text, bytes):
            return text
        refusal = self._disordered(frame, topic, partition)
        return (
            SealRefused(refusal) if refusal else OpenedRecords(text, frame.sender, frame.span, frame.place is not None)
        )

    def _disordered(self, frame: RecordFrame, topic: str, partition: str) -> str:
        """The reason why this cannot come after the records before it; else it is remembered."""
        place = self._places.pop((topic, partition), None)
        if place is not None:
            self._places[topic, partition] = place
            if place.sender != frame.sender:
                return f"they are of {frame.sender}, and the partition is of {place.sender}"
            later = frame.span.base >= place.span.next
            if frame.place is not None or place.place is not None:
                return self._displaced(frame, place, later, (topic, partition))
            if later and frame.epoch < place.epoch:
                return f"they are sealed in epoch {frame.epoch}, after records of epoch {place.epoch}"
            if later and frame.salt == place.salt and frame.number <= place.number:
                return f"they were sealed before those that they follow, by {frame.sender}"
        self._remember(frame, (topic, partition))
        return ""

    def _displaced(self, frame: RecordFrame, place: _PartitionEnd, later: bool, key: tuple[str, str]) -> str:
        """The same where offsets were given later."""
        if frame.place is None or place.place is None:
            return "they were sealed in another way than others of the partition"
        again = frame.span == place.span
        if (frame.place == place.place) != again or (frame.place > place.place) != (later and not again):
            return f"they were sealed for another place among those of {frame.sender}"
        self._remember(frame, key)
        return ""

    def _remember(self, frame: RecordFrame, key: tuple[str, str]) -> None:
        self._places[key] = _PartitionEnd(frame.sender, frame.span, frame.epoch, frame.place, frame.salt, frame.number)
        keep_newest(self._places)


def _place(topic: str, partition: str) -> tuple[bytes, bytes]:
    return encode_topic(topic), encode_topic(partition)


def _misplaced(frame: RecordFrame, span: RecordSpan, ring: Ring) -> str:
    sealed = frame.span
    if frame.group != ring.keys.group:
        return f"they are sealed for {frame.group}, and the topic is of {ring.keys.group}"
    within = sealed.base <= span.base and span.next <= sealed.next and span.count > 0
    if not within or (span.low, span.high) != (sealed.low, sealed.high):
        return f"they are said to be other records than {sealed.base} to {sealed.next - 1}, which were sealed"
    return ""
