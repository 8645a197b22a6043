"""What servers that agree tell each other, in msgpack.

``number`` is what is to be decided; a *ballot* is a round and the disk of whoever began it, so no two attempts ever
have the same. *Disk* is a number that was drawn when a server's memory was made: whoever lost it is somebody else.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.errors import ProtocolError

VALUE_BYTES_MAX: Final = 16_384
NUMBER_MAX: Final = 2**62

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Disk = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Value = Annotated[bytes, msgspec.Meta(max_length=VALUE_BYTES_MAX)]
Ballot: TypeAlias = tuple[Number, Disk]
NO_BALLOT: Final[Ballot] = (0, 0)


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Phase one: do not vote below this ballot any more, and say for what you have voted."""

    number: Number
    ballot: Ballot


class Promise(msgspec.Struct, frozen=True, array_like=True, tag="promise"):
    """The answer of ``disk``: for what it has voted in which ballot, if in any."""

    number: Number
    ballot: Ballot
    disk: Disk
    accepted: Ballot
    value: Value


class Accept(msgspec.Struct, frozen=True, array_like=True, tag="accept"):
    """Phase two: vote for this."""

    number: Number
    ballot: Ballot
    value: Value


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """``disk`` has voted for it."""

    number: Number
    ballot: Ballot
    disk: Disk


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """The answer to a ballot that is too low: a higher one was ``promised`` something."""

    number: Number
    ballot: Ballot
    promised: Ballot


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="decided"):
    """The newest that is decided."""

    number: Number
    value: Value


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Somebody who knows no more than ``number`` wants to know."""

    number: Number


Message: TypeAlias = Prepare | Promise | Accept | Accepted | Refuse | Decided | Ask

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode(frame: bytes) -> Message:
    """A message.

    Raises:
        ProtocolError: It is none.
    """
    try:
        return _DECODER.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{len(frame)} bytes that are no message of an agreement: {error}") from None
