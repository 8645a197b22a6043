from __future__ import annotations

import json as stdlib_json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.strategies import SCALARS, SUBNORMAL, VECTORS, Vector, containers, finite, texts, values, vectors

from chappe.data.binary import decode, encode
from chappe.data.json import dumps, dumps_message, loads, loads_message
from chappe.data.order import same
from chappe.data.values import Address, Count, EnumValue, Port, Set, Subnet, Table, Timespan, Timestamp, Value
from chappe.defaults import VALUE_DEPTH_MAX, VALUE_ELEMENTS_MAX
from chappe.errors import InvalidData, UnsupportedValue

# What six decimals and milliseconds lose, and what comes back.
LOSSY = {
    "real_pi": 3.141593,
    "real_min_normal": 0.0,
    "ts_ns": Timestamp(1683106077123000000),
    "ts_neg": Timestamp(-1000000000),
}
legal_values = st.recursive(
    st.one_of(*[each for name, each in SCALARS.items() if name not in ("string", "enum-value")]).filter(finite)
    | texts
    | texts.map(EnumValue),
    containers,
    max_leaves=20,
)


def original(vector: Vector) -> Value:
    return 5e-324 if vector.name == SUBNORMAL else decode(vector.binary)


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_golden_vectors_are_written_byte_for_byte(vector: Vector) -> None:
    assert dumps(original(vector)).encode("utf-8", "surrogateescape") == vector.json


@pytest.mark.parametrize("vector", vectors(), ids=lambda each: each.name)
def test_golden_vectors_are_read(vector: Vector) -> None:
    value = loads(vector.json)

    if vector.name == "vector_all":  # its timestamp is of one nanosecond
        assert isinstance(value, tuple)
        assert encode(value) == vector.binary.replace(b"\x09" + bytes(7) + b"\1", b"\x09" + bytes(8))
    elif vector.name == SUBNORMAL:
        assert value == 0.0
    else:
        assert same(value, LOSSY.get(vector.name, decode(vector.binary)))


def test_a_data_message_is_read_and_written() -> None:
    found = {each["name"]: each for each in stdlib_json.loads((VECTORS / "messages.json").read_text())}
    text = found["json_data_message"]["json"]

    assert loads_message(text) == ("/test", (Count(1), "x"))
    assert dumps_message("/test", (Count(1), "x")) == text


@given(legal_values)
def test_legal_json_round_trips_every_value_and_is_legal(value: Value) -> None:
    text = dumps(value, legal=True)

    stdlib_json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert same(loads(text), value)
    assert same(loads(text.encode()), value)


@given(values)
def test_the_originals_form_loses_only_what_it_cannot_hold(value: Value) -> None:
    try:
        once = loads(dumps(value))
    except InvalidData as problem:  # members that differ by less than the form can hold
        assert "twice" in str(problem)  # noqa: PT017
        return
    if type(once) is type(value) and not isinstance(value, float | Timestamp | tuple | Set | Table):
        assert same(once, value)


@pytest.mark.parametrize("kind", SCALARS)
@given(data=st.data())
def test_every_type_comes_back_as_that_type(kind: str, data: st.DataObject) -> None:
    value = data.draw(SCALARS[kind])

    assert type(loads(dumps(value))) is type(value)


@given(st.text(max_size=100) | st.binary(max_size=100))
def test_random_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidData):
        loads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"@data-type": st.sampled_from([*SCALARS, "set", "table", "vector"]), "data": inner},
            optional={"key": inner, "value": inner},
        )
    ),
    max_leaves=10,
)


@given(JSON)
def test_random_json_is_read_or_refused(thing: object) -> None:
    try:
        value = loads(stdlib_json.dumps(thing))
    except InvalidData:
        return
    encode(value)


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("count", "-1", "count is 0 to"),
        ("count", "18446744073709551616", "count is 0 to"),
        ("count", "1.0", "not a value of type count"),
        ("count", "true", "not a value of type count"),
        ("count", "9" * 5000, "too long"),
        ("integer", "9223372036854775808", "outside"),
        ("real", "true", "not a value of type real"),
        ("real", "9007199254740993", "lose digits"),
        ("real", '"1"', "not a value of type real"),
        ("boolean", "1", "not a value of type boolean"),
        ("string", "1", "not a value of type string"),
        ("string", '"\\ud800"', "surrogate"),
        ("address", '"1.2.3"', "not an IP address"),
        ("subnet", '"1.2.3.4"', "not a subnet"),
        ("subnet", '"1.2.3.4/33"', "0 to 32"),
        ("port", '"80"', "not a port"),
        ("port", '"65536/tcp"', "0 to 65535"),
        ("timestamp", '"yesterday"', "not a time"),
        ("timestamp", '"2023-02-30T00:00:00.000"', "not a time"),
        ("timestamp", '"2300-01-01T00:00:00.000"', "64 bits"),
        ("timespan", '"5"', "not a duration"),
        ("timespan", '"9999999999999999999s"', "64 bits"),
        ("timespan", '"99999999999999999999999999s"', "64 bits"),
        ("set", '[{"@data-type":"count","data":1},{"@data-type":"count","data":1}]', "twice"),
        ("table", '[{"key":{"@data-type":"none"},"value":{"@data-type":"none"}},1]', "entry"),
        ("table", '[{"key":{"@data-type":"none"}}]', "a value is"),
        ("vector", "{}", "needs an array"),
        ("vector", "[1]", "a value is"),
        ("list", "[]", "unknown"),
    ],
)
def test_what_names_no_value_is_refused(kind: str, data: str, why: str) -> None:
    with pytest.raises(InvalidData, match=why):
        loads(f'{{"@data-type":"{kind}","data":{data}}}')


def test_a_key_twice_is_refused() -> None:
    entry = '{"key":{"@data-type":"none"},"value":{"@data-type":"none"}}'

    with pytest.raises(InvalidData, match="twice"):
        loads(f'{{"@data-type":"table","data":[{entry},{entry}]}}')


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("real", "1", 1.0),
        ("real", "1e3", 1000.0),
        ("real", "-inf", -math.inf),
        ("string", '"a\\v\\\\v inf"', "a\v\\v inf"),
        ("timestamp", '"2020-01-01T00:00:00"', Timestamp(1577836800000000000)),
        ("timestamp", '"2020-01-01T00:00:00.123456789Z"', Timestamp(1577836800123456789)),
        ("timestamp", '"2020-01-01T02:30:00.5+02:30"', Timestamp(1577836800500000000)),
        ("timespan", '"-2min"', Timespan(-120_000_000_000)),
        ("timespan", '"1d"', Timespan(86_400_000_000_000)),
        ("subnet", '"10.1.2.3/8"', Subnet("10.0.0.0", 8)),
        ("address", '"::ffff:1.2.3.4"', Address("1.2.3.4")),
        ("port", '"0/?"', Port(0, "unknown")),
    ],
)
def test_other_forms_are_read(kind: str, data: str, value: Value) -> None:
    assert same(loads(f'{{"@data-type":"{kind}","data":{data}}}'), value)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"type":"data-message","@data-type":"none","data":{}}',
        '{"type":"data-message","topic":"","@data-type":"none","data":{}}',
        '{"topic":"/a","@data-type":"none","data":{}}',
        '{"type":"other","topic":"/a","@data-type":"none","data":{}}',
        '{"type":"data-message","topic":"/a"}',
    ],
)
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(InvalidData):
        loads_message(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, b"\xff", EnumValue(b"\xff", "utf-8", "surrogateescape")])
def test_what_json_cannot_express_is_not_written_as_legal(value: Value) -> None:
    with pytest.raises(UnsupportedValue):
        dumps((value,), legal=True)


def test_depth_and_elements_have_a_bound() -> None:
    def nested(depth: int) -> str:
        return '{"@data-type":"vector","data":[' * depth + "]}" * depth

    assert encode(loads(nested(VALUE_DEPTH_MAX)))
    for depth in (VALUE_DEPTH_MAX + 1, 100_000):
        with pytest.raises(InvalidData, match="deep"):
            loads(nested(depth))
    with pytest.raises(InvalidData, match="elements"):
        loads('{"@data-type":"vector","data":[' + "1," * VALUE_ELEMENTS_MAX + "1]}")
    cyclic: list[object] = []
    cyclic.append(cyclic)
    with pytest.raises(UnsupportedValue, match="deep"):
        dumps(cyclic)


def test_natural_python_values_are_written_as_what_they_become() -> None:
    assert dumps([1, {"a": {2}}]) == dumps((1, Table({"a": Set([2])})))
    with pytest.raises(UnsupportedValue):
        dumps(1 << 64)
