"""The form of what was sealed, as it stands in a batch behind the header, little endian::

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
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from chappe.defaults import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from chappe.errors import ProtocolError, UsageError
from chappe.permissions.text import NAME_MAX, check_name
from chappe.sealing.primitives import SIGNATURE_BYTES, TAG_BYTES
from chappe.sealing.senders import SealedFrame

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
        """The offset after the last one."""
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
