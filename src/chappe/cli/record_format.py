"""The format strings of ``chappe consume --format``, whose letters are kcat's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from chappe.api.log.lines import readable_name
from chappe.cli.formats import readable
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe.log.batch import Record

_PIECE: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
ALLOWED: Final = "%t %p %o %k %K %s %v %S %T %h %%"


class RecordFormat(NamedTuple):
    """A parsed format string; ``headers`` is True if it prints these."""

    render: Callable[[Record], bytes]
    headers: bool


def parse_format(text: str, *, escaped: bool) -> RecordFormat:
    """Read a format string.

    Args:
        text: Such as ``%t %p %o %k %s\\n``.
        escaped: Whether control characters in keys, values and headers are escaped: a terminal acts on them.

    Raises:
        UsageError: A letter or an escape is unknown.
    """
    shown = _escaped if escaped else _plain
    letters: dict[str, Callable[[Record], bytes]] = {
        "t": lambda record: readable_name(record.topic).encode(),
        "p": lambda record: readable_name(record.partition).encode(),
        "o": lambda record: b"%d" % record.offset,
        "k": lambda record: shown(record.key),
        "K": lambda record: _length(record.key),
        "s": lambda record: shown(record.value),
        "v": lambda record: shown(record.value),
        "S": lambda record: _length(record.value),
        "T": lambda record: b"%d" % (record.timestamp // 1000),
        "h": lambda record: b",".join(shown(name.encode()) + b"=" + shown(value) for name, value in record.headers),
    }
    parts: list[Callable[[Record], bytes]] = []
    headers = False
    for piece in _PIECE.finditer(text):
        letter, escape = piece.groups()
        if letter is None or letter == "%":
            fixed = (unescaped(piece[0]) if escape is not None else letter or piece[0]).encode(
                "utf-8", "surrogateescape"
            )
            parts.append(lambda _, fixed=fixed: fixed)  # type: ignore[misc]
        elif letter in letters:
            headers |= letter == "h"
            parts.append(letters[letter])
        else:
            raise UsageError(f"--format knows no %{letter}; the letters are {ALLOWED}")
    return RecordFormat(lambda record: b"".join(part(record) for part in parts), headers)


def unescaped(text: str) -> str:
    r"""Put in the characters that ``\n``, ``\t``, ``\r``, ``\0``, ``\\`` and ``\xNN`` stand for. Raises UsageError."""
    return _PIECE.sub(lambda piece: piece[0] if piece[2] is None else _character(piece[2]), text)


def _character(escape: str) -> str:
    if len(escape) == 3:
        code = int(escape[1:], 16)
        return chr(code) if code < 128 else chr(0xDC00 + code)  # a byte
    if escape not in _ESCAPES:
        raise UsageError(rf"\{escape} is not an escape; these are: \n \t \r \0 \\ \xNN")
    return _ESCAPES[escape]


def _plain(raw: bytes | None) -> bytes:
    return raw or b""


def _escaped(raw: bytes | None) -> bytes:
    return readable(raw or b"").encode()


def _length(raw: bytes | None) -> bytes:
    return b"%d" % (-1 if raw is None else len(raw))
