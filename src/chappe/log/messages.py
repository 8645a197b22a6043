"""The messages of Dafka and the few that chappe adds, and their bytes.

Header frame: id octet, topic, NUL, version 1, fields. Strings have a length octet, longstrs four, numbers
are big endian. RECORD, DIRECT-RECORD, the two batch messages and TRAFFIC carry a second frame.

Ids M D F K H E G W L are Dafka's, byte for byte. Ids R S A J I T C Q U are chappe's; they reach only members that
subscribed to them, which an original never does.

Departure: the original accepts cut-off frames with stale fields; here they are a ProtocolError. Trailing
octets are ignored as the original does.

Source: ZeroMQ RFC 46/DAFKA as corrected by what the C code sends (tests/vectors/dafka).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from chappe.compiled import FrozenLeaf
from chappe.data.topic import decode_topic, encode_topic, is_endpoint
from chappe.defaults import ADDRESS_BYTES_MAX, SUBJECTS_MAX, TOPIC_BYTES_MAX
from chappe.errors import ProtocolError

VERSION: Final = 1
CACHED_HEADER_BYTES_MAX: Final = 1024  # longer than any header that is made of three names
_U64: Final = struct.Struct(">Q")
_U32: Final = struct.Struct(">I")
_FETCH: Final = struct.Struct(">QI")
_CLOCK: Final = struct.Struct(">QQQQ")
UNKNOWN_US: Final = (1 << 64) - 1  # the error of a clock that is not known


@dataclass(frozen=True, slots=True)
class RecordMessage:
    """M, or D when direct: one record of the partition ``address``."""

    topic: str
    address: str
    subject: str
    sequence: int
    content: bytes
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """F: send me ``count`` records of partition ``topic`` from ``sequence``."""

    topic: str
    address: str
    subject: str
    sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Ack:
    """K: a store holds everything of partition ``topic`` up to and including ``sequence``."""

    topic: str
    subject: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Head:
    """H, or E when direct: ``sequence`` is the last one published (or stored)."""

    topic: str
    address: str
    subject: str
    sequence: int
    direct: bool = False


@dataclass(frozen=True, slots=True)
class GetHeads:
    """G: which partitions of the topics starting with ``topic`` are there?"""

    topic: str
    address: str


@dataclass(frozen=True, slots=True)
class ConsumerHello:
    """W: a consumer tells one store which topics it wants the heads of."""

    topic: str
    address: str
    subjects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreHello:
    """L: a store tells one consumer that it exists."""

    topic: str
    address: str


class BatchMessage(FrozenLeaf, frozen=True, gc=False):
    """R, or S when direct (chappe): many records of the partition ``address``; see ``log.batch``."""

    topic: str
    address: str
    subject: str
    body: bytes | memoryview
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A (chappe): as ACK, and names the store, so that acknowledgements of several can be counted."""

    topic: str
    address: str
    subject: str
    sequence: int


@dataclass(frozen=True, slots=True)
class OnDisk:
    """J (chappe): the store ``address`` has ``first``..``sequence`` of a partition of ``topic`` on its disk.

    Offsets before ``first`` are on its disk, too, except those that it has removed or has never had.
    """

    topic: str
    address: str
    partition: str
    first: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """I (chappe): a store's lasting id and the address of its query socket."""

    topic: str
    address: str
    store_id: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class AskClock:
    """T (chappe): what time is it where partition ``topic`` is made?"""

    topic: str
    address: str
    number: int


@dataclass(frozen=True, slots=True)
class ClockTold:
    """C (chappe): the answer, in microseconds since 1970, of the producer itself or of a store that has asked it.

    ``error_us``: it is wrong by at most so much; or UNKNOWN_US. ``ago_us``: ``source`` has read it so long ago.
    """

    topic: str
    address: str
    source: str
    number: int
    wall_us: int
    error_us: int = 0
    ago_us: int = 0


@dataclass(frozen=True, slots=True)
class AskTraffic:
    """Q (chappe): what has passed between you, the node ``topic``, and others?"""

    topic: str
    address: str
    number: int


@dataclass(frozen=True, slots=True)
class TrafficTold:
    """U (chappe): the answer of the node ``address``; ``log.traffic`` has the form of ``body``."""

    topic: str
    address: str
    number: int
    body: bytes


Message: TypeAlias = (
    RecordMessage | Fetch | Ack | Head | GetHeads | ConsumerHello | StoreHello | BatchMessage | Stored | OnDisk
    | StoreInfo | AskClock | ClockTold | AskTraffic | TrafficTold
)  # fmt: skip


def _head(id_: bytes, topic: str) -> bytes:
    return id_ + encode_topic(topic) + b"\0\x01"


def _string(text: str) -> bytes:
    raw = encode_topic(text)  # the same bound of 255 octets
    return bytes((len(raw),)) + raw


@lru_cache(maxsize=1024)
def _batch_header(id_: bytes, topic: str, address: str, subject: str) -> bytes:
    return _head(id_, topic) + _string(address) + _string(subject)


def encode(message: Message) -> list[bytes]:
    """Return the frames of a message. Raises UsageError: a topic or address is longer than 255 bytes or has a NUL."""
    match message:
        case RecordMessage(topic, address, subject, sequence, content, direct):
            id_ = b"D" if direct else b"M"
            return [_head(id_, topic) + _string(address) + _string(subject) + _U64.pack(sequence), content]
        case Fetch(topic, address, subject, sequence, count):
            return [_head(b"F", topic) + _string(address) + _string(subject) + _FETCH.pack(sequence, count)]
        case Ack(topic, subject, sequence):
            return [_head(b"K", topic) + _string(subject) + _U64.pack(sequence)]
        case Head(topic, address, subject, sequence, direct):
            id_ = b"E" if direct else b"H"
            return [_head(id_, topic) + _string(address) + _string(subject) + _U64.pack(sequence)]
        case GetHeads(topic, address):
            return [_head(b"G", topic) + _string(address)]
        case ConsumerHello(topic, address, subjects):
            parts = [_head(b"W", topic), _string(address), _U32.pack(len(subjects))]
            for subject in subjects:
                raw = encode_topic(subject)
                parts += (_U32.pack(len(raw)), raw)
            return [b"".join(parts)]
        case StoreHello(topic, address):
            return [_head(b"L", topic) + _string(address)]
        case BatchMessage(topic, address, subject, body, direct):
            return [_batch_header(b"S" if direct else b"R", topic, address, subject), bytes(body)]
        case Stored(topic, address, subject, sequence):
            return [_head(b"A", topic) + _string(address) + _string(subject) + _U64.pack(sequence)]
        case OnDisk(topic, address, partition, first, sequence):
            offsets = _U64.pack(first) + _U64.pack(sequence)
            return [_head(b"J", topic) + _string(address) + _string(partition) + offsets]
        case StoreInfo(topic, address, store_id, endpoint):
            return [_head(b"I", topic) + _string(address) + _string(store_id) + _string(endpoint)]
        case AskClock(topic, address, number):
            return [_head(b"T", topic) + _string(address) + _U64.pack(number)]
        case ClockTold(topic, address, source, number, wall_us, error_us, ago_us):
            numbers = _CLOCK.pack(number, wall_us, error_us, ago_us)
            return [_head(b"C", topic) + _string(address) + _string(source) + numbers]
        case AskTraffic(topic, address, number):
            return [_head(b"Q", topic) + _string(address) + _U64.pack(number)]
        case TrafficTold(topic, address, number, body):
            return [_head(b"U", topic) + _string(address) + _U64.pack(number), body]


class _Reader:
    """Takes fields from a header frame; every step checks the end first."""

    __slots__ = ("at", "raw")

    def __init__(self, raw: bytes, at: int) -> None:
        self.raw = raw
        self.at = at

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.raw):
            raise ProtocolError(f"message cut off: {size} bytes wanted at {self.at} of {len(self.raw)}")
        piece = self.raw[self.at : end]
        self.at = end
        return piece

    def string(self) -> str:
        return self._text(self.take(1)[0])

    def longstr(self) -> str:
        size = self.u32()
        if size > TOPIC_BYTES_MAX:
            raise ProtocolError(f"topic of {size} bytes, at most {TOPIC_BYTES_MAX} are possible")
        return self._text(size)

    def _text(self, size: int) -> str:
        raw = self.take(size)
        if b"\0" in raw:
            raise ProtocolError("name with a NUL byte")
        return decode_topic(raw)

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])


def _decode_consumer_hello(topic: str, r: _Reader) -> ConsumerHello:
    address = r.string()
    count = r.u32()
    if count > SUBJECTS_MAX or count * 4 > len(r.raw) - r.at:
        raise ProtocolError(f"CONSUMER-HELLO claims {count} topics")
    return ConsumerHello(topic, address, tuple(r.longstr() for _ in range(count)))


def _decode_store_info(topic: str, r: _Reader) -> StoreInfo:
    message = StoreInfo(topic, r.string(), r.string(), r.string())
    if not is_endpoint(message.endpoint):
        raise ProtocolError(f"STORE-INFO with the endpoint {message.endpoint!r}")
    return message


def _decode_clock_told(topic: str, r: _Reader) -> ClockTold:
    message = ClockTold(topic, r.string(), r.string(), r.u64(), r.u64(), r.u64(), r.u64())
    if message.wall_us >= 1 << 63 or message.ago_us >= 1 << 63:
        raise ProtocolError("a clock beyond all times")
    return message


_HEADER_ONLY: Final[dict[bytes, Callable[[str, _Reader], Message]]] = {
    b"F": lambda topic, r: Fetch(topic, r.string(), r.string(), r.u64(), r.u32()),
    b"K": lambda topic, r: Ack(topic, r.string(), r.u64()),
    b"H": lambda topic, r: Head(topic, r.string(), r.string(), r.u64()),
    b"E": lambda topic, r: Head(topic, r.string(), r.string(), r.u64(), direct=True),
    b"G": lambda topic, r: GetHeads(topic, r.string()),
    b"W": _decode_consumer_hello,
    b"L": lambda topic, r: StoreHello(topic, r.string()),
    b"A": lambda topic, r: Stored(topic, r.string(), r.string(), r.u64()),
    b"J": lambda topic, r: OnDisk(topic, r.string(), r.string(), r.u64(), r.u64()),
    b"I": _decode_store_info,
    b"T": lambda topic, r: AskClock(topic, r.string(), r.u64()),
    b"C": _decode_clock_told,
    b"Q": lambda topic, r: AskTraffic(topic, r.string(), r.u64()),
}


def _begin(header: bytes) -> tuple[str, _Reader]:
    """Return the topic of a header frame, and a reader of the fields behind it."""
    end = header.find(b"\0", 1, TOPIC_BYTES_MAX + 2)
    if end < 0:
        raise ProtocolError("message whose topic does not end")
    if header[end + 1 : end + 2] != b"\x01":
        raise ProtocolError("message of an unknown version")
    return decode_topic(header[1:end]), _Reader(header, end + 2)


@lru_cache(maxsize=1024)  # a producer's batches all have the same header frame
def _batch_names(header: bytes) -> tuple[str, str, str]:
    """Return topic, address and subject of a message that carries a batch."""
    topic, reader = _begin(header)
    return topic, reader.string(), reader.string()


@lru_cache(maxsize=1024)  # and an original's records up to their sequence, which is all that follows
def _record_names(header: bytes) -> tuple[str, str, str] | None:
    """Return the fields before the sequence of a single record; None if it is incomplete or of another kind."""
    try:
        topic, reader = _begin(header)
        names = topic, reader.string(), reader.string()
    except ProtocolError:
        return None
    return names if reader.at == len(header) else None


def decode(frames: Sequence[bytes | memoryview]) -> Message:
    """Return the message in ``frames``, of which the first one is bytes.

    The body of a batch is kept as it is given. Frames after the ones that belong to the message are ignored, as are
    trailing octets of the header frame.

    Raises ProtocolError: unknown id or version, topic over 255 octets, NUL in a name, cut-off field, no content frame.
    """
    if not frames:
        raise ProtocolError("message without frames")
    header = frames[0]
    assert isinstance(header, bytes)
    id_ = header[:1]
    if id_ and id_ in b"MDRSU" and len(frames) < 2:
        raise ProtocolError("message without its content frame")
    if id_ in (b"R", b"S"):
        names = _batch_names if len(header) <= CACHED_HEADER_BYTES_MAX else _batch_names.__wrapped__
        return BatchMessage(*names(header), frames[1], id_ == b"S")
    if id_ in (b"M", b"D") and len(header) <= CACHED_HEADER_BYTES_MAX:
        known = _record_names(header[: -_U64.size])
        if known is not None:
            (sequence,) = _U64.unpack_from(header, len(header) - _U64.size)
            return RecordMessage(*known, sequence, bytes(frames[1]), id_ == b"D")
    topic, reader = _begin(header)
    if id_ in (b"M", b"D"):
        return RecordMessage(topic, reader.string(), reader.string(), reader.u64(), bytes(frames[1]), id_ == b"D")
    if id_ == b"U":
        return TrafficTold(topic, reader.string(), reader.u64(), bytes(frames[1]))
    decoder = _HEADER_ONLY.get(id_)
    if decoder is None:
        raise ProtocolError(f"message of unknown kind {id_!r}")
    return decoder(topic, reader)


def address_in(prefix: bytes) -> str | None:
    """Return the member that a subscription to ``L`` or ``W`` names; None if that cannot be the address of one."""
    raw = prefix[1:]
    return decode_topic(raw) if 0 < len(raw) <= ADDRESS_BYTES_MAX and b"\0" not in raw else None


class PeerSubscriptions:
    """Counts of subscribers by prefix.

    A member of chappe that wants a topic subscribes to ``H``, ``R`` and ``M`` of it, in this order, and unsubscribes in
    the opposite one; an original wants ``M`` and ``H``. So where somebody wants ``M``, and ``M`` or ``H`` outnumber
    ``R``, an original listens. A member that wants only what stores have subscribes to ``H`` and then ``J``, so ``J``
    counts against ``H``. While subscriptions come in one by one an original may be seen that is not there, but none is
    overlooked.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._original_stores: bool | None = None  # as found since the last change
        self._originals: dict[bytes, bool] = {}  # found since the last change: asked for every batch

    def change(self, prefix: bytes, on: bool) -> None:
        self._originals.clear()
        self._original_stores = None
        count = self._counts.get(prefix, 0) + (1 if on else -1)
        if count > 0:
            self._counts[prefix] = count
        else:
            self._counts.pop(prefix, None)

    def count(self, prefix: bytes) -> int:
        return self._counts.get(prefix, 0)

    def has(self, prefix: bytes) -> bool:
        return prefix in self._counts

    def wanted(self, topic: bytes, kind: bytes = b"M") -> bool:
        """Return True if a subscriber wants messages of this kind on the topic."""
        record = kind + topic
        return any(record[:end] in self._counts for end in range(1, len(record) + 1))

    def original_stores(self) -> bool:
        """Return True if an original store's reader listens; one of ours also subscribes to batches meant for it."""
        if self._original_stores is None:
            self._original_stores = any(
                prefix[:1] == b"W" and len(prefix) > 1 and b"S" + prefix[1:] not in self._counts
                for prefix in self._counts
            )
        return self._original_stores

    def original(self, requester: bytes) -> bool:
        """Return True if a requester is known, and wants single records because it does not know batches.

        Its request may be faster than its subscriptions, which come over another connection; until they are here
        nobody would get the answer.
        """
        return self.has(b"D" + requester) and not self.has(b"S" + requester)

    def originals(self, topic: bytes) -> bool:
        """Return True if somebody wants single records of the topic because it does not know batches."""
        found = self._originals.get(topic)
        if found is None:
            counts = self._counts
            found = self._originals[topic] = any(
                (records := counts.get(b"M" + topic[:end], 0))
                and max(records, counts.get(b"H" + topic[:end], 0) - counts.get(b"J" + topic[:end], 0))
                > counts.get(b"R" + topic[:end], 0)
                for end in range(len(topic) + 1)
            )
        return found
