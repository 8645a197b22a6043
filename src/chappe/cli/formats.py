"""Formats of input and output: ``chappe produce`` splits its input into records, ``consume`` prints them.

A splitter takes chunks of any size, and for each yields the records that are complete. It holds at most one
incomplete record, so memory is bounded by the largest record.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from chappe.api.log.lines import as_json, as_length, as_raw, iso_time
from chappe.api.times import as_micros
from chappe.cli.values import message_texts
from chappe.data import terminal
from chappe.data.json import dumps_message
from chappe.defaults import RECORD_BYTES_MAX
from chappe.errors import InvalidData, RecordTooLarge, UnsupportedValue, UsageError

if TYPE_CHECKING:
    from chappe.log.batch import Record

_json: Final = msgspec.json.Encoder()
_length: Final = struct.Struct(">I")
CONSUMED: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")  # what consume prints
_RECORD_LINE_MAX: Final = 6 * RECORD_BYTES_MAX + 4096  # JSON writes a byte with six characters at most


@dataclass(frozen=True, slots=True)
class FullRecord:
    """A record with more than its value.

    ``headers`` and ``timestamp`` are None, and ``has_key`` is false, where the input has none.
    """

    value: bytes | None
    key: bytes | None = None
    has_key: bool = False
    headers: tuple[tuple[str, bytes], ...] | None = None
    timestamp: int | None = None


Item: TypeAlias = bytes | FullRecord


class BadInput(UsageError):
    """The input does not have the given format; ``records`` are those before the bad one."""

    def __init__(self, text: str, records: Sequence[Item]) -> None:
        super().__init__(text)
        self.records = records


def split_lines(chunks: Iterable[bytes], longest: int = RECORD_BYTES_MAX) -> Iterator[list[bytes]]:
    """Make a record of each line, without its newline; the last one may lack it. Raises RecordTooLarge."""
    rest = b""
    number = 0
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        number += len(lines)
        yield lines
        if len(rest) > longest:
            raise RecordTooLarge(f"line {number + 1} is longer than {longest} bytes, the most that a record can hold")
    if rest:
        yield [rest]


def _parsed(
    chunks: Iterable[bytes], parse: Callable[[bytes], Item], what: str, longest: int = RECORD_BYTES_MAX
) -> Iterator[list[Item]]:
    """Parse each line that is not blank; ``what`` names the format in errors."""
    number = 0
    for lines in split_lines(chunks, longest):
        records: list[Item] = []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                records.append(parse(line))
            except (ValueError, RecursionError, OverflowError, UsageError) as error:
                raise BadInput(f"line {number} of the input is not {what}: {error}", records) from error
        yield records


def json_lines(chunks: Iterable[bytes]) -> Iterator[list[Item]]:
    """Check that lines are JSON, and keep their text. Raises BadInput or RecordTooLarge."""

    def parse(line: bytes) -> bytes:
        try:
            line.decode()  # msgspec skips text that it need not decode
        except UnicodeDecodeError as error:
            raise UsageError(f"not UTF-8 at byte {error.start + 1} of the line") from None
        msgspec.json.decode(line, type=msgspec.Raw)
        return line

    return _parsed(chunks, parse, "JSON")


def consumed_lines(chunks: Iterable[bytes]) -> Iterator[list[Item]]:
    """Read the output of ``consume --output json``. Only ``value`` is needed: null, text, or base64.

    Raises BadInput or RecordTooLarge.
    """
    decoder = msgspec.json.Decoder(_Line)
    wanted = "a record as `consume --output json` prints it"
    return _parsed(chunks, lambda line: _whole(decoder.decode(line)), wanted, _RECORD_LINE_MAX)


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: str


JsonBytes: TypeAlias = str | Base64 | None


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of ``consume --output json``; ``topic``, ``partition`` and ``offset`` are ignored."""

    value: JsonBytes
    key: JsonBytes | msgspec.UnsetType = msgspec.UNSET
    headers: list[tuple[str, str | Base64]] | msgspec.UnsetType | None = msgspec.UNSET
    timestamp: str | int | msgspec.UnsetType = msgspec.UNSET
    topic: str = ""
    partition: str = ""
    offset: int = 0
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # what the value says, of one recorded from the mesh


def _whole(line: _Line) -> FullRecord:
    key = None if line.key is msgspec.UNSET else bytes_of(line.key)
    headers = None
    if line.headers is not msgspec.UNSET:
        headers = tuple([(name, bytes_of(value) or b"") for name, value in line.headers or ()])
    stamp = None if line.timestamp is msgspec.UNSET else _micros(line.timestamp)
    return FullRecord(bytes_of(line.value), key, line.key is not msgspec.UNSET, headers, stamp)


def bytes_of(text: JsonBytes) -> bytes | None:
    """Convert the JSON of ``json_value`` back to bytes. Raises UsageError."""
    if isinstance(text, Base64):
        try:
            return base64.b64decode(text.base64, validate=True)
        except binascii.Error as error:
            raise UsageError(f"not base64: {error}") from None
    return None if text is None else text.encode()


def _micros(stamp: str | int) -> int:
    if isinstance(stamp, str) and not stamp.removeprefix("-").isdecimal():
        return as_micros(datetime.fromisoformat(stamp))
    if not -(1 << 63) <= int(stamp) < 1 << 63:
        raise UsageError(f"{str(stamp)[:40]} is not a time: microseconds since 1970 have 64 bits")
    return int(stamp)


def looks_consumed(item: Item) -> bool:
    """True if a JSON line looks like a line of ``consume --output json``."""
    try:
        found = msgspec.json.decode(item, type=dict[str, msgspec.Raw]) if isinstance(item, bytes) else {}
    except msgspec.ValidationError:  # JSON, but not an object
        return False
    return list(found)[: len(CONSUMED)] == list(CONSUMED)


def length_prefixed(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split records of any bytes, each after its length as four bytes, big endian. Raises BadInput."""
    rest = bytearray()
    number = 1  # of the next record
    for chunk in chunks:
        rest += chunk
        records: list[bytes] = []
        at = 0
        while at + _length.size <= len(rest):
            (size,) = _length.unpack_from(rest, at)
            if size > RECORD_BYTES_MAX:
                problem = f"record {number} of the input claims {size} bytes, at most {RECORD_BYTES_MAX} are possible"
                raise BadInput(f"{problem}; is the input length-prefixed?", records)
            end = at + _length.size + size
            if end > len(rest):
                break
            records.append(bytes(rest[at + _length.size : end]))
            number += 1
            at = end
        del rest[:at]
        yield records
    if rest:
        raise BadInput(f"the input ends in the middle of record {number}", [])


SPLITTERS: Final[dict[str, Callable[[Iterable[bytes]], Iterator[Sequence[Item]]]]] = {
    "lines": split_lines,
    "json": json_lines,
    "length": length_prefixed,
    "records": consumed_lines,
}


def as_text(record: Record) -> bytes:
    """Return one line for people: time, partition and offset, key, value."""
    key = "" if record.key is None else f"{readable(record.key)}  "
    return _line(record, key + ("(no value)" if record.value is None else readable(record.value)))


def _line(record: Record, text: str) -> bytes:
    name = terminal.line(f"{record.topic}/{record.partition[:8]}")
    return f"{iso_time(record.timestamp)}  {name}@{record.offset}  {text}\n".encode()


def with_headers(render: Callable[[Record], bytes]) -> Callable[[Record], bytes]:
    """The line of a record, and its headers at the end if it has any: ``[name=value, name=value]``."""

    def line(record: Record) -> bytes:
        shown = ", ".join(f"{terminal.line(name)}={readable(value)}" for name, value in record.headers)
        return render(record)[:-1] + (f"  [{shown}]\n".encode() if shown else b"\n")

    return line


def readable(raw: bytes) -> str:
    return terminal.line(raw.decode("utf-8", "backslashreplace"))


def message_as_text(record: Record) -> bytes:
    """Return one line for a record of a mesh message: its topic there, and the value as ``subscribe`` prints it."""
    try:
        shown = "; ".join(message_texts(record.value or b""))
    except InvalidData:
        return as_text(record)
    return _line(record, f"{readable(record.key or b'')}  {terminal.line(shown)}")


def message_as_json(record: Record) -> bytes:
    """Return a record of a mesh message as JSON; ``message`` is the input of ``publish --format json``.

    It is null where JSON has no form for the value.
    """
    from chappe.data.binary import decode

    topic = (record.key or b"").decode("utf-8", "surrogateescape")
    try:
        message = dumps_message(topic, decode(record.value or b""), legal=True).encode()
    except (InvalidData, UnsupportedValue):
        message = b"null"
    return as_json(record)[:-2] + b',"message":' + message + b"}\n"


MESSAGE_RENDERERS: Final[dict[str, Callable[[Record], bytes]]] = {"text": message_as_text, "json": message_as_json}

RENDERERS: Final[dict[str, Callable[[Record], bytes]]] = {
    "raw": as_raw,
    "text": as_text,
    "json": as_json,
    "length": as_length,
}
