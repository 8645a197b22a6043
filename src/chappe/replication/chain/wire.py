"""Frames of a chain's connections: a header that names the chain, and then messages, many at once.

The first frame is ``CHN``, a version, a kind, the place of a server that speaks, and the chain: eight bytes
of a hash over its name, its servers' names and whether it is fixed, so that programs with different files find out. The
second one is a msgpack array of messages. Questions of administrators are only here, as no chain depends on them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from chappe.defaults import MIB
from chappe.errors import ProtocolError
from chappe.replication.agreement.core import SERVERS_MAX
from chappe.replication.chain.configuration import Word
from chappe.replication.chain.messages import COMMAND_BYTES_MAX, Answer, Between, Request, Text

VERSION: Final = 1
MAGIC: Final = b"CHN"
HEADER: Final = struct.Struct(">3sBBB8s")
FRAME_BYTES: Final = 1 * MIB  # messages are gathered up to so much; a larger one is alone
FRAME_BYTES_MAX: Final = FRAME_BYTES + COMMAND_BYTES_MAX + MIB  # entries up to a bound, and one that passes it
MESSAGES_MAX: Final = 4_096  # in one frame
SERVER: Final = 1  # another server speaks
REQUEST: Final = 2  # a client
ANSWER: Final = 3  # to a client
_KINDS: Final = (SERVER, REQUEST, ANSWER)

_Names = Annotated[tuple[Text, ...], msgspec.Meta(max_length=SERVERS_MAX)]


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    token: Word


class Other(msgspec.Struct, frozen=True, array_like=True):
    """Another server as a server hears it: its last entry, and how far it is synced and committed there."""

    name: Text
    end: Word
    synced: Word
    committed: Word


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """The answer to ``Look``: ``out`` are servers that are to stay out, ``why`` the reason for which this one waits."""

    token: Word
    place: Word
    number: Word
    members: _Names
    out: _Names
    durable: bool
    end: Word
    synced: Word
    committed: Word
    others: Annotated[tuple[Other, ...], msgspec.Meta(max_length=SERVERS_MAX)]
    clients: Word
    malformed: Word
    why: Text


class Exclude(msgspec.Struct, frozen=True, array_like=True, tag="exclude"):
    """Keep the server at ``place`` out of the chain, or let it come back."""

    token: Word
    place: Word
    out: bool


class Excluded(msgspec.Struct, frozen=True, array_like=True, tag="excluded"):
    """The answer to ``Exclude``: it is asked for now; or ``why`` it cannot be."""

    token: Word
    why: Text


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Nothing that was asked is answered, also if it is tried again; ``why`` is a sentence."""

    why: Text


AnyRequest: TypeAlias = Request | Look | Exclude
AnyAnswer: TypeAlias = Answer | Seen | Excluded | Refused

_SEVERAL: Final = msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)
_BETWEEN: Final[msgspec.msgpack.Decoder[list[Between]]] = msgspec.msgpack.Decoder(Annotated[list[Between], _SEVERAL])
_REQUESTS: Final[msgspec.msgpack.Decoder[list[AnyRequest]]] = msgspec.msgpack.Decoder(
    Annotated[list[AnyRequest], _SEVERAL]
)
_ANSWERS: Final[msgspec.msgpack.Decoder[list[AnyAnswer]]] = msgspec.msgpack.Decoder(
    Annotated[list[AnyAnswer], _SEVERAL]
)
_Message = TypeVar("_Message")


class Header(msgspec.Struct, frozen=True):
    """The first frame: ``place`` is 0 except for servers."""

    kind: int
    place: int
    chain: bytes


def chain_of(name: str, servers: Sequence[str], *, fixed: bool = False) -> bytes:
    """Return eight bytes that identify a chain; servers and clients that take it for the other kind find out."""
    named = (name, *servers, *(("", "fixed") if fixed else ()))
    return hashlib.sha256("\0".join(named).encode()).digest()[:8]


def encode_header(kind: int, place: int, chain: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, place, chain)


def decode_header(frame: bytes) -> Header:
    """Decode a first frame. Raises ProtocolError."""
    if len(frame) != HEADER.size:
        raise ProtocolError(f"invalid message of a chain, of {len(frame)} bytes")
    magic, version, kind, place, chain = HEADER.unpack(frame)
    if magic != MAGIC or kind not in _KINDS or place >= SERVERS_MAX:
        raise ProtocolError("a message that is not of a chain")
    if version != VERSION:
        raise ProtocolError(
            f"a message of version {version} of chains, this is version {VERSION}: update the older one"
        )
    return Header(kind, place, chain)


def pack(messages: Sequence[bytes]) -> list[bytes]:
    """Return second frames with these encoded messages, in order, as few as there can be."""
    frames: list[bytes] = []
    first = size = 0
    for place, message in enumerate(messages):
        if place > first and (size + len(message) > FRAME_BYTES or place - first >= MESSAGES_MAX):
            frames.append(_array(messages[first:place]))
            first, size = place, 0
        size += len(message)
    if first < len(messages):
        frames.append(_array(messages[first:]))
    return frames


def unpack_between(frame: bytes) -> list[Between]:
    """Decode another server's messages. Raises ProtocolError."""
    return _unpacked(_BETWEEN, frame)


def unpack_requests(frame: bytes) -> list[AnyRequest]:
    """Decode a client's requests. Raises ProtocolError."""
    return _unpacked(_REQUESTS, frame)


def unpack_answers(frame: bytes) -> list[AnyAnswer]:
    """Decode a server's answers. Raises ProtocolError."""
    return _unpacked(_ANSWERS, frame)


def _array(messages: Sequence[bytes]) -> bytes:
    count = len(messages)
    head = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2)
    return b"".join((head, *messages))


def _unpacked(decoder: msgspec.msgpack.Decoder[list[_Message]], frame: bytes) -> list[_Message]:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid messages of a chain, of {len(frame)} bytes: {error}") from None
