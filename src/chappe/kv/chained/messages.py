"""The commands of the head of a chain whose state is a data store, and their bytes.

Each is ``u8 kind``, who gives it, an entity, and the fields of the kind; numbers are big-endian:

==== ====== =========================================================================================
kind name   fields
==== ====== =========================================================================================
1    Lead   u64 event: it is master from here on, and its clones' first event is behind that one
2    Part   u64 commit, u32 place, u8 last, bytes: a piece of a commit, from place 0 on, the last or not
3    Still  u64 question: is it the master?
==== ====== =========================================================================================

The pieces of a commit together are ``u64 event``, the last that clones are told of it, and operations of a backend
(below).

Operations of a backend as bytes: what a chain keeps of a data store, and its servers tell each other.

Each is a ``u8 kind`` and its fields; numbers are big-endian:

==== ============= =====================================================================
kind name          fields
==== ============= =====================================================================
0    PutRow        bytes key, bytes value
1    PutRow        i64 expiry in nanoseconds, bytes key, bytes value
2    EraseRow      bytes key
3    ClearRows     none
4    WriterRow     entity, u64 applied, u64 heard, outcomes: each u64 number, u8 outcome
5    ForgetWriter  entity
6    HistoryRow    u64 revision, bytes key, bytes body
7    ForgetHistory u64 revision, bytes key
8    ClearHistory  none
==== ============= =====================================================================

Bytes and outcomes have their count in front, as in the data format.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from chappe.data.binary import decode as decode_value
from chappe.data.binary import pack_varbyte, parse_varbyte
from chappe.data.values import Value
from chappe.defaults import MIB
from chappe.errors import InvalidData
from chappe.kv.backend import (
    ClearHistory,
    ClearRows,
    EraseRow,
    ForgetHistory,
    ForgetWriter,
    HistoryRow,
    Operation,
    PutRow,
    WriterRow,
)
from chappe.kv.entity import Entity

Row: TypeAlias = tuple[Operation, Value, Value]  # with key and value decoded, where it has them

WRONG: Final = (error, IndexError, ValueError)  # raised where bytes end too early
_WRITER: Final = Struct(">B16sQQQ")
_FORGET: Final = Struct(">B16sQ")
_OUTCOME: Final = Struct(">QB")
_EXPIRES: Final = Struct(">q")
_REVISION: Final = Struct(">BQ")


def encode_operation(operation: Operation) -> bytes:
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
    if isinstance(operation, HistoryRow):
        head = _REVISION.pack(6, operation.revision) + pack_varbyte(len(operation.key))
        return b"".join((head, operation.key, pack_varbyte(len(operation.body)), operation.body))
    if isinstance(operation, ForgetHistory):
        return _REVISION.pack(7, operation.revision) + pack_varbyte(len(operation.key)) + operation.key
    if isinstance(operation, ClearHistory):
        return b"\x08"
    return _FORGET.pack(5, *operation.entity)


def decode_operation(raw: bytes, pos: int) -> tuple[Row, int]:
    """Decode an operation; return it and its end. Raises ProtocolError, or one of ``WRONG`` if it is cut off."""
    kind = raw[pos]
    if kind < 2:
        expires_ns = None
        pos += 1
        if kind:
            (expires_ns,) = _EXPIRES.unpack_from(raw, pos)
            pos += _EXPIRES.size
        key, pos = _bytes(raw, pos)
        value, pos = _bytes(raw, pos)
        return (PutRow(key, value, expires_ns), decode_value(key), decode_value(value)), pos
    if kind == 2:
        key, pos = _bytes(raw, pos + 1)
        return (EraseRow(key), decode_value(key), None), pos
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
    if kind == 6:
        _, revision = _REVISION.unpack_from(raw, pos)
        key, pos = _bytes(raw, pos + _REVISION.size)
        body, pos = _bytes(raw, pos)
        return (HistoryRow(key, revision, body), None, None), pos
    if kind == 7:
        _, revision = _REVISION.unpack_from(raw, pos)
        key, pos = _bytes(raw, pos + _REVISION.size)
        return (ForgetHistory(key, revision), None, None), pos
    if kind == 8:
        return (ClearHistory(), None, None), pos + 1
    raise InvalidData(f"an operation of kind {kind} is unknown")


def _bytes(raw: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = parse_varbyte(raw, pos)
    if size > len(raw) - pos:
        raise InvalidData(f"{size} bytes are claimed, {len(raw) - pos} are left")
    return raw[pos : pos + size], pos + size


PART_BYTES: Final = 1 * MIB  # of a commit in one command: members need not wait for more at once
_HEAD: Final = Struct(">B16sQ")
_U64: Final = Struct(">Q")
_PART: Final = Struct(">QI?")


class Lead(NamedTuple):
    master: Entity
    event: int


class Part(NamedTuple):
    master: Entity
    commit: int
    place: int
    last: bool
    piece: bytes


class Still(NamedTuple):
    master: Entity
    question: int


Command: TypeAlias = Lead | Part | Still


def encode(command: Command) -> bytes:
    if isinstance(command, Lead):
        return _HEAD.pack(1, *command.master) + _U64.pack(command.event)
    if isinstance(command, Still):
        return _HEAD.pack(3, *command.master) + _U64.pack(command.question)
    head = _HEAD.pack(2, *command.master) + _PART.pack(command.commit, command.place, command.last)
    return head + command.piece


def decode(raw: bytes) -> Command:
    """Decode a command; raises ProtocolError."""
    try:
        kind, endpoint, number = _HEAD.unpack_from(raw)
        master = Entity(endpoint, number)
        if kind == 2:
            commit, place, last = _PART.unpack_from(raw, _HEAD.size)
            return Part(master, commit, place, last, raw[_HEAD.size + _PART.size :])
        (found,) = _U64.unpack(raw[_HEAD.size :])
    except WRONG:
        raise InvalidData(f"a command of {len(raw)} bytes to a data store is cut off") from None
    if kind == 1:
        return Lead(master, found)
    if kind == 3:
        return Still(master, found)
    raise InvalidData(f"a command of the unknown kind {kind} to a data store")


def parts_of(master: Entity, commit: int, event: int, operations: Iterable[bytes], part_bytes: int) -> list[bytes]:
    body = _U64.pack(event) + b"".join(operations)
    places = range(0, len(body), part_bytes)
    return [
        encode(Part(master, commit, place, at + part_bytes >= len(body), body[at : at + part_bytes]))
        for place, at in enumerate(places)
    ]


def decode_commit(body: bytes) -> tuple[int, list[tuple[Row, bytes]]]:
    """Return the event of a commit, and its operations, each also as it came; raises ProtocolError."""
    if len(body) < _U64.size:
        raise InvalidData(f"a commit of {len(body)} bytes is cut off")
    return _U64.unpack_from(body)[0], decode_rows(body, _U64.size)


def decode_rows(body: bytes, pos: int = 0) -> list[tuple[Row, bytes]]:
    """Return consecutive operations, each also as it came; raises ProtocolError."""
    found: list[tuple[Row, bytes]] = []
    try:
        while pos < len(body):
            begin = pos
            row, pos = decode_operation(body, begin)
            found.append((row, body[begin:pos]))
    except WRONG:
        raise InvalidData(f"operations of {len(body)} bytes are cut off") from None
    return found
