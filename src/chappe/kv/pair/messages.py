"""What two masters of a pair tell each other, and its bytes.

Each is a command's head (``commands.encode_message``), ``u8 kind`` and the fields of the kind; numbers are big-endian:

==== ========= ========================================================================================
kind name      fields
==== ========= ========================================================================================
1    Beat      a heartbeat of Binary Star: all the rest
2    Join      u64 stream, u64 life, u64 life of the active one: send me all that you have
3    Part      u64 stream, u64 number, u8 last, bytes: a piece of a unit, the last one or not
4    Last      u64 stream, u64 number: the last part
5    Have      u64 stream, u64 number: everything up to there is kept here
6    Missing   u64 stream, list of u64: parts that did not come
7    Gone      u64 stream: it has ended
==== ========= ========================================================================================

A stream is a number that the standby makes, never used twice. Its parts are numbered from 2 on, as in every channel.
Put together they are units: a ``u8``, whether it is some of the ``ENTRIES`` there were, the ``END`` of those, or a
``COMMIT``; for an ``END`` who the active one is to clones, an entity; for both of these the last event of clones when
they are told all of it, a ``u64``; then operations of a backend, each a ``u8`` and its fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error, unpack_from
from typing import Final, NamedTuple, TypeAlias

from chappe.data.binary import decode
from chappe.data.values import Value
from chappe.data.varbyte import pack_varbyte, parse_varbyte
from chappe.defaults import CHANNEL_HELD_MAX, PAIR_PART_BYTES
from chappe.errors import InvalidData
from chappe.kv.backend import ClearRows, EraseRow, ForgetWriter, Operation, PutRow, WriterRow
from chappe.kv.entity import ENDPOINT_BYTES, ENTITY_BYTES, NOBODY, Entity

ENTRIES: Final = 0  # some of all entries and writers, as they were when the stream began
END: Final = 1  # ... the last of them
COMMIT: Final = 2  # what has changed since


class Beat(NamedTuple):
    """A heartbeat of Binary Star."""

    frame: bytes


class Join(NamedTuple):
    """The standby, in its ``life``, asks the active one, in the life ``leader``, for everything."""

    stream: int
    life: int
    leader: int


class Part(NamedTuple):
    """A piece of a unit."""

    stream: int
    number: int
    last: bool
    piece: bytes


class Last(NamedTuple):
    """The active one lives, and the last part that it sent is ``number``."""

    stream: int
    number: int


class Have(NamedTuple):
    """The standby has, and will keep, everything up to part ``number``."""

    stream: int
    number: int


class Missing(NamedTuple):
    """Parts did not come."""

    stream: int
    numbers: tuple[int, ...]


class Gone(NamedTuple):
    """The stream has ended: there is no more of it, or nobody takes it."""

    stream: int


Said: TypeAlias = Beat | Join | Part | Last | Have | Missing | Gone
Row: TypeAlias = tuple[Operation, Value, Value]  # with key and value decoded, where it has them

_HEAD_BYTES: Final = 8 + 2 * ENTITY_BYTES
_SENDER: Final = 8
_RECEIVER: Final = 8 + ENTITY_BYTES
_JOIN: Final = Struct(">BQQQ")
_PART: Final = Struct(">BQQ?")
_LAST: Final = Struct(">BQQ")
_HAVE: Final = Struct(">BQQ")
_MISSING: Final = Struct(">BQ")
_GONE: Final = Struct(">BQ")
_COMMIT: Final = Struct(">BQ")
_END: Final = Struct(">B16sQQ")
_WRITER: Final = Struct(">B16sQQQ")
_FORGET: Final = Struct(">B16sQ")
_OUTCOME: Final = Struct(">QB")
_EXPIRES: Final = Struct(">q")
WRONG: Final = (error, IndexError, ValueError)  # what bytes that end too early lead to


def encode(said: Said) -> bytes:
    """Its kind and fields, to be put behind a command's head."""
    if isinstance(said, Beat):
        return b"\x01" + said.frame
    if isinstance(said, Join):
        return _JOIN.pack(2, *said)
    if isinstance(said, Part):
        return _PART.pack(3, said.stream, said.number, said.last) + said.piece
    if isinstance(said, Last):
        return _LAST.pack(4, *said)
    if isinstance(said, Have):
        return _HAVE.pack(5, *said)
    if isinstance(said, Missing):
        return _MISSING.pack(6, said.stream) + b"".join([number.to_bytes(8) for number in said.numbers])
    return _GONE.pack(7, said.stream)


def decode_said(payload: bytes) -> tuple[bytes, bytes, Said]:
    """The endpoints of the sender and of the receiver, which is zeros for anybody, and what is said.

    Raises:
        ProtocolError: It is no such message.
    """
    try:
        sender = payload[_SENDER : _SENDER + ENDPOINT_BYTES]
        receiver = payload[_RECEIVER : _RECEIVER + ENDPOINT_BYTES]
        return sender, receiver, _decode(payload[_HEAD_BYTES], payload[_HEAD_BYTES:])
    except WRONG:
        raise InvalidData(f"a message of a pair of masters is cut off after {len(payload)} bytes") from None


def _decode(kind: int, body: bytes) -> Said:
    if kind == 1:
        return Beat(body[1:])
    if kind == 3:
        _, stream, number, last = _PART.unpack_from(body)
        if len(body) > _PART.size + PAIR_PART_BYTES:
            raise InvalidData(f"a part of a stream has {len(body)} bytes")
        return Part(stream, number, last, body[_PART.size :])
    if kind == 6:
        _, stream = _MISSING.unpack_from(body)
        count, rest = divmod(len(body) - _MISSING.size, 8)
        if rest or not 0 < count <= CHANNEL_HELD_MAX + 1:
            raise InvalidData(f"{len(body)} bytes ask for parts of a stream")
        return Missing(stream, unpack_from(f">{count}Q", body, _MISSING.size))
    if kind == 2:
        return Join(*_JOIN.unpack(body)[1:])
    if kind == 4:
        return Last(*_LAST.unpack(body)[1:])
    if kind == 5:
        return Have(*_HAVE.unpack(body)[1:])
    if kind == 7:
        return Gone(*_GONE.unpack(body)[1:])
    raise InvalidData(f"a message of a pair of masters has the unknown kind {kind}")


# -- units ---------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """What parts are put together to: ``master`` is of an ``END``, ``event`` of that and of a ``COMMIT``."""

    kind: int
    rows: list[Row]
    event: int = 0
    master: Entity = NOBODY


def encode_unit(kind: int, operations: Iterable[bytes], event: int = 0, master: Entity = NOBODY) -> bytes:
    """The bytes of a unit whose operations are encoded."""
    head = (
        b"\x00" if kind == ENTRIES else _COMMIT.pack(kind, event) if kind == COMMIT else _END.pack(kind, *master, event)
    )
    return head + b"".join(operations)


def encode_operation(operation: Operation) -> bytes:
    """The bytes of one of its operations."""
    if isinstance(operation, PutRow):
        expiry = operation.expires_ns
        head = b"\x00" if expiry is None else b"\x01" + _EXPIRES.pack(expiry)
        return b"".join(
            (head, pack_varbyte(len(operation.key)), operation.key, pack_varbyte(len(operation.value)), operation.value)
        )
    if isinstance(operation, EraseRow):
        return b"\x02" + pack_varbyte(len(operation.key)) + operation.key
    if isinstance(operation, ClearRows):
        return b"\x03"
    if isinstance(operation, WriterRow):
        head = _WRITER.pack(4, *operation.entity, operation.applied, operation.heard_ns)
        return head + pack_varbyte(len(operation.outcomes)) + b"".join([_OUTCOME.pack(*e) for e in operation.outcomes])
    return _FORGET.pack(5, *operation.entity)


def decode_unit(raw: bytes) -> Unit:
    """The unit; raises ProtocolError."""
    event, master = 0, NOBODY
    try:
        kind, pos = raw[0], 1
        if kind == COMMIT:
            _, event = _COMMIT.unpack_from(raw)
            pos = _COMMIT.size
        elif kind == END:
            _, endpoint, number, event = _END.unpack_from(raw)
            master, pos = Entity(endpoint, number), _END.size
        rows: list[Row] = []
        while pos < len(raw):
            row, pos = decode_operation(raw, pos)
            rows.append(row)
    except WRONG:
        raise InvalidData(f"a unit of {len(raw)} bytes is cut off") from None
    if kind > COMMIT or pos != len(raw):
        raise InvalidData(f"a unit of kind {kind} has {len(raw)} bytes, its operations need {pos}")
    return Unit(kind, rows, event, master)


def decode_operation(raw: bytes, pos: int) -> tuple[Row, int]:
    """One operation from a place on, and where it ends; raises ProtocolError, or one of ``WRONG`` if it is cut off."""
    kind = raw[pos]
    if kind < 2:
        expires_ns = None
        pos += 1
        if kind:
            (expires_ns,) = _EXPIRES.unpack_from(raw, pos)
            pos += _EXPIRES.size
        key, pos = _bytes(raw, pos)
        value, pos = _bytes(raw, pos)
        return (PutRow(key, value, expires_ns), decode(key), decode(value)), pos
    if kind == 2:
        key, pos = _bytes(raw, pos + 1)
        return (EraseRow(key), decode(key), None), pos
    if kind == 3:
        return (ClearRows(), None, None), pos + 1
    if kind == 4:
        _, endpoint, number, applied, heard_ns = _WRITER.unpack_from(raw, pos)
        count, pos = parse_varbyte(raw, pos + _WRITER.size)
        if count * _OUTCOME.size > len(raw) - pos:
            raise InvalidData(f"what is known of a writer claims {count} outcomes")
        outcomes = tuple([_OUTCOME.unpack_from(raw, pos + place * _OUTCOME.size) for place in range(count)])
        row = WriterRow(Entity(endpoint, number), applied, outcomes, heard_ns)
        return (row, None, None), pos + count * _OUTCOME.size
    if kind == 5:
        _, endpoint, number = _FORGET.unpack_from(raw, pos)
        return (ForgetWriter(Entity(endpoint, number)), None, None), pos + _FORGET.size
    raise InvalidData(f"an operation of kind {kind} is unknown")


def _bytes(raw: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = parse_varbyte(raw, pos)
    if size > len(raw) - pos:
        raise InvalidData(f"{size} bytes are claimed, {len(raw) - pos} are left")
    return raw[pos : pos + size], pos + size
