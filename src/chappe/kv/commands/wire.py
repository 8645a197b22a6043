"""The bytes of messages and commands: what is written, and what is read that anybody may have sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple

import msgspec

from chappe.data.binary import decode_at, encode, pack_varbyte, parse_varbyte
from chappe.data.order import VECTOR
from chappe.errors import InvalidData
from chappe.kv.commands.messages import (
    AckClone,
    Add,
    AttachWriter,
    ChangesOffer,
    Clear,
    Command,
    CumulativeAck,
    Erase,
    EraseIf,
    Event,
    Expire,
    ExpiresAt,
    Expiring,
    HistoryAsked,
    HistoryTold,
    Keepalive,
    Leave,
    MasterSilent,
    Message,
    MissingEvents,
    Position,
    PositionAsked,
    Put,
    PutIf,
    PutUnique,
    PutUniqueResult,
    RetransmitFailed,
    Settled,
    Several,
    SnapshotOffer,
    SnapshotPiece,
    SnapshotTaken,
    Subtract,
    WriterState,
    pack_outcomes,
    pack_seqs,
    read_outcomes,
    read_seqs,
)
from chappe.kv.entity import ENDPOINT_BYTES, ENTITY_BYTES, NOBODY, Entity, far, near

SEVERAL: Final = 136  # the kind
_head: Final = Struct(">Q16sQ16sQ")
_SENDER: Final = 8
_SENDER_END: Final = _SENDER + ENDPOINT_BYTES
_RECEIVER_AT: Final = 8 + ENTITY_BYTES
_entity: Final = Struct(">16sQ")
_KINDS: Final = tuple([bytes((kind,)) for kind in range(256)])
_EXPIRES: Final = Struct(">Bq")


# -- writing ------------------------------------------------------------------------------------------------------


def encode_message(seq: int, sender: Entity, receiver: Entity, body: bytes) -> bytes:
    return _head.pack(seq, *sender, *receiver) + body


def encode_command(command: Command) -> bytes:
    """Return kind and fields; raises UnsupportedValue for a value that has no bytes."""
    if type(command) is Put:  # by far the commonest
        return b"".join(
            (b"\0", encode(command.key), encode(command.value), _pack_expiry(command.expiry_ns),
             _entity.pack(*command.publisher))
        )  # fmt: skip
    kind, fields = _WRITERS[type(command)]
    values = msgspec.structs.astuple(command)
    packed = [field.pack(each) for field, each in zip(fields, values, strict=True)]
    return _KINDS[kind] + b"".join(packed)


def encode_several(bodies: Sequence[bytes]) -> bytes:
    return b"".join((_KINDS[SEVERAL], pack_varbyte(len(bodies)), *bodies))


# -- reading ------------------------------------------------------------------------------------------------------


def decode_message(payload: bytes) -> Message:
    """Decode a message, to the end of ``payload``; raises ProtocolError."""
    try:
        seq, sender, sender_number, receiver, receiver_number = _head.unpack_from(payload)
        made, end = _read_command(payload, _head.size)
    except (error, IndexError):
        raise InvalidData(f"a store command is cut off after {len(payload)} bytes") from None
    if end != len(payload):
        raise InvalidData(f"a store command has {len(payload)} bytes, its fields need {end}")
    return Message(seq, Entity(sender, sender_number), Entity(receiver, receiver_number), made)


def _read_command(payload: bytes, pos: int) -> tuple[Command, int]:
    kind = payload[pos]
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise InvalidData(f"a store command of kind {kind} is unknown")
    end = pos + 1
    values: list[Any] = []
    for field in layout[1]:
        if isinstance(field, Struct):
            values += field.unpack_from(payload, end)
            end += field.size
        else:
            value, end = field.read(payload, end)
            values.append(value)
    return layout[0](*values), end


def sender_endpoint(payload: bytes) -> bytes | None:
    """Return the endpoint that a message names as its sender's, without reading the rest; None if it is cut off."""
    return payload[_SENDER:_SENDER_END] if len(payload) >= _head.size else None


def from_far(payload: bytes) -> bytes:
    """Return a message that came over an original, its sender taken for one of the original (``entity.far``)."""
    return payload[:_SENDER_END] + _U64.pack(far(*_U64.unpack_from(payload, _SENDER_END))) + payload[_RECEIVER_AT:]


def to_far(payload: bytes) -> bytes:
    """Return a message for a receiver that may be taken for one of the original, with the number that it has."""
    number = near(*_U64.unpack_from(payload, _RECEIVER_AT + ENDPOINT_BYTES))
    return payload[: _RECEIVER_AT + ENDPOINT_BYTES] + _U64.pack(number) + payload[_RECEIVER_AT + ENTITY_BYTES :]


# -- the fields of each kind ----------------------------------------------------------------------------------------


class _Field(NamedTuple):
    """A field without a fixed size, or that is not a number: its bytes, and at a position what it is and its end."""

    pack: Callable[[Any], bytes]
    read: Callable[[bytes, int], tuple[Any, int]]


def _pack_expiry(expiry_ns: int | None) -> bytes:
    return b"\0" if expiry_ns is None else _EXPIRES.pack(1, expiry_ns)


def _read_expiry(data: bytes, pos: int) -> tuple[int | None, int]:
    return (None, pos + 1) if data[pos] == 0 else (_EXPIRES.unpack_from(data, pos)[1], pos + _EXPIRES.size)


def _read_tag(data: bytes, pos: int) -> tuple[int, int]:
    if data[pos] > VECTOR:
        raise InvalidData(f"type {data[pos]} at byte {pos} is unknown")
    return data[pos], pos + 1


def _read_change(data: bytes, pos: int) -> tuple[Command, int]:
    if data[pos] not in _EXPIRING_KINDS:
        raise InvalidData(f"a store command of kind {data[pos]} sets no value that expires")
    return _read_command(data, pos)


def _pack_several(changes: tuple[Event, ...]) -> bytes:
    return pack_varbyte(len(changes)) + b"".join([encode_command(each) for each in changes])


def _read_several(data: bytes, pos: int) -> tuple[tuple[Event, ...], int]:
    count, pos = parse_varbyte(data, pos)
    if count > (len(data) - pos) // (1 + ENTITY_BYTES):  # none has fewer bytes than a Clear
        raise InvalidData(f"a message claims {count} changes in {len(data) - pos} bytes")
    found: list[Any] = []
    publisher, author = b"", NOBODY  # as a rule one wrote them all
    for _ in range(count):
        if data[pos] == 0:  # a Put, by far the commonest
            key, pos = decode_at(data, pos + 1)
            value, pos = decode_at(data, pos)
            expiry_ns, pos = _read_expiry(data, pos)
            raw, pos = data[pos : pos + ENTITY_BYTES], pos + ENTITY_BYTES
            if raw != publisher:
                publisher, author = raw, Entity(*_entity.unpack(raw))
            found.append(Put(key, value, expiry_ns, author))
            continue
        if data[pos] > _ACTIONS_UP_TO and data[pos] != _EXPIRING:
            raise InvalidData(f"a store command of kind {data[pos]} is not a change")
        command, pos = _read_command(data, pos)
        found.append(command)
    return tuple(found), pos


_ACTIONS_UP_TO: Final = 7  # the kinds of ``Mutation`` that masters tell ...
_EXPIRING: Final = 139  # ... and of ``Expiring``
_EXPIRING_KINDS: Final = (0, 5, 6)
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_FLAG: Final = Struct(">?")
_U8: Final = Struct(">B")
_I64: Final = Struct(">q")
_VALUE: Final = _Field(encode, decode_at)
_EXPIRY: Final = _Field(_pack_expiry, _read_expiry)
_TAG: Final = _Field(lambda tag: _KINDS[tag], _read_tag)
_ENTITY: Final = _Field(
    lambda entity: _entity.pack(*entity),
    lambda data, pos: (Entity(*_entity.unpack_from(data, pos)), pos + ENTITY_BYTES),
)
_SEQS: Final = _Field(pack_seqs, read_seqs)
_OUTCOMES: Final = _Field(pack_outcomes, read_outcomes)
_SEVERAL: Final = _Field(_pack_several, _read_several)
_CHANGE: Final = _Field(encode_command, _read_change)
_REST: Final = _Field(bytes, lambda data, pos: (data[pos:], len(data)))  # a list that is looked into later

# The fields of each command, in the order in which its class has them.
_LAYOUTS: Final[dict[int, tuple[Callable[..., Command], tuple[_Field | Struct, ...]]]] = {
    0: (Put, (_VALUE, _VALUE, _EXPIRY, _ENTITY)),
    1: (PutUnique, (_VALUE, _VALUE, _EXPIRY, _ENTITY, _U64, _ENTITY)),
    2: (PutUniqueResult, (_FLAG, _ENTITY, _U64, _ENTITY)),
    3: (Erase, (_VALUE, _ENTITY)),
    4: (Expire, (_VALUE, _ENTITY)),
    5: (Add, (_VALUE, _VALUE, _TAG, _EXPIRY, _ENTITY)),
    6: (Subtract, (_VALUE, _VALUE, _EXPIRY, _ENTITY)),
    7: (Clear, (_ENTITY,)),
    8: (AttachWriter, (_U64, _U16)),
    9: (Keepalive, (_U64,)),
    10: (CumulativeAck, (_U64,)),
    11: (MissingEvents, (_SEQS,)),
    12: (AckClone, (_U64, _U16, _REST)),
    13: (RetransmitFailed, (_U64,)),
    128: (WriterState, (_U64, _U64, _OUTCOMES)),
    129: (Settled, (_U64,)),
    130: (Leave, (_U64,)),
    131: (SnapshotOffer, (_U64, _U64, _U16, _U64, _U64)),
    132: (SnapshotPiece, (_U64, _U64, _U32, _REST)),
    133: (SnapshotTaken, (_U64, _U64, _FLAG)),
    134: (MasterSilent, (_ENTITY,)),
    135: (ChangesOffer, (_U64, _U64, _U16, _U64, _U64, _U64, _ENTITY, _U64)),
    SEVERAL: (Several, (_SEVERAL,)),
    137: (PositionAsked, (_U64,)),
    138: (Position, (_U64, _U64)),
    _EXPIRING: (Expiring, (_I64, _CHANGE)),
    140: (ExpiresAt, (_VALUE, _U64, _I64)),
    141: (PutIf, (_VALUE, _VALUE, _EXPIRY, _U64, _ENTITY)),
    142: (EraseIf, (_VALUE, _U64, _ENTITY)),
    143: (HistoryAsked, (_U64, _VALUE, _U64)),
    144: (HistoryTold, (_U64, _U8, _REST)),
}
_WRITERS: Final = {made: (kind, fields) for kind, (made, fields) in _LAYOUTS.items()}
