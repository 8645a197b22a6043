"""How ``chappe subscribe`` prints messages, and how ``chappe publish`` reads values: one line each."""

from __future__ import annotations

from chappe.cli import values
from chappe.data import zeek
from chappe.data.binary import decode
from chappe.data.json import dumps_message, dumps_plain, loads, loads_message
from chappe.data.values import Value
from chappe.errors import InvalidData, UnsupportedValue


def as_text(topic: str, payload: bytes, *, broker: bool = False) -> bytes:
    """The topic and the value, or the name of a Zeek event and its arguments; a batch has a line for each of its own.

    With ``broker`` values are in Broker's text form. Raises InvalidData.
    """
    return b"".join([_line(topic, each) for each in texts(payload, broker=broker)])


def texts(payload: bytes, *, broker: bool = False) -> list[str]:
    """What ``as_text`` shows of a value: one text, or of a batch of Zeek's one for each message in it."""
    try:
        message = zeek.parse(payload)
    except InvalidData:
        return [values.shown(decode(payload), as_text=broker)]
    messages = message if isinstance(message, zeek.Batch) else [message]
    return [_message_text(each, broker) for each in messages]


def _message_text(message: zeek.Message, broker: bool) -> str:
    if isinstance(message, zeek.Event):
        return f"{message.name}({', '.join([_argument(each, broker) for each in message.args])})"
    return values.shown(message.to_value(), as_text=broker)


def _argument(value: object, broker: bool) -> str:
    """An argument of an event: strings in quotes, so that it is plain where one ends."""
    return dumps_plain(value) if type(value) is str and not broker else values.shown(value, as_text=broker)


def _line(topic: str, text: str) -> bytes:
    return f"{topic}  {text}".translate(values.CONTROLS).encode("utf-8", "backslashreplace") + b"\n"


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


def read_line(line: bytes, kind: str | None, *, broker: bool = False) -> Value:
    """A value as a line, read as ``chappe.cli.values`` says; raises InvalidData."""
    return values.read(line.decode("utf-8", "surrogateescape"), kind, as_text=broker)


def read_json(topic: str | None, line: bytes) -> tuple[str, Value]:
    """Topic and value of a line of JSON: of a data message, or of a value for ``topic``, which goes before the line's.

    Raises InvalidData.
    """
    if topic is None:
        return loads_message(line)
    return topic, loads(line)
