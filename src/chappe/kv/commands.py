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
134  MasterSilent       entity of a master: from the other one of its pair, or from itself, to all clones
135  ChangesOffer       as 131, and u64 how many of the entries are gone, a master, u64 number of its event: likewise
136  Several            list of (kind and fields of 0 to 7): from a master of chappe, to all clones
==== ================== ========================================================================================

From 128 on they never reach an original, but for 134: they are sent to one receiver, whose entity has chappe's mark, or
to all while no clone is an original's. An original drops that one, as every command that it does not know.

Several are events one after the other, of which the message has the number of the first. A master sends them while all
its clones have said that they take them, by a MissingEvents of no number, which nobody else ever answered to; an event
that is asked for again comes alone.

A MissingEvents of the number 0 asks for everything. A clone of chappe may put four more behind that: the master that it
followed, as three numbers, and its last event, so that a master that knows that state says only what has changed since
(``asking``). An original does not answer to more than one number; so each second time a clone asks without.

A master of chappe also tells what was added to a string or container, or taken from it, as Add and Subtract, if all
its clones are of chappe; otherwise, as the original does, with a Put of all that came out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error, unpack_from
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from chappe.channel import ASK_HANDSHAKE, Ack, Heartbeat, Nack
from chappe.channel import RetransmitFailed as RetransmitFailed
from chappe.compiled import Frozen
from chappe.data.binary import decode_at, encode
from chappe.data.order import VECTOR
from chappe.data.values import Value
from chappe.data.varbyte import pack_varbyte, parse_varbyte
from chappe.defaults import CHANNEL_HELD_MAX, CHANNEL_TICK_S, STORE_OUTCOMES_MAX
from chappe.errors import InvalidData
from chappe.kv.entity import ENDPOINT_BYTES, ENTITY_BYTES, NOBODY, Entity, far, near

Pair: TypeAlias = tuple[Value, Value]
DONE: Final = 0  # an outcome that never travels
SEVERAL: Final = 136  # the kind
NOT_INSERTED: Final = 255  # that of a put_unique whose key had a value


class Put(Frozen, frozen=True):
    """Set a value; ``expiry_ns`` from when the master takes it."""

    key: Value
    value: Value
    expiry_ns: int | None
    publisher: Entity


class PutUnique(Frozen, frozen=True):
    """Set a value if there is none; ``who`` and ``request`` name the answer."""

    key: Value
    value: Value
    expiry_ns: int | None
    who: Entity
    request: int
    publisher: Entity


class PutUniqueResult(Frozen, frozen=True):
    """The answer."""

    inserted: bool
    who: Entity
    request: int
    publisher: Entity


class Erase(Frozen, frozen=True):
    """Remove a key."""

    key: Value
    publisher: Entity


class Expire(Frozen, frozen=True):
    """A key has lived its time."""

    key: Value
    publisher: Entity


class Add(Frozen, frozen=True):
    """Add to a value; a missing one starts as the empty value of type ``init``."""

    key: Value
    value: Value
    init: int
    expiry_ns: int | None
    publisher: Entity


class Subtract(Frozen, frozen=True):
    """Take away from a value."""

    key: Value
    value: Value
    expiry_ns: int | None
    publisher: Entity


class Clear(Frozen, frozen=True):
    """Remove all keys."""

    publisher: Entity


class Changed(Frozen, frozen=True):
    """What a master tells of a change within a value: the change, or all that came out of it to those who want that."""

    change: Add | Subtract
    whole: Put


class AttachWriter(Frozen, frozen=True):
    """A clone's handshake: its next write has the number ``offset`` + 1."""

    offset: int
    ticks: int


# What a channel says travels as it is; these are the original's names for it.
Keepalive: TypeAlias = Heartbeat
CumulativeAck: TypeAlias = Ack
MissingEvents: TypeAlias = Nack


class AckClone(Frozen, frozen=True):
    """A master's handshake: ``pairs`` is all it has, behind its event ``offset``.

    The pairs are read only when asked for: most of its receivers are none.
    """

    offset: int
    ticks: int
    raw_pairs: bytes  # varbyte count, then key and value by turns

    def pairs(self) -> list[Pair]:
        """All entries; raises ProtocolError."""
        return _parse_pairs(self.raw_pairs)


class WriterState(Frozen, frozen=True):
    """A master to a clone: its writes up to ``applied`` are done and durable, all well but for ``outcomes``.

    What they changed has reached the clone when it has the master's event ``output``. Outcomes are pairs of a write's
    number and what became of it, the code of an error or ``NOT_INSERTED``, and are repeated until ``Settled``.
    """

    applied: int
    output: int
    outcomes: tuple[tuple[int, int], ...]


class Settled(Frozen, frozen=True):
    """A clone to its master: it knows what became of its writes up to ``seq``."""

    seq: int


class Leave(Frozen, frozen=True):
    """A clone to its master: it is closed, and made so many writes; nothing of it follows."""

    seq: int


class SnapshotOffer(Frozen, frozen=True):
    """A master to a clone of chappe: all it has behind its event ``offset`` are ``entries``, which come in pieces.

    ``snapshot`` is a number of the master's, never used twice. It is the master's handshake, as ``AckClone`` is.
    """

    snapshot: int
    offset: int
    ticks: int
    entries: int


class SnapshotPiece(Frozen, frozen=True):
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


class SnapshotTaken(Frozen, frozen=True):
    """A clone to its master: it has the first ``entries`` of a snapshot, and room for more.

    With ``again`` nothing came for a while, and what follows is to be sent again. With all entries it is done.
    """

    snapshot: int
    entries: int
    again: bool = False


class MasterSilent(Frozen, frozen=True):
    """One of a pair of masters: ``master`` is no longer heard, or is no longer master if it says so itself.

    A clone that follows it, and has not heard of it either, looks for another one.
    """

    master: Entity


class ChangesOffer(Frozen, frozen=True):
    """A master to a clone of chappe that has what ``master`` had behind its ``event``: what has changed since.

    As a snapshot, but that it holds ``entries`` which may have changed, and of them the last ``gone`` are keys that are
    not there any more, with a value that says nothing. All else is as the clone has it.
    """

    snapshot: int
    offset: int
    ticks: int
    entries: int
    gone: int
    master: Entity
    event: int


class Several(Frozen, frozen=True):
    """Changes one after the other; the message has the number of the first."""

    changes: tuple[Action, ...]


Offer: TypeAlias = SnapshotOffer | ChangesOffer
Action: TypeAlias = Put | PutUnique | PutUniqueResult | Erase | Expire | Add | Subtract | Clear
Told: TypeAlias = Action | Changed
Command: TypeAlias = (
    Action | AttachWriter | Keepalive | CumulativeAck | MissingEvents | AckClone | RetransmitFailed | WriterState
    | Settled | Leave | SnapshotOffer | SnapshotPiece | SnapshotTaken | MasterSilent | ChangesOffer | Several
)  # fmt: skip
ACTIONS: Final = (Put, PutUnique, PutUniqueResult, Erase, Expire, Add, Subtract, Clear)


TAKES_SEVERAL: Final = MissingEvents(())  # a clone to its master


class Message(Frozen, frozen=True):
    """A command with where it comes from and whom it is for; ``seq`` is 0 unless it is an action, or several."""

    seq: int
    sender: Entity
    receiver: Entity
    command: Command


_head: Final = Struct(">Q16sQ16sQ")
_ENDPOINT: Final = Struct(">QQ")
_SENDER: Final = 8
_SENDER_END: Final = _SENDER + ENDPOINT_BYTES
_RECEIVER_AT: Final = 8 + ENTITY_BYTES
_entity: Final = Struct(">16sQ")
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
            (b"\0", encode(command.key), encode(command.value), _pack_expiry(command.expiry_ns),
             _entity.pack(*command.publisher))
        )  # fmt: skip
    kind, fields = _WRITERS[type(command)]
    values = msgspec.structs.astuple(command)
    packed = [field.pack(each) for field, each in zip(fields, values, strict=True)]
    return _KINDS[kind] + b"".join(packed)


def encode_several(bodies: Sequence[bytes]) -> bytes:
    """``Several``, made of actions that ``encode_command`` made."""
    return b"".join((_KINDS[SEVERAL], pack_varbyte(len(bodies)), *bodies))


def encode_pairs(pairs: Sequence[bytes]) -> bytes:
    """The list of a snapshot, or of a piece of one; each of ``pairs`` is a key and its value, encoded."""
    return pack_varbyte(len(pairs)) + b"".join(pairs)


def piece(snapshot: int, first: int, raw_pairs: bytes) -> SnapshotPiece:
    """A piece with its checksum."""
    return SnapshotPiece(snapshot, first, crc32c(raw_pairs), raw_pairs)


def asking(state: tuple[Entity, int] | None) -> MissingEvents:
    """Ask for everything, or for what has changed since a master and its last event, if a master knows those."""
    if state is None:
        return MissingEvents(ASK_HANDSHAKE)
    (endpoint, number), event = state
    return MissingEvents((*ASK_HANDSHAKE, *_ENDPOINT.unpack(endpoint), number, event))


def asked(seqs: tuple[int, ...]) -> tuple[Entity, int] | None:
    """The state that the numbers of an ``asking`` name."""
    if len(seqs) != 5 or seqs[:1] != ASK_HANDSHAKE:
        return None
    _, high, low, number, event = seqs
    return Entity(_ENDPOINT.pack(high, low), number), event


def ticks(heartbeat_s: float) -> int:
    """A heartbeat interval as it travels."""
    return max(1, round(heartbeat_s / CHANNEL_TICK_S))


# -- reading ------------------------------------------------------------------------------------------------------


def decode_message(payload: bytes) -> Message:
    """The message that all of ``payload`` is; raises ProtocolError."""
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
    """The endpoint that a message names as its sender's, found without reading the rest; None if it is cut off."""
    return payload[_SENDER:_SENDER_END] if len(payload) >= _head.size else None


def from_far(payload: bytes) -> bytes:
    """A message that came over an original, its sender taken for one of the original (``entity.far``)."""
    return payload[:_SENDER_END] + _U64.pack(far(*_U64.unpack_from(payload, _SENDER_END))) + payload[_RECEIVER_AT:]


def to_far(payload: bytes) -> bytes:
    """A message for somebody who may be taken for one of the original, with the number that it has."""
    number = near(*_U64.unpack_from(payload, _RECEIVER_AT + ENDPOINT_BYTES))
    return payload[: _RECEIVER_AT + ENDPOINT_BYTES] + _U64.pack(number) + payload[_RECEIVER_AT + ENTITY_BYTES :]


def bound(command: Action, sender: Entity) -> Action:
    """A command of a clone of chappe: its author is who sent it, and is not answered apart, whom it may have named."""
    if isinstance(command, PutUnique):
        return msgspec.structs.replace(command, who=NOBODY, publisher=sender)
    return command if command.publisher == sender else msgspec.structs.replace(command, publisher=sender)


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


def _pack_seqs(seqs: tuple[int, ...]) -> bytes:
    return pack_varbyte(len(seqs)) + b"".join([_U64.pack(seq) for seq in seqs])


def _read_seqs(data: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    count, pos = parse_varbyte(data, pos)
    if count > CHANNEL_HELD_MAX + 1 or count * _U64.size > len(data) - pos:
        raise InvalidData(f"a nack claims {count} numbers")
    return unpack_from(f">{count}Q", data, pos), pos + _U64.size * count


def _pack_outcomes(outcomes: tuple[tuple[int, int], ...]) -> bytes:
    return pack_varbyte(len(outcomes)) + b"".join([_OUTCOME.pack(*each) for each in outcomes])


def _read_outcomes(data: bytes, pos: int) -> tuple[tuple[tuple[int, int], ...], int]:
    count, pos = parse_varbyte(data, pos)
    if count > STORE_OUTCOMES_MAX:
        raise InvalidData(f"a writer's state claims {count} outcomes")
    found = tuple([_OUTCOME.unpack_from(data, pos + _OUTCOME.size * place) for place in range(count)])
    return found, pos + _OUTCOME.size * count


def _pack_several(changes: tuple[Action, ...]) -> bytes:
    return pack_varbyte(len(changes)) + b"".join([encode_command(each) for each in changes])


def _read_several(data: bytes, pos: int) -> tuple[tuple[Action, ...], int]:
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
        if data[pos] > _ACTIONS_UP_TO:
            raise InvalidData(f"a store command of kind {data[pos]} is no change")
        command, pos = _read_command(data, pos)
        found.append(command)
    return tuple(found), pos


_ACTIONS_UP_TO: Final = 7  # the kinds of ``Action``
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_FLAG: Final = Struct(">?")
_OUTCOME: Final = Struct(">QB")
_VALUE: Final = _Field(encode, decode_at)
_EXPIRY: Final = _Field(_pack_expiry, _read_expiry)
_TAG: Final = _Field(lambda tag: _KINDS[tag], _read_tag)
_ENTITY: Final = _Field(
    lambda entity: _entity.pack(*entity),
    lambda data, pos: (Entity(*_entity.unpack_from(data, pos)), pos + ENTITY_BYTES),
)
_SEQS: Final = _Field(_pack_seqs, _read_seqs)
_OUTCOMES: Final = _Field(_pack_outcomes, _read_outcomes)
_SEVERAL: Final = _Field(_pack_several, _read_several)
_REST: Final = _Field(bytes, lambda data, pos: (data[pos:], len(data)))  # pairs, which are looked into later

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
    131: (SnapshotOffer, (_U64, _U64, _U16, _U64)),
    132: (SnapshotPiece, (_U64, _U64, _U32, _REST)),
    133: (SnapshotTaken, (_U64, _U64, _FLAG)),
    134: (MasterSilent, (_ENTITY,)),
    135: (ChangesOffer, (_U64, _U64, _U16, _U64, _U64, _ENTITY, _U64)),
    SEVERAL: (Several, (_SEVERAL,)),
}
_WRITERS: Final = {made: (kind, fields) for kind, (made, fields) in _LAYOUTS.items()}
