"""The Spark type that fits all values of a sample; ``event_types.py`` has the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Final, TypeAlias, Union

from pyspark.sql import types as t

from chappe.data.scalars import INTEGER_MAX, Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.values import Set, Table, Value

Node: TypeAlias = Union[t.DataType, "_Items", "_Members", "_Pairs", None]

_PORT: Final = t.StructType().add("number", t.IntegerType()).add("protocol", t.StringType())
_MIXED: Final = t.NullType()  # values of types that have none in common but text
_LARGE: Final = t.DecimalType(20, 0)  # every count
_WHOLE: Final = frozenset({t.LongType(), _LARGE})
_SCALARS: Final[dict[type, t.DataType]] = {
    bool: t.BooleanType(),
    int: t.LongType(),
    float: t.DoubleType(),
    str: t.StringType(),
    bytes: t.StringType(),
    Address: t.StringType(),
    Subnet: t.StringType(),
    Port: _PORT,
    Timestamp: t.TimestampType(),
    Timespan: t.DayTimeIntervalType(),
    EnumValue: t.StringType(),
}


@dataclass(frozen=True, slots=True)
class _Items:
    """A vector, by position."""

    nodes: tuple[Node, ...]
    lengths: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Members:
    """A set."""

    node: Node


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A table."""

    key: Node
    value: Node


def inferred(samples: Iterable[tuple[Value, ...]]) -> t.StructType:
    """The fields ``_1``, ``_2``, ... that the elements of all samples fit into."""
    whole = reduce(_merged, map(_node, samples), None)
    nodes = whole.nodes if isinstance(whole, _Items) else ()
    return _by_position(nodes)


def _node(value: Value) -> Node:
    if value is None:
        return None
    kind = type(value)
    if kind is Count:
        return t.LongType() if value <= INTEGER_MAX else _LARGE  # type: ignore[operator]
    if isinstance(value, tuple) and kind is tuple:
        return _Items(tuple([_node(each) for each in value]), frozenset({len(value)}))
    if isinstance(value, Set):
        return _Members(_common([_node(each) for each in value.members]))
    if isinstance(value, Table):
        keys, values = zip(*value.pairs(), strict=True) if len(value) else ((), ())
        return _Pairs(_common([_node(each) for each in keys]), _common([_node(each) for each in values]))
    return _SCALARS[kind]


def _common(nodes: Iterable[Node]) -> Node:
    return reduce(_merged, nodes, None)


def _merged(a: Node, b: Node) -> Node:
    if a is None or b is None or a == b:
        return b if a is None else a
    match a, b:
        case _Items(), _Items():
            nodes = tuple([_merged(one, other) for one, other in zip_longest(a.nodes, b.nodes)])
            return _Items(nodes, a.lengths | b.lengths)
        case _Members(), _Members():
            return _Members(_merged(a.node, b.node))
        case _Pairs(), _Pairs():
            return _Pairs(_merged(a.key, b.key), _merged(a.value, b.value))
        case t.DataType(), t.DataType() if a in _WHOLE and b in _WHOLE:
            return _LARGE
        case _:
            return _MIXED


def _type(node: Node) -> t.DataType:
    match node:
        case None | t.NullType():
            return t.StringType()
        case _Items():
            common = _common(node.nodes)
            return _by_position(node.nodes) if common == _MIXED else t.ArrayType(_type(common))
        case _Members():
            return t.ArrayType(_type(node.node))
        case _Pairs():
            return t.MapType(_type(node.key), _type(node.value))
        case _:
            return node


def _by_position(nodes: Iterable[Node]) -> t.StructType:
    return t.StructType([t.StructField(f"_{n}", _type(each)) for n, each in enumerate(nodes, 1)])
