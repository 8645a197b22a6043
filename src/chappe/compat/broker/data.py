"""``Data`` and ``ImmutableData``: values of ``chappe.data``, with the conversions of the original bindings.

Departures from the original, which makes ``True`` of integers outside of 64 bits and loses nanoseconds in ``float``:
such an integer raises OverflowError, and datetimes and timedeltas convert exactly. A set or table that Python's own
types cannot hold (a set of sets, or one with ``Count(1)`` and ``1``) raises TypeError in ``Data.to_py`` where it is
unhashable, as in the original; ``ImmutableData.to_py`` takes everything.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum as _Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final, NoReturn, Self

from chappe.compat.broker import scalars as wrapped
from chappe.compat.broker.containers import Set, Table, Vector, set_of, table_of, vector_of
from chappe.data import scalars, values
from chappe.data.convert import to_value
from chappe.data.order import same, sort_key
from chappe.data.scalars import INTEGER_MAX, INTEGER_MIN
from chappe.data.text import to_text
from chappe.errors import UnsupportedValue

NS: Final = 1_000_000_000


@functools.total_ordering
class Element:
    """One value of any type, as containers hold it: it has what ``Data`` has, and is none, as in the original.

    ``Data(element)`` is one, ``Data.to_py(element)`` what Python has for it.
    """

    _value: values.Value

    class Type(_Enum):
        """The types, by their numbers on the wire."""

        Nil = 0
        Boolean = 1
        Count = 2
        Integer = 3
        Real = 4
        String = 5
        Address = 6
        Subnet = 7
        Port = 8
        Timestamp = 9
        Timespan = 10
        EnumValue = 11
        Set = 12
        Table = 13
        Vector = 14

    @classmethod
    def _of(cls, value: values.Value) -> Self:
        made = cls.__new__(cls)
        made._value = value
        return made

    def get_type(self) -> Element.Type:
        """The type of the value."""
        return Element.Type(values.TAGS[type(self._value)])

    def _as(self, type_: Element.Type) -> Any:
        if self.get_type() is not type_:
            raise RuntimeError(f"this is a {self.get_type().name}, not a {type_.name}")
        return self._value

    def as_none(self) -> None:
        """Nothing; this and the other ``as_`` raise RuntimeError if it is of another type."""
        self._as(Element.Type.Nil)

    def as_boolean(self) -> bool:
        """The boolean."""
        return bool(self._as(Element.Type.Boolean))

    def as_count(self) -> int:
        """The count as an int."""
        return int(self._as(Element.Type.Count))

    def as_integer(self) -> int:
        """The integer."""
        return int(self._as(Element.Type.Integer))

    def as_real(self) -> float:
        """The real."""
        return float(self._as(Element.Type.Real))

    def as_string(self) -> bytes:
        """The string as bytes."""
        found: str | bytes = self._as(Element.Type.String)
        return found if isinstance(found, bytes) else found.encode()

    def as_address(self) -> wrapped.Address:
        """The address."""
        return wrapped.Address._of(self._as(Element.Type.Address))

    def as_subnet(self) -> wrapped.Subnet:
        """The subnet."""
        return wrapped.Subnet._of(self._as(Element.Type.Subnet))

    def as_port(self) -> wrapped.Port:
        """The port."""
        return wrapped.Port._of(self._as(Element.Type.Port))

    def as_timestamp(self) -> float:
        """The timestamp in seconds since 1970 UTC."""
        return int(self._as(Element.Type.Timestamp)) / NS

    def as_timespan(self) -> float:
        """The timespan in seconds."""
        return int(self._as(Element.Type.Timespan)) / NS

    def as_enum_value(self) -> wrapped.Enum:
        """The enum value."""
        return wrapped.Enum._of(self._as(Element.Type.EnumValue))

    def as_set(self) -> Set:
        """A set of its members, which may be changed."""
        return set_of(self._as(Element.Type.Set))

    def as_table(self) -> Table:
        """A table of its entries, which may be changed."""
        return table_of(self._as(Element.Type.Table))

    def as_vector(self) -> Vector:
        """A vector of its items, which may be changed."""
        return vector_of(self._as(Element.Type.Vector))

    def __eq__(self, other: object) -> bool:
        return same(self._value, other._value) if isinstance(other, Element) else NotImplemented

    def __lt__(self, other: Element) -> bool:
        return sort_key(self._value) < sort_key(other._value) if isinstance(other, Element) else NotImplemented

    def __hash__(self) -> int:
        return hash(sort_key(self._value))

    def __str__(self) -> str:
        return to_text(self._value)


class Data(Element):
    """One value of any type. Made from what Python has, or from another ``Data``; raises TypeError for other things."""

    def __init__(self, x: object = None) -> None:
        self._value = _value_of(x)

    @staticmethod
    def from_py(x: object) -> Data:
        """The same as ``Data(x)``."""
        return Data(x)

    @staticmethod
    def to_py(d: Element) -> Any:
        """The Python object: sets, dicts, tuples, ipaddress objects, datetimes in UTC; bytes for what is not UTF-8."""
        return to_py(d._value)


class ImmutableData(Data):
    """As ``Data``, but ``to_py`` makes what can be a member of a set: frozensets, tuples and read-only dicts."""

    class HashableReadOnlyDict(dict[Any, Any]):
        """A dict that cannot be changed."""

        def __hash__(self) -> int:  # type: ignore[override]
            return hash(frozenset(self.items()))

        def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
            raise TypeError("cannot modify this dict")

        __setitem__ = __delitem__ = pop = popitem = clear = update = setdefault = _refuse
        __ior__ = _refuse

    @staticmethod
    def to_py(d: Element) -> Any:
        """As ``Data.to_py``, everything hashable."""
        return to_immutable_py(d._value)


def to_py(value: Any) -> Any:
    """As ``Data.to_py``, of a value."""
    kind = type(value)
    if kind is tuple:
        return tuple([to_py(each) for each in value])
    if kind is values.Set:
        return {to_py(each) for each in value.members}
    if kind is values.Table:
        return {to_py(key): to_py(each) for key, each in value.pairs()}
    convert = _TO_PY.get(kind)
    return value if convert is None else convert(value)


def to_immutable_py(value: Any) -> Any:
    """As ``ImmutableData.to_py``, of a value."""
    kind = type(value)
    if kind is tuple:
        return tuple([to_immutable_py(each) for each in value])
    if kind is values.Set:
        return frozenset([to_immutable_py(each) for each in value.members])
    if kind is values.Table:
        return ImmutableData.HashableReadOnlyDict(
            [(to_immutable_py(key), to_immutable_py(each)) for key, each in value.pairs()]
        )
    convert = _TO_PY.get(kind)
    return value if convert is None else convert(value)


_TO_PY: Final[dict[type, Callable[[Any], object]]] = {
    scalars.Count: wrapped.Count._of,
    scalars.EnumValue: wrapped.Enum._of,
    scalars.Port: wrapped.Port._of,
    scalars.Address: lambda value: value.ip,
    scalars.Subnet: lambda value: value.ip_network,
    scalars.Timestamp: lambda value: scalars.EPOCH + timedelta(microseconds=_microseconds(value)),
    scalars.Timespan: lambda value: timedelta(microseconds=_microseconds(value)),
}


def _microseconds(ns: int) -> int:
    """The nearest."""
    return (int(ns) + 500) // 1000


def _value_of(x: object) -> values.Value:
    convert = FROM_PY.get(type(x))
    if convert is None:
        convert = next((FROM_PY[base] for base in type(x).__mro__ if base in FROM_PY), None)
        if convert is None:
            raise TypeError(f"unsupported data type: {type(x)}")
    return convert(x)


def _integer(x: int) -> values.Value:
    if not INTEGER_MIN <= x <= INTEGER_MAX:
        raise OverflowError(f"{x} does not fit into 64 bits with sign; Count(...) goes up to 2**64-1")
    return int(x)


def _converted(x: object) -> values.Value:
    try:
        return to_value(x)
    except UnsupportedValue as error:
        raise ValueError(str(error)) from None


def _moment(x: datetime) -> values.Value:
    return _converted(x if x.utcoffset() is not None else x.astimezone(UTC))


# What each Python type becomes; ``zeek`` adds its events.
FROM_PY: Final[dict[type, Callable[[Any], values.Value]]] = {
    type(None): lambda x: None,
    bool: lambda x: x,
    int: _integer,
    float: lambda x: float(x),
    str: _converted,
    bytes: _converted,
    timedelta: _converted,
    datetime: _moment,
    IPv4Address: _converted,
    IPv6Address: _converted,
    IPv4Network: _converted,
    IPv6Network: _converted,
    list: lambda x: tuple([_value_of(each) for each in x]),
    tuple: lambda x: tuple([_value_of(each) for each in x]),
    set: lambda x: values.Set([_value_of(each) for each in x]),
    frozenset: lambda x: values.Set([_value_of(each) for each in x]),
    dict: lambda x: values.Table([(_value_of(key), _value_of(each)) for key, each in x.items()]),
    types.MappingProxyType: lambda x: values.Table([(_value_of(key), _value_of(each)) for key, each in x.items()]),
    Element: lambda x: x._value,
    **dict.fromkeys(
        (
            wrapped.Address,
            wrapped.Count,
            wrapped.Enum,
            wrapped.Port,
            wrapped.Subnet,
            wrapped.Timespan,
            wrapped.Timestamp,
        ),
        lambda x: x._held,
    ),
    **dict.fromkeys((Set, Table, Vector), lambda x: x._value()),
}
