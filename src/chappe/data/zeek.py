"""The messages that Zeek sends as values: events, log lines, identifier updates, and batches of them.

Each is a vector (count 1, count TYPE, CONTENT)::

    1 event              (name, arguments [, metadata]); metadata is a vector of (count KEY, value)
    2 log-create         (enum STREAM, enum WRITER, writer info, fields)
    3 log-write          (enum STREAM, enum WRITER, path, serialized line)
    4 identifier-update  (name, value)
    5 batch              a vector of messages

Further elements of any of these vectors are ignored, as by the original. Key 1 of the metadata is the network time, a
timestamp; 200 and up are free for anybody's use.

``parse`` takes the bytes of a message. Of an event only the name's place is looked at then; what is wrong inside of its
arguments raises InvalidData when they are read. A batch splits into its messages in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, Union

from chappe.data.binary import decode, decode_at, encode, pack_varbyte, skip
from chappe.data.convert import to_value
from chappe.data.order import STRING, VECTOR, sort_key
from chappe.data.scalars import Count, EnumValue, Timestamp
from chappe.data.values import Value
from chappe.defaults import VALUE_DEPTH_MAX
from chappe.errors import InvalidData, UnsupportedValue

FORMAT: Final = Count(1)
NETWORK_TIME: Final = Count(1)  # key of the metadata
USER_METADATA: Final = Count(200)  # the first key that is free for users

EVENT: Final = 1
LOG_CREATE: Final = 2
LOG_WRITE: Final = 3
IDENTIFIER_UPDATE: Final = 4
BATCH: Final = 5

Metadata: TypeAlias = tuple[tuple[Count, Value], ...]
Message: TypeAlias = Union["Event", "LogCreate", "LogWrite", "IdentifierUpdate", "Batch"]

_HEADS: Final = {kind: bytes((VECTOR, 3)) + encode(FORMAT) + encode(Count(kind)) for kind in range(EVENT, BATCH + 1)}
_HEAD_BYTES: Final = len(_HEADS[EVENT])
_SMALL: Final = 128  # lengths below it take one byte


class Event:
    """An event: its name, its arguments, and metadata by key.

    Arguments and metadata are anything that ``chappe.data.convert.to_value`` takes; integer keys become counts. Raises
    UnsupportedValue for anything that is not a value.
    """

    __slots__ = ("_args", "_args_at", "_fields", "_metadata", "_raw", "name")

    name: str

    def __init__(
        self,
        name: str,
        *args: object,
        metadata: Mapping[Any, object] | Iterable[tuple[int, object]] = (),
    ) -> None:
        pairs = metadata.items() if isinstance(metadata, Mapping) else metadata
        self.name = name
        self._args: tuple[Value, ...] | None = tuple([to_value(each) for each in args])
        self._metadata: Metadata | None = tuple([(Count(key), to_value(value)) for key, value in pairs])
        self._raw: bytes | None = None
        self._args_at = 0
        self._fields = 3 if self._metadata else 2
        if self._metadata and not _is_timed_right(self._metadata):
            raise UnsupportedValue(f"the network time of an event is a timestamp, not {metadata!r}")

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Event:
        """The event that some bytes are; raises InvalidData for anything else."""
        raw = data if type(data) is bytes else bytes(data)
        try:
            if not raw.startswith(_HEADS[EVENT]) or raw[_HEAD_BYTES] != VECTOR or raw[_HEAD_BYTES + 1] not in (2, 3):
                return _unusual_event(raw)
            size = raw[_HEAD_BYTES + 3]
            args_at = _HEAD_BYTES + 4 + size
            if raw[_HEAD_BYTES + 2] != STRING or size >= _SMALL or raw[args_at] != VECTOR:
                return _unusual_event(raw)
            made = cls.__new__(cls)
            made.name = raw[_HEAD_BYTES + 4 : args_at].decode()
        except (IndexError, UnicodeDecodeError):
            return _unusual_event(raw)
        made._args = None
        made._metadata = None
        made._raw = raw
        made._args_at = args_at
        made._fields = raw[_HEAD_BYTES + 1]
        return made

    @property
    def args(self) -> tuple[Value, ...]:
        """The arguments; of a received event they are decoded now, which raises InvalidData if they are damaged."""
        if self._args is None:
            raw = self._received
            args, end = decode_at(raw, self._args_at)
            if self._fields == 2 and end != len(raw):
                raise InvalidData(f"{len(raw) - end} bytes follow the event {self.name}")
            assert isinstance(args, tuple)  # parse looked at its tag
            self._args = args
        return self._args

    @property
    def metadata(self) -> Metadata:
        """The pairs of key and value; raises InvalidData as ``args`` does."""
        if self._metadata is None:
            raw = self._received
            found: Metadata = ()
            end = skip(raw, self._args_at)
            if self._fields > 2:
                value, end = decode_at(raw, end)
                found = _as_metadata(value)
            if end != len(raw):
                raise InvalidData(f"{len(raw) - end} bytes follow the event {self.name}")
            self._metadata = found
        return self._metadata

    @property
    def time(self) -> Timestamp | None:
        """The network time of the metadata."""
        for key, value in self.metadata:
            if key == NETWORK_TIME:
                return value if isinstance(value, Timestamp) else None
        return None

    @property
    def _received(self) -> bytes:
        assert self._raw is not None  # what is not made from bytes has arguments and metadata
        return self._raw

    def to_value(self) -> Value:
        """The vector that it travels as."""
        content = (self.name, self.args, self.metadata) if self.metadata else (self.name, self.args)
        return (FORMAT, Count(EVENT), content)

    def encode(self) -> bytes:
        """The bytes of that vector; of a received event the very bytes that came."""
        if self._raw is not None:
            return self._raw
        content = (self.name, self._args, self._metadata) if self._metadata else (self.name, self._args)
        return _HEADS[EVENT] + encode(content)

    def __eq__(self, other: object) -> bool:
        return sort_key(self.to_value()) == sort_key(other.to_value()) if type(other) is Event else NotImplemented

    def __hash__(self) -> int:
        return hash(sort_key(self.to_value()))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, (self.name, *self.args)))
        return f"Event({shown}, metadata={self.metadata!r})" if self.metadata else f"Event({shown})"


class _Fields:
    """A message that is a vector of the fields of a dataclass."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    kind: ClassVar[int]

    def to_value(self) -> Value:
        return (FORMAT, Count(self.kind), tuple([getattr(self, each) for each in self.__match_args__]))

    def encode(self) -> bytes:
        return encode(self.to_value())


@dataclass(frozen=True, slots=True)
class LogCreate(_Fields):
    """A log stream and the writer for it."""

    kind: ClassVar[int] = LOG_CREATE
    stream: EnumValue
    writer: EnumValue
    writer_info: Value
    fields: Value


@dataclass(frozen=True, slots=True)
class LogWrite(_Fields):
    """One line of a log; what is in ``serialized`` is Zeek's own affair."""

    kind: ClassVar[int] = LOG_WRITE
    stream: EnumValue
    writer: EnumValue
    path: str | bytes
    serialized: str | bytes


@dataclass(frozen=True, slots=True)
class IdentifierUpdate(_Fields):
    """A new value for a global identifier of a script."""

    kind: ClassVar[int] = IDENTIFIER_UPDATE
    name: str | bytes
    value: Value


OTHERS: Final = (LogCreate, LogWrite, IdentifierUpdate)  # messages that are neither events nor batches


class Batch:
    """Messages that travel together; iterating over it yields them; InvalidData at the first malformed one."""

    __slots__ = ("_messages", "_raw")

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages: tuple[Message, ...] | None = tuple(messages)
        self._raw: bytes | None = None

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Batch:
        """The batch that some bytes are; raises InvalidData for anything else."""
        found = parse(data)
        if not isinstance(found, Batch):
            raise InvalidData(f"a {type(found).__name__} is not a batch")
        return found

    @classmethod
    def _of_bytes(cls, raw: bytes) -> Batch:
        made = cls.__new__(cls)
        made._messages = None
        made._raw = raw
        return made

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them; of a received batch each is parsed now, but no event's arguments are decoded."""
        if self._messages is None:
            assert self._raw is not None
            self._messages = tuple([parse(each) for each in split(self._raw)])
        return self._messages

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def to_value(self) -> Value:
        """The vector that it travels as."""
        return (FORMAT, Count(BATCH), tuple([each.to_value() for each in self.messages]))

    def encode(self) -> bytes:
        """The bytes of that vector; of a received batch the very bytes that came."""
        if self._raw is not None:
            return self._raw
        encoded = [each.encode() for each in self.messages]
        return b"".join((_HEADS[BATCH], bytes((VECTOR,)), pack_varbyte(len(encoded)), *encoded))

    def __eq__(self, other: object) -> bool:
        return self.messages == other.messages if type(other) is Batch else NotImplemented

    def __hash__(self) -> int:
        return hash(self.messages)

    def __repr__(self) -> str:
        return f"Batch({list(self.messages)!r})"


def parse(data: bytes | memoryview) -> Message:
    """The message that some bytes are; raises InvalidData for anything else."""
    raw = data if type(data) is bytes else bytes(data)
    if raw.startswith(_HEADS[EVENT]):
        return Event.parse(raw)
    if raw.startswith(_HEADS[BATCH]) and raw[_HEAD_BYTES : _HEAD_BYTES + 1] == bytes((VECTOR,)):
        return Batch._of_bytes(raw)
    return from_value(decode(raw))


def head(kind: int) -> bytes:
    """Encode the start that all messages of a kind share: the vector of three, and the two counts."""
    return _HEADS[kind]


def flat(batch: Batch, depth: int = 0) -> Iterator[Message]:
    """The messages in a batch, and in those within it; raises InvalidData."""
    if depth >= VALUE_DEPTH_MAX:
        raise InvalidData(f"a batch is nested deeper than {VALUE_DEPTH_MAX} batches")
    for each in batch:
        if isinstance(each, Batch):
            yield from flat(each, depth + 1)
        else:
            yield each


def from_value(value: Value) -> Message:
    """The message that a value is; raises InvalidData for anything else."""
    if type(value) is not tuple or len(value) < 3:
        raise InvalidData("a message of Zeek is a vector of a format, a type and a content")
    version, kind, content = value[:3]
    if type(version) is not Count or version != FORMAT or type(kind) is not Count or type(content) is not tuple:
        raise InvalidData(f"a message of Zeek begins with count 1 and the count of its type, not {version!r}, {kind!r}")
    if kind == BATCH:
        return Batch([from_value(each) for each in content])
    if kind == EVENT:
        return _event(content)
    if kind == IDENTIFIER_UPDATE:
        return _identifier_update(content)
    if kind in (LOG_CREATE, LOG_WRITE):
        return _log(kind, content)
    raise InvalidData(f"a message of Zeek has a type of 1 to 5, not {kind}")


def _unusual_event(raw: bytes) -> Event:
    """An event whose bytes are not those that everybody writes."""
    found = from_value(decode(raw))
    if not isinstance(found, Event):
        raise InvalidData(f"a {type(found).__name__} is not an event")
    return found


def _event(content: tuple[Value, ...]) -> Event:
    if len(content) < 2 or type(content[0]) is not str or type(content[1]) is not tuple:
        raise InvalidData("an event is a vector of a name and a vector of arguments")
    metadata = _as_metadata(content[2]) if len(content) > 2 else ()
    return Event(content[0], *content[1], metadata=metadata)


def _identifier_update(content: tuple[Value, ...]) -> IdentifierUpdate:
    if len(content) < 2 or type(content[0]) not in (str, bytes):
        raise InvalidData("an identifier update is a vector of a name and a value")
    return IdentifierUpdate(content[0], content[1])  # type: ignore[arg-type]


def _log(kind: Count, content: tuple[Value, ...]) -> LogCreate | LogWrite:
    if len(content) < 4:
        raise InvalidData("a log message is a vector of four")
    stream, writer, third, fourth = content[:4]
    if type(stream) is not EnumValue or type(writer) is not EnumValue:
        raise InvalidData("stream and writer of a log message are enum values")
    if kind == LOG_CREATE:
        return LogCreate(stream, writer, third, fourth)
    if type(third) not in (str, bytes) or type(fourth) not in (str, bytes):
        raise InvalidData("path and line of a log message are strings")
    return LogWrite(stream, writer, third, fourth)  # type: ignore[arg-type]


def _as_metadata(value: Value) -> Metadata:
    if type(value) is not tuple:
        raise InvalidData("the metadata of an event is a vector")
    for pair in value:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not Count:
            raise InvalidData("the metadata of an event consists of pairs of a count and a value")
    found: Metadata = value  # type: ignore[assignment]
    if not _is_timed_right(found):
        raise InvalidData("the network time of an event is a timestamp")
    return found


def _is_timed_right(metadata: Metadata) -> bool:
    """Return False if a network time is present and not a timestamp."""
    return all(type(value) is Timestamp for key, value in metadata if key == NETWORK_TIME)


def split(raw: bytes) -> Iterator[bytes]:
    """The bytes of each message of a batch, which begins with ``head(BATCH)`` and a vector; raises InvalidData."""
    end = skip(raw, 0)
    if end != len(raw):
        raise InvalidData(f"{len(raw) - end} bytes follow a batch")
    pos = _HEAD_BYTES + 1
    while raw[pos] >= _SMALL:
        pos += 1
    pos += 1
    while pos < end:
        start, pos = pos, skip(raw, pos)
        yield raw[start:pos]
