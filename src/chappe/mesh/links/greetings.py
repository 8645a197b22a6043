"""The frames of the handshake and their bytes.

The first byte of the body is the type, the fields follow without padding::

    6  hello              magic, id 16, u8 lowest version, u8 highest version
    7  probe              magic
    8  version select     magic, id 16, u8 version
    9  drop connection    magic, id 16, u8 error code, varbyte length, text
    10 originator syn     filter
    11 responder syn-ack  filter
    12 originator ack     nothing

The magic is "ZEEK". The id is the sender's. A body has exactly these bytes; anything else is a Fault, which knows the
error code that the sender is told.

Source: Broker's ``internal/wire_format`` (tests/vectors/broker).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from chappe.data.binary import pack_varbyte, parse_varbyte
from chappe.errors import ErrorCode, ProtocolError
from chappe.mesh.filters import Filter
from chappe.mesh.messages import ID_BYTES, pack_filter, parse_filter

MAGIC: Final = b"ZEEK"
VERSIONS: Final = (1, 2)  # those that are spoken, and so those that are offered: the original's, and chappe's own
REASON_CHARS_MAX: Final = 200  # of what a peer says; the rest is cut off

_LENGTH: Final = struct.Struct(">I")


class Code(IntEnum):
    """The reason why a connection is given up, by the numbers of Broker's error codes."""

    PEER_INCOMPATIBLE = ErrorCode.PEER_INCOMPATIBLE
    PEER_INVALID = ErrorCode.PEER_INVALID
    PEER_UNAVAILABLE = ErrorCode.PEER_UNAVAILABLE  # it may not take part now
    DISCONNECTED = ErrorCode.PEER_DISCONNECT_DURING_HANDSHAKE  # it was closed during the handshake
    TIMED_OUT = ErrorCode.PEER_TIMEOUT
    INVALID_MESSAGE = ErrorCode.INVALID_MESSAGE
    UNEXPECTED_MESSAGE = ErrorCode.UNEXPECTED_HANDSHAKE_MESSAGE
    WRONG_MAGIC = ErrorCode.WRONG_MAGIC_NUMBER
    REDUNDANT = ErrorCode.REDUNDANT_CONNECTION
    LOGIC_ERROR = ErrorCode.LOGIC_ERROR


class Fault(ProtocolError):
    """A frame of the handshake that is wrong; its sender is told ``code``."""

    code: Code

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Hello:
    """An endpoint's id and the versions that it can speak."""

    sender: bytes
    version_min: int = VERSIONS[0]
    version_max: int = VERSIONS[-1]


@dataclass(frozen=True, slots=True)
class Probe:
    """Says nothing: it makes a fault of TLS or of the network visible early."""


@dataclass(frozen=True, slots=True)
class VersionSelect:
    sender: bytes
    version: int = VERSIONS[0]


@dataclass(frozen=True, slots=True)
class DropConn:
    """The reason why the sender closes. ``code`` is any of Broker's error codes."""

    sender: bytes
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class OriginatorSyn:
    filter: Filter


@dataclass(frozen=True, slots=True)
class ResponderSynAck:
    filter: Filter


@dataclass(frozen=True, slots=True)
class OriginatorAck:
    pass


Greeting: TypeAlias = Hello | Probe | VersionSelect | DropConn | OriginatorSyn | ResponderSynAck | OriginatorAck


def pack_greeting(greeting: Greeting) -> bytes:
    """Return the frame of a message of the handshake, its length included."""
    match greeting:
        case Hello(sender, version_min, version_max):
            body = b"\x06" + MAGIC + sender + bytes((version_min, version_max))
        case Probe():
            body = b"\x07" + MAGIC
        case VersionSelect(sender, version):
            body = b"\x08" + MAGIC + sender + bytes((version,))
        case DropConn(sender, code, reason):
            text = reason.encode()
            body = b"\x09" + MAGIC + sender + bytes((code,)) + pack_varbyte(len(text)) + text
        case OriginatorSyn(wanted):
            body = b"\x0a" + pack_filter(wanted)
        case ResponderSynAck(wanted):
            body = b"\x0b" + pack_filter(wanted)
        case OriginatorAck():
            body = b"\x0c"
    return _LENGTH.pack(len(body)) + body


def parse_greeting(body: bytes) -> Greeting:
    """Return the message of the handshake in ``body``, or raise Fault."""
    name, size = _SHAPES.get(body[0], ("", 0)) if body else ("", 0)
    if not name:
        raise Fault(Code.INVALID_MESSAGE, "invalid message type tag")
    if body[0] in _WITH_MAGIC and len(body) >= 5 and body[1:5] != MAGIC:
        raise Fault(Code.WRONG_MAGIC, "wrong magic number")
    failed = Fault(Code.INVALID_MESSAGE, f"failed to parse {name}")
    if size and len(body) != size:
        raise failed
    sender = body[5 : 5 + ID_BYTES]
    try:
        match body[0]:
            case 6:
                return Hello(sender, body[21], body[22])
            case 7:
                return Probe()
            case 8:
                return VersionSelect(sender, body[21])
            case 9:
                return DropConn(sender, body[21], _parse_reason(body))
            case 10:
                return OriginatorSyn(parse_filter(body[1:]))
            case 11:
                return ResponderSynAck(parse_filter(body[1:]))
            case _:
                return OriginatorAck()
    except (ProtocolError, IndexError):
        raise failed from None


def _parse_reason(body: bytes) -> str:
    length, at = parse_varbyte(body, 22)
    if len(body) != at + length:
        raise ProtocolError("cut off")
    text = body[at : at + 4 * REASON_CHARS_MAX].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)[:REASON_CHARS_MAX]


# By type: its name in the original's words, and how many bytes the body has; 0 if that differs.
_SHAPES: Final = {
    6: ("hello", 23),
    7: ("probe", 5),
    8: ("version_select", 22),
    9: ("drop_conn", 0),
    10: ("originator_syn", 0),
    11: ("responder_syn_ack", 0),
    12: ("originator_ack", 1),
}
_WITH_MAGIC: Final = frozenset({6, 7, 8, 9})
