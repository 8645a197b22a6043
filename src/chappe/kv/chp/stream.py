"""Messages between a client and a server of chappe beside the Clustered Hashmap Protocol, over the server's snapshot
socket.

A client sends none of this before the server's HUGZ has said that it is chappe's: the Guide's servers end at a request
that they do not know. Each message is two frames, ``CHAPPE`` and a MessagePack array that begins with its number here.

The client opens a *stream* with a number of its own (``Hello``). What the server sends on it is counted from 0, and the
client says how far it is (``Taken``): no more than ``MapLimits.window`` messages are under way, so nothing is ever
dropped by a full socket, and a message that is missing is noticed. A stream begins where the client was, if the server
still has what followed, or else with a snapshot: pieces, then their number and checksum (``Whole``), then changes. An
entry is an array of key, body, UUID, properties and milliseconds to live (0: for ever). Changes of one write are in one
message.

A writer's steps have numbers, 1, 2, 3, ...; each is done once, however often it is sent. ``applied`` tells it that all
up to there are done, or failed as ``failed`` tells, and that what they changed was told before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from chappe.defaults import MAP_NAME_CHARACTERS_MAX
from chappe.errors import ProtocolError
from chappe.kv.chp.messages import KTHXBAI, NUMBERS, SESSION_BYTES, STEPS, TTL_MS_MAX, UUID_BYTES

MARK: Final = b"CHAPPE"
_STEPS: Final = 3  # the tag of ``Steps``
DENIED: Final = "denied: "  # how the reason of ``Refused`` begins where permissions are it; why follows
ENTRY_BYTES: Final = 64  # that an entry counts beside its key, body and properties
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=NUMBERS)]
StepNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=STEPS)]
WriterState: TypeAlias = tuple[bytes, StepNumber, tuple[tuple[StepNumber, int, str], ...]]  # session, last step, failed
Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=TTL_MS_MAX)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAP_NAME_CHARACTERS_MAX)]
Entry: TypeAlias = tuple[bytes, bytes, bytes, bytes, Milliseconds]  # key, body, UUID, properties, milliseconds to live


# -- client to server ------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Open a stream; what was open on this connection ends.

    ``epoch`` and ``sequence`` say where the client is; an empty epoch: it has nothing. ``done`` is the last of its
    steps of which it knows the outcome. ``peer``: this is the other one of two servers. ``map``: the name that the
    map is to have, if any.
    """

    stream: Number
    session: bytes
    subtrees: tuple[bytes, ...]
    epoch: bytes
    sequence: Number
    done: StepNumber
    peer: bool = False
    map: Name = ""


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """So many messages of the stream were taken; a server's own copy is ``sequence``, durably if it has a backend."""

    stream: Number
    messages: Number
    done: StepNumber
    sequence: Number


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One write of one or several keys, done wholly or not at all. ``sets`` are key, body (empty: delete), milliseconds
    to live and properties; ``expected`` what must be there: key and body, an empty one where there is nothing.
    """

    sets: tuple[tuple[bytes, bytes, Milliseconds, bytes], ...]
    expected: tuple[tuple[bytes, bytes], ...] = ()


def step_size(step: Step) -> int:
    """Return the size by which a step counts: as changes it never takes more."""
    size = sum([len(key) + len(body) + len(properties) + ENTRY_BYTES for key, body, _, properties in step.sets])
    return size + sum([len(key) + len(body) + ENTRY_BYTES for key, body in step.expected])


def denied(why: str) -> Step:
    """Return a step that fails with this reason, in place of a forbidden one. No key is KTHXBAI."""
    return Step((), ((KTHXBAI, why.encode("utf-8", "surrogateescape")),))


class Steps(msgspec.Struct, frozen=True, array_like=True, tag=_STEPS):
    """Steps of a writer, numbered from ``first`` on."""

    stream: Number
    first: StepNumber
    steps: tuple[Step, ...]


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The stream ends; ``ends``: the client, too, and with it the values of its session."""

    stream: Number
    ends: bool = False


# -- server to client ------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The stream begins, or a snapshot in its middle: everything (``whole``), or what follows the client's sequence."""

    stream: Number
    number: Number
    epoch: bytes
    sequence: Number
    applied: StepNumber
    whole: bool


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """There is no such stream, or no longer, or not yet.

    ``reason``: ``passive``; ``unknown``; ``full``, and it is to be tried again; ``busy``, and the stream keeps its
    place among those who wait for a snapshot; ``other``: the map is another one, ``name``; ``denied: `` and why, by
    the permissions.
    """

    stream: Number
    reason: str
    name: Name = ""


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """A piece of a snapshot; ``entries`` is an array of them."""

    stream: Number
    number: Number
    entries: msgspec.Raw


class Whole(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The snapshot is over: so many entries, the CRC-32C of all bytes of their arrays, and the sequence it shows.

    ``sessions`` is for the other one of two servers: the last step of each writer, and which failed besides those that
    ``Outcomes`` told behind the pieces.
    """

    stream: Number
    number: Number
    count: Number
    checksum: Number
    sequence: Number
    sessions: tuple[WriterState, ...]


class Changes(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Changes up to ``sequence``, and the progress of the client's steps."""

    stream: Number
    number: Number
    sequence: Number
    updates: msgspec.Raw
    applied: StepNumber
    failed: tuple[tuple[StepNumber, int, str], ...]


class Outcomes(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """To the other one of two servers: steps that failed, before anything later, or as part of a snapshot."""

    stream: Number
    number: Number
    failed: tuple[tuple[bytes, StepNumber, int, str], ...]


FromClient: TypeAlias = Hello | Taken | Steps | Goodbye
FromServer: TypeAlias = Welcome | Refused | Piece | Whole | Changes | Outcomes

_encoder: Final = msgspec.msgpack.Encoder()
_from_client: Final[msgspec.msgpack.Decoder[FromClient]] = msgspec.msgpack.Decoder(FromClient)
_from_server: Final[msgspec.msgpack.Decoder[FromServer]] = msgspec.msgpack.Decoder(FromServer)
_entries: Final[msgspec.msgpack.Decoder[list[Entry]]] = msgspec.msgpack.Decoder(list[Entry])
NO_UPDATES: Final = msgspec.Raw(_encoder.encode([]))


def encode(message: FromClient | FromServer) -> list[bytes]:
    return [MARK, _encoder.encode(message)]


def encode_entries(entries: Sequence[Entry]) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(entries))


def decode_entries(raw: msgspec.Raw) -> list[Entry]:
    try:
        return _entries.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed entries: {error}") from None


def from_client(frames: Sequence[bytes]) -> FromClient:
    """Decode a client's message; raises ProtocolError."""
    try:
        message = _from_client.decode(_payload(frames))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed message of a client: {error}") from None
    if isinstance(message, Hello) and (
        len(message.session) != SESSION_BYTES or len(message.epoch) not in (0, UUID_BYTES)
    ):
        raise ProtocolError("a name of a writer or epoch of the wrong size")
    if isinstance(message, Steps) and message.first + len(message.steps) > STEPS:
        raise ProtocolError(f"{len(message.steps):,} steps from number {message.first:,} on")
    return message


def is_steps(frames: Sequence[bytes]) -> bool:
    """Return True if a message of a client, not decoded yet, must be steps."""
    return frames[1][1:2] == bytes([_STEPS])


def from_server(frames: Sequence[bytes]) -> FromServer:
    """Decode a server's message; raises ProtocolError."""
    try:
        return _from_server.decode(_payload(frames))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"malformed message of a server: {error}") from None


def _payload(frames: Sequence[bytes]) -> bytes:
    if len(frames) != 2 or frames[0] != MARK:
        raise ProtocolError(f"a message of {len(frames)} frames that is not one of chappe")
    return frames[1]
