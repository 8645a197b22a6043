"""From Python objects to values and back: the table of conversions.

=========================================== ============ ==========================================
Python                                      value        and back (``to_python``)
=========================================== ============ ==========================================
``None``                                    none         ``None``
``bool``                                    boolean      ``bool``
``Count``                                   count        ``Count``, a kind of ``int``
``int``                                     integer      ``int``
``float``                                   real         ``float``
``str``                                     string       ``str``
``bytes``                                   string       ``bytes`` where it is not UTF-8, else ``str``
``IPv4Address``, ``IPv6Address``, ``Address`` address    ``IPv4Address`` or ``IPv6Address``
``IPv4Network``, ``IPv6Network``, ``Subnet`` subnet      ``IPv4Network`` or ``IPv6Network``
``Port``                                    port         ``Port``
``datetime`` with time zone, ``Timestamp``  timestamp    ``datetime`` in UTC; below a microsecond is dropped
``timedelta``, ``Timespan``                 timespan     ``timedelta``; below a microsecond is dropped
``EnumValue``                               enum value   ``EnumValue``, a kind of ``str``
``set``, ``frozenset``, ``Set``             set          ``frozenset``
``dict`` and other mappings, ``Table``      table        ``dict``; ``Table`` inside a set or a key
``list``, ``tuple``                         vector       ``tuple``
=========================================== ============ ==========================================

Subclasses of these become what their base does (an ``IntEnum`` an integer). Anything else raises UnsupportedValue, as
does an integer outside of 64 bits, a ``datetime`` without time zone, or an address with a zone.

A set or table whose members would be equal in Python, such as ``Count(1)`` and ``1``, stays a ``Set`` or ``Table`` on
the way back: nothing is lost. Use the values themselves where nanoseconds matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final

from chappe.data.order import check_depth
from chappe.data.scalars import INTEGER_MAX, INTEGER_MIN, Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.data.values import Set, Table, Value
from chappe.errors import UnsupportedValue


def to_value(thing: object, depth: int = 0) -> Value:
    """The value that a Python object stands for; raises UnsupportedValue if there is none."""
    convert = _FROM_PYTHON.get(type(thing))
    if convert is None:
        convert = _by_base(thing)
    return convert(thing, depth)


def to_python(value: Value) -> Any:
    """The natural Python object for a value, as the table says; raises UnsupportedValue for anything else."""
    return _to_python(value, False, 0)


def _same(value: Any, depth: int) -> Value:
    kept: Value = value
    return kept


def _integer(value: int, depth: int) -> Value:
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise UnsupportedValue(f"{value} is outside of -2**63 to 2**63-1; a Count goes up to 2**64-1")
    return int(value)


def _string(value: str, depth: int) -> Value:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnsupportedValue(f"{value!r} holds half of a surrogate pair, which UTF-8 cannot carry") from None
    return str(value)


def _bytes(value: bytes, depth: int) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return bytes(value)


def _vector(items: list[object] | tuple[object, ...], depth: int) -> Value:
    check_depth(depth)
    return tuple([to_value(each, depth + 1) for each in items])


def _set(members: AbstractSet[object], depth: int) -> Value:
    check_depth(depth)
    return Set([to_value(each, depth + 1) for each in members])


def _table(entries: Mapping[object, object], depth: int) -> Value:
    check_depth(depth)
    pairs = entries.pairs() if isinstance(entries, Table) else entries.items()
    return Table([(to_value(key, depth + 1), to_value(value, depth + 1)) for key, value in pairs])


_FROM_PYTHON: Final[dict[type, Callable[[Any, int], Value]]] = {
    **dict.fromkeys((type(None), bool, Count, Address, Subnet, Port, Timestamp, Timespan, EnumValue, Set), _same),
    int: _integer,
    float: lambda value, depth: float(value),
    str: _string,
    bytes: _bytes,
    **dict.fromkeys((tuple, list), _vector),
    **dict.fromkeys((set, frozenset), _set),
    **dict.fromkeys((dict, Table), _table),
    datetime: lambda value, depth: Timestamp.from_datetime(value),
    timedelta: lambda value, depth: Timespan.from_timedelta(value),
    **dict.fromkeys((IPv4Address, IPv6Address), lambda value, depth: Address(value)),
    **dict.fromkeys((IPv4Network, IPv6Network), lambda value, depth: Subnet.from_network(value)),
}


def _by_base(thing: object) -> Callable[[Any, int], Value]:
    """Return the conversion for an object whose type is only a subclass of one in the table."""
    for base in type(thing).__mro__[1:]:
        convert = _FROM_PYTHON.get(base)
        if convert is not None and convert is not _same:
            return convert
    if isinstance(thing, Mapping):
        return _table
    if isinstance(thing, AbstractSet):
        return _set
    raise UnsupportedValue(f"a {type(thing).__name__} cannot become a value; chappe.data.convert lists what can")


def _to_python(value: Any, hashable: bool, depth: int) -> Any:
    kind = type(value)
    if kind is tuple:
        check_depth(depth)
        return tuple([_to_python(each, hashable, depth + 1) for each in value])
    if kind is Set:
        check_depth(depth)
        members = frozenset([_to_python(each, True, depth + 1) for each in value.members])
        return members if len(members) == len(value) else value
    if kind is Table:
        check_depth(depth)
        if hashable:
            return value
        entries = {_to_python(key, True, depth + 1): _to_python(each, False, depth + 1) for key, each in value.pairs()}
        return entries if len(entries) == len(value) else value
    convert = _TO_PYTHON.get(kind)
    if convert is not None:
        return convert(value)
    if kind in _FROM_PYTHON:
        return value
    raise UnsupportedValue(f"a {kind.__name__} is not a value")


_TO_PYTHON: Final[dict[type, Callable[[Any], object]]] = {
    bytes: lambda value: _bytes(value, 0),
    Address: lambda value: value.ip,
    Subnet: lambda value: value.ip_network,
    Timestamp: lambda value: value.to_datetime(),
    Timespan: lambda value: value.to_timedelta(),
}
