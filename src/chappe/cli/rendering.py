"""How ``chappe consume`` prints records: raw, text, JSON, or length-prefixed; each is bytes for standard output."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from chappe.cli.events import texts
from chappe.cli.units import iso_time, readable_name
from chappe.cli.values import CONTROLS
from chappe.data.binary import decode
from chappe.data.json import dumps_message
from chappe.errors import InvalidData, UnsupportedValue
from chappe.log.batch import Record

_json: Final = msgspec.json.Encoder()
_length: Final = struct.Struct(">I")


def as_raw(record: Record) -> bytes:
    """The value as it is, and a newline; a record without value is an empty line."""
    return (record.value or b"") + b"\n"


def as_length(record: Record) -> bytes:
    """The length in four bytes, big endian, and the value: what ``produce --format length`` reads."""
    value = record.value or b""
    return _length.pack(len(value)) + value


def as_text(record: Record) -> bytes:
    """One line for people: time, partition and offset, key, value."""
    partition = record.partition[:8]
    key = "" if record.key is None else f"{_readable(record.key)}  "
    value = "(no value)" if record.value is None else _readable(record.value)
    line = f"{iso_time(record.timestamp)}  {record.topic}/{partition}@{record.offset}  {key}{value}\n"
    return line.encode("utf-8", "backslashreplace")


def as_json(record: Record, *, with_headers: bool = True) -> bytes:
    """One object with all that is known of the record; bytes that are not UTF-8 become ``{"base64": "..."}``.

    Without headers these are null: nobody can tell them.
    """
    fields = {
        "topic": readable_name(record.topic),
        "partition": readable_name(record.partition),
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp),
        "key": _json_value(record.key),
        "value": _json_value(record.value),
        "headers": [[name, _json_value(value)] for name, value in record.headers] if with_headers else None,
    }
    return _json.encode(fields) + b"\n"


def _readable(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace").translate(CONTROLS)


def _json_value(raw: bytes | None) -> Any:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def message_as_text(record: Record) -> bytes:
    """A record that was recorded from the mesh: its topic there, and the value or event as ``subscribe`` has it."""
    try:
        shown = "; ".join(texts(record.value or b""))
    except InvalidData:
        return as_text(record)
    where = f"{iso_time(record.timestamp)}  {record.topic}/{record.partition[:8]}@{record.offset}"
    line = f"{where}  {_readable(record.key or b'')}  {shown.translate(CONTROLS)}\n"
    return line.encode("utf-8", "backslashreplace")


def message_as_json(record: Record) -> bytes:
    """The same as JSON: besides all else ``message`` is the data message that ``publish --format json`` reads.

    It is null where JSON has no form for the value.
    """
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
