"""Values of the mesh as values of Spark: which type becomes which.

============ ============================== ================================================================
value        inferred                       can be declared as well
============ ============================== ================================================================
none         null in any column
boolean      boolean
count        bigint                         any integer, decimal(20,0) for those above 2**63-1, double
integer      bigint                         any integer, decimal, double
real         double                         float
string       string                         binary
address      string
subnet       string, as ``10.0.0.0/8``
port         struct<number int,             any integer: the number; string, as ``80/tcp``
             protocol string>
timestamp    timestamp; below a             bigint: nanoseconds since 1970 UTC; timestamp_ntz: in UTC; double: seconds
             microsecond is dropped
timespan     interval day to second; below  bigint: nanoseconds; double: seconds
             a microsecond is dropped
enum value   string
set          array                          array of any type that its members can have
table        map                            map of any types that its keys and values can have; struct by name, where
                                            keys are strings: missing fields are null, others are left out
vector       array if all its elements have array, or struct by position: missing fields are null, more elements than
             one type, else struct          fields are left out
============ ============================== ================================================================

A count above 2**63-1 in a sample makes its column decimal(20,0); in a bigint it does not fit. Everything can be
declared as string, and is text for people then (``chappe.data.text``). Bytes of a string that are not UTF-8 are
``\\xNN`` in a column of strings, as Zeek prints them; declare binary to have them as they are. Whatever else meets is
unfit, and the row is damaged: no value is ever rounded or cut to fit, but for the two times above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import zip_longest
from typing import Any, Final, TypeAlias, Union

import pyarrow as pa
from pyspark.sql import types as t

from chappe.data.scalars import INTEGER_MAX, Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.text import to_text
from chappe.data.values import Set, Table, Value, type_name
from chappe.errors import UsageError

Convert: TypeAlias = Callable[[Any], Any]
_BITS: Final[dict[type[t.DataType], int]] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_WHOLE: Final = frozenset({int, Count})
_NUMBERS: Final = frozenset({int, Count, float})
_TIMES: Final = frozenset({Timestamp, Timespan})
_SHOWN: Final = 60  # characters of a value that an error names


class Unfit(Exception):
    """A value that cannot be in a column of the declared type; the text is a sentence's beginning."""

    def __init__(self, value: Value, wanted: t.DataType) -> None:
        text = to_text(value)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        super().__init__(f"{type_name(value)} {shown!r} does not fit into {wanted.simpleString()}")


def compiled(wanted: t.DataType) -> tuple[pa.DataType, Convert]:
    """Return the Arrow type of a Spark type, and what makes of a value the Python object that Arrow takes for it.

    The latter raises Unfit. Raises UsageError for a type that no value can have.
    """
    match wanted:
        case t.StringType():
            return pa.string(), _text
        case t.BinaryType():
            return pa.binary(), _only(_binary, wanted, str, bytes, EnumValue)
        case t.BooleanType():
            return pa.bool_(), _only(bool, wanted, bool)
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return _integer(wanted)
        case t.FloatType() | t.DoubleType():
            return pa.float32() if isinstance(wanted, t.FloatType) else pa.float64(), _real(wanted)
        case t.DecimalType():
            return pa.decimal128(wanted.precision, wanted.scale), _decimal(wanted)
        case t.TimestampType():
            return pa.timestamp("us", "UTC"), _only(_micros, wanted, Timestamp)
        case t.TimestampNTZType():
            return pa.timestamp("us"), _only(_micros, wanted, Timestamp)
        case t.DayTimeIntervalType():
            return pa.duration("us"), _only(_micros, wanted, Timespan)
        case t.ArrayType():
            return _array(wanted)
        case t.MapType():
            return _map(wanted)
        case t.StructType():
            return _struct(wanted)
        case _:
            raise UsageError(f"no value of the mesh can be a {wanted.simpleString()}; declare string, or another type")


def positional(wanted: t.StructType) -> tuple[pa.DataType, Callable[[tuple[Value, ...]], tuple[Any, ...]]]:
    """Compile a struct whose fields are elements by their position, like ``compiled``."""
    inner = [compiled(field.dataType) for field in wanted.fields]
    converts = [convert for _, convert in inner]
    names = wanted.fieldNames()
    missing = (None,) * len(converts)

    def convert(items: tuple[Value, ...]) -> tuple[Any, ...]:
        if len(items) < len(converts):
            items = items + missing[len(items) :]
        try:
            return tuple([each(item) for each, item in zip(converts, items, strict=False)])
        except Unfit:
            raise _unfit_field(converts, items, names) from None

    types = [pa.field(name, found) for name, (found, _) in zip(names, inner, strict=True)]
    return pa.struct(types), convert


def _unfit_field(converts: list[Convert], items: tuple[Value, ...], names: list[str]) -> Exception:
    for name, convert, item in zip(names, converts, items, strict=False):
        try:
            convert(item)
        except Unfit as problem:
            problem.args = (f"{name}: {problem}",)
            return problem
    raise AssertionError("one of them did not fit")


def _only(convert: Convert, wanted: t.DataType, *kinds: type) -> Convert:
    allowed = frozenset(kinds)

    def checked(value: Any) -> Any:
        if type(value) in allowed:
            return convert(value)
        if value is None:
            return None
        raise Unfit(value, wanted)

    return checked


def _text(value: Any) -> str | None:
    if type(value) is str or value is None:
        return value
    raw = value if type(value) is bytes else to_text(value).encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace")


def _binary(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _micros(value: int) -> int:
    return int(value) // 1000


def _integer(wanted: t.DataType) -> tuple[pa.DataType, Convert]:
    bits = _BITS[type(wanted)]
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    nanoseconds = bits == 64

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind in _WHOLE or (nanoseconds and kind in _TIMES):
            if low <= value <= high:
                return int(value)
        elif kind is Port:
            if value.number <= high:
                return value.number
        elif value is None:
            return None
        raise Unfit(value, wanted)

    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits], convert


def _real(wanted: t.DataType) -> Convert:
    def convert(value: Any) -> Any:
        kind = type(value)
        if kind is float:
            return value
        if kind in _TIMES:
            return int(value) / 1_000_000_000
        if kind in _WHOLE and int(float(value)) == value:  # those that a double can hold
            return float(value)
        if value is None:
            return None
        raise Unfit(value, wanted)

    return convert


def _decimal(wanted: t.DecimalType) -> Convert:
    bound = 10 ** (wanted.precision - wanted.scale)
    quantum = Decimal(1).scaleb(-wanted.scale)

    def convert(value: Any) -> Any:
        if type(value) in _WHOLE and -bound < value < bound:
            return Decimal(int(value)).quantize(quantum)
        if value is None:
            return None
        raise Unfit(value, wanted)

    return convert


def _array(wanted: t.ArrayType) -> tuple[pa.DataType, Convert]:
    inner, convert = compiled(wanted.elementType)

    def converted(value: Any) -> Any:
        if type(value) is tuple:
            return [convert(each) for each in value]
        if type(value) is Set:
            return [convert(each) for each in value.members]
        if value is None:
            return None
        raise Unfit(value, wanted)

    return pa.list_(pa.field("element", inner)), converted


def _map(wanted: t.MapType) -> tuple[pa.DataType, Convert]:
    key_type, key = compiled(wanted.keyType)
    value_type, value = compiled(wanted.valueType)

    def converted(table: Any) -> Any:
        if type(table) is Table:
            pairs = [(key(name), value(each)) for name, each in table.pairs()]
            if all(name is not None for name, _ in pairs):
                return pairs
        elif table is None:
            return None
        raise Unfit(table, wanted)

    return pa.map_(key_type, value_type), converted


def _struct(wanted: t.StructType) -> tuple[pa.DataType, Convert]:
    found, convert = positional(wanted)
    names = wanted.fieldNames()
    is_port = [field.dataType.simpleString() for field in wanted.fields] == ["int", "string"]

    def converted(value: Any) -> Any:
        if type(value) is tuple:
            return convert(value)
        if type(value) is Table:
            named = {key: each for key, each in value.pairs() if type(key) is str}
            return convert(tuple([named.get(name) for name in names]))
        if is_port and type(value) is Port:
            return tuple(value)
        if value is None:
            return None
        raise Unfit(value, wanted)

    return found, converted


Node: TypeAlias = Union[t.DataType, "_Container", None]  # the type of one value or of several; None: any

_MIXED: Final = t.NullType()  # values of types that have none in common but text
_LARGE: Final = t.DecimalType(20, 0)  # every count
_WHOLE_TYPES: Final = frozenset({t.LongType(), _LARGE})
_SCALARS: Final[dict[type, t.DataType]] = {
    bool: t.BooleanType(),
    int: t.LongType(),
    float: t.DoubleType(),
    **dict.fromkeys((str, bytes, Address, Subnet, EnumValue), t.StringType()),
    Port: t.StructType().add("number", t.IntegerType()).add("protocol", t.StringType()),
    Timestamp: t.TimestampType(),
    Timespan: t.DayTimeIntervalType(),
}


@dataclass(frozen=True, slots=True)
class _Container:
    """The elements of a vector by position (``tuple``), all members of a ``Set``, or keys and values of a ``Table``."""

    kind: type
    nodes: tuple[Node, ...]


def inferred(samples: Iterable[tuple[Value, ...]]) -> t.StructType:
    """Return the fields ``_1``, ``_2``, ... that the elements of all samples fit into."""
    whole = _common(map(_node, samples))
    return _by_position(whole.nodes if isinstance(whole, _Container) else ())


def _node(value: Value) -> Node:
    if value is None:
        return None
    kind = type(value)
    if isinstance(value, Count):
        return t.LongType() if value <= INTEGER_MAX else _LARGE
    if isinstance(value, tuple) and kind is tuple:
        return _Container(tuple, tuple(map(_node, value)))
    if isinstance(value, Set):
        return _Container(Set, (_common(map(_node, value.members)),))
    if isinstance(value, Table):
        return _Container(Table, (_common(map(_node, value)), _common(_node(each) for _, each in value.pairs())))
    return _SCALARS[kind]


def _common(nodes: Iterable[Node]) -> Node:
    return reduce(_merged, nodes, None)


def _merged(a: Node, b: Node) -> Node:
    if a is None or b is None or a == b:
        return b if a is None else a
    match a, b:
        case _Container(), _Container() if a.kind is b.kind:
            return _Container(a.kind, tuple([_merged(one, other) for one, other in zip_longest(a.nodes, b.nodes)]))
        case t.DataType(), t.DataType() if a in _WHOLE_TYPES and b in _WHOLE_TYPES:
            return _LARGE
        case _:
            return _MIXED


def _type(node: Node) -> t.DataType:
    if node is None or isinstance(node, t.NullType):
        return t.StringType()
    if not isinstance(node, _Container):
        return node
    if node.kind is Table:
        key, value = map(_type, node.nodes)
        return t.MapType(key, value)
    common = _common(node.nodes)
    return _by_position(node.nodes) if common == _MIXED and node.kind is tuple else t.ArrayType(_type(common))


def _by_position(nodes: Iterable[Node]) -> t.StructType:
    return t.StructType([t.StructField(f"_{n}", _type(each)) for n, each in enumerate(nodes, 1)])
