"""``messages.dat``: topics, and the shapes of the messages that were published to them.

A file is a header, u32 magic and u8 version in the byte order of the machine that wrote it, and entries::

    u8 0   a new topic: varbyte length, bytes. Topics are numbered from 0 in the order in which they come
    u8 1   a message of data: u16 number of its topic, shape of its value (``chappe.data.shapes``)
    u8 2   a command of a data store: u16 number of its topic, its shape (``chappe.kv.shapes``)

Numbers behind the header are big-endian. 1 and 2 are also the kinds of messages on the wire.

Source: Broker's ``generator_file_writer``, version 2. Version 1 numbers the types of values otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, Literal, NamedTuple

from chappe.data.binary import VARBYTE_BYTES_MAX, pack_varbyte, parse_varbyte
from chappe.data.shapes import CutOff, add_shape, add_value, skip_shape
from chappe.defaults import MESH_TOPIC_BYTES_MAX
from chappe.errors import ErrorCode, InvalidData, ProtocolError
from chappe.kv.shapes import add_command, add_command_shape, skip_command_shape
from chappe.mesh.messages import COMMAND, DATA

MAGIC: Final = 0x2EECC0DE
VERSION: Final = 2
HEADER: Final = MAGIC.to_bytes(4, sys.byteorder) + bytes((VERSION,))
TOPICS_MAX: Final = 1 << 16  # their numbers have 16 bits
NEW_TOPIC: Final = 0
_ORDERS: Final[tuple[Literal["little", "big"], ...]] = ("little", "big")
_HEADERS: Final = tuple([MAGIC.to_bytes(4, each) for each in _ORDERS])
_MORE: Final = 128  # a byte of a length behind which others follow
_ENTRY: Final = Struct(">BH")


class RecordedMessage(NamedTuple):
    topic: bytes
    kind: int
    shape: bytes

    def payload(self) -> bytes:
        """A payload of this shape; raises InvalidData if there is none."""
        made = bytearray()
        if self.kind == DATA:
            add_value(self.shape, 0, made)
        else:
            add_command(self.shape, 0, made)
        return bytes(made)


class RecordingEncoder:
    def __init__(self) -> None:
        self._topics: dict[bytes, int] = {}

    def encode(self, topic: bytes, payload: bytes, kind: int) -> bytes:
        """The entry of a message, behind that of its topic if that is new. Raises InvalidData: the payload is neither a
        value nor a command, or the file has as many topics as it can have.
        """
        number = self._topics.get(topic)
        made = bytearray()
        if number is None:
            number = len(self._topics)
            if number >= TOPICS_MAX:
                raise InvalidData(f"a recording has at most {TOPICS_MAX:,} topics")
            made.append(NEW_TOPIC)
            made += pack_varbyte(len(topic)) + topic
        made += _ENTRY.pack(kind, number)
        if kind == DATA:
            end = add_shape(payload, 0, made)
            if end != len(payload):
                raise InvalidData(f"{len(payload) - end} bytes follow a value that ends at byte {end}")
        else:
            add_command_shape(payload, made)
        self._topics[topic] = number
        return bytes(made)


def entries(raw: bytes, torn: Callable[[str], None] | None = None) -> Iterator[RecordedMessage]:
    """The messages of a file.

    Args:
        raw: All of it.
        torn: Called when the last entry is not whole, as the recorder was killed while it wrote; that is the end
            then. Without it that is an error, too.

    Raises:
        InvalidData: It is not a recording; the text names the byte.
    """
    if raw[:4] not in _HEADERS:
        raise InvalidData("this is not a recording: it does not begin with the magic number").coded(
            ErrorCode.WRONG_MAGIC_NUMBER
        )
    if len(raw) < len(HEADER) or raw[4] != VERSION:
        said = f"version {raw[4]}" if len(raw) >= len(HEADER) else "no version"
        raise InvalidData(f"it has {said} of the format, only {VERSION} can be read")
    topics: list[bytes] = []
    pos = len(HEADER)
    while pos < len(raw):
        start = pos
        try:
            kind, number, pos, end = _next(raw, pos, topics)
        except ProtocolError as problem:
            text = f"in the entry at byte {start}: {problem}"
            if torn is None or not isinstance(problem, CutOff):
                code = ErrorCode.END_OF_FILE if isinstance(problem, CutOff) else problem.code
                raise InvalidData(text).coded(code) from None
            torn(text)
            return
        if kind != NEW_TOPIC:
            yield RecordedMessage(topics[number], kind, raw[pos:end])
        pos = end


def _next(raw: bytes, pos: int, topics: list[bytes]) -> tuple[int, int, int, int]:
    kind = raw[pos]
    if kind == NEW_TOPIC:
        if raw[pos + 1 :] == b"" or (len(raw) <= pos + VARBYTE_BYTES_MAX and min(raw[pos + 1 :]) >= _MORE):
            raise CutOff("it is cut off")
        size, pos = parse_varbyte(raw, pos + 1)
        if size > MESH_TOPIC_BYTES_MAX or len(topics) == TOPICS_MAX:
            raise InvalidData("a topic is too long, or one too many")
        if pos + size > len(raw):
            raise CutOff("it is cut off")
        topics.append(raw[pos : pos + size])
        return kind, 0, pos, pos + size
    if kind not in (DATA, COMMAND):
        raise InvalidData(f"an entry of kind {kind} is unknown")
    if pos + _ENTRY.size > len(raw):
        raise CutOff("it is cut off")
    number = _ENTRY.unpack_from(raw, pos)[1]
    if number >= len(topics):
        text = f"a message has topic number {number}, and there are {len(topics)}"
        raise InvalidData(text).coded(ErrorCode.INVALID_TOPIC_KEY)
    pos += _ENTRY.size
    return kind, number, pos, (skip_shape if kind == DATA else skip_command_shape)(raw, pos)
