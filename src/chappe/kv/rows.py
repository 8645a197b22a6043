"""Operations of a backend as bytes: what a chain keeps of a data store, and its servers tell each other.

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

from struct import Struct, error
from typing import Final, TypeAlias

from chappe.data.binary import decode, pack_varbyte, parse_varbyte
from chappe.data.values import Value
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
    if isinstance(operation, HistoryRow):
        head = _REVISION.pack(6, operation.revision) + pack_varbyte(len(operation.key))
        return b"".join((head, operation.key, pack_varbyte(len(operation.body)), operation.body))
    if isinstance(operation, ForgetHistory):
        return _REVISION.pack(7, operation.revision) + pack_varbyte(len(operation.key)) + operation.key
    if isinstance(operation, ClearHistory):
        return b"\x08"
    return _FORGET.pack(5, *operation.entity)


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
