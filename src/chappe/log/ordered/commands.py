"""What is asked of the machine of ordered topics, and what it answers, in msgpack. Topics are bytes, as on the wire.

The body of an ``Append`` is a batch as ``log.batch`` has it, with any offsets: it is placed by the machine.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.defaults import KIB, MIB, TOPIC_BYTES_MAX
from chappe.errors import ProtocolError

PARTITIONS_MAX: Final = 1_024  # of one topic
BODY_BYTES_MAX: Final = 4 * MIB - 4 * KIB  # of an Append: with all around it, it is a command of a chain
ANY: Final = -1  # wherever the partition ends

Topic = Annotated[bytes, msgspec.Meta(min_length=1, max_length=TOPIC_BYTES_MAX)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Expected = Annotated[int, msgspec.Meta(ge=ANY, le=2**63 - 1)]


class Create(msgspec.Struct, frozen=True, array_like=True, tag="create"):
    """Have a topic with so many partitions, unless it is there; their names are made of ``seed``, random bytes."""

    topic: Topic
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    seed: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Put a batch at the end of a partition, if that is ``expected`` or ``expected`` is ANY."""

    topic: Topic
    partition: Index
    expected: Expected
    body: bytes


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """A query: which partitions does the topic have?"""

    topic: Topic


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One partition, as consumers and stores name it, and the offset that the next record gets."""

    name: str
    next: int


class Layout(msgspec.Struct, frozen=True, array_like=True, tag="layout"):
    """The partitions of a topic, in the order of their numbers; none: there is no such topic."""

    parts: tuple[Part, ...]


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    """The batch is at ``first`` <= offsets < ``next``."""

    first: int
    next: int


class Conflict(msgspec.Struct, frozen=True, array_like=True, tag="conflict"):
    """The partition does not end where it was expected to, but at ``next``; nothing was appended."""

    next: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Nothing was done; ``why`` is a sentence."""

    why: str


Command: TypeAlias = Create | Append
Query: TypeAlias = Describe
Answer: TypeAlias = Layout | Appended | Conflict | Refused

_ENCODER: Final = msgspec.msgpack.Encoder()
_COMMAND: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_QUERY: Final[msgspec.msgpack.Decoder[Query]] = msgspec.msgpack.Decoder(Query)
_ANSWER: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def encode(message: Command | Query | Answer) -> bytes:
    """The bytes of a command, a query or an answer."""
    return _ENCODER.encode(message)


def decode_command(raw: bytes) -> Command:
    """A command. Raises ProtocolError."""
    try:
        return _COMMAND.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{len(raw)} bytes that are no command for ordered topics: {error}") from None


def decode_query(raw: bytes) -> Query:
    """A query. Raises ProtocolError."""
    try:
        return _QUERY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{len(raw)} bytes that are no query for ordered topics: {error}") from None


def decode_answer(raw: bytes) -> Answer:
    """An answer. Raises ProtocolError."""
    try:
        return _ANSWER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{len(raw)} bytes that are no answer for ordered topics: {error}") from None
