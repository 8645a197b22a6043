"""What the types of the original bindings do; the expectations were observed with the original."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from chappe.compat import broker
from chappe.compat.broker import (
    EC,
    SC,
    Address,
    Count,
    Data,
    Enum,
    ImmutableData,
    Port,
    Set,
    Subnet,
    Table,
    Timespan,
    Timestamp,
    Vector,
    zeek,
)
from chappe.data import binary

V4 = Address(b"\x01\x02\x03\x04", 4)


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (Count(5), "Count(5)"),
        (Enum("a"), "a"),
        (Port(), "0/?"),
        (Port(80, Port.TCP), "80/tcp"),
        (Port(8, Port.ICMP), "8/icmp"),
        (Address(), "::"),
        (V4, "1.2.3.4"),
        (Address(b"\x01" * 16, 6), "101:101:101:101:101:101:101:101"),
        (Subnet(), "::/0"),
        (Subnet(V4, 16), "1.2.0.0/16"),
        (Timespan(5), "5ns"),
        (Timespan(1.5), "1500000000ns"),
        (Timestamp(1.5), "1500000000"),
        (Timestamp(Timespan(7)), "7"),
        (Timestamp(7), "7000000000"),
        (Set([Data(2), Data(1)]), "Set{1, 2}"),
        (Table(), "Table{}"),
        (Data({1: 2}).as_table(), "Table{1: 2}"),
        (Vector([Data(1)]), "Vector[1]"),
        (EC.PeerInvalid, "<EC.PeerInvalid: 3>"),
        (Data.Type.Integer, "<Type.Integer: 3>"),
        (Port.TCP, "<Protocol.TCP: 1>"),
    ],
)
def test_they_look_as_in_the_original(thing: object, text: str) -> None:
    assert repr(thing) == text


@pytest.mark.parametrize(
    ("python", "type_", "text", "back"),
    [
        (None, "Nil", "nil", None),
        (True, "Boolean", "T", True),
        (-(2**63), "Integer", "-9223372036854775808", -(2**63)),
        (Count(3), "Count", "3", Count(3)),
        (1.5, "Real", "1.500000", 1.5),
        ("x", "String", "x", "x"),
        (b"x", "String", "x", "x"),
        (timedelta(seconds=1.5), "Timespan", "1500000000ns", timedelta(seconds=1.5)),
        (datetime(2020, 1, 1, tzinfo=UTC), "Timestamp", "1577836800000000000ns", datetime(2020, 1, 1, tzinfo=UTC)),
        (ipaddress.ip_address("1.2.3.4"), "Address", "1.2.3.4", ipaddress.ip_address("1.2.3.4")),
        (ipaddress.ip_network("1.2.0.0/16"), "Subnet", "1.2.0.0/16", ipaddress.ip_network("1.2.0.0/16")),
        (ipaddress.ip_network("::/0"), "Subnet", "::/0", ipaddress.ip_network("::/0")),
        (Port(80, Port.TCP), "Port", "80/tcp", Port(80, Port.TCP)),
        (Enum("E"), "EnumValue", "E", Enum("E")),
        (V4, "Address", "1.2.3.4", ipaddress.ip_address("1.2.3.4")),
        (Timespan(1500), "Timespan", "1500ns", timedelta(microseconds=2)),
        (Timestamp(Timespan(1000)), "Timestamp", "1000ns", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ([1, "a"], "Vector", "(1, a)", (1, "a")),
        ({1, None}, "Set", "{nil, 1}", {1, None}),
        ({"k": [1]}, "Table", "{k -> (1)}", {"k": (1,)}),
        (MappingProxyType({1: 2}), "Table", "{1 -> 2}", {1: 2}),
        (Vector([Data(1)]), "Vector", "(1)", (1,)),
        (Set([Data(1)]), "Set", "{1}", {1}),
    ],
)
def test_python_objects_convert_both_ways(python: Any, type_: str, text: str, back: Any) -> None:
    data = Data.from_py(python)
    assert (data.get_type().name, str(data)) == (type_, text)
    found = Data.to_py(data)
    assert found == back
    assert type(found) is type(back)


def test_strings_that_are_not_utf_8_stay_bytes() -> None:
    assert Data.to_py(Data(b"\xff")) == b"\xff"
    assert Data("ä").as_string() == "ä".encode()


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_integers_out_of_range_are_errors_and_never_true(number: int) -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        Data(number)


@pytest.mark.parametrize("thing", [bytearray(b"x"), range(3), object()])
def test_other_objects_are_refused(thing: object) -> None:
    with pytest.raises(TypeError, match="unsupported data type"):
        Data(thing)


def test_a_datetime_without_zone_is_local_time() -> None:
    moment = datetime(2020, 6, 1, 12)
    assert Data.to_py(Data(moment)) == moment.astimezone(UTC)


def test_the_wrong_accessor_is_an_error() -> None:
    assert Data(1).as_integer() == 1
    with pytest.raises(RuntimeError, match="Integer"):
        Data(1).as_count()


def test_data_is_told_apart_by_type() -> None:
    assert Data(1) != Data(Count(1))
    assert Data(1) != 1
    assert len({Data(1), Data(Count(1)), Data(1.0), Data(True), Data(1)}) == 4
    assert Data(1) < Data(2)


def test_counts_compare_with_counts_only() -> None:
    assert Count(5) == Count(5)
    assert Count(5) != 5
    assert Count(5) < Count(6)
    with pytest.raises(TypeError):
        assert Count(5) < 6  # type: ignore[operator]
    assert hash(Count(5)) == hash(5)
    with pytest.raises(OverflowError):
        Count(-1)


def test_timespans_calculate_as_the_original() -> None:
    assert Timespan(5) + Timespan(6) == Timespan(11)
    assert Timespan(5) - Timespan(6) == Timespan(-1)
    assert 2 * Timespan(2) == Timespan(2) * 2 == Timespan(4)
    assert Timespan(-5) / 2 == Timespan(-2)
    assert Timespan(-5) % Timespan(3) == Timespan(-2)
    assert Timespan(5) % 2 == Timespan(1)


def test_addresses_can_be_masked_and_subnets_contain_them() -> None:
    address = Address(b"\x01\x02\x03\x04", 4)
    assert address.mask(112)
    assert str(address) == "1.2.0.0"
    assert not address.mask(129)
    assert address.bytes() == bytes(10) + b"\xff\xff\x01\x02\0\0"
    assert Subnet(V4, 16).contains(Address(b"\x01\x02\x09\x09", 4))
    assert not Subnet(V4, 16).contains(Address(b"\x01\x03\x09\x09", 4))
    with pytest.raises(TypeError):
        Address(b"\x01\x02", 4)


def test_containers_can_be_changed_and_hold_data_only() -> None:
    members = Set([Data(1)])
    members.add(Data(2))
    members.remove(Data(7))
    members.remove(Data(1))
    assert [Data.to_py(each) for each in members] == [2]
    assert Data(2) in members
    assert 2 not in members
    table = Table()
    table[Data("k")] = Data(1)
    assert [(Data.to_py(key), Data.to_py(value)) for key, value in table.items()] == [("k", 1)]
    assert Data("k") in table
    del table[Data("k")]
    with pytest.raises(KeyError):
        table[Data("k")]
    with pytest.raises(TypeError, match="holds Data"):
        Vector([1])  # type: ignore[list-item]


def test_immutable_data_takes_what_python_cannot_hash() -> None:
    data = Data([{frozenset({1})}, {2: {3: 4}}])
    with pytest.raises(TypeError, match="unhashable"):
        Data.to_py(data)
    found = ImmutableData.to_py(data)
    assert found == (frozenset({frozenset({1})}), {2: {3: 4}})
    assert isinstance(hash(found), int)
    with pytest.raises(TypeError, match="cannot modify"):
        found[1][5] = 6


def test_events_are_made_and_read() -> None:
    event = zeek.Event("x", 1, {2}, metadata={200: "a", 1: broker.now()})
    received = zeek.Event(Data.to_py(Data({"ignored": 1})) and (Count(1), Count(1), ("x", (1, frozenset({2})))))
    assert (event.name(), event.args()) == (received.name(), received.args()) == ("x", [1, {2}])
    metadata = event.metadata()
    assert metadata is not None
    assert [key for key, _ in metadata] == [Count(200), Count(1)]
    assert metadata[0][1] == "a"
    assert received.metadata() is None
    assert zeek.SafeEvent("x", {1}).args() == [frozenset({1})]
    assert str(zeek.Event("x", 1).as_data()) == "(1, 1, (x, (1)))"
    assert str(Data(zeek.Event("x", 1))) == "(1, 1, (x, (1)))"


@pytest.mark.parametrize("other", [5, (1, 2), (Count(1), Count(2), ("x", ())), (Count(1), Count(1), ("x",))])
def test_what_is_no_event_says_so(other: object) -> None:
    event = zeek.Event(other)
    assert not event.valid()
    with pytest.raises(ValueError, match="invalid Event data"):
        event.name()


def test_the_network_time_must_be_a_timestamp() -> None:
    with pytest.raises(ValueError, match="invalid Event data"):
        zeek.Event("x", metadata={1: 2}).metadata()


def test_enums_have_the_numbers_of_the_original() -> None:
    assert [int(each) for each in EC] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert [int(each) for each in SC] == [0, 1, 2, 3, 4, 5]
    assert EC.PeerInvalid == 3
    assert SC.PeerAdded != 1  # type: ignore[comparison-overlap]
    assert broker.Version.string() == "2.8.0"
    assert broker.Version.compatible(2)


def test_data_travels_as_a_value() -> None:
    data = Data([1, Count(2), {"a": Port(53, Port.UDP)}])
    assert Data._of(binary.decode(binary.encode(data._value))) == data


def test_what_containers_hold_is_no_data_and_can_be_made_some() -> None:
    table = Data({"a": 1}).as_table()
    held = [*Data({1, "x"}).as_set(), *Data([True, (2, 3)]).as_vector(), Data([1]).as_vector()[0]]
    held += [*table, *table.keys(), *table.values(), table[Data("a")], *next(iter(table.items()))]
    for each in held:
        assert not isinstance(each, Data)
        assert isinstance(Data(each), Data)
        assert isinstance(Data(each), type(each))
        assert Data(each) == each
        assert hash(Data(each)) == hash(each)
        assert Data(each).get_type() is each.get_type()
        assert str(Data(each)) == str(each)
        assert Data.to_py(each) == Data.to_py(Data(each))
    assert held[0] < held[1]
    again = broker.Vector(held)
    again.append(Data(7))
    assert held[0] in Data({1, "x"}).as_set()
    assert Data(again).as_vector() == again


def test_topics_are_joined_as_the_original_joins_them() -> None:
    first, second = broker.Topic("/a/"), broker.Topic("/b/c")
    assert (first / second).string() == "/a//b/c"
    assert (broker.Topic("/a") / broker.Topic("b/")).string() == "/a/b"
    assert (broker.Topic("") / broker.Topic("b")).string() == "b"
    kept = second
    second /= first
    assert second.string() == kept.string() == "/b/c/a"
    assert first.string() == "/a/"
