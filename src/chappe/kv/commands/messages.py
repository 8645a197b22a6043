"""The commands that masters and clones exchange, and the messages that carry them.

Lists in the commands of data stores: how they become bytes, and are read from bytes that may be wrong.

Each reader raises ProtocolError, or lets IndexError or ``struct.error`` pass where something is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error, unpack_from
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from chappe.channel import ASK_HANDSHAKE, Ack, Heartbeat, Nack
from chappe.channel import RetransmitFailed as RetransmitFailed
from chappe.compiled import Frozen
from chappe.data.binary import decode_at, pack_varbyte, parse_varbyte
from chappe.data.values import Value
from chappe.defaults import CHANNEL_HELD_MAX, CHANNEL_TICK_S, STORE_OUTCOMES_MAX
from chappe.errors import InvalidData
from chappe.kv.backend import HistoryRow
from chappe.kv.entity import NOBODY, Entity

Pair: TypeAlias = tuple[Value, Value]
Row: TypeAlias = tuple[Value, Value, int, int | None]  # key, value, revision, when it expires
Past: TypeAlias = tuple[int, bytes]  # revision and body of a change in a key's history
_U64: Final = Struct(">Q")
_OUTCOME: Final = Struct(">QB")
_STAYS: Final = Struct(">QB")  # revision, 0
_EXPIRES: Final = Struct(">QBq")  # revision, 1, when


def encode_pairs(pairs: Sequence[bytes]) -> bytes:
    """Return the list of a snapshot, or of a piece of one; each of ``pairs`` is a key and its value, encoded."""
    return pack_varbyte(len(pairs)) + b"".join(pairs)


def parse_pairs(raw: bytes) -> list[Pair]:
    """Return all entries of a snapshot, or of a piece of one."""
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
    """Return an entry of a piece; ``pair`` is its key and value, encoded."""
    return pair + (_STAYS.pack(revision, 0) if expires_ns is None else _EXPIRES.pack(revision, 1, expires_ns))


def parse_rows(raw: bytes) -> list[Row]:
    """Return all entries of a piece of a snapshot."""
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
    parts = [pack_varbyte(len(rows))]
    for row in rows:
        parts += (_U64.pack(row.revision), pack_varbyte(len(row.body)), row.body)
    return b"".join(parts)


def parse_past(raw: bytes) -> list[Past]:
    """Return changes of one key, with rising revisions."""
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
    return pack_varbyte(len(seqs)) + b"".join([_U64.pack(seq) for seq in seqs])


def read_seqs(data: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    """Return missing numbers, and where they end."""
    count, pos = parse_varbyte(data, pos)
    if count > CHANNEL_HELD_MAX + 1 or count * _U64.size > len(data) - pos:
        raise InvalidData(f"a nack claims {count} numbers")
    return unpack_from(f">{count}Q", data, pos), pos + _U64.size * count


def pack_outcomes(outcomes: tuple[tuple[int, int], ...]) -> bytes:
    return pack_varbyte(len(outcomes)) + b"".join([_OUTCOME.pack(*each) for each in outcomes])


def read_outcomes(data: bytes, pos: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Parse outcomes of writes; returns them and the position behind them."""
    count, pos = parse_varbyte(data, pos)
    if count > STORE_OUTCOMES_MAX:
        raise InvalidData(f"a writer's state claims {count} outcomes")
    found = tuple([_OUTCOME.unpack_from(data, pos + _OUTCOME.size * place) for place in range(count)])
    return found, pos + _OUTCOME.size * count


DONE: Final = 0  # an outcome that never travels
ALL: Final = 0  # states of a ``HistoryTold``
MORE: Final = 1
NO_HISTORY: Final = 2
NOT_INSERTED: Final = 255  # that of a put_unique whose key had a value
_ENDPOINT: Final = Struct(">QQ")


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
    inserted: bool
    who: Entity
    request: int
    publisher: Entity


class Erase(Frozen, frozen=True):
    key: Value
    publisher: Entity


class Expire(Frozen, frozen=True):
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
    key: Value
    value: Value
    expiry_ns: int | None
    publisher: Entity


class Clear(Frozen, frozen=True):
    publisher: Entity


class PutIf(Frozen, frozen=True):
    """A clone of chappe: set a value if nobody has changed it since ``revision``; 0: if there is none."""

    key: Value
    value: Value
    expiry_ns: int | None
    revision: int
    publisher: Entity


class EraseIf(Frozen, frozen=True):
    """A clone of chappe: remove a key if nobody has changed it since ``revision``."""

    key: Value
    revision: int
    publisher: Entity


class Expiring(Frozen, frozen=True):
    """A change after which the key expires at ``expires_ns``, nanoseconds since 1970, whatever the change says."""

    expires_ns: int
    change: Put | Add | Subtract

    @property
    def publisher(self) -> Entity:
        return self.change.publisher


class ExpiresAt(Frozen, frozen=True):
    """The same of the event ``revision``, to a clone of chappe beside those of the original."""

    key: Value
    revision: int
    expires_ns: int


class Changed(Frozen, frozen=True):
    """The commands that tell clones of a change: one for chappe's clones, one for all where there are originals."""

    change: Add | Subtract | Expiring
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
    """A master's handshake: ``pairs``, read when asked for, are all it has behind its event ``offset``."""

    offset: int
    ticks: int
    raw_pairs: bytes  # varbyte count, then key and value by turns

    def pairs(self) -> list[Pair]:
        return parse_pairs(self.raw_pairs)


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

    ``snapshot`` is a number of the master's, never used twice. It is the master's handshake, as ``AckClone`` is. What
    was written before this master was master has ``base`` for its revision.
    """

    snapshot: int
    offset: int
    ticks: int
    entries: int
    base: int


class SnapshotPiece(Frozen, frozen=True):
    """Some entries of a snapshot: that number ``first`` and those behind it; the first of all has 0."""

    snapshot: int
    first: int
    crc: int
    raw_rows: bytes

    def rows(self) -> list[Row]:
        """The entries; raises ProtocolError, also if they are not what was sent."""
        if crc32c(self.raw_rows) != self.crc:
            raise InvalidData(f"a piece of a snapshot, from entry {self.first} on, does not match its checksum")
        return parse_rows(self.raw_rows)


class SnapshotTaken(Frozen, frozen=True):
    """A clone to its master: it has the first ``entries`` of a snapshot, and room for more.

    With ``again`` nothing came for a while, and what follows is to be sent again. With all entries it is done.
    """

    snapshot: int
    entries: int
    again: bool = False


class MasterSilent(Frozen, frozen=True):
    """A server of a chain: ``master`` was replaced, or is no longer master if it says so itself.

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
    base: int
    gone: int
    master: Entity
    event: int


class PositionAsked(Frozen, frozen=True):
    """A clone asks its master for its position; question numbers rise."""

    question: int


class Position(Frozen, frozen=True):
    """The answer: all changes up to the question are durable, and ``output`` is the last event's number."""

    question: int
    output: int


class HistoryAsked(Frozen, frozen=True):
    """A clone of chappe asks for the changes of a key below a revision; 0: for all."""

    question: int
    key: Value
    below: int


class HistoryTold(Frozen, frozen=True):
    """The answer: the newest of them, and whether they are ``ALL``, there are ``MORE``, or none are kept."""

    question: int
    state: int
    raw_past: bytes

    def past(self) -> list[Past]:
        """Return revisions and bodies; raises ProtocolError."""
        return parse_past(self.raw_past)


class Several(Frozen, frozen=True):
    """Changes one after the other; the message has the number of the first."""

    changes: tuple[Event, ...]


Offer: TypeAlias = SnapshotOffer | ChangesOffer
Mutation: TypeAlias = Put | PutUnique | PutUniqueResult | Erase | Expire | Add | Subtract | Clear | PutIf | EraseIf
Event: TypeAlias = Mutation | Expiring
Told: TypeAlias = Mutation | Changed
Command: TypeAlias = (
    Mutation | AttachWriter | Keepalive | CumulativeAck | MissingEvents | AckClone | RetransmitFailed | WriterState
    | Settled | Leave | SnapshotOffer | SnapshotPiece | SnapshotTaken | MasterSilent | ChangesOffer | Several
    | PositionAsked | Position | Expiring | ExpiresAt | HistoryAsked | HistoryTold
)  # fmt: skip
ACTIONS: Final = (Put, PutUnique, PutUniqueResult, Erase, Expire, Add, Subtract, Clear, PutIf, EraseIf)
EVENTS: Final = (*ACTIONS, Expiring)  # what a master tells


class Message(Frozen, frozen=True):
    """A command with where it comes from and whom it is for; ``seq`` is 0 unless it is an action, or several."""

    seq: int
    sender: Entity
    receiver: Entity
    command: Command


def piece(snapshot: int, first: int, raw_rows: bytes) -> SnapshotPiece:
    return SnapshotPiece(snapshot, first, crc32c(raw_rows), raw_rows)


def asking(state: tuple[Entity, int] | None) -> MissingEvents:
    """Return the question for everything, or for changes since a master's last event, if a master knows those."""
    if state is None:
        return MissingEvents(ASK_HANDSHAKE)
    (endpoint, number), event = state
    return MissingEvents((*ASK_HANDSHAKE, *_ENDPOINT.unpack(endpoint), number, event))


def asked(seqs: tuple[int, ...]) -> tuple[Entity, int] | None:
    """Return the state that the numbers of an ``asking`` name."""
    if len(seqs) != 5 or seqs[:1] != ASK_HANDSHAKE:
        return None
    _, high, low, number, event = seqs
    return Entity(_ENDPOINT.pack(high, low), number), event


def ticks(heartbeat_s: float) -> int:
    return max(1, round(heartbeat_s / CHANNEL_TICK_S))


def bound(command: Mutation, sender: Entity) -> Mutation:
    """Return a clone's command with its sender as author; the answer that it may name is not sent apart."""
    if isinstance(command, PutUnique):
        return msgspec.structs.replace(command, who=NOBODY, publisher=sender)
    return command if command.publisher == sender else msgspec.structs.replace(command, publisher=sender)
