"""Questions to a store and its answers: reading in bulk, request by request.

FETCH and DIRECT-RECORD go over publish/subscribe, where a slow reader loses messages; these go over a
DEALER/ROUTER pair, one bounded answer for one request, so a reader takes as fast as it can and no faster.
Used by consumers catching up, by stores healing each other, by Spark and by the command line.

A request is two frames: a request id of eight bytes, then msgpack. The answer is the same id, msgpack, and
for READ one further frame for each batch.

Topics and addresses travel as bytes: an original producer's need not be UTF-8.

Source: chappe's own; the original has nothing like it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.data.topic import decode_topic, encode_topic
from chappe.defaults import HEADS_PAGE, READ_BYTES, TOPIC_BYTES_MAX
from chappe.errors import ProtocolError
from chappe.log.storage import PartitionInfo

# What a message may hold; anything else does not decode.
Name = Annotated[bytes, msgspec.Meta(max_length=TOPIC_BYTES_MAX)]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
OffsetOrNone = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Batches of one partition from ``offset`` on; the first one contains it."""

    topic: Name
    partition: Name
    offset: Number
    bytes_max: Number = READ_BYTES


class HeadsRequest(msgspec.Struct, frozen=True, array_like=True, tag="heads"):
    """Partitions of topics starting with ``topic_prefix`` that changed after ``since``, oldest change first."""

    topic_prefix: Name
    since: Number = 0
    limit: Number = HEADS_PAGE


class SeekRequest(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The first offset whose batch ends at or after ``timestamp`` (microseconds)."""

    topic: Name
    partition: Name
    timestamp: Number


class ReadAnswer(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """What the store has of the partition; the batches follow as frames of their own.

    ``first`` and ``next`` bound what is there; ``known`` is False if it has never seen the partition.
    ``hole_last`` >= 0: the wanted offset up to ``hole_last`` is damaged here.
    """

    topic: Name
    partition: Name
    first: Offset
    next: Offset
    known: bool
    hole_last: OffsetOrNone = -1


class HeadsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="heads"):
    """Partitions, and the version to ask from next; ``more`` when the limit cut the answer."""

    partitions: list[tuple[Name, Name, Offset, Offset, Offset, Number, Number, Offset]]
    version: Offset
    more: bool

    def infos(self) -> list[PartitionInfo]:
        """The partitions as the storage port describes them. Raises ProtocolError for names that cannot be."""
        if any(not t or not p or b"\0" in t or b"\0" in p for t, p, *_ in self.partitions):
            raise ProtocolError("partition without a name, or with NUL in it")
        return [PartitionInfo(decode_topic(t), decode_topic(p), *rest) for t, p, *rest in self.partitions]


class SeekAnswer(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The offset; -1 if the partition is unknown."""

    topic: Name
    partition: Name
    offset: OffsetOrNone


class ErrorAnswer(msgspec.Struct, frozen=True, array_like=True, tag="error"):
    """The store could not answer; ``text`` says why."""

    text: str


Request: TypeAlias = ReadRequest | HeadsRequest | SeekRequest
Answer: TypeAlias = ReadAnswer | HeadsAnswer | SeekAnswer | ErrorAnswer

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def encode_query(message: Request | Answer) -> bytes:
    """Return the msgpack of a request or answer."""
    return _encoder.encode(message)


def decode_request(raw: bytes) -> Request:
    """Raises ProtocolError if the bytes are not a request."""
    try:
        return _requests.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a request: {error}") from error


def decode_answer(raw: bytes) -> Answer:
    """Raises ProtocolError if the bytes are not an answer."""
    try:
        return _answers.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not an answer: {error}") from error


def heads_answer(infos: Sequence[PartitionInfo], since: int, limit: int, version: int) -> HeadsAnswer:
    """The answer for ``infos``, which the storage cut at ``limit``."""
    more = len(infos) >= limit
    rows = [
        (
            encode_topic(i.topic),
            encode_topic(i.partition),
            i.first,
            i.next,
            i.bytes,
            i.timestamp_min,
            i.timestamp_max,
            i.version,
        )
        for i in infos
    ]
    return HeadsAnswer(rows, rows[-1][-1] if more and rows else max(version, since), more)
