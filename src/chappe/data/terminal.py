"""Escapes untrusted text for a terminal.

A name or value may hold sequences that move the cursor, clear the screen, set the window's title or write to the
clipboard (C0, DEL and C1 controls), line breaks that forge lines of output, and bidirectional marks that show text in
another order than it has. Everything that a program prints for people goes through here; each of these characters is
printed as Python's escape for it.
"""

from __future__ import annotations

import re
from typing import Final

# Marks, embeddings, overrides and isolates of bidirectional text, and the line breaks that are not ASCII.
_ORDER: Final = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
# What cannot be encoded: bytes that are not UTF-8 (surrogate escapes), and halves of pairs.
_BYTES: Final = range(0xDC80, 0xDD00)
_HALVES: Final = (*range(0xD800, 0xDC80), *range(0xDD00, 0xE000))

_TEXT: Final = (
    {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
    | {code: f"\\u{code:04x}" for code in (*_ORDER, *_HALVES)}
    | {code: f"\\x{code - 0xDC00:02x}" for code in _BYTES}
)
_LINE: Final = _TEXT | {10: "\\n"}
_IN_JSON: Final = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"  # the same characters in UTF-8
)


def line(text: str) -> str:
    """Escape control characters and line breaks; keep tabs."""
    return text if text.isprintable() else text.translate(_LINE)


def lines(text: str) -> str:
    """Escape control characters; keep line breaks and tabs."""
    return text if text.isprintable() else text.translate(_TEXT)


def json_line(raw: bytes) -> bytes:
    """Escape the remaining such characters in JSON's strings, without changing its meaning."""
    if raw.isascii() and b"\x7f" not in raw:
        return raw
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), raw)
