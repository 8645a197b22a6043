"""The text of Broker's configuration files: what it says, and which line is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.benchmark.syntax import DEPTH_MAX, ConfigAddress, ConfigSection, parse, show, show_key
from chappe.errors import ConfigError

EXAMPLE = """
; comments start so
# or so
foo = "bar"                   ; strings use double quotes
homepage = <https://zeek.org> ; URIs use angle brackets
list = [1, 2, 3]              ; lists use square brackets
nested: { a { b = true }, "a key" = 'single', t = 10ms }
real = -1.5 empty = [] last = ["x",
  "y", ]
"""


def plain(value: Any) -> Any:
    return {key: plain(each) for key, each in value.values.items()} if isinstance(value, ConfigSection) else value


def test_everything_that_the_original_explains_is_read() -> None:
    found = parse(EXAMPLE, "x")
    assert plain(found) == {
        "foo": "bar",
        "homepage": "https://zeek.org",
        "list": [1, 2, 3],
        "nested": {"a": {"b": True}, "a key": "single", "t": "10ms"},
        "real": -1.5,
        "empty": [],
        "last": ["x", "y"],
    }
    assert isinstance(found.values["homepage"], ConfigAddress)
    assert found.lines["last"] == 8


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a = 1\nb = hello", 2, "'hello' is not a number; text is written in quotes"),
        ('a = "x\nb = 1', 1, "a quote is not closed"),
        ("a = <tcp://x", 1, "a quote is not closed"),
        ("a {\n b = 1\n", 3, "section that begins in line 1"),
        ("a = [1\n,2", 2, "list that begins in line 1"),
        ("a = 1\n\na = 2", 3, "'a' is there twice, first in line 1"),
        ("a 5", 1, "needs a value"),
        ("a =", 1, "a value is wanted here"),
        ("a = }", 1, "a value is wanted here, not '}'"),
        ("}", 1, "a key is wanted here, not '}'"),
        ("a = 1\n= 2", 2, "a key is wanted here"),
        ("a = \x7fELF", 1, "not understood"),
        ("a = 5 parsecs", 1, "'parsecs' needs a value"),
        ("a = " + "[" * (DEPTH_MAX + 1), 1, f"more than {DEPTH_MAX}"),
        ("a {" * (DEPTH_MAX + 1), 1, f"more than {DEPTH_MAX}"),
    ],
)
def test_what_cannot_be_read_names_the_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, "bench.conf")
    assert str(raised.value).startswith(f"bench.conf, line {line}: ")
    assert problem in str(raised.value)


@given(st.text(), st.text(min_size=1))
def test_texts_and_keys_come_back(text: str, key: str) -> None:
    assert parse(f"{show_key(key)} = {show(text)}", "x").values == {key: text}


@given(st.text(alphabet="a1 {}[]=:<>\"',;\n\\", max_size=60))
def test_garbage_is_read_or_refused(text: str) -> None:
    try:
        parse(text, "x")
    except ConfigError:
        pass
