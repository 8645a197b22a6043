"""The messages between masters and clones, and their bytes.

A message is ``u64 sequence number, sender, receiver, u8 kind`` and the fields of its kind; sender and receiver are
entities (16 bytes, u64), a receiver of zeros is everybody. Numbers are big-endian; values are in the binary form with
their tag; an optional timespan is a byte 0, or a byte 1 and i64 nanoseconds; lists have a varbyte count before them.

==== ================== ========================================================================================
kind name               fields
==== ================== ========================================================================================
0    Put                key, value, optional expiry, publisher
1    PutUnique          key, value, optional expiry, who, u64 request, publisher
2    PutUniqueResult    u8 inserted, who, u64 request, publisher
3    Erase              key, publisher
4    Expire             key, publisher
5    Add                key, value, u8 tag of the type to start from, optional expiry, publisher
6    Subtract           key, value, optional expiry, publisher
7    Clear              publisher
8    AttachWriter       u64 offset, u16 heartbeat in ticks
9    Keepalive          u64 number of the last event
10   CumulativeAck      u64 number
11   MissingEvents      list of u64 (nack)
12   AckClone           u64 offset, u16 heartbeat in ticks, list of (key, value)
13   RetransmitFailed   u64 number
128  WriterState        u64 applied, u64 output, list of (u64 number, u8 code): from a master of chappe
129  Settled            u64 number: from a clone of chappe to a master of chappe
130  Leave              u64 number of its last write: from a clone of chappe to a master of chappe
131  SnapshotOffer      u64 snapshot, u64 offset, u16 heartbeat in ticks, u64 entries: from a master of chappe
132  SnapshotPiece      u64 snapshot, u64 first entry, u32 crc32c of what follows, list of (key, value): likewise
133  SnapshotTaken      u64 snapshot, u64 entries, u8 again: from a clone of chappe to a master of chappe
==== ================== ========================================================================================

The last six never reach an original: they are sent to one receiver, whose entity has chappe's mark. A master of chappe
also tells what was added to a string or container, or taken from it, as Add and Subtract, if all its clones are of
chappe; otherwise, as the original does, with a Put of all that came out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Any, Final, TypeAlias

import msgspec
from crc32c import crc32c

from chappe.data.binary import decode_at, encode
from chappe.data.order import VECTOR
from chappe.data.values import Value
from chappe.data.varbyte import pack_varbyte, parse_varbyte
from chappe.defaults import CHANNEL_HELD_MAX, CHANNEL_TICK_S, STORE_OUTCOMES_MAX
from chappe.errors import InvalidData
from chappe.kv.entity import ENDPOINT_BYTES, ENTITY_BYTES, NOBODY, Entity, far, near

Pair: TypeAlias = tuple[Value, Value]


class Put(msgspec.Struct, frozen=True):
    """Set a value; ``expiry_ns`` from when the master takes it."""

    key: Value
    value: Value
    expiry_ns: int | None
    publisher: Entity


class PutUnique(msgspec.Struct, frozen=True):
    """Set a value if there is none; ``who`` and ``request`` name the answer."""

    key: Value
    value: Value
    expiry_ns: int | None
    who: Entity
    request: int
    publisher: Entity


class PutUniqueResult(msgspec.Struct, frozen=True):
    """The answer."""

    inserted: bool
    who: Entity
    request: int
    publisher: Entity


class Erase(msgspec.Struct, frozen=True):
    """Remove a key."""

    key: Value
    publisher: Entity


class Expire(msgspec.Struct, frozen=True):
    """A key has lived its time."""

    key: Value
    publisher: Entity


class Add(msgspec.Struct, frozen=True):
    """Add to a value; a missing one starts as the empty value of type ``init``."""

    key: Value
    value: Value
    init: int
    expiry_ns: int | None
    publisher: Entity


class Subtract(msgspec.Struct, frozen=True):
    """Take away from a value."""

    key: Value
    value: Value
    expiry_ns: int | None
    publisher: Entity


class Clear(msgspec.Struct, frozen=True):
    """Remove all keys."""

    publisher: Entity


class Changed(msgspec.Struct, frozen=True):
    """What a master tells of a change within a value: the change, or all that came out of it to those who want that."""

    change: Add | Subtract
    whole: Put


class AttachWriter(msgspec.Struct, frozen=True):
    """A clone's handshake: its next write has the number ``offset`` + 1."""

    offset: int
    ticks: int


class Keepalive(msgspec.Struct, frozen=True):
    """A producer's heartbeat."""

    seq: int


class CumulativeAck(msgspec.Struct, frozen=True):
    """A consumer has everything up to ``seq``."""

    seq: int


class MissingEvents(msgspec.Struct, frozen=True):
    """A consumer misses these; (0,) asks to be taken in."""

    seqs: tuple[int, ...]


class AckClone(msgspec.Struct, frozen=True):
    """A master's handshake: ``pairs`` is all it has, behind its event ``offset``.

    The pairs are read only when asked for: most of its receivers are none.
    """

    offset: int
    ticks: int
    raw_pairs: bytes  # varbyte count, then key and value by turns

    def pairs(self) -> list[Pair]:
        """All entries; raises ProtocolError."""
        return _parse_pairs(self.raw_pairs)


class RetransmitFailed(msgspec.Struct, frozen=True):
    """A producer no longer has event ``seq``."""

    seq: int


class WriterState(msgspec.Struct, frozen=True):
    """A master to a clone: its writes up to ``applied`` are done and durable, all well but for ``outcomes``.

    What they changed has reached the clone when it has the master's event ``output``. Outcomes are pairs of a write's
    number and what became of it (``chappe.kv.outcomes``), and are repeated until ``Settled``.
    """

    applied: int
    output: int
    outcomes: tuple[tuple[int, int], ...]


class Settled(msgspec.Struct, frozen=True):
    """A clone to its master: it knows what became of its writes up to ``seq``."""

    seq: int


class Leave(msgspec.Struct, frozen=True):
    """A clone to its master: it is closed, and made so many writes; nothing of it follows."""

    seq: int


class SnapshotOffer(msgspec.Struct, frozen=True):
    """A master to a clone of chappe: all it has behind its event ``offset`` are ``entries``, which come in pieces.

    ``snapshot`` is a number of the master's, never used twice. It is the master's handshake, as ``AckClone`` is.
    """

    snapshot: int
    offset: int
    ticks: int
    entries: int


class SnapshotPiece(msgspec.Struct, frozen=True):
    """Some entries of a snapshot: that number ``first`` and those behind it; the first of all has 0."""

    snapshot: int
    first: int
    crc: int
    raw_pairs: bytes  # as AckClone has them

    def pairs(self) -> list[Pair]:
        """The entries; raises ProtocolError, also if they are not what was sent."""
        if crc32c(self.raw_pairs) != self.crc:
            raise InvalidData(f"a piece of a snapshot, from entry {self.first} on, does not match its checksum")
        return _parse_pairs(self.raw_pairs)


class SnapshotTaken(msgspec.Struct, frozen=True):
    """A clone to its master: it has the first ``entries`` of a snapshot, and room for more.

    With ``again`` nothing came for a while, and what follows is to be sent again. With all entries it is done.
    """

    snapshot: int
    entries: int
    again: bool = False


Action: TypeAlias = Put | PutUnique | PutUniqueResult | Erase | Expire | Add | Subtract | Clear
Told: TypeAlias = Action | Changed
Command: TypeAlias = (
    Action
    | AttachWriter
    | Keepalive
    | CumulativeAck
    | MissingEvents
    | AckClone
    | RetransmitFailed
    | WriterState
    | Settled
    | Leave
    | SnapshotOffer
    | SnapshotPiece
    | SnapshotTaken
)
ACTIONS: Final = (Put, PutUnique, PutUniqueResult, Erase, Expire, Add, Subtract, Clear)


class Message(msgspec.Struct, frozen=True):
    """A command with where it comes from and whom it is for; ``seq`` is 0 unless it is an action."""

    seq: int
    sender: Entity
    receiver: Entity
    command: Command


_head: Final = Struct(">Q16sQ16sQ")
_SENDER: Final = slice(8, 8 + ENDPOINT_BYTES)
_RECEIVER_AT: Final = 8 + ENTITY_BYTES
_entity: Final = Struct(">16sQ")
_u64: Final = Struct(">Q")
_i64: Final = Struct(">q")
_u64_u16: Final = Struct(">QH")
_u64_u8: Final = Struct(">QB")
_two_u64: Final = Struct(">QQ")
_two_u64_u8: Final = Struct(">QQB")
_two_u64_u16_u64: Final = Struct(">QQHQ")
_two_u64_u32: Final = Struct(">QQI")
_entity_u64_entity: Final = Struct(">16sQQ16sQ")
_KINDS: Final = tuple([bytes((kind,)) for kind in range(256)])
_EXPIRES: Final = Struct(">Bq")


# -- writing ------------------------------------------------------------------------------------------------------


def encode_message(seq: int, sender: Entity, receiver: Entity, body: bytes) -> bytes:
    """The bytes of a message whose command is ``body``, made by ``encode_command``."""
    return _head.pack(seq, *sender, *receiver) + body


def encode_command(command: Command) -> bytes:
    """Kind and fields; raises UnsupportedValue for a value that has no bytes."""
    if type(command) is Put:  # by far the commonest
        return b"".join(
            (b"\0", encode(command.key), encode(command.value), _expiry(command.expiry_ns),
             _entity.pack(*command.publisher))
        )  # fmt: skip
    kind, write = _WRITERS[type(command)]
    return _KINDS[kind] + write(command)


def encode_pairs(pairs: Sequence[bytes]) -> bytes:
    """The list of a snapshot, or of a piece of one; each of ``pairs`` is a key and its value, encoded."""
    return pack_varbyte(len(pairs)) + b"".join(pairs)


def piece(snapshot: int, first: int, raw_pairs: bytes) -> SnapshotPiece:
    """A piece with its checksum."""
    return SnapshotPiece(snapshot, first, crc32c(raw_pairs), raw_pairs)


def ticks(heartbeat_s: float) -> int:
    """A heartbeat interval as it travels."""
    return max(1, round(heartbeat_s / CHANNEL_TICK_S))


def _expiry(expiry_ns: int | None) -> bytes:
    return b"\0" if expiry_ns is None else _EXPIRES.pack(1, expiry_ns)


def _numbers(seqs: tuple[int, ...]) -> bytes:
    return pack_varbyte(len(seqs)) + b"".join([_u64.pack(seq) for seq in seqs])


def _put_unique(each: PutUnique) -> bytes:
    names = _entity_u64_entity.pack(*each.who, each.request, *each.publisher)
    return encode(each.key) + encode(each.value) + _expiry(each.expiry_ns) + names


def _add(each: Add) -> bytes:
    tail = _expiry(each.expiry_ns) + _entity.pack(*each.publisher)
    return encode(each.key) + encode(each.value) + _KINDS[each.init] + tail


def _subtract(each: Subtract) -> bytes:
    return encode(each.key) + encode(each.value) + _expiry(each.expiry_ns) + _entity.pack(*each.publisher)


def _writer_state(each: WriterState) -> bytes:
    outcomes = b"".join([_u64_u8.pack(*outcome) for outcome in each.outcomes])
    return _two_u64.pack(each.applied, each.output) + pack_varbyte(len(each.outcomes)) + outcomes


_WRITERS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    PutUnique: (1, _put_unique),
    PutUniqueResult: (
        2,
        lambda each: _KINDS[each.inserted] + _entity_u64_entity.pack(*each.who, each.request, *each.publisher),
    ),
    Erase: (3, lambda each: encode(each.key) + _entity.pack(*each.publisher)),
    Expire: (4, lambda each: encode(each.key) + _entity.pack(*each.publisher)),
    Add: (5, _add),
    Subtract: (6, _subtract),
    Clear: (7, lambda each: _entity.pack(*each.publisher)),
    AttachWriter: (8, lambda each: _u64_u16.pack(each.offset, each.ticks)),
    Keepalive: (9, lambda each: _u64.pack(each.seq)),
    CumulativeAck: (10, lambda each: _u64.pack(each.seq)),
    MissingEvents: (11, lambda each: _numbers(each.seqs)),
    AckClone: (12, lambda each: _u64_u16.pack(each.offset, each.ticks) + each.raw_pairs),
    RetransmitFailed: (13, lambda each: _u64.pack(each.seq)),
    WriterState: (128, _writer_state),
    Settled: (129, lambda each: _u64.pack(each.seq)),
    Leave: (130, lambda each: _u64.pack(each.seq)),
    SnapshotOffer: (131, lambda each: _two_u64_u16_u64.pack(each.snapshot, each.offset, each.ticks, each.entries)),
    SnapshotPiece: (132, lambda each: _two_u64_u32.pack(each.snapshot, each.first, each.crc) + each.raw_pairs),
    SnapshotTaken: (133, lambda each: _two_u64_u8.pack(each.snapshot, each.entries, each.again)),
}


# -- reading ------------------------------------------------------------------------------------------------------


def decode_message(payload: bytes) -> Message:
    """The message that all of ``payload`` is; raises ProtocolError."""
    try:
        seq, sender, sender_number, receiver, receiver_number = _head.unpack_from(payload)
        kind = payload[_head.size]
        read = _READERS.get(kind)
        if read is None:
            raise InvalidData(f"a store command of kind {kind} is unknown")
        command, end = read(payload, _head.size + 1)
    except (error, IndexError):
        raise InvalidData(f"a store command is cut off after {len(payload)} bytes") from None
    if end != len(payload):
        raise InvalidData(f"a store command has {len(payload)} bytes, its fields need {end}")
    return Message(seq, Entity(sender, sender_number), Entity(receiver, receiver_number), command)


def sender_endpoint(payload: bytes) -> bytes | None:
    """The endpoint that a message names as its sender's, found without reading the rest; None if it is cut off."""
    return payload[_SENDER] if len(payload) >= _head.size else None


def from_far(payload: bytes) -> bytes:
    """A message that came over an original, its sender taken for one of the original (``entity.far``)."""
    return payload[: _SENDER.stop] + _u64.pack(far(*_u64.unpack_from(payload, _SENDER.stop))) + payload[_RECEIVER_AT:]


def to_far(payload: bytes) -> bytes:
    """A message for somebody who may be taken for one of the original, with the number that it has."""
    number = near(*_u64.unpack_from(payload, _RECEIVER_AT + ENDPOINT_BYTES))
    return payload[: _RECEIVER_AT + ENDPOINT_BYTES] + _u64.pack(number) + payload[_RECEIVER_AT + ENTITY_BYTES :]


def bound(command: Action, sender: Entity) -> Action:
    """A command of a clone of chappe: its author is who sent it, and is not answered apart, whom it may have named."""
    if isinstance(command, PutUnique):
        return msgspec.structs.replace(command, who=NOBODY, publisher=sender)
    return command if command.publisher == sender else msgspec.structs.replace(command, publisher=sender)


def _read_expiry(data: bytes, pos: int) -> tuple[int | None, int]:
    flag = data[pos]
    if flag == 0:
        return None, pos + 1
    expiry_ns: int = _i64.unpack_from(data, pos + 1)[0]
    return expiry_ns, pos + 9


def _read_entity(data: bytes, pos: int) -> tuple[Entity, int]:
    return Entity(*_entity.unpack_from(data, pos)), pos + ENTITY_BYTES


def _read_put(data: bytes, pos: int) -> tuple[Command, int]:
    key, pos = decode_at(data, pos)
    value, pos = decode_at(data, pos)
    expiry_ns, pos = _read_expiry(data, pos)
    return Put(key, value, expiry_ns, Entity(*_entity.unpack_from(data, pos))), pos + ENTITY_BYTES


def _read_put_unique(data: bytes, pos: int) -> tuple[Command, int]:
    key, pos = decode_at(data, pos)
    value, pos = decode_at(data, pos)
    expiry_ns, pos = _read_expiry(data, pos)
    who, who_number, request, publisher, number = _entity_u64_entity.unpack_from(data, pos)
    command = PutUnique(key, value, expiry_ns, Entity(who, who_number), request, Entity(publisher, number))
    return command, pos + _entity_u64_entity.size


def _read_result(data: bytes, pos: int) -> tuple[Command, int]:
    who, who_number, request, publisher, number = _entity_u64_entity.unpack_from(data, pos + 1)
    command = PutUniqueResult(data[pos] != 0, Entity(who, who_number), request, Entity(publisher, number))
    return command, pos + 1 + _entity_u64_entity.size


def _read_erase(data: bytes, pos: int) -> tuple[Command, int]:
    key, pos = decode_at(data, pos)
    publisher, pos = _read_entity(data, pos)
    return Erase(key, publisher), pos


def _read_expire(data: bytes, pos: int) -> tuple[Command, int]:
    key, pos = decode_at(data, pos)
    publisher, pos = _read_entity(data, pos)
    return Expire(key, publisher), pos


def _read_add(data: bytes, pos: int) -> tuple[Command, int]:
    key, pos = decode_at(data, pos)
    value, pos = decode_at(data, pos)
    init = data[pos]
    if init > VECTOR:
        raise InvalidData(f"type {init} at byte {pos} is unknown")
    expiry_ns, pos = _read_expiry(data, pos + 1)
    publisher, pos = _read_entity(data, pos)
    return Add(key, value, init, expiry_ns, publisher), pos


def _read_subtract(data: bytes, pos: int) -> tuple[Command, int]:
    key, pos = decode_at(data, pos)
    value, pos = decode_at(data, pos)
    expiry_ns, pos = _read_expiry(data, pos)
    publisher, pos = _read_entity(data, pos)
    return Subtract(key, value, expiry_ns, publisher), pos


def _read_clear(data: bytes, pos: int) -> tuple[Command, int]:
    publisher, pos = _read_entity(data, pos)
    return Clear(publisher), pos


def _read_nack(data: bytes, pos: int) -> tuple[Command, int]:
    count, pos = parse_varbyte(data, pos)
    if count > CHANNEL_HELD_MAX + 1 or count * _u64.size > len(data) - pos:
        raise InvalidData(f"a nack claims {count} numbers")
    return MissingEvents(tuple(_u64.unpack_from(data, pos + 8 * place)[0] for place in range(count))), pos + 8 * count


def _read_ack_clone(data: bytes, pos: int) -> tuple[Command, int]:
    offset, interval = _u64_u16.unpack_from(data, pos)
    return AckClone(offset, interval, data[pos + _u64_u16.size :]), len(data)


def _read_offer(data: bytes, pos: int) -> tuple[Command, int]:
    return SnapshotOffer(*_two_u64_u16_u64.unpack_from(data, pos)), pos + _two_u64_u16_u64.size


def _read_piece(data: bytes, pos: int) -> tuple[Command, int]:
    snapshot, first, crc = _two_u64_u32.unpack_from(data, pos)
    return SnapshotPiece(snapshot, first, crc, data[pos + _two_u64_u32.size :]), len(data)


def _read_taken(data: bytes, pos: int) -> tuple[Command, int]:
    snapshot, entries, again = _two_u64_u8.unpack_from(data, pos)
    return SnapshotTaken(snapshot, entries, again != 0), pos + _two_u64_u8.size


def _parse_pairs(raw: bytes) -> list[Pair]:
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


def _read_attach_writer(data: bytes, pos: int) -> tuple[Command, int]:
    return AttachWriter(*_u64_u16.unpack_from(data, pos)), pos + _u64_u16.size


def _read_writer_state(data: bytes, pos: int) -> tuple[Command, int]:
    applied, output = _two_u64.unpack_from(data, pos)
    count, pos = parse_varbyte(data, pos + _two_u64.size)
    if count > STORE_OUTCOMES_MAX:
        raise InvalidData(f"a writer's state claims {count} outcomes")
    outcomes = tuple([_u64_u8.unpack_from(data, pos + _u64_u8.size * place) for place in range(count)])
    return WriterState(applied, output, outcomes), pos + _u64_u8.size * count


def _number_reader(make: Callable[[int], Command]) -> Callable[[bytes, int], tuple[Command, int]]:
    return lambda data, pos: (make(_u64.unpack_from(data, pos)[0]), pos + _u64.size)


_READERS: Final[dict[int, Callable[[bytes, int], tuple[Command, int]]]] = {
    0: _read_put,
    1: _read_put_unique,
    2: _read_result,
    3: _read_erase,
    4: _read_expire,
    5: _read_add,
    6: _read_subtract,
    7: _read_clear,
    8: _read_attach_writer,
    9: _number_reader(Keepalive),
    10: _number_reader(CumulativeAck),
    11: _read_nack,
    12: _read_ack_clone,
    13: _number_reader(RetransmitFailed),
    128: _read_writer_state,
    129: _number_reader(Settled),
    130: _number_reader(Leave),
    131: _read_offer,
    132: _read_piece,
    133: _read_taken,
}
