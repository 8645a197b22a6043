from __future__ import annotations

import json
import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.data import terminal

UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünï, 日本, 👩‍👩‍👧", "plain, ünï, 日本, 👩‍👩‍👧"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J\x9b2J\x7f", r"\x1b[2J\x9b2J\x7f"),
        ("a\tb\nc\r\u2028d", "a\tb\\nc\\x0d\\u2028d"),
        ("user\u202efdp.exe\u2069", r"user\u202efdp.exe\u2069"),
        ("caf\udce9 \ud800", r"caf\xe9 \ud800"),
    ],
)
def test_what_a_terminal_could_act_on_is_shown(text: str, shown: str) -> None:
    assert terminal.line(text) == shown


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_encoded(text: str) -> None:
    shown = terminal.line(text)
    assert UNSAFE.search(shown) is None
    assert "\n" not in shown
    shown.encode()
    assert terminal.lines(text).count("\n") == text.count("\n")
    assert UNSAFE.search(terminal.lines(text)) is None


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_says_the_same(text: str) -> None:
    raw = json.dumps([text], ensure_ascii=False).encode()
    shown = terminal.json_line(raw)
    assert json.loads(shown) == [text]
    assert UNSAFE.search(shown.decode()) is None
