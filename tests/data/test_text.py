from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.strategies import SCALARS, SUBNORMAL, Vector, addresses, containers, integers, ports, subnets, vectors

from chappe.data.binary import decode, encode
from chappe.data.order import TYPE_NAMES, same
from chappe.data.text import from_text, to_text
from chappe.data.values import Address, Count, Port, Set, Subnet, Table, Timespan, Timestamp, Value
from chappe.defaults import VALUE_DEPTH_MAX
from chappe.errors import InvalidData, UnsupportedValue

# Values whose text says what they are.
words = st.text("abcdefghkm_", min_size=1)
plain = st.recursive(
    st.none() | st.booleans() | integers | words | addresses | subnets | ports | integers.map(Timespan),
    containers,
    max_leaves=20,
)


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_golden_vectors_are_written_byte_for_byte(vector: Vector) -> None:
    value: Value = 5e-324 if vector.name == SUBNORMAL else decode(vector.binary)

    assert to_text(value).encode("utf-8", "surrogateescape") == vector.text


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_golden_vectors_are_read_as_their_type(vector: Vector) -> None:
    kind = TYPE_NAMES[vector.binary[0]]
    text = vector.text.decode("utf-8", "surrogateescape")

    value = from_text(text, kind)

    if kind == "real":
        assert to_text(value) == text
    elif kind not in ("set", "table", "vector"):
        assert encode(value) == vector.binary
    elif vector.name != "set_mixed":  # its count is read as an integer, which changes the order
        assert to_text(value) == text


@pytest.mark.parametrize("kind", [each for each in SCALARS if each != "real"])
@given(data=st.data())
def test_every_scalar_type_but_real_comes_back_exactly(kind: str, data: st.DataObject) -> None:
    value = data.draw(SCALARS[kind])

    back = from_text(to_text(value), kind)

    assert same(back, value)
    assert type(back) is type(value)


@given(plain)
def test_values_whose_text_says_what_they_are_come_back_unasked(value: Value) -> None:
    if "{}" in to_text(value):
        return  # an empty table looks like an empty set
    assert same(from_text(to_text(value)), value)


@pytest.mark.parametrize("text", ["nane9", "infE+5", "+nane0", "-infe1"])
def test_what_only_begins_as_a_real_is_a_string_and_no_real(text: str) -> None:
    assert from_text(text) == text
    assert from_text(f"({text})") == (text,)
    with pytest.raises(InvalidData, match="is not a real number"):
        from_text(text, "real")


@given(st.text(max_size=60) | st.text("(){},-> nilTF019.:/aefE+", max_size=30), st.sampled_from([None, *TYPE_NAMES]))
def test_random_text_is_read_or_refused(text: str, kind: str | None) -> None:
    try:
        value = from_text(text, kind)
    except InvalidData:
        return
    encode(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nil", None),
        ("T", True),
        ("5", 5),
        ("-5", -5),
        ("9223372036854775808", Count(1 << 63)),
        ("1.5", 1.5),
        ("-inf", float("-inf")),
        ("90s", Timespan(90_000_000_000)),
        ("80/tcp", Port(80)),
        ("10.0.0.0/8", Subnet("10.0.0.0", 8)),
        ("::1", Address("::1")),
        ("a.b", "a.b"),
        ("std::x", "std::x"),
        ("", ""),
        ("()", ()),
        ("{}", Set()),
        ("(a, (T), {1 -> x y})", ("a", (True,), Table({1: "x y"}))),
    ],
)
def test_text_is_read_as_what_it_looks_like(text: str, value: Value) -> None:
    assert same(from_text(text), value)


def test_a_named_type_is_read_as_that() -> None:
    assert same(from_text("5", "count"), Count(5))
    assert same(from_text("5ns", "timestamp"), Timestamp(5))
    assert same(from_text("nil", "string"), "nil")
    assert same(from_text("{}", "table"), Table())
    with pytest.raises(UnsupportedValue):
        from_text("x", "list")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(a", None),
        ("(a,b) c", None),
        ("{a, a}", None),
        ("{a -> 1, b}", None),
        ("{a -> 1, a -> 2}", None),
        ("{a -> 1 -> 2}", None),
        ("(" * (VALUE_DEPTH_MAX + 1) + ")" * (VALUE_DEPTH_MAX + 1), None),
        ("18446744073709551616", None),
        ("9" * 10_000, None),
        ("9" * 10_000 + "s", None),
        ("-1", "count"),
        ("1.5", "integer"),
        ("x", "real"),
        ("TRUE", "boolean"),
        ("", "none"),
        ("5", "timespan"),
        ("(1)", "set"),
        ("65536/tcp", None),
        ("1.2.3.4/33", None),
    ],
)
def test_what_is_no_value_is_refused(text: str, kind: str | None) -> None:
    with pytest.raises(InvalidData):
        from_text(text, kind)
