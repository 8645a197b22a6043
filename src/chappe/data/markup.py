"""Small tables in HTML for notebooks: bounded, everything escaped, in the colours of the page around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Final

ROWS_MAX: Final = 20
CHARACTERS_MAX: Final = 120  # of a cell
_BYTES_MAX: Final = 4 * CHARACTERS_MAX + 4  # enough for as many characters of UTF-8
_LEFT: Final = ' style="text-align:left"'


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], total: int) -> str:
    """The first ``ROWS_MAX`` rows, and below them how many more of ``total`` there are.

    Args:
        title: What it is, above the table.
        columns: Their heads.
        rows: As many cells each as there are columns: bytes as ``text_of`` has them, numbers to the right, None as an
            empty cell, anything else as its ``str``. No more of them are made than are shown.
        total: How many rows there are.
    """
    head = "".join(f"<th{_LEFT}>{escape(each)}</th>" for each in columns)
    shown = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in islice(rows, ROWS_MAX)]
    more = total - len(shown)
    foot = f'<tr><td colspan="{len(columns)}"{_LEFT}>... and {more:,} more</td></tr>' if more > 0 else ""
    return (
        f'<table><caption style="text-align:left;caption-side:top">{escape(one_line(title))}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(shown)}{foot}</tbody></table>"
    )


def many(count: int, noun: str, plural: str = "") -> str:
    """Count things in English: ``1 topic``, ``2,000 topics``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def are(count: int, noun: str) -> str:
    """``1 topic is``, ``2,000 topics are``."""
    return f"{many(count, noun)} {'is' if count == 1 else 'are'}"


def text_of(raw: bytes) -> str:
    """Bytes for people: as the text that they are, or else in hexadecimal digits; the beginning of what is long."""
    part = raw[:_BYTES_MAX]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        cut = len(raw) > len(part) and error.start > len(part) - 4  # in the midst of a character
        if not cut:
            digits = raw[: CHARACTERS_MAX // 2].hex()
            return f"0x{digits}{'…' if len(raw) > CHARACTERS_MAX // 2 else ''}"
        text = part[: error.start].decode()
    return one_line(text)


def one_line(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    """The beginning of a text, in one line; what cannot be printed as Python writes it."""
    shown = "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text[:characters_max]])
    return shown if len(text) <= characters_max else f"{shown}…"


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td{_LEFT}>{value}</td>"
    if isinstance(value, int):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td{_LEFT}>{escape(text_of(value) if isinstance(value, bytes) else one_line(str(value)))}</td>"
