from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from tests.data.strategies import values

from chappe.data.convert import to_value
from chappe.data.order import same, sort_key
from chappe.data.values import (
    EMPTY_SET,
    EMPTY_TABLE,
    Address,
    Count,
    EnumValue,
    Port,
    Set,
    Subnet,
    Table,
    Timespan,
    Timestamp,
    Value,
    type_name,
)
from chappe.defaults import VALUE_DEPTH_MAX
from chappe.errors import UnsupportedValue

EQUAL_IN_PYTHON: list[Value] = [True, Count(1), 1, 1.0, Timestamp(1), Timespan(1)]


@pytest.mark.parametrize(
    ("make", "number"),
    [(Count, -1), (Count, 1 << 64), (Timestamp, 1 << 63), (Timestamp, -(1 << 63) - 1), (Timespan, 1 << 63)],
)
def test_a_number_out_of_range_is_refused(make: type[int], number: int) -> None:
    with pytest.raises(UnsupportedValue):
        make(number)


@pytest.mark.parametrize("make", [Timestamp, Timespan])
def test_times_do_not_pass_through_float(make: type[Timestamp | Timespan]) -> None:
    with pytest.raises(UnsupportedValue, match="float"):
        make(1683106077.5)  # type: ignore[arg-type]


def test_times_calculate_in_nanoseconds() -> None:
    start = Timestamp(1683106077123456789)

    assert repr(start + Timespan(1)) == "Timestamp(1683106077123456790)"
    assert repr(Timespan(1) + start) == "Timestamp(1683106077123456790)"
    assert repr(start - Timespan(9)) == "Timestamp(1683106077123456780)"
    assert repr(start - Timestamp(1683106077000000000)) == "Timespan(123456789)"
    assert repr(2 * Timespan(3) - Timespan(1)) == "Timespan(5)"
    assert (repr(-Timespan(3)), repr(abs(Timespan(-3)))) == ("Timespan(-3)", "Timespan(3)")
    with pytest.raises(TypeError):
        start + start
    with pytest.raises(UnsupportedValue):
        Timestamp((1 << 63) - 1) + Timespan(1)


def test_times_convert_exactly_from_datetime_and_down_to_it() -> None:
    moment = datetime(2023, 5, 3, 11, 27, 57, 123456, timezone(timedelta(hours=2)))

    assert repr(Timestamp.from_datetime(moment)) == "Timestamp(1683106077123456000)"
    assert Timestamp(1683106077123456789).to_datetime() == moment
    assert Timestamp(-1).to_datetime() == datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
    assert repr(Timespan.from_timedelta(timedelta(days=100_000, microseconds=-1))) == "Timespan(8639999999999999000)"
    assert Timespan(-1).to_timedelta() == timedelta(microseconds=-1)
    with pytest.raises(UnsupportedValue, match="time zone"):
        Timestamp.from_datetime(datetime(2023, 5, 3))


def test_an_address_is_made_from_text_bytes_and_ipaddress() -> None:
    v4 = Address("1.2.3.4")

    assert v4.packed == bytes(10) + b"\xff\xff\x01\x02\x03\x04"
    assert v4 == Address(b"\1\2\3\4") == Address(IPv4Address("1.2.3.4")) == Address("::ffff:1.2.3.4") == Address(v4)
    assert (v4.is_v4, v4.ip, str(v4), f"{v4}") == (True, IPv4Address("1.2.3.4"), "1.2.3.4", "1.2.3.4")
    v6 = Address("2001:db8::ff00:42:8329")
    assert (v6.is_v4, v6.ip, str(v6)) == (False, IPv6Address("2001:db8::ff00:42:8329"), "2001:db8::ff00:42:8329")
    assert str(Address()) == "::"


@pytest.mark.parametrize("wrong", ["", "1.2.3", "1.2.3.4/8", "fe80::1%eth0", b"123"])
def test_what_is_no_address_is_refused(wrong: str | bytes) -> None:
    with pytest.raises(UnsupportedValue):
        Address(wrong)


def test_a_subnet_clears_host_bits_and_knows_what_it_contains() -> None:
    subnet = Subnet("192.168.1.77", 24)

    assert (str(subnet), subnet.wire_length) == ("192.168.1.0/24", 120)
    assert subnet.contains(Address("192.168.1.255"))
    assert not subnet.contains(Address("192.168.2.0"))
    assert not Subnet("0.0.0.0", 0).contains(Address("::1"))
    assert subnet.ip_network == IPv4Network("192.168.1.0/24")
    assert Subnet.from_network(IPv6Network("fc00::/7")) == Subnet("fc00::1", 7)
    with pytest.raises(UnsupportedValue):
        Subnet("1.2.3.4", 33)


def test_a_port_needs_a_number_and_a_protocol_that_exist() -> None:
    assert [str(Port(80)), str(Port(53, "udp")), str(Port(0, "unknown"))] == ["80/tcp", "53/udp", "0/?"]
    with pytest.raises(UnsupportedValue):
        Port(65536)
    with pytest.raises(UnsupportedValue):
        Port(80, "sctp")


def test_members_equal_in_python_are_different_in_a_set() -> None:
    found = Set(EQUAL_IN_PYTHON)

    assert [repr(each) for each in found] == ["True", "Count(1)", "1", "1.0", "Timestamp(1)", "Timespan(1)"]
    assert Count(1) in Set([Count(1)])
    assert 1 not in Set([Count(1)])
    assert Set([Count(1)]) != Set([1])
    assert Set([(Count(1),)]) != Set([(1,)])
    assert len(Set([(Count(1),), (1,), (True,), Set([1]), Set([1.0])])) == 5
    assert len(Set(["a", EnumValue("a"), b"a"])) == 2  # a string is the same string as str and as bytes
    assert len(Set([float("nan"), float("nan"), 0.0, -0.0])) == 2


def test_keys_equal_in_python_are_different_in_a_table() -> None:
    table = Table([(each, repr(each)) for each in EQUAL_IN_PYTHON])

    assert len(table) == 6
    assert all(table[each] == repr(each) for each in EQUAL_IN_PYTHON)
    assert 1 in table
    assert 1 not in Table({Count(1): "one"})
    assert Table({1: Count(1)}) != Table({1: 1})
    assert Table([("a", 1), ("a", 2)]) == Table({"a": 2})
    with pytest.raises(KeyError):
        table["absent"]


def test_containers_are_in_order_and_behave_as_pythons_do() -> None:
    assert list(Set([3, 1, 2])) == [1, 2, 3]
    assert list(Table({"b": 1, "a": 2}).items()) == [("a", 2), ("b", 1)]
    assert Set([1, 2]) & Set([2, 3]) == Set([2])
    assert Set([1]) < Set([1, 2])
    assert Table({"a": 1}).get("b") is None
    assert {Set([2, 1]): "x"}[Set([1, 2])] == "x"
    assert hash(Table({"a": 1, "b": 2})) == hash(Table({"b": 2, "a": 1}))
    assert (Set() == EMPTY_SET, Table() == EMPTY_TABLE, Set() == Table()) == (True, True, False)


@pytest.mark.parametrize("wrong", [[], {}, {1}, object(), bytearray(), 1 << 63, "\ud800", (["x"],)])
def test_what_is_no_value_is_no_member_and_no_key(wrong: object) -> None:
    with pytest.raises(UnsupportedValue):
        Set([wrong, None]).sort_key()  # type: ignore[list-item]
    with pytest.raises(UnsupportedValue):
        Table([(wrong, None)])  # type: ignore[list-item]
    with pytest.raises(UnsupportedValue):
        type_name({})  # type: ignore[arg-type]


def test_containers_cannot_be_nested_without_end() -> None:
    deep: Value = None
    for _ in range(VALUE_DEPTH_MAX // 2):
        deep = Set([(deep,)])
    with pytest.raises(UnsupportedValue, match="nested deeper"):
        Set([deep])
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(UnsupportedValue, match="nested deeper"):
        sort_key(deep)


@given(values)
def test_every_value_survives_pickle_and_copy_and_hashes(value: Value) -> None:
    assert same(pickle.loads(pickle.dumps(value)), value)
    assert same(copy.deepcopy(value), value)
    hash(value)


def test_times_of_pandas_keep_their_nanoseconds() -> None:
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp(1_683_106_077_123_456_789, tz="UTC")
    assert to_value(moment) == Timestamp(1_683_106_077_123_456_789)
    for ns in (1, -1, 10**18 + 7):
        assert to_value(pandas.Timedelta(ns, "ns")) == Timespan(ns)
