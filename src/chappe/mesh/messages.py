"""The frames of the mesh and their bytes: Zeek Broker's protocol version 1, and link states, which are of version 2.

A *frame* is a u32 length and a *body*; numbers are big-endian. ``pack_...`` return whole frames, ready for the socket;
``parse_...`` take bodies. After the handshake (``mesh.greetings`` has its frames) a body is an envelope::

    sender 16, receiver 16 (zero: everybody who subscribed), u8 type, u16 TTL, u16 length of the topic, topic, payload

    type                 payload
    1  data              one value in binary form
    2  command           a command of a data store
    3  routing update    the complete filter of the sender: varbyte count; varbyte length and bytes of each prefix
    4  ping, 5 pong      anything; a pong repeats the ping's
    0x13 link state (chappe)   origin 16, u64 version, u8 flags (1: it forwards; 2: it knows times of publications; 4:
                               it asks for them), filter, varbyte count of neighbours; of each: id 16, u8 kind (0
                               chappe, 1 original, 2 chappe with a key), and of an original its filter, of one with a
                               key what tells that key from others, 16 (``mesh.link_states``)
    0x14 link states that the sender has (chappe)    u8 (1: all of them; 0: those of which it asks for newer ones),
                               of each: id 16, u64 version, u32 CRC-32 of its payload

    0x19 permissions (chappe)   u64 version of those in force, and nothing, or the file as the authority signed it
    0x1a keys of groups (chappe)   ``mesh.forwarding.group_keys`` has it

A link state with a receiver is believed by nobody on its way: it tells its own origin what others say of it.

Types from 0x13 on are of version 2, which endpoints of chappe speak with each other: it has pings and pongs as they are
here, and what ``mesh.flows`` says in place of the other types. Values are not looked into: here they are bytes.

Everything is bounded, and everything wrong is a ProtocolError; what is too large to be sent is a UsageError.

Source: Broker's ``internal/wire_format`` and ``envelope``, as its endpoints send them (tests/vectors/broker).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from chappe.compiled import FrozenLeaf
from chappe.data.binary import pack_varbyte, parse_varbyte
from chappe.defaults import (
    ENDPOINTS_MAX,
    FILTER_BYTES_MAX,
    FILTER_TOPICS_MAX,
    LINK_STATE_BYTES_MAX,
    MESH_MESSAGE_BYTES_MAX,
    MESH_TOPIC_BYTES_MAX,
    PING_BYTES_MAX,
    TTL,
)
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.filters import Filter, minimal

DATA: Final = 1
COMMAND: Final = 2
ROUTING_UPDATE: Final = 3
PING: Final = 4
PONG: Final = 5
LOSS: Final = 8  # of version 2 alone: which messages were dropped (``mesh.losses``)
LINK_STATE: Final = 0x13
LINK_STATES_HAD: Final = 0x14
TREE: Final = 0x15
CONFIRM: Final = 0x16
FORGET: Final = 0x17
HOLD: Final = 0x18
PERMISSIONS: Final = 0x19
GROUP_KEYS: Final = 0x1A

ID_BYTES: Final = 16
NOBODY: Final = bytes(ID_BYTES)  # as receiver: everybody who subscribed; as origin: none was told
RESERVED_TOPIC: Final = b"<$>"  # of routing updates, pings, pongs and link states
ENVELOPE_BYTES: Final = 37  # and the topic
BYE: Final = b"BYE"  # of the ping before a connection is closed: once its pong is back, nothing is on the way
ASKED: Final = b"ping"  # of a ping that an application asked for

_PLAIN: Final = frozenset(
    {DATA, COMMAND, ROUTING_UPDATE, PING, PONG, LINK_STATE, LINK_STATES_HAD, TREE, CONFIRM, FORGET, HOLD}
    | {PERMISSIONS, GROUP_KEYS}
)
_FORWARDS: Final = 1
_KNOWS_TIMES: Final = 2
_ASKS_TIMES: Final = 4
_CHAPPE: Final = 0
_ORIGINAL: Final = 1
_KEYED: Final = 2
KEY_BYTES: Final = 16

_ENVELOPE: Final = struct.Struct(">16s16sBHH")
_FRAME: Final = struct.Struct(">I16s16sBHH")  # length and envelope
_STATE: Final = struct.Struct(">16sQB")
_NEIGHBOUR: Final = struct.Struct(">16sB")
_KEYED_NEIGHBOUR: Final = struct.Struct(">16sB16s")
_U64: Final = struct.Struct(">Q")

_unpack_envelope: Final = _ENVELOPE.unpack_from
_pack_frame: Final = _FRAME.pack


class Message(FrozenLeaf, frozen=True, gc=False):
    """One message as it came or was published.

    ``kind`` is DATA, COMMAND or LOSS for what was published, over whichever version, and else the type on the wire.
    ``sender`` is the last hop. ``origin`` is NOBODY where none was told, as in version 1. ``published``: when, by our
    steady clock and at the latest; None if nobody told. ``place``: among the messages of its origin and topic
    (``mesh.places``); 0 if nobody told.
    """

    topic: bytes
    payload: bytes
    kind: int = DATA
    sender: bytes = NOBODY
    receiver: bytes = NOBODY
    ttl: int = TTL
    origin: bytes = NOBODY
    sequence: int = 0
    published: float | None = None
    place: int = 0


class OpenedMessage(Message, frozen=True, gc=False):
    """A message that was sealed, as it was before; ``by`` is the identity that sealed it."""

    by: str = ""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One link of an endpoint.

    Args:
        filter: Of an original; endpoints of chappe tell theirs themselves.
        key: Of an endpoint of chappe, what tells the key of its certificate from others; empty without TLS.
    """

    id: bytes
    original: bool = False
    filter: Filter = ()
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class LinkState:
    """An endpoint's announcement to all others: its links and its own filter. A higher ``version`` replaces it.

    Args:
        knows_times: It can pass on when something was published.
        asks_times: It wants to be told.
    """

    origin: bytes
    version: int
    forwards: bool
    filter: Filter
    neighbours: tuple[Neighbour, ...]
    knows_times: bool = False
    asks_times: bool = False


def pack_message(sender: bytes, receiver: bytes, kind: int, ttl: int, topic: bytes, payload: bytes) -> bytes:
    """Return the frame of a message without origin, of any type of the original."""
    size = ENVELOPE_BYTES + len(topic) + len(payload)
    _check_sendable(size, topic)
    return b"".join((_pack_frame(size, sender, receiver, kind, ttl, len(topic)), topic, payload))


def parse_message(body: bytes) -> Message:
    """Return the message of any type in ``body``; payloads of routing, ping and link state are parsed by their own."""
    try:
        sender, receiver, kind, ttl, length = _unpack_envelope(body)
    except struct.error:
        raise ProtocolError(f"a message of {len(body)} bytes is shorter than its envelope") from None
    end = ENVELOPE_BYTES + length
    if end > len(body):
        raise ProtocolError("the topic of a message is cut off")
    if kind in _PLAIN:
        return Message(body[ENVELOPE_BYTES:end], body[end:], kind, sender, receiver, ttl)
    raise ProtocolError(f"message type {kind} is unknown")


def pack_filter(wanted: Iterable[bytes]) -> bytes:
    """Return the bytes of a filter: its count, then each prefix with its length."""
    topics = tuple(wanted)
    parts = [pack_varbyte(len(topics))]
    for topic in topics:
        parts += (pack_varbyte(len(topic)), topic)
    return b"".join(parts)


def parse_filter(body: bytes) -> Filter:
    """Return the prefixes in ``body`` as they stand there, not yet ``minimal``; they fill it exactly."""
    topics, end = parse_filter_at(body, 0)
    if end != len(body):
        raise ProtocolError(f"a filter is followed by {len(body) - end} bytes too many")
    return topics


def parse_filter_at(body: bytes, at: int) -> tuple[Filter, int]:
    """Return the filter at position ``at`` and the position after it."""
    start = at
    count, at = parse_varbyte(body, at)
    # Each prefix takes at least its length, so a count that cannot be true costs no memory.
    if count > min(FILTER_TOPICS_MAX, len(body) - at):
        raise ProtocolError(f"a filter of {count} topics is cut off, or has more than {FILTER_TOPICS_MAX}")
    topics = []
    for _ in range(count):
        length, at = parse_varbyte(body, at)
        topic = body[at : at + length]
        at += length
        if at > len(body) or length > MESH_TOPIC_BYTES_MAX:
            raise ProtocolError("a topic in a filter is cut off or too long")
        topics.append(topic)
    if at - start > FILTER_BYTES_MAX:
        raise ProtocolError(f"a filter is larger than {FILTER_BYTES_MAX} bytes")
    return tuple(topics), at


def pack_routing_update(sender: bytes, receiver: bytes, wanted: Filter) -> bytes:
    payload = pack_filter(wanted)
    if len(wanted) > FILTER_TOPICS_MAX or len(payload) > FILTER_BYTES_MAX:
        raise UsageError(
            f"a filter of {len(wanted)} topics, {len(payload)} bytes, is too large to be announced: at most"
            f" {FILTER_TOPICS_MAX} topics and {FILTER_BYTES_MAX} bytes; subscribe to common prefixes instead"
        )
    return pack_message(sender, receiver, ROUTING_UPDATE, TTL, RESERVED_TOPIC, payload)


def pack_ping(sender: bytes, receiver: bytes, token: bytes) -> bytes:
    return pack_message(sender, receiver, PING, TTL, RESERVED_TOPIC, token)


def pack_pong(sender: bytes, receiver: bytes, token: bytes) -> bytes:
    """Return the frame that answers a ping; ProtocolError if its token is too large to be sent back."""
    if len(token) > PING_BYTES_MAX:
        raise ProtocolError(f"a ping of {len(token)} bytes is not answered, at most {PING_BYTES_MAX} are")
    return pack_message(sender, receiver, PONG, TTL, RESERVED_TOPIC, token)


def ping_token(kind: bytes, number: int) -> bytes:
    """Return the token of a ping that is ``BYE`` or ``ASKED``, which its pong repeats."""
    return kind + _U64.pack(number)


def pack_link_state(sender: bytes, state: LinkState) -> bytes:
    """Return the frame that tells a neighbour of chappe a link state, own or another's."""
    flags = _FORWARDS * state.forwards | _KNOWS_TIMES * state.knows_times | _ASKS_TIMES * state.asks_times
    parts = [_STATE.pack(state.origin, state.version, flags), pack_filter(state.filter)]
    parts.append(pack_varbyte(len(state.neighbours)))
    for each in state.neighbours:
        if each.original:
            parts += (_NEIGHBOUR.pack(each.id, _ORIGINAL), pack_filter(each.filter))
        elif each.key:
            parts.append(_KEYED_NEIGHBOUR.pack(each.id, _KEYED, each.key))
        else:
            parts.append(_NEIGHBOUR.pack(each.id, _CHAPPE))
    payload = b"".join(parts)
    if len(payload) > LINK_STATE_BYTES_MAX or len(state.neighbours) > ENDPOINTS_MAX:
        raise UsageError(
            f"a link state of {len(state.neighbours)} neighbours, {len(payload)} bytes, is too large to be told:"
            f" at most {ENDPOINTS_MAX} and {LINK_STATE_BYTES_MAX} bytes; use fewer subscriptions or links"
        )
    return pack_message(sender, NOBODY, LINK_STATE, TTL, RESERVED_TOPIC, payload)


def peek_link_state(payload: bytes) -> tuple[bytes, int]:
    """Return origin and version of the link state in the payload of a LINK_STATE message."""
    if len(payload) < _STATE.size:
        raise ProtocolError("a link state is cut off")
    origin, version, _ = _STATE.unpack_from(payload)
    return origin, version


def parse_link_state(payload: bytes) -> LinkState:
    """Return the link state in the payload of a LINK_STATE message, its filters minimal. Unknown flags do nothing."""
    if not _STATE.size <= len(payload) <= LINK_STATE_BYTES_MAX:
        raise ProtocolError(f"a link state has {len(payload)} bytes: it is cut off or too large")
    origin, version, flags = _STATE.unpack_from(payload)
    wanted, at = parse_filter_at(payload, _STATE.size)
    count, at = parse_varbyte(payload, at)
    if count > min(ENDPOINTS_MAX, (len(payload) - at) // _NEIGHBOUR.size):
        raise ProtocolError(f"a link state of {count} neighbours is cut off, or has more than {ENDPOINTS_MAX}")
    neighbours = {}
    plain = payload[at : at + count * _NEIGHBOUR.size]
    keyed = payload[at : at + count * _KEYED_NEIGHBOUR.size]
    kinds = keyed[ID_BYTES :: _KEYED_NEIGHBOUR.size]
    if not any(plain[ID_BYTES :: _NEIGHBOUR.size]):  # all of one kind, as a rule
        neighbours = {peer_id: Neighbour(peer_id) for peer_id, _ in _NEIGHBOUR.iter_unpack(plain)}
        at += len(plain)
    elif kinds == bytes((_KEYED,)) * count and len(keyed) == count * _KEYED_NEIGHBOUR.size:
        found = _KEYED_NEIGHBOUR.iter_unpack(keyed)
        neighbours = {peer_id: Neighbour(peer_id, False, (), key) for peer_id, _, key in found}
        at += len(keyed)
    else:
        for _ in range(count):
            neighbour, at = _parse_neighbour(payload, at)
            neighbours[neighbour.id] = neighbour
    if len(neighbours) != count:
        raise ProtocolError("a link state names a neighbour twice")
    if at != len(payload):
        raise ProtocolError(f"a link state is followed by {len(payload) - at} bytes too many")
    return LinkState(
        origin, version, bool(flags & _FORWARDS), minimal(wanted), tuple(neighbours.values()),
        bool(flags & _KNOWS_TIMES), bool(flags & _ASKS_TIMES),
    )  # fmt: skip


def _parse_neighbour(payload: bytes, at: int) -> tuple[Neighbour, int]:
    try:
        peer_id, kind = _NEIGHBOUR.unpack_from(payload, at)
    except struct.error:
        raise ProtocolError("a neighbour in a link state is cut off") from None
    at += _NEIGHBOUR.size
    if kind == _CHAPPE:
        return Neighbour(peer_id), at
    if kind == _KEYED:
        key, at = payload[at : at + KEY_BYTES], at + KEY_BYTES
        if at > len(payload):
            raise ProtocolError("the key of a neighbour in a link state is cut off")
        return Neighbour(peer_id, False, (), key), at
    if kind != _ORIGINAL:
        raise ProtocolError(f"a link state names a neighbour of the unknown kind {kind}")
    wanted, at = parse_filter_at(payload, at)
    return Neighbour(peer_id, True, minimal(wanted)), at


def _check_sendable(size: int, topic: bytes) -> None:
    if size > MESH_MESSAGE_BYTES_MAX:
        raise UsageError(f"a message of {size} bytes cannot be sent, at most {MESH_MESSAGE_BYTES_MAX} are possible")
    if len(topic) > MESH_TOPIC_BYTES_MAX:
        raise UsageError(f"a topic of {len(topic)} bytes cannot be sent, at most {MESH_TOPIC_BYTES_MAX} are possible")
