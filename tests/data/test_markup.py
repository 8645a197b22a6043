"""Tables for notebooks: what they hold is text, bounded, and never markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from chappe.data.markup import CHARACTERS_MAX, ROWS_MAX, many, table, text_of

HOSTILE = '<script>alert("&amp;")</script>'


def test_what_is_hostile_is_shown_as_text() -> None:
    made = table(HOSTILE, [HOSTILE], [[HOSTILE], [HOSTILE.encode()]], 2)
    assert "<script" not in made
    tree = ET.fromstring(made)  # well-formed: nothing breaks out of its cell
    assert [each.text for each in tree.iter() if each.text] == [HOSTILE] * 4


def test_no_more_rows_are_made_than_are_shown() -> None:
    made = 0

    def rows() -> Iterator[list[int]]:
        nonlocal made
        while True:
            made += 1
            yield [made]

    shown = table("numbers", ["number"], rows(), 1_000_000)
    assert made == ROWS_MAX
    assert f"... and {1_000_000 - ROWS_MAX:,} more" in shown
    assert "more" not in table("numbers", ["number"], [[1]], 1)


def test_a_cell_is_bounded() -> None:
    made = table("t", ["a", "b"], [["x" * 10_000_000, b"\xff" * 10_000_000]], 1)
    assert len(made) < 1000


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"text", "text"),
        ("grün".encode(), "grün"),
        (b"\xff\x00", "0xff00"),
        (b"two\nlines\x1b[31m", r"two\nlines\x1b[31m"),
        ("\u202eright to left".encode(), r"\u202eright to left"),
        (b"x" * 1000, "x" * CHARACTERS_MAX + "…"),
        ("ä".encode() * 1000, "ä" * CHARACTERS_MAX + "…"),
        (b"\xff" * 1000, "0x" + "ff" * (CHARACTERS_MAX // 2) + "…"),
        (b"x" * 482 + "\N{GRINNING FACE}".encode() * 9, "x" * CHARACTERS_MAX + "…"),  # cut in a character
    ],
)
def test_bytes_are_text_where_they_can_be(raw: bytes, text: str) -> None:
    assert text_of(raw) == text


def test_one_is_not_many() -> None:
    assert [many(1, "topic"), many(2000, "topic"), many(0, "entry", "entries")] == [
        "1 topic",
        "2,000 topics",
        "0 entries",
    ]
