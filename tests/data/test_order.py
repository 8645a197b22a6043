from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.data.strategies import values

from chappe.data.order import arrange, same, sort_key
from chappe.data.values import TAGS, Address, Count, EnumValue, Port, Set, Subnet, Table, Timespan, Timestamp, Value

IN_ORDER: list[Value] = [
    None,
    False,
    True,
    Count(0),
    Count((1 << 64) - 1),
    -1,
    0,
    5,
    float("-inf"),
    -1.0,
    0.0,
    2.5,
    float("inf"),
    float("nan"),
    "",
    "B",
    "a",
    "ab",
    "\uffff",
    "\U00010000",
    b"\xff",
    Address("::1"),
    Address("1.2.3.4"),
    Address("fe80::"),
    Subnet("10.0.0.0", 8),
    Subnet("10.0.0.0", 9),
    Subnet("11.0.0.0", 8),
    Port(1, "icmp"),
    Port(2, "unknown"),
    Port(2, "tcp"),
    Timestamp(-5),
    Timestamp(5),
    Timespan(-5),
    Timespan(5),
    EnumValue(""),
    EnumValue("a"),
    Set(),
    Set([1]),
    Set([1, 2]),
    Set([2]),
    Table(),
    Table({1: 1}),
    Table({1: 2}),
    Table({1: 2, 3: 0}),
    Table({2: 0}),
    (),
    (1,),
    (1, 2),
    (2,),
]


def test_the_order_is_by_type_then_by_value() -> None:
    for left, right in pairwise(IN_ORDER):
        assert sort_key(left) < sort_key(right), (left, right)
        assert not sort_key(right) <= sort_key(left), (left, right)
    assert {type(each) for each in IN_ORDER} == set(TAGS)


@given(values)
def test_a_value_is_the_same_as_itself(value: Value) -> None:
    assert same(value, value)


@given(st.lists(values, min_size=2, max_size=8))
def test_the_order_is_total_and_arrange_keeps_each_once(some: list[Value]) -> None:
    arranged = arrange(some)

    assert list(arranged) == sorted(arranged, key=sort_key)
    assert all(sort_key(left) < sort_key(right) for left, right in pairwise(arranged))
    assert {sort_key(each) for each in arranged} == {sort_key(each) for each in some}
    assert all(same(left, right) for left, right in zip(arranged, arrange(some[::-1]), strict=True))
