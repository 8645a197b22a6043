"""Describes passing frames: messages of the log, and of the mesh, whose payloads are not looked into.

``wanted`` are beginnings of topics: frames that cannot have one of these are skipped unread. A peer's frames
may be malformed; that is shown, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from chappe.data.topic import encode_topic
from chappe.errors import ProtocolError
from chappe.log.batch import Batch
from chappe.log.messages import (
    Ack,
    AskClock,
    AskTraffic,
    BatchMessage,
    ClockTold,
    ConsumerHello,
    Fetch,
    GetHeads,
    Head,
    OnDisk,
    RecordMessage,
    Stored,
    StoreHello,
    StoreInfo,
    TrafficTold,
    decode,
)
from chappe.log.messages import (
    Message as LogMessage,
)
from chappe.mesh.flows import (
    DETOUR,
    FLOW_BATCH,
    FLOWS,
    HEAD_BYTES,
    KIND_AT,
    PUBLICATIONS,
    TIMED,
    parse_detour,
    parse_publications,
)
from chappe.mesh.messages import COMMAND, DATA, ID_BYTES, NOBODY, Message, parse_message
from chappe.tapping.messages import CONTENT_BYTES, Passed

MALFORMED: Final = "malformed"
# The log's kinds by the first byte of a message, which is that of a subscription to it, too.
KINDS: Final = {
    b"M": "record", b"D": "record, direct", b"R": "batch", b"S": "batch, direct", b"H": "head", b"E": "head, direct",
    b"F": "fetch", b"G": "get-heads", b"K": "ack", b"A": "stored", b"J": "on-disk", b"L": "store-hello",
    b"W": "consumer-hello", b"I": "store-info", b"T": "ask-clock", b"C": "clock", b"Q": "ask-traffic", b"U": "traffic",
}  # fmt: skip
_BY_TOPIC: Final = (b"M", b"R", b"H", b"G", b"J")  # of which the first name is the topic
_MESH_KINDS: Final = {DATA: "data", COMMAND: "command"}


def read_log(at_us: int, frames: list[bytes], wanted: tuple[bytes, ...]) -> Passed | None:
    """Describe a message of the log; None if it is not wanted."""
    header = frames[0]
    if header[:1] in _BY_TOPIC and not header.startswith(wanted, 1):
        return None
    size = sum(map(len, frames))
    try:
        found = _told(at_us, KINDS.get(header[:1], MALFORMED), size, decode(frames))
    except ProtocolError:
        return Passed(at_us, b"", MALFORMED, "", size=size)
    if found.source.isascii() and found.to.isascii():
        return found
    return replace(found, source=_printable(found.source), to=_printable(found.to))


def _printable(name: str) -> str:
    """Return a name that need not be UTF-8 as text for people."""
    return encode_topic(name).decode("utf-8", "backslashreplace")


def _told(at_us: int, kind: str, size: int, message: LogMessage) -> Passed:
    match message:
        case RecordMessage():
            to = message.topic if message.direct else ""
            return Passed(at_us, encode_topic(message.subject), kind, message.address, "", to, message.sequence, 1,
                          size, message.content[:CONTENT_BYTES])  # fmt: skip
        case BatchMessage():
            batch = Batch.parse(message.body, check=False)
            to = message.topic if message.direct else ""
            return Passed(at_us, encode_topic(message.subject), kind, message.address, "", to, batch.base,
                          batch.count, size, _first(batch))  # fmt: skip
        case Head():
            to = message.topic if message.direct else ""
            return Passed(at_us, encode_topic(message.subject), kind, message.address, "", to, message.sequence,
                          size=size)  # fmt: skip
        case Fetch():
            return Passed(at_us, encode_topic(message.subject), kind, message.address, "", message.topic,
                          message.sequence, message.count, size)  # fmt: skip
        case Ack():
            return Passed(at_us, encode_topic(message.subject), kind, "", "", message.topic, message.sequence,
                          size=size)  # fmt: skip
        case OnDisk():
            return Passed(at_us, encode_topic(message.topic), kind, message.address, "", message.partition,
                          message.sequence, size=size)  # fmt: skip
        case Stored():
            return Passed(at_us, encode_topic(message.subject), kind, message.address, "", message.topic,
                          message.sequence, size=size)  # fmt: skip
        case GetHeads():
            return Passed(at_us, encode_topic(message.topic), kind, message.address, size=size)
        case ConsumerHello() | StoreHello() | StoreInfo() | AskClock() | ClockTold() | AskTraffic() | TrafficTold():
            return Passed(at_us, b"", kind, message.address, "", message.topic, size=size)


def _first(batch: Batch) -> bytes:
    """Return the beginning of the first value, without a look at the others. Raises ProtocolError."""
    if batch.sealed is not None:
        return b"(sealed)"
    column = batch.column("values")
    assert column is not None
    end = int.from_bytes(column.positions[4:8], "little")
    if end > len(column.data):
        raise ProtocolError("a value that is cut off")
    return bytes(column.data[: min(end, CONTENT_BYTES)])


def read_mesh(
    at_us: int, source: str, peer: bytes, chappe: bool, bodies: Iterable[bytes], wanted: tuple[bytes, ...]
) -> Iterator[tuple[int, Passed]]:
    """Describe applications' messages in a peer's frames; yield also the number of the frame, from 1 on."""
    for place, body in enumerate(bodies, 1):
        try:
            kind = body[KIND_AT] if len(body) > KIND_AT else 0
            if not chappe or kind not in FLOWS:
                message = parse_message(body)
                if message.kind in _MESH_KINDS:
                    yield place, _passed(at_us, source, message, 1, len(body))
                continue
            if len(body) < HEAD_BYTES:
                raise ProtocolError("a publication is cut off")
            if kind in PUBLICATIONS and kind & ~TIMED != FLOW_BATCH:
                topic_at = HEAD_BYTES + (ID_BYTES if body[KIND_AT + 1] else 0)
                if not body.startswith(wanted, topic_at):
                    continue
            elif kind in PUBLICATIONS and not body.startswith(wanted, HEAD_BYTES):
                continue
            messages = parse_publications(parse_detour(body)[1] if kind == DETOUR else body, peer)
            if messages[0].kind in _MESH_KINDS:
                yield place, _passed(at_us, source, messages[0], len(messages), len(body))
        except ProtocolError:
            yield place, Passed(at_us, b"", MALFORMED, source, size=len(body))


def published(at_us: int, topic: bytes, payload: bytes, kind: int, receiver: bytes) -> Passed:
    return Passed(at_us, topic, _MESH_KINDS[kind], "here", "", named(receiver), -1, 1, len(topic) + len(payload),
                  payload[:CONTENT_BYTES])  # fmt: skip


def named(endpoint: bytes) -> str:
    """Return the id of an endpoint for people; empty for none."""
    return "" if endpoint == NOBODY else str(UUID(bytes=endpoint))


def _passed(at_us: int, source: str, message: Message, count: int, size: int) -> Passed:
    origin = named(message.origin)
    number = -1 if message.origin == NOBODY else message.sequence
    return Passed(at_us, message.topic, _MESH_KINDS[message.kind], source, "" if origin == source else origin,
                  named(message.receiver), number, count, size, message.payload[:CONTENT_BYTES])  # fmt: skip
