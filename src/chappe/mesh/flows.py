"""The frames of version 2 that carry what endpoints of chappe publish, and their bytes.

Pings, pongs and link states are as ``mesh.messages`` has them. A publication has another envelope, with the type at the
same place::

    0x21 data, 0x22 command, 0x28 loss
                    origin 16, u64 number, u64 label, u8 type, u8 flags, u16 length of the topic, u64 place,
                    receiver 16 (if flags have 1), topic, payload
    0x23 batch      as 0x21, of messages with consecutive numbers and places, of which the head has the last; flags: how
                    many they are, less one; no receiver; after the topic a u32 for each, the length of its payload,
                    then these
    0x31, 0x33      as 0x21 and 0x23, and behind all that an i64: the microseconds of when it was published, by the
                    steady clock of who sends it on this link
    0x2d detour     as these; flags: how often it was sent another way before; no topic; the payload is the body of what
                    is sent another way, itself of one of the types above

It goes along a tree, which its origin has made. The *label* names the tree between two neighbours: it is chosen by who
sends, who writes another one than it got. So it is with the time of 0x31 and 0x33, which is the end of a detour, too.
Nothing else of a body changes on its way. Numbers and labels of an endpoint
rise over all its lives, as it begins each at the microseconds of its clock. The *place* of a message among those of its
origin and topic is for subscribers, who see what is missing (``mesh.places``); it is 0 for all but data to everybody.

Payloads of messages with the envelope of version 1::

    0x15 tree       origin 16, u64 label, then the hops below, the next one first: of each its id 16, u8 flags (1: it is
                    a receiver; 2: another tree leads to it, which has the same messages; 4: the origin waits for who is
                    full), u16 count of children, and then these
    0x16 confirm    u64 label and u64 number: all up to this has arrived at all receivers below; at most 1,000 of these
    0x17 forget     u64 label: it is not used any more; at most 1,000 of these
    0x18 hold       u64 label and u64 milliseconds: nothing more is to come along this tree for now, and so long ago the
                    slowest of those who are full has taken something; 2^64-1: it is let go; at most 1,000 of these

Everything is bounded, and everything wrong is a ProtocolError; what is too large to be sent is a UsageError.

Source: after the multicast that Broker once had (2020 to 2021), which sent the tree with every message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Final

from chappe.defaults import (
    ENDPOINTS_MAX,
    MESH_BATCH_BYTES_MAX,
    MESH_BATCH_MESSAGES_MAX,
    MESH_MESSAGE_BYTES_MAX,
    MESH_TOPIC_BYTES_MAX,
    NUMBER_MAX,
    TTL,
)
from chappe.errors import ProtocolError, UsageError
from chappe.mesh.messages import (
    COMMAND,
    CONFIRM,
    DATA,
    FORGET,
    HOLD,
    ID_BYTES,
    LOSS,
    NOBODY,
    RESERVED_TOPIC,
    TREE,
    Message,
    pack_message,
)
from chappe.mesh.places import COUNT_MAX

FLOW_DATA: Final = 0x21
FLOW_COMMAND: Final = 0x22
FLOW_BATCH: Final = 0x23
FLOW_LOSS: Final = 0x28
FLOW_DATA_TIMED: Final = 0x31
FLOW_BATCH_TIMED: Final = 0x33
DETOUR: Final = 0x2D

KIND_AT: Final = 32  # of a body; the length of a frame stands before
_FLOW_BIT: Final = 0x20
TIMED: Final = 0x10  # what the type of a message of data has more if its time follows
_DIRECTED: Final = 1
_RECEIVER: Final = 1
_TWICE: Final = 2
_WAITS: Final = 4
_TIMED_FLOWS: Final = frozenset({FLOW_DATA_TIMED, FLOW_BATCH_TIMED})
PUBLICATIONS: Final = frozenset({FLOW_DATA, FLOW_COMMAND, FLOW_BATCH, FLOW_LOSS}) | _TIMED_FLOWS
FLOWS: Final = PUBLICATIONS | {DETOUR}
SEVERAL: Final = frozenset({FLOW_BATCH, FLOW_BATCH_TIMED, DETOUR})  # what may have several messages
_KINDS: Final = {FLOW_DATA: DATA, FLOW_COMMAND: COMMAND, FLOW_LOSS: LOSS, FLOW_DATA_TIMED: DATA}

_HEAD: Final = struct.Struct(">16sQQBBHQ")
_FRAME: Final = struct.Struct(">I16sQQBBHQ")
_ONWARD: Final = struct.Struct(">I24sQ")
_TREE: Final = struct.Struct(">16sQ")
_NODE: Final = struct.Struct(">16sBH")
_ENTRY: Final = struct.Struct(">QQ")
_LABEL: Final = struct.Struct(">Q")
_LENGTHS: Final = tuple([struct.Struct(f">{count}I") for count in range(MESH_BATCH_MESSAGES_MAX + 1)])
_TIME: Final = struct.Struct(">q")
HEAD_BYTES: Final = _HEAD.size
TIME_BYTES: Final = _TIME.size
ENTRIES_MAX: Final = 1_000  # in one frame of confirmations or labels, so that nobody is busy with one for long
PREFIX: Final = 4

_pack_frame: Final = _FRAME.pack
_pack_onward: Final = _ONWARD.pack
_pack_time: Final = _TIME.pack
unpack_head: Final = _HEAD.unpack_from  # origin, number, label, type, flags, length of the topic, place


def parse_head(body: bytes) -> tuple[bytes, int, int, int]:
    """Return origin, number, label and type of a body of FLOWS."""
    if len(body) < HEAD_BYTES:
        raise ProtocolError(f"a publication of {len(body)} bytes is cut off")
    origin, number, label, kind, _, _, _ = unpack_head(body)
    if number >= NUMBER_MAX:
        raise ProtocolError(f"{number} is not a number of a publication")
    return origin, number, label, kind


def pack_publication(
    origin: bytes, number: int, label: int, kind: int, receiver: bytes, topic: bytes, payload: bytes, place: int = 0
) -> bytes:
    """Return the frame of a publication; ``kind`` is DATA, COMMAND or LOSS, ``receiver`` NOBODY for all on the tree."""
    size = HEAD_BYTES + len(topic) + len(payload)
    if size > MESH_MESSAGE_BYTES_MAX - 2 * HEAD_BYTES or len(topic) > MESH_TOPIC_BYTES_MAX:
        _refuse(size, topic)
    if receiver == NOBODY:
        return _pack_frame(size, origin, number, label, kind | _FLOW_BIT, 0, len(topic), place) + topic + payload
    head = _pack_frame(size + ID_BYTES, origin, number, label, kind | _FLOW_BIT, _DIRECTED, len(topic), place)
    return b"".join((head, receiver, topic, payload))


def check_size(topic: bytes, payload: bytes) -> None:
    """Raises UsageError where ``pack_publication`` would."""
    size = HEAD_BYTES + len(topic) + len(payload)
    if size > MESH_MESSAGE_BYTES_MAX - 2 * HEAD_BYTES or len(topic) > MESH_TOPIC_BYTES_MAX:
        _refuse(size, topic)


def pack_batch(
    origin: bytes, last: int, label: int, topic: bytes, payloads: Sequence[bytes], last_place: int = 0
) -> bytes:
    """Return the frame of data messages within ``run_of``'s bounds; the last has number ``last`` and ``last_place``."""
    lengths = list(map(len, payloads))
    count = len(lengths)
    size = HEAD_BYTES + len(topic) + _LENGTHS[count].size + sum(lengths)
    head = _pack_frame(size, origin, last, label, FLOW_BATCH, count - 1, len(topic), last_place)
    return b"".join((head, topic, _LENGTHS[count].pack(*lengths), *payloads))


def run_of(payloads: Sequence[bytes], at: int, messages_max: int, bytes_max: int) -> Sequence[bytes]:
    """Return those of ``payloads`` from ``at`` on that may be one batch within these bounds.

    That is one at least, which then is not a batch, but goes as a message of its own.
    """
    likely = 1 + bytes_max // (len(payloads[at]) + 1)  # as a rule they are of about one size
    run = payloads[at : at + max(1, min(messages_max, likely))]
    while len(run) > 1 and sum(map(len, run)) > bytes_max:
        run = run[: len(run) // 2]
    return run


def messages_in(body: bytes, at: int = 0) -> int:
    """Return how many messages are in a body, of FLOWS or of version 1, that begins ``at``; 1 if it is cut off."""
    at += KIND_AT
    if len(body) > at + HEAD_BYTES and body[at] == DETOUR:
        at += HEAD_BYTES
    return body[at + 1] + 1 if len(body) > at + 1 and body[at] & ~TIMED == FLOW_BATCH else 1


def portion(bodies: Sequence[bytes], messages_max: int, at: int = 0) -> int:
    """Return up to which of ``bodies`` from ``at`` on they may be handed on at once: so many messages, or one frame."""
    end = min(len(bodies), at + messages_max)
    if SEVERAL.isdisjoint([body[KIND_AT] for body in bodies[at:end] if len(body) > KIND_AT]):
        return end
    ends = accumulate([messages_in(body) for body in bodies[at:end]])
    return at + max(1, sum([total <= messages_max for total in ends]))


def pack_onward(body: bytes, label: int) -> bytes:
    return _pack_onward(len(body), body[:24], label) + body[KIND_AT:]


def pack_detour(origin: bytes, number: int, label: int, before: int, body: bytes) -> bytes:
    return _pack_frame(HEAD_BYTES + len(body), origin, number, label, DETOUR, before, 0, 0) + body


def parse_detour(body: bytes) -> tuple[int, bytes]:
    """Return how often the body within the DETOUR ``body`` was sent another way before, and that body."""
    inner = body[HEAD_BYTES:]
    if len(inner) < HEAD_BYTES or inner[KIND_AT] not in PUBLICATIONS:
        raise ProtocolError("what is sent another way is not a publication")
    return body[KIND_AT + 1], inner


def inner(body: bytes) -> bytes:
    return parse_detour(body)[1] if body[KIND_AT] == DETOUR else body


def number_given(frame: bytes) -> int:
    """Return the number of what is published in a frame of FLOWS, on a detour or not, that its origin gave it."""
    at = PREFIX + ID_BYTES
    if frame[PREFIX + KIND_AT] == DETOUR:
        at += HEAD_BYTES
    return int.from_bytes(frame[at : at + 8])


def parse_publication(body: bytes, sender: bytes) -> Message:
    """Return the message in ``body``, of one of PUBLICATIONS but no batch, that came from the neighbour ``sender``."""
    origin, number, _, kind = parse_head(body)
    _, _, _, _, flags, length, place = unpack_head(body)
    at, receiver = HEAD_BYTES, NOBODY
    if flags & _DIRECTED:
        receiver = body[at : at + ID_BYTES]
        at += ID_BYTES
    end, stop = at + length, len(body)
    published = None
    if kind & TIMED:
        stop -= TIME_BYTES
    if end > stop:
        raise ProtocolError("the topic of a publication is cut off")
    if kind & TIMED:
        published = _time_at_end(body)
    return Message(body[at:end], body[end:stop], _KINDS[kind], sender, receiver, 0, origin, number, published, place)


def parse_publications(body: bytes, sender: bytes) -> list[Message]:
    """Return the messages in ``body``, of one of PUBLICATIONS."""
    kind = body[KIND_AT]
    if kind & ~TIMED != FLOW_BATCH:
        return [parse_publication(body, sender)]
    end, lengths = _parse_batch(body)
    published = _time_at_end(body) if kind & TIMED else None
    origin, last, _, _, _, _, last_place = unpack_head(body)
    topic, first = body[HEAD_BYTES:end], last - len(lengths) + 1
    places = range(last_place - len(lengths) + 1, last_place + 1) if last_place else repeat(0)
    ends = list(accumulate(lengths, initial=end + _LENGTHS[len(lengths)].size))
    return [
        Message(topic, body[start:stop], DATA, sender, NOBODY, 0, origin, number, published, place)
        for number, place, start, stop in zip(range(first, last + 1), places, ends, ends[1:], strict=False)
    ]


def with_payloads(body: bytes, kept: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Return bodies that carry, of a body of PUBLICATIONS with data, these numbers with these payloads.

    Numbers rise, and ``check_size`` takes the payloads. What is between them is in none of the bodies.
    """
    origin, head_last, label, kind, flags, length, head_place = unpack_head(body)
    at, receiver = HEAD_BYTES, NOBODY
    if kind & ~TIMED != FLOW_BATCH and flags & _DIRECTED:
        receiver, at = body[at : at + ID_BYTES], at + ID_BYTES
    topic = body[at : at + length]
    shown_us = time_of(body)
    found: list[bytes] = []
    begin = 0
    while begin < len(kept):
        end, size = begin + 1, len(kept[begin][1])
        while end < len(kept) and end - begin < MESH_BATCH_MESSAGES_MAX and kept[end][0] == kept[end - 1][0] + 1:
            size += len(kept[end][1])
            if size > MESH_BATCH_BYTES_MAX:
                break
            end += 1
        last = kept[end - 1][0]
        place = head_place - (head_last - last) if head_place else 0
        payloads = [payload for _, payload in kept[begin:end]]
        if len(payloads) == 1:
            frame = pack_publication(origin, last, label, DATA, receiver, topic, payloads[0], place)
        else:
            frame = pack_batch(origin, last, label, topic, payloads, place)
        if shown_us is not None:
            frame = with_time(frame, shown_us)
        found.append(frame[PREFIX:])
        begin = end
    return found


def check_publications(body: bytes) -> None:
    """Raise ProtocolError if ``parse_publications`` would, for a part of what that costs."""
    if body[KIND_AT] & ~TIMED == FLOW_BATCH:
        _parse_batch(body)
    else:
        parse_publication(body, NOBODY)


def peek(body: bytes) -> tuple[bytes, int, bytes, int]:
    """Return origin, kind, topic, and where the payload begins, of a body of PUBLICATIONS that can be parsed."""
    origin, _, _, kind, flags, length, _ = unpack_head(body)
    if kind & ~TIMED == FLOW_BATCH:
        return origin, DATA, body[HEAD_BYTES : HEAD_BYTES + length], HEAD_BYTES + length
    at = HEAD_BYTES + (ID_BYTES if flags & _DIRECTED else 0)
    return origin, _KINDS[kind], body[at : at + length], at + length


def _parse_batch(body: bytes) -> tuple[int, tuple[int, ...]]:
    """Where the topic of a batch ends, and the lengths of its payloads."""
    number = parse_head(body)[1]
    _, _, _, _, flags, length, place = unpack_head(body)
    count, end = flags + 1, HEAD_BYTES + length
    at, stop = end + _LENGTHS[count].size, len(body)
    if body[KIND_AT] & TIMED:
        stop -= TIME_BYTES
    if at > stop or number < count or (place and place & COUNT_MAX < count):
        raise ProtocolError(f"a batch of {count} messages is cut off, or its numbers or places begin below 1")
    lengths: tuple[int, ...] = _LENGTHS[count].unpack_from(body, end)
    if sum(lengths) != stop - at or stop - at > MESH_BATCH_BYTES_MAX:
        raise ProtocolError(f"the payloads of a batch have {stop - at} bytes: not what it says, or too many")
    return end, lengths


# -- times --------------------------------------------------------------------------------------------


def with_time(frame: bytes, published_us: int) -> bytes:
    """Return the frame of messages of data with when they were published, by our own clock."""
    at = PREFIX + KIND_AT
    size, kind = len(frame) - PREFIX + TIME_BYTES, frame[at] | TIMED
    head = size.to_bytes(PREFIX) + frame[PREFIX:at] + bytes((kind,))
    return b"".join((head, frame[at + 1 :], _pack_time(published_us)))


def time_of(body: bytes) -> int | None:
    """Return the time at the end of a body of FLOWS, on a detour or not; None if it has none."""
    at = KIND_AT
    if body[at] == DETOUR:
        at += HEAD_BYTES
    start = len(body) - TIME_BYTES
    if start < at - KIND_AT + HEAD_BYTES or body[at] not in _TIMED_FLOWS:
        return None
    return int.from_bytes(body[start:], signed=True)


def retimed(body: bytes, published_us: int) -> bytes:
    return body[:-TIME_BYTES] + _pack_time(published_us)


def without_time(body: bytes) -> bytes:
    """Return a body of PUBLICATIONS as it is for those who do not know times."""
    if time_of(body) is None:
        return body
    return b"".join((body[:KIND_AT], bytes((body[KIND_AT] & ~TIMED,)), body[KIND_AT + 1 : -TIME_BYTES]))


def _time_at_end(body: bytes) -> float:
    found: int = _TIME.unpack_from(body, len(body) - TIME_BYTES)[0]
    return found / 1e6


# -- trees --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop of a tree: its id, and the bytes of it and of all below it."""

    id: bytes
    subtree: bytes

    def receivers(self) -> frozenset[bytes]:
        """Return the receivers behind this hop; the bytes were checked when they came."""
        nodes = _NODE.iter_unpack(self.subtree)
        return frozenset([node for node, flags, _ in nodes if flags & _RECEIVER])

    def twice(self) -> frozenset[bytes]:
        """Which of these get the same along another tree too."""
        return frozenset([node for node, flags, _ in _NODE.iter_unpack(self.subtree) if flags & _TWICE])

    def nodes(self) -> frozenset[bytes]:
        return frozenset([node for node, _, _ in _NODE.iter_unpack(self.subtree)])

    def below(self) -> int:
        count: int = _NODE.unpack_from(self.subtree)[2]
        return count


def pack_hops(
    root: bytes,
    receivers: frozenset[bytes],
    children: dict[bytes, list[bytes]],
    twice: frozenset[bytes] = frozenset(),
    waits: bool = False,
) -> list[Hop]:
    """Return the hops beside ``root`` of a tree that ``children`` names, each with all below it. To ``twice`` among the
    receivers another tree leads. ``root`` holds back what it publishes while somebody is full, if it ``waits``.
    """
    common = _WAITS if waits else 0
    found: list[Hop] = []
    for top in children.get(root, ()):
        parts: list[bytes] = []
        waiting = [top]
        while waiting:
            at = waiting.pop()
            below = children.get(at, [])
            flags = (_RECEIVER | (_TWICE if at in twice else 0)) if at in receivers else 0
            parts.append(_NODE.pack(at, flags | common, len(below)))
            waiting.extend(reversed(below))
        found.append(Hop(top, b"".join(parts)))
    return found


def pack_tree(sender: bytes, origin: bytes, label: int, subtree: bytes) -> bytes:
    """Return the frame that tells the hop at the root of ``subtree`` its part of a tree."""
    return pack_message(sender, NOBODY, TREE, TTL, RESERVED_TOPIC, _TREE.pack(origin, label) + subtree)


def parse_tree(payload: bytes, own: bytes) -> tuple[bytes, int, bool, bool, list[Hop]]:
    """Return origin and label of a tree, whether ``own``, its root, is a receiver, whether the origin waits for who is
    full, and the hops below it.

    No hop stands in it twice, and each has as many children as it says: what follows it comes to an end.
    """
    size = len(payload) - _TREE.size
    if size <= 0 or size % _NODE.size or size > ENDPOINTS_MAX * _NODE.size:
        raise ProtocolError(f"a tree is cut off, or has more than {ENDPOINTS_MAX} hops")
    origin, label = _TREE.unpack_from(payload)
    nodes = list(_NODE.iter_unpack(payload[_TREE.size :]))
    ids = {each[0] for each in nodes}
    if nodes[0][0] != own or len(ids) != len(nodes) or origin in ids:
        raise ProtocolError("a tree is not for this hop, or names one twice")
    hops: list[Hop] = []
    at = 1
    for _ in range(nodes[0][2]):
        start, wanted = at, 1
        while wanted:
            if at >= len(nodes):
                raise ProtocolError("a tree names more hops than it has")
            wanted += nodes[at][2] - 1
            at += 1
        first = _TREE.size + start * _NODE.size
        hops.append(Hop(nodes[start][0], payload[first : _TREE.size + at * _NODE.size]))
    if at != len(nodes):
        raise ProtocolError("a tree has more hops than it names")
    return origin, label, bool(nodes[0][1] & _RECEIVER), bool(nodes[0][1] & _WAITS), hops


def pack_confirm(sender: bytes, entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the frame that confirms, each as label and number."""
    payload = b"".join([_ENTRY.pack(*each) for each in entries])
    return pack_message(sender, NOBODY, CONFIRM, TTL, RESERVED_TOPIC, payload)


def parse_entries(payload: bytes) -> Iterable[tuple[int, int]]:
    """Return labels and numbers of a confirmation, or labels and milliseconds of holds."""
    if len(payload) % _ENTRY.size or len(payload) > ENTRIES_MAX * _ENTRY.size:
        raise ProtocolError("a list of trees is cut off or too long")
    return _ENTRY.iter_unpack(payload)


def pack_holds(sender: bytes, entries: Iterable[tuple[int, int]]) -> bytes:
    return pack_message(sender, NOBODY, HOLD, TTL, RESERVED_TOPIC, b"".join([_ENTRY.pack(*each) for each in entries]))


def pack_forget(sender: bytes, labels: Iterable[int]) -> bytes:
    return pack_message(sender, NOBODY, FORGET, TTL, RESERVED_TOPIC, b"".join(map(_LABEL.pack, labels)))


def parse_forget(payload: bytes) -> list[int]:
    if len(payload) % _LABEL.size or len(payload) > ENTRIES_MAX * _LABEL.size:
        raise ProtocolError("a list of labels is cut off or too long")
    return [label for (label,) in _LABEL.iter_unpack(payload)]


def _refuse(size: int, topic: bytes) -> None:
    if len(topic) > MESH_TOPIC_BYTES_MAX:
        raise UsageError(f"a topic of {len(topic)} bytes cannot be sent, at most {MESH_TOPIC_BYTES_MAX} are possible")
    most = MESH_MESSAGE_BYTES_MAX - 2 * HEAD_BYTES
    raise UsageError(f"a message of {size} bytes cannot be sent, at most {most} are possible")
