"""How ``chappe kv`` prints keys and values, and reads entries, one line each; ``values`` has the form of one value."""

from __future__ import annotations

from chappe.cli.values import shown
from chappe.data.json import dumps, loads_plain
from chappe.data.values import Table, Value
from chappe.errors import InvalidData, UnsupportedValue


def line_of(value: object, *, as_text: bool = False) -> bytes:
    """A value as a line of text."""
    return shown(value, as_text=as_text).encode("utf-8", "backslashreplace") + b"\n"


def json_of(value: object) -> bytes:
    """A value as a line of typed JSON: legal where JSON can express it, else as the original writes it."""
    return typed(value).encode("utf-8", "surrogateescape") + b"\n"


def typed(value: object) -> str:
    """The same as text."""
    try:
        return dumps(value, legal=True)
    except UnsupportedValue:  # NaN, infinity, bytes that are no text
        return dumps(value)


def entry_as_text(key: object, value: object, *, as_text: bool = False) -> bytes:
    """An entry as a line for people."""
    return f"{shown(key, as_text=as_text)} -> ".encode("utf-8", "backslashreplace") + line_of(value, as_text=as_text)


def entry_as_json(key: object, value: object) -> bytes:
    """An entry as a line of JSON: what stands in the JSON of a table."""
    return f'{{"key":{typed(key)},"value":{typed(value)}}}\n'.encode("utf-8", "surrogateescape")


def read_entry(line: bytes) -> tuple[Value, Value]:
    """What ``entry_as_json`` has written, or the same with plain JSON; raises InvalidData."""
    table = loads_plain(b'{"@data-type":"table","data":[' + line.strip() + b"]}")
    if not isinstance(table, Table) or len(table) != 1:
        raise InvalidData("an entry is one object with key and value")
    ((key, value),) = table.pairs()
    return key, value


def of_prefix(key: object, prefix: str | None) -> bool:
    """Whether a key is wanted."""
    return prefix is None or (isinstance(key, str) and key.startswith(prefix))
