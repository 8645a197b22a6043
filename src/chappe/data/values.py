"""The typed values that peers exchange: fifteen types, all immutable and hashable.

============ ========================== =========================================================
type         in Python                  bounds
============ ========================== =========================================================
none         ``None``
boolean      ``bool``
count        ``Count``                  0 to 2**64-1
integer      ``int``                    -2**63 to 2**63-1
real         ``float``
string       ``str``, or ``bytes``      ``bytes`` where it is not UTF-8
address      ``Address``                IPv4 or IPv6
subnet       ``Subnet``
port         ``Port``                   0 to 65535, with tcp, udp, icmp or unknown
timestamp    ``Timestamp``              nanoseconds since 1970 UTC in 64 bits
timespan     ``Timespan``               nanoseconds in 64 bits
enum value   ``EnumValue``
set          ``Set``                    members in order
table        ``Table``                  keys in order
vector       ``tuple``
============ ========================== =========================================================

A value has at most ``defaults.VALUE_ELEMENTS_MAX`` elements, ``VALUE_BYTES_MAX`` bytes and ``VALUE_DEPTH_MAX``
containers in containers. Other Python objects become values by ``chappe.data.convert.to_value``; the encoders call it
where needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Final, TypeAlias, Union

from chappe.data import order
from chappe.data.order import SET, TABLE, ContainerKey, SortKey, arrange, check_depth, height, sort_key
from chappe.data.scalars import Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.errors import UnsupportedValue

__all__ = [
    "EMPTY_SET", "EMPTY_TABLE", "TAGS", "Address", "Count", "EnumValue", "Port", "Set", "Subnet", "Table", "Timespan",
    "Timestamp", "Value", "type_name",
]  # fmt: skip

# Count, Timestamp and Timespan are kinds of int, EnumValue of str, Address of bytes, Port and Subnet of tuple.
Value: TypeAlias = Union[bool, int, float, str, bytes, tuple["Value", ...], "Set", "Table", Port, Subnet, None]


class _Arranged:
    """The base of sets and tables: computes their place in the order once."""

    __slots__ = ("_height", "_key")

    _tag: ClassVar[int]
    _height: int  # of the deepest member, once the key is known
    _key: SortKey | None

    def _elements(self) -> Sequence[Value]:
        raise NotImplementedError

    def sort_key(self, depth: int = 0) -> SortKey:
        """Its place in the order of all values."""
        check_depth(depth + self._height)
        if self._key is None:
            elements = self._elements()
            self._key = ContainerKey((self._tag, *[sort_key(each, depth + 1) for each in elements]))
            self._height = max(map(height, elements), default=0)
        return self._key

    def height(self) -> int:
        """The nesting depth including itself; known once ``sort_key`` was asked for."""
        return 1 + self._height

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.sort_key() == other.sort_key()

    def __hash__(self) -> int:
        return hash(self.sort_key())


class Set(_Arranged, AbstractSet[Value]):
    """A set of values in their order, immutable and hashable; the same value twice is kept once.

    ``1``, ``Count(1)``, ``1.0`` and ``True`` are four different members. Raises UnsupportedValue for
    anything that is not a value.
    """

    __slots__ = ("_index", "_members")
    _tag = SET

    def __init__(self, members: Iterable[Value] = ()) -> None:
        self._members: tuple[Value, ...] = arrange(list(members), 1)
        self._index: frozenset[SortKey] | None = None
        self._key: SortKey | None = None
        self._height = 0

    @classmethod
    def of_arranged(cls, members: tuple[Value, ...]) -> Set:
        """A set of members that ``order.arrange`` has put in order."""
        made = cls.__new__(cls)
        made._members = members
        made._index = None
        made._key = None
        made._height = 0
        return made

    def adding(self, member: Value) -> Set:
        """This set with one more member; costs a copy of what refers to the members, not an order of them anew."""
        place, found = _place(self._members, sort_key(member, 1))
        return Set.of_arranged((*self._members[:place], member, *self._members[place + found :]))

    def removing(self, member: Value) -> Set:
        """This set without a member, if it is one; costs as ``adding``."""
        place, found = _place(self._members, sort_key(member))
        return Set.of_arranged((*self._members[:place], *self._members[place + 1 :])) if found else self

    @property
    def members(self) -> tuple[Value, ...]:
        return self._members

    def _elements(self) -> Sequence[Value]:
        return self._members

    def __contains__(self, value: object) -> bool:
        if self._index is None:
            self._index = frozenset(self.sort_key()[1:])
        return sort_key(value) in self._index

    def __iter__(self) -> Iterator[Value]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"Set({list(self._members)!r})"


class Table(_Arranged, Mapping[Value, Value]):
    """A table of values by values, in the order of its keys, immutable and hashable.

    Keys are told apart by type, as members of a ``Set`` are: ``table[1]`` does not find what stands under
    ``Count(1)``. Of several entries with the same key the last one stays. Raises UnsupportedValue for a key that is no
    value.
    """

    __slots__ = ("_index", "_keys", "_values")
    _tag = TABLE

    def __init__(self, entries: Mapping[Any, Value] | Iterable[tuple[Value, Value]] = ()) -> None:
        pairs = list(entries.items() if isinstance(entries, Mapping) else entries)
        index = {sort_key(key, 1): (key, value) for key, value in pairs}
        ordered = [index[each] for each in sorted(index)]
        self._keys: tuple[Value, ...] = tuple([key for key, _ in ordered])
        self._values: tuple[Value, ...] = tuple([value for _, value in ordered])
        self._index: dict[SortKey, Value] | None = None
        self._key: SortKey | None = None
        self._height = 0

    @classmethod
    def of_arranged(cls, keys: tuple[Value, ...], values: tuple[Value, ...]) -> Table:
        """A table of keys that ``order.arrange`` has put in order, and the value of each."""
        made = cls.__new__(cls)
        made._keys = keys
        made._values = values
        made._index = None
        made._key = None
        made._height = 0
        return made

    def setting(self, key: Value, value: Value) -> Table:
        """This table with a value under a key; costs as ``Set.adding``."""
        place, found = _place(self._keys, sort_key(key, 1))
        rest = place + found
        return Table.of_arranged(
            (*self._keys[:place], key, *self._keys[rest:]), (*self._values[:place], value, *self._values[rest:])
        )

    def removing(self, key: Value) -> Table:
        """This table without what stands under a key, if anything does; costs as ``Set.adding``."""
        place, found = _place(self._keys, sort_key(key))
        if not found:
            return self
        rest = place + 1
        return Table.of_arranged(
            (*self._keys[:place], *self._keys[rest:]), (*self._values[:place], *self._values[rest:])
        )

    def pairs(self) -> Iterator[tuple[Value, Value]]:
        """All (key, value) in order; faster than ``items()``, which looks each key up."""
        return zip(self._keys, self._values, strict=True)

    def _elements(self) -> Sequence[Value]:
        return [each for pair in self.pairs() for each in pair]

    def __getitem__(self, key: Value) -> Value:
        if self._index is None:
            self._index = {sort_key(each): value for each, value in self.pairs()}
        try:
            return self._index[sort_key(key)]
        except KeyError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Value]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Table({list(self.pairs())!r})"


def _member_key(member: Value) -> SortKey:
    return sort_key(member, 1)


def _place(keys: tuple[Value, ...], key: SortKey) -> tuple[int, bool]:
    """Return the index at which a key belongs, and whether it is present."""
    place = bisect_left(keys, key, key=_member_key)
    return place, place < len(keys) and _member_key(keys[place]) == key


EMPTY_SET: Final = Set()
EMPTY_TABLE: Final = Table()

# The tag of each Python type that is a value; both string types have the same.
TAGS: Final[dict[type, int]] = {
    type(None): order.NONE,
    bool: order.BOOLEAN,
    Count: order.COUNT,
    int: order.INTEGER,
    float: order.REAL,
    str: order.STRING,
    bytes: order.STRING,
    Address: order.ADDRESS,
    Subnet: order.SUBNET,
    Port: order.PORT,
    Timestamp: order.TIMESTAMP,
    Timespan: order.TIMESPAN,
    EnumValue: order.ENUM_VALUE,
    Set: order.SET,
    Table: order.TABLE,
    tuple: order.VECTOR,
}


def type_name(value: Value) -> str:
    """The name of a value's type, one of ``order.TYPE_NAMES``; raises UnsupportedValue for anything else."""
    tag = TAGS.get(type(value))
    if tag is None:
        raise UnsupportedValue(f"a {type(value).__name__} is not a value; see chappe.data.convert.to_value")
    return order.TYPE_NAMES[tag]
