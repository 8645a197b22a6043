from __future__ import annotations

import math
import struct
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.data.strategies import SCALARS, SUBNORMAL, Vector, values, vectors

from chappe.data.binary import decode, decode_at, encode, skip
from chappe.data.order import same
from chappe.data.scalars import INTEGER_MAX, INTEGER_MIN
from chappe.data.values import Address, Count, Set, Table, Timestamp, Value
from chappe.defaults import VALUE_BYTES_MAX, VALUE_DEPTH_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidData, UnsupportedValue


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_golden_vectors_both_ways(vector: Vector) -> None:
    assert encode(decode(vector.binary)) == vector.binary
    assert skip(vector.binary, 0) == len(vector.binary)


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_a_golden_vector_cut_anywhere_or_with_a_byte_more_is_refused(vector: Vector) -> None:
    step = max(1, len(vector.binary) // 300)
    for length in range(0, len(vector.binary), step):
        with pytest.raises(InvalidData):
            decode(vector.binary[:length])
    with pytest.raises(InvalidData):
        decode(vector.binary + b"\0")


def test_the_smallest_number_is_mangled_as_by_the_original() -> None:
    (wire,) = [each.binary for each in vectors() if each.name == SUBNORMAL]

    assert encode(5e-324) == wire
    assert decode(wire) == -(2.0**974)


@pytest.mark.parametrize(
    ("number", "packed"),
    [
        (math.inf, "fff0000000000000"),
        (-math.inf, "7ff0000000000000"),
        (math.nan, "ffffffffffffffff"),
        (-math.nan, "ffffffffffffffff"),
        (-0.0, "8000000000000000"),
        (1.7976931348623157e308, "7fefffffffffffff"),
        (-2.2250738585072014e-308, "8010000000000000"),
    ],
)
def test_the_ends_of_the_reals(number: float, packed: str) -> None:
    raw = b"\4" + bytes.fromhex(packed)

    assert encode(number) == raw
    assert same(decode(raw), number)
    assert math.copysign(1.0, decode(raw)) == math.copysign(1.0, number) or math.isnan(number)  # type: ignore[arg-type]


def test_other_patterns_of_nan_are_read_as_the_original_does() -> None:
    assert decode(bytes.fromhex("047ff8000000000000")) == math.inf
    assert decode(bytes.fromhex("04fff8000000000000")) == -math.inf


@given(values)
def test_every_value_round_trips(value: Value) -> None:
    raw = encode(value)

    assert same(decode(raw), value)
    assert encode(decode(raw)) == raw
    assert same(decode(memoryview(raw)), value)
    assert decode_at(b"?" + raw + b"?", 1)[1] == len(raw) + 1
    assert skip(b"?" + raw + b"?", 1) == len(raw) + 1


@pytest.mark.parametrize("kind", SCALARS)
@given(data=st.data())
def test_every_type_comes_back_as_that_type(kind: str, data: st.DataObject) -> None:
    value = data.draw(SCALARS[kind])

    back = decode(encode(value))

    assert same(back, value)
    assert type(back) is type(value)


@given(st.binary(max_size=200))
@example(b"\x0c\x02\x01\x01\x01\x02")  # a set of true and true, written as 2
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        value = decode(data)
    except InvalidData:
        return
    assert same(decode(encode(value)), value)


@given(values, st.data())
def test_damaged_bytes_decode_or_are_refused(value: Value, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    test_random_bytes_decode_or_are_refused.hypothesis.inner_test(bytes(raw))  # type: ignore[attr-defined]


@given(st.lists(values, max_size=6))
def test_sets_are_read_in_any_order_and_written_in_theirs(members: list[Value]) -> None:
    found = Set(members)
    reverse = [encode(each) for each in reversed(found.members)]
    raw = b"\x0c" + bytes((len(reverse),)) + b"".join(reverse)

    assert encode(decode(raw)) == encode(found)


@given(st.lists(st.tuples(values, values), max_size=6))
def test_tables_are_read_in_any_order_and_written_in_theirs(pairs: list[tuple[Value, Value]]) -> None:
    table = Table(pairs)
    reverse = [encode(key) + encode(value) for key, value in reversed(list(table.pairs()))]
    raw = b"\x0d" + bytes((len(reverse),)) + b"".join(reverse)

    assert same(decode(raw), table)
    assert encode(decode(raw)) == encode(table)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("", "cut off"),
        ("0f", "type 15"),
        ("ff", "type 255"),
        ("0e01ff", "type 255"),
        ("08005004", "protocol 4"),
        ("07" + "00" * 16 + "81", "not a subnet"),
        ("0700000000000000000000ffffc0a8014d78", "not a subnet"),
        ("0700000000000000000000ffff0000000020", "not a subnet"),
        ("05ffffffff7f", "32 bits"),
        ("05ffffffffffff", "32 bits"),
        ("05ffffffff0f", "cut off"),
        ("0effffffff0f00", "cut off"),
        ("0c0203000000000000000103" + "00" * 7 + "01", "twice"),
        ("0c0205016105" + "0161", "twice"),
        ("0c0205016105" + "810061", "twice"),
        ("0c020c000c00", "twice"),
        ("0d020501610005016101" + "01", "twice"),
        ("0c0204" + "00" * 8 + "0480" + "00" * 7, "twice"),
        ("0000", "follow"),
    ],
)
def test_what_names_no_value_is_refused(raw: str, why: str) -> None:
    with pytest.raises(InvalidData, match=why):
        decode(bytes.fromhex(raw))


@pytest.mark.parametrize("raw", ["0102", "058100" + "61", "0e8000", "0d810003" + "00" * 8 + "00"])
def test_other_forms_that_the_original_reads_are_read(raw: str) -> None:
    decode(bytes.fromhex(raw))


def test_nesting_has_a_bound() -> None:
    value: Value = ()
    for _ in range(VALUE_DEPTH_MAX - 1):
        value = (value,)

    assert decode(encode(value)) == value
    for tag in (b"\x0c\x01", b"\x0e\x01", b"\x0d\x01\x00"):
        with pytest.raises(InvalidData, match="nested deeper"):
            decode(tag * (VALUE_DEPTH_MAX + 1) + b"\0")
        with pytest.raises(InvalidData, match="nested deeper"):
            decode(tag * 400_000 + b"\0")
    with pytest.raises(UnsupportedValue, match="nested deeper"):
        encode((value,))
    cyclic: list[object] = []
    cyclic.append(cyclic)
    with pytest.raises(UnsupportedValue, match="nested deeper"):
        encode(cyclic)


def test_elements_and_size_have_a_bound() -> None:
    most = b"\x0e" + b"\xc0\x84\x3d" + bytes(VALUE_ELEMENTS_MAX)
    assert len(decode(most)) == VALUE_ELEMENTS_MAX  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match="elements"):
        decode(b"\x0e\x02" + most + b"\0")
    with pytest.raises(UnsupportedValue, match="elements"):
        encode((None,) * (VALUE_ELEMENTS_MAX + 1))
    with pytest.raises(UnsupportedValue, match="long"):
        encode("x" * VALUE_BYTES_MAX)
    with pytest.raises(InvalidData, match="long"):
        decode(b"\x05\x80\x80\x80\x20" + bytes(VALUE_BYTES_MAX))


def test_sets_in_sets_do_not_cost_more_with_each_level() -> None:
    raw = b"".join(b"\x03" + struct.pack(">q", number) for number in range(30_000))
    value = b"\x0c\xb0\xea\x01" + raw
    for _ in range(VALUE_DEPTH_MAX - 1):
        value = b"\x0c\x02\x00" + value  # none, and the set so far

    started = time.process_time()
    found = decode(value)

    assert encode(found) == value
    assert time.process_time() - started < 10.0  # a second at most; it would be minutes


@pytest.mark.parametrize("number", [INTEGER_MIN - 1, INTEGER_MAX + 1])
def test_an_integer_out_of_range_is_an_error(number: int) -> None:
    with pytest.raises(UnsupportedValue):
        encode(number)
    with pytest.raises(UnsupportedValue):
        encode([{"x": number}])


@pytest.mark.parametrize("wrong", [object(), bytearray(), range(3), [object()], "\ud800", {"x": {1: object()}}])
def test_what_is_no_value_is_not_encoded(wrong: object) -> None:
    with pytest.raises(UnsupportedValue):
        encode(wrong)


def test_natural_python_values_are_encoded_as_what_they_become() -> None:
    assert encode([1, {"a": {2, 3}}]) == encode((1, Table({"a": Set([2, 3])})))
    assert decode(encode([Address("1.2.3.4").ip, Timestamp(1000).to_datetime()])) == (
        Address("1.2.3.4"),
        Timestamp(1000),
    )


def test_bytes_that_are_utf8_come_back_as_text() -> None:
    assert decode(encode((b"abc", b"\xff", Count(1)))) == ("abc", b"\xff", Count(1))
