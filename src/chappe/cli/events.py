"""How ``chappe subscribe`` prints messages, and how ``chappe publish`` reads values: one line each."""

from __future__ import annotations

from typing import Final

from chappe.data import zeek
from chappe.data.binary import decode
from chappe.data.json import dumps_message, loads, loads_message
from chappe.data.order import TYPE_NAMES
from chappe.data.text import from_text, to_text
from chappe.data.values import Value
from chappe.errors import InvalidData, UnsupportedValue

# What would move the cursor or end the line early: control characters, but not the tab.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 9} | {10: "\\n"}


def as_text(topic: str, payload: bytes) -> bytes:
    """The topic and the value, or the name of a Zeek event and its arguments; a batch has a line for each of its own.

    Raises InvalidData.
    """
    try:
        message = zeek.parse(payload)
    except InvalidData:
        return _line(topic, to_text(decode(payload)))
    if isinstance(message, zeek.Batch):
        return b"".join([_line(topic, _message_text(each)) for each in message])
    return _line(topic, _message_text(message))


def _message_text(message: zeek.Message) -> str:
    if isinstance(message, zeek.Event):
        return f"{message.name}({', '.join(map(to_text, message.args))})"
    return to_text(message.to_value())


def _line(topic: str, text: str) -> bytes:
    return f"{topic}  {text}".translate(_CONTROLS).encode("utf-8", "backslashreplace") + b"\n"


def as_json(topic: str, payload: bytes) -> bytes:
    """A data message as JSON: legal where JSON can express the value, else as the original writes it.

    Raises InvalidData.
    """
    value = decode(payload)
    try:
        text = dumps_message(topic, value, legal=True)
    except UnsupportedValue:  # NaN, infinity, bytes that are no text
        text = dumps_message(topic, value)
    return text.encode("utf-8", "surrogateescape") + b"\n"


def read_argument(text: str, kind: str | None) -> Value:
    """A value on the command line: its text, of type ``kind``, of the type before a colon, or guessed.

    Raises InvalidData.
    """
    named, colon, rest = text.partition(":")
    if kind is None and colon and named in TYPE_NAMES:
        kind, text = named, rest
    return from_text(text, kind)


def read_text(line: bytes, kind: str | None) -> Value:
    """A value as a line of text; raises InvalidData."""
    return from_text(line.decode("utf-8", "surrogateescape"), kind)


def read_json(topic: str | None, line: bytes) -> tuple[str, Value]:
    """Topic and value of a line of JSON: of a data message, or of a value for ``topic``, which goes before the line's.

    Raises InvalidData.
    """
    if topic is None:
        return loads_message(line)
    return topic, loads(line)
