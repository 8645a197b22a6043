"""Bytes for people, in every form, in bounded time and space."""

from __future__ import annotations

import pytest

from chappe.dashboard.showing import ROW_CHARACTERS, SHOWN_BYTES, Form, brief, shown
from chappe.data.binary import encode
from chappe.data.scalars import Count


@pytest.mark.parametrize(
    ("raw", "form", "text"),
    [
        (b'{"a":1}', "auto", '{\n  "a": 1\n}'),
        (b'{"a":1}', "text", '{"a":1}'),
        (b"{not json", "auto", "{not json"),
        (b"{not json", "json", "{not json"),
        ("grüße".encode(), "auto", "grüße"),
        (b"<b>&amp;</b>", "auto", "<b>&amp;</b>"),
        (None, "auto", "(none)"),
        (b"", "auto", ""),
        (b"hi\x00", "auto", "00000000  68 69 00                                         hi."),
        (b"\xff", "text", "00000000  ff                                               ."),
        (b"A" * 17, "hex", "00000000  " + "41 " * 15 + "41  " + "A" * 16 + "\n00000010  41" + " " * 47 + "A"),
        (b"no value of the mesh", "typed", "no value of the mesh"),
    ],
)  # fmt: skip
def test_a_value_is_shown_in_the_form_that_it_has(raw: bytes | None, form: str, text: str) -> None:
    assert shown(raw, form) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["auto", "json"])
def test_json_is_shown_as_it_was_sent(form: Form) -> None:
    sent = b'{"n":1.10,"long":0.1234567890123456789012345678901,"e":1e999,"n":2,'
    sent += b'"t":"gr\\u00fc\xc3\x9fe \\"x\\" {},:","none":[ ],"l":[1,{}]}'
    assert shown(sent, form) == (
        '{\n  "n": 1.10,\n  "long": 0.1234567890123456789012345678901,\n  "e": 1e999,\n  "n": 2,\n'
        '  "t": "gr\\u00fcße \\"x\\" {},:",\n  "none": [],\n  "l": [\n    1,\n    {}\n  ]\n}'
    )
    if form == "json":
        assert shown(b"9" * 5000, form) == "9" * 5000
    assert len(shown(b"[" * 400 + b"1," * 20_000 + b"1" + b"]" * 400, form)) < 4 << 20


def test_values_of_the_mesh_are_shown_with_their_types() -> None:
    raw = encode((Count(3), "x"))

    assert shown(raw, "typed") == "(3, x)"
    assert shown(raw, "auto", typed=True) == "(3, x)"
    assert "(3, x)" not in shown(raw, "auto")


def test_what_is_long_is_cut_and_says_so() -> None:
    text = shown(b"x" * (SHOWN_BYTES + 1_000))

    assert text.endswith("... 1,000 more bytes")
    assert len(text) < SHOWN_BYTES + 100
    assert shown(b"[" * SHOWN_BYTES, "json") == "[" * SHOWN_BYTES  # too deep for any parser
    assert len(brief(b"y\n" * 100_000)) == ROW_CHARACTERS
    assert brief(b"two\nlines") == "two lines"
    assert brief(None) == ""
