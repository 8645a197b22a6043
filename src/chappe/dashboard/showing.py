"""Values for people: bytes as text, JSON, a typed value of the mesh, or hexadecimal digits. Pure, and bounded.

The result is plain text; the caller escapes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal, TypeAlias, get_args

from chappe.data import zeek
from chappe.data.binary import decode
from chappe.data.text import to_text
from chappe.errors import InvalidData

Form: TypeAlias = Literal["auto", "text", "json", "typed", "hex"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
SHOWN_BYTES: Final = 64 * 1024  # of one value
ROW_CHARACTERS: Final = 160  # of a value in a table
HEX_WIDTH: Final = 16
INDENT_MAX: Final = 32  # levels; what lies deeper is not indented further
_OPEN: Final = ("{", "[")
_CLOSE: Final = ("}", "]")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def shown(raw: bytes | None, form: Form = "auto", *, typed: bool = False) -> str:
    """Return a value in one form; without that form as text, and what is no text as hexadecimal digits.

    Args:
        form: ``auto`` takes JSON as JSON, values of the mesh, where ``typed`` says that it is one, as such, then text.
        typed: Whether it was recorded from the mesh.
    """
    if raw is None:
        return "(none)"
    cut = f"\n... {len(raw) - SHOWN_BYTES:,} more bytes" if len(raw) > SHOWN_BYTES else ""
    part = raw[:SHOWN_BYTES]
    if form == "hex":
        return _hex(part) + cut
    if not cut:
        if form == "typed" or (form == "auto" and typed):
            with suppress(InvalidData):
                return typed_text(raw)
        if form == "json" or (form == "auto" and raw[:1] in (b"{", b"[")):
            with suppress(ValueError, RecursionError):
                return _pretty(raw.decode())
    try:
        text = part.decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError:
        return _hex(part) + cut
    return (_hex(part) if form == "auto" and _is_binary(text) else text) + cut


def brief(raw: bytes | None, form: Form = "auto", *, typed: bool = False) -> str:
    """Return the same in one short line, for a table."""
    if raw is None:
        return ""
    text = shown(raw[: 8 * ROW_CHARACTERS] if not typed and form != "json" else raw, form, typed=typed)
    line = " ".join(text.split())
    return line if len(line) <= ROW_CHARACTERS else f"{line[: ROW_CHARACTERS - 1]}…"


def typed_text(raw: bytes) -> str:
    """Return a value of the mesh, or the name of a Zeek event and its arguments. Raises InvalidData."""
    try:
        message = zeek.parse(raw)
    except InvalidData:
        return to_text(decode(raw)).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    messages: Iterable[object] = message if isinstance(message, zeek.Batch) else [message]
    return "\n".join(
        f"{each.name}({', '.join(to_text(arg) for arg in each.args)})"
        if isinstance(each, zeek.Event)
        else to_text(each.to_value())  # type: ignore[attr-defined]
        for each in messages
    )


def _pretty(text: str) -> str:
    """Return JSON with a line for each member, its tokens as they were sent; raises ValueError if it is no JSON.

    So numbers keep their digits, strings their escapes, and members that come twice are there twice.
    """
    json.loads(text, parse_float=str, parse_int=str)
    parts: list[str] = []
    depth = 0
    before = ""
    for token in _TOKEN.findall(text):
        if token in _CLOSE:
            depth -= 1
        empty = before in _OPEN and token in _CLOSE
        if (before in _OPEN or before == "," or token in _CLOSE) and not empty:
            parts.append("\n" + "  " * min(depth, INDENT_MAX))
        parts.append(": " if token == ":" else token)
        if token in _OPEN:
            depth += 1
        before = token
    return "".join(parts)


def _is_binary(text: str) -> bool:
    return any(ord(char) < 32 and char not in "\t\n\r" for char in text)


def _hex(raw: bytes) -> str:
    lines = []
    for begin in range(0, len(raw), HEX_WIDTH):
        row = raw[begin : begin + HEX_WIDTH]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{begin:08x}  {row.hex(' '):<{3 * HEX_WIDTH - 1}}  {plain}")
    return "\n".join(lines)
