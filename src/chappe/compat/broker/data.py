"""``Data``, ``ImmutableData`` and containers: values of ``chappe.data`` with the conversions of the original bindings.

Departures from the original, which makes ``True`` of integers outside of 64 bits and loses nanoseconds in ``float``:
such an integer raises OverflowError, and datetimes and timedeltas convert exactly. A set or table that Python's own
types cannot hold (a set of sets, or one with ``Count(1)`` and ``1``) raises TypeError in ``Data.to_py`` where it is
unhashable, as in the original; ``ImmutableData.to_py`` takes everything.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from datetime import UTC, datetime, timedelta
from enum import Enum as _Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final, NoReturn, Self, SupportsIndex, TypeVar

from chappe.compat.broker import scalars as wrapped
from chappe.data import scalars, values
from chappe.data.convert import to_value
from chappe.data.order import SortKey, same, sort_key
from chappe.data.scalars import INTEGER_MAX, INTEGER_MIN
from chappe.data.text import to_text
from chappe.errors import UnsupportedValue

NS: Final = 1_000_000_000
T = TypeVar("T")


def _reader(name: str, convert: Callable[[Any], T]) -> Callable[[Element], T]:

    def read(self: Element) -> T:
        """Return the value; raises RuntimeError if it is of another type."""
        if self.get_type().name != name:
            raise RuntimeError(f"this is a {self.get_type().name}, not a {name}")
        return convert(self._value)

    return read


@functools.total_ordering
class Element:
    """One value of any type, as containers hold it: it has what ``Data`` has without being one, as in the original.

    ``Data(element)`` is one, ``Data.to_py(element)`` what Python has for it.
    """

    _value: values.Value

    Type = _Enum(
        "Type",
        "Nil Boolean Count Integer Real String Address Subnet Port Timestamp Timespan EnumValue Set Table Vector",
        start=0,
    )
    """The types, by their numbers on the wire."""

    @classmethod
    def _of(cls, value: values.Value) -> Self:
        made = cls.__new__(cls)
        made._value = value
        return made

    def get_type(self) -> Element.Type:
        return Element.Type(values.TAGS[type(self._value)])

    as_none = _reader("Nil", lambda value: None)
    as_boolean = _reader("Boolean", bool)
    as_count = _reader("Count", int)
    as_integer = _reader("Integer", int)
    as_real = _reader("Real", float)
    as_string = _reader("String", lambda value: value if isinstance(value, bytes) else bytes(value.encode()))
    as_address = _reader("Address", wrapped.Address._of)
    as_subnet = _reader("Subnet", wrapped.Subnet._of)
    as_port = _reader("Port", wrapped.Port._of)
    as_timestamp = _reader("Timestamp", lambda value: int(value) / NS)  # seconds since 1970 UTC
    as_timespan = _reader("Timespan", lambda value: int(value) / NS)  # seconds
    as_enum_value = _reader("EnumValue", wrapped.Enum._of)
    as_set = _reader("Set", lambda value: Set(map(Element._of, value)))  # this and the next two may be changed
    as_table = _reader("Table", lambda value: Table._of(value))
    as_vector = _reader("Vector", lambda value: Vector(map(Element._of, value)))

    def __eq__(self, other: object) -> bool:
        return same(self._value, other._value) if isinstance(other, Element) else NotImplemented

    def __lt__(self, other: Element) -> bool:
        return sort_key(self._value) < sort_key(other._value) if isinstance(other, Element) else NotImplemented

    def __hash__(self) -> int:
        return hash(sort_key(self._value))

    def __str__(self) -> str:
        return to_text(self._value)


def _held(data: object) -> values.Value:
    if not isinstance(data, Element):
        raise TypeError(f"a container holds Data, not a {type(data).__name__}: use Data(...)")
    return data._value


class Set:
    def __init__(self, members: Iterable[Element] = ()) -> None:
        self._members: dict[SortKey, values.Value] = {}
        for each in members:
            self.add(each)

    def add(self, member: Element) -> None:
        value = _held(member)
        self._members.setdefault(sort_key(value), value)

    def remove(self, member: Element) -> None:
        self._members.pop(sort_key(_held(member)), None)

    def clear(self) -> None:
        self._members.clear()

    def _value(self) -> values.Set:
        return values.Set(self._members.values())

    def __contains__(self, member: object) -> bool:
        return isinstance(member, Element) and sort_key(member._value) in self._members

    def __iter__(self) -> Iterator[Element]:
        return map(Element._of, self._value())

    def __len__(self) -> int:
        return len(self._members)

    def __eq__(self, other: object) -> bool:
        return self._members.keys() == other._members.keys() if isinstance(other, Set) else NotImplemented

    def __repr__(self) -> str:
        return f"Set{{{', '.join(map(str, self))}}}"


class Table(MutableMapping[Element, Element]):
    def __init__(self) -> None:
        self._entries: dict[SortKey, tuple[values.Value, values.Value]] = {}

    @classmethod
    def _of(cls, held: values.Table) -> Table:
        made = cls()
        made._entries = {sort_key(key): (key, value) for key, value in held.pairs()}
        return made

    def _value(self) -> values.Table:
        return values.Table(self._entries.values())

    def __getitem__(self, key: Element) -> Element:
        try:
            return Element._of(self._entries[sort_key(_held(key))][1])
        except KeyError:
            raise KeyError(str(key)) from None

    def __setitem__(self, key: Element, value: Element) -> None:
        held = _held(key)
        self._entries[sort_key(held)] = (held, _held(value))

    def __delitem__(self, key: Element) -> None:
        if key not in self:
            raise KeyError(str(key))
        del self._entries[sort_key(_held(key))]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Element) and sort_key(key._value) in self._entries

    def __iter__(self) -> Iterator[Element]:
        return (Element._of(key) for key, _ in self._value().pairs())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if isinstance(other, Table) else NotImplemented

    def __repr__(self) -> str:
        return f"Table{{{', '.join(f'{key}: {value}' for key, value in self.items())}}}"


class Vector(list["Element"]):
    __hash__ = None

    def __init__(self, items: Iterable[Element] = ()) -> None:
        super().__init__(map(_checked, items))

    def append(self, item: Element) -> None:
        super().append(_checked(item))

    def insert(self, place: SupportsIndex, item: Element) -> None:
        """Add it before what stands at ``place``."""
        super().insert(place, _checked(item))

    def extend(self, items: Iterable[Element]) -> None:
        super().extend(map(_checked, items))

    def _value(self) -> tuple[values.Value, ...]:
        return tuple([_held(each) for each in self])

    def __repr__(self) -> str:
        return f"Vector[{', '.join(map(str, self))}]"

    __str__ = __repr__


def _checked(item: Element) -> Element:
    _held(item)
    return item


class Data(Element):
    """One value of any type. Made from what Python has, or from another ``Data``; raises TypeError for other things."""

    def __init__(self, x: object = None) -> None:
        self._value = _value_of(x)

    @staticmethod
    def from_py(x: object) -> Data:
        return Data(x)

    @staticmethod
    def to_py(d: Element) -> Any:
        """Return the Python object: set, dict, tuple, ipaddress object, datetime in UTC; bytes if not UTF-8."""
        return to_py(d._value)


class ImmutableData(Data):
    """A ``Data`` whose ``to_py`` makes members of sets: frozensets, tuples and read-only dicts."""

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
        return to_py(d._value, immutable=True)


def to_py(value: Any, *, immutable: bool = False) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([to_py(each, immutable=immutable) for each in value])
    if kind is values.Set:
        members = [to_py(each, immutable=immutable) for each in value.members]
        return frozenset(members) if immutable else set(members)
    if kind is values.Table:
        pairs = [(to_py(key, immutable=immutable), to_py(each, immutable=immutable)) for key, each in value.pairs()]
        return ImmutableData.HashableReadOnlyDict(pairs) if immutable else dict(pairs)
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
    float: float,
    datetime: _moment,
    **dict.fromkeys((str, bytes, timedelta, IPv4Address, IPv6Address, IPv4Network, IPv6Network), _converted),
    **dict.fromkeys((list, tuple), lambda x: tuple([_value_of(each) for each in x])),
    **dict.fromkeys((set, frozenset), lambda x: values.Set([_value_of(each) for each in x])),
    **dict.fromkeys(
        (dict, types.MappingProxyType),
        lambda x: values.Table([(_value_of(key), _value_of(each)) for key, each in x.items()]),
    ),
    Element: lambda x: x._value,
    **dict.fromkeys(wrapped.KINDS, lambda x: x._held),
    **dict.fromkeys((Set, Table, Vector), lambda x: x._value()),
}
