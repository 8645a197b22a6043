"""Commands and queries to the machine of ordered topics, and its answers, in msgpack. Topics are bytes, as on the wire.

The body of an ``Append`` is a batch as ``log.batch`` has it, with any offsets: it is placed by the machine. So is that
of a ``StageRows``, when the batch of its query is committed (``homes``).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.defaults import ATTEMPTS_MAX, KIB, MIB, SINK_NAME_MAX, TOPIC_BYTES_MAX
from chappe.errors import ProtocolError

PARTITIONS_MAX: Final = 1_024  # of one topic
BODY_BYTES_MAX: Final = 4 * MIB - 4 * KIB  # of an Append: with all around it, it is a command of a chain
ANY: Final = -1  # wherever the partition ends
ORIGINS_MAX: Final = 4  # by which one query is known again

Topic = Annotated[bytes, msgspec.Meta(min_length=1, max_length=TOPIC_BYTES_MAX)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Expected = Annotated[int, msgspec.Meta(ge=ANY, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=SINK_NAME_MAX)]


class Create(msgspec.Struct, frozen=True, array_like=True, tag="create"):
    """Create a topic with so many partitions, unless it is there; their names are made of ``seed``, random bytes."""

    topic: Topic
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    seed: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Put a batch at the end of a partition, if that is ``expected`` or ``expected`` is ANY."""

    topic: Topic
    partition: Index
    expected: Expected
    body: bytes


class BeginRun(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Make a run of a sink its current one; no earlier run of it writes anything from then on.

    Args:
        sink: A query, or a write that may be repeated: the same in all its lives.
        run: Another one in each life.
        batch: About to be written. A sink that is new here begins with 0.
        lasting: Whether it may come back after days.
        origins: Names under which the query would be known if it began anew, as if it were another one.
        again: A query whose rows this one may write once more, or nothing.
    """

    sink: Name
    run: Name
    batch: Offset
    lasting: bool
    origins: Annotated[tuple[Name, ...], msgspec.Meta(max_length=ORIGINS_MAX)]
    again: Annotated[str, msgspec.Meta(max_length=SINK_NAME_MAX)]


class StageRows(msgspec.Struct, frozen=True, array_like=True, tag="stage"):
    """Keep one attempt's piece of a batch for a partition; pieces are numbered from 0."""

    sink: Name
    run: Name
    batch: Offset
    task: Offset
    attempt: Offset
    piece: Offset
    topic: Topic
    partition: Index
    body: bytes


class CommitRows(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """Append all rows that these attempts have staged to their partitions: task, attempt, pieces and rows of each."""

    sink: Name
    run: Name
    batch: Offset
    attempts: Annotated[tuple[tuple[Offset, Offset, Offset, Offset], ...], msgspec.Meta(max_length=ATTEMPTS_MAX)]


class DropRows(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    sink: Name
    run: Name
    batch: Offset
    task: Offset
    attempt: Offset


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    topic: Topic


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One partition, as consumers and stores name it, and the offset that the next record gets."""

    name: str
    next: int


class Layout(msgspec.Struct, frozen=True, array_like=True, tag="layout"):
    """The partitions of a topic, in the order of their numbers; none: there is no such topic."""

    parts: tuple[Part, ...]


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    first: int
    next: int


class Conflict(msgspec.Struct, frozen=True, array_like=True, tag="conflict"):
    """The partition does not end where it was expected to, but at ``next``; nothing was appended."""

    next: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    why: str


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """The run is the current one; ``committed`` is the last batch of its sink that is committed, -1 for none."""

    committed: int


class Repeats(msgspec.Struct, frozen=True, array_like=True, tag="repeats"):
    """Nothing was begun: a query of the same origin, by its place in the command, has committed batches."""

    origin: int
    query: str
    batches: int


class Fences(msgspec.Struct, frozen=True, array_like=True, tag="fences"):
    """Nothing was done: ``run`` took over, or none has begun."""

    run: str


class Staged(msgspec.Struct, frozen=True, array_like=True, tag="staged"):
    """The piece is kept, or its batch is committed already; or the attempt is forgotten."""


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """All rows of the batch are in their partitions; ``already``: by an earlier command."""

    already: bool


class Missing(msgspec.Struct, frozen=True, array_like=True, tag="missing"):
    """Nothing was done: rows are not staged that should be; ``why`` is a sentence."""

    why: str


class Full(msgspec.Struct, frozen=True, array_like=True, tag="full"):
    """Nothing was done: there is no room for more staged rows; ``why`` is a sentence."""

    why: str


SinkCommand: TypeAlias = BeginRun | StageRows | CommitRows | DropRows
Command: TypeAlias = Create | Append | SinkCommand
Query: TypeAlias = Describe
SinkAnswer: TypeAlias = Begun | Repeats | Fences | Staged | Committed | Missing | Full
Answer: TypeAlias = Layout | Appended | Conflict | Refused | SinkAnswer

_ENCODER: Final = msgspec.msgpack.Encoder()
_COMMAND: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_QUERY: Final[msgspec.msgpack.Decoder[Query]] = msgspec.msgpack.Decoder(Query)
_ANSWER: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def encode(message: Command | Query | Answer) -> bytes:
    return _ENCODER.encode(message)


def decode_command(raw: bytes) -> Command:
    try:
        return _COMMAND.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid command for ordered topics, of {len(raw)} bytes: {error}") from None


def decode_query(raw: bytes) -> Query:
    try:
        return _QUERY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid query for ordered topics, of {len(raw)} bytes: {error}") from None


def decode_answer(raw: bytes) -> Answer:
    try:
        return _ANSWER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid answer for ordered topics, of {len(raw)} bytes: {error}") from None
