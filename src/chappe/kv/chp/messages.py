"""The messages of the Clustered Hashmap Protocol, models 5 and 6, and their frames.

``Update`` is every message of five frames: KVSET, KVPUB, KVSYNC, KTHXBAI, HUGZ; the key tells the last two. ICANHAZ has
two. Frames are key, sequence (8 bytes, big endian, signed), UUID (16 bytes or empty), properties (``name=value``, each
ended by a newline) and body; an empty body deletes the key.

HUGZ of a server of chappe has its epoch as UUID, and properties of its own (``Beat``), which other clients read over.
Its sequence is 0 as RFC 12 writes it: the Guide's clients take any higher number for their own, and would then discard
updates that they never had.

Departures: frames are checked, and larger ones than the bounds refused. The Guide's programs take everything with the
right number of frames, and end at any other number.

Source: ZeroMQ RFC 12, as corrected by what the Guide's C programs send (tests/vectors/clone).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from chappe.defaults import (
    MAP_BODY_BYTES_MAX,
    MAP_KEY_BYTES_MAX,
    MAP_PROPERTIES_BYTES_MAX,
    MAP_SUBTREE_BYTES_MAX,
)
from chappe.errors import ProtocolError

ICANHAZ: Final = b"ICANHAZ?"
KTHXBAI: Final = b"KTHXBAI"
HUGZ: Final = b"HUGZ"
RESERVED: Final = frozenset({ICANHAZ, KTHXBAI, HUGZ})  # no key may be one of them: clients would take it for a command
UUID_BYTES: Final = 16
TTL_MS_MAX: Final = 100 * 365 * 24 * 3600 * 1000  # a hundred years; longer ones are cut to it
NUMBERS: Final = 1 << 62  # sequences and other numbers from here on are refused: nobody counts so far
STEPS: Final = 1 << 48  # so are numbers of a writer's steps, which are 48 bits of a UUID
_SEQUENCE: Final = struct.Struct(">q")
_ZERO: Final = bytes(8)
_TTL: Final = b"ttl="
_SECOND_MS: Final = 1000
_ABSOLUTE_S: Final = 10**9  # a ttl from here on is a moment in seconds since 1970, ...
_ABSOLUTE_MS: Final = 10**12  # ... and from here on in milliseconds


class Update(msgspec.Struct, frozen=True):
    """One message of five frames. ``properties`` are raw, without a ttl, which is ``ttl`` as it was written."""

    key: bytes
    sequence: int
    uuid: bytes
    properties: bytes
    body: bytes
    ttl: bytes = b""


BEAT_TEXT_MAX: Final = 300  # characters of a role, or of where a witness is


class Beat(msgspec.Struct, frozen=True):
    """The content of a chappe server's HUGZ: its epoch, last sequence, interval of heartbeats, and whether it is
    active.

    One of a pair also tells its ``role``, and where the pair's witness is if it has one; others leave both empty.
    """

    epoch: bytes
    sequence: int
    every_ms: int
    active: bool
    role: str = ""
    witness: str = ""


def is_key(key: bytes) -> bool:
    return len(key) <= MAP_KEY_BYTES_MAX and key not in RESERVED


def encode_update(update: Update) -> list[bytes]:
    """Return the five frames; the ttl comes last, as the Guide's programs write it into snapshots."""
    properties = update.properties + _TTL + update.ttl + b"\n" if update.ttl else update.properties
    return [update.key, _SEQUENCE.pack(update.sequence), update.uuid, properties, update.body]


def decode_update(frames: Sequence[bytes]) -> Update:
    """Decode a message; raises ProtocolError."""
    if len(frames) != 5:
        raise ProtocolError(f"a message of a map has five frames, not {len(frames)}")
    key, sequence, uuid, properties, body = frames
    if len(sequence) != 8:
        raise ProtocolError(f"a sequence has 8 bytes, not {len(sequence)}")
    if uuid and len(uuid) != UUID_BYTES:
        raise ProtocolError(f"a UUID has {UUID_BYTES} bytes, not {len(uuid)}")
    if len(key) > MAP_KEY_BYTES_MAX:
        raise ProtocolError(f"a key has {len(key):,} bytes; more than {MAP_KEY_BYTES_MAX:,} are refused")
    if len(properties) > MAP_PROPERTIES_BYTES_MAX or len(body) > MAP_BODY_BYTES_MAX:
        raise ProtocolError(f"properties of {len(properties):,} bytes, a value of {len(body):,}: more than is taken")
    (number,) = _SEQUENCE.unpack(sequence)
    if number >= NUMBERS:
        raise ProtocolError(f"a sequence of {number:,}")
    if not properties:
        return Update(key, number, uuid, b"", body)
    rest, ttl = split_properties(properties)
    return Update(key, number, uuid, rest, body, ttl)


def split_properties(raw: bytes) -> tuple[bytes, bytes]:
    """Return the well-formed lines without the ttl, and the last ttl."""
    kept: list[bytes] = []
    ttl = b""
    *lines, _ = raw.split(b"\n")  # what has no newline at its end is none
    for line in lines:
        if line.startswith(_TTL):
            ttl = line[len(_TTL) :]
        elif b"=" in line and b"\0" not in line and line[0] != 0x3D:
            kept.append(line + b"\n")
    return b"".join(kept), ttl


def are_properties(raw: bytes) -> bool:
    """Return True if properties are well-formed, not too many, and without a ttl."""
    return len(raw) <= MAP_PROPERTIES_BYTES_MAX and split_properties(raw) == (raw, b"")


def properties_of(raw: bytes) -> dict[str, str]:
    """Return the properties by name; of a name that comes twice the last."""
    found: dict[str, str] = {}
    for line in raw.split(b"\n"):
        name, mark, value = line.partition(b"=")
        if mark:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def ttl_ms(text: bytes, wall_ms: int) -> int | None:
    """Return the milliseconds that an entry has left, None for ever.

    Text is whole seconds, as in updates, or a moment, as in snapshots: of 13 digits in milliseconds since 1970, of 10
    in seconds, as the Guide's Python programs write it with decimals. Text that is not a number means None; a negative
    number is over.
    """
    try:
        seconds = float(text)
    except ValueError:
        return None
    if seconds != seconds or seconds == 0:
        return None
    if seconds >= _ABSOLUTE_MS:
        left = seconds - wall_ms
    elif seconds >= _ABSOLUTE_S:
        left = seconds * _SECOND_MS - wall_ms
    else:
        left = seconds * _SECOND_MS
    return int(max(0.0, min(left, TTL_MS_MAX)))


def ttl_seconds(left_ms: int) -> bytes:
    return b"%d" % -(-left_ms // _SECOND_MS)


# -- the other messages ----------------------------------------------------------------------------------------------


def icanhaz(subtree: bytes) -> list[bytes]:
    return [ICANHAZ, subtree]


def decode_icanhaz(frames: Sequence[bytes]) -> bytes:
    """Return the subtree of a request; raises ProtocolError."""
    if len(frames) != 2 or frames[0] != ICANHAZ:
        raise ProtocolError("a request that is not ICANHAZ? and a subtree")
    if len(frames[1]) > MAP_SUBTREE_BYTES_MAX:
        raise ProtocolError(f"a subtree of {len(frames[1]):,} bytes")
    return frames[1]


def kthxbai(sequence: int, subtree: bytes) -> list[bytes]:
    """Return the end of a snapshot; ``sequence`` is the server's last one, so that the cut is exact."""
    return [KTHXBAI, _SEQUENCE.pack(sequence), b"", b"", subtree]


def hugz(beat: Beat) -> list[bytes]:
    state = b"active" if beat.active else b"passive"
    told = b"chappe=1\nstate=%b\nsequence=%d\nevery=%d\n" % (state, beat.sequence, beat.every_ms)
    for name, text in ((b"role", beat.role), (b"witness", beat.witness)):
        told += name + b"=" + text.encode() + b"\n" if text else b""
    return [HUGZ, _ZERO, beat.epoch, told, b""]


def beat_of(update: Update) -> Beat | None:
    """Return the content of a heartbeat if it is one of chappe."""
    if not update.properties.startswith(b"chappe=1\n") or len(update.uuid) != UUID_BYTES:
        return None
    told = properties_of(update.properties)
    try:
        sequence, every_ms = int(told["sequence"]), int(told["every"])
    except (KeyError, ValueError):
        return None
    if sequence < 0 or not 10 <= every_ms <= 60_000:
        return None
    role, witness = (told.get(name, "")[:BEAT_TEXT_MAX] for name in ("role", "witness"))
    return Beat(update.uuid, sequence, every_ms, told.get("state") == "active", role, witness)


# -- the UUIDs of chappe's writers -------------------------------------------------------------------------------------

SESSION_BYTES: Final = 10
_NUMBER: Final = struct.Struct(">HI")
NUMBER_BYTES: Final = _NUMBER.size  # of a write's number, the end of its UUID


def session_of(random: bytes) -> bytes:
    """Return the name of a writer, of ten random bytes: the UUIDs (version 8) of its writes begin so."""
    assert len(random) == SESSION_BYTES
    return random[:6] + bytes((0x80 | random[6] & 0x0F, random[7], 0x80 | random[8] & 0x3F)) + random[9:]


def uuid_of(session: bytes, number: int) -> bytes:
    """Return the UUID of a writer's write: it tells servers that get it from each other who wrote it."""
    assert 0 <= number < STEPS
    return session + _NUMBER.pack(number >> 32, number & 0xFFFFFFFF)


def writer_of(uuid: bytes) -> tuple[bytes, int] | None:
    """Return writer and number of a write of chappe's; None for any other UUID."""
    if len(uuid) != UUID_BYTES or uuid[6] >> 4 != 8 or uuid[8] >> 6 != 2:
        return None
    high, low = _NUMBER.unpack(uuid[SESSION_BYTES:])
    return uuid[:SESSION_BYTES], high << 32 | low
