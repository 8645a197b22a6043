"""Values as they are typed and printed on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.data.strategies import values

from chappe.cli.values import hint, read, shown
from chappe.data.binary import encode
from chappe.data.scalars import Count, EnumValue, Port, Timespan, Timestamp
from chappe.data.text import from_text
from chappe.data.values import Set, Table, Value
from chappe.errors import InvalidData


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-1", -1),
        ("9223372036854775808", Count(1 << 63)),
        ("5.0", 5.0),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ('"5"', "5"),
        ("[1, [true]]", (1, (True,))),
        ('{"a": {"b": 1.5}}', Table({"a": Table({"b": 1.5})})),
        ('{"a": {"@data-type": "count", "data": 5}}', Table({"a": Count(5)})),
        ('{"@data-type": "set", "data": ["x", 1]}', Set(["x", 1])),
        ("count:5", Count(5)),
        ("string:true", "true"),
        ("address:10.0.0.1", from_text("10.0.0.1", "address")),
        ("timespan:5m", Timespan(300 * 10**9)),
        ("timestamp:1970-01-01T00:00:01Z", Timestamp(10**9)),
        ("timestamp:5ns", Timestamp(5)),
        *((each, each) for each in ("hello", "5m", "T", "10.0.0.0/8", "(1, 2)", "http://x", "", " a", "05", "NaN")),
    ],
)
def test_what_is_typed(text: str, value: Value) -> None:
    assert encode(read(text)) == encode(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5m", Timespan(300 * 10**9)),
        ("10.0.0.0/8", from_text("10.0.0.0/8", "subnet")),
        ("80/tcp", Port(80, "tcp")),
        ("{1, 2}", Set([1, 2])),
        ("T", True),
        ("true", "true"),
        ("count:5", Count(5)),
    ],
)
def test_brokers_text_form_on_request(text: str, value: Value) -> None:
    assert encode(read(text, as_text=True)) == encode(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{a, b}", "is not the JSON that it looks like.*--text"),
        ("[NaN]", "JSON has no number nan"),
        ('{"a": 1, "a": 2}', "a key twice"),
        ("1e400", "JSON has no number inf"),
        ("99999999999999999999", "outside of 64 bits"),
        ('{"@data-type": "number", "data": 1}', "'number' is unknown"),
        ('{"@data-type": "table", "data": [{"key": 1}]}', '"key" and "value"'),
        ("count:-1", "a count is"),
        ("port:80", "is not a port.*string:TEXT"),
        ("[" * 2000, "is not the JSON"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidData, match=problem):
        read(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5m", "a timespan (timespan:5m)"),
        ("10.0.0.1", "an address (address:10.0.0.1)"),
        ("True", "true"),
        ("F", "false"),
        ("nil", "null"),
        ("2026-01-31T12:00", "a time (timestamp:2026-01-31T12:00)"),
        ("(1, 2)", "a vector ([1, 2])"),
    ],
)
def test_what_a_string_may_have_been_meant_as_is_said(text: str, meant: str) -> None:
    assert (hint(text) or "").startswith(f"{text!r} is taken as a string, not as {meant}; ")
    assert read(f"string:{text}") == text


@pytest.mark.parametrize("text", ["hello", "5", "count:5", '"5m"', "string:5m", "a.b", "http://x"])
def test_what_is_plain_has_no_hint(text: str) -> None:
    assert hint(text) is None


@given(values)
def test_what_is_printed_is_read_again(value: Value) -> None:
    text = shown(value)
    assert text.isprintable()
    assert encode(read(text)) == encode(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("hello", "hello"),
        *((each, f'"{each}"') for each in ("", "5", "true", "T", "-x", " a", "count:5", "10.0.0.1", "{a")),
        ("a\nb\x1b", '"a\\nb\\u001b"'),
        (b"\xff", '"\\udcff"'),
        (Count(5), "count:5"),
        (float("nan"), "real:nan"),
        (Timespan(10**9), "timespan:1s"),
        (EnumValue("a\nb"), '{"@data-type": "enum-value", "data": "a\\nb"}'),
        ((1, Count(1)), '[1, {"@data-type": "count", "data": 1}]'),
        (Table({1: "x"}), '{"@data-type": "table", "data": [{"key": 1, "value": "x"}]}'),
        (Table({"@data-type": 1}), '{"@data-type": "table", "data": [{"key": "@data-type", "value": 1}]}'),
    ],
)
def test_what_is_printed(value: Value, text: str) -> None:
    assert shown(value) == text
    assert encode(read(text)) == encode(value)
