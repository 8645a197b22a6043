from __future__ import annotations

import enum
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from tests.data.strategies import values

from chappe.data.convert import to_python, to_value
from chappe.data.order import same
from chappe.data.values import Address, Count, EnumValue, Port, Set, Subnet, Table, Timespan, Timestamp, Value
from chappe.errors import UnsupportedValue

MOMENT = datetime(2023, 5, 3, 9, 27, 57, 123456, UTC)


class Color(enum.IntEnum):
    RED = 1


class Name(str):
    pass


class Pair(NamedTuple):
    left: int
    right: str


@pytest.mark.parametrize(
    ("thing", "value"),
    [
        (None, None),
        (True, True),
        (Count(1), Count(1)),
        (1, 1),
        (1.5, 1.5),
        ("x", "x"),
        (b"\xff", b"\xff"),
        (ip_address("1.2.3.4"), Address("1.2.3.4")),
        (ip_address("::1"), Address("::1")),
        (ip_network("10.0.0.0/8"), Subnet("10.0.0.0", 8)),
        (ip_network("fc00::/7"), Subnet("fc00::", 7)),
        (Port(80), Port(80)),
        (MOMENT, Timestamp(1683106077123456000)),
        (timedelta(seconds=1.5), Timespan(1_500_000_000)),
        (EnumValue("E"), EnumValue("E")),
        (frozenset({1}), Set([1])),
        ({"a": {"b": 1}}, Table({"a": Table({"b": 1})})),
        ((1, (2, "x")), (1, (2, "x"))),
    ],
)
def test_the_table_both_ways(thing: object, value: Value) -> None:
    assert same(to_value(thing), value)
    back = to_python(value)
    assert back == thing
    assert type(back) is type(thing)


@pytest.mark.parametrize(
    ("thing", "value"),
    [
        (b"x", "x"),
        ([1, [2]], (1, (2,))),
        ({1, 2}, Set([1, 2])),
        (Address("::1"), Address("::1")),
        (Subnet("::", 0), Subnet("::", 0)),
        (Timestamp(1), Timestamp(1)),
        (Timespan(1), Timespan(1)),
        (Set([1]), Set([1])),
        (Table({1: 2}), Table({1: 2})),
        (Color.RED, 1),
        (Name("x"), "x"),
        (Pair(1, "x"), (1, "x")),
        (OrderedDict(a=1), Table({"a": 1})),
        (MappingProxyType({"a": 1}), Table({"a": 1})),
        ({"a": 1}.keys(), Set(["a"])),
        (Table([("a", [MOMENT])]), Table({"a": (Timestamp(1683106077123456000),)})),  # type: ignore[list-item]
    ],
)
def test_what_else_becomes_a_value(thing: object, value: Value) -> None:
    assert same(to_value(thing), value)


@pytest.mark.parametrize(
    "thing",
    [
        1 << 63,
        -(1 << 63) - 1,
        datetime(2023, 5, 3),
        ip_address("fe80::1%eth0"),
        bytearray(),
        object(),
        "\ud800",
        range(3),
    ],
)
def test_what_cannot_become_a_value_is_refused(thing: object) -> None:
    for each in (thing, [thing], {"x": thing}):
        with pytest.raises(UnsupportedValue):
            to_value(each)


@given(values)
def test_a_value_is_its_own_conversion(value: Value) -> None:
    assert same(to_value(value), value)


@given(values)
def test_to_python_never_drops_a_member(value: Value) -> None:
    back: Any = to_python(value)
    if isinstance(value, Set | Table):
        assert len(back) == len(value)


def test_what_would_collide_in_python_stays_as_it_is() -> None:
    mixed = Set([1, Count(1)])

    assert to_python(mixed) is mixed
    assert to_python(Table([(1, "a"), (1.0, "b")])) == Table([(1, "a"), (1.0, "b")])
    assert to_python(Set([Table({1: 2})])) == frozenset([Table({1: 2})])
    assert to_python((Table({1: (Address("::1"),)}),)) == ({1: (ip_address("::1"),)},)
