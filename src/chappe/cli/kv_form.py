"""How ``chappe kv`` prints and reads keys and values: as ``chappe publish`` and ``subscribe`` do, one line each."""

from __future__ import annotations

from typing import Final

from chappe.cli.events import read_argument
from chappe.data.json import dumps, loads
from chappe.data.text import to_text
from chappe.data.values import Table, Value
from chappe.errors import InvalidData, UnsupportedValue, UsageError

# What would move the cursor or end the line early: control characters, but not the tab.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 9} | {10: "\\n"}


def read_one(text: str) -> Value:
    """A key or value on the command line; raises UsageError."""
    try:
        return read_argument(text, None)
    except InvalidData as problem:
        raise UsageError(str(problem)) from None


def line_of(value: object) -> bytes:
    """A value as a line of text."""
    return shown(value).encode("utf-8", "backslashreplace") + b"\n"


def shown(value: object) -> str:
    """A value as text without line breaks."""
    return to_text(value).translate(_CONTROLS)


def json_of(value: object) -> bytes:
    """A value as a line of typed JSON: legal where JSON can express it, else as the original writes it."""
    return typed(value).encode("utf-8", "surrogateescape") + b"\n"


def typed(value: object) -> str:
    """The same as text."""
    try:
        return dumps(value, legal=True)
    except UnsupportedValue:  # NaN, infinity, bytes that are no text
        return dumps(value)


def entry_as_text(key: object, value: object) -> bytes:
    """An entry as a line for people."""
    return f"{shown(key)} -> {shown(value)}\n".encode("utf-8", "backslashreplace")


def entry_as_json(key: object, value: object) -> bytes:
    """An entry as a line of JSON: what stands in the JSON of a table."""
    return f'{{"key":{typed(key)},"value":{typed(value)}}}\n'.encode("utf-8", "surrogateescape")


def read_entry(line: bytes) -> tuple[Value, Value]:
    """What ``entry_as_json`` has written; raises InvalidData."""
    table = loads(b'{"@data-type":"table","data":[' + line.strip() + b"]}")
    if not isinstance(table, Table) or len(table) != 1:
        raise InvalidData("an entry is one object with key and value")
    ((key, value),) = table.pairs()
    return key, value


def of_prefix(key: object, prefix: str | None) -> bool:
    """Whether a key is wanted."""
    return prefix is None or (isinstance(key, str) and key.startswith(prefix))
