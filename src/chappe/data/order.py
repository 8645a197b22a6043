"""The total order of values, and which are the same.

Values are ordered by type, in the order of the tags below, then within the type: numbers numerically, strings and enum
names by their bytes, addresses by bytes, subnets by (address, length), ports by (number, protocol), containers
member by member (a shorter one that is a prefix of the other comes first), tables by (key, value).

Two values are the same when neither comes before the other. That is stricter than Python's ``==``, for which
``Count(1) == 1 == 1.0 == True``; and wider for strings, which are bytes that Python shows as ``str`` where they are
UTF-8. The original has no place for NaN, which it takes to equal every real; here NaN comes after all other reals.

Values come from strangers, who know how Python hashes numbers and tuples and can make millions that collide. So values
are put in order by comparing, which costs little if they come in order, and a container's key hashes as text, with the
process's own secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from chappe.compiled import interpreted
from chappe.data import scalars
from chappe.data.scalars import PROTOCOLS, Address, Count, EnumValue, Port, Subnet, Timespan, Timestamp
from chappe.defaults import VALUE_DEPTH_MAX
from chappe.errors import UnsupportedValue

# Tags: the first byte of a value on the wire, and its rank in the order.
NONE: Final = 0
BOOLEAN: Final = 1
COUNT: Final = 2
INTEGER: Final = 3
REAL: Final = 4
STRING: Final = 5
ADDRESS: Final = 6
SUBNET: Final = 7
PORT: Final = 8
TIMESTAMP: Final = 9
TIMESPAN: Final = 10
ENUM_VALUE: Final = 11
SET: Final = 12
TABLE: Final = 13
VECTOR: Final = 14

# The names of the types by tag, as JSON has them.
TYPE_NAMES: Final = (
    "none", "boolean", "count", "integer", "real", "string", "address", "subnet", "port", "timestamp", "timespan",
    "enum-value", "set", "table", "vector",
)  # fmt: skip

SortKey: TypeAlias = tuple[Any, ...]  # a tag and what the order compares; hashable, and equal for the same value
T = TypeVar("T")


@interpreted
class ContainerKey(tuple[Any, ...]):
    """The sort key of a vector, set or table. Equal keys are written alike, as each tag has one Python type."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple.__repr__(self))


# Types whose members Python sorts, compares and hashes as the order wants, as long as all are of the one type.
_NATURAL: Final[frozenset[type]] = frozenset({str, int, bool, Count, Timestamp, Timespan, Address})


def sort_key(value: object, depth: int = 0) -> SortKey:
    """Return the key that orders and finds a value; raises UnsupportedValue for one that is unsupported or too deep."""
    make = _KEYS.get(type(value))
    if make is not None:
        return make(value)
    if type(value) is tuple:
        check_depth(depth)
        return ContainerKey((VECTOR, *[sort_key(each, depth + 1) for each in value]))
    if hasattr(value, "sort_key"):  # a set or table, which knows its own place
        found: SortKey = value.sort_key(depth)
        return found
    raise UnsupportedValue(
        f"a {type(value).__name__} is not a value: convert it with chappe.data.convert.to_value, if it can be one"
    )


def height(value: object) -> int:
    """Return the nesting depth of a value that has a ``sort_key``: 0 for scalars."""
    if type(value) is tuple:
        return 1 + max(map(height, value), default=0)
    return int(value.height()) if hasattr(value, "height") else 0


def check_depth(depth: int) -> None:
    """Raise UnsupportedValue where a container would lie in ``depth`` others and that is too deep."""
    if depth >= VALUE_DEPTH_MAX:
        raise UnsupportedValue(f"a value is nested deeper than {VALUE_DEPTH_MAX} containers")


def same(left: object, right: object) -> bool:
    """Return whether two values are of one type, and neither comes before the other."""
    return sort_key(left) == sort_key(right)


def arrange(values: Sequence[T], depth: int = 0) -> tuple[T, ...]:
    """The values in order, each once; of several that are the same one stays: the last, if Python tells them apart."""
    kinds: set[type] = set(map(type, values))
    if len(kinds) == 1 and kinds <= _NATURAL:
        natural: Any = values
        return tuple(sorted(dict.fromkeys(natural)))
    return tuple([values[place] for place in places(values, depth)])


def places(values: Sequence[object], depth: int = 0) -> list[int]:
    """Return the positions of values in the order of ``arrange``; of several equal ones the last."""
    keys = [sort_key(value, depth) for value in values]
    found: list[int] = []
    for place in sorted(range(len(keys)), key=keys.__getitem__):
        if found and keys[found[-1]] == keys[place]:
            found[-1] = place
        else:
            found.append(place)
    return found


def _string_key(value: str) -> SortKey:
    try:
        return (STRING, value.encode())
    except UnicodeEncodeError:
        raise UnsupportedValue(f"{value!r} holds half of a surrogate pair, which UTF-8 cannot carry") from None


def _integer_key(value: int) -> SortKey:
    if not scalars.INTEGER_MIN <= value <= scalars.INTEGER_MAX:
        raise UnsupportedValue(f"{value} is outside of -2**63 to 2**63-1")
    return (INTEGER, value)


_KEYS: Final[dict[type, Callable[[Any], SortKey]]] = {
    type(None): lambda value: (NONE,),
    bool: lambda value: (BOOLEAN, value),
    Count: lambda value: (COUNT, int(value)),
    int: _integer_key,
    float: lambda value: (REAL, value + 0.0) if value == value else (REAL, float("inf"), 1),
    str: _string_key,
    bytes: lambda value: (STRING, value),
    Address: lambda value: (ADDRESS, bytes(value)),
    Subnet: lambda value: (SUBNET, bytes(value.network), value.wire_length),
    Port: lambda value: (PORT, value.number, PROTOCOLS.index(value.protocol)),
    Timestamp: lambda value: (TIMESTAMP, int(value)),
    Timespan: lambda value: (TIMESPAN, int(value)),
    EnumValue: lambda value: (ENUM_VALUE, value.encode("utf-8", "surrogateescape")),
}
