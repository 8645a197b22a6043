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
(``kv.rows``).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from chappe.defaults import MIB
from chappe.errors import InvalidData
from chappe.kv.entity import Entity
from chappe.kv.rows import WRONG, Row, decode_operation

PART_BYTES: Final = 1 * MIB  # of a commit in one command: members need not wait for more at once
_HEAD: Final = Struct(">B16sQ")
_U64: Final = Struct(">Q")
_PART: Final = Struct(">QI?")


class Lead(NamedTuple):
    """See the module."""

    master: Entity
    event: int


class Part(NamedTuple):
    """See the module."""

    master: Entity
    commit: int
    place: int
    last: bool
    piece: bytes


class Still(NamedTuple):
    """See the module."""

    master: Entity
    question: int


Command: TypeAlias = Lead | Part | Still


def encode(command: Command) -> bytes:
    """The bytes of a command."""
    if isinstance(command, Lead):
        return _HEAD.pack(1, *command.master) + _U64.pack(command.event)
    if isinstance(command, Still):
        return _HEAD.pack(3, *command.master) + _U64.pack(command.question)
    head = _HEAD.pack(2, *command.master) + _PART.pack(command.commit, command.place, command.last)
    return head + command.piece


def decode(raw: bytes) -> Command:
    """The command; raises ProtocolError."""
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
    """The commands that make a commit of encoded operations."""
    body = _U64.pack(event) + b"".join(operations)
    places = range(0, len(body), part_bytes)
    return [
        encode(Part(master, commit, place, at + part_bytes >= len(body), body[at : at + part_bytes]))
        for place, at in enumerate(places)
    ]


def decode_commit(body: bytes) -> tuple[int, list[tuple[Row, bytes]]]:
    """The event of a commit, and its operations, each also as it came; raises ProtocolError."""
    if len(body) < _U64.size:
        raise InvalidData(f"a commit of {len(body)} bytes is cut off")
    return _U64.unpack_from(body)[0], decode_rows(body, _U64.size)


def decode_rows(body: bytes, pos: int = 0) -> list[tuple[Row, bytes]]:
    """Operations one behind the other, each also as it came; raises ProtocolError."""
    found: list[tuple[Row, bytes]] = []
    try:
        while pos < len(body):
            begin = pos
            row, pos = decode_operation(body, begin)
            found.append((row, body[begin:pos]))
    except WRONG:
        raise InvalidData(f"operations of {len(body)} bytes are cut off") from None
    return found
