"""Records as lines: of JSON with all their fields, or only their values."""

from __future__ import annotations

import base64
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chappe.data import terminal

if TYPE_CHECKING:
    from chappe.log.batch import Record

_json: Final = msgspec.json.Encoder()
_length: Final = struct.Struct(">I")


def as_raw(record: Record) -> bytes:
    """Return the value and a newline; a record without value is an empty line."""
    return (record.value or b"") + b"\n"


def as_length(record: Record) -> bytes:
    """Return the length in four bytes, big endian, and the value, for ``produce --format length``."""
    value = record.value or b""
    return _length.pack(len(value)) + value


def as_json(record: Record, *, with_headers: bool = True) -> bytes:
    """Return an object with all fields of the record; bytes that are not UTF-8 become ``{"base64": "..."}``.

    ``with_headers=False`` is for headers that cannot be read: they are null.
    """
    fields = {
        "topic": readable_name(record.topic),
        "partition": readable_name(record.partition),
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp),
        "key": json_value(record.key),
        "value": json_value(record.value),
        "headers": [[name, json_value(value)] for name, value in record.headers] if with_headers else None,
    }
    return terminal.json_line(_json.encode(fields)) + b"\n"


def json_value(raw: bytes | None) -> Any:
    """Convert bytes for JSON: to text, or to base64 where they are not text."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def readable_name(name: str) -> str:
    """Escape a topic or partition for a line: control characters, and bytes that are not UTF-8."""
    return terminal.line(name)


def iso_time(timestamp_us: int) -> str:
    """Convert microseconds since 1970 to ISO 8601 in UTC; to the bare number if the calendar has no such day."""
    seconds, micros = divmod(timestamp_us, 1_000_000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()}.{micros:06d}Z"
    except (ValueError, OverflowError, OSError):
        return str(timestamp_us)
