"""Messages of the two servers of a pair and their witness, and their bytes.

A *state* is one digit, as the Guide's programs send it. Ends of chappe send each other a *beat* instead: it
begins with ``BEAT``, which is no digit, and has its own prefix of subscriptions for that reason.

Numbers are big-endian. A beat is ``BEAT``, the version, the fields of ``Beat`` in their order, and the name of the
pair; a claim and an answer of a witness begin with ``CLAIM`` and ``ANSWER``. Times are microseconds of the sender's own
monotonic clock: only the sender compares them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from chappe.errors import ProtocolError

# What a server is, and says of itself in one digit.
PRIMARY: Final = 1  # configured as primary, not decided yet
BACKUP: Final = 2  # configured as backup, not decided yet
ACTIVE: Final = 3
PASSIVE: Final = 4
STATES: Final = {b"1": PRIMARY, b"2": BACKUP, b"3": ACTIVE, b"4": PASSIVE}
NAMES: Final = {PRIMARY: "primary", BACKUP: "backup", ACTIVE: "active", PASSIVE: "passive"}

BEAT: Final = b"*"
CLAIM: Final = b"?"
ANSWER: Final = b"!"
VERSION: Final = 1
NAME_BYTES_MAX: Final = 255
TERM_MAX: Final = 2**62
HEARTBEAT_MS_MAX: Final = 60_000

# What the copy of a server is worth: with that of the other it says whose is the whole one.
NOTHING: Final = 0  # none, or not all
COPY: Final = 1  # it had all that the active one of the term had confirmed, when the two were together
LEADER: Final = 2  # it is what the active one of the term confirmed

_BEAT: Final = struct.Struct(">cBBBIQQQQQQQBQQQ")
_CLAIM: Final = struct.Struct(">cBBBQQQQ")
_ANSWER: Final = struct.Struct(">cBBQQQ")


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """The origin of a server's data: its term and rank. The higher of two has all that was confirmed."""

    term: int = 0
    rank: int = NOTHING


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat between ends of chappe.

    Args:
        state: As in the Guide.
        role: ``PRIMARY`` or ``BACKUP``, as it is configured.
        heartbeat_ms: The interval between two.
        life: A number drawn for each life of a server.
        sent_us: When it was sent.
        echo_life: The life of the partner that was heard last, and
        echo_us: ... ``sent_us`` of its last beat: so each knows whether it is heard.
        term: In which the sender is active, or 0.
        seen: The highest term that it knows of.
        record_term: The term of its copy; see ``Record``.
        record_rank: The rank of its copy.
        wish: The term in which it would be active, if the partner agrees, or 0.
        consent: The partner's wish that it agrees to, or 0.
        paired_life: The life of the partner without whose confirmation it confirms nothing, or 0.
    """

    state: int
    role: int
    heartbeat_ms: int
    life: int
    sent_us: int
    echo_life: int = 0
    echo_us: int = 0
    term: int = 0
    seen: int = 0
    record_term: int = 0
    record_rank: int = NOTHING
    wish: int = 0
    consent: int = 0
    paired_life: int = 0

    @property
    def record(self) -> Record:
        return Record(self.record_term, self.record_rank)


@dataclass(frozen=True, slots=True)
class Claim:
    """A server asks its witness: to confirm writes alone in a term (``alone``), or tells it that it no longer does.

    Args:
        role: Who asks.
        life: In which life.
        count: Numbers the claims of a life.
        term: In which it is, or would be, active.
        base: The term of the data that it has.
    """

    alone: bool
    role: int
    life: int
    count: int
    term: int
    base: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A witness's answer to claim ``count`` of a life: ``term`` is the highest that it knows of."""

    granted: bool
    life: int
    count: int
    term: int


def encode_beat(beat: Beat, pair: bytes) -> bytes:
    return (
        _BEAT.pack(
            BEAT, VERSION, beat.state, beat.role, beat.heartbeat_ms, beat.life, beat.sent_us, beat.echo_life,
            beat.echo_us, beat.term, beat.seen, beat.record_term, beat.record_rank, beat.wish, beat.consent,
            beat.paired_life,
        )
        + pair
    )  # fmt: skip


def decode_state(frame: bytes) -> int | tuple[Beat, bytes]:
    """Decode the digit of an original, or a beat and the name of its pair. Raises ProtocolError: it is neither."""
    state = STATES.get(frame)
    if state is not None:
        return state
    if frame[:1] != BEAT or not _BEAT.size <= len(frame) <= _BEAT.size + NAME_BYTES_MAX:
        raise ProtocolError(f"{len(frame)} bytes that are neither a state nor a heartbeat of a pair")
    _, version, state, role, *fields = _BEAT.unpack_from(frame)
    beat = Beat(state, role, *fields)
    if version != VERSION:
        raise ProtocolError(f"heartbeat of version {version}; this is version {VERSION}")
    if state not in NAMES or role not in (PRIMARY, BACKUP) or (state in (PRIMARY, BACKUP) and state != role):
        raise ProtocolError(f"heartbeat of role {role} in state {state}")
    if not 0 < beat.heartbeat_ms <= HEARTBEAT_MS_MAX or not beat.life or beat.record_rank > LEADER:
        raise ProtocolError("heartbeat with an interval, a life or a rank that cannot be")
    terms = (beat.term, beat.seen, beat.record_term, beat.wish, beat.consent)
    if max(terms) > TERM_MAX or (beat.term > 0) != (state == ACTIVE) or max(terms[:3]) > beat.seen:
        raise ProtocolError(f"heartbeat with terms {terms} in state {state}")
    return beat, frame[_BEAT.size :]


def encode_claim(claim: Claim, pair: bytes) -> bytes:
    return _CLAIM.pack(CLAIM, VERSION, claim.alone, claim.role, claim.life, claim.count, claim.term, claim.base) + pair


def decode_claim(frame: bytes) -> tuple[Claim, bytes]:
    """Decode a claim and the name of its pair; raises ProtocolError."""
    if frame[:1] != CLAIM or not _CLAIM.size <= len(frame) <= _CLAIM.size + NAME_BYTES_MAX:
        raise ProtocolError(f"invalid claim of {len(frame)} bytes")
    _, version, alone, role, life, count, term, base = _CLAIM.unpack_from(frame)
    if version != VERSION:
        raise ProtocolError(f"claim of version {version}; this is version {VERSION}")
    if alone > 1 or role not in (PRIMARY, BACKUP) or not life or not 0 < term <= TERM_MAX or base > term:
        raise ProtocolError(f"claim of role {role} for term {term} with data of term {base}")
    return Claim(bool(alone), role, life, count, term, base), frame[_CLAIM.size :]


def encode_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(ANSWER, VERSION, answer.granted, answer.life, answer.count, answer.term)


def decode_answer(frame: bytes) -> Answer:
    if frame[:1] != ANSWER or len(frame) != _ANSWER.size:
        raise ProtocolError(f"invalid answer of a witness, of {len(frame)} bytes")
    _, version, granted, life, count, term = _ANSWER.unpack(frame)
    if version != VERSION or granted > 1 or term > TERM_MAX:
        raise ProtocolError(f"answer of version {version} about term {term}")
    return Answer(bool(granted), life, count, term)


Confirms: TypeAlias = Literal["nothing", "alone", "paired"]
NO_RECORD: Final = Record()
OWNER: Final = "owner"  # decisions are delivered to it
PARTNER: Final = "partner"
WITNESS: Final = "witness"


@dataclass(frozen=True, slots=True)
class PairMemory:
    """A durable server's persistent state: the term that it was active in last, and the record of its data."""

    term: int = 0
    record: Record = NO_RECORD


@dataclass(frozen=True, slots=True)
class PartnerBeat:
    """A beat for the partner: ``state`` if that is an original (empty: none), ``beat`` if it is an end of chappe."""

    state: bytes
    beat: bytes


@dataclass(frozen=True, slots=True)
class Leading:
    term: int


@dataclass(frozen=True, slots=True)
class FollowingPartner:
    """Follow the partner in everything; ``life`` and ``term`` are 0 of an original."""

    term: int
    life: int


@dataclass(frozen=True, slots=True)
class Resting:
    """Serve no clients and follow no partner, until it is known which server is active."""


@dataclass(frozen=True, slots=True)
class Confirming:
    """The writes that may be confirmed from now on: those that are here, that the partner ``life`` has too, or none."""

    what: Confirms
    life: int


Does: TypeAlias = Leading | FollowingPartner | Resting
Decision: TypeAlias = Does | Confirming
