"""Questions to a tap, and its answers.

Over a DEALER/ROUTER pair, one answer for each question: so nothing is sent unasked, and a slow client
misses messages and is told how many. A question is one frame and so is an answer, both msgpack. Topics travel as
bytes, as they need not be UTF-8.

Source: chappe's own, after the ZeroMQ Guide's Espresso.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chappe.defaults import MESH_TOPIC_BYTES_MAX
from chappe.errors import ProtocolError

FORMAT: Final = (
    1  # whoever reads a message passes over what a newer format has at its end; what lacks it is of the first
)
PREFIXES_MAX: Final = 64  # in one question
QUESTION_BYTES_MAX: Final = 1 << 20
CONTENT_BYTES: Final = 256  # of a message that are shown

Name = Annotated[bytes, msgspec.Meta(max_length=MESH_TOPIC_BYTES_MAX)]


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """A question for messages that passed since the last one, of topics with these prefixes; without any: of all.

    ``again``: the client was answered before. If the tap does not know it any more, it has missed messages. ``number``:
    the answer repeats it, so that a client that asks once more as no answer comes can tell the answers apart.
    """

    topics: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PREFIXES_MAX)] = ()
    again: bool = False
    number: int = 0
    format: int = FORMAT


class Passed(msgspec.Struct, frozen=True, array_like=True, tag="passed"):
    """One message, or a batch of them.

    ``source`` is where it came from: a peer, or the partition of a producer; ``origin`` its publisher, if that is
    known and somebody else; ``to`` its only receiver. ``first`` is the offset or the number of its first message.
    """

    at_us: int  # since 1970 UTC
    topic: bytes
    kind: str
    source: str
    origin: str = ""
    to: str = ""
    first: int = -1
    count: int = 1
    size: int = 0  # in bytes
    content: bytes = b""  # of the first message, its beginning


class Subscribed(msgspec.Struct, frozen=True, array_like=True, tag="subscribed"):
    """A subscription of a member to ``topic`` and its subtree: all of its kinds; without any: it ended."""

    at_us: int
    topic: bytes
    who: str
    kinds: tuple[str, ...]


Seen: TypeAlias = Passed | Subscribed


class Shown(msgspec.Struct, frozen=True, array_like=True, tag="shown"):
    """The answer: messages in order; ``missed``: at least so many were not looked at, or had no room."""

    seen: list[Seen]
    missed: int = 0
    number: int = 0  # of the question
    format: int = FORMAT  # of the tap that answers


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The answer to a client that cannot look now."""

    reason: str


_encode = msgspec.msgpack.Encoder().encode
_decode_look: Final = msgspec.msgpack.Decoder(Look)
_decode_answer: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(Shown | Refused)


def encode(message: Look | Shown | Refused) -> bytes:
    return _encode(message)


def decode_look(raw: bytes) -> Look:
    """Return the question in a frame. Raises ProtocolError."""
    try:
        return _decode_look.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no question to a tap: {error}") from None


def unknown_kind(raw: bytes) -> Refused | None:
    """Return the answer to a question of a kind that only newer taps know; None if the bytes are not a question."""
    try:
        found = msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, list) or not found or not isinstance(found[0], str) or found[0] == "look":
        return None
    return Refused(f"it answers questions of format {FORMAT}, and {found[0][:40]!r} is not one of them: upgrade it")


def decode_answer(raw: bytes) -> Shown | Refused:
    """Return the answer in a frame. Raises ProtocolError."""
    try:
        found: Shown | Refused = _decode_answer.decode(raw)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no answer of a tap: {error}") from None
