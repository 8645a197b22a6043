"""Lists in the commands of data stores: how they become bytes, and are read from bytes that may be wrong.

Each reader raises ProtocolError, or lets IndexError or ``struct.error`` pass where something is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error, unpack_from
from typing import Final, TypeAlias

from chappe.data.binary import decode_at, pack_varbyte, parse_varbyte
from chappe.data.values import Value
from chappe.defaults import CHANNEL_HELD_MAX, STORE_OUTCOMES_MAX
from chappe.errors import InvalidData
from chappe.kv.backend import HistoryRow

Pair: TypeAlias = tuple[Value, Value]
Row: TypeAlias = tuple[Value, Value, int, int | None]  # key, value, revision, when it expires
Past: TypeAlias = tuple[int, bytes]  # revision and body of a change in a key's history
_U64: Final = Struct(">Q")
_OUTCOME: Final = Struct(">QB")
_STAYS: Final = Struct(">QB")  # revision, 0
_EXPIRES: Final = Struct(">QBq")  # revision, 1, when


def encode_pairs(pairs: Sequence[bytes]) -> bytes:
    """The list of a snapshot, or of a piece of one; each of ``pairs`` is a key and its value, encoded."""
    return pack_varbyte(len(pairs)) + b"".join(pairs)


def parse_pairs(raw: bytes) -> list[Pair]:
    """All entries of a snapshot, or of a piece of one."""
    count, pos = parse_varbyte(raw, 0)
    if count > len(raw) // 2:
        raise InvalidData(f"a snapshot of {len(raw)} bytes claims {count} entries")
    found = []
    for _ in range(count):
        key, pos = decode_at(raw, pos)
        value, pos = decode_at(raw, pos)
        found.append((key, value))
    if pos != len(raw):
        raise InvalidData(f"{len(raw) - pos} bytes follow a snapshot")
    return found


def encode_row(pair: bytes, revision: int, expires_ns: int | None) -> bytes:
    """An entry of a piece; ``pair`` is its key and value, encoded."""
    return pair + (_STAYS.pack(revision, 0) if expires_ns is None else _EXPIRES.pack(revision, 1, expires_ns))


def parse_rows(raw: bytes) -> list[Row]:
    """All entries of a piece of a snapshot."""
    count, pos = parse_varbyte(raw, 0)
    if count > len(raw) // (2 + _STAYS.size):
        raise InvalidData(f"a piece of {len(raw)} bytes claims {count} entries")
    found: list[Row] = []
    for _ in range(count):
        key, pos = decode_at(raw, pos)
        value, pos = decode_at(raw, pos)
        expires_ns = None
        try:
            revision, expires = _STAYS.unpack_from(raw, pos)
            pos += _STAYS.size
            if expires:
                expires_ns = _EXPIRES.unpack_from(raw, pos - _STAYS.size)[2]
                pos += _EXPIRES.size - _STAYS.size
        except error:
            raise InvalidData(f"a piece is cut off after {len(raw)} bytes") from None
        found.append((key, value, revision, expires_ns))
    if pos != len(raw):
        raise InvalidData(f"{len(raw) - pos} bytes follow a piece of a snapshot")
    return found


def encode_past(rows: Sequence[HistoryRow]) -> bytes:
    """Changes of one key."""
    parts = [pack_varbyte(len(rows))]
    for row in rows:
        parts += (_U64.pack(row.revision), pack_varbyte(len(row.body)), row.body)
    return b"".join(parts)


def parse_past(raw: bytes) -> list[Past]:
    """Changes of one key, with rising revisions."""
    count, pos = parse_varbyte(raw, 0)
    if count > len(raw) // _U64.size:
        raise InvalidData(f"a history of {len(raw)} bytes claims {count} changes")
    found: list[Past] = []
    for _ in range(count):
        if len(raw) - pos <= _U64.size:
            raise InvalidData(f"a history is cut off after {len(raw)} bytes")
        (revision,) = _U64.unpack_from(raw, pos)
        size, pos = parse_varbyte(raw, pos + _U64.size)
        if size > len(raw) - pos or (found and revision <= found[-1][0]):
            raise InvalidData("a history is cut off, or its revisions do not rise")
        found.append((revision, raw[pos : pos + size]))
        pos += size
    if pos != len(raw):
        raise InvalidData(f"{len(raw) - pos} bytes follow a history")
    return found


def pack_seqs(seqs: tuple[int, ...]) -> bytes:
    """Numbers that are missing."""
    return pack_varbyte(len(seqs)) + b"".join([_U64.pack(seq) for seq in seqs])


def read_seqs(data: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    """Numbers that are missing, and where they end."""
    count, pos = parse_varbyte(data, pos)
    if count > CHANNEL_HELD_MAX + 1 or count * _U64.size > len(data) - pos:
        raise InvalidData(f"a nack claims {count} numbers")
    return unpack_from(f">{count}Q", data, pos), pos + _U64.size * count


def pack_outcomes(outcomes: tuple[tuple[int, int], ...]) -> bytes:
    """What became of writes."""
    return pack_varbyte(len(outcomes)) + b"".join([_OUTCOME.pack(*each) for each in outcomes])


def read_outcomes(data: bytes, pos: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """What became of writes, and where that ends."""
    count, pos = parse_varbyte(data, pos)
    if count > STORE_OUTCOMES_MAX:
        raise InvalidData(f"a writer's state claims {count} outcomes")
    found = tuple([_OUTCOME.unpack_from(data, pos + _OUTCOME.size * place) for place in range(count)])
    return found, pos + _OUTCOME.size * count
