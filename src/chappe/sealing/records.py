"""Sealing and opening batches of records.

What is opened is what was sealed, by who is named, for this topic, partition and offsets, in this epoch. In a partition
offsets come in order, and with them epochs and, within a life, numbers; a partition has one sender. So replay, another
order, and what was cut out and put elsewhere are noticed. What is withheld is noticed as missing offsets are.

A writer without offsets yet seals for a *place* instead, which grows within a partition. Several lives may write one
such partition, and some of them have the next epoch before others have it; so there places alone are to come in order.

The form of what was sealed, as it stands in a batch behind the header, little endian::

    version 1 or 2, bytes of the group, bytes of the sender, 0     4 x u8
    epoch                                                          u32
    number: how many its sender sealed before with this salt       u64
    sealed at, microseconds since 1970 UTC                         i64
    base offset of the records; in version 2 their place           u64
    count of the records, bytes of the content                     2 x u32
    smallest, largest timestamp of the records                     2 x i64
    salt: random, of one life of the sender                        16 bytes
    version 2 alone: base offset, which a store writes             u64
    group, sender                                                  UTF-8
    signature of the sender                                        64 bytes
    content: a batch, encrypted, and 16 bytes that show a change
    zeros up to a multiple of eight bytes

All before the signature, with topic and partition, is bound to the content by its encryption, and signed with a digest
of the content. So nothing of it can be put anywhere else, by members of the group neither.

Version 2 is for who does not know offsets when it seals, as tasks of Spark: the store that commits what they staged
gives them. What is sealed has a place instead, which grows within a partition; the offset stands there for all to see,
and is not bound to anything.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from chappe.data.topic import encode_topic
from chappe.defaults import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.permissions.rules import Identity
from chappe.permissions.text import NAME_MAX, check_name
from chappe.sealing.primitives import SIGNATURE_BYTES, TAG_BYTES
from chappe.sealing.ring import EpochSecret, Ring
from chappe.sealing.senders import (
    KeysLacking,
    Purpose,
    SealChecks,
    SealedFrame,
    SealRefused,
    SenderLife,
    bound_to,
    keep_newest,
)

VERSION: Final = 1
PLACED_LATER: Final = 2
HEAD: Final = struct.Struct("<BBBBIQqQIIqq16s")
_OFFSET: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Which records: offsets from ``base`` on, and between which times."""

    base: int
    count: int
    low: int
    high: int

    @property
    def next(self) -> int:
        return self.base + self.count


@dataclass(frozen=True, slots=True)
class RecordFrame(SealedFrame):
    """Records as they were sealed; ``place`` is None where offsets are."""

    content: memoryview
    span: RecordSpan
    place: int | None


def encode_head(
    group: str,
    sender: str,
    epoch: int,
    number: int,
    sealed_at: int,
    span: RecordSpan,
    salt: bytes,
    size: int,
    place: int | None = None,
) -> bytes:
    """Encode the bound part; ``size`` is that of the encrypted content. With a ``place`` offsets are given later."""
    names = group.encode(), sender.encode()
    lengths = [len(each) for each in names]
    where = span.base if place is None else place
    fixed = (epoch, number, sealed_at, where, span.count, size, span.low, span.high, salt)
    return HEAD.pack(VERSION if place is None else PLACED_LATER, *lengths, 0, *fixed) + b"".join(names)


def encode(head: bytes, signature: bytes, content: bytes) -> tuple[bytes, ...]:
    """The whole, in parts: who puts something before it copies it once."""
    size = len(head) + len(signature) + len(content)
    if head[0] == PLACED_LATER:
        head = head[: HEAD.size] + bytes(_OFFSET.size) + head[HEAD.size :]
    return head, signature, content, bytes(-size % 8)


def decode(raw: bytes | memoryview) -> RecordFrame:
    """Decode bytes that may come from anybody. Raises ProtocolError."""
    view = memoryview(raw)
    if not HEAD.size <= len(view) <= BATCH_BYTES_MAX:
        raise ProtocolError(f"a sealed batch of {len(view)} bytes")
    found = HEAD.unpack_from(view)
    version, group_size, sender_size, zero, epoch, number, sealed_at, base, count, size, low, high, salt = found
    if version not in (VERSION, PLACED_LATER) or zero:
        raise ProtocolError("a sealed batch of a newer version")
    names, place = HEAD.size, None
    if version == PLACED_LATER:
        names += _OFFSET.size
        if len(view) < names:
            raise ProtocolError("a sealed batch whose parts do not fill it")
        place, (base,) = base, _OFFSET.unpack_from(view, HEAD.size)
    at = names + group_size + sender_size
    begin = at + SIGNATURE_BYTES
    end = begin + size
    fits = end <= len(view) == end + -end % 8 and not any(view[end:])
    if not (fits and 0 < group_size <= NAME_MAX and 0 < sender_size <= NAME_MAX and size > TAG_BYTES):
        raise ProtocolError("a sealed batch whose parts do not fill it")
    if not 0 < count <= BATCH_RECORDS_MAX or base + count >= 1 << 63 or low > high:
        raise ProtocolError("a sealed batch whose header is wrong")
    group, sender = _name(bytes(view[names : names + group_size])), _name(bytes(view[names + group_size : at]))
    span = RecordSpan(base, count, low, high)
    head = bytes(view[: HEAD.size]) + bytes(view[names:at])
    signed = head, bytes(view[at:begin]), view[begin:end]
    return RecordFrame(group, sender, epoch, number, sealed_at, salt, *signed, span, place)


@lru_cache(1024)
def _name(raw: bytes) -> str:
    try:
        return check_name(raw.decode())
    except (UnicodeDecodeError, UsageError):
        raise ProtocolError("a sealed batch whose names are none") from None


RECORDS: Final = Purpose(b"chappe sealed sender 1", b"chappe sealed records 1\n", "this topic and these offsets")


@dataclass(frozen=True, slots=True)
class OpenedRecords:
    content: bytes
    sender: str
    span: RecordSpan
    placed_later: bool = False  # then the offsets in it are none yet


Outcome: TypeAlias = OpenedRecords | SealRefused | KeysLacking


class Sealer(SenderLife):
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
