"""Values on the command line, typed and printed: JSON first, Broker's text form on request.

The first rule that fits reads an argument:

1. JSON is its value (``chappe.data.json.loads_plain``): ``5``, ``-1.5``, ``true``, ``null``, ``"text"``,
   ``[1, 2]``, ``{"a": 1}``, and the typed JSON of Broker, ``{"@data-type": "count", "data": 5}``.
2. ``TYPE:TEXT`` is a value of that type: ``count:5``, ``address:10.0.0.1``, ``timespan:5m``, ``string:42``.
3. Anything else is a string as it stands. Text that begins like JSON but is not JSON is an error.

Printed text reads back as the same value. ``--text`` uses Broker's text form for both, which guesses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from typer import Option
from typer.core import TyperCommand

from chappe.cli.console import warn
from chappe.data import terminal
from chappe.data.json import dumps, dumps_message, dumps_plain, loads, loads_message, loads_plain, scalar_text
from chappe.data.order import TYPE_NAMES
from chappe.data.text import from_text, to_text
from chappe.data.values import TAGS, Set, Table, Value, type_name
from chappe.errors import InvalidData, UnsupportedValue, UsageError

HELP: Final = "JSON, TYPE:TEXT such as count:5, or else a string."

Text: TypeAlias = Annotated[
    bool, Option("--text", help="Values are typed and printed in Broker's text form: 5m, 10.0.0.0/8, {1, 2}, T.")
]

_SPACE: Final = " \t\r\n"  # JSON's
_SCALAR: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(?:Z|[+-][0-9:]+)?", re.ASCII)
_PLAIN: Final = (type(None), bool, int, str, bytes, tuple, Set, Table)  # JSON has a form for them
_NEGATIVE: Final = re.compile(r"-\.?[0-9]")
_WORDS: Final = {
    "true": "true", "t": "true", "false": "false", "f": "false", "nil": "null", "none": "null", "null": "null"
}  # fmt: skip


class Command(TyperCommand):
    """A command that takes values: an argument that begins as a negative number is a value, not an option."""

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        process = parser._process_opts

        def process_opts(argument: str, state: Any) -> None:
            if _NEGATIVE.match(argument):
                state.largs.append(argument)
            else:
                process(argument, state)

        # click has no other place for it: its ignore_unknown_options would take misspelt options for values, too
        setattr(parser, "_process_opts", process_opts)  # noqa: B010
        return parser


# -- reading --------------------------------------------------------------------------------------


def read(text: str, kind: str | None = None, *, as_text: bool = False) -> Value:
    """Read ``text`` by the rules above, or as the type ``kind``.

    Raises InvalidData.
    """
    if kind is not None:
        return _of_type(kind, text)
    named, colon, rest = text.partition(":")
    if as_text:
        return _of_type(named, rest) if colon and named in TYPE_NAMES else from_text(text)
    inner = text.strip(_SPACE)
    if inner[:1] in ("{", "[", '"') or _SCALAR.fullmatch(inner):
        return _json(text)
    return _of_type(named, rest) if colon and named in TYPE_NAMES else from_text(text, "string")


def read_argument(text: str, kind: str | None = None, *, as_text: bool = False) -> Value:
    """Read an argument of the command. Raises UsageError; warns if a string may have been meant otherwise."""
    try:
        found = read(text, kind, as_text=as_text)
    except InvalidData as problem:
        raise UsageError(str(problem)) from None
    other = None if kind is not None or as_text else hint(text)
    if other is not None:
        warn(other)
    return found


def hint(text: str) -> str | None:
    """Return a hint for text that was read as a string and looks like another type, else None."""
    named, colon, _ = text.partition(":")
    inner = text.strip(_SPACE)
    if (colon and named in TYPE_NAMES) or inner[:1] in ("{", "[", '"') or _SCALAR.fullmatch(inner):
        return None
    meant = _meant(text)
    if meant is None:
        return None
    return f"{text!r} is taken as a string, not as {meant}; string:{text} is one without this line"


def _meant(text: str) -> str | None:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _TIME.fullmatch(text):
        return f"a time (timestamp:{text.replace(' ', 'T')})"
    try:
        guessed = from_text(text)
    except InvalidData:
        return None
    kind = type_name(guessed)
    if kind == "string":
        return None
    if type(guessed) is tuple:
        return "a vector ([1, 2])"
    return f"{'an' if kind[0] in 'aei' else 'a'} {kind} ({kind}:{text})"


def _json(text: str) -> Value:
    try:
        return loads_plain(text)
    except InvalidData as problem:
        shown = text if len(text) <= 60 else text[:60] + "..."
        raise InvalidData(
            f"{shown!r} is not the JSON that it looks like: {problem}. For a string write string:TEXT, "
            "for Broker's text form give --text"
        ) from None


def _of_type(kind: str, text: str) -> Value:
    if kind == "timestamp" and not text.endswith("ns"):
        return loads(json.dumps({"@data-type": kind, "data": text}))
    try:
        return from_text(text, kind)
    except InvalidData as problem:
        raise InvalidData(f"{problem}; for a string write string:TEXT") from None


# -- printing -------------------------------------------------------------------------------------


def shown(value: object, *, as_text: bool = False) -> str:
    """Return a value on one line, as ``read`` reads it; ``as_text`` uses Broker's text form, which loses types."""
    if as_text:
        return terminal.line(to_text(value))
    if type(value) is str:
        return value if _is_bare(value) else dumps_plain(value)
    return _typed(value) or dumps_plain(value)


def _is_bare(text: str) -> bool:
    """True if a string reads back as itself, without a hint."""
    if not text.isprintable() or not text or text[0] == "-" or text != text.strip():
        return False
    try:
        return hint(text) is None and read(text) == text
    except InvalidData:
        return False


def _typed(value: Any) -> str | None:
    """Return ``TYPE:TEXT`` of a scalar that JSON has no type for."""
    kind = type(value)
    if TAGS.get(kind) is None or kind in _PLAIN or (kind is float and math.isfinite(value)):
        return None
    text = str(value) if kind is float else scalar_text(value)
    return f"{type_name(value)}:{text}" if text.isprintable() else None


def line_of(value: object, *, as_text: bool = False) -> bytes:
    return shown(value, as_text=as_text).encode("utf-8", "backslashreplace") + b"\n"


def typed(value: object) -> str:
    """Return a value as typed JSON: legal where JSON can express it, else as the original writes it."""
    return _legal(dumps, value)


def _legal(write: Callable[..., str], value: object) -> str:
    try:
        return write(value, legal=True)
    except UnsupportedValue:  # NaN, infinity, bytes that are not text
        return write(value)


def entry_as_text(key: object, value: object, *, as_text: bool = False) -> bytes:
    return terminal.line(f"{shown(key, as_text=as_text)} -> ").encode() + line_of(value, as_text=as_text)


def entry_as_json(key: object, value: object) -> bytes:
    """Return an entry as a line of JSON, in the form of an entry in a table's JSON."""
    return terminal.json_line(f'{{"key":{typed(key)},"value":{typed(value)}}}\n'.encode("utf-8", "surrogateescape"))


def read_entry(line: bytes) -> tuple[Value, Value]:
    """Read a line of ``entry_as_json``, or the same with plain JSON. Raises InvalidData."""
    table = loads_plain(b'{"@data-type":"table","data":[' + line.strip() + b"]}")
    if not isinstance(table, Table) or len(table) != 1:
        raise InvalidData("an entry is one object with key and value")
    ((key, value),) = table.pairs()
    return key, value


def of_prefix(key: object, prefix: str | None) -> bool:
    return prefix is None or (isinstance(key, str) and key.startswith(prefix))


def message_as_text(topic: str, payload: bytes, *, broker: bool = False) -> bytes:
    """Return lines with the topic and the value, or a Zeek event's name and arguments; a batch has several.

    ``broker`` uses Broker's text form. Raises InvalidData.
    """
    return b"".join([_message_line(topic, each) for each in message_texts(payload, broker=broker)])


def message_texts(payload: bytes, *, broker: bool = False) -> list[str]:
    """Return the text of a value, or one for each message of a batch of Zeek's."""
    from chappe.data import zeek
    from chappe.data.binary import decode

    try:
        message = zeek.parse(payload)
    except InvalidData:
        return [shown(decode(payload), as_text=broker)]
    found = []
    for each in message if isinstance(message, zeek.Batch) else [message]:
        if isinstance(each, zeek.Event):
            # strings in quotes, so that it is plain where one ends
            quoted = [
                dumps_plain(arg) if type(arg) is str and not broker else shown(arg, as_text=broker) for arg in each.args
            ]
            found.append(f"{each.name}({', '.join(quoted)})")
        else:
            found.append(shown(each.to_value(), as_text=broker))
    return found


def _message_line(topic: str, text: str) -> bytes:
    return terminal.line(f"{topic}  {text}").encode() + b"\n"


def message_as_json(topic: str, payload: bytes) -> bytes:
    """Return a data message as JSON: legal where JSON can express the value, else as the original writes it.

    Raises InvalidData.
    """
    from chappe.data.binary import decode

    text = _legal(partial(dumps_message, topic), decode(payload))
    return terminal.json_line(text.encode("utf-8", "surrogateescape")) + b"\n"


def read_message(topic: str | None, line: bytes) -> tuple[str, Value]:
    """Read topic and value from a line of JSON: a data message, or a value for ``topic``, which overrides the line's.

    Raises InvalidData.
    """
    if topic is None:
        return loads_message(line)
    return topic, loads(line)
